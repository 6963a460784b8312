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
from gpytorch.constraints import Interval
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from gpytorch.models import ApproximateGP
from gpytorch.variational import CholeskyVariationalDistribution, VariationalStrategy
from linear_operator.operators import DiagLinearOperator
from sklearn.cluster import KMeans
from torch import Tensor, nn
from torch.nn.functional import unfold

from bedl.heads import ExpectedMeanVariance, ExpectedSoftmax
from bedl.heads.plain import MIN_NOISE
from bedl.heads.predictive import Predictive
from bedl.methods.base import Method
from bedl.methods.baselines.exact_gp import refuse_export
from bedl.methods.baselines.wide_kernels import image_of
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.nn.draws import seeded

Approximation = Literal["vfe", "fitc"]


def collapsed_bound(
    latent: Any, log_precision: Tensor, x: Tensor, y: Tensor, weight: Tensor, approximation: Approximation = "vfe"
) -> tuple[Tensor, Tensor, Tensor]:
    """The bound at the best q(u), summed over the outputs, and that q of the whitened values L⁻¹(u − c).

    Args:
        latent: processes, see `bedl.methods.baselines.sparse_gp.Latent`.
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


# Sparse Gaussian processes: a process known through its values at few inducing points, learned variationally.
#
#     maximise  Σ_n E_q(f) log p(y_n | f(x_n)) − KL(q(u) ‖ p(u)),   u = f(Z),   q(u) = N(m, S)
#
# For real targets the noise is normal, the best q(u) has a closed form and the bound is that of M. Titsias,
# "Variational Learning of Inducing Variables in Sparse Gaussian Processes", AISTATS 2009
# (`bedl.methods.baselines.sparse_gp`); for classes, a softmax of one process per class, J. Hensman, A. Matthews, Z.
# Ghahramani, "Scalable Variational Gaussian Process Classification", AISTATS 2015. Built on GPyTorch (J. Gardner et
# al., NeurIPS 2018); computed in double precision. 50 inducing points, as in the paper that bedl follows.


NOISE = 10.0  # precision at the start, of targets whose variance is 1
MAX_PRECISION = -math.log(MIN_NOISE)  # its logarithm


class SparseGP(Method):
    """Sparse variational processes under a likelihood; learns by itself.

    Args:
        latent: makes the processes, see `bedl.methods.baselines.sparse_gp`.
        head: the likelihood.
        front: what stands in front of them.
        steps: of Adam; of L-BFGS where q(u) has a closed form, that is for real targets and kernels of points.
        lr: of Adam, a learning rate that falls to a tenth.
        batch_size: points per step of Adam.
        approximation: where q(u) has a closed form, ``"vfe"`` or ``"fitc"``, see `bedl.methods.baselines.sparse_gp`.
        starts: there, how many length scales and inducing points learning starts from: a fifth of the steps each, and
            the best one goes on.
    """

    def __init__(
        self,
        latent: Callable[[], Any],
        head: ExpectedMeanVariance | ExpectedSoftmax,
        front: nn.Module | None = None,
        steps: int = 1000,
        lr: float = 0.03,
        batch_size: int = 256,
        approximation: Approximation = "vfe",
        starts: int = 1,
    ):
        super().__init__()
        if steps < 1 or batch_size < 1:
            raise ValueError(f"a sparse process takes at least one step of one point, not {steps} of {batch_size}")
        if approximation not in ("vfe", "fitc"):
            raise ValueError(f"approximation must be 'vfe' or 'fitc', not {approximation!r}")
        if starts < 1:
            raise ValueError(f"starts must be at least 1, not {starts}")
        self.approximation, self.starts = approximation, starts
        self.latent, self.head = latent().double(), head
        self.front = nn.Identity() if front is None else front
        self.steps, self.lr, self.batch_size = steps, lr, batch_size
        self.seed = int(torch.randint(2**62, ()))

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Covariances stay in double precision wherever the rest goes."""
        super()._apply(fn, recurse)
        self.latent.double()
        self.latent.variational_strategy._clear_cache()
        return self

    def _load_from_state_dict(self, *args: Any) -> None:
        """Factors of the covariances that there were are not those of the ones to come."""
        self.latent.variational_strategy._clear_cache()
        super()._load_from_state_dict(*args)

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        if not isinstance(x, Tensor):
            raise ValueError("a sparse Gaussian process knows no noise of inputs (X_var); leave it out")
        refuse_export(self)
        return self.head(self.outputs(self._rows_of(x))).to(x.dtype)

    def outputs(self, z: Tensor) -> Moments:
        """Moments of the processes. z: shape (n, features); result: shape (n, outputs)"""
        f = self.latent(z)
        return Moments(f.mean.mT, f.variance.mT)

    def _rows_of(self, x: Tensor) -> Tensor:
        return self.front(x).reshape(len(x), -1).double()

    # -- learning ---------------------------------------------------------------------------------
    def fit(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        with torch.no_grad():
            z = self._rows_of(x)
        y = y.reshape(len(y), -1).double() if y.is_floating_point() else y
        counts = torch.ones(len(z)).to(z) if weight is None else weight.to(z)
        order = torch.Generator().manual_seed(self.seed)
        self.train()
        with seeded(z.device, self.seed), torch.enable_grad():
            if self.latent.is_of_points and isinstance(self.head, ExpectedMeanVariance):
                self._fit_collapsed(z, y, counts, order)
            else:
                self.latent.start(z, order)
                self._fit_by_steps(z, y, counts, order)
        self.eval()

    def _fit_collapsed(self, z: Tensor, y: Tensor, weight: Tensor, order: torch.Generator) -> None:
        """Kernels, noise and inducing points, q(u) being always the best one."""
        latent, head = self.latent, self.head
        assert isinstance(head, ExpectedMeanVariance)
        rate = head.log_precision.detach().double().requires_grad_()

        def value() -> Tensor:
            precision = rate.clamp_max(MAX_PRECISION)
            return collapsed_bound(latent, precision, z, y, weight, self.approximation)[0] / weight.sum()

        learned = [*latent.hyperparameters(), rate]  # inducing points are among them
        if self.starts == 1:
            latent.start(z, order)
        else:
            self._start_at_the_best(value, learned, z, order)
        maximise(value, learned, self.steps)
        rate = rate.detach().clamp_max(MAX_PRECISION)
        head.log_precision.data.copy_(rate)
        put_best_values(latent, rate, z, y, weight, self.approximation)

    def _start_at_the_best(
        self, value: Callable[[], Tensor], learned: list[Tensor], z: Tensor, order: torch.Generator
    ) -> None:
        """Take some steps from 1, ½, 2, ¼, … times the usual length scales, each with other centres of k-means."""
        first, found = [p.detach().clone() for p in learned], []
        kernel = self.latent.covar_module.base_kernel
        for number in range(self.starts):
            _put(learned, first)
            kernel.lengthscale = kernel.lengthscale.detach() * 2.0 ** ((number + 1) // 2 * (-1) ** number)
            self.latent.start(z, order, centres=True)
            reached = maximise(value, learned, max(1, self.steps // 5))
            found.append((reached, [p.detach().clone() for p in learned]))
        _put(learned, max(found, key=lambda pair: pair[0])[1])

    def _fit_by_steps(self, z: Tensor, y: Tensor, weight: Tensor, order: torch.Generator) -> None:
        optimizer = torch.optim.Adam([p for p in self.parameters() if p.requires_grad], self.lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 ** (1 / self.steps))
        for _ in range(self.steps):
            rows = torch.randperm(len(z), generator=order)[: self.batch_size].to(z.device)
            optimizer.zero_grad()
            self.negative_bound(z[rows], y[rows], weight[rows], weight.sum()).backward()
            optimizer.step()
            schedule.step()

    def negative_bound(self, z: Tensor, y: Tensor, weight: Tensor, total: Tensor) -> Tensor:
        """−bound / total, by some points. z: shape (n, features), weight: shape (n,), total: of all weights; ()"""
        expected = self.head.expected_log_prob(self.outputs(z), y)
        divergence = self.latent.variational_strategy.kl_divergence().sum()
        return divergence / total - (weight @ expected) / weight.sum()


def _put(parameters: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for p, value in zip(parameters, values, strict=True):
            p.copy_(value)


def head_for(problem: Problem) -> ExpectedMeanVariance | ExpectedSoftmax:
    """Normal noise of a size that is learned, or a softmax, whose expectation is sampled."""
    if problem.task == "regression":
        return ExpectedMeanVariance(problem.n_targets, noise="shared", precision=NOISE)
    return ExpectedSoftmax(problem.n_targets, "samples", samples=8)


@register(
    "sparse-gp",
    "sparse variational Gaussian process, 50 inducing points",
    tasks=("regression", "classification"),
    needs=("gpytorch",),
    extra="gp",
)
def sparse_gp(
    problem: Problem,
    inducing: int = 50,
    steps: int | None = None,
    lr: float = 0.03,
    approximation: Approximation = "vfe",
    starts: int = 1,
) -> SparseGP:
    """A squared-exponential kernel with a length scale per column, for each target or class.

    Args:
        inducing: points that the process is known by.
        steps: of learning; None: for targets at most 300 of L-BFGS on all rows, for classes 1,000 of Adam on 256 rows.
        lr: learning rate, for classes.
        approximation: of targets: ``"vfe"``, the variational bound, or ``"fitc"``.
        starts: of targets: of length scales and inducing points, among which the bound chooses; more than one begin at
            the centres of k-means, a single one at rows.
    """
    if problem.net is not None:
        raise ValueError("method 'sparse-gp' has a kernel and no network; leave net out, or name another method")

    n_features = torch.Size(problem.input_shape).numel()
    front = None if problem.front is None else problem.front()
    taken = steps if steps is not None else 300 if problem.task == "regression" else 1000
    return SparseGP(
        lambda: Latent(n_features, problem.n_targets, inducing), head_for(problem), front, taken, lr,
        approximation=approximation, starts=starts,
    )  # fmt: skip


# Convolutional Gaussian processes: a sparse process of images that is a mean over their patches.
#
# M. van der Wilk, C. Rasmussen, J. Hensman, "Convolutional Gaussian Processes", NeurIPS 2017: the plain convolutional
# kernel with inducing patches, see `bedl.methods.baselines.sparse_gp.PatchLatent`; all else is as for "sparse-gp".
# Which tables are images, `bedl.methods.baselines.wide_kernels` says.


@register(
    "conv-gp",
    "convolutional Gaussian process with inducing patches (van der Wilk et al. 2017)",
    tasks=("regression", "classification"),
    needs=("gpytorch",),
    extra="gp",
)
def conv_gp(
    problem: Problem,
    inducing: int = 100,
    size: int | None = None,
    image: Sequence[int] | None = None,
    steps: int = 1000,
    lr: float = 0.03,
    batch_size: int = 64,
) -> SparseGP:
    """The paper has 750 inducing patches of 5 × 5 for MNIST; the default of 100 is for a processor.

    Args:
        inducing: patches that the process is known by.
        size: of a patch; None: 5, or 3 for images below 12 pixels.
        image: channels, height and width of a row; None: the estimator's `image_shape`, or a square of one channel.
        steps: of learning.
        lr: learning rate.
        batch_size: images per step.
    """
    if problem.net is not None:
        raise ValueError("method 'conv-gp' has a kernel and no network; leave net out, or name another method")
    shape = image_of("conv-gp", problem, image)

    side = size if size is not None else 5 if max(shape[1:]) >= 12 else 3
    patch = min(side, shape[1]), min(side, shape[2])
    front = None if problem.front is None else problem.front()
    latent = lambda: PatchLatent(shape, patch, problem.n_targets, inducing)  # noqa: E731
    return SparseGP(latent, head_for(problem), front, steps, lr, batch_size)


# Sparse variational processes: one per output, all of the same build, with whitened inducing values.


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
