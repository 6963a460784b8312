"""The python blocks of CONTRIBUTING.md, and what it takes to run them as if they stood where they belong.

The first line of a block names its file. Lines for a module that exists run in its namespace, and what they define
becomes part of it; a file that does not exist becomes a module of that name; indented lines are rows of a table.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"


@dataclass(frozen=True)
class Block:
    section: str
    code: str
    line: int  # of the page

    @property
    def file(self) -> str:
        first = self.code.split("\n", 1)[0]
        found = re.fullmatch(r"# ((?:src/bedl|tests)/[\w/]+\.py)", first)
        assert found, f"CONTRIBUTING.md, line {self.line}: name the file, as in '# src/bedl/errors.py', above {first!r}"
        return found[1]

    @property
    def module(self) -> str:
        return self.file.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def is_table(self) -> bool:
        return all(line.startswith((" ", "#")) for line in self.code.splitlines() if line)


def blocks(page: Path = PAGE) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            section=re.findall(r"^## (.*)$", text[: found.start()], re.MULTILINE)[-1],
            code=found[1],
            line=text.count("\n", 0, found.start(1)) + 1,
        )
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    ]


def follow(section: str, patch: pytest.MonkeyPatch) -> list[ModuleType | Collection]:
    """Run the blocks of a section in turn: for each, its module or the rows of its table. `patch` takes all back."""
    return [_run(block, patch) for block in blocks() if block.section == section]


def _run(block: Block, patch: pytest.MonkeyPatch) -> ModuleType | Collection:
    exists = (PAGE.parent / block.file).exists()
    module = import_module(block.module) if exists else ModuleType(block.module)
    scope: dict[str, Any] = dict(vars(module))
    above = "\n" * (block.line - 1)  # so that a traceback names the line of the page
    if block.is_table:
        assert exists, f"CONTRIBUTING.md, line {block.line}: there is no table in {block.file}"
        rows = block.code.split("\n", 1)[1]
        return eval(compile(f"{above}{{\n{rows}}}", str(PAGE), "eval", dont_inherit=True), scope)
    if not exists:
        patch.setitem(sys.modules, block.module, module)
    exec(compile(above + block.code, str(PAGE), "exec", dont_inherit=True), scope)
    for name, value in scope.items():
        if name != "__builtins__" and vars(module).get(name) is not value:
            patch.setattr(module, name, value, raising=False)
    return module
