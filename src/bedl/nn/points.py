"""Which rows of a layer's input belong to which data point, found out by changing some of the points.

Weights that are drawn for each data point have to know it, and shapes do not say it: code folds positions into rows
(`x.reshape(-1, d)`), puts the points on another axis, or mixes them (graphs, batch statistics). So a copy of the
network runs on a few points with its weights at their means, and again with some of the points changed: rows that
change are theirs. Where that leaves a doubt all points share one draw, which is right for each of them.
"""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils import _pytree as pytree

from bedl.moments import Moments
from bedl.nn.compat import copied
from bedl.nn.draws import Draws, RowLayout, Sharing, WatchedWeight, seeded
from bedl.nn.layers import GaussianLayer, GaussianLinear

# Which points are changed first; the others are changed after that. A prime number of them, and no regular pattern, so
# that neither the sizes nor the strides of a network's own axes are taken for theirs.
_CHANGED = (True, False, False, True, True, False, True)

UNCALLED = "it was not called"
UNKNOWN = "which of its rows belong to which data point is not known"
USED = "its weight is used other than by calling the layer"
CONSTANT = "its input does not depend on the data points"
MIXED = "what the network makes of a data point depends on the others"
VARYING = "how many rows a layer has depends on their values"
FAILED = "which rows belong to which data point could not be found out"


class Shares(NamedTuple):
    """Of one call: the number of data points, and for each layer how it draws."""

    points: int
    of_layers: list[Sharing]


class _Event(NamedTuple):
    """What entered a Gaussian layer (its number, and the axis of its rows), or left a module (None)."""

    layer: int | None
    axis: int
    rows: int
    values: list[Tensor]


