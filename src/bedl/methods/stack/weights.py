"""Closed forms behind the stack: weights of a mixture by EM, and Bayesian linear regression by its evidence.

Pure functions of tensors, in double precision.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

__all__ = [
    "HeldOutIntervals",
    "LinearPosterior",
    "bayesian_linear",
    "held_out_quantile",
    "interval_scores",
    "mixture_weights",
]


RATIOS = torch.linspace(-8.0, 12.0, 81, dtype=torch.float64).exp()  # precision of the weights over that of the noise
WIDENED_AT = 0.9, 1.6448536  # a coverage, and the standard deviations that a normal reaches at it
LEAST_RATIO = 0.01  # of the out-of-fold quantile to it
LEAST_NOISE = 1e-8  # variance, in units of a standardised target


def mixture_weights(
    log_densities: Tensor, weight: Tensor | None = None, steps: int = 200, prior: float = 1.0
) -> Tensor:
    """The weights of a mixture that make points most likely, by EM from equal weights: a convex problem.

    Args:
        log_densities: of each point under each component; not of points that the component was fitted to.
            shape: (n, components)
        weight: how much each point counts. shape: (n,)
        steps: of EM.
        prior: so many points more, spread evenly over the components.

    Returns:
        shape (components,), positive, of sum 1

    Example:
        >>> log_densities = torch.tensor([[0.8, 0.1], [0.8, 0.1], [0.1, 0.8], [0.8, 0.1]]).log()
        >>> [round(w, 2) for w in mixture_weights(log_densities, prior=0.0).tolist()]
        [0.82, 0.18]
    """
    log_densities = log_densities.double()
    n, components = log_densities.shape
    counts = torch.ones(n, dtype=torch.float64) if weight is None else weight.double().cpu()
    density = (log_densities - log_densities.amax(1, keepdim=True)).exp().cpu()
    weights = torch.full((components,), 1 / components, dtype=torch.float64)
    for _ in range(steps):
        share = counts / (density @ weights)
        weights = (weights * (share @ density) + prior / components) / (counts.sum() + prior)
    return weights


class LinearPosterior(NamedTuple):
    """Bayesian linear regression of T targets on d columns, as learned.

    Attributes:
        centre: mean of the columns. shape: (d,)
        intercept: mean of the targets. shape: (T,)
        coefficients: their expected values. shape: (T, d)
        covariance: of the coefficients. shape: (T, d, d)
        noise: variance of the targets about the line. shape: (T,)
        size: how many points it was learned from. shape: ()
    """

    centre: Tensor
    intercept: Tensor
    coefficients: Tensor
    covariance: Tensor
    noise: Tensor
    size: Tensor


def bayesian_linear(x: Tensor, y: Tensor, weight: Tensor | None = None) -> LinearPosterior:
    """Linear regression whose ratio of prior to noise precision maximises the evidence, for each target by itself.

    D. MacKay, "Bayesian Interpolation", Neural Computation 1992. The noise that maximises the evidence allows for the
    degrees of freedom of the coefficients; n / (n − 1) allows for the intercept's.

    Args:
        x: scaled columns. shape: (n, d)
        y: targets, standardised. shape: (n, T)
        weight: how much each point counts. shape: (n,)

    Example:
        >>> x = torch.linspace(-1, 1, 50)[:, None]
        >>> fitted = bayesian_linear(x, 3 * x + 1)
        >>> round(fitted.coefficients.item(), 2), round(fitted.intercept.item(), 2)
        (3.0, 1.0)
    """
    x, y = x.double(), y.double()
    counts = torch.ones(len(x), dtype=torch.float64, device=x.device) if weight is None else weight.double()
    n = counts.sum()
    centre, intercept = counts @ x / n, counts @ y / n
    root = counts.sqrt()[:, None]
    a, t = root * (x - centre), root * (y - intercept)
    squares, basis = torch.linalg.eigh(a.T @ a)
    squares = squares.clamp_min(0.0)  # shape: (d,)
    along = basis.T @ (a.T @ t)  # shape: (d, T)
    ratios = RATIOS.to(x.device)
    shrunk = 1 / (squares + ratios[:, None])  # shape: (ratios, d)
    residual = t.square().sum(0) - shrunk @ along.square()  # of the ridge estimate, penalty included: (ratios, T)
    spread = (residual / n).clamp_min(LEAST_NOISE)
    evidence = -0.5 * n * spread.log() - 0.5 * torch.log1p(squares / ratios[:, None]).sum(1, keepdim=True)
    best = evidence.argmax(0)  # shape: (T,)
    inverse = shrunk[best]  # shape: (T, d)
    noise = spread.gather(0, best[None])[0] * n / (n - 1).clamp_min(0.5 * n)  # of one point, twice
    coefficients = (inverse * along.T) @ basis.T
    covariance = noise[:, None, None] * (basis * inverse[:, None, :]) @ basis.T
    return LinearPosterior(centre, intercept, coefficients, covariance, noise, n)


def held_out_quantile(scores: Tensor, mass: Tensor, coverage: float) -> Tensor:
    """The score that a new point stays below with probability `coverage`: the ⌈coverage · (n + 1)⌉-th smallest.

    V. Vovk, "Cross-conformal predictors", Annals of Mathematics and AI 2015.

    Args:
        scores: of points that were held out, ascending. shape: (n, T)
        mass: how many points there are up to each, itself included; weights count. shape: (n, T)
        coverage: a probability.

    Returns:
        shape (T,); infinite where so few points cannot say it

    Example:
        >>> scores = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
        >>> [held_out_quantile(scores, torch.arange(1.0, 5.0)[:, None], c).item() for c in (0.6, 0.61, 0.9)]
        [3.0, 4.0, inf]
    """
    wanted = coverage * (mass[-1] + 1) * (1 - 1e-6)  # not one point more for rounding's sake
    place = (mass < wanted).sum(0)
    padded = torch.cat([scores, torch.full_like(scores[:1], torch.inf)])
    return padded.gather(0, place[None])[0]


def interval_scores(error: Tensor, usual: Tensor, beyond: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Out-of-fold scores |error| / std, and a factor that keeps intervals wide where the model is unusually uncertain.

    Where predictions have heavy tails, nine of ten rows lie within far less than 1.64 standard deviations, and
    intervals are as much narrower. They would also shrink where the model is unusually uncertain, and no held-out row
    supports that. So `beyond` is multiplied by a factor, with which intervals are as wide there as a normal's.

    Args:
        error: absolute. shape: (n, T)
        usual: variance of the prediction. shape: (n, T)
        beyond: what exceeds all that is usual of it. shape: (n, T)
        counts: how much each row counts. shape: (n,)

    Returns:
        sorted scores, and how much counts up to each, shapes (n, T); a factor on `beyond`, at least 1, shape (T,)

    Example:
        >>> error = torch.arange(1.0, 100.0)[:, None] / 100  # of 90 % no more than 0.9
        >>> none = torch.zeros_like(error)
        >>> round(interval_scores(error, none + 1, none, none[:, 0] + 1)[2].item(), 3)  # (1.645 / 0.9)²
        3.34
    """

    def scored(variance: Tensor) -> tuple[Tensor, Tensor]:
        scores, order = (error / variance.sqrt()).sort(0)
        return scores, counts[order].cumsum(0)

    ratio = held_out_quantile(*scored(usual + beyond), WIDENED_AT[0]) / WIDENED_AT[1]
    widening = torch.where(ratio.isfinite(), ratio, 1.0).clamp(LEAST_RATIO, 1.0) ** -2
    return *scored(usual + widening * beyond), widening


