"""SIGTERM and SIGINT at random moments: exit codes 143 and 130, a word, and nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from random import Random
from typing import Any

from tools.campaign.children import call, start
from tools.campaign.kills import _quickly, _set_up, _whole, seconds
from tools.campaign.ledger import Fault
from tools.campaign.verbs import Said, check_words, spawned
from tools.campaign.workshop import Workshop, workshop

TRIES = 200
SECONDS = 300
SLOW_START = 20  # every so many tries a process of its own, which also imports


def prepare() -> None:
    """The models to begin with."""
    workshop()


def attempt(number: int, folder: Path) -> str:
    """A signal at a random moment of a verb."""
    shop, random = workshop(), Random(number)
    which = (signal.SIGTERM, signal.SIGINT)[number % 2]
    verb = random.choice(["fit", "refit", "refit in two steps", "predict again", "report"])
    words = _set_up(verb, shop, folder)
    moment = random.uniform(0, 1.1) * seconds(verb)
    said = _at_start(words, which, random) if number % SLOW_START == 0 else _within(words, verb, which, moment, shop)
    if said.code == 0:
        return f"{verb} done before the signal"
    expected = 128 + which
    if said.code != expected:
        raise Fault(f"{verb} with {which.name}: exit code {said.code}, not {expected}: {said.err[-400:]}")
    check_words(said, verb)
    if "Stopped." not in said.err:
        raise Fault(f"{verb} with {which.name}: no word of it: {said.err[-300:]}")
    _check(verb, words, shop, folder)
    return f"{verb} stopped by {which.name}"


def _within(words: list[object], verb: str, which: int, moment: float, shop: Workshop) -> Said:
    ready, told = os.pipe()

    def before() -> None:
        import bedl.cli

        _quickly(verb)
        inner = bedl.cli._main

        def begun() -> None:  # from here on `bedl` itself is asked to stop, not the fork
            os.write(told, b".")
            inner()

        bedl.cli._main = begun

    child = start(*words, logs=shop.folder, before=before)
    os.close(told)
    os.read(ready, 1)
    os.close(ready)
    time.sleep(moment)
    child.send(which)
    return child.wait()


def _at_start(words: list[object], which: int, random: Random) -> Said:
    """A process from its first line on: it says when `main` begins, and is stopped while it imports."""
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "from bedl.cli import main; sys.stderr.write('begun\\n'); sys.stderr.flush(); main()"
    process: Any = spawned(*words, code=code, stdout=None)
    first = process.stderr.readline()
    time.sleep(0.05 + random.uniform(0, 1.0))
    process.send_signal(which)
    _, err = process.communicate(timeout=200)
    return Said(process.returncode, "", first + err)


def _check(verb: str, words: list[object], shop: Workshop, folder: Path) -> None:
    """What was there is there, and the same words, or those with --resume, lead to the result."""
    if "fit" not in verb:
        left = [path for path in folder.iterdir() if path.read_bytes() not in (b"old", _whole(verb))]
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
