"""Methods by name: a new one, in a few lines, reaches everything that trains, predicts and writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import Tensor, nn

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import load
from bedl.heads.predictive import NormalPredictive
from bedl.methods import Batch, Ensemble, Method, Problem, register, registry
from bedl.methods.registry import UnknownMethodError


class LeastSquares(Method):
    """A linear map by gradient steps, and the spread of what is left."""

    def __init__(self, front: nn.Module, n_features: int, n_targets: int, damping: float):
        super().__init__()
        self.net, self.log_variance = (
            nn.Sequential(front, nn.Linear(n_features, n_targets)),
            nn.Parameter(torch.zeros(())),
        )
        self.damping = damping

    def forward(self, x: Tensor) -> NormalPredictive:
        mean = self.net(x)
        variance = self.log_variance.exp() * torch.ones_like(mean)
        return NormalPredictive(mean, variance, *torch.zeros(2, *mean.shape))

    def batch_loss(self, batch: Batch) -> Tensor:
        return self.damping * self.net[1].weight.square().sum() - batch.mean(self(batch.x).log_prob(batch.y))


@pytest.fixture
def least_squares() -> Any:
    @register("least-squares", "a linear map", tasks=("regression",))
    def build(problem: Problem, damping: float = 1e-6) -> Method:
        front = problem.front() if problem.front else nn.Identity()
        return LeastSquares(front, problem.input_shape[0], problem.n_targets, damping)

    yield "least-squares"
    del registry._METHODS["least-squares"]  # others may have been imported meanwhile


def line(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = 50 + 10 * rng.normal(size=(n, 2)).astype(np.float32)
    return X, 3 * X[:, 0] - X[:, 1] + rng.normal(size=n)


SHORT = {"method": "least-squares", "epochs": 100, "learning_rate": 0.1, "random_state": 0, "device": "cpu"}


@pytest.mark.parametrize("ensemble", [1, 3])
def test_a_new_method_reaches_estimators_files_and_onnx(least_squares: str, tmp_path: Path, ensemble: int) -> None:
    onnx = pytest.importorskip("bedl.deploy")
    X, y = line()
    model = clone(BEDLRegressor(**SHORT, ensemble=ensemble, method_options={"damping": 1e-5})).fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert np.sqrt(np.mean((mean - y) ** 2)) < 1.3
    assert 0.7 < std.mean() < 1.5
    assert isinstance(model.method_, Ensemble if ensemble > 1 else LeastSquares)
    again = load(model.save(tmp_path / "model.safetensors"))
    assert again.built_ == ("least-squares", {"damping": 1e-5})
    np.testing.assert_array_equal(again.predict(X), mean)
    onnx.export(model, tmp_path / "model.onnx")
    outputs = onnx.OnnxModel(tmp_path / "model.onnx").predict(X)
    np.testing.assert_allclose(outputs["mean"][:, 0], mean, rtol=1e-4)


def test_what_cannot_be_asked_for(least_squares: str) -> None:
    X, y = line(40)
    with pytest.raises(UnknownMethodError, match="did you mean 'least-squares'"):
        BEDLRegressor(method="least-square").fit(X, y)
    with pytest.raises(UnknownMethodError, match="no option 'dumping'; its options: damping"):
        BEDLRegressor(method="least-squares", method_options={"dumping": 1}).fit(X, y)
    with pytest.raises(UnknownMethodError, match="is for regression, not for classification"):
        BEDLClassifier(method="least-squares").fit(X, y > y.mean())
    with pytest.raises(UnknownMethodError, match="chooses its options itself"):
        BEDLRegressor(method_options={"damping": 1}).fit(X, y)


def test_a_missing_package_is_named(least_squares: str) -> None:
    register("far-away", "needs what is not there", needs=("no_such_package",), extra="far")(lambda problem: Method())
    with pytest.raises(UnknownMethodError, match=r"needs no_such_package: pip install 'bedl\[far\]'"):
        BEDLRegressor(method="far-away").fit(*line(40))


def test_a_method_that_fits_itself_reaches_estimators(tmp_path: Path) -> None:
    class Mean(Method):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("value", torch.zeros(2))

        def forward(self, x: Tensor) -> NormalPredictive:
            mean, variance = (part.expand(len(x), 1) for part in self.value)
            return NormalPredictive(mean, variance, *torch.zeros(2, *mean.shape))

        def fit(self, x: Tensor, y: Tensor) -> None:
            self.value.copy_(torch.stack([y.mean(), y.var()]))

    try:
        register("mean", "the mean of all targets")(lambda problem: Mean())
        X, y = line()
        model = BEDLRegressor(method="mean").fit(X, y)
        assert model.predict(X[:1])[0] == pytest.approx(y.mean(), rel=1e-5)
        np.testing.assert_array_equal(load(model.save(tmp_path / "m.safetensors")).predict(X), model.predict(X))
        with pytest.raises(ValueError, match="sample_weight"):
            BEDLRegressor(method="mean").fit(X, y, sample_weight=np.ones(len(y)))
        with pytest.raises(ValueError, match="all points at once"):
            BEDLRegressor(method="mean").partial_fit(X, y)
    finally:
        registry._METHODS.pop("mean", None)


@pytest.mark.parametrize("name", ["bedl", "bedl+reg", "bedl-hyper"])
def test_the_papers_own(name: str) -> None:
    X, y = line(60)
    quick = {**SHORT, "method": name, "epochs": 3}
    objective = BEDLRegressor(**quick).fit(X, y).method_.objective
    other = {"bedl": 1, "bedl+reg": 2, "bedl-hyper": 2}
    assert len(objective.terms) == other[name]
    assert BEDLClassifier(**quick).fit(X, y > y.mean()).method_.objective == objective


def test_a_new_method_reaches_the_command_line(least_squares: str, tmp_path: Path) -> None:
    from tests.cli.verbs import run

    X, y = line(200)
    table = tmp_path / "line.csv"
    np.savetxt(table, np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
    model = tmp_path / "model"
    run("fit", table, "--target", "y", "--method", least_squares, "--epochs", "60", "--out", model, ok=True)
    scores = run("evaluate", model, table, "--json", ok=True)
    assert json.loads(scores.stdout)["scores"]["r2"] > 0.9


STEPS = "bedl bedl+reg bedl-hyper deterministic dvi edl fast-dropout laplace mc-dropout prior-network r-edl sngp varout"


@pytest.mark.parametrize("name", STEPS.split())
def test_losses_are_made_in_full_precision_where_products_are_not(name: str) -> None:
    """Divergences are differences of large numbers: with eight bits nothing would be left of them."""
    torch.manual_seed(0)
    method = registry.get(name).build(Problem("classification", 3, (8,)))
    batch = method.prepare(Batch(torch.randn(64, 8), torch.arange(64) % 3, 64, epoch=torch.tensor(5.0)))
    losses = []
    for mixed in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            losses.append(method.loss(batch))
    assert losses[1].dtype == torch.float32
    torch.testing.assert_close(*losses, rtol=0.01, atol=0.0)
