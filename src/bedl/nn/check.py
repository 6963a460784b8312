"""A converted network against the plain one: with all variances zero they are the same, or it is another network.

Code that asks `isinstance(x, torch.Tensor)` takes its other branch when x is Moments, without a word. Moments cannot
say that they are tensors: PyTorch's own C code asks the same question, and would then read memory that is not there. So
the two networks are run, and everything that enters or leaves one of their modules is compared; then their gradients.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bedl._utils.errors import BEDLError, UnsupportedOperationError, function_name, module_path
from bedl.moments import Moments, dispatch
from bedl.moments.rules import approximation
from bedl.nn import bayesianize, kept_deterministic
from bedl.nn.calling import pick
from bedl.nn.compat import computed_by
from bedl.nn.convert import deterministic
from bedl.nn.correction import log_std_ratios
from bedl.nn.draws import seeded
from bedl.nn.layers import GaussianLayer
from bedl.nn.points import draws_of_points
from bedl.nn.sampling import drawing

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
def first_mismatch(net: nn.Module, inputs: tuple, kwargs: dict) -> str | None:
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
def first_gradient_mismatch(net: nn.Module, inputs: tuple, kwargs: dict) -> list[tuple[str, str]]:
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
    found = {}
    for name, variance in one_pass.items():
        drawn = spread.get(name, [])
        if len(drawn) == draws and all(value.shape == variance.shape for value in drawn):
            logs = log_std_ratios(variance, torch.stack(drawn))
            if len(logs):
                found[name] = logs.mean().exp().item()
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


# `bedl.check`: every operation that meets Moments in a network, its rule, and whether the network stays itself.


MIN_RATIO = 1.25  # from which ratio of standard deviations on `check` says so
SHOWN = 20  # parameters that are named
MAX_DRAWN_WEIGHTS = 2**22  # weights, of all points together, that are drawn in a moment


@dataclasses.dataclass(frozen=True)
class Operation:
    """One operation of a network: where it is called, what it is, and what answers for it."""

    path: str
    function: str
    answer: str  # "exact", how it approximates, or "no rule: …"
    supported: bool


@dataclasses.dataclass(frozen=True)
class SharedLayer:
    """A Gaussian layer, or several with one weight, that one pass calls more than once."""

    path: str
    calls: int
    error: float = math.nan  # standard deviations with a draw for each call over those with one draw; NaN: not known

    def __str__(self) -> str:
        text = f"{self.path} is called {self.calls} times in a pass, each time as if its weights were drawn anew"
        if math.isnan(self.error):
            return text + ", so standard deviations behind it may be off"
        return text + f": the network's standard deviations come out {self.error:.2g} × as large for that"


@dataclasses.dataclass(frozen=True)
class Report:
    """What `bedl.check` found; print it, or read `operations`, `unsupported`, `ok`."""

    operations: tuple[Operation, ...]
    kept: tuple[tuple[str, str], ...]  # (name, type) of modules whose parameters stay point values
    failure: str = ""  # why the walk through the network ended early, if it did
    parting: str = ""  # the module that does something else with Moments than with tensors, if there is one
    shared: tuple[SharedLayer, ...] = ()  # layers that are called more than once in a pass
    returns: str = ""  # what the network returns, if no head can take it
    gradients: tuple[tuple[str, str], ...] = ()  # modules, and whether their gradients are "missing" or "different"
    compared: bool = False  # whether the network ran on values, beside the plain one
    draws: tuple[str, ...] = ()  # what `sampled` does where rows are not data points, in words
    ratios: tuple[tuple[str, float], ...] = ()  # std of one pass over that of a handful of draws, behind each module
    points: tuple[str, ...] = ()  # paths of the parameters of `kept`, which stay point values
    dropped: tuple[tuple[str, str], ...] = ()  # (layer, what computed its weights, which are free means now)
    at_start: bool = False  # whether log-variances are those that layers start from

    @property
    def unsupported(self) -> tuple[Operation, ...]:
        return tuple(op for op in self.operations if not op.supported)

    @property
    def ok(self) -> bool:
        return not self.unsupported and not self.failure and not self.parting and not self.gradients

    @property
    def verdict(self) -> str:
        """One of "fine"; "fine, but trained otherwise", if what is learned is not what the code says; or "wrong"."""
        if not self.ok:
            return "wrong"
        own = [kind for _, kind in self.kept if not hasattr(nn, kind)]  # weights that no layer of torch's holds
        otherwise = self.dropped or self.shared or own or self._is_off()
        return "fine, but trained otherwise" if otherwise else "fine"

    def _is_off(self) -> bool:
        return bool(self.ratios) and abs(math.log(self.ratios[-1][1])) > math.log(MIN_RATIO)

    def __bool__(self) -> bool:
        return self.ok

    def _where(self) -> str:
        """The innermost modules behind which the ratio changes most, in a few words."""
        names = [name for name, _ in self.ratios]
        inner = [(n, r) for n, r in self.ratios if not any(other.startswith(f"{n}.") for other in names)]
        inner = [(n, r) for n, r in inner if n != names[-1]] or [self.ratios[-1]]
        before = [1.0, *(r for _, r in inner[:-1])]
        steps = [(name, math.log(r / b)) for (name, r), b in zip(inner, before, strict=True)]
        way = math.copysign(1.0, math.log(self.ratios[-1][1]))  # too small or too large
        steps = sorted((step for step in steps if way * step[1] > 0), key=lambda step: -abs(step[1]))
        return ", ".join(f"'{name}' ({math.exp(step):.2g} ×)" for name, step in steps[:3]) or "several modules"

    def __str__(self) -> str:
        width = max((len(op.path) for op in self.operations), default=0)
        name = max((len(op.function) for op in self.operations), default=0)
        lines = [f"{op.path:<{width}}  {op.function:<{name}}  {op.answer}" for op in self.operations]
        if self.points:
            rest = f" and {len(self.points) - SHOWN} more" if len(self.points) > SHOWN else ""
            lines.append("parameters that stay point values: " + ", ".join(self.points[:SHOWN]) + rest)
        lines += [f"{what} of '{name}' is dropped: its weights are trained freely" for name, what in self.dropped]
        lines += [str(layer) for layer in self.shared]
        lines += self.draws
        if self._is_off():
            when = "those at the start; check the trained network again" if self.at_start else "as they are now"
            lines.append(
                f"standard deviations come out {self.ratios[-1][1]:.2g} × as large as those of drawn weights, on this "
                f"example and by a handful of draws (variances: {when}); most of it arises in {self._where()}. "
                "bedl.nn.correct_variances corrects it in the linear and convolutional layers behind the first"
            )
        if self.parting:
            lines.append(
                f"module '{self.parting}' does something else with Moments than with tensors: without variances, what "
                "comes out of it is not what the plain network gives. Look there for isinstance(x, torch.Tensor) or "
                "torch.is_tensor(x), which Moments are not, and let it ask for bedl.Moments too; or for an in-place "
                "operation on a tensor that is used under two names, and write it without the underscore"
            )
        for how in ("missing", "different"):
            if parted := [f"'{name}'" for name, this in self.gradients if this == how]:
                lines.append(
                    f"gradients of {', '.join(parted)} are {how}: without variances, they are not those of the plain "
                    "network. Look behind the last of these modules for code that leaves Moments, such as "
                    "torch.no_grad, .detach or a Moments made anew"
                )
        if self.returns:
            lines.append(
                f"the network returns a {self.returns}: say which of its outputs a head is to read, "
                "BEDL(net, head, output=…)"
            )
        without = len(self.unsupported)
        total = f"{len(self.operations)} operations, "
        if self.failure:
            total += f"{without} of them without a rule; not checked to the end: it stopped {self.failure}"
        else:
            total += f"{without} without a rule" if without else "every one has a rule"
        return "\n".join([*lines, f"{total}: {self.verdict}"])


def _drawn_ratios(net: nn.Module, inputs: tuple, kwargs: dict) -> tuple[tuple[str, float], ...]:
    """What approximations come to, for networks that are drawn in a moment."""
    weights = sum(p.numel() for layer in net.modules() if isinstance(layer, GaussianLayer) for p in layer.parameters())
    points = max(
        (x.shape[0] for x in pytree.tree_leaves((inputs, kwargs)) if isinstance(x, Tensor) and x.ndim), default=1
    )
    if weights * points > MAX_DRAWN_WEIGHTS:
        return ()
    try:
        return tuple(ratios_of_modules(net, inputs, kwargs).items())
    except Exception:  # weights cannot be drawn for every network whose moments are known
        return ()


def check(module: nn.Module, *inputs: Any, **kwargs: Any) -> Report:
    """List every operation that `module` would call on Moments, with its rule or "no rule: …".

    The network is walked through once without data or arithmetic (on torch's meta device; where it reads values, on
    the example), and goes on past operations without a rule, so that all of them are listed at once. If that goes
    well, a copy of it runs with all variances zero beside the plain network, in evaluation mode: where their values
    part, the code does something else with Moments than with tensors (`parting`); where gradients of a backward do, it
    would be trained otherwise (`gradients`). Where layers are called more than
    once, which one pass takes for independent draws, weights are drawn to see what that comes to (`shared`). A handful
    of draws of small networks shows how far standard deviations are off, at the variances as they are, and behind which
    modules (`ratios`): check a trained network again. The last line ends in one of three ways (`verdict`): fine; fine,
    but trained otherwise, where parameters of no layer of torch's stay points (`points`), parametrisations are dropped
    (`dropped`), layers are shared or standard deviations are off; wrong.

    Args:
        module: a network, with Gaussian layers already or as it would be after `bayesianize`.
        inputs, kwargs: an example input. Without one, an input that fits the first layer is tried.

    Returns:
        a report that is true where nothing stands in the way; print it.

    Example:
        >>> import bedl, torch
        >>> from torch import nn
        >>> print(bedl.check(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Tanhshrink())))
        0  torch.nn.functional.linear      exact
        1  torch.nn.functional.relu        exact
        2  torch.nn.functional.tanhshrink  no rule: its result for random inputs is not defined here
        3 operations, 1 without a rule: wrong
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"check takes an nn.Module, not {type(module).__name__}")
    if not inputs and not kwargs:
        inputs = _fitting_input(copy.deepcopy(module).to("meta"))
    net = module
    if not any(isinstance(m, GaussianLayer) for m in module.modules()):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of code that may part from the plain network: that is looked at below
            net = bayesianize(module)
    found = _look_at(module, net)
    report = dataclasses.replace(_walk(net, inputs, kwargs, torch.device("meta")), **found)
    has_values = not any(p.is_meta for p in net.parameters())
    if has_values:
        inputs, kwargs = pytree.tree_map_only(Tensor, _with_values(net), (inputs, kwargs))
    if has_values and report.failure:  # networks read values (`.item()`) and make tensors without a device
        report = dataclasses.replace(_walk(net, inputs, kwargs, None), **found)
    if report.unsupported or not has_values:
        return report
    parting = first_mismatch(net, inputs, kwargs) or ""
    shared, ratios = report.shared, () if report.failure else _drawn_ratios(net, inputs, kwargs)
    if shared and not report.failure:
        error = error_of_sharing(net, inputs, kwargs)
        shared = tuple(dataclasses.replace(layer, error=error) for layer in shared)
    gradients = () if report.failure or parting else tuple(first_gradient_mismatch(net, inputs, kwargs))
    draws = () if report.failure else draws_of_points(net, inputs, kwargs)
    return dataclasses.replace(
        report, parting=parting, gradients=gradients, shared=shared, compared=True, ratios=ratios, draws=draws
    )


