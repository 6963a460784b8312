"""A converted network against the plain one: with all variances zero they are the same, or it is another network.

Code that asks `isinstance(x, torch.Tensor)` takes its other branch when x is Moments, without a word. Moments cannot
say that they are tensors: PyTorch's own C code asks the same question, and would then read memory that is not there. So
the two networks are run, and everything that enters or leaves one of their modules is compared; then their gradients.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bedl.moments import Moments
from bedl.nn.convert import deterministic
from bedl.nn.draws import seeded
from bedl.nn.layers import GaussianLayer
from bedl.nn.modes import drawing

__all__ = [
    "calls_of_layers", "error_of_sharing", "names_by_weight", "ratios_of_modules", "where_gradients_part",
    "where_they_part", "without_variances",
]  # fmt: skip

Event = tuple[str, str, list[Tensor]]  # "enter" or "leave", the module's name, what it was given or gave
DIFFERENT, NEGLIGIBLE = 0.03, 1e-4  # relative differences of gradients that count, and sizes that do not
KINK = 1e-3  # how far values are moved to be at no kink
DRAWS = 50  # of all weights, to see what sharing a layer comes to


def without_variances(net: nn.Module) -> nn.Module:
    """A copy in which every Gaussian weight has variance 0."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        if isinstance(layer, GaussianLayer):
            for name in layer.gaussian_parameters:
                logvar = layer._parameters.get(f"{name}_logvar")
                if logvar is not None:
                    logvar.data.fill_(-math.inf)
    return net


@torch.no_grad()
def where_they_part(net: nn.Module, inputs: tuple, kwargs: dict) -> str | None:
    """Name of the module in which a network with Gaussian layers does something else than the plain network does.

    Both run once, in evaluation mode, on copies.

    Args:
        net: the network with Gaussian layers.
        inputs, kwargs: what it is called with: tensors or Moments, with values.

    Returns:
        the dotted path (the class name for the network itself), or None: they agree, or one of them cannot be run.
    """
    inputs, kwargs = pytree.tree_map_only(Moments, lambda x: x.loc, (inputs, kwargs), is_leaf=_is_moments)
    plain: list[Event] = []
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # one call for a whole layer; its modules would not be seen
    try:
        _traced(deterministic(net), inputs, kwargs, plain)
    except Exception:
        return None  # a network that is written for Moments alone
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    gaussian: list[Event] = []
    failed = False
    try:
        _traced(without_variances(net), inputs, kwargs, gaussian)
    except Exception:  # perhaps because they have parted before
        failed = True
    return _first_difference(plain, gaussian, failed)


def _first_difference(plain: list[Event], gaussian: list[Event], failed: bool) -> str | None:
    open_modules: list[str] = []
    for (kind, name, values), other in zip(plain, gaussian, strict=False):
        if (kind, name) != other[:2] or not _agree(values, other[2]):
            return name if kind == "leave" or not open_modules else open_modules[-1]
        if kind == "enter":
            open_modules.append(name)
        else:
            open_modules.pop()
    if len(plain) == len(gaussian) or failed:  # an operation that fails is what `check` reports by itself
        return None
    return open_modules[-1] if open_modules else plain[0][1]


def _traced(net: nn.Module, inputs: tuple, kwargs: dict, events: list[Event]) -> None:
    """Run a network, and note what enters and leaves each of its modules."""
    names = {module: name or type(module).__name__ for name, module in net.named_modules()}

    def enter(module: nn.Module, args: tuple, kwargs: dict) -> None:
        events.append(("enter", names[module], _values((args, kwargs))))

    def leave(module: nn.Module, args: tuple, result: Any) -> None:
        events.append(("leave", names[module], _values(result)))

    net.eval()
    for module in names:
        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)
    with seeded(_device(net), 0):
        net(*copy.deepcopy(inputs), **copy.deepcopy(kwargs))


def _device(net: nn.Module) -> torch.device:
    return next((p.device for p in net.parameters()), torch.device("cpu"))


def _is_moments(x: Any) -> bool:
    return isinstance(x, Moments)


def _values(tree: Any) -> list[Tensor]:
    """Tensors, and means of Moments, as they are now: later operations may work in place."""
    leaves = (x.loc if isinstance(x, Moments) else x for x in pytree.tree_leaves(tree, is_leaf=_is_moments))
    return [x.detach().clone() for x in leaves if isinstance(x, Tensor)]


