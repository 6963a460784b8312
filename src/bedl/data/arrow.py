"""pyarrow, without what it would bring along."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["spare_pandas"]


def spare_pandas() -> None:
    """Lets pyarrow look for pandas in vain, once: it would import it with the first array, for half a second, and
    nothing here hands it a frame.
    """
    if "pandas" in sys.modules:
        return
    blocker: Any = _NoPandas()
    sys.meta_path.insert(0, blocker)
    try:
        import pyarrow

        pyarrow.array([])
    except ModuleNotFoundError:
        pass  # no pyarrow: the verb itself says so
    finally:
        sys.meta_path.remove(blocker)


class _NoPandas:
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)
