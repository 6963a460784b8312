"""Layers whose weights are Gaussian: PyTorch's own layers with `weight` as Moments.

Each is the torch layer of the same name, with its constructor and its forward. Only the parameter `weight` is
replaced by a pair `weight_mean`, `weight_logvar`; reading `.weight` gives Moments(weight_mean, exp(weight_logvar)), and
what the inherited forward does with it, the rules answer. Biases stay deterministic.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from bedl._utils.errors import BEDLError
from bedl.moments import Moments, variance_dtype
from bedl.moments.rules._base import LayerWeight
from bedl.nn.compat import compute_stored_weights, patch_libraries
from bedl.nn.draws import Draws, RowLayout, noise_of_rows, point_value

INIT_LOGVAR = -9.0
VARIANCES = ("full", "output")
CORRECTION = ("covariance_factor", "common_variance", "variance_shift")  # what `correct_variances` fits
LOGVAR_JITTER = 0.001


class GaussianLayer(nn.Module):
    """What all Gaussian layers share; mixed in before a torch layer class.

    Args:
        init: ``"second-moment"`` or ``"he"``, see `reset_parameters`.
        init_logvar: where log-variances start.
        variances: ``"full"``, one per weight, or ``"output"``, one for all weights that lead to an output: two products
            in place of three, and half the parameters (linear layers and convolutions).
    """

    gaussian_parameters: ClassVar[tuple[str, ...]] = ("weight",)
    can_share_variances: ClassVar[bool] = False
    is_sampling = False
    prepared: dict[str, Any] | None = None  # inside `cached_weights`
    cache_depth = 0  # how many such blocks there are
    drawn: Draws | None = None  # inside `sampled`: what this pass has drawn already
    point_axis = 0  # of inputs
    takes_groups = True  # whether several rows of a point can be given to one draw
    covariance_factor: Tensor | None  # broadcasts to the weight; none until `correct_variances` has fitted it
    common_variance: Tensor | None  # of all outputs, fitted together with it. shape: (outputs,)
    variance_shift: Tensor | None  # what it has added to the log-variances. shape: ()

    def __init__(
        self,
        *args: Any,
        init: str = "second-moment",
        init_logvar: float = INIT_LOGVAR,
        variances: str = "full",
        **kwargs: Any,
    ):
        if init not in ("second-moment", "he"):
            raise ValueError(f"init must be 'second-moment' or 'he', not {init!r}")
        if variances not in VARIANCES or (variances != "full" and not self.can_share_variances):
            raise ValueError(f"variances of a {type(self).__name__} are {self._variance_choices()}, not {variances!r}")
        super().__init__(*args, **kwargs)
        self.init, self.init_logvar, self.variances = init, init_logvar, variances
        self.split_weights()
        self.reset_parameters()

    @classmethod
    def _variance_choices(cls) -> str:
        return "'full' or 'output'" if cls.can_share_variances else "'full'"

    @classmethod
    def plain_class(cls) -> type[nn.Module]:
        """The torch layer that this one is the Gaussian counterpart of."""
        return next(c for c in cls.__mro__ if issubclass(c, nn.Module) and not issubclass(c, GaussianLayer))

    @classmethod
    def weight_names(cls, layer: nn.Module) -> tuple[str, ...]:
        """Which parameters of a torch layer become Gaussian."""
        return cls.gaussian_parameters

    @classmethod
    def make_plain(cls, layer: nn.Module) -> None:
        """What is left to do for a torch layer that was one of this class."""

    def split_weights(self) -> None:
        """Replace each plain weight by its pair: the weight as mean, and log-variances at `init_logvar`."""
        for name in CORRECTION:
            self.register_buffer(name, None)
        for name in self.gaussian_parameters:
            weight = self._parameters[name]
            if weight is not None:
                del self._parameters[name]
                self.register_parameter(f"{name}_mean", nn.Parameter(weight.detach(), weight.requires_grad))
                varying = weight if self.variances == "full" else weight.flatten(1)[:, 0]
                logvar = torch.full_like(varying, self.init_logvar, requires_grad=False)
                if self.variances == "output":
                    logvar = self.per_weight(logvar)
                self.register_parameter(f"{name}_logvar", nn.Parameter(logvar, weight.requires_grad))

    def gaussian(self, name: str) -> Any:
        """The pair behind one of `gaussian_parameters`, as Moments; None if the layer has no such weight."""
        if self.prepared is not None:
            return self.prepared[name]
        mean, logvar = self._parameters.get(f"{name}_mean"), self._parameters.get(f"{name}_logvar")
        if mean is not None and logvar is not None:
            return Moments(mean, logvar.to(variance_dtype(logvar.dtype)).exp())
        # While torch's constructor runs, there is no pair yet but the plain weight, and before it nothing at all.
        if name in self._parameters:
            return self._parameters[name]
        raise AttributeError(name)

    def _weight(self) -> Any:
        pair, factor = self.gaussian("weight"), self._buffers.get("covariance_factor")
        if isinstance(pair, LayerWeight) or not isinstance(pair, Moments):
            return pair
        gain = None if factor is None else pair.loc.to(pair.variance.dtype).square() * factor.to(pair.variance.dtype)
        return LayerWeight(pair.loc, pair.variance, gain, self._variances_by_output(pair.variance))

    def random_weight(self, name: str) -> Any:
        """One of `gaussian_parameters` as the layer works with it."""
        return self._weight() if name == "weight" else self.gaussian(name)

    def read(self, name: str) -> Any:
        """What code gets that asks for a weight: Moments, and while weights are drawn this pass's draw."""
        return self.random_weight(name) if self.drawn is None else self.drawn.read(self, name)

    def usable(self, values: Tensor) -> Tensor:
        """Values of the weight, of which a layer may not use all."""
        return values

    weight: Any = property(lambda self: self.read("weight"))

    def _variances_by_output(self, variance: Tensor) -> Tensor | None:
        """Of the weight, where they are all there is. variance: shape (outputs, *inputs); result: shape (outputs,)"""
        whole = getattr(self, "variances", "full") == "full" or getattr(self, "groups", 1) != 1
        return None if whole else variance.flatten(1)[:, 0]

    def prepare(self) -> None:
        """Compute the pairs, and what products need of the weight, once; see `cached_weights`."""
        self.prepared = None
        pairs = {name: self.gaussian(name) for name in self.gaussian_parameters}
        weight = pairs.get("weight")
        if type(self)._weight is GaussianLayer._weight and isinstance(weight, Moments):
            pairs["weight"] = weight = self._weight()
            if weight.gain is None:
                weight.gain = weight.loc.to(weight.variance.dtype).square()
        for pair in pairs.values():
            if isinstance(pair, Moments):
                pair.loc = pair.loc.detach()  # no gradient at all is better than one of the means alone
        self.prepared = pairs

    def per_weight(self, values: Tensor) -> Tensor:
        """A value per output, in a shape that broadcasts to the weight. values: shape (outputs,)"""
        return values.view(-1, *[1] * (cast(Tensor, self.weight_mean).dim() - 1))

    def __getstate__(self) -> dict[str, Any]:
        """A copy has weights of its own, which nobody has prepared."""
        return {
            name: value for name, value in self.__dict__.items() if name not in ("prepared", "cache_depth", "drawn")
        }

    def extra_repr(self) -> str:
        shared = ", variances='output'" if getattr(self, "variances", "full") == "output" else ""
        return super().extra_repr() + shared

    def fan_in(self) -> float:
        """How many weights add up in one output."""
        return math.prod(self.weight.shape[1:])

    def total_second_moment(self) -> float:
        """What E[w²] is at the start: 2/fan-in, as He et al. (2015) derive it for ReLU nets."""
        return 2 / max(self.fan_in(), 1)

    def reset_parameters(self) -> None:
        """Draw fresh parameters.

        Log-variances ~ N(−9, 0.001²). Means so that mean² + variance together have E[w²] = 2/fan-in: with He's means
        alone, the variance of a wide layer comes on top and the net explodes. Where exp(−9) would be more than half
        of that (fan-in above 8,103), the variance starts at half. `init="he"` gives the means all of 2/fan-in.
        """
        if not any(f"{name}_mean" in self._parameters for name in self.gaussian_parameters):
            return  # called by the torch layer's constructor, before the pairs exist
        self.covariance_factor = self.common_variance = self.variance_shift = None
        total = self.total_second_moment()
        logvar = self.init_logvar if self.init == "he" else min(self.init_logvar, math.log(total / 2))
        share = total if self.init == "he" else total - math.exp(logvar)
        with torch.no_grad():
            for name in self.gaussian_parameters:
                if f"{name}_mean" in self._parameters:
                    getattr(self, f"{name}_mean").normal_(0.0, math.sqrt(share))
                    getattr(self, f"{name}_logvar").normal_(logvar, LOGVAR_JITTER)
            if self._parameters.get("bias") is not None:
                cast(Tensor, self.bias).zero_()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        patch_libraries()
        if not self.is_sampling:
            return self._with_common_variance(super().forward(*args, **kwargs))
        if self.drawn is not None and self.drawn.for_all:  # an ordinary function, of random inputs as well
            with self.drawn.call(self, args, kwargs):
                return self.forward_with_draw(*args, **kwargs)
        args, kwargs = tuple(point_value(x) for x in args), {name: point_value(x) for name, x in kwargs.items()}
        if self.drawn is None:
            return self.sample(*args, **kwargs)
        with self.drawn.call(self, args, kwargs):
            return self.sample(*args, **kwargs)

    def forward_with_draw(self, *args: Any, **kwargs: Any) -> Any:
        """The output with the draw of the weights that all points share."""
        return super().forward(*args, **kwargs)

    def _with_common_variance(self, y: Any) -> Any:
        common = self._buffers.get("common_variance")
        if common is None or not isinstance(y, Moments):
            return y
        after = 0 if isinstance(self, nn.Linear) else len(self.kernel_size)  # type: ignore[arg-type]
        return Moments(y.loc, y.variance + common.to(y.variance).view(-1, *[1] * after))

    def sample(self, *inputs: Any) -> Any:
        """The output with weights drawn *independently for each data point* (the first axis), as the model says.

        Random inputs are drawn too. This is the oracle that the moments are tested against.
        """
        values = [point_value(x) for x in inputs]
        rows = RowLayout() if self.drawn is None else self.drawn.rows(self, self.n_points(*values))

        def one(*point: Tensor) -> Tensor:
            return self._drawn().forward(*point)  # hooks see the whole batch

        return rows.by_row(torch.func.vmap(one, randomness="different")(*(rows.by_point(x) for x in values)))

    def n_points(self, *inputs: Any, **kwargs: Any) -> int:
        """How many data points there are among the inputs."""
        first = inputs[0] if inputs else next(iter(kwargs.values()))
        return first.shape[0]

    def weight_key(self) -> int:
        """The same number for layers that have the same weight."""
        means = (self._parameters.get(f"{name}_mean") for name in self.gaussian_parameters)
        return next(id(mean) for mean in means if mean is not None)

    def _device(self) -> torch.device:
        return next(p.device for p in self._parameters.values() if p is not None)

    def _drawn(self) -> Any:
        """The torch layer with one draw of the weights; it shares everything else with this one."""
        pairs = {name: self.random_weight(name) for name in self.gaussian_parameters}
        return self.with_weights({name: None if pair is None else pair.sample() for name, pair in pairs.items()})

    def with_weights(self, weights: dict[str, Tensor | None]) -> Any:
        """The torch layer with other weights (or bias); it shares everything else with this one."""
        layer = self.plain_class().__new__(self.plain_class())
        layer.__dict__.update(self.__dict__)
        split = {f"{name}_{part}" for name in self.gaussian_parameters for part in ("mean", "logvar")}
        kept = {name: p for name, p in self._parameters.items() if name not in split}
        layer.__dict__["_parameters"] = {**kept, **weights}
        return layer

    def __prepare_scriptable__(self) -> Any:
        raise BEDLError("torch.jit.script cannot follow Moments; use bedl.export(method, path, example=x)")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """A correction belongs to the weights it was fitted for: it comes with their state, and goes with it."""
        if self.prepared is not None:
            raise BEDLError(
                "load_state_dict: inside `with bedl.cached_weights(...)` weights are constants; load them outside"
            )
        along = 1 if issubclass(self.plain_class(), nn.modules.conv._ConvTransposeNd) else 0
        compute_stored_weights(state_dict, prefix, self.gaussian_parameters, along)
        for name in self.gaussian_parameters:  # of a plain model: its weights are the means, variances stay
            if f"{prefix}{name}" in state_dict and f"{name}_mean" in self._parameters:
                state_dict[f"{prefix}{name}_mean"] = state_dict.pop(f"{prefix}{name}")
                logvar, shift = cast(Tensor, self._parameters[f"{name}_logvar"]), self.variance_shift
                state_dict.setdefault(f"{prefix}{name}_logvar", logvar if shift is None else logvar - shift)
        if any(f"{prefix}{name}_mean" in state_dict for name in self.gaussian_parameters):
            for name in CORRECTION:
                stored = state_dict.get(f"{prefix}{name}")
                device = self._device() if stored is not None else None
                setattr(self, name, None if stored is None else torch.empty_like(stored, device=device))
        super()._load_from_state_dict(state_dict, prefix, *args)


