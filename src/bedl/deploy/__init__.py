"""Out of Python: a trained model as one ONNX graph or `torch.export` program, and a runtime that needs no PyTorch.

`bedl.deploy.runtime` imports NumPy and onnxruntime only; what needs PyTorch is imported when it is first used. The
names are listed in `__init__.pyi`. A model in other libraries is a module each, which needs its extra:

| module | gives | extra |
| --- | --- | --- |
| `bedl.deploy.serve` | an HTTP service, also `bedl serve` | `serve` |
| `bedl.deploy.botorch` | a BoTorch `Model` for Bayesian optimisation | `botorch` |
| `bedl.deploy.skpro` | a skpro `BaseProbaRegressor` | `skpro` |
| `bedl.deploy.mlflow` | models in MLflow's pyfunc format, without pickle | `mlflow` |
"""

from bedl._utils.imports import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__)
