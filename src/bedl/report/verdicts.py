"""What the numbers of a page come to, in sentences that need no statistics."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bedl.report.layout import Verdict
from bedl.report.text import data, number, percent

__all__ = ["of_classes", "of_detection", "of_targets"]

CHANCE = 1.96  # standard errors that chance alone may explain
CLOSE = 0.03  # farther off nobody would call a promise kept


def of_targets(results: Any, scores: dict[str, float], baseline: dict[str, float]) -> list[Verdict]:
    """Whether intervals hold what they promise, and whether predictions beat the mean."""
    said: list[Verdict] = []
    count, level = int(results.labelled.sum()), results.level
    if "coverage" in scores:
        chance = CHANCE * math.sqrt(level * (1 - level) / count) + 0.5 / count
        held, promised = percent(scores["coverage"], 0), percent(level, 0)
        if abs(scores["coverage"] - level) <= min(chance, CLOSE):
            said.append(("good", f"Intervals hold what they promise: {held} of {promised}."))
        elif abs(scores["coverage"] - level) <= chance:
            said.append(("so", f"Intervals hold {held} and promise {promised}: {count} rows may do so by chance."))
        elif scores["coverage"] < level:
            said.append(("bad", f"Intervals are too narrow: they hold {held} of the targets and promise {promised}."))
        else:
            said.append(("so", f"Intervals are wider than they need be: they hold {held} and promise {promised}."))
    if "rmse" in baseline and "rmse" in scores:
        said.append(_against(scores["rmse"], baseline["rmse"]))
    return said


def _against(error: float, plain: float) -> Verdict:
    both = f"RMSE {number(error, 3)} against {number(plain, 3)}"
    if error < plain:
        share = percent(1 - error / plain, 0)
        return "good", f"Errors are {share} smaller than those of always saying the mean: {both}."
    return "bad", f"Predictions are no better than always saying the mean: {both}."


def of_classes(results: Any, scores: dict[str, float], baseline: dict[str, float]) -> list[Verdict]:
    """Whether answers are right more often than the most frequent class, and as often as they say."""
    some = results.labelled
    if "accuracy" not in scores or not some.any():
        return []
    right, plain = scores["accuracy"], baseline.get("accuracy", 0.0)
    name = results.class_names[int(np.bincount(results.observed[some]).argmax())]
    said: list[Verdict] = [(
        "good" if right > plain else "bad",
        f"{percent(right)} of the answers are right; always saying {data(name, 30)} would be in {percent(plain)}.",
    )]  # fmt: skip
    confidence = results.probabilities[some].max(1).astype(float)
    mean = float(confidence.mean())
    chance = CHANCE * math.sqrt(float((confidence * (1 - confidence)).mean()) / int(some.sum())) + 0.5 / int(some.sum())
    both = f"{percent(mean)} sure on average, and right in {percent(right)}"
    if abs(mean - right) <= chance:
        said.append(("good", f"The model is as sure as it should be: {both}."))
    elif mean > right:
        said.append(("bad", f"The model is too sure: {both}."))
    else:
        said.append(("so", f"The model is less sure than it could be: {both}."))
    return said


def of_detection(scores: dict[str, float]) -> list[Verdict]:
    """Whether rows from elsewhere are noticed."""
    if "ood_auroc" not in scores:
        return []
    names = {"ood_auroc": "all uncertainty", "ood_auroc_epistemic": "what is not known"}
    best = max(scores["ood_auroc"], scores["ood_auroc_epistemic"])
    each = " and ".join(f"{percent(scores[key], 0)} by {name}" for key, name in names.items())
    rest = f"less sure than a familiar row in {each} (chance: 50\u00a0%)."
    if best >= 0.9:
        return [("good", f"Rows from elsewhere are noticed: {rest}")]
    if best > 0.6:
        return [("so", f"Rows from elsewhere are partly noticed: {rest}")]
    return [("bad", f"Rows from elsewhere are not noticed: {rest}")]
