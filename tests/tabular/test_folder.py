"""Model folders: whole or refused, one writer at a time, and a way out of every state that a kill can leave."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from bedl._utils.errors import BEDLError
from bedl._utils.io import OutputExistsError, OutputFileError
from bedl.estimators import tabular
from bedl.estimators.tabular import folder as places
from bedl.estimators.tabular.folder import locked, partial_of

FRAME = pandas.DataFrame({"x": np.linspace(-1, 1, 60), "colour": ["red", "blue", "green"] * 20})
FRAME["y"] = 3 * FRAME["x"] + 1
QUICK = {"epochs": 1, "device": "cpu"}


@pytest.fixture(scope="module")
def model() -> tabular.TabularModel:
    return tabular.fit(FRAME, target="y", **QUICK)


def test_one_flipped_bit_in_the_card_is_refused(model, tmp_path):
    card, random = model.save(tmp_path / "m") / "model.json", np.random.default_rng(0)
    content, said, refused = card.read_bytes(), model.predict(FRAME), 0
    for place, bit in zip(random.integers(0, len(content), 400), random.integers(0, 8, 400), strict=True):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        card.write_bytes(damaged)
        try:
            again = tabular.load(tmp_path / "m")
        except BEDLError:
            refused += 1
        else:  # a space that became a tabulator
            pandas.testing.assert_frame_equal(again.predict(FRAME), said)
    assert refused > 300


# -- one writer at a time -------------------------------------------------------------------------------
def test_a_second_fit_into_the_same_folder_stops(tmp_path):
    with locked(tmp_path / "m"), pytest.raises(OutputFileError, match=rf"process {os.getpid()} on .*--out"):
        tabular.fit(FRAME, "y", tmp_path / "m", **QUICK)
    tabular.fit(FRAME, "y", tmp_path / "m", **QUICK)
    assert os.listdir(tmp_path) == ["m"]


def test_a_lock_that_a_dead_process_left_does_not_hinder(tmp_path):
    (tmp_path / ".m.lock").write_text('{"process": 1, "machine": "elsewhere", "since": "2020"}')
    with locked(tmp_path / "m"):
        pass
    assert os.listdir(tmp_path) == []


def test_only_one_of_many_holds_a_lock(tmp_path):
    inside, most, held = [0], [0], [0]

    def work() -> None:
        for _ in range(200):
            try:
                with locked(tmp_path / "m"):
                    inside[0] += 1
                    most[0], held[0] = max(most[0], inside[0]), held[0] + 1
                    inside[0] -= 1
            except OutputFileError:
                pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]
    assert held[0] > 8


def test_a_file_system_without_locks_is_said(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle: int, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(UserWarning, match="no file locks"), locked(tmp_path / "m"):
        pass


@pytest.mark.parametrize("in_one_step", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_reader_sees_the_old_model_or_the_new_one(model, tmp_path, monkeypatch, in_one_step):
    if not in_one_step:
        monkeypatch.setattr(places, "_exchanged", lambda one, other: False)
    models = [model, tabular.fit(FRAME.rename(columns={"x": "z"}), target="y", seed=1, **QUICK)]
    both = FRAME.assign(z=FRAME["x"])
    said = [one.predict(both, extra="ignore")["prediction"].tolist() for one in models]
    model.save(tmp_path / "m")
    stop, found = threading.Event(), []

    def replace() -> None:
        while not stop.is_set():
            for one in models:
                one.save(tmp_path / "m", overwrite=True)

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        for _ in range(60):
            found.append(tabular.load(tmp_path / "m").predict(both, extra="ignore")["prediction"].tolist())
    finally:
        stop.set()
        writer.join()
    assert all(one in said for one in found)
    assert os.listdir(tmp_path) == ["m"]


def test_links(model, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(OutputExistsError, match="a link to nothing"):
        tabular.fit(FRAME, "y", tmp_path / "link", **QUICK)
    model.save(tmp_path / "m")
    (tmp_path / "other").symlink_to(tmp_path / "m")
    model.save(tmp_path / "other", overwrite=True)
    assert (tmp_path / "other").is_symlink()
    tabular.load(tmp_path / "other")
    assert sorted(os.listdir(tmp_path)) == ["link", "m", "other"]


def test_a_model_is_kept_when_it_cannot_be_scored(tmp_path, monkeypatch):
    def fail(*args: Any) -> None:
        raise ValueError("no score today")

    monkeypatch.setattr("bedl.estimators.tabular.fitting.scores_of_encoded", fail)
    with pytest.warns(UserWarning, match="no score today"):
        tabular.fit(FRAME, "y", tmp_path / "m", **QUICK)
    assert any("no score today" in note for note in tabular.load(tmp_path / "m").card.notes)


# -- killed at every step -------------------------------------------------------------------------------
class Killed(BaseException):
    """What stands for SIGKILL: after it the process changes nothing on disk any more."""


CHANGES = ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "link", "open", "ftruncate")


@contextmanager
def killed_after(patch: pytest.MonkeyPatch, count: int) -> Iterator[list[str]]:
    """Raises after so many calls that change the disk, and at every such call from then on, before it does."""
    done: list[str] = []

    def deadly(name: str, call: Any) -> Any:
        def change(*args: Any, **options: Any) -> Any:
            if len(done) > count:
                raise Killed
            result = call(*args, **options)
            if name != "open" or args[1] & os.O_CREAT:
                done.append(name)
            if len(done) > count:
                raise Killed
            return result

        return change

    with patch.context() as context:
        for name in CHANGES:
            context.setattr(os, name, deadly(name, getattr(os, name)))
        context.setattr(places, "_exchanged", deadly("exchange", places._exchanged))
        yield done


def way_out(folder: Path, fit: Any, overwrite: bool) -> tabular.TabularModel:
    """What a user would do who reads the messages."""
    try:
        return fit(resume=True, overwrite=overwrite)
    except BEDLError as error:
        if "exists" in str(error):  # the kill came after the model was in its place
            return tabular.load(folder)
        if "Leave out resume" in str(error):
            return fit(overwrite=overwrite)
        raise


@pytest.mark.parametrize("overwrite, in_one_step", [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize(
    "method, every",
    [("bedl", 23), *(pytest.param(*case, marks=pytest.mark.slow) for case in (("bedl", 1), ("distilled", 23)))],
)
def test_every_state_that_a_kill_can_leave_has_a_way_out(tmp_path, monkeypatch, overwrite, in_one_step, method, every):
    if not in_one_step:
        monkeypatch.setattr(places, "_exchanged", lambda one, other: False)
    monkeypatch.setattr("bedl.estimators.tabular.fitting.MIN_CHECKPOINT_SECONDS", 0.0)  # a checkpoint after every epoch
    old, wanted = (tabular.fit(FRAME, "y", seed=seed, method=method, **QUICK) for seed in (0, 1))
    said = [one.predict(FRAME)["prediction"].tolist() for one in (old, wanted)]
    count = points = 0
    while True:
        folder = tmp_path / f"{count}" / "m"
        folder.parent.mkdir()
        if overwrite:
            old.save(folder)

        def fit(folder: Path = folder, **options: Any) -> tabular.TabularModel:
            return tabular.fit(FRAME, "y", folder, seed=1, method=method, **QUICK, **options)

        with killed_after(monkeypatch, count) as done:
            try:
                fit(overwrite=overwrite)
                killed = False
            except Killed:
                killed = True
        if overwrite and not partial_of(folder).exists():
            assert tabular.load(folder).predict(FRAME)["prediction"].tolist() in said
        assert way_out(folder, fit, overwrite).predict(FRAME)["prediction"].tolist() == said[1], (count, done)
        assert tabular.load(folder).predict(FRAME)["prediction"].tolist() == said[1]
        fit(overwrite=True)
        assert os.listdir(folder.parent) == ["m"], (count, done)
        shutil.rmtree(folder.parent)
        if not killed:
            break
        count, points = count + every, points + 1
    assert points * every > 20
