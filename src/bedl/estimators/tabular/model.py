"""Who looks on while a table is learned from or predicted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bedl._utils.errors import ModelFileError
from bedl.data import DataError, Table, TableEncoder, TableWriter, open_table
from bedl.estimators.tabular.folder import WEIGHTS, ModelCard, new_of, partial_of, read_card, write_model
from bedl.estimators.tabular.predict import (
    EstimatorPredictor,
    OnnxPredictor,
    Predictor,
    RowOptions,
    predicted_columns,
    record_of,
)
from bedl.evaluation import tasks
from bedl.evaluation.tasks import Results, score

if TYPE_CHECKING:
    import pandas

    from bedl.data import TableEncoder
    from bedl.deploy import ExportReport


class TableCallback:
    """Is told what happens; override what you need. This one keeps silent.

    Attributes:
        callbacks: look on while networks are trained, see `bedl.training.Callback`.
    """

    callbacks: tuple[Any, ...] = ()

    def bar(self, text: str, total: int | None) -> AbstractContextManager[Callable[[int], object]]:
        """A block of work on `total` rows, if that is known; the function it gives is called with rows done."""
        return nullcontext(lambda count: None)

    def on_columns(self, encoder: TableEncoder) -> None:
        """It is decided how the table is read."""

    def on_trained(self, chosen: str) -> None:
        """Something was learned; what it is, in a line."""

    def on_rows(self, encoder: TableEncoder, counts: dict[str, int]) -> None:
        """The table is encoded; so many rows are for training, so many are held out."""


# A trained model that takes raw tables.


Place = str | PathLike[str]
TRIES = 100  # to read a folder that is being replaced


class WrittenTable(NamedTuple):
    """Where predictions were written, how many, and the names of their columns."""

    path: Path
    rows: int
    columns: list[str]


class TabularModel:
    """A model and how to read a table for it: what `fit` returns and `load` reads.

    Wherever data is asked for, it is a path (.csv, .tsv, both also .gz, .parquet, .xlsx), a name such as
    "digits:test", or a data frame (pandas, polars, Arrow).

    Attributes:
        name: where the model is, or what it was learned from.
        encoder: how tables are read, a `bedl.data.TableEncoder`.
        engine: what answers for encoded rows: an estimator, or an ONNX file.
        card: what is known of its making; None of an ONNX file.

    Example:
        >>> from bedl.estimators import tabular
        >>> model = tabular.fit("iris", epochs=2, device="cpu")
        >>> model.task, set(model.predict("iris")["prediction"]) <= set(model.encoder.names)
        ('classification', True)
    """

    def __init__(self, name: str, encoder: TableEncoder, engine: Predictor, card: ModelCard | None = None):
        self.name, self.encoder, self.engine, self.card = name, encoder, engine, card

    @property
    def task(self) -> str:
        """The name of what is predicted, see `bedl.evaluation.tasks`."""
        return self.encoder.task

    @property
    def scores(self) -> dict[str, float | None]:
        """The scores of the rows that were held out from training, if any were."""
        return {} if self.card is None else self.card.scores

    def _repr_html_(self) -> str:
        """For notebooks: what the model predicts from which data, its scores on held-out rows, and its training."""
        from bedl.evaluation.report.layout import data, headline
        from bedl.evaluation.report.page import document, embedded
        from bedl.evaluation.report.parts import learning_section

        facts = {"task": self.task, "target": self.encoder.target, "columns": len(self.encoder.columns)}
        facts |= (
            {}
            if self.card is None
            else {"data": self.card.data, **{f"{k.replace('_', '-')} rows": n for k, n in self.card.rows.items()}}
        )
        about = "".join(f"<div><dt>{data(k)}</dt><dd>{data(v)}</dd></div>" for k, v in facts.items())
        training = {} if self.card is None else {**self.card.training, "settings": self.card.settings}
        main = headline({k: v for k, v in self.scores.items() if v is not None}) + learning_section(training)
        return embedded(document(self.name, about, main), 700)

    # -- predicting -------------------------------------------------------------------------------
    def stream(
        self,
        data: Any,
        *,
        coverage: float = 0.9,
        handle_unknown: str = "warn",
        extra: str = "error",
        on_foreign_values: str = "error",
        keep: Sequence[str] = (),
        row_numbers: bool = False,
        encoding: str | None = None,
        root: Place | None = None,
    ) -> Iterator[dict[str, Any]]:
        """The columns of the predictions, batch by batch, in the order of the rows; arguments as for `predict`."""
        options = RowOptions(coverage, handle_unknown, extra, on_foreign_values, tuple(keep), row_numbers)
        yield from predicted_columns(self, open_table(data, root, encoding), options)

    def predict(
        self,
        data: Any,
        out: Place | None = None,
        *,
        coverage: float = 0.9,
        handle_unknown: str = "warn",
        extra: str = "error",
        on_foreign_values: str = "error",
        keep: Sequence[str] = (),
        row_numbers: bool = False,
        overwrite: bool = False,
        encoding: str | None = None,
        root: Place | None = None,
        callback: TableCallback | None = None,
    ) -> pandas.DataFrame | WrittenTable:
        """Predict each row of a table: value or class, uncertainty, and its components.

        Args:
            data: the table to predict.
            out: a .csv, .tsv, .parquet or .jsonl file for the predictions, which are written batch by batch.
            coverage: share of the targets that intervals are to hold.
            handle_unknown: what to do about categories, or missing values, where training had none: "warn" counts
                them in a warning, and predicts with more distributional uncertainty; "ignore" does so without a
                warning; "error" stops.
            extra: what to do about columns that training did not have: "error" or "ignore".
            on_foreign_values: what to do about numbers absurdly far from those of training (a million times its range),
                where predictions mean nothing: "error", "clip" with a warning, or "keep".
            keep: columns of the table that go along with the predictions, such as identifiers, as they are.
            row_numbers: whether the predictions begin with a column ``row`` that counts from 1.
            overwrite: whether a file at `out` may be replaced.
            encoding: of a text file; UTF-8 by default.
            root: where data sets that go by a name are.
            callback: who looks on.

        Returns:
            a pandas frame with a row for each of the table, see `Task.columns`; or where the predictions were written.
        """
        table = open_table(data, root, encoding)
        options = RowOptions(coverage, handle_unknown, extra, on_foreign_values, tuple(keep), row_numbers)
        parts = predicted_columns(self, table, options)
        if out is None:
            return _frame(list(parts), getattr(data, "index", None))
        columns: list[str] = []
        with (
            TableWriter(out, overwrite) as writer,
            (callback or TableCallback()).bar("predicting", table.n_rows) as advance,
        ):
            for part in parts:
                before, columns = writer.rows, list(part)
                writer.write(part)
                advance(writer.rows - before)
        return WrittenTable(Path(out), writer.rows, columns)

    def results(
        self,
        data: Any,
        ood: Any = None,
        *,
        coverage: float = 0.9,
        handle_unknown: str = "warn",
        extra: str = "error",
        on_foreign_values: str = "error",
        need_target: bool = True,
        examples: bool = False,
        encoding: str | None = None,
        root: Place | None = None,
        callback: TableCallback | None = None,
    ) -> Results:
        """Predictions beside what was observed, as the record that is scored and shown.

        Args:
            data: the table to predict.
            ood: a table of out-of-distribution rows.
            coverage, handle_unknown, extra, on_foreign_values, encoding, root, callback: as for `predict`.
            need_target: whether it is an error if no row has a target.
            examples: whether to keep the columns of the most uncertain and the most surprising rows, and to analyse
                the columns.
        """
        callback = callback or TableCallback()
        table = open_table(data, root, encoding)
        foreign = None if ood is None else open_table(ood, root, encoding)
        about = {"model": self.name, "data": table.name}
        with_target = need_target or self.encoder.has_target(table.columns)
        options = RowOptions(coverage, handle_unknown, extra, on_foreign_values)
        with callback.bar("predicting", table.n_rows) as advance:
            whole = record_of(self, table, options, with_target=with_target, examples=examples, progress=advance)
        if need_target and not whole.labelled.any():
            raise DataError(f"no row of {table.name} has a target to compare with. Fill it in, or use 'bedl predict'")
        if foreign is not None:
            # OOD on purpose: unknown values and columns are no errors.
            options = RowOptions(coverage, "ignore", "ignore", "clip")
            with callback.bar("predicting OOD rows", foreign.n_rows) as advance:
                other = record_of(self, foreign, options, with_target=False, examples=examples, progress=advance)
            whole, about = replace(whole, ood=other), {**about, "OOD data": foreign.name}
        card = self.card
        if card is not None and _learned_from(card, table, len(whole)):
            about["data"] += " (training data)"
            seen = "These are training rows: scores and coverage are optimistic."
            whole = replace(whole, notes=[*whole.notes, seen], about=about)
        training = {} if card is None or not card.training else {**card.training, "settings": card.settings}
        return replace(whole, about=about, training=training)

    def evaluate(self, data: Any, ood: Any = None, **options: Any) -> dict[str, float]:
        """The scores of a table that has the target; what they mean is in `bedl.tasks.meanings()`.

        Args:
            data: the table; score on rows that were not learned from.
            ood: a table of out-of-distribution rows, to be detected.
            options: the other arguments of `results`.
        """
        return score(self.results(data, ood, **options))

    def report(
        self, data: Any, path: Place = "report.html", ood: Any = None, *, overwrite: bool = False, **options: Any
    ) -> Path:
        """Write one HTML page: predictions, their uncertainty, calibration, errors, and the columns behind them.

        Args:
            data: the table; without the target the page shows predictions only.
            path: the page.
            ood: a table of out-of-distribution rows.
            overwrite: whether a file that is there may be replaced.
            options: the other arguments of `results`.
        """
        from bedl._utils.io import check_writable
        from bedl.evaluation.report import write_report

        check_writable(Path(path), overwrite)
        options = {"examples": True, "need_target": False, **options}
        return write_report(self.results(data, ood, **options), path, overwrite=overwrite)

    # -- out of this process ----------------------------------------------------------------------
    @property
    def estimator(self) -> Any:
        """The estimator that was trained; an error for an ONNX file, which holds none."""
        if not isinstance(self.engine, EstimatorPredictor):
            raise ModelFileError(f"{self.name} is an ONNX file already. Give the folder that 'bedl fit' made")
        return self.engine.estimator

    def export(
        self,
        path: Place,
        *,
        precision: Literal["float32", "float16", "int8"] = "float32",
        overwrite: bool = False,
        **options: Any,
    ) -> ExportReport:
        """Write the model as one ONNX graph that runs without PyTorch, and takes the same raw tables.

        Args:
            path: the file.
            precision: that of the stored weights.
            overwrite: whether a file that is there may be replaced.
            options: further ones of `bedl.deploy.export`.
        """
        from bedl.deploy import export

        estimator, encoder = self.estimator, self.encoder
        about: dict[str, Any] = {
            "feature_names": encoder.feature_names,
            f"{tasks.get(self.task).named}_names": encoder.names,
            "metadata": {"encoder": encoder.to_dict()},
        }
        return export(estimator, Path(path), precision=precision, overwrite=overwrite, **{**about, **options})

    def save(self, folder: Place, *, overwrite: bool = False) -> Path:
        """Write the model folder that `load` and the command line read; it appears whole or not at all.

        Args:
            folder: where it goes.
            overwrite: whether a model that is there may be replaced.
        """
        estimator, card = self.estimator, self.card
        assert card is not None  # every estimator has one
        return write_model(Path(folder), estimator, card, overwrite)


def load(path: Place) -> TabularModel:
    """The model at a path: a folder made by `fit` or `bedl fit`, or an .onnx file, which needs no PyTorch."""
    path = Path(path)
    before = _which(path)
    for _ in range(TRIES):
        try:
            return _load(path)
        except ModelFileError:
            now = _which(path)
            if now == before and not _between(path):
                raise
            before = now  # a new model took the place of the old one while we read: once more
            time.sleep(0.01)
    return _load(path)


def _learned_from(card: ModelCard, table: Table, rows: int) -> bool:
    """Whether a file or a built-in set is that of the fit, by its name and its number of rows; frames have no name."""
    named = table.default_target is not None or Path(table.name).is_file()
    return named and table.name == card.data and rows >= sum(card.rows.values())


def _which(path: Path) -> tuple[int, int] | None:
    """What tells a folder from another that took its place."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _between(path: Path) -> bool:
    """Whether the old model is away and the new one not there yet, see `bedl.estimators.tabular.folder`."""
    return not path.exists() and any((stage / "old").is_dir() for stage in (partial_of(path), new_of(path)))


