"""What some rows look like, and the error of records that do not fit together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bedl._utils.errors import BEDLError

Array = NDArray[Any]


class ResultsError(BEDLError, ValueError):
    """The results do not fit together, or there is nothing to show."""


@dataclasses.dataclass(frozen=True, eq=False)
class Examples:
    """What some of the rows look like: a few of their columns, or their images.

    Args:
        columns: name → one value per example; any values, shown as text.
        images: 0 … 255, grey (k, H, W) or (k, 1, H, W), colour (k, 3, H, W). dtype: uint8
        index: which rows these are, counted from 0; all rows in order if left out. shape: (k,)

    >>> Examples(columns={"age": [40, 50, 60]}).take(np.array([2, 0])).columns
    {'age': [60, 40]}
    """

    columns: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    images: Array | None = None
    index: Array = None  # type: ignore[assignment]  # never None once made

    def __post_init__(self) -> None:
        lengths = {len(values) for values in self.columns.values()}
        if self.images is not None:
            images = self.images
            grey = images.ndim == 3 or (images.ndim == 4 and images.shape[1] == 1)
            if images.dtype != np.uint8 or not (grey or (images.ndim == 4 and images.shape[1] == 3)):
                raise ResultsError(
                    f"images are {images.dtype} of shape {images.shape}: give uint8 of shape (k, H, W), "
                    "(k, 1, H, W) or (k, 3, H, W)"
                )
            lengths.add(len(images))
        if len(lengths) > 1:
            raise ResultsError(f"columns and images of the examples differ in length: {sorted(lengths)}")
        if self.index is None:
            object.__setattr__(self, "index", np.arange(lengths.pop() if lengths else 0))
        elif lengths and len(self.index) not in lengths:
            raise ResultsError(f"index names {len(self.index)} rows, but there are {lengths.pop()} examples")

    def __len__(self) -> int:
        return len(self.index)

    def take(self, which: Array) -> Examples:
        """The examples at these positions, in this order."""
        return Examples(
            {name: [values[i] for i in which.tolist()] for name, values in self.columns.items()},
            None if self.images is None else self.images[which],
            self.index[which],
        )


class ColumnSummary(NamedTuple):
    """A column of a table: how much predictions depend on it, and how it differs from the training table."""

    name: str
    importance: float  # rise of the negative log-likelihood where the column is permuted; NaN if not known
    error: float  # its standard error over rows
    drift: float  # difference of means in standard deviations; of categories the total variation distance; or NaN
    values: str  # what it holds: mean and standard deviation, or its most frequent categories
    outside: float  # share of rows beyond the range of training, or with a value that is not in it


class Slice(NamedTuple):
    """A part of the rows: how often predictions hit there, see `Hits`."""

    column: str
    values: str
    rows: int
    observed: float
    expected: float
    error: float  # standard error of `observed` if `expected` is right


class Hits(NamedTuple):
    """Whether predictions hit, their probability of that, and the values whose fifths are slices. shapes: (n,)"""

    hit: Array
    expected: Array
    by: Array
    name: str


# Records of predictions: rows as plain arrays, never networks. They are scored, and a page is made of them.
#
# A large table is predicted in parts. Make a record of each part, keep the examples of its most telling rows only
# (`keep_examples`), and join the parts (`concatenate`): what grows with the rows are a few numbers per row.


R = TypeVar("R", bound="Results")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Results:
    """What the records of all tasks have in common.

    Args:
        log_density: log p(target) of each row, where the model can say it exactly; else it is computed from the other
            fields. shape: (n,)
        examples: columns or images of some or all rows; the most uncertain and the most surprising are shown.
        target_name: the name of the target in the data.
        title: the title of the page.
        ood: a record of predictions for out-of-distribution rows, for comparison.
        about: what was predicted by what: {"model": …, "data": …}, shown at the top of the page.
        notes: sentences for the section on limits, such as how many rows were left out and why.
        training: how the model was learned: ``chosen``, ``loss`` and ``val_nll`` of each epoch, ``settings``.
        columns, slices: of a table; analyses of its columns, see `bedl.estimators.tabular.predict`.
        maps: images with maps of their predictions, where rows are places of images; see `map_results`.
    """

    log_density: Array | None = None
    examples: Examples = dataclasses.field(default_factory=Examples)
    target_name: str = "target"
    title: str = "Predictions with uncertainty"
    ood: Any = None
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    columns: Sequence[ColumnSummary] = ()
    slices: Sequence[Slice] = ()
    maps: Any = None

    task: ClassVar[str]
    ARRAYS: ClassVar[tuple[str, ...]]  # the fields with an entry per row
    PARTS: ClassVar[tuple[str, ...]] = ()  # of these, the three parts of the uncertainty: data, distributional, model

    def __len__(self) -> int:
        raise NotImplementedError

    # -- what every record can say ----------------------------------------------------------------
    @property
    def observed(self) -> Array:
        """The targets, marked where they are not known. shape: (n,) or (n, targets)"""
        raise NotImplementedError

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have a target. shape: (n,)"""
        raise NotImplementedError

    @property
    def uncertainty(self) -> Array:
        """What ranks the most uncertain rows, all uncertainty together. shape: (n,)"""
        raise NotImplementedError

    @property
    def epistemic(self) -> Array:
        """The part of `uncertainty` that is due to what the model does not know. shape: (n,)"""
        raise NotImplementedError

    @property
    def parts(self) -> tuple[str, ...]:
        """The names in `PARTS`, or none where the model does not tell three parts apart."""
        return self.PARTS if all(getattr(self, name) is not None for name in self.PARTS) else ()

    @property
    def surprise(self) -> Array | None:
        """What ranks the most surprising rows: how far off the target is, given what was predicted. −inf where there is
        no target; None where there is no such ranking. shape: (n,)
        """
        return None

    @property
    def hits(self) -> Hits | None:
        """Whether the interval contains the target, or the predicted class is right; None where neither applies."""
        return None

    def telling(self, among: Array, count: int = 20) -> NDArray[np.intp]:
        """The most telling of some rows, as positions in `among`: the `count` most uncertain ones, the most uncertain
        first, and then those of the `count` most surprising that are not among them. among: shape (k,)
        """
        order = np.argsort(-self.uncertainty[among], kind="stable")[:count]
        if self.surprise is None:
            return order
        surprise = self.surprise[among]
        further = np.argsort(-surprise, kind="stable")[:count]
        return np.concatenate([order, further[np.isfinite(surprise[further]) & ~np.isin(further, order)]])

    def keep_examples(self: R, count: int = 20) -> R:
        """The same record, with the examples of its most telling rows only; see `telling`."""
        ood = None if self.ood is None else self.ood.keep_examples(count)
        kept = self.examples.take(self.telling(self.examples.index, count))
        return dataclasses.replace(self, examples=kept, ood=ood)

    # -- checks -----------------------------------------------------------------------------------
    def _check(self, *names: str, may_be_nan: Sequence[str] = ()) -> None:
        """One-dimensional arrays of one length, of finite numbers."""
        rows = len(self)
        if rows == 0:
            raise ResultsError("there are no rows: a report needs at least one prediction")
        for name in (*names, "log_density"):
            value = getattr(self, name)
            if value is None:
                continue
            array = np.asarray(value)
            if array.shape != (rows,):
                raise ResultsError(
                    f"{name} has shape {array.shape}, but there are {rows} rows: shape ({rows},) is needed"
                )
            if name not in (*may_be_nan, "log_density") and not np.isfinite(array).all():
                bad = int((~np.isfinite(array)).sum())
                raise ResultsError(
                    f"{name} has {bad} values that are NaN or infinite: leave these rows out, and note it"
                )
            object.__setattr__(self, name, array)
        examples = self.examples
        if len(examples) and not (examples.index.min() >= 0 and examples.index.max() < rows):
            raise ResultsError(f"the examples name rows outside of 0 … {rows - 1}")
        if self.ood is not None and type(self.ood) is not type(self):
            raise ResultsError(f"the OOD record is of another task, {getattr(self.ood, 'task', self.ood)!r}")


