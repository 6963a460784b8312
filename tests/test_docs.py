"""The documentation is true: its code runs, its links lead somewhere, its generated pages are those of this tree."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from runpy import run_path

import pytest
from tools.operations import page as operations_page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDES = sorted((DOCS / "guides").glob("*.md"))
NEEDS = {"conformal": "mapie", "lightning_module": "pytorch_lightning", "geometric": "torch_geometric",
         "serving": "fastapi", "other_libraries": "botorch"}  # fmt: skip
REFERENCE = ("lightning_module", "geometric")  # with libraries of the `reference` extra
PAGES = [*sorted(DOCS.glob("*.md")), *GUIDES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.reference] if path.stem in REFERENCE else []) for path in GUIDES],
    ids=names(GUIDES),
)
def test_the_code_of_a_guide_runs(path: Path) -> None:
    pytest.importorskip("sklearn")
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem])
    run_code_of(path)


@pytest.mark.slow
def test_the_code_of_the_readme_runs_and_prints_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    run_code_of(ROOT / "README.md")
    shown = re.search(r"^```text\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert shown
    head, *rows = shown[1].splitlines()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == head.split()
    for row, found in zip(rows, printed[1:]):  # noqa: B905
        for a, b in zip(row.split(), found.split(), strict=True):
            assert abs(float(a) - float(b)) <= max(2, 0.1 * float(a)), f"README shows {row!r}, it prints {found!r}"


def run_code_of(path: Path) -> None:
    """Run all Python blocks of a page in one scope."""
    text = path.read_text("utf-8")
    blocks = list(re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    assert blocks
    scope: dict[str, object] = {"__name__": path.stem}
    for block in blocks:
        lines_before = text.count("\n", 0, block.start(1))  # so that a traceback names the line of the page
        exec(compile("\n" * lines_before + block[1], str(path), "exec"), scope)


@pytest.mark.parametrize("path", PAGES, ids=names(PAGES))
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
        if not target.startswith(("http:", "https:", "#")):
            assert (path.parent / target.split("#")[0]).exists(), f"{path.name} links to {target}"


def test_every_guide_is_in_the_index_and_has_its_script() -> None:
    index = (DOCS / "README.md").read_text("utf-8")
    for path in GUIDES:
        assert f"(guides/{path.name})" in index
        assert f"(../../examples/{path.stem}.py)" in path.read_text("utf-8")
    assert {path.stem for path in GUIDES} == {path.stem for path in (ROOT / "examples").glob("*.py")}


def test_the_page_of_operations_is_up_to_date() -> None:
    assert (DOCS / "operations.md").read_text("utf-8") == operations_page(), "run `make docs`"


def test_the_tables_are_those_of_the_rows() -> None:
    page = run_path(str(ROOT / "tools" / "bench_tables.py"))["page"]()
    assert (DOCS / "tables.md").read_text("utf-8") == page, "run `make docs`"


def packages_of_the_map(text: str) -> list[str]:
    """Names in the column `package` or `packages` of the table that has one."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    heads = [(number, row) for number, row in enumerate(rows) if {"package", "packages"} & set(row)]
    assert len(heads) == 1, "one table of packages"
    start, head = heads[0]
    column = next(place for place, cell in enumerate(head) if cell in ("package", "packages"))
    same = itertools.takewhile(lambda row: len(row) == len(head), rows[start + 2 :])
    return [name for row in same for name in re.findall(r"`(\w+)/?`", row[column])]


@pytest.mark.parametrize("path", [DOCS / "design.md", ROOT / "CONTRIBUTING.md"], ids=lambda path: path.name)
def test_the_map_lists_the_packages_that_exist(path: Path) -> None:
    source = ROOT / "src" / "bedl"
    packages = {module.stem for module in source.glob("[a-z]*.py")}
    packages |= {init.parent.name for init in source.glob("*/__init__.py")}
    listed = packages_of_the_map(path.read_text("utf-8"))
    assert not packages - set(listed), f"the table of packages in {path.name} lacks {sorted(packages - set(listed))}"
    planned = set(re.findall(r"\((\w+)\)", (ROOT / "pyproject.toml").read_text("utf-8")))  # may be missing, it says
    gone = set(listed) - packages - planned
    assert not gone, f"the table of packages in {path.name} lists {sorted(gone)}, of which there is nothing in src/bedl"
    assert len(listed) == len(set(listed)), f"{path.name} lists a package twice: {sorted(listed)}"
