"""What can be predicted, one module each: numbers, classes, … A task says once what its predictions are called.

    task = bedl.tasks.get("regression")
    task.outputs             # what models and ONNX files give, by name and unit
    task.columns(outputs)    # the same as the columns of a table
    task.results(outputs)    # the same as a record to be scored and shown
    task.scores(record)

A task is a module of this package whose name does not begin with an underscore, and in it a value `TASK`: to add one is
to add a file. No torch in here, and no model.
"""

from __future__ import annotations

from bedl.evaluation.tasks._base import (
    LabelScores,
    Meaning,
    Output,
    Quantities,
    Task,
    UnknownTaskError,
    automatic,
    get,
    held_out_factors,
    label_scores,
    meanings,
    names,
    prediction_sets,
    score,
    set_threshold,
    set_thresholds_by_class,
    signed_scores,
    widest,
    with_intervals,
)
from bedl.evaluation.tasks._maps import Maps, map_results
from bedl.evaluation.tasks._results import ColumnSummary, Examples, Results, ResultsError, Slice, concatenate

__all__ = [
    # what there is
    "automatic",
    "get",
    "names",
    # what a task is
    "Output",
    "Quantities",
    "Task",
    # sets of classes
    "LabelScores",
    "label_scores",
    "prediction_sets",
    "set_threshold",
    "set_thresholds_by_class",
    # records of predictions, and their scores
    "ColumnSummary",
    "Examples",
    "Maps",
    "Meaning",
    "Results",
    "Slice",
    "concatenate",
    "held_out_factors",
    "map_results",
    "meanings",
    "score",
    "signed_scores",
    "widest",
    "with_intervals",
    # errors
    "ResultsError",
    "UnknownTaskError",
]
