"""A table as numbers on disk: rows to learn from, and rows held out for the scores."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

import bedl
from bedl._utils.errors import ModelFileError, listed, option
from bedl._utils.io import OutputExistsError, OutputFileError, remedy
from bedl.data import DataError, Table, TableEncoder, encode_to_memmap, open_table
from bedl.data.encode import Roles, read_roles
from bedl.data.profile import Progress
from bedl.estimators.tabular.folder import (
    ModelCard,
    actual,
    check_vacant,
    locked,
    partial_of,
    put_in_place,
    read_json,
    remove,
    write_files,
    write_json,
)
from bedl.estimators.tabular.model import TableCallback, TabularModel
from bedl.estimators.tabular.predict import EstimatorPredictor, batch_rows, scores_of_encoded
from bedl.evaluation import tasks

MIN_ROWS = 20  # rows; of fewer none are held out
NAMES = ("features", "targets")
ROLES = ("groups", "order", "weight")
REAL = ("normal", "log-normal", "logit-normal")  # likelihoods of numbers of any kind


@dataclass(frozen=True)
class EncodedTable:
    """Memory-mapped rows to learn from, and rows held out for the scores, if any.

    Attributes:
        x, y: rows to learn from. shapes: (n, features), (n, *targets)
        held_x, held_y: rows held out.
        roles: "groups", "order" and "weight" of the rows to learn from, where there are such. shapes: (n,)
    """

    x: np.ndarray
    y: np.ndarray
    held_x: np.ndarray | None = None
    held_y: np.ndarray | None = None
    roles: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows are for training, and how many are held out."""
        return {"training": len(self.x), "held_out": 0 if self.held_x is None else len(self.held_x)}


def encode(
    table: Table, encoder: TableEncoder, folder: Path, share: float, seed: int, progress: Progress, roles: Roles
) -> EncodedTable:
    """The table as numbers in a folder, some rows of it held out; what is there and complete is not made again.

    Args:
        table: the table to learn from.
        encoder: the encoder that says how it is read.
        folder: where the numbers go.
        share: the share of the rows that are held out.
        seed: the seed of the choice.
        progress: called with the number of rows done since the last call.
        roles: columns of groups, times and weights.
    """
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        x, y = encode_to_memmap(table, encoder, folder, progress)
        more = read_roles(table, encoder, roles)
        for name, values in more.items():
            np.save(folder / f"{name}.npy", values)
        split(x, y, share, seed, tasks.get(encoder.task).column == "class", folder, more)
        (folder / "complete").touch()
    held = [f"held_{name}" for name in NAMES] if (folder / "held_features.npy").exists() else []
    x, y, *out = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in [*NAMES, *held])
    found = {name: np.load(folder / f"{name}.npy") for name in ROLES if (folder / f"{name}.npy").exists()}
    held_x, held_y = out or (None, None)
    return EncodedTable(x, y, held_x, held_y, found)


def fit_arguments(roles: Mapping[str, np.ndarray], rows: Any = slice(None)) -> dict[str, np.ndarray]:
    """What `read_roles` found, of some rows, as an estimator's `fit` takes it."""
    return {"sample_weight" if name == "weight" else name: values[rows] for name, values in roles.items()}


def _write_rows(path: Path, source: np.ndarray, chosen: np.ndarray, step: int) -> None:
    """Some rows to a file, by calls that report a full disk: writing to a memory map would end the process."""
    fields = {
        "descr": np.lib.format.dtype_to_descr(source.dtype),
        "fortran_order": False,
        "shape": (len(chosen), *source.shape[1:]),
    }
    try:
        with path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, fields)
            for start in range(0, len(chosen), step):
                file.write(np.ascontiguousarray(source[chosen[start : start + step]]).data)
    except OSError as error:
        raise OutputFileError(f"{path} could not be written: {error}. {remedy(error)}") from None


