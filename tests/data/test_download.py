"""Downloads, from a server on this machine: tried again, checked, unpacked with care, nothing left after a failure."""

import gzip
import hashlib
import io
import os
import tarfile
import zipfile

import numpy as np
import pytest

from bedl._utils.io import OutputExistsError
from bedl.data import DataError, DataFileError, fetch, list_datasets, verify
from bedl.data.datasets.download import SOURCES, PublishedPart, PublishedSet

from .server import serve

CONTENT = np.random.default_rng(0).bytes(200_000)
PACKED = gzip.compress(CONTENT)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def tar_of(members: dict[str, bytes] | list[tuple[str, bytes]], extra: list[tarfile.TarInfo] = ()) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for info in extra:
            tar.addfile(info)
    return out.getvalue()


def zip_of(members: dict[str, bytes], **attributes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = attributes.get("external_attr", 0o100644 << 16)
            archive.writestr(info, content)
    return out.getvalue()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)


@pytest.fixture
def single(monkeypatch):
    parts = (PublishedPart("set/raw/a", sha(CONTENT)), PublishedPart("set/raw/b", sha(b"bb")))
    files = {"a.gz": sha(PACKED), "b": sha(b"bb")}
    monkeypatch.setitem(SOURCES, "toy", PublishedSet("http://example.invalid/", files, "set/raw", "none", parts))


def use_archive(monkeypatch, content: bytes, kind: str = "tar", digest: str | None = "", inner: str = "toy"):
    name = f"toy.{kind}"
    digest = sha(content) if digest == "" else digest
    source = PublishedSet(
        "http://example.invalid/", {name: digest}, inner, kind, (PublishedPart(f"{inner}/a.bin", sha(CONTENT)),)
    )
    monkeypatch.setitem(SOURCES, "toy", source)
    return {name: content}


def everything(root) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_files_are_fetched_once(tmp_path, single):
    seen = []
    with serve({"a.gz": PACKED, "b": b"bb"}) as server:
        folder = fetch("toy", tmp_path, server.url, progress=lambda *args: seen.append(args))
        assert folder == tmp_path / "set/raw"
        assert everything(tmp_path) == ["set/raw/a.gz", "set/raw/b"]
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert (folder / "a.gz").read_bytes() == PACKED
        assert ("a.gz", len(PACKED), len(PACKED)) in seen
        fetch("toy", tmp_path, server.url)
        assert len(server.requests) == 2
        (folder / "b").unlink()
        fetch("toy", tmp_path, server.url)  # only what is missing
        assert server.requests == ["/a.gz", "/b", "/b"]
    assert [check.status for check in verify("toy", tmp_path)] == ["ok", "ok"]


def test_a_broken_download_is_tried_again(tmp_path, single):
    with serve({"a.gz": PACKED, "b": b"bb"}) as server:
        server.breaks_after = [50_000, 120_000]
        fetch("toy", tmp_path, server.url)
        assert server.requests == ["/a.gz", "/a.gz", "/a.gz", "/b"]
        (tmp_path / "set/raw/a.gz").unlink()
        server.breaks_after = [50_000] * 3
        with pytest.raises(DataFileError, match=r"a\.gz could not be downloaded.*Check the network"):
            fetch("toy", tmp_path, server.url)
    assert everything(tmp_path) == ["set/raw/b"]


@pytest.mark.parametrize("content", [PACKED[:-1], PACKED[:-1] + b"?", b""], ids=["truncated", "corrupted", "empty"])
def test_a_wrong_file_leaves_nothing(tmp_path, single, content):
    wrong = pytest.raises(DataError, match=r"a\.gz is not the published file.*Nothing was kept")
    with serve({"a.gz": content, "b": b"bb"}) as server, wrong:
        fetch("toy", tmp_path, server.url)
    assert everything(tmp_path) == []


def test_a_second_file_that_fails_keeps_the_first_out_too(tmp_path, single):
    wrong = pytest.raises(DataError, match="b is not the published file")
    with serve({"a.gz": PACKED, "b": b"wrong"}) as server, wrong:
        fetch("toy", tmp_path, server.url)
    assert everything(tmp_path) == []


