"""Presets on tables of real targets: the paper's text, its authors' code, and methods with default settings.

`paper` is the experimental setup of Haussmann et al., appendix: one hidden layer of 50 units (100 on protein), ReLU,
100 epochs of Adam at 1e-3, noise precision 100. Its baselines' figures are quoted there from their own papers, so each
is set up as its own paper says. What is not stated, or is done otherwise here, is named in the row.

`authors` is what the paper's text leaves open, as the authors' public code for classes has it
(https://github.com/manuelhaussmann/bedl): batches of 100, means that start with variance 1/fan-in, and in BEDL+Reg
delta = 0.1 and a root of (mean KL + log N − log delta)/N. On classes the loss draws, 5 times with the term and 20
times without.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import torch

from bedl.bench.benchmark import BOTH, Preset, Published

WIDE = {"protein": 100}
OF_CLASSES = ("blobs", "classes")
BATCHES = {"boston": 64, "energy": 8, "concrete": 16, "wine": 128, "wine-distinct": 128, "kin8nm": 32}
CLIPPED = "gradients are clipped at norm 1"
DROPOUT = {  # rate, precision of the targets' noise, and the targets' variance
    # the pair with the highest mean validation log-likelihood in the logs of github.com/yaringal/DropoutUncertaintyExps
    "boston": (0.05, 0.2, 84.42), "concrete": (0.005, 0.05, 278.8), "energy": (0.005, 0.75, 101.7),
    "kin8nm": (0.01, 250.0, 0.06948), "naval": (0.005, 5e4, 2.1667e-4), "power": (0.005, 0.1, 291.3),
    "protein": (0.005, 0.05, 37.43), "wine": (0.1, 3.0, 0.6518),
}  # fmt: skip
SEARCHED = (
    "one rate of dropout and one precision for all splits of a set, not a search for each: those of the authors' grid "
    "with the best mean validation in their logs",
    "100 draws a prediction, not 10,000",
    CLIPPED,
)
CHOSEN = "the batch size is not stated: chosen for this data set on validation parts of training splits, for BEDL+Reg"
SILENT = "the batch size is not stated: 32 below 3,000 rows, 128 from there on"
START = "means and variances of weights start with mu² + sigma² = 2/fan-in, log sigma² at −9"
OURS = "not in the paper: trained as its BEDL is"


CODE_OF_CLASSES = "the authors' public code is about classes: its settings, with the likelihood and epochs of the text"


@dataclasses.dataclass(frozen=True)
class Setup:
    """How an estimator is set up, and where that is not what the preset stands for."""

    estimator: dict[str, Any]
    deviations: tuple[str, ...] = ()
    network: dict[str, Any] = dataclasses.field(default_factory=dict)  # of images: options of `bedl.bench.util`


def setup(preset: Preset, method: str, dataset: str, n: int) -> Setup:
    """The set-up of a method on a table.

    Args:
        preset: "paper", "authors" or "best".
        method: its name in `bedl.methods.registry`.
        dataset: the data set's short name.
        n: how many rows it learns from.

    Example:
        >>> setup("paper", "bedl", "protein", 41157).estimator["hidden_layers"]
        (100,)
        >>> setup("best", "auto", "boston", 455)
        Setup(estimator={'method': 'auto'}, deviations=(), network={})
    """
    if preset == "best":
        return Setup({"method": method})
    net: dict[str, Any] = {"method": method, "hidden_layers": (WIDE.get(dataset, 50),)}
    if dataset in OF_CLASSES:
        net["temperature_scaling"] = False
    if method == "mc-dropout" and dataset.removesuffix("-distinct") in DROPOUT:
        return Setup({**net, **_dropout_of(dataset)}, SEARCHED)
    if method in _OWN:
        more, deviations = _OWN[method]
        return Setup({**net, **more}, deviations)
    if preset == "authors":
        more = {"batch_size": 100, "method_options": authors_options(method)}
        return Setup({**net, **_PACE, **more}, (CODE_OF_CLASSES, CLIPPED))
    common = {**_PACE, "batch_size": BATCHES.get(dataset, 32 if n < 3000 else 128)}
    more, deviations = _AS_BEDL.get(method, ({}, (OURS,)))
    return Setup({**net, **common, **more}, (CHOSEN if dataset in BATCHES else SILENT, CLIPPED, *deviations))


def _dropout_of(dataset: str) -> dict[str, Any]:
    """Rate, precision of standardised targets, and epochs of MC Dropout as in its authors' code."""
    rate, tau, variance = DROPOUT[dataset.removesuffix("-distinct")]
    options, epochs = {"dropout": rate, "tau": round(tau * variance, 4)}, 2000 if dataset == "protein" else 4000
    return {**_PACE, "epochs": epochs, "batch_size": 128, "method_options": options}


def authors_options(method: str, samples: bool = False) -> dict[str, Any]:
    """Options of BEDL and BEDL+Reg as in the authors' public code.

    Args:
        method: "bedl" or "bedl+reg".
        samples: whether outputs are drawn, as for classes there: closed forms take the place of it otherwise.

    Example:
        >>> authors_options("bedl+reg", samples=True)
        {'gain': 1.0, 'samples': 5, 'pac': {'delta': 0.1, 'kl_scale': 'authors-code'}}
    """
    if method not in ("bedl", "bedl+reg"):
        raise ValueError(f"preset 'authors' is for 'bedl' and 'bedl+reg', not {method!r}; take 'paper' or 'best'")
    regularised = method == "bedl+reg"
    options: dict[str, Any] = {"gain": 1.0}
    if samples:
        options["samples"] = 5 if regularised else 20
    return {**options, **({"pac": {"delta": 0.1, "kl_scale": "authors-code"}} if regularised else {})}


