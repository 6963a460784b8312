"""A model folder: the estimator, and a card that says what it was made of and how to read a table for it.

    model.safetensors   the estimator, see `bedl.estimators`
    model.json          the card
    MODEL_CARD.md       the same for people

The card ends with a checksum over itself, and holds that of the estimator's file. How a folder gets to its place, whole
or not at all, is in `bedl.tabular.place`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bedl.data import TableEncoder
from bedl.data.columns import check_types
from bedl.errors import BEDLError, ModelFileError
from bedl.files import write_atomically
from bedl.tabular.card import PAGE, card_text
from bedl.tabular.place import CARD, actual, locked, new_of, put_in_place, refuse_taken

__all__ = [
    "CARD",
    "WEIGHTS",
    "ModelCard",
    "checksum",
    "read_card",
    "read_json",
    "seal_of",
    "write_files",
    "write_json",
    "write_model",
]

FORMAT = "bedl.model"
SCHEMA = 2
SEALED = 2  # from this schema on a card has a checksum
WEIGHTS = "model.safetensors"


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
        training: what was chosen (``chosen``) and the ``loss`` (and ``val_nll``) of each epoch, the members' mean.
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
    training: dict[str, Any] = field(default_factory=dict)


_TYPES: dict[str, tuple[type, ...]] = {
    "task": (str,), "target": (str,), "data": (str,), "encoder": (dict,), "weights": (str,), "rows": (dict,),
    "scores": (dict,), "notes": (list,), "settings": (dict,), "versions": (dict,), "training": (dict,),
}  # fmt: skip


# -- the card -----------------------------------------------------------------------------------------
def write_model(place: Path, estimator: Any, card: ModelCard, overwrite: bool = True) -> Path:
    """A folder with the estimator and the card, whole or not at all."""
    folder = actual(place)
    with locked(folder):
        refuse_taken(folder, overwrite)
        write_files(new_of(folder), estimator, card)
        put_in_place(new_of(folder), folder)
    return place


def write_files(stage: Path, estimator: Any, card: ModelCard) -> ModelCard:
    """The files of a model in `stage / "model"`, ready to be put in place; the card with the weights' checksum."""
    folder = stage / "model"
    shutil.rmtree(folder, ignore_errors=True)  # of a kill in the middle of this
    folder.mkdir(parents=True)
    estimator.save(folder / WEIGHTS, overwrite=True)
    card = replace(card, weights=checksum(folder / WEIGHTS))
    content = {"format": FORMAT, "schema": SCHEMA, **asdict(card)}
    write_json(folder / CARD, {**content, "sha256": seal_of(content)})
    write_atomically(folder / PAGE, card_text(card).encode())
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
        fields = {key: value for key, value in raw.items() if key not in ("format", "schema")}
        check_types(fields, _TYPES)
        card = ModelCard(**fields)
        encoder = TableEncoder.from_dict(card.encoder)
    except BEDLError as error:
        raise ModelFileError(f"{folder / CARD}: {error}") from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(folder / CARD, error) from None
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
    except FileNotFoundError:
        raise ModelFileError(f"{path} is no longer there. Copy the folder again, or train again") from None
    except (ValueError, RecursionError) as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ModelFileError:
    return ModelFileError(f"{path} is damaged ({type(error).__name__}: {error}). Copy it again, or train again")
