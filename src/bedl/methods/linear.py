"""The linear members of a stack: one regression per fold, kept as buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bedl.heads.race import log_mean_softmax, softmax_spread
from bedl.methods.logistic import bayesian_logistic
from bedl.methods.stacking import LinearPosterior, bayesian_linear
from bedl.moments import Moments, as_moments
from bedl.predictive import CategoricalPredictive, NormalPredictive

__all__ = ["LinearClasses", "LinearTargets"]

NUMBERS = 2**14  # means whose averages are computed together: of each, some dozens of numbers are needed


class _Bounded(nn.Module):
    """Scaled columns, which end as far outside the data as these are wide: beyond, nothing is known.

    Args:
        n_columns: of the table.
        front: scales the columns; None: they are as they should be.
    """

    low: Tensor
    high: Tensor

    def __init__(self, n_columns: int, front: nn.Module | None):
        super().__init__()
        self.front = nn.Identity() if front is None else front
        self.register_buffer("low", torch.full((n_columns,), -torch.inf))
        self.register_buffer("high", torch.full((n_columns,), torch.inf))

    def look(self, x: Tensor | Moments) -> Tensor:
        """Scale the columns of the training set and remember where they lie. shape: (n, columns)"""
        z = as_moments(self.front(x)).loc
        low, high = z.amin(0), z.amax(0)
        self.low, self.high = (2 * low - high).to(self.low), (2 * high - low).to(self.high)
        return z

    def forward(self, x: Tensor | Moments) -> Moments:
        z = as_moments(self.front(x))
        return Moments(torch.minimum(torch.maximum(z.loc, self.low), self.high), z.variance)


class LinearTargets(nn.Module):
    """A Bayesian linear regression per fold.

    Args:
        folds: how many.
        n_columns: of the table.
        n_targets: how many targets.
        front: scales the columns; None: they are as they should be.
    """

    centre: Tensor
    intercept: Tensor
    coefficients: Tensor
    covariance: Tensor
    noise: Tensor
    size: Tensor

    def __init__(self, folds: int, n_columns: int, n_targets: int, front: nn.Module | None = None):
        super().__init__()
        self.columns = _Bounded(n_columns, front)
        d, t = n_columns, n_targets
        shapes = {"centre": (d,), "intercept": (t,), "coefficients": (t, d), "covariance": (t, d, d)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.zeros(folds, *shape))
        self.register_buffer("noise", torch.ones(folds, t))
        self.register_buffer("size", torch.ones(folds))

    def fit(self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None) -> None:
        """Learn, for each fold, from the rows outside it; noise of inputs is not considered."""
        z = self.columns.look(x)
        for k in range(len(self.size)):
            rows = fold != k
            learned = bayesian_linear(z[rows], y[rows], None if weight is None else weight[rows])
            for name in LinearPosterior._fields:
                getattr(self, name)[k] = getattr(learned, name)

    def forward(self, x: Tensor | Moments) -> NormalPredictive:
        """What each fold's regression says. shapes of the parts: (folds, n, T)"""
        z = self.columns(x)
        away = z.loc - self.centre[:, None]  # shape: (folds, n, d)
        mean = self.intercept[:, None] + away @ self.coefficients.mT
        inside = ((away[:, None] @ self.covariance) * away[:, None]).sum(-1).mT  # shape: (folds, n, T)
        data = self.noise[:, None].expand_as(mean)
        model = inside + (self.noise / self.size[:, None])[:, None]
        if isinstance(x, Moments):
            model = model + z.variance @ self.coefficients.square().mT
        return NormalPredictive(mean, data, torch.zeros_like(mean), model)


class LinearClasses(nn.Module):
    """A Bayesian logistic regression per fold, with the arguments of `LinearTargets`."""

    coefficients: Tensor
    covariance: Tensor

    def __init__(self, folds: int, n_columns: int, n_classes: int, front: nn.Module | None = None):
        super().__init__()
        self.columns = _Bounded(n_columns, front)
        self.n_classes, d = n_classes, n_columns + 1
        self.register_buffer("coefficients", torch.zeros(folds, n_classes, d))
        self.register_buffer("covariance", torch.zeros(folds, n_classes, d, d))

    def fit(self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None) -> None:
        """Learn, for each fold, from the rows outside it; noise of inputs is not considered."""
        z = self.columns.look(x)
        learned = bayesian_logistic(z, y, self.n_classes, fold, len(self.coefficients), weight)
        self.coefficients.copy_(learned.coefficients)
        self.covariance.copy_(learned.covariance)

    def forward(self, x: Tensor | Moments) -> CategoricalPredictive:
        """What each fold's regression says. shapes: (folds, n, …)

        Probabilities are those of the most probable coefficients: averaged over Laplace's normal they are far too
        careful where classes are apart. How much of the uncertainty is about the coefficients, that average says.
        """
        z = self.columns(x)
        columns = torch.cat([z.loc, torch.ones_like(z.loc[:, :1])], -1)
        mean = columns @ self.coefficients.mT  # shape: (folds, n, C)
        variance = torch.stack([((columns @ own) * columns).sum(-1).T for own in self.covariance]).clamp_min(0.0)
        if isinstance(x, Moments):
            variance = variance + z.variance @ self.coefficients[..., :-1].square().mT
        flat = mean.flatten(0, 1), variance.flatten(0, 1)
        careful, spread, given_f = _averages(*flat)
        none = torch.zeros_like(given_f)
        averaged = CategoricalPredictive(careful, given_f, none, none, spread)
        return averaged.as_bold_as(torch.log_softmax(flat[0], -1))._map(lambda leaf: leaf.unflatten(0, mean.shape[:2]))


def _averages(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log E softmax(f), its variances and E entropy, some rows at a time.

    shapes: (n, C), (n, C) -> (n, C), (n, C), (n,)
    """
    rows = max(1, NUMBERS // m.shape[-1])
    if not torch.compiler.is_compiling() and len(m) > rows:
        parts = [_averages(*some) for some in zip(m.split(rows), v.split(rows), strict=True)]
        log_p, spread, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        return log_p, spread, entropy
    log_p = log_mean_softmax(m, v)
    return (log_p, *softmax_spread(m, v, log_p))
