"""Gaussian-process regression with a given kernel, solved exactly: what the kernels of wide networks are put into.

    y = f + noise,  f ~ GP(0, s k),  noise ~ N(0, s ρ / weight)

The ratio ρ of noise to signal maximises the evidence, found for all ratios at once from one eigendecomposition; the
scale s of each target then has a closed form (C. Rasmussen, C. Williams, "Gaussian Processes for Machine Learning",
2006, chapters 2 and 5). Classes are regressed on as one-hot labels less their mean, as J. Lee et al., ICLR 2018, do.
For probabilities, the outputs are divided by a temperature and go through a softmax; the temperature maximises the
likelihood of leave-one-out predictions, which are closed, too.
"""

from __future__ import annotations

import warnings
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl._utils.errors import BEDLError
from bedl.heads import Softmax
from bedl.heads.predictive import NormalPredictive, Predictive
from bedl.methods.base import Method
from bedl.moments import Moments
from bedl.nn.draws import seeded

MAX_ROWS = 4000
RATIOS = torch.logspace(-6, 2, 65, dtype=torch.float64)
TEMPERATURES = torch.logspace(-2, 0.5, 26, dtype=torch.float64)
MIN_VARIANCE = 1e-10  # variance of f
JUDGED = 1000  # points that the temperature is chosen on


class Kernel(Protocol):
    """A covariance function."""

    def __call__(self, x: Tensor, z: Tensor) -> Tensor:
        """shapes: (n, d), (m, d) -> (n, m)"""

    def diagonal(self, x: Tensor) -> Tensor:
        """shape: (n, d) -> (n,)"""


def refuse_export(method: Method) -> None:
    """Covariances with rows or inducing points are factorised in double precision: nothing for a graph to do."""
    if torch.compiler.is_exporting():
        raise BEDLError(
            f"{type(method).__name__}: a Gaussian process is not exported; use save and load, or export a network, "
            "such as that of method 'dvi'"
        )


