"""What predictions are scored by, the same for every method."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from bedl._utils.io import Row
from bedl.bench.benchmark import BOTH, Cell, Column, RunResult
from bedl.bench.presets import same_run, setup
from bedl.evaluation import metrics

COVERAGE = 0.9
LEVELS = (np.arange(100) + 0.5) / 100  # of quantiles, whose mean loss is half the CRPS


def regression_scores(model: Any, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Of a fitted `BEDLRegressor` with one target, on rows that it has not seen.

    Args:
        model: the estimator.
        x: shape (n, n_features)
        y: shape (n,)

    Returns:
        ``log_likelihood`` of its own density, ``rmse``, ``crps``, ``coverage`` and ``width`` of the 90 % intervals that
        it gives by default, ``coverage_own`` of the quantiles of its density, ``epistemic_share`` of the variance.
    """
    import torch

    prediction = model.predict_dist(x)
    low, high = (end.numpy()[:, 0] for end in model.interval_of(prediction, COVERAGE))
    own_low, own_high = (end.numpy()[:, 0] for end in prediction.interval(COVERAGE))
    y = np.asarray(y, dtype=np.float64)
    return {
        "log_likelihood": float(prediction.log_prob(torch.as_tensor(y)).mean()),
        "rmse": metrics.rmse(y, prediction.mean[:, 0].numpy()),
        "crps": _crps(prediction, y),
        "coverage": metrics.coverage(y, low, high),
        "width": metrics.interval_width(low, high),
        "coverage_own": metrics.coverage(y, own_low, own_high),
        "epistemic_share": float((prediction.epistemic / prediction.total).mean()),
    }


def gaussian_scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    """Of anything that says a mean and a standard deviation. shapes: (n,)

    Example:
        >>> round(gaussian_scores(np.zeros(2), np.zeros(2), np.ones(2))["log_likelihood"], 4)
        -0.9189
    """
    reach = 1.6448536269514722 * np.asarray(std)  # the normal's quantile of 0.95
    return {
        "log_likelihood": -metrics.nll_normal(y, mean, std),
        "rmse": metrics.rmse(y, mean),
        "crps": metrics.crps_normal(y, mean, std),
        "coverage": metrics.coverage(y, mean - reach, mean + reach),
        "width": float(2 * reach.mean()),
    }


def _crps(prediction: Any, y: np.ndarray) -> float:
    """In closed form for normals and their mixtures, else from a hundred quantiles."""
    from bedl.heads.predictive import NormalMixturePredictive, NormalPredictive

    if isinstance(prediction, NormalPredictive):
        return metrics.crps_normal(y, prediction.mean[:, 0].numpy(), prediction.std[:, 0].numpy())
    if isinstance(prediction, NormalMixturePredictive):
        weights = prediction.log_weights.exp()[:, 0]
        if bool((weights == weights[:1]).all()):
            variances = prediction.members_data + prediction.members_distributional + prediction.members_model
            means, stds = prediction.means[:, 0].double().numpy(), variances[:, 0].double().sqrt().numpy()
            share = weights[0].double().numpy()
            return metrics.crps_mixture(y, means, stds, share / share.sum())
    quantiles = np.stack([prediction.quantile(float(level))[:, 0].numpy() for level in LEVELS])
    return float(2 * np.mean((y - quantiles) * (LEVELS[:, None] - (y < quantiles))))


# A cell of a table of real targets: an estimator, learned on one part and scored on the other.


COLUMNS = (
    Column("log_likelihood", "log-likelihood", "higher"),
    Column("rmse", "RMSE", "lower", places=None),
    Column("crps", "CRPS", "lower", places=None),
    Column("coverage", "coverage of 90 % intervals", "target", places=1, share=True, target=0.9),
)
PAPER = ("bedl", "bedl+reg", "bedl-hyper", "dvi", "varout", "mc-dropout", "pbp", "sparse-gp")  # its methods on UCI


class Parts(NamedTuple):
    """Rows to learn from, and rows to score. shapes: x (n, features), y (n,)"""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def fit_and_score(cells: Sequence[Cell], parts: Sequence[Parts]) -> list[RunResult]:
    """Fit the cells' method under its preset, all as one vectorised run, and score the rows not seen, once.

    Args:
        cells: which differ in split and seed alone.
        parts: the rows of each.
    """
    from bedl.estimators import BEDLRegressor
    from bedl.estimators.fit import fit_many

    plans = [setup(cell.preset, cell.method, cell.dataset, len(own.y)) for cell, own in zip(cells, parts, strict=True)]
    models = [
        BEDLRegressor(**plan.estimator, device="cpu", random_state=seed_of(cell))
        for cell, plan in zip(cells, plans, strict=True)
    ]
    fit_many(models, [(own.x, own.y) for own in parts])
    return [
        RunResult(
            regression_scores(model, own.x_test, own.y_test),
            {
                **plan.estimator, "chosen": model.chosen_, "rows": len(own.y), "test_rows": len(own.y_test),
                "fitted_together": len(cells), "deviations": plan.deviations,
            },
        )
        for model, plan, own in zip(models, plans, parts, strict=True)
    ]  # fmt: skip


def alike(cells: Sequence[Cell], most: Callable[[Cell], int]) -> Iterator[list[Cell]]:
    """Cells that differ in split and seed alone, in groups of at most so many."""
    kinds: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        kinds.setdefault((cell.dataset, cell.method, cell.preset), []).append(cell)
    for group in kinds.values():
        size = most(group[0])
        yield from (group[start : start + size] for start in range(0, len(group), size))


def equivalent_runs(cell: Cell) -> list[Cell]:
    """The cell under all presets, if they make no difference to its run."""
    if cell.preset not in BOTH or not same_run(cell.method, cell.dataset):
        return []
    return [dataclasses.replace(cell, preset=preset) for preset in BOTH]


def relabelled(cell: Cell, row: Row) -> Row:
    """The row of a cell from that of another preset, with the settings and deviations of its own."""
    if row["failed"]:
        return {**row, **cell.fields}
    plan = setup(cell.preset, cell.method, cell.dataset, row["settings"]["rows"])
    told = {name: value for name, value in row["settings"].items() if name not in ("hidden_layers", "deviations")}
    own = {**plan.estimator, "deviations": plan.deviations, "same_run": row["preset"]}
    return {**row, **cell.fields, "settings": {**told, **own}}


def seed_of(cell: Cell) -> int:
    """A number of its own for each split and seed, the same for all methods."""
    return int(np.random.SeedSequence([cell.split, cell.seed]).generate_state(1)[0] % 2**31)
