"""Activations in single precision, from tables and kernels, against quadrature in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bedl import Moments, _kernels
from bedl._kernels import inference
from bedl.moments import numerics
from tests.native.test_compiled import calls_of_compiled

SMOOTH = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "mish": F.mish,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "softplus": F.softplus,
    "softplus 3": lambda x: F.softplus(x, beta=3.0),
    "logsigmoid": F.logsigmoid,
    "erf": torch.erf,
}
OF_PIECES = {
    "elu": F.elu,
    "elu 0.3": lambda x: F.elu(x, 0.3),
    "selu": F.selu,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
}
LAW = *numerics.HALF_LINE, 10.0


@pytest.fixture(params=["kernel", "PyTorch"])
def anyhow(request, monkeypatch):
    if request.param == "PyTorch":
        monkeypatch.setattr(inference, "_library", None)


def spread(n=6000):
    """Standard deviations from 1e-3 to 300, means in the middle and up to many of them away. shapes: (n,), (n,)"""
    generator = torch.Generator().manual_seed(0)
    std = 10 ** (5.5 * torch.rand(n, generator=generator, dtype=torch.float64) - 3)
    normal = torch.randn(n, generator=generator, dtype=torch.float64)
    near = torch.rand(n, generator=generator) < 0.5
    return torch.where(near, 3 * std, 4.0).mul(normal).float(), std.square().float()


def moments_and_slopes(function, m, v):
    """Mean, variance, and the derivatives of each by m and by v. shape: 6 × (n,)"""
    m, v = m.clone().requires_grad_(), v.clone().requires_grad_()
    y = function(Moments(m, v))
    slopes = (g for part in (y.loc, y.variance) for g in torch.autograd.grad(part.sum(), [m, v], retain_graph=True))
    return [y.loc.detach(), y.variance.detach(), *slopes]


@pytest.mark.parametrize("name", SMOOTH | OF_PIECES)
def test_agrees_with_double_precision(name, anyhow):
    """The variance to 1e-4 of itself, but for 1e-8 of the input's: what quadrature's rules are held to."""
    if name == "hardswish" and not _kernels.is_built():
        pytest.skip("without kernels, slopes of its quadrature are not that close")
    function = (SMOOTH | OF_PIECES)[name]
    m, v = spread()
    mean, variance, *slopes = moments_and_slopes(function, m, v)
    truth = moments_and_slopes(function, m.double(), v.double())
    std = v.double().sqrt()
    rounding = 4e-7 * m.abs().clamp(max=10.0)  # of the plain function itself
    assert ((mean - truth[0]).abs() <= 2e-5 * truth[1].sqrt() + 2e-6 * truth[0].abs() + rounding + 2e-8 * std).all()
    allowed = 1.2e-4 if name != "hardswish" else 5e-4  # quadrature itself is 2e-4 off
    assert ((variance - truth[1]).abs() <= allowed * truth[1] + 1e-8 * v + 1e-30).all()
    for i, (found, expected) in enumerate(zip(slopes, truth[2:], strict=True)):
        scale = 1.0 if i != 2 else std.clamp(max=1.0).square() + 5e-2  # dV/dm is 0 where v is
        assert ((found - expected).abs() <= 1e-3 * expected.abs() + 2e-4 * scale).all(), i


@pytest.mark.parametrize("name", SMOOTH)
def test_the_kernel_is_what_pytorch_computes(name, monkeypatch):
    if not _kernels.is_built():
        pytest.skip("there are no kernels")
    m, v = spread(500)
    by_kernel = moments_and_slopes(SMOOTH[name], m, v)
    monkeypatch.setattr(inference, "_library", None)
    for found, expected in zip(by_kernel, moments_and_slopes(SMOOTH[name], m, v), strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-4, atol=1e-6)


def test_nan_stays_nan_and_infinite_means_are_far_away(anyhow):
    nan = float("nan")
    for function in SMOOTH.values():
        y = function(Moments(torch.tensor([nan, 0.0]), torch.tensor([1.0, nan])))
        assert y.loc.isnan().all()
        assert y.variance.isnan().all()
    y = F.silu(Moments(torch.tensor([float("inf")]), torch.tensor([2.0])))
    assert y.loc.item() == float("inf")
    assert y.variance.item() == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["gelu", "elu", "hardswish", "relu6"])
def test_maps_and_second_derivatives(name, anyhow):
    function = (SMOOTH | OF_PIECES)[name]

    def moments(m, v):
        y = function(Moments(m, v))
        return y.loc + y.variance

    m, v = torch.randn(3, 5), torch.rand(3, 5) + 0.1
    torch.testing.assert_close(torch.vmap(moments)(m, v), moments(m, v), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(torch.vmap(moments, (0, None))(m, v[0]), moments(m, v[0].expand(3, 5)), rtol=1e-4,
                               atol=1e-6)  # fmt: skip
    slope = torch.func.vmap(torch.func.grad(lambda a, b: moments(a, b).sum()))(m, v)
    step = 1e-2
    torch.testing.assert_close(slope, (moments(m + step, v) - moments(m - step, v)) / (2 * step), rtol=1e-2, atol=1e-3)
    x = m.clone().requires_grad_()
    (first,) = torch.autograd.grad(moments(x, v).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    ahead, behind = (torch.func.grad(lambda a: moments(a, v).sum())(m + d) for d in (step, -step))
    torch.testing.assert_close(second, (ahead - behind) / (2 * step), rtol=3e-2, atol=5e-3)


@pytest.mark.skipif(not _kernels.is_built(), reason="there are no kernels")
def test_compiled_graphs_call_kernels_and_others_look_up(monkeypatch):
    def gate(m, v):
        y = F.gelu(Moments(m, v))
        return y.loc, y.variance

    m, v = torch.randn(30, 40), torch.rand(30, 40)
    plain = gate(m, v)
    calls, found = calls_of_compiled(gate, m, v)
    assert calls == {"bedl.tabulated_moments.default"}
    for x, y in zip(found, plain, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(inference, "_library", None)
    calls, found = calls_of_compiled(gate, m, v)
    assert not calls
    for x, y in zip(found, plain, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def operators():
    m, v = torch.randn(3, 4, 5), torch.rand(3, 4, 5)
    nodes = [0.1] * 24
    return {
        "tabulated_moments": (m, v, F.silu(m), "silu", 1.0, True),
        "tabulated_moments_backward": (m, v, m, v, "silu", 1.0, True),
        "elu_moments": (m, v, 1.0, *LAW),
        "elu_moments_backward": (m, v, m, m, v, 1.0, *LAW),
        "hardswish_moments": (m, v, *LAW),
        "hardswish_moments_backward": (m, v, m, v, *LAW),
        "clipped_moments": (m, v, -1.0, 1.0, nodes, *LAW),
        "clipped_moments_backward": (m, v, m, m, v, -1.0, 1.0, nodes, *LAW),
    }


@pytest.mark.skipif(not _kernels.is_built(), reason="there are no kernels")
@pytest.mark.parametrize("name", operators())
def test_operators_are_what_compilers_take_them_for(name):
    torch.library.opcheck(getattr(torch.ops.bedl, name).default, operators()[name])
