"""A model folder: the estimator, and a card that says what it was made of and how to read a table for it.

    model.safetensors   the estimator, see `bedl.estimators`
    model.json          the card

A folder is made under another name, `<name>.partial`, and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bedl.data import TableEncoder
from bedl.deploy.files import written_whole
from bedl.errors import BEDLError

__all__ = [
    "CARD",
    "WEIGHTS",
    "ModelCard",
    "ModelFolderError",
    "ModelFolderExistsError",
    "checksum",
    "partial_of",
    "put_in_place",
    "read_card",
    "read_json",
    "refuse_taken",
    "write_card",
    "write_json",
]

FORMAT = "bedl.model"
SCHEMA = 1
CARD, WEIGHTS = "model.json", "model.safetensors"


class ModelFolderError(BEDLError, ValueError):
    """A path is no model that can be used here."""


class ModelFolderExistsError(BEDLError, FileExistsError):
    """The place for a model is taken; nothing has been changed."""


@dataclass(frozen=True)
class ModelCard:
    """What model.json says.

    Attributes:
        task: "regression" or "classification".
        target: name of the target column.
        data: what it learned from.
        encoder: `TableEncoder.to_dict()`.
        weights: SHA-256 of model.safetensors.
        rows: how many were learned from, and how many were held out for the scores.
        scores: of the rows held out, by the names of `bedl.report.MEANINGS`.
        notes: what was done with the columns.
        settings: of the fit.
        versions: of the packages that made it.
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
def write_card(folder: Path, card: ModelCard) -> None:
    write_json(folder / CARD, {"format": FORMAT, "schema": SCHEMA, **asdict(card)})


def read_card(folder: Path) -> tuple[ModelCard, TableEncoder]:
    """The card and the encoder in it; an error that says what to do unless both can be used here."""
    if not (folder / CARD).is_file():
        raise ModelFolderError(f"{folder} is a folder, but no model: it holds no {CARD}. Make one with 'bedl fit'")
    raw = read_json(folder / CARD)
    schema = raw.get("schema") if isinstance(raw, dict) and raw.get("format") == FORMAT else None
    if not isinstance(schema, int):
        raise ModelFolderError(f"{folder / CARD} does not describe a model of bedl. Train again: bedl fit")
    if schema > SCHEMA:
        versions = raw.get("versions")
        made_by = versions.get("bedl") if isinstance(versions, dict) else "version unknown"
        raise ModelFolderError(
            f"{folder} was made by a newer bedl ({made_by}, schema {schema}; this one reads up to {SCHEMA}). "
            "Upgrade: pip install --upgrade bedl"
        )
    try:
        card = ModelCard(**{key: value for key, value in raw.items() if key not in ("format", "schema")})
        encoder = TableEncoder.from_dict(card.encoder)
    except BEDLError as error:
        raise ModelFolderError(f"{folder / CARD}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(folder / CARD, error) from None
    if not (folder / WEIGHTS).is_file() or checksum(folder / WEIGHTS) != card.weights:
        raise ModelFolderError(
            f"{folder / WEIGHTS} is missing or not the file that was saved. Copy the folder again, or train again"
        )
    return card, encoder


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_json(path: Path, content: Any) -> None:
    """JSON in a file that is there whole or not at all."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    with written_whole(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ModelFolderError:
    return ModelFolderError(f"{path} is damaged ({type(error).__name__}: {error}). Copy it again, or train again")


# -- the place ----------------------------------------------------------------------------------------
def partial_of(place: Path) -> Path:
    """Where a folder is while it is being made."""
    return place.with_name(place.name + ".partial")


def refuse_taken(place: Path, overwrite: bool) -> None:
    """Say no, before any work, to a place that cannot be written, or holds what must not be lost."""
    if place.is_dir() and overwrite and not (place / CARD).is_file() and any(place.iterdir()):
        raise ModelFolderExistsError(f"{place} is a folder that holds no model, and is not overwritten. Choose another")
    if place.exists() and not place.is_dir():
        raise ModelFolderExistsError(f"{place} is a file. Choose another name for the model's folder (--out)")
    if place.exists() and not overwrite:
        raise ModelFolderExistsError(f"{place} exists. Choose another name (--out), or replace it (--overwrite)")
    parent = place.parent
    if not parent.is_dir():
        raise ModelFolderError(f"there is no folder {parent}. Create it first: mkdir -p {parent}")
    if not os.access(parent, os.W_OK):
        raise ModelFolderError(f"{parent} cannot be written to. Choose another folder (--out)")


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
