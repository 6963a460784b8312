"""Fold ensembles for any task: members in groups and folds, and their weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bedl.heads.predictive import Predictive
from bedl.methods.base import Method
from bedl.methods.stack.distances import Nearness, spaced
from bedl.moments import Moments
from bedl.nn.fused import forward_of_many

__all__ = ["Stack"]


CHUNK = 4096  # rows that are predicted together, at most,
NUMBERS = 2**22  # and numbers that all members together predict of them
FEW = 64  # rows, up to which all members are run as one


class Stack(Method):
    """Groups of members, each of which learns without another fold, and a linear model beside them, as a mixture.

    All members of a group share its weight; the weights maximise the out-of-fold likelihood, see the subclasses.
    Uncertainty by the distance to the data is added to every member.

    Args:
        members: networks of the same build, group by group; member k of each group learns without fold k.
        folds: how many parts rows are cut into.
        held: how many of them are held out, each by a member of every group; None: all.
        linear: a linear model per held-out fold, which is one more group; None: without.
        nearness: distances of rows to the data; None: without.
    """

    weights: Tensor

    def __init__(
        self,
        members: Sequence[Method],
        folds: int,
        held: int | None = None,
        linear: nn.Module | None = None,
        nearness: Nearness | None = None,
    ):
        super().__init__()
        held = folds if held is None else held
        if folds < 2 or not 1 <= held <= folds or not members or len(members) % held:
            raise ValueError(
                f"a fold ensemble has at least 2 folds, and a member of each group for each held-out fold; not {folds} "
                f"folds, {held} of them held out, and {len(members)} members"
            )
        self._members = nn.ModuleList(members)
        self.linear, self.nearness = linear, nearness
        self._folds, self._held = folds, held
        self.n_networks = len(members) // held  # groups of them
        self.n_groups = self.n_networks + (linear is not None)

    @property
    def members(self) -> Sequence[Any]:
        return list(self._members)

    @property
    def folds(self) -> int:
        return self._folds

    @property
    def held_folds(self) -> int:
        return self._held

    @property
    def shares(self) -> list[float]:
        """The weight of each group; the linear model, if there is one, comes last."""
        raise NotImplementedError

    def summary(self) -> str:
        count, shares = len(self._members), self.shares
        weights = {f"{count} network{'s' * (count > 1)}": sum(shares[: self.n_networks])}
        if self.linear is not None:
            weights["a linear model"] = shares[-1]
        rest = 1 - sum(shares)
        if round(rest, 2) > 0:
            weights["the class frequencies"] = rest
        bounds = [round(100 * total) for total in itertools.accumulate(weights.values(), initial=0.0)]  # they add up
        percents = [f"{end - start} %" for start, end in itertools.pairwise(bounds)]
        told = f"; out-of-fold weights {_listed(percents)}" if len(weights) > 1 else ""
        return f"fold ensemble of {_listed(list(weights))}{told}"

    @property
    def place(self) -> Any:
        """Rows as points whose distances are in units of the prediction; None: no distances are kept."""
        return None if self.nearness is None else self.nearness.place

    # -- the members' own predictions -------------------------------------------------------------
    def _stacked(self, x: Tensor | Moments, names: Sequence[str]) -> list[Tensor]:
        """Quantities of all members' predictions, by name. shapes: (groups, held, n, …)"""
        together = self._as_one(x, names)
        if together is not None:
            parts = [getattr(together, name).unflatten(0, (-1, self._held)) for name in names]
        else:
            said = [self._said(member, x, names) for member in self._members]
            parts = [torch.stack([getattr(p, name) for p in said]).unflatten(0, (-1, self._held)) for name in names]
        if self.linear is None:
            return parts
        linear: Predictive = self.linear(x)
        return [torch.cat([part, getattr(linear, name)[None]]) for part, name in zip(parts, names, strict=True)]

    def _said(self, member: Any, x: Tensor | Moments, names: Sequence[str]) -> Any:
        """A member's prediction, with the quantities of these names at least."""
        parts = member.parts
        return member(x) if parts is None else self._read(parts[1], member.outputs(x), names)

    def _read(self, head: Any, f: Tensor | Moments, names: Sequence[str]) -> Any:
        """A head's prediction, with the quantities of these names at least."""
        return head(f)

    @property
    def chunk(self) -> int:
        """Rows that are predicted together, so that memory stays bounded."""
        return max(1, min(CHUNK, NUMBERS // (self.n_groups * self._held * self.n_outputs)))

    @property
    def n_outputs(self) -> int:
        """Numbers that a member predicts of a row."""
        return 1

    def _as_one(self, x: Tensor | Moments, names: Sequence[str]) -> Any:
        """All members' predictions in one pass, where these are networks of a known build. shapes: (members, n, …)"""
        # member by member, numbers stay in the cache; and a graph for any number of rows must not ask for it
        if not torch.compiler.is_exporting() and len(x) > FEW:
            return None
        parts = [member.parts for member in self.members]
        if any(part is None for part in parts) or any(True for part in parts for _ in part[1].parameters()):
            return None
        outputs = forward_of_many([net for net, _, _ in parts], x)
        return None if outputs is None else self._read(parts[0][1], outputs, names)

    def _out_of_fold(
        self, x: Tensor | Moments, fold: Tensor, names: Sequence[str], most: int | None = None
    ) -> Iterator[tuple[Tensor, list[Tensor], Tensor]]:
        """Out-of-fold predictions, some rows at a time.

        Then the first of these quantities as all members have it. shapes: (n,), (groups, n, …), (groups, held, n, …)
        Of more than `most` rows, that many, evenly spaced.
        """
        held = (fold < self._held).nonzero()[:, 0]
        held = held if most is None else spaced(held, most)
        training = self.training
        self.eval()
        try:
            for rows in held.split(self.chunk):
                parts = self._stacked(x[rows], names)
                own, place = fold[rows], torch.arange(len(rows), device=fold.device)
                yield rows, [part[:, own, place] for part in parts], parts[0]
        finally:
            self.train(training)

    def _distances(self, x: Tensor | Moments, fold: Tensor, held: Tensor, weight: Tensor | None) -> Tensor | None:
        """Distances of held-out rows to the rows of other folds, in units of the prediction. shape: (held,)"""
        if self.nearness is None:
            return None
        training = self.training
        self.eval()
        try:
            steep = lambda z: (self._steep(member, z) for member in self._members)  # noqa: E731
            return self.nearness.fit(x, fold, held, weight, steep, self.chunk)
        finally:
            self.train(training)

    def _steep(self, member: Any, x: Tensor) -> Tensor:
        """The network outputs whose slopes weight the columns in distances. shape: (n, outputs)"""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"folds={self.folds}, held={self._held}, shares={[round(share, 2) for share in self.shares]}"


def _listed(names: Sequence[str]) -> str:
    """The names with commas, and "and" before the last."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
