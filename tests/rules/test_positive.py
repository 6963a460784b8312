"""Roots, logarithms, reciprocals and powers: functions of a half line, of a variable that is as good as Gaussian."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from bedl import Moments, UnsupportedOperationError

FUNCTIONS = {
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log": torch.log, "log2": torch.log2, "log10": lambda x: x.log10(),
    "log1p": lambda x: torch.log1p(x - 1), "reciprocal": torch.reciprocal, "1/x": lambda x: 1 / x,
    "3/x": lambda x: torch.tensor(3.0, dtype=torch.float64) / x, "pow 0.3": lambda x: x**0.3,
    "pow -1.7": lambda x: torch.pow(x, -1.7), "pow -2": lambda x: x**-2, "pow 2.5": lambda x: x.pow(2.5),
    "pow tensor": lambda x: torch.pow(x, torch.tensor(1.5, dtype=torch.float64)),
}  # fmt: skip
each = pytest.mark.parametrize("name", FUNCTIONS)


def moments(loc, std):
    return Moments(torch.tensor([loc], dtype=torch.float64), torch.tensor([std**2], dtype=torch.float64))


def expected(function, density, low, high):
    """Mean and variance of a function under a density, by adaptive quadrature."""

    def plain(x):
        return float(function(torch.tensor(x, dtype=torch.float64)))

    options = {"limit": 500, "epsabs": 0, "epsrel": 1e-10}
    centre = plain((low + high) / 2)
    shift = integrate.quad(lambda x: (plain(x) - centre) * density(x), low, high, **options)[0]
    return centre + shift, integrate.quad(lambda x: (plain(x) - centre - shift) ** 2 * density(x), low, high,
                                          **options)[0]  # fmt: skip


@each
@pytest.mark.parametrize("loc, std", [(1.0, 1e-3), (3.0, 0.1), (0.02, 0.004), (50.0, 8.0)])
def test_of_a_log_normal_variable(name, loc, std):
    """The definition: five standard deviations or more from 0, the positive part is the variable itself."""
    s = np.sqrt(np.log1p((std / loc) ** 2))
    law = stats.lognorm(s, scale=loc * np.exp(-s * s / 2))
    mean, variance = expected(FUNCTIONS[name], law.pdf, *law.ppf([1e-15, 1 - 1e-15]))
    y = FUNCTIONS[name](moments(loc, std))
    scale = max(abs(mean), variance**0.5)
    assert abs(y.loc.item() - mean) < 2e-5 * scale
    assert abs(y.variance.item() / variance - 1) < 1e-3


@each
@pytest.mark.parametrize("ratio, tolerance", [(20, 0.02), (10, 0.07)])
def test_close_to_a_gaussian_one_far_from_zero(name, ratio, tolerance):
    law = stats.norm(1.0, 1 / ratio)
    mean, variance = expected(FUNCTIONS[name], law.pdf, max(1 - 12 / ratio, 0.15), 1 + 12 / ratio)
    y = FUNCTIONS[name](moments(1.0, 1 / ratio))
    assert abs(y.loc.item() - mean) < 0.02 * variance**0.5
    assert abs((y.variance.item() / variance) ** 0.5 - 1) < tolerance


def test_of_a_mean_of_squares():
    """As in a hand-written RMS norm: 16 squares, whose mean is known by its moments alone. By sampling."""
    torch.manual_seed(0)
    x = Moments(torch.randn(16, dtype=torch.float64), 0.3)
    draws = (x.loc + 0.3**0.5 * torch.randn(200_000, 16, dtype=torch.float64)).square().mean(-1) + 1e-5
    squares = x.pow(2).mean(-1) + 1e-5
    for function in (torch.rsqrt, torch.sqrt, torch.log, torch.reciprocal):
        y, truth = function(squares), function(draws)
        assert abs(y.loc - truth.mean()) < 0.05 * truth.std()
        assert abs(y.variance.sqrt() / truth.std() - 1) < 0.1


@each
def test_without_variance_it_is_the_plain_function(name):
    loc = torch.logspace(-3, 3, 50, dtype=torch.float64)
    y = FUNCTIONS[name](Moments(loc, 0.0))
    torch.testing.assert_close(y.loc, FUNCTIONS[name](loc), rtol=1e-12, atol=1e-14)
    assert not y.variance.any()


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_wherever_the_plain_value_is(name, dtype):
    """Also where most of the Gaussian is on the wrong side of 0, and with finite gradients."""
    function = FUNCTIONS[name] if dtype is torch.float64 or name not in ("3/x", "pow tensor") else torch.rsqrt
    loc = torch.logspace(-6, 4, 61, dtype=dtype).repeat_interleave(9).requires_grad_()
    logvar = torch.tensor([-80.0, -40, -20, -9, -3, 0, 1, 3, 7], dtype=dtype).repeat(61).requires_grad_()
    y = function(Moments(loc, logvar.exp()))
    assert torch.isfinite(y.loc).all()
    assert torch.isfinite(y.variance).all()
    assert (y.variance >= 0).all()
    (y.loc.sum() + y.variance.sum()).backward()
    assert torch.isfinite(loc.grad).all()
    assert torch.isfinite(logvar.grad).all()


@pytest.mark.parametrize("function", [torch.sqrt, torch.rsqrt, torch.log, lambda x: x**0.5])
def test_the_middle_of_the_gaussian_at_zero(function):
    """Nothing can be said but that the value is of the order of the positive half's."""
    y = function(Moments(torch.zeros(1, dtype=torch.float64), 1.0))
    truth = function(torch.randn(100_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).abs())
    assert abs(y.loc - truth.median()) < 1.5 * y.variance.sqrt()
    assert 0.2 < y.variance.sqrt() / truth.std() < 2


