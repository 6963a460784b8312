"""What a table is made of: cells, and what running one comes to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

__all__ = ["BOTH", "KEY", "PRESETS", "Cell", "Choice", "Outcome", "Preset"]

Preset = Literal["paper", "authors", "best"]
PRESETS: tuple[Preset, ...] = ("paper", "authors", "best")
BOTH: tuple[Preset, ...] = ("paper", "best")  # those that every method has; "authors" is about BEDL alone
KEY = ("table", "dataset", "method", "preset", "split", "seed")


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run: a method on one split of a data set.

    Attributes:
        table: name of the table.
        dataset, method: as the table calls them.
        preset: whose settings: those of the paper's text, of its authors' public code, or ours.
        split: number of the split, from 0; a table without splits has the split 0.
        seed: of everything that is drawn.

    Example:
        >>> Cell("uci", "boston", "bedl", "paper", split=3).fields["split"]
        3
    """

    table: str
    dataset: str
    method: str
    preset: Preset
    split: int = 0
    seed: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of its row that say which cell it is."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        return f"{self.dataset} {self.method} ({self.preset}, split {self.split})"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a cell came to.

    Attributes:
        metrics: numbers by name: ``log_likelihood``, ``rmse``, ``crps``, ``coverage``, ``error``, …
        settings: what was run, as JSON can hold it; ``deviations`` are sentences on where it is not as the preset says.
        curves: what plots are drawn from, lists of numbers by name.
    """

    metrics: Mapping[str, float]
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    curves: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which cells of a table are wanted.

    Attributes:
        presets: settings.
        datasets, methods: names; None: all of the table, and its own methods, without those that are run on request.
        splits: their numbers; None: all.
        seeds: of everything that is drawn.
    """

    presets: Sequence[Preset] = ("paper",)
    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    splits: Sequence[int] | None = None
    seeds: Sequence[int] = (0,)

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether a row is of what is wanted, of whatever seed; where no methods are named, of any method.

        Example:
            >>> Choice(methods=["bedl"]).keeps(Cell("uci", "boston", "bedl", "paper").fields)
            True
        """
        named = {"dataset": self.datasets, "method": self.methods, "split": self.splits, "preset": self.presets}
        return all(wanted is None or row[name] in wanted for name, wanted in named.items())
