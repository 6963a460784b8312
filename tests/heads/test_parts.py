"""The three parts of a prediction's uncertainty: against draws, against what is known by hand, and their gradients."""

from __future__ import annotations

import math

import pytest
import scipy.special
import torch
from torch import Tensor

from bedl.heads import Dirichlet, Normal
from bedl.heads.integrals import expected_data_entropy
from bedl.heads.integrals.moments import wright_omega
from bedl.moments import Moments
from tests.heads.oracles import logits

PARTS = ("data", "distributional", "model")


def drawn(m: Tensor, v: Tensor, draws: int, log_p: Tensor) -> dict[str, tuple[float, float]]:
    """The parts at one point by draws of f in float64, lambda integrated exactly, and their standard errors.

    log_p: about the log probabilities, for the standard error alone. shape: (C,)
    """
    g, at_once = torch.Generator().manual_seed(1), max(4_000_000 // len(m), 1)
    sums, squares, done = torch.zeros(3).double(), torch.zeros(3).double(), 0
    p, p2 = torch.zeros_like(m), torch.zeros_like(m)
    while done < draws:
        n = min(draws - done, at_once)
        f = m + v.sqrt() * torch.randn(n, len(m), generator=g, dtype=torch.float64)
        share, total = torch.softmax(f, -1), torch.logsumexp(f, -1).exp()
        data = torch.digamma(total + 1) - (share * torch.digamma(f.exp() + 1)).sum(-1)
        given_f = torch.special.entr(share).sum(-1)
        parts = torch.stack([data, given_f - data, -(share @ log_p) - given_f])  # the last to first order
        sums, squares, done = sums + parts.sum(1), squares + parts.square().sum(1), done + n
        p, p2 = p + share.sum(0) / draws, p2 + share.square().sum(0) / draws
    means = sums / draws
    errors = ((squares / draws - means.square()).clamp_min(0) / draws).sqrt().tolist()
    bias = ((p2 - p.square()) / p).sum() / (2 * draws)  # the entropy of a mean of draws is too low
    means[2] = torch.special.entr(p).sum() + bias - means[:2].sum()
    return dict(zip(PARTS, zip(means.tolist(), errors, strict=True), strict=True))


def check_against_draws(n_classes: int, s: float, points: int, draws: int) -> None:
    m, v = logits(n_classes, points, scale=2.0, s=s, spread=4, seed=3)
    m, v = m.double(), v.double()
    for offset in (-3.0, 1.0):  # little evidence, and some
        found = Dirichlet(n_classes)(Moments((m + offset).float(), v.float()))
        for i in range(points):
            truth = drawn(m[i] + offset, v[i], draws, found.log_probabilities[i].double())
            for part, (value, noise) in truth.items():
                error = abs(float(getattr(found, part)[i]) - value)
                assert error < 1e-3 + 3 * noise, (part, n_classes, s, offset, error, noise)


@pytest.fixture(params=["as it is", "as graphs have it"])
def anyhow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported graphs have another form of the race: what is said of the parts has to hold for both."""
    if request.param == "as graphs have it":
        monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)


@pytest.mark.usefixtures("anyhow")
@pytest.mark.parametrize("n_classes", [2, 10])
@pytest.mark.parametrize("s", [0.1, 1.0, 10.0])
def test_dirichlet_parts_against_draws(n_classes: int, s: float) -> None:
    check_against_draws(n_classes, s, points=1, draws=200_000 // n_classes)


@pytest.mark.slow
@pytest.mark.usefixtures("anyhow")
@pytest.mark.parametrize("n_classes, draws", [(2, 10**6), (3, 10**6), (10, 10**6), (100, 10**6), (1000, 10**5)])
@pytest.mark.parametrize("s", [0.1, 0.5, 1.0, 2.0, 5.0, 10.0])
def test_dirichlet_parts_against_many_draws(n_classes: int, draws: int, s: float) -> None:
    check_against_draws(n_classes, s, points=2 if n_classes < 100 else 1, draws=draws)


@pytest.mark.usefixtures("anyhow")
@pytest.mark.parametrize("n_classes", [2, 3, 10, 100])
@pytest.mark.parametrize("s", [0.0, 0.1, 1.0, 10.0])
def test_parts_add_up_and_are_never_negative(n_classes: int, s: float) -> None:
    m, v = logits(n_classes, 40, scale=3.0, s=max(s, 1e-9), spread=10, seed=2)
    p = Dirichlet(n_classes)(Moments(m.float(), v.float() if s else torch.zeros_like(v).float()))
    for part in PARTS:
        assert bool((getattr(p, part) >= 0).all()), part
    assert (p.data + p.distributional + p.model - p.entropy).abs().max() < 1e-5
    assert (p.total - p.aleatoric - p.epistemic).abs().max() < 1e-5
    head = Normal(2, noise="learned")
    q = head(Moments(3 * torch.randn(40, 6), s * torch.rand(40, 6)))
    assert (q.data + q.distributional + q.model - q.variance).abs().max() < 1e-5 * q.variance.max()


# -- known by hand ---------------------------------------------------------------------------------
def test_a_uniform_probability_has_half_a_nat_of_noise() -> None:
    """E[-2 p log p] = 1/2 for p uniform, and log 2 in all."""
    p = Dirichlet(2)(torch.zeros(1, 2))
    assert p.data.item() == pytest.approx(0.5, abs=1e-4)
    assert p.distributional.item() == pytest.approx(math.log(2) - 0.5, abs=1e-4)
    assert p.model.item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("n_classes", [2, 7])
def test_much_evidence_leaves_noise_and_none_leaves_no_noise(n_classes: int) -> None:
    shares = torch.log_softmax(torch.linspace(0, 2, n_classes), -1)[None]
    entropy = torch.special.entr(shares.exp()).sum()
    known = Dirichlet(n_classes)(shares + 15)  # three million observations
    assert known.data.item() == pytest.approx(entropy.item(), abs=1e-5)
    assert known.epistemic.item() < 1e-5
    unknown = Dirichlet(n_classes)(shares - 15)  # lambda is one of the corners, and nobody knows which
    assert unknown.data.item() == pytest.approx(0.0, abs=1e-5)
    assert unknown.distributional.item() == pytest.approx(entropy.item(), abs=1e-5)


def test_known_outputs_are_a_dirichlet() -> None:
    """Zero variance: the closed form, by SciPy's digamma."""
    f = torch.tensor([[1.0, -2.0, 0.5], [4.0, 3.0, -6.0]])
    alpha = f.double().exp().numpy()
    total = alpha.sum(1, keepdims=True)
    psi = scipy.special.digamma
    truth = psi(total[:, 0] + 1) - (alpha / total * psi(alpha + 1)).sum(1)
    for p in (Dirichlet(3)(f), Dirichlet(3).given(f)):
        assert torch.allclose(p.data.double(), torch.tensor(truth), atol=3e-4)
        assert p.model.abs().max() < 1e-6


def test_two_coins_nobody_knows_which() -> None:
    """Much evidence, and a network torn between two outcomes: all of it is model."""
    p = Dirichlet(2)(Moments(torch.full((1, 2), 30.0), torch.tensor([[100.0, 100.0]])))
    assert p.distributional.item() < 1e-3
    assert p.model.item() > 0.9 * p.data.item() > 0


def test_fixed_and_learned_noise() -> None:
    fixed, learned = Normal(1, beta=4.0), Normal(1, noise="learned")
    p = fixed(torch.tensor([[2.0, -200.0]]))  # all evidence there can be: noise alone remains
    assert (p.mean.item(), p.data.item(), p.epistemic.item()) == (2.0, 0.25, 0.0)
    little = learned(torch.tensor([[0.0, -200.0, -200.0]]))
    assert little.data.item() == pytest.approx(1e-4, rel=1e-4)  # the least noise, 1/beta
    assert little.epistemic.item() == 0
    far = learned(Moments(torch.full((1, 3), 1e6), torch.tensor([[0.0, 50.0, 50.0]])))
    assert far.data.item() == pytest.approx(10.0, rel=1e-3)  # no test point explodes
    assert far.distributional.item() == pytest.approx(2.0, rel=1e-3)
    middle = learned(Moments(torch.tensor([[1.0, -3.0, -2.0]]), torch.tensor([[0.3, 0.2, 0.4]])))
    # bent by the bound: exp(bound - softplus(bound - x)) = 1 / (exp(-x) + exp(-bound))
    assert middle.data.item() == pytest.approx(1 / (math.exp(1.8) + 0.1) + 1e-4, rel=1e-4)
    assert middle.distributional.item() == pytest.approx(1 / (math.exp(2.9) + 0.5), rel=1e-4)
    assert middle.model.item() == pytest.approx(0.3)


# -- gradients -------------------------------------------------------------------------------------
@pytest.mark.parametrize("n_classes", [2, 5])
@pytest.mark.parametrize("s", [0.3, 1.0, 3.0])
def test_gradients_of_the_data_part_are_finite_differences(n_classes: int, s: float) -> None:
    m, v = logits(n_classes, 4, scale=1.5, s=s, spread=2, seed=6)
    m, v = m.double().requires_grad_(), v.double().requires_grad_()
    grads = torch.autograd.grad(expected_data_entropy(m, v).sum(), [m, v])
    h = 1e-4
    for leaf, grad in zip((m, v), grads, strict=True):
        for c in range(n_classes):
            step = torch.zeros_like(leaf)
            step[:, c] = h * (leaf[:, c].detach() if leaf is v else 1.0)
            with torch.no_grad():
                up = expected_data_entropy(*(x + step if x is leaf else x for x in (m, v)))
                down = expected_data_entropy(*(x - step if x is leaf else x for x in (m, v)))
            assert torch.allclose((up - down) / (2 * step[:, c]), grad[:, c], atol=2e-3 * max(1.0, 1 / s)), leaf is v


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_however_unsure_the_outputs(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    for s in (0.0, 1.0, 15.0, 30.0, 100.0):
        m = (3 * torch.randn(12, 10, generator=g, dtype=dtype)).requires_grad_()
        v = (s**2 * torch.rand(12, 10, generator=g, dtype=dtype)).requires_grad_()
        p = Dirichlet(10)(Moments(m, v))
        for part in PARTS:
            for grad in torch.autograd.grad(getattr(p, part).sum(), [m, v], retain_graph=True):
                assert grad.isfinite().all(), (part, s)


def test_wright_omega_against_scipy() -> None:
    c = torch.linspace(-80, 300, 5001, dtype=torch.float64).requires_grad_()
    omega = wright_omega(c)
    truth = torch.tensor(scipy.special.wrightomega(c.detach().numpy()).real)
    assert ((omega - truth) / truth).abs().max() < 5e-4
    (grad,) = torch.autograd.grad(omega.sum(), c)
    assert torch.allclose(grad, truth / (1 + truth), rtol=5e-3)
