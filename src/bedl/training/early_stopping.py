"""Stopping when the validation set says so."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from torch import Tensor, nn

__all__ = ["EarlyStopping"]


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """Stop when the validation score has not improved for `patience` epochs.

    Args:
        patience: how many epochs without improvement are allowed.
        min_delta: what counts as an improvement.
        restore_best: go back to the parameters of the best epoch at the end.

    Example:
        >>> stopping = EarlyStopping(patience=1).start()
        >>> [stopping.update(score, nn.Identity()) for score in (1.0, 0.5, 0.6, 0.7)]
        [False, False, False, True]
    """

    patience: int = 10
    min_delta: float = 0.0
    restore_best: bool = True

    def start(self) -> Watch:
        """The state of one run."""
        return Watch(self)


class Watch:
    """What early stopping remembers during a run."""

    def __init__(self, rule: EarlyStopping):
        self.rule, self.best, self.waited = rule, math.inf, 0
        self.parameters: dict[str, Tensor] | None = None

    def update(self, score: float, method: nn.Module) -> bool:
        """Take in an epoch's score, lower is better; says whether to stop."""
        if score < self.best - self.rule.min_delta:
            self.best, self.waited = score, 0
            if self.rule.restore_best:
                self.parameters = {name: value.detach().cpu().clone() for name, value in method.state_dict().items()}
        else:
            self.waited += 1
        return self.over

    @property
    def over(self) -> bool:
        """Whether it has waited long enough."""
        return self.waited > self.rule.patience

    def restore(self, method: nn.Module) -> None:
        """Put back the best epoch's parameters."""
        if self.parameters is not None:
            method.load_state_dict(self.parameters)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited, "parameters": self.parameters}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited, self.parameters = state["best"], state["waited"], state["parameters"]
