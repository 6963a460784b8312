"""scikit-learn's contract: `BEDLRegressor` and `BEDLClassifier`, for tables, pipelines and searches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bedl._utils.imports import later, no_collection

__all__ = ["BEDLClassifier", "BEDLRegressor", "ModelFileError", "load"]


with no_collection():
    with later("pandas", "scipy.special", "scipy.stats"):  # half of scikit-learn's time, and hardly ever used
        import sklearn.base  # noqa: F401  # from here on, everybody finds it

    from bedl.estimators.classifier import BEDLClassifier
    from bedl.estimators.regressor import BEDLRegressor
    from bedl.estimators.storage import ModelFileError
    from bedl.estimators.storage import load as _load


def load(path: str | os.PathLike[str], **given: Any) -> Any:
    """Read an estimator that was written with `save`, whichever it is.

    Args:
        path: the file.
        given: parameters that no file can hold: the `net` (a module or callable), an own objective or activation.
    """
    return _load(Path(path), None, given)
