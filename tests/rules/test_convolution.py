"""Convolutions take the way that is fastest where they run; all give what torch's own gives, and its derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl.moments.rules import conv
from bedl.moments.rules.conv import _weight_gradient, convolve_strided

OPTIONS = [{}, {"stride": 2}, {"padding": 1}, {"padding": (0, 2)}, {"padding": "same"}, {"dilation": 2},
           {"stride": (1, 3), "padding": 1}, {"stride": 2, "padding": (1, 2), "dilation": (2, 1)}]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("channels", [1, 4])
def test_images_are_convolved_as_torch_does(options, compiled, channels, monkeypatch):
    """One channel: uncompiled by strides, compiled by patches. Strides: the weight's derivative by patches."""
    monkeypatch.setattr(conv, "MIN_OUTPUTS", 3)
    layer = bedl.GaussianConv2d(channels, 3, (3, 5), **options)
    x = torch.randn(2, channels, 7, 9, requires_grad=True)
    torch._dynamo.reset()  # of one function only a few versions are compiled
    result = (torch.compile(layer, backend="aot_eager", fullgraph=True) if compiled else layer)(x)
    arguments = (layer.stride, layer.padding, layer.dilation)
    loc = F.conv2d(x, layer.weight_mean, layer.bias, *arguments)
    variance = F.conv2d(x.square(), layer.weight_logvar.exp(), None, *arguments)
    torch.testing.assert_close(result.loc, loc)
    torch.testing.assert_close(result.variance, variance, rtol=1e-5, atol=1e-9)
    by = [x, *layer.parameters()]
    found = torch.autograd.grad(result.loc.sin().sum() + result.variance.log().sum(), by)
    expected = torch.autograd.grad(loc.sin().sum() + variance.log().sum(), by)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("outputs", "options", "trained", "expected"),
    [(128, {"stride": 2}, True, 2), (127, {"stride": 2}, True, 0), (128, {}, True, 0), (128, {"stride": 2}, False, 0),
     (128, {"stride": 2, "groups": 2}, True, 0), (128, {"stride": (1, 2)}, True, 2)],
)  # fmt: skip
def test_where_it_pays_off(outputs, options, trained, expected, monkeypatch):
    calls = []
    own = conv.convolve_strided
    monkeypatch.setattr(conv, "convolve_strided", lambda *a: calls.append(a) or own(*a))
    layer = bedl.GaussianConv2d(2, outputs, 3, **options)
    with torch.set_grad_enabled(trained):
        layer(torch.randn(2, 2, 9, 9))
    assert len(calls) == expected


def test_patches_are_laid_out_a_few_at_a_time(monkeypatch):
    x, weight = torch.randn(7, 4, 9, 9), torch.randn(5, 4, 3, 3, requires_grad=True)
    expected = torch.autograd.grad(F.conv2d(x, weight, None, 2, 1).sin().sum(), weight)
    for numbers in (1, 2000, 4000, 10**6):  # one point, one, two, all
        monkeypatch.setattr(conv, "NUMBERS_AT_A_TIME", numbers)
        found = torch.autograd.grad(convolve_strided(x, weight, None, (2, 2), (1, 1), (1, 1)).sin().sum(), weight)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_no_point_at_all():
    weight = torch.randn(5, 4, 3, 3, requires_grad=True)
    y = convolve_strided(torch.zeros(0, 4, 9, 9), weight, None, (2, 2), (0, 0), (1, 1))
    assert torch.autograd.grad(y.sum(), weight)[0].eq(0).all()


def test_derivatives_of_derivatives():
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 2, 5, 6), (3, 2, 2, 3), (3,))
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    call = lambda x, w, b: convolve_strided(x, w, b, (2, 1), (1, 0), (1, 2))
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


def test_many_at_once():
    x, weights = torch.randn(3, 4, 9, 9), torch.randn(6, 5, 4, 3, 3)

    def gradient(convolve, weight):
        return torch.func.grad(lambda w: convolve(x, w, None, (2, 2), (0, 0), (1, 1)).sin().sum())(weight)

    found = torch.func.vmap(lambda w: gradient(convolve_strided, w))(weights)
    expected = torch.stack([gradient(F.conv2d, w) for w in weights])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_operator_keeps_to_what_it_declares():
    grad, x = torch.randn(2, 5, 4, 4), torch.randn(2, 4, 9, 9)
    torch.library.opcheck(_weight_gradient, (grad, x, [3, 3], [2, 2], [0, 0], [1, 1]))


def test_a_network_with_strides_on_half_precision_inputs(monkeypatch):
    monkeypatch.setattr(conv, "MIN_OUTPUTS", 2)
    net = bedl.bayesianize(nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 2, 3, stride=2)))
    x = torch.randn(2, 3, 15, 15)
    with torch.autocast("cpu", torch.bfloat16):
        y = net(x)
    (y.loc.float().sum() + y.variance.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
