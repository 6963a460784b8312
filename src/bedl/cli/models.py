"""Models that take raw tables: a folder made by `bedl fit`, or an ONNX file, which needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bedl.cli.model_folder import WEIGHTS, ModelFolderError, partial_of, read_card
from bedl.data import TableEncoder
from bedl.deploy.runtime import OnnxModel, prediction_columns
from bedl.deploy.schema import ModelFileError

__all__ = ["EstimatorModel", "OnnxTableModel", "Prediction", "TableModel", "open_model"]


@dataclass(frozen=True)
class Prediction:
    """What is predicted for some rows.

    Attributes:
        columns: as `bedl.deploy.prediction_columns` names them.
        probabilities: shape (n, classes); None in regression.
        log_density: log p(y|x), if targets were given and the model can say it exactly. shape: (n,)
        pit: predicted cdf at the targets, likewise. shape: (n,)
    """

    columns: dict[str, np.ndarray]
    probabilities: np.ndarray | None = None
    log_density: np.ndarray | None = None
    pit: np.ndarray | None = None


class TableModel(Protocol):
    """A trained model and how to read a table for it."""

    name: str
    encoder: TableEncoder

    def predict(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Prediction:
        """Predictions for encoded rows; `y` are their targets, NaN or -1 where not known."""


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

    def predict(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Prediction:
        import torch

        from bedl.deploy import named_outputs

        encoder = self.encoder
        with torch.no_grad():
            prediction: Any = self.estimator.predict_dist(x)
            outputs = {name: values.numpy() for name, values in named_outputs(prediction).items()}
            columns = prediction_columns(encoder.task, outputs, encoder.classes, [encoder.target], coverage)  # type: ignore[arg-type]
            if encoder.task == "classification":
                logs = None if y is None else prediction.log_prob(torch.from_numpy(np.maximum(y, 0))).numpy()
                return Prediction(columns, outputs["probabilities"], logs)
            lower, upper = prediction.interval(coverage)
            columns |= {"lower": lower[:, 0].numpy(), "upper": upper[:, 0].numpy()}
            if y is None:
                return Prediction(columns)
            targets = torch.from_numpy(np.nan_to_num(y, nan=0.0))[:, None]
            return Prediction(
                columns, None, prediction.log_prob(targets).numpy(), prediction.cdf(targets)[:, 0].numpy()
            )


class OnnxTableModel:
    """An exported model, run by onnxruntime."""

    def __init__(self, path: Path):
        self.name, self.model = str(path), OnnxModel(path)
        self.encoder = _encoder_of(self.model)

    def predict(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Prediction:
        encoder, outputs = self.encoder, self.model.predict(x)
        columns = prediction_columns(self.model.task, outputs, encoder.classes, [encoder.target], coverage)
        return Prediction(columns, outputs.get("probabilities"))


def _encoder_of(model: OnnxModel) -> TableEncoder:
    """The encoder that `bedl export` put into the file, or one that takes the named features as they are."""
    if "encoder" in model.metadata:
        try:
            encoder = TableEncoder.from_dict(model.metadata["encoder"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ModelFileError(f"{model.path}: {error}") from None
    elif model.feature_names is not None and (model.task == "classification" or model.n_outputs == 1):
        from bedl.data.columns import NumberColumn
        from bedl.data.target import Target

        columns = [NumberColumn(name, mean=0.0, has_missing=False) for name in model.feature_names]
        classes = None
        if model.task == "classification":
            classes = [str(name) for name in model.class_names or range(model.n_outputs)]
        encoder = TableEncoder(columns, Target((model.target_names or ["target"])[0], model.task, classes))
    else:
        raise ModelFileError(
            f"{model.path} does not say which columns of a table it takes. Write it with 'bedl export', or name its "
            "features: bedl.deploy.export(model, path, feature_names=…)"
        )
    outputs = len(encoder.classes) if encoder.classes is not None else 1
    if (encoder.task, (encoder.n_features,), outputs) != (model.task, model.input_shape, model.n_outputs):
        raise ModelFileError(f"{model.path}: the graph and its description do not fit together. Export the model again")
    return encoder
