"""What an exported model says about itself: JSON in the file's metadata, the same for every format."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bedl._utils.errors import BEDLError, ModelFileError
from bedl.evaluation import tasks
from bedl.evaluation.tasks import Quantities

KEY = "bedl"  # of the metadata
# 2: aleatoric is noise, epistemic all that is not known, for classes both in nats, and the three parts are outputs. In
# files of schema 1, which are read as they are, aleatoric includes what the evidence lacks, and for classes the two are
# variances of the one-hot label.
SCHEMA = 2
CHECKSUM_SINCE_SCHEMA = 2  # from this version on an ONNX file ends with a checksum, see `bedl.deploy.schema`
INPUT = "x"
INTERVALS = "intervals"  # in the metadata: what rows that were held out say about them
Name = str | int | float | bool


class ExportError(BEDLError, ValueError):
    """A model cannot be exported, or its export does not agree with it."""


@dataclass(frozen=True)
class Description:
    """What an exported model is; its outputs are those of its task, see `bedl.evaluation.tasks`.

    Example:
        >>> d = Description("regression", target_names=("price",), metadata={"encoder": {"age": "number"}})
        >>> Description.from_json(d.to_json()) == d
        True
    """

    task: str
    feature_names: tuple[str, ...] | None = None
    class_names: tuple[Name, ...] | None = None
    target_names: tuple[str, ...] | None = None
    input_names: tuple[str, ...] | None = None  # of several inputs; a single one is "x"
    precision: str = "float32"
    bedl_version: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def names(self) -> tuple[Name, ...] | None:
        """What the entries of an output are called: the classes or the targets, whichever the task has."""
        return self.class_names if tasks.get(self.task).named == "class" else self.target_names

    def to_json(self) -> str:
        try:
            return json.dumps(asdict(self), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise TypeError(f"metadata must be JSON (strings, finite numbers, lists, dicts): {error}") from error

    @classmethod
    def from_json(cls, text: str) -> Description:
        """Read what `to_json` wrote, here or elsewhere: nothing in it is trusted to be of the right type."""
        try:
            raw = json.loads(text)
            schema = int(raw["schema"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ModelFileError(f"its bedl metadata cannot be read ({error}); export the model again") from None
        if schema > SCHEMA:
            raise ModelFileError(
                f"it was written by a newer bedl ({raw.get('bedl_version') or 'version unknown'}, schema {schema}; "
                f"this one reads up to {SCHEMA}); upgrade bedl, or export the model again with this version"
            )
        if raw.get("task") not in tasks.names() or not isinstance(raw.get("metadata", {}), dict):
            raise ModelFileError(
                f"its bedl metadata names the unknown task {raw.get('task')!r}; export the model again"
            )
        return cls(
            task=raw["task"],
            feature_names=_names(raw, "feature_names", str),
            class_names=_names(raw, "class_names", (str, int, float, bool)),
            target_names=_names(raw, "target_names", str),
            input_names=_names(raw, "input_names", str),
            precision=str(raw.get("precision", "float32")),
            bedl_version=str(raw.get("bedl_version", "")),
            metadata=raw.get("metadata", {}),
            schema=schema,
        )


def _names(raw: dict[str, Any], key: str, kinds: type | tuple[type, ...]) -> Any:
    names = raw.get(key)
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, kinds) for name in names):
        raise ModelFileError(f"{key} in its bedl metadata are not a list of names; export the model again")
    return tuple(names)


def plain_names(names: Sequence[Any] | None, count: int, what: str) -> tuple[Any, ...] | None:
    """Names as JSON knows them (NumPy scalars become plain ones), as many as there must be."""
    if names is None:
        return None
    plain = tuple(name.item() if hasattr(name, "item") else name for name in names)
    if len(plain) != count:
        raise ValueError(f"{len(plain)} {what} names for {count} {what}{'s' if not what.endswith('s') else 'es'}")
    for name in plain:
        if not isinstance(name, (str, int, float, bool)):
            raise TypeError(f"a {what} name must be a string or a number, not {type(name).__name__}")
    if len(set(map(str, plain))) != len(plain):
        raise ValueError(f"{what} names must differ from each other")
    return plain


# A checksum at the end of an ONNX file, over everything before it, that NumPy-only rooms can check.
#
# Fields of a protobuf message may stand in any order: the last bytes of a sealed file are one more entry of the model's
# metadata, with the SHA-256 of all bytes before them. Programs that read ONNX see an entry among others.


CHECKSUM_KEY = b"bedl.sha256"
DIGITS = 64
# ModelProto.metadata_props (field 14) = {key (field 1): KEY, value (field 2): 64 digits}, each with its length
_ENTRY = bytes([0x0A, len(CHECKSUM_KEY)]) + CHECKSUM_KEY + bytes([0x12, DIGITS])
_START = bytes([0x72, len(_ENTRY) + DIGITS]) + _ENTRY
LENGTH = len(_START) + DIGITS
_CHUNK = 2**22


def with_checksum(content: bytes) -> bytes:
    """The bytes of an ONNX file with their checksum."""
    return content + _START + hashlib.sha256(content).hexdigest().encode()


def has_valid_checksum(path: Path) -> bool | None:
    """Whether the checksum at the end of a file is that of what comes before; None: there is none at the end.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "model.onnx")
        ...     for content in (with_checksum(b"model"), with_checksum(b"model")[1:], b"model"):
        ...         _ = path.write_bytes(content)
        ...         print(has_valid_checksum(path))
        True
        False
        None
    """
    left = path.stat().st_size - LENGTH
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left > 0:
            part = file.read(min(left, _CHUNK))
            if not part:
                return False
            digest.update(part)
            left -= len(part)
        end = file.read()
    if not end.startswith(_START):
        return None
    return end == _START + digest.hexdigest().encode()


# What an export did, and how far it is from the model: numbers, with NumPy alone.


MOVED, WIDENED, CHANGED, UNLIKE = 0.2, 0.1, 0.01, 0.05  # beyond which a lower precision is warned of


@dataclass(frozen=True)
class ExportReport:
    """What was written. ``print(report)`` says it in a few lines.

    Attributes:
        path: the file.
        task: the name of what is predicted.
        precision: how the weights are stored.
        nodes: operations in the graph.
        size: the size of the file, in bytes.
        size_ratio: the ratio of that size to the one of the same graph with float32 weights.
        seconds: what the export took.
        points: the number of random points around the example that it was compared with the model on; 0 without a
            check.
        absolute: largest absolute difference, by output.
        scaled: largest difference, by output, in units that mean something: probabilities and entropies as they are,
            mean and std in predicted stds, variances in predicted variances.
        loss: what a lower precision costs; empty for float32. For classes ``probability`` and ``entropy`` (largest
            differences) and ``labels_changed`` (share of points); for targets ``mean_in_stds`` (largest difference) and
            ``std_ratio_min``, ``std_ratio_max``; for others see `Task.cost`.
    """

    path: Path
    task: str
    precision: str
    nodes: int
    size: int
    size_ratio: float
    seconds: float
    points: int = 0
    absolute: dict[str, float] = field(default_factory=dict)
    scaled: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)

    @property
    def caution(self) -> str:
        """What a lower precision changes so much that a user would notice, as a sentence; "" where nothing."""
        moved, changed = self.loss.get("mean_in_stds", 0.0), self.loss.get("labels_changed", 0.0)
        low, high = self.loss.get("std_ratio_min", 1.0), self.loss.get("std_ratio_max", 1.0)
        said = [f"means move by up to {moved:.2g} predicted standard deviations"] if moved > MOVED else []
        if low < 1 - WIDENED or high > 1 + WIDENED:
            said.append(f"standard deviations are {low:.2g} to {high:.2g} times what they were")
        if changed > CHANGED:
            said.append(f"{changed:.1%} of the answers change")
        probability = self.loss.get("probability", 0.0)
        if probability > UNLIKE:
            said.append(f"probabilities change by up to {probability:.2g}")
        if not said:
            return ""
        better = "float16 or float32" if self.precision == "int8" else "float32"
        return f"with weights in {self.precision} {' and '.join(said)}; if that is too much, export in {better}"

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.task}, {self.precision}, {self.nodes} operations, {self.size / 1e6:.2f} MB"]
        if self.loss:
            costs = ", ".join(f"{name} {value:.2g}" for name, value in self.loss.items())
            lines[0] += f" ({self.size_ratio:.0%} of float32)"
            lines.append(f"cost of {self.precision}, on {self.points} points: {costs}")
        elif self.scaled:
            lines.append(f"agrees with PyTorch to {max(self.scaled.values()):.1e} on {self.points} points")
        else:
            lines.append("not compared with PyTorch")
        return "\n".join(lines)


def absolute_differences(truth: Quantities, other: Quantities) -> dict[str, float]:
    """Largest absolute difference of each output."""
    return {name: float(np.abs(truth[name] - other[name]).max(initial=0.0)) for name in truth}
