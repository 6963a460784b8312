"""The names of bedl.deploy and where each comes from; bedl._utils.imports reads them, too."""

# writing
from bedl.deploy.prepare import Exportable as Exportable
from bedl.deploy.prepare import ExportOptions as ExportOptions
from bedl.deploy.schema import ExportReport as ExportReport
from bedl.deploy.onnx import export as export
from bedl.deploy.onnx import export_program as export_program

# running
from bedl.deploy.runtime import OnnxModel as OnnxModel

# errors
from bedl.deploy.schema import ExportError as ExportError
from bedl._utils.errors import ModelFileError as ModelFileError
