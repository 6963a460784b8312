"""The Dirichlet head: closed forms against the base class's sampling, what it refuses, where it runs."""

from __future__ import annotations

import math

import pytest
import torch

from bedl.heads import Dirichlet, Sampled
from bedl.heads.integrals.kl import EVIDENCE_FLOOR
from bedl.heads.predictive import CategoricalPredictive
from bedl.moments import Moments
from tests.closeness import assert_same_up_to_rounding
from tests.heads.oracles import dirichlet_kl, exact, logits


def outputs(n_classes=4, n=5, s=1.5, dtype=torch.float32):
    m, v = logits(n_classes, n, 1.5, s, 4)
    return Moments(m.to(dtype), v.to(dtype))


def within_noise(got, draws, slack):
    """Of a mean over draws along dimension 0: 4.5 standard errors plus the closed form's own error."""
    return ((got - draws.mean(0)).abs() < 4.5 * draws.std(0) / len(draws) ** 0.5 + slack).all()


def test_closed_forms_agree_with_sampling():
    f, y = outputs(dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    head = Dirichlet(4)
    by_draws = Sampled(head, 50_000)
    torch.manual_seed(0)
    draws = by_draws.draw(f)
    likelihood = head.given(draws).log_prob(y.expand(len(draws), -1)).exp()
    assert within_noise(head.log_marginal(f, y).exp(), likelihood, 1e-4)
    assert within_noise(head.kl(f), head.divergence(draws, None, "all"), 5e-3)
    misleading = head.divergence(draws, y.expand(len(draws), -1), "misleading")
    assert within_noise(head.kl(f, y, "misleading"), misleading, 5e-3)
    closed, sampled = head(f), by_draws(f)
    for part in ("data", "distributional", "model", "spread"):
        assert torch.allclose(getattr(closed, part), getattr(sampled, part), atol=1e-2), part
    assert torch.allclose(closed.log_probabilities, sampled.log_probabilities, atol=4e-2)


def test_base_class_is_log_mean_exp_of_the_draws():
    f, y = outputs(), torch.tensor([0, 1, 2, 3, 0])
    head = Sampled(Dirichlet(4), 7)
    torch.manual_seed(3)
    got = head.log_marginal(f, y)
    torch.manual_seed(3)
    draws = torch.softmax(head.draw(f), -1)
    assert torch.allclose(got, draws.mean(0).gather(-1, y[:, None])[:, 0].log(), atol=1e-6)


def test_only_the_sampled_form_draws():
    f, y = outputs(), torch.tensor([0, 1, 2, 3, 0])
    head = Sampled(Dirichlet(4), 5)
    assert not torch.equal(head.log_marginal(f, y), head.log_marginal(f, y))
    assert not torch.equal(head.kl(f), head.kl(f))
    assert not torch.equal(head(f).epistemic, head(f).epistemic)
    state = torch.get_rng_state()
    Dirichlet(4)(f)
    Dirichlet(4).log_marginal_and_kl(f, y)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("head", [Dirichlet(4), Sampled(Dirichlet(4))])
def test_gradients_at_zero_variance(head):
    m, v = torch.randn(3, 4, requires_grad=True), torch.zeros(3, 4, requires_grad=True)
    log_p, kl = head.log_marginal_and_kl(Moments(m, v), torch.tensor([0, 1, 2]))
    for grad in torch.autograd.grad((log_p + kl).sum(), [m, v]):
        assert grad.isfinite().all()


def test_zero_variance_gradient_by_variance_is_half_the_curvature():
    """d log E[softmax]/dv at v = 0 is (p''/p)/2 of the plain softmax."""
    m, v = torch.randn(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(Dirichlet(4).log_marginal(Moments(m, v), torch.tensor([1])).sum(), v)
    hessian = torch.autograd.functional.hessian(lambda m: torch.softmax(m, -1)[1], m[0])
    assert torch.allclose(got[0], 0.5 * hessian.diagonal() / torch.softmax(m[0], -1)[1], atol=1e-10)


def test_predictive_is_consistent():
    f, y = outputs(), torch.tensor([0, 1, 2, 3, 0])
    head = Dirichlet(4)
    p = head(f)
    assert isinstance(p, CategoricalPredictive)
    assert_same_up_to_rounding(p.log_prob(y), head.log_marginal(f, y))
    assert_same_up_to_rounding(p.log_probabilities, head.log_probabilities(f))
    truth = exact(f.loc, f.variance)
    assert torch.allclose(p.paper_split().aleatoric.double(), truth.p - truth.second, atol=3e-4)
    assert torch.allclose(p.vacuity, 4 / f.loc.exp().sum(-1))
    both = head.log_marginal_and_kl(f, y)
    assert torch.allclose(both[0], head.log_marginal(f, y), atol=5e-4)
    assert_same_up_to_rounding(both[1], head.kl(f))


def test_misleading_evidence_ignores_the_true_class():
    f, y = outputs(), torch.tensor([0, 1, 2, 3, 0])
    head = Dirichlet(4)
    higher = f.loc.scatter(-1, y[:, None], 9.0)
    assert torch.equal(head.kl(f, y, "misleading"), head.kl(Moments(higher, f.variance), y, "misleading"))
    zero = torch.zeros_like(f.variance)
    alpha = f.loc.scatter(-1, y[:, None], 0.0).double().exp() + EVIDENCE_FLOOR
    assert torch.allclose(head.kl(Moments(f.loc, zero), y, "misleading").double(), dirichlet_kl(alpha), atol=3e-3)
    m = f.loc.clone().requires_grad_()
    (grad,) = torch.autograd.grad(head.kl(Moments(m, f.variance), y, "misleading").sum(), m)
    assert (grad.gather(-1, y[:, None]) == 0).all()
    assert (grad.abs().sum(-1) > 0).all()


def test_facts():
    head = Dirichlet(7)
    assert head.n_outputs == 7
    assert head.complexity == 1.0
    assert list(head.parameters()) == []
    assert "n_classes=7" in repr(head)
    uniform = head(torch.zeros(1, 7))  # a plain tensor is a certain output
    assert torch.allclose(uniform.entropy, torch.tensor([math.log(7)]))
    assert uniform.model.abs().max() < 1e-6
    assert uniform.spread.abs().max() == 0


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda head, f: head(Moments(torch.zeros(2, 5), 1.0)), ValueError, ["needs 4", "got 5"]),
        (lambda head, f: head.log_marginal(f, torch.zeros(5)), TypeError, ["float32", "y.long()"]),
        (
            lambda head, f: head.log_marginal(f, torch.tensor([0, 1, 2, 3, 4])),
            ValueError,
            ["between 0 and 3", "0 to 4"],
        ),
        (lambda head, f: head.log_marginal(f, torch.tensor([0, 1, 2, 3, -1])), ValueError, ["-1 to 3"]),
        (lambda head, f: head.log_marginal(f, torch.zeros(5, 1).long()), ValueError, ["(5, 1)", "(5,)"]),
        (lambda head, f: head.kl(f, evidence="misleading"), ValueError, ["needs the targets"]),
        (lambda head, f: head.kl(f, evidence="some"), ValueError, ["'some'", "misleading"]),
        (lambda head, f: Dirichlet(1), ValueError, ["at least 2"]),
        (lambda head, f: Dirichlet(3, components=5), ValueError, ["4, 6 or 8"]),
        (lambda head, f: Sampled(Dirichlet(3), 0), ValueError, ["at least 1"]),
    ],
)
def test_refusals(call, error, words):
    with pytest.raises(error) as caught:
        call(Dirichlet(4), outputs())
    assert all(word in str(caught.value) for word in words)


