"""Models in MLflow's pyfunc format. What is stored is the model folder or the ONNX file: nothing is pickled."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from bedl.estimators.tabular import TabularModel, load

__all__ = ["PyfuncModel", "save_model"]


class PyfuncModel:
    """What MLflow calls to predict.

    Args:
        model: of `bedl.tabular.load`.
    """

    def __init__(self, model: TabularModel):
        self.model = model

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """The predictions of a data frame; `params` are further arguments of `TabularModel.predict`."""
        return self.model.predict(model_input, **(params or {}))


def _load_pyfunc(path: str) -> PyfuncModel:
    """What MLflow calls to load: `path` is the stored folder or file."""
    return PyfuncModel(load(path))


def save_model(path: str | PathLike[str], model: str | PathLike[str], **options: Any) -> None:
    """Write an MLflow model; `mlflow.pyfunc.load_model(path)` reads it, as do MLflow's server and its registry.

    Args:
        path: the folder to write.
        model: a folder of `bedl fit` or `TabularModel.save`, or an .onnx file of `bedl export`.
        options: further ones of `mlflow.pyfunc.save_model`, such as ``signature`` or ``pip_requirements``.

    Example:
        >>> save_model("model-for-mlflow", "houses-model")  # doctest: +SKIP
    """
    from mlflow import pyfunc

    load(model)  # an error here, not when it is served
    requirements = ["bedl[export]"] if Path(model).suffix == ".onnx" else ["bedl[sklearn]", "pyarrow"]
    given = {"pip_requirements": requirements, **options}
    pyfunc.save_model(path=str(path), loader_module="bedl.deploy.mlflow", data_path=str(model), **given)
