"""Tables as the training loop wants them: fetched by number, with their noise, never copied as a whole."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Iterator
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from bedl.estimators._sklearn import _check_feature_names, _check_n_features
from bedl.evaluation import tasks
from bedl.moments import Moments
from bedl.nn.tabular import Standardize

if TYPE_CHECKING:
    from bedl.data.encode import FeatureEncoder

CHUNK = 2**19  # numbers that are looked at together
ROWS = 8192
OUTPUTS = 2**22  # numbers that are predicted together
MAX_MEAN_SHARE = 0.1  # a mean weight below which weights are taken for shares
MIN_RELATIVE_SPREAD = 1e-4  # spread over size, below which single precision has only some hundred values for a column


@dataclasses.dataclass(frozen=True)
class Related:
    """Which rows belong together, or which come later: they are left out together, or the latest ones are.

    Attributes:
        groups: number of each row's group, or None. shape: (n,)
        order: place of each row in time, or None. shape: (n,)
    """

    groups: np.ndarray | None = None
    order: np.ndarray | None = None

    @classmethod
    def of(cls, n: int, groups: Any, order: Any) -> Related:
        """Checked, for n rows.

        Example:
            >>> Related.of(3, ["a", "b", "a"], None).groups
            array([0, 1, 0])
        """
        if groups is not None and order is not None:
            raise ValueError("give groups or order, not both: new rows are of new groups, or of the next period")
        found = []
        for name, values in (("groups", groups), ("order", order)):
            array = None if values is None else np.asarray(values)
            if array is not None and array.shape != (n,):
                raise ValueError(f"{name} of shape {array.shape} are not one for each of {n} rows")
            if array is not None and any(value is None or value != value for value in array.tolist()):
                raise ValueError(f"{name} holds missing values; each row needs one")
            found.append(None if array is None else np.unique(array, return_inverse=True)[1])
        if found[0] is not None and n and not found[0].any():
            raise ValueError("groups holds one group only; to tell how well new groups are predicted takes two")
        return cls(*found)

    def __getitem__(self, rows: Any) -> Related:
        parts = (None if part is None else part[rows] for part in (self.groups, self.order))
        return Related(*parts)

    def training(self, fold: np.ndarray, number: int) -> np.ndarray:
        """Which rows may be learned from to tell a fold's: all others, in time the earlier ones. shape: (n,)"""
        return fold != number if self.order is None else fold > number

    @property
    def given(self) -> bool:
        """Whether rows are anything else than exchangeable."""
        return self.groups is not None or self.order is not None

    def weights(self) -> np.ndarray | None:
        """How much each row counts where all groups, or all periods, count the same; None: rows do. shape: (n,)"""
        kind = self.groups if self.order is None else self.order
        return None if kind is None else 1 / np.bincount(kind)[kind]


@dataclasses.dataclass
class TrainingSet:
    """Checked training data.

    Attributes:
        X: shape (n, *input)
        y: as the head wants it, standardised in regression. shape: (n,) or (n, D)
        weight: shape (n,), or None
        noise: variance of X's noise, or None
        related: which rows belong together, or which come later.
    """

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    noise: np.ndarray | None
    related: Related = dataclasses.field(default_factory=lambda: Related())

    @property
    def size(self) -> float:
        """How many points there are: a point of weight 2 counts as two."""
        return len(self.X) if self.weight is None else float(self.weight.sum())


class Inputs:
    """X, and the variance of its noise if it has some.

    Args:
        X: shape (n, *input); may be memory-mapped
        noise: variances, as `check_noise` gives them.
        dtype: the precision in which rows are wanted.
    """

    def __init__(self, X: np.ndarray, noise: np.ndarray | None, dtype: torch.dtype):
        self.X, self.noise, self.dtype = X, noise, dtype

    def __len__(self) -> int:
        return len(self.X)

    def fetch_rows(self, numbers: np.ndarray | slice) -> Tensor | Moments:
        """Some rows. shape: (len(numbers), *input)"""
        x = self._tensor(self.X[numbers])
        if self.noise is None:
            return x
        noise = self.noise[numbers] if self.noise.ndim == self.X.ndim else self.noise
        return Moments(x, self._tensor(noise).expand(x.shape))

    def chunks(self, outputs: int = 1) -> Iterator[Tensor | Moments]:
        """All rows, in order, some at a time; fewer where many outputs of each are computed."""
        for rows in slices(self.X, outputs):
            yield self.fetch_rows(rows)

    def _tensor(self, values: np.ndarray) -> Tensor:
        # a copy: torch does not like arrays that cannot be written to
        return torch.from_numpy(np.array(values, dtype=str(self.dtype).removeprefix("torch.")))