@pytest.mark.parametrize("function", [torch.sqrt, torch.rsqrt, torch.log, torch.log1p, lambda x: x**0.5])
def test_no_value_outside_the_domain(function):
    y = function(Moments(torch.tensor([-2.0]), 0.5))
    assert torch.isnan(y.loc).all()
    assert torch.isnan(y.variance).all()


def test_negative_values_have_reciprocals_and_whole_powers():
    x, mirrored = moments(2.0, 0.3), moments(-2.0, 0.3)
    for function, sign in ((torch.reciprocal, -1), (lambda x: x**-2, 1), (lambda x: x**-3.0, -1), (lambda x: x**5, -1)):
        torch.testing.assert_close(function(mirrored).loc, sign * function(x).loc)
        torch.testing.assert_close(function(mirrored).variance, function(x).variance)


def test_quotients():
    a, b = moments(1.0, 0.2), moments(4.0, 0.3)
    torch.manual_seed(0)
    draws = (1 + 0.2 * torch.randn(400_000)) / (4 + 0.3 * torch.randn(400_000))
    y = a / b
    assert abs(y.loc.item() - draws.mean()) < 1e-3
    assert abs(y.variance.sqrt().item() / draws.std() - 1) < 0.01
    same = a / a
    assert same.loc.item() == 1
    assert same.variance.item() == 0


def test_powers_of_zero_and_by_random_exponents():
    x = moments(-1.5, 0.4)
    assert (x**0).loc.item() == 1
    assert (x**0).variance.item() == 0
    torch.testing.assert_close((3.0**x).loc, torch.exp(x * np.log(3.0)).loc)
    with pytest.raises(UnsupportedOperationError, match="both random"):
        x**x


def test_gradients():
    m = torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    v = torch.tensor([0.5, 0.1, 2.0], dtype=torch.float64, requires_grad=True)
    for function in FUNCTIONS.values():
        if function is FUNCTIONS["log1p"]:
            continue  # of x − 1, which is not positive here

        def both(m, v, function=function):
            y = function(Moments(m, v))
            return y.loc, y.variance

        assert torch.autograd.gradcheck(both, (m, v))
