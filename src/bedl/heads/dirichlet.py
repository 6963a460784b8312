"""Classification: a Dirichlet over the class probabilities whose log evidence is the network's output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bedl.heads.base import Evidence, Head, serves
from bedl.heads.integrals import (
    LOG_FLOOR,
    dirichlet_entropy,
    dirichlet_kl,
    expected_data_entropy,
    expected_dirichlet_kl,
    export,
    log_marginal,
    log_marginal_and_expected_kl,
    log_mean_softmax,
    softmax_spread,
)
from bedl.heads.predictive import CategoricalPredictive
from bedl.heads.predictive.categorical import check_class_numbers, check_shares, mean_log_probability
from bedl.moments import Moments

# Numbers in an intermediate result: on CPUs so few that they stay in the cache, elsewhere so many that calls are few.
MAX_NUMEL_ON_CPU = 2**17
MAX_NUMEL = 2**24


@serves("classification")
class Dirichlet(Head[CategoricalPredictive]):
    """Head for C classes: alpha = exp(f), f ~ N(loc, variance), lambda ~ Dir(alpha), y ~ Cat(lambda).

    Integrating lambda and f, p(y = c | x) = E[softmax(f)_c]. Deterministic by default: see `bedl.heads.integrals` for
    the integrals, the uncertainties and the divergence, each with measured errors. Gradients are those of the
    integrals, not of the rules that approximate them: finite differences agree to about 1e-4. Second derivatives need
    `Sampled`.

    Args:
        n_classes: number of classes, at least 2.
        nodes: of the race. 16 hold probabilities to 3e-4 for stds up to 20 in any ratio; 32, with 8 components, to 2e-5
            there and to 5e-4 up to 1000.
        components: of the race: 4, 6 or 8. By default 6, and 8 from 30 classes on, whose errors add up.
        dim: the dimension that the classes lie along: 1 for maps with channels first.
        ignore_index: a label that does not count, such as 255 or -100.
        class_weight: how much points of each class count. shape: (C,)
        label_smoothing: share of a label that is spread over all classes, in training; scores take labels as they are.

    Labels are class numbers, or soft: the classes' shares of a point, which lie along `dim`, too.

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

    class_weight: Tensor | None

    def __init__(
        self,
        n_classes: int,
        nodes: int = 16,
        components: int | None = None,
        *,
        dim: int = -1,
        ignore_index: int | None = None,
        class_weight: Tensor | Sequence[float] | None = None,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        if n_classes < 2:
            raise ValueError(f"Dirichlet: n_classes must be at least 2, not {n_classes}")
        components = (6 if n_classes < 30 else 8) if components is None else components
        if components not in (4, 6, 8) or nodes < 8:
            raise ValueError(
                f"Dirichlet: needs components 4, 6 or 8 and at least 8 nodes, got {components} and {nodes}"
            )
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"Dirichlet: label_smoothing is a share from 0 to below 1, not {label_smoothing}")
        self.n_classes = n_classes
        self.nodes = nodes
        self.components = components
        self.dim, self.ignore_index, self.label_smoothing = dim, ignore_index, label_smoothing
        self.register_buffer("class_weight", _class_weights(class_weight, n_classes), persistent=False)

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """One network output per class."""
        return self.n_classes

    def extra_repr(self) -> str:
        options = {"dim": -1, "ignore_index": None, "label_smoothing": 0.0}
        others = [f"{name}={getattr(self, name)}" for name, usual in options.items() if getattr(self, name) != usual]
        if self.class_weight is not None:
            others.append(f"class_weight={self.class_weight.tolist()}")
        return ", ".join([f"n_classes={self.n_classes}", *others])

    # -- closed forms --------------------------------------------------------------------------------
    def log_probabilities(self, f: Moments | Tensor) -> Tensor:
        """log E[softmax(f)], without the rest of the prediction. f shape: (*batch, C) -> (*batch, C)"""
        rule = export.log_mean_softmax if torch.compiler.is_exporting() else log_mean_softmax
        return self._in_chunks(rule, *self.check_outputs(f))

    def spread(self, f: Moments | Tensor, log_p: Tensor) -> Tensor:
        """Variances of the class probabilities, without the rest. shapes: (*batch, C), of log_probabilities too"""
        return self._in_chunks(lambda m, v, log_p, *_: softmax_spread(m, v, log_p)[0], *self.check_outputs(f), log_p)

    def forward(self, f: Moments | Tensor) -> CategoricalPredictive:
        """The prediction. f shape: (*batch, C)"""
        m, v = self.check_outputs(f)
        log_p = self.log_probabilities(f)
        spread, given_f, data = self._in_chunks(_parts, m, v, log_p)
        # rounding, and the rules' own errors, must not make a part negative
        data = torch.minimum(data, given_f)
        return CategoricalPredictive(log_p, data, given_f - data, vacuity(m), spread)

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log p(y | x) per point; of soft and smoothed labels the mean over classes, by their shares.

        f shape: (*batch, C), y shape: (*batch), integers, or (*batch, C), shares -> (*batch)
        """
        m, v = self.check_outputs(f)
        y = self.smoothed(self.check_targets(y, m.shape[:-1]))
        if y.is_floating_point():
            return mean_log_probability(self._in_chunks(log_mean_softmax, m, v), y.to(m.dtype))
        return self._in_chunks(log_marginal, m, v, y)

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """E KL(Dir(exp(f) + 1e-3) || Dir(1)), per point; see `bedl.heads.integrals.kl` for the floor of 1e-3.

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
            m, v = _without_class(m, y), _without_class(_without_class(v, y), y)  # a factor of f is a square of v's
        return self._in_chunks(expected_dirichlet_kl, m, v)

    def log_marginal_and_kl(self, f: Moments | Tensor, y: Tensor, evidence: Evidence = "all") -> tuple[Tensor, Tensor]:
        """Both; on one race where ``evidence="all"``. shapes: (*batch), (*batch)"""
        if evidence != "all" or self.label_smoothing or y.is_floating_point():
            return super().log_marginal_and_kl(f, y, evidence)
        m, v = self.check_outputs(f)
        return self._in_chunks(log_marginal_and_expected_kl, m, v, self.check_targets(y, m.shape[:-1]))

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        """log(1 / alpha_0) at the means: alpha_0 counts observations. f shape: (*batch, C) -> (*batch, 1)"""
        m, _ = self.check_outputs(f)
        return -torch.logsumexp(m, -1, keepdim=True)

    def kl_from_uniform(self, f: Moments | Tensor) -> Tensor:
        """KL(1/C ‖ p) of the expected class probabilities. f shape: (*batch, C) -> (*batch)"""
        return -self.log_probabilities(f).mean(-1) - math.log(self.n_classes)

    def _in_chunks(self, rule: Callable[..., Any], *inputs: Tensor) -> Any:
        """A rule applied to so many points at a time that intermediates stay small; a few dozen at least."""
        largest = MAX_NUMEL_ON_CPU if inputs[0].device.type == "cpu" else MAX_NUMEL
        rows, batch = max(32, largest // (32 * self.n_classes)), inputs[0].shape[:-1]
        if torch.compiler.is_compiling() or len(batch) == 0 or batch.numel() <= rows:
            return rule(*inputs, self.nodes, self.components)
        flat = [x.reshape(-1, *x.shape[len(batch) :]) for x in inputs]  # the places of dense outputs are points, too
        chunks = zip(*(x.split(rows) for x in flat), strict=True)
        parts = [rule(*chunk, self.nodes, self.components) for chunk in chunks]
        if isinstance(parts[0], Tensor):
            return _as_batch(parts, batch)
        return tuple(_as_batch(part, batch) for part in zip(*parts, strict=True))

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

    def counted(self, y: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Labels with class 0 in place of ignored ones, which have weight 0; others have that of their class."""
        if y.is_floating_point():
            if self.class_weight is not None or self.ignore_index is not None:
                raise ValueError(f"{self}: soft labels have no one class to weigh or ignore; weigh points")
            return y, weight
        factor = None
        if self.ignore_index is not None:
            left_out = y == self.ignore_index
            y, factor = torch.where(left_out, 0, y), (~left_out).to(torch.float32)
        if self.class_weight is not None:
            numbers = check_class_numbers(y, self.n_classes, "Dirichlet: ")
            of_class = self.class_weight.to(y.device)[numbers]
            factor = of_class if factor is None else factor * of_class
        if factor is None or weight is None:
            return y, weight if factor is None else factor
        return y, factor * weight.reshape(weight.shape + (1,) * (factor.ndim - weight.ndim))

    def smoothed(self, y: Tensor) -> Tensor:
        """Labels as shares, where they are smoothed. y shape: (*batch) or (*batch, C) -> the same or (*batch, C)"""
        if not self.label_smoothing:
            return y
        shares = y if y.is_floating_point() else torch.nn.functional.one_hot(y, self.n_classes).to(torch.float32)
        return shares * (1 - self.label_smoothing) + self.label_smoothing / self.n_classes

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        moved = self.targets_last(y, len(batch) + 1)
        if moved.shape == (*batch, self.n_classes):
            if y.is_floating_point():
                return check_shares(moved, "Dirichlet: ")
            raise ValueError(
                f"{self}: labels are class numbers, not one-hot rows; pass y.argmax({self.dim}), or shares, y.float()"
            )
        numbers = check_class_numbers(y, self.n_classes, "Dirichlet: ")
        if y.shape != batch:
            raise ValueError(f"{self}: labels of shape {tuple(y.shape)} do not fit outputs for {tuple(batch)} points")
        return numbers


def _parts(m: Tensor, v: Tensor, log_p: Tensor, nodes: int, components: int) -> tuple[Tensor, Tensor, Tensor]:
    """Variance of the class probabilities, expected entropy given f, and given lambda. shapes: (n, C), (n,), (n,)"""
    if torch.compiler.is_exporting():
        return export.parts(m, v, log_p)
    return (*softmax_spread(m, v, log_p), expected_data_entropy(m, v))


def vacuity(m: Tensor) -> Tensor:
    """C / alpha_0 at the means of the log evidence (plug-in). Above 1 where there is less evidence than in Dir(1).

    m shape: (*batch, C) -> (*batch)
    """
    return torch.exp((math.log(m.shape[-1]) - torch.logsumexp(m, -1)).clamp(max=80.0))


def _as_batch(parts: Sequence[Tensor], batch: torch.Size) -> Tensor:
    whole = torch.cat(tuple(parts))
    return whole.reshape(*batch, *whole.shape[1:])


def _class_weights(weight: Tensor | Sequence[float] | None, n_classes: int) -> Tensor | None:
    """shape: (C,)"""
    if weight is None:
        return None
    weight = torch.as_tensor(weight, dtype=torch.float32)
    if weight.shape != (n_classes,) or not bool((weight.isfinite() & (weight >= 0)).all()):
        raise ValueError(f"Dirichlet: class_weight holds {n_classes} finite numbers of at least 0, one for each class")
    return weight.clone()


def _without_class(x: Tensor, y: Tensor) -> Tensor:
    """x with a zero at each point's class, and less of each by a soft label's shares.

    shapes: (*batch, C), (*batch) or (*batch, C) -> (*batch, C)
    """
    if y.is_floating_point():
        return x * (1 - y.to(x.dtype))
    classes = torch.arange(x.shape[-1], device=x.device)
    return torch.where(classes == y[..., None], torch.zeros_like(x), x)
