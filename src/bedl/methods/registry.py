"""Methods by name: what estimators, the command line and benches offer to choose from."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from bedl._utils.errors import BEDLError
from bedl.methods.base import Method


class UnknownMethodError(BEDLError, ValueError):
    """There is no method of this name, or it cannot do what is asked for."""


@dataclasses.dataclass(frozen=True)
class Training:
    """How a method wants to be trained where the user does not say.

    Attributes:
        epochs: how often each point is seen.
        batch_size: points per step.
        lr: learning rate of Adam, at its highest.
        early_stopping: whether points are held out to decide when to stop.
    """

    epochs: int
    batch_size: int
    lr: float
    early_stopping: bool


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a method is built for.

    Args:
        task: the task's name, such as "regression".
        n_targets: how many targets, classes or labels there are.
        input_shape: of one point.
        hidden_layers: widths of the hidden layers; "auto": as the method has it.
        activation: between them: a name, or a function that makes a module.
        net: a network of the user's own in their place: a module, or a function (n_features, n_outputs) -> module.
        front: makes what stands in front of the network, such as a scaling of the inputs; None: nothing.
        noisy: whether the inputs come with variances of their own.
        steps: whether it has to learn by steps: little by little, in an ensemble of the user's own, or stopped early.
        image_shape: of images whose pixels are the columns, (height, width) or (channels, height, width); None: the
            columns are no pixels.
        edges: of the bins of each scaled column, see `bedl.nn.QuantileCodes`; None: they were not looked at.
    """

    task: str
    n_targets: int
    input_shape: tuple[int, ...]
    hidden_layers: Any = "auto"
    activation: Any = "relu"
    net: Any = None
    front: Callable[[], nn.Module] | None = None
    noisy: bool = False
    steps: bool = False
    image_shape: tuple[int, ...] | None = None
    edges: Sequence[Tensor] | None = None


Build = Callable[..., Method]
Alias = Callable[[Problem], tuple[str, dict[str, Any]]]
Scaling = Literal["moments", "quartiles"]


@dataclasses.dataclass(frozen=True)
class MethodSpec:
    """A method that can be asked for by name.

    Attributes:
        name: the name.
        summary: what it is, in a line.
        tasks: the tasks it serves; None: all of them.
        reason: why it serves no others, as a clause; None: it could.
        needs: packages it imports beyond those of bedl itself.
        extra: the extra of bedl that brings them.
        training: how it wants to be trained, by the number of points; None: as estimators do by default.
        sized: options that follow from the number of points; None: there are none.
        scaling: of columns in front of it: by their "moments", or by their "quartiles", which outliers do not move.
        build: makes the method, from a `Problem` and options; None for a name that stands for another choice.
        distils: whether it learns from a committee's labels beside the rows' own, and from codes of quantiles.
        tempered: whether class probabilities get a temperature from points held out, unless the user says otherwise.
        choice: for such a name, which method and options it stands for.
    """

    name: str
    summary: str
    tasks: tuple[str, ...] | None = None
    reason: str | None = None
    needs: tuple[str, ...] = ()
    extra: str | None = None
    training: Callable[[int], Training] | None = None
    sized: Callable[[int], dict[str, Any]] | None = None
    scaling: Scaling = "moments"
    build: Build | None = None
    choice: Alias | None = None
    distils: bool = False
    tempered: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Names of the options, and their defaults."""
        if self.build is None:
            return {}
        parameters = list(inspect.signature(self.build).parameters.values())[1:]
        return {p.name: p.default for p in parameters}

    def check(self, task: str, options: Mapping[str, Any]) -> None:
        """Refuse what this method cannot do, before any work."""
        if self.tasks is not None and task not in self.tasks:
            why = "" if self.reason is None else f": {self.reason}"
            raise UnknownMethodError(f"method {self.name!r} is for {' and '.join(self.tasks)}, not for {task}{why}")
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise UnknownMethodError(
                f"method {self.name!r} needs {', '.join(missing)}: pip install 'bedl[{self.extra or 'all'}]'"
            )
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            known = ", ".join(self.options) or "none"
            raise UnknownMethodError(f"method {self.name!r} has no option {unknown[0]!r}; its options: {known}")

    def __call__(self, problem: Problem, **options: Any) -> Method:
        """A fresh method for a problem; draws from torch's global generator."""
        self.check(problem.task, options)
        assert self.build is not None, "resolve() finds the method that a choice stands for"
        return self.build(problem, **options)


_METHODS: dict[str, MethodSpec] = {}


def register(
    name: str,
    summary: str,
    *,
    tasks: tuple[str, ...] | None = None,
    reason: str | None = None,
    needs: tuple[str, ...] = (),
    extra: str | None = None,
    training: Callable[[int], Training] | None = None,
    sized: Callable[[int], dict[str, Any]] | None = None,
    scaling: Scaling = "moments",
    distils: bool = False,
    tempered: bool = False,
) -> Callable[[Build], Build]:
    """Decorator: offer a function (problem, **options) -> Method under a name.

    Example:
        >>> from bedl.methods import registry
        >>> print(registry.get("bedl+reg").summary)
        the paper's BEDL+Reg: marginal likelihood and the PAC term
    """

    def add(build: Build) -> Build:
        about = (name, summary, tasks, reason, needs, extra, training, sized, scaling)
        _METHODS[name] = MethodSpec(*about, build=build, distils=distils, tempered=tempered)
        return build

    return add


def register_alias(name: str, summary: str) -> Callable[[Alias], Alias]:
    """Decorator: a name for whichever method a function (problem) -> (name, options) chooses."""

    def add(choice: Alias) -> Alias:
        _METHODS[name] = MethodSpec(name, summary, choice=choice)
        return choice

    return add


def names() -> list[str]:
    """All names, the default first."""
    return sorted(_with_baselines(), key=lambda name: (name != "auto", name))


def _with_baselines() -> dict[str, MethodSpec]:
    """All methods: the baselines too, which are imported by the first call."""
    importlib.import_module("bedl.methods.baselines")
    return _METHODS


def get(name: str) -> MethodSpec:
    """The method of a name; an error with the nearest ones if there is none."""
    if name in _METHODS or name in _with_baselines():
        return _METHODS[name]
    near = difflib.get_close_matches(str(name).lower(), _METHODS, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(_METHODS)}"
    raise UnknownMethodError(f"there is no method {name!r}; {hint}")


def resolve(
    name: str, problem: Problem, options: Mapping[str, Any] | None = None, n: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The method and the options that a name stands for, so that the same can be built again later.

    Args:
        name: of the method.
        problem: what it is for.
        options: that the user chose.
        n: the number of points, for options that follow from it.
    """
    options, found = dict(options or {}), get(name)
    if found.choice is not None:
        if options:
            raise UnknownMethodError(f"method {name!r} chooses its options itself; name a method, such as 'bedl'")
        name, options = found.choice(problem)
        found = get(name)
    found.check(problem.task, options)
    if found.sized is not None and n is not None:
        options = {**found.sized(n), **options}
    return name, options
