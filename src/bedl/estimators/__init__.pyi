"""The names of bedl.estimators and where each comes from; bedl._utils.imports reads them, too."""

from bedl.estimators.classifier import BEDLClassifier as BEDLClassifier
from bedl.estimators.regressor import BEDLRegressor as BEDLRegressor
from bedl._utils.errors import ModelFileError as ModelFileError
from bedl.estimators.storage import load as load

# tables
from bedl.estimators import tabular as tabular
