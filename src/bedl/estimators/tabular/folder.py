"""Where a model folder goes: one writer at a time, replaced in one step, and a way out of whatever a kill leaves.

Beside a place `m` there may be `m.partial`, a fit under way or interrupted; `.m.new`, a model being saved; `.m.gone`,
what is being removed; and `.m.lock`, held by the one process that writes. A new model is made in the folder `model` of
the first or the second, and changes places with the old one in one step where the system can do that. Where it cannot,
the old one waits in the folder `old` for a moment, and comes back if the process dies in that moment.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bedl._utils.errors import BEDLError, ModelFileError, option
from bedl._utils.io import OutputExistsError, OutputFileError, check_folder_writable, write_atomically
from bedl.data import TableEncoder
from bedl.data.columns import check_types
from bedl.evaluation import tasks

CARD = "model.json"
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
_EXCHANGE, _HERE = 2, -100  # RENAME_EXCHANGE and AT_FDCWD of Linux


# -- names ----------------------------------------------------------------------------------------------
def partial_of(place: Path) -> Path:
    """Where a fit keeps what it has done until its model is complete."""
    return place.with_name(place.name + ".partial")


def new_of(place: Path) -> Path:
    """Where a model is while it is being saved."""
    return place.with_name(f".{place.name}.new")


def actual(place: Path) -> Path:
    """The folder itself where a name is a link to one."""
    if place.is_symlink() and not place.exists():
        raise OutputExistsError(f"{place} is a link to nothing. Remove it, or choose another name ({option('out')})")
    return place.resolve() if place.is_symlink() else place


def check_vacant(place: Path, overwrite: bool) -> None:
    """Say no, before any work, to a place that cannot be written, or holds what must not be lost."""
    if place.is_dir() and overwrite and not (place / CARD).is_file() and any(place.iterdir()):
        raise OutputExistsError(f"{place} is a folder that holds no model, and is not overwritten. Choose another")
    if place.exists() and not place.is_dir():
        raise OutputExistsError(f"{place} is a file. Choose another name for the model's folder ({option('out')})")
    if place.exists() and not overwrite:
        begun = f"; with {option('resume', True)}, to go on with the fit that was interrupted"
        raise OutputExistsError(
            f"{place} exists. Choose another name, or replace it "
            f"({option('overwrite', True)}{begun if partial_of(place).exists() else ''})"
        )
    check_folder_writable(place.parent)


# -- one writer -----------------------------------------------------------------------------------------
@contextmanager
def locked(place: Path) -> Iterator[None]:
    """A block in which no other process writes to a place; what a kill left there is put right first.

    The lock is the operating system's: it ends with the process that holds it, however that ends, so none is ever
    stale. On network file systems it holds between machines as far as these pass locks on, as NFS does; one without
    locks is said by a warning.
    """
    check_folder_writable(place.parent)
    path = place.with_name(f".{place.name}.lock")
    handle = _acquired(path, place)
    try:
        _put_right(place)
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)


def _acquired(path: Path, place: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if _holds(handle, path, place):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise OutputFileError(
                f"another process is writing to {place}{_holder(path)}. Wait until it ends, or choose another name "
                f"({option('out')})"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # of a file that the one before us has removed after we had opened it


def _holds(handle: int, path: Path, place: Path) -> bool:
    """Takes the lock of an open file and says whose it is; False if the file is no longer the one at the path."""
    _lock(handle, place)
    try:
        if not os.path.samestat(os.stat(path), os.fstat(handle)):
            return False
    except FileNotFoundError:
        return False
    who = {"process": os.getpid(), "machine": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(handle, 0)
    os.write(handle, json.dumps(who).encode())
    return True


def _lock(handle: int, place: Path) -> None:
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except (ImportError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _WITHOUT_LOCKS:
            raise
        warnings.warn(
            f"there are no file locks in {place.parent}: see to it that nothing else writes to {place} meanwhile",
            stacklevel=4,
        )


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_text())
        return f" (process {int(who['process'])} on {who['machine']} since {who['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _put_right(place: Path) -> None:
    """What a kill left: an old model comes back if the new one did not take its place, the rest is removed."""
    for folder in (partial_of(place), new_of(place)):
        if (folder / "old" / CARD).is_file() and not place.exists():
            os.replace(folder / "old", place)
    for folder in (partial_of(place) / "old", new_of(place), _gone(place)):
        if folder.is_dir():
            shutil.rmtree(folder)


# -- in one step ----------------------------------------------------------------------------------------
def put_in_place(folder: Path, place: Path) -> None:
    """The complete model in `folder / "model"` to its place, and `folder` removed, with what was there before."""
    new, old = folder / "model", folder / "old"
    if not place.exists():
        os.replace(new, place)
    elif not _exchanged(new, place):
        os.replace(place, old)
        try:
            os.replace(new, place)
        except OSError:
            os.replace(old, place)
            raise
    remove(folder, place)


def remove(folder: Path, place: Path) -> None:
    """A folder beside `place`, at once: a kill leaves all of it, or what the next writer removes."""
    os.replace(folder, _gone(place))
    shutil.rmtree(_gone(place), ignore_errors=True)


def _gone(place: Path) -> Path:
    return place.with_name(f".{place.name}.gone")


def _exchanged(one: Path, other: Path) -> bool:
    """Two folders under each other's names, in one step; False where the system has no such step."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


