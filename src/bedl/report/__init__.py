"""Predictions as one page to look at: offline, light and dark, on a phone, by keyboard.

    bedl.report.write_report(RegressionResults(...), "report.html")

A report sees rows and predictions, never networks. What it shows of a task is a module in `bedl.report.pages`.
"""

from bedl.report.page import render, write_report
from bedl.tasks import Examples, Maps, Meaning, ResultsError, concatenate, map_results, meanings, score
from bedl.tasks.classification import ClassificationResults
from bedl.tasks.regression import RegressionResults

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