def split(
    x: np.ndarray, y: np.ndarray, share: float, seed: int, classes: bool, folder: Path, roles: dict[str, np.ndarray]
) -> None:
    """Some rows at random, from every class where there are classes, moved to files of their own.

    Whole groups, or the latest rows, where there are groups or times.
    """
    from bedl.estimators.inputs import Related, held_out

    n = len(x)
    count = round(share * n) if n >= MIN_ROWS else 0
    if not count:
        return
    if n - count < 2:
        raise DataError(
            f"a holdout of {share:g} leaves {n - count} of {n} rows to learn from. Hold out a smaller "
            f"share ({option('holdout', 0.1)})"
        )
    related = Related.of(n, roles.get("groups"), roles.get("order"))
    kept, out = held_out(n, count, seed, np.asarray(y) if classes else None, related)
    step = batch_rows(x.shape[1])
    for chosen, prefix in ((out, "held_"), (kept, "kept_")):
        for source, name in ((x, "features"), (y, "targets")):
            _write_rows(folder / f"{prefix}{name}.npy", source, chosen, step)
    for name, values in roles.items():
        _write_rows(folder / f"kept_{name}.npy", values, kept, len(kept))
    for name in [*NAMES, *roles]:
        os.replace(folder / f"kept_{name}.npy", folder / f"{name}.npy")


# From a table to a model folder, in steps that an interrupted fit can take up again.
#
# Everything happens in `<name>.partial`: run.json says what is being made, data/ holds the encoded table, checkpoints/
# the training, model/ the model. Whatever is there and complete is not made again, and all of it stays until the model
# is in its place: whenever a fit is killed, --resume goes on, or the model is there.


RUN = "run.json"
MULTITHREADED_WEIGHTS = 2**16  # weights of a layer
MAX_EPOCHS = 200  # whose losses are kept for the page
MIN_CHECKPOINT_SECONDS, MAX_CHECKPOINT_SECONDS = (
    1.0,
    60.0,
)  # seconds between checkpoints: tiny epochs need none, a power cut costs at most a minute


@dataclass(frozen=True)
class ReadingSettings:
    """How a table is read, as `fit` and `compare` are asked for it; `bedl.tabular.fit` explains it."""

    task: str = "auto"
    likelihood: str | None = None
    ignore: Sequence[str] = ()
    categorical: Sequence[str] = ()
    decimal: str = "auto"
    date_order: str = "auto"
    na_values: Sequence[str] = ()
    drop_missing_target: bool = False
    group: str | None = None
    time: str | None = None
    weight: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "task", _task(self.task, self.likelihood))
        for name in ("ignore", "categorical", "na_values"):
            object.__setattr__(self, name, tuple(str(value) for value in getattr(self, name)))

    @property
    def roles(self) -> Roles:
        """Columns of groups, times and weights."""
        return Roles(self.group, self.time, self.weight)

    def encoder(
        self, table: Table, target: str | Sequence[str], progress: Progress = lambda count: None
    ) -> TableEncoder:
        """Decide how the table is read. Bad tables end here."""
        self.roles.check(table)
        return TableEncoder.fit(
            table, target, self.task, {*self.ignore, *self.roles.no_features}, self.categorical,
            drop_missing_target=self.drop_missing_target, progress=progress, decimal=self.decimal,
            date_order=self.date_order, na_values=self.na_values,
        )  # fmt: skip

    @property
    def likelihood_of_numbers(self) -> dict[str, Any]:
        """The likelihood, as estimators of numbers of any kind take it, if one was named."""
        return {"likelihood": self.likelihood} if self.likelihood in REAL else {}


@dataclass(frozen=True, kw_only=True)
class FitSettings(ReadingSettings):
    """What was asked for; `bedl.tabular.fit` explains it. A fit is resumed only with the same."""

    data: str
    target: str | tuple[str, ...]
    holdout: float = 0.1
    epochs: int | None = None
    ensemble: int = 1
    hidden: tuple[int, ...] | None = None
    seed: int = 0
    method: str = "auto"
    class_weight: str | None = None


