"""What a comparison came to: a row per method and split, and what the rows come to together."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bedl._utils.errors import ModelFileError, option
from bedl._utils.io import RowFile
from bedl.data import DataError, Table, TableEncoder, encode_to_memmap, open_table
from bedl.data.unknown import UnknownValues
from bedl.estimators.tabular.fitting import _target
from bedl.estimators.tabular.folder import read_json, write_json
from bedl.estimators.tabular.model import TableCallback
from bedl.estimators.tabular.predict import EstimatorPredictor, RowOptions, batch_rows
from bedl.evaluation import tasks
from bedl.evaluation.tasks import Results, concatenate, score

if TYPE_CHECKING:
    import pandas

__all__ = ["Comparison", "ResultRows", "compare"]


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
        from bedl.evaluation.report import write_report

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


# Which method for my data? All of them on the same splits of a table.


TIMED = 1000  # rows whose prediction is timed; the same ones again if fewer are held out
REFUSALS = (ValueError, TypeError, NotImplementedError, ImportError)


def compare(
    data: Any,
    target: str | None = None,
    methods: Sequence[str] | None = None,
    *,
    splits: int = 5,
    holdout: float = 0.2,
    ood: Any = None,
    leave_out: Any = None,
    task: str = "auto",
    coverage: float = 0.9,
    epochs: int | None = None,
    hidden: Sequence[int] | str = "auto",
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    seed: int = 0,
    device: str = "auto",
    root: str | PathLike[str] | None = None,
    callback: TableCallback | None = None,
) -> Comparison:
    """Train methods on the same splits of a table, and score them on the rows held out.

    Args:
        data: a path (.csv, .tsv, both also .gz, .parquet), a name such as "digits", or a data frame.
        target: the column to predict; data sets that go by a name have one of their own.
        methods: their names; None: all that serve the task and whose packages are there.
        splits: into rows to learn from and rows held out, at random, the same for all methods.
        holdout: share of the rows that are held out.
        ood: a table of out-of-distribution rows.
        leave_out: a class that is not learned; its rows are the foreign ones.
        task: the name of a task of `bedl.evaluation.tasks`, or "auto".
        coverage: share of the targets that intervals are to hold.
        epochs: how often each row is seen at most; None: as each method has it.
        hidden: widths of the hidden layers; "auto": as each method has it.
        out: a folder for the rows. A comparison that was interrupted goes on from there, and more methods or splits
            can be added.
        overwrite: whether to start anew if there is another comparison in `out`.
        seed: of the splits and of all training.
        device: "auto", "cpu", "cuda", …
        root: where data sets that go by a name are.
        callback: who looks on.

    Example:
        >>> found = compare("iris", methods=["deterministic", "edl"], splits=2, epochs=2, device="cpu")
        >>> [row["splits"] for row in found.summary()], "nll" in found.scores, found.best in ("deterministic", "edl")
        ([2, 2], True, True)
    """
    if splits < 1 or not 0 < holdout < 1:
        raise ValueError(f"splits must be at least 1 and holdout between 0 and 1, not {splits} and {holdout}")
    callback, table = callback or TableCallback(), open_table(data, root)
    folder = None if out is None else Path(out)
    with tempfile.TemporaryDirectory(prefix="bedl-") as scratch:
        work = _Work.of(table, target, task, Path(scratch), leave_out, ood, root)
        chosen, refused = _methods(methods, work.task)
        settings: dict[str, Any] = {
            "hidden_layers": hidden if isinstance(hidden, str) else tuple(hidden),
            "epochs": "auto" if epochs is None else epochs,
            "device": device,
        }
        stamp = {
            "data": table.name, "rows": len(work.x), "target": work.target, "task": work.task, "holdout": holdout,
            "ood": None if ood is None else open_table(ood, root).name, "leave_out": leave_out, "coverage": coverage,
            "seed": seed, **settings,
        }  # fmt: skip
        rows = ResultRows(folder, stamp, overwrite)
        trial = _Trial(work, settings, holdout, coverage, seed)
        with callback.bar("comparing", len(chosen) * splits) as advance:
            for split in range(splits):
                for name in chosen:
                    if name not in refused and not rows.has(name, split):
                        _try(trial, name, split, rows, refused)
                    advance(1)
        kept = [row for name in chosen for k in range(splits) if (row := rows.get(name, k)) is not None]
        found = Comparison(table.name, work.target, work.task, kept, refused)
        record = None if found.best is None else trial.record_of(found.best, 0)
    constant = {} if record is None else tasks.get(work.task).baseline(record)
    return dataclasses.replace(found, constant=constant, record=record)


def _methods(wanted: Sequence[str] | None, task: str) -> tuple[list[str], dict[str, str]]:
    """The methods to compare, and those that cannot be, with what they say."""
    from bedl.methods import registry

    names = registry.names() if wanted is None else list(dict.fromkeys(wanted))
    refused: dict[str, str] = {}
    for name in names:
        entry = registry.get(name)
        if entry.choice is None:
            try:
                entry.check(task, {})
            except registry.UnknownMethodError as error:
                refused[name] = str(error)
    return [name for name in names if name not in refused], refused


def _try(trial: _Trial, name: str, split: int, rows: ResultRows, refused: dict[str, str]) -> None:
    """One method on one split. What it says no to is noted, and what fails does not end the comparison."""
    try:
        rows.add(trial(name, split))
    except REFUSALS as error:
        if split == 0:
            refused[name] = str(error)
        else:
            rows.add({"method": name, "split": split, "error": f"{type(error).__name__}: {error}"})
    except Exception as error:
        rows.add({"method": name, "split": split, "error": f"{type(error).__name__}: {error}"})


@dataclasses.dataclass(frozen=True)
class _Work:
    """The table as numbers: rows, and OOD rows if there are any.

    Attributes:
        x, y: shapes (n, features), (n, *targets)
        foreign: rows that are not learned from. shape: (m, features)
        names: of the classes or targets.
        images: whether features are pixels.
        encoder: how tables are read.
    """

    x: np.ndarray
    y: np.ndarray
    foreign: np.ndarray | None
    names: list[Any]
    target: str
    task: str
    images: bool
    encoder: TableEncoder

    @classmethod
    def of(cls, table: Table, target: Any, task: str, folder: Path, leave_out: Any, ood: Any, root: Any) -> _Work:
        """Encode a table, and say which of its rows, or of another's, are foreign."""
        encoder = TableEncoder.fit(table, _target(table, target), task)
        x, y = encode_to_memmap(table, encoder, folder)
        foreign = None if ood is None else np.concatenate(list(_encoded(open_table(ood, root), encoder)))
        names = list(encoder.names)
        if leave_out is not None:
            x, y, foreign, names = _without_class(x, y, names, leave_out, ood)
        return cls(x, y, foreign, names, encoder.target, encoder.task, encoder.image_shape is not None, encoder)