# The model card: a page of Markdown in the model's folder for whoever finds it there. Programs read model.json.


PAGE = "MODEL_CARD.md"
MAX_LISTED = 60  # columns, classes or notes that are listed
MAX_LETTERS = 120  # letters of a text that comes from the data

_KINDS = {
    "number": lambda c: f"number{_range(c)}",
    "boolean": lambda c: "true or false",
    "date": lambda c: "date",
    "category": lambda c: f"{len(c['categories'])} categories" + (", and others" if c["has_other"] else ""),
}


def card_text(card: ModelCard) -> str:
    """What is known of a model, as Markdown. It says the same of the same model: no time, no place, no user."""
    return "\n".join(_lines(card)) + "\n"


def _lines(card: ModelCard) -> Iterator[str]:
    encoder, rows = card.encoder, card.rows
    yield f"# Model of {_quoted(card.target)}"
    yield ""
    yield f"Made by bedl {_quoted(card.versions.get('bedl', '?'))}. Predicts {_quoted(card.task)}, with uncertainty."
    yield "model.json holds all of this, and more, for programs; its checksums tell whether the files are whole."
    yield from _section("Data")
    yield f"Learned from {_quoted(card.data)}: {rows.get('training', 0)} rows; {rows.get('held_out', 0)} were held out."
    classes = encoder["target"]["classes"]
    if classes:
        yield f"Classes: {_listed(classes)}."
    yield ""
    yield "| column | what it holds |"
    yield "| --- | --- |"
    for column in encoder["columns"][:MAX_LISTED]:
        missing = "; missing in places" if column["has_missing"] else ""
        yield f"| {_quoted(column['name'])} | {_KINDS.get(column['kind'], lambda c: c['kind'])(column)}{missing} |"
    if len(encoder["columns"]) > MAX_LISTED:
        yield f"| … | and {len(encoder['columns']) - MAX_LISTED} more |"
    if encoder["unused"]:
        yield ""
        yield f"Not used: {_listed(encoder['unused'])}."
    if card.scores:
        yield from _section(f"Scores of the {rows.get('held_out', 0)} rows held out")
        yield from _scores(card.scores)
    if card.notes:
        yield from _section("Notes")
        yield from (f"- {_quoted(note)}" for note in card.notes[:MAX_LISTED])
        if len(card.notes) > MAX_LISTED:
            yield f"- and {len(card.notes) - MAX_LISTED} more, in model.json"
    yield from _section("Settings")
    yield from (f"- {_quoted(name)}: {_quoted(value)}" for name, value in card.settings.items())
    yield from _section("Versions")
    yield ", ".join(f"{_quoted(name)} {_quoted(value)}" for name, value in card.versions.items())
    yield from _section("Limits")
    yield "Scores are of rows like those it learned from. Far from them predictions mean little: look at epistemic_std"
    yield "or epistemic_entropy, which grow there, and at what the model's page (bedl report) says of your own rows."


def _section(title: str) -> list[str]:
    return ["", f"## {title}", ""]


def _scores(scores: dict[str, float | None]) -> Iterator[str]:
    known = tasks.meanings()
    yield "| score | value | meaning |"
    yield "| --- | --- | --- |"
    for name, value in scores.items():
        shown = "not finite" if value is None else f"{value:.4g}"
        meaning = known.get(name)
        yield f"| {meaning.label if meaning else _quoted(name)} | {shown} | {meaning.note if meaning else ''} |"


def _range(column: dict[str, Any]) -> str:
    if column.get("low") is None or column.get("high") is None:
        return ""
    return f", {column['low']:.6g} to {column['high']:.6g}, mean {column['mean']:.6g}"


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - MAX_LISTED} more" if len(texts) > MAX_LISTED else ""
    return ", ".join(_quoted(text) for text in texts[:MAX_LISTED]) + more


def _quoted(value: Any) -> str:
    """A text that may come from the data, as code: no markup, link or control character in it works.

    >>> _quoted("a|`b`<script>\\n\\x1b[2J")
    "`a¦'b'<script>\\\\n\\\\x1b[2J`"
    """
    text = str(value)
    text = text if len(text) <= MAX_LETTERS else text[: MAX_LETTERS - 1] + "…"
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return f"`{text.replace('`', chr(39)).replace('|', '¦') or ' '}`"


# A model folder: the estimator, and a card that says what it was made of and how to read a table for it.
#
#     model.safetensors   the estimator, see `bedl.estimators`
#     model.json          the card
#     MODEL_CARD.md       the same for people
#
# The card ends with a checksum over itself, and holds that of the estimator's file. How a folder gets to its place,
# whole or not at all, is in `bedl.estimators.tabular.folder`.


FORMAT = "bedl.model"
SCHEMA = 2
CHECKSUM_SINCE_SCHEMA = 2  # from this schema on a card has a checksum
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class ModelCard:
    """What model.json says.

    Attributes:
        task: the name of what is predicted, see `bedl.evaluation.tasks`.
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
        check_vacant(folder, overwrite)
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
    write_json(folder / CARD, {**content, "sha256": checksum_of(content)})
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
    checksum = raw.pop("sha256", None)
    # A flipped bit may hit the name of the checksum, or the schema that asks for one, but not both.
    if (checksum is not None or schema >= CHECKSUM_SINCE_SCHEMA) and checksum != checksum_of(raw):
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


def checksum_of(content: Any) -> str:
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
