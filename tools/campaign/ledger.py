"""What came of each try: a file of JSON lines, of which the last one about a try counts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Fault", "Ledger", "Try"]


class Fault(AssertionError):
    """Something did not hold; the message says what."""


@dataclass(frozen=True)
class Try:
    """One try.

    Attributes:
        number: which one.
        outcome: what came of it, in a word.
        fault: what did not hold; empty if all did.
        seconds: how long it took.
    """

    number: int
    outcome: str
    fault: str = ""
    seconds: float = 0.0


class Ledger:
    """The tries of one attack.

    Args:
        path: the file; it may exist.
    """

    def __init__(self, path: Path):
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, tried: Try) -> None:
        """One more line."""
        with self.path.open("a") as file:
            file.write(json.dumps(asdict(tried)) + "\n")

    def tries(self) -> dict[int, Try]:
        """The last word on each try; a line that a kill cut short is none."""
        found: dict[int, Try] = {}
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                tried = Try(**json.loads(line))
            except (ValueError, TypeError):
                continue
            found[tried.number] = tried
        return found

    def summary(self) -> str:
        """The figures, and the first faults."""
        tries = self.tries().values()
        faults = [tried for tried in tries if tried.fault]
        outcomes = Counter(tried.outcome for tried in tries if not tried.fault)
        shown = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
        lines = [f"{self.path.stem}: {len(tries)} tries, {len(tries) - len(faults)} held ({shown})"]
        lines += [f"  try {tried.number}: {tried.fault.splitlines()[0][:200]}" for tried in faults[:20]]
        return "\n".join(lines)
