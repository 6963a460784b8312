"""Tasks by their names: each is a module of this package."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import bedl.tasks
from bedl.tasks._base import Task, UnknownTaskError
from bedl.tasks._scores import Meaning

__all__ = ["automatic", "get", "meanings", "names"]


def names() -> list[str]:
    """The names of all tasks.

    Example:
        >>> {"classification", "regression"} <= set(names())
        True
    """
    return sorted(found.name for found in iter_modules(bedl.tasks.__path__) if not found.name.startswith("_"))


def get(name: str) -> Task:
    """The task of that name; an unknown one is an error that lists those there are.

    Example:
        >>> list(get("regression").outputs)
        ['mean', 'std', 'aleatoric', 'epistemic', 'data', 'distributional', 'model', 'spread']
    """
    return _get(name) if isinstance(name, str) else _refuse(name)


@cache
def _get(name: str) -> Task:
    return import_module(f"bedl.tasks.{name}").TASK if name in names() else _refuse(name)


def _refuse(name: object) -> Task:
    raise UnknownTaskError(f"there is no task {name!r}; there are {', '.join(names())}")


def automatic(column: str) -> Task:
    """The task that is meant when nobody says: by what a target column holds, see `Task.column`.

    Example:
        >>> automatic("class").name
        'classification'
    """
    for name in names():
        task = get(name)
        if task.automatic and task.column == column:
            return task
    raise UnknownTaskError(f"no task takes {column} targets by itself; name one of {', '.join(names())}")


def meanings() -> dict[str, Meaning]:
    """What the scores of all tasks mean, by their names.

    Example:
        >>> meanings()["rmse"].label
        'RMSE'
    """
    return {score: meaning for name in names() for score, meaning in get(name).meanings.items()}
