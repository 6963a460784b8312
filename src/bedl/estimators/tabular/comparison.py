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
from bedl.data.encode import read_roles
from bedl.data.unknown import UnknownValues
from bedl.estimators.tabular.fitting import ReadingSettings, fit_arguments, target_of
from bedl.estimators.tabular.folder import read_json, write_json
from bedl.estimators.tabular.model import TableCallback
from bedl.estimators.tabular.predict import EstimatorPredictor, RowOptions, batch_rows
from bedl.evaluation import tasks
from bedl.evaluation.tasks import Results, concatenate, score

if TYPE_CHECKING:
    import pandas


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
        holdout: share of the rows that are held out in each split, if splits are drawn at random from the same rows.
    """

    data: str
    target: str
    task: str
    rows: list[dict[str, Any]]
    refused: dict[str, str] = field(default_factory=dict)
    constant: dict[str, float] = field(default_factory=dict)
    record: Any = None
    holdout: float = 0.0

    def summary(self) -> list[dict[str, Any]]:
        """A row per method, the best first.

        It holds ``method``, ``splits``, and of each score and time its mean and the mean's standard error,
        ``<name>_se``; ``difference``, by how much the negative log-likelihood is above that of the best on the splits
        that both have, with ``difference_se``, and whether that is a ``tie``; or ``error``, where some split failed.

        Splits that are drawn at random share rows to learn from, so that their scores vary less than those of fresh
        data: the standard error of a difference takes a variance of (1/splits + h/(1 − h)) σ², with the share h of the
        rows that are held out. C. Nadeau, Y. Bengio, "Inference for the Generalization Error", Machine Learning 2003.
        """
        found = [self._of(method) for method in dict.fromkeys(row["method"] for row in self.rows)]
        found.sort(key=lambda row: ("error" in row, math.isnan(row.get("nll", math.nan)), row.get("nll", math.nan)))
        for row in found if found and "nll" in found[0] and "error" not in found[0] else []:
            row.update(self._difference(row["method"], found[0]["method"]))
        return found

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

    def _difference(self, method: str, best: str) -> dict[str, Any]:
        scored = {(row["method"], row["split"]): row["nll"] for row in self.rows if row.get("nll") is not None}
        pairs = [(nll, scored.get((best, split))) for (name, split), nll in scored.items() if name == method]
        gaps = np.array([own - other for own, other in pairs if other is not None])
        if method == best or not len(gaps):
            return {}
        if len(gaps) == 1:
            return {"difference": float(gaps[0])}
        error = math.sqrt((1 / len(gaps) + self.holdout / (1 - self.holdout)) * gaps.var(ddof=1))
        return {"difference": float(gaps.mean()), "difference_se": error, "tie": bool(gaps.mean() <= error)}

    @property
    def best(self) -> str | None:
        """The method with the lowest mean negative log-likelihood among those that did not fail."""
        return next((row["method"] for row in self.summary() if "error" not in row and "nll" in row), None)

    @property
    def to_fit(self) -> str | None:
        """The best of those that `fit` takes: not of the baselines."""
        good = (row["method"] for row in self.summary() if "error" not in row and "nll" in row)
        return next((name for name in good if name not in BASELINES), None)

    @property
    def tied(self) -> list[str]:
        """Methods whose difference to the best is within its standard error."""
        return [row["method"] for row in self.summary() if row.get("tie") and "error" not in row]

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


# Which method for my data? Several on the same splits of a table.


BASELINES = ("linear", "extra-trees", "boosting")  # of scikit-learn, see `baselines`
SHORT = ("auto", "ensemble", "bedl", *BASELINES)  # methods, unless others are named
TIMED = 1000  # rows whose prediction is timed; the same ones again if fewer are held out
REFUSALS = (ValueError, TypeError, NotImplementedError, ImportError)


def compare(
    data: Any,
    target: str | Sequence[str] | None = None,
    methods: Sequence[str] | str | None = None,
    *,
    splits: int = 5,
    holdout: float = 0.2,
    ood: Any = None,
    leave_out: Any = None,
    coverage: float = 0.9,
    epochs: int | None = None,
    hidden: Sequence[int] | str = "auto",
    out: str | PathLike[str] | None = None,
    overwrite: bool = False,
    seed: int = 0,
    device: str = "auto",
    encoding: str | None = None,
    root: str | PathLike[str] | None = None,
    callback: TableCallback | None = None,
    **reading: Any,
) -> Comparison:
    """Train methods on the same splits of a table, and score them on the rows held out.

    Args:
        data: a path (.csv, .tsv, both also .gz, .parquet), a name such as "digits", or a data frame.
        target: the column to predict; data sets that go by a name have one of their own.
        methods: their names, among them ``"linear"``, ``"extra-trees"`` and ``"boosting"`` of scikit-learn, whose noise
            or temperature rows held out in folds say. None: the default, two more of bedl's and these three; ``"all"``:
            all that serve the task and whose packages are there, except what "auto" stands for.
        splits: into rows to learn from and rows held out, the same for all methods: at random, in whole groups, or in
            time, where each split holds out the last rows of an earlier period.
        holdout: share of the rows that are held out.
        ood: a table of out-of-distribution rows.
        leave_out: a class that is not learned; its rows are the foreign ones.
        coverage: share of the targets that intervals are to hold.
        epochs: how often each row is seen at most; None: as each method has it.
        hidden: widths of the hidden layers; "auto": as each method has it.
        out: a folder for the rows. A comparison that was interrupted goes on from there, and more methods or splits
            can be added.
        overwrite: whether to start anew if there is another comparison in `out`.
        seed: of the splits and of all training.
        device: "auto", "cpu", "cuda", …
        encoding: of a text file; UTF-8 by default.
        root: where data sets that go by a name are.
        callback: who looks on.
        reading: how the table is read, as for `fit`: ``task``, ``likelihood``, ``ignore``, ``categorical``,
            ``decimal``, ``date_order``, ``na_values``, ``drop_missing_target``, ``group``, ``time``, ``weight``.

    Example:
        >>> found = compare("iris", methods=["linear", "edl"], splits=2, epochs=2, device="cpu")
        >>> [row["splits"] for row in found.summary()], found.best in ("linear", "edl")
        ([2, 2], True)
    """
    if splits < 1 or not 0 < holdout < 1:
        raise ValueError(f"splits must be at least 1 and holdout between 0 and 1, not {splits} and {holdout}")
    known = [field.name for field in dataclasses.fields(ReadingSettings)]
    unknown = [name for name in reading if name not in known]
    if unknown:
        raise TypeError(f"compare() has no argument {unknown[0]!r}; of reading a table there are {', '.join(known)}")
    read = ReadingSettings(**reading)
    callback, table = callback or TableCallback(), open_table(data, root, encoding)
    folder = None if out is None else Path(out)
    with tempfile.TemporaryDirectory(prefix="bedl-") as scratch:
        work = _Work.of(table, target_of(table, target), read, Path(scratch), leave_out, ood, root)
        chosen, refused = _methods(methods, work, round((1 - holdout) * len(work.x)))
        settings: dict[str, Any] = {
            "hidden_layers": hidden if isinstance(hidden, str) else tuple(hidden),
            "epochs": "auto" if epochs is None else epochs,
            "device": device,
        }
        stamp = {
            "data": table.name, "rows": len(work.x), "target": work.target, "task": work.task, "holdout": holdout,
            "ood": None if ood is None else open_table(ood, root).name, "leave_out": leave_out, "coverage": coverage,
            "seed": seed, **settings, **{k: v for k, v in dataclasses.asdict(read).items() if k != "task"},
        }  # fmt: skip
        rows = ResultRows(folder, stamp, overwrite)
        trial = _Trial(work, settings, splits, holdout, coverage, seed)
        with callback.bar("comparing", len(chosen) * splits) as advance:
            for split in range(splits):
                for name in chosen:
                    if name not in refused and not rows.has(name, split):
                        _try(trial, name, split, rows, refused)
                    advance(1)
        kept = [row for name in chosen for k in range(splits) if (row := rows.get(name, k)) is not None]
        share = 0.0 if read.time is not None else holdout
        found = Comparison(table.name, work.target, work.task, kept, refused, holdout=share)
        record = None if found.best is None else trial.record_of(found.best, 0)
    constant = {} if record is None else tasks.get(work.task).baseline(record)
    return dataclasses.replace(found, constant=constant, record=record)


def _methods(wanted: Sequence[str] | str | None, work: _Work, n: int) -> tuple[list[str], dict[str, str]]:
    """The methods to compare, and of those that were named the ones that cannot be, with what they say.

    n: how many rows they learn from.
    """
    from bedl.estimators.tabular.baselines import Baseline
    from bedl.methods import Problem, registry

    everything = [*registry.names(), *BASELINES]
    listed = (
        SHORT if wanted is None else everything if wanted == "all" else [wanted] if isinstance(wanted, str) else wanted
    )
    problem = Problem(work.task, work.n_targets, work.x.shape[1:], image_shape=work.encoder.image_shape)
    chosen: list[str] = []
    refused: dict[str, str] = {}
    stands_for = registry.resolve("auto", problem)[0] if "auto" in listed else None
    for name in dict.fromkeys(listed):
        if name in BASELINES:
            applies = Baseline.applies(name, work.task, n, work.n_targets)
            why = None if applies else f"method {name!r} is not for {work.task} of these rows"
        else:
            why = f"method {name!r} is what 'auto' stands for here" if name == stands_for else _refusal(name, work.task)
        if why is None:
            chosen.append(name)
        elif wanted is not None and wanted != "all":
            refused[name] = why
    return chosen, refused


def _refusal(name: str, task: str) -> str | None:
    """Why a method does not serve a task; None: it does."""
    from bedl.methods import registry

    entry = registry.get(name)
    if entry.choice is None:
        try:
            entry.check(task, {})
        except registry.UnknownMethodError as error:
            return str(error)
    return None


def _try(trial: _Trial, name: str, split: int, rows: ResultRows, refused: dict[str, str]) -> None:
    """One method on one split. What it says no to is noted, and what fails does not end the comparison."""
    try:
        rows.add(trial(name, split))
    except Exception as error:
        if split == 0 and isinstance(error, REFUSALS):
            refused[name] = str(error)
        else:
            rows.add({"method": name, "split": split, "error": f"{type(error).__name__}: {error}"})


@dataclasses.dataclass(frozen=True)
class _Work:
    """The table as numbers: rows, and OOD rows if there are any.

    Attributes:
        x, y: shapes (n, features), (n, *targets)
        foreign: rows that are not learned from. shape: (m, features)
        names: of the classes or targets.
        roles: "groups", "order" and "weight" of the rows, where there are such. shapes: (n,)
        options: of the estimator.
        encoder: how tables are read.
    """

    x: np.ndarray
    y: np.ndarray
    foreign: np.ndarray | None
    names: list[Any]
    roles: dict[str, np.ndarray]
    options: dict[str, Any]
    encoder: TableEncoder

    @classmethod
    def of(
        cls, table: Table, target: Any, read: ReadingSettings, folder: Path, leave_out: Any, ood: Any, root: Any
    ) -> _Work:
        """Encode a table, and say which of its rows, or of another's, are foreign."""
        encoder = read.encoder(table, target)
        x, y = encode_to_memmap(table, encoder, folder)
        roles = read_roles(table, encoder, read.roles)
        foreign = None if ood is None else np.concatenate(list(_encoded(open_table(ood, root), encoder)))
        names = list(encoder.names)
        if leave_out is not None:
            own, y, names = _without_class(np.asarray(y), names, leave_out, ood)
            x, foreign = x[own], x[~own]
            roles = {name: values[own] for name, values in roles.items()}
        return cls(x, y, foreign, names, roles, read.likelihood_of_numbers, encoder)

    @property
    def target(self) -> str:
        return self.encoder.target

    @property
    def task(self) -> str:
        return self.encoder.task

    @property
    def n_targets(self) -> int:
        return len(self.names)


