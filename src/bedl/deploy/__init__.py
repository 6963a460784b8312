"""Out of Python: a trained model as one ONNX graph or `torch.export` program, and a runtime that needs no PyTorch.

`bedl.deploy.runtime` imports NumPy and onnxruntime only; what needs PyTorch is imported when it is first used. The
names are listed in `__init__.pyi`.
"""

from bedl._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
