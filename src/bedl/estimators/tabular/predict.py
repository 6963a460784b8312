"""Columns of a table that go along with its predictions: identifiers, and the numbers of the rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bedl._utils.errors import ModelFileError, listed, option
from bedl.data import DataError, Table, TableEncoder
from bedl.data.parsing import kind_of_type
from bedl.data.unknown import DRAWS, UnknownValues, check_handle_unknown
from bedl.deploy.runtime import OnnxModel
from bedl.estimators.tabular.columns import Sample, causes, slices, summaries
from bedl.evaluation import tasks
from bedl.evaluation.tasks import Examples, Quantities, Results, concatenate, score

if TYPE_CHECKING:
    import pyarrow as pa

    from bedl.estimators.tabular.model import TabularModel

__all__ = [
    "Predictor",
    "EstimatorPredictor",
    "OnnxPredictor",
    "ROW",
    "RowOptions",
    "batch_rows",
    "check_kept",
    "predicted_columns",
    "record_of",
    "scores_of_encoded",
    "with_kept",
]


ROW = "row"
CAUSE = "main cause (→ if typical)"


def check_kept(keep: Sequence[str], columns: Sequence[str]) -> None:
    """An error if a column to keep is none of the table's."""
    absent = [name for name in keep if name not in columns]
    if absent:
        near = get_close_matches(absent[0], columns, n=1)
        hint = f" Did you mean {listed(near)}?" if near else ""
        raise DataError(
            f"the table has no column {listed(absent)} to keep.{hint} Choose among {listed(list(columns), 20)}"
        )


