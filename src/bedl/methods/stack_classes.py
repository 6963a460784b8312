"""The stack of classes: a mixture of tempered probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.methods.base import Method
from bedl.methods.nearness import Nearness
from bedl.methods.stack_base import Stack
from bedl.methods.stacking import mixture_weights
from bedl.moments import Moments
from bedl.predictive import CategoricalPredictive, Predictive

__all__ = ["ClassStack"]

TEMPERATURES = (0.2, 0.3, 0.45, 0.7, 1.0, 1.5, 2.2)
UNSURE = 4.0  # squared distance, in log-odds, of which half is unknown
PARTS = ("log_probabilities", "data", "distributional", "vacuity", "spread")


class ClassStack(Stack):
    """A stack for classes.

    A component is a member at a temperature, p^(1/t): the weights of the pairs (group, temperature) make the labels
    that were held out most likely. One more component says the shares of the classes, whatever the row: what is left
    for labels that nothing foretells. At another temperature each part of the uncertainty keeps its share. Further away
    from the data than rows held out are, every member falls back on the shares of the classes.

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

    @property
    def shares(self) -> list[float]:
        return self.weights.sum(1)[: self.n_groups].tolist()

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture, in the members' present mode and with gradients. x: shape (n, *input)"""
        said = self._stacked(x, PARTS)  # shapes: (groups, held, n, …)
        log_p, data, distributional, vacuity, spread = said if self.nearness is None else self._less_sure(said, x)
        entropy = _entropy(log_p)
        constant = self.weights[-1].sum()
        shares = (self.weights[:-1].sum(1) / self.held_folds)[:, None, None]
        p = constant * self.log_frequencies.exp().expand(log_p.shape[2:])
        square, ratio = constant * self.log_frequencies.exp().square(), torch.zeros_like(data)
        for temperature, weight in zip(self.temperatures, self.weights[:-1].mT, strict=True):
            tempered = torch.log_softmax(log_p / temperature, -1)
            share = (weight / self.held_folds)[:, None, None]
            p = p + (share[..., None] * tempered.exp()).sum((0, 1))
            square = square + (share[..., None] * (2 * tempered).exp()).sum((0, 1))
            ratio = ratio + share * _entropy(tempered) / entropy.clamp_min(torch.finfo(entropy.dtype).tiny)
        p = p / p.sum(-1, keepdim=True)
        between = (square - p.square()).clamp_min(0.0)
        inner = (shares[..., None] * spread).sum((0, 1))
        constant_data = constant * _entropy(self.log_frequencies)
        return CategoricalPredictive(
            log_probabilities=p.clamp_min(torch.finfo(p.dtype).tiny).log(),
            data=(ratio * data).sum((0, 1)) + constant_data,
            distributional=(ratio * distributional).sum((0, 1)),
            vacuity=(shares * vacuity).sum((0, 1)) + constant,
            spread=torch.minimum(inner + between, p * (1 - p)),
        )

    def _less_sure(self, said: list[Tensor], x: Tensor | Moments) -> list[Tensor]:
        """The same, but that members fall back on the shares of the classes far from the data."""
        log_p, data, distributional, vacuity, spread = said
        unknown = self._unfamiliar(self.nearness(x))  # type: ignore[misc]
        known = 1 - unknown
        mixed = self._fallen_back(log_p, unknown)
        model = (_entropy(log_p) - data - distributional).clamp_min(0.0)
        missing = (_entropy(mixed) - known * (data + model)).clamp_min(0.0)
        vacuity = known * vacuity + unknown
        return [mixed, known * data, missing, vacuity, known[:, None] * spread]

    def _unfamiliar(self, distance: Tensor) -> Tensor:
        """From 0 on rows like the data to 1 far away. shape: (n,)"""
        beyond = self.nearness.beyond(distance)  # type: ignore[union-attr]
        return beyond / (UNSURE + beyond)

    def _steep(self, prediction: Any) -> Tensor:
        """Log-odds of the most probable class: probabilities near 1 have no slope."""
        most = prediction.log_probabilities.amax(-1, keepdim=True).clamp_max(-1e-6)
        return most - torch.log(-torch.expm1(most))

    def _fallen_back(self, log_p: Tensor, unknown: Tensor) -> Tensor:
        """log_p: shape (…, n, C); unknown: shape (n,)"""
        p = (1 - unknown)[:, None] * log_p.exp() + unknown[:, None] * self.log_frequencies.exp()
        return p.clamp_min(torch.finfo(p.dtype).tiny).log()

    # -- what the rows that were held out say -----------------------------------------------------
    @torch.no_grad()
    def finish(self, x: Tensor | Moments, y: Tensor, fold: Tensor, weight: Tensor | None = None) -> None:
        y = y.reshape(len(y))
        if self.linear is not None:
            self.linear.fit(x, y, fold, weight)  # type: ignore[operator]
        counts = torch.ones(len(y), device=y.device) if weight is None else weight.float()
        classes = len(self.log_frequencies)
        seen = torch.zeros(classes, device=y.device).index_add(0, y, counts) + 0.5  # no class is impossible
        self.log_frequencies.copy_((seen / seen.sum()).log())
        found = [(some, *parts) for some, parts in self._out_of_fold(x, fold, ("log_probabilities",))]
        held = torch.cat([some for some, _ in found])
        distance = self._distances(x, fold, held, weight)
        densities = []
        for some, log_p in found:
            if distance is not None:
                near, distance = distance[: len(some)], distance[len(some) :]
                log_p = self._fallen_back(log_p, self._unfamiliar(near))
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


def _entropy(log_p: Tensor) -> Tensor:
    """In nats. shape: (…, C) -> (…)"""
    return -(log_p.exp() * log_p.clamp_min(-1e4)).sum(-1)