class PointsOfLayers:
    """For a network, on a copy of it as it is now: how its layers may draw when it, or a part of it, is called."""

    def __init__(self, module: nn.Module):
        self.modules = list(module.modules())
        self.names = {id(m): name for name, m in module.named_modules()}
        self.count = sum(isinstance(m, GaussianLayer) for m in self.modules)
        self.known: dict[Any, list[Sharing]] = {}
        self.has_warned = False
        hooks = [h for m in self.modules for h in (m._forward_hooks, m._forward_pre_hooks)]
        try:  # hooks are others' business: they are not to see what is tried out
            self.copy: nn.Module | None = copied(module, {id(hook): OrderedDict() for hook in hooks})
        except Exception:  # of modules that cannot be copied nothing is found out
            self.copy = None

    def of_call(self, part: nn.Module, args: tuple, kwargs: dict) -> Shares:
        """How the layers draw when `part`, the network or one of its modules, is called with these arguments."""
        if isinstance(part, GaussianLayer):
            return Shares(part.n_points(*args, **kwargs), [Sharing("", {1: RowLayout()}, True)] * self.count)
        leaves = [x for x in _leaves((args, kwargs)) if x.dim()]
        n = len(leaves[0]) if leaves else 0
        if n == 1:
            return Shares(1, [Sharing()] * self.count)
        where = next(i for i, m in enumerate(self.modules) if m is part)
        training = tuple(m.training for m in self.modules)
        others = [repr(x) for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, (bool, int, float, str))]
        key = (where, training, *others, *((x.shape, x.dtype) for x in leaves))
        if key not in self.known:
            self.known[key] = self._found(where, n, args, kwargs)
        return Shares(n, self.known[key])

    def notes(self, shares: Shares) -> dict[str, list[str]]:
        """Names of the layers of whose weights all points share a draw, by the reason for it."""
        notes: dict[str, list[str]] = {}
        layers = [m for m in self.modules if isinstance(m, GaussianLayer)]
        for layer, sharing in zip(layers, shares.of_layers, strict=True):
            if shares.points > 1 and sharing.reason not in ("", UNCALLED):
                notes.setdefault(sharing.reason, []).append(self.names[id(layer)] or type(layer).__name__)
        return notes

    def said(self, shares: Shares) -> str:
        """The same in words; empty if there are none."""
        notes = self.notes(shares).items()
        reasons = "; ".join(f"{', '.join(map(repr, names))} ({reason})" for reason, names in notes)
        return f"all data points of a call share one draw of the weights of {reasons}" if reasons else ""

    def folded(self, shares: Shares) -> str:
        """Which layers have several rows for each data point, in words; empty if there are none."""
        names: dict[int, list[str]] = {}
        layers = [m for m in self.modules if isinstance(m, GaussianLayer)]
        for layer, sharing in zip(layers, shares.of_layers, strict=True):
            for rows in sharing.rows:
                names.setdefault(rows, []).append(self.names[id(layer)] or type(layer).__name__)
        return "; ".join(
            f"{', '.join(some)}: {rows} rows for each data point" for rows, some in names.items() if rows > 1
        )

    def warn(self, shares: Shares) -> None:
        """Say once what points share."""
        said = self.said(shares)
        if said and not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"sampled: {said}. Each point is "
                "distributed as it should be, but not independent of the others: for more draws call again rather than "
                "with the points repeated. per='call' says that this is what you want",
                stacklevel=2,
            )

    @torch.no_grad()
    def _found(self, where: int, n: int, args: tuple, kwargs: dict) -> list[Sharing]:
        try:
            assert self.copy is not None
            for module, original in zip(self.copy.modules(), self.modules, strict=True):
                module.training = original.training
            part, used = list(self.copy.modules())[where], set[int]()
            few = min(n, len(_CHANGED))
            inputs = pytree.tree_map(lambda x: _first(x, n, few), (args, kwargs), is_leaf=_is_moments)
            which = torch.tensor(_CHANGED[:few])
            runs = [self._run(part, inputs, used)]
            for changed in (which, ~which):
                other = _changed(inputs, changed)
                runs.append(self._run(part, other, used))
            if len({len(run) for run in runs}) > 1:
                return [Sharing(VARYING)] * self.count
            return self._judged(list(zip(*runs, strict=True)), used, which)
        except Exception:  # of whatever kind: inputs that are changed may be none that the network takes
            return [Sharing(FAILED)] * self.count

    def _run(self, part: nn.Module, inputs: Any, used: set[int]) -> list[_Event]:
        """Run the copy with weights at their means, and note what enters its layers and leaves its modules."""
        assert self.copy is not None
        events: list[_Event] = []
        handles = []
        inside: list[int] = [0]
        layers = [m for m in self.copy.modules() if isinstance(m, GaussianLayer)]
        for number, layer in enumerate(layers):
            layer.is_sampling, layer.drawn = True, _Means(number, events, used, inside)

        def leave(module: nn.Module, args: tuple, result: Any) -> None:
            events.append(_Event(None, 0, 0, _values(result)))

        for module in self.copy.modules():
            handles.append(module.register_forward_hook(leave))
        args, kwargs = copy.deepcopy(inputs)
        try:
            with seeded(next(self.copy.parameters()).device, 0):
                part(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        return events

    def _judged(self, events: list[tuple[_Event, ...]], used: set[int], which: Tensor) -> list[Sharing]:
        reasons: dict[int, str] = dict.fromkeys(used, USED)
        layouts: list[dict[int, RowLayout]] = [{} for _ in range(self.count)]
        layers = [m for m in self.modules if isinstance(m, GaussianLayer)]
        single = [isinstance(layer, GaussianLinear) for layer in layers]
        for event, *others in events:
            if any(
                (o.layer, [x.shape for x in o.values]) != (event.layer, [x.shape for x in event.values]) for o in others
            ):
                return [Sharing(VARYING)] * self.count
            changes = [
                tuple(_differ(a, b) for b in bs)
                for a, *bs in zip(event.values, *(o.values for o in others), strict=True)
            ]
            if not all(_are_separate(change, which) for change in changes):
                return [Sharing(MIXED)] * self.count
            if (at := event.layer) is None:
                continue
            if not any(c.any() for change in changes for c in change):
                reasons.setdefault(at, CONSTANT)
                continue
            layer, first = layers[at], changes[0]
            fits = [
                rows for rows in _layouts(first[0], event.axis, len(which)) if _owned(first, event.axis, rows, which)
            ]
            known = layouts[at].get(fits[0].per_point, fits[0]) if len(fits) == 1 else None
            if known is None or known != fits[0] or (known.per_point > 1 and not layer.takes_groups):
                reasons.setdefault(at, UNKNOWN)
            else:
                layouts[at][known.per_point] = known
            single[at] &= event.values[0].dim() == 2 and known == RowLayout()
        return self._by_weight(layers, reasons, layouts, single)

    def _by_weight(
        self,
        layers: list[GaussianLayer],
        reasons: dict[int, str],
        layouts: list[dict[int, RowLayout]],
        single: list[bool],
    ) -> list[Sharing]:
        """Layers draw alike that have one weight, and those that one is a part of."""
        numbers = {id(layer): i for i, layer in enumerate(layers)}
        for i, layer in enumerate(layers):
            for part in layer.modules():
                if reasons.get(numbers.get(id(part), -1)) == USED:
                    reasons[i] = USED
        found = []
        for layer in layers:
            same = [i for i, other in enumerate(layers) if other.weight_key() == layer.weight_key()]
            rows: dict[int, RowLayout] = {}
            reason = next((reasons[i] for i in same if i in reasons), "")
            for i in same:
                if any(rows.get(k, layout) != layout for k, layout in layouts[i].items()):
                    reason = reason or UNKNOWN
                rows.update(layouts[i])
            reason = reason or ("" if rows else UNCALLED)
            found.append(Sharing(reason, {} if reason else rows, all(single[i] for i in same)))
        return found


def draws_of_points(net: nn.Module, inputs: tuple, kwargs: dict) -> tuple[str, ...]:
    """What `bedl.sampled` does with this input, where it is more than a draw for each data point; in words."""
    points = PointsOfLayers(copied(net).eval())
    shares = points.of_call(points.modules[0], inputs, kwargs)
    said, folded = points.said(shares), points.folded(shares)
    return tuple(
        f"in bedl.sampled {line}"
        for line in (said, f"the rows of a data point share its draw: {folded}" if folded else "")
        if line
    )


class _Means(Draws):
    """Weights at their means; notes what a layer is called with, and whether its weight is used by itself."""

    def __init__(self, number: int, events: list[_Event], used: set[int], inside: list[int]):
        super().__init__(Sharing("means"), 1, inside, True)
        self.number, self.events, self.used = number, events, used

    @contextmanager
    def call(self, layer: Any, args: tuple, kwargs: dict) -> Iterator[None]:
        if not self.inside[0]:
            packed = isinstance((*args, *kwargs.values())[0], PackedSequence)
            axis, rows = 1 if packed else layer.point_axis, layer.n_points(*args, **kwargs)
            self.events.append(_Event(self.number, axis, rows, _values((args, kwargs))))
        with super().call(layer, args, kwargs):
            yield

    def read(self, layer: Any, name: str) -> Any:
        pair = layer.random_weight(name)
        if not isinstance(pair, Moments) or self.inside[0]:
            return pair.loc if isinstance(pair, Moments) else pair
        return WatchedWeight.of(pair.loc, lambda: self.used.add(self.number))


# -- inputs ------------------------------------------------------------------------------------------
def _is_moments(x: Any) -> bool:
    return isinstance(x, (Moments, PackedSequence))


def _values(tree: Any) -> list[Tensor]:
    return [x.clone() for x in _leaves(tree)]


def _leaves(tree: Any) -> list[Tensor]:
    """The tensors of arguments or results; packed sequences as they were before."""
    found: list[Tensor] = []
    for x in pytree.tree_leaves(tree, is_leaf=_is_moments):
        if isinstance(x, PackedSequence):
            data = x.data.loc if isinstance(x.data, Moments) else x.data
            found.append(pad_packed_sequence(x._replace(data=data))[0])
        elif dataclasses.is_dataclass(x) and not isinstance(x, Moments):
            found += _leaves(list(vars(x).values()))
        elif isinstance(x, (Tensor, Moments)):
            found.append(x.loc if isinstance(x, Moments) else x)
    return found


def _first(x: Any, n: int, few: int) -> Any:
    x = x.loc if isinstance(x, Moments) else x
    if not isinstance(x, Tensor):
        return x
    return (x[:few] if x.dim() and len(x) == n else x).detach().clone()


def _changed(inputs: Any, which: Tensor) -> Any:
    """The inputs with other values for some points."""
    other = pytree.tree_map_only(Tensor, partial(_with_changes, which=which), inputs)
    pairs = zip(pytree.tree_leaves(inputs), pytree.tree_leaves(other), strict=True)
    if any(isinstance(a, Tensor) and bool(_differ(a, b).any()) for a, b in pairs):
        return other
    return pytree.tree_map_only(Tensor, partial(_with_changes, which=which, counting=True), inputs)


def _with_changes(x: Tensor, which: Tensor, counting: bool = False) -> Tensor:
    """Whole numbers may be indices: they become others of the input, or if `counting` others up to the largest."""
    if not x.dim() or len(x) != len(which) or x.dtype == torch.bool:
        return x
    each = (len(x), *[1] * (x.dim() - 1))
    if x.is_floating_point() or x.is_complex():
        spread = x.abs().mean() if x.numel() else torch.ones(())
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device)
        other = (x + noise * torch.where(spread > 0, spread, 1.0) / 8).to(x.dtype)
    elif counting:
        other = (x + 1) % (x.max() + 1)
    else:
        other = x.roll(1, 0)
        other = torch.where((other == x).reshape(len(x), -1).all(1).view(each), x.flip(-1), other)
    return torch.where(which.to(x.device).view(each), other, x)


