"""Moments: a random tensor with independent entries, known by its mean and variance.

`Moments(loc, variance)` goes wherever a tensor goes. PyTorch hands every operation on it to
`Moments.__torch_function__`, which looks up the operation's *rule* and lets that answer with the
moments of the result. This file knows no rule; `bedl.moments.dispatch` finds it, `bedl.moments.rules` holds them.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bedl.moments.dispatch import dispatch, refusal

# Last, because they build on this file: whoever has Moments has their rules.


View = Callable[[Tensor], Tensor]
REAL = "Moments are real: let real and imaginary parts be entries of their own, torch.view_as_real(x).flatten(-2)"


def variance_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which a variance is kept: never below float32.

    A variance squares the range of the values, and half precisions have too little of it.
    """
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


@dataclasses.dataclass(init=False, eq=False, repr=False)
class Moments:
    """Mean and variance of a tensor of independent random entries.

    Every tensor method a ``forward()`` may call works (or is refused by name): indexing, arithmetic,
    ``view``, ``mean((2, 3))``, ``relu()`` … ``.loc`` and ``.variance`` are plain tensors.

    Args:
        loc: the means, a floating-point tensor. shape: (*shape)
        variance: the variances (not standard deviations), a number or a tensor that broadcasts to
            ``loc``. They must not be negative; a tensor is not searched for that, which would stall a GPU.
            shape: (*shape)

    Example:
        >>> import torch
        >>> from bedl import Moments
        >>> x = Moments(torch.tensor([0.0, 1.0]), 4.0)
        >>> y = 3 * x + 1
        >>> y.loc, y.variance
        (tensor([1., 4.]), tensor([36., 36.]))
        >>> torch.relu(x).loc
        tensor([0.7979, 1.3956])
    """

    loc: Tensor
    variance: Tensor
    family = cast(Any, None)  # of a view, or of what has views: the `_Family` that they are; no field

    if TYPE_CHECKING:  # the tensor methods that are attached below

        def __getattr__(self, name: str) -> Any: ...
        def __add__(self, other: Moments | Tensor | float) -> Moments: ...
        def __radd__(self, other: Tensor | float) -> Moments: ...
        def __sub__(self, other: Moments | Tensor | float) -> Moments: ...
        def __rsub__(self, other: Tensor | float) -> Moments: ...
        def __mul__(self, other: Moments | Tensor | float) -> Moments: ...
        def __rmul__(self, other: Tensor | float) -> Moments: ...
        def __truediv__(self, other: Moments | Tensor | float) -> Moments: ...
        def __rtruediv__(self, other: Tensor | float) -> Moments: ...
        def __pow__(self, other: Moments | Tensor | float) -> Moments: ...
        def __matmul__(self, other: Moments | Tensor) -> Moments: ...
        def __neg__(self) -> Moments: ...
        def __getitem__(self, index: Any) -> Moments: ...

    def __init__(self, loc: Tensor, variance: Tensor | float):
        if not isinstance(loc, Tensor):
            raise TypeError(f"Moments: loc must be a torch.Tensor, not {type(loc).__name__}")
        if not loc.is_floating_point():
            raise TypeError(
                f"Moments: loc must be floating point, not {loc.dtype}; "
                + (REAL if loc.is_complex() else "convert it first, for example with .float()")
            )
        wide = variance_dtype(loc.dtype)
        if not isinstance(variance, Tensor):
            if not variance >= 0:
                raise ValueError(f"Moments: a variance must be at least 0, not {variance}")
            variance = torch.full_like(loc, variance, dtype=wide)
        elif not variance.is_floating_point():
            raise TypeError(
                f"Moments: variance must be floating point, not {variance.dtype}; "
                "convert it first, for example with .float()"
            )
        if variance.shape != loc.shape:
            try:
                variance = variance.expand(loc.shape)
            except RuntimeError:
                raise ValueError(
                    f"Moments: variance of shape {tuple(variance.shape)} does not broadcast "
                    f"to loc of shape {tuple(loc.shape)}"
                ) from None
        self.loc = loc
        self.variance = variance if variance.dtype == wide else variance.to(wide)

    @classmethod
    def __torch_function__(cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return dispatch(func, args, kwargs or {})

    # -- what a tensor says about itself -------------------------------------------------------
    @property
    def shape(self) -> torch.Size:
        return self.loc.shape

    @property
    def device(self) -> torch.device:
        return self.loc.device

    @property
    def dtype(self) -> torch.dtype:
        return self.loc.dtype

    @property
    def ndim(self) -> int:
        return self.loc.ndim

    @property
    def layout(self) -> torch.layout:
        return self.loc.layout

    @property
    def requires_grad(self) -> bool:
        return self.loc.requires_grad or self.variance.requires_grad

    @property
    def is_cuda(self) -> bool:
        return self.loc.is_cuda

    @property
    def is_nested(self) -> bool:
        return False

    @property
    def is_sparse(self) -> bool:
        return False

    @property
    def stddev(self) -> Tensor:
        """Standard deviations; `.std()` is PyTorch's spread over entries. shape: (*shape)"""
        return self.variance.sqrt()

    def to_distribution(self) -> torch.distributions.Normal:
        """As independent Gaussians of `torch.distributions`; entries that are known have a scale of 0.

        Example:
            >>> import torch
            >>> from bedl import Moments
            >>> Moments(torch.tensor([1.0, 2.0]), 4.0).to_distribution().cdf(torch.tensor(1.0))
            tensor([0.5000, 0.3085])
        """
        return torch.distributions.Normal(self.loc, self.stddev, validate_args=False)

    @property
    def T(self) -> Moments:
        return dispatch(torch.Tensor.t, (self,), {})

    @property
    def mT(self) -> Moments:
        return self.transpose(-2, -1)

    def size(self, dim: int | None = None) -> Any:
        return self.loc.size() if dim is None else self.loc.size(dim)

    def dim(self) -> int:
        return self.loc.dim()

    ndimension = dim

    def numel(self) -> int:
        return self.loc.numel()

    nelement = numel

    def is_floating_point(self) -> bool:
        return True

    def is_complex(self) -> bool:
        return False

    def is_contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
        return self.loc.is_contiguous(memory_format=memory_format)

    def get_device(self) -> int:
        return self.loc.get_device()

    def __len__(self) -> int:
        return len(self.loc)

    def __iter__(self) -> Iterator[Moments]:
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        raise refusal(torch.Tensor.__bool__, "whether a random value is true is not known")

    # Identity, so that Moments can key a dict; `==` itself is refused like every comparison.
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        def text(t: Tensor) -> str:
            return repr(t.detach()).replace("\n", "\n  ")

        return f"Moments(\n  loc={text(self.loc)},\n  variance={text(self.variance)})"

    __array_ufunc__ = None  # numpy hands `array * moments` over instead of taking them apart

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise refusal(torch.Tensor.numpy, "an array holds no moments; convert .loc and .variance")

    def assign_(self, other: Moments) -> Moments:
        """Take over another pair's values: what an in-place operation does here.

        Tensors are replaced, not overwritten, so autograd keeps what it saved. As in PyTorch, views of this pair, and
        what it is a view of, change with it.
        """
        if other is self:
            return self
        if other.shape != self.shape:
            raise ValueError(f"in-place result of shape {tuple(other.shape)} does not fit {tuple(self.shape)}")
        if self.family is None or torch.compiler.is_compiling():
            self.loc, self.variance = other.loc, other.variance
        else:
            self.family.write(self, other)
        return self

    def moved(self, loc: Tensor, variance: Tensor, view: View, by_layout: bool = False) -> Moments:
        """A pair made by moving entries of this one: a view of it where PyTorch would make one.

        Args:
            loc, variance: of the new pair: `view` of those of this one. shapes: (*shape)
            view: what was done to both.
            by_layout: whether PyTorch looks at how values lie in memory to choose between a view and a copy.
        """
        if torch.compiler.is_compiling():
            return Moments(loc, variance)
        known = not by_layout or (self.loc if self.family is None else self.family.loc).is_contiguous()
        if known and loc is self.loc:
            return self
        pair = Moments(loc, variance)
        if not known or _share_memory(loc, self.loc):
            if self.family is None:
                self.family = _Family(self)
            if known:
                self.family.add(pair, self, view)
            else:  # rules may have laid out their results otherwise than PyTorch
                pair.family = _Family(pair, perhaps=self.family)
        return pair

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "family"}

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        """One draw, every entry independently from a normal distribution. shape: (*shape)"""
        noise = torch.randn(self.shape, dtype=self.variance.dtype, device=self.device, generator=generator)
        least = torch.finfo(self.variance.dtype).tiny  # the root of 0 has an infinite slope
        std = torch.where(self.variance > 0, self.variance.clamp_min(least).sqrt(), 0.0)
        return (self.loc + std * noise).to(self.dtype)


