"""Predictions of an exported model with NumPy and onnxruntime: no PyTorch, and nothing of bedl that needs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np

from bedl.deploy.schema import INPUT, KEY, OUTPUTS, Description, ModelFileError, Task

__all__ = ["OnnxModel", "prediction_columns"]

WORK = 2**22  # numbers that one operation of a chunk may make
NODES = 32  # of the head, for each class
CHANNELS = 50  # a network may make of an input as many times as many numbers


class OnnxModel:
    """A model that `bedl.export` wrote.

    Args:
        path: the file.
        threads: for onnxruntime; None leaves it to use all cores.

    Attributes:
        task: ``"regression"`` or ``"classification"``.
        feature_names, class_names, target_names: tuples, or None where the file has none.
        metadata: what was passed to `export`.
        precision: of the stored weights.

    Example:
        >>> import tempfile, bedl, torch
        >>> from bedl.deploy import export
        >>> method = bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = export(method, f"{folder}/model.onnx", example=torch.randn(20, 3))
        ...     model = OnnxModel(f"{folder}/model.onnx")
        >>> sorted(model.predict(np.zeros((4, 3), dtype=np.float32)))
        ['aleatoric', 'epistemic', 'mean', 'std']
    """

    def __init__(self, path: str | Path, *, threads: int | None = None):
        self.path = Path(path)
        self._session = _open(self.path, threads)
        text = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        if text is None:
            raise ModelFileError(
                f"{self.path} is an ONNX model, but was not written by bedl; write it with bedl.export"
            )
        try:
            self.description = Description.from_json(text)
        except ModelFileError as error:
            raise ModelFileError(f"{self.path}: {error}") from None
        outputs = {output.name: output.shape for output in self._session.get_outputs()}
        inputs = {entry.name: entry.shape for entry in self._session.get_inputs()}
        if set(outputs) != set(OUTPUTS[self.task]) or set(inputs) != {INPUT}:
            raise ModelFileError(f"{self.path}: its inputs or outputs are not those of {self.task}; export it again")
        self._widths = {name: tuple(shape[1:]) for name, shape in outputs.items()}
        self.input_shape: tuple[int, ...] = tuple(inputs[INPUT][1:])
        self._check_names()

    @property
    def task(self) -> Task:
        return self.description.task

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return self.description.feature_names

    @property
    def class_names(self) -> tuple[Any, ...] | None:
        return self.description.class_names

    @property
    def target_names(self) -> tuple[str, ...] | None:
        return self.description.target_names

    @property
    def metadata(self) -> dict[str, Any]:
        return self.description.metadata

    @property
    def precision(self) -> str:
        return self.description.precision

    @property
    def n_outputs(self) -> int:
        """Number of classes or targets."""
        return int(self._widths[OUTPUTS[self.task][0]][0])

    def predict(self, x: np.ndarray, *, chunk: int | None = None) -> dict[str, np.ndarray]:
        """The outputs by name.

        Args:
            x: finite numbers. shape: (n, *input)
            chunk: points at a time; by default so many that memory stays within some hundred megabytes.
        """
        x = self._checked(x)
        rows = chunk or self._rows()
        outputs = {name: np.empty((len(x), *width), np.float32) for name, width in self._widths.items()}
        names = list(outputs)
        for start in range(0, len(x), rows):
            part = slice(start, start + rows)
            for name, values in zip(names, self._session.run(names, {INPUT: x[part]}), strict=True):
                outputs[name][part] = values
        return outputs

    def _checked(self, x: Any) -> np.ndarray:
        x = np.asarray(x)
        if x.dtype.kind not in "fiub":
            raise TypeError(f"{self.path.name}: inputs must be numbers, not {x.dtype}")
        if x.ndim == 0 or x.shape[1:] != self.input_shape:
            wanted = ", ".join(map(str, ("n", *self.input_shape)))
            raise ValueError(f"{self.path.name}: inputs must have the shape ({wanted}), not {x.shape}")
        x = np.ascontiguousarray(x, dtype=np.float32)
        finite = np.isfinite(x.reshape(len(x), math.prod(x.shape[1:]))).all(1)
        if not finite.all():
            raise ValueError(
                f"{self.path.name}: row {int(np.argmin(finite))} has a missing, infinite or too large value"
            )
        return x

    def _rows(self) -> int:
        per_point = CHANNELS * math.prod(self.input_shape)
        if self.task == "classification":
            per_point = max(per_point, NODES * self.n_outputs)
        return min(max(WORK // max(per_point, 1), 1), 8192)

    def _check_names(self) -> None:
        width = self.n_outputs
        for what, names, count in (
            ("class", self.class_names, width),
            ("target", self.target_names, width),
            ("feature", self.feature_names, self.input_shape[0] if self.input_shape else 0),
        ):
            if names is not None and len(names) != count:
                raise ModelFileError(f"{self.path}: {len(names)} {what} names for {count}; export the model again")


def _open(path: Path, threads: int | None) -> Any:
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ImportError("running an exported model needs onnxruntime: pip install onnxruntime") from error
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class of its own for every status
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise ModelFileError(f"{path} is damaged or no ONNX model: {reason}") from error


def prediction_columns(
    task: Task,
    outputs: dict[str, np.ndarray],
    class_names: Sequence[Any] | None = None,
    target_names: Sequence[str] | None = None,
    coverage: float = 0.9,
) -> dict[str, np.ndarray]:
    """Outputs of a model, from `OnnxModel.predict` or `bedl.deploy.named_outputs`, as the columns of a table.

    Targets: ``prediction``, ``std``, ``lower``, ``upper``, ``aleatoric_std``, ``epistemic_std``, each followed by
    ``_<target>`` where there are several targets. The interval is that of a normal with this mean and std; an
    ensemble predicts a mixture, for which this is the normal with the same two moments, not the mixture's own interval.

    Classes: ``prediction`` (the name of the class), ``entropy``, ``aleatoric_entropy``, ``epistemic_entropy`` (in
    nats; the latter two add up to the first), then ``probability_<class>``.

    Args:
        task: ``"regression"`` or ``"classification"``.
        outputs: arrays by name. shapes: (n, classes or targets), entropies (n,)
        class_names, target_names: by default 0, 1, 2, ….
        coverage: share of the targets that the interval is to hold.

    Example:
        >>> outputs = {"mean": np.array([[2.0]]), "std": np.array([[0.5]]), "aleatoric": np.array([[0.16]]),
        ...            "epistemic": np.array([[0.09]])}
        >>> {name: round(float(v[0]), 3) for name, v in prediction_columns("regression", outputs).items()}
        {'prediction': 2.0, 'std': 0.5, 'lower': 1.178, 'upper': 2.822, 'aleatoric_std': 0.4, 'epistemic_std': 0.3}
    """
    if task == "classification":
        return _class_columns(outputs, class_names)
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must lie between 0 and 1, not {coverage}")
    half = NormalDist().inv_cdf(0.5 + coverage / 2) * outputs["std"]
    columns = {
        "prediction": outputs["mean"],
        "std": outputs["std"],
        "lower": outputs["mean"] - half,
        "upper": outputs["mean"] + half,
        "aleatoric_std": np.sqrt(outputs["aleatoric"]),
        "epistemic_std": np.sqrt(outputs["epistemic"]),
    }
    count = outputs["mean"].shape[1]
    if count == 1:
        return {name: values[:, 0] for name, values in columns.items()}
    names = _as_many(target_names, count, "target")
    return {f"{name}_{target}": v[:, i] for i, target in enumerate(names) for name, v in columns.items()}


def _class_columns(outputs: dict[str, np.ndarray], class_names: Sequence[Any] | None) -> dict[str, np.ndarray]:
    probabilities = outputs["probabilities"]
    names = _as_many(class_names, probabilities.shape[1], "class")
    entropy = outputs["entropy"]
    aleatoric = np.minimum(outputs["expected_entropy"], entropy)  # rounding only
    columns = {
        "prediction": np.asarray(names)[probabilities.argmax(1)],
        "entropy": entropy,
        "aleatoric_entropy": aleatoric,
        "epistemic_entropy": entropy - aleatoric,
    }
    return {**columns, **{f"probability_{name}": probabilities[:, i] for i, name in enumerate(names)}}


def _as_many(names: Sequence[Any] | None, count: int, what: str) -> Sequence[Any]:
    names = list(range(count)) if names is None else list(names)
    if len(names) != count:
        raise ValueError(f"{len(names)} {what} names for {count} outputs")
    return names
