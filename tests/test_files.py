"""Files are written whole or not at all, never over others unasked, and refused before the work."""

import os
import stat
import subprocess
import sys

import pytest

from bedl._utils.io import OutputExistsError, OutputFileError, atomic_write, check_writable, pid_alive, write_atomically


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        assert temporary.suffix == ".txt"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), atomic_write(path) as temporary:
        fail(temporary)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]
    write_atomically(path, b"new")
    assert path.read_text() == "new"


def test_results_have_the_usual_permissions(tmp_path):
    write_atomically(tmp_path / "sub" / "a", b"")
    (tmp_path / "b").write_text("")
    assert stat.S_IMODE((tmp_path / "sub" / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "b").stat().st_mode)


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    path = tmp_path / "a"
    with pytest.raises(OutputExistsError, match="exists"), atomic_write(path, overwrite=False):
        path.write_text("mine")
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == ["a"]


def test_places_are_refused_with_a_remedy(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(OutputExistsError, match="--overwrite"):
        check_writable(tmp_path / "a", False)
    check_writable(tmp_path / "a", True)
    with pytest.raises(FileExistsError, match="is a folder"):
        check_writable(tmp_path, True)
    with pytest.raises(OutputFileError, match="mkdir -p"):
        check_writable(tmp_path / "no" / "a", True)
    with pytest.raises(OutputFileError, match="cannot be written to"), atomic_write(tmp_path / "no" / "a"):
        pass


KILLED = """
import os, signal, sys
from pathlib import Path
from bedl._utils.io import atomic_write

with atomic_write(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "a.csv"], check=False)
    assert len(os.listdir(tmp_path)) == 1
    write_atomically(tmp_path / "b.csv", b"")  # another file: nothing is removed for it
    with atomic_write(tmp_path / "c.csv"), atomic_write(tmp_path / "c.csv") as inner:  # a writer that lives
        inner.write_text("")
    assert len(os.listdir(tmp_path)) == 3
    write_atomically(tmp_path / "a.csv", b"whole")
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "b.csv", "c.csv"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="others do not tell")
def test_a_killed_process_that_nobody_asked_for_lives_no_more(tmp_path):
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert pid_alive(process.pid)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its number is still taken
        assert not pid_alive(process.pid)
