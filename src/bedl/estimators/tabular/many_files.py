"""Which files were predicted before: known by what was read and what was written, not by their names alone."""

from __future__ import annotations

import functools
import glob
import hashlib
import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from bedl._utils.errors import ModelFileError, option
from bedl._utils.io import OutputExistsError, Row, RowFile, remove_stale_temps
from bedl._utils.parallel import WorkersKilledError, as_finished
from bedl.data import DataError, DataFileNotFoundError
from bedl.estimators.tabular.folder import CARD, read_json, write_json
from bedl.estimators.tabular.model import TableCallback, TabularModel, WrittenTable, load

DONE = "done.jsonl"
READ = ("file", "bytes", "time")
WRITTEN = ("predictions", "bytes of predictions", "time of predictions")

Look = tuple[int | None, int | None]


def file_stat(path: Path) -> Look:
    """What tells a file from another of the same name: its size and its time; None and None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None, None
    return found.st_size, found.st_mtime_ns


def fingerprint(part: Path, read: Look, target: Path) -> Row:
    """The row that says so: these predictions are of that file.

    Args:
        part: the file that was predicted.
        read: how it looked before it was read. One that changes meanwhile looks different at the next run.
        target: its predictions, in their place.
    """
    return dict(zip((*READ, *WRITTEN), (_text(part), *read, _text(target.name), *file_stat(target)), strict=True))


class Manifest:
    """The rows of a folder of predictions, one for each file that was predicted.

    A row is written when its predictions are in their place, and counts as long as both files look as they did. So
    whatever a kill leaves behind, and whatever a lost worker puts there later, is done again.

    Args:
        folder: the folder of predictions.
    """

    def __init__(self, folder: Path):
        self._rows = RowFile(folder / DONE, key=(*READ, *WRITTEN))
        self._read: dict[str, set[tuple[object, ...]]] = {}
        for row in self._rows.rows():
            self._read.setdefault(row[WRITTEN[0]], set()).add(tuple(row[name] for name in READ))

    def has(self, part: Path, target: Path) -> bool:
        """Whether the predictions of a file as it is now are in their place."""
        row = fingerprint(part, file_stat(part), target)
        return None not in row.values() and self._rows.has(row)  # a file that is not there is none that was done

    def changed(self, part: Path, target: Path) -> bool:
        """Whether these predictions were made before, though of another file."""
        before = self._read.get(_text(target.name))
        return before is not None and (_text(part), *file_stat(part)) not in before

    def add(self, row: Row) -> None:
        """Keep what `fingerprint` says."""
        self._rows.add(row)


def _text(path: Path | str) -> str:
    """A path as JSON can hold it, also one whose bytes are no UTF-8."""
    return str(path).encode(errors="backslashreplace").decode()


# Tables in many files, larger than one machine: each file is predicted by itself, by whoever is free.


STAMP = "predictions.json"
SUFFIXES = {".parquet": ".parquet", ".tsv": ".tsv"}  # of predictions; others become .csv
MAX_DEATHS = 3  # of workers, in a row, without a file


class PredictedParts(NamedTuple):
    """The files that were written now, how many were done before, and which had changed since and were done again."""

    written: list[WrittenTable]
    skipped: int
    changed: list[Path]


def is_pattern(data: str) -> bool:
    """Whether a path stands for several files.

    >>> is_pattern("part-*.parquet"), is_pattern("houses.csv")
    (True, False)
    """
    return glob.has_magic(data) and not Path(data).exists()


def predict_parts(
    model: str | PathLike[str],
    pattern: str,
    out: str | PathLike[str],
    *,
    scheduler: str | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    callback: TableCallback | None = None,
    **options: Any,
) -> PredictedParts:
    """Predict the rows of many files, into a folder with a file for each.

    Each file of predictions is there whole or not at all. So a worker that is killed costs its file's time and nothing
    else, and the same call goes on where it was stopped; a file whose size or time has changed since is predicted anew.
    On a cluster the model has to be an .onnx file, which workers run without PyTorch; files, model and folder have to
    be on a disk that all of them see.

    Args:
        model: a folder made by `fit`, or an .onnx file.
        pattern: such as "part-*.parquet"; "**" goes through folders.
        out: the folder for the predictions.
        scheduler: address of a Dask scheduler, such as "tcp://10.0.0.1:8786".
        jobs: processes on this machine, where there is no scheduler.
        overwrite: whether to start anew where the folder holds predictions of another model or with other options.
        callback: who looks on.
        options: further ones of `TabularModel.predict`.
    """
    place, folder = Path(model).absolute(), Path(out).absolute()
    if scheduler is not None and place.suffix.lower() != ".onnx":
        raise ModelFileError(
            f"the workers of a cluster run .onnx files, without PyTorch, and {model} is none. Make one: bedl export "
            f"{model} --onnx model.onnx"
        )
    load(place)  # what is wrong with it is said here
    targets = _targets(pattern, folder)
    _claim(folder, place, options, overwrite)
    remove_stale_temps(folder, [target.name for target in targets.values()])
    done = Manifest(folder)
    left = {part: target for part, target in targets.items() if not done.has(part, target)}
    changed = [part for part, target in left.items() if done.changed(part, target)]
    for part in changed:
        left[part].unlink(missing_ok=True)  # nobody is to read it for the predictions of what is there now
    skipped, written, deaths = len(targets) - len(left), [], 0
    with (callback or TableCallback()).bar("predicting", len(left)) as advance:
        while left:
            calls = ((_predict_part, (str(place), str(part), str(target), options)) for part, target in left.items())
            try:
                for name, rows, columns, row in as_finished(list(calls), jobs=jobs, scheduler=scheduler):
                    done.add(row)
                    written.append(WrittenTable(left.pop(Path(name)), rows, columns))
                    deaths = 0
                    advance(1)
            except WorkersKilledError:
                deaths += 1
                if deaths > MAX_DEATHS:
                    raise
    return PredictedParts(written, skipped, changed)


def _predict_part(model: str, part: str, target: str, options: dict[str, Any]) -> tuple[str, int, list[str], Row]:
    """What a worker does."""
    read = file_stat(Path(part))
    if not Path(part).exists():
        raise DataFileNotFoundError(
            f"{part} cannot be seen from a worker. Files, model and folder have to be on a disk that all workers share"
        )
    try:
        found = _opened(model, Path(model).stat().st_mtime_ns).predict(part, target, overwrite=True, **options)
    except DataError as error:
        if part in str(error):
            raise
        raise DataError(f"{part}: {error}") from None  # among many files, which one
    assert isinstance(found, WrittenTable)
    return part, found.rows, found.columns, fingerprint(Path(part), read, Path(target))


@functools.lru_cache(maxsize=2)
def _opened(model: str, changed: int) -> TabularModel:
    """A worker reads a model once."""
    return load(model)


def _targets(pattern: str, folder: Path) -> dict[Path, Path]:
    """The files, and where their predictions go."""
    parts = sorted(Path(name).absolute() for name in glob.glob(pattern, recursive=True))
    if not parts:
        raise DataFileNotFoundError(f"there are no files {pattern}. Check the pattern, and put it in quotes")
    targets: dict[Path, Path] = {}
    for part in parts:
        name = part.name.split(".")[0] + SUFFIXES.get(part.suffix.lower(), ".csv")
        if folder / name in targets.values() or folder / name == part:
            raise OutputExistsError(
                f"the predictions of {part} would replace another file, {folder / name}. Choose another folder "
                f"({option('out')}), or give files of other names"
            )
        targets[part] = folder / name
    return targets


def _claim(folder: Path, model: Path, options: dict[str, Any], overwrite: bool) -> None:
    """Refuse a folder with predictions of another model or with other options, or start it anew."""
    content: Sequence[Path] = [model] if model.is_file() else [model / CARD]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in content)).hexdigest()
    now = json.loads(json.dumps({"model": digest, **options}, default=str))
    place = folder / STAMP
    remove_stale_temps(folder, [STAMP])  # alone in a folder it would make that one of other files
    if place.exists() and not overwrite:
        before = read_json(place)
        different = [key for key in now if before.get(key) != now[key]]
        if different:
            raise OutputExistsError(
                f"{folder} holds predictions with another {different[0].replace('_', '-')}. Choose another folder "
                f"({option('out')}), or start anew ({option('overwrite', True)})"
            )
        return
    if folder.is_dir() and any(folder.iterdir()):
        if not (overwrite and place.exists()):
            raise OutputExistsError(f"{folder} exists and holds other files. Choose another folder ({option('out')})")
        for old in folder.iterdir():
            if old.suffix in (".parquet", ".tsv", ".csv") and not old.name.startswith("."):
                old.unlink(missing_ok=True)
        (folder / DONE).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(place, now)
