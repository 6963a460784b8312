"""Scores of predictions: NumPy arrays in, numbers out. No model, no torch.

Rows with NaN, empty arrays and shapes that differ are refused with a `MetricError` (a ValueError) that says what to do.
The names are listed in `__init__.pyi`.
"""

from bedl._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
