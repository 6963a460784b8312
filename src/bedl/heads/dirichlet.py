"""Classification: a Dirichlet over the class probabilities whose log evidence is the network's output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bedl.heads.base import Evidence, Head, serves
from bedl.heads.race import (
    LOG_FLOOR,
    dirichlet_entropy,
    dirichlet_kl,
    expected_data_entropy,
    expected_dirichlet_kl,
    log_marginal,
    log_marginal_and_expected_kl,
    log_mean_softmax,
    softmax_spread,
)
from bedl.moments import Moments
from bedl.predictive import CategoricalPredictive
from bedl.predictive.labels import check_class_numbers

__all__ = ["Dirichlet"]

# Numbers in an intermediate result: on CPUs so few that they stay in the cache, elsewhere so many that calls are few.
LARGEST_ON_CPU = 2**17
LARGEST = 2**24


@serves("classification")
class Dirichlet(Head):
    """Head for C classes: alpha = exp(f), f ~ N(loc, variance), lambda ~ Dir(alpha), y ~ Cat(lambda).

    Integrating lambda and f, p(y = c | x) = E[softmax(f)_c]. Deterministic by default: see `bedl.heads.race` for
    the integrals, the uncertainties and the divergence, each with measured errors. Gradients are those of the
    integrals, not of the rules that approximate them: finite differences agree to about 1e-4. Second derivatives need
    `Sampled`.

    Args:
        n_classes: number of classes, at least 2.
        nodes: of the race. 16 hold probabilities to 3e-4 for stds up to 20 in any ratio; 32, with 8 components, to 2e-5
            there and to 5e-4 up to 1000.
        components: of the race: 4, 6 or 8. By default 6, and 8 from 30 classes on, whose errors add up.

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> head = Dirichlet(3)
        >>> f = Moments(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1.0, 4.0, 0.0]]))
        >>> head(f).probabilities
        tensor([[0.7227, 0.2302, 0.0471]])
        >>> head.log_marginal(f, torch.tensor([0]))
        tensor([-0.3248])
        >>> head.kl(f) > head.kl(f, torch.tensor([0]), evidence="misleading")
        tensor([True])
    """

    def __init__(self, n_classes: int, nodes: int = 16, components: int | None = None):
        super().__init__()
        if n_classes < 2:
            raise ValueError(f"Dirichlet: n_classes must be at least 2, not {n_classes}")
        components = (6 if n_classes < 30 else 8) if components is None else components
        if components not in (4, 6, 8) or nodes < 8:
            raise ValueError(
                f"Dirichlet: needs components 4, 6 or 8 and at least 8 nodes, got {components} and {nodes}"
            )
        self.n_classes = n_classes
        self.nodes = nodes
        self.components = components

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """One network output per class."""
        return self.n_classes

    def extra_repr(self) -> str:
        return f"n_classes={self.n_classes}"

    # -- closed forms --------------------------------------------------------------------------------
    def log_probabilities(self, f: Moments | Tensor) -> Tensor:
        """log E[softmax(f)], without the rest of the prediction. f shape: (*batch, C) -> (*batch, C)"""
        return self._in_chunks(log_mean_softmax, *self.check_outputs(f))

    def forward(self, f: Moments | Tensor) -> CategoricalPredictive:
        """The prediction. f shape: (*batch, C)"""
        m, v = self.check_outputs(f)
        log_p = self.log_probabilities(f)
        spread, given_f, data = self._in_chunks(_parts, m, v, log_p)
        # rounding, and the rules' own errors, must not make a part negative
        data = torch.minimum(data, given_f)
        return CategoricalPredictive(log_p, data, given_f - data, vacuity(m), spread)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log p(y | x) per point. f shape: (*batch, C), y shape: (*batch), integers -> (*batch)"""
        m, v = self.check_outputs(f)
        return self._in_chunks(log_marginal, m, v, self.check_targets(y, m.shape[:-1]))

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """E KL(Dir(exp(f) + 1e-3) || Dir(1)), per point; see `bedl.heads.race.divergence` for the floor of 1e-3.

        Args:
            f: moments of the network's outputs. shape: (*batch, C)
            y: classes, needed where ``evidence="misleading"``. shape: (*batch)
            evidence: ``"misleading"`` sets the true class's log evidence to 0, with variance 0: no pull on it.

        Returns:
            shape: (*batch)
        """
        m, v = self.check_outputs(f)
        y = self.targets_for(y, evidence, m.shape[:-1])
        if y is not None:
            m, v = _without_class(m, y), _without_class(v, y)
        return self._in_chunks(expected_dirichlet_kl, m, v)

    def log_marginal_and_kl(self, f: Moments | Tensor, y: Tensor, evidence: Evidence = "all") -> tuple[Tensor, Tensor]:
        """Both; on one race where ``evidence="all"``. shapes: (*batch), (*batch)"""
        if evidence != "all":
            return super().log_marginal_and_kl(f, y, evidence)
        m, v = self.check_outputs(f)
        return self._in_chunks(log_marginal_and_expected_kl, m, v, self.check_targets(y, m.shape[:-1]))

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        """log(1 / alpha_0) at the means: alpha_0 counts observations. f shape: (*batch, C) -> (*batch, 1)"""
        m, _ = self.check_outputs(f)
        return -torch.logsumexp(m, -1, keepdim=True)

    def _in_chunks(self, rule: Callable[..., Any], *inputs: Tensor) -> Any:
        """A rule applied to so many points at a time that intermediates stay small; a few dozen at least."""
        largest = LARGEST_ON_CPU if inputs[0].device.type == "cpu" else LARGEST
        rows = max(32, largest // (32 * self.n_classes))
        if torch.compiler.is_compiling() or inputs[0].ndim != 2 or len(inputs[0]) <= rows:
            return rule(*inputs, self.nodes, self.components)
        chunks = zip(*(x.split(rows) for x in inputs), strict=True)
        parts = [rule(*chunk, self.nodes, self.components) for chunk in chunks]
        if isinstance(parts[0], Tensor):
            return torch.cat(parts)
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    # -- for known f ---------------------------------------------------------------------------------
    def given(self, f: Tensor) -> CategoricalPredictive:
        log_p = torch.log_softmax(f, -1)
        entropy, data = -(log_p.exp() * log_p).sum(-1), dirichlet_entropy(f)
        data = torch.minimum(data, entropy)
        return CategoricalPredictive(log_p, data, entropy - data, vacuity(f), torch.zeros_like(log_p))

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        if y is not None:
            f = _without_class(f, y)
        return dirichlet_kl(torch.logaddexp(f, f.new_tensor(LOG_FLOOR)))

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        if y.shape == (*batch, self.n_classes):
            raise ValueError(f"{self}: labels are class numbers, not one-hot rows; pass y.argmax(-1)")
        numbers = check_class_numbers(y, self.n_classes, f"{self}: ")
        if y.shape != batch:
            raise ValueError(f"{self}: labels of shape {tuple(y.shape)} do not fit outputs for {tuple(batch)} points")
        return numbers


def _parts(m: Tensor, v: Tensor, log_p: Tensor, nodes: int, components: int) -> tuple[Tensor, Tensor, Tensor]:
    """Variance of the class probabilities, expected entropy given f, and given lambda. shapes: (n, C), (n,), (n,)"""
    return (*softmax_spread(m, v, log_p), expected_data_entropy(m, v))


def vacuity(m: Tensor) -> Tensor:
    """C / alpha_0 at the means of the log evidence (plug-in). Above 1 where there is less evidence than in Dir(1).

    m shape: (*batch, C) -> (*batch)
    """
    return torch.exp((math.log(m.shape[-1]) - torch.logsumexp(m, -1)).clamp(max=80.0))


def _without_class(x: Tensor, y: Tensor) -> Tensor:
    """x with a zero at each point's class. shapes: (*batch, C), (*batch) -> (*batch, C)"""
    classes = torch.arange(x.shape[-1], device=x.device)
    return torch.where(classes == y[..., None], torch.zeros_like(x), x)
