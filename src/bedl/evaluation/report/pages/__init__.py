"""The pages of the tasks, one module each: `bedl.evaluation.report.pages.<task>` has a value `PAGE`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from bedl.evaluation.report.layout import Verdict
from bedl.evaluation.tasks import ResultsError

__all__ = ["Page", "page_of"]


@dataclass(frozen=True)
class Page:
    """What a page shows of a task's record.

    Attributes:
        sections: record and scores → the plots and tables, HTML, in order.
        notes: record → sentences on what the numbers are.
        observed: what the targets are called.
        needing_targets: what cannot be computed without targets.
        facts: record → further (name, value) pairs for the head of the page.
        drawn: what to add to the sentence on how many points are drawn.
        verdict: record and scores → sentences for the top of the page.
        hits: what the share of `Results.hits` is called.
        baseline: what the baselines beside the scores are, see `Task.baseline`.
    """

    sections: Callable[[Any, dict[str, float]], list[str]]
    notes: Callable[[Any], list[str]]
    observed: str
    needing_targets: str
    facts: Callable[[Any], list[tuple[str, str]]] = lambda results: []
    drawn: str = ""
    verdict: Callable[[Any, dict[str, float]], list[Verdict]] = lambda results, scores: []
    baseline: str = ""
    hits: str = "coverage"


def page_of(task: str) -> Page:
    """The page of a task, by the task's name.

    Example:
        >>> page_of("classification").observed
        'labels'
    """
    found = sorted(module.name for module in iter_modules(__path__))
    if task not in found:
        raise ResultsError(f"there is no page for the task {task!r}; there are pages for {', '.join(found)}")
    return import_module(f"{__name__}.{task}").PAGE
