"""What answers for encoded rows: an estimator run by PyTorch, or an ONNX file, which needs no PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bedl import tasks
from bedl.data import TableEncoder
from bedl.deploy.runtime import OnnxModel
from bedl.errors import ModelFileError
from bedl.tasks import Quantities

__all__ = ["Engine", "EstimatorEngine", "OnnxEngine"]


class Engine(Protocol):
    """Predicts encoded rows."""

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        """What is predicted, by name.

        Args:
            x: the encoded rows. shape: (n, features)
            coverage: share of the targets that intervals are to hold.
            y: their targets, marked where not known, if `log_density` and `cdf` are wanted. shape: (n, *targets)
        """

    def linear_quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities | None:
        """The same of a linear model that learned from the same rows, where there is one."""


class EstimatorEngine:
    """An estimator, run by PyTorch; intervals and likelihoods are exact for ensembles too.

    Args:
        estimator: fitted on rows that the encoder made.
        task: the name of what it predicts.
    """

    def __init__(self, estimator: Any, task: str):
        self.estimator, self.task = estimator, task

    @classmethod
    def of_file(cls, path: Path, encoder: TableEncoder, sha256: str | None = None) -> EstimatorEngine:
        """The estimator in a file, if it is one for this encoder, and the one with this hash."""
        from bedl.estimators.storage import load

        estimator = load(path, None, {}, sha256)
        if estimator.n_features_in_ != encoder.n_features:
            raise ModelFileError(
                f"{path.parent}: the files do not belong together. Copy the folder again, or train again"
            )
        return cls(estimator, encoder.task)

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        """The outputs, and exact intervals, densities and cdf as far as the prediction has them."""
        import torch

        with torch.no_grad():
            prediction: Any = self.estimator.predict_dist(x)
            intervals = self.estimator.interval_of(prediction, coverage) if hasattr(prediction, "interval") else ()
        return self._found(prediction, intervals, y)

    def linear_quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities | None:
        """The same of the linear model that learned from the same rows, if the method has one among its members."""
        import torch

        prediction: Any = self.estimator.linear_dist(x)
        if prediction is None:
            return None
        with torch.no_grad():
            intervals = prediction.interval(coverage) if hasattr(prediction, "interval") else ()
        return self._found(prediction, intervals, y)

    def _found(self, prediction: Any, intervals: Any, y: np.ndarray | None) -> Quantities:
        import torch

        with torch.no_grad():
            found = {**prediction.outputs(), **dict(zip(("lower", "upper"), intervals, strict=False))}
            if y is not None:
                targets = torch.from_numpy(tasks.get(self.task).filled(y))
                found["log_density"] = prediction.log_prob(targets)
                if hasattr(prediction, "cdf"):
                    found["cdf"] = prediction.cdf(targets)
        return {name: values.numpy() for name, values in found.items()}


class OnnxEngine:
    """An exported model, run by onnxruntime.

    Args:
        path: the file.
    """

    def __init__(self, path: Path):
        self.model = OnnxModel(path)

    def quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities:
        """The outputs of the graph, with intervals as rows held out ask for, where the file knows of such."""
        return self.model.with_intervals(self.model.predict(x), coverage)

    def linear_quantities(self, x: np.ndarray, coverage: float, y: np.ndarray | None = None) -> Quantities | None:
        """None: a graph says what its mixture says."""
        return None

    def encoder(self) -> TableEncoder:
        """The encoder that `bedl export` put into the file, or one that takes the named features as they are."""
        model = self.model
        if "encoder" in model.metadata:
            try:
                encoder = TableEncoder.from_dict(model.metadata["encoder"])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise ModelFileError(f"{model.path}: {error}") from None
        elif model.feature_names is not None:
            encoder = _plain_encoder(model)
        else:
            raise ModelFileError(
                f"{model.path} does not say which columns of a table it takes. Write it with 'bedl export', or name "
                "its features: bedl.deploy.export(model, path, feature_names=…)"
            )
        found = encoder.task, (encoder.n_features,), len(encoder.names)
        if found != (model.task, model.input_shape, model.n_outputs):
            raise ModelFileError(
                f"{model.path}: the graph and its description do not fit together. Export the model again"
            )
        return encoder


def _plain_encoder(model: OnnxModel) -> TableEncoder:
    """Features as they are, by their names."""
    from bedl.data.columns import NumberColumn
    from bedl.data.target import Target

    columns = [NumberColumn(name, mean=0.0, has_missing=False) for name in model.feature_names or ()]
    given = model.names or (range(model.n_outputs) if model.n_outputs > 1 else ["target"])
    names = [str(name) for name in given]
    if tasks.get(model.task).named == "class":
        return TableEncoder(columns, Target("target", model.task, classes=names))
    return TableEncoder(columns, Target(", ".join(names), model.task, several=names if len(names) > 1 else None))