def _look_at(module: nn.Module, net: nn.Module) -> dict[str, Any]:
    """What is known of a network without a pass.

    Args:
        module: as it was given.
        net: with Gaussian layers.
    """
    gaussian = {name: layer for name, layer in net.named_modules() if isinstance(layer, GaussianLayer)}
    points = tuple(
        f"{name}.{parameter}".lstrip(".")
        for name, _ in kept_deterministic(net)
        for parameter, value in net.get_submodule(name)._parameters.items()
        if value is not None
    )
    dropped = tuple((name, what) for name in gaussian for what in computed_by(module.get_submodule(name)))
    logvars = [
        (layer._parameters.get(f"{weight}_logvar"), layer.init_logvar)
        for layer in gaussian.values()
        for weight in layer.gaussian_parameters
    ]
    at_start = all(
        p is None or p.is_meta or bool(((p == start) | ((p - start).abs() < 0.01)).all()) for p, start in logvars
    )
    return {"points": points, "dropped": dropped, "at_start": at_start}


def _walk(net: nn.Module, inputs: tuple, kwargs: dict, device: torch.device | None) -> Report:
    """What a network with Gaussian layers calls; on the meta device, found out without arithmetic."""
    names = names_by_weight(net)  # moving to another device parts layers that share a weight
    net = copy.deepcopy(net)
    if device is not None:
        net = net.to(device)
        inputs, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(device), (inputs, kwargs))
    listener = _Listener()
    failure, returns = "", ""
    dispatch._scope.listener = listener
    try:
        with torch.no_grad(), calls_of_layers(net, names) as calls:
            found = net(*inputs, **kwargs)
            returns = _unread(found)
    except Exception as error:  # whatever the network raises is a finding here
        failure = f"in module '{module_path_of(error)}': {type(error).__name__}: {error}"
    finally:
        dispatch._scope.listener = None
    shared = tuple(SharedLayer(path, count) for path, count in calls.items() if count > 1)
    return Report(tuple(listener.operations), tuple(kept_deterministic(net)), failure, shared=shared, returns=returns)


