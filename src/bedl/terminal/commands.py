"""Commands as a person would type them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

__all__ = ["fit_command", "stem"]


def stem(data: str) -> str:
    """The name of a table without folders and endings: `a/houses.csv.gz` → `houses`, `uci:yacht` → `uci-yacht`."""
    name = re.sub(r"\.(csv|tsv|parquet|pq|xlsx)(\.gz|:.*)?$", "", Path(data).name, flags=re.IGNORECASE)
    return "table" if data == "-" else name.replace(":", "-")


def fit_command(data: str, place: Path, options: dict[str, Any]) -> str:
    """The command line `bedl fit …` that asks for these options."""
    defaults = {
        "task": "auto",
        "method": "auto",
        "holdout": 0.1,
        "ensemble": 1,
        "seed": 0,
        "decimal": "auto",
    }
    words = ["bedl", "fit", data, "--out", str(place)]
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False or value == defaults.get(name):
            continue
        if name == "hidden":
            words += [option, ",".join(map(str, value))]
        elif isinstance(value, (list, tuple)):
            words += [word for item in value for word in (option, item)]
        else:
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)