def test_half_precision_outputs_are_widened():
    f = outputs()
    half = Moments(f.loc.bfloat16(), f.variance)
    assert Dirichlet(4)(half).log_probabilities.dtype == torch.float32


def test_thousand_classes_stay_small():
    head = Dirichlet(1000)
    m, v = torch.randn(100, 1000, requires_grad=True), torch.rand(100, 1000, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        loss = sum(term.sum() for term in head.log_marginal_and_kl(Moments(m, v), torch.arange(100)))
    loss.backward()
    assert 4 * sum(kept) < 60e6  # bytes
    assert m.grad.isfinite().all()
    assert head(Moments(m.detach()[:5], v.detach()[:5])).epistemic.isfinite().all()


def loss(head, m, v, y):
    log_p, kl = head.log_marginal_and_kl(Moments(m, v), y)
    return -log_p.mean() + kl.mean().sqrt()


def test_under_vmap_and_grad():
    head = Dirichlet(4)
    m, v, y = torch.randn(3, 6, 4), torch.rand(3, 6, 4), torch.randint(0, 4, (3, 6))
    grads = torch.func.vmap(torch.func.grad(lambda m, v, y: loss(head, m, v, y), (0, 1)))(m, v, y)
    a, b = m[1].clone().requires_grad_(), v[1].clone().requires_grad_()
    want = torch.autograd.grad(loss(head, a, b, y[1]), [a, b])
    assert torch.allclose(grads[0][1], want[0], atol=1e-6)
    assert torch.allclose(grads[1][1], want[1], atol=1e-6)
    p = torch.func.vmap(lambda m, v: head(Moments(m, v)))(m, v)
    assert torch.allclose(p.epistemic[2], head(Moments(m[2], v[2])).epistemic, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo, of autograd.Function
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_without_a_break(backend):
    head = Dirichlet(5)
    y = torch.arange(5)
    results = []
    for function in (loss, torch.compile(loss, fullgraph=True, backend=backend)):
        m, v = (
            (3 * torch.randn(5, 5, generator=torch.Generator().manual_seed(1))).requires_grad_(),
            torch.full((5, 5), 2.0),
        )
        v.requires_grad_()
        value = function(head, m, v, y)
        results.append((value, *torch.autograd.grad(value, [m, v])))
    for eager, compiled in zip(*results, strict=True):
        assert torch.allclose(eager, compiled, atol=2e-5)
    if backend == "aot_eager":
        return
    f = Moments(torch.randn(5, 5), torch.rand(5, 5))
    p = torch.compile(head, fullgraph=True, backend=backend)(f)
    assert isinstance(p, CategoricalPredictive)
    assert torch.allclose(p.expected_entropy, head(f).expected_entropy, atol=1e-4)


@pytest.mark.slow  # tests/deploy export it whole
def test_exports_with_a_dynamic_batch():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = Dirichlet(4)

        def forward(self, m, v):
            return self.head(Moments(m, v))

    batch = torch.export.Dim("batch", min=2, max=1000)
    f = outputs()
    program = torch.export.export(Net(), (f.loc, f.variance), dynamic_shapes=({0: batch}, {0: batch}))
    p = program.module()(f.loc[:3], f.variance[:3])
    assert isinstance(p, CategoricalPredictive)
    assert torch.allclose(p.log_probabilities, Dirichlet(4)(f)[:3].log_probabilities, atol=1e-6)


def test_large_batches_go_in_chunks():
    """Chunks change nothing: 80 points of 1000 classes are three of them."""
    head, g = Dirichlet(1000), torch.Generator().manual_seed(0)
    m, v = torch.randn(80, 1000, generator=g), torch.rand(80, 1000, generator=g)
    seen = []
    rule = lambda m, v, nodes, components: (seen.append(len(m)) or m + v, m.sum(-1))
    first, second = head._in_chunks(rule, m, v)
    assert len(seen) == 3
    assert torch.equal(first, m + v)
    assert_same_up_to_rounding(second, m.sum(-1))
