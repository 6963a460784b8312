"""SIGTERM and SIGINT at random moments: exit codes 143 and 130, a word, and nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

from tools.campaign.children import SHARE, Step, call, start
from tools.campaign.kills import emptied, quickly, seconds, set_up, whole
from tools.campaign.ledger import Fault
from tools.campaign.verbs import Said, check_words
from tools.campaign.workshop import Workshop, workshop

TRIES = 200
SECONDS = 300


def prepare() -> None:
    """The models to begin with, and all modules."""
    whole("report")


def attempt(number: int, folder: Path) -> str:
    """A signal at a random moment of a verb."""
    shop, random = workshop(), Random(number)
    which = (signal.SIGTERM, signal.SIGINT)[number % 2]
    verb = random.choice(["fit", "refit", "refit in two steps", "predict again", "report"])
    fresh = random.randrange(SHARE) == 0
    words, said = _stopped(verb, folder, which, random, fresh)
    expected = 128 + which
    if said.code != expected:
        raise Fault(f"{verb} with {which.name}: exit code {said.code}, not {expected}: {said.err[-400:]}")
    check_words(said, verb)
    if "Stopped." not in said.err:
        raise Fault(f"{verb} with {which.name}: no word of it: {said.err[-300:]}")
    _check(verb, words, shop, folder)
    return f"{verb} stopped by {which.name}{', a new process' if fresh else ''}"


def _stopped(verb: str, folder: Path, which: int, random: Random, fresh: bool) -> tuple[list[object], Said]:
    """A verb that is stopped while it is at work, a new process perhaps while it imports."""
    before: list[Step] = [] if fresh else [(quickly, verb)]
    moment = random.uniform(0, 1.05) * seconds(verb, fresh)
    while True:
        words = set_up(verb, workshop(), folder)
        ready, told = os.pipe()
        os.set_inheritable(told, True)
        child = start(*words, logs=workshop().folder, before=[*before, (_tell, told)], fresh=fresh)
        os.close(told)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(moment)
        child.send(which)
        said = child.wait()
        if said.code:
            return words, said
        moment *= random.random()  # it was done before
        emptied(folder)


def _tell(handle: int) -> None:
    """From when `bedl` has begun it is asked to stop, not Python, which knows no better than to die."""
    import bedl.cli

    inner = bedl.cli._main

    def begun() -> None:
        os.write(handle, b".")
        inner()

    bedl.cli._main = begun


def _check(verb: str, words: list[object], shop: Workshop, folder: Path) -> None:
    """What was there is there, and the same words, or those with --resume, lead to the result."""
    if "fit" not in verb:
        left = [path for path in folder.iterdir() if path.read_bytes() not in (b"old", whole(verb))]
        if left:
            raise Fault(f"{verb}: left {[path.name for path in left]}")
        return
    if verb != "fit" and shop.bytes_of(folder / "m") not in map(shop.bytes_of, shop.models):
        raise Fault(f"{verb}: the model is neither the old one nor the new one")
    partial = folder / "m.partial"
    if partial.exists():
        again = call(*words, "--resume", logs=shop.folder)
        if again.code or shop.bytes_of(folder / "m") != shop.bytes_of(shop.models[1]):
            raise Fault(f"{verb}: cannot be resumed to the same model: {again.err[-300:]}")
    shutil.rmtree(folder / "m", ignore_errors=True)
    if os.listdir(folder):
        raise Fault(f"{verb}: left {os.listdir(folder)}")
