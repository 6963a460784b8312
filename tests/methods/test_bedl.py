"""BEDL and ensembles: what they predict and that they learn."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor, nn

from bedl import GaussianConv2d, GaussianLinear
from bedl.heads import Beta, Dirichlet, Normal
from bedl.heads.predictive import NormalPredictive
from bedl.methods import BEDL, Batch, Ensemble, Method
from bedl.objectives import PAC, HyperPrior, MarginalLikelihood
from bedl.training import Callback, GradientOptions, adam, fit, fit_replicas
from tests.closeness import assert_same_up_to_rounding


def small(seed: int = 0, dropout: float = 0.0) -> BEDL:
    torch.manual_seed(seed)
    net = nn.Sequential(GaussianLinear(2, 8), nn.ReLU(), nn.Dropout(dropout), GaussianLinear(8, 2))
    return BEDL(net, Normal(1), regularizer=None)


def test_the_loss_is_likelihood_plus_regularizer() -> None:
    x, y = torch.randn(6, 2), torch.randn(6)
    batch = Batch(x, y, n_train=60)
    plain = small()
    likelihood = MarginalLikelihood()(plain.net, plain.head, batch)
    assert_same_up_to_rounding(plain.loss(batch), likelihood)
    for regularizer in (PAC(), HyperPrior(), PAC() + HyperPrior()):
        method = BEDL(plain.net, plain.head, regularizer)
        assert torch.allclose(method.loss(batch), likelihood + regularizer(plain.net, plain.head, batch))
    assert BEDL(plain.net, plain.head).objective == MarginalLikelihood() + PAC()


def test_the_size_of_the_training_set_reaches_the_regularizer() -> None:
    x, y = torch.randn(6, 2), torch.randn(6)
    method = BEDL(small().net, Normal(1), HyperPrior())
    few, many = (method.loss(Batch(x, y, n_train=n)) for n in (10, 1000))
    likelihood = MarginalLikelihood()(method.net, method.head, Batch(x, y, 10))
    assert torch.allclose((few - likelihood) / (many - likelihood), torch.tensor(100.0), rtol=1e-3)


def test_predict_is_in_evaluation_mode_without_gradients() -> None:
    method = small(dropout=0.9)
    x = torch.randn(5, 2)
    first, second = method.predict(x), method.predict(x)
    assert torch.equal(first.mean, second.mean)
    assert not first.mean.requires_grad
    assert method.training
    assert method(x).mean.requires_grad


class Constant(Method):
    """Predicts the mean and the spread of the targets: learns by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("moments", torch.tensor([0.0, 1.0]))

    def forward(self, x: Tensor) -> NormalPredictive:
        mean, variance = (part.expand(len(x), 1) for part in self.moments)
        return NormalPredictive(mean, variance, *torch.zeros(2, *mean.shape))

    def fit(self, x: Tensor, y: Tensor) -> Constant:
        self.moments.copy_(torch.stack([y.mean(), y.var()]))
        return self


def test_each_method_says_how_it_learns() -> None:
    assert (BEDL.fit_mode, Ensemble.fit_mode, Constant.fit_mode, Method.fit_mode) == (
        *("gradient", "members", "direct"),
        None,
    )
    x, y = torch.randn(20, 2), torch.randn(20, 1)
    for method, remedy in (
        (Ensemble([small()]), "fit_replicas"),
        (Constant(), "its own fit"),
        (Method(), "no way to learn"),
    ):
        with pytest.raises(TypeError, match=remedy):
            fit(method, (x, y), epochs=1)
    with pytest.raises(TypeError, match="no gradient steps"):
        Constant().loss(Batch(x, y, 20))
    with pytest.raises(TypeError, match=r"bedl\.fit"):
        small().fit(x, y)
    with pytest.raises(TypeError, match="by steps"):
        fit_replicas([Constant(), Constant()], (x, y), epochs=1)
    together = Ensemble([Constant(), Constant()]).fit(x, y + 3)
    assert torch.allclose(together.predict(x).mean, (y + 3).mean().expand(20, 1))


