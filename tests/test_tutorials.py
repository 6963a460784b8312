"""The notebooks of the documentation run from top to bottom."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    scope: dict[str, object] = {"__name__": path.stem}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{path.name}, code cell {number}", "exec"), scope)
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 4
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    for cell in code:
        ast.parse("".join(cell["source"]))
