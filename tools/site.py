"""The hooks of mkdocs.yml: generated pages, formulas as MathML, links into the repository.

The reference has a page for each package, and what each public name says; the tables of operations and of results are
there already (`make docs`). Nothing that is made here is kept in git.
"""

from __future__ import annotations

import html
import inspect
import posixpath
import re
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "bedl": "The names of `import bedl`",
    "estimators": "Scikit-learn's interface",
    "tabular": "Tables as they are",
    "nn": "Layers and conversion",
    "moments": "Moments",
    "heads": "Likelihoods",
    "predictive": "Predictive distributions",
    "objectives": "Losses and regularisers",
    "methods": "Methods",
    "training": "Training",
    "data": "Reading tables",
    "metrics": "Metrics",
    "tasks": "Tasks",
    "report": "Reports",
    "deploy": "ONNX and a runtime without PyTorch",
}
INTEGRATIONS = ("serve", "botorch", "skpro", "mlflow")
OPTIONS = "    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the reference."""
    from mkdocs.structure.files import File

    for name, text in reference().items():
        files.append(File.generated(config, name, content=text))
    return files


def reference() -> dict[str, str]:
    """Pages by their path: every public name once, in the package that it belongs to."""
    modules = {name: import_module("bedl") if name == "bedl" else _module(name) for name in PACKAGES}
    homes: dict[int, str] = {}
    for name in [*list(PACKAGES)[1:], "bedl"]:
        for public in modules[name].__all__:
            homes.setdefault(id(getattr(modules[name], public)), name)
    pages = {}
    for name, title in PACKAGES.items():
        full = "bedl" if name == "bedl" else f"bedl.{name}"
        values = {public: getattr(modules[name], public) for public in modules[name].__all__}
        lines = [f"# {full}", "", f"{title}.", ""]
        for public, value in values.items():
            if homes[id(value)] != name:
                lines.append(f"- [`{full}.{public}`]({homes[id(value)]}.md#{_anchor(value) or public.lower()})")
        for public, value in values.items():
            if homes[id(value)] == name:
                lines += ["", *_entry(f"{full}.{public}", value)]
        pages[f"reference/{name}.md"] = "\n".join(lines) + "\n"
    for name in INTEGRATIONS:
        lines = [f"# bedl.deploy.{name}", "", f"::: bedl.deploy.{name}", OPTIONS]
        pages[f"reference/{name}.md"] = "\n".join(lines)
    return pages


def _module(name: str) -> Any:
    return getattr(import_module("bedl"), name)


def _anchor(value: Any) -> str | None:
    """Where mkdocstrings describes a class or a function; None for other values."""
    if not inspect.isclass(value) and not inspect.isroutine(value):
        return None
    return f"{value.__module__}.{value.__qualname__}"


def _entry(name: str, value: Any) -> list[str]:
    anchor = _anchor(value)
    if anchor is None:
        about = "" if type(value).__module__ == "builtins" else inspect.getdoc(value) or ""
        return [f"## `{name}` {{#{name.rpartition('.')[2].lower()}}}", "", about or f"A {type(value).__name__}."]
    options = "    options: {show_root_heading: true, heading_level: 2, heading: %s, toc_label: %s}"
    return [f"::: {anchor}", options % (name, name.rpartition(".")[2])]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links to files beside docs/ lead to the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def moved(match: re.Match[str]) -> str:
        target, _, fragment = match[1].partition("#")
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        inside = posixpath.normpath(posixpath.join("docs", folder, target))
        if inside.startswith("docs/") or inside == "docs":
            return match[0]
        if not (ROOT / inside).exists():
            return match[0]
        kind = "tree" if (ROOT / inside).is_dir() else "blob"
        return f"]({config.extra['repository']}/{kind}/main/{inside}{'#' + fragment if fragment else ''})"

    return re.sub(r"\]\(([^)\s]+)\)", moved, markdown)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulas as MathML, which browsers show without scripts."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        text = html.unescape(match[2]).strip()
        return convert(text[2:-2], display="block" if text.startswith("\\[") else "inline")

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', formula, content, flags=re.DOTALL)
