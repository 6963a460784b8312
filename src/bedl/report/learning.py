"""A section on how the model was learned: what was chosen, the course of its loss, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bedl.report import svg
from bedl.report.layout import card
from bedl.report.text import count, data, number, table

__all__ = ["learning_section"]


def learning_section(training: Mapping[str, Any]) -> str:
    """The section, or nothing where nothing is known.

    Args:
        training: ``chosen``, a sentence; ``loss``, of each epoch on points learned from; ``val_nll``, of each epoch on
            points held out, if some were; ``settings``, by name.
    """
    loss = np.asarray(training.get("loss", ()), dtype=np.float64)
    if not training or not np.isfinite(loss).all():
        return ""
    how = data(str(training.get("chosen", "")), 300)
    plot = _curve(loss, np.asarray(training.get("val_nll", ()), dtype=np.float64)) if len(loss) > 1 else ""
    rows = [[data(str(name), 40), data(str(value), 120)] for name, value in training.get("settings", {}).items()]
    numbers = table("What the fit was asked for", ["setting", "value"], rows) if rows else ""
    return card("How it was learned", how, plot, numbers=numbers)


def _curve(loss: np.ndarray, held_out: np.ndarray) -> str:
    """The mean loss of the members after each epoch, and that of points held out."""
    held_out = held_out if len(held_out) == len(loss) and np.isfinite(held_out).all() else np.empty(0)
    both = np.concatenate([loss, held_out])
    # the first epochs would flatten all others
    high = float(max(np.quantile(both, 0.95), both[-1]))
    low = float(both.min())
    room = 0.05 * (high - low or 1.0)
    frame = svg.Frame(1, len(loss), low - room, high + room)
    epochs = np.arange(1, len(loss) + 1)
    marks = [svg.line(frame, epochs, loss.clip(max=high))]
    if len(held_out):
        marks.append(svg.line(frame, epochs, held_out.clip(max=high), "b"))
    at = np.unique(np.linspace(0, len(loss) - 1, 12).astype(int))
    tips = [f"epoch {count(epochs[i])}: loss {number(loss[i])}" for i in at]
    marks.append(svg.scatter(frame, epochs[at], loss[at].clip(max=high), "a solid", tips, size=3.2))
    return svg.figure(
        frame, *marks, name="Loss after each epoch of training", x_label="epoch", y_label="loss",
    )  # fmt: skip
