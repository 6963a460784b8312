"""Exact Gaussian processes against scikit-learn's, and what weights mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, DotProduct, WhiteKernel

from bedl import BEDLClassifier, BEDLRegressor
from bedl._utils.errors import BEDLError
from bedl.methods.baselines.exact_gp import ExactGP
from bedl.methods.baselines.wide_kernels import DenseKernel


def linear(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(n, 2).double()
    return x, (x @ torch.tensor([[1.0], [-2.0]]).double() + 0.3 * torch.randn(n, 1).double())


def test_the_posterior_and_the_evidence_are_scikit_learns() -> None:
    """Without hidden layers the kernel is σ_w² x·z/d + σ_b²."""
    x, y = linear()
    method = ExactGP(DenseKernel(0, 2.0, 1.0), "regression", 1).double()
    method.fit(x, y)
    kernel = ConstantKernel(method.scale.item(), "fixed") * (DotProduct(1.0, "fixed"))
    kernel = kernel + WhiteKernel(method.scale.item() * method.ratio.item(), "fixed")
    theirs = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0).fit(x.numpy(), y[:, 0].numpy())
    new = 2 * torch.randn(6, 2).double()
    mean, std = theirs.predict(new.numpy(), return_std=True)
    found = method.predict(new)
    np.testing.assert_allclose(found.mean[:, 0], mean, rtol=1e-6)
    np.testing.assert_allclose(found.std[:, 0], std, rtol=1e-6)
    best = theirs.log_marginal_likelihood_value_
    for factor in (0.5, 2.0):  # of the noise, or of the scale: neither is better
        for parts in (
            (method.scale.item() * factor, method.ratio.item() / factor),
            (1.0, method.ratio.item() * factor),
        ):
            scale = parts[0] if parts[0] != 1.0 else method.scale.item()
            other = ConstantKernel(scale) * DotProduct(1.0) + WhiteKernel(scale * parts[1])
            again = GaussianProcessRegressor(other, optimizer=None, alpha=0.0).fit(x.numpy(), y[:, 0].numpy())
            assert again.log_marginal_likelihood_value_ < best


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_size_of_a_kernel_does_not_matter(task: str) -> None:
    """The scale is learned: a kernel that is 1e15 times as large, as those of deep networks are, says the same."""

    class Large(DenseKernel):
        def __call__(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return 1e15 * super().__call__(x, z)

        def diagonal(self, x: torch.Tensor) -> torch.Tensor:
            return 1e15 * super().diagonal(x)

    x, y = linear()
    y = y if task == "regression" else (y[:, 0] > 0).long()
    one, other = (
        ExactGP(kind(1, 2.0, 1.0), task, 1 + (task != "regression")).double() for kind in (DenseKernel, Large)
    )
    one.fit(x, y), other.fit(x, y)
    expected, found = one.predict(x[:5]), other.predict(x[:5])
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found.model, expected.model, rtol=1e-5, atol=1e-8)


def test_covariances_of_the_rows_are_computed_once() -> None:
    """They are what takes the time: neither learning twice over them, nor a move that moves nothing, asks again."""

    class Counted(DenseKernel):
        calls = 0

        def __call__(self, x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            self.calls += x is z
            return super().__call__(x, z)

    x, y = linear()
    kernel = Counted(1, 2.0, 1.0)
    method = ExactGP(kernel, "classification", 2).double()
    method.fit(x, (y[:, 0] > 0).long())
    before = method.double().predict(x[:3]).probabilities
    assert kernel.calls == 1
    after = method.float().predict(x[:3]).probabilities  # rounded rows are other rows
    assert kernel.calls == 2
    torch.testing.assert_close(after, before.float(), rtol=1e-4, atol=1e-5)


def test_a_row_of_weight_2_is_there_twice() -> None:
    x, y = linear(30)
    weight = torch.ones(30)
    weight[:10] = 2.0
    weighted, twice = (ExactGP(DenseKernel(1, 2.0, 1.0), "regression", 1).double() for _ in range(2))
    weighted.fit(x, y, weight)
    twice.fit(torch.cat([x, x[:10]]), torch.cat([y, y[:10]]))
    twice.ratio.copy_(weighted.ratio), twice.scale.copy_(weighted.scale)
    twice._solved = None
    new = torch.randn(5, 2).double()
    torch.testing.assert_close(weighted.predict(new).mean, twice.predict(new).mean)
    torch.testing.assert_close(weighted.predict(new).model, twice.predict(new).model)


def test_leave_one_out_is_what_leaving_one_out_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = linear(12)
    labels = (y[:, 0] > 0).long()
    method = ExactGP(DenseKernel(1, 2.0, 1.0), "classification", 2, noise=0.1).double()
    method.fit(x, labels)
    seen = []
    monkeypatch.setattr(method.head, "log_marginal", lambda f, y: seen.append(f) or torch.zeros(len(y)).double())
    method._temperature(labels)
    f, first = seen[0], 0.01  # the first temperature
    for i in (0, 7):
        rest = torch.arange(12) != i
        other = ExactGP(DenseKernel(1, 2.0, 1.0), "classification", 2, noise=0.1).double()
        other.fit(x[rest], labels[rest])
        other.targets, other.centre = method.targets[rest], method.centre
        other.scale.copy_(method.scale)
        other._solved = None
        mean, variance = other.posterior(x[i : i + 1])
        torch.testing.assert_close(f.loc[i] * first, mean[0], rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(f.variance[i] * first**2, variance[0], rtol=1e-5, atol=1e-8)


def test_too_many_rows_are_a_stated_subset() -> None:
    x, y = linear(60)
    model = BEDLRegressor(method="nngp", method_options={"largest": 30}, random_state=0)
    with pytest.warns(UserWarning, match="60 rows is solved for 30"):
        model.fit(x.numpy(), y[:, 0].numpy())
    assert len(model.method_.rows) == 30
    assert model.score(x.numpy(), y[:, 0].numpy()) > 0.9


def test_digits_as_images() -> None:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    options = {"depth": 2, "size": 3}
    model = BEDLClassifier(method="convnet-gp", method_options=options, standardize="shared").fit(X[:150], y[:150])
    assert model.score(X[150:350], y[150:350]) > 0.85
    parts = model.uncertainty(np.concatenate([X[150:160], 16 - X[150:160]]))
    assert parts["epistemic"][10:].mean() > parts["epistemic"][:10].mean()


@pytest.mark.parametrize("name, options", [("nngp", {}), ("hmc", {"draws": 4, "warmup": 4, "thin": 1, "steps": 2})])
def test_what_is_not_exported_says_so(name: str, options: dict, tmp_path: Path) -> None:
    from bedl.deploy import export

    x, y = linear(20)
    model = BEDLRegressor(method=name, method_options=options, random_state=0).fit(x.numpy(), y[:, 0].numpy())
    with pytest.raises(BEDLError, match="not exported; use save and load"):
        export(model, tmp_path / "model.onnx")
