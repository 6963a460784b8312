"""Brute-force answers that share no formula with the rules: quadrature, autograd on the plain function, sampling."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy import integrate
from scipy.special import ndtr
from torch import Tensor

from bedl import Moments

_PANEL_NODES, _PANEL_WEIGHTS = np.polynomial.legendre.leggauss(20)


def gaussian_expectation(
    function: Callable, loc: float, std: float, breaks: Sequence[float] = ()
) -> tuple[float, float]:
    """Mean and variance of function(x), x ~ N(loc, std²), in float64.

    Composite Gauss–Legendre over ±20 standard deviations, with panel borders at the function's kinks and fine enough
    to follow a function that bends on a scale of 1 where std is large.
    """
    reach = 20 * std
    edges = np.linspace(loc - reach, loc + reach, 161)
    near = np.linspace(-40, 40, 161)
    edges = np.concatenate([edges, near[(near > loc - reach) & (near < loc + reach)], np.asarray(breaks, float)])
    edges = np.unique(edges[(edges >= loc - reach) & (edges <= loc + reach)])
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (1 + _PANEL_NODES)
    density = np.exp(-0.5 * ((x - loc) / std) ** 2) / (std * math.sqrt(2 * math.pi))
    mass = half * _PANEL_WEIGHTS * density
    values = function(torch.from_numpy(x)).numpy()
    # as a deviation from the value at the mean, so that small variances keep their digits
    centre = float(function(torch.tensor(loc, dtype=torch.float64)))
    shift = float((mass * (values - centre)).sum() / mass.sum())
    return centre + shift, float((mass * (values - centre - shift) ** 2).sum() / mass.sum())


def multilinear(function: Callable[..., Tensor], operands: Sequence) -> tuple[Tensor, Tensor]:
    """Exact mean and variance of a function that is affine in each operand, by differentiating it.

    For independent entries, Var = Σ over sets S of operands of Σ (∂^S f)² Π v_S (the ANOVA decomposition).
    """
    values = [x.loc if isinstance(x, Moments) else x for x in operands]
    random = [i for i, x in enumerate(operands) if isinstance(x, Moments)]
    mean = function(*values)
    variance = torch.zeros_like(mean)
    for size in range(1, len(random) + 1):
        for chosen in itertools.combinations(random, size):
            derivative = function
            for i in chosen:
                derivative = torch.func.jacrev(derivative, i)
            term = derivative(*values).square()
            for i in reversed(chosen):  # jacrev appended each operand's axes in turn
                spread = operands[i].variance
                term = (term * spread).sum(list(range(term.dim() - spread.dim(), term.dim())))
            variance = variance + term
    return mean, variance


def maximum(loc: np.ndarray, std: np.ndarray) -> tuple[float, float]:
    """Mean and variance of the largest of independent normals, by adaptive quadrature of its distribution."""
    low, high = float((loc - 12 * std).max()), float((loc + 12 * std).max())
    breaks = np.unique(np.concatenate([loc - k * std for k in (-6, -3, -1, 0, 1, 3, 6)]))
    breaks = breaks[(breaks > low) & (breaks < high)]

    def above(t: float) -> float:
        return 1 - float(np.prod(ndtr((t - loc) / std)))

    options = {"points": breaks, "limit": 2000, "epsabs": 1e-13, "epsrel": 1e-11}
    first = integrate.quad(above, low, high, **options)[0]
    second = integrate.quad(lambda t: 2 * (t - low) * above(t), low, high, **options)[0]
    return low + first, second - first**2
