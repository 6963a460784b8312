"""What turns the moments of a network's outputs into a prediction: by sampling, unless a subclass knows better."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from bedl._utils.errors import BEDLError
from bedl._utils.storage import RecordsArguments
from bedl.heads.predictive import Prediction, Predictive
from bedl.moments import Moments, as_moments

Evidence = Literal["all", "misleading"]


class Head(RecordsArguments, nn.Module, Generic[Prediction]):
    """Base of the heads: what a network's outputs f say about the target.

    A subclass says one thing, what *known* outputs predict (`given`), and how many outputs it reads (`n_outputs`).
    This class integrates over f ~ N(loc, variance) by reparameterised draws. Closed forms override its public methods
    and are tested against it. `divergence` is needed by regularisers that compare with a prior.

    Attributes:
        task: the task that the head serves, such as "regression".
        n_outputs: how many outputs of the network it reads.
        samples: draws of f for each point.
        scaled_targets: whether targets are to be scaled to mean 0 and variance 1 before they are learned.
        dim: the dimension of the network's outputs that the head reads: the last, or 1 for maps with channels first.
            Predictions have it last, always: (n, height, width, …).

    Example:
        >>> import torch
        >>> from bedl.heads import Head
        >>> from bedl.moments import Moments
        >>> from bedl.heads.predictive import NormalPredictive
        >>> class KnownNoise(Head):
        ...     task, n_outputs = "regression", 1
        ...     def given(self, f):
        ...         return NormalPredictive(f, torch.ones_like(f), torch.zeros_like(f), torch.zeros_like(f))
        >>> KnownNoise()(Moments(torch.zeros(3, 1), 1.0)).std.shape
        torch.Size([3, 1])
    """

    task: ClassVar[str]
    n_outputs: int
    samples: int = 100
    scaled_targets: ClassVar[bool] = False
    dim: int = -1

    # -- what a subclass says ----------------------------------------------------------------------
    def given(self, f: Tensor) -> Predictive:
        """What is predicted where the outputs are known to be f. f shape: (*batch, n_outputs)"""
        raise NotImplementedError(f"{type(self).__name__} does not say what known outputs predict: given(f)")

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        """KL to the prior for known outputs. f shape: (*batch, n_outputs), y shape: as targets -> (*batch)"""
        raise BEDLError(
            f"{type(self).__name__} has no prior to compare with: train it without a regulariser that asks for one "
            "(regularizer=None), or write its divergence(f, y, evidence)"
        )

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        """log of how little is known about lambda: 0 for nothing, log(1/n) where n observations are behind it.

        f shape: (*batch, n_outputs) -> (*batch, k)
        """
        raise BEDLError(f"{type(self).__name__} does not say how much it knows: write its log_ignorance(f)")

    def kl_from_uniform(self, f: Moments | Tensor) -> Tensor:
        """KL(u ‖ p) of the prediction p from u, which has all targets equally likely: at most linear in f.

        f shape: (*batch, n_outputs) -> (*batch)
        """
        raise BEDLError(f"{type(self).__name__} has no targets that could be equally likely; that is for classes")

    def kl_centred(self, f: Moments | Tensor) -> Tensor:
        """Divergence from knowing nothing, whatever the expected target: `kl`, unless a head can leave the mean out.

        f shape: (*batch, n_outputs) -> (*batch)
        """
        return self.kl(f)

    @property
    def complexity(self) -> float | Tensor:
        """log B / N of the PAC bound, from the range of the likelihood; 1 where that is a probability."""
        return 1.0

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        """The targets in the shape the likelihood expects; an error that names the remedy if they cannot be."""
        if y.shape[: len(batch)] != batch:
            raise ValueError(f"{self}: targets of shape {tuple(y.shape)} do not fit outputs for {tuple(batch)} points")
        return y

    def counted(self, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Targets with a stand-in where they are not to count, and how much each counts; None: all the same.

        y shape: as targets, weight shape: (n,) or (*batch) -> as y, (n,) or (*batch)
        """
        return y, weight

    def targets_last(self, y: Tensor, n_dims: int) -> Tensor:
        """Targets that have as many dimensions as the outputs, with those of a point along the last one."""
        return y.movedim(self.dim, -1) if self.dim != -1 and y.ndim == n_dims else y

    def scaling_warning(self, y: Tensor) -> str | None:
        """A sentence on targets that the head can hardly learn as they are, and what to do; None if there is nothing.

        y shape: as targets
        """
        return None

    def prepare(self, y: Tensor) -> None:
        """Look at the targets once, before training: where they lie, say. Most heads need not. y shape: as targets"""

    # -- by sampling -------------------------------------------------------------------------------
    def forward(self, f: Moments | Tensor) -> Prediction:
        """The prediction. f shape: (*batch, n_outputs)"""
        return cast(Prediction, self.given(self.draw(f)).mixed())

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log p(y | x) = log E_f p(y | f), per point: log-mean-exp over the draws.

        Args:
            f: moments of the network's outputs. shape: (*batch, n_outputs)
            y: targets. shape: (*batch) or (*batch, D)

        Returns:
            shape: (*batch)
        """
        draws = self.draw(f)
        y = self.check_targets(y, draws.shape[1:-1])
        values = self.given(draws).log_prob(y.expand(len(draws), *y.shape))
        return torch.logsumexp(values, 0) - math.log(len(values))

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """Divergence of what f says about the target's parameters from the prior, per point.

        Args:
            f: moments of the network's outputs. shape: (*batch, n_outputs)
            y: targets, needed where ``evidence="misleading"``. shape: (*batch) or (*batch, D)
            evidence: ``"all"`` of it, or only the ``"misleading"``, that for wrong classes.

        Returns:
            shape: (*batch)
        """
        draws = self.draw(f)
        y = self.targets_for(y, evidence, draws.shape[1:-1])
        return self.divergence(draws, None if y is None else y.expand(len(draws), *y.shape), evidence).mean(0)

    def log_marginal_and_kl(self, f: Moments | Tensor, y: Tensor, evidence: Evidence = "all") -> tuple[Tensor, Tensor]:
        """`log_marginal` and `kl` at once: a head may share the work between them. shapes: (*batch), (*batch)"""
        return self.log_marginal(f, y), self.kl(f, y, evidence)

    def draw(self, f: Moments | Tensor) -> Tensor:
        """Reparameterised draws of the outputs. f shape: (*batch, n_outputs) -> (S, *batch, n_outputs)"""
        loc, variance = self.check_outputs(f)
        random = variance > 0
        std = torch.where(random, variance, 1.0).sqrt() * random  # sqrt has no slope at 0
        return loc + std * torch.randn((self.samples, *loc.shape), dtype=loc.dtype, device=loc.device)

    # -- what all heads check ----------------------------------------------------------------------
    def check_outputs(self, f: Moments | Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
        """Means and variances in one precision, at least float32, the head's dimension last.

        Args:
            f: moments of the network's outputs.
            dim: where outputs lie, the head's own dimension by default; draws have them last.

        Returns:
            shapes: (*batch, n_outputs)
        """
        if not isinstance(f, (Moments, Tensor)):
            raise TypeError(
                f"{self}: the network returns a {type(f).__name__}, and a head takes Moments or a tensor. Say which of "
                "its outputs is meant, BEDL(net, head, output=…), or let its forward return that alone"
            )
        f, dim = as_moments(f), self.dim if dim is None else dim
        there = -f.ndim <= dim < f.ndim
        if not there or f.shape[dim] != self.n_outputs:
            found, along = f.shape[dim] if there else "none", "the last dimension" if dim == -1 else f"dimension {dim}"
            remedy = f"the network's last layer should have {self.n_outputs} outputs"
            if dim == -1 and f.ndim > 2 and f.shape[1] == self.n_outputs:
                remedy = f"for channels first: {type(self).__name__}(…, dim=1)"
            raise ValueError(
                f"{self}: needs {self.n_outputs} network outputs along {along}, got {found} "
                f"(shape {tuple(f.shape)}); {remedy}"
            )
        loc, variance = (f.loc, f.variance) if dim == -1 else (f.loc.movedim(dim, -1), f.variance.movedim(dim, -1))
        return loc.to(variance.dtype), variance

    def as_columns(self, y: Tensor, batch: torch.Size, n_targets: int) -> Tensor:
        """Targets with an axis of their own, which a single one may come without. shape: (*batch, n_targets)"""
        y = self.targets_last(y, len(batch) + 1)
        if n_targets == 1 and y.shape == batch:
            y = y[..., None]
        if y.shape != (*batch, n_targets):
            raise ValueError(
                f"{self}: targets of shape {tuple(y.shape)} do not fit outputs for {tuple(batch)} points and "
                f"{n_targets} targets, shape {(*batch, n_targets)}"
            )
        return y

    def targets_for(self, y: Tensor | None, evidence: Evidence, batch: torch.Size) -> Tensor | None:
        """The targets if this kind of evidence depends on them, else None."""
        if evidence not in ("all", "misleading"):
            raise ValueError(f'{self}: evidence must be "all" or "misleading", not {evidence!r}')
        if evidence == "all":
            return None
        if y is None:
            raise ValueError(f'{self}: evidence="misleading" needs the targets y')
        return self.check_targets(y, batch)

    def only_all(self, evidence: Evidence) -> None:
        """Refuse to look for misleading evidence where a target has no wrong classes."""
        if evidence != "all":
            raise ValueError(f'{self}: evidence must be "all"; "misleading" evidence is a matter of classes')


# -- heads by task ---------------------------------------------------------------------------------
H = TypeVar("H", bound=type[Head])
_HEADS: dict[str, type[Head]] = {}


def serves(task: str) -> Callable[[H], H]:
    """Decorator: make a head the one that estimators take for a task; ``Class(n)`` has to make one for n targets."""

    def register(cls: H) -> H:
        cls.task = task
        _HEADS[task] = cls
        return cls

    return register


def head_of(task: str, n: int, **options: object) -> Head:
    """The head for a task.

    Args:
        task: its name, such as "classification".
        n: how many targets, classes or labels there are.
        options: of the head.

    Example:
        >>> head_of("classification", 3)
        Dirichlet(n_classes=3)
    """
    return head_class(task)(n, **options)


def head_class(task: str) -> type[Head]:
    """The class of heads for a task."""
    if task not in _HEADS:
        raise BEDLError(f"there is no head for the task {task!r}; there are heads for {', '.join(sorted(_HEADS))}")
    return _HEADS[task]


# A head whose integrals are done by sampling, as in the paper.


class Sampled(Head):
    """Another head, with draws of the outputs in place of its closed forms: a reference, and second derivatives.

    Args:
        head: the head; what it says about known outputs is all that is used.
        samples: draws for each point.

    Example:
        >>> import torch
        >>> from bedl.heads import Dirichlet, Sampled
        >>> from bedl.moments import Moments
        >>> f = Moments(torch.tensor([[2.0, 0.0, -1.0]]), 1.0)
        >>> torch.allclose(Sampled(Dirichlet(3), 100_000)(f).probabilities, Dirichlet(3)(f).probabilities, atol=5e-3)
        True
    """

    def __init__(self, head: Head, samples: int = 100):
        super().__init__()
        if samples < 1:
            raise ValueError(f"Sampled: samples must be at least 1, not {samples}")
        self.head, self.samples = head, samples

    @property
    def task(self) -> str:  # type: ignore[override]
        """That of the head."""
        return self.head.task

    @property
    def scaled_targets(self) -> bool:  # type: ignore[override]
        """As the head wants them."""
        return self.head.scaled_targets

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """As many as the head reads."""
        return self.head.n_outputs

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Where the head reads."""
        return self.head.dim

    @property
    def complexity(self) -> float | Tensor:
        return self.head.complexity

    def given(self, f: Tensor) -> Predictive:
        return self.head.given(f)

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        return self.head.divergence(f, y, evidence)

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        return self.head.log_ignorance(f)

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        return self.head.check_targets(y, batch)

    def counted(self, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self.head.counted(y, weight)

    def targets_last(self, y: Tensor, n_dims: int) -> Tensor:
        return self.head.targets_last(y, n_dims)

    def scaling_warning(self, y: Tensor) -> str | None:
        return self.head.scaling_warning(y)

    def prepare(self, y: Tensor) -> None:
        self.head.prepare(y)

    def extra_repr(self) -> str:
        return f"samples={self.samples}"
