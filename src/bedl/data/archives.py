"""Archives from elsewhere, unpacked without trust: plain files only, inside the folder only, and not too large."""

from __future__ import annotations

import gzip
import lzma
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from bedl.data.errors import DataError

__all__ = ["MAX_BYTES", "MAX_MEMBERS", "extract"]

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