def _load(path: Path) -> TabularModel:
    if path.is_dir():
        card, encoder = read_card(path)
        return TabularModel(str(path), encoder, EstimatorPredictor.of_file(path / WEIGHTS, encoder, card.weights), card)
    if not path.exists():
        if partial_of(path).is_dir():
            raise ModelFileError(f"{path} is not complete: its fit was interrupted. Go on with it: bedl fit … --resume")
        raise ModelFileError(f"there is no model {path}. Make one with 'bedl fit', or check the path")
    if path.suffix.lower() != ".onnx":
        raise ModelFileError(
            f"{path} is no model. Give the folder that 'bedl fit' made, or an .onnx file that 'bedl export' wrote"
        )
    engine = OnnxPredictor(path)
    return TabularModel(str(path), engine.encoder, engine)


def _frame(parts: list[dict[str, Any]], index: Any) -> pandas.DataFrame:
    try:
        import pandas
    except ImportError:
        raise ImportError("a frame of predictions needs pandas: pip install pandas; or give a file, out=…") from None
    columns = {name: _joined([part[name] for part in parts]) for name in parts[0]}
    return pandas.DataFrame(columns, index=index if isinstance(index, pandas.Index) else None)


def _joined(parts: list[Any]) -> Any:
    """A column of all batches; whole numbers stay such, also beside missing ones."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import pyarrow as pa

    return pa.chunked_array(parts).to_pandas(integer_object_nulls=True).to_numpy()
