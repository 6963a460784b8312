"""What a comparison came to: a row per method and split, and what the rows come to together."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bedl.errors import ModelFileError, option
from bedl.rows import RowFile
from bedl.tabular.folder import read_json, write_json

if TYPE_CHECKING:
    import pandas

__all__ = ["Comparison", "ResultRows"]

# of the many scores, those that a table has room for; the rest is in the rows
SHOWN = ("nll", "rmse", "accuracy", "coverage", "calibration_error", "ece", "ood_auroc")
TIMES = ("fit_seconds", "predict_seconds")  # the latter for 1,000 rows


@dataclass(frozen=True)
class Comparison:
    """Methods on the same splits of a table.

    Attributes:
        data: the table.
        target: the column that was predicted.
        task: what it is.
        rows: one per method and split: ``method``, ``split``, ``fit_seconds``, ``predict_seconds`` (for 1,000 rows) and
            the scores by the names of `bedl.tasks.meanings`; or ``error``.
        refused: methods that do not serve this task or need a package, and what they say.
        constant: the scores of one answer for all rows, for comparison.
        record: predictions of the best method for the rows held out in the first split; None if there are none.
    """

    data: str
    target: str
    task: str
    rows: list[dict[str, Any]]
    refused: dict[str, str] = field(default_factory=dict)
    constant: dict[str, float] = field(default_factory=dict)
    record: Any = None

    @property
    def scores(self) -> list[str]:
        """The names of the scores that tables show."""
        found = {name for row in self.rows for name in row}
        return [name for name in SHOWN if name in found]

    def summary(self) -> list[dict[str, Any]]:
        """A row per method, the best first: ``method``, ``splits``, and of each score and time its mean and the mean's
        standard error, ``<name>_se``; or ``error``, where some split failed.
        """
        found = [self._of(method) for method in dict.fromkeys(row["method"] for row in self.rows)]
        return sorted(found, key=lambda row: (math.isnan(row.get("nll", math.nan)), row.get("nll", math.nan)))

    def _of(self, method: str) -> dict[str, Any]:
        rows = [row for row in self.rows if row["method"] == method]
        good = [row for row in rows if "error" not in row]
        summary: dict[str, Any] = {"method": method, "splits": len(good)}
        for name in dict.fromkeys(name for row in good for name in row if name not in ("method", "split")):
            values = np.array([row[name] for row in good if row.get(name) is not None], dtype=float)
            if len(values):
                summary[name] = float(values.mean())
                summary[f"{name}_se"] = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
        errors = [row["error"] for row in rows if "error" in row]
        return {**summary, "error": errors[0]} if errors else summary

    @property
    def best(self) -> str | None:
        """The method with the lowest mean negative log-likelihood among those that did not fail."""
        good = [row for row in self.summary() if "error" not in row and not math.isnan(row.get("nll", math.nan))]
        return good[0]["method"] if good else None

    @property
    def tied(self) -> list[str]:
        """Methods that are as good as the best, as far as these splits tell: on the splits that both have, the mean
        difference in negative log-likelihood is within its standard error.
        """
        likelihoods = {(row["method"], row["split"]): row.get("nll") for row in self.rows if "error" not in row}
        found = []
        for row in self.summary():
            if row["method"] == self.best or "error" in row:
                continue
            pairs = [(value, likelihoods.get((self.best, split))) for (method, split), value in likelihoods.items()
                     if method == row["method"]]  # fmt: skip
            gaps = np.array([own - best for own, best in pairs if own is not None and best is not None], dtype=float)
            if len(gaps) > 1 and gaps.mean() <= gaps.std(ddof=1) / math.sqrt(len(gaps)):
                found.append(row["method"])
        return found

    def to_frame(self) -> pandas.DataFrame:
        """The summary as a pandas frame, the best method first."""
        import pandas

        return pandas.DataFrame(self.summary()).set_index("method")

    def to_dict(self) -> dict[str, Any]:
        """Everything but the record, as JSON can hold it."""
        about = {"data": self.data, "target": self.target, "task": self.task, "best": self.best, "tied": self.tied}
        return {
            **about,
            "summary": self.summary(),
            "constant": self.constant,
            "refused": self.refused,
            "rows": self.rows,
        }

    def write_page(self, path: str | PathLike[str], *, overwrite: bool = False) -> Path:
        """One page to look at: what the best method says of the rows held out, and a section with the comparison."""
        from bedl.report import write_report

        if self.record is None:
            raise ModelFileError("no method could be scored, so there is nothing to show")
        return write_report(self.record, path, comparison=self.to_dict(), overwrite=overwrite)


class ResultRows:
    """Rows of a comparison in a folder, so that an interrupted comparison loses at most one.

    Args:
        folder: where; None: nowhere, they are kept in memory.
        stamp: what has to be the same for rows to be comparable.
        overwrite: whether to start anew where there are rows of another comparison.
    """

    def __init__(self, folder: Path | None, stamp: Mapping[str, Any], overwrite: bool = False):
        place = None if folder is None else folder / "rows.jsonl"
        if folder is not None and place is not None:
            self._claim(folder, json.loads(json.dumps(stamp, default=str)), overwrite, place)
        self._file = RowFile(place, ("method", "split"), failure="error")

    def _claim(self, folder: Path, now: Mapping[str, Any], overwrite: bool, rows: Path) -> None:
        """Refuse rows of another comparison, or remove them."""
        place = folder / "comparison.json"
        if place.exists() and not overwrite:
            before = read_json(place)
            different = [key for key in now if before.get(key) != now[key]]
            if different:
                key = different[0]
                raise ModelFileError(
                    f"{folder} holds a comparison with {key} {before.get(key)!r}, now {now[key]!r}: go on with the "
                    f"same data and options, choose another folder ({option('out')}), or start anew "
                    f"({option('overwrite', True)})"
                )
            return
        rows.unlink(missing_ok=True)
        write_json(place, now)

    def get(self, method: str, split: int) -> dict[str, Any] | None:
        """The row, if it is there."""
        return self._file.get({"method": method, "split": split})

    def has(self, method: str, split: int) -> bool:
        """Whether this is done; a failure is tried again."""
        return self._file.has({"method": method, "split": split}, failed=False)

    def add(self, row: dict[str, Any]) -> None:
        """Keep a row."""
        self._file.add(row, again=True)
