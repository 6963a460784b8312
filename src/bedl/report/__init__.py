"""Predictions as one page to look at: offline, light and dark, on a phone, by keyboard.

    bedl.report.write_report(RegressionResults(...), "report.html")

A report sees rows and predictions, never networks.
"""

from bedl.report.examples import Examples, ReportError
from bedl.report.page import ReportExistsError, render, write_report
from bedl.report.results import ClassificationResults, RegressionResults, concatenate
from bedl.report.scores import MEANINGS, Meaning, score

__all__ = [
    # what to show
    "ClassificationResults",
    "Examples",
    "RegressionResults",
    "concatenate",
    # the page
    "render",
    "write_report",
    # its headline numbers
    "MEANINGS",
    "Meaning",
    "score",
    # errors
    "ReportError",
    "ReportExistsError",
]
