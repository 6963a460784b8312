"""What an exported model says about itself: JSON in the file's metadata, the same for every format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bedl import tasks
from bedl.errors import BEDLError, ModelFileError

__all__ = ["INPUT", "INTERVALS", "KEY", "SCHEMA", "Description", "ExportError", "ModelFileError", "Name", "plain_names"]

KEY = "bedl"  # of the metadata
# 2: aleatoric is noise, epistemic all that is not known, for classes both in nats, and the three parts are outputs. In
# files of schema 1, which are read as they are, aleatoric includes what the evidence lacks, and for classes the two are
# variances of the one-hot label.
SCHEMA = 2
SEALED = 2  # from this version on an ONNX file ends with a checksum, see `bedl.deploy.seal`
INPUT = "x"
INTERVALS = "intervals"  # in the metadata: what rows that were held out say about them
Name = str | int | float | bool


class ExportError(BEDLError, ValueError):
    """A model cannot be exported, or its export does not agree with it."""


@dataclass(frozen=True)
class Description:
    """What an exported model is; its outputs are those of its task, see `bedl.tasks`.

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
