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

from tools.campaign.children import call, start
from tools.campaign.ledger import Fault
from tools.campaign.verbs import Said
from tools.campaign.workshop import QUICK, Workshop, workshop

INJECTED = 320  # tries at calls; the others are at random moments
TRIES = 440
SECONDS = 300
CHANGES = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "link", "open", "ftruncate", "chmod")
VERBS = ("fit", "refit", "refit in two steps", "predict", "predict again", "report")


def prepare() -> None:
    """The models to begin with."""
    workshop()


def attempt(number: int, folder: Path) -> str:
    """First every call of every verb that changes the disk, one after the other; from `INJECTED` on random moments."""
    if number < INJECTED:
        verb, point = places()[number % len(places())]
    else:
        verb, point = Random(number).choice([*VERBS * 5, "export"]), None
    shop, words = workshop(), _set_up(verb, workshop(), folder)
    quick = functools.partial(_quickly, verb)
    if point is not None:
        ended = call(*words, logs=shop.folder, before=lambda: (quick(), _kill_after(point)))
        if ended.code not in (137, 0):
            raise Fault(f"{verb}, killed at call {point}: ended with {ended.code}: {ended.err[-300:]}")
    else:
        child = start(*words, logs=shop.folder, before=quick)
        time.sleep(Random(number).uniform(0, 1.1) * seconds(verb))
        child.send(signal.SIGKILL)
        ended = child.wait()
    when = "killed at a moment" if point is None else "killed at a call"
    what = f"{verb} {when if ended.code else 'done before the kill'}"
    _check(verb, words, shop, folder, what)
    return what


@functools.cache
def places() -> list[tuple[str, int]]:
    """All calls that change the disk, of all verbs."""
    return [(verb, point) for verb in VERBS for point in range(points(verb))]


def _set_up(verb: str, shop: Workshop, folder: Path) -> list[object]:
    """What is there before, and the words to say."""
    if verb in ("refit", "refit in two steps"):
        shutil.copytree(shop.models[0], folder / "m")
    if verb == "predict again":
        (folder / "out.csv").write_text("old")
    if "fit" in verb:
        return [
            "fit",
            shop.table,
            *QUICK,
            "--seed=2",
            "--out",
            folder / "m",
            *(["--overwrite"] if verb != "fit" else []),
        ]
    if "predict" in verb:
        return ["predict", shop.models[1], shop.table, "--out", folder / "out.csv", "--overwrite"]
    if verb == "export":
        return ["export", shop.models[1], "--onnx", folder / "out.onnx", "--overwrite"]
    return ["report", shop.models[1], shop.table, "--out", folder / "out.html", "--overwrite"]


def _quickly(verb: str) -> None:
    """A checkpoint after every epoch; and, if asked for, as on systems that cannot exchange two folders."""
    import bedl.tabular.place as place
    import bedl.tabular.run as run

    run.LEAST = 0.0
    if verb == "refit in two steps":
        place._exchanged = lambda one, other: False


def _check(verb: str, words: list[object], shop: Workshop, folder: Path, what: str) -> None:
    """What a user does who reads the messages leads to the result that was wanted, and nothing is left over."""
    if "fit" not in verb:
        out = _out(words)
        if out.exists() and out.read_bytes() not in (b"old", _whole(verb)):
            raise Fault(f"{what}: {out.name} is neither the old file nor the new one")
        _fine(call(*words, logs=shop.folder), what)
        if out.read_bytes() != _whole(verb):
            raise Fault(f"{what}: the second run wrote something else")
        if os.listdir(folder) != [out.name]:
            raise Fault(f"{what}: left {os.listdir(folder)}")
        return
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
def _whole(verb: str) -> bytes:
    """The file that a run which nobody disturbs writes."""
    folder = workshop().folder / f"whole-{verb.split()[0]}"
    folder.mkdir(exist_ok=True)
    words = _set_up(verb, workshop(), folder)
    _fine(call(*words, logs=workshop().folder), verb)
    return _out(words).read_bytes()


def _out(words: list[object]) -> Path:
    return next(word for word in reversed(words) if isinstance(word, Path))


@functools.cache
def points(verb: str) -> int:
    """How many calls of a run change the disk."""
    folder = workshop().folder / f"points-{VERBS.index(verb)}"
    folder.mkdir()
    count = folder.with_suffix(".count")
    call(*_set_up(verb, workshop(), folder), logs=workshop().folder, before=lambda: (_quickly(verb), _count_to(count)))
    return len(count.read_bytes())


@functools.cache
def seconds(verb: str) -> float:
    """How long a run takes here and now."""
    folder = workshop().folder / f"seconds-{VERBS.index(verb)}"
    folder.mkdir()
    words, started = _set_up(verb, workshop(), folder), time.monotonic()
    call(*words, logs=workshop().folder, before=lambda: _quickly(verb))
    return time.monotonic() - started


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
    import bedl.tabular.place as place

    place._exchanged = watched("exchange", place._exchanged)
