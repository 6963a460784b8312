"""The kernels as operators of compiled graphs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd

from bedl import Moments, _kernels
from bedl.heads.integrals.kl import log_marginal, log_marginal_and_expected_kl
from bedl.heads.integrals.nodes import LOG_EXPONENTIAL, log_mean_softmax, quadrature_nodes
from bedl.moments import numerics
from tests.closeness import assert_same_up_to_rounding
from tests.native.test_native import leak

pytestmark = pytest.mark.skipif(not _kernels.is_built(), reason="there are no kernels")


def operators() -> dict[str, tuple]:
    m, v = torch.randn(3, 4, 5, 6), torch.rand(3, 4, 5, 6)
    last = m.contiguous(memory_format=torch.channels_last)
    logits, variances = torch.randn(6, 4), torch.rand(6, 4)
    race = logits, variances, quadrature_nodes(logits, variances, 8)[0], [x for row in LOG_EXPONENTIAL[6] for x in row]
    fit = *numerics.HALF_LINE, 10.0
    return {
        "relu_moments": (m, v, *fit),
        "relu_moments, mixed": (last, v, *fit),
        "relu_moments, transposed": (m.transpose(0, 3), v.transpose(0, 3), *fit),
        "relu_moments_backward": (m, v, m, v, v, *fit),
        "log_survival_and_density": race,
        "log_survival_density_and_slopes": race,
    }


@pytest.mark.parametrize("name", operators())
def test_operators_are_what_compilers_take_them_for(name):
    """PyTorch's own checks: shapes and layouts as foretold, nothing changed in place, fit for tracing."""
    torch.library.opcheck(getattr(torch.ops.bedl, name.split(",")[0]).default, operators()[name])


def calls_of_compiled(function, *inputs) -> tuple[set[str], object]:
    """Operators of bedl's own in the graph of a function, and its result when compiled."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    result = torch.compile(function, backend=aot_autograd(fw_compiler=backend), fullgraph=True)(*inputs)
    return {str(n.target) for g in graphs for n in g.graph.nodes if str(n.target).startswith("bedl.")}, result


def rectify(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    y = F.relu(Moments(m, v))
    return y.loc, y.variance


def test_compiled_graphs_call_kernels():
    m, v = torch.randn(40, 500), torch.rand(40, 500)
    calls, found = calls_of_compiled(rectify, m, v)
    assert calls == {"bedl.relu_moments.default"}
    for x, y in zip(found, rectify(m, v), strict=True):
        assert torch.equal(x, y)
    calls, found = calls_of_compiled(torch.vmap(rectify, (1, None)), m.expand(3, 40, 500).movedim(0, 1), v)
    assert calls == {"bedl.relu_moments.default"}
    assert_same_up_to_rounding(found[0], rectify(m, v)[0].expand(3, 40, 500))
    f = torch.randn(5, 4), torch.rand(5, 4)
    calls, found = calls_of_compiled(log_mean_softmax, *f)
    assert calls == {"bedl.log_survival_and_density.default"}
    torch.testing.assert_close(found, log_mean_softmax(*f))


def test_compiled_slopes_below_zero_call_kernels():
    m, v, slope = torch.randn(3, 5, requires_grad=True), torch.rand(3, 5), torch.tensor([0.2])
    calls, found = calls_of_compiled(leak, m, v, slope)
    assert calls == {"bedl.relu_moments.default"}
    for x, y in zip(found, leak(m, v, slope), strict=True):
        assert_same_up_to_rounding(x, y)


def test_where_compiled_graphs_do_without():
    m, v = torch.randn(40, 500), torch.rand(40, 500)
    assert not calls_of_compiled(rectify, m[:1], v[:1])[0]  # done before a call has begun
    assert not calls_of_compiled(rectify, m.double(), v.double())[0]
    with torch.no_grad():  # made one with what follows, as nothing has to be kept
        assert not calls_of_compiled(rectify, m, v)[0]
    for strict in (True, False):
        program = torch.export.export(Head(), (m[:, :10], v[:, :10]), strict=strict)
        assert not [node for node in program.graph.nodes if str(node.target).startswith("bedl.")]


class Head(torch.nn.Module):
    def forward(self, m: Tensor, v: Tensor) -> Tensor:
        return log_mean_softmax(*rectify(m, v))


def test_gradients_of_compiled_graphs():
    m, v = torch.randn(40, 500, requires_grad=True), torch.rand(40, 500, requires_grad=True)
    y = torch.randint(500, (40,))

    def loss(m: Tensor, v: Tensor) -> Tensor:
        return log_marginal(*rectify(m, v), y).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    for found, truth in zip(
        torch.autograd.grad(compiled(m, v), [m, v]), torch.autograd.grad(loss(m, v), [m, v]), strict=True
    ):
        torch.testing.assert_close(found, truth)


def test_gradients_of_compiled_and_mapped_graphs():
    """There compilers look inside autograd functions, and differentiate the operators themselves."""
    m, v = torch.randn(3, 40, 500, requires_grad=True), torch.rand(3, 40, 500, requires_grad=True)
    y = torch.randint(10, (40,))

    def loss(m: Tensor, v: Tensor) -> Tensor:
        mean, variance = rectify(m, v)
        log_p, kl = log_marginal_and_expected_kl(mean[:, :10], variance[:, :10], y)
        return (kl - log_p).sum() + (mean * variance).sum()

    mapped = torch.vmap(loss)
    torch._dynamo.reset()
    compiled = torch.compile(mapped, backend="aot_eager")
    found = torch.autograd.grad(compiled(m, v).sum(), [m, v])
    truth = torch.autograd.grad(mapped(m, v).sum(), [m, v])
    for x, y in zip(found, truth, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)
