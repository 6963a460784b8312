"""Inputs of a model that is to leave Python: one tensor or several, by name, with axes that may vary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bedl.deploy.schema import INPUT, ExportError
from bedl.nn.calling import has_parts

__all__ = ["Inputs", "Parts"]

Parts = tuple[Tensor, ...]
NUMBERS = (torch.int64, torch.int32, torch.bool)  # that stay as they are: tokens, masks; all else becomes float32


@dataclass(frozen=True)
class Inputs:
    """What a model takes: the names of its inputs, and how they are handed over.

    Attributes:
        names: ``x`` for a single one, the names of a dict, ``x0``, ``x1``, … for a tuple.
        kind: "one", "tuple" or "dict".
        dynamic: axes, besides the first, whose length may vary.
    """

    names: tuple[str, ...]
    kind: str
    dynamic: tuple[int, ...] = ()

    @classmethod
    def of(cls, example: Any, dynamic: Sequence[int] = ()) -> tuple[Inputs, Parts]:
        """The inputs that an example shows, and it, as tensors of at least two rows."""
        if isinstance(example, Mapping):
            parts, kind, names = list(example.values()), "dict", tuple(map(str, example))
        elif has_parts(example) and all(hasattr(part, "shape") for part in example):
            parts, kind, names = list(example), "tuple", tuple(f"{INPUT}{i}" for i in range(len(example)))
        else:
            parts, kind, names = [example], "one", (INPUT,)
        tensors = [_as_input(part) for part in parts]
        lengths = {len(part) if part.ndim else 0 for part in tensors}
        if not tensors or len(lengths) > 1 or 0 in lengths or (kind == "one" and tensors[0].ndim < 2):
            shapes = ", ".join(str(tuple(part.shape)) for part in tensors)
            raise ExportError(f"example must hold at least one row, shape (n, *input), the same n each, not {shapes}")
        if lengths == {1}:
            tensors = [part.repeat(2, *[1] * (part.ndim - 1)) for part in tensors]
        axes = tuple(sorted(set(dynamic)))
        if any(not 0 < axis < max(part.ndim for part in tensors) for axis in axes):
            raise ExportError(f"dynamic names axes of the inputs, from 1 on, whose length may vary, not {dynamic}")
        return cls(names, kind, axes), tuple(tensors)

    def together(self, parts: Sequence[Any]) -> Any:
        """The inputs as the network takes them."""
        if self.kind == "dict":
            return dict(zip(self.names, parts, strict=True))
        return tuple(parts) if self.kind == "tuple" else parts[0]

    def shapes(self, parts: Parts) -> tuple[dict[int, Any], ...]:
        """Which axes torch.export is to leave open."""
        batch = torch.export.Dim("batch")
        found = []
        for part in parts:
            axes: dict[int, Any] = {axis: torch.export.Dim.AUTO for axis in self.dynamic if axis < part.ndim}
            found.append({0: batch, **axes})
        return tuple(found)

    def refuse_fixed(self, program: torch.export.ExportedProgram) -> None:
        """An error if the network holds an axis to one length that was to vary."""
        given = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"}
        nodes = [node for node in program.graph.nodes if node.op == "placeholder" and node.name in given]
        for name, node in zip(self.names, nodes, strict=True):
            shape = node.meta["val"].shape
            for axis in self.dynamic:
                if axis < len(shape) and isinstance(shape[axis], int):
                    raise ExportError(
                        f"axis {axis} of {name} was to vary, and the network works for the length {shape[axis]} alone; "
                        "leave it out of dynamic="
                    )


def _as_input(part: Any) -> Tensor:
    tensor = torch.as_tensor(part).detach().cpu()
    return tensor if tensor.dtype in NUMBERS else tensor.float()
