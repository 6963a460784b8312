"""Fold ensembles: networks and a linear model that hold out folds, and are weighted by what they say of these.

Each member learns without one fold, so there is a prediction for every row by a member that has not seen it. These
decide how much each kind of member counts and how wide it has to be, and how wide intervals have to be to cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bedl.methods.base import Method
from bedl.methods.evidence import evidence
from bedl.methods.registry import Problem, Training, register
from bedl.methods.stacking import LinearPosterior, bayesian_linear, held_out_quantile, mixture_weights
from bedl.moments import Moments, as_moments
from bedl.predictive import NormalMixturePredictive, NormalPredictive
from bedl.special import normal_log_density

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["Stack"]

SCALES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # factors on a member's variance
GROUPS = ((0.5, 0.3), (3.0, 0.1))  # strength of the weight prior, frequency of the embedding
FOLDS = 5
MANY_FOLDS = 50  # each is a network or two
MANY_ROWS = 40_000  # beyond, one group has to do
MANY_COLUMNS = 1000  # beyond, the covariance of linear coefficients is too large to keep
CHUNK = 4096  # rows that are predicted together


class LinearMember(nn.Module):
    """A Bayesian linear regression per fold, as buffers.

    It goes on along its line as far outside the data as these are wide, and no further: beyond, nothing is known.

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
    low: Tensor
    high: Tensor

    def __init__(self, folds: int, n_columns: int, n_targets: int, front: nn.Module | None = None):
        super().__init__()
        self.front = nn.Identity() if front is None else front
        d, t = n_columns, n_targets
        shapes = {"centre": (d,), "intercept": (t,), "coefficients": (t, d), "covariance": (t, d, d), "noise": (t,)}
        for name, shape in {**shapes, "size": ()}.items():
            self.register_buffer(
                name, torch.ones(folds, *shape) if name in ("noise", "size") else torch.zeros(folds, *shape)
            )
        self.register_buffer("low", torch.full((d,), -torch.inf))
        self.register_buffer("high", torch.full((d,), torch.inf))

    def fit(self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None) -> None:
        """Learn, for each fold, from the rows outside it; noise of inputs is not considered."""
        z = as_moments(self.front(x)).loc
        low, high = z.amin(0), z.amax(0)
        self.low, self.high = 2 * low - high, 2 * high - low
        for k in range(len(self.size)):
            rows = fold != k
            learned = bayesian_linear(z[rows], y[rows], None if weight is None else weight[rows])
            for name in LinearPosterior._fields:
                getattr(self, name)[k] = getattr(learned, name)

    def forward(self, x: Tensor | Moments) -> NormalPredictive:
        """What each fold's regression says. shapes of the parts: (folds, n, T)"""
        z = as_moments(self.front(x))
        away = torch.minimum(torch.maximum(z.loc, self.low), self.high) - self.centre[:, None]  # shape: (folds, n, d)
        mean = self.intercept[:, None] + away @ self.coefficients.mT
        inside = ((away[:, None] @ self.covariance) * away[:, None]).sum(-1).mT  # shape: (folds, n, T)
        data = self.noise[:, None].expand_as(mean)
        model = inside + (self.noise / self.size[:, None])[:, None]
        if isinstance(x, Moments):
            model = model + z.variance @ self.coefficients.square().mT
        return NormalPredictive(mean, data, torch.zeros_like(mean), model)


