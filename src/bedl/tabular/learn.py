"""Learning from a table, from beginning to end."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from bedl import tasks
from bedl.data import DataError, Table, open_table
from bedl.data.errors import listed
from bedl.tabular.encoded import FEWEST
from bedl.tabular.engines import EstimatorEngine
from bedl.tabular.model import TabularModel
from bedl.tabular.place import actual, locked
from bedl.tabular.rows import scores_of_encoded
from bedl.tabular.run import FitRun, FitSettings
from bedl.tabular.watcher import Watcher

__all__ = ["fit"]


def fit(
    data: Any,
    target: str | Sequence[str] | None = None,
    out: str | PathLike[str] | None = None,
    *,
    task: str = "auto",
    likelihood: str | None = None,
    method: str = "auto",
    ignore: Sequence[str] = (),
    categorical: Sequence[str] = (),
    decimal: str = "auto",
    drop_missing_target: bool = False,
    holdout: float = 0.1,
    epochs: int | None = None,
    ensemble: int = 1,
    hidden: Sequence[int] | None = None,
    class_weight: str | None = None,
    seed: int = 0,
    device: str = "auto",
    encoding: str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    root: str | PathLike[str] | None = None,
    watcher: Watcher | None = None,
) -> TabularModel:
    """Learn from a table. Categories, dates and missing values are taken care of; `model.card.notes` say how.

    Args:
        data: a path (.csv, .tsv, both also .gz, .parquet, .xlsx), "-" for standard input, a name such as
            "digits:train", or a data frame (pandas, polars, Arrow). Files are read in batches, and may be larger than
            memory.
        target: the column to predict; several columns of 0 and 1, yes and no, true and false are predicted together.
            Data sets that go by a name have one of their own.
        out: a folder for the model. While it learns, checkpoints are in `<out>.partial`, and a fit that was
            interrupted goes on from there. Without it the model is in memory only, until it is saved.
        task: the name of a task of `bedl.tasks`, or "auto": text, booleans and few distinct whole numbers are classes.
        likelihood: the distribution of a target of numbers: "normal", or "count" for whole numbers from 0 on.
        method: the name of the method to train, see `bedl.methods.registry`.
        ignore: columns to leave out.
        categorical: columns whose values are labels, even if they look like numbers.
        decimal: "." or ",", the mark before the decimals of numbers in text; "auto" finds out, or asks.
        drop_missing_target: whether to leave out rows without a target, instead of an error.
        holdout: share of the rows that are kept aside and scored at the end.
        epochs: how often each row is seen at most; None: from the number of rows.
        ensemble: how many networks are trained and mixed.
        hidden: widths of the hidden layers; None: as the method has it.
        class_weight: "balanced": rows of rare classes count more, so that all classes count the same. Probabilities
            are then those of a world in which the classes are equally frequent.
        seed: the seed of all random choices.
        device: "auto", "cpu", "cuda", …
        encoding: of a text file; UTF-8 by default.
        resume: whether to go on with a fit that was interrupted.
        overwrite: whether to replace a model at `out`, and start anew where a fit was interrupted.
        root: where data sets that go by a name are; $BEDL_DATA, else ~/.cache/bedl, by default.
        watcher: who looks on.

    Example:
        >>> import numpy as np, pandas
        >>> x = np.linspace(-1, 1, 100)
        >>> frame = pandas.DataFrame({"size": x, "colour": ["red", "blue"] * 50, "price": 20 + 5 * x})
        >>> model = fit(frame, target="price", epochs=5, device="cpu")
        >>> list(model.predict(frame[:2]))[:6]
        ['prediction', 'std', 'lower', 'upper', 'aleatoric_std', 'epistemic_std']
    """
    from bedl.methods import registry

    registry.get(method)  # a name that is none is refused before the work
    if class_weight not in (None, "balanced"):
        raise DataError(f"class_weight is None or 'balanced', not {class_weight!r}")
    table = open_table(data, root, encoding)
    settings = FitSettings(
        table.name, _target(table, target), _task(task, likelihood), tuple(ignore), tuple(categorical),
        drop_missing_target, holdout, epochs, ensemble, hidden if hidden is None else tuple(hidden), seed, method,
        decimal, class_weight,
    )  # fmt: skip
    watcher = watcher or Watcher()
    with _place(out) as place, locked(place):
        run = FitRun(table, settings, place, overwrite=overwrite, resume=resume)
        return _learned(run, device, watcher, str(table.name if out is None else out))


def _learned(run: FitRun, device: str, watcher: Watcher, name: str) -> TabularModel:
    with watcher.bar("reading", None) as advance:
        encoder = run.decide(advance)
    watcher.on_columns(encoder)
    with watcher.bar("encoding", run.table.n_rows) as advance:
        rows = run.encode(advance)
    watcher.on_rows(encoder, rows.counts)
    estimator = run.train(rows, device, watcher.callbacks)
    watcher.on_trained(estimator.chosen_)
    model = TabularModel(name, encoder, EstimatorEngine(estimator, encoder.task))
    scores: dict[str, float] = {}
    notes = []
    if rows.held_x is not None and rows.held_y is not None:
        try:
            scores = scores_of_encoded(model, rows.held_x, rows.held_y)
        except Exception as error:  # whatever it is: what was learned is not thrown away for its scores
            notes = [f"the rows held out could not be scored ({type(error).__name__}: {error})"]
            warnings.warn(f"{notes[0]}; the model is kept", stacklevel=3)
    elif run.settings.holdout > 0:
        notes = [
            f"no row was held out of {len(rows.x)}, so there are no scores: score the model on rows that it has not "
            f"seen, or give more than {FEWEST} rows"
        ]
        warnings.warn(notes[0], stacklevel=3)
    model.card = run.finish(estimator, rows, scores, notes)
    return model


@contextmanager
def _place(out: str | PathLike[str] | None) -> Iterator[Path]:
    if out is not None:
        yield actual(Path(out))
        return
    with tempfile.TemporaryDirectory(prefix="bedl-") as folder:
        yield Path(folder, "model")


def _target(table: Table, target: str | Sequence[str] | None) -> str | tuple[str, ...]:
    """The target column, or several; the table's own if none is named."""
    if target is None or not len(target):
        if table.default_target is None:
            raise DataError(f"which column is to be predicted? {table.name} has {listed(table.columns, 20)}")
        return table.default_target
    if isinstance(target, str):
        return target
    return target[0] if len(target) == 1 else tuple(target)


def _task(task: str, likelihood: str | None) -> str:
    """The task that a likelihood asks for."""
    if likelihood is None:
        return task
    wanted = tasks.automatic("number").name if likelihood == "normal" else tasks.get(likelihood).name
    if task not in ("auto", wanted):
        raise DataError(f"the likelihood {likelihood!r} is for the task {wanted}, not {task}. Leave one of them out")
    return wanted
