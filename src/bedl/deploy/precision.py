"""Weights of an ONNX graph stored in fewer bits; every operation still runs in float32.

Variances span many orders of magnitude, more than half precision or 8 bits have, so no *value* is rounded, only the
stored parameters: means, and logarithms of variances, whose rounding is a small relative error of the variance. A
`Cast` (and for 8 bits a scale and an offset per output channel) gives back float32; onnxruntime folds these nodes away
when it loads the model, so predictions are as fast as before and the file is a half or a quarter as large.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["PRECISIONS", "store_weights"]

PRECISIONS = ("float32", "float16", "int8")
SMALLEST = 256  # numbers; below that the nodes would cost more than the bytes they save


def store_weights(model: Any, precision: str) -> int:
    """Store the large float32 parameters of an `onnx.ModelProto` in fewer bits, in place. How many were."""
    import onnx
    from onnx import TensorProto, numpy_helper

    nodes, count = [], 0
    for initializer in list(model.graph.initializer):
        if initializer.data_type != TensorProto.FLOAT or np.prod(initializer.dims) < SMALLEST:
            continue
        weight = numpy_helper.to_array(initializer)
        name = initializer.name
        if precision == "float16":
            stored = weight.astype(np.float16)
            if not _survives(weight, stored.astype(np.float32)):
                continue
            nodes.append(onnx.helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
            added = {f"{name}.half": stored}
        else:
            codes, step, middle = eight_bits(weight)
            nodes += [
                onnx.helper.make_node("Cast", [f"{name}.codes"], [f"{name}.levels"], to=TensorProto.FLOAT),
                onnx.helper.make_node("Mul", [f"{name}.levels", f"{name}.step"], [f"{name}.steps"]),
                onnx.helper.make_node("Add", [f"{name}.steps", f"{name}.middle"], [name]),
            ]
            added = {f"{name}.codes": codes, f"{name}.step": step, f"{name}.middle": middle}
        initializer.Clear()
        first, *others = (numpy_helper.from_array(array, key) for key, array in added.items())
        initializer.CopyFrom(first)
        model.graph.initializer.extend(others)
        count += 1
    existing = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, *existing])  # in topological order
    return count


def eight_bits(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes from -127 to 127 with a step and a middle for each entry of the first axis: weight = codes * step + middle.

    Zero is no special number here, since log-variances are far from it. A constant channel is kept exactly.

    Example:
        >>> codes, step, middle = eight_bits(np.array([[-9.0, -8.0, -7.0], [3.0, 3.0, 3.0]], dtype=np.float32))
        >>> codes.tolist(), (codes * step + middle).round(4).tolist()
        ([[-127, 0, 127], [0, 0, 0]], [[-9.0, -8.0, -7.0], [3.0, 3.0, 3.0]])
    """
    axes = tuple(range(1, weight.ndim)) or (0,)
    low, high = weight.min(axes, keepdims=True), weight.max(axes, keepdims=True)
    middle, step = (low + high) / 2, (high - low) / 254
    codes = np.rint((weight - middle) / np.where(step > 0, step, 1)).clip(-127, 127)
    return codes.astype(np.int8), step.astype(np.float32), middle.astype(np.float32)


def _survives(weight: np.ndarray, rounded: np.ndarray) -> bool:
    """Whether half precision has the range: not for stored variances, say, of 1e-8."""
    size = np.sqrt(np.mean(np.square(weight, dtype=np.float64)))
    return bool(np.all(np.abs(rounded - weight) <= 1e-3 * np.abs(weight) + 1e-5 * size))
