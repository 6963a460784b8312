"""Fold ensemble for classification: a mixture of tempered probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from bedl.heads import Dirichlet, dirichlet
from bedl.heads.predictive import CategoricalPredictive, Predictive
from bedl.methods.base import Method
from bedl.methods.stack.base import Stack
from bedl.methods.stack.distances import Nearness
from bedl.methods.stack.weights import mixture_weights
from bedl.moments import Moments, as_moments

__all__ = ["ClassStack"]


TEMPERATURES = (0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 2.2)
UNSURE = 4.0  # squared distance, in log-odds, at which a prediction falls back halfway to the class frequencies
USUAL = 0.99  # out-of-fold quantile up to which vacuity counts as usual
LEAST_NOISE = 0.02  # share of what may be noise
NUMBERS_HELD = 2**25  # out-of-fold predictions in all: with many classes a sample of rows is used,
FEWEST = 1000  # but no fewer
PARTS = ("log_probabilities", "vacuity", "spread")


class ClassStack(Stack):
    """Fold ensemble for classification.

    A component is a member at a temperature, p^(1/t): the weights of the pairs (group, temperature) maximise the
    out-of-fold likelihood. One more component is the class frequencies, the same for all rows, for labels that cannot
    be predicted. Beyond the distances of out-of-fold rows, every member falls back on the class frequencies.

    The jackknife over folds tells noise from model uncertainty, as for regression (see `TargetStack`): (K − 1) times
    the mutual information of the label and the fold is the part `model`; entropy where evidence is below the usual is
    `distributional`, and the rest is `data`.

    Args:
        members, folds, held, linear, nearness: as for `Stack`.
        n_classes: how many classes there are.

    Example:
        >>> import torch
        >>> from bedl.methods import Problem, registry
        >>> stack = registry.get("stack")(Problem("classification", 3, (4,)), folds=2)
        >>> p = stack.predict(torch.zeros(5, 4))
        >>> p.probabilities.shape, torch.allclose(p.data + p.distributional + p.model, p.entropy)
        (torch.Size([5, 3]), True)
    """

    temperatures: Tensor
    log_frequencies: Tensor
    noise: Tensor
    usual_vacuity: Tensor

    def __init__(
        self,
        members: Sequence[Method],
        folds: int,
        held: int | None = None,
        linear: nn.Module | None = None,
        nearness: Nearness | None = None,
        n_classes: int = 2,
    ):
        super().__init__(members, folds, held, linear, nearness)
        self.register_buffer("temperatures", torch.tensor(TEMPERATURES))
        weights = (self.temperatures == 1.0).to(self.temperatures).repeat(self.n_groups + 1, 1)
        weights[-1] = 0.0
        self.register_buffer("weights", weights / self.n_groups)  # shape: (groups + 1, temperatures)
        self.register_buffer("log_frequencies", -torch.tensor(float(n_classes)).log().expand(n_classes).clone())
        self.register_buffer("noise", torch.ones(()))  # the share of what may be noise that is
        self.register_buffer("usual_vacuity", torch.ones(len(members) // self.held_folds))  # out of fold

    @property
    def shares(self) -> list[float]:
        return self.weights.sum(1)[: self.n_groups].tolist()

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture, in the members' present mode and with gradients. x: shape (n, *input)"""
        log_p, vacuity, spread = self._stacked(x, PARTS)  # shapes: (groups, held, n, …)
        unknown = torch.zeros_like(vacuity[0, 0]) if self.nearness is None else self._unfamiliar(self.nearness(x))
        p, square = self._mixed(self._fallen_back(log_p, unknown))  # of each fold. shape: (held, n, C)
        familiar = self._familiar(vacuity, unknown)
        possible = (familiar * _entropy(_log(p))).mean(0)
        foreign = ((1 - familiar) * _entropy(_log(p))).mean(0)
        p, square = p.mean(0), square.mean(0)
        shares, constant = (self.weights[:-1].sum(1) / self.held_folds)[:, None, None], self.weights[-1].sum()
        inner = (shares[..., None] * (1 - self.noise * familiar)[..., None] * spread).sum((0, 1))
        return CategoricalPredictive(
            log_probabilities=_log(p),
            data=self.noise * possible,
            distributional=foreign,
            vacuity=(shares * torch.lerp(vacuity, torch.ones_like(vacuity), unknown)).sum((0, 1)) + constant,
            spread=torch.minimum(inner + (square - p.square()).clamp_min(0.0), p * (1 - p)),
        )

    def _mixed(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Groups and temperatures as one: probabilities, and the mean of their squares. shape: (groups, …) -> (…)"""
        constant, frequencies = self.weights[-1].sum(), self.log_frequencies.exp()
        p, square = constant * frequencies.expand(log_p.shape[1:]), constant * frequencies.square()
        for temperature, weight in zip(self.temperatures, self.weights[:-1].mT, strict=True):
            tempered, share = torch.softmax(log_p / temperature, -1), weight.reshape(-1, *(1,) * (log_p.ndim - 1))
            p, square = p + (share * tempered).sum(0), square + (share * tempered.square()).sum(0)
        return p / p.sum(-1, keepdim=True), square

    def _familiar(self, vacuity: Tensor, unknown: Tensor) -> Tensor:
        """From 0 without evidence to 1 with the usual evidence. shape: (groups, …) -> (…)"""
        networks = len(self.usual_vacuity)  # a linear model has no evidence to speak of
        usual = self.usual_vacuity.reshape(-1, *(1,) * (vacuity.ndim - 1))
        evidence = usual / torch.maximum(vacuity[:networks], usual)
        return (1 - unknown) * evidence.mean(0)

    def _unfamiliar(self, distance: Tensor) -> Tensor:
        """From 0 on rows like the data to 1 far away. shape: (n,)"""
        beyond = self.nearness.beyond(distance)  # type: ignore[union-attr]
        return beyond / (UNSURE + beyond)

    def _read(self, head: Any, f: Tensor | Moments, names: Sequence[str]) -> Any:
        """Without the entropies of each member, which nobody asks for: they would take most of the time and memory."""
        if torch.compiler.is_compiling() or not isinstance(head, Dirichlet):
            return head(f)
        log_p = head.log_probabilities(f)
        spread = head.spread(f, log_p) if "spread" in names else None
        return SimpleNamespace(log_probabilities=log_p, vacuity=dirichlet.vacuity(as_moments(f).loc), spread=spread)

    @property
    def n_outputs(self) -> int:
        return len(self.log_frequencies)

    def _steep(self, member: Any, x: Tensor) -> Tensor:
        """Log-odds of the most probable class: probabilities near 1 have no slope."""
        most = self._said(member, x, PARTS[:1]).log_probabilities.amax(-1, keepdim=True).clamp_max(-1e-6)
        return most - torch.log(-torch.expm1(most))

    def _fallen_back(self, log_p: Tensor, unknown: Tensor) -> Tensor:
        """log_p: shape (…, n, C); unknown: shape (n,)"""
        p = (1 - unknown)[:, None] * log_p.exp() + unknown[:, None] * self.log_frequencies.exp()
        return _log(p)

    # -- fitting to out-of-fold predictions --------------------------------------------------------
    @torch.no_grad()
    def finish(
        self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        y = y.reshape(len(y))
        if self.linear is not None:
            self.linear.fit(x, y, fold, weight)  # type: ignore[operator]
        counts = torch.ones(len(y), device=y.device) if weight is None else weight.float()
        classes = len(self.log_frequencies)
        seen = torch.zeros(classes, device=y.device).index_add(0, y, counts) + 0.5  # no class is impossible
        self.log_frequencies.copy_((seen / seen.sum()).log())
        most = max(FEWEST, NUMBERS_HELD // (self.n_groups * (self.held_folds + 1) * classes))
        found = list(self._out_of_fold(x, fold, PARTS[:2], most))
        held = torch.cat([some for some, _, _ in found])
        distance = self._distances(x, fold, held, weight)
        unknown = torch.zeros(len(held)).to(self.weights) if distance is None else self._unfamiliar(distance)
        densities = []
        for (some, (log_p, _), _), far in zip(found, unknown.split(self.chunk), strict=True):
            log_p = self._fallen_back(log_p, far)
            tempered = torch.log_softmax(log_p.double()[:, None] / self.temperatures[:, None, None].double(), -1)
            place = y[some].expand(*tempered.shape[:2], -1)[..., None]
            densities.append(tempered.gather(-1, place)[..., 0].flatten(0, 1).T)  # shape: (n, groups · temperatures)
        constant = self.log_frequencies.double()[y[held]][:, None]
        chosen = mixture_weights(
            torch.cat([torch.cat(densities), constant], 1), None if weight is None else weight[held]
        )
        self.weights.zero_()
        self.weights[:-1] = chosen[:-1].reshape(self.n_groups, -1).to(self.weights)
        self.weights[-1, 0] = chosen[-1].to(self.weights)
        vacuity = torch.cat([lacking for _, (_, lacking), _ in found], 1)
        self.usual_vacuity.copy_(vacuity[: len(self.usual_vacuity)].quantile(USUAL, 1))
        self._tell_noise(found, unknown, counts[held])
        parts = zip(found, unknown.split(self.chunk), strict=True)
        return held, torch.cat([self._mixed(self._fallen_back(log_p, far))[0] for (_, (log_p, _), _), far in parts])

    def _tell_noise(self, found: Sequence[Any], unknown: Tensor, counts: Tensor) -> None:
        """The share of noise that leaves members the model uncertainty that the jackknife finds out of fold."""
        sums = []
        for (_, (log_p, vacuity), everyone), far in zip(found, unknown.split(self.chunk), strict=True):
            entropy = _entropy(_log(self._mixed(self._fallen_back(log_p, far))[0]))
            folds = self._mixed(self._fallen_back(everyone, far))[0]  # shape: (folds held, n, C)
            unsure = (len(folds) - 1) * (_entropy(_log(folds.mean(0))) - _entropy(_log(folds)).mean(0))
            sums.append(torch.stack([entropy - unsure, self._familiar(vacuity, far) * entropy]))
        wanted, possible = torch.cat(sums, 1).double() @ counts.double()
        self.noise.copy_((wanted / possible.clamp_min(1e-12)).clamp(LEAST_NOISE, 1.0))


def _log(p: Tensor) -> Tensor:
    return p.clamp_min(torch.finfo(p.dtype).tiny).log()


def _entropy(log_p: Tensor) -> Tensor:
    """In nats. shape: (…, C) -> (…)"""
    return -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1)
