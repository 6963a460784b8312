"""Columns of a table that go along with its predictions: identifiers, and the numbers of the rows."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bedl._utils.errors import ModelFileError, listed, option
from bedl.data import DataError, Table, TableEncoder
from bedl.data.columns import CategoryColumn, Column, DateColumn, TextColumn
from bedl.data.parsing import kind_of_type
from bedl.data.unknown import DRAWS, UnknownValues, check_handle_unknown, possible_rows
from bedl.deploy.runtime import OnnxModel
from bedl.evaluation import tasks
from bedl.evaluation.report.layout import number
from bedl.evaluation.tasks import ColumnSummary, Examples, Quantities, Results, Slice, concatenate, score

if TYPE_CHECKING:
    import pyarrow as pa

    from bedl.estimators.tabular.model import TabularModel

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
        examples: whether to keep what the most uncertain and the most surprising rows look like.
        progress: called with the rows done since the last call.
    """
    encoder, parts, unknown = model.encoder, [], options.unknown_values()
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
        progress(len(batch))
    whole = concatenate(parts, examples=EXAMPLES)
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


# Analyses of a table's columns: permutation importance, drift, coverage by slice, causes of uncertainty.


ROWS = 4_000  # of the sample
PERMUTED = 1_000  # rows whose columns are permuted
PREDICTIONS = 40_000  # for the permutations, and as many for the causes
REPEATS = 3
TYPICAL = 8  # values in place of one whose effect is asked for
FIFTHS = 5
FREQUENT = 3  # categories that are named
FEWEST = 20  # rows of a slice
LEAST = 0.05  # of the uncertainty, for a column to be called a cause

Ask = Callable[[np.ndarray, "np.ndarray | None"], Results]
"""Encoded rows, and their targets or None → the record of their predictions."""