def test_no_such_place(tmp_path, single):
    with serve({}) as server:
        with pytest.raises(DataFileError, match=r"answers 404.*base_url"):
            fetch("toy", tmp_path, server.url)
        server.files, server.status = {"a.gz": PACKED}, 503
        with pytest.raises(DataFileError, match=r"could not be downloaded.*503"):
            fetch("toy", tmp_path, server.url)
    with pytest.raises(DataFileError, match=r"could not be downloaded.*Check the network"):
        fetch("toy", tmp_path, server.url)  # it is closed by now
    assert everything(tmp_path) == []
    for url in ("file:///etc/", "ftp://a/", "/tmp"):
        with pytest.raises(DataError, match="no address to download from"):
            fetch("toy", tmp_path, url)
    with pytest.raises(FileNotFoundError, match=r"no data set 'toys'.*mnist"):
        fetch("toys", tmp_path)


def test_files_of_the_user_are_not_replaced_unless_told(tmp_path, single):
    mine = tmp_path / "set/raw/a"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    assert [check.status for check in verify("toy", tmp_path)] == ["differs", "missing"]
    with serve({"a.gz": PACKED, "b": b"bb"}) as server:
        with pytest.raises(OutputExistsError, match=r"raw/a is there but is not the published file.*--overwrite"):
            fetch("toy", tmp_path, server.url)
        assert server.requests == []
        assert mine.read_bytes() == b"mine"
        fetch("toy", tmp_path, server.url, overwrite=True)
    assert everything(tmp_path) == ["set/raw/a.gz", "set/raw/b"]


def test_a_set_compressed_again_is_still_the_set(tmp_path, single):
    folder = tmp_path / "set/raw"
    folder.mkdir(parents=True)
    (folder / "a.gz").write_bytes(gzip.compress(CONTENT, 1))
    (folder / "b").write_bytes(b"bb")
    assert [check.status for check in verify("toy", tmp_path)] == ["ok", "ok"]
    (folder / "a.gz").write_bytes(PACKED[:1000])
    assert [check.status for check in verify("toy", tmp_path)] == ["differs", "ok"]


# -- archives ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("top", ["", "project-123/"])
def test_archives_are_unpacked(tmp_path, monkeypatch, kind, top):
    members = {f"{top}toy/a.bin": CONTENT, f"{top}README": b"hello"}
    digest = "" if kind == "tar" else None  # a zip that is made anew for each download
    files = use_archive(monkeypatch, tar_of(members) if kind == "tar" else zip_of(members), kind, digest)
    with serve(files) as server:
        fetch("toy", tmp_path, server.url)
    assert everything(tmp_path) == ["toy/a.bin"]
    assert (tmp_path / "toy/a.bin").read_bytes() == CONTENT