class MeanSquare(Method):
    """A plain loss, nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Linear(2, 2), Normal(1)

    def forward(self, x: Tensor) -> NormalPredictive:
        return self.head(self.net(x))

    def batch_loss(self, batch: Batch) -> Tensor:
        return batch.mean((self(batch.x).mean - batch.y).square()[:, 0])


def test_the_loss_of_a_batch_is_that_of_its_parts() -> None:
    x, y, weight = torch.randn(8, 2), torch.randn(8, 1), torch.rand(8)
    method = BEDL(GaussianLinear(2, 2), Normal(1), PAC())
    torch.testing.assert_close(method.loss(x, y, n_train=50, weight=weight), method.loss(Batch(x, y, 50, weight)))
    assert method.loss(x, y, n_train=50) != method.loss(x, y, n_train=500)
    with pytest.raises(TypeError, match="n_train=…"):
        method.loss(x, y)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="define batch_loss"):
        type("Own", (BEDL,), {"loss": lambda self, batch: None})


def test_a_loss_alone_makes_a_method() -> None:
    x = torch.randn(64, 2)
    y = x.sum(1, keepdim=True)
    torch.manual_seed(0)
    methods = [MeanSquare() for _ in range(3)]
    assert methods[0].additive
    fit_replicas(methods[:2], (x, y), epochs=60, lr=0.05)
    fit(
        methods[2],
        (x, y),
        epochs=60,
        optimizer=adam(0.05),
        gradient=GradientOptions(accumulate=2),
        fabric={"accelerator": "cpu"},
    )
    for method in methods:
        assert float(method.loss(Batch(x, y, 64)).detach()) < 1e-2


@pytest.mark.parametrize("regularizer", [None, PAC()])
def test_weights_of_points_hold_for_all_places_of_dense_outputs(regularizer: PAC | None) -> None:
    class ChannelsLast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = GaussianConv2d(1, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).permute(0, 2, 3, 1)

    torch.manual_seed(0)
    method = BEDL(ChannelsLast(), Dirichlet(3), regularizer)
    x, y = torch.randn(5, 1, 4, 4), torch.randint(3, (5, 4, 4))
    weight = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0])
    twice = [0, 2, 2, 3]
    expected = method.loss(Batch(x[twice], y[twice], 5))
    assert torch.allclose(method.loss(Batch(x, y, 5, weight)), expected, rtol=1e-5)
    per_place = weight[:, None, None].expand(5, 4, 4)
    assert torch.allclose(method.loss(Batch(x, y, 5, per_place)), expected, rtol=1e-5)


# -- ensembles --------------------------------------------------------------------------------------------
def test_law_of_total_variance() -> None:
    """Against draws from the members: pick one, draw its mean, draw the noise."""
    ensemble = Ensemble([small(seed) for seed in range(4)])
    for member in ensemble.members:
        with torch.no_grad():
            for layer in (member.net[0], member.net[3]):
                layer.weight_logvar.fill_(-2.0)
    x = torch.tensor([[1.0, -0.5], [0.3, 2.0]])
    together, alone = ensemble.predict(x), [member.predict(x) for member in ensemble.members]
    means = torch.stack([p.mean for p in alone])
    assert torch.allclose(together.mean, means.mean(0), atol=1e-6)
    assert torch.allclose(together.aleatoric, torch.stack([p.aleatoric for p in alone]).mean(0), rtol=1e-5)
    within, between = torch.stack([p.epistemic for p in alone]).mean(0), means.var(0, correction=0)
    assert torch.allclose(together.epistemic, within + between, rtol=1e-5)
    draws = 200_000
    generator = torch.Generator().manual_seed(0)
    sample = torch.cat([p.sample(draws, generator) for p in alone])  # shape: (4 draws, 2, 1)
    error = sample.var(0) * (3 / (4 * draws)) ** 0.5 * 5  # five standard errors; kurtosis of a mixture of normals < 4
    assert bool(((together.variance - sample.var(0)).abs() < error).all())


def test_ensemble_of_classes_is_a_mixture() -> None:
    ensemble = Ensemble.of(3, lambda: BEDL(GaussianLinear(2, 3), Dirichlet(3)), seed=1)
    x = torch.randn(4, 2)
    expected = torch.stack([member.predict(x).probabilities for member in ensemble.members]).mean(0)
    assert torch.allclose(ensemble.predict(x).probabilities, expected, atol=1e-6)


def test_members_differ_and_seeds_do_not_overlap() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second = (Ensemble.of(3, lambda: BEDL(GaussianLinear(2, 2), Normal(1)), seed=s) for s in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    weights = {tuple(m.net.weight_mean.flatten().tolist()) for m in [*first.members, *second.members]}
    assert len(weights) == 6
    with pytest.raises(TypeError, match="members are methods"):
        Ensemble([nn.Linear(1, 1)])


def test_an_ensemble_is_trained_as_replicas() -> None:
    x = torch.linspace(-1, 1, 60)[:, None]
    ensemble = Ensemble.of(3, lambda: BEDL(GaussianLinear(1, 2), Normal(1, beta=10.0), None), seed=0)
    before = ensemble.predict(x)
    result = fit_replicas(ensemble, (x, 2 * x), epochs=100, lr=0.03)
    assert bool((result.loss < 0.3).all())
    after = ensemble.predict(x)
    assert float((after.mean - 2 * x).square().mean()) < 0.01
    assert float((before.mean - 2 * x).square().mean()) > 0.1


# -- learning ---------------------------------------------------------------------------------------------
def test_digits() -> None:
    """97 % on scikit-learn's digits in under a minute, on one core and whatever else the machine is doing."""
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    x, y = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1347], order[1347:]
    torch.manual_seed(0)
    net = nn.Sequential(
        GaussianConv2d(1, 16, 3, padding=1), nn.ReLU(), GaussianConv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), GaussianLinear(512, 10),
    )  # fmt: skip
    method = BEDL(net, Dirichlet(10), regularizer=PAC())
    began = time.process_time()
    fit(method, (x[train], y[train]), epochs=15, batch_size=64, optimizer=adam(3e-3), fabric={"accelerator": "cpu"})
    assert time.process_time() - began < 60
    accuracy = float((method.predict(x[test]).label == y[test]).float().mean())
    assert accuracy >= 0.97, accuracy