class Stack(Method):
    """Groups of members, each of which learns without another fold, and a linear model beside them, as a mixture.

    A component is a member with its variance multiplied by a scale: the weights of the pairs (group, scale) make the
    members' densities of the rows that they have not seen most likely, which stacks, scales and gives heavy tails in
    one convex problem. All members of a group share its weight.

    Args:
        members: networks of the same build, group by group; member k of each group learns without fold k.
        folds: how many members a group has.
        linear: a linear model per fold, which is one more group; None: without.
        n_targets: how many targets there are.

    Example:
        >>> import torch
        >>> from bedl.methods import Problem, registry
        >>> stack = registry.get("stack")(Problem("regression", 1, (3,)), folds=2)
        >>> len(stack.members), stack.predict(torch.zeros(5, 3)).mean.shape
        (4, torch.Size([5, 1]))
    """

    weights: Tensor
    scales: Tensor
    scores: Tensor
    mass: Tensor

    def __init__(self, members: Sequence[Method], folds: int, linear: LinearMember | None = None, n_targets: int = 1):
        super().__init__()
        if folds < 2 or not members or len(members) % folds:
            raise ValueError(f"a stack has at least 2 folds and a member of each group for each, not {len(members)}")
        self._members = nn.ModuleList(members)
        self.linear = linear
        self._folds = folds
        groups = len(members) // folds + (linear is not None)
        self.register_buffer("scales", torch.tensor(SCALES))
        equal = (self.scales == 1.0).to(self.scales) / groups
        self.register_buffer("weights", equal.repeat(groups, 1))  # shape: (groups, scales)
        for name in ("scores", "mass"):
            self.register_buffer(name, torch.empty(0, n_targets))  # shape: (rows, targets)

    @property
    def members(self) -> Sequence[Any]:
        return list(self._members)

    @property
    def folds(self) -> int:
        return self._folds

    @property
    def shares(self) -> list[float]:
        """How much each group counts; the linear model, if there is one, comes last."""
        return self.weights.sum(1).tolist()

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture, in the members' present mode and with gradients. x: shape (n, *input)"""
        mean, *parts = self._groups(x)
        scaled = [(part[..., :, None, :] * self.scales[:, None]).flatten(-3) for part in parts]
        means = mean[..., :, None, :].expand(*mean.shape[:-1], len(self.scales), self.folds).flatten(-3)
        log_weights = (self.weights / self.folds).log()[..., None].expand(-1, -1, self.folds).flatten()
        data, distributional, model = scaled
        return NormalMixturePredictive(means, data, distributional, model, log_weights.expand(means.shape[0], 1, -1))

    def _groups(self, x: Tensor | Moments) -> list[Tensor]:
        """Mean, data, distributional and model of all members. shapes: (n, T, groups, folds)"""
        said = [member(x) for member in self._members]
        names = ("mean", "data", "distributional", "model")
        parts = [torch.stack([getattr(p, name) for p in said], -1).unflatten(-1, (-1, self.folds)) for name in names]
        if self.linear is None:
            return parts
        linear = self.linear(x)
        return [
            torch.cat([part, getattr(linear, name).movedim(0, -1)[..., None, :]], -2)
            for part, name in zip(parts, names, strict=True)
        ]

    def interval_factor(self, coverage: float) -> Tensor | None:
        if not len(self.scores):
            return None
        factor = held_out_quantile(self.scores, self.mass, coverage)
        normal = math.sqrt(2) * torch.special.erfinv(torch.tensor(coverage, dtype=torch.float64))
        few = torch.maximum(
            self.scores[-1], normal.to(self.scores)
        )  # rows that cannot say it: what was seen, or a normal's
        return torch.where(factor.isfinite(), factor, few)

    # -- what the rows that were held out say ---------------------------------------------------
    @torch.no_grad()
    def finish(self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None = None) -> None:
        if self.linear is not None:
            self.linear.fit(x, y, fold, weight)
        mean, variance = self._out_of_fold(x, fold)  # shapes: (n, T, groups)
        y = y.reshape(len(y), -1).to(mean)
        spread = variance[..., None] * self.scales.to(mean)  # shape: (n, T, groups, scales)
        log_densities = normal_log_density(y[..., None, None], mean[..., None], spread.log()).sum(1)
        weights = mixture_weights(log_densities.flatten(1), weight).reshape(self.weights.shape)
        self.weights.copy_(weights)
        shares, scaled = weights.sum(1).to(mean), (weights.to(mean) @ self.scales.to(mean))
        middle = mean @ shares
        total = variance @ scaled + (mean - middle[..., None]).square() @ shares
        scores, order = ((y - middle).abs() / total.sqrt()).sort(0)
        counts = torch.ones(len(y)).to(mean) if weight is None else weight.to(mean)
        self.scores, self.mass = scores.to(self.weights), counts[order].cumsum(0).to(self.weights)

    def _out_of_fold(self, x: Tensor | Moments, fold: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's mean and variance by the members that have not seen it. shapes: (n, T, groups)"""
        means, variances = [], []
        for rows in torch.arange(len(fold), device=fold.device).split(CHUNK):
            mean, *parts = self._as_predicted(x[rows])  # type: ignore[index]
            own = fold[rows].reshape(-1, 1, 1, 1).expand(*mean.shape[:-1], 1)
            means.append(mean.gather(-1, own)[..., 0])
            variances.append(sum(parts).gather(-1, own)[..., 0])  # type: ignore[union-attr]
        return torch.cat(means).double(), torch.cat(variances).double()

    def _as_predicted(self, x: Tensor | Moments) -> list[Tensor]:
        training = self.training
        try:
            return self.eval()._groups(x)
        finally:
            self.train(training)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("scores", "mass"):  # as many as there were rows
            stored = state_dict.get(prefix + name)
            if stored is not None:
                setattr(self, name, torch.empty_like(stored, dtype=self.weights.dtype, device=self.weights.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"folds={self.folds}, shares={[round(share, 2) for share in self.shares]}"


def training(n: int) -> Training:
    """Some hundred steps for each member, which sees the rows outside its fold, and no early stopping."""
    kept = n - math.ceil(n / min(FOLDS, n))
    batch_size = min(kept, 64 if n < 3000 else 128)
    steps = 300 + 15 * math.sqrt(n)
    epochs = max(1, round(steps / math.ceil(kept / batch_size)))
    return Training(epochs=epochs, batch_size=batch_size, lr=0.015, early_stopping=False)


def sized(n: int) -> dict[str, Any]:
    """Folds and groups for n rows."""
    if n < 2:
        raise ValueError(f"method 'stack' holds rows out and needs at least 2 of them; there is {n} sample")
    return {"folds": min(FOLDS, n), "groups": len(GROUPS) if n <= MANY_ROWS else 1}


@register(
    "stack",
    "fold ensemble of such nets and a linear model, weighted by what they say of rows that they have not seen",
    tasks=("regression",),
    training=training,
    sized=sized,
    scaling="quartiles",
)
def stack(problem: Problem, folds: int = FOLDS, groups: int = len(GROUPS)) -> Stack:
    """Networks of the method "evidence" in folds.

    Args:
        problem: what it is for.
        folds: in how many parts rows are cut; each network learns without one of them.
        groups: how many networks learn without the same fold, at most 2: one with a weak prior on weights and quick
            waves, one with a strong prior and slow ones.
    """
    if not 2 <= folds <= MANY_FOLDS:
        raise ValueError(f"stack: folds must lie between 2 and {MANY_FOLDS}, not {folds}")
    if not 1 <= groups <= len(GROUPS):
        raise ValueError(f"stack: groups must lie between 1 and {len(GROUPS)}, not {groups}")
    members = [
        evidence(problem, weight_prior=strength, frequency=frequency)
        for strength, frequency in GROUPS[:groups]
        for _ in range(folds)
    ]
    linear = None
    if len(problem.input_shape) == 1 and problem.input_shape[0] <= MANY_COLUMNS:
        front = None if problem.front is None else problem.front()
        linear = LinearMember(folds, problem.input_shape[0], problem.n_targets, front)
    return Stack(members, folds, linear, problem.n_targets)
