"""Random shapes, layouts and values: what holds for any input."""

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import nn

from bedl import GaussianConv2d, GaussianLinear, Moments

shapes = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)
seeds = st.integers(0, 2**31)
quick = settings(max_examples=60, deadline=None, derandomize=True)


def draw(shape, seed, random=True):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=generator)
    return Moments(loc, torch.rand(shape, generator=generator)) if random else loc


def broadcastable(shape, mask):
    """The shape with axes set to 1, and perhaps leading axes dropped, as `mask` says."""
    smaller = tuple(1 if m else n for n, m in zip(shape, mask, strict=False))
    return smaller[len(mask) % (len(shape) + 1) :] if shape else smaller


@quick
@given(shapes, st.lists(st.booleans(), min_size=4, max_size=4), seeds, st.booleans())
def test_broadcasting_is_torchs(shape, mask, seed, random):
    a, b = draw(shape, seed), draw(broadcastable(shape, mask), seed + 1, random)
    other = b.loc if random else b
    for op in (torch.add, torch.sub, torch.mul, torch.maximum):
        y = op(a, b)
        expected = op(a.loc, other).shape
        assert y.shape == expected == y.variance.shape
        assert (y.variance >= 0).all()


@quick
@given(shapes, seeds)
def test_elementwise_keeps_any_shape(shape, seed):
    x = draw(shape, seed)
    for function in (F.relu, F.elu, torch.sigmoid, F.gelu, torch.exp, F.hardtanh, F.softplus):
        y = function(x)
        assert y.shape == shape == y.variance.shape
        assert torch.isfinite(y.variance).all()


@quick
@given(st.integers(0, 3), st.integers(1, 3), st.integers(3, 6), st.integers(3, 6), st.integers(1, 2), seeds)
def test_layout_does_not_matter(n, c, h, w, stride, seed):
    torch.manual_seed(seed)
    net = nn.Sequential(GaussianConv2d(c, 4, 3, stride=stride), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = draw((n, c, h, w), seed)
    reference = net(x)
    assert reference.shape == (n, 4)
    for change in (
        lambda t: t.contiguous(memory_format=torch.channels_last),
        lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
        lambda t: torch.cat([t, t])[:n],
    ):
        y = net(Moments(change(x.loc), change(x.variance)))
        torch.testing.assert_close(y.loc, reference.loc, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(y.variance, reference.variance, rtol=1e-5, atol=1e-7)


@quick
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple), seeds)
def test_linear_of_any_leading_shape(lead, seed):
    torch.manual_seed(seed)
    layer = GaussianLinear(3, 2)
    assert layer(draw((*lead, 3), seed)).variance.shape == (*lead, 2)
    assert layer(draw((*lead, 3), seed, random=False)).variance.shape == (*lead, 2)


def test_scalars():
    x = Moments(torch.tensor(1.0), 2.0)
    assert (2 * x + 1).loc.item() == 3.0
    assert F.relu(x).shape == ()
    assert Moments(torch.zeros(3), 1.0).sum().variance.item() == 3.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["loc", "variance"])
def test_non_finite_inputs_propagate(bad, where):
    """They come out as NaN or infinity, in their own row only, and crash nothing."""
    if where == "variance" and bad == -float("inf"):
        bad = float("inf")
    torch.manual_seed(0)
    net = nn.Sequential(GaussianLinear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ELU(), GaussianLinear(8, 2))
    x = draw((2, 3), 0)
    getattr(x, where)[0, 1] = bad
    y = net(x)
    assert not torch.isfinite(y.variance[0]).any()
    assert torch.isfinite(y.variance[1]).all()
    assert torch.isfinite(y.loc[1]).all()


@pytest.mark.parametrize(
    "function", [F.relu, F.elu, torch.sigmoid, F.gelu, F.hardtanh, torch.abs, F.softplus, torch.sin]
)
def test_nan_stays_nan(function):
    nan = float("nan")
    y = function(Moments(torch.tensor([nan, 0.0]), torch.tensor([1.0, nan])))
    assert torch.isnan(y.loc).all()
    assert torch.isnan(y.variance).all()


def test_integer_inputs_are_refused_with_a_remedy():
    with pytest.raises(TypeError, match=r"int64; use \.float\(\)"):
        GaussianLinear(3, 2)(torch.zeros(2, 3, dtype=torch.long))