def slices(X: np.ndarray, outputs: int = 1) -> Iterator[slice]:
    """Runs of rows that fit into little memory, as do so many outputs of each."""
    rows = min(ROWS, max(1, CHUNK // max(1, int(np.prod(X.shape[1:])))), max(1, OUTPUTS // outputs))
    return (slice(start, start + rows) for start in range(0, len(X), rows))


def warn_of_small(weight: np.ndarray) -> None:
    """Say so where weights look like shares: rows that count for little leave much unknown. weight: shape (n,)"""
    counted = int(np.count_nonzero(weight))
    if weight.sum() < MAX_MEAN_SHARE * counted:
        warnings.warn(
            f"sample_weight adds up to {weight.sum():.3g} for {counted} rows. A row of weight 1 counts as one row, so "
            "predictions will be as unsure as of so few rows; divide relative weights by their mean",
            stacklevel=4,
        )


def check_noise(X_var: Any, X: np.ndarray) -> np.ndarray | None:
    """The variance of X's noise as an array; None if there is none. shape: (), (*input) or (n, *input)"""
    if X_var is None:
        return None
    noise = np.asarray(X_var)
    if noise.dtype.kind not in "buif":
        raise ValueError(f"X_var holds variances, numbers; not {noise.dtype}")
    if noise.shape not in ((), X.shape[1:], X.shape):
        raise ValueError(
            f"X_var of shape {noise.shape} does not fit X of shape {X.shape}: give one variance for all, one per "
            f"feature, shape {X.shape[1:]}, or one per value, shape {X.shape}"
        )
    if not np.isfinite(noise).all() or (noise < 0).any():
        raise ValueError("X_var holds variances: finite numbers, at least 0")
    return noise


def check_image_shape(image_shape: Any, point: tuple[int, ...]) -> None:
    """Refuse a shape that points of this one cannot have as images."""
    sizes = tuple(image_shape) if isinstance(image_shape, (tuple, list)) else ()
    if len(sizes) not in (2, 3) or not all(isinstance(size, Integral) and int(size) > 0 for size in sizes):
        raise ValueError(f"image_shape is (height, width) or (channels, height, width), not {image_shape!r}")
    if math.prod(sizes) != math.prod(point):
        raise ValueError(
            f"images of shape {sizes} have {math.prod(sizes)} pixels; the rows of X have {math.prod(point)}"
        )


def check_targets(task: str, y: np.ndarray) -> None:
    """Refuse targets that are none of this task. y: shape (n, D)"""
    for column in y.T:
        fault = tasks.get(task).validation_error(column)
        if fault is not None:
            raise ValueError(f"y, row {fault[0]}: {fault[1]}")


def column_moments(X: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Weighted mean and standard deviation of each column, or of each channel of images, in double precision.

    Chunk by chunk, merged as in T. Chan, G. Golub, R. LeVeque, "Updating Formulae and a Pairwise Algorithm for
    Computing Sample Variances", 1979. What does not vary (up to rounding) gets a standard deviation of 1.

    Args:
        X: shape (n, d) or (n, channels, *rest)
        weight: shape (n,)

    Example:
        >>> column_moments(np.array([[1.0, 5.0], [3.0, 5.0]]), None)
        (array([2., 5.]), array([1., 1.]))
    """
    inner = tuple(range(2, X.ndim))  # what is averaged over within a point
    total, mean, square = 0.0, np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for rows in slices(X):
        x = X[rows].astype(np.float64).mean(inner) if inner else X[rows].astype(np.float64)
        within = X[rows].astype(np.float64).var(inner) if inner else 0.0
        w = np.ones(len(x)) if weight is None else weight[rows].astype(np.float64)
        if not w.sum() > 0:
            continue
        here = (w @ x) / w.sum()
        spread = w @ (np.square(x - here) + within)
        both = total + w.sum()
        shift = here - mean
        square += spread + np.square(shift) * total * w.sum() / both
        mean, total = mean + shift * w.sum() / both, both
    variance = square / total
    eps, n = np.finfo(np.float64).eps, len(X)
    constant = variance <= n * eps * variance + np.square(n * mean * eps)
    scale = np.sqrt(np.where(constant, 1.0, variance))
    return mean, np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)


def column_quartiles(X: np.ndarray, weight: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Median and spread of each column, neither of which a few outliers move far.

    The spread is that of a normal with the same quartiles, but at least half the standard deviation. A column of two
    values goes to −1 and 1.

    Args:
        X: shape (n, d)
        weight: shape (n,)

    Example:
        >>> column_quartiles(np.array([[0.0, 1.0], [0.0, 2.0], [1.0, 3.0], [1.0, 4.0], [1.0, 1000.0]]), None)[0]
        array([0.5, 3. ])
    """
    mean, std = column_moments(X, weight)
    low, middle, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0, weights=weight, method="inverted_cdf")
    least, most = X.min(0), X.max(0)
    two = ((least == X) | (most == X)).all(0) & (most > least)
    loc = np.where(two, least / 2 + most / 2, middle).astype(np.float64)
    scale = np.where(two, most / 2 - least / 2, np.maximum((high - low) / 1.349, std / 2)).astype(np.float64)
    usable = np.isfinite(scale) & (scale > 0) & (most > least)
    return np.where(usable, loc, mean), np.where(usable, scale, std)


def blurred_in_float32(X: np.ndarray) -> bool:
    """Whether some column varies so little for its size that single precision would blur it, such as times since 1970.

    Example:
        >>> blurred_in_float32(np.array([[1.0], [2.0]])), blurred_in_float32(np.array([[1.6e9], [1.6e9 + 60]]))
        (False, True)
    """
    mean, std = column_moments(X, None)
    return bool(((std < MIN_RELATIVE_SPREAD * np.abs(mean)) & (X.max(0) > X.min(0))).any())


def cut_in_folds(
    n: int, folds: int, seed: int, classes: np.ndarray | None = None, related: Related | None = None
) -> np.ndarray:
    """Number of each point's fold, at random and of equal sizes. shape: (n,)

    Groups are kept together. In time, fold 0 is the latest, the next ones come before it: only fold 0 tells what is to
    come.

    Args:
        n: how many points there are.
        folds: how many folds.
        seed: of the choice.
        classes: each is spread evenly over the folds. shape: (n,)
        related: which points belong together, or come later.

    Example:
        >>> fold = cut_in_folds(6, 3, seed=0, classes=np.array([0, 0, 0, 1, 1, 1]))
        >>> sorted(fold[:3].tolist()), sorted(fold[3:].tolist())
        ([0, 1, 2], [0, 1, 2])
        >>> cut_in_folds(6, 3, seed=0, related=Related(order=np.arange(6)))
        array([2, 2, 1, 1, 0, 0])
    """
    related, random = related or Related(), np.random.Generator(np.random.PCG64(seed))
    if related.order is not None:
        rank = np.empty(n, dtype=np.int64)
        rank[np.argsort(related.order, kind="stable")] = np.arange(n)
        return (n - 1 - rank) * folds // n
    if related.groups is not None:
        sizes = np.bincount(related.groups)
        of_group, filled = np.empty(len(sizes), dtype=np.int64), np.zeros(folds)
        for group in sorted(random.permutation(len(sizes)), key=lambda group: -sizes[group]):
            of_group[group] = int(filled.argmin())
            filled[of_group[group]] += sizes[group]
        return of_group[related.groups]
    order = random.permutation(n)
    if classes is not None:
        order = order[np.argsort(classes[order], kind="stable")]
    fold = np.empty(n, dtype=np.int64)
    fold[order] = np.arange(n) % folds
    return fold


def held_out(
    n: int, count: int, seed: int, classes: np.ndarray | None = None, related: Related | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the points to train on, and of about `count` points held out.

    Args:
        n: how many points there are.
        count: how many are held out: in whole groups if there are such, and the latest ones in time.
        seed: of the choice.
        classes: keep their proportions, unless points are related, and at least one point of each for training.
            shape: (n,)
        related: which points belong together, or come later.
    """
    related, random = related or Related(), np.random.Generator(np.random.PCG64(seed))
    kept = np.ones(n, dtype=bool)
    if related.order is not None:
        kept[np.argsort(related.order, kind="stable")[n - min(count, n - 1) :]] = False
    elif related.groups is not None:
        _hold_out_groups(kept, count, related.groups, random)
    else:
        order = random.permutation(n)
        free = order
        if classes is not None:
            order = order[np.argsort(classes[order], kind="stable")]  # by class, in random order within
            _, first = np.unique(classes[order], return_index=True)
            free = np.delete(order, first)
        count = min(count, len(free))
        kept[free[(np.arange(count) * len(free)) // max(count, 1)]] = False
    if classes is not None and related.given:  # no class is held out entirely
        lost = np.setdiff1d(classes, classes[kept])
        kept |= np.isin(classes, lost)
    return np.flatnonzero(kept), np.flatnonzero(~kept)


def _hold_out_groups(kept: np.ndarray, count: int, groups: np.ndarray, random: np.random.Generator) -> None:
    """Groups at random until there are as many points as asked for, but never all groups."""
    for group in random.permutation(groups.max() + 1)[:-1]:
        if count <= 0:
            return
        own = groups == group
        if own.sum() < 2 * count or kept.all():
            kept[own] = False
            count -= int(own.sum())


# Tables that hold more than numbers: text, dates and missing values, as estimators are given them.


MAX_DENSE_NUMEL = 2**29  # numbers of a sparse X that are written out, 4 GB


def dense(X: Any) -> Any:
    """A sparse X, such as one-hot columns, with its zeros written out; anything else as it is.

    Example:
        >>> from scipy.sparse import csr_matrix
        >>> dense(csr_matrix([[0.0, 1.0]]))
        array([[0., 1.]])
    """
    if not issparse(X):
        return X
    if math.prod(X.shape) > MAX_DENSE_NUMEL:
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


def encoded(
    estimator: Any, X: Any, encoder: FeatureEncoder | None, handle_unknown: str
) -> tuple[np.ndarray, FeatureEncoder]:
    """X as numbers, and how: as before if there is an encoder, else decided anew.

    Args:
        estimator: whose names and number of columns are set, or compared.
        X: the table.
        encoder: of the training table.
        handle_unknown: what to do about values that training did not see: they are NaN, with a warning if it is
            "warn"; or they are an "error".

    Returns:
        features of shape (n, d), and what made them
    """
    from bedl.data import DataError, open_table
    from bedl.data.encode import FeatureEncoder
    from bedl.data.unknown import UnknownValues

    _check_feature_names(estimator, X, reset=encoder is None)
    _check_n_features(estimator, X, reset=encoder is None)
    table = open_table(_as_frame(X))
    try:
        encoder = FeatureEncoder.fit(table) if encoder is None else encoder
        unknown = None if handle_unknown == "error" else UnknownValues()
        features = encoder(table, unknown)
        if unknown is not None and handle_unknown == "warn":
            unknown.warn()
        return features, encoder
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


# Scaling of inputs as a part of the network, so that it goes wherever the network goes.


def standardize(loc: np.ndarray, scale: np.ndarray, input_shape: tuple[int, ...]) -> Standardize:
    """The module for column (or channel) moments. loc, scale: shape (input_shape[0],)"""
    shape = (len(loc),) + (1,) * (len(input_shape) - 1)
    # in double precision until the whole method is cast: means may be large beside the spread
    return Standardize(*(torch.tensor(part, dtype=torch.float64).reshape(shape) for part in (loc, scale)))
