"""A full disk, a read-only one, a folder that vanishes, no rights: a clear message, and what was there is intact.

Needs the rights of root, in a container say: it mounts small file systems and gives up rights in children.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from random import Random

from tools.campaign.children import SHARE, call, start
from tools.campaign.kills import quickly, seconds, whole
from tools.campaign.ledger import Fault
from tools.campaign.verbs import Said, check_words
from tools.campaign.workshop import QUICK, Workshop, workshop

TRIES = 200
SECONDS = 300
NOBODY = 65534
ENOUGH = {"fit": 20, "refit": 24, "predict": 4, "report": 32}  # blocks of a disk that are hardly, or not quite, enough
KINDS = (
    "full disk", "full disk", "read-only", "no rights", "no rights on the data", "vanished folder", "small files only",
)  # fmt: skip


def prepare() -> None:
    """The models to begin with, for anybody to read, and all modules: nobody may not import this Python's."""
    whole("report")
    for path in [workshop().folder, *workshop().folder.rglob("*")]:
        path.chmod(0o755)


def attempt(number: int, folder: Path) -> str:
    """One verb in surroundings that do not let it finish, perhaps."""
    if os.name != "posix" or os.geteuid() != 0:
        return "skipped: needs root"
    shop, random = workshop(), Random(number)
    kind, verb = KINDS[number % len(KINDS)], random.choice(["fit", "refit", "refit", "predict", "report"])
    folder.chmod(0o755)
    place = folder / "place"
    place.mkdir()
    mounted = kind in ("full disk", "read-only")
    if mounted:
        size = random.randint(1 + 3 * (verb == "refit"), ENOUGH[verb] if kind == "full disk" else 99) * 4096
        if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], check=False).returncode:
            return "skipped: may not mount"
    try:
        return f"{verb}, {kind}: {_tried(kind, verb, shop, place, random)}"
    finally:
        if mounted:
            subprocess.run(["umount", "-l", place], check=False)


def _tried(kind: str, verb: str, shop: Workshop, place: Path, random: Random) -> str:
    model = place / "m"
    if verb == "refit":
        try:
            shutil.copytree(shop.models[0], model)
        except shutil.Error:
            return "no room for the old model"
    words = _words(verb, shop, place)
    if kind == "vanished folder":
        said = _vanishing(words, verb, place, shop, random)
    else:
        if kind == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        fresh = random.randrange(SHARE) == 0 and not kind.startswith("no rights")
        most = random.choice([3000, 6000, 12000])
        said = call(*words, logs=shop.folder, before=[(_deprive, kind, place, shop.table, most)], fresh=fresh)
    if kind == "no rights on the data":
        shop.table.chmod(0o644)
    check_words(said, verb)
    if said.code not in (0, 1):
        raise Fault(f"{verb}, {kind}: exit code {said.code}: {said.err[-300:]}")
    if verb == "refit" and kind != "vanished folder":
        allowed = shop.models if said.code == 0 else shop.models[:1]
        if shop.bytes_of(model) not in map(shop.bytes_of, allowed):
            raise Fault(f"{verb}, {kind}: the old model is lost")
    if said.code:
        left = set(os.listdir(place) if place.exists() else ()) - {"m", "m.partial"}
        if verb not in ("fit", "refit") and left:
            raise Fault(f"{verb}, {kind}: left {left}")
        if kind != "vanished folder" and left:
            raise Fault(f"{verb}, {kind}: left {left}")
    return "a message" if said.code else "done"


def _words(verb: str, shop: Workshop, place: Path) -> list[object]:
    if verb in ("fit", "refit"):
        return ["fit", shop.table, *QUICK, "--seed=2", "--out", place / "m", *(["--overwrite"] * (verb == "refit"))]
    out = place / ("out.csv" if verb == "predict" else "out.html")
    return [verb, shop.models[1], shop.table, "--out", out]


def _deprive(kind: str, place: str | Path, table: str | Path, most: int) -> None:
    """In the child, before `bedl` runs."""
    import resource

    quickly("fit")
    if kind == "small files only":
        resource.setrlimit(resource.RLIMIT_FSIZE, (most,) * 2)
    if kind.startswith("no rights"):
        if kind == "no rights on the data":
            os.chmod(table, 0o600)
            os.chmod(place, 0o777)
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def _vanishing(words: list[object], verb: str, place: Path, shop: Workshop, random: Random) -> Said:
    """Somebody removes the folder that is being written to."""
    child = start(*words, logs=shop.folder, before=[(quickly, "fit")])
    moment = random.uniform(0, 1) * seconds("fit" if "fit" in verb else verb, False)
    timer = threading.Timer(moment, shutil.rmtree, (place, True))
    timer.start()
    said = child.wait()
    timer.join()
    time.sleep(0.01)
    return said
