"""Bayesian logistic regression: the strength of its prior chosen on rows held out, its posterior by Laplace.

Pure functions of tensors, in double precision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["LogisticPosterior", "bayesian_logistic"]

PRECISIONS = (300.0, 50.0, 10.0, 2.0, 0.5, 0.1, 0.02)  # of the prior on coefficients
NUMBERS = 2**22  # log-probabilities that are computed together
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
    """For each fold, what the rows outside it say; the precision of the prior, that which predicts the folds best.

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
    rows = max(1, NUMBERS // (folds * classes))
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