@functools.lru_cache
def same_run(method: str, dataset: str, n: int = 1000) -> bool:
    """Whether a method's run under one preset is that under the other: it starts the same and is trained the same.

    Args:
        method: its name in `bedl.methods.registry`.
        dataset: the data set's short name.
        n: how many rows it learns from.

    Example:
        >>> same_run("pbp", "boston"), same_run("pbp", "protein"), same_run("bedl", "boston")
        (True, False, False)
    """
    plans = [dict(setup(preset, method, dataset, n).estimator) for preset in BOTH]
    widths = [plan.pop("hidden_layers", "auto") for plan in plans]
    if plans[0] != plans[1]:
        return False
    one, other = (_start(method, plans[0].get("method_options", {}), hidden, n) for hidden in widths)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def _start(method: str, options: Mapping[str, Any], hidden: Any, n: int) -> dict[str, torch.Tensor]:
    """What a method of some widths begins with; widths that it does not look at change nothing."""
    from bedl.methods import Problem, registry

    problem = Problem("regression", 1, (3,), hidden_layers=hidden)
    name, options = registry.resolve(method, problem, options, n)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return registry.get(name)(problem, **options).state_dict()


_PACE: dict[str, Any] = {"epochs": 100, "learning_rate": 1e-3, "schedule": "constant", "early_stopping": False}
_AS_BEDL: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bedl": ({}, (START,)),
    "bedl+reg": ({}, (START, "delta is not stated: 0.05; the prior of lambda is N(0, 1)")),
    "bedl-hyper": ({}, (START, "the hyperprior is not stated: a0 1, b0 0.01, alpha0 1")),
    "varout": (
        {"method_options": {"tau": 100.0, "noise": "varying", "precision": 1.0}},
        (
            START,
            "whether its noise is learned is not stated: exp f2 + 1/beta, as of its BEDL",
            "how many draws a prediction takes is not stated: 100",
        ),
    ),
}

_OWN: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "mc-dropout": (
        {**_PACE, "epochs": 400, "batch_size": 128},
        (
            "dropout 0.05 and the noise learned, in place of a search over both for each split",
            "100 draws a prediction, not 10,000",
            "400 epochs; the logs of the authors' code have 4,000",
            CLIPPED,
        ),
    ),
    "ensemble": (
        {"epochs": 40, "batch_size": 100, "learning_rate": 0.01, "schedule": "constant", "early_stopping": False},
        ("not in the paper: as Lakshminarayanan et al. have it, without adversarial copies, at 0.01 in place of 0.1",),
    ),
    "evidential-regression": (
        {"epochs": 40, "batch_size": 32, "learning_rate": 0.005, "schedule": "constant", "early_stopping": False},
        ("not in the paper: as Amini et al. have it, one setting for all sets, and the end of training is scored",),
    ),
    "dvi": (
        {},
        (
            "diagonal, without covariances between activations",
            "4,000 steps (10,000 from 3,000 rows on) at a learning rate that falls from 0.01",
            "the divergence counts in full from the first step on",
            CLIPPED,
        ),
    ),
    "pbp": ({}, ()),
    "sparse-gp": (
        {"method_options": {"approximation": "fitc", "starts": 3, "steps": 1000}},
        ("learned by L-BFGS on all rows: 200 steps from three starts each, 1,000 from the best of them",),
    ),
}


# The paper's own figures, and others' that were published elsewhere.


SAME = {  # the paper's names, and ours
    "BEDL": "bedl", "BEDL+Reg": "bedl+reg", "BEDL-Hyper": "bedl-hyper", "DVI": "dvi", "VarOut": "varout", "PBP": "pbp",
    "MC Dropout": "mc-dropout", "Sparse GP": "sparse-gp", "EDL": "edl", "Deep ensembles": "ensemble",
    "MC Dropout, corrected": "mc-dropout", "NNGP": "nngp", "Convolutional GP": "conv-gp", "ConvNet GP": "convnet-gp",
    "Residual CNN GP": "residual-cnn-gp", "ResNet GP": "resnet-gp",
}  # fmt: skip


@functools.cache
def figures() -> dict[str, Any]:
    """The file as it is: by the paper's tables, then "elsewhere".

    Example:
        >>> figures()["classification_ood"]["BEDL+Reg"]
        [0.66, 0.055, 20.02, 0.083]
    """
    found: dict[str, Any] = json.loads(files("bedl.bench").joinpath("published.json").read_text(encoding="utf-8"))
    return found


def uci_log_likelihoods() -> list[Published]:
    """Test log-likelihoods on UCI's standard splits: the paper's table, then figures of other papers.

    Example:
        >>> next(p.values["energy"] for p in uci_log_likelihoods() if p.label == "BEDL+Reg")
        (-0.73, 0.04)
    """
    paper, elsewhere = figures()["uci_log_likelihood"], figures()["elsewhere"]
    names = paper["datasets"]
    found = [
        Published(
            label, "log_likelihood", {name: (pair[0], pair[1]) for name, pair in zip(names, pairs, strict=True)},
            SAME.get(label), "the paper",
        )
        for label, pairs in paper.items()
        if label not in ("datasets", "n", "d")
    ]  # fmt: skip
    for label, entry in elsewhere.items():
        if label != "what":
            values = zip(names, entry["values"], strict=True)
            known: dict[str, tuple[float, float | None]] = {
                name: (value, None) for name, value in values if value is not None
            }
            found.append(Published(label, "log_likelihood", known, SAME.get(label), entry["note"]))
    return found
