"""Bayesian logistic regression: the strength of its prior chosen by out-of-fold likelihood, its posterior by Laplace.

Pure functions of tensors, in double precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from bedl.heads.integrals import log_mean_softmax, softmax_spread
from bedl.heads.predictive import CategoricalPredictive, NormalPredictive
from bedl.methods.stack.weights import LinearPosterior, bayesian_linear
from bedl.moments import Moments, as_moments

__all__ = ["LinearClasses", "LinearTargets", "LogisticPosterior", "bayesian_logistic"]


PRECISIONS = (300.0, 50.0, 10.0, 2.0, 0.5, 0.1, 0.02)  # of the prior on coefficients
MAX_LOG_PROBABILITIES = 2**22  # log-probabilities that are computed together
STEPS = 40  # of L-BFGS for each of them, from where the last one ended


class LogisticPosterior(NamedTuple):
    """Multinomial logistic regression of C classes on d columns, one for each of K folds.

    Attributes:
        coefficients: the most probable ones, the intercept last. shape: (K, C, d + 1)
        covariance: of each class's coefficients; those between classes are left out. shape: (K, C, d + 1, d + 1)
    """

    coefficients: Tensor
    covariance: Tensor


def bayesian_logistic(
    x: Tensor, y: Tensor, n_classes: int, fold: Tensor, held: int, weight: Tensor | None = None
) -> LogisticPosterior:
    """For each fold, the posterior given the rows outside it; the precision of the prior predicts the folds best.

    D. MacKay, "The Evidence Framework Applied to Classification Networks", Neural Computation 1992, but for the choice
    of the prior.

    Args:
        x: scaled columns. shape: (n, d)
        y: numbers of the classes. shape: (n,)
        n_classes: how many there are.
        fold: number of each row's fold; rows of folds from `held` on are learned from by all. shape: (n,)
        held: how many folds are held out, each by a regression of its own.
        weight: how much each row counts. shape: (n,)

    Example:
        >>> x = torch.linspace(-1, 1, 60)[:, None]
        >>> found = bayesian_logistic(x, (x[:, 0] > 0).long(), 2, torch.arange(60) % 5, 5)
        >>> found.coefficients.shape, bool((found.coefficients[:, 1, 0] > 1).all())
        (torch.Size([5, 2, 2]), True)
    """
    design = torch.cat([x.double(), torch.ones(len(x), 1, dtype=torch.float64, device=x.device)], 1)
    counts = torch.ones(len(x), dtype=torch.float64, device=x.device) if weight is None else weight.double()
    learned = counts * (fold != torch.arange(held, device=x.device)[:, None])  # shape: (K, n)
    out = (fold < held).nonzero()[:, 0]
    own = fold[out]
    coefficients = torch.zeros(held, n_classes, design.shape[1], dtype=torch.float64, device=x.device)
    best, found, chosen = -torch.inf, coefficients, PRECISIONS[0]
    for precision in PRECISIONS:
        coefficients = _most_probable(coefficients, design, y, learned, precision)
        log_p = torch.log_softmax((design[out, None] @ coefficients[own].mT)[:, 0], -1)
        score = float(counts[out] @ log_p.gather(1, y[out, None])[:, 0])
        if score < best:
            break
        best, found, chosen = score, coefficients, precision
    return LogisticPosterior(found, _covariance(found, design, learned, chosen))


def _most_probable(start: Tensor, design: Tensor, y: Tensor, learned: Tensor, precision: float) -> Tensor:
    """The coefficients of highest posterior density, of all folds at once. shape: (K, C, d + 1)"""
    coefficients = start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([coefficients], max_iter=STEPS, tolerance_grad=1e-6, line_search_fn="strong_wolfe")
    folds, classes, _ = start.shape
    share = (learned / learned.sum(1, keepdim=True).clamp_min(1.0)).T[..., None]  # shape: (n, K, 1)
    shrink = precision / learned.sum(1).clamp_min(1.0)[:, None, None]
    rows = max(1, MAX_LOG_PROBABILITIES // (folds * classes))
    parts = list(zip(design.split(rows), y.split(rows), share.split(rows), strict=True))

    def closure() -> Tensor:
        own = coefficients.detach()
        gradient, loss = torch.zeros_like(own), 0.5 * (shrink * own[..., :-1].square()).sum()
        gradient[..., :-1] = shrink * own[..., :-1]
        for x, labels, counts in parts:
            observed = torch.nn.functional.one_hot(labels, classes)[:, None].to(design)
            log_p = torch.log_softmax((x @ own.flatten(0, 1).T).unflatten(1, (folds, classes)), -1)
            error = counts * (log_p.exp() - observed)  # shape: (rows, K, C)
            gradient += (error.flatten(1).T @ x).reshape(own.shape)
            loss = loss - (counts * observed * log_p).sum()
        coefficients.grad = gradient
        return loss

    optimizer.step(closure)
    return coefficients.detach()


def _covariance(coefficients: Tensor, design: Tensor, learned: Tensor, precision: float) -> Tensor:
    """Inverse curvature of the posterior for each class by itself. shape: (K, C, d + 1, d + 1)

    What all classes have in common does not count, which is a share 1/C of it: for two classes the difference of the
    coefficients then has the variance that it has in a regression of two classes.
    """
    prior = torch.full((design.shape[1],), precision, dtype=torch.float64, device=design.device)
    prior[-1] = 1e-2  # of the intercept, which has no prior of its own: so much that it can be inverted
    covariance = []
    for own, count in zip(coefficients, learned, strict=True):
        p = torch.softmax(design @ own.T, -1)
        curvature = [design.T @ (design * (count * q * (1 - q))[:, None]) for q in p.T]
        covariance.append(torch.linalg.inv(torch.stack(curvature) + torch.diag(prior)))
    return torch.stack(covariance) * (coefficients.shape[1] - 1) / coefficients.shape[1]


# The linear members of a stack: one regression per fold, kept as buffers.


MAX_MEANS = 2**14  # means whose averages are computed together: of each, some dozens of numbers are needed


class _Bounded(nn.Module):
    """Scaled columns, which end as far outside the data as these are wide: beyond, the line is constant.

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
        """Each fold's prediction. shapes of the parts: (folds, n, T)"""
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
        """Each fold's prediction. shapes: (folds, n, …)

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
    rows = max(1, MAX_MEANS // m.shape[-1])
    if not torch.compiler.is_compiling() and len(m) > rows:
        parts = [_averages(*some) for some in zip(m.split(rows), v.split(rows), strict=True)]
        log_p, spread, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
        return log_p, spread, entropy
    log_p = log_mean_softmax(m, v)
    return (log_p, *softmax_spread(m, v, log_p))