def _encoded(table: Table, encoder: TableEncoder) -> Iterator[np.ndarray]:
    first_row = 0
    encoder.check_columns(table.columns, "ignore")
    for batch in table.batches(batch_rows(encoder.n_features)):
        yield encoder.features(batch, UnknownValues(), "ignore", first_row, RowOptions().on_foreign_values)
        first_row += len(batch)


def _without_class(
    y: np.ndarray, names: list[Any], leave_out: Any, ood: Any
) -> tuple[np.ndarray, np.ndarray, list[Any]]:
    """Which rows are of the other classes, the numbers of these classes, and their names."""
    found = [number for number, name in enumerate(names) if str(name) == str(leave_out)]
    if y.dtype.kind != "i" or y.ndim != 1 or not found:
        raise DataError(f"there is no class {leave_out!r} to leave out; the classes are {', '.join(map(str, names))}")
    if ood is not None:
        raise DataError("OOD rows come from another table (ood) or from a class (leave_out), not both")
    if len(names) < 3:
        raise DataError(f"leaving out {leave_out!r} leaves fewer than two classes")
    own = y != found[0]
    return own, y[own] - (y[own] > found[0]), [name for k, name in enumerate(names) if k != found[0]]


class _Trial:
    """A method on a split: trained, scored, timed.

    Args:
        work: the rows.
        settings: of the estimators.
        splits: how many there are.
        holdout: share of the rows that are held out.
        coverage: of intervals.
        seed: of the splits and of training.
    """

    def __init__(self, work: _Work, settings: dict[str, Any], splits: int, holdout: float, coverage: float, seed: int):
        from bedl.estimators.inputs import Related

        self.work, self.settings, self.coverage, self.seed = work, settings, coverage, seed
        self.count = max(1, round(holdout * len(work.x)))  # rows held out
        self.related = Related.of(len(work.x), work.roles.get("groups"), work.roles.get("order"))
        if self.related.order is not None and splits * self.count > len(work.x) // 2:
            raise DataError(
                f"{splits} splits in time, which hold out {holdout:g} of the rows each, leave too few to learn from. "
                f"Ask for fewer ({option('splits', 2)}) or smaller ones ({option('holdout', 0.1)})"
            )
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
        seed = int(np.random.SeedSequence([self.seed, split]).generate_state(1)[0])
        rows = np.arange(n)
        if self.related.order is not None:  # up to an earlier time
            rows = np.sort(np.argsort(self.related.order, kind="stable")[: n - split * self.count])
        labels = np.asarray(self.work.y)[rows] if classes else None
        kept, out = held_out(len(rows), self.count, seed, labels, self.related[rows])
        return rows[kept], rows[out]

    def _fitted(self, name: str, split: int, kept: np.ndarray) -> Any:
        import bedl.estimators
        from bedl.estimators.tabular.baselines import Baseline

        work, task = self.work, tasks.get(self.work.task)
        rows = np.array(work.x[kept]), np.array(work.y[kept])
        if name in BASELINES:
            estimator: Any = Baseline(name, work.task, self.seed + split)
        else:
            images = work.encoder.image_shape is not None
            estimator = getattr(bedl.estimators, task.estimator)(
                method=name, random_state=self.seed + split, standardize="shared" if images else True, **self.settings,
                **task.options, **work.options,
            )  # fmt: skip
        return estimator.fit(*rows, **fit_arguments(work.roles, kept))

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