class ExactGP(Method):
    """A Gaussian process that keeps its training rows; learns by itself.

    Args:
        kernel: the covariance function.
        task: "regression" or "classification".
        n_targets: targets or classes.
        front: what stands in front of the kernel.
        largest: up to how many rows are solved for; of more, so many are drawn at random, with a warning.
        noise: the ratio of noise to signal; None: chosen by the evidence.

    Example:
        >>> import torch
        >>> from bedl.methods.baselines.wide_kernels import DenseKernel
        >>> x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
        >>> method = ExactGP(DenseKernel(2, 2.0, 1.0), "regression", 1).double()
        >>> method.fit(x, torch.sin(3 * x))
        >>> bool((method.predict(x).mean - torch.sin(3 * x)).abs().max() < 0.01)
        True
    """

    rows: Tensor
    targets: Tensor
    weight: Tensor
    centre: Tensor
    scale: Tensor
    ratio: Tensor
    temperature: Tensor

    def __init__(
        self,
        kernel: Kernel,
        task: str,
        n_targets: int,
        front: nn.Module | None = None,
        largest: int = MAX_ROWS,
        noise: float | None = None,
    ):
        super().__init__()
        if largest < 2:
            raise ValueError(f"a Gaussian process is solved for at least 2 rows, not largest={largest}")
        if noise is not None and not noise > 0:
            raise ValueError(f"noise is a ratio of variances, above 0, not {noise}")
        self.kernel, self.n_targets, self.largest, self.noise = kernel, n_targets, largest, noise
        self.front = nn.Identity() if front is None else front
        self.head = Softmax(n_targets) if task == "classification" else None
        for name, shape in (("rows", (0, 0)), ("targets", (0, n_targets)), ("weight", (0,))):
            self.register_buffer(name, torch.empty(shape))
        for name in ("centre", "scale"):
            self.register_buffer(name, torch.zeros(n_targets))
        self.register_buffer("ratio", torch.ones(()))
        self.register_buffer("temperature", torch.ones(()))
        self.seed = int(torch.randint(2**62, ()))  # of the rows that are drawn, if there are too many
        self._solved: tuple[Tensor, Tensor] | None = None

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        if not isinstance(x, Tensor):
            raise ValueError(f"{type(self).__name__} knows no noise of inputs (X_var); leave it out")
        refuse_export(self)
        mean, variance = self.posterior(x)
        if self.head is not None:
            t = self.temperature.double()
            return self.head(Moments(mean / t, variance / t.square())).to(self.scale.dtype)
        noise = (self.scale * self.ratio).expand(mean.shape)
        mean, variance = mean.to(self.scale), variance.to(self.scale)
        return NormalPredictive(mean, noise, torch.zeros_like(mean), variance)

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of f. x: shape (n, *input); results: shapes (n, targets), in double precision"""
        if not len(self.rows):
            raise ValueError(f"{type(self).__name__} has not learned yet; call fit(x, y)")
        z = self._rows_of(x)
        factor, solution = self._factor()
        across = self.kernel(self.rows.double(), z) * self.weight.double().sqrt()[:, None]  # shape: (rows, n)
        mean = self.centre.double() + across.T @ solution
        inside = torch.linalg.solve_triangular(factor, across, upper=False).square().sum(0)
        variance = (self.kernel.diagonal(z) - inside).clamp_min(0.0)
        return mean, variance[:, None] * self.scale.double()

    def _rows_of(self, x: Tensor) -> Tensor:
        """Inputs as the kernel sees them. shape: (n, d)"""
        return self.front(x).reshape(len(x), -1).double()

    def _factor(self, matrix: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cholesky factor of √w K √w + ρ, and what it makes of the targets; computed once. shapes: (N, N), (N, T)

        Args:
            matrix: √w K √w, if it is there; it is overwritten.
        """
        if self._solved is None:
            matrix = self._covariances() if matrix is None else matrix
            matrix.diagonal().add_(self.ratio.double())
            factor = torch.linalg.cholesky(matrix)
            targets = self.weight.double().sqrt()[:, None] * self.targets.double()
            self._solved = factor, torch.cholesky_solve(targets, factor)
        return self._solved

    def _covariances(self) -> Tensor:
        """√w K √w of the rows. shape: (N, N)"""
        root, rows = self.weight.double().sqrt(), self.rows.double()
        return self.kernel(rows, rows).mul_(root[:, None]).mul_(root)

    # -- learning ---------------------------------------------------------------------------------
    @torch.no_grad()
    def fit(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        if len(x) > self.largest:
            x, y, weight = self._subset(x, y, weight)
        z = self._rows_of(x)
        counts = torch.ones(len(x)).to(z) if weight is None else weight.to(z)
        wanted = F.one_hot(y, self.n_targets).to(z) if self.head is not None else y.reshape(len(y), -1).to(z)
        centre = counts @ wanted / counts.sum() if self.head is not None else torch.zeros(self.n_targets).to(z)
        for name, value in (("rows", z), ("targets", wanted - centre), ("weight", counts), ("centre", centre)):
            setattr(self, name, value.to(self.scale))
        self._solved = None
        matrix = self._covariances()
        ratio, scale = self._evidence(matrix)
        self.ratio.copy_(ratio)
        self.scale.copy_(scale)
        self._factor(matrix)
        if self.head is not None:
            self.temperature.copy_(self._temperature(y))

    def _subset(self, x: Tensor, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        warnings.warn(
            f"a Gaussian process of {len(x)} rows is solved for {self.largest} of them, drawn at random; "
            "method_options={'largest': …} takes more, at a cost that grows with the cube",
            stacklevel=3,
        )
        with seeded(torch.device("cpu"), self.seed):
            chosen = torch.randperm(len(x))[: self.largest].to(x.device)
        return x[chosen], y[chosen], None if weight is None else weight[chosen]

    def _evidence(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """The ratio of greatest evidence, and the scales that go with it. shapes: (N, N) -> (), (T,)

        A row of weight w counts as w rows: it has the noise of their mean, and w − 1 residuals that are 0.
        """
        root = self.weight.double().sqrt()
        values, basis = torch.linalg.eigh(matrix)
        values = values.clamp_min(0.0)
        along = (basis.T @ (root[:, None] * self.targets.double())).square()  # shape: (N, T)
        total, more = root.square().sum(), root.square().sum() - len(root)
        wide = RATIOS.to(values) * values.mean() if self.noise is None else values.new_tensor([self.noise])
        scales = torch.stack([(along / (values + r)[:, None]).sum(0) / total for r in wide])
        scales = scales.clamp_min(MIN_VARIANCE / values.mean())  # kernels of deep networks may be as large as they like
        logs = torch.stack([(values + r).log().sum() + more * r.log() for r in wide])
        evidence = -0.5 * (total * scales.log().sum(1) + self.n_targets * logs)
        best = int(evidence.argmax())
        scale = scales[best]
        # classes share one, so that the most probable is the one with the largest output, as in the papers
        return wide[best], scale if self.head is None else scale.mean().expand(scale.shape)

    def _temperature(self, y: Tensor) -> Tensor:
        """The temperature under which leave-one-out predictions make the labels most likely. y: shape (N,)"""
        factor, solution = self._factor()
        root, scale = self.weight.double().sqrt(), self.scale.double()
        precision = torch.cholesky_inverse(factor).diagonal()[:, None]  # of a row given all others, without the scale
        mean = self.centre.double() + self.targets.double() - solution / precision / root[:, None]
        variance = ((1 / precision - self.ratio) / root.square()[:, None]).clamp_min(0.0) * scale
        part = torch.linspace(0, len(y) - 1, min(len(y), JUDGED)).long()
        assert self.head is not None
        mean, variance, labels, counts = mean[part], variance[part], y[part], root[part].square()
        scores = [counts @ self.head.log_marginal(Moments(mean / t, variance / t**2), labels)
                  for t in TEMPERATURES.tolist()]  # fmt: skip
        return TEMPERATURES[int(torch.stack(scores).argmax())]

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Rows that are rounded, or elsewhere, are solved for anew."""
        before = self.rows
        super()._apply(fn, recurse)
        if (before.dtype, before.device) != (self.rows.dtype, self.rows.device):
            self._solved = None
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("rows", "targets", "weight"):  # as many as there were points
            stored = state_dict.get(prefix + name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, dtype=self.scale.dtype, device=self.scale.device))
        self._solved = None
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        """A copy solves for itself."""
        return {**self.__dict__, "_solved": None}

    def summary(self) -> str:
        share = self.ratio / (self.ratio + self.kernel.diagonal(self.rows.double()).mean())
        return f"solved for {len(self.rows)} rows, noise {share:.1%} of the variance"

    def extra_repr(self) -> str:
        return f"rows={len(self.rows)}, ratio={self.ratio.item():.3g}"
