"""Sparse Gaussian processes: a process known through its values at few inducing points, learned variationally.

    maximise  Σ_n E_q(f) log p(y_n | f(x_n)) − KL(q(u) ‖ p(u)),   u = f(Z),   q(u) = N(m, S)

For real targets the noise is normal, the best q(u) has a closed form and the bound is that of M. Titsias, "Variational
Learning of Inducing Variables in Sparse Gaussian Processes", AISTATS 2009 (`bedl.methods.collapsed`); for classes, a
softmax of one process per class, J. Hensman, A. Matthews, Z. Ghahramani, "Scalable Variational Gaussian Process
Classification", AISTATS 2015. Built on GPyTorch (J. Gardner et al., NeurIPS 2018); computed in double precision. 50
inducing points, as in the paper that bedl follows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bedl.heads import ExpectedMeanVariance, ExpectedSoftmax
from bedl.heads.mean_variance import LEAST_NOISE
from bedl.methods.base import Method
from bedl.methods.collapsed import Approximation, collapsed_bound, maximise, put_best_values
from bedl.methods.exact_gp import refuse_export
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.nn.draws import seeded
from bedl.predictive import Predictive

__all__ = ["SparseGP", "head_for"]

NOISE = 10.0  # precision at the start, of targets whose variance is 1
MOST_PRECISION = -math.log(LEAST_NOISE)  # its logarithm


class SparseGP(Method):
    """Sparse variational processes under a likelihood; learns by itself.

    Args:
        latent: makes the processes, see `bedl.methods.gpytorch_models.latent`.
        head: the likelihood.
        front: what stands in front of them.
        steps: of Adam; of L-BFGS where q(u) has a closed form, that is for real targets and kernels of points.
        lr: of Adam, a learning rate that falls to a tenth.
        batch_size: points per step of Adam.
        approximation: where q(u) has a closed form, ``"vfe"`` or ``"fitc"``, see `bedl.methods.collapsed`.
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
            precision = rate.clamp_max(MOST_PRECISION)
            return collapsed_bound(latent, precision, z, y, weight, self.approximation)[0] / weight.sum()

        learned = [*latent.hyperparameters(), rate]  # inducing points are among them
        if self.starts == 1:
            latent.start(z, order)
        else:
            self._start_at_the_best(value, learned, z, order)
        maximise(value, learned, self.steps)
        rate = rate.detach().clamp_max(MOST_PRECISION)
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
        problem: what it is for.
        inducing: points that the process is known by.
        steps: of learning; None: for targets at most 300 of L-BFGS on all rows, for classes 1,000 of Adam on 256 rows.
        lr: learning rate, for classes.
        approximation: of targets: ``"vfe"``, the variational bound, or ``"fitc"``.
        starts: of targets: of length scales and inducing points, among which the bound chooses; more than one begin at
            the centres of k-means, a single one at rows.
    """
    if problem.net is not None:
        raise ValueError("method 'sparse-gp' has a kernel and no network; leave net out, or name another method")
    from bedl.methods.gpytorch_models.latent import Latent

    n_features = torch.Size(problem.input_shape).numel()
    front = None if problem.front is None else problem.front()
    taken = steps if steps is not None else 300 if problem.task == "regression" else 1000
    return SparseGP(
        lambda: Latent(n_features, problem.n_targets, inducing), head_for(problem), front, taken, lr,
        approximation=approximation, starts=starts,
    )  # fmt: skip