def link(name: str, to: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


GOOD = {"toy/a.bin": CONTENT}
MALICIOUS = {
    "traversal": ("tar", tar_of({**GOOD, "toy/../../evil": b"x"}), "leads elsewhere"),
    "symlink": ("tar", tar_of(GOOD, [link("toy/s", "/etc", tarfile.SYMTYPE)]), "is a link"),
    "hard link": ("tar", tar_of(GOOD, [link("toy/h", "/etc/passwd", tarfile.LNKTYPE)]), "is a link"),
    "device": ("tar", tar_of(GOOD, [link("toy/d", "", tarfile.CHRTYPE)]), "a device"),
    "fifo": ("tar", tar_of(GOOD, [link("toy/f", "", tarfile.FIFOTYPE)]), "a device"),
    "twice": ("tar", tar_of([("toy/a.bin", CONTENT), ("toy/a.bin", b"x")]), "a.bin is missing or differs"),
    "file as folder": ("tar", tar_of([("toy/a.bin", CONTENT), ("toy/a.bin/b", b"x")]), "two files of the same name"),
    "not an archive": ("tar", b"hello", "damaged archive"),
    "not a zip": ("zip", b"hello", "damaged archive"),
    "truncated": ("tar", tar_of(GOOD)[:-1000], "damaged archive"),
    "truncated zip": ("zip", zip_of(GOOD)[:-1000], "damaged archive"),
    "another": ("tar", tar_of({"other/a.bin": CONTENT}), "holds no folder 'toy'"),
    "other content": ("zip", zip_of({"toy/a.bin": b"changed"}), "a.bin is missing or differs. Nothing was kept"),
}


@pytest.mark.parametrize("kind, content, message", MALICIOUS.values(), ids=MALICIOUS)
def test_unsafe_archives_are_refused_and_leave_nothing(tmp_path, monkeypatch, kind, content, message):
    root = tmp_path / "deep" / "root"
    with serve(use_archive(monkeypatch, content, kind)) as server, pytest.raises(DataError, match=message):
        fetch("toy", root, server.url)
    assert everything(tmp_path) == []
    assert not os.path.exists("/tmp/bedl-evil")


STRAY = {
    "absolute": ("tar", tar_of({**GOOD, "/tmp/bedl-evil": b"x"})),
    "zip absolute": ("zip", zip_of({**GOOD, "/tmp/bedl-evil": b"x"})),
    "zip traversal": ("zip", zip_of({**GOOD, "toy/../../../../evil": b"x"})),
    "zip symlink": ("zip", zip_of({**GOOD, "toy/link": b"/etc"}, external_attr=0o120777 << 16)),
}


@pytest.mark.parametrize("kind, content", STRAY.values(), ids=STRAY)
def test_archives_are_unpacked_nowhere_else(tmp_path, monkeypatch, kind, content):
    with serve(use_archive(monkeypatch, content, kind)) as server:
        fetch("toy", tmp_path / "deep" / "root", server.url)
    assert everything(tmp_path) == ["deep/root/toy/a.bin"]
    assert not os.path.exists("/tmp/bedl-evil")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_archives_that_swell_are_refused(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("bedl.data.datasets.download.MAX_BYTES", 1 << 20)
    members = {"toy/a.bin": b"\0" * (2 << 20)}
    content = tar_of(members) if kind == "tar" else zip_of(members)
    assert len(content) < 10_000
    with serve(use_archive(monkeypatch, content, kind)) as server:
        with pytest.raises(DataError, match=r"more than 1 MiB .*do not use it"):
            fetch("toy", tmp_path, server.url)
        monkeypatch.setattr("bedl.data.datasets.download.MAX_MEMBERS", 10)
        many = {f"toy/{i}": b"" for i in range(11)}
        server.files.update(use_archive(monkeypatch, tar_of(many) if kind == "tar" else zip_of(many), kind))
        with pytest.raises(DataError, match="or 10 files"):
            fetch("toy", tmp_path, server.url)
    assert everything(tmp_path) == []


def test_a_zip_that_lies_about_its_sizes(tmp_path, monkeypatch):
    content = zip_of({"toy/a.bin": b"\0" * (2 << 20)})
    size = (2 << 20).to_bytes(4, "little")
    assert content.count(size) == 2
    lying = content.replace(size, (100).to_bytes(4, "little"))
    with serve(use_archive(monkeypatch, lying, "zip")) as server, pytest.raises(DataError):
        fetch("toy", tmp_path, server.url)
    assert everything(tmp_path) == []


def test_a_download_without_end_is_cut(tmp_path, single, monkeypatch):
    monkeypatch.setattr("bedl.data.datasets.download.MAX_BYTES", 100_000)
    too_large = pytest.raises(DataFileError, match="too large for a data set")
    with serve({"a.gz": PACKED, "b": b"bb"}) as server, too_large:
        fetch("toy", tmp_path, server.url)
    assert everything(tmp_path) == []


# -- the real sources -------------------------------------------------------------------------------
def test_what_is_known():
    infos = {info.name: info for info in list_datasets("/nonexistent")}
    assert list(infos) == ["mnist", "fashion_mnist", "cifar10", "uci"]
    assert not any(info.present or info.size for info in infos.values())
    assert infos["cifar10"].source == "https://www.cs.toronto.edu/~kriz/"
    for source in SOURCES.values():
        digests = [part.sha256 for part in source.parts] + [d for d in source.files.values() if d]
        assert all(len(d) == 64 and int(d, 16) for d in digests)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("BEDL_DATA"), reason="BEDL_DATA is not set")
def test_the_real_files_are_the_published_ones():
    for info in list_datasets():
        if info.present:
            assert "differs" not in [check.status for check in verify(info.name)]
