"""The paper's decomposition of uncertainty on toys, as figures: targets with a gap and growing noise, and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bedl._utils.io import Row
from bedl.bench.benchmark import Cell, Column, Root, RunResult, Table
from bedl.bench.presets import setup
from bedl.bench.util import SOURCES, in_gap, noise_of_gap, with_gap

ROWS = 400
TARGETS = np.linspace(-6, 6, 61)
CLASSES = np.linspace(-9, 9, 61)  # from a blob through the middle of all, and far beyond on both sides
PARTS = ("data", "distributional", "model")


class Decomposition(Table):
    """A cell is one model and its parts along a line."""

    name = "decomposition"
    title = "Where the uncertainty of toys comes from"
    about = (
        "Targets: a sine with noise that grows to the right and no rows between −1 and 1 or beyond ±3; the epistemic "
        "standard deviation in the gap and beyond, over that on the data, and the correlation of the data part with "
        "the true noise. Classes: three blobs; the epistemic entropy far away over that inside the blobs."
    )
    datasets = ("targets", "classes")
    methods = {"paper": ("bedl", "bedl+reg"), "best": ("auto", "evidence", "bedl", "bedl+reg", "ensemble")}  # noqa: RUF012
    more = ("bedl-hyper", "mc-dropout", "dvi", "varout", "laplace", "sngp", "fast-dropout")
    columns = (
        Column("gap_over_data", "epistemic, gap over data", "higher"),
        Column("beyond_over_data", "epistemic, beyond over data", "higher"),
        Column("noise_correlation", "data part with the noise", "higher"),
        Column("noise_ratio", "data part over the noise", "target", target=1.0),
    )
    across = "metrics"

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        plan = setup(cell.preset, cell.method, cell.dataset, ROWS)
        rng = np.random.default_rng([cell.split, cell.seed])
        options: dict[str, Any] = {**plan.estimator, "device": "cpu", "random_state": cell.seed}
        metrics, curves = (_targets if cell.dataset == "targets" else _classes)(options, rng)
        return RunResult(metrics, {**plan.estimator, "rows": ROWS, "deviations": plan.deviations}, curves)

    def sections(self, rows: Sequence[Row]) -> Sequence[str]:
        from bedl.bench.page import parts_card

        words = {
            "targets": ("There are rows between −3 and −1, and between 1 and 3.", "x", "variance"),
            "classes": ("A blob lies at 3, two others beside −1.5; nothing far out.", "x₁, at x₂ = 0", "entropy, nats"),
        }
        first = {(row["dataset"], row["method"], row["preset"]): row for row in reversed(rows)}
        return [
            parts_card(f"{dataset}: {method} ({preset})", words[dataset][0], row["curves"], *words[dataset][1:])
            for (dataset, method, preset), row in sorted(first.items(), reverse=True)
        ]


def _targets(options: dict[str, Any], rng: np.random.Generator) -> tuple[dict[str, float], dict[str, list[float]]]:
    from bedl.estimators import BEDLRegressor

    x, y = with_gap(ROWS, rng)
    model = BEDLRegressor(**options).fit(x, y)
    curves, epistemic = _along(model, TARGETS[:, None])
    on_data = (np.abs(TARGETS) >= 1) & (np.abs(TARGETS) <= 3)
    own = model.predict_dist(x)
    found = own.data.sqrt().numpy()[:, 0]
    usual = np.sqrt(epistemic[on_data].mean())
    true = noise_of_gap(x[:, 0])
    metrics = {
        "gap_over_data": float(np.sqrt(epistemic[in_gap(TARGETS)].mean()) / usual),
        "beyond_over_data": float(np.sqrt(epistemic[np.abs(TARGETS) >= 5].mean()) / usual),
        "noise_correlation": float(np.corrcoef(found, true)[0, 1])
        if found.std() > 1e-6 * found.mean()
        else float("nan"),
        "noise_ratio": float(np.mean(found / true)),
    }
    return metrics, {"x": TARGETS.tolist(), **curves}


def _classes(options: dict[str, Any], rng: np.random.Generator) -> tuple[dict[str, float], dict[str, list[float]]]:
    from bedl.estimators import BEDLClassifier

    x, y = SOURCES["blobs"].draw(ROWS, 0.0, rng)
    model = BEDLClassifier(**options).fit(x, y)
    curves, epistemic = _along(model, np.stack([CLASSES, np.zeros_like(CLASSES)], 1))
    inside = float(model.predict_dist(x).epistemic.mean())
    far = np.abs(CLASSES) >= 7
    return {"beyond_over_data": float(epistemic[far].mean() / inside)}, {"x": CLASSES.tolist(), **curves}


def _along(model: Any, places: np.ndarray) -> tuple[dict[str, list[float]], np.ndarray]:
    """The parts at some places, and the epistemic one: variances, or entropies of classes."""
    prediction = model.predict_dist(places)
    curves = {part: getattr(prediction, part).double().numpy().reshape(-1) for part in PARTS}
    rounded = {part: [float(f"{value:.4g}") for value in values] for part, values in curves.items()}
    return rounded, prediction.epistemic.double().numpy().reshape(-1)


TABLE = Decomposition()
