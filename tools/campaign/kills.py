"""SIGKILL at every call that changes the disk, and at random moments: always a way out, and the same result."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tools.campaign.children import SHARE, call, rehearsed, start
from tools.campaign.ledger import Fault
from tools.campaign.verbs import Said
from tools.campaign.workshop import QUICK, Workshop, workshop

INJECTED = 340  # tries at calls; the others are at random moments
TRIES = 470
SECONDS = 300
CHANGES = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "link", "open", "ftruncate", "chmod")
VERBS = (
    "fit", "refit", "refit in two steps", "resumed fit", "resumed refit", "predict", "predict again", "report",
    "report again", "export",
)  # fmt: skip


def prepare() -> None:
    """The models to begin with, and all modules."""
    for verb in ("report", "export"):
        whole(verb)


def attempt(number: int, folder: Path) -> str:
    """First every call of every verb that changes the disk, one after the other; from `INJECTED` on random moments."""
    fresh = Random(number).randrange(SHARE) == 0
    if number < INJECTED:
        verb, point = places()[number % len(places())]
        words = set_up(verb, workshop(), folder)
        ended = call(*words, logs=workshop().folder, before=[(quickly, verb), (_kill_after, point)], fresh=fresh)
        if ended.code not in (137, 0):
            raise Fault(f"{verb}, killed at call {point}: ended with {ended.code}: {ended.err[-300:]}")
        what = f"{verb} killed at a call" if ended.code else f"{verb} done before the kill"
    else:
        verb = Random(number).choice([*VERBS[:-1] * 2, VERBS[-1]])
        words, what = _at_a_moment(verb, folder, Random(number), fresh), f"{verb} killed at a moment"
    _check(verb, words, workshop(), folder, what)
    return f"{what}, a new process" if fresh else what


def _at_a_moment(verb: str, folder: Path, random: Random, fresh: bool) -> list[object]:
    """A kill while a verb is at work. What took some time once may take less now: then it is killed earlier."""
    moment = random.uniform(0, 1.05) * seconds(verb, fresh)
    while True:
        words = set_up(verb, workshop(), folder)
        child = start(*words, logs=workshop().folder, before=[(quickly, verb)], fresh=fresh)
        time.sleep(moment)
        child.send(signal.SIGKILL)
        if child.wait().code:
            return words
        moment *= random.random()
        emptied(folder)


def emptied(folder: Path) -> None:
    """As it was at the beginning of a try."""
    shutil.rmtree(folder)
    folder.mkdir()


@functools.cache
def places() -> list[tuple[str, int]]:
    """All calls that change the disk, of all verbs."""
    return [(verb, point) for verb in VERBS for point in range(points(verb))]


def set_up(verb: str, shop: Workshop, folder: Path) -> list[object]:
    """What is there before, and the words to say."""
    if "refit" in verb:
        shutil.copytree(shop.models[0], folder / "m")
    if "resumed" in verb:
        shutil.copytree(_interrupted(), folder / "m.partial")
    if verb.endswith("again"):
        (folder / ("out.csv" if "predict" in verb else "out.html")).write_text("old")
    if "fit" in verb:
        more = ["--overwrite"] * ("refit" in verb) + ["--resume"] * ("resumed" in verb)
        return ["fit", shop.table, *QUICK, "--seed=2", "--out", folder / "m", *more]
    if "predict" in verb:
        return ["predict", shop.models[1], shop.table, "--out", folder / "out.csv", "--overwrite"]
    if verb == "export":
        return ["export", shop.models[1], "--onnx", folder / "out.onnx", "--overwrite"]
    return ["report", shop.models[1], shop.table, "--out", folder / "out.html", "--overwrite"]


@functools.cache
def _interrupted() -> Path:
    """What a fit leaves that is killed amid its work."""
    folder, half = _room("interrupted", "fit"), points("fit") // 2
    words = set_up("fit", workshop(), folder)
    call(*words, logs=workshop().folder, before=[(quickly, "fit"), (_kill_after, half)])
    return folder / "m.partial"


def quickly(verb: str) -> None:
    """A checkpoint after every epoch; and, if asked for, as on systems that cannot exchange two folders."""
    import bedl.estimators.tabular.fitting as run
    import bedl.estimators.tabular.folder as place

    run.MIN_CHECKPOINT_SECONDS = 0.0
    if verb == "refit in two steps":
        place._exchanged = lambda one, other: False


def _check(verb: str, words: list[object], shop: Workshop, folder: Path, what: str) -> None:
    """What a user does who reads the messages leads to the result that was wanted, and nothing is left over."""
    if "fit" not in verb:
        out = _out(words)
        if out.exists() and out.read_bytes() not in (b"old", whole(verb)):
            raise Fault(f"{what}: {out.name} is neither the old file nor the new one")
        _fine(call(*words, logs=shop.folder), what)
        if out.read_bytes() != whole(verb):
            raise Fault(f"{what}: the second run wrote something else")
        if os.listdir(folder) != [out.name]:
            raise Fault(f"{what}: left {os.listdir(folder)}")
        return
    words = [word for word in words if word != "--resume"]
    wanted, old = shop.bytes_of(shop.models[1]), shop.bytes_of(shop.models[0])
    if (folder / "m").exists() and shop.bytes_of(folder / "m") not in (wanted, old):
        raise Fault(f"{what}: the model is neither the old one nor the new one")
    again = call(*words, "--resume", logs=shop.folder)
    if again.code and "Leave out --resume" in again.err:
        again = call(*words, logs=shop.folder)
    if again.code and "exists" in again.err and (folder / "m").exists():
        again = Said(0, "", "")  # the kill came after the model was in its place
    _fine(again, what)
    if shop.bytes_of(folder / "m") != wanted:
        raise Fault(f"{what}: the resumed fit gave another model")
    if os.listdir(folder) != ["m"]:  # what the kill left goes with the next fit
        _fine(call(*words, *(["--overwrite"] if "--overwrite" not in words else []), logs=shop.folder), what)
    if os.listdir(folder) != ["m"]:
        raise Fault(f"{what}: left {os.listdir(folder)}")


def _fine(said: Said, what: str) -> None:
    if said.code:
        raise Fault(f"{what}: no way out: {said.err[-400:]}")


@functools.cache
def whole(verb: str) -> bytes:
    """The file that a run which nobody disturbs writes."""
    folder = _room("whole", verb)
    words = set_up(verb, workshop(), folder)
    rehearsed(*words, logs=workshop().folder)
    return _out(words).read_bytes()


def _out(words: list[object]) -> Path:
    return next(word for word in reversed(words) if isinstance(word, Path))


@functools.cache
def points(verb: str) -> int:
    """How many calls of a run change the disk."""
    folder = _room("points", verb)
    count = folder.with_suffix(".count")
    rehearsed(*set_up(verb, workshop(), folder), logs=workshop().folder, before=[(quickly, verb), (_count_to, count)])
    return len(count.read_bytes())


@functools.cache
def seconds(verb: str, fresh: bool) -> float:
    """How long a run takes here and now."""
    folder = _room(f"seconds-{fresh}", verb)
    words, started = set_up(verb, workshop(), folder), time.monotonic()
    _fine(call(*words, logs=workshop().folder, before=[(quickly, verb)], fresh=fresh), verb)
    return time.monotonic() - started


def _room(what: str, verb: str) -> Path:
    folder = workshop().folder / f"{what}-{VERBS.index(verb)}"
    folder.mkdir()
    return folder


def _kill_after(count: int) -> None:
    """The process dies, as by SIGKILL, right after that many further calls that change the disk."""
    done = 0

    def after() -> None:
        nonlocal done
        done += 1
        if done > count:
            os._exit(137)

    _listen(after)


def _count_to(path: Path) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _listen(lambda: os.write(handle, b"."))


def _listen(after: Callable[[], object]) -> None:
    def watched(name: str, change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = change(*args, **options)
            if name != "open" or args[1] & os.O_CREAT:
                after()
            return result

        return call

    for name in CHANGES:
        setattr(os, name, watched(name, getattr(os, name)))
    import bedl.estimators.tabular.folder as place

    place._exchanged = watched("exchange", place._exchanged)
