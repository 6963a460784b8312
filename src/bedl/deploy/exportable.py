"""From a model to a module that maps a float32 tensor to named tensors, and that module as a captured graph."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import bedl
from bedl import tasks
from bedl.deploy.scaling import InUnits
from bedl.deploy.schema import Description, ExportError, plain_names
from bedl.heads import Dirichlet
from bedl.methods import BEDL, Ensemble
from bedl.moments import Moments, as_moments
from bedl.nn.scaling import Standardize
from bedl.predictive import Predictive, mixture

__all__ = ["ExportOptions", "Exportable", "Prepared", "capture", "prepare"]


@dataclass
class Exportable:
    """What an export needs to know. A model of another kind offers it by a method ``_exportable()``.

    Args:
        module: a float32 tensor in, a `Predictive` in the target's own units out; every scaling is inside.
        example: inputs as they are at prediction. shape: (n, *input)
        task: the name of what is predicted, see `bedl.tasks`; None if the prediction is to say it.
        feature_names, class_names, target_names: where there are any.
    """

    module: nn.Module
    example: Tensor
    task: str | None = None
    feature_names: Sequence[str] | None = None
    class_names: Sequence[Any] | None = None
    target_names: Sequence[str] | None = None


@dataclass
class ExportOptions:
    """What a user says about a model that is to be exported. An estimator knows all of it by itself.

    Args:
        example: inputs as they are at prediction. shape: (n, *input)
        feature_names, class_names, target_names: stored in the file.
        input_scale: ``(loc, scale)``: the network was trained on ``(x - loc) / scale``.
        target_scale: ``(loc, scale)``: the network was trained on ``(y - loc) / scale``; outputs are in units of y.
        metadata: anything JSON, stored in the file.
    """

    example: Tensor | None = None
    feature_names: Sequence[str] | None = None
    class_names: Sequence[Any] | None = None
    target_names: Sequence[str] | None = None
    input_scale: tuple[Any, Any] | None = None
    target_scale: tuple[Any, Any] | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass
class Prepared:
    """A model that is ready to be captured: a copy in float32 on the CPU, in evaluation mode."""

    module: nn.Module  # shape: (n, *input) -> {output name: (n, ...)}
    example: Tensor  # at least two rows
    description: Description

    def run(self, x: Tensor, rows: int = 256) -> dict[str, Any]:
        """Eager predictions as NumPy arrays."""
        with torch.no_grad():
            parts = [self.module(part) for part in x.split(rows)]
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in parts[0]}


def prepare(model: Any, options: ExportOptions, precision: str = "float32") -> Prepared:
    """Everything around the network put into one module, and everything said about it checked."""
    offered = _offer(model, options.example)
    module = copy.deepcopy(offered.module).cpu().float().eval()
    if isinstance(module, Ensemble):
        module = _with_one_head(module)
    module = _Named(_scaled(module, options)).eval()
    example = offered.example if options.example is None else options.example
    example = torch.as_tensor(example).detach().cpu().float()
    if example.ndim < 2 or not len(example):
        raise ExportError(f"example must hold at least one row, shape (n, *input), not {tuple(example.shape)}")
    example = example if len(example) > 1 else example.repeat(2, *[1] * (example.ndim - 1))
    task, width = module.describe(example[:2])
    if offered.task is not None and offered.task != task:
        raise ExportError(f"the model says it is for {offered.task}, and predicts for {task}")
    description = _described(offered, options, task, tuple(example.shape[1:]), width, precision)
    description.to_json()  # metadata that is no JSON is refused here, before the work
    return Prepared(module, example, description)


def _described(
    offered: Exportable, options: ExportOptions, task: str, shape: tuple[int, ...], width: int, precision: str
) -> Description:
    """What the file will say of itself: the user's names before the model's own."""
    names = {}
    for key, count in (("feature", shape[0] if len(shape) == 1 else -1), ("class", width), ("target", width)):
        said = getattr(options, f"{key}_names")
        chosen = getattr(offered, f"{key}_names") if said is None else said
        if chosen is not None and count < 0:
            raise ExportError(f"feature_names are for tables; the inputs here have the shape {shape}")
        if chosen is not None and key not in ("feature", tasks.get(task).named):
            raise ExportError(f"{key}_names do not go with {task}")
        names[f"{key}_names"] = plain_names(chosen, count, key)
    about = {"bedl_version": bedl.__version__, "metadata": dict(options.metadata or {})}
    return Description(task=task, precision=precision, **names, **about)  # type: ignore[arg-type]


def capture(prepared: Prepared) -> torch.export.ExportedProgram:
    """The graph, for batches of any size, without what no output needs and without random numbers."""
    batch = torch.export.Dim("batch")
    try:
        with torch.no_grad():
            program = torch.export.export(
                prepared.module, (prepared.example[:4],), dynamic_shapes=({0: batch},), strict=False
            )
    except Exception as error:
        raise ExportError(
            f"torch.export could not capture the network for batches of any size: {error}\n"
            "Control flow that depends on values, or a reshape to a fixed number of rows, are the usual causes."
        ) from error
    program.graph_module.graph.eliminate_dead_code()
    random = sorted({str(node.target) for node in program.graph.nodes if _is_random(node.target)})
    if random:
        raise ExportError(
            f"the prediction draws random numbers ({', '.join(random)}), so an export would not agree with itself; "
            "use a head in closed form rather than Sampled(head), and leave `with bedl.sampled(...)`"
        )
    return program


def _is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _offer(model: Any, example: Tensor | None) -> Exportable:
    if isinstance(model, Exportable):
        return model
    if hasattr(model, "_exportable"):
        return model._exportable()
    if not isinstance(model, nn.Module) or not hasattr(model, "predict"):
        raise TypeError(
            f"export takes a bedl method, such as BEDL or Ensemble, or an estimator, not {type(model).__name__}"
        )
    if example is None:
        raise ExportError("export: pass example=, some inputs as they are at prediction, shape (n, *input)")
    return Exportable(model, example)


def _scaled(model: nn.Module, options: ExportOptions) -> nn.Module:
    """The model behind the scaling of its inputs, and before that of its targets."""
    if options.target_scale is not None:
        model = InUnits(model, *_pair(options.target_scale))
    if options.input_scale is not None:
        model = nn.Sequential(Standardize(*_pair(options.input_scale)), model)
    return model


def _pair(scaling: tuple[Any, Any]) -> Sequence[Tensor]:
    return torch.broadcast_tensors(*(torch.as_tensor(part).detach().cpu().float() for part in scaling))


class _Named(nn.Module):
    """A model whose outputs go by their names."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def predict(self, x: Tensor) -> Predictive:
        prediction = self.model(x)
        if not isinstance(prediction, Predictive):
            raise ExportError(f"a model to export must predict a bedl Predictive, not {type(prediction).__name__}")
        return prediction

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        # aleatoric is data: two outputs of a graph need two tensors, or one of them loses its name
        return {name: value.clone() for name, value in self.predict(x).outputs().items()}

    def describe(self, x: Tensor) -> tuple[str, int]:
        """Name of the task, and number of classes or targets."""
        with torch.no_grad():
            prediction = self.predict(x)
        if prediction.mean.shape[:1] != x.shape[:1] or prediction.mean.ndim != 2:
            raise ExportError(
                f"export: a prediction must have the shape (n, classes or targets), not {tuple(prediction.mean.shape)}"
            )
        return tasks.get(prediction.task).name, prediction.mean.shape[-1]


class _OneHead(nn.Module):
    """An ensemble for classes with the members' outputs stacked: one race in the graph instead of one per member."""

    def __init__(self, nets: Sequence[nn.Module], head: Dirichlet):
        super().__init__()
        self.nets, self.head = nn.ModuleList(nets), head

    def forward(self, x: Tensor) -> Predictive:
        outputs = [as_moments(net(x)) for net in self.nets]
        f = Moments(torch.stack([y.loc for y in outputs]), torch.stack([y.variance for y in outputs]))
        prediction = self.head(f)
        return mixture([prediction[i] for i in range(len(outputs))])


def _with_one_head(ensemble: Ensemble) -> nn.Module:
    members = ensemble.members
    if not all(type(member) is BEDL and type(member.head) is Dirichlet for member in members):
        return ensemble
    kinds = {(h.n_classes, h.nodes, h.components) for h in (member.head for member in members)}
    return _OneHead([member.net for member in members], members[0].head) if len(kinds) == 1 else ensemble
