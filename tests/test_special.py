"""The normal law's tail functions against mpmath with 50 digits."""

import mpmath as mp
import pytest
import torch

from bedl.moments import numerics

TOLERANCE = {torch.float32: 3e-6, torch.float64: 1e-12}
each_dtype = pytest.mark.parametrize("dtype", TOLERANCE)


@pytest.fixture(autouse=True)
def fifty_digits():
    with mp.workdps(50):
        yield


def mills(x):
    return mp.sqrt(mp.pi / 2) * mp.exp(x * x / 2) * mp.erfc(x / mp.sqrt(2))


def assert_relative(value, truth, dtype):
    assert abs(mp.mpf(value.item()) / truth - 1) < TOLERANCE[dtype]


@each_dtype
@pytest.mark.parametrize("x", [0, 1e-3, 0.1, 0.5, 1, 2, 3, 5, 8, 12, 13])
def test_tail_moments(x, dtype):
    t = torch.tensor(x, dtype=dtype)
    z = mp.mpf(t.item())
    pdf = mp.npdf(z)
    truths = (pdf, pdf * mills(z), pdf * (1 - z * mills(z)), pdf * ((1 + z * z) * mills(z) - z))
    for value, truth in zip(numerics.tail_moments(t), truths, strict=True):
        assert_relative(value, truth, dtype)


@each_dtype
@pytest.mark.parametrize("x", [-1, -0.5, 0, 1, 5, 30])
@pytest.mark.parametrize("step", [1e-6, 1e-3, 0.1, 0.3, 0.5])
def test_differences_of_the_mills_ratio(x, step, dtype):
    t, h = torch.tensor(x, dtype=dtype), torch.tensor(step, dtype=dtype)
    z, s = mp.mpf(t.item()), mp.mpf(h.item())
    assert_relative(numerics.mills(t), mills(z), dtype)
    drop, next_drop, bend = numerics.mills_differences(t, h)
    assert_relative(drop, mills(z) - mills(z + s), dtype)
    assert_relative(next_drop, mills(z + s) - mills(z + 2 * s), dtype)
    assert_relative(bend, mills(z) - 2 * mills(z + s) + mills(z + 2 * s), dtype)


@pytest.mark.parametrize("ratio", [-1e4, -13, -8, -5, -1, 0, 1, 5, 1e4])
@pytest.mark.parametrize("std", [1e-6, 1.0, 1e3])
def test_relu_at_the_extremes_in_float32(ratio, std):
    from bedl import Moments

    y = torch.relu(Moments(torch.tensor([ratio * std]), torch.tensor([std**2])))
    m = mp.mpf(torch.tensor(ratio * std).item())
    s = mp.sqrt(mp.mpf(torch.tensor(std**2).item()))
    r = m / s
    mean = m * mp.ncdf(r) + s * mp.npdf(r)
    variance = (m * m + s * s) * mp.ncdf(r) + m * s * mp.npdf(r) - mean**2
    # r itself is rounded, which φ(r) magnifies by r²; and below zero φ − |r|Q and Q − |r|(φ − |r|Q) cancel
    lost = max(-ratio, 0)
    assert abs(y.loc.item() - mean) <= (3e-6 + 3e-6 * lost**2) * mean + mp.mpf("1e-22") * s
    assert abs(y.variance.item() - variance) <= (3e-6 + 1e-6 * lost**4) * variance + mp.mpf("1e-22") * s * s


def test_relu_leaves_no_denormal_number():
    from bedl import Moments

    x = Moments(torch.linspace(-20, 5, 10_001, requires_grad=True), torch.ones(10_001, requires_grad=True))
    y = torch.relu(x)
    gradients = torch.autograd.grad(y.loc.sum() + y.variance.sum(), [x.loc, x.variance])
    for values in (y.loc, y.variance, *gradients):
        magnitude = values.detach().abs()
        assert ((magnitude == 0) | (magnitude > 1e-30)).all()


@each_dtype
@pytest.mark.parametrize("x", [-40.0, -1.0, -0.34, -0.33, -1e-3, -1e-9, 1e-20, 1e-6, 0.1, 0.333, 0.334, 2.0, 80.0])
def test_expm1(x, dtype):
    t = torch.tensor(x, dtype=dtype)
    assert_relative(numerics.expm1(t), mp.expm1(mp.mpf(t.item())), dtype)


def test_std_has_no_slope_at_zero():
    variance = torch.tensor([0.0, 4.0, 1e-40], requires_grad=True)
    sigma = numerics.std(variance)
    sigma.sum().backward()
    torch.testing.assert_close(sigma.detach(), torch.tensor([0.0, 2.0, 1e-20]))
    assert variance.grad[0] == 0
    assert torch.isfinite(variance.grad).all()
