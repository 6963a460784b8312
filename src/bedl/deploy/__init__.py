"""Out of Python: a trained model as one ONNX graph or `torch.export` program, and a runtime that needs no PyTorch.

`bedl.deploy.runtime` imports NumPy and onnxruntime only; what needs PyTorch is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bedl.deploy.export_report import ExportReport
    from bedl.deploy.exportable import Exportable, ExportOptions
    from bedl.deploy.onnx import export
    from bedl.deploy.program import export_program
    from bedl.deploy.runtime import OnnxModel
    from bedl.deploy.schema import ExportError, ModelFileError

__all__ = [
    # writing
    "Exportable",
    "ExportOptions",
    "ExportReport",
    "export",
    "export_program",
    # running
    "OnnxModel",
    # errors
    "ExportError",
    "ModelFileError",
]

_HOMES = {
    "export_report": "ExportReport",
    "exportable": "ExportOptions Exportable",
    "onnx": "export",
    "program": "export_program",
    "runtime": "OnnxModel",
    "schema": "ExportError ModelFileError",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'bedl.deploy' has no attribute {name!r}")
    return getattr(import_module(f"bedl.deploy.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
