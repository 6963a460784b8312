"""`bedl.check`: every operation a network would meet Moments with, and its rule, before anything is computed."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bedl import dispatch
from bedl.errors import BEDLError, UnsupportedOperationError, function_name, module_path
from bedl.moments import Moments
from bedl.nn import GaussianLayer, bayesianize, kept_deterministic
from bedl.rules import approximation

__all__ = ["Operation", "Report", "check"]


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a network: where it is called, what it is, and what answers for it."""

    path: str
    function: str
    answer: str  # "exact", how it approximates, or "no rule: …"
    supported: bool


@dataclasses.dataclass(frozen=True)
class Report:
    """What `bedl.check` found; print it, or read `operations`, `unsupported`, `ok`."""

    operations: tuple[Operation, ...]
    kept: tuple[tuple[str, str], ...]  # (name, type) of modules whose parameters stay point values
    failure: str = ""  # why the walk through the network ended early, if it did

    @property
    def unsupported(self) -> tuple[Operation, ...]:
        return tuple(op for op in self.operations if not op.supported)

    @property
    def ok(self) -> bool:
        return not self.unsupported and not self.failure

    def __str__(self) -> str:
        width = max((len(op.path) for op in self.operations), default=0)
        name = max((len(op.function) for op in self.operations), default=0)
        lines = [f"{op.path:<{width}}  {op.function:<{name}}  {op.answer}" for op in self.operations]
        if self.kept:
            lines.append(
                "parameters that stay point values: " + ", ".join(f"{n or '(root)'} ({t})" for n, t in self.kept)
            )
        without = len(self.unsupported)
        total = f"{len(self.operations)} operations, "
        if self.failure:
            total += f"{without} of them without a rule; not checked to the end: it stopped {self.failure}"
        else:
            total += f"{without} without a rule" if without else "every one has a rule"
        return "\n".join([*lines, total])


def check(module: nn.Module, *inputs: Any, **kwargs: Any) -> Report:
    """List every operation that `module` would call on Moments, with its rule or "no rule: …".

    The network is walked through once without data or arithmetic (on torch's meta device), and goes on past
    operations without a rule, so that all of them are listed at once.

    Args:
        module: a network, with Gaussian layers already or as it would be after `bayesianize`.
        inputs, kwargs: an example input (only shapes and types matter). Without one, an input that fits the first
            layer is tried.

    Example:
        >>> import bedl, torch
        >>> from torch import nn
        >>> print(bedl.check(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Softsign())))
        0  torch.nn.functional.linear    exact
        1  torch.nn.functional.relu      exact
        2  torch.nn.functional.softsign  no rule: its result for random inputs is not defined here
        3 operations, 1 without a rule
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"check takes an nn.Module, not {type(module).__name__}")
    plain = copy.deepcopy(module).to("meta")
    if not inputs and not kwargs:
        inputs = _fitting_input(plain)
    inputs, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to("meta"), (inputs, kwargs))
    net = plain if any(isinstance(m, GaussianLayer) for m in plain.modules()) else bayesianize(plain)
    listener = _Listener()
    failure = ""
    dispatch._scope.listener = listener
    try:
        with torch.no_grad():
            net(*inputs, **kwargs)
    except Exception as error:  # whatever the network raises is a finding here
        failure = f"in module '{module_path_of(error)}': {type(error).__name__}: {error}"
    finally:
        dispatch._scope.listener = None
    return Report(tuple(listener.operations), tuple(kept_deterministic(net)), failure)


class _Listener:
    """Stands at the door in place of the rules: notes each operation, then lets the rule answer on meta tensors."""

    def __init__(self) -> None:
        self.operations: dict[Operation, None] = {}

    def __call__(self, func: Callable, rule: Callable | None, args: tuple, kwargs: dict) -> Any:
        path, why = module_path(), "its result for random inputs is not defined here"
        dispatch._scope.listener = None  # a rule's own operations are its business
        try:
            if rule is not None:
                try:
                    result = dispatch.apply_rule(func, rule, args, kwargs)
                    self._note(path, func, approximation(rule) or "exact", True)
                    return result
                except UnsupportedOperationError as error:  # a rule may refuse some arguments
                    why = error.why or why
            self._note(path, func, f"no rule: {why}", False)
            return _as_if_deterministic(func, args, kwargs)
        finally:
            dispatch._scope.listener = self

    def _note(self, path: str, func: Callable, answer: str, supported: bool) -> None:
        self.operations[Operation(path, function_name(func), answer, supported)] = None


def _as_if_deterministic(func: Callable, args: tuple, kwargs: dict) -> Any:
    """What shape an operation without a rule would give; only `check` may go on from there."""
    args, kwargs = pytree.tree_map_only(Moments, lambda x: x.loc, (args, kwargs), is_leaf=_is_moments)
    result = func(*args, **kwargs)
    return pytree.tree_map_only(Tensor, lambda t: Moments(t, 0.0) if t.is_floating_point() else t, result)


def _is_moments(x: Any) -> bool:
    return isinstance(x, Moments)


def module_path_of(error: BaseException) -> str:
    """Dotted path of the innermost module on an exception's traceback."""
    modules, trace = [], error.__traceback__
    while trace is not None:
        candidate = trace.tb_frame.f_locals.get("self")
        if isinstance(candidate, nn.Module):
            modules.append(candidate)
        trace = trace.tb_next
    if not modules:
        return ""
    names = {id(m): name for name, m in modules[0].named_modules()}
    return next((names[id(m)] for m in reversed(modules) if names.get(id(m))), type(modules[0]).__name__)


def _fitting_input(module: nn.Module) -> tuple[Tensor, ...]:
    """An input, on the meta device, that the network accepts."""
    for shape, dtype in _candidates(module):
        example = torch.zeros(shape, dtype=dtype, device="meta")
        try:
            with torch.no_grad():
                copy.deepcopy(module)(example)
        except Exception:
            continue
        return (example,)
    raise BEDLError(
        "check: no input that fits this network could be guessed. Pass an example: bedl.check(model, example_input)"
    )


def _candidates(module: nn.Module) -> Iterator[tuple[tuple[int, ...], torch.dtype]]:
    """Shapes to try, from the first layer that says what it takes."""
    for layer in module.modules():
        dtype = next((p.dtype for p in layer.parameters() if p.is_floating_point()), torch.float32)
        if isinstance(layer, nn.Embedding):
            yield (2, 8), torch.long
        elif isinstance(layer, nn.Linear):
            yield (2, layer.in_features), dtype
            yield (2, 8, layer.in_features), dtype
        elif isinstance(layer, nn.MultiheadAttention):
            yield (8, 2, layer.embed_dim), dtype
        elif isinstance(layer, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            dims = len(layer.kernel_size)
            for size in (64, 32, 16, 96, 128) if dims == 3 else (224, 32, 28, 64, 128, 256, 299, 384, 512):
                yield (2, layer.in_channels, *[size] * dims), dtype
        else:
            continue
        return
