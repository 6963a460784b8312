"""Networks by the place of their code: a module or a file, and what makes one in it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from bedl.errors import BEDLError

__all__ = ["FactoryError", "network_from"]


class FactoryError(BEDLError, ValueError):
    """There is no network where one was said to be."""


def network_from(factory: str) -> nn.Module:
    """The network at ``MODULE:FACTORY``; runs the code there.

    Args:
        factory: a dotted module or a .py file, a colon, and the name of a network, or of what makes one without
            arguments.

    Example:
        >>> network_from("torch.nn:Identity")
        Identity()
    """
    place, colon, name = factory.rpartition(":")
    if not colon or not place or not name:
        raise SyntaxError(f"MODULE:FACTORY, such as my_networks:resnet, not {factory!r}")
    module = _module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise FactoryError(f"{place} has no {name!r}. Check the name after the colon")
    if not isinstance(found, nn.Module) and callable(found):
        try:
            found = found()
        except Exception as error:
            raise FactoryError(
                f"{factory}() raised {type(error).__name__}: {error}. It is called without arguments; --debug shows "
                "more"
            ) from error
    if not isinstance(found, nn.Module):
        raise FactoryError(f"{factory} gives a {type(found).__name__}, not a torch.nn.Module. Name what makes one")
    return found


def _module(place: str) -> ModuleType:
    try:
        if not place.endswith(".py"):
            sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
            return importlib.import_module(place)
        path = Path(place)
        if not path.is_file():
            raise FactoryError(f"there is no file {path}. Check the path")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        sys.path.insert(0, str(path.parent.resolve()))
        spec.loader.exec_module(module)
        return module
    except FactoryError:
        raise
    except ModuleNotFoundError as error:
        raise FactoryError(f"{place} cannot be imported: there is no module {error.name!r}") from error
    except Exception as error:  # whatever the user's code raises
        raise FactoryError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
