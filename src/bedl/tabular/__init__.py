"""From a table to a model that takes tables: files, or data frames, with categories, dates and missing values.

    model = bedl.tabular.fit("houses.csv", target="price", out="houses-model")
    model.predict("new.csv")                  # a frame; with out="predictions.csv", a file
    model.evaluate("test.csv")                # scores
    model.report("test.csv", "report.html")   # a page to look at
    bedl.tabular.load("houses-model")
    bedl.tabular.compare("houses.csv", target="price")   # which method?

Tables are read in batches, and may be larger than memory. The command line `bedl` is this room in words.
"""

from bedl.tabular.comparing import compare
from bedl.tabular.comparison import Comparison
from bedl.tabular.folder import ModelCard
from bedl.tabular.learn import fit
from bedl.tabular.model import TabularModel, WrittenTable, load
from bedl.tabular.watcher import Watcher

__all__ = [
    "fit",
    "load",
    "TabularModel",
    # which method
    "compare",
    "Comparison",
    # what is known of a model, and who looks on
    "ModelCard",
    "Watcher",
    "WrittenTable",
]
