"""Runs attacks and prints their figures."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tools.campaign.ledger import Fault, Ledger, Try

ATTACKS = ("fuzz", "damage", "kills", "pairs", "surroundings", "signals", "rows")
PATIENCE = 20  # times the seconds of computing that a try may take
CHUNK = 1000  # tries of one process: what a process gathers in memory does not add up


def main() -> int:
    """All attacks that are asked for, one after the other; 1 if something did not hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.campaign", description=__doc__)
    parser.add_argument("attacks", nargs="*", help=f"of {', '.join(ATTACKS)}; all by default")
    parser.add_argument("--tries", type=int, help="how many of each; by default what the attack says")
    parser.add_argument("--first", type=int, default=0, help="the number of the first try")
    parser.add_argument("--folder", type=Path, default=Path("build/campaign"), help="where results are kept")
    parser.add_argument("--again", action="store_true", help="make tries again that found a fault")
    parser.add_argument("--figures", action="store_true", help="only show what was found so far")
    parser.add_argument("--worker", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # not without the process at work
    if options.worker is not None:
        work(options.attacks[0], options.worker, options.folder)
        return 0
    ledgers = []
    for name in options.attacks or ATTACKS:
        ledger = Ledger(options.folder / f"{name}.jsonl")
        if not options.figures:
            campaign(name, ledger, options.first, options.tries, options.again)
        print(ledger.summary(), flush=True)
        ledgers.append(ledger)
    return int(any(tried.fault for ledger in ledgers for tried in ledger.tries().values()))


def attack(name: str) -> Any:
    """The module of an attack."""
    return importlib.import_module(f"tools.campaign.{name}")


def campaign(name: str, ledger: Ledger, first: int, tries: int | None, again: bool) -> None:
    """Makes the tries that are not in the ledger yet."""
    wanted = range(first, first + (attack(name).TRIES if tries is None else tries))
    known = ledger.tries()
    left = [number for number in wanted if number not in known or (again and known[number].fault)]
    while left:
        chunk, left = left[:CHUNK], left[CHUNK:]
        while chunk:
            chunk = supervised(name, chunk, ledger)


def supervised(name: str, numbers: list[int], ledger: Ledger) -> list[int]:
    """Lets another process make these tries; what is left if it crashed or hung, which is a fault of that try."""
    begun = ledger.path.with_suffix(".now")
    begun.unlink(missing_ok=True)
    words = [sys.executable, "-m", "tools.campaign", name, "--folder", str(ledger.path.parent), "--worker"]
    process = subprocess.Popen([*words, *map(str, numbers)], stdin=subprocess.DEVNULL)
    limit = attack(name).SECONDS
    number, used, since, hung = "", 0.0, time.monotonic(), False
    try:
        while process.poll() is None:
            time.sleep(0.2)
            if begun.exists() and begun.read_text() != number:
                number, used, since = begun.read_text(), busy(process.pid), time.monotonic()
            # On a busy machine a try may have to wait for long; one that waits for nothing ends as well.
            if busy(process.pid) - used > limit or time.monotonic() - since > PATIENCE * limit:
                hung = True
                process.kill()
                process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:  # a try may take the exit for that of the verb it calls
                process.kill()
                process.wait()
    if process.returncode == 0:
        return []
    if not begun.exists():
        raise SystemExit(f"{name}: the process that makes the tries does not start (exit code {process.returncode})")
    culprit = int(begun.read_text() or numbers[0])
    what = f"no answer within {limit} s" if hung else f"the process died (exit code {process.returncode})"
    ledger.add(Try(culprit, "hang" if hung else "crash", what, limit if hung else 0.0))
    return numbers[numbers.index(culprit) + 1 :]


def busy(process: int) -> float:
    """The seconds that a process and the children it has waited for have computed; 0 where that cannot be known."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def work(name: str, numbers: list[int], folder: Path) -> None:
    """Makes tries in this process, each in a folder of its own that is removed afterwards."""
    ledger, module = Ledger(folder / f"{name}.jsonl"), attack(name)
    getattr(module, "prepare", lambda: None)()
    begun = ledger.path.with_suffix(".now")
    for number in numbers:
        begun.write_text(str(number))
        ledger.add(tried(module, number))


def tried(module: Any, number: int) -> Try:
    """One try of an attack, in a folder that exists while it lasts."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bedl-campaign-", dir=shelf()) as place:
        try:
            outcome, fault = module.attempt(number, Path(place)), ""
        except Fault as error:
            outcome, fault = "fault", str(error)
        except Exception as error:
            outcome, fault = "fault", f"{type(error).__name__}: {error}\n{traceback.format_exc(limit=-8)}"
    return Try(number, outcome, fault, round(time.monotonic() - started, 3))


def shelf() -> str | None:
    """Memory, if there is such a folder: thousands of small files need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    sys.exit(main())
