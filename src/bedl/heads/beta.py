"""Yes or no, for one label or several: a Beta over each label's probability, its log evidence the network's outputs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor

from bedl.heads.base import Evidence, Head, serves
from bedl.heads.integrals import (
    LOG_FLOOR,
    dirichlet_entropy,
    dirichlet_kl,
    expected_dirichlet_kl,
    log_marginal,
    log_marginal_and_expected_kl,
    log_mean_softmax,
    softmax_spread,
)
from bedl.heads.integrals.kl import gamma_terms
from bedl.heads.predictive import Predictive
from bedl.heads.predictive.base import PaperSplit, register
from bedl.heads.predictive.categorical import can_look
from bedl.moments import Moments
from bedl.moments.numerics import std

UNKNOWN = -1  # in place of a label that nobody knows
LABELS_PER_CHUNK = 2**12  # labels that are computed at a time: each takes some thousand numbers
NODES, REACH = 40, 5.5  # of the rule for the labels' own noise: for each output, and in stds


@serves("multilabel")
class Beta(Head["BetaPredictive"]):
    """Head for L labels, each yes or no: lambda ~ Beta(exp f_a, exp f_b), y ~ Bernoulli(lambda), f ~ N(loc, variance).

    A Beta is a Dirichlet of two classes, so every integral is one of `heads/integrals`, without sampling, as exact as
    it is there. Labels are independent given the network's outputs. A label that is not known is marked by -1: it has
    no part in the likelihood.

    Args:
        n_labels: number of labels L, at least 1. The network needs 2 L outputs: first all f_a, the log evidence for
            yes, then all f_b, that for no.
        dim: the dimension that outputs and labels lie along: 1 for maps with channels first.

    Example:
        >>> import torch
        >>> from bedl.moments import Moments
        >>> head = Beta(2)
        >>> f = Moments(torch.tensor([[2.0, 0.0, -1.0, 0.0]]), 1.0)
        >>> head(f).probabilities
        tensor([[0.9086, 0.5000]])
        >>> head.log_marginal(f, torch.tensor([[1, 0]])).exp(), head.log_marginal(f, torch.tensor([[1, -1]])).exp()
        (tensor([0.4543]), tensor([0.9086]))
    """

    def __init__(self, n_labels: int = 1, dim: int = -1):
        super().__init__()
        if n_labels < 1:
            raise ValueError(f"Beta: n_labels must be at least 1, not {n_labels}")
        self.n_labels, self.dim = n_labels, dim

    @property
    def n_outputs(self) -> int:  # type: ignore[override]
        """Two network outputs per label."""
        return 2 * self.n_labels

    def extra_repr(self) -> str:
        return f"n_labels={self.n_labels}"

    # -- closed forms --------------------------------------------------------------------------------
    def forward(self, f: Moments | Tensor) -> BetaPredictive:
        """The prediction. f shape: (*batch, 2 L)"""
        return BetaPredictive(*_some_at_a_time(_prediction, *self._split(f)))

    def log_marginal(self, f: Moments | Tensor, y: Tensor) -> Tensor:
        """log p(y | x), summed over the known labels. f shape: (*batch, 2 L), y shape: (*batch, L) -> (*batch)"""
        m, v = self._split(f)
        y = self.check_targets(y, m.shape[:-2])
        return (log_marginal(m, v, _class(y)) * (y != UNKNOWN)).sum(-1)

    def kl(self, f: Moments | Tensor, y: Tensor | None = None, evidence: Evidence = "all") -> Tensor:
        """E KL(Beta(exp(f) + 1e-3) || Beta(1, 1)), summed over the labels; see `bedl.heads.integrals.kl`.

        Args:
            f: moments of the network's outputs. shape: (*batch, 2 L)
            y: labels, needed where ``evidence="misleading"``. shape: (*batch, L)
            evidence: ``"misleading"`` sets the log evidence for the true answers to 0, with variance 0.

        Returns:
            shape: (*batch)
        """
        m, v = self._split(f)
        y = self.targets_for(y, evidence, m.shape[:-2])
        if y is not None:
            m, v = _without_truth(m, y), _without_truth(v, y)
        return expected_dirichlet_kl(m, v).sum(-1)

    def log_marginal_and_kl(self, f: Moments | Tensor, y: Tensor, evidence: Evidence = "all") -> tuple[Tensor, Tensor]:
        """Both; on one race where ``evidence="all"``. shapes: (*batch), (*batch)"""
        if evidence != "all":
            return super().log_marginal_and_kl(f, y, evidence)
        m, v = self._split(f)
        y = self.check_targets(y, m.shape[:-2])
        log_p, kl = log_marginal_and_expected_kl(m, v, _class(y))
        return (log_p * (y != UNKNOWN)).sum(-1), kl.sum(-1)

    def log_ignorance(self, f: Moments | Tensor) -> Tensor:
        """log(1 / (alpha + beta)) at the means, of each label. f shape: (*batch, 2 L) -> (*batch, L)"""
        return -torch.logsumexp(self._split(f)[0], -1)

    # -- for known f ---------------------------------------------------------------------------------
    def given(self, f: Tensor) -> BetaPredictive:
        pairs = _pairs(f)
        log_p = torch.log_softmax(pairs, -1)
        entropy = _entropy(log_p)
        data = torch.minimum(dirichlet_entropy(pairs), entropy)
        return BetaPredictive(log_p[..., 0], log_p[..., 1], data, entropy - data, torch.zeros_like(data))

    def divergence(self, f: Tensor, y: Tensor | None, evidence: Evidence) -> Tensor:
        pairs = _pairs(f) if y is None else _without_truth(_pairs(f), y)
        return dirichlet_kl(torch.logaddexp(pairs, pairs.new_tensor(LOG_FLOOR))).sum(-1)

    def check_targets(self, y: Tensor, batch: torch.Size) -> Tensor:
        y = self.targets_last(y, len(batch) + 1)
        if self.n_labels == 1 and y.shape == batch:
            y = y[..., None]
        if y.shape != (*batch, self.n_labels):
            raise ValueError(
                f"{self}: labels of shape {tuple(y.shape)} do not fit outputs for {tuple(batch)} points and "
                f"{self.n_labels} labels, shape {(*batch, self.n_labels)}"
            )
        if can_look(y) and not bool(((y == 0) | (y == 1) | (y == UNKNOWN)).all()):
            raise ValueError(f"{self}: labels are 0 or 1, or {UNKNOWN} where not known")
        return y.long()

    def _split(self, f: Moments | Tensor) -> tuple[Tensor, Tensor]:
        m, v = self.check_outputs(f)
        return _pairs(m), _pairs(v)


def _pairs(x: Tensor) -> Tensor:
    """Yes and no of each label side by side. shape: (*batch, 2 L) -> (*batch, L, 2)"""
    return x.unflatten(-1, (2, -1)).transpose(-1, -2)


def _class(y: Tensor) -> Tensor:
    """Which of the pair a label is; of one that is not known, either. shape: (*shape)"""
    return (y == 0).long()


def _without_truth(x: Tensor, y: Tensor) -> Tensor:
    """x with a zero at each true answer. shapes: (*batch, L, 2), (*batch, L) -> (*batch, L, 2)"""
    return torch.where(torch.stack((y == 1, y == 0), -1), torch.zeros_like(x), x)


def _entropy(log_p: Tensor) -> Tensor:
    """shape: (*shape, 2) -> (*shape)"""
    return -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1)


def _prediction(m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """The fields of a prediction. shapes: (*batch, 2) -> 5 x (*batch)"""
    log_p = log_mean_softmax(m, v)
    spread, given_f = softmax_spread(m, v, log_p)
    data = torch.minimum(_noise(m, v).clamp_min(0.0), given_f)  # rounding only
    return log_p[..., 0], log_p[..., 1], data, given_f - data, spread[..., 0]


def _noise(m: Tensor, v: Tensor) -> Tensor:
    """E[psi(a + b + 1) - (a psi(a + 1) + b psi(b + 1)) / (a + b)], a, b = exp(f), by a trapezoidal rule for both.

    The largest error, in nats, is 1e-5 for stds up to 5 and 1e-3 up to 10. shapes: (*shape, 2) -> (*shape)
    """
    z = torch.linspace(-REACH, REACH, NODES, dtype=m.dtype, device=m.device)
    weight = torch.softmax(-0.5 * z.square(), -1)
    yes, no = (m[..., None] + std(v)[..., None] * z).unbind(-2)  # shapes: (*shape, Z)
    yes, no = yes[..., :, None], no[..., None, :]
    share = torch.sigmoid(yes - no)
    apart = share * gamma_terms(yes)[1] + (1 - share) * gamma_terms(no)[1]
    return ((gamma_terms(torch.logaddexp(yes, no))[1] - apart) * weight).sum(-1) @ weight


def _some_at_a_time(rule: Callable[..., tuple[Tensor, ...]], m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """A rule for labels by themselves, applied to so many at a time that memory stays small. shapes: (*batch, L, 2)"""
    if torch.compiler.is_compiling() or not can_look(m) or m.numel() <= 2 * LABELS_PER_CHUNK:
        return rule(m, v)
    pairs = zip(m.reshape(-1, 2).split(LABELS_PER_CHUNK), v.reshape(-1, 2).split(LABELS_PER_CHUNK), strict=True)
    parts = zip(*(rule(*pair) for pair in pairs), strict=True)
    return tuple(torch.cat(part).reshape(m.shape[:-1]) for part in parts)


@dataclasses.dataclass
class BetaPredictive(Predictive):
    """Prediction of L labels, each yes or no. Uncertainties are entropies in nats, for each label by itself.

    ``total = data + distributional + model``: the labels' own noise; what the evidence leaves open about their
    probabilities; and what is not known about the network. The last two are ``epistemic``.

    Args:
        log_probabilities: logarithms of the probabilities of yes. shape: (*batch, L)
        log_complements: logarithms of those of no. shape: (*batch, L)
        data: expected entropy of a label whose probability is known. shape: (*batch, L)
        distributional: what is added to it where only the evidence is known. shape: (*batch, L)
        spread: variance of the probabilities over what the network may be. shape: (*batch, L)

    Example:
        >>> import torch
        >>> p = Beta(1).given(torch.zeros(1, 2))  # a uniform probability
        >>> p.data, p.distributional, p.model, p.total
        (tensor([[0.5000]]), tensor([[0.1931]]), tensor([[0.]]), tensor([[0.6931]]))
    """

    log_probabilities: Tensor
    log_complements: Tensor
    data: Tensor
    distributional: Tensor
    spread: Tensor

    task = "multilabel"
    output_names = ("probabilities", "total", "data", "distributional", "model")

    @property
    def probabilities(self) -> Tensor:
        """Of yes. shape: (*batch, L)"""
        return self.log_probabilities.exp()

    @property
    def mean(self) -> Tensor:
        """Mean of the labels as 0 and 1: the probabilities. shape: (*batch, L)"""
        return self.probabilities

    @property
    def label(self) -> Tensor:
        """The more probable answers, 0 or 1. shape: (*batch, L)"""
        return (self.log_probabilities > self.log_complements).long()

    @property
    def variance(self) -> Tensor:
        """Variance p (1 - p) of the labels as 0 and 1. shape: (*batch, L)"""
        return torch.exp(self.log_probabilities + self.log_complements)

    @property
    def total(self) -> Tensor:
        """Entropy of each label. shape: (*batch, L)"""
        return _entropy(torch.stack((self.log_probabilities, self.log_complements), -1))

    @property
    def model(self) -> Tensor:
        """What knowing the network would take off the entropy. shape: (*batch, L)"""
        return (self.total - self.data - self.distributional).clamp_min(0.0)

    @property
    def entropy(self) -> Tensor:
        """Of all labels together. shape: (*batch)"""
        return self.total.sum(-1)

    def paper_split(self) -> PaperSplit:
        return PaperSplit(self.variance - self.spread, self.spread)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log-probability of the labels, 0 or 1, or -1 where not known. y shape: (*batch, L) -> (*batch)"""
        shape = self.log_probabilities.shape
        if y.shape == shape[:-1] and shape[-1] == 1:
            y = y[..., None]
        if y.shape[-len(shape) :] != shape:  # several answers for each point may stand in front
            raise ValueError(f"labels of shape {tuple(y.shape)} do not fit predictions of shape {tuple(shape)}")
        return (torch.where(y == 1, self.log_probabilities, self.log_complements) * (y != UNKNOWN)).sum(-1)

    def sample(self, n: int = 1, generator: torch.Generator | None = None) -> Tensor:
        """``n`` draws of the labels. shape: (n, *batch, L)"""
        p = self.probabilities
        return (torch.rand((n, *p.shape), dtype=p.dtype, device=p.device, generator=generator) < p).long()

    def mixed(self) -> BetaPredictive:
        logs = (self.log_probabilities, self.log_complements)
        yes, no = (torch.logsumexp(log_p, 0) - math.log(len(log_p)) for log_p in logs)
        spread = self.spread.mean(0) + self.probabilities.var(0, correction=0)
        spread = torch.minimum(spread, torch.exp(yes + no))  # rounding only
        return BetaPredictive(yes, no, self.data.mean(0), self.distributional.mean(0), spread)

    def marginal(self) -> BetaPredictive:
        logs = (self.log_probabilities, self.log_complements)
        yes, no = (torch.logsumexp(log_p, 0) - math.log(len(log_p)) for log_p in logs)
        found = BetaPredictive(yes, no, self.data.mean(0), torch.zeros_like(yes), self.spread.mean(0))
        found.distributional = (found.total - found.data - self.model.mean(0)).clamp_min(0.0)
        return found

    def _columns(self) -> dict[str, Tensor]:
        names = "label probabilities total aleatoric epistemic data distributional model"
        return {name: getattr(self, name) for name in names.split()}


register(BetaPredictive)
