"""Models that take raw tables: a folder made by `bedl fit`, or an ONNX file, which needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bedl import tasks
from bedl.cli.model_folder import WEIGHTS, ModelFolderError, partial_of, read_card
from bedl.data import TableEncoder
from bedl.deploy.runtime import OnnxModel
from bedl.deploy.schema import ModelFileError
from bedl.tasks import Quantities

__all__ = ["EstimatorModel", "OnnxTableModel", "TableModel", "open_model"]


class TableModel(Protocol):
    """A trained model and how to read a table for it."""

    name: str
    encoder: TableEncoder

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        """What is predicted for encoded rows, by name.

        Args:
            x: the encoded rows. shape: (n, features)
            coverage: share of the targets that intervals are to hold.
            y: their targets, marked where not known, if `log_density` and `cdf` are wanted. shape: (n, *targets)
        """


def open_model(path: Path) -> TableModel:
    """The model at a path, whatever it is."""
    if path.is_dir():
        return EstimatorModel.of_folder(path)
    if not path.exists():
        if partial_of(path).is_dir():
            raise ModelFolderError(
                f"{path} is not complete: its fit was interrupted. Go on with it: bedl fit … --resume"
            )
        raise ModelFolderError(f"there is no model {path}. Make one with 'bedl fit', or check the path")
    if path.suffix.lower() != ".onnx":
        raise ModelFolderError(
            f"{path} is no model. Give the folder that 'bedl fit' made, or an .onnx file that 'bedl export' wrote"
        )
    return OnnxTableModel(path)


class EstimatorModel:
    """An estimator, run by PyTorch; intervals and likelihoods are exact for ensembles too."""

    def __init__(self, name: str, estimator: Any, encoder: TableEncoder):
        self.name, self.estimator, self.encoder = name, estimator, encoder

    @classmethod
    def of_folder(cls, folder: Path) -> EstimatorModel:
        """What `bedl fit` made."""
        _, encoder = read_card(folder)
        from bedl.estimators import load

        estimator = load(folder / WEIGHTS)
        if estimator.n_features_in_ != encoder.n_features:
            raise ModelFolderError(f"{folder}: the files do not belong together. Copy the folder again, or train again")
        return cls(str(folder), estimator, encoder)

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        import torch

        with torch.no_grad():
            prediction: Any = self.estimator.predict_dist(x)
            found = prediction.outputs()
            if hasattr(prediction, "interval"):
                found["lower"], found["upper"] = prediction.interval(coverage)
            if y is not None:
                targets = torch.from_numpy(tasks.get(self.encoder.task).filled(y))
                found["log_density"] = prediction.log_prob(targets)
                if hasattr(prediction, "cdf"):
                    found["cdf"] = prediction.cdf(targets)
        return {name: values.numpy() for name, values in found.items()}


class OnnxTableModel:
    """An exported model, run by onnxruntime."""

    def __init__(self, path: Path):
        self.name, self.model = str(path), OnnxModel(path)
        self.encoder = _encoder_of(self.model)

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        return self.model.predict(x)


def _encoder_of(model: OnnxModel) -> TableEncoder:
    """The encoder that `bedl export` put into the file, or one that takes the named features as they are."""
    if "encoder" in model.metadata:
        try:
            encoder = TableEncoder.from_dict(model.metadata["encoder"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelFileError(f"{model.path}: {error}") from None
    elif model.feature_names is not None:
        encoder = _plain_encoder(model)
    else:
        raise ModelFileError(
            f"{model.path} does not say which columns of a table it takes. Write it with 'bedl export', or name its "
            "features: bedl.deploy.export(model, path, feature_names=…)"
        )
    outputs = len(encoder.names)
    if (encoder.task, (encoder.n_features,), outputs) != (model.task, model.input_shape, model.n_outputs):
        raise ModelFileError(f"{model.path}: the graph and its description do not fit together. Export the model again")
    return encoder


def _plain_encoder(model: OnnxModel) -> TableEncoder:
    """Features as they are, by their names."""
    from bedl.data.columns import NumberColumn
    from bedl.data.target import Target

    columns = [NumberColumn(name, mean=0.0, has_missing=False) for name in model.feature_names or ()]
    names = [str(name) for name in model.names or range(model.n_outputs)]
    if tasks.get(model.task).named == "class":
        return TableEncoder(columns, Target("target", model.task, classes=names))
    several = names if len(names) > 1 else None
    return TableEncoder(columns, Target(", ".join(names), model.task, several=several))
