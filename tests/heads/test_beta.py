"""Labels, yes or no, against quadrature of their definition, SciPy's Beta and sampling."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import special, stats

from bedl import Beta, Dirichlet
from bedl.heads import BetaPredictive, Sampled
from bedl.heads.predictive import mixture
from bedl.moments import Moments

# (mean of log alpha, of log beta), (their stds)
POINTS = [
    ((0.0, 0.0), (0.0, 0.0)), ((2.0, -1.0), (0.0, 0.0)), ((0.5, 0.2), (0.3, 0.1)), ((-2.0, 1.0), (1.0, 0.5)),
    ((3.0, 2.5), (2.0, 2.0)), ((4.0, -3.0), (3.0, 0.0)), ((-3.0, -3.0), (0.5, 4.0)), ((1.0, 1.5), (6.0, 3.0)),
]  # fmt: skip


def moments(points=POINTS, dtype=torch.float32) -> Moments:
    """All points as labels of one row. shape: (1, 2 L)"""
    m = torch.tensor([p[0] for p in points], dtype=dtype).T.reshape(1, -1)
    return Moments(m, torch.tensor([p[1] for p in points], dtype=dtype).T.reshape(1, -1).square())


def truth(mean, std) -> SimpleNamespace:
    """Of one label, by the trapezoidal rule on a grid of both outputs, in float64."""
    z = np.linspace(-9, 9, 721)
    w = np.exp(-z * z / 2)
    w = np.outer(w, w) / w.sum() ** 2
    f, g = (m + s * z for m, s in zip(mean, std, strict=True))
    a, b = np.exp(f)[:, None], np.exp(g)[None, :]
    p = special.expit(f[:, None] - g[None, :])
    given = special.digamma(a + b + 1) - p * special.digamma(a + 1) - (1 - p) * special.digamma(b + 1)
    entropy = lambda p: special.entr(p) + special.entr(1 - p)
    average = lambda values: float((w * values).sum())
    alpha, beta = a + 1e-3, b + 1e-3  # the floor of the evidence
    kl = (alpha - 1) * special.digamma(alpha) + (beta - 1) * special.digamma(beta) - special.betaln(alpha, beta)
    kl = kl - (alpha + beta - 2) * special.digamma(alpha + beta)
    mean_p = average(p)
    known = average(entropy(p))
    spread = average(p * p) - mean_p**2
    parts = {"data": average(given), "distributional": known - average(given), "model": entropy(mean_p) - known}
    return SimpleNamespace(p=mean_p, kl=average(kl), spread=spread, **parts)


TRUTHS = [truth(*point) for point in POINTS]


def test_probabilities_and_parts_agree_with_quadrature():
    found = Beta(len(POINTS))(moments())
    for name, tolerance in (("probabilities", 3e-4), ("data", 1.5e-3), ("distributional", 2e-3), ("model", 1e-3)):
        expected = [t.p if name == "probabilities" else vars(t)[name] for t in TRUTHS]
        np.testing.assert_allclose(getattr(found, name)[0], expected, atol=tolerance, err_msg=name)
    torch.testing.assert_close(found.aleatoric + found.epistemic, found.total, atol=1e-6, rtol=0)
    torch.testing.assert_close(found.variance, found.probabilities * (1 - found.probabilities))
    paper = found.paper_split()
    np.testing.assert_allclose(paper.epistemic[0], [t.spread for t in TRUTHS], atol=3e-4)
    torch.testing.assert_close(paper.aleatoric + paper.epistemic, found.variance)


def test_the_parts_are_those_of_scipys_beta():
    """Known outputs: lambda ~ Beta(alpha, beta), and the noise is the mean entropy of Bernoulli(lambda)."""
    f = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    alpha, beta = f.exp()[0].tolist()
    noise = stats.beta(alpha, beta).expect(lambda p: special.entr(p) + special.entr(1 - p))
    given, closed = Beta(1).given(f), Beta(1)(f)
    p = alpha / (alpha + beta)
    for found, tolerance in ((given, 1e-6), (closed, 3e-4)):
        assert found.data.item() == pytest.approx(noise, abs=tolerance)
        assert found.total.item() == pytest.approx(special.entr(p) + special.entr(1 - p), abs=1e-6)
        assert found.model.item() == pytest.approx(0, abs=1e-6)


def test_the_likelihood_is_that_of_quadrature():
    head, f = Beta(len(POINTS)), moments()
    yes = torch.ones(1, len(POINTS), dtype=torch.long)
    for y, expected in ((yes, [t.p for t in TRUTHS]), (1 - yes, [1 - t.p for t in TRUTHS])):
        assert head.log_marginal(f, y).item() == pytest.approx(np.log(expected).sum(), rel=2e-3)
        assert head(f).log_prob(y).item() == pytest.approx(head.log_marginal(f, y).item(), rel=1e-4)
        for i in range(len(POINTS)):
            alone = torch.full_like(y, -1)
            alone[0, i] = y[0, i]
            assert head.log_marginal(f, alone).item() == pytest.approx(math.log(expected[i]), abs=1e-3)
    assert head.log_marginal(f, torch.full_like(yes, -1)).item() == 0


def test_the_divergence_is_that_of_quadrature():
    head, f = Beta(len(POINTS)), moments()
    assert head.kl(f).item() == pytest.approx(sum(t.kl for t in TRUTHS), rel=2e-3)
    known = Beta(1).divergence(torch.tensor([[0.7, -0.3]], dtype=torch.float64), None, "all").item()
    p = stats.beta(math.exp(0.7) + 1e-3, math.exp(-0.3) + 1e-3)
    assert known == pytest.approx(-float(p.entropy()), abs=1e-5)  # to the uniform law


def test_it_is_a_dirichlet_of_two_classes():
    f = Moments(torch.tensor([[0.4, -1.0], [2.0, 1.0]]), torch.tensor([[0.5, 2.0], [0.1, 0.3]]))
    label = torch.tensor([1, 0])
    two, one = Dirichlet(2), Beta(1)
    for evidence in ("all", "misleading"):
        expected = two.log_marginal_and_kl(f, 1 - label, evidence)
        found = one.log_marginal_and_kl(f, label[:, None], evidence)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(one.kl(f, label, evidence), expected[1])
    torch.testing.assert_close(one(f).probabilities[:, 0], two(f).probabilities[:, 0])
    torch.testing.assert_close(one(f).data[:, 0], two(f).data, atol=1.5e-3, rtol=0)
    torch.testing.assert_close(one.log_ignorance(f), two.log_ignorance(f))


def test_sampling_agrees():
    torch.manual_seed(0)
    points, n = POINTS[2:5], 40_000
    head, f, y = Beta(3), moments(points), torch.tensor([[1, 0, -1]])
    closed, drawn = head(f), Sampled(head, n)(f)
    for name in ("probabilities", "data", "distributional", "model", "total"):
        torch.testing.assert_close(getattr(drawn, name), getattr(closed, name), atol=4 * 0.7 / math.sqrt(n), rtol=0)
    assert Sampled(head, n).log_marginal(f, y).item() == pytest.approx(head.log_marginal(f, y).item(), abs=0.03)
    labels = closed.sample(n).double()
    torch.testing.assert_close(labels.mean(0), closed.probabilities.double(), atol=4 * 0.5 / math.sqrt(n), rtol=0)


def test_members_that_disagree_add_to_what_the_model_does_not_know():
    one, two = Beta(1).given(torch.tensor([[3.0, 0.0]])), Beta(1).given(torch.tensor([[0.0, 3.0]]))
    both = mixture([one, two])
    assert isinstance(both, BetaPredictive)
    assert both.probabilities.item() == pytest.approx(0.5)
    assert both.model.item() == pytest.approx(math.log(2) - one.total.item(), abs=1e-6)
    torch.testing.assert_close(both.data, one.data)
    assert both.paper_split().epistemic.item() == pytest.approx((one.probabilities.item() - 0.5) ** 2)


@pytest.mark.parametrize("std", [0.0, 1e-6, 1.0, 50.0])
@pytest.mark.parametrize("mean", [-60.0, 0.0, 60.0])
def test_extremes_are_finite_with_their_gradients(mean, std):
    loc = torch.tensor([[mean, 0.0, 0.0, mean]], requires_grad=True)
    variance = torch.full((1, 4), std**2, requires_grad=True)
    head, y = Beta(2), torch.tensor([[1, 0]])
    log_p, kl = head.log_marginal_and_kl(Moments(loc, variance), y, "misleading")
    (log_p + kl).sum().backward()
    prediction = head(Moments(loc, variance).detach())
    for value in (log_p, kl, loc.grad, variance.grad, *prediction.outputs().values()):
        assert value.isfinite().all()


@pytest.mark.parametrize("point", POINTS[2:5])
def test_gradients_are_those_of_the_integrals(point):
    f = moments([point], torch.float64)
    m, v = f.loc.clone().requires_grad_(), f.variance.clone().requires_grad_()
    log_p, kl = Beta(1).log_marginal_and_kl(Moments(m, v), torch.tensor([[1]]))
    by_m, by_v = (np.stack([g[0].numpy() for g in torch.autograd.grad(x.sum(), (m, v), retain_graph=True)])
                  for x in (log_p, kl))  # fmt: skip
    found = np.stack([by_m, by_v])  # of log p and the divergence; by mean and variance; of yes and no
    for which in (0, 1):
        for i in (0, 1):
            step = np.zeros((2, 2))
            step[which, i] = 1e-3
            ends = []
            for sign in (1, -1):
                mean, variance = np.array([point[0], np.square(point[1])]) + sign * step
                t = truth(mean, np.sqrt(variance))
                ends.append(np.array([math.log(t.p), t.kl]))
            np.testing.assert_allclose(found[:, which, i], (ends[0] - ends[1]) / 2e-3, atol=2e-3)


def test_many_labels_are_computed_in_parts(monkeypatch):
    f = Moments(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), 0.5)
    whole = Beta(4)(f)
    monkeypatch.setattr("bedl.heads.beta.LABELS_PER_CHUNK", 7)
    parts = Beta(4)(f)
    for name in parts.output_names:
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), atol=1e-6, rtol=1e-5)


def test_wrong_labels_name_the_remedy():
    head = Beta(2)
    with pytest.raises(ValueError, match="0 or 1, or -1"):
        head.log_marginal(torch.zeros(1, 4), torch.tensor([[2, 0]]))
    with pytest.raises(ValueError, match=r"do not fit .* 2 labels"):
        head.log_marginal(torch.zeros(1, 4), torch.tensor([1]))
    with pytest.raises(ValueError, match="at least 1"):
        Beta(0)
    with pytest.raises(ValueError, match="do not fit predictions"):
        head(torch.zeros(1, 4)).log_prob(torch.zeros(3))
    frame = head(torch.zeros(3, 4)).to_frame()
    assert list(frame)[:4] == ["label_0", "label_1", "probabilities_0", "probabilities_1"]
