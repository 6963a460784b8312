"""Gauss's quadrature rules: nodes and weights as plain numbers, which torch.compile takes as constants.

They are made when a module is imported or a rule is made, never while a network runs.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

__all__ = ["Rule", "hermite", "joined", "legendre", "tensors"]

Rule = tuple[tuple[float, ...], tuple[float, ...]]  # nodes and weights


@functools.lru_cache
def hermite(count: int) -> Rule:
    """Nodes z and weights w such that Σ w g(z) is E[g(z)] for z ~ N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    return tuple(nodes.tolist()), tuple((weights / weights.sum()).tolist())


@functools.lru_cache
def legendre(count: int, low: float = -1.0, high: float = 1.0) -> Rule:
    """Nodes u and weights w such that Σ w g(u) is ∫g(u)du from `low` to `high`."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    half = (high - low) / 2
    return tuple((low + half * (nodes + 1)).tolist()), tuple((half * weights).tolist())


def joined(first: Rule, second: Rule) -> Rule:
    """Both rules as one: the sum of two integrals."""
    return first[0] + second[0], first[1] + second[1]


def tensors(rule: Rule, like: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights in the precision and on the device of a tensor. shapes: (count,), (count,)"""
    nodes, weights = (torch.tensor(t, dtype=like.dtype, device=like.device) for t in rule)
    return nodes, weights
