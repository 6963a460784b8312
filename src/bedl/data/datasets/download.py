"""One file over HTTP, continued where an earlier attempt broke off."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import lzma
import os
import re
import stat
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from bedl._utils.errors import DataError, DataFileError, DataFileNotFoundError, option
from bedl._utils.io import OutputExistsError
from bedl.data.datasets.sources import SOURCES, PublishedPart, PublishedSet

__all__ = [
    "DatasetInfo",
    "DownloadProgress",
    "MAX_BYTES",
    "MAX_MEMBERS",
    "PartCheck",
    "Resuming",
    "data_root",
    "extract",
    "fetch",
    "list_datasets",
    "verify",
]


DownloadProgress = Callable[[str, int, int | None], object]
"""Called with (file name, bytes so far, bytes in all or None)."""

_MAX_BYTES = 1 << 30  # several times the largest data set
_DOWNLOAD_CHUNK = 1 << 18


class Resuming:
    """A downloader for pooch that keeps what has arrived in `part`, and asks only for the rest.

    The sum of the whole is pooch's business, so a part that belongs to another version of the file is found out there;
    pooch then raises, and as `part` has been handed over by then, the next attempt starts afresh.
    """

    def __init__(self, part: Path, progress: DownloadProgress | None = None, attempts: int = 3, pause: float = 0.5):
        self.part, self.progress, self.attempts, self.pause = part, progress, attempts, pause

    def __call__(self, url: str, output_file: str, pooch: Any, check_only: bool = False) -> None:
        idle = 0  # attempts in a row that brought nothing
        while idle < self.attempts:
            before = self._size()
            try:
                self._continue(url)
                os.replace(self.part, output_file)
                return
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, DataFileError):
                    raise
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                    if error.code < 500:
                        raise DataFileError(
                            f"{url} answers {error.code} ({error.reason}). Has it moved? Give another base_url"
                        ) from None
                failure = str(error)
            idle = idle + 1 if self._size() <= before else 0
            time.sleep(self.pause * idle)
        kept = self._size()
        if not kept:
            self.part.unlink(missing_ok=True)
        remedy = f"{kept} bytes are kept; the next attempt continues from there" if kept else "Check the network"
        raise DataFileError(f"{url} could not be downloaded: {failure}. {remedy}")

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _continue(self, url: str) -> None:
        start = self._size()
        request = urllib.request.Request(url, headers={"User-Agent": "bedl", "Accept-Encoding": "identity"})
        if start:
            request.add_header("Range", f"bytes={start}-")
        try:
            response = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            if error.code != 416:
                raise
            error.close()
            # The part is complete, or longer than the file: only a fresh start can tell.
            self.part.unlink(missing_ok=True)
            raise ConnectionError("the server has no more bytes than are here already") from None
        with response:
            start = start if response.status == 206 and _range_start(response) == start else 0
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdecimal() else None
            self._receive(url, response, start, total)

    def _receive(self, url: str, response: Any, start: int, total: int | None) -> None:
        name, done = url.rsplit("/", 1)[-1], start
        with open(self.part, "ab" if start else "wb") as file:
            while chunk := response.read(_DOWNLOAD_CHUNK):
                done += len(chunk)
                if done > _MAX_BYTES:
                    file.close()
                    self.part.unlink()
                    raise DataError(f"{url} is larger than {_MAX_BYTES >> 20} MiB, too large for a data set")
                file.write(chunk)
                if self.progress is not None:
                    self.progress(name, done, total)
        if total is not None and done < total:
            raise ConnectionError(f"it broke off after {done} of {total} bytes")


def _range_start(response: Any) -> int:
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(match[1]) if match else -1


# Downloaded archives, unpacked without trust: plain files only, inside the folder only, and not too large.


MAX_BYTES = 2 << 30
MAX_MEMBERS = 100_000
_CHUNK = 1 << 20
# RuntimeError and NotImplementedError: encrypted members, methods of compression that nobody knows.
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, RuntimeError, NotImplementedError),
)


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    kind: Literal["file", "folder", "link", "device"]
    open: Callable[[], IO[bytes] | None]


def extract(path: Path, kind: Literal["tar", "zip"], folder: str, into: Path) -> None:
    """Unpacks what lies in `folder`, at the top of the archive or one level below, as `into`/`folder`.

    All members are looked at before the first is written. One that points outside, a link or a device, and the whole
    archive is refused.
    """
    try:
        with (_open_tar if kind == "tar" else _open_zip)(path) as members:
            wanted, total = [], 0
            for number, member in enumerate(members()):
                _check(path, member)
                total += member.size
                if number >= MAX_MEMBERS or total > MAX_BYTES:
                    raise _too_large(path)
                place = _place(member.name, folder)
                if place is not None and member.kind == "file":
                    wanted.append((place, member))
            if not wanted:
                raise DataError(f"{path.name} holds no folder {folder!r}, so it is not the archive it should be")
            _write(path, wanted, into)
    except (FileExistsError, NotADirectoryError):
        raise DataError(f"{path.name} was not unpacked: it holds two files of the same name. Do not use it") from None
    except _DAMAGE as error:
        raise DataError(f"{path.name} is a damaged archive ({error}). Download it again") from None


def _check(path: Path, member: _Member) -> None:
    parts = PurePosixPath(member.name).parts
    unsafe = member.name.startswith("/") or ".." in parts or "\\" in member.name or ":" in member.name
    if unsafe or "\0" in member.name or member.kind in ("link", "device"):
        what = f"a {member.kind}" if not unsafe else "a path that leads elsewhere"
        raise DataError(
            f"{path.name} was not unpacked: {member.name[:80]!r} is {what}, which no data set needs. "
            "It may have been tampered with; do not use it"
        )


def _place(name: str, folder: str) -> Path | None:
    parts = PurePosixPath(name).parts
    if folder not in parts[:2]:
        return None
    return Path(*parts[parts.index(folder) :])


def _too_large(path: Path) -> DataError:
    return DataError(
        f"{path.name} was not unpacked: it would take more than {MAX_BYTES >> 20} MiB or {MAX_MEMBERS} files. "
        "It may have been tampered with; do not use it"
    )


def _write(path: Path, wanted: list[tuple[Path, _Member]], into: Path) -> None:
    written = 0
    for place, member in wanted:
        target = into / place
        target.parent.mkdir(parents=True, exist_ok=True)
        source = member.open()
        assert source is not None
        with source, open(target, "xb") as out:
            while chunk := source.read(_CHUNK):
                written += len(chunk)  # what an archive says about its sizes may be a lie
                if written > MAX_BYTES:
                    raise _too_large(path)
                out.write(chunk)


@contextmanager
def _open_tar(path: Path) -> Iterator[Callable[[], Iterator[_Member]]]:
    with tarfile.open(path, "r:*") as tar:

        def members() -> Iterator[_Member]:
            for info in tar:
                kind: Literal["file", "folder", "link", "device"] = "device"
                if info.isreg():
                    kind = "file"
                elif info.isdir():
                    kind = "folder"
                elif info.issym() or info.islnk():
                    kind = "link"
                yield _Member(info.name, info.size, kind, lambda info=info: tar.extractfile(info))  # type: ignore[misc]

        yield members


@contextmanager
def _open_zip(path: Path) -> Iterator[Callable[[], Iterator[_Member]]]:
    with zipfile.ZipFile(path) as archive:

        def members() -> Iterator[_Member]:
            for info in archive.infolist():
                mode = info.external_attr >> 16
                kind: Literal["file", "folder", "link", "device"] = "folder" if info.is_dir() else "file"
                if stat.S_ISLNK(mode):
                    kind = "link"
                elif stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    kind = "device"
                yield _Member(info.filename, info.file_size, kind, lambda info=info: archive.open(info))  # type: ignore[misc]

        yield members


# Where data sets are on this machine.


def data_root(root: str | PathLike[str] | None = None) -> Path:
    """`root` if given, else $BEDL_DATA, else ~/.cache/bedl."""
    chosen = root or os.environ.get("BEDL_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "bedl"


# Data sets from the internet: resumed where a download broke off, checked by SHA-256, put in place whole.


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