def _unread(found: Any) -> str:
    """What a network gives, if a head would not know which part of it to read."""
    try:
        return "" if isinstance(pick(found), (Moments, Tensor)) else type(found).__name__
    except BEDLError:
        return type(found).__name__


def _with_values(net: nn.Module) -> Callable[[Tensor], Tensor]:
    """Values for an input of which only the shape is known, or that is all the same and would show nothing."""
    device = next((p.device for p in net.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)

    def fill(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return torch.zeros_like(x, device=device) if x.is_meta else x
        if x.is_meta or bool((x == x.flatten()[:1]).all()):
            return torch.randn(x.shape, generator=generator).to(x.dtype).to(device if x.is_meta else x.device)
        return x

    return fill


class _Listener:
    """Stands at the door in place of the rules: notes each operation, then lets the rule answer on meta tensors."""

    def __init__(self) -> None:
        self.operations: dict[Operation, None] = {}

    def __call__(self, func: Callable, rule: Callable | None, args: tuple, kwargs: dict) -> Any:
        path, why = module_path(), dispatch.why_missing(func) or "its result for random inputs is not defined here"
        dispatch._scope.listener = None  # a rule's own operations are its business
        try:
            if rule is not None:
                try:
                    result = dispatch.apply_rule(func, rule, args, kwargs)
                    self._note(path, func, approximation(rule, args, kwargs) or "exact", True)
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
