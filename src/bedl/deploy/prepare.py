"""Inputs of a model that is to leave Python: one tensor or several, by name, with axes that may vary."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import bedl
from bedl.deploy.schema import INPUT, INTERVALS, Description, ExportError, plain_names
from bedl.deploy.wrappers import InUnits
from bedl.evaluation import tasks
from bedl.heads import Dirichlet
from bedl.heads.predictive import LinkedPredictive, NormalPredictive, Predictive, mixture
from bedl.methods import BEDL, Ensemble
from bedl.moments import Moments
from bedl.nn.calling import has_parts, outputs_of
from bedl.nn.tabular import Standardize

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


# From a model to a module that maps a float32 tensor to named tensors, and that module as a captured graph.


WORK = 2**22  # numbers that one operation may make where the model is compared with its export


@dataclass
class Exportable:
    """What an export needs to know. A model of another kind offers it by a method ``_exportable()``.

    Args:
        module: a float32 tensor in, a `Predictive` in the target's own units out; every scaling is inside.
        example: inputs as they are at prediction; several in a tuple or a dict. shape: (n, *input)
        task: the name of what is predicted, see `bedl.evaluation.tasks`; None if the prediction is to say it.
        feature_names, class_names, target_names: where there are any.
        intervals: what rows that were held out say about intervals, see `bedl.tasks.with_intervals`; None: nothing was
            held out.
    """

    module: nn.Module
    example: Any
    task: str | None = None
    feature_names: Sequence[str] | None = None
    class_names: Sequence[Any] | None = None
    target_names: Sequence[str] | None = None
    intervals: Mapping[str, Any] | None = None


@dataclass
class ExportOptions:
    """What a user says about a model that is to be exported. An estimator knows all of it by itself.

    Args:
        example: inputs as they are at prediction; several in a tuple or a dict, whose names the file then has.
            Integers and booleans, such as tokens and masks, stay what they are. shape: (n, *input)
        dynamic: further axes of the inputs whose length may vary: ``(2, 3)`` for images of any size, ``(1,)`` for
            sequences of any length.
        feature_names, class_names, target_names: stored in the file.
        input_scale: ``(loc, scale)``: the network was trained on ``(x - loc) / scale``.
        target_scale: ``(loc, scale)``: the network was trained on ``(y - loc) / scale``; outputs are in units of y.
        metadata: anything JSON, stored in the file.
    """

    example: Any = None
    dynamic: Sequence[int] = ()
    feature_names: Sequence[str] | None = None
    class_names: Sequence[Any] | None = None
    target_names: Sequence[str] | None = None
    input_scale: tuple[Any, Any] | None = None
    target_scale: tuple[Any, Any] | None = None
    metadata: Mapping[str, Any] | None = None


@dataclass
class Prepared:
    """A model that is ready to be captured: a copy in float32 on the CPU, in evaluation mode."""

    module: _Named  # shapes: (n, *input), … -> {output name: (n, ...)}
    example: Parts  # at least two rows
    inputs: Inputs
    description: Description
    dense: bool = False  # whether there is a prediction at many places of each point

    @cached_property
    def numbers(self) -> int:
        """How many numbers the largest operation makes of a point."""
        with torch.no_grad(), _Largest() as largest:
            self.module(*(part[:2] for part in self.example))
        return largest.numbers // 2

    @property
    def rows(self) -> int:
        """Points at a time, so that memory stays within some hundred megabytes."""
        return min(max(WORK // max(self.numbers, 1), 1), 256)

    def run(self, parts: Parts | Tensor, model: Callable[..., Mapping[str, Tensor]] | None = None) -> dict[str, Any]:
        """Predictions as NumPy arrays, of the network or of another form of it."""
        parts, model = (parts,) if isinstance(parts, Tensor) else parts, model or self.module
        with torch.no_grad():
            chunks = [model(*chunk) for chunk in zip(*(part.split(self.rows) for part in parts), strict=True)]
        return {name: torch.cat([chunk[name] for chunk in chunks]).numpy() for name in chunks[0]}


class _Largest(TorchDispatchMode):
    """A block that notes how many numbers the largest result of an operation has."""

    numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [part.numel() for part in tree_leaves(result) if isinstance(part, Tensor)]
        self.numbers = max(self.numbers, *sizes, 0)
        return result


def prepare(model: Any, options: ExportOptions, precision: str = "float32") -> Prepared:
    """Everything around the network put into one module, and everything said about it checked."""
    offered = _offer(model, options.example)
    module = copy.deepcopy(offered.module).cpu().float().eval()
    if isinstance(module, Ensemble):
        module = _with_one_head(module)
    inputs, example = Inputs.of(offered.example if options.example is None else options.example, options.dynamic)
    if options.input_scale is not None and inputs.kind != "one":
        raise ExportError("input_scale is of a single input; of several, scale them inside the network")
    module = _Named(_scaled(module, options), inputs, "signed" in (offered.intervals or ())).eval()
    task, width, dense = module.describe(*(part[:2] for part in example))
    if offered.task is not None and offered.task != task:
        raise ExportError(f"the model says it is for {offered.task}, and predicts for {task}")
    shape = tuple(example[0].shape[1:]) if inputs.kind == "one" else ()
    description = _described(offered, options, task, shape, width, precision)
    if inputs.kind != "one":
        description = dataclasses.replace(description, input_names=inputs.names)
    description.to_json()  # metadata that is no JSON is refused here, before the work
    return Prepared(module, example, inputs, description, dense)


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
    metadata = {
        **({} if offered.intervals is None else {INTERVALS: dict(offered.intervals)}),
        **(options.metadata or {}),
    }
    about = {"bedl_version": bedl.__version__, "metadata": metadata}
    return Description(task=task, precision=precision, **names, **about)  # type: ignore[arg-type]


def capture(prepared: Prepared) -> torch.export.ExportedProgram:
    """The graph, for batches of any size, without what no output needs and without random numbers."""
    sample = tuple(part[:4] for part in prepared.example)
    prepared.inputs.refuse_fixed(prepared.module, sample)
    shapes = prepared.inputs.shapes(sample)
    try:
        with torch.no_grad(), _without_stack_traces():
            program = torch.export.export(prepared.module, sample, dynamic_shapes=(shapes,), strict=False)
    except Exception as error:
        if "Constraints violated" in str(error):
            raise ExportError(
                "the network computes for the example's number of rows alone. len(x) does, as it is a plain number: "
                "write x.shape[0], as in torch.zeros(x.shape[0], 16) or token.expand(x.shape[0], -1, -1). So do "
                "int(x.shape[0]) and a reshape to a fixed number of rows"
            ) from error
        raise ExportError(
            f"torch.export could not capture the network for batches of any size: {error}\n"
            "Control flow that depends on values, or a reshape to a fixed number of rows, are the usual causes."
        ) from error
    prepared.inputs.refuse_written_out(_shapes_of_inputs(program))
    program.graph_module.graph.eliminate_dead_code()
    random = sorted({str(node.target) for node in program.graph.nodes if _is_random(node.target)})
    if random:
        raise ExportError(
            f"the prediction draws random numbers ({', '.join(random)}), so an export would not agree with itself; "
            "use a head in closed form rather than Sampled(head), and leave `with bedl.sampled(...)`"
        )
    return program


@contextmanager
def _without_stack_traces() -> Iterator[None]:
    """Tracing notes where in Python each operation was called, which takes a third of its time."""
    before = getattr(torch.fx.config, "do_not_emit_stack_traces", False)
    torch.fx.config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        torch.fx.config.do_not_emit_stack_traces = before


def _shapes_of_inputs(program: torch.export.ExportedProgram) -> list[Sequence[Any]]:
    """Numbers where a length is fixed, symbols where it may vary."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return [values[name].shape for name in program.graph_signature.user_inputs]


