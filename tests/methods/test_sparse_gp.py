"""Sparse processes against exact ones, GPyTorch's own strategy and the definition of the patch kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("gpytorch", reason="pip install 'bedl[gp]'")

from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from bedl import BEDLRegressor
from bedl.heads import ExpectedMeanVariance
from bedl.methods.baselines.sparse_gp import Latent, PatchLatent, SparseGP, collapsed_bound, maximise, put_best_values


def sines(n: int = 25) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.linspace(-2, 2, n).double()[:, None]
    return x, torch.sin(2 * x) + 0.2 * torch.randn(n, 1).double()


@pytest.fixture(scope="module")
def fitted() -> SparseGP:
    """Inducing points on all rows: the bound is then tight."""
    x, y = sines()
    head = ExpectedMeanVariance(1, noise="shared", precision=10.0).double()
    torch.manual_seed(0)
    method = SparseGP(lambda: Latent(1, 1, 25), head, steps=400, lr=0.08).double()
    method.fit(x, y)
    return method


def test_with_all_points_it_is_the_exact_process(fitted: SparseGP) -> None:
    """Mean and std as scikit-learn's with the same kernel; the bound is below its evidence, and near it."""
    x, y = sines()
    kernel, noise = fitted.latent.covar_module, (-fitted.head.log_precision).exp().item()
    constant = fitted.latent.mean_module.constant.item()
    theirs = ConstantKernel(kernel.outputscale.item()) * RBF(kernel.base_kernel.lengthscale.item())
    exact = GaussianProcessRegressor(theirs + WhiteKernel(noise), optimizer=None, alpha=0.0)
    exact.fit(x.numpy(), y[:, 0].numpy() - constant)
    new = torch.linspace(-2.5, 2.5, 11).double()[:, None]
    mean, std = exact.predict(new.numpy(), return_std=True)
    found = fitted.predict(new)
    np.testing.assert_allclose(found.mean[:, 0], mean + constant, atol=0.03)
    np.testing.assert_allclose(found.std[:, 0], std, rtol=0.05)
    bound = -25 * fitted.negative_bound(x, y, torch.ones(25).double(), torch.tensor(25.0)).item()
    evidence = exact.log_marginal_likelihood_value_
    assert evidence - 1.0 < bound < evidence + 1e-3


def test_the_bound_with_all_points_is_the_evidence() -> None:
    """Several targets with kernels of their own; the evidence as scikit-learn has it."""
    x, _ = sines(15)
    y = torch.cat([torch.sin(2 * x), x**2 - 1], 1)
    latent, noises = Latent(1, 2, 15).double(), (0.3, 0.1)
    latent.covar_module.base_kernel.lengthscale = torch.tensor([[[0.7]], [[1.9]]])
    latent.covar_module.outputscale = torch.tensor([1.3, 0.6])
    latent.mean_module.constant = torch.tensor([0.2, -0.1])
    latent.variational_strategy.inducing_points.data.copy_(x)
    with torch.no_grad():
        found = collapsed_bound(latent, -torch.tensor(noises).double().log(), x, y, torch.ones(15).double())[0].item()
    expected = 0.0
    for column, (scale, length, noise, constant) in enumerate(
        zip((1.3, 0.6), (0.7, 1.9), noises, (0.2, -0.1), strict=True)
    ):
        kernel = ConstantKernel(scale) * RBF(length) + WhiteKernel(noise)
        exact = GaussianProcessRegressor(kernel, optimizer=None, alpha=0.0)
        expected += exact.fit(x.numpy(), y[:, column].numpy() - constant).log_marginal_likelihood_value_
    assert found == pytest.approx(expected, abs=1e-4)


