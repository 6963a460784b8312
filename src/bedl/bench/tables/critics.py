"""What critics of evidential learning ask of an epistemic uncertainty, on data whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bedl.bench.benchmark import Cell, Column, Root, RunResult, Table
from bedl.bench.presets import setup
from bedl.bench.util import SOURCES, Source, spearman

__all__ = ["TABLE"]


ROWS = (100, 1_000, 10_000, 100_000)
REFITS, REFITTED_ROWS = 30, 400
PARTS = ("epistemic", "model")  # the latter without lack of evidence, which some heads use for noise
NARROW = (2,)  # units of a network that cannot follow the sine
SIZES, NOISES = (50, 100, 200, 400, 800, 1600), SOURCES["blobs"].noises
FRESH, NOISE = 500, 0.4
Found = tuple[dict[str, float], dict[str, list[float]]]  # metrics, curves


class Critics(Table):
    """A data set is a question; a split is another draw of the data."""

    name = "critics"
    title = "What critics of evidential learning ask"
    about = (
        "rows: log-log slope of the mean epistemic variance against 100 to 100,000 rows of Friedman's function (the "
        "variance of an estimator of fixed size has −1). refits: 30 refits on fresh draws of 400 rows of a sine, "
        "epistemic variance over that of the refits' means, and rank correlation over points. bias: two units for a "
        "sine, data part over the true noise. parts: disentanglement error of three classes, 0 at best."
    )
    datasets = ("parts", "bias", "refits", "rows")
    methods = {"best": ("deterministic", "mc-dropout", "laplace", "ensemble", "bedl", "bedl+reg", "auto")}  # noqa: RUF012
    more = ("evidence", "dvi", "varout", "distilled")
    columns = (
        Column("slope_epistemic", "slope of epistemic with rows", "target", target=-1.0),
        Column("slope_model", "of its model part", "target", target=-1.0),
        Column("bias_over_epistemic", "squared error of the mean over epistemic, most rows", "target", target=1.0),
        Column("ratio_epistemic", "epistemic over refits' variance, median", "target", target=1.0),
        Column("ratio_model", "model part over it", "target", target=1.0),
        Column("rank_epistemic", "rank correlation over points", "target", target=1.0),
        Column("noise_ratio", "data part over the noise's variance", "target", target=1.0),
        Column("bias_ratio", "data part over noise and squared bias", "target", target=0.0),
        Column("disentanglement_error", "disentanglement error", "lower"),
    )
    across = "metrics"

    def splits(self, dataset: str) -> int:
        return 3

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        ask: dict[str, Callable[[Cell], Found]] = {"rows": _rows, "refits": _refits, "bias": _bias, "parts": _parts}
        metrics, curves = ask[cell.dataset](cell)
        return RunResult(metrics, setup(cell.preset, cell.method, cell.dataset, REFITTED_ROWS).estimator, curves)


def _rows(cell: Cell) -> Found:
    """Shen et al., "Are uncertainty quantification capabilities of evidential deep learning a mirage?", 2024."""
    source, seed = SOURCES["friedman"], [cell.split, cell.seed]
    fresh, truth = source.draw(FRESH, 0.0, np.random.default_rng(seed))
    curves: dict[str, list[float]] = {"rows": list(ROWS), "epistemic": [], "model": [], "squared_error": []}
    for n in ROWS:
        p = _fitted(cell, [source.draw(n, NOISE, np.random.default_rng([*seed, n]))])[0].predict_dist(fresh)
        for part in PARTS:
            curves[part].append(float(getattr(p, part).double().mean()))
        curves["squared_error"].append(float(np.mean((p.mean[:, 0].numpy() - truth) ** 2)))
    slopes = {f"slope_{part}": _slope(curves[part]) for part in PARTS}
    off = curves["squared_error"][-1] / (curves["epistemic"][-1] or float("nan"))
    return {**slopes, "bias_over_epistemic": off}, curves


def _slope(values: Sequence[float]) -> float:
    """Log-log, with the number of rows; none of what is nothing."""
    return float(np.polyfit(np.log(ROWS), np.log(values), 1)[0]) if min(values) > 0 else float("nan")


def _refits(cell: Cell) -> Found:
    """Jürgens et al., "Is epistemic uncertainty faithfully represented by evidential deep learning methods?", 2024."""
    source, seed = SOURCES["sine"], [cell.split, cell.seed]
    fresh = source.draw(FRESH, 0.0, np.random.default_rng(seed))[0]
    draws = [source.draw(REFITTED_ROWS, NOISE, np.random.default_rng([*seed, i])) for i in range(REFITS)]
    found = [model.predict_dist(fresh) for model in _fitted(cell, draws)]
    true = np.var([p.mean[:, 0].double().numpy() for p in found], 0, ddof=1)
    metrics = {}
    for part in PARTS:
        said = np.mean([getattr(p, part).double().numpy().reshape(-1) for p in found], 0)
        metrics[f"ratio_{part}"] = float(np.median(said / true))
        metrics[f"rank_{part}"] = spearman(true, said) if said.max() > 0 else float("nan")
    return metrics, {}


def _bias(cell: Cell) -> Found:
    """Jiménez et al., "Why machine learning models fail to fully capture epistemic uncertainty", 2025."""
    source, seed = SOURCES["sine"], [cell.split, cell.seed]
    fresh, truth = source.draw(FRESH, 0.0, np.random.default_rng(seed))
    given = source.draw(4 * REFITTED_ROWS, NOISE, np.random.default_rng([*seed, 1]))
    p = _fitted(cell, [given], hidden_layers=NARROW)[0].predict_dist(fresh)
    noisy, clean = (source.draw(100_000, noise, np.random.default_rng(2))[1] for noise in (NOISE, 0.0))
    noise = float(np.mean((noisy - clean) ** 2))
    data, bias = float(p.data.double().mean()), float(np.mean((p.mean[:, 0].numpy() - truth) ** 2))
    return {"noise_ratio": data / noise, "bias_ratio": data / (noise + bias)}, {"squared_bias": [bias]}


def _parts(cell: Cell) -> Found:
    """After de Jong et al., "Measuring uncertainty disentanglement error in classification", arXiv 2408.12175.

    Over a sweep of rows the epistemic part is to follow the error, and the data part is not to; over one of label
    noise the other way round. The error is the mean of how far the four correlations are off.
    """
    sweeps = {  # by the part that is to follow the error
        "epistemic": _sweep(cell, SOURCES["blobs"], [(n, 0.1) for n in SIZES]),
        "data": _sweep(cell, SOURCES["blobs"], [(REFITTED_ROWS, noise) for noise in NOISES]),
    }
    off = [
        abs((part == follows) - _correlation(found["error"], found[part]))
        for follows, found in sweeps.items()
        for part in sweeps
    ]
    curves = {f"{part}_for_{follows}": v for follows, found in sweeps.items() for part, v in found.items()}
    return {"disentanglement_error": float(np.mean(off))}, curves


def _sweep(cell: Cell, source: Source, wanted: Sequence[tuple[int, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"epistemic": [], "data": [], "error": []}
    for n, noise in wanted:
        rng = np.random.default_rng([cell.split, cell.seed, n, round(1000 * noise)])
        model, (x, y) = _fitted(cell, [source.draw(n, noise, rng)])[0], source.draw(4 * FRESH, noise, rng)
        p = model.predict_dist(x)
        found["error"].append(float(np.mean(p.label.numpy() != y)))
        for part in ("epistemic", "data"):
            found[part].append(float(getattr(p, part).double().mean()))
    return found


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Pearson's; 0 of what does not vary."""
    return float(np.corrcoef(one, other)[0, 1]) if np.std(one) > 0 and np.std(other) > 0 else 0.0


def _fitted(cell: Cell, tables: Sequence[tuple[np.ndarray, np.ndarray]], **options: Any) -> list[Any]:
    import bedl.estimators
    from bedl.estimators.fit import fit_many

    kind = bedl.estimators.BEDLClassifier if tables[0][1].dtype.kind == "i" else bedl.estimators.BEDLRegressor
    plan = {**setup(cell.preset, cell.method, cell.dataset, len(tables[0][1])).estimator, **options}
    models = [kind(**plan, device="cpu", random_state=100 * cell.split + i) for i in range(len(tables))]
    fit_many(models, tables)
    return models


TABLE = Critics()
