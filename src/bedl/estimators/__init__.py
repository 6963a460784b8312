"""scikit-learn's contract: `BEDLRegressor` and `BEDLClassifier`, for tables, pipelines and searches.

Names are imported when they are first used: `bedl.estimators.tabular` runs an exported model without PyTorch and
scikit-learn. They are listed in `__init__.pyi`.
"""

from bedl._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