def test_fitc_is_a_process_whose_values_are_independent_given_those_of_the_points() -> None:
    """Its likelihood by SciPy, from the covariances written out; its prediction by conditioning."""
    torch.manual_seed(2)
    x, y = sines(30)
    latent, noise = Latent(1, 1, 4).double(), torch.tensor([0.05]).double()
    latent.variational_strategy.inducing_points.data.copy_(torch.tensor([-1.5, -0.5, 0.4, 1.6]).double()[:, None])
    ones = torch.ones(30).double()
    with torch.no_grad():
        points = latent.variational_strategy.inducing_points[0]
        kuu = latent.covariances(points[None], points)[0] + latent.jitter * torch.eye(4)
        kuf = latent.covariances(points[None], x)[0]
        known = kuf.mT @ torch.linalg.solve(kuu, kuf)
        whole = known + torch.diag(latent.covar_module.outputscale - known.diagonal() + noise)
        found = collapsed_bound(latent, -noise.log(), x, y, ones, "fitc")[0].item()
        bound = collapsed_bound(latent, -noise.log(), x, y, ones)[0].item()
        assert found == pytest.approx(stats.multivariate_normal(cov=whole.numpy()).logpdf(y[:, 0].numpy()), abs=1e-5)
        assert found > bound + 1
        put_best_values(latent, -noise.log(), x, y, ones, "fitc")
        new = torch.linspace(-2.5, 2.5, 7).double()[:, None]
        across = latent.covariances(points[None], new)[0].mT @ torch.linalg.solve(kuu, kuf)
        gain = torch.linalg.solve(whole, across.mT).mT
        latent.eval()
        said = latent(new)
    torch.testing.assert_close(said.mean[0], (gain @ y)[:, 0], rtol=1e-4, atol=1e-5)
    truth = latent.covar_module.outputscale - (gain * across).sum(1)
    torch.testing.assert_close(said.variance[0], truth.detach(), rtol=1e-3, atol=1e-5)


def test_of_several_starts_the_best_goes_on() -> None:
    """A fast sine, which the usual length scale takes for noise; inducing points start at centres of k-means."""
    g = torch.Generator().manual_seed(0)
    x = torch.rand(120, 1, generator=g).double() * 3.4 - 1.7
    y = torch.sin(10 * x) + 0.1 * torch.randn(120, 1, generator=g).double()
    reached = []
    for starts in (1, 4):
        torch.manual_seed(0)
        head = ExpectedMeanVariance(1, noise="shared", precision=10.0).double()
        method = SparseGP(lambda: Latent(1, 1, 25), head, steps=60, starts=starts).double()
        method.fit(x, y)
        reached.append(-method.negative_bound(x, y, torch.ones(120).double(), torch.tensor(120.0)).item())
    assert reached[1] > reached[0] + 1
    for wrong in ({"starts": 0}, {"approximation": "exact"}):
        with pytest.raises(ValueError, match="must be"):
            SparseGP(lambda: Latent(1, 1, 5), head, **wrong)  # type: ignore[arg-type]


def test_few_points_have_the_best_values_and_the_bound_that_gpytorch_says() -> None:
    """With weights: the bound is GPyTorch's expected likelihood and divergence at that q(u); any other is worse."""
    torch.manual_seed(1)
    x, weight = torch.randn(40, 2).double(), torch.rand(40).double() + 0.5
    y = torch.sin(x[:, :1]) + 0.1 * torch.randn(40, 1).double()
    head = ExpectedMeanVariance(1, noise="shared", precision=10.0).double()
    method = SparseGP(lambda: Latent(2, 1, 6), head, steps=5).double()
    method.fit(x, y, weight)
    with torch.no_grad():
        bound = collapsed_bound(method.latent, method.head.log_precision, x, y, weight)[0]
        at_best = method.negative_bound(x, y, weight, weight.sum())
        torch.testing.assert_close(-at_best * weight.sum(), bound, rtol=0, atol=1e-4)
        values = method.latent.variational_strategy._variational_distribution
        for part in (values.variational_mean, values.chol_variational_covar):
            for sign in (-1, 1):
                before = part.clone()
                part.mul_(1 + sign * 0.2 * torch.rand_like(part))
                method.latent.variational_strategy._clear_cache()
                assert method.negative_bound(x, y, weight, weight.sum()) > at_best
                part.copy_(before)


