"""bedl as it comes against what users would pick, on real tables: `targets` and `classes`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from bedl.bench.regression import gaussian_scores, regression_scores
from benchmarks.quality import tables
from benchmarks.quality.rows import Cell
from benchmarks.quality.scores import class_scores

__all__ = ["cells", "work"]

MAX_ROWS_FOR_GP = 1500  # rows; beyond, an exact Gaussian process takes minutes


def cells(table: str, methods: list[str], part: str, splits: list[int], only: list[str]) -> Iterator[Cell]:
    """The cells: table by table; the part "validation" are the tables that the recipe was developed on."""
    baselines = TARGET_BASELINES if table == "targets" else CLASS_BASELINES
    chosen = ["auto", *baselines] if methods == ["all"] else methods
    for source in tables.TARGETS if table == "targets" else tables.CLASSES:
        if (part == "validation") != source.developed or (only and source.name not in only):
            continue
        for split in splits:
            for method in chosen:
                yield {"table": table, "dataset": source.name, "method": method, "part": part, "split": split}


def work(cell: Cell) -> dict[str, float]:
    """Fit on four fifths of the rows, score the rest."""
    classes = cell["table"] == "classes"
    source = next(s for s in (tables.CLASSES if classes else tables.TARGETS) if s.name == cell["dataset"])
    X, y = tables.load(source)
    rows = np.arange(len(y))
    train, test = train_test_split(rows, test_size=0.2, random_state=cell["split"], stratify=y if classes else None)
    X_train, X_test = X.iloc[train], X.iloc[test]
    if cell["method"] in ("auto", "distilled"):
        return _bedl(cell, X_train, y[train], X_test, y[test], classes)
    from bedl.data import open_table
    from bedl.data.encode import FeatureEncoder
    from bedl.data.unknown import UnknownValues

    encoder = FeatureEncoder.fit(open_table(X_train))
    parts = [encoder(open_table(part), UnknownValues()) for part in (X_train, X_test)]
    numbers = [encoder.possible_rows(part, 1)[0].astype(np.float64) for part in parts]
    baseline = (CLASS_BASELINES if classes else TARGET_BASELINES)[cell["method"]]
    return baseline(numbers[0], y[train], numbers[1], y[test])


def _bedl(cell: Cell, x: Any, y: np.ndarray, x_test: Any, y_test: np.ndarray, classes: bool) -> dict[str, float]:
    from bedl import BEDLClassifier, BEDLRegressor

    kind: Any = BEDLClassifier if classes else BEDLRegressor
    model = kind(random_state=cell["split"], handle_unknown="ignore", method=cell["method"]).fit(x, y)
    shares = getattr(model.method_, "shares", [])
    linear = {"linear_share": shares[-1]} if shares else {}
    if not classes:
        return {**regression_scores(model, x_test, y_test), **linear}
    return {**class_scores(y_test, model.predict_proba(x_test)), **linear}


# -- targets ---------------------------------------------------------------------------------------
Scored = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], dict[str, float]]


def _ridge(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from sklearn.linear_model import BayesianRidge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), BayesianRidge()).fit(x, y)
    return gaussian_scores(y_test, *model.predict(x_test, return_std=True))


def _constant_spread(make: Callable[[], Any]) -> Scored:
    """A mean from a model of means, and one spread for all: that of its residuals on rows held out."""

    def scored(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
        from sklearn.model_selection import cross_val_predict

        residuals = y - cross_val_predict(make(), x, y, cv=5)
        mean = make().fit(x, y).predict(x_test)
        return gaussian_scores(y_test, mean, np.full(len(mean), np.sqrt(np.mean(residuals**2))))

    return scored


def _forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(300, random_state=0)


def _boosting() -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(random_state=0)


def _boosted_quantiles(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    """Mean by boosting, spread from the distance of its 5 % and 95 % quantiles."""
    from scipy.stats import norm
    from sklearn.ensemble import HistGradientBoostingRegressor

    mean = _boosting().fit(x, y).predict(x_test)
    low, high = (
        HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0).fit(x, y).predict(x_test)
        for q in (0.05, 0.95)
    )
    std = np.maximum((high - low) / (2 * norm.ppf(0.95)), 1e-2 * y.std())
    inside = float(((low <= y_test) & (y_test <= high)).mean())
    return {**gaussian_scores(y_test, mean, std), "coverage": inside, "width": float((high - low).mean())}


def _gaussian_process(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kernel = ConstantKernel() * RBF(np.sqrt(x.shape[1])) + WhiteKernel(0.1)
    rows = np.random.default_rng(0).permutation(len(y))[:MAX_ROWS_FOR_GP]
    process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    model = make_pipeline(StandardScaler(), process).fit(x[rows], y[rows])
    return gaussian_scores(y_test, *model.predict(x_test, return_std=True))


def _ngboost(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
    from ngboost import NGBRegressor
    from sklearn.model_selection import train_test_split as cut

    a, b, c, d = cut(x, y, test_size=0.1, random_state=0)
    model = NGBRegressor(n_estimators=1000, verbose=False, random_state=0)
    found = model.fit(a, c, X_val=b, Y_val=d, early_stopping_rounds=50).pred_dist(x_test)
    return gaussian_scores(y_test, found.params["loc"], found.params["scale"])


TARGET_BASELINES: dict[str, Scored] = {
    "ridge": _ridge, "forest": _constant_spread(_forest), "boosting": _constant_spread(_boosting),
    "boosted quantiles": _boosted_quantiles, "gaussian process": _gaussian_process, "ngboost": _ngboost,
}  # fmt: skip


# -- classes ---------------------------------------------------------------------------------------
def _classes(make: Callable[[], Any], calibrated: bool = False) -> Scored:
    def scored(x: np.ndarray, y: np.ndarray, x_test: np.ndarray, y_test: np.ndarray) -> dict[str, float]:
        from sklearn.calibration import CalibratedClassifierCV

        model = CalibratedClassifierCV(make(), method="sigmoid", cv=5) if calibrated else make()
        model.fit(x, y)
        p = np.zeros((len(x_test), int(max(y.max(), y_test.max())) + 1))
        p[:, model.classes_] = model.predict_proba(x_test)
        return class_scores(y_test, p)

    return scored


def _logistic() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))


def _forest_of_classes() -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(300, random_state=0)


def _boosting_of_classes() -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return HistGradientBoostingClassifier(random_state=0)


CLASS_BASELINES: dict[str, Scored] = {
    "logistic": _classes(_logistic),
    "forest": _classes(_forest_of_classes),
    "forest, calibrated": _classes(_forest_of_classes, calibrated=True),
    "boosting": _classes(_boosting_of_classes),
    "boosting, calibrated": _classes(_boosting_of_classes, calibrated=True),
}
