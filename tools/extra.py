"""`python tools/extra.py EXTRA` prints the requirements of an extra of pyproject.toml, for pip."""

from __future__ import annotations

import sys
from pathlib import Path

import tomllib

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
print(" ".join(requirement.replace(" ", "") for requirement in project["optional-dependencies"][sys.argv[1]]))
