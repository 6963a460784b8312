"""`python -m tests.lock` records refits and public names; `python -m tests.lock api` the names alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.lock import api, refits

REFITS, API = Path(__file__).parent / "refits.json", Path(__file__).parent / "api.json"


def record(what: list[str]) -> None:
    """Write what refits predict, and which public names there are, beside this file."""
    if not what or "refits" in what:
        # eight digits: more than the tolerance asks for
        numbers = {name: fit().astype(float).round(8).tolist() for name, fit in refits.refits().items()}
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(numbers.items()))
        REFITS.write_text(f"{{\n{lines}\n}}\n")
    if not what or "api" in what:
        API.write_text(json.dumps(api.snapshot(), indent=0, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    record(sys.argv[1:])
