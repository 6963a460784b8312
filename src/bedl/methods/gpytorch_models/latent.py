"""Sparse variational processes: one per output, all of the same build, with whitened inducing values."""

from __future__ import annotations

import math
from typing import Any

import torch
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from linear_operator.operators import DiagLinearOperator
from sklearn.cluster import KMeans
from torch import Tensor
from torch.nn.functional import unfold

__all__ = ["Latent", "PatchLatent"]


class Latent(ApproximateGP):
    """Processes with squared-exponential kernels, a length scale per feature, and inducing points that are learned.

    Args:
        n_features: of a point.
        n_outputs: how many processes.
        inducing: points of each.
    """

    is_of_points = True  # inducing values are values of the process, so that `covariances` says all
    jitter: float | None = 1e-8  # on variances of about 1; small, as the least noise of targets is 1e-6

    def __init__(self, n_features: int, n_outputs: int, inducing: int):
        batch = torch.Size([n_outputs])
        values = CholeskyVariationalDistribution(inducing, batch_shape=batch)
        super().__init__(
            self.strategy()(self, torch.zeros(n_outputs, inducing, n_features), values, jitter_val=self.jitter)
        )
        self.mean_module = ConstantMean(batch_shape=batch)
        kernel = RBFKernel(ard_num_dims=n_features, batch_shape=batch)
        kernel.lengthscale = math.sqrt(n_features)  # about the distance of two standardised points
        self.covar_module = ScaleKernel(kernel, batch_shape=batch)
        for module in self.modules():
            if isinstance(module, Interval):  # bounds are infinite and follow from the build: no file needs them
                module._non_persistent_buffers_set.update(("lower_bound", "upper_bound"))

    @classmethod
    def strategy(cls) -> type[VariationalStrategy]:
        """How the process at a point follows from the inducing values."""
        return VariationalStrategy

    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def covariances(self, a: Tensor, b: Tensor) -> Tensor:
        """Of the processes, in plain operations, as they are asked for often. shapes: (O, m, d), (n, d) -> (O, m, n)"""
        kernel: Any = self.covar_module
        near = _nearness(a / kernel.base_kernel.lengthscale, b / kernel.base_kernel.lengthscale)
        return kernel.outputscale[:, None, None] * near

    def start(self, x: Tensor, generator: torch.Generator, centres: bool = False) -> None:
        """Put the inducing points on rows of x, or on centres of k-means, and a little beside them.

        x: shape (n, features)
        """
        points: Any = self.variational_strategy.inducing_points
        count = points.shape[-2]
        rows = torch.cat([torch.randperm(len(x), generator=generator) for _ in range(-(-count // len(x)))])
        chosen = self.candidates(x)[rows[:count].to(x.device)] if len(x) else x
        if centres and len(x) > count:
            found = KMeans(count, init=chosen.cpu().numpy(), n_init=1).fit(x.cpu().numpy())  # begins at these rows
            chosen = torch.as_tensor(found.cluster_centers_).to(chosen)
        noise = 0.01 * torch.randn(chosen.shape, dtype=torch.float64, generator=generator).to(chosen)
        with torch.no_grad():
            points.copy_(chosen + noise)

    def candidates(self, x: Tensor) -> Tensor:
        """What inducing points may start at, one for each row. x: shape (n, features)"""
        return x


class PatchLatent(Latent):
    """Processes of images that are means over patches of a process of patches; inducing points are patches.

        f(x) = 1/P Σ_p g(x[p]),   k(x, z) = 1/P Σ_p k_g(x[p], z),   k(x, x') = 1/P² Σ_pq k_g(x[p], x'[q])

    Args:
        image: channels, height and width of a row.
        size: of a patch.
        n_outputs: how many processes.
        inducing: patches of each.
    """

    is_of_points = False
    jitter = None  # as GPyTorch has it: patches may be all but equal

    def __init__(self, image: tuple[int, int, int], size: tuple[int, int], n_outputs: int, inducing: int):
        self.image, self.size = image, size
        super().__init__(image[0] * math.prod(size), n_outputs, inducing)

    @classmethod
    def strategy(cls) -> type[VariationalStrategy]:
        return _PatchStrategy

    def patches(self, x: Tensor) -> Tensor:
        """x: shape (*batch, n, pixels); result: shape (*batch, n, P, patch)"""
        found = unfold(x.reshape(-1, *self.image), self.size).mT
        return found.reshape(*x.shape[:-1], *found.shape[-2:])

    def candidates(self, x: Tensor) -> Tensor:
        patches = self.patches(x)
        places = (torch.arange(len(x), device=x.device) * 7919) % patches.shape[1]  # another place for each image
        return patches[torch.arange(len(x), device=x.device), places]

    def across(self, z: Tensor, x: Tensor) -> Tensor:
        """Covariances of patches and images. shapes: (O, m, patch), (O, n, pixels) -> (O, m, n)"""
        patches = self.patches(x)
        kernel: Any = self.covar_module
        scale = kernel.base_kernel.lengthscale
        near = _nearness(z / scale, patches.flatten(-3, -2) / scale).unflatten(-1, patches.shape[-3:-1])
        return kernel.outputscale[:, None, None] * near.mean(-1)

    def variances(self, x: Tensor) -> Tensor:
        """Of images. shape: (O, n, pixels) -> (O, n)"""
        kernel: Any = self.covar_module
        scaled = self.patches(x) / kernel.base_kernel.lengthscale.unsqueeze(-2)
        return kernel.outputscale[:, None] * _nearness(scaled, scaled).mean((-2, -1))


def _nearness(a: Tensor, b: Tensor) -> Tensor:
    """exp(−½ ‖a − b‖²) of all pairs. shapes: (*, m, d), (*, n, d) -> (*, m, n)

    The exponent is one product, of a, −½ ‖a‖² and 1 with b, 1 and −½ ‖b‖²: passes over all pairs are what takes time.
    """
    half_a, half_b = (-0.5 * part.square().sum(-1, keepdim=True) for part in (a, b))
    left = torch.cat([a, half_a, torch.ones_like(half_a)], -1)
    return (left @ torch.cat([b, torch.ones_like(half_b), half_b], -1).mT).exp()


class _PatchStrategy(VariationalStrategy):
    """`VariationalStrategy` whose inducing values are those of the process of patches."""

    def forward(
        self,
        x: Tensor,
        inducing_points: Tensor,
        inducing_values: Tensor,
        variational_inducing_covar: Any = None,
        diag: bool = True,
        **kwargs: Any,
    ) -> MultivariateNormal:
        model: Any = self.model
        inside = model.covar_module(inducing_points).add_jitter(self.jitter_val)
        factor = self._cholesky_factor(inside).to_dense()
        across = torch.linalg.solve_triangular(factor, model.across(inducing_points, x), upper=False)
        mean = (across * inducing_values[..., None]).sum(-2) + model.mean_module(x)
        spread = (across * (variational_inducing_covar.to_dense() @ across)).sum(-2)
        variance = model.variances(x) - across.square().sum(-2) + spread
        return MultivariateNormal(mean, DiagLinearOperator(variance.clamp_min(1e-10)))
