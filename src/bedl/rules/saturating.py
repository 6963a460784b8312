"""The error function: a step, seen from afar."""

from __future__ import annotations

import torch
from torch import Tensor

from bedl.moments import Moments
from bedl.rules._marks import approximate, elementwise
from bedl.rules.numerical import _SPLIT, _split, _step_moments
from bedl.special import standardize, std

_SCALE = 2.5  # erf(x/2.5) bends on the scale of 1, as the rule wants it


def _sign_moments(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    _, variance = _step_moments(m, v)
    return torch.erf(standardize(m, std(v)) * 0.5**0.5), 4 * variance


@approximate(_SPLIT)
@elementwise(torch.erf)
def erf(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The mean is erf(m/√(1 + 2v)), exactly."""
    _, variance = _split(lambda x: torch.erf(x / _SCALE), torch.sign, _sign_moments, _SCALE * m, _SCALE * _SCALE * v)
    return torch.erf(m * torch.rsqrt(1 + 2 * v)), variance


@approximate(_SPLIT)
def erfc(input: Moments) -> Moments:
    y = erf(input)
    return Moments(torch.where(input.variance != 0, 1 - y.loc, torch.erfc(input.loc)), y.variance)