class Textures(torch.utils.data.Dataset):
    """Images of CIFAR's size whose class is the direction and colour of a wave, under noise."""

    def __init__(self, n: int = 50 * 32):
        g = torch.Generator().manual_seed(0)
        self.y = torch.randint(5, (n,), generator=g)
        grid = torch.arange(32.0)
        angle = self.y * torch.pi / 5
        wave = torch.cos(angle)[:, None, None] * grid[:, None] + torch.sin(angle)[:, None, None] * grid
        phase = 6.3 * torch.rand(n, 1, 1, generator=g)
        self.x = torch.sin(0.8 * wave + phase)[:, None] + torch.randn(n, 3, 32, 32, generator=g)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.x[i], self.y[i]


@pytest.mark.slow
@pytest.mark.parametrize(("regularizer", "epochs", "dead"), [(None, 1, 1.609), (PAC(), 3, 2.609)], ids=["plain", "pac"])
def test_the_wide_net_learns_from_the_first_steps(regularizer: PAC | None, epochs: int, dead: float) -> None:
    """conv 192, conv 192 (5×5, stride 2), fc 1000: with He's means and Adam at 1e-3 it dies within ten steps.

    With the PAC term it needs more steps to rise in than the two of a single epoch. What a dead net answers costs
    log 5, and 1 more with the PAC term.
    """
    torch.manual_seed(0)
    net = nn.Sequential(
        GaussianConv2d(3, 192, 5, stride=2), nn.ReLU(), GaussianConv2d(192, 192, 5, stride=2), nn.ReLU(), nn.Flatten(),
        GaussianLinear(192 * 25, 1000), nn.ReLU(), GaussianLinear(1000, 5),
    )  # fmt: skip
    method = BEDL(net, Dirichlet(5), regularizer)
    losses: list[float] = []

    class Note(Callback):
        def on_step(self, run, row) -> None:
            losses.append(row["loss"])

    fit(method, Textures(), epochs=epochs, batch_size=32, callbacks=[Note()], fabric={"accelerator": "cpu"})
    assert len(losses) == 50 * epochs
    assert sum(losses[-10:]) / 10 < dead - 0.2


def test_a_network_without_gaussian_layers_is_warned_of():
    with pytest.warns(UserWarning, match=r"BEDL: no layer of this Sequential is Gaussian.*bayesianize"):
        BEDL(nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), Normal(1))


def test_validation_knows_dense_outputs_with_weights_and_single_labels() -> None:
    """The weighted mean of −log p over points and places; a single yes-or-no label is no class number."""
    torch.manual_seed(0)

    class ChannelsLast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = GaussianConv2d(1, 3, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x).permute(0, 2, 3, 1)

    method = BEDL(ChannelsLast(), Dirichlet(3), None)
    x, y, weight = torch.randn(6, 1, 4, 4), torch.randint(3, (6, 4, 4)), torch.tensor([1.0, 2.0, 0.0, 1.0, 3.0, 1.0])
    row = fit(method, (x, y), epochs=1, batch_size=6, validation=(x, y, weight), fabric={"accelerator": "cpu"}).rows[-1]
    values = -method.predict(x).log_prob(y)
    expected = (values.mean((1, 2)) * weight).sum() / weight.sum()
    assert row["val_nll"] == pytest.approx(expected.item(), rel=1e-5)
    labels = BEDL(GaussianLinear(2, 2), Beta(1), None)
    x, y = torch.randn(8, 2), torch.ones(8, 1, dtype=torch.long)
    assert fit(labels, (x, y), epochs=1, validation=(x, y), fabric={"accelerator": "cpu"}).rows[-1]["val_nll"] > 0
