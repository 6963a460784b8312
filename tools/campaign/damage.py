"""Model folders, estimator files, ONNX files and checkpoints with damaged bytes: refused, or nothing is changed."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from tools.campaign.ledger import Fault
from tools.campaign.tables import damaged

TRIES = 10_000
SECONDS = 60
_SUFFIXES = {"onnx": ".onnx", "estimator": ".safetensors"}
_MADE = ("folder", "estimator", "onnx", "checkpoint")
KINDS = ("folder", "estimator", "onnx", "checkpoint", "folder edited")


class Originals(NamedTuple):
    """What is damaged, and what it predicts when it is whole."""

    folder: Path
    frame: Any
    x: np.ndarray


def prepare() -> None:
    """The files to damage."""
    for kind in _MADE:
        said(kind)


def attempt(number: int, folder: Path) -> str:
    """One damaged file, or one value of model.json changed with a checksum of its own as an attacker would."""
    random, whole = Random(number), originals()
    kind = KINDS[number % len(KINDS)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return f"{kind}: {_tried(kind, random, whole, folder)}"


def _tried(kind: str, random: Random, whole: Originals, folder: Path) -> str:
    from bedl._utils.errors import BEDLError

    copy = folder / "copy"
    source = original(kind.split()[0])
    if source.is_dir():
        shutil.copytree(source, copy)
        if kind == "folder edited":
            _edit(random, copy / "model.json")
        else:
            names = ["*.safetensors", "model.json"] if kind == "folder" else ["*.safetensors"]
            _damage(random, random.choice([path for name in names for path in sorted(copy.rglob(name))]))
    else:
        copy = folder / f"copy{_SUFFIXES[kind]}"
        shutil.copy(source, copy)
        _damage(random, copy)
    try:
        found = _said(kind.split()[0], copy, whole)
    except BEDLError as error:
        if not str(error).strip():
            raise Fault(f"{kind}: refused without a word") from None
        return "refused"
    same = all(np.array_equal(found[name], values) for name, values in said(kind.split()[0]).items())
    if kind == "folder edited":  # whoever can write the checksum, too, may change what is predicted, but break nothing
        return "same" if same else "another model"
    if not same:
        raise Fault(f"{kind}: damaged, and it says something else without a word")
    return "same"


def _damage(random: Random, path: Path) -> None:
    content, changed = path.read_bytes(), path.read_bytes()
    while changed == content:
        if random.random() < 0.5:
            changed = bytearray(content)
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        else:
            changed = damaged(random, content)
    path.write_bytes(changed)


ODD = (None, True, -1, 0, 1, 2**31, 10**12, 1.5, -1e308, "", "x", "..", "\x00", [], [[]], {}, {"a": 1}, ["x"] * 50)


def _edit(random: Random, path: Path) -> None:
    """Another value somewhere in the card, and the checksum that fits it."""
    from bedl.estimators.tabular.folder import checksum_of

    card = json.loads(path.read_text())
    card.pop("sha256")
    place: Any = card
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = random.choice(keys)
        if isinstance(place[key], (dict, list)) and place[key] and random.random() < 0.85:
            place = place[key]
            continue
        if random.random() < 0.2:
            del place[key]
        else:
            place[key] = random.choice(ODD)
        break
    path.write_text(json.dumps({**card, "sha256": checksum_of(card)}))


def _said(kind: str, path: Path, whole: Originals) -> dict[str, Any]:
    """What is predicted by a file or a folder; of a checkpoint, what training comes to from there."""
    if kind == "estimator":
        from bedl.estimators import load

        return {"mean": load(path).predict(whole.x)}
    if kind == "checkpoint":
        return _trained(path)
    from bedl.estimators.tabular import load as load_model

    table = load_model(path).predict(whole.frame)
    return {name: table[name].to_numpy() for name in table}


def _trained(folder: Path, epochs: int = 4) -> dict[str, Any]:
    import torch

    import bedl
    from bedl.training import fit

    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 16)[:, None]
    method = bedl.BEDL(bedl.GaussianLinear(1, 2), bedl.Normal(1))
    fit(method, (x, 2 * x), epochs=epochs, accelerator="cpu", checkpoint=folder, resume=True)
    return {name: value.detach().numpy().copy() for name, value in method.state_dict().items()}


@functools.cache
def originals() -> Originals:
    """A folder for what is made in this process, removed at its end."""
    import pandas

    folder = Path(tempfile.mkdtemp(prefix="bedl-originals-"))
    atexit.register(shutil.rmtree, folder, True)
    frame = pandas.DataFrame({"x": np.linspace(-1, 1, 40), "colour": ["red", "blue"] * 20})
    frame["y"] = 3 * frame["x"]
    return Originals(folder, frame, frame[["x"]].to_numpy())


@functools.cache
def original(kind: str) -> Path:
    """A whole file or folder of a kind."""
    import torch

    import bedl
    from bedl.estimators import tabular
    from bedl.training import fit

    whole = originals()
    path = whole.folder / f"{kind}{_SUFFIXES.get(kind, '')}"
    quick: dict[str, Any] = {"epochs": 1, "device": "cpu", "method": "bedl"}
    if kind == "folder":
        tabular.fit(whole.frame, "y", path, hidden=(3,), **quick)
    elif kind == "onnx":
        tabular.load(original("folder")).export(path)
    elif kind == "estimator":
        bedl.BEDLRegressor((3,), random_state=0, **quick).fit(whole.x, whole.frame["y"]).save(path)
    else:
        torch.manual_seed(0)
        points = torch.linspace(-1, 1, 16)[:, None]
        method = bedl.BEDL(bedl.GaussianLinear(1, 2), bedl.Normal(1))
        fit(method, (points, 2 * points), epochs=2, accelerator="cpu", checkpoint=path)
    return path


@functools.cache
def said(kind: str) -> dict[str, Any]:
    """What the whole one predicts."""
    source = original(kind)
    copy = source.with_name(f"whole-{source.name}")
    (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    return _said(kind, copy, originals())