def concatenate(parts: Sequence[R], *, examples: int = 20) -> R:
    """The records of consecutive parts as one, with the examples of the most uncertain and the most surprising rows.

    Names, title, level, `ood` and `about` are those of the first part; notes are joined, each once.
    """
    if not parts:
        raise ResultsError("there are no rows: a report needs at least one prediction")
    first = parts[0]
    starts = np.cumsum([0] + [len(part) for part in parts[:-1]])
    kept = [part.keep_examples(examples).examples for part in parts]
    kept = [dataclasses.replace(k, index=k.index + start) for k, start in zip(kept, starts, strict=True) if len(k)]
    merged: dict[str, Any] = {
        name: _join([getattr(part, name) for part in parts]) for name in (*first.ARRAYS, "log_density")
    }
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return dataclasses.replace(first, **merged, examples=_join_examples(kept), notes=notes).keep_examples(examples)


def _join(arrays: Sequence[Array | None]) -> Array | None:
    if all(array is None for array in arrays):
        return None
    if any(array is None for array in arrays):
        raise ResultsError("some parts have labels and some have none: mark unknown ones by NaN, or -1 for classes")
    return np.concatenate([array for array in arrays if array is not None])


def _join_examples(parts: Sequence[Examples]) -> Examples:
    if not parts:
        return Examples()
    images = None if parts[0].images is None else np.concatenate([part.images for part in parts])
    columns = {name: [value for part in parts for value in part.columns[name]] for name in parts[0].columns}
    return Examples(columns, images, np.concatenate([part.index for part in parts]))
