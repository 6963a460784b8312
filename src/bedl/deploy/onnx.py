"""Weights of an ONNX graph stored in fewer bits; every operation still runs in float32.

Variances span many orders of magnitude, more than half precision or 8 bits have, so no *value* is rounded, only the
stored parameters: means, and logarithms of variances, whose rounding is a small relative error of the variance. A
`Cast` (and for 8 bits a scale and an offset per output channel) gives back float32; onnxruntime folds these nodes away
when it loads the model, so predictions are as fast as before and the file is a half or a quarter as large.
"""

from __future__ import annotations

import logging
import operator
import time
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bedl._utils.io import atomic_write, check_writable
from bedl.deploy.prepare import ExportOptions, Prepared, capture, prepare
from bedl.deploy.runtime import OnnxModel
from bedl.deploy.schema import KEY, Description, ExportError, ExportReport, absolute_differences, with_checksum
from bedl.evaluation import tasks
from bedl.evaluation.tasks import Quantities, Task

PRECISIONS = ("float32", "float16", "int8")
MIN_NUMEL = 256  # numbers; below that the nodes would cost more than the bytes they save


def store_weights(model: Any, precision: str) -> int:
    """Store the large float32 parameters of an `onnx.ModelProto` in fewer bits, in place. How many were."""
    import onnx
    from onnx import TensorProto, numpy_helper

    nodes, count = [], 0
    for initializer in list(model.graph.initializer):
        if initializer.data_type != TensorProto.FLOAT or np.prod(initializer.dims) < MIN_NUMEL:
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


# What an exported graph can do without: constants folded, operations that change nothing or can be one taken out.
#
# onnxscript's own `optimize` does the same, with one rule more: two slices as a split. Its search goes through the
# whole graph for every node, which takes minutes for the thousands of nodes of a recurrent network.


ROUNDS = 2  # as in onnxscript: what is rewritten may be constant now
RULES = """
    add_0 sub_0 mul_by_1 div_by_1 cast_cast no_op_cast no_op_expand no_op_transpose transpose_transpose
    reshape_reshape unsqueeze_unsqueeze squeeze_reshape_1d flatten_to_reshape materialize_reshape_shape
    one_reshape_matmul_reshape two_reshapes_matmul_reshape collapse_slice collapse_slice2 cast_constant_of_shape
    cast_constant_of_shape_without_value min_min max_max min_max max_min successive_relu successive_clip
    successive_clip_relu successive_relu_clip no_op_static_scatter_nd no_op_dynamic_scatter_nd
    normalize_pad_format_conv fuse_pad_into_conv fuse_batchnorm_into_conv fuse_batchnorm_into_conv_transpose
    fuse_batchnorm_into_gemm remove_optional_bias_from_conv remove_optional_bias_from_conv_transpose
    remove_optional_bias_from_gemm
""".split()


def simplify(model: Any, largest: int) -> None:
    """Simplify an `onnx_ir.Model`, in place; constants of more than `largest` numbers stay as they are."""
    import onnx_ir.passes.common as passes
    from onnxscript import optimizer, rewriter
    from onnxscript.rewriter.rules import common

    rules = [getattr(common, f"{name}_rule") for name in RULES]
    optimizer.inline(model)
    for _ in range(ROUNDS):
        optimizer.fold_constants(model, onnx_shape_inference=True, input_size_limit=largest, output_size_limit=largest)
        rewriter.rewrite(model, rules)
    for tidy in (
        passes.RemoveUnusedNodesPass(),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    ):
        tidy(model)


# Whether an exported model says what the model says.


TOLERANCE = 1e-3
POINTS, MIN_POINTS = 256, 8
POINTS_OF_MAPS = 8  # each of which has hundreds of predictions
WORK = 2**24  # numbers that one operation may make of all points; of large images a deep network takes a second each


