"""From a table to a model that takes tables: files, or data frames, with categories, dates and missing values.

    model = bedl.tabular.fit("houses.csv", target="price", out="houses-model")
    model.predict("new.csv")                  # a frame; with out="predictions.csv", a file
    model.evaluate("test.csv")                # scores
    model.report("test.csv", "report.html")   # a page to look at
    bedl.tabular.load("houses-model")
    bedl.tabular.compare("houses.csv", target="price")   # which method?

Tables are read in batches, and may be larger than memory. The command line `bedl` is this room in words.
"""

from bedl.estimators.tabular.comparison import Comparison, compare
from bedl.estimators.tabular.fitting import fit
from bedl.estimators.tabular.folder import ModelCard
from bedl.estimators.tabular.model import TableCallback, TabularModel, WrittenTable, load

__all__ = [
    "fit",
    "load",
    "TabularModel",
    # which method
    "compare",
    "Comparison",
    # what is known of a model, and who looks on
    "ModelCard",
    "TableCallback",
    "WrittenTable",
]