def _encoded(table: Table, encoder: TableEncoder) -> Iterator[np.ndarray]:
    first_row = 0
    encoder.check_columns(table.columns, "ignore")
    for batch in table.batches(batch_rows(encoder.n_features)):
        yield encoder.features(batch, UnknownValues(), "ignore", first_row, RowOptions().on_foreign_values)
        first_row += len(batch)


def _without_class(
    x: np.ndarray, y: np.ndarray, names: list[Any], leave_out: Any, ood: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[Any]]:
    """The rows of the other classes, numbered anew, and those of this one."""
    found = [number for number, name in enumerate(names) if str(name) == str(leave_out)]
    if y.dtype.kind != "i" or y.ndim != 1 or not found:
        raise DataError(f"there is no class {leave_out!r} to leave out; the classes are {', '.join(map(str, names))}")
    if ood is not None:
        raise DataError("OOD rows come from another table (ood) or from a class (leave_out), not both")
    if len(names) < 3:
        raise DataError(f"leaving out {leave_out!r} leaves fewer than two classes")
    own = np.asarray(y) == found[0]
    rest = np.asarray(y)[~own]
    return x[~own], rest - (rest > found[0]), x[own], [name for k, name in enumerate(names) if k != found[0]]


class _Trial:
    """A method on a split: trained, scored, timed.

    Args:
        work: the rows.
        settings: of the estimators.
        holdout: share of the rows that are held out.
        coverage: of intervals.
        seed: of the splits and of training.
    """

    def __init__(self, work: _Work, settings: dict[str, Any], holdout: float, coverage: float, seed: int):
        self.work, self.settings, self.holdout, self.coverage, self.seed = work, settings, holdout, coverage, seed
        self.records: dict[str, Results] = {}

    def __call__(self, name: str, split: int) -> dict[str, Any]:
        kept, out = self._split(split)
        started = time.perf_counter()
        estimator = self._fitted(name, split, kept)
        fitted = time.perf_counter()
        record = self._record(estimator, out)
        rows = np.array(self.work.x[np.resize(out, TIMED)])
        asked = time.perf_counter()
        estimator.predict_dist(rows)
        seconds = time.perf_counter() - asked
        if split == 0:
            self.records[name] = record
        times = {"fit_seconds": fitted - started, "predict_seconds": seconds}
        return {"method": name, "split": split, **times, **score(record)}

    def record_of(self, name: str, split: int) -> Results:
        """The predictions of a method; trained again if that was not in this process."""
        if name not in self.records:
            kept, out = self._split(split)
            self.records[name] = self._record(self._fitted(name, split, kept), out)
        title = f"{name}: predictions of {self.work.target}"
        return dataclasses.replace(self.records[name], title=title, about={"method": name})

    def _split(self, split: int) -> tuple[np.ndarray, np.ndarray]:
        from bedl.estimators.inputs import held_out

        n, classes = len(self.work.x), tasks.get(self.work.task).column == "class"
        count = max(1, round(self.holdout * n))
        seed = int(np.random.SeedSequence([self.seed, split]).generate_state(1)[0])
        return held_out(n, count, seed, np.asarray(self.work.y) if classes else None)

    def _fitted(self, name: str, split: int, kept: np.ndarray) -> Any:
        import bedl.estimators

        task = tasks.get(self.work.task)
        estimator = getattr(bedl.estimators, task.estimator)(
            method=name, random_state=self.seed + split, standardize="shared" if self.work.images else True,
            **self.settings, **task.options,
        )  # fmt: skip
        return estimator.fit(np.array(self.work.x[kept]), np.array(self.work.y[kept]))

    def _record(self, estimator: Any, out: np.ndarray) -> Results:
        engine, work = EstimatorPredictor(estimator, self.work.encoder), self.work
        record = self._predicted(engine, work.x[out], np.array(work.y[out]))
        if work.foreign is None:
            return record
        return dataclasses.replace(record, ood=self._predicted(engine, work.foreign, None))

    def _predicted(self, engine: EstimatorPredictor, x: np.ndarray, y: np.ndarray | None) -> Results:
        work, step, parts = self.work, batch_rows(self.work.x.shape[1]), []
        for start in range(0, len(x), step):
            own = None if y is None else y[start : start + step]
            quantities = engine.quantities(np.array(x[start : start + step]), self.coverage, own)
            parts.append(
                tasks.get(work.task).results(
                    quantities, own, names=work.names, target=work.target, coverage=self.coverage
                )
            )
        return concatenate(parts)
