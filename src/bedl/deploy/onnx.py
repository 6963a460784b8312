"""Export to ONNX: scaling, network, head and names in one file, for onnxruntime and anything else that reads it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from bedl import tasks
from bedl.deploy.agreement import compare, points_around
from bedl.deploy.export_report import ExportReport
from bedl.deploy.exportable import ExportOptions, Prepared, capture, prepare
from bedl.deploy.precision import PRECISIONS, store_weights
from bedl.deploy.runtime import OnnxModel
from bedl.deploy.schema import KEY, Description, ExportError
from bedl.deploy.seal import sealed
from bedl.deploy.simplify import simplify
from bedl.files import refuse_unwritable, written_whole

__all__ = ["export"]

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
    task, see `bedl.tasks`. For targets: ``mean``, ``std``, ``aleatoric``, ``epistemic``; for classes:
    ``probabilities``, ``aleatoric``, ``epistemic``, ``entropy``, ``expected_entropy``; then the parts ``data``,
    ``distributional`` and ``model``.
    Aleatoric is ``data``, the noise; epistemic is the other two, all that is not known. They add up to the variance of
    a target or to the entropy, in nats, of the classes; ``expected_entropy`` is data and distributional. Of dense
    outputs all of them are maps, the classes last. `bedl.deploy.OnnxModel` runs the file without PyTorch.

    Args:
        model: a method (`BEDL`, `Ensemble`), or an estimator.
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
    refuse_unwritable(path, overwrite)
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
    with written_whole(path, overwrite) as temporary:
        temporary.write_bytes(sealed(proto.SerializeToString()))
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
        converted: Any = torch.onnx.export(
            program, tuple(part[:4] for part in prepared.example), dynamo=True, verbose=False, optimize=False,
            input_names=list(prepared.inputs.names), output_names=list(names),
        )  # fmt: skip
        # Large constants stay as they were trained: exp(log-variance) would be a second copy of the weights.
        simplify(converted.model, FOLD)
        proto = converted.model_proto
    _name_outputs(proto, list(names))
    _strip(proto)
    return proto


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
