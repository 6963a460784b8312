"""Dropout without sampling (Wang & Manning 2013, Fast Dropout): its noise in closed form while training."""

from __future__ import annotations

from bedl.moments import Moments, variance_dtype


def dropout(input: Moments, p: float = 0.5, training: bool = True) -> Moments:
    """x·b/(1 − p), b ~ Bernoulli(1 − p): the mean stays, the variance becomes (v + p·m²)/(1 − p).

    Whole-channel dropout has the same moments entry by entry.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    if p == 1:
        return Moments(input.loc * 0, input.variance * 0)
    loc = input.loc.to(variance_dtype(input.dtype))
    return Moments(input.loc, (input.variance + p * loc.square()) / (1 - p))


def alpha_dropout(input: Moments, p: float = 0.5, training: bool = False) -> Moments:
    """Dropout for SELU nets: a·(x·b + α'(1 − b)) + c, which keeps zero mean and unit variance."""
    if not training or p == 0:
        return input
    alpha, q = -1.7580993408473766, 1 - p
    scale = (q + alpha * alpha * q * p) ** -0.5 if p < 1 else 0.0
    loc = input.loc.to(variance_dtype(input.dtype))
    # the constant c = −a·α'·p cancels the mean of the filled-in value
    return Moments(scale * q * input.loc, scale * scale * (q * input.variance + q * p * (loc - alpha).square()))