class FitRun:
    """A fit under way, in its partial folder; its place has to be locked.

    Args:
        table: the table to learn from.
        settings: what was asked for.
        place: the folder that the model is to be in.
        overwrite: whether to replace a model that is there, and start anew where a fit was interrupted.
        resume: whether to go on with a fit that was interrupted.
    """

    def __init__(self, table: Table, settings: FitSettings, place: Path, *, overwrite: bool, resume: bool):
        self.table, self.settings, self.place, self.partial = table, settings, place, partial_of(place)
        check_vacant(place, overwrite)
        self.encoder: TableEncoder | None = None
        self._stamp = {"settings": _plain(asdict(settings)), "data": _data_stamp(table)}
        self._forget_nothing_begun()
        self._fresh = not self.partial.exists()
        if resume:
            self._take_up()
        elif not self._fresh:
            self._refuse_or_clear(overwrite)

    def _forget_nothing_begun(self) -> None:
        """A kill right at the beginning leaves an empty folder, or one with a piece of run.json."""
        if self.partial.is_dir() and all(
            path.name.startswith(f".{Path(RUN).stem}.") for path in self.partial.iterdir()
        ):
            remove(self.partial, self.place)

    def _take_up(self) -> None:
        if not (self.partial / RUN).is_file():
            raise ModelFileError(
                f"there is no interrupted fit in {self.partial} to resume. Leave out {option('resume')} to start one"
            )
        run = read_json(self.partial / RUN)
        for what, now in self._stamp.items():
            before = run.get(what, {})
            different = [key for key in now if before.get(key) != now[key]]
            if different:
                key = different[0]
                raise ModelFileError(
                    f"{self.partial} is of a fit with {key.replace('_', '-')} {before.get(key)!r}, now {now[key]!r}: "
                    f"resume with the same data and options, or start anew ({option('overwrite', True)})"
                )
        if run.get("encoder") is not None:
            self.encoder = TableEncoder.from_dict(run["encoder"])

    def _refuse_or_clear(self, overwrite: bool) -> None:
        if not overwrite:
            raise OutputExistsError(
                f"{self.partial} holds a fit that was interrupted. Go on with it ({option('resume', True)}), or start "
                f"anew ({option('overwrite', True)})"
            )
        if not (self.partial / RUN).is_file() and any(self.partial.iterdir()):
            raise OutputExistsError(
                f"{self.partial} is not of bedl. Move it away, or choose another name ({option('out')})"
            )
        remove(self.partial, self.place)

    # -- the steps --------------------------------------------------------------------------------
    def decide(self, progress: Progress) -> TableEncoder:
        """How the table is read. Bad tables end here, and leave nothing behind."""
        if self.encoder is None:
            self.encoder = self.settings.encoder(self.table, self.settings.target, progress)
            if self.settings.class_weight is not None and tasks.get(self.encoder.task).column != "class":
                raise DataError(f"class_weight is for classes, and {self.encoder.task} has none. Leave it out")
            try:
                self.partial.mkdir(exist_ok=True)
                write_json(self.partial / RUN, {**self._stamp, "encoder": self.encoder.to_dict()})
            except BaseException:  # a stop as well: there is nothing yet that could be resumed
                self._forget_nothing_begun()
                raise
        return self.encoder

    def encode(self, progress: Progress) -> EncodedTable:
        """The table as numbers on disk, some rows of it held out."""
        assert self.encoder is not None
        s = self.settings
        with self._discarded_on_error():
            return encode(self.table, self.encoder, self.partial / "data", s.holdout, s.seed, progress, s.roles)

    def train(self, rows: EncodedTable, device: str, callbacks: tuple[Any, ...]) -> Any:
        """The fitted estimator; goes on from a checkpoint that is there."""
        import bedl.estimators
        from bedl.training import Checkpoints

        assert self.encoder is not None
        s, task = self.settings, tasks.get(self.encoder.task)
        with self._discarded_on_error(), _threads(self.encoder.n_features, s.hidden or (64, 64)):
            estimator = getattr(bedl.estimators, task.estimator)(
                s.hidden or "auto", image_shape=self.encoder.image_shape, ensemble=s.ensemble,
                epochs="auto" if s.epochs is None else s.epochs, device=device, callbacks=callbacks,
                checkpoint=Checkpoints(self.partial / "checkpoints", every_seconds=MAX_CHECKPOINT_SECONDS,
                                       least_seconds=MIN_CHECKPOINT_SECONDS),
                random_state=s.seed, method=s.method, **self._options(),
            )  # fmt: skip
            return estimator.fit(rows.x, rows.y, **fit_arguments(rows.roles))

    def _options(self) -> dict[str, Any]:
        """What the estimator of the task takes beside the rest."""
        assert self.encoder is not None
        s = self.settings
        weight = {} if s.class_weight is None else {"class_weight": s.class_weight}
        return {**tasks.get(self.encoder.task).options, **weight, **s.likelihood_of_numbers}

    def finish(
        self, estimator: Any, rows: EncodedTable, scores: dict[str, float], notes: Sequence[str] = ()
    ) -> ModelCard:
        """Everything written, what is no longer needed removed, and the folder put in its place."""
        assert self.encoder is not None
        card = ModelCard(
            task=self.encoder.task,
            target=self.encoder.target,
            data=self.table.name,
            encoder=self.encoder.to_dict(),
            weights="",
            rows=rows.counts,
            scores={name: value if np.isfinite(value) else None for name, value in scores.items()},
            notes=[*self.encoder.notes, *notes],
            settings=self._stamp["settings"],
            versions=_versions(),
            training=_training(estimator),
        )
        card = write_files(self.partial, estimator, card)
        put_in_place(self.partial, self.place)
        return card

    @contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        """Errors give up on the fit; an interrupt keeps it, to be resumed."""
        try:
            yield
        except Exception:
            self.discard()
            raise

    def discard(self) -> None:
        """Gives up on a fit that this call began: nothing of it remains, unless something was learned already."""
        if self._fresh and self.partial.exists() and not any((self.partial / "checkpoints").rglob("*.safetensors")):
            remove(self.partial, self.place)