def with_kept(
    batch: pa.RecordBatch, keep: Sequence[str], row_numbers: bool, first_row: int, predicted: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The predictions of a batch, behind the number of each row, counted from 1, and the columns to keep."""
    kept: dict[str, Any] = {ROW: np.arange(first_row + 1, first_row + len(batch) + 1)} if row_numbers else {}
    for name in keep:
        column = batch.column(name)
        if kind_of_type(column.type) is None:
            raise DataError(f"column {listed([name])} is of type {column.type}, which cannot be kept. Keep another")
        if name in kept or name in predicted:
            raise DataError(
                f"the predictions have a column {listed([name])} of their own. Rename that of the table to keep it"
            )
        kept[name] = column
    return {**kept, **predicted}


# Tables through a model, batch by batch: memory holds one batch, and of the results a few numbers per row.


UNKNOWN_ROWS = 2**14  # rows that are predicted at once in place of those with unknown values
NUMBERS = 2**22  # that a batch of features holds
EXAMPLES = 20  # most uncertain rows of each batch that a page may show, and as many of the most surprising
SHADES = (1, 16, 255)  # how bright a pixel may be: shares, digits, bytes


def batch_rows(n_features: int) -> int:
    """How many rows are read together.

    >>> batch_rows(20), batch_rows(784), batch_rows(10_000_000)
    (65536, 5349, 1)
    """
    return min(65_536, max(1, NUMBERS // n_features))


@dataclass(frozen=True)
class RowOptions:
    """How rows are read and predicted.

    Attributes:
        coverage: share of the targets that intervals are to hold.
        handle_unknown: what to do about values that training did not see, see `bedl.data.unknown`: "warn" and
            predict with more uncertainty, the same without a warning ("ignore"), or "error".
        extra: "ignore" leaves out columns that training did not have.
        on_foreign_values: what to do about numbers absurdly far from those of training: "error", "clip" or "keep".
        keep: columns that go along with the predictions.
        row_numbers: whether predictions begin with the number of their row.
    """

    coverage: float = 0.9
    handle_unknown: str = "warn"
    extra: str = "error"
    on_foreign_values: str = "error"
    keep: tuple[str, ...] = ()
    row_numbers: bool = False

    def unknown_values(self) -> UnknownValues | None:
        """What counts values that training did not see; None: they are errors."""
        check_handle_unknown(self.handle_unknown)
        return None if self.handle_unknown == "error" else UnknownValues()


def predicted_columns(model: TabularModel, table: Table, options: RowOptions) -> Iterator[dict[str, Any]]:
    """Predictions for the rows of a table as the columns of another, in order, batch by batch."""
    encoder, task, unknown = model.encoder, tasks.get(model.encoder.task), options.unknown_values()
    for batch, first_row in _batches(encoder, table, options):
        x = _features(encoder, batch, first_row, options, unknown)
        quantities = model.engine.quantities(x, options.coverage)
        _check_finite(quantities, x, encoder, first_row, options)
        predicted = task.columns(quantities, encoder.names, options.coverage)
        yield with_kept(batch, options.keep, options.row_numbers, first_row, predicted)
    if unknown is not None and options.handle_unknown == "warn":
        unknown.warn()


def record_of(
    model: TabularModel,
    table: Table,
    options: RowOptions,
    *,
    with_target: bool = True,
    examples: bool = False,
    progress: Callable[[int], object] = lambda count: None,
) -> Results:
    """All predictions for a table as the record that is scored and shown.

    Args:
        model: the model to ask.
        table: the rows to predict.
        options: how they are read and predicted.
        with_target: whether to compare with the targets; rows without one are predicted and not scored.
        examples: whether to keep what the most uncertain and the most surprising rows look like, and to score a linear
            model beside.
        progress: called with the rows done since the last call.
    """
    encoder, parts, lines, unknown = model.encoder, [], [], options.unknown_values()
    sample, telling = Sample(), []  # rows for the analysis of the columns, and those of the examples
    for batch, first_row in _batches(encoder, table, options):
        x = _features(encoder, batch, first_row, options, unknown)
        y = _targets(encoder, batch, first_row) if with_target else None
        quantities = model.engine.quantities(x, options.coverage, y)
        _check_finite(quantities, x, encoder, first_row, options)
        part = _record(model, quantities, y, options.coverage)
        parts.append(_with_examples(part, encoder, batch) if examples else part)
        if examples:
            sample.add(x, y, first_row)
            telling.append(x[parts[-1].examples.index])
        line = model.engine.linear_quantities(x, options.coverage, y) if examples and y is not None else None
        lines += [] if line is None else [_record(model, line, y, options.coverage)]
        progress(len(batch))
    whole = replace(concatenate(parts, examples=EXAMPLES), linear=score(concatenate(lines)) if lines else {})
    if examples and encoder.image_shape is None:
        whole = _analysed(model, whole, options.coverage, sample, _rows_of(parts, telling, whole.examples.index))
    unlabelled = int((~whole.labelled).sum()) if with_target else 0
    notes = [f"{unlabelled} rows have no target; they are predicted and not scored."] if unlabelled else []
    if unknown is not None and options.handle_unknown == "warn":
        unknown.warn()
        notes += [f"{note}. Their uncertainty is larger." for note in unknown.notes()]
    return replace(whole, title=f"Predictions of {whole.target_name}", notes=notes)


def _rows_of(parts: Sequence[Results], rows: Sequence[np.ndarray], index: np.ndarray) -> np.ndarray:
    """The encoded rows of these numbers, of those that the examples of each part have. shape: (k, features)"""
    starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
    numbers = np.concatenate([part.examples.index + start for part, start in zip(parts, starts, strict=True)])
    order = np.argsort(numbers)
    return np.concatenate(rows)[order[np.searchsorted(numbers, index, sorter=order)]]


def _analysed(model: TabularModel, whole: Results, coverage: float, sample: Sample, telling: np.ndarray) -> Results:
    """The same record with what its columns do, and the causes of its most uncertain rows."""

    def ask(x: np.ndarray, y: np.ndarray | None) -> Results:
        return _record(model, model.engine.quantities(x, coverage, y), y, coverage)

    columns, x, examples = model.encoder.encoded_columns, sample.rows, whole.examples
    assert x is not None  # there are no records of no rows
    found = summaries(ask, columns, x, sample.targets)
    some = ask(x, sample.targets) if sample.targets is not None else None
    said = causes(ask, columns, telling)
    if said:
        examples = replace(examples, columns={CAUSE: said, **examples.columns})
    return replace(whole, columns=found, slices=slices(some, columns, x) if some else [], examples=examples)


def scores_of_encoded(model: TabularModel, x: np.ndarray, y: np.ndarray, coverage: float = 0.9) -> dict[str, float]:
    """The scores of rows that are encoded already. x shape: (n, features), y shape: (n, *targets)"""
    step = batch_rows(max(x.shape[1], len(model.encoder.names)))
    starts = range(0, len(x), step)
    parts = []
    for i in starts:
        rows, targets = np.array(x[i : i + step]), np.array(y[i : i + step])
        parts.append(_record(model, model.engine.quantities(rows, coverage, targets), targets, coverage))
    return score(concatenate(parts))


def _features(
    encoder: TableEncoder, batch: pa.RecordBatch, first_row: int, options: RowOptions, unknown: UnknownValues | None
) -> np.ndarray:
    read = batch.select([name for name in batch.schema.names if _is_read(name, encoder, options)])
    return encoder.features(read, unknown, options.extra, first_row, options.on_foreign_values)


def _is_read(name: str, encoder: TableEncoder, options: RowOptions) -> bool:
    """Whether a column is for the model: one that is only kept need not have been there in training."""
    return name not in options.keep or name in encoder.columns


def _check_finite(
    quantities: Quantities, x: np.ndarray, encoder: TableEncoder, first_row: int, options: RowOptions
) -> None:
    """An error that names the row and its largest feature where a prediction is none; a warning if it is wanted."""
    about_targets = ("log_density", "cdf")
    wrong = np.zeros(len(x), dtype=bool)
    for name, values in quantities.items():
        if name not in about_targets and values.dtype.kind == "f":
            wrong |= ~np.isfinite(values.reshape(len(x), -1)).all(1)
    if not wrong.any():
        return
    index = int(wrong.argmax())
    feature = int(np.nan_to_num(np.abs(x[index])).argmax())
    what = (
        f"row {first_row + index + 1}: the prediction is not finite; the largest feature there is "
        f"{encoder.feature_names[feature]!r} with {x[index, feature]:g}"
    )
    if options.on_foreign_values != "keep":
        raise DataError(
            f"{what}. Correct the value, or let such predictions pass ({option('on_foreign_values', 'keep')})"
        )
    warnings.warn(what, stacklevel=3)


def _record(model: TabularModel, quantities: Quantities, y: np.ndarray | None, coverage: float) -> Results:
    encoder = model.encoder
    task = tasks.get(encoder.task)
    return task.results(quantities, y, names=encoder.names, target=encoder.target, coverage=coverage)


def _batches(encoder: TableEncoder, table: Table, options: RowOptions) -> Iterator[tuple[pa.RecordBatch, int]]:
    check_kept(options.keep, table.columns)
    encoder.check_columns([name for name in table.columns if _is_read(name, encoder, options)], options.extra)
    first_row = 0
    for batch in table.batches(batch_rows(max(encoder.n_features, len(encoder.names)))):
        yield batch, first_row
        first_row += len(batch)


def _targets(encoder: TableEncoder, batch: pa.RecordBatch, first_row: int) -> np.ndarray:
    """Targets, marked as missing where there is none. shape: (rows, *targets)"""
    known = encoder.labelled(batch)
    if known.all():
        return encoder.targets(batch, first_row)
    task = tasks.get(encoder.task)
    marked: np.ndarray = np.full((len(batch), *encoder.target_shape), task.missing, dtype=task.dtype)
    if known.any():
        marked[known] = encoder.targets(batch.filter(known), first_row)
    return marked


def _with_examples(part: Results, encoder: TableEncoder, batch: pa.RecordBatch) -> Results:
    most = part.telling(np.arange(len(part)), EXAMPLES)
    return replace(part, examples=_examples(encoder, batch.select(encoder.columns).take(most), most))


def _examples(encoder: TableEncoder, rows: pa.RecordBatch, index: np.ndarray) -> Examples:
    shape = encoder.image_shape
    if shape is None or not (len(shape) == 2 or shape[0] in (1, 3)):
        return Examples({name: rows.column(name).to_pylist() for name in encoder.columns}, None, index)
    pixels = np.stack([np.asarray(column, dtype=float) for column in rows.columns], 1)
    top = next((shade for shade in SHADES if pixels.max() <= shade), pixels.max())
    images = np.clip(np.rint(pixels * (255 / top)), 0, 255).astype(np.uint8)
    return Examples({}, images.reshape(-1, *shape), index)


# What answers for encoded rows: an estimator run by PyTorch, or an ONNX file, which needs no PyTorch.


class Predictor(Protocol):
    """Predicts encoded rows."""

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        """What is predicted, by name.

        Args:
            x: the encoded rows, NaN where a value is unknown. shape: (n, features)
            coverage: share of the targets that intervals are to hold.
            y: their targets, marked where not known, if `log_density` and `cdf` are wanted. shape: (n, *targets)
        """

    def linear_quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities | None:
        """The same of a linear model that learned from the same rows, where there is one."""


class EstimatorPredictor:
    """An estimator, run by PyTorch; intervals and likelihoods are exact for ensembles too.

    Args:
        estimator: fitted on rows that the encoder made.
        encoder: how rows were made.
    """

    def __init__(self, estimator: Any, encoder: TableEncoder):
        self.estimator, self.encoder, self.task = estimator, encoder, encoder.task

    @classmethod
    def of_file(cls, path: Path, encoder: TableEncoder, sha256: str | None = None) -> EstimatorPredictor:
        """The estimator in a file, if it is one for this encoder, and the one with this hash."""
        from bedl.estimators.storage import restore

        estimator = restore(path, None, {}, sha256)
        if estimator.n_features_in_ != encoder.n_features:
            raise ModelFileError(
                f"{path.parent}: the files do not belong together. Copy the folder again, or train again"
            )
        return cls(estimator, encoder)

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        """The outputs, and exact intervals, densities and cdf as far as the prediction has them."""
        import torch

        with torch.no_grad():
            prediction: Any = self.estimator.encoded_dist(x, self.encoder)
            intervals = self.estimator.interval_of(prediction, coverage) if hasattr(prediction, "interval") else ()
        found = self._found(prediction, intervals, y)
        if getattr(self.estimator, "has_held_out_labels", False):
            found["set"] = self.estimator.set_of(prediction, coverage)
        return found

    def linear_quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities | None:
        """The same of the linear model that learned from the same rows, if the method has one among its members."""
        import torch

        rows = self.encoder.possible_rows(x, 1)[0] if np.isnan(x).any() else x
        prediction: Any = self.estimator.linear_dist(rows)
        if prediction is None:
            return None
        with torch.no_grad():
            intervals = prediction.interval(coverage) if hasattr(prediction, "interval") else ()
        return self._found(prediction, intervals, y)

    def _found(self, prediction: Any, intervals: Any, y: np.ndarray | None) -> dict[str, np.ndarray]:
        import torch

        with torch.no_grad():
            found = {**prediction.outputs(), **dict(zip(("lower", "upper"), intervals, strict=False))}
            if y is not None:
                targets = torch.from_numpy(tasks.get(self.task).filled(y))
                found["log_density"] = prediction.log_prob(targets)
                if hasattr(prediction, "cdf"):
                    found["cdf"] = prediction.cdf(targets)
        return {name: values.numpy() for name, values in found.items()}


class OnnxPredictor:
    """An exported model, run by onnxruntime.

    Args:
        path: the file.
    """

    def __init__(self, path: Path):
        self.model = OnnxModel(path)
        self.encoder = self._encoder()

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        """The outputs of the graph, with intervals as rows held out ask for, where the file knows of such."""
        unknown = np.isnan(x).any(1)
        if not unknown.any():
            return self.model.with_intervals(self.model.predict(x), coverage)
        outputs = self.model.predict(np.where(unknown[:, None], 0, x))
        for rows in np.array_split(np.flatnonzero(unknown), -(-DRAWS * int(unknown.sum()) // UNKNOWN_ROWS)):
            possible = self.encoder.possible_rows(x[rows])
            found = self.model.predict(possible.reshape(-1, x.shape[1]))
            found = {name: v.reshape(len(possible), len(rows), *v.shape[1:]) for name, v in found.items()}
            for name, values in tasks.get(self.encoder.task).marginal(found).items():
                outputs[name][rows] = values
        return self.model.with_intervals(outputs, coverage)

    def linear_quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities | None:
        """None: a graph says what its mixture says."""
        return None

    def _encoder(self) -> TableEncoder:
        """The encoder that `bedl export` put into the file, or one that takes the named features as they are."""
        model = self.model
        if "encoder" in model.metadata:
            try:
                encoder = TableEncoder.from_dict(model.metadata["encoder"])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ModelFileError(f"{model.path}: {error}") from None
        elif model.feature_names is not None:
            encoder = _plain_encoder(model)
        else:
            raise ModelFileError(
                f"{model.path} does not say which columns of a table it takes. Write it with 'bedl export', or name "
                "its features: bedl.deploy.export(model, path, feature_names=…)"
            )
        found = encoder.task, (encoder.n_features,), len(encoder.names)
        if found != (model.task, model.input_shape, model.n_outputs):
            raise ModelFileError(
                f"{model.path}: the graph and its description do not fit together. Export the model again"
            )
        return encoder


def _plain_encoder(model: OnnxModel) -> TableEncoder:
    """Features as they are, by their names."""
    from bedl.data.columns import NumberColumn
    from bedl.data.target import Target

    columns = [NumberColumn(name, mean=0.0, has_missing=False) for name in model.feature_names or ()]
    given = model.names or (range(model.n_outputs) if model.n_outputs > 1 else ["target"])
    names = [str(name) for name in given]
    if tasks.get(model.task).named == "class":
        return TableEncoder(columns, Target("target", model.task, classes=names))
    return TableEncoder(columns, Target(", ".join(names), model.task, several=names if len(names) > 1 else None))
