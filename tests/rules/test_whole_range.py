"""Every elementwise rule over all of float32: finite where the truth is, variances not negative, gradients finite.

The truth is the same rule in double precision, whose range is the square of that of float32 and more; that it is right
is for `test_elementwise.py` to say.
"""

import pytest
import torch
import torch.nn.functional as F

from bedl import Moments
from tests.rules.cases.elementwise import CASES, Case

MAX_VALUE = 1e37  # of what float32 holds; next to 3.4e38 a step of a computation may overflow


def pairs(count=4000):
    """Means of either sign and variances, 0 among them, at every magnitude that float32 has. shapes: (n,), (n,)"""
    generator = torch.Generator().manual_seed(0)
    magnitudes = torch.logspace(-44, 38, 42, dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    grid = torch.cartesian_prod(torch.cat([-magnitudes, zero, magnitudes]), torch.cat([zero, magnitudes]))
    uniform = torch.rand(count, 3, generator=generator, dtype=torch.float64)
    powers = 10 ** (82 * uniform[:, :2] - 44)
    powers[:, 0] *= torch.where(uniform[:, 2] < 0.5, -1, 1)
    near = torch.stack([30 * uniform[:, 0] - 15, 10 ** (12 * uniform[:, 1] - 6)], 1)
    return torch.cat([grid, powers, near]).float().unbind(-1)


def derivatives(function, loc, variance, select):
    """Of the mean and of the variance, by the mean and the variance, at the entries chosen."""
    loc, variance = loc.clone().requires_grad_(), variance.clone().requires_grad_()
    y = function(Moments(loc, variance))
    parts = []
    for result in (y.loc, y.variance):
        grads = torch.autograd.grad(result[select].sum(), [loc, variance], retain_graph=True, allow_unused=True)
        parts += [torch.zeros_like(loc) if grad is None else grad for grad in grads]
    return torch.stack(parts)[:, select]


def some(loc, variance):
    return list(zip(loc[:5].tolist(), variance[:5].tolist(), strict=True))


# A product passes the square of one factor on as the gradient by the other's variance, and what quadrature makes of
# that for a tiny variance has to be a number, too; so have the terms m⁶/σ that the slope of a seventh power adds up.
SLOPES_UP_TO = {"glu": 1e12, "pow 7": 1e3}

OTHERS = [
    Case("x + x", lambda x: x + x),
    Case("x · 1e20", lambda x: x * 1e20),
    Case("x · tensor of 1e20", lambda x: x * torch.tensor(1e20, dtype=x.dtype)),
    Case("x / 1e-20", lambda x: x / 1e-20),
    Case("x · an independent one", lambda x: x * x.flip(0)),
    Case("glu", lambda x: F.glu(torch.stack([x, x.flip(0)], -1)).squeeze(-1)),
    Case("maximum", lambda x: torch.maximum(x, x.flip(0))),
]


@pytest.mark.parametrize("case", CASES + OTHERS, ids=lambda case: case.name)
def test_over_all_of_float32(case):
    loc, variance = pairs()
    truth = case.function(Moments(loc.double(), variance.double()))
    y = case.function(Moments(loc, variance))
    plain = torch.where(variance > 0, 0.0, case.function(loc))  # hardswish itself overflows at 5.7e37
    finite = (truth.loc.abs() < MAX_VALUE) & (truth.variance.abs() < MAX_VALUE) & plain.isfinite()
    assert finite.sum() > 1000
    assert not y.variance.lt(0).any()
    for result in (y.loc, y.variance):
        wrong = finite & ~result.isfinite()
        assert not wrong.any(), some(loc[wrong], variance[wrong])
    size = torch.maximum(loc.abs(), variance)
    finite &= finite.flip(0) & (torch.maximum(size, size.flip(0)) < SLOPES_UP_TO.get(case.name, torch.inf))
    slopes = derivatives(case.function, loc, variance, finite)
    # a slope may lie beyond float32 where the value does not: d(m²v)/dv = m²
    true_slopes = derivatives(case.function, loc.double(), variance.double(), finite)
    wrong = (~slopes.isfinite() & (true_slopes.abs() < MAX_VALUE)).any(0)
    assert not wrong.any(), some(loc[finite][wrong], variance[finite][wrong])


@pytest.mark.parametrize("name", ["hardswish", "silu", "mish", "gelu", "gelu tanh", "softplus", "softplus 2"])
def test_far_above_zero_it_is_the_input(name):
    """A step of σ is lost beside such a mean, so that quadrature would see the rounding."""
    (case,) = (case for case in CASES if case.name == name)
    loc = torch.tensor([1e3, 1e6, 1e12, 1e30]).repeat_interleave(3)
    variance = torch.tensor([1e-6, 1.0, 100.0]).repeat(4)
    y = case.function(Moments(loc, variance))
    torch.testing.assert_close(y.loc, loc)
    torch.testing.assert_close(y.variance, variance)
    y = case.function(Moments(-loc, variance))
    assert not y.loc.any()
    assert not y.variance.any()
