"""What every task says about itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from bedl.errors import BEDLError

if TYPE_CHECKING:
    from bedl.tasks._results import Results
    from bedl.tasks._scores import Meaning

__all__ = ["Output", "Quantities", "Task", "UnknownTaskError", "names_for"]

Quantities = Mapping[str, np.ndarray]
"""What is predicted for some points: the outputs of a task by name, and, where the model can say them exactly,
``lower`` and ``upper`` end of the interval, ``log_density`` of the observed targets and ``cdf`` at them.
shapes: (n, names) or (n,)
"""


class UnknownTaskError(BEDLError, ValueError):
    """There is no task of that name."""


@dataclass(frozen=True)
class Output:
    """One output of a model.

    Attributes:
        unit: "target" (that of the target), "target²" (a variance), "probability", "probability²" or "nats".
        per_name: whether there is an entry for each class or target, shape (n, names), or one per point, shape (n,).
        optional: whether files that were written before this output existed are read all the same.
    """

    unit: str
    per_name: bool = True
    optional: bool = False


class Task:
    """Base of the tasks. A subclass states the attributes, and how outputs become columns, a record and scores.

    Attributes:
        name: what the task is called, which is also the name of its module.
        outputs: what models predict, by name: the outputs of an ONNX file, and of `Predictive.outputs()`.
        column: what a target column holds: a "number", a "class", or, several columns together, "binary" values.
        automatic: whether this is the task for such columns when nobody names one.
        missing: what stands for a target that is not known.
        dtype: how targets are stored.
        estimator: name of the class in `bedl.estimators` that learns it.
        options: what is passed to that class.
        record: the class of its records, see `Results`.
        observed: the field of a record that holds the targets.
        work: numbers that are held at once for each class or target of a point while it is predicted.
        meanings: the scores by name, and how they are shown.
    """

    name: ClassVar[str]
    outputs: ClassVar[Mapping[str, Output]]
    column: ClassVar[Literal["number", "class", "binary"]]
    automatic: ClassVar[bool] = True
    missing: ClassVar[float]
    dtype: ClassVar[type]
    estimator: ClassVar[str]
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    record: ClassVar[type[Results]]
    observed: ClassVar[str] = "y"
    work: ClassVar[int] = 1
    meanings: ClassVar[Mapping[str, Meaning]]

    # -- targets ----------------------------------------------------------------------------------
    @property
    def named(self) -> Literal["class", "target"]:
        """What the entries of an output are: classes of one target, or targets."""
        return "class" if self.column == "class" else "target"

    def describe(self, names: Sequence[Any]) -> str:
        """The task in a few words, for a person who has just named a target column."""
        return self.name

    def known(self, y: np.ndarray) -> np.ndarray:
        """Which rows have a target. y shape: (n,) or (n, targets) -> (n,)"""
        present = ~np.isnan(y) if np.isnan(self.missing) else y != self.missing
        return present.reshape(len(y), -1).all(1)

    def filled(self, y: np.ndarray) -> np.ndarray:
        """The targets, with 0 for what is not known. shape: that of y"""
        return np.where(np.isnan(y) if np.isnan(self.missing) else y == self.missing, np.zeros_like(y), y)

    def fault(self, y: np.ndarray) -> tuple[int, str] | None:
        """The first target that cannot be one of this task, as its row and a sentence; None if all can. shape: (n,)"""
        return None

    # -- predictions ------------------------------------------------------------------------------
    def columns(
        self, quantities: Quantities, names: Sequence[Any] | None = None, coverage: float = 0.9
    ) -> dict[str, np.ndarray]:
        """Predictions as the columns of a table.

        Args:
            quantities: what was predicted.
            names: the names of the classes or targets; 0, 1, 2, … by default.
            coverage: share of the targets that intervals are to hold.
        """
        raise NotImplementedError

    def results(
        self,
        quantities: Quantities,
        y: np.ndarray | None = None,
        *,
        names: Sequence[Any] | None = None,
        target: str = "target",
        coverage: float = 0.9,
    ) -> Results:
        """Predictions as a record that is scored and shown.

        Args:
            quantities: what was predicted.
            y: observed targets, marked where they are missing.
            names: the names of the classes or targets.
            target: what the target is called.
            coverage: share of the targets that intervals are to hold.
        """
        fields: dict[str, Any] = {**self.fields(quantities, names, coverage), self.observed: y}
        return self.record(**fields, log_density=quantities.get("log_density"), target_name=target)

    def fields(self, quantities: Quantities, names: Sequence[Any] | None, coverage: float) -> dict[str, Any]:
        """The fields of the record that hold predictions; arguments as for `results`."""
        raise NotImplementedError

    def scores(self, results: Any) -> dict[str, float]:
        """Every score that the record allows, by the names of `meanings`."""
        raise NotImplementedError

    def baseline(self, results: Any) -> dict[str, float]:
        """What the scores would be for one answer to all rows, made of the record's own targets; {} if none."""
        return {}

    # -- two models -------------------------------------------------------------------------------
    def differences(self, truth: Quantities, other: Quantities) -> dict[str, float]:
        """Largest difference of each output: probabilities and entropies as they are, others in predicted stds.

        Example:
            >>> from bedl.tasks import get
            >>> one = {"mean": np.array([100.0]), "std": np.array([10.0]), "aleatoric": np.array([100.0])}
            >>> two = {"mean": np.array([101.0]), "std": np.array([11.0]), "aleatoric": np.array([110.0])}
            >>> get("regression").differences(one, two)
            {'mean': 0.1, 'std': 0.1, 'aleatoric': 0.1}
        """
        power = {"target": 1, "target²": 2}
        found = {}
        for name, values in truth.items():
            exponent = power.get(self.outputs[name].unit, 0)
            size = truth["std"] ** exponent if exponent else 1.0
            found[name] = float((np.abs(values - other[name]) / size).max(initial=0.0))
        return found

    def cost(self, truth: Quantities, other: Quantities) -> dict[str, float]:
        """What it costs a user to be given the other predictions, in a few numbers."""
        raise NotImplementedError


def names_for(names: Sequence[Any] | None, count: int, what: str) -> list[Any]:
    """As many names as there are classes or targets; numbers if there are none.

    Example:
        >>> names_for(None, 2, "class"), names_for(["price"], 1, "target")
        ([0, 1], ['price'])
    """
    found = list(range(count)) if names is None else list(names)
    if len(found) != count:
        raise ValueError(f"{len(found)} {what} names for {count} outputs")
    return found
