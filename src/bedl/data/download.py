"""Data sets from the internet: resumed where a download broke off, checked by SHA-256, put in place whole."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Literal

from bedl.data.archives import extract
from bedl.data.errors import DataError, DataFileError, DataFileNotFoundError
from bedl.data.places import data_root
from bedl.data.sources import SOURCES, PublishedPart, PublishedSet
from bedl.data.transfer import DownloadProgress, Resuming
from bedl.errors import option
from bedl.files import OutputExistsError

__all__ = ["DatasetInfo", "PartCheck", "fetch", "list_datasets", "verify"]

Status = Literal["ok", "missing", "differs"]


@dataclass(frozen=True)
class PartCheck:
    """Whether a file of a data set is there ('missing' if not) and what was published ('ok', else 'differs')."""

    path: Path
    status: Status


@dataclass(frozen=True)
class DatasetInfo:
    """A data set that `fetch` knows: whether it is all there, how many bytes of it are, and where it comes from."""

    name: str
    present: bool
    size: int
    source: str
    folder: Path


def list_datasets(root: str | PathLike[str] | None = None) -> list[DatasetInfo]:
    """The data sets that can be downloaded, and what of them is in `root` ($BEDL_DATA by default)."""
    place, result = data_root(root), []
    for name, source in SOURCES.items():
        found = [_existing(place / part.path) for part in source.parts]
        # Of the UCI sets any will do; of the others every file is needed.
        present = any(found) if name == "uci" else all(found)
        size = sum(file.stat().st_size for path in found if path for file in _files(path))
        result.append(DatasetInfo(name, present, size, source.base_url, place / source.folder))
    return result


def verify(name: str, root: str | PathLike[str] | None = None) -> list[PartCheck]:
    """Compares each file of a data set with the published SHA-256, whether it is compressed or not."""
    place = data_root(root)
    return [_checked(place, part) for part in _source(name).parts]


def fetch(
    name: str,
    root: str | PathLike[str] | None = None,
    base_url: str | None = None,
    progress: DownloadProgress | None = None,
    overwrite: bool = False,
) -> Path:
    """Downloads a data set into `root` ($BEDL_DATA by default) and returns its folder; what is there is kept.

    A download that breaks off is kept in `root`/.downloads, and continued by the next call. A file that is not what it
    should be is removed, and nothing is put in place.

    Args:
        name: "mnist", "fashion_mnist", "cifar10" or "uci".
        base_url: another address that has the same files.
        progress: called with (file name, bytes so far, bytes in all or None).
        overwrite: replace files that are there but differ; without it they are an error.
    """
    source, place = _source(name), data_root(root)
    checks = verify(name, place)
    needed = [part for part, check in zip(source.parts, checks, strict=True) if check.status != "ok"]
    if not needed:
        return place / source.folder
    different = [check.path for check in checks if check.status == "differs"]
    if different and not overwrite:
        raise OutputExistsError(
            f"{different[0]} is there but is not the published file. Move it away, or replace it "
            f"({option('overwrite', True)})"
        )
    url = (base_url or source.base_url).rstrip("/") + "/"
    if not re.match(r"https?://", url):
        raise DataError(f"{url!r} is no address to download from: it should begin with https:// or http://")
    try:
        waiting = place / ".downloads"
        waiting.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".fetch-") as temporary:
            new = _download(name, source, needed, url, waiting, Path(temporary), progress)
            _check_new(name, needed, new)
            _put_in_place(needed, new, place)
        if not any(waiting.iterdir()):
            waiting.rmdir()
    except (DataFileError, DataError, OutputExistsError):
        raise
    except OSError as error:
        raise DataFileError(f"{place} cannot be written to: {error}. Set BEDL_DATA to another folder") from None
    return place / source.folder


def _source(name: str) -> PublishedSet:
    if name not in SOURCES:
        raise DataFileNotFoundError(f"there is no data set {name!r} to download; there are {', '.join(SOURCES)}")
    return SOURCES[name]


def _download(
    name: str,
    source: PublishedSet,
    needed: list[PublishedPart],
    url: str,
    waiting: Path,
    temporary: Path,
    progress: DownloadProgress | None,
) -> Path:
    """Downloads and unpacks into `temporary`; the result has the layout of the data folder."""
    try:
        import pooch
    except ImportError:
        raise DataError("downloads need pooch: pip install 'bedl[data]'") from None
    pooch.get_logger().setLevel("WARNING")
    new = temporary / "new"
    for file, digest in source.files.items():
        if source.archive == "none" and not any(part.path.endswith(file.removesuffix(".gz")) for part in needed):
            continue
        folder = temporary / "packed" if source.archive != "none" else new / source.folder
        resuming = Resuming(waiting / f"{name}-{file}.part", progress)
        try:
            pooch.retrieve(url + file, digest and f"sha256:{digest}", fname=file, path=folder, downloader=resuming)
        except ValueError as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"{url}{file} is not the published file: its SHA-256 differs. Nothing was kept. Try again, or another "
                "address (base_url); if it differs again, do not use it"
            ) from None
        if source.archive != "none":
            extract(folder / file, source.archive, source.folder, new)
    return new


def _check_new(name: str, needed: list[PublishedPart], new: Path) -> None:
    wrong = [part.path for part in needed if _checked(new, part).status != "ok"]
    if wrong:
        raise DataError(
            f"the download of {name!r} is not what was published: {wrong[0]} is missing or differs. Nothing was kept"
        )


def _put_in_place(needed: list[PublishedPart], new: Path, place: Path) -> None:
    """Moves each part by renaming; one that was there is moved aside, to go with the temporary folder."""
    for part in needed:
        fresh = _existing(new / part.path)
        assert fresh is not None
        target = place / fresh.relative_to(new)
        old = _existing(place / part.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if old is not None:
            os.replace(old, new / f"replaced-{hashlib.sha256(part.path.encode()).hexdigest()}")
        os.replace(fresh, target)


# -- sums -----------------------------------------------------------------------------------------
def _existing(path: Path) -> Path | None:
    packed = path.with_name(path.name + ".gz")
    return path if path.exists() else packed if packed.exists() else None


def _checked(place: Path, part: PublishedPart) -> PartCheck:
    path = _existing(place / part.path)
    if path is None:
        return PartCheck(place / part.path, "missing")
    return PartCheck(path, "ok" if _digest(path) == part.sha256 else "differs")


def _files(path: Path) -> list[Path]:
    """The file itself, or those files of a UCI folder that matter."""
    if path.is_file():
        return [path]
    return sorted(f for f in path.iterdir() if re.fullmatch(r"data\.txt|index_\w+\.txt|n_splits\.txt", f.name))


def _digest(path: Path) -> str:
    if path.is_file():
        return _content_digest(path)
    return hashlib.sha256("".join(f"{_content_digest(f)}  {f.name}\n" for f in _files(path)).encode()).hexdigest()


def _content_digest(path: Path) -> str:
    """SHA-256 of a file's content, unpacked if it is a .gz; empty if it cannot be unpacked."""
    digest = hashlib.sha256()
    try:
        for chunk in _chunks(path):
            digest.update(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile):
        return ""
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            yield chunk