class _Family:
    """Pairs that PyTorch would keep in the same memory: the first one, and views of it.

    Args:
        first: what the others are views of.
        perhaps: a family that may be in the same memory; nobody knows.
    """

    def __init__(self, first: Moments, perhaps: _Family | None = None):
        self.loc, self.variance = first.loc, first.variance
        self.members: list[tuple[weakref.ref[Moments], View | None]] = [(weakref.ref(first), None)]
        self.doubtful: list[weakref.ref[_Family]] = []
        if perhaps is not None:
            self.doubtful = [weakref.ref(perhaps), *perhaps.doubtful]
            for reference in self.doubtful:
                if (other := reference()) is not None:
                    other.doubtful.append(weakref.ref(self))

    def living(self) -> list[tuple[Moments, View | None]]:
        return [(pair, view) for reference, view in self.members if (pair := reference()) is not None]

    def add(self, pair: Moments, of: Moments, view: View) -> None:
        """`pair` is a view of a member."""
        before = next(known for member, known in self.living() if member is of)
        self.members.append((weakref.ref(pair), view if before is None else lambda x: view(before(x))))
        pair.family = self

    def write(self, pair: Moments, new: Moments) -> None:
        """A member takes over values, and all others see it."""
        if any(other.living() for reference in self.doubtful if (other := reference()) is not None):
            raise refusal(
                torch.Tensor.copy_,
                "whether this in-place operation changes another tensor, too, depends on whether reshape, flatten or "
                "contiguous made a view or a copy, which is not known here; write it without the underscore or "
                "inplace=True",
            )
        living = self.living()
        if len(living) == 1:
            pair.loc, pair.variance, pair.family = new.loc, new.variance, None
            return
        view = next(known for member, known in living if member is pair)
        if view is None:
            self.loc, self.variance = new.loc, new.variance
        else:
            self.loc, self.variance = (
                _with_part(whole, view, part)
                for whole, part in ((self.loc, new.loc), (self.variance, new.variance))
            )  # fmt: skip
        for member, known in living:
            member.loc, member.variance = (x if known is None else known(x) for x in (self.loc, self.variance))


