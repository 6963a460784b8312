"""Export as a `torch.export` program: a .pt2 file for PyTorch without bedl, or for ahead-of-time compilation."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from bedl._utils.io import atomic_write, check_writable
from bedl.deploy.onnx import compare, points_around
from bedl.deploy.prepare import ExportOptions, capture, prepare
from bedl.deploy.schema import KEY, ExportReport
from bedl.evaluation import tasks


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
