"""Two processes on one folder at once: fits of other seeds, and predictions while a model is replaced."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from random import Random

from tools.campaign.children import SHARE, start
from tools.campaign.ledger import Fault
from tools.campaign.verbs import check_words
from tools.campaign.workshop import QUICK, Workshop, workshop

TRIES = 200
SECONDS = 300


def prepare() -> None:
    """The models to begin with."""
    workshop()


def attempt(number: int, folder: Path) -> str:
    """By turns: two fits of a new model, two that replace one, and a fit that replaces one while another predicts."""
    shop, random = workshop(), Random(number)
    kind = ("two new fits", "two replacing fits", "a prediction during a fit")[number % 3]
    model, fresh = folder / "m", random.randrange(SHARE) == 0
    if kind != "two new fits":
        shutil.copytree(shop.models[0], model)
    more = [] if kind == "two new fits" else ["--overwrite"]
    fits = [["fit", shop.table, *QUICK, f"--seed={seed}", "--out", model, *more] for seed in (1, 2)]
    if kind == "a prediction during a fit":
        return _predicted(shop, folder, fits[1], random, fresh)
    first = start(*fits[0], logs=shop.folder, fresh=fresh)
    time.sleep(random.choice([0, 0, 0, random.uniform(0, 0.3)]))
    second = start(*fits[1], logs=shop.folder, fresh=fresh)
    ends = [first.wait(), second.wait()]
    for end in ends:
        check_words(end, "fit")
    if all(end.code for end in ends):
        raise Fault(f"{kind}: neither came through: {[end.err[-200:] for end in ends]}")
    found, models = shop.bytes_of(model), [shop.bytes_of(path) for path in shop.models]
    allowed = [bytes_ for bytes_, end in zip(models, ends, strict=True) if end.code == 0]
    if found not in allowed:
        raise Fault(f"{kind}: the model is none of those that were made")
    if os.listdir(folder) != ["m"]:
        raise Fault(f"{kind}: left {os.listdir(folder)}")
    return f"{kind}, {sum(end.code == 0 for end in ends)} made"


def _predicted(shop: Workshop, folder: Path, fit: list, random: Random, fresh: bool) -> str:
    child = start(*fit, logs=shop.folder, fresh=fresh)
    outs = []
    while child.running() or not outs:
        out = folder / f"o{len(outs)}.csv"
        said = start("predict", folder / "m", shop.table, "--out", out, logs=shop.folder).wait()
        if said.code:
            raise Fault(f"a prediction during a fit failed: {said.err[-300:]}")
        if out.read_bytes() not in shop.predictions:
            raise Fault("a prediction is of neither model")
        outs.append(out)
        time.sleep(random.uniform(0, 0.02))
    end = child.wait()
    if end.code:
        raise Fault(f"the fit failed: {end.err[-300:]}")
    if sorted(os.listdir(folder)) != sorted(["m", *(out.name for out in outs)]):
        raise Fault(f"left {sorted(os.listdir(folder))}")
    return "a prediction during a fit"