def _with_part(whole: Tensor, view: View, part: Tensor) -> Tensor:
    """A copy of a tensor, with other values in a view of it. shapes: (*shape), (*of the view) -> (*shape)"""
    for layout in (torch.preserve_format, torch.contiguous_format):  # variances may lie otherwise than means
        copied = whole.clone(memory_format=layout)
        try:
            place = view(copied)
        except RuntimeError:  # no view of this layout
            continue
        if _share_memory(place, copied):
            place.copy_(part)
            return copied
    raise refusal(
        torch.Tensor.copy_,
        "what this in-place operation works on is a view of values that cannot be laid out for it; write it without "
        "the underscore or inplace=True",
    )


def _share_memory(a: Tensor, b: Tensor) -> bool:
    if torch._C._functorch.is_functorch_wrapped_tensor(a):  # has no storage of its own
        return a is b or a._is_view()
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def as_moments(value: Tensor | Moments, like: Moments | None = None) -> Moments:
    """A tensor as Moments of zero variance; Moments as they are. shape: (*shape) -> (*shape)"""
    if isinstance(value, Moments):
        return value
    if like is not None and not value.is_floating_point():
        value = value.to(like.dtype)
    return Moments(value, torch.zeros_like(value, dtype=variance_dtype(value.dtype)))


def _method(name: str) -> Callable:
    func = getattr(torch.Tensor, name)

    def method(self: Moments, *args: Any, **kwargs: Any) -> Any:
        return dispatch(func, (self, *args), kwargs)

    method.__name__ = name
    method.__doc__ = f"`torch.Tensor.{name}` by its rule; refused where there is none."
    return method


def _operator(func: Callable, reverse: bool) -> Callable:
    def method(self: Moments, other: Any) -> Any:
        return dispatch(func, (other, self) if reverse else (self, other), {})

    method.__name__ = f"{'r' if reverse else ''}{func.__name__}"
    return method


# Operators that torch writes in Python, which torch.compile does not find in a table: as the function they stand for.
_PYTHON_OPERATORS: dict[str, Callable] = {"sub": torch.sub, "truediv": torch.div, "pow": torch.pow}
setattr(Moments, "__pow__", _operator(torch.pow, reverse=False))  # noqa: B010
for _name, _func in _PYTHON_OPERATORS.items():
    setattr(Moments, f"__r{_name}__", _operator(_func, reverse=True))

# Every public method and operator of a tensor exists on Moments and goes through the same door, so
# that one without a rule is refused by name instead of failing as a missing attribute.
_OPERATORS = (
    "add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv mod pow rpow matmul rmatmul neg "
    "abs pos invert eq ne lt le gt ge and or xor getitem setitem float int complex index"
).split()
for _name in [f"__{name}__" for name in _OPERATORS] + [n for n in dir(torch.Tensor) if not n.startswith("_")]:
    if _name not in Moments.__dict__ and callable(getattr(torch.Tensor, _name, None)):
        setattr(Moments, _name, _method(_name))


def _unflatten(children: Any, context: None) -> Moments:
    # Trees are rebuilt with placeholders too (None, shapes, specs): no validation here.
    pair = Moments.__new__(Moments)
    pair.loc, pair.variance = children
    return pair


pytree.register_pytree_node(
    Moments,
    lambda pair: ([pair.loc, pair.variance], None),
    _unflatten,
    serialized_type_name="bedl.Moments",
    to_dumpable_context=lambda context: "",
    from_dumpable_context=lambda text: None,
    flatten_with_keys_fn=lambda pair: (
        [(pytree.GetAttrKey("loc"), pair.loc), (pytree.GetAttrKey("variance"), pair.variance)],
        None,
    ),
)