@contextmanager
def _threads(n_features: int, hidden: tuple[int, ...]) -> Iterator[None]:
    """One thread for a network whose steps are too small to share: several would mostly wait for each other.

    Measured on a busy machine with two cores, for 64 features and 50 hidden units: 2.5 s and 13 s an epoch.
    """
    import torch

    widths, before = (n_features, *hidden), torch.get_num_threads()
    small = max(a * b for a, b in zip(widths, (*hidden, 1), strict=True)) < MULTITHREADED_WEIGHTS
    if small and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _training(estimator: Any) -> dict[str, Any]:
    """What was chosen, and the course of the members' mean loss, of at most `MAX_EPOCHS` epochs."""
    found: dict[str, Any] = {"chosen": estimator.chosen_}
    for name in ("loss", "val_nll"):
        by_epoch: dict[int, list[float]] = {}
        for row in estimator.history_:
            if name in row:
                by_epoch.setdefault(int(row["epoch"]), []).append(float(row[name]))
        means = [round(float(np.mean(by_epoch[epoch])), 5) for epoch in sorted(by_epoch)]
        if means and np.isfinite(means).all():
            found[name] = means[:: -(-len(means) // MAX_EPOCHS)]
    return found


def _data_stamp(table: Table) -> dict[str, Any]:
    """What tells whether the data is still the same."""
    stamp: dict[str, Any] = {"rows of the table": table.n_rows}
    if table.digest is not None:
        stamp["checksum of the table"] = table.digest
    path = Path(table.name)
    if table.default_target is None and path.is_file():
        stamp |= {"bytes of the file": path.stat().st_size, "time of the file": path.stat().st_mtime_ns}
    return stamp


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}


def _versions() -> dict[str, str]:
    import platform

    found = {"bedl": bedl.__version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "scikit-learn", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# Learning from a table, from beginning to end.


def fit(
    data: Any,
    target: str | Sequence[str] | None = None,
    out: str | PathLike[str] | None = None,
    *,
    task: str = "auto",
    likelihood: str | None = None,
    method: str = "auto",
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    decimal: str = "auto",
    date_order: str = "auto",
    na_values: Sequence[str] = (),
    drop_missing_target: bool = False,
    group: str | None = None,
    time: str | None = None,
    weight: str | None = None,
    holdout: float = 0.1,
    epochs: int | None = None,
    ensemble: int = 1,
    hidden: Sequence[int] | None = None,
    class_weight: str | None = None,
    seed: int = 0,
    device: str = "auto",
    encoding: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    root: str | PathLike[str] | None = None,
    callback: TableCallback | None = None,
) -> TabularModel:
    """Learn from a table. Categories, dates and missing values are taken care of; `model.card.notes` say how.

    Args:
        data: a path (.csv, .tsv, both also .gz, .parquet, .xlsx), "-" for standard input, a name such as
            "digits:train", or a data frame (pandas, polars, Arrow). Files are read in batches, and may be larger than
            memory.
        target: the column to predict; several columns of 0 and 1, yes and no, true and false are predicted together.
            Data sets that go by a name have one of their own.
        out: a folder for the model. While it learns, checkpoints are in `<out>.partial`, and a fit that was
            interrupted goes on from there. Without it the model is in memory only, until it is saved.
        task: the name of a task of `bedl.tasks`, or "auto": text, booleans and few distinct whole numbers are classes.
        likelihood: the distribution of a target of numbers: "normal", "log-normal" for positive ones, "logit-normal"
            for those between 0 and 1, "count" for whole numbers from 0 on; None: of the first three what fits best.
        method: the name of the method to train, see `bedl.methods.registry`.
        ignore: columns to leave out.
        categorical: columns whose values are labels, even if they look like numbers.
        decimal: "." or ",", the mark before the decimals of numbers in text; "auto" finds out, or asks.
        date_order: "dmy" or "mdy", whether day or month comes first in dates such as 01/02/2023; "auto" finds out, or
            asks.
        na_values: texts, or numbers such as "-999", that stand for a missing value, in any column. In columns of
            numbers and dates ``?``, ``-``, ``.``, ``unknown`` and the like do so anyway.
        drop_missing_target: whether to leave out rows without a target, instead of an error.
        group: a column of the patient, house, … that rows belong to, which is no feature. Rows are held out in whole
            groups, so that scores and intervals are those of new groups.
        time: a column of numbers or dates, when rows were observed; it stays a feature. The latest rows are held out,
            so that scores and intervals are those of the next period.
        weight: a column of numbers, how much each row counts, which is no feature.
        holdout: share of the rows that are kept aside and scored at the end.
        epochs: how often each row is seen at most; None: from the number of rows.
        ensemble: how many networks are trained and mixed.
        hidden: widths of the hidden layers; None: as the method has it.
        class_weight: "balanced": rows of rare classes count more, so that all classes count the same. Probabilities
            are then those of a world in which the classes are equally frequent.
        seed: the seed of all random choices.
        device: "auto", "cpu", "cuda", …
        encoding: of a text file; UTF-8 by default.
        resume: whether to go on with a fit that was interrupted.
        overwrite: whether to replace a model at `out`, and start anew where a fit was interrupted.
        root: where data sets that go by a name are; $BEDL_DATA, else ~/.cache/bedl, by default.
        callback: who looks on.

    Example:
        >>> import numpy as np, pandas
        >>> x = np.linspace(-1, 1, 100)
        >>> frame = pandas.DataFrame({"size": x, "colour": ["red", "blue"] * 50, "price": 20 + 5 * x})
        >>> model = fit(frame, target="price", epochs=5, device="cpu")
        >>> list(model.predict(frame[:2]))[:6]
        ['prediction', 'std', 'lower', 'upper', 'aleatoric_std', 'epistemic_std']
    """
    from bedl.methods import registry

    registry.get(method)  # a name that is none is refused before the work
    if class_weight not in (None, "balanced"):
        raise DataError(f"class_weight is None or 'balanced', not {class_weight!r}")
    table = open_table(data, root, encoding)
    settings = FitSettings(
        data=table.name, target=target_of(table, target), task=task, likelihood=likelihood, ignore=ignore,
        categorical=categorical, decimal=decimal, date_order=date_order, na_values=na_values,
        drop_missing_target=drop_missing_target, group=group, time=time, weight=weight, holdout=holdout, epochs=epochs,
        ensemble=ensemble, hidden=hidden if hidden is None else tuple(hidden), seed=seed, method=method,
        class_weight=class_weight,
    )  # fmt: skip
    callback = callback or TableCallback()
    with _place(out) as place, locked(place):
        run = FitRun(table, settings, place, overwrite=overwrite, resume=resume)
        return _learned(run, device, callback, str(table.name if out is None else out))


def _learned(run: FitRun, device: str, callback: TableCallback, name: str) -> TabularModel:
    with callback.bar("reading", None) as advance:
        encoder = run.decide(advance)
    callback.on_columns(encoder)
    with callback.bar("encoding", run.table.n_rows) as advance:
        rows = run.encode(advance)
    callback.on_rows(encoder, rows.counts)
    estimator = run.train(rows, device, callback.callbacks)
    callback.on_trained(estimator.chosen_)
    model = TabularModel(name, encoder, EstimatorPredictor(estimator, encoder))
    scores: dict[str, float] = {}
    notes = []
    if rows.held_x is not None and rows.held_y is not None:
        try:
            scores = scores_of_encoded(model, rows.held_x, rows.held_y)
        except Exception as error:  # whatever it is: what was learned is not thrown away for its scores
            notes = [f"the rows held out could not be scored ({type(error).__name__}: {error})"]
            warnings.warn(f"{notes[0]}; the model is kept", stacklevel=3)
    elif run.settings.holdout > 0:
        notes = [
            f"no row was held out of {len(rows.x)}, so there are no scores: score the model on rows that it has not "
            f"seen, or give more than {MIN_ROWS} rows"
        ]
        warnings.warn(notes[0], stacklevel=3)
    model.card = run.finish(estimator, rows, scores, notes)
    return model


@contextmanager
def _place(out: str | PathLike[str] | None) -> Iterator[Path]:
    if out is not None:
        yield actual(Path(out))
        return
    with tempfile.TemporaryDirectory(prefix="bedl-") as folder:
        yield Path(folder, "model")


def target_of(table: Table, target: str | Sequence[str] | None) -> str | tuple[str, ...]:
    """The target column, or several; the table's own if none is named."""
    if target is None or not len(target):
        if table.default_target is None:
            raise DataError(f"which column is to be predicted? {table.name} has {listed(table.columns, 20)}")
        return table.default_target
    if isinstance(target, str):
        return target
    return target[0] if len(target) == 1 else tuple(target)


def _task(task: str, likelihood: str | None) -> str:
    """The task that a likelihood asks for."""
    if likelihood is None:
        return task
    wanted = tasks.automatic("number").name if likelihood in REAL else tasks.get(likelihood).name
    if task not in ("auto", wanted):
        raise DataError(f"the likelihood {likelihood!r} is for the task {wanted}, not {task}. Leave one of them out")
    return wanted
