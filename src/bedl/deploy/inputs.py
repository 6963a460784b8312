"""Inputs of a model that is to leave Python: one tensor or several, by name, with axes that may vary."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bedl.deploy.schema import INPUT, ExportError
from bedl.nn.calling import has_parts

__all__ = ["Inputs", "Parts"]

Parts = tuple[Tensor, ...]
# Other lengths to try: some networks want even ones, powers of two, or have a longest.
LENGTHS: tuple[Callable[[int], int], ...] = (
    lambda n: 2 * n, lambda n: n + 1, lambda n: n - 1, lambda n: n // 2, lambda n: n + 2, lambda n: n + 8,
    lambda n: n + 16, lambda n: n + 32, lambda n: n - 8,
)  # fmt: skip
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

    def refuse_fixed(self, module: Callable[..., Any], parts: Parts) -> None:
        """An error if the network takes an axis that was to vary at one length alone, as far as other lengths tell."""
        if not self.dynamic or _takes_others(module, parts, self.dynamic):
            return
        for axis in self.dynamic:
            if not _takes_others(module, parts, (axis,)):
                name, part = next((n, p) for n, p in zip(self.names, parts, strict=True) if axis < p.ndim)
                raise ExportError(
                    f"axis {axis} of {name} was to vary, and the network works for the length {part.shape[axis]} "
                    "alone; leave it out of dynamic="
                )

    def refuse_written_out(self, shapes: Sequence[Sequence[Any]]) -> None:
        """An error if the graph is for one length of an axis that was to vary, though the network takes others."""
        from torch.fx.experimental.symbolic_shapes import is_concrete_int  # which takes long to import

        for name, shape in zip(self.names, shapes, strict=True):
            for axis in self.dynamic:
                if axis < len(shape) and is_concrete_int(shape[axis]):
                    raise ExportError(
                        f"axis {axis} of {name} was to vary, and the graph is for the length {shape[axis]} alone: a "
                        "loop over it, as in recurrent layers, is written out step by step. Leave it out of dynamic=, "
                        "and bring inputs to one length"
                    )


def _takes_others(module: Callable[..., Any], parts: Parts, axes: Sequence[int]) -> bool:
    """Whether the network runs where these axes are longer or shorter; what they hold is repeated or cut off."""
    for change in LENGTHS:
        others = list(parts)
        for axis in axes:
            others = [_resized(part, axis, change) if axis < part.ndim else part for part in others]
        try:
            with torch.no_grad():
                module(*others)
        except Exception:  # whatever the network raises says that it does not take this length
            continue
        return True
    return False


def _resized(part: Tensor, axis: int, change: Callable[[int], int]) -> Tensor:
    length = part.shape[axis]
    return part.index_select(axis, torch.arange(max(1, change(length))) % length)


def _as_input(part: Any) -> Tensor:
    tensor = torch.as_tensor(part).detach().cpu()
    return tensor if tensor.dtype in NUMBERS else tensor.float()
