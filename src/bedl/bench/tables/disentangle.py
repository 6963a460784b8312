"""Do the parts of the uncertainty mean what they are called? Against the number of rows, and against label noise.

The epistemic part is to fall with the number of rows and not to follow the noise; the data part is to follow the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bedl._utils.io import Row
from bedl.bench.benchmark import Cell, Column, Root, RunResult, Table
from bedl.bench.presets import setup
from bedl.bench.util import SOURCES, Source, spearman

SIZES = (50, 100, 200, 400, 800, 1600, 3200)
FIXED_SIZE, FIXED_NOISE = 400, 2  # rows while the noise varies; which of the noises while the number of rows does
FRESH = 500  # rows that the parts are averaged over
PARTS = ("data", "distributional", "model", "epistemic")
BASELINES = ("bedl", "bedl+reg", "ensemble", "mc-dropout", "dvi")


class Disentangle(Table):
    """A cell is a sweep over sizes and one over noises; a split is another draw of the data."""

    name = "disentangle"
    title = "What the parts of the uncertainty follow"
    about = (
        "Spearman's rank correlations, over a sweep, of a part's mean on fresh rows with the number of rows learned "
        "from (50 to 3,200) or with the strength of label noise. Goals: epistemic with rows ≤ −0.9 and with noise "
        "within ±0.3, data with noise ≥ 0.9. A posterior's spread does grow with noise, other things equal."
    )
    datasets = tuple(SOURCES)
    methods = {"paper": BASELINES, "best": ("auto", "evidence", *BASELINES)}  # noqa: RUF012
    more = ("bedl-hyper", "varout", "laplace", "sngp", "sparse-gp", "fast-dropout", "deterministic")
    columns = (
        Column("epistemic_with_rows", "epistemic with rows", "target", target=-1.0),
        Column("epistemic_with_noise", "epistemic with noise", "target", target=0.0),
        Column("data_with_noise", "data with noise", "target", target=1.0),
        Column("data_with_rows", "data with rows", "target", target=0.0),
        Column("distributional_with_rows", "distributional with rows", "target", target=-1.0),
        Column("model_with_rows", "model with rows", "target", target=-1.0),
    )
    across = "metrics"

    def splits(self, dataset: str) -> int:
        return 3

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        source = SOURCES[cell.dataset]
        middle = source.noises[FIXED_NOISE]
        by_size = [_parts(cell, source, [(n, middle)])[0] for n in SIZES]
        by_noise = _parts(cell, source, [(FIXED_SIZE, noise) for noise in source.noises])
        curves: dict[str, list[float]] = {"rows": list(SIZES), "noise": list(source.noises)}
        metrics = {}
        for part in PARTS:
            for what, swept, found in (("rows", SIZES, by_size), ("noise", source.noises, by_noise)):
                values = [means[part] for means in found]
                curves[f"{part}_by_{what}"] = values
                metrics[f"{part}_with_{what}"] = spearman(np.asarray(swept), np.asarray(values))
        plan = setup(cell.preset, cell.method, cell.dataset, FIXED_SIZE)
        settings = {
            **plan.estimator, "sizes": SIZES, "noise_while_sizes_vary": middle, "rows_while_noise_varies": FIXED_SIZE,
            "deviations": plan.deviations,
        }  # fmt: skip
        return RunResult(metrics, settings, curves)

    def sections(self, rows: Sequence[Row]) -> Sequence[str]:
        from bedl.bench.page import sweep_cards

        kinds = dict.fromkeys((row["dataset"], row["method"], row["preset"]) for row in rows)
        return [
            made
            for kind in kinds
            for made in sweep_cards("{}: {} ({})".format(*kind), [row["curves"] for row in rows if _kind(row) == kind])
        ]


def _kind(row: Row) -> tuple[str, str, str]:
    return row["dataset"], row["method"], row["preset"]


def _parts(cell: Cell, source: Source, wanted: Sequence[tuple[int, float]]) -> list[dict[str, float]]:
    """Means of the parts on fresh rows, of models for each (rows, noise): variances, or entropies of classes."""
    import bedl.estimators
    from bedl.estimators.fit import fit_many

    kind = bedl.estimators.BEDLClassifier if source.classes else bedl.estimators.BEDLRegressor
    tables, models = [], []
    for n, noise in wanted:
        seed = np.random.SeedSequence([cell.split, cell.seed, n, round(1000 * noise)])
        tables.append(source.draw(n, noise, np.random.default_rng(seed)))
        plan = setup(cell.preset, cell.method, cell.dataset, n).estimator
        models.append(kind(**plan, device="cpu", random_state=cell.split + 1000 * cell.seed))
    fit_many(models, tables)
    fresh, _ = source.draw(FRESH, 0.0, np.random.default_rng([cell.split, cell.seed]))
    return [_means(model, fresh) for model in models]


def _means(model: Any, x: np.ndarray) -> dict[str, float]:
    prediction = model.predict_dist(x)
    return {part: float(getattr(prediction, part).mean()) for part in PARTS}


TABLE = Disentangle()