# -- what has changed --------------------------------------------------------------------------------
def _differ(a: Tensor, b: Tensor) -> Tensor:
    return ~((a == b) | ((a != a) & (b != b)))


def _layouts(x: Tensor, axis: int, n: int) -> list[RowLayout]:
    """How an axis may consist of rows of n points."""
    size = x.shape[axis] if axis < x.dim() else 0
    if size == 0 or size % n:
        return []
    return [RowLayout()] if size == n else [RowLayout(size // n, False), RowLayout(size // n, True)]


def _owned(change: tuple[Tensor, ...], axis: int, rows: RowLayout, which: Tensor) -> bool:
    """Whether nothing has changed but the rows of the points that have, first of `which`, then of the others."""
    own = which.repeat(rows.per_point) if rows.strided else which.repeat_interleave(rows.per_point)
    first, then = (c.movedim(axis, 0).flatten(1).any(1).cpu() if c.dim() > 1 else c.cpu() for c in change)
    return not bool((first & ~own).any()) and not bool((then & own).any())


def _are_separate(change: tuple[Tensor, ...], which: Tensor) -> bool:
    """Whether the points can be told apart on some axis, or nothing depends on them."""
    if not any(bool(c.any()) for c in change):
        return True
    axes = range(change[0].dim())
    return any(_owned(change, a, rows, which) for a in axes for rows in _layouts(change[0], a, len(which)))
