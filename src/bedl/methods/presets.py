"""BEDL by name: the paper's three, and the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bedl import tasks
from bedl.heads import head_of
from bedl.methods.base import Method
from bedl.methods.bedl import BEDL
from bedl.methods.images import are_images
from bedl.methods.networks import gaussian_network
from bedl.methods.registry import Problem, register, register_choice
from bedl.objectives import PAC, HyperPrior, Objective, Sum

__all__: list[str] = []


@register_choice("auto", "the recipe that bedl stands behind")
def auto(problem: Problem) -> tuple[str, dict[str, Any]]:
    """Classes of images have a recipe of their own. Tables of numbers: a fold ensemble, which is safe on small tables
    and knows what it has not seen. One network that has to learn by steps is asked for evidence too, and stopped early,
    or it would overfit. Inputs with noise of their own would be taken apart by the embedding of columns as if its
    numbers were independent. Otherwise the PAC term; on all evidence it would make a classifier unsure everywhere, on
    the misleading evidence it does not.
    """
    if problem.task == "classification" and are_images(problem):
        return "images", {}
    table = problem.net is None and len(problem.input_shape) == 1 and not problem.noisy
    if table and problem.task in ("regression", "classification") and not problem.steps:
        return "stack", {}
    if table and problem.task == "regression":
        return "evidence", {"weight_prior": 3.0}
    if tasks.get(problem.task).column != "number":
        return "bedl", {"regularizer": PAC(evidence="misleading")}
    return "bedl+reg", {}


@register("bedl", "Gaussian weights, trained by marginal likelihood alone; takes a regularizer")
def bedl(problem: Problem, regularizer: Objective | Sum | None = None, head: Mapping[str, Any] | None = None) -> BEDL:
    """Plain BEDL of Haussmann et al., AABI 2020.

    Args:
        problem: what it is for.
        regularizer: added to the marginal likelihood, such as `PAC(strength=0.5)`.
        head: options of the head, such as ``{"beta": 10.0}`` in regression.
    """
    if regularizer is not None and not isinstance(regularizer, (Objective, Sum)):
        raise TypeError(f"regularizer is an objective such as bedl.PAC(…), or None, not {regularizer!r}")
    top = head_of(problem.task, problem.n_targets, **dict(head or {}))
    return BEDL(gaussian_network(problem, top.n_outputs), top, regularizer)


@register("bedl+reg", "the paper's BEDL+Reg: marginal likelihood and the PAC term")
def bedl_reg(problem: Problem, head: Mapping[str, Any] | None = None) -> Method:
    """BEDL+Reg of Haussmann et al., AABI 2020, with the paper's own PAC term."""
    return bedl(problem, PAC(), head)


@register("bedl-hyper", "the paper's BEDL-Hyper: marginal likelihood and a prior on means and variances of weights")
def bedl_hyper(problem: Problem, head: Mapping[str, Any] | None = None) -> Method:
    """BEDL-Hyper of Haussmann et al., AABI 2020."""
    return bedl(problem, HyperPrior(), head)