class Sample:
    """Encoded rows drawn uniformly from a table that is read in batches, and their numbers and targets."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._key = np.empty(0)
        self.rows: np.ndarray | None = None
        self.targets: np.ndarray | None = None
        self.index = np.empty(0, dtype=np.intp)

    def add(self, rows: np.ndarray, targets: np.ndarray | None, first_row: int) -> None:
        """A batch. shapes: (n, features), (n, *targets)"""
        key = np.concatenate([self._key, self._random.random(len(rows))])
        index = np.concatenate([self.index, np.arange(first_row, first_row + len(rows))])
        keep = np.sort(np.argsort(key)[:ROWS])
        self._key, self.index = key[keep], index[keep]
        self.rows = _joined(self.rows, rows)[keep]
        self.targets = None if targets is None else _joined(self.targets, targets)[keep]


def _joined(before: np.ndarray | None, more: np.ndarray) -> np.ndarray:
    return more if before is None else np.concatenate([before, more])


def _blocks(columns: Sequence[Column]) -> Iterator[tuple[Column, slice]]:
    start = 0
    for column in columns:
        end = start + len(column.features)
        yield column, slice(start, end)
        start = end


def summaries(ask: Ask, columns: Sequence[Column], x: np.ndarray, y: np.ndarray | None) -> list[ColumnSummary]:
    """Each column's permutation importance and its drift from the training table.

    Args:
        ask: the model.
        columns: what made the features.
        x: encoded rows, NaN where a value is unknown. shape: (n, features)
        y: their targets; None, or a model without densities: no importance. shape: (n, *targets)
    """
    importance = _importance(ask, columns, x, y)
    return [
        ColumnSummary(column.name, rise, error, *_drift(column, x[:, block]))
        for (column, block), (rise, error) in zip(_blocks(columns), importance, strict=True)
    ]


def _importance(ask: Ask, columns: Sequence[Column], x: np.ndarray, y: np.ndarray | None) -> list[tuple[float, float]]:
    """Rise of −log p(target) where a column is permuted (L. Breiman 2001), and its standard error over rows."""
    rows = min(PERMUTED, len(x), PREDICTIONS // (REPEATS * len(columns)))
    unknown = [(np.nan, np.nan)] * len(columns)
    if y is None or rows < FEWEST:
        return unknown
    random = np.random.default_rng(0)
    chosen = random.permutation(len(x))[:rows]
    x, y = x[chosen], y[chosen]
    record = ask(x, y)
    some = record.labelled
    if record.log_density is None or some.sum() < FEWEST:
        return unknown
    before, found = np.asarray(record.log_density, float), []
    for _, block in _blocks(columns):
        rise = np.zeros(rows)
        for _ in range(REPEATS):
            permuted = x.copy()
            permuted[:, block] = x[random.permutation(rows), block]
            rise += (before - np.asarray(ask(permuted, y).log_density, float)) / REPEATS
        found.append((float(rise[some].mean()), float(rise[some].std(ddof=1) / np.sqrt(some.sum()))))
    return found


def _drift(column: Column, values: np.ndarray) -> tuple[float, str, float]:
    """Distance of a column from that of training, its values, and the share of rows with values not in training.

    For categories the distance is the total variation; else the difference of the means in standard deviations.
    """
    unseen = np.isnan(values).any(1)
    outside = float(unseen.mean())
    known = values[~unseen]
    if not len(known) or isinstance(column, TextColumn):
        return np.nan, "text" if isinstance(column, TextColumn) else "–", outside
    if isinstance(column, CategoryColumn):
        here = np.append(known.sum(0) / len(values), outside)
        order = np.argsort(-here, kind="stable")[:FREQUENT]
        said = ", ".join(f"{_labels(column)[i]} {here[i]:.0%}" for i in order if here[i] > 0)
        if not column.counts:
            return np.nan, said, outside
        before = np.append(np.asarray(column.counts, float) / sum(column.counts), 0.0)
        return float(np.abs(here - before).sum() / 2), said, outside
    first, mean, std = known[:, 0].astype(float), 0.0, getattr(column, "std", None) or 0.0
    said = f"{number(first.mean() + _shift(column), 3)} ± {number(first.std(), 3)}"
    if isinstance(column, DateColumn):
        said = f"{_date(first.min() + column.mean)} to {_date(first.max() + column.mean)}"
    else:
        mean = column.mean - column.shift
        std = std or np.sqrt(max(column.mean * (1 - column.mean), 0.0))  # of a boolean
        if column.low is not None and column.high is not None:
            near = 1e-6 * (column.high - column.low)  # features are in single precision
            far = (first < column.low - column.shift - near) | (first > column.high - column.shift + near)
            outside += float(far.sum() / len(values))
    return (float((first.mean() - mean) / std) if std > 0 else np.nan), said, outside


def _labels(column: CategoryColumn) -> list[str]:
    """What each feature of a category stands for, and last a value that training did not have."""
    rest = ["other"] * column.has_other + ["missing"] * column.has_missing
    return [*column.categories, *rest, "not in training"]


def _shift(column: Column) -> float:
    return column.mean if isinstance(column, DateColumn) else getattr(column, "shift", 0.0)


def slices(record: Results, columns: Sequence[Column], x: np.ndarray) -> list[Slice]:
    """How often predictions hit in parts of the table, and how often they should: by prediction and by column.

    Args:
        record: the predictions of the rows.
        columns: what made the features.
        x: encoded rows. shape: (n, features)
    """
    if record.hits is None:
        return []
    hit, expected, by, name = record.hits
    some = record.labelled
    found = [Slice(name, *part) for part in _parts(by[some], hit[some], expected[some])]
    for column, block in _blocks(columns):
        values = x[some, block].astype(float)
        if isinstance(column, CategoryColumn):
            codes = np.where(np.isnan(values).any(1), values.shape[1], np.nan_to_num(values).argmax(1))
            labels = _labels(column)
            parts = _parts(codes, hit[some], expected[some], partial(_label, labels), len(labels))
        elif isinstance(column, TextColumn):
            continue
        else:
            form = _date if isinstance(column, DateColumn) else number
            parts = _parts(values[:, 0] + _shift(column), hit[some], expected[some], form)
        found += [Slice(column.name, *part) for part in parts]
    return found


def _label(labels: Sequence[str], code: float) -> str:
    return labels[int(code)]


def _date(days: float) -> str:
    return str(np.datetime64(int(days), "D"))


def _parts(
    values: np.ndarray,
    hit: np.ndarray,
    expected: np.ndarray,
    form: Callable[[float], str] = number,
    most: int = FIFTHS,
) -> Iterator[tuple[str, int, float, float, float]]:
    """Each value, if there are at most `most`, else fifths: label, rows, share of hits, expected, standard error."""
    known = values[np.isfinite(values)]
    edges = np.unique(known)
    single = len(edges) <= most
    if not single:
        edges = np.unique(np.quantile(known, np.linspace(0, 1, 1 + max(1, min(FIFTHS, len(known) // FEWEST)))))
    for low, high in zip(edges, edges, strict=True) if single else itertools.pairwise(edges):
        part = (values >= low) & ((values <= high) if single or high == edges[-1] else (values < high))
        rows = int(part.sum())
        if rows >= FEWEST:
            chance = expected[part]
            error = float(np.sqrt((chance * (1 - chance)).mean() / rows))
            label = form(low) if single else f"{form(low)} to {form(high)}"
            yield label, rows, float(hit[part].mean()), float(chance.mean()), error


def causes(ask: Ask, columns: Sequence[Column], x: np.ndarray) -> list[str]:
    """For each row the column without whose value it would be least uncertain, and its uncertainty before and then.

    The value is replaced by typical ones of training; "–" where no column accounts for a share of `LEAST`.

    Args:
        ask: the model.
        columns: what made the features.
        x: encoded rows. shape: (n, features)
    """
    if not len(x) or len(x) * len(columns) * TYPICAL > PREDICTIONS:
        return []
    before = np.asarray(ask(x, None).uncertainty, float)
    after = []
    for _, block in _blocks(columns):
        without = x.copy()
        without[:, block] = np.nan
        rows = np.repeat(x[None], TYPICAL, axis=0)  # with what is unknown elsewhere
        rows[:, :, block] = possible_rows(without, columns, TYPICAL)[:, :, block]
        after.append(
            np.asarray(ask(rows.reshape(-1, x.shape[1]), None).uncertainty, float).reshape(TYPICAL, -1).mean(0)
        )
    best = np.argmin(after, axis=0)
    least = np.min(after, axis=0)
    return [
        f"{columns[i].name}: {number(a, 3)} → {number(b, 3)}" if b < (1 - LEAST) * a else "–"
        for i, a, b in zip(best.tolist(), before.tolist(), least.tolist(), strict=True)
    ]
