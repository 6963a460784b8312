"""The measure that other tests compare with: it lets rounding pass, and nothing more."""

import numpy as np
import pytest
import torch

from bedl import Moments
from tests.closeness import assert_same_up_to_rounding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_passes_and_more_does_not(dtype):
    x = torch.tensor([1e-9, -3.0, 1000.0], dtype=dtype)
    unit = 1000 * torch.finfo(dtype).eps
    assert_same_up_to_rounding(x + 3 * unit, x, ulps=4)
    for wrong in (x + 5 * unit, x[:2], x.to(torch.float16), torch.full_like(x, torch.nan)):
        with pytest.raises(AssertionError):
            assert_same_up_to_rounding(wrong, x, ulps=4)
    with pytest.raises(AssertionError):
        assert_same_up_to_rounding(x + 3 * unit, x, ulps=4, scale=1.0)


def test_of_moments_each_part_has_its_own_scale():
    x = Moments(torch.tensor([1000.0]), torch.tensor([1e-3]))
    assert_same_up_to_rounding(x, x, ulps=0)
    with pytest.raises(AssertionError):
        assert_same_up_to_rounding(Moments(x.loc, x.variance + 1e-6), x)
    with pytest.raises(AssertionError):
        assert_same_up_to_rounding(x.loc, x)


def test_arrays_are_compared_in_their_own_precision():
    x = np.array([1.0, np.inf, np.nan])
    assert_same_up_to_rounding(x, x)
    with pytest.raises(AssertionError):
        assert_same_up_to_rounding(np.array([1.0 + 1e-9, np.inf, np.nan]), x)
