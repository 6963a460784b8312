"""Tables that hold more than numbers: text, dates and missing values, as estimators are given them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import _check_feature_names, _check_n_features

if TYPE_CHECKING:
    from bedl.data.features import FeatureEncoder

__all__ = ["dense", "encoded", "needs_encoding"]

MOST = 2**29  # numbers of a sparse X that are written out, 4 GB


def dense(X: Any) -> Any:
    """A sparse X, such as one-hot columns, with its zeros written out; anything else as it is.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> dense(csr_matrix([[0.0, 1.0]]))
        array([[0., 1.]])
    """
    if not issparse(X):
        return X
    if math.prod(X.shape) > MOST:
        raise ValueError(
            f"X is sparse, of shape {X.shape}; with its zeros written out, as networks need it, it would take "
            f"{8 * math.prod(X.shape) / 2**30:.0f} GB. Reduce its columns first, such as by "
            "sklearn.decomposition.TruncatedSVD"
        )
    return X.toarray()


def needs_encoding(X: Any) -> bool:
    """Whether X is a table with text, dates, categories or missing values; a matrix of numbers needs nothing.

    Example:
        >>> needs_encoding(np.zeros((2, 2))), needs_encoding(np.array([[1.0, np.nan]]))
        (False, True)
    """
    dtypes = getattr(X, "dtypes", None)
    if dtypes is not None and hasattr(X, "columns"):  # pandas or polars
        if not all(_is_number(dtype) for dtype in dtypes) or (hasattr(X, "isna") and X.isna().to_numpy().any()):
            return True
        X = X.to_numpy()
    if isinstance(X, (list, tuple)):
        return False  # nested lists are numbers, or scikit-learn's own message says what they are
    X = np.asarray(X) if hasattr(X, "__array__") else X
    if not isinstance(X, np.ndarray) or X.ndim != 2 or not X.size:
        return False
    if X.dtype.kind == "O":
        return any(isinstance(value, str) or value is None or value != value for value in X.flat)
    return X.dtype.kind in "UM" or (X.dtype.kind == "f" and bool(np.isnan(X).any()))


def _is_number(dtype: Any) -> bool:
    kind = getattr(dtype, "kind", None)  # NumPy's and pandas' own
    if kind is not None:
        return kind in "biuf"
    return bool(getattr(dtype, "is_numeric", lambda: False)())  # polars


def encoded(estimator: Any, X: Any, encoder: FeatureEncoder | None, unseen: str) -> tuple[np.ndarray, FeatureEncoder]:
    """X as numbers, and how: as before if there is an encoder, else decided anew.

    Args:
        estimator: whose names and number of columns are set, or compared.
        X: the table.
        encoder: of the training table.
        unseen: what to do about categories that training did not see: "error" or "ignore".
    """
    from bedl.data import DataError, open_table
    from bedl.data.features import FeatureEncoder

    _check_feature_names(estimator, X, reset=encoder is None)
    _check_n_features(estimator, X, reset=encoder is None)
    table = open_table(_as_frame(X))
    try:
        encoder = FeatureEncoder.fit(table) if encoder is None else encoder
        return encoder(table, unseen), encoder
    except DataError as error:
        if any(f"{name}=" in str(error) for name in ("ignore", "categorical", "decimal")):
            raise DataError(
                f"{error}. An estimator has no such options: change X itself, as in X.drop(columns=…)"
            ) from None
        raise


def _as_frame(X: Any) -> Any:
    """A frame whose columns have names: those of an array are their numbers."""
    if hasattr(X, "__dataframe__") or hasattr(X, "__arrow_c_stream__"):
        return X
    import pandas

    frame = pandas.DataFrame(np.asarray(X), columns=[f"x{number}" for number in range(np.shape(X)[1])])
    return frame.infer_objects() if frame.dtypes.eq(object).any() else frame
