"""Every activation against quadrature, at the extremes, without variance, and by its gradients."""

import pytest
import torch

from bedl import Moments
from tests.oracles import gaussian_expectation
from tests.rules.cases.elementwise import CASES

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
STDS = (1e-3, 0.1, 0.49, 0.51, 1.0, 1.49, 1.51, 3.0, 10.0, 100.0)
RATIOS = (-6.0, -3.0, -1.01, -0.99, -0.3, 0.0, 0.5, 2.0, 7.0)


@each_case
def test_agrees_with_quadrature(case):
    for std in (s for s in STDS if s <= case.largest_std):
        for ratio in RATIOS:
            loc = ratio * std
            x = Moments(torch.tensor([loc], dtype=torch.float64), torch.tensor([std**2], dtype=torch.float64))
            y = case.function(x)
            mean, variance = gaussian_expectation(case.function, loc, std, case.kinks)
            # A mean that is 0 by symmetry, or nearly, is measured against the spread.
            scale = max(abs(mean), variance**0.5)
            assert abs(y.loc.item() - mean) <= case.tolerance * scale + case.floor * std, (loc, std)
            assert abs(y.variance.item() - variance) <= case.tolerance * variance + case.floor * std**2, (loc, std)


@each_case
def test_without_variance_it_is_the_plain_function(case):
    for dtype in (torch.float32, torch.float64):
        loc = torch.cat([torch.linspace(-50, 50, 401), torch.tensor([0.0, -0.0, 1e-30, -1e-30, 1e-6, -1e-6])]).to(dtype)
        y = case.function(Moments(loc, 0.0))
        plain = case.function(loc)
        assert torch.equal(y.loc, plain), dtype
        assert torch.equal(y.variance, torch.zeros_like(plain)), dtype


@each_case
def test_extremes_in_float32(case):
    """Variances are never negative or NaN, and every gradient is finite, up to |mean|/std = 1e4."""
    std = torch.logspace(-6, 3, 28).clamp(max=case.largest_std)
    ratio = torch.cat([-torch.logspace(-3, 4, 43), torch.zeros(1), torch.logspace(-3, 4, 43)])
    ratio = ratio.clamp(-case.largest_ratio, case.largest_ratio)
    std, ratio = (t.flatten() for t in torch.meshgrid(std, ratio, indexing="ij"))
    loc, variance = (std * ratio).requires_grad_(), (std**2).requires_grad_()
    y = case.function(Moments(loc, variance))
    assert torch.isfinite(y.loc).all()
    assert torch.isfinite(y.variance).all()
    assert (y.variance >= 0).all()
    (y.loc.sum() + y.variance.sum()).backward()
    assert torch.isfinite(loc.grad).all()
    assert torch.isfinite(variance.grad).all()


@each_case
def test_vanishing_variances_have_finite_gradients(case):
    """Behind a Gaussian layer a black pixel has mean 0 and variance 0 exactly; behind two, nearly."""
    logvar = torch.tensor([-300.0, -80.0, -60.0, -40.0, -20.0, -9.0]).repeat(4).requires_grad_()
    loc = torch.tensor([0.0, 1.0, -1.0, 3.0]).repeat_interleave(6).requires_grad_()
    y = case.function(Moments(loc, logvar.exp()))
    (y.loc.sum() + y.variance.sum()).backward()
    assert torch.isfinite(y.variance).all()
    assert torch.isfinite(loc.grad).all()
    assert torch.isfinite(logvar.grad).all()


@each_case
def test_float32_agrees_with_float64(case):
    std = torch.tensor([1e-3, 0.1, 0.3, 1.0, 2.0, 8.0, 100.0], dtype=torch.float64).clamp(max=case.largest_std)
    ratio = torch.tensor(RATIOS, dtype=torch.float64)
    std, ratio = (t.flatten() for t in torch.meshgrid(std, ratio, indexing="ij"))
    loc, variance = (std * ratio).float(), (std**2).float()
    double = case.function(Moments(loc.double(), variance.double()))
    single = case.function(Moments(loc, variance))
    scale = torch.maximum(double.loc.abs(), double.variance.sqrt())
    # what rounding the inputs alone does to the mean is of the order of its slope
    assert ((single.loc - double.loc).abs() <= 2e-5 * scale + 1e-6 * loc.abs().clamp(max=1)).all()
    assert ((single.variance - double.variance).abs() <= 1e-3 * double.variance + 1e-9).all()


@each_case
def test_gradients(case):
    generator = torch.Generator().manual_seed(0)
    loc = (2 * torch.randn(12, generator=generator, dtype=torch.float64)).requires_grad_()
    variance = torch.rand(12, generator=generator, dtype=torch.float64).mul(3).add(0.05).requires_grad_()

    def moments(m, v):
        y = case.function(Moments(m, v))
        return y.loc, y.variance

    assert torch.autograd.gradcheck(moments, (loc, variance))


def test_relu_has_second_derivatives():
    loc = torch.tensor([-1.0, 0.2, 2.0], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)

    def moments(m, v):
        y = torch.relu(Moments(m, v))
        return y.loc, y.variance

    assert torch.autograd.gradgradcheck(moments, (loc, variance))
