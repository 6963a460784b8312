"""The lowest versions that pyproject.toml declares, as constraints for pip: `python tools/lowest.py > lowest.txt`.

`make test-lowest` installs them and runs the tests: a bound that does not hold is raised.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import tomllib

EXTRAS = ("train", "sklearn", "cli", "export", "data", "excel", "dask", "gp")


def lowest(project: dict) -> dict[str, str]:
    """Name and lowest version of what bedl itself needs, its extras included.

    >>> lowest({"dependencies": ["numpy>=1.26"], "optional-dependencies": {"cli": ["rich>=13.7"], "test": ["x>=1"]}})
    {'numpy': '1.26', 'rich': '13.7'}
    """
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for name in EXTRAS for line in extras.get(name, ()))]
    return dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", line).groups() for line in wanted)  # type: ignore[union-attr]


if __name__ == "__main__":
    declared = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    for name, version in lowest(declared).items():
        sys.stdout.write(f"{name}=={version}.*\n" if version.count(".") < 2 else f"{name}=={version}\n")
