"""`bedl` in processes of its own that can be killed: forked from this one, or from their first line on.

A forked process need not import anything again, which would take ten times as long as the rest. This one has only
imported: it has computed nothing and started no threads, so that what is forked from it begins as `python -m bedl`
would, with nothing but its modules there already.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tools.campaign.ledger import Fault
from tools.campaign.verbs import Said

__all__ = ["SHARE", "Child", "Step", "call", "rehearsed", "start"]

LONGEST = 300.0  # seconds that a child may take on a busy machine
SHARE = 10  # every so many tries of an attack with a process from its first line on, which also imports
Step = tuple[Any, ...]  # a function of a module, and what it is called with


class Child:
    """A process under way.

    Args:
        process: its number, and that of its group.
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


def start(
    *words: object, logs: Path, before: Iterable[Step] = (), after: Iterable[Step] = (), fresh: bool = False
) -> Child:
    """`bedl` with these words in a child of this process.

    Args:
        words: what follows `bedl`.
        logs: a folder for what it prints.
        before: called in the child before `bedl`.
        after: called in the child when `bedl` has ended well; only where it is forked.
        fresh: a new Python, which imports everything itself; else forked.
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
    try:  # whatever happens, even a signal while it ends: a child never goes on with the work of its parent
        _alone(log)
        if fresh:
            os.execv(sys.executable, [sys.executable, "-c", _program(before), *map(str, words)])
        code = _ended([str(word) for word in words], before, after)
    finally:
        os._exit(code)


def _ended(words: list[str], before: Iterable[Step], after: Iterable[Step]) -> int:
    """The exit code of `bedl` with these words in this process."""
    code = 99
    try:
        _main(words, before, after)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _alone(log: Path) -> None:
    """Nothing of the parent's: neither its files, nor its signals."""
    for handle, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        opened = os.open(log if handle else os.devnull, flags, 0o600)
        os.dup2(opened, handle)
        os.close(opened)
    os.dup2(1, 2)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells ignore for what runs in the background


def _main(words: list[str], before: Iterable[Step], after: Iterable[Step]) -> None:
    from bedl.cli import main

    sys.argv = ["bedl", *words]
    for step, *given in before:
        step(*given)
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    for step, *given in after:
        step(*given)


def _program(before: Iterable[Step]) -> str:
    """What a new Python runs."""
    lines = ["import signal", "signal.signal(signal.SIGINT, signal.default_int_handler)"]
    for step, *given in before:
        texts = [str(value) if isinstance(value, Path) else value for value in given]
        lines += [f"from {step.__module__} import {step.__name__}", f"{step.__name__}(*{texts!r})"]
    return "\n".join([*lines, "from bedl.cli import main", "main()"])


def call(*words: object, **options: Any) -> Said:
    """The same as `start`, and waits for the end."""
    return start(*words, **options).wait()


def rehearsed(*words: object, logs: Path, before: Iterable[Step] = ()) -> None:
    """Runs `bedl` with these words once, which have to succeed, and imports here what it has imported there."""
    listed = logs / f".modules-{time.monotonic_ns()}"
    said = call(*words, logs=logs, before=before, after=[(_list_modules, listed)])
    if said.code:
        raise Fault(f"{words} ended with {said.code}: {said.err[-500:]}")
    for name in listed.read_text().split("\n"):
        if name not in sys.modules:
            importlib.import_module(name)
    listed.unlink()


def _list_modules(path: Path) -> None:
    names = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None) is not None]
    path.write_text("\n".join(name for name in names if name != "__main__"))