class GaussianLinear(GaussianLayer, nn.Linear):
    """`nn.Linear` with Gaussian weights; a tensor or Moments in, Moments out.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> y = GaussianLinear(3, 2)(torch.ones(5, 3))
        >>> y.loc.shape, y.variance.shape
        (torch.Size([5, 2]), torch.Size([5, 2]))
    """

    can_share_variances = True

    def sample(self, *inputs: Any) -> Any:
        """As `GaussianLayer.sample`. A point of one row meets each weight once, so that its outputs are independent
        normals given the row: they are drawn instead of the many weights (Kingma, Salimans and Welling, 2015).
        """
        x = point_value(*inputs)
        draws = self.drawn
        if x.dim() != 2 or not (draws is None or draws.sharing.draws_outputs):
            if draws is not None and draws.sharing.draws_outputs and draws.outputs:
                draws.refuse(self, f"is called with an input of {x.dim()} axes")
            return super().sample(x)
        pair = self.gaussian("weight")
        if draws is None or not draws.once:
            return cast(Moments, F.linear(x, pair, self.bias)).sample()
        draws.rows(self, len(x))
        return F.linear(x, pair.loc, self.bias) + noise_of_rows(x, pair.variance, draws.outputs).to(x.dtype)


class GaussianConv1d(GaussianLayer, nn.Conv1d):
    """`nn.Conv1d` with Gaussian weights."""

    can_share_variances = True


