"""Writing the page: whole or not at all, and never over another file unasked."""

import os

import pytest

from bedl._utils.io import OutputExistsError, OutputFileError
from bedl.evaluation.report import render, write_report
from tests.report.data import classification, regression


def test_the_file_is_written_whole_and_never_over_another(tmp_path):
    path = write_report(regression(), tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == render(regression())
    assert os.listdir(tmp_path) == ["page.html"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    with pytest.raises(OutputExistsError, match="overwrit") as error:
        write_report(classification(), path)
    assert isinstance(error.value, FileExistsError)
    assert path.read_text(encoding="utf-8") == render(regression())
    write_report(classification(), path, overwrite=True)
    assert path.read_text(encoding="utf-8") == render(classification())
    assert os.listdir(tmp_path) == ["page.html"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    with pytest.raises(OutputFileError, match="no folder"):
        write_report(regression(), tmp_path / "missing" / "page.html")
    with pytest.raises(OutputFileError, match="is a folder"):
        write_report(regression(), tmp_path)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report(regression(), tmp_path / "page.html")
    assert os.listdir(tmp_path) == []


def test_a_file_that_appears_meanwhile_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    sync = os.fsync

    def appear(handle):
        path.write_text("mine")
        sync(handle)

    monkeypatch.setattr(os, "fsync", appear)
    with pytest.raises(OutputExistsError):
        write_report(regression(), path)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["page.html"]


def test_file_systems_without_links_will_do(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    path = write_report(regression(), tmp_path / "page.html")
    assert path.read_text(encoding="utf-8") == render(regression())
    assert os.listdir(tmp_path) == ["page.html"]
