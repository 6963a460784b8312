"""Ensembles, Laplace and SNGP against closed forms: mixtures, Hessians, and Gaussian processes in the kernel's form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bedl import BEDLRegressor
from bedl.heads import MeanVariance, Softmax
from bedl.methods import Batch, Problem, registry
from bedl.methods.baselines.last_layer import SNGP, BoundedLinear, Laplace, best_precision
from bedl.training import fit, fit_replicas


def shared(precision: float) -> MeanVariance:
    return MeanVariance(1, noise="fixed", precision=precision)


def table(n: int = 30, columns: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, columns, generator=g)
    return x, x[:, 0] - 0.5 * x[:, 1] + 0.3 * torch.randn(n, generator=g)


# -- ensemble -----------------------------------------------------------------------------------------
def test_an_ensemble_is_the_papers_mixture() -> None:
    """mu* = mean of mu, sigma*² = mean of (sigma² + mu²) − mu*²."""
    torch.manual_seed(0)
    x, _ = table(5)
    ensemble = registry.get("ensemble")(Problem("regression", 1, (3,)), size=4)
    said, members = ensemble.predict(x), [member.predict(x) for member in ensemble.members]
    means, variances = (torch.stack([getattr(m, part) for m in members]) for part in ("mean", "total"))
    torch.testing.assert_close(said.mean, means.mean(0))
    torch.testing.assert_close(said.total, (variances + means.square()).mean(0) - means.mean(0).square())
    torch.testing.assert_close(said.model, means.var(0, correction=0))


def test_members_are_trained_side_by_side_and_held_out_apart() -> None:
    x, y = (part.numpy() for part in table(100))
    model = BEDLRegressor(method="ensemble", method_options={"size": 3}, epochs=3, random_state=0, device="cpu")
    rows = model.fit(x, y).history_
    assert sorted({row["member"] for row in rows}) == [0, 1, 2]
    assert all("val_nll" in row for row in rows)
    with pytest.raises(ValueError, match="an ensemble already"):
        BEDLRegressor(method="ensemble", ensemble=2).fit(x, y)


# -- Laplace ------------------------------------------------------------------------------------------
def test_laplace_of_a_linear_model_is_bayesian_regression() -> None:
    x, y = table()
    tau, a = 4.0, 0.7
    method = Laplace(nn.Linear(3, 1), shared(tau), prior_precision=a)
    method.on_fit_end([Batch(x[:10], y[:10], 30), Batch(x[10:], y[10:], 30)])
    design = torch.cat([x, torch.ones(30, 1)], 1).double()
    posterior = torch.linalg.inv(tau * design.T @ design + a * torch.eye(4))
    truth = ((design @ posterior) * design).sum(1)
    torch.testing.assert_close(method.predict(x).model[:, 0].double(), truth, rtol=1e-4, atol=1e-6)
    weighted = Laplace(nn.Linear(3, 1), shared(tau), prior_precision=a)
    weighted.on_fit_end([Batch(x, y, 30, weight=torch.cat([torch.full((10,), 2.0), torch.zeros(20)]))])
    half = torch.linalg.inv(2 * tau * design[:10].T @ design[:10] + a * torch.eye(4))
    torch.testing.assert_close(weighted.covariance[0].double(), half, rtol=1e-4, atol=1e-6)


def test_laplace_of_classes_has_the_hessian_of_the_loss() -> None:
    torch.manual_seed(0)
    x, _ = table()
    y = torch.randint(3, (30,))
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    method = Laplace(net, Softmax(3), prior_precision=2.0, samples=4000).double()
    phi = torch.cat([net[:2](x.double()), torch.ones(30, 1)], 1).detach()

    def loss(theta: Tensor) -> Tensor:
        return nn.functional.cross_entropy(phi @ theta.reshape(3, 5).T, y, reduction="sum")

    theta = torch.cat([net[2].weight, net[2].bias[:, None]], 1).detach().flatten()
    hessian = torch.autograd.functional.hessian(loss, theta)
    batches = [Batch(x.double(), y, 30)]
    with torch.no_grad():
        torch.testing.assert_close(method._of_classes(batches), hessian)
        method.on_fit_end(batches)
    truth = torch.linalg.inv(hessian + 2.0 * torch.eye(15))
    draws = method.draws.flatten(1)
    tolerance = 6 * truth.diagonal().max() / math.sqrt(4000)
    assert float((draws.T @ draws / 4000 - truth).abs().max()) < float(tolerance)
    # the evidence of the prior precision, by brute force
    grid = torch.logspace(-4, 6, 101, dtype=torch.float64)
    eye = torch.eye(15)
    evidence = [7.5 * d.log() - 0.5 * torch.logdet(hessian + d * eye) - 0.5 * d * theta.square().sum() for d in grid]
    assert best_precision(hessian, theta) == pytest.approx(float(grid[torch.stack(evidence).argmax()]))


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_points_held_out_choose_the_prior_of_laplace(task: str) -> None:
    """Of all precisions, the one that says most of them: by brute force, some counting twice or not at all."""
    torch.manual_seed(3)
    x, y = table(40)
    y = y if task == "regression" else torch.randint(3, (40,))
    net = nn.Linear(3, 1 if task == "regression" else 3)
    weight = torch.tensor([2.0, 2.0, *[1.0] * 17, 0.0])

    def concluded(judged: bool, precision: float | None = None) -> Laplace:
        method = Laplace(net, shared(4.0) if task == "regression" else Softmax(3), precision)
        method.on_fit_end([Batch(x[:20], y[:20], 20)], [Batch(x[20:], y[20:], 20, weight)] if judged else [])
        return method

    def says(method: Laplace) -> float:
        targets = y[20:, None] if task == "regression" else y[20:]
        return float(method.predict(x[20:]).log_prob(targets) @ weight)

    with torch.no_grad():
        chosen = says(concluded(True))
        others = [says(concluded(False, d)) for d in torch.logspace(-4, 6, 21).tolist()]
        assert chosen == pytest.approx(max(others), rel=1e-4)
        assert chosen > says(concluded(False)) + 1e-3  # than the evidence's choice


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_laplace_is_that_of_another_library(task: str) -> None:
    theirs = pytest.importorskip("laplace")
    torch.manual_seed(0)
    x, y = table()
    outputs = 1 if task == "regression" else 3
    y = y[:, None] if task == "regression" else torch.randint(3, (30,))
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=30)
    options = {"subset_of_weights": "last_layer", "hessian_structure": "full", "prior_precision": 2.0}
    noise = {"sigma_noise": 0.5} if task == "regression" else {}
    other = theirs.Laplace(net, task, **options, **noise)
    other.fit(loader)
    method = Laplace(net, shared(4.0) if task == "regression" else Softmax(3), prior_precision=2.0)
    if task == "regression":
        method.on_fit_end([Batch(x, y[:, 0], 30)])
        torch.testing.assert_close(method.predict(x).model, other(x)[1][:, :, 0], rtol=1e-3, atol=1e-6)
        return
    order = [5 * c + i for c in range(3) for i in range(4)] + [5 * c + 4 for c in range(3)]  # biases last
    with torch.no_grad():
        ours = method._of_classes([Batch(x, y, 30)])[order][:, order]
    torch.testing.assert_close(ours.float(), other.H, rtol=1e-3, atol=1e-4)


def test_steps_are_concluded_alone_and_side_by_side() -> None:
    x, y = table()
    methods = [Laplace(nn.Linear(3, 1), shared(4.0), prior_precision=1.0) for _ in range(2)]
    fit(methods[0], (x, y), epochs=1, batch_size=8)
    assert float(methods[0].covariance.abs().max()) > 0
    copies = [Laplace(nn.Linear(3, 1), shared(4.0), prior_precision=1.0) for _ in range(2)]
    fit_replicas(copies, [(x, y), (x[:15], y[:15])], epochs=1, batch_size=8)
    torch.testing.assert_close(copies[0].covariance, methods[0].covariance, rtol=1e-4, atol=1e-6)
    assert copies[1].covariance.diagonal(dim1=-2, dim2=-1).sum() > copies[0].covariance.diagonal(dim1=-2, dim2=-1).sum()
    judged = [Laplace(nn.Linear(3, 1), shared(4.0)) for _ in range(2)]
    fit(judged[0], (x[:20], y[:20]), validation=(x[20:], y[20:]), epochs=1, batch_size=8)
    fit_replicas(judged[1:], (x[:20], y[:20]), validation=(x[20:], y[20:]), epochs=1, batch_size=8)
    torch.testing.assert_close(judged[1].covariance, judged[0].covariance, rtol=1e-3, atol=1e-6)
    alone = Laplace(nn.Linear(3, 1), shared(4.0))
    fit(alone, (x[:20], y[:20]), epochs=1, batch_size=8)
    assert not torch.allclose(alone.covariance, judged[0].covariance, rtol=0.01)  # the evidence chose
    model = BEDLRegressor(method="laplace", device="cpu")
    with pytest.raises(ValueError, match="all points at once"):
        model.partial_fit(x.numpy(), y.numpy())


def test_laplace_wants_a_last_layer() -> None:
    x, y = table()

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            return 3 * self.linear(x)

    with pytest.raises(ValueError, match="end with one"):
        Laplace(Scaled(), shared(1.0)).on_fit_end([Batch(x, y, 30)])
    with pytest.raises(ValueError, match="has none"):
        Laplace(nn.Tanh(), shared(1.0))
    with pytest.raises(ValueError, match="narrower"):
        Laplace(nn.Linear(5000, 1), shared(1.0))


# -- SNGP ---------------------------------------------------------------------------------------------
def test_sngp_is_a_gaussian_process_in_its_features() -> None:
    torch.manual_seed(0)
    x, y = table()
    tau, s = 4.0, 2.0
    method = SNGP(nn.Identity(), 3, shared(tau), n_random=64, ridge=s).double()
    x, y = x.double(), y.double()
    method.on_fit_end([Batch(x[:20], y[:20], 30), Batch(x[20:], y[20:], 30)])
    new = torch.randn(6, 3, dtype=torch.float64)
    phi, phi_new = method.features(x), method.features(new)
    kernel, cross, own = phi @ phi.T / s, phi_new @ phi.T / s, (phi_new.square().sum(1) / s)
    truth = own - ((cross @ torch.linalg.inv(kernel + torch.eye(30) / tau)) * cross).sum(1)
    torch.testing.assert_close(method.predict(new).model[:, 0], truth)


def test_random_features_have_the_kernel_of_a_distance() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(20, 5), torch.randn(20, 5)
    method = SNGP(nn.Identity(), 5, Softmax(2), n_random=2_000, length_scale=0.8)
    ours = method.features(a) @ method.features(b).T
    truth = torch.exp(-torch.cdist(a, b).square() / (2 * 0.8**2 * 5))
    assert float((ours - truth).abs().max()) < 6 / math.sqrt(2_000)


def test_spectral_norm_is_bounded() -> None:
    layer = BoundedLinear(7, 7, bound=0.9)
    with torch.no_grad():
        for scale in (0.01, 30.0):
            layer.weight.copy_(scale * torch.randn(7, 7))
            effective = layer(torch.eye(7)) - layer.bias
            largest = float(torch.linalg.svdvals(layer.weight)[0])
            assert float(torch.linalg.svdvals(effective)[0]) == pytest.approx(min(0.9, largest), rel=1e-4)


def test_sngp_knows_how_far_away_it_is() -> None:
    x, y = (part.numpy() for part in table(200))
    quick = {"epochs": 30, "learning_rate": 0.01, "early_stopping": False, "random_state": 0, "device": "cpu"}
    model = BEDLRegressor(method="sngp", hidden_layers=(30,), **quick).fit(x, y)
    near, far = (model.predict_dist(rows).model.mean().item() for rows in (x, x + 20))
    assert far > 5 * near