class GaussianConv2d(GaussianLayer, nn.Conv2d):
    """`nn.Conv2d` with Gaussian weights.

    Example:
        >>> import torch
        >>> from bedl import GaussianConv2d
        >>> GaussianConv2d(1, 20, 5, stride=2)(torch.zeros(4, 1, 28, 28)).shape
        torch.Size([4, 20, 12, 12])
    """

    can_share_variances = True


class GaussianConv3d(GaussianLayer, nn.Conv3d):
    """`nn.Conv3d` with Gaussian weights."""

    can_share_variances = True


class _GaussianConvTranspose(GaussianLayer):
    kernel_size: Any
    stride: Any
    in_channels: Any
    groups: Any

    def fan_in(self) -> float:
        # Each output position meets kernel/stride of the kernel's positions.
        per_output = math.prod(k / s for k, s in zip(self.kernel_size, self.stride, strict=True))
        return self.in_channels // self.groups * per_output

    def per_weight(self, values: Tensor) -> Tensor:
        # The weight is (in, out of one group, *kernel): each group's inputs lead to that group's outputs.
        per_input = values.view(self.groups, -1).repeat_interleave(self.in_channels // self.groups, 0)
        return per_input.view(*per_input.shape, *[1] * len(self.kernel_size))


class GaussianConvTranspose1d(_GaussianConvTranspose, nn.ConvTranspose1d):
    """`nn.ConvTranspose1d` with Gaussian weights."""


class GaussianConvTranspose2d(_GaussianConvTranspose, nn.ConvTranspose2d):
    """`nn.ConvTranspose2d` with Gaussian weights."""


class GaussianConvTranspose3d(_GaussianConvTranspose, nn.ConvTranspose3d):
    """`nn.ConvTranspose3d` with Gaussian weights."""


class GaussianEmbedding(GaussianLayer, nn.Embedding):
    """`nn.Embedding` with Gaussian entries, E[w²] = 1 at the start as in torch. The padding row stays exactly 0."""

    def total_second_moment(self) -> float:
        return 1.0

    def _weight(self) -> Any:
        pair = self.gaussian("weight")
        return Moments(self.usable(pair.loc), self.usable(pair.variance)) if isinstance(pair, Moments) else pair

    def usable(self, values: Tensor) -> Tensor:
        if self.padding_idx is None:
            return values
        return values * torch.arange(len(values), device=values.device).ne(self.padding_idx).unsqueeze(-1)


class GaussianEmbeddingBag(GaussianLayer, nn.EmbeddingBag):
    """`nn.EmbeddingBag` with Gaussian entries, for sums and means. An entry that a bag has twice counts as itself.

    Example:
        >>> import torch
        >>> from bedl.nn import GaussianEmbeddingBag
        >>> layer = GaussianEmbeddingBag(10, 3, mode="sum", init_logvar=0.0)
        >>> layer(torch.tensor([[1, 2], [4, 4]])).variance[:, 0].round().tolist()  # 0.5 each: at most half of E[w²]
        [1.0, 2.0]
    """

    takes_groups = False

    def total_second_moment(self) -> float:
        return 1.0

    def n_points(self, input: Any, offsets: Any = None, *args: Any, **kwargs: Any) -> int:
        return len(input) if offsets is None else len(offsets) - self.include_last_offset

    def sample(self, input: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        if offsets is not None:  # bags differ in size: each by itself
            ends = offsets[1:] if not self.include_last_offset else offsets[1:-1]
            parts = input.tensor_split(ends.cpu())
            weights = [None] * len(parts) if per_sample_weights is None else per_sample_weights.tensor_split(ends.cpu())
        else:
            parts, weights = input, [None] * len(input) if per_sample_weights is None else per_sample_weights
        bags = zip(parts, weights, strict=True)
        plain = [self._drawn().forward(bag[None], per_sample_weights=None if w is None else w[None]) for bag, w in bags]
        return torch.cat(plain)


class GaussianBilinear(GaussianLayer, nn.Bilinear):
    """`nn.Bilinear` with Gaussian weights."""


class ParameterModule(nn.Module):
    """A parameter behind a call, which takes nothing and gives its value."""

    value: Any

    def __init__(self, value: Tensor):
        super().__init__()
        self.value = value if isinstance(value, nn.Parameter) else nn.Parameter(value)

    def forward(self) -> Any:
        return self.value


class GaussianParameter(GaussianLayer, ParameterModule):
    """A Gaussian in place of an `nn.Parameter`: calling it gives its Moments, and within `bedl.sampled` a draw.

    Args:
        value: the means at the start.
        init_logvar: where log-variances start.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.nn import GaussianParameter
        >>> class Scaled(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.scale = GaussianParameter(torch.ones(3), init_logvar=-4.0)
        ...     def forward(self, x):
        ...         return x * self.scale()
        >>> Scaled()(2 * torch.ones(5, 3)).variance[0, 0].log().round().item()  # log(4 e⁻⁴)
        -3.0
    """

    gaussian_parameters: ClassVar[tuple[str, ...]] = ("value",)
    value: Any = property(lambda self: self.read("value"))

    def __init__(self, value: Tensor, *, init_logvar: float = INIT_LOGVAR):
        nn.Module.__init__(self)
        self.register_parameter("value", nn.Parameter(value.detach().clone()))
        self.init, self.init_logvar, self.variances = "second-moment", init_logvar, "full"
        self.split_weights()

    def forward(self) -> Any:
        return self.value

    def reset_parameters(self) -> None:
        """Log-variances as at the start; the means are what they are."""
        with torch.no_grad():
            cast(Tensor, self.value_logvar).fill_(self.init_logvar)

    def extra_repr(self) -> str:
        return ", ".join(map(str, cast(Tensor, self.value_mean).shape))


# Multi-head attention with Gaussian projections.


class GaussianMultiheadAttention(GaussianLayer, nn.MultiheadAttention):
    """`nn.MultiheadAttention` with Gaussian projections, the output's included. Softmax to first order."""

    gaussian_parameters: ClassVar[tuple[str, ...]] = (
        "in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight",
    )  # fmt: skip

    def __init__(self, *args: Any, init: str = "second-moment", init_logvar: float = INIT_LOGVAR, **kwargs: Any):
        super().__init__(*args, init=init, init_logvar=init_logvar, **kwargs)
        plain = self.out_proj
        self.out_proj = GaussianLinear(  # type: ignore[assignment]
            plain.in_features, plain.out_features, plain.bias is not None, init=init, init_logvar=init_logvar,
            device=plain.weight.device, dtype=plain.weight.dtype,
        )  # fmt: skip

    in_proj_weight: Any = property(lambda self: self.read("in_proj_weight"))
    q_proj_weight: Any = property(lambda self: self.read("q_proj_weight"))
    k_proj_weight: Any = property(lambda self: self.read("k_proj_weight"))
    v_proj_weight: Any = property(lambda self: self.read("v_proj_weight"))

    takes_groups = False

    @property
    def point_axis(self) -> int:  # type: ignore[override]
        return 0 if self.batch_first else 1

    def fan_in(self) -> float:
        return self.embed_dim

    def _drawn(self) -> Any:
        layer = super()._drawn()
        layer.__dict__["_modules"] = {**self._modules, "out_proj": cast(GaussianLinear, self.out_proj)._drawn()}
        return layer

    def sample(self, query: Any, key: Any, value: Any, key_padding_mask: Tensor | None = None,
               need_weights: bool = True, attn_mask: Tensor | None = None, average_attn_weights: bool = True,
               is_causal: bool = False) -> Any:  # fmt: skip
        axis = 0 if self.batch_first else 1

        def one(q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor | None]:
            layer = self._drawn()
            separate = not self._qkv_same_embed_dim
            return F.multi_head_attention_forward(
                q, k, v, self.embed_dim, self.num_heads, layer.in_proj_weight, self.in_proj_bias, self.bias_k,
                self.bias_v, self.add_zero_attn, self.dropout, layer.out_proj.weight, self.out_proj.bias,
                self.training, padding, need_weights, attn_mask, separate, layer.q_proj_weight, layer.k_proj_weight,
                layer.v_proj_weight, average_attn_weights=average_attn_weights, is_causal=is_causal,
            )  # fmt: skip

        in_dims = (axis, axis, axis, None if key_padding_mask is None else 0)
        out_dims = (axis, 0 if need_weights else None)
        each: Any = torch.func.vmap(one, in_dims, cast(Any, out_dims), randomness="different")
        with sdpa_kernel(SDPBackend.MATH):  # the others have no batching rule
            return each(*(point_value(x) for x in (query, key, value)), key_padding_mask)

    def n_points(self, query: Any, *inputs: Any, **kwargs: Any) -> int:
        return query.shape[self.point_axis]
