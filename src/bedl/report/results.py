"""What a page is made of: rows and predictions as plain arrays, never networks.

A large table is predicted in parts. Make a result of each part, keep the examples of its most uncertain rows only
(`keep_examples`), and join the parts (`concatenate`): what grows with the rows are a few numbers per row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from bedl.report.examples import Array, Examples, ReportError

__all__ = ["ClassificationResults", "RegressionResults", "concatenate"]

R = TypeVar("R", bound="_Results")


class _Results:
    """What both kinds have in common; the fields are those of the subclasses."""

    ARRAYS: ClassVar[tuple[str, ...]]  # the fields with an entry per row

    if TYPE_CHECKING:

        @property
        def examples(self) -> Examples: ...

        @property
        def ood(self) -> Any: ...

        @property
        def notes(self) -> Sequence[str]: ...

    def __len__(self) -> int:
        raise NotImplementedError

    def _check(self, *names: str) -> None:
        """One-dimensional arrays of one length, of finite numbers."""
        rows = len(self)
        if rows == 0:
            raise ReportError("there are no rows: a report needs at least one prediction")
        for name in names:
            value = getattr(self, name)
            if value is None:
                continue
            array = np.asarray(value)
            if array.shape != (rows,):
                raise ReportError(
                    f"{name} has shape {array.shape}, but there are {rows} rows: shape ({rows},) is needed"
                )
            if name != "y" and not np.isfinite(array).all():
                bad = int((~np.isfinite(array)).sum())
                raise ReportError(
                    f"{name} has {bad} values that are NaN or infinite: leave these rows out, and note it"
                )
            object.__setattr__(self, name, array)
        examples = self.examples
        if len(examples) and not (examples.index.min() >= 0 and examples.index.max() < rows):
            raise ReportError(f"the examples name rows outside of 0 … {rows - 1}")

    @property
    def uncertainty(self) -> Array:
        raise NotImplementedError

    def keep_examples(self: R, count: int = 20) -> R:
        """The same results, with the examples of the `count` most uncertain rows only, the most uncertain first."""
        order = np.argsort(-self.uncertainty[self.examples.index], kind="stable")[:count]
        ood = None if self.ood is None else self.ood.keep_examples(count)
        return dataclasses.replace(cast(Any, self), examples=self.examples.take(order), ood=ood)


@dataclasses.dataclass(frozen=True, eq=False)
class RegressionResults(_Results):
    """Predictions of one real target, in its own unit.

    Args:
        mean: predicted mean. shape: (n,)
        std: standard deviation of the prediction, all uncertainty together. shape: (n,)
        aleatoric_std: of the noise in the data. shape: (n,)
        epistemic_std: of what the model does not know; the squares of the two add up to std². shape: (n,)
        lower: lower end of the central interval of probability `level`. shape: (n,)
        upper: upper end. shape: (n,)
        y: what was observed, NaN where it is not known; None if nowhere. shape: (n,)
        pit: predicted cdf at y, for predictions that are not normal; else computed from mean and std. shape: (n,)
        level: nominal probability of the intervals.
        examples: columns of some or all rows; the most uncertain are shown.
        target_name: as in the data.
        title: of the page.
        ood: predictions for rows from elsewhere, for comparison.
        about: what was predicted by what: {"model": …, "data": …}, shown at the top.
        notes: sentences for the section on limits, such as how many rows were left out and why.

    >>> one = np.ones(3)
    >>> len(RegressionResults(mean=one, std=one, aleatoric_std=0.8 * one, epistemic_std=0.6 * one,
    ...                       lower=one - 1.645, upper=one + 1.645))
    3
    """

    mean: Array
    std: Array
    aleatoric_std: Array
    epistemic_std: Array
    lower: Array
    upper: Array
    y: Array | None = None
    pit: Array | None = None
    level: float = 0.9
    examples: Examples = dataclasses.field(default_factory=Examples)
    target_name: str = "target"
    title: str = "Predictions with uncertainty"
    ood: RegressionResults | None = None
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()

    ARRAYS = ("mean", "std", "aleatoric_std", "epistemic_std", "lower", "upper", "y", "pit")

    def __post_init__(self) -> None:
        self._check(*self.ARRAYS)
        for name in ("std", "aleatoric_std", "epistemic_std"):
            if getattr(self, name).min() < 0:
                raise ReportError(f"{name} has negative values: it is a standard deviation")
        if (self.lower > self.upper).any():
            raise ReportError("lower lies above upper: were they exchanged?")
        if not 0 < self.level < 1:
            raise ReportError(f"level must lie between 0 and 1, not {self.level}")
        if self.pit is not None and self.y is None:
            raise ReportError("pit is the predicted cdf at y: without y there is none")

    def __len__(self) -> int:
        return len(self.mean)

    @property
    def observed(self) -> Array:
        """The targets, NaN where not known. shape: (n,)"""
        return np.full(len(self), np.nan) if self.y is None else self.y

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have an observed target. shape: (n,)"""
        return np.isfinite(self.observed)

    @property
    def uncertainty(self) -> Array:
        """What ranks the most uncertain rows: std. shape: (n,)"""
        return self.std


