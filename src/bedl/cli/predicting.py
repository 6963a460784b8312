"""Tables through a model, batch by batch: memory holds one batch, and of the results a few numbers per row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from bedl.cli.models import Prediction, TableModel
from bedl.data import Table, TableEncoder

if TYPE_CHECKING:
    import pyarrow as pa

    from bedl.report import ClassificationResults, Examples, RegressionResults

__all__ = ["batch_rows", "exact_scores", "predictions", "results", "scores_of_encoded"]

NUMBERS = 2**22  # that a batch of features holds
EXAMPLES = 20  # rows of each batch that a page may show
SHADES = (1, 16, 255)  # how bright a pixel may be: shares, digits, bytes


def batch_rows(n_features: int) -> int:
    """How many rows are read together.

    >>> batch_rows(20), batch_rows(784), batch_rows(10_000_000)
    (65536, 5349, 1)
    """
    return min(65_536, max(1, NUMBERS // n_features))


def predictions(
    model: TableModel, table: Table, coverage: float = 0.9, unseen: str = "error", extra: str = "error"
) -> Iterator[Prediction]:
    """Predictions for the rows of a table, in order."""
    for batch, first_row in _batches(model, table, extra):
        yield model.predict(model.encoder.features(batch, unseen, extra, first_row), coverage)


def results(
    model: TableModel,
    table: Table,
    coverage: float = 0.9,
    unseen: str = "error",
    extra: str = "error",
    *,
    with_target: bool = True,
    about: Mapping[str, str] | None = None,
    examples: bool = False,
    progress: Callable[[int], object] = lambda count: None,
) -> tuple[RegressionResults | ClassificationResults, np.ndarray | None]:
    """All predictions as the results that are scored and shown, and the exact log p(y|x) of each row if known.

    Args:
        with_target: compare with the targets; rows without one are predicted and not scored.
        about: see `bedl.report`.
        examples: keep what the most uncertain rows look like.
        progress: called with the rows done since the last call.
    """
    from bedl.report import concatenate

    parts, densities = [], []
    for batch, first_row in _batches(model, table, extra):
        x = model.encoder.features(batch, unseen, extra, first_row)
        y = _targets(model.encoder, batch, first_row) if with_target else None
        prediction = model.predict(x, coverage, y)
        part = _part(model.encoder, prediction, y, coverage)
        if examples:
            part = _with_examples(part, model.encoder, batch)
        parts.append(part)
        densities.append(prediction.log_density)
        progress(len(batch))
    whole: Any = concatenate(parts, examples=EXAMPLES)
    facts = {"about": dict(about or {}), "title": f"How sure is the model about {model.encoder.target}?"}
    unlabelled = int((~whole.labelled).sum()) if with_target else 0
    if unlabelled:
        facts["notes"] = (f"{unlabelled} rows have no target; they are predicted and not scored.",)
    return replace(whole, **facts), _joined(densities)


def exact_scores(whole: RegressionResults | ClassificationResults, log_density: np.ndarray | None) -> dict[str, float]:
    """The likelihood of a prediction that need not be normal, to take the place of the one from mean and std."""
    if log_density is None or not whole.labelled.any():
        return {}
    return {"nll": float(-log_density[whole.labelled].mean())}


def scores_of_encoded(model: TableModel, x: np.ndarray, y: np.ndarray, coverage: float = 0.9) -> dict[str, float]:
    """The scores of rows that are encoded already. x shape: (n, features), y shape: (n,)"""
    from bedl.report import concatenate, score

    parts, densities = [], []
    step = batch_rows(x.shape[1])
    for start in range(0, len(x), step):
        targets = np.array(y[start : start + step])
        prediction = model.predict(np.array(x[start : start + step]), coverage, targets)
        parts.append(_part(model.encoder, prediction, targets, coverage))
        densities.append(prediction.log_density)
    whole: Any = concatenate(parts)
    return {**score(whole), **exact_scores(whole, _joined(densities))}


def _joined(densities: list[np.ndarray | None]) -> np.ndarray | None:
    known = [density for density in densities if density is not None]
    return np.concatenate(known) if len(known) == len(densities) else None


def _batches(model: TableModel, table: Table, extra: str) -> Iterator[tuple[pa.RecordBatch, int]]:
    model.encoder.check_columns(table.columns, extra)
    first_row = 0
    for batch in table.batches(batch_rows(model.encoder.n_features)):
        yield batch, first_row
        first_row += len(batch)


def _targets(encoder: TableEncoder, batch: pa.RecordBatch, first_row: int) -> np.ndarray:
    """Targets, NaN or -1 where there is none. shape: (rows,)"""
    known = encoder.labelled(batch)
    if known.all():
        return encoder.targets(batch, first_row)
    empty = np.full(len(batch), -1, dtype=np.int64) if encoder.classes is not None else np.full(len(batch), np.nan)
    if known.any():
        empty[known] = encoder.targets(batch.filter(known), first_row)
    return empty


def _part(
    encoder: TableEncoder, prediction: Prediction, y: np.ndarray | None, coverage: float
) -> RegressionResults | ClassificationResults:
    from bedl.report import ClassificationResults, RegressionResults

    columns = prediction.columns
    if prediction.probabilities is not None:
        assert encoder.classes is not None
        return ClassificationResults(
            prediction.probabilities,
            entropy=columns["entropy"],
            aleatoric_entropy=columns["aleatoric_entropy"],
            epistemic_entropy=columns["epistemic_entropy"],
            class_names=encoder.classes,
            labels=y,
            log_probabilities_of_labels=prediction.log_density,
            target_name=encoder.target,
        )
    names = ("std", "aleatoric_std", "epistemic_std", "lower", "upper")
    spread: dict[str, Any] = {name: columns[name] for name in names}
    return RegressionResults(
        columns["prediction"], **spread, y=y, pit=prediction.pit, level=coverage, target_name=encoder.target
    )


def _with_examples(part: Any, encoder: TableEncoder, batch: pa.RecordBatch) -> Any:
    most = np.argsort(-part.uncertainty, kind="stable")[:EXAMPLES]
    return replace(part, examples=_examples(encoder, batch.select(encoder.columns).take(most), most))


def _examples(encoder: TableEncoder, rows: pa.RecordBatch, index: np.ndarray) -> Examples:
    from bedl.report import Examples

    shape = encoder.image_shape
    if shape is None or not (len(shape) == 2 or shape[0] in (1, 3)):
        return Examples({name: rows.column(name).to_pylist() for name in encoder.columns}, None, index)
    pixels = np.stack([np.asarray(column, dtype=float) for column in rows.columns], 1)
    top = next((shade for shade in SHADES if pixels.max() <= shade), pixels.max())
    images = np.clip(np.rint(pixels * (255 / top)), 0, 255).astype(np.uint8)
    return Examples({}, images.reshape(-1, *shape), index)
