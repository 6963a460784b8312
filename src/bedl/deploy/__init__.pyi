"""The names of bedl.deploy and where each comes from; bedl._lazy reads them, too."""

# writing
from bedl.deploy.exportable import Exportable as Exportable
from bedl.deploy.exportable import ExportOptions as ExportOptions
from bedl.deploy.export_report import ExportReport as ExportReport
from bedl.deploy.onnx import export as export
from bedl.deploy.program import export_program as export_program

# running
from bedl.deploy.runtime import OnnxModel as OnnxModel

# errors
from bedl.deploy.schema import ExportError as ExportError
from bedl.deploy.schema import ModelFileError as ModelFileError
