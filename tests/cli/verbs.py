"""The command line, called from tests."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner


def run(*args: object, ok: bool | None = None) -> Any:
    """Calls `bedl` with these words in this process. `ok`: whether it has to succeed."""
    from bedl.cli.app import app

    result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="bedl")
    if ok is not None:
        assert (result.exit_code == 0) is ok, result.output
    return result


def spawn(*args: object, code: str = "from bedl.cli import main; main()", **options: Any) -> subprocess.Popen:
    """Calls `bedl` in a process of its own, after `code` if there is some."""
    command = [sys.executable, "-c", code, *map(str, args)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **{**pipes, **options})