def _is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def _offer(model: Any, example: Any) -> Exportable:
    if isinstance(model, Exportable):
        return model
    if hasattr(model, "_exportable"):
        return model._exportable()
    if not isinstance(model, nn.Module):
        raise TypeError(
            "export takes a bedl method, such as BEDL or Ensemble, a network with Gaussian weights, or an estimator, "
            f"not {type(model).__name__}"
        )
    if example is None:
        raise ExportError("export: pass example=, some inputs as they are at prediction, shape (n, *input)")
    return Exportable(model if hasattr(model, "predict") else _Outputs(model), example)


class _Outputs(nn.Module):
    """A network by itself: its outputs, with all of their variance as that of the model."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, x: Any) -> Predictive:
        y = outputs_of(self.net, x)
        if not isinstance(y, Moments):
            raise ExportError(
                f"export: {type(self.net).__name__} gives {type(y).__name__}, not Moments; convert it with "
                "bedl.bayesianize, or export a method, such as BEDL(net, head)"
            )
        none = torch.zeros_like(y.variance)
        return NormalPredictive(y.loc, none, none, y.variance)


def _scaled(model: nn.Module, options: ExportOptions) -> nn.Module:
    """The model behind the scaling of its inputs, and before that of its targets."""
    if options.target_scale is not None:
        loc, size = _pair(options.target_scale)
        model = InUnits(model, loc, size)
    if options.input_scale is not None:
        model = nn.Sequential(Standardize(*_pair(options.input_scale)), model)
    return model


def _pair(scaling: tuple[Any, Any]) -> Sequence[Tensor]:
    return torch.broadcast_tensors(*(torch.as_tensor(part).detach().cpu().float() for part in scaling))


class _Named(nn.Module):
    """A model whose inputs come one after the other, and whose outputs go by their names."""

    def __init__(self, model: nn.Module, inputs: Inputs, spread: bool):
        super().__init__()
        self.model, self.inputs, self.spread = model, inputs, spread

    def predict(self, *parts: Tensor) -> Predictive:
        prediction = self.model(self.inputs.together(parts))
        if not isinstance(prediction, Predictive):
            raise ExportError(f"a model to export must predict a bedl Predictive, not {type(prediction).__name__}")
        return prediction

    def forward(self, *parts: Tensor) -> dict[str, Tensor]:
        # aleatoric is data: two outputs of a graph need two tensors, or one of them loses its name
        prediction = self.predict(*parts)
        outputs = prediction.outputs()
        if self.spread:
            if isinstance(prediction, LinkedPredictive):
                outputs["linked_centre"] = prediction.base.mean
                outputs["linked_spread"] = prediction.base.std
            else:
                outputs["spread"] = prediction.std
        return {name: value.clone() for name, value in outputs.items()}

    def describe(self, *parts: Tensor) -> tuple[str, int, bool]:
        """Name of the task, number of classes or targets, and whether each point has them at many places."""
        with torch.no_grad():
            prediction = self.predict(*parts)
        if prediction.mean.shape[:1] != parts[0].shape[:1] or prediction.mean.ndim < 2:
            raise ExportError(
                f"export: a prediction must have the shape (n, classes or targets), or of dense outputs (n, *places, "
                f"classes or targets), not {tuple(prediction.mean.shape)}"
            )
        return tasks.get(prediction.task).name, prediction.mean.shape[-1], prediction.mean.ndim > 2


class _OneHead(nn.Module):
    """An ensemble for classes with the members' outputs stacked: one race in the graph instead of one per member."""

    def __init__(self, members: Sequence[BEDL]):
        super().__init__()
        self.nets, self.picked = nn.ModuleList([m.net for m in members]), [m.output for m in members]
        self.head: Any = copy.copy(members[0].head)
        self.dim, self.head.dim = self.head.dim, -1  # where `check_outputs` puts it

    def forward(self, x: Any) -> Predictive:
        given = [outputs_of(net, x, output) for net, output in zip(self.nets, self.picked, strict=True)]
        outputs = [self.head.check_outputs(f, self.dim) for f in given]
        f = Moments(*(torch.stack(part) for part in zip(*outputs, strict=True)))
        prediction = self.head(f)
        return mixture([prediction[i] for i in range(len(outputs))])


def _with_one_head(ensemble: Ensemble) -> nn.Module:
    members = ensemble.members
    if not all(type(member) is BEDL and type(member.head) is Dirichlet for member in members):
        return ensemble
    kinds = {(h.n_classes, h.nodes, h.components, h.dim) for h in (member.head for member in members)}
    return _OneHead(members) if len(kinds) == 1 else ensemble
