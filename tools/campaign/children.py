"""`bedl` in forked processes: what is imported once need not be imported for each try, and a child can be killed."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

from tools.campaign.ledger import Fault
from tools.campaign.verbs import Said

__all__ = ["Child", "call", "start"]

LONGEST = 300.0  # seconds that a child may take on a busy machine


class Child:
    """A process under way.

    Args:
        process: its number.
        log: the file that it prints to.
    """

    def __init__(self, process: int, log: Path):
        self.process, self.log = process, log
        self._code: int | None = None

    def running(self) -> bool:
        """Whether it has not ended yet."""
        if self._code is None:
            found, status = os.waitpid(self.process, os.WNOHANG)
            if found:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is None

    def send(self, number: int) -> None:
        """A signal, if it still runs."""
        if self.running():
            os.kill(self.process, number)

    def wait(self) -> Said:
        """How it ended, and what it printed, which is removed."""
        deadline = time.monotonic() + LONGEST
        while self.running():
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                os.waitpid(self.process, 0)
                raise Fault(f"no answer within {LONGEST:.0f} s")
            time.sleep(0.002)
        assert self._code is not None
        text = self.log.read_text(errors="replace")
        self.log.unlink()
        return Said(self._code, text, text)


def start(*words: object, logs: Path, before: Callable[[], object] = lambda: None) -> Child:
    """`bedl` with these words in a child of this process.

    Args:
        words: what follows `bedl`.
        logs: a folder for what it prints.
        before: called in the child before `bedl`.
    """
    log = logs / f".said-{time.monotonic_ns()}"
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which sleep
        process = os.fork()
    if process:
        return Child(process, log)
    code = 99
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        from bedl.cli import main

        sys.argv = ["bedl", *map(str, words)]
        before()
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def call(*words: object, logs: Path, before: Callable[[], object] = lambda: None) -> Said:
    """The same, and waits for the end."""
    return start(*words, logs=logs, before=before).wait()
