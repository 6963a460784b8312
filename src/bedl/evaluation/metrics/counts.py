"""Counts: negative binomials by mean and standard deviation, and scores of such predictions. NumPy alone.

A negative binomial of shape k is a Poisson whose rate follows a gamma law: variance = mean + mean²/k. One whose
variance does not exceed its mean is a Poisson.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from bedl.evaluation.metrics._checks import Floats, as_rows

LARGE_SHAPE = 3000.0  # parameters of a Beta law from which on it is so narrow that a few nodes integrate it
LARGE_COUNT = 1e6  # counts among which a single one does not matter
STIRLING_FROM = 1e6  # counts from which on Stirling's series needs no more than its first terms
MAX_TERMS = 1000  # of a continued fraction, at most; some 100 do


def nll_negative_binomial(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> float:
    """Mean negative log-likelihood of counts, in nats. shapes: (n,)

    >>> round(nll_negative_binomial([0], [1.0], [1.0]), 6)  # Poisson: P(0) = 1/e
    1.0
    """
    y_, mean_, std_ = as_rows(y=y, mean=mean, std=std)
    return float(-negative_binomial_log_pmf(y_, mean_, std_).mean())


def pit_negative_binomial(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Floats:
    """Mid-PIT, P(Y < y) + P(Y = y) / 2: for right predictions, of mean 1/2 and nearly uniform. shapes: (n,)"""
    y_, mean_, std_ = as_rows(y=y, mean=mean, std=std)
    return 0.5 * (negative_binomial_cdf(y_ - 1, mean_, std_) + negative_binomial_cdf(y_, mean_, std_))


def negative_binomial_log_pmf(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Floats:
    """log P(Y = y). shapes: broadcast

    >>> np.exp(negative_binomial_log_pmf([0, 1], 1.0, 2**0.5)).round(4).tolist()  # shape 1: geometric
    [0.5, 0.25]
    """
    y_, mean_, shape = np.broadcast_arrays(np.asarray(y, float), *_parameters(mean, std))
    few = np.minimum(y_, STIRLING_FROM)
    choices = _log_gamma(few + shape) - _log_gamma(shape) - _log_gamma(few + 1)
    of_few = choices - shape * np.log1p(mean_ / shape) - few * np.log1p(shape / mean_)
    return np.where(y_ <= STIRLING_FROM, of_few, _log_pmf_of_many(np.maximum(y_, STIRLING_FROM), mean_, shape))


def _log_pmf_of_many(y: Floats, mean: Floats, shape: Floats) -> Floats:
    """The same for large counts, where the gamma functions would cancel: Stirling's series, its large terms put
    together by hand. shapes: broadcast
    """
    total, wide = y + shape, np.minimum(shape, STIRLING_FROM)
    rest = _log_gamma(wide) - (wide - 0.5) * np.log(wide) + wide - 0.5 * math.log(2 * math.pi)  # 1/12k for a large k
    near = shape * np.log1p((mean - y) / total) + y * np.log1p(shape / total * ((y - mean) / mean))
    return 0.5 * np.log(shape / total / (2 * math.pi * y)) - near - rest


def negative_binomial_cdf(y: ArrayLike, mean: ArrayLike, std: ArrayLike) -> Floats:
    """P(Y ≤ y) = I(k / (k + mean); k, y + 1), a regularised incomplete Beta function. shapes: broadcast

    >>> negative_binomial_cdf([-1, 0, 1], 1.0, 2**0.5).round(4).tolist()
    [0.0, 0.5, 0.75]
    """
    y_, mean_, shape = np.broadcast_arrays(np.floor(np.asarray(y, float)), *_parameters(mean, std))
    # Among so many it does not matter that counts are whole: the law of y / mean is that of smaller ones. Larger ones
    # leave no digits to tell 1 - x by.
    size = np.minimum(y_, mean_)
    scale = np.where((size > LARGE_COUNT) & (shape <= LARGE_SHAPE), LARGE_COUNT / np.maximum(size, 1.0), 1.0)
    y_, mean_ = y_ * scale, mean_ * scale
    some = y_ >= 0
    result = np.zeros(y_.shape)
    result[some] = _incomplete_beta(shape[some], y_[some] + 1, mean_[some])
    return result


def negative_binomial_quantile(q: float, mean: ArrayLike, std: ArrayLike) -> Floats:
    """The smallest count y with P(Y ≤ y) ≥ q, by bisection. shapes: broadcast

    >>> negative_binomial_quantile(0.7, [1.0, 100.0], [2**0.5, 10.0]).tolist()
    [1.0, 105.0]
    """
    if not 0 < q < 1:
        raise ValueError(f"a quantile is asked for with a probability between 0 and 1, not {q}")
    given = np.broadcast_arrays(np.asarray(mean, float), np.asarray(std, float))
    finite = np.isfinite(given).all(0)
    mean_, std_ = (np.where(finite, values, 1.0) for values in given)
    # Cantelli's inequality: so many standard deviations away, the probability is reached, or not yet
    spread = np.maximum(std_, np.sqrt(mean_))
    low = np.maximum(np.floor(mean_ - spread * math.sqrt((1 - q) / q)) - 1, -1.0)
    high = np.ceil(mean_ + spread * math.sqrt(q / (1 - q))) + 1
    while True:
        middle = np.floor((low + high) / 2)
        if not ((low < middle) & (middle < high)).any():  # there is no count in between, or no such number
            break
        reached = negative_binomial_cdf(middle, mean_, std_) >= q
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.where(finite, high, given[0] + given[1])  # of an infinite mean it is infinite


def _parameters(mean: ArrayLike, std: ArrayLike) -> tuple[Floats, Floats]:
    """Mean and shape, neither so small nor so large that digits are lost: a Poisson has a very large shape."""
    mean_ = np.maximum(np.asarray(mean, float), 1e-12)
    excess = np.square(np.minimum(np.asarray(std, float), 1e100)) - mean_
    largest = np.maximum(1e7, 1e4 * mean_)
    with np.errstate(divide="ignore", over="ignore"):
        return mean_, np.where(excess * largest > mean_**2, mean_**2 / np.maximum(excess, 1e-300), largest)


def _log_gamma(x: Floats) -> Floats:
    """log Γ(x), x > 0: Stirling's series at x + 8 where x is small; absolute error below 1e-10 beside rounding.

    shape: that of x
    """
    small = np.where(x < 8, x, 1.0)
    z = np.where(x < 8, x + 8, x)
    product = np.where(x < 8, math.prod((small + k for k in range(1, 8)), start=small), 1.0)
    q = 1 / (z * z)
    series = (1 / 12 - q * (1 / 360 - q * (1 / 1260 - q / 1680))) / z
    return (z - 0.5) * np.log(z) - z + 0.5 * math.log(2 * math.pi) + series - np.log(product)


def _incomplete_beta(a: Floats, b: Floats, mean: Floats) -> Floats:
    """I(x; a, b) at x = a / (a + mean). shapes: (n,)"""
    x, rest = a / (a + mean), mean / (a + mean)
    narrow = np.minimum(a, b) > LARGE_SHAPE
    swapped = x > (a + 1) / (a + b + 2)  # the continued fraction is for the other tail
    first, second = np.where(swapped, b, a), np.where(swapped, a, b)
    log_front = _log_gamma(a + b) - _log_gamma(a) - _log_gamma(b) - a * np.log1p(mean / a) - b * np.log1p(a / mean)
    result = np.empty(a.shape)
    wide = ~narrow
    tail = _fraction(first[wide], second[wide], np.where(swapped, rest, x)[wide])
    tail = np.exp(log_front[wide]) * tail / first[wide]
    result[wide] = np.where(swapped[wide], 1 - tail, tail)
    result[narrow] = _narrow(a[narrow], b[narrow], x[narrow])
    return np.clip(result, 0.0, 1.0)


def _fraction(a: Floats, b: Floats, x: Floats) -> Floats:
    """The continued fraction of the incomplete Beta function, by Lentz's method. shapes: (n,)"""
    c = np.ones_like(x)
    d = 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, MAX_TERMS):
        for term in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                     -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):  # fmt: skip
            d, c = 1 / (1 + term * d), 1 + term / c
            value = value * d * c
        if not value.size or np.abs(d * c - 1).max() < 1e-13:
            break
    return value


def _narrow(a: Floats, b: Floats, x: Floats) -> Floats:
    """The incomplete Beta function of large parameters: the nearer tail, by Gauss-Legendre nodes. shapes: (n,)"""
    mean = a / (a + b)
    std = np.sqrt(mean * (1 - mean) / (a + b + 1))
    upper = x > mean
    far = np.where(upper, np.minimum(1.0, np.maximum(mean + 10 * std, x + 5 * std)),
                   np.maximum(0.0, np.minimum(mean - 10 * std, x - 5 * std)))  # fmt: skip
    nodes, weights = np.polynomial.legendre.leggauss(24)  # on (−1, 1)
    t = x[:, None] + (far - x)[:, None] * (nodes + 1) / 2
    log_density = (a - 1)[:, None] * np.log(t / mean[:, None]) + (b - 1)[:, None] * np.log(
        (1 - t) / (1 - mean)[:, None]
    )
    log_scale = (a - 1) * np.log(mean) + (b - 1) * np.log1p(-mean) + _log_gamma(a + b) - _log_gamma(a) - _log_gamma(b)
    tail = np.abs(far - x) / 2 * (np.exp(log_density + log_scale[:, None]) @ weights)
    return np.where(upper, 1 - tail, tail)