# Cross-conformal intervals about a mixture's mean.


TINY = 1e-12  # variance of a standardised target
ORDINARY = 0.99  # out-of-fold quantile up to which disagreement of members is usual


class HeldOutIntervals(nn.Module):
    """Mean ± a factor times a spread; the factor is the out-of-fold quantile of the scores |error| / spread.

    The spread is the standard deviation of one fold's members, as in out-of-fold predictions: the disagreement of
    folds is not in it. Where predictions have heavy tails, the factor is far below that of a normal; variance beyond
    the usual is widened in its place, see `interval_scores`.

    Args:
        n_targets: how many targets there are.
    """

    widening: Tensor
    usual_apart: Tensor
    scores: Tensor
    mass: Tensor

    def __init__(self, n_targets: int):
        super().__init__()
        self.register_buffer("widening", torch.ones(n_targets))  # of what is unusual
        self.register_buffer("usual_apart", torch.zeros(n_targets))  # how much members disagree, over their variance
        for name in ("scores", "mass"):
            self.register_buffer(name, torch.empty(0, n_targets))  # shape: (rows, targets)

    def factor(self, coverage: float) -> Tensor | None:
        """Half the width of an interval, in spreads; None: nothing was held out. shape: (T,)"""
        if not len(self.scores):
            return None
        factor = held_out_quantile(self.scores, self.mass, coverage)
        normal = math.sqrt(2) * torch.special.erfinv(torch.tensor(coverage, dtype=torch.float64))
        few = torch.maximum(self.scores[-1], normal.to(self.scores))  # where rows are too few: the largest score
        return torch.where(factor.isfinite(), factor, few)

    def spread(self, prediction: Any, held_folds: int) -> Tensor:
        """The unit of the widths of intervals. shape: (n, T)

        Args:
            prediction: a mixture whose components are the kinds of members, and for each the folds.
            held_folds: how many.
        """
        folds = (-1, held_folds)
        weights = prediction.log_weights.exp().unflatten(-1, folds) * held_folds
        means = (prediction.means - prediction.mean[..., None]).unflatten(-1, folds)  # from there, as they may be large
        usual, beyond = (
            (weights * part.unflatten(-1, folds)).sum(-2).mean(-1)
            for part in (prediction.members_data + prediction.members_model, prediction.members_distributional)
        )
        middle = (weights * means).sum(-2, keepdim=True)
        within = (weights * (means - middle).square()).sum(-2).mean(-1)
        usual, beyond = self._told_apart(usual, beyond, within, middle.squeeze(-2).var(-1, correction=0))
        return (usual + self.widening.to(beyond) * beyond).sqrt()

    def fit(
        self, y: Tensor, mean: Tensor, variances: tuple[Tensor, Tensor], across: Tensor, weights: Tensor, counts: Tensor
    ) -> None:
        """Fit the scores and the widening to out-of-fold predictions.

        Args:
            y: shape (n, T)
            mean: of components that have not seen the row. shape: (n, T, components)
            variances: theirs, what is usual and what exceeds it. shapes: (n, T, components)
            across: the variance of what folds expect. shape: (n, T)
            weights: of components. shape: (components,)
            counts: how much each row counts. shape: (n,)
        """
        middle = mean @ weights
        within = (mean - middle[..., None]).square() @ weights
        usual, beyond = (part @ weights for part in variances)
        self.usual_apart.copy_(torch.quantile((within + across) / usual.clamp_min(TINY), ORDINARY, 0))
        usual, beyond = self._told_apart(usual, beyond, within, across)
        scores, mass, widening = interval_scores((y - middle).abs(), usual, beyond, counts)
        self.scores, self.mass = scores.to(self.widening), mass.to(self.widening)
        self.widening.copy_(widening)

    def _told_apart(self, usual: Tensor, beyond: Tensor, within: Tensor, across: Tensor) -> tuple[Tensor, Tensor]:
        """The usual part of a variance and the rest, where members may disagree more than is usual, too.

        usual, beyond: of members' own variances. within, across: what is between those of a fold, and between folds.
        shapes: (n, T)
        """
        apart = (within + across - self.usual_apart.to(usual) * usual).clamp_min(0.0)
        return usual + (within - apart).clamp_min(0.0), beyond + apart

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("scores", "mass"):  # as many as there were
            stored, own = state_dict.get(prefix + name), getattr(self, name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, dtype=own.dtype, device=own.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)
