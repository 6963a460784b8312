"""Errors that say what to do. PyTorch is imported where it is needed: rooms that do without it raise errors too."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable


def option(name: str, value: object = None) -> str:
    """How an option is given, in Python and on the command line, for messages.

    Example:
        >>> option("on_foreign_values", "clip")
        "on_foreign_values='clip', on the command line --on-foreign-values clip"
        >>> option("ignore", ["shoe size"])
        "ignore=['shoe size'], on the command line --ignore 'shoe size'"
        >>> option("overwrite", True), option("out")
        ('overwrite=True, on the command line --overwrite', 'out, on the command line --out')
    """
    flag = f"--{name.replace('_', '-')}"
    if value is None or value is True:
        return f"{name}{'=True' if value else ''}{_OR}{flag}"
    if isinstance(value, list):
        value = [item if len(item) <= 60 else item[:57] + "…" for item in value]
    items = value if isinstance(value, list) else [value]
    return f"{name}={value!r}{_OR}{' '.join(f'{flag} {shlex.quote(str(item))}' for item in items)}"


_OR = ", on the command line "
_IN_PYTHON = re.compile(r"\b[a-z_]+(=('[^']*'|\"[^\"]*\"|\[[^\]]*\]|True|[\d.]+))?" + _OR + "(?=--)")


def on_command_line(message: str) -> str:
    """A message as somebody reads it who writes no Python.

    Example:
        >>> on_command_line(f"Go on with a value nearer by ({option('on_foreign_values', 'clip')})")
        'Go on with a value nearer by (--on-foreign-values clip)'
    """
    return _IN_PYTHON.sub("", message)


class BEDLError(Exception):
    """Base of the errors that bedl raises on purpose."""


class ModelFileError(BEDLError, ValueError):
    """A file that is no model, or none that this version of bedl can use."""


class UnsupportedOperationError(BEDLError, TypeError):
    """An operation met Moments and has no rule that says what they become.

    Attributes:
        func: the torch function.
        path: dotted path of the module that called it, such as ``layer3.0.act``; empty outside a module.
        why: what in particular is not defined, if the operation has a rule for other arguments.
    """

    def __init__(self, func: Callable, why: str = ""):
        self.func = func
        self.name = function_name(func)
        self.path = module_path()
        self.why = why
        where = f" in module '{self.path}'" if self.path else ""
        remedy = _REMEDIES.get(self.name.rpartition(".")[2])
        super().__init__(
            f"no rule for {self.name}{where}: {why or 'its result for random inputs is not defined here'}.\n"
            + (f"Remedy: {remedy}." if remedy else _ANY_REMEDY)
        )


_ANY_REMEDY = (
    "Remedies: give it a rule with bedl.register_rule(...) or bedl.use_rules({...}) "
    "(bedl.rules.quadrature makes one from any elementwise function); use an operation that has one; "
    "or keep this part in front of the first Gaussian layer, where values are plain tensors. "
    "bedl.check(model) lists every such operation at once."
)
_VALUES = "Moments are a mean and a variance; take either, the tensors y.loc and y.variance (y.stddev is its root)"
_LOSS = (
    "a loss of random outputs is the head's: method = bedl.BEDL(net, bedl.Dirichlet(n_classes)), or "
    "bedl.Normal(n_targets) for real targets; then bedl.fit(method, (x, y), epochs=…), or in a loop of your own "
    "method.loss(x, y, n_train=len(x)). Of the means alone: {name}(y.loc, …)"
)
_ORDER = "of the means it is y.loc.{name}(…)"
_REMEDIES = {
    **dict.fromkeys(("numpy", "__array__", "tolist", "item", "__float__", "__int__", "__index__", "data_ptr"), _VALUES),
    **{name: _LOSS.format(name=name) for name in (
        "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div", "gaussian_nll_loss", "poisson_nll_loss",
    )},
    "backward": "Moments are no loss: call backward() of a tensor, such as y.loc.sum() or method.loss(…)",
    **{name: _ORDER.format(name=name) for name in ("argmax", "argmin", "argsort")},
}  # fmt: skip


def function_name(func: Callable) -> str:
    """How users write a torch function: `torch.nn.functional.relu`, `torch.Tensor.add`, `MyFunction.apply`."""
    from torch.autograd import Function
    from torch.overrides import resolve_name

    owner = func if isinstance(func, type) else getattr(func, "__self__", None)
    if isinstance(owner, type) and issubclass(owner, Function):
        return f"{owner.__name__}.apply"
    name = resolve_name(func) or f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', func)}"
    return name.replace("torch.functional.", "torch.").lstrip(".")


def module_path() -> str:
    """Dotted path, from the outermost module being called, of the innermost one.

    Read from the call stack, so that nothing has to be hooked while all goes well.
    """
    from torch import nn

    frame = sys._getframe(1)
    modules: list[nn.Module] = []
    while frame is not None:
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and (not modules or modules[-1] is not module):
            modules.append(module)
        frame = frame.f_back  # type: ignore[assignment]
    if not modules:
        return ""
    # what a network is wrapped in, a method or a strategy of training, is no part of it
    theirs = [m for m in modules if not type(m).__module__.startswith(("bedl.", "lightning", "torch._dynamo"))]
    names = {id(module): name for name, module in (theirs or modules)[-1].named_modules()}
    return next((names[id(m)] for m in modules if names.get(id(m))), type(modules[0]).__name__)


# What can be wrong with data, and with the places it is read from or written to.


class DataError(BEDLError, ValueError):
    """What a file or a table holds cannot be used; the message says why, where, and what to do."""


class DataFileError(BEDLError, OSError):
    """A file or folder cannot be read or downloaded."""


class DataFileNotFoundError(DataFileError, FileNotFoundError):
    """There is no such file, folder or data set."""


def listed(names: list[str] | tuple[str, ...], most: int = 8) -> str:
    """Names for a message: quoted, and no more of them than can be read.

    Example:
        >>> listed(["age", "size"])
        "'age', 'size'"
        >>> listed([str(i) for i in range(100)], most=2)
        "'0', '1' and 98 more"
    """
    shown = ", ".join(repr(name if len(name) <= 60 else name[:57] + "…") for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
