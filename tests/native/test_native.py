"""The kernels in C against float64, quadrature and autograd; and where PyTorch has to do their work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import bedl
from bedl import Moments
from bedl import _kernels as native
from bedl._kernels import inference
from bedl.heads.integrals.nodes import log_mean_softmax, log_survival_and_density, quadrature_nodes
from bedl.moments import numerics
from tests.closeness import assert_same_up_to_rounding
from tests.oracles import gaussian_expectation

F64 = torch.float64
pytestmark = pytest.mark.skipif(
    not native.is_built() and (not shutil.which("cc") or os.environ.get("BEDL_NATIVE") == "0"),
    reason="there is no C compiler, or the kernels are switched off",
)


@pytest.fixture(params=["kernel", "PyTorch"])
def anyhow(request, monkeypatch):
    """With the kernels, and without them: what is said of results has to hold for both."""
    if request.param == "PyTorch":
        monkeypatch.setattr(inference, "_library", None)


def spread(n: int = 4001) -> tuple[Tensor, Tensor]:
    """Means from -12 to 12 standard deviations, variances over many orders of magnitude."""
    r = torch.linspace(-12, 12, n, dtype=F64)
    v = torch.logspace(-8, 6, n, dtype=F64)[torch.randperm(n, generator=torch.Generator().manual_seed(0))]
    return r * v.sqrt(), v


def test_a_compiler_builds_them():
    assert native.is_built()


def test_rectified_by_quadrature(anyhow):
    for r in (-8.0, -3.0, -0.5, 0.0, 0.1, 2.0, 7.0):
        for std in (1e-3, 1.0, 30.0):
            mean, variance = gaussian_expectation(F.relu, r * std, std, (0,))
            y = F.relu(Moments(torch.tensor([r * std]), torch.tensor([std**2])))
            assert y.loc.item() == pytest.approx(mean, rel=2e-6, abs=1e-6 * std)
            assert y.variance.item() == pytest.approx(variance, rel=2e-5, abs=2e-6 * std**2)


def test_rectified_keeps_its_digits_in_the_tail():
    """What the form in PyTorch, chosen for few passes over memory, does not do."""
    m, v = spread()
    truth = F.relu(Moments(m, v))
    y = F.relu(Moments(m.float(), v.float()))
    near = m > -6 * v.sqrt()  # farther out, rounding the mean itself moves the answer
    assert ((y.loc - truth.loc).abs() / truth.loc)[near].max() < 1e-5
    assert ((y.variance - truth.variance).abs() / truth.variance)[near].max() < 2e-5


@pytest.mark.parametrize("n", [0, 1, 7, 4096, 4097, 100_003])
def test_any_length_and_any_number_of_threads(n):
    m, v = torch.randn(n), torch.rand(n)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(F.relu(Moments(m, v)))
    finally:
        torch.set_num_threads(before)
    assert_same_up_to_rounding(results[0], results[1])  # threads end at other entries, and ends are not vectorised
    truth = F.relu(Moments(m.double(), v.double()))
    torch.testing.assert_close(results[0].loc, truth.loc.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(results[0].variance, truth.variance.float(), rtol=1e-5, atol=1e-6)


def layouts() -> dict[str, tuple[Tensor, Tensor]]:
    m, v = torch.randn(3, 4, 5, 6), torch.rand(3, 4, 5, 6)
    last = torch.channels_last
    return {
        "plain": (m, v),
        "channels last": (m.contiguous(memory_format=last), v.contiguous(memory_format=last)),
        "mixed": (m, v.contiguous(memory_format=last)),
        "transposed": (m.transpose(0, 3), v.transpose(0, 3)),
        "with gaps": (m[:, ::2, 1:], v[:, ::2, 1:]),
        "expanded": (m[:1, :1].expand(3, 4, 5, 6), v),
        "no dimension": (m[0, 0, 0, 0], v[0, 0, 0, 0]),
    }


@pytest.mark.parametrize("name", layouts())
def test_any_layout(name):
    m, v = layouts()[name]
    truth = F.relu(Moments(m.double(), v.double()))
    y = F.relu(Moments(m, v))
    assert y.shape == m.shape
    torch.testing.assert_close(y.loc, truth.loc.float(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(y.variance, truth.variance.float(), rtol=1e-5, atol=1e-6)


def test_edges(anyhow):
    nan, inf = float("nan"), float("inf")
    m = torch.tensor([nan, 1.0, 0.0, 2.0, -2.0, inf, -inf, 0.0])
    v = torch.tensor([1.0, nan, 0.0, 0.0, 0.0, 1.0, 1.0, -1e-12])
    y = F.relu(Moments(m, v))
    assert y.loc.isnan().tolist() == [True, True] + [False] * 6
    assert y.variance[:2].isnan().all()
    assert y.loc[2:].tolist() == pytest.approx([0, 2, 0, inf, 0, 0], abs=1e-20)
    assert y.variance[2:5].tolist() == [0, 0, 0]
    assert (y.variance[5:].abs() < 1.1).all()


def test_gradients_of_rectified(anyhow):
    m, v = spread(301)
    grads = {}
    for dtype in (F64, torch.float32):
        a, b = (x.detach().to(dtype, copy=True).requires_grad_() for x in (m, v))
        mean, variance = (x := F.relu(Moments(a, b))).loc, x.variance
        weights = torch.linspace(-1, 1, 301, dtype=dtype)
        (mean * weights).sum().backward(retain_graph=True)
        by_mean = a.grad.clone(), b.grad.clone()
        a.grad = b.grad = None
        (variance / v.to(dtype) * weights).sum().backward()
        grads[dtype] = *by_mean, a.grad, b.grad
    # in the units of the result: σ for a mean, v for a variance
    units = (torch.ones_like(v), v.rsqrt(), v.rsqrt(), 1 / v)
    for truth, found, unit in zip(grads[F64], grads[torch.float32], units, strict=True):
        assert ((found - truth).abs() / unit).max() < 3e-6


def test_gradients_at_known_inputs(anyhow):
    m, v = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True), torch.zeros(3, requires_grad=True)
    y = F.relu(Moments(m, v))
    (y.loc.sum() + y.variance.sum()).backward()
    assert m.grad[[0, 2]].tolist() == pytest.approx([0, 1], abs=1e-20)
    assert torch.isfinite(v.grad).all()


def test_gradients_of_huge_means_are_finite(anyhow):
    m, v = torch.tensor([3e38], requires_grad=True), torch.ones(1, requires_grad=True)
    y = F.relu(Moments(m, v))
    (by_m,) = torch.autograd.grad(y.loc.sum() + y.variance.sum(), [m])
    assert by_m.item() == 1


@pytest.mark.parametrize("slopes", [True, False])
@pytest.mark.parametrize("components", [4, 6, 8])
@pytest.mark.parametrize("times", [8, 16, 33])
def test_log_survival_in_single_precision_are_those_in_double(components, times, slopes):
    random = torch.Generator().manual_seed(times)
    m = 5 * torch.randn(50, 7, generator=random, dtype=F64)
    v = torch.exp(5 * torch.rand(50, 7, generator=random, dtype=F64) - 3) ** 2
    v[:5] = 0
    m, v = m.float(), v.float()
    nodes, _ = quadrature_nodes(m, v, times)
    found = log_survival_and_density(m, v, nodes, components, slopes)
    truth = log_survival_and_density(m.double(), v.double(), nodes.double(), components, slopes)
    assert len(found) == len(truth) == (4 if slopes else 2)
    # where a clock has all but surely rung, its survival is a difference of numbers near 1, in either precision
    alive = truth[0] > np.log(1e-4)
    for x, y in zip(found, truth, strict=True):
        assert x.shape == y.shape == (50, 7, times)
        assert ((x - y).abs() / (1 + y.abs()))[alive].max() < 3e-3
        assert ((x - y).abs() / (1 + y.abs()))[alive].median() < 1e-6


def test_no_kernel_reads_beyond_a_tensor():
    m, v = torch.randn(6, 4), torch.rand(6, 4)
    nodes, _ = quadrature_nodes(m, v, 8)
    repeated = log_survival_and_density(m, v[:1], nodes, 6)
    for x, y in zip(repeated, log_survival_and_density(m, v[:1].repeat(6, 1), nodes, 6), strict=True):
        assert_same_up_to_rounding(x, y)
    with pytest.raises(RuntimeError):
        log_survival_and_density(m, v[:3], nodes, 6)
    with pytest.raises(RuntimeError):
        native.relu_moments(m, v[:3], *numerics.HALF_LINE, 10.0)


def test_probabilities_are_those_of_pytorch(monkeypatch):
    head, g = bedl.Dirichlet(10), torch.Generator().manual_seed(0)
    f = Moments(3 * torch.randn(500, 10, generator=g), torch.exp(3 * torch.randn(500, 10, generator=g)))
    found = head(f)
    monkeypatch.setattr(inference, "_library", None)
    truth = head(f)
    for name, near in {
        "probabilities": 2e-6,
        "spread": 2e-6,
        "data": 5e-5,
        "distributional": 5e-5,
        "model": 5e-5,
    }.items():
        assert (getattr(found, name) - getattr(truth, name)).abs().max() < near, name
    assert head(Moments(torch.full((1, 10), float("nan")), torch.ones(1, 10))).probabilities.isnan().all()


@pytest.mark.parametrize("classes", [2, 10, 300])
@pytest.mark.parametrize("std", [1e-3, 0.3, 8.0])
def test_chances_in_single_precision_are_those_in_double(classes, std):
    g = torch.Generator().manual_seed(0)
    m = 8 * torch.randn(50, classes, generator=g)
    v = (std * torch.exp(0.5 * torch.randn(50, classes, generator=g))) ** 2
    with torch.no_grad():
        found, truth = log_mean_softmax(m, v).double(), log_mean_softmax(m.double(), v.double())
    torch.testing.assert_close(found.exp(), truth.exp(), rtol=0, atol=5e-6)
    torch.testing.assert_close(found, truth, rtol=1e-5, atol=3e-4)  # of hopeless classes, too
    torch.testing.assert_close(found.logsumexp(-1), torch.zeros(50, dtype=F64), rtol=0, atol=2e-6)


def test_an_impossible_class_leaves_the_others(anyhow):
    m = torch.tensor([[1.0, -float("inf"), 0.0]])
    found = log_mean_softmax(m, torch.ones(1, 3))
    assert found[0, 1] == -float("inf")
    torch.testing.assert_close(found[:, ::2], log_mean_softmax(m[:, ::2], torch.ones(1, 2)), rtol=0, atol=2e-4)
    assert log_mean_softmax(torch.full((1, 3), -float("inf")), torch.ones(1, 3)).isnan().all()


def test_nobody_who_watches_is_passed_by():
    """Transforms, tracers and modes see operations of PyTorch, or their results would be silently constant."""
    m, v = torch.randn(5, 3), torch.rand(5, 3)

    def mean(m: Tensor, v: Tensor) -> Tensor:
        return F.relu(Moments(m, v)).loc

    assert native.supported(m, v)
    assert not native.supported(m.double(), v.double())
    assert not native.supported(m.requires_grad_(), v)
    m = m.detach()
    other = mean(m + 1, v)
    with torch.no_grad():
        torch.testing.assert_close(make_fx(mean)(m, v)(m + 1, v), other)
        torch.testing.assert_close(torch.vmap(mean)(m + 1, v), other)
        slope = torch.func.grad(lambda m: mean(m, v).sum())(m)
        torch.testing.assert_close(slope, torch.special.ndtr(m / v.sqrt()))
        negative = torch._neg_view(m)
        torch.testing.assert_close(mean(negative, v), mean(negative.clone(), v))
        with warnings.catch_warnings():  # of their age
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(mean, (m, v))
            with forward_ad.dual_level():
                assert not native.supported(forward_ad.make_dual(m, m), v)
        torch.testing.assert_close(traced(m + 1, v), other)
        assert mean(m.to("meta"), v.to("meta")).device.type == "meta"


@pytest.mark.parametrize("dims", [(0, 0), (1, None), (None, 2), (2, 1)])
def test_mapped_over_any_axis(dims, anyhow):
    sizes = [5, 3, 2]
    inputs = [torch.rand(*sizes[:d], 4, *sizes[d:]) if d is not None else torch.rand(sizes) for d in dims]
    inputs = [x.requires_grad_() for x in inputs]

    def moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(Moments(m - 0.5, v))
        return y.loc, y.variance

    together = torch.vmap(moments, dims)(*inputs)
    rows = [moments(*(x if d is None else x.select(d, i) for x, d in zip(inputs, dims, strict=True))) for i in range(4)]
    apart = [torch.stack(part) for part in zip(*rows, strict=True)]
    grads = [torch.autograd.grad(mean.sum() + variance.square().sum(), inputs) for mean, variance in (together, apart)]
    for found, truth in zip([*together, *grads[0]], [*apart, *grads[1]], strict=True):
        torch.testing.assert_close(found, truth, rtol=1e-5, atol=1e-6)


def leak(m: Tensor, v: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    y = F.prelu(Moments(m, v), slope)
    return y.loc, y.variance


@pytest.mark.parametrize("slope", [0.25, 0.01, -0.5])
def test_slopes_below_zero_by_quadrature(slope, anyhow):
    """Far below zero the variance is slope² of what it was: the kernel's digits have to be good beside that."""
    for r in (-30.0, -8.0, -3.0, -0.5, 0.0, 2.0, 12.0):
        for std in (1e-3, 1.0, 30.0):
            mean, variance = gaussian_expectation(lambda x: torch.where(x < 0, slope * x, x), r * std, std, (0,))
            found = leak(torch.tensor([r * std]), torch.tensor([std**2]), torch.tensor([slope]))
            assert found[0].item() == pytest.approx(mean, rel=3e-6, abs=1e-6 * abs(slope) * std)
            assert found[1].item() == pytest.approx(variance, rel=3e-5)


def test_gradients_of_slopes_below_zero(anyhow):
    r = torch.linspace(-12, 12, 301, dtype=F64)
    v = torch.logspace(-4, 4, 301, dtype=F64)[torch.randperm(301, generator=torch.Generator().manual_seed(0))]
    m, slope, weight = r * v.sqrt(), torch.tensor([0.2], dtype=F64), torch.stack([v.rsqrt(), 1 / v])
    gradients = []
    for dtype in (F64, torch.float32):
        inputs = [x.to(dtype).requires_grad_() for x in (m, v, slope)]
        total = (torch.stack(leak(*inputs)) * weight.to(dtype)).sum()
        gradients.append([g.double() for g in torch.autograd.grad(total, inputs)])
    units = (v.rsqrt(), (1 + r.abs()) / v, gradients[0][2].abs())
    for truth, found, unit in zip(*gradients, units, strict=True):
        assert ((found - truth).abs() / unit).max() < 2e-5


def test_they_can_be_switched_off():
    code = "import bedl._kernels; print(bedl._kernels.is_built())"
    environment = {**os.environ, "BEDL_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