def test_rows_that_count_twice_are_two_rows() -> None:
    x, y = sines()
    latent, rate = Latent(1, 1, 7).double(), torch.full((1,), 2.0).double()
    latent.start(x, torch.Generator().manual_seed(0))
    with torch.no_grad():
        twice = collapsed_bound(latent, rate, x, y, torch.full((25,), 2.0).double())
        rows = collapsed_bound(latent, rate, torch.cat([x, x]), torch.cat([y, y]), torch.ones(50).double())
    for one, other in zip(twice, rows, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_search_that_goes_astray_keeps_the_best_that_it_saw() -> None:
    at = torch.tensor([3.0], requires_grad=True)

    def value() -> torch.Tensor:
        if at.item() < 1:
            raise torch.linalg.LinAlgError("no numbers any more")
        return -at.square().sum()

    maximise(value, [at], 10)
    assert 1 <= at.item() < 3


def test_targets_without_any_noise_and_few_rows_are_learned() -> None:
    """Fewer rows than inducing points, and a noise at its least."""
    X = np.linspace(-1, 1, 12)[:, None]
    model = BEDLRegressor(method="sparse-gp", random_state=0).fit(X, X[:, 0])
    np.testing.assert_allclose(model.predict(X), X[:, 0], atol=0.02)


def test_a_patch_kernel_is_a_mean_over_patches() -> None:
    torch.manual_seed(0)
    latent = PatchLatent((1, 4, 3), (2, 2), 1, 5).double()
    latent.covar_module.base_kernel.lengthscale = torch.tensor([0.5, 1.0, 2.0, 1.5])
    latent.covar_module.outputscale = 1.7
    x, z = torch.randn(1, 2, 12).double(), torch.randn(1, 5, 4).double()

    def k(a: np.ndarray, b: np.ndarray) -> float:
        return 1.7 * np.exp(-0.5 * (((a - b) / np.array([0.5, 1.0, 2.0, 1.5])) ** 2).sum())

    def patches(image: np.ndarray) -> list[np.ndarray]:
        return [image[i : i + 2, j : j + 2].ravel() for i in range(3) for j in range(2)]

    images, points = x[0].reshape(2, 4, 3).numpy(), z[0].numpy()
    with torch.no_grad():
        across, variances = latent.across(z, x)[0].numpy(), latent.variances(x)[0].numpy()
    for n, image in enumerate(images):
        own = patches(image)
        assert variances[n] == pytest.approx(np.mean([k(a, b) for a in own for b in own]))
        for m, point in enumerate(points):
            assert across[m, n] == pytest.approx(np.mean([k(point, a) for a in own]))


def test_a_patch_of_the_whole_image_is_an_ordinary_process() -> None:
    torch.manual_seed(0)
    plain, patch = Latent(4, 2, 3).double().eval(), PatchLatent((1, 2, 2), (2, 2), 2, 3).double().eval()
    x, generator = torch.randn(7, 4).double(), torch.Generator().manual_seed(0)
    plain.start(x, generator)
    with torch.no_grad():
        plain(x[:1]), patch(x[:1])  # initialises the inducing values
        values = plain.variational_strategy._variational_distribution
        values.variational_mean.normal_()
        values.chol_variational_covar.copy_(torch.eye(3) * 0.5 + 0.1 * torch.ones(3, 3).tril())
    patch.load_state_dict(plain.state_dict())
    for latent in (plain, patch):
        latent.variational_strategy._clear_cache()
    with torch.no_grad():
        expected, found = plain(x), patch(x)
        torch.testing.assert_close(found.mean, expected.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.variance, expected.variance, rtol=1e-3, atol=1e-4)


def test_weights_count(fitted: SparseGP) -> None:
    x, y = sines()
    weight = torch.ones(25).double()
    weight[:5] = 3.0
    rows = torch.cat([torch.arange(25), torch.arange(5), torch.arange(5)])
    with torch.no_grad():
        once = fitted.negative_bound(x, y, weight, weight.sum())
        often = fitted.negative_bound(x[rows], y[rows], torch.ones(35).double(), weight.sum())
    torch.testing.assert_close(once, often)


def test_intervals_hold_what_they_say() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=300)
    settings = {"method": "sparse-gp", "method_options": {"inducing": 30}}
    model = BEDLRegressor(**settings, random_state=0).fit(X[:200], y[:200])
    lower, upper = model.predict_interval(X[200:], 0.9)
    inside = ((lower < y[200:]) & (y[200:] < upper)).sum()
    assert stats.binom.cdf(inside, 100, 0.9) > 1e-3
    assert np.sqrt(np.mean((model.predict(X[200:]) - y[200:]) ** 2)) < 0.4
    assert model.uncertainty(np.zeros((1, 2)))["model"][0] < 0.2 * model.uncertainty(np.full((1, 2), 9.0))["model"][0]
