"""Which Gaussian layer is the counterpart of a layer: by exact type mostly.

A subclass may have a forward of its own, and then what it does with its weight is not known. One that only has another
constructor does what its base does.
"""

from __future__ import annotations

import copy
import difflib
import fnmatch
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bedl._utils.errors import BEDLError
from bedl.nn import layers, recurrent
from bedl.nn.compat import (
    Net,
    computed_by,
    copied,
    make_weights_plain,
    patch_isinstance_checks,
    patch_libraries,
    type_of,
)
from bedl.nn.layers import GaussianMultiheadAttention

GAUSSIAN_LAYERS: dict[type[nn.Module], type[layers.GaussianLayer]] = {
    nn.Linear: layers.GaussianLinear,
    NonDynamicallyQuantizableLinear: layers.GaussianLinear,
    nn.Conv1d: layers.GaussianConv1d,
    nn.Conv2d: layers.GaussianConv2d,
    nn.Conv3d: layers.GaussianConv3d,
    nn.ConvTranspose1d: layers.GaussianConvTranspose1d,
    nn.ConvTranspose2d: layers.GaussianConvTranspose2d,
    nn.ConvTranspose3d: layers.GaussianConvTranspose3d,
    nn.Embedding: layers.GaussianEmbedding,
    nn.EmbeddingBag: layers.GaussianEmbeddingBag,
    nn.Bilinear: layers.GaussianBilinear,
    nn.MultiheadAttention: GaussianMultiheadAttention,
    nn.RNN: recurrent.GaussianRNN,
    nn.LSTM: recurrent.GaussianLSTM,
    nn.GRU: recurrent.GaussianGRU,
    nn.RNNCell: recurrent.GaussianRNNCell,
    nn.LSTMCell: recurrent.GaussianLSTMCell,
    nn.GRUCell: recurrent.GaussianGRUCell,
}


class _InputsFirst(layers.GaussianLayer):
    """A linear layer whose weight is (inputs, outputs)."""

    def fan_in(self) -> float:
        return self.weight.shape[0]


# Linear layers of other libraries, by name, since they are not imported here: their forward is one product.
_OTHERS: dict[str, type[layers.GaussianLayer]] = {
    "transformers.pytorch_utils.Conv1D": _InputsFirst,
    "torch_geometric.nn.dense.linear.Linear": layers.GaussianLayer,
}
_ADDS_NOTHING = {
    "__init__", "__module__", "__qualname__", "__doc__", "__annotations__", "__parameters__", "__orig_bases__",
    "__firstlineno__", "__static_attributes__", "__annotate_func__", "reset_parameters", "extra_repr",
}  # fmt: skip


_made: dict[type[nn.Module], type[layers.GaussianLayer] | None] = {}


def gaussian_class_of(kind: type[nn.Module]) -> type[layers.GaussianLayer] | None:
    """The Gaussian layer for a type of layer, or None; for types that torch does not have it is made here."""
    if kind not in GAUSSIAN_LAYERS and kind not in _made:
        _made[kind] = _make(kind)
    return GAUSSIAN_LAYERS.get(kind) or _made[kind]


def _make(kind: type[nn.Module]) -> type[layers.GaussianLayer] | None:
    base = _OTHERS.get(f"{kind.__module__}.{kind.__qualname__}")
    for i, ancestor in enumerate(kind.__mro__):
        if base is None and ancestor in GAUSSIAN_LAYERS:
            own = {name for c in kind.__mro__[:i] for name in vars(c)}
            base = GAUSSIAN_LAYERS[ancestor] if own <= _ADDS_NOTHING else None
            break
    if base is None:
        return None
    members = {"__deepcopy__": _deepcopy, "__doc__": base.__doc__}
    make_class: Any = type
    return make_class(f"Gaussian{kind.__name__}", (base, kind), members)


def _deepcopy(layer: Any, memo: dict[int, Any]) -> Any:
    """As for any object; the other library's own would make one of its layers again."""
    result = layer.__class__.__new__(layer.__class__)
    memo[id(layer)] = result
    result.__dict__.update(copy.deepcopy(layer.__getstate__(), memo))
    return result


