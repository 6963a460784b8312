"""Predictions of an exported model with NumPy and onnxruntime: no PyTorch, and nothing of bedl that needs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bedl.deploy.schema import (
    CHECKSUM_SINCE_SCHEMA,
    INPUT,
    INTERVALS,
    KEY,
    Description,
    ModelFileError,
    has_valid_checksum,
)
from bedl.evaluation import tasks
from bedl.evaluation.tasks._maps import place_columns

WORK = 2**22  # numbers that one operation of a chunk may make
NUMBERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}  # other inputs are float32
CHANNELS = 50  # a network may make of an input as many times as many numbers


class OnnxModel:
    """A model that `bedl.export` wrote.

    Args:
        path: the file.
        threads: the number of threads for onnxruntime; None leaves it to use all cores.

    Attributes:
        task: the name of what is predicted; `bedl.tasks.get` says what the outputs are.
        feature_names, class_names, target_names: tuples, or None where the file has none.
        metadata: what was passed to `export`.
        precision: that of the stored weights.

    Example:
        >>> import tempfile, bedl, torch
        >>> from bedl.deploy import export
        >>> method = bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = export(method, f"{folder}/model.onnx", example=torch.randn(20, 3))
        ...     model = OnnxModel(f"{folder}/model.onnx")
        >>> sorted(model.predict(np.zeros((4, 3), dtype=np.float32)))
        ['aleatoric', 'data', 'distributional', 'epistemic', 'mean', 'model', 'std']
    """

    def __init__(self, path: str | Path, *, threads: int | None = None):
        self.path = Path(path)
        _check_file(self.path)
        seal = has_valid_checksum(self.path)
        if seal is False:
            raise ModelFileError(f"{self.path} does not match its checksum: it is damaged. Copy or export it again")
        self._session = _open(self.path, threads)
        try:
            text = self._session.get_modelmeta().custom_metadata_map.get(KEY)
        except UnicodeDecodeError:
            raise ModelFileError(
                f"{self.path}: its metadata is no text: it is damaged. Copy or export it again"
            ) from None
        if text is None:
            raise ModelFileError(
                f"{self.path} is an ONNX model, but was not written by bedl; write it with bedl.export"
            )
        try:
            self.description = Description.from_json(text)
        except ModelFileError as error:
            raise ModelFileError(f"{self.path}: {error}") from None
        if seal is None and self.description.schema >= CHECKSUM_SINCE_SCHEMA:
            raise ModelFileError(f"{self.path} was damaged or changed since bedl wrote it. Copy or export it again")
        outputs = {output.name: output.shape for output in self._session.get_outputs()}
        inputs = {entry.name: entry.shape for entry in self._session.get_inputs()}
        known = tasks.get(self.task).outputs
        needed = {name for name, output in known.items() if not output.optional}
        self.input_names: tuple[str, ...] = self.description.input_names or (INPUT,)
        if not needed <= set(outputs) <= set(known) or set(inputs) != set(self.input_names):
            raise ModelFileError(f"{self.path}: its inputs or outputs are not those of {self.task}; export it again")
        self._widths = {name: tuple(outputs[name][1:]) for name in known if name in outputs}
        self._kinds = {entry.name: NUMBERS.get(entry.type, np.float32) for entry in self._session.get_inputs()}
        self._shapes = {name: tuple(inputs[name][1:]) for name in self.input_names}
        self._check_names()

    @property
    def task(self) -> str:
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
    def names(self) -> tuple[Any, ...] | None:
        """What the entries of an output are called: the classes or the targets, whichever the task has."""
        return self.description.names

    @property
    def metadata(self) -> dict[str, Any]:
        return self.description.metadata

    @property
    def precision(self) -> str:
        return self.description.precision

    @property
    def n_outputs(self) -> int:
        """Number of classes or targets."""
        return int(next(iter(self._widths.values()))[-1])

    @property
    def input_shape(self) -> tuple[Any, ...]:
        """That of a point of the first input; a name for a length that may vary."""
        return self._shapes[self.input_names[0]]

    def predict(self, x: Any, *, chunk: int | None = None) -> dict[str, np.ndarray]:
        """The outputs by name.

        Args:
            x: finite numbers; several inputs in a tuple, or by name. shape: (n, *input)
            chunk: points at a time; by default so many that memory stays within some hundred megabytes.
        """
        given = self._checked(x)
        n, rows = len(given[self.input_names[0]]), chunk or self._rows(given)
        names, found = list(self._widths), []
        for start in range(0, n, rows):
            part = {name: values[start : start + rows] for name, values in given.items()}
            found.append(self._session.run(names, part))
        if not found:
            shapes = {name: [size if isinstance(size, int) else 0 for size in self._widths[name]] for name in names}
            return {name: np.empty((0, *shape), np.float32) for name, shape in shapes.items()}
        return {name: np.concatenate([outputs[i] for outputs in found]) for i, name in enumerate(names)}

    def predict_columns(
        self, x: np.ndarray, *, coverage: float = 0.9, chunk: int | None = None
    ) -> dict[str, np.ndarray]:
        """The predictions as the columns of a table, see `Task.columns` of the task. shapes: (n,)

        Of dense outputs each place is a row, and the first columns say where it is.

        Args:
            x: finite numbers; several inputs in a tuple, or by name. shape: (n, *input)
            coverage: share of the targets that intervals are to hold.
            chunk: points at a time, as in `predict`.
        """
        outputs = self.with_intervals(self.predict(x, chunk=chunk), coverage)
        batch = next(iter(outputs.values())).shape[:-1]  # the first output has an entry for each class or target
        flat = {name: values.reshape(-1, *values.shape[len(batch) :]) for name, values in outputs.items()}
        return {**place_columns(batch), **tasks.get(self.task).columns(flat, self.names, coverage)}

    def with_intervals(self, outputs: dict[str, np.ndarray], coverage: float) -> dict[str, np.ndarray]:
        """Outputs of `predict` with the ends of intervals, where the file says how wide rows held out want them."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must lie between 0 and 1, not {coverage}")
        try:
            return tasks.with_intervals(outputs, self.metadata.get(INTERVALS), coverage)
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise ModelFileError(
                f"{self.path}: what it says about intervals is damaged ({error}). Export again"
            ) from None

    def _checked(self, x: Any) -> dict[str, np.ndarray]:
        """Every input by its name, as the graph takes it."""
        if self.description.input_names is None:
            return {INPUT: self._checked_input(INPUT, x)}
        several = x if isinstance(x, Mapping) else dict(zip(self.input_names, x, strict=False))
        if set(several) != set(self.input_names) or (not isinstance(x, Mapping) and len(x) != len(several)):
            raise ValueError(f"{self.path.name}: takes the inputs {', '.join(self.input_names)}, as a tuple or by name")
        arrays = {name: self._checked_input(name, several[name]) for name in self.input_names}
        if len({len(values) for values in arrays.values()}) > 1:
            raise ValueError(f"{self.path.name}: all inputs have as many rows, not {[len(v) for v in arrays.values()]}")
        return arrays

    def _checked_input(self, name: str, x: Any) -> np.ndarray:
        if hasattr(x, "columns") and list(x.columns) != list(self.feature_names or ()):
            raise TypeError(
                f"{self.path.name}: predict takes an array of numbers, encoded as in training, and this is a table "
                "with other columns. For a table such as it was trained with: "
                f"bedl.tabular.load({str(self.path)!r}).predict(table)"
            )
        x, shape, kind = np.asarray(x), self._shapes[name], self._kinds[name]
        if x.dtype.kind not in "fiub":
            raise TypeError(f"{self.path.name}: inputs must be numbers, not {x.dtype}")
        fixed = [(size, length) for size, length in zip(x.shape[1:], shape, strict=False) if isinstance(length, int)]
        if x.ndim != 1 + len(shape) or any(size != length for size, length in fixed):
            wanted = ", ".join(map(str, ("n", *shape)))
            raise ValueError(f"{self.path.name}: inputs must have the shape ({wanted}), not {x.shape}")
        if kind is not np.float32:
            if x.dtype.kind == "f" and kind is not np.bool_ and not (x == np.floor(x)).all():
                raise TypeError(f"{self.path.name}: the input {name} holds whole numbers, such as tokens")
            return np.ascontiguousarray(x, dtype=kind)
        x = np.ascontiguousarray(x, dtype=np.float32)
        finite = np.isfinite(x.reshape(len(x), math.prod(x.shape[1:]))).all(1)
        if not finite.all():
            raise ValueError(
                f"{self.path.name}: row {int(np.argmin(finite))} has a missing, infinite or too large value"
            )
        return x

    def _rows(self, given: Mapping[str, np.ndarray]) -> int:
        numbers = max(math.prod(values.shape[1:]) for values in given.values())
        places = numbers if len(next(iter(self._widths.values()))) > 1 else 1
        per_point = max(CHANNELS * numbers, tasks.get(self.task).work * self.n_outputs * places)
        return min(max(WORK // max(per_point, 1), 1), 8192)

    def _check_names(self) -> None:
        width = self.n_outputs
        for what, names, count in (
            ("class", self.class_names, width),
            ("target", self.target_names, width),
            ("feature", self.feature_names, (self.input_shape or (0,))[0]),
        ):
            if names is not None and len(names) != count:
                raise ModelFileError(f"{self.path}: {len(names)} {what} names for {count}; export the model again")


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"there is no model file {path}")


def _open(path: Path, threads: int | None) -> Any:
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ImportError("running an exported model needs onnxruntime: pip install onnxruntime") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has an exception class of its own for every status
        reason = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
        raise ModelFileError(f"{path} is damaged or no ONNX model: {reason}") from error
