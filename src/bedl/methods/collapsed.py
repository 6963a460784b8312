"""Sparse processes of real targets at their best q(u), which normal noise lets one write down.

With K of the inducing points = L Lᵀ, V = L⁻¹ K(Z, X), noise precisions p_n = w_n/σ² and B = I + V diag(p) Vᵀ,

    q(u) = N(c + L B⁻¹ V diag(p) (y − c), L B⁻¹ Lᵀ)
    bound = log N(y; c, VᵀV + diag(1/p)) − ½ Σ p_n (k(x_n, x_n) − Σ_m V_mn²)        (where all weights w_n are 1)

FITC is the exact likelihood of a model whose values are independent given u, and has no second term,

    log N(y; c, VᵀV + diag(1/r)),   1/r_n = 1/p_n + k(x_n, x_n) − Σ_m V_mn²,   q(u) as above, with r for p

E. Snelson, Z. Ghahramani, "Sparse Gaussian Processes using Pseudo-inputs", NeurIPS 2006;
M. Titsias, "Variational Learning of Inducing Variables in Sparse Gaussian Processes", AISTATS 2009. What is left to
learn, kernels, noise and inducing points, goes by L-BFGS on all rows: without q(u) it is few numbers, and a bound that
is not sampled needs no small steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

Approximation = Literal["vfe", "fitc"]

__all__ = ["Approximation", "collapsed_bound", "maximise", "put_best_values"]


def collapsed_bound(
    latent: Any, log_precision: Tensor, x: Tensor, y: Tensor, weight: Tensor, approximation: Approximation = "vfe"
) -> tuple[Tensor, Tensor, Tensor]:
    """The bound at the best q(u), summed over the outputs, and that q of the whitened values L⁻¹(u − c).

    Args:
        latent: processes, see `bedl.methods.gpytorch_models.latent.Latent`.
        log_precision: of the noise. shape: (O,)
        x, y, weight: rows. shapes: (n, features), (n, O), (n,)
        approximation: ``"vfe"`` is that bound, ``"fitc"`` the likelihood in place of it.

    Returns:
        bound, mean and the Cholesky factor of q's precision B. shapes: (), (O, m), (O, m, m)
    """
    points, jitter = latent.variational_strategy.inducing_points, latent.variational_strategy.jitter_val
    unit = torch.eye(points.shape[-2]).to(x)
    scale = latent.covar_module.outputscale[:, None]
    inside = torch.linalg.cholesky(latent.covariances(points, points) + jitter * unit)
    across = torch.linalg.solve_triangular(inside, latent.covariances(points, x), upper=False)
    missing = (scale - across.square().sum(-2)).clamp_min(0.0)
    of_row = log_precision.exp()[:, None].expand_as(missing)
    if approximation == "fitc":
        of_row, missing = 1 / (1 / of_row + missing), torch.zeros_like(missing)
    precision = of_row * weight
    scaled, rest = across * precision.sqrt()[:, None], (y.mT - latent.mean_module.constant[:, None]) * precision.sqrt()
    factor = torch.linalg.cholesky(unit + scaled @ scaled.mT)
    half = torch.linalg.solve_triangular(factor, scaled @ rest[..., None], upper=False)
    fit = rest.square().sum() - half.square().sum() + (precision * missing).sum()
    constant = (weight * (math.log(2 * math.pi) - of_row.log())).sum()
    determinant = factor.diagonal(dim1=-2, dim2=-1).log().sum()
    mean = torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0]
    return -0.5 * (constant + fit) - determinant, mean, factor


def put_best_values(
    latent: Any, log_precision: Tensor, x: Tensor, y: Tensor, weight: Tensor, approximation: Approximation = "vfe"
) -> None:
    """Give the processes their best q(u); arguments as for `collapsed_bound`."""
    strategy = latent.variational_strategy
    with torch.no_grad():
        _, mean, factor = collapsed_bound(latent, log_precision, x, y, weight, approximation)
        unit = torch.eye(mean.shape[-1]).to(mean)
        covariance = torch.cholesky_solve(unit.expand_as(factor), factor)
        strategy._variational_distribution.variational_mean.copy_(mean)
        strategy._variational_distribution.chol_variational_covar.copy_(torch.linalg.cholesky(covariance))
        strategy.variational_params_initialized.fill_(1)
    strategy._clear_cache()


def maximise(value: Callable[[], Tensor], parameters: Sequence[Tensor], steps: int) -> float:
    """Move parameters to where a value is largest, by L-BFGS; to the best that was seen, should it go astray.

    Args:
        value: of the parameters as they are. shape: ()
        parameters: what it depends on.
        steps: at most.

    Returns:
        the largest value; −inf where there was none.
    """
    best, kept = math.inf, [p.detach().clone() for p in parameters]
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=steps, max_eval=2 * steps, history_size=20, tolerance_grad=1e-7, tolerance_change=1e-10,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        nonlocal best, kept
        optimizer.zero_grad()
        cost = -value()
        cost.backward()
        if cost.item() < best:
            best, kept = cost.item(), [p.detach().clone() for p in parameters]
        return cost.detach()

    try:
        optimizer.step(closure)
    except torch.linalg.LinAlgError:  # a step so long that covariances are no numbers any more
        pass
    finally:
        with torch.no_grad():
            for p, value_of_best in zip(parameters, kept, strict=True):
                p.copy_(value_of_best)
    return -best