# From a network with point weights to one with Gaussian weights, and back.
#
# A converted layer keeps its place, its hooks, its mode, its device: only its class and its weight change.


Selector = Callable[[str, nn.Module], bool] | str | type[nn.Module] | Iterable[Any] | None


def bayesianize(
    module: Net,
    *,
    include: Selector = None,
    exclude: Selector = None,
    init_logvar: float = layers.INIT_LOGVAR,
    keep_means: bool = True,
    variances: str | Mapping[str, torch.Tensor] = "full",
) -> Net:
    """A copy of `module` whose weight-carrying layers are Gaussian; its own forward() runs unchanged.

    Layers are converted by type (a subclass of `nn.Linear` with a forward of its own is not): linear, bilinear,
    convolution, transposed convolution, embedding and embedding bags, multi-head attention, recurrent layers and their
    cells. Everything else, such as batch norm or a bare `nn.Parameter`, keeps its point value; `bedl.check` lists it.
    Methods that ask `isinstance(x, torch.Tensor)` or `torch.is_tensor(x)` take Moments for a tensor. Where a function
    elsewhere asks, `bedl.check(module, example_input)` finds out: it runs both networks, with all variances zero, and
    names the module where they part.
    Weights that are computed (weight norm, spectral norm, parametrisations) become means as they are now, free of
    what computed them, with a warning; `exclude` keeps a layer as it is.

    Args:
        module: the network; it is not changed.
        include: which of those layers to convert: names with wildcards (``"layer4.*"``), layer types, a function
            ``(name, module) -> bool``, or several of these; all by default. A name chooses everything below it.
        exclude: which to leave deterministic, in the same words; it wins over `include`.
        init_logvar: log-variance that every weight starts from.
        keep_means: keep the trained weights as means; otherwise draw fresh ones.
        variances: ``"full"``, one per weight, or ``"output"``: linear layers and convolutions have one for all weights
            that lead to an output. That saves one product of three and half the parameters. Or variances from
            elsewhere (a diagonal Laplace approximation, SWAG, IVON): tensors by the names of `module`'s parameters, in
            their shapes. Layers whose weights are not named stay as they are, and so do all other parameters, such as
            biases: a warning lists those that have variances in vain.

    Example:
        >>> import bedl, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> bayesian = bedl.bayesianize(net, exclude="0")
        >>> bayesian
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): ReLU()
          (2): GaussianLinear(in_features=8, out_features=2, bias=True)
        )
        >>> bool((bayesian(torch.ones(1, 4)).loc == net(torch.ones(1, 4))).all())
        True
        >>> posterior = {"2.weight": torch.full((2, 8), 0.01)}
        >>> bedl.bayesianize(net, variances=posterior)(torch.ones(1, 4)).variance.shape
        torch.Size([1, 2])
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"bayesianize takes an nn.Module, not {type(module).__name__}")
    if isinstance(variances, Mapping):
        if not keep_means:
            raise ValueError("bayesianize: variances of a posterior belong to its means; leave out keep_means=False")
        _check_variances(module, variances)
    elif variances not in layers.VARIANCES:
        raise ValueError(f"variances are 'full', 'output' or tensors by parameter names, not {variances!r}")
    patch_libraries()
    _refuse_idle(module, "include", include)
    _refuse_idle(module, "exclude", exclude)
    chosen = _selector(include, default=True)
    left_out = _selector(exclude, default=False)
    result = copied(module)
    shared: dict[tuple[int, str], nn.Parameter] = {}
    freed: dict[str, list[str]] = {}  # layers by what has computed their weights
    originals: list[nn.Parameter] = []  # kept alive, so that ids stay theirs
    posterior = _by_parameter(result, variances) if isinstance(variances, Mapping) else None
    for name, layer in list(result.named_modules()):
        gaussian_class = gaussian_class_of(type_of(layer))
        if gaussian_class is None or not chosen(name, layer) or left_out(name, layer):
            continue
        weights = gaussian_class.weight_names(layer)
        if posterior is not None and not any(id(layer._parameters.get(weight)) in posterior for weight in weights):
            continue
        for what in computed_by(layer):
            freed.setdefault(what, []).append(name)
        make_weights_plain(layer)
        _refuse_derived_weights(name, layer, gaussian_class)
        before = {weight: layer._parameters[weight] for weight in gaussian_class.weight_names(layer)}
        layer.__class__ = gaussian_class
        layer.init, layer.init_logvar = "second-moment", init_logvar
        layer.variances = variances if isinstance(variances, str) and gaussian_class.can_share_variances else "full"
        layer.split_weights()
        if not keep_means:
            layer.reset_parameters()
        for weight, original in before.items():  # a weight that two layers share stays one pair
            if original is None:
                continue
            originals.append(original)
            if posterior is not None:
                given = posterior.get(id(original))
                _set_variance(layer, weight, None if given is None else given[1])
            for part in ("mean", "logvar"):
                pair = layer._parameters[f"{weight}_{part}"]
                layer._parameters[f"{weight}_{part}"] = shared.setdefault((id(original), part), pair)
    idle = {key: name for key, (name, _) in (posterior or {}).items()}
    for original in originals:
        idle.pop(id(original), None)
    if posterior is not None and len(idle) == len(posterior):
        raise BEDLError("bayesianize: variances names no weight of a layer that can be Gaussian, such as '0.weight'")
    if include is None and exclude is None and not any(isinstance(m, layers.GaussianLayer) for m in result.modules()):
        known = ", ".join(kind.__name__ for kind in GAUSSIAN_LAYERS if kind is not NonDynamicallyQuantizableLinear)
        raise BEDLError(f"bayesianize: {type(module).__name__} has no layer to convert; known are: {known}")
    patch_isinstance_checks(result)
    if idle:
        points = ", ".join(map(repr, idle.values()))
        warnings.warn(f"bayesianize: {points} stay point values; their variances are not used", stacklevel=2)
    for what, names in freed.items():
        warnings.warn(
            f"bayesianize: {what} of {', '.join(map(repr, names))} is dropped: the weights that it computed are the "
            "means now, and training moves them freely. To keep it, leave these layers out with exclude=…",
            stacklevel=2,
        )
    return result


def deterministic(module: Net) -> Net:
    """A copy of `module` with every Gaussian layer back as the torch layer, its weights at their means.

    Example:
        >>> import bedl
        >>> from torch import nn
        >>> net = nn.Linear(4, 2)
        >>> bool((bedl.deterministic(bedl.bayesianize(net)).weight == net.weight).all())
        True
    """
    result = copy.deepcopy(module)
    shared: dict[int, nn.Parameter] = {}
    for layer in list(result.modules()):
        if not isinstance(layer, layers.GaussianLayer):
            continue
        plain_weights: dict[str, nn.Parameter | None] = {}
        for weight in layer.gaussian_parameters:
            mean = layer._parameters.pop(f"{weight}_mean", None)
            layer._parameters.pop(f"{weight}_logvar", None)
            plain_weights[weight] = None if mean is None else shared.setdefault(id(mean), mean)
        layer._parameters = {**plain_weights, **layer._parameters, **plain_weights}  # in torch's order
        for attribute in ("init", "init_logvar", "variances", "is_sampling", "prepared", "cache_depth", "drawn"):
            layer.__dict__.pop(attribute, None)
        for name in layers.CORRECTION:
            layer._buffers.pop(name, None)
        gaussian_class, plain = type(layer), cast(type, layer.plain_class())
        layer.__class__ = plain
        gaussian_class.make_plain(layer)
    return result


def _check_variances(module: nn.Module, variances: Mapping[str, torch.Tensor]) -> None:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    for name, variance in variances.items():
        if name not in parameters:
            close = difflib.get_close_matches(name, parameters, 1)
            hint = f"; did you mean {close[0]!r}?" if close else "; named_parameters() lists them"
            raise ValueError(f"bayesianize: variances has {name!r}, which is no parameter of the network{hint}")
        if not isinstance(variance, torch.Tensor) or variance.shape != parameters[name].shape:
            given = tuple(variance.shape) if isinstance(variance, torch.Tensor) else type(variance).__name__
            raise ValueError(
                f"bayesianize: the variance of {name!r} must have shape {tuple(parameters[name].shape)}, not {given}"
            )
        if not bool((variance >= 0).all() & variance.isfinite().all()):
            raise ValueError(
                f"bayesianize: variances of {name!r} must be finite and not negative; pass variances, not their "
                "logarithms"
            )


def _by_parameter(net: nn.Module, variances: Mapping[str, torch.Tensor]) -> dict[int, tuple[str, torch.Tensor]]:
    """Names and variances, by the parameters that they are of."""
    named = net.named_parameters(remove_duplicate=False)
    return {id(parameter): (name, variances[name]) for name, parameter in named if name in variances}


@torch.no_grad()
def _set_variance(layer: Any, weight: str, variance: torch.Tensor | None) -> None:
    """Of a weight, in place; None: it is a point."""
    logvar = layer._parameters[f"{weight}_logvar"]
    logvar.copy_(torch.full_like(logvar, -math.inf) if variance is None else variance.detach().to(logvar).log())


def _refuse_derived_weights(name: str, layer: nn.Module, gaussian_class: type[layers.GaussianLayer]) -> None:
    missing = [weight for weight in gaussian_class.weight_names(layer) if weight not in layer._parameters]
    if missing:
        raise BEDLError(
            f"bayesianize: the {missing[0]} of layer '{name}' ({type(layer).__name__}) is computed by code that is not "
            "known here, not a parameter. Remove that first (after pruning, torch.nn.utils.prune.remove), or leave the "
            f"layer out with exclude={name!r}."
        )


def _refuse_idle(module: nn.Module, name: str, choice: Selector) -> None:
    """A name or type that fits no layer is a slip, and would leave a net deterministic without a word."""
    parts = [choice] if isinstance(choice, (str, type)) else choice if isinstance(choice, (list, tuple, set)) else []
    for part in parts:
        if isinstance(part, (str, type)):
            fits = _selector(part, default=False)
            if not any(fits(path, layer) for path, layer in module.named_modules()):
                raise ValueError(f"bayesianize: {name}={part!r} fits no layer of this {type(module).__name__}")


def _selector(choice: Selector, default: bool) -> Callable[[str, nn.Module], bool]:
    if choice is None:
        return lambda name, module: default
    if isinstance(choice, str):
        return lambda name, module: fnmatch.fnmatchcase(name, choice) or fnmatch.fnmatchcase(name, f"{choice}.*")
    if isinstance(choice, type):
        return lambda name, module: type_of(module) is choice
    if callable(choice):
        return choice
    if isinstance(choice, Iterable):
        any_of = [_selector(part, default) for part in choice]
        return lambda name, module: any(matches(name, module) for matches in any_of)
    raise TypeError(f"include/exclude take names, layer types or functions, not {choice!r}")


def warn_if_deterministic(module: nn.Module, who: str) -> None:
    """A warning if no layer of `module` is Gaussian: what `who` predicts would then be certain of itself."""
    if not any(isinstance(layer, layers.GaussianLayer) for layer in module.modules()):
        warnings.warn(
            f"{who}: no layer of this {type(module).__name__} is Gaussian, so its epistemic uncertainty will be "
            "exactly 0; convert it with bedl.bayesianize(net)",
            stacklevel=3,
        )


def kept_deterministic(module: nn.Module) -> list[tuple[str, str]]:
    """Names and types of modules that own parameters but are not Gaussian."""
    return [
        (name, type(layer).__name__)
        for name, layer in module.named_modules()
        if not isinstance(layer, layers.GaussianLayer)
        and any(isinstance(p, torch.Tensor) for p in layer._parameters.values())
    ]
