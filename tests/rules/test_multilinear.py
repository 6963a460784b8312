"""Every operation that is affine in its operands, against the derivatives of the plain function."""

import pytest
import torch

from bedl import Moments
from tests import oracles
from tests.closeness import assert_same_up_to_rounding
from tests.rules.cases.multilinear import CASES

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def operands_of(case):
    generator = torch.Generator().manual_seed(1)
    return [operand.draw(generator) for operand in case.operands]


@each_case
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # the oracle vectorises what torch runs in a loop
def test_agrees_with_derivatives(case):
    operands = operands_of(case)
    result = case.function(*operands)
    mean, variance = oracles.multilinear(case.function, operands)
    assert isinstance(result, Moments)
    torch.testing.assert_close(result.loc, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.variance, variance, rtol=1e-10, atol=1e-12)


@each_case
def test_without_variance_it_is_the_plain_function(case):
    for dtype in (torch.float32, torch.float64):
        locs = [(x.loc if isinstance(x, Moments) else x).to(dtype) for x in operands_of(case)]
        certain = [Moments(m, 0.0) if o.is_random else m for m, o in zip(locs, case.operands, strict=True)]
        result = case.function(*certain)
        assert_same_up_to_rounding(result.loc, case.function(*locs))
        assert not result.variance.any(), dtype


@each_case
def test_gradients(case):
    operands = operands_of(case)
    leaves = [t.requires_grad_() for x in operands for t in ((x.loc, x.variance) if isinstance(x, Moments) else (x,))]

    def moments(*leaves):
        rest = iter(leaves)
        result = case.function(*(Moments(next(rest), next(rest)) if o.is_random else next(rest) for o in case.operands))
        return result.loc, result.variance

    assert torch.autograd.gradcheck(moments, leaves, fast_mode=True)
