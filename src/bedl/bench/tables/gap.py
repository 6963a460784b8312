"""UCI's regression sets with a gap: does a model know what it has not seen?

The middle third of one feature's values is held out, feature by feature (A. Foong et al., "'In-Between' Uncertainty in
Bayesian Neural Networks", 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from bedl.bench.benchmark import Cell, Published, Root, RunResult
from bedl.bench.regression import Parts, fit_and_score
from bedl.bench.tables.uci import FOLDERS, UCI

FEATURES = {
    "boston": 13, "energy": 8, "concrete": 8, "wine": 11, "kin8nm": 8, "power": 4, "naval": 16, "protein": 9,
}  # fmt: skip
BASELINES = ("bedl", "bedl+reg", "ensemble", "mc-dropout", "dvi", "sparse-gp")


class Gap(UCI):
    """The same sets; a split is the number of the feature whose middle third is held out."""

    name = "gap"
    title = "UCI regression, a gap in one feature"
    about = (
        "The middle third of one feature's values is held out; mean ± standard error over the features, which differ "
        "far more than random splits do. Methods that do not notice the gap have low likelihoods and narrow intervals."
    )
    datasets = tuple(FEATURES)
    methods = {"paper": BASELINES, "authors": ("bedl", "bedl+reg"), "best": ("auto", *BASELINES)}  # noqa: RUF012
    more = ("bedl-hyper", "varout", "pbp", "deterministic", "evidential-regression", "laplace", "sngp")

    def splits(self, dataset: str) -> int:
        return FEATURES[dataset]

    def work_together(self, cells: Sequence[Cell], root: Root = None) -> list[RunResult]:
        from bedl.data import UCIData, load_uci

        data = cast(UCIData, load_uci(FOLDERS[cells[0].dataset], root=root))
        return fit_and_score(cells, [gap(data.x, data.y, cell.split) for cell in cells])

    def published(self) -> Sequence[Published]:
        return ()  # of these sets; the paper has no gaps


def gap(x: np.ndarray, y: np.ndarray, feature: int) -> Parts:
    """Rows without, and rows of, the middle third of a feature; equal values are told apart by their place.

    Example:
        >>> parts = gap(np.arange(6.0)[:, None], np.arange(6.0), 0)
        >>> parts.y.tolist(), parts.y_test.tolist()
        ([0.0, 1.0, 4.0, 5.0], [2.0, 3.0])
    """
    place = np.argsort(np.argsort(x[:, feature], kind="stable"), kind="stable")
    third = len(y) // 3
    held = (place >= third) & (place < 2 * third)
    return Parts(x[~held], y[~held], x[held], y[held])


TABLE = Gap()
