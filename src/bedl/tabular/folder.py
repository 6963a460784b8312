"""A model folder: the estimator, and a card that says what it was made of and how to read a table for it.

    model.safetensors   the estimator, see `bedl.estimators`
    model.json          the card

The card ends with a checksum over itself, and holds that of the estimator's file. A folder is made under another name, `<name>.partial`, and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bedl.data import TableEncoder
from bedl.errors import BEDLError, ModelFileError
from bedl.files import OutputExistsError, refuse_unwritable_folder, write_atomically

__all__ = [
    "CARD",
    "WEIGHTS",
    "ModelCard",
    "checksum",
    "partial_of",
    "put_in_place",
    "read_card",
    "read_json",
    "refuse_taken",
    "seal_of",
    "write_files",
    "write_json",
    "write_model",
]

FORMAT = "bedl.model"
SCHEMA = 2
SEALED = 2  # from this schema on a card has a checksum
CARD, WEIGHTS = "model.json", "model.safetensors"


@dataclass(frozen=True)
class ModelCard:
    """What model.json says.

    Attributes:
        task: the name of what is predicted, see `bedl.tasks`.
        target: name of the target column, or of several in a row.
        data: what it learned from.
        encoder: `TableEncoder.to_dict()`.
        weights: SHA-256 of model.safetensors.
        rows: how many were learned from, and how many were held out for the scores.
        scores: the scores of the rows held out, by the names of `bedl.tasks.meanings()`.
        notes: what was done with the columns.
        settings: what the fit was asked for.
        versions: the versions of the packages that made it.
    """

    task: str
    target: str
    data: str
    encoder: dict[str, Any]
    weights: str
    rows: dict[str, int]
    scores: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


# -- the card -----------------------------------------------------------------------------------------
def write_model(place: Path, estimator: Any, card: ModelCard, overwrite: bool = True) -> Path:
    """A folder with the estimator and the card, whole or not at all."""
    refuse_taken(place, overwrite)
    partial = partial_of(place)
    partial.mkdir(exist_ok=True)
    write_files(partial, estimator, card)
    put_in_place(partial, place)
    return place


def write_files(folder: Path, estimator: Any, card: ModelCard) -> ModelCard:
    """The two files of a model, and nothing else, in a folder that is there; the card with the weights' checksum."""
    estimator.save(folder / WEIGHTS, overwrite=True)
    card = replace(card, weights=checksum(folder / WEIGHTS))
    content = {"format": FORMAT, "schema": SCHEMA, **asdict(card)}
    write_json(folder / CARD, {**content, "sha256": seal_of(content)})
    for path in list(folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (CARD, WEIGHTS):
            path.unlink()
    return card


def read_card(folder: Path) -> tuple[ModelCard, TableEncoder]:
    """The card and the encoder in it; an error that says what to do unless both can be used here."""
    if not (folder / CARD).is_file():
        raise ModelFileError(f"{folder} is a folder, but no model: it holds no {CARD}. Make one with 'bedl fit'")
    raw = read_json(folder / CARD)
    schema = raw.get("schema") if isinstance(raw, dict) and raw.get("format") == FORMAT else None
    if not isinstance(schema, int):
        raise ModelFileError(f"{folder / CARD} does not describe a model of bedl. Train again: bedl fit")
    if schema > SCHEMA:
        versions = raw.get("versions")
        made_by = versions.get("bedl") if isinstance(versions, dict) else "version unknown"
        raise ModelFileError(
            f"{folder} was made by a newer bedl ({made_by}, schema {schema}; this one reads up to {SCHEMA}). "
            "Upgrade: pip install --upgrade bedl"
        )
    seal = raw.pop("sha256", None)
    # A flipped bit may hit the name of the checksum, or the schema that asks for one, but not both.
    if (seal is not None or schema >= SEALED) and seal != seal_of(raw):
        raise ModelFileError(
            f"{folder / CARD} does not match its checksum: it was damaged or edited. Copy the folder again, or train "
            "again"
        )
    try:
        card = ModelCard(**{key: value for key, value in raw.items() if key not in ("format", "schema")})
        encoder = TableEncoder.from_dict(card.encoder)
    except BEDLError as error:
        raise ModelFileError(f"{folder / CARD}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(folder / CARD, error) from None
    if not (folder / WEIGHTS).is_file() or checksum(folder / WEIGHTS) != card.weights:
        raise ModelFileError(
            f"{folder / WEIGHTS} is missing or not the file that was saved. Copy the folder again, or train again"
        )
    return card, encoder


def seal_of(content: Any) -> str:
    """SHA-256 of a JSON value, whatever the spaces and the order of names in its file."""
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return ""  # no card is nested so deeply


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_json(path: Path, content: Any) -> None:
    """JSON in a file that is there whole or not at all."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomically(path, (text + "\n").encode())


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(f"{path} is damaged ({type(error).__name__}: {error}). Copy it again, or train again")


# -- the place ----------------------------------------------------------------------------------------
def partial_of(place: Path) -> Path:
    """Where a folder is while it is being made."""
    return place.with_name(place.name + ".partial")


def refuse_taken(place: Path, overwrite: bool) -> None:
    """Say no, before any work, to a place that cannot be written, or holds what must not be lost."""
    if place.is_dir() and overwrite and not (place / CARD).is_file() and any(place.iterdir()):
        raise OutputExistsError(f"{place} is a folder that holds no model, and is not overwritten. Choose another")
    if place.exists() and not place.is_dir():
        raise OutputExistsError(f"{place} is a file. Choose another name for the model's folder (--out)")
    if place.exists() and not overwrite:
        raise OutputExistsError(f"{place} exists. Choose another name (--out), or replace it (--overwrite)")
    refuse_unwritable_folder(place.parent)


def put_in_place(partial: Path, place: Path) -> None:
    """The complete folder to its place; what was there before goes when the new one is there."""
    old = place.with_name(f".{place.name}.old-{os.getpid()}")
    if place.exists():
        os.replace(place, old)
    try:
        os.replace(partial, place)
    except OSError:
        if old.exists():
            os.replace(old, place)
        raise
    shutil.rmtree(old, ignore_errors=True)
