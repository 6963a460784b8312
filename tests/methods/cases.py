"""What the conformance suite has to know about a method beyond its entry in the registry: a new method adds a line."""

from __future__ import annotations

import dataclasses
from typing import Any

from bedl.methods import registry

__all__ = ["Case", "case_of", "served"]


@dataclasses.dataclass(frozen=True)
class Case:
    """How one method is run here.

    Attributes:
        options: that make it quick.
        settings: of the estimator, that make it learn enough in a moment.
        quiet: options under which nothing about the network is unknown: no ``model`` part.
        draws_per_row: whether something is drawn for each row, so that a row of weight 0 moves the others' luck.
        seedless: whether nothing is random, so that seeds change nothing.
        digits: options for digits, where those of all tables are too few; None: the same.
        tables: whether it takes tables; what takes images only is tested with images, elsewhere.
    """

    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    quiet: dict[str, Any] | None = None
    draws_per_row: bool = False
    seedless: bool = False
    digits: dict[str, Any] | None = None
    tables: bool = True


CASES = {
    "dvi": Case(settings={"epochs": 40, "learning_rate": 0.03}),
    "nngp": Case(seedless=True),
    "convnet-gp": Case({"image": (1, 1, -1), "depth": 1, "size": 3}, seedless=True),
    "residual-cnn-gp": Case({"image": (1, 1, -1), "blocks": 1, "size": 3}, seedless=True),
    "resnet-gp": Case({"image": (1, 1, -1), "blocks": 1}, seedless=True),
    "sparse-gp": Case({"inducing": 15, "steps": 50, "lr": 0.2}),
    "conv-gp": Case(
        {"image": (1, 1, -1), "inducing": 10, "steps": 50, "lr": 0.2},
        digits={"image": (1, 8, 8), "inducing": 20, "steps": 150, "lr": 0.1},
    ),
    "hmc": Case({"draws": 20, "chains": 2, "warmup": 40, "thin": 1, "steps": 6}, {"hidden_layers": (10,)}),
    "neural-process": Case({"steps": 80, "lr": 0.02}, quiet={}),
    "pbp": Case({"passes": 4}),
    "auto": Case(draws_per_row=True),
    "deterministic": Case(quiet={}),
    "edl": Case({"ramp": 100.0}, quiet={}),
    "evidential-regression": Case(quiet={}),
    "fast-dropout": Case(quiet={"dropout": 0.0}),
    "images": Case(tables=False),
    "laplace": Case({"samples": 20}),
    "mc-dropout": Case({"samples": 20}, quiet={"dropout": 0.0}, draws_per_row=True),
    "prior-network": Case(quiet={}, draws_per_row=True),
    "r-edl": Case({"ramp": 100.0}, quiet={}),
    "ensemble": Case({"size": 3}, quiet={"size": 1}),
    "distilled": Case(draws_per_row=True),
    "evidence": Case(draws_per_row=True),
    "varout": Case({"samples": 20}, quiet={"samples": 1}, draws_per_row=True),
}


def case_of(name: str) -> Case:
    """The case of a method; one that nothing is said about is ordinary."""
    return CASES.get(name, Case())


def served(*tasks: str) -> list[tuple[str, str]]:
    """Pairs (method, task) for every method of bedl's own and every one of these tasks that it serves."""
    found = {name: registry.get(name) for name in registry.names() if case_of(name).tables}
    return [(name, task) for name in found for task in tasks if found[name].tasks is None or task in found[name].tasks]
