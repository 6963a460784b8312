"""BEDL by name: the paper's three, and the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bedl import tasks
from bedl.heads import Head, Sampled, head_of
from bedl.methods.base import Method
from bedl.methods.bedl import BEDL
from bedl.methods.images import are_images
from bedl.methods.networks import draw_weights, gaussian_network
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
def bedl(
    problem: Problem,
    regularizer: Objective | Sum | None = None,
    head: Mapping[str, Any] | None = None,
    samples: int | None = None,
    gain: float | None = None,
) -> BEDL:
    """Plain BEDL of Haussmann et al., AABI 2020.

    Args:
        problem: what it is for.
        regularizer: added to the marginal likelihood, such as `PAC(strength=0.5)`.
        head: options of the head, such as ``{"beta": 10.0}`` in regression.
        samples: draws of the outputs for each point, in training and prediction; None: in closed form.
        gain: variance of the weights' means at the start, in units of 1/fan-in: 2 in the paper (He), 1 in the authors'
            code; None: as the layers begin.
    """
    if regularizer is not None and not isinstance(regularizer, (Objective, Sum)):
        raise TypeError(f"regularizer is an objective such as bedl.PAC(…), or None, not {regularizer!r}")
    top: Head = head_of(problem.task, problem.n_targets, **dict(head or {}))
    net = gaussian_network(problem, top.n_outputs)
    if gain is not None:
        draw_weights(net, gain)
    return BEDL(net, top if samples is None else Sampled(top, samples), regularizer)


@register("bedl+reg", "the paper's BEDL+Reg: marginal likelihood and the PAC term")
def bedl_reg(
    problem: Problem,
    head: Mapping[str, Any] | None = None,
    samples: int | None = None,
    gain: float | None = None,
    pac: Mapping[str, Any] | None = None,
) -> Method:
    """BEDL+Reg of Haussmann et al., AABI 2020, with the paper's own PAC term.

    Args:
        problem: what it is for.
        head: options of the head.
        samples: draws of the outputs for each point; None: in closed form.
        gain: variance of the weights' means at the start, see "bedl".
        pac: options of `PAC`, such as ``{"delta": 0.1, "kl_scale": "authors-code"}``.
    """
    return bedl(problem, PAC(**dict(pac or {})), head, samples, gain)


@register("bedl-hyper", "the paper's BEDL-Hyper: marginal likelihood and a prior on means and variances of weights")
def bedl_hyper(problem: Problem, head: Mapping[str, Any] | None = None) -> Method:
    """BEDL-Hyper of Haussmann et al., AABI 2020."""
    return bedl(problem, HyperPrior(), head)
