"""Early stopping of many networks at once: each by its own score, each back to its own best epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bedl.nn.calling import map_parts
from bedl.training.early_stopping import EarlyStopping
from bedl.training.replica_data import Joined
from bedl.training.replica_going import Going
from bedl.training.scoring import as_places, counted, scored
from bedl.training.stacked import Stacked

__all__ = ["ReplicaWatch"]


class ReplicaWatch:
    """Scores replicas on their validation sets, and remembers the best of each.

    Args:
        stacked: the replicas.
        validation: one set for all, or a list with one each.
        rule: when to stop; None: only score.

    Attributes:
        stopped: which replicas have stopped.
    """

    def __init__(self, stacked: Stacked, validation: Any, rule: EarlyStopping | None):
        self.stacked, self.rule = stacked, rule
        count = len(stacked.methods)
        self.points = Joined(validation, count, stacked.device, stacked.methods[0])
        first = self.points.rows([places[:1] for places in self.points.places])
        scored(stacked.methods[0], map_parts(lambda part: part[0], first.x), first.y[0], None)
        self.best = [math.inf] * count
        self.waited = [0] * count
        self.stopped = [False] * count
        self.rows: Tensor | None = stacked.parameters.clone() if rule and rule.restore_best else None

    def update(self, ended: Sequence[bool], going: Going) -> list[float]:
        """Take in the epoch of the replicas that have ended one. Returns the scores of those going, lower is better."""
        going.write_back()
        scores = self.scores(going)
        if self.rule is None:
            return scores
        for r in [r for r, end in enumerate(ended) if end and not self.stopped[r]]:
            if scores[r] < self.best[r] - self.rule.min_delta:
                self.best[r], self.waited[r] = scores[r], 0
                if self.rows is not None:
                    self.rows[r] = self.stacked.parameters[r]
            else:
                self.waited[r] += 1
            self.stopped[r] = self.waited[r] > self.rule.patience
        return scores

    def scores(self, going: Going, chunk: int = 1024) -> list[float]:
        """Each replica's (weighted) mean −log p(y|x) over its set; NaN for those that have stopped."""
        total = torch.zeros(2, len(going.numbers), dtype=torch.float64)
        places = [self.points.places[number] for number in going.numbers]
        for start in range(0, max(map(len, places)), chunk):
            part = self.points.rows([place[start : start + chunk] for place in places])
            y, counts = counted(self.stacked.methods[0], part.y, part.weight)
            log_p = going.stacked.log_densities(part.x, y).double().cpu()
            weight = torch.ones_like(log_p) if counts is None else as_places(counts.double().cpu(), log_p)
            # a replica whose set ended in an earlier chunk has one point of padding here
            weight = weight * as_places(torch.tensor(part.counts) > 0, log_p)
            log_p, weight = log_p.flatten(1), weight.flatten(1)
            total += torch.stack([-log_p.where(weight > 0, 0.0).mul(weight).sum(1), weight.sum(1)])
        means = dict(zip(going.numbers, (total[0] / total[1]).tolist(), strict=True))
        return [means.get(number, math.nan) for number in range(len(self.best))]

    def restore(self) -> None:
        """Put back the parameters of each replica's best epoch."""
        if self.rows is not None:
            seen = torch.tensor([math.isfinite(best) for best in self.best], device=self.rows.device)
            self.stacked.parameters[seen] = self.rows[seen]

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs to know."""
        return {"best": self.best, "waited": self.waited, "stopped": self.stopped, "rows": self.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.best, self.waited, self.stopped = state["best"], state["waited"], state["stopped"]
        self.rows = None if self.rows is None else state["rows"].to(self.rows.device)