def _agree(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether values are the same but for rounding, relative to the largest of each tensor."""
    if [x.shape for x in one] != [x.shape for x in other]:
        return False
    for a, b in zip(one, other, strict=True):
        if a.is_floating_point() and b.is_floating_point():
            scale = a.abs().nan_to_num(0.0, 0.0).max().item() if a.numel() else 0.0
            tolerance = max(torch.finfo(a.dtype).eps, torch.finfo(torch.float32).eps) ** 0.5 * scale
            if not torch.allclose(a, b.to(a.dtype), rtol=0.0, atol=tolerance, equal_nan=True):
                return False
        elif not torch.equal(a, b):
            return False
    return True


# -- gradients -----------------------------------------------------------------------------------
def where_gradients_part(net: nn.Module, inputs: tuple, kwargs: dict) -> list[tuple[str, str]]:
    """Modules whose parameters have other gradients than in the plain network, though all variances are zero.

    One backward of each, in evaluation mode, on copies, of the same random weighted sum of the outputs. Where either
    cannot be run, or works in half precision, nothing is compared.

    Args:
        net: the network with Gaussian layers.
        inputs, kwargs: what it is called with: tensors or Moments, with values.

    Returns:
        dotted paths (the class name for the network itself), each with "missing" or "different".
    """
    inputs, kwargs = pytree.tree_map_only(Moments, lambda x: x.loc, (inputs, kwargs), is_leaf=_is_moments)
    with torch.no_grad(), seeded(_device(net), 0):
        net, (inputs, kwargs) = _off_kinks(net), pytree.tree_map_only(Tensor, _jittered, (inputs, kwargs))
    try:
        plain = _gradients(deterministic(net), inputs, kwargs)
        gaussian = _gradients(without_variances(net), inputs, kwargs)
    except Exception:  # a network that is written for Moments alone, or that has no backward in evaluation mode
        return []
    norms = {name: float(gradient.norm()) for name, gradient in plain.items()}
    least = NEGLIGIBLE * max(norms.values(), default=0.0)  # less is rounding, as of the bias of keys before a softmax
    parted: dict[str, str] = {}
    for name, gradient in plain.items():
        other = gaussian[name] if name in gaussian else gaussian[f"{name}_mean"]
        if norms[name] > least and not float((gradient - other).norm()) <= DIFFERENT * norms[name]:
            module = name.rpartition(".")[0] or type(net).__name__
            parted[module] = "different" if bool(other.any()) or parted.get(module) == "different" else "missing"
    return list(parted.items())


def _off_kinks(net: nn.Module) -> nn.Module:
    """A copy whose biases are moved a little: at exactly 0, a ReLU has no derivative, and two right answers differ."""
    net = copy.deepcopy(net)
    for p in net.parameters():
        if p.dim() <= 1 and p.is_floating_point() and torch.isfinite(p).all():
            p.add_(KINK * torch.randn_like(p))
    return net


def _jittered(x: Tensor) -> Tensor:
    return x + KINK * torch.randn_like(x) if x.is_floating_point() else x


def _gradients(net: nn.Module, inputs: tuple, kwargs: dict) -> dict[str, Tensor]:
    """Of a weighted sum of all outputs, by the parameters' names; zero where none arrives."""
    net.eval()
    precise = (torch.float32, torch.float64)
    parameters = {name: p for name, p in net.named_parameters() if p.requires_grad and p.dtype in precise}
    with torch.enable_grad(), seeded(_device(net), 0):
        found = net(*copy.deepcopy(inputs), **copy.deepcopy(kwargs))
        leaves = (x.loc if isinstance(x, Moments) else x for x in pytree.tree_leaves(found, is_leaf=_is_moments))
        outputs = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(x.shape, generator=generator).to(x) for x in outputs]
        gradients = torch.autograd.grad(outputs, list(parameters.values()), weights, allow_unused=True)
    pairs = zip(parameters.items(), gradients, strict=True)
    return {name: torch.zeros_like(p) if g is None else g.detach().double() for (name, p), g in pairs}