def points_around(prepared: Prepared, seed: int = 0) -> tuple[Tensor, ...]:
    """Rows of the example, numbers moved by half a standard deviation of their feature. shapes: (count, *input)"""
    generator = torch.Generator().manual_seed(seed)
    most = POINTS_OF_MAPS if prepared.dense else POINTS
    count = min(max(WORK // max(prepared.numbers, 1), MIN_POINTS), most)
    chosen = torch.randint(len(prepared.example[0]), (count,), generator=generator)
    return tuple(_moved(part, chosen, generator) for part in prepared.example)


def _moved(example: Tensor, chosen: Tensor, generator: torch.Generator) -> Tensor:
    rows = example[chosen]
    if not rows.is_floating_point():  # a token or a mask has no neighbours
        return rows
    spread = example.std(0, correction=0, keepdim=True)
    spread = torch.where(spread > 0, spread, example.std(correction=0).clamp_min(1e-6))
    return rows + 0.5 * spread * torch.randn(rows.shape, generator=generator)


def compare(task: Task, truth: Quantities, outputs: Quantities, strict: bool = True) -> dict[str, Any]:
    """The fields of `ExportReport` about agreement; an error where it fails and `strict` asks for it."""
    broken = [name for name, values in truth.items() if not np.isfinite(values).all()]
    if broken:
        raise ExportError(f"the model's own {', '.join(broken)} are not finite near the example; is it trained?")
    scaled = task.differences(truth, outputs)
    if strict and not max(scaled.values()) <= TOLERANCE:  # NaN is no agreement either
        worst = ", ".join(f"{name} {value:.1e}" for name, value in scaled.items())
        raise ExportError(
            f"the exported graph does not agree with the model (tolerance {TOLERANCE}): {worst}. Nothing was written; "
            "please report the network that this happened with, or pass check=False to write the file all the same"
        )
    absolute = absolute_differences(truth, outputs)
    return {"points": len(next(iter(truth.values()))), "absolute": absolute, "scaled": scaled}


# Export to ONNX: scaling, network, head and names in one file, for onnxruntime and anything else that reads it.


FOLD = 256  # constants up to this many numbers are computed at export; larger ones when the model is loaded
LIMIT = 2**31 - 2**20  # bytes; what protobuf can hold


def export(
    model: Any,
    path: str | Path,
    *,
    precision: Literal["float32", "float16", "int8"] = "float32",
    check: bool = True,
    overwrite: bool = False,
    **options: Any,
) -> ExportReport:
    """Write a trained model as one ONNX graph, for batches of any size, without random numbers.

    Input ``x``, float32; several have the names of the example, or ``x0``, ``x1``, …. The outputs are those of the
    task, see `bedl.evaluation.tasks`. For targets: ``mean``, ``std``, ``aleatoric``, ``epistemic``; for classes:
    ``probabilities``, ``aleatoric``, ``epistemic``, ``entropy``, ``expected_entropy``; then the parts ``data``,
    ``distributional`` and ``model``.
    Aleatoric is ``data``, the noise; epistemic is the other two, all that is not known. They add up to the variance of
    a target or to the entropy, in nats, of the classes; ``expected_entropy`` is data and distributional. Of dense
    outputs all of them are maps, the classes last. `bedl.deploy.OnnxModel` runs the file without PyTorch.

    Args:
        model: a method (`BEDL`, `Ensemble`), or an estimator; or a network that gives Moments, whose outputs are then
            ``mean`` and ``std``, with all variance as ``model``.
        path: the file to write; it appears whole or not at all.
        precision: that of the stored weights; ``"float16"`` and ``"int8"`` make the file a half and a quarter as large.
            The report says what it costs.
        check: whether to compare onnxruntime with PyTorch on random points around the example.
        overwrite: whether an existing file may be replaced.
        options: the fields of `ExportOptions`: ``example`` (which an estimator knows by itself), ``dynamic`` (axes
            that may vary, such as the size of images), ``feature_names``, ``class_names``, ``target_names``,
            ``input_scale``, ``target_scale``, ``metadata``.

    Example:
        >>> import tempfile, bedl, torch
        >>> method = bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export(method, f"{folder}/model.onnx", example=torch.randn(20, 3), target_names=["price"])
        >>> report.task, max(report.scaled.values()) < 1e-4
        ('regression', True)
    """
    started, path = time.perf_counter(), Path(path)
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    _require("onnx", "onnxscript", "onnxruntime")
    check_writable(path, overwrite)
    prepared = prepare(model, ExportOptions(**options), precision)
    task = tasks.get(prepared.description.task)
    proto = to_onnx(prepared)
    _describe(proto, prepared.description)
    full_size = proto.ByteSize()
    if precision != "float32":
        store_weights(proto, precision)
    if proto.ByteSize() > LIMIT:
        raise ExportError(
            f"the model has {full_size / 2**30:.1f} GiB, and an ONNX file can hold 2; try precision='int8'"
        )
    with atomic_write(path, overwrite) as temporary:
        temporary.write_bytes(with_checksum(proto.SerializeToString()))
        size = temporary.stat().st_size
        found: dict[str, Any] = {}
        if check or precision != "float32":
            points = points_around(prepared)
            truth = prepared.run(points)
            given = prepared.inputs.together([part.numpy() for part in points])
            outputs = OnnxModel(temporary).predict(given, chunk=prepared.rows)
            found = compare(task, truth, outputs, strict=precision == "float32")
            if precision != "float32":
                found["loss"] = task.cost(truth, outputs)
    report = ExportReport(
        path=path,
        task=task.name,
        precision=precision,
        nodes=len(proto.graph.node),
        size=size,
        size_ratio=proto.ByteSize() / full_size,
        seconds=time.perf_counter() - started,
        **found,
    )
    if report.caution:
        warnings.warn(report.caution, stacklevel=2)
    return report


def to_onnx(prepared: Prepared) -> Any:
    """The graph as an `onnx.ModelProto`."""
    program = capture(prepared)
    with torch.no_grad():
        names = list(prepared.module(*(part[:2] for part in prepared.example)))
    with _quiet():
        converted = _translated(program, prepared, names)
        # Large constants stay as they were trained: exp(log-variance) would be a second copy of the weights.
        simplify(converted.model, FOLD)
        proto = converted.model_proto
    _name_outputs(proto, list(names))
    _strip(proto)
    return proto


def _translated(program: Any, prepared: Prepared, names: list[str]) -> Any:
    """The graph in ONNX's operations, without tracing it again where it has no others than the exporter knows."""

    def translate() -> Any:
        return torch.onnx.export(
            program, tuple(part[:4] for part in prepared.example), dynamo=True, verbose=False, optimize=False,
            input_names=list(prepared.inputs.names), output_names=list(names),
        )  # fmt: skip

    graph_module: Any = program.graph_module
    if lower(graph_module.graph):
        program.run_decompositions = lambda table=None: program
        if not _mixes_types(graph_module.graph):  # else the exporter runs it once more, to see which numbers to cast
            graph_module.modules = lambda: iter(())
        try:
            return translate()
        except torch.onnx.OnnxExporterError:  # an operation without a translation of its own
            del program.run_decompositions
            vars(graph_module).pop("modules", None)
    return translate()


def _mixes_types(graph: torch.fx.Graph) -> bool:
    """Whether an operation may take other numbers than float32, so that some have to be cast."""
    aten = torch.ops.aten
    of_flags = (aten.where, aten.bitwise_and, aten.bitwise_or, aten.bitwise_not, aten.logical_not, aten.all, aten.any)
    for node in graph.nodes:
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.is_view:
            continue
        allowed: set[Any] = {torch.float32, torch.bool if node.target.overloadpacket in of_flags else torch.float32}
        if torch.Tag.pointwise not in node.target.tags:
            allowed.add(None)  # a length
        values = tree_leaves([source.meta.get("val") for source in node.all_input_nodes])
        if any(getattr(value, "dtype", None) not in allowed for value in values):
            return True
    return False


def lower(graph: torch.fx.Graph) -> bool:
    """Write a captured graph, in place, in operations that ONNX has, and say whether that is all it needs.

    A graph that works in place, or has graphs inside, has to be traced again by PyTorch's own decompositions.
    """
    aten = torch.ops.aten

    def put(node: torch.fx.Node, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        with graph.inserting_before(node):
            new = graph.call_function(target, args, kwargs)
        new.meta.update(node.meta)
        return new

    for node in list(graph.find_nodes(op="call_function", target=aten._assert_tensor_metadata.default)):
        graph.erase_node(node)
    for node in list(graph.nodes):
        new: Any = None
        if node.target is aten.square.default:
            new = put(node, aten.mul.Tensor, node.args[0], node.args[0])
        elif node.target is aten.rsub.Scalar and len(node.args) == 2:
            new = put(node, aten.add.Tensor, put(node, aten.neg.default, node.args[0]), node.args[1])
        elif node.target is aten.movedim.int:
            x, source, to = node.args
            count = x.meta["val"].dim()
            order = [i for i in range(count) if i != source % count]
            order.insert(to % count, source % count)
            new = put(node, aten.permute.default, x, order)
        elif node.target in (aten.to.dtype, aten.to.device, aten.to.other):  # all is on one device
            x, dtype = node.args[0], node.meta["val"].dtype
            new = x if x.meta["val"].dtype == dtype else put(node, aten._to_copy.default, x, dtype=dtype)
        elif node.target in (aten.__and__.Tensor, aten.__or__.Tensor):
            new = put(node, getattr(aten, f"bitwise_{node.target._opname.strip('_')}").Tensor, *node.args)
        elif node.target is aten.conv_transpose2d.input:
            given = (*node.args, *(None, [1, 1], [0, 0], [0, 0], 1, [1, 1])[len(node.args) - 2 :])
            x, weight, bias, stride, padding, more, groups, dilation = given
            new = put(node, aten.convolution.default, x, weight, bias, stride, padding, dilation, True, more, groups)
        elif node.target is aten.batch_norm.default and not node.args[5]:
            *tensors, _, momentum, eps, _ = node.args
            norm = put(node, aten._native_batch_norm_legit_no_training.default, *tensors, momentum, eps)
            new = put(node, operator.getitem, norm, 0)
            value = norm.meta["val"]
            norm.meta["val"] = (value, value.new_empty(0), value.new_empty(0))
        elif node.target is aten.detach_.default:  # of constants
            new = node.args[0]
        if new is not None:
            node.replace_all_uses_with(new)
            graph.erase_node(node)
    targets = {node.target for node in graph.nodes if node.op == "call_function"}
    plain = (torch._ops.OpOverload, types.BuiltinFunctionType)
    return all(isinstance(t, plain) and not getattr(getattr(t, "_schema", None), "is_mutable", False) for t in targets)


def _name_outputs(proto: Any, names: list[str]) -> None:
    """Give the outputs their names again: of those that are one tensor, the exporter names one and makes copies."""
    graph = proto.graph
    found = [output.name for output in graph.output]
    if len(set(found)) != len(names):
        raise ExportError(f"the graph has the outputs {', '.join(found)} instead of {', '.join(names)}")
    new = {name: f"{name}_inside" for name in names if name not in found} | dict(zip(found, names, strict=True))
    for entry in (*graph.initializer, *graph.output, *graph.value_info):
        entry.name = new.get(entry.name, entry.name)
    for node in graph.node:
        node.input[:] = [new.get(name, name) for name in node.input]
        node.output[:] = [new.get(name, name) for name in node.output]


def _describe(proto: Any, description: Description) -> None:
    proto.ClearField("metadata_props")
    entry = proto.metadata_props.add()
    entry.key, entry.value = KEY, description.to_json()


def _strip(proto: Any) -> None:
    """Without the exporter's notes: stack traces with paths of this machine, a megabyte in a large graph."""
    proto.ClearField("metadata_props")
    proto.ClearField("doc_string")
    graph = proto.graph  # its value_info stays: without the shapes, onnxruntime takes four times as long to load it
    for entry in (graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *graph.value_info):
        entry.ClearField("doc_string")
        entry.ClearField("metadata_props")


def _require(*packages: str) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ImportError(f"export needs {', '.join(missing)}: pip install 'bedl[export]'")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's remarks about itself: deprecations inside torch, packages that it could also use."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def export_program(
    model: Any,
    path: str | Path,
    *,
    check: bool = True,
    overwrite: bool = False,
    **options: Any,
) -> ExportReport:
    """Write a trained model as a .pt2 file: `torch.export.load(path).module()(x)` gives the outputs by name.

    Arguments and outputs are those of `bedl.deploy.export`. The description is an extra file of the archive:
    ``torch.export.load(path, extra_files={"bedl": ""})``.

    Example:
        >>> import tempfile, bedl, torch
        >>> method = bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = export_program(method, f"{folder}/model.pt2", example=torch.randn(20, 3))
        ...     outputs = torch.export.load(f"{folder}/model.pt2").module()(torch.zeros(7, 3))
        >>> {name: tuple(value.shape) for name, value in outputs.items()}
        {'mean': (7, 1), 'std': (7, 1), 'aleatoric': (7, 1), 'epistemic': (7, 1), 'data': (7, 1), ...}
    """
    started, path = time.perf_counter(), Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"the name of a torch.export program ends in .pt2; {path.name} does not")
    check_writable(path, overwrite)
    prepared = prepare(model, ExportOptions(**options))
    task = tasks.get(prepared.description.task)
    program = capture(prepared)
    with atomic_write(path, overwrite) as temporary:
        torch.export.save(program, temporary, extra_files={KEY: prepared.description.to_json()})
        found: dict[str, Any] = {}
        if check:
            points = points_around(prepared)
            outputs = prepared.run(points, torch.export.load(temporary).module())
            found = compare(task, prepared.run(points), outputs)
        size = temporary.stat().st_size
    return ExportReport(
        path=path,
        task=task.name,
        precision="float32",
        nodes=sum(node.op == "call_function" for node in program.graph.nodes),
        size=size,
        size_ratio=1.0,
        seconds=time.perf_counter() - started,
        **found,
    )
