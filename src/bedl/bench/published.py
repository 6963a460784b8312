"""The paper's own figures, and others' that were published elsewhere."""

from __future__ import annotations

import functools
import json
from importlib.resources import files
from typing import Any

from bedl.bench.table import Published

__all__ = ["figures", "uci_log_likelihoods"]

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
    """Test log-likelihoods on UCI's standard splits: the paper's table, then figures from elsewhere.

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