# -- what approximations come to -------------------------------------------------------------------
@torch.no_grad()
def ratios_of_modules(net: nn.Module, inputs: tuple, kwargs: dict, draws: int = 10) -> dict[str, float]:
    """Standard deviations of one pass over those of drawn weights, at what each module gives, in the order of the pass.

    Geometric means over all values, from a handful of draws: to some ten percent where there are few values. Modules
    that give nothing random, or are called more than once, are left out.
    """
    net = copy.deepcopy(net).eval()
    one_pass = _left(net, inputs, kwargs, lambda x: x.variance if isinstance(x, Moments) else None)
    spread: dict[str, list[Any]] = {}
    with seeded(_device(net), 0), drawing(net, once=True):
        for _ in range(draws):
            for name, value in _left(net, inputs, kwargs, lambda x: x if isinstance(x, Tensor) else None).items():
                spread.setdefault(name, []).append(value)
    # the logarithm of a variance from few draws is low, by as much as is known
    half = torch.tensor((draws - 1) / 2, dtype=torch.float64)
    low = torch.digamma(half) - half.log()
    found = {}
    for name, variance in one_pass.items():
        drawn = spread.get(name, [])
        if len(drawn) == draws and all(value.shape == variance.shape for value in drawn):
            logs = variance.double().log() - torch.stack(drawn).double().var(0).log() + low
            logs = logs[logs.isfinite()]
            if len(logs):
                found[name] = (logs.mean() / 2).exp().item()
    return found


def _left(net: nn.Module, inputs: tuple, kwargs: dict, read: Callable[[Any], Tensor | None]) -> dict[str, Tensor]:
    """What the modules of a network give, read, but for those that are called more than once."""
    found: dict[str, Tensor] = {}
    calls: Counter[str] = Counter()

    def watch(name: str) -> Callable[..., None]:
        def leave(module: nn.Module, args: tuple, result: Any) -> None:
            calls.update([name])
            value = read(result)
            if value is not None and value.is_floating_point():
                found[name] = value.clone()

        return leave

    names = {name or type(net).__name__: module for name, module in net.named_modules()}
    handles = [module.register_forward_hook(watch(name)) for name, module in names.items()]
    try:
        net(*copy.deepcopy(inputs), **copy.deepcopy(kwargs))
    finally:
        for handle in handles:
            handle.remove()
    return {name: value for name, value in found.items() if calls[name] == 1}


# -- layers that are used more than once ---------------------------------------------------------
def names_by_weight(net: nn.Module) -> dict[str, str]:
    """For each Gaussian layer's name, that of the first layer with the same weight: its own, as a rule."""
    first: dict[int, str] = {}
    gaussian = {name: layer for name, layer in net.named_modules() if isinstance(layer, GaussianLayer)}
    return {name: first.setdefault(layer.weight_key(), name) for name, layer in gaussian.items()}


@contextmanager
def calls_of_layers(net: nn.Module, names: dict[str, str]) -> Iterator[Counter[str]]:
    """Inside the block, count the calls of layers, under the names that `names` has for theirs."""
    calls: Counter[str] = Counter()

    def counts(name: str) -> Callable[..., None]:
        return lambda *_: calls.update([name or type(net).__name__])

    handles = [net.get_submodule(name).register_forward_pre_hook(counts(as_)) for name, as_ in names.items()]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def error_of_sharing(net: nn.Module, inputs: tuple, kwargs: dict) -> float:
    """Standard deviations of the outputs if each call draws weights of its own, over those with one draw for all calls.

    A geometric mean over the outputs; from draws, so to some percent. NaN where no output varies.
    """
    net = copy.deepcopy(net).eval()
    logs = []
    with seeded(_device(net), 0):
        for once in (False, True):
            with drawing(net, once=once):
                draws = [_values(net(*copy.deepcopy(inputs), **copy.deepcopy(kwargs))) for _ in range(DRAWS)]
            outputs = (torch.stack(draw) for draw in zip(*draws, strict=True))
            logs.append([x.double().var(0).log().flatten() / 2 for x in outputs if x.is_floating_point()])
    difference = torch.cat([a - b for a, b in zip(*logs, strict=True)])
    difference = difference[difference.isfinite()]
    return difference.mean().exp().item() if len(difference) else math.nan