@dataclasses.dataclass(frozen=True, eq=False)
class ClassificationResults(_Results):
    """Predicted probabilities of C classes. Entropies are in nats.

    Args:
        probabilities: shape: (n, C)
        entropy: of the predicted probabilities. shape: (n,)
        aleatoric_entropy: expected entropy, of the noise in the labels. shape: (n,)
        epistemic_entropy: mutual information, of what the model does not know; the two add up to `entropy`. shape: (n,)
        class_names: C names.
        labels: class numbers, −1 where not known; None if nowhere. shape: (n,)
        log_probabilities_of_labels: log p(label), for an exact likelihood where a probability rounds to 0. shape: (n,)
        examples, title, ood, about, notes: as for `RegressionResults`; ood has the same classes.

    >>> p = np.array([[0.5, 0.5], [0.9, 0.1]])
    >>> h = -(p * np.log(p)).sum(1)
    >>> ClassificationResults(p, h, 0.7 * h, 0.3 * h, ["no", "yes"]).predicted.tolist()
    [0, 0]
    """

    probabilities: Array
    entropy: Array
    aleatoric_entropy: Array
    epistemic_entropy: Array
    class_names: Sequence[str]
    labels: Array | None = None
    log_probabilities_of_labels: Array | None = None
    examples: Examples = dataclasses.field(default_factory=Examples)
    target_name: str = "class"
    title: str = "Predictions with uncertainty"
    ood: ClassificationResults | None = None
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()

    ARRAYS = (
        *("probabilities", "entropy", "aleatoric_entropy", "epistemic_entropy"),
        *("labels", "log_probabilities_of_labels"),
    )

    def __post_init__(self) -> None:
        table = np.asarray(self.probabilities)
        object.__setattr__(self, "probabilities", table)
        if table.ndim != 2 or table.shape[1] != len(self.class_names) or table.shape[1] < 2:
            raise ReportError(
                f"probabilities have shape {table.shape}, but there are {len(self.class_names)} class names"
            )
        self._check(*self.ARRAYS[1:5])
        if not (np.isfinite(table).all() and table.min() >= 0 and np.allclose(table.sum(1), 1, atol=1e-3)):
            raise ReportError("probabilities must be finite, not negative, and sum to 1 in every row")
        if self.labels is not None:
            labels = np.asarray(self.labels)
            if not np.issubdtype(labels.dtype, np.integer) or labels.min() < -1 or labels.max() >= table.shape[1]:
                raise ReportError(f"labels must be integers, 0 to {table.shape[1] - 1}, or -1 where not known")
        if self.log_probabilities_of_labels is not None and (
            self.labels is None or np.shape(self.log_probabilities_of_labels) != (len(self),)
        ):
            raise ReportError("log_probabilities_of_labels needs labels, and one number per row")
        if self.ood is not None and len(self.ood.class_names) != len(self.class_names):
            raise ReportError("the out-of-domain results have another number of classes")

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def observed(self) -> Array:
        """The labels, −1 where not known. shape: (n,)"""
        return np.full(len(self), -1) if self.labels is None else self.labels

    @property
    def labelled(self) -> NDArray[np.bool_]:
        """Which rows have a label. shape: (n,)"""
        return self.observed >= 0

    @property
    def predicted(self) -> NDArray[np.intp]:
        """The most probable class. shape: (n,)"""
        return self.probabilities.argmax(1)

    @property
    def uncertainty(self) -> Array:
        """What ranks the most uncertain rows: the entropy. shape: (n,)"""
        return self.entropy


def concatenate(parts: Sequence[R], *, examples: int = 20) -> R:
    """The results of consecutive parts as one, with the examples of the most uncertain rows.

    Names, title, level, `ood` and `about` are those of the first part; notes are joined, each once.
    """
    if not parts:
        raise ReportError("there are no rows: a report needs at least one prediction")
    first = parts[0]
    starts = np.cumsum([0] + [len(part) for part in parts[:-1]])
    kept = [part.keep_examples(examples).examples for part in parts]
    kept = [dataclasses.replace(k, index=k.index + start) for k, start in zip(kept, starts, strict=True) if len(k)]
    merged: dict[str, Any] = {name: _join([getattr(part, name) for part in parts]) for name in first.ARRAYS}
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return dataclasses.replace(cast(Any, first), **merged, examples=_join_examples(kept), notes=notes).keep_examples(
        examples
    )


def _join(arrays: Sequence[Array | None]) -> Array | None:
    if all(array is None for array in arrays):
        return None
    if any(array is None for array in arrays):
        raise ReportError("some parts have labels and some have none: mark unknown ones by NaN, or -1 for classes")
    return np.concatenate([array for array in arrays if array is not None])


def _join_examples(parts: Sequence[Examples]) -> Examples:
    if not parts:
        return Examples()
    images = None if parts[0].images is None else np.concatenate([part.images for part in parts])
    columns = {name: [value for part in parts for value in part.columns[name]] for name in parts[0].columns}
    return Examples(columns, images, np.concatenate([part.index for part in parts]))
