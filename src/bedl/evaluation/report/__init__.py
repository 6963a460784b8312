"""Predictions as one page to look at: offline, light and dark, on a phone, by keyboard.

    bedl.report.write_report(RegressionResults(...), "report.html")

A report sees rows and predictions, never networks. What it shows of a task is a module of `pages`.
"""

from bedl.evaluation.report.page import render, write_report
from bedl.evaluation.tasks import Examples, Maps, Meaning, ResultsError, concatenate, map_results, meanings, score
from bedl.evaluation.tasks.classification import ClassificationResults
from bedl.evaluation.tasks.regression import RegressionResults

__all__ = [
    # what to show
    "ClassificationResults",
    "Examples",
    "Maps",
    "RegressionResults",
    "concatenate",
    "map_results",
    # the page
    "render",
    "write_report",
    # its headline numbers
    "Meaning",
    "meanings",
    "score",
    # errors
    "ResultsError",
]
