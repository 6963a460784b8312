"""The value itself: what it accepts, how it behaves like a tensor, what it refuses and how it says so."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

import bedl
from bedl import GaussianLinear, Moments, UnsupportedOperationError


def test_fields_and_metadata():
    x = Moments(torch.zeros(2, 3), 1.0)
    assert x.shape == (2, 3) == x.size()
    assert (x.size(1), x.dim(), x.ndim, x.numel(), len(x)) == (3, 2, 2, 6, 2)
    assert (x.dtype, x.device, x.is_floating_point()) == (torch.float32, torch.device("cpu"), True)
    assert x.variance.dtype is torch.float32
    assert not x.requires_grad
    assert Moments(torch.zeros(2), torch.ones(2, requires_grad=True)).requires_grad


def test_standard_deviations_and_distributions():
    x = Moments(torch.tensor([1.0, 2.0]), torch.tensor([4.0, 0.0]))
    assert torch.equal(x.stddev, torch.tensor([2.0, 0.0]))
    law = x.to_distribution()
    assert torch.equal(law.mean, x.loc)
    assert law.variance.tolist() == [4.0, 0.0]
    assert law.cdf(torch.tensor(1.0))[0].item() == 0.5


def test_types_by_name_and_more_axes():
    x = Moments(torch.ones(3), 1.0)
    assert x.type() == "torch.FloatTensor"
    assert x.type(torch.float64).dtype is torch.float64
    assert x.type("torch.HalfTensor").dtype is torch.float16
    with pytest.raises(UnsupportedOperationError, match="int64"):
        x.type(torch.int64)
    assert torch.atleast_2d(x).shape == (1, 3)
    known, random = torch.atleast_3d(torch.ones(2), x)
    assert isinstance(known, torch.Tensor)
    assert random.shape == (1, 3, 1) == random.variance.shape


def test_mean_and_var_are_tensor_methods_not_fields():
    x = Moments(torch.ones(2, 3, 4, 4), 1.0)
    y = x.mean((2, 3))
    torch.testing.assert_close(y.variance, torch.full((2, 3), 1 / 16))
    assert isinstance(x.var(), Moments)


def test_variance_broadcasts():
    assert Moments(torch.zeros(2, 3), torch.tensor([1.0, 2.0, 3.0])).variance.shape == (2, 3)
    with pytest.raises(ValueError, match=r"\(2,\).*\(2, 3\)"):
        Moments(torch.zeros(2, 3), torch.zeros(2))


@pytest.mark.parametrize("arguments, error, message", [
    ((torch.zeros(2, dtype=torch.long), 1.0), TypeError, r"int64.*\.float\(\)"),
    ((torch.zeros(2), torch.ones(2, dtype=torch.int)), TypeError, r"int32.*\.float\(\)"),
    (([1.0], 1.0), TypeError, "must be a torch.Tensor, not list"),
    ((torch.zeros(2), -1.0), ValueError, "at least 0"),
    ((torch.zeros(2), float("nan")), ValueError, "at least 0"),
])  # fmt: skip
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        Moments(*arguments)


def test_repr_and_detach_and_to():
    x = Moments(torch.ones(2, requires_grad=True), torch.full((2,), 2.0, requires_grad=True))
    assert "loc=tensor([1., 1.])" in repr(x)
    assert not x.detach().requires_grad
    half = x.to(torch.bfloat16)
    assert (half.dtype, half.variance.dtype) == (torch.bfloat16, torch.float32)
    assert x.double().variance.dtype is torch.float64
    assert x.to("meta").device.type == "meta" == x.to("meta").variance.device.type
    assert x.to(half).dtype is torch.bfloat16
    assert x.type_as(torch.zeros(1, dtype=torch.float64)).dtype is torch.float64
    with pytest.raises(UnsupportedOperationError):
        x.to(torch.long)


def test_it_is_a_pytree():
    x = Moments(torch.zeros(2), 1.0)
    leaves, spec = pytree.tree_flatten({"x": x})
    assert [t.shape for t in leaves] == [(2,), (2,)]
    assert isinstance(pytree.tree_unflatten([None, "placeholder"], spec)["x"], Moments)
    doubled = pytree.tree_map(lambda t: 2 * t, x)
    torch.testing.assert_close(doubled.variance, torch.full((2,), 2.0))
    assert torch.equal(copy.deepcopy(x).variance, x.variance)


# -- refusals --------------------------------------------------------------------------------------
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.Tanhshrink()

    def forward(self, x):
        return x + self.act(x)


def test_unknown_operation_names_function_path_and_remedies():
    net = nn.Sequential(GaussianLinear(3, 3), nn.ReLU(), nn.Sequential(Block()))
    with pytest.raises(UnsupportedOperationError) as caught:
        net(torch.ones(1, 3))
    assert caught.value.path == "2.0.act"
    assert caught.value.func is F.tanhshrink
    for part in ("torch.nn.functional.tanhshrink", "'2.0.act'", "register_rule", "use_rules", "quadrature", "check"):
        assert part in str(caught.value)


@pytest.mark.parametrize("operation", [
    lambda x: x > 0, lambda x: x == 0, lambda x: bool(x), lambda x: float(x), lambda x: int(x), lambda x: x.argmax(),
    lambda x: x.numpy(), lambda x: torch.gcd(x, x), lambda x: x % 2, lambda x: x**x, lambda x: x.item(),
    lambda x: torch.ones(1)[x], lambda x: x.median(), lambda x: x // 2, lambda x: x.norm(p=1), lambda x: torch.svd(x),
    lambda x: torch.ones(1).add_(x), lambda x: torch.ones(1).__setitem__(0, x), lambda x: x.tolist(),
    lambda x: x.round(), lambda x: torch.where(x, 1.0, 2.0), lambda x: x.bernoulli(),
    lambda x: F.cross_entropy(x[None], torch.zeros(1, dtype=torch.long)), lambda x: torch.lerp(x, x, x),
])  # fmt: skip
def test_nothing_is_silently_deterministic(operation):
    with pytest.raises(UnsupportedOperationError):
        operation(Moments(torch.ones(1), 1.0))


def test_mismatched_shapes_name_both():
    with pytest.raises(RuntimeError, match=r"2.*3"):
        Moments(torch.zeros(2), 1.0) + Moments(torch.zeros(3), 1.0)
    with pytest.raises(RuntimeError, match=r"2x3 and 4x5"):
        GaussianLinear(4, 5)(Moments(torch.zeros(2, 3), 1.0))


# -- rules of the user's own -----------------------------------------------------------------------
def test_use_rules_holds_inside_the_block_only():
    x = Moments(torch.zeros(1), 1.0)
    with bedl.use_rules({F.tanhshrink: lambda x: Moments(x.loc, x.variance * 7)}):
        assert F.tanhshrink(x).variance.item() == 7
        with bedl.use_rules({F.tanhshrink: lambda x: Moments(x.loc, x.variance * 8)}):
            assert F.tanhshrink(x).variance.item() == 8
        assert F.tanhshrink(x).variance.item() == 7
    with pytest.raises(UnsupportedOperationError):
        F.tanhshrink(x)


def test_use_rules_overrides_and_leaves_other_threads_alone():
    from concurrent.futures import ThreadPoolExecutor

    x = Moments(torch.zeros(1), 1.0)
    before = torch.relu(x).variance
    with bedl.use_rules({torch.relu: lambda x: Moments(x.loc, x.variance * 9)}), ThreadPoolExecutor(1) as pool:
        assert torch.relu(x).variance.item() == 9
        assert torch.equal(pool.submit(lambda: torch.relu(x).variance).result(), before)


def test_register_rule(monkeypatch):
    monkeypatch.setattr("bedl.moments.dispatch._RULES", dict(bedl.moments.dispatch._RULES))
    bedl.register_rule(F.tanhshrink, bedl.rules.quadrature(F.tanhshrink, 64))
    y = F.tanhshrink(Moments(torch.tensor([0.3]), 1e-4))
    slope = math.tanh(0.3) ** 2
    assert y.variance.item() == pytest.approx(1e-4 * slope**2, rel=2e-2)
    with pytest.raises(TypeError, match="callables"):
        bedl.register_rule("tanhshrink", 3)


# -- in-place operations ---------------------------------------------------------------------------
@pytest.mark.parametrize("inplace, plain", [
    (lambda x: x.relu_(), torch.relu), (lambda x: F.relu(x, inplace=True), torch.relu),
    (lambda x: F.relu_(x), torch.relu), (lambda x: torch.relu_(x), torch.relu), (lambda x: x.add_(2), lambda x: x + 2),
    (lambda x: x.mul_(3.0), lambda x: x * 3), (lambda x: nn.ELU(inplace=True)(x), F.elu),
    (lambda x: x.sub_(torch.ones(2)), lambda x: x - 1), (lambda x: x.div_(2), lambda x: x / 2),
    (lambda x: x.clamp_(0, 1), lambda x: x.clamp(0, 1)), (lambda x: nn.Dropout(0.5, inplace=True)(x), F.dropout),
])  # fmt: skip
def test_in_place_changes_the_object(inplace, plain):
    x, y = Moments(torch.ones(2), 1.0), Moments(torch.ones(2), 1.0)
    expected = plain(y)
    assert inplace(x) is x
    assert torch.equal(x.loc, expected.loc)
    assert torch.equal(x.variance, expected.variance)


def test_augmented_assignment():
    x = y = Moments(torch.ones(2), 1.0)
    x += 1
    x *= 2
    x -= Moments(torch.ones(2), 1.0)
    assert x is y
    assert (y.loc[0].item(), y.variance[0].item()) == (3.0, 5.0)
    t = torch.zeros(2)
    t += y  # Python falls back to t = t + y
    assert isinstance(t, Moments)


@pytest.mark.parametrize("change", [
    lambda h: h[:, :4].mul_(10.0), lambda h: F.relu(h[:, :4], inplace=True), lambda h: h.view(-1).add_(1),
    lambda h: h.flatten().__iadd__(1), lambda h: h[0].mul_(5),
])  # fmt: skip
def test_in_place_on_a_view_reaches_what_it_is_a_view_of(change):
    generator = torch.Generator().manual_seed(0)
    loc, variance = torch.randn(2, 8, generator=generator), torch.rand(2, 8, generator=generator)
    h = Moments(loc.clone(), variance.clone())
    result, plain = change(h), loc.clone()
    change(plain)
    certain = Moments(loc.clone(), torch.zeros(2, 8))
    change(certain)
    assert torch.equal(certain.loc, plain)
    assert result.loc._base is h.loc
    assert result.variance._base is h.variance
    assert not torch.equal(h.loc, loc)


C = torch.tensor([0.3, -2.0, 1.0], dtype=torch.float64)
LEAF = torch.arange(16.0).view(2, 8).requires_grad_()


@pytest.mark.parametrize("make", [
    lambda: Moments(LEAF, torch.ones(2, 8)) * 2,  # autograd keeps values
    lambda: Moments(LEAF.detach(), torch.ones(8, 2).t()),  # mean and variance lie otherwise in memory
    lambda: Moments(LEAF.detach(), torch.ones(1)),  # one variance for all
], ids=["recorded", "other layout", "expanded"])  # fmt: skip
def test_in_place_on_a_view_goes_through_whatever_the_memory_is(make):
    h, plain = make(), make().loc.detach().clone()
    for x in (h, plain):
        x.flatten()[:4].mul_(10.0)
    assert torch.equal(h.loc, plain)
    assert torch.equal(h.variance.flatten()[:4] / h.variance.flatten()[4:8], torch.full((4,), 100.0))


# What is the same tensor in PyTorch, or a view, or a copy.
ALIASES = {
    "contiguous": lambda h: h.contiguous(), "flatten": lambda h: h.flatten(1), "cpu": lambda h: h.cpu(),
    "positive": lambda h: +h, "to": lambda h: h.to(h.dtype), "reshape": lambda h: h.reshape(3, 4),
    "reshaped": lambda h: h.reshape(2, 6), "view_as": lambda h: h.view_as(torch.ones(4, 3)),
    "expand": lambda h: h.expand(3, 4), "float": lambda h: h.float(), "type_as": lambda h: h.type_as(h),
    "squeeze": lambda h: h.squeeze(), "ravel": lambda h: h.ravel(), "dropout": lambda h: F.dropout(h, 0.5, False),
    "column": lambda h: h[:, 1], "of a view": lambda h: h.t()[1:3].unsqueeze(0), "diagonal": lambda h: h.diagonal(),
    "transposed and laid out": lambda h: h.t().contiguous(), "chosen": lambda h: h[[0, 2]],
    "clone": lambda h: h.clone(), "repeat": lambda h: h.repeat(1, 1),
    "transposed and flat": lambda h: h.t().flatten(), "identity": lambda h: nn.Identity()(h),
}  # fmt: skip


@pytest.mark.parametrize("alias", ALIASES.values(), ids=ALIASES)
@pytest.mark.parametrize("recorded", [False, True], ids=["constant", "recorded"])
@pytest.mark.parametrize("changed", ["alias", "base", "both"])
def test_what_in_place_operations_change_is_what_they_change_in_pytorch(alias, recorded, changed):
    def run(h):
        other, part = alias(h), h[1:]
        if changed != "base":
            other.mul_(3.0)
        if changed != "alias":
            h += 1.0
        if changed == "both":
            other.sub_(2.0)
        return [h, other, part]

    leaf = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_(recorded)
    expected = run(leaf * 1)
    found = run(Moments(leaf * 1, torch.zeros(3, 4)))
    assert all(torch.equal(a.loc, b) for a, b in zip(found, expected, strict=True))
    if recorded:
        a, b = (torch.autograd.grad(sum((x * x).sum() for x in xs), leaf)[0]
                for xs in ([x.loc for x in found], expected))  # fmt: skip
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("copies", [lambda h: h**1, lambda h: torch.maximum(h, h)], ids=["power", "largest"])
def test_results_that_are_the_input_again_are_copies(copies):
    for make in (lambda x: x, lambda x: Moments(x, 1.0)):
        h = make(torch.ones(3))
        copies(h).mul_(3.0)
        assert (h if isinstance(h, torch.Tensor) else h.loc).max() == 1


def test_in_place_on_detached_values_changes_values_alone():
    for make in (lambda x: x, lambda x: Moments(x, torch.ones(3))):
        leaf = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        h = make(leaf * 2)
        h.detach().mul_(3.0)
        loc = h if isinstance(h, torch.Tensor) else h.loc
        loc.sum().backward()
        assert torch.equal(loc, torch.tensor([6.0, 12.0, 18.0]))
        assert torch.equal(leaf.grad, torch.full((3,), 2.0))


def test_in_place_is_refused_where_pytorchs_memory_is_not_known():
    """Convolutions lay out their results otherwise here than in PyTorch, where `flatten` would make a view."""
    conv = bedl.GaussianConv2d(3, 4, 3)
    h = conv(torch.randn(2, 3, 8, 8))
    flat = h.flatten(1)
    for change in (lambda: flat.mul_(2.0), lambda: h.add_(1.0), lambda: flat[:, :2].mul_(2.0)):
        with pytest.raises(
            UnsupportedOperationError, match=r"reshape, flatten or contiguous .* without the underscore"
        ):
            change()
    flat = conv(torch.randn(2, 3, 8, 8)).flatten(1)
    F.relu(flat, inplace=True)  # nothing else is there to change
    assert flat.loc.min() > 0


def test_in_place_on_a_view_of_something_gone():
    leaf = torch.ones(2, 8, requires_grad=True)
    view = (Moments(leaf, torch.ones(2, 8)) * 2).flatten()
    F.relu(view, inplace=True)
    view.loc.sum().backward()
    assert leaf.grad.min() > 0.5
    copied = copy.deepcopy(Moments(torch.ones(2), 1.0).view(1, 2))
    assert copied.shape == (1, 2)


def test_in_place_without_effect_is_no_change():
    h = Moments(torch.ones(2, 8, requires_grad=True), torch.ones(2, 8)) * 2
    view = h.view(-1)
    assert F.dropout(view, training=False, inplace=True) is view


def test_rules_must_return_moments():
    with (
        bedl.use_rules({F.tanhshrink: lambda x: x.loc}),
        pytest.raises(TypeError, match="tanhshrink returned a Tensor"),
    ):
        F.tanhshrink(Moments(torch.zeros(1), 1.0))


def test_the_same_object_twice():
    x = Moments(torch.randn(3, 3), 1.0)
    assert torch.equal(torch.maximum(x, x).variance, x.variance)
    for product in (lambda: x @ x, lambda: torch.einsum("bi,bi->b", x, x)):
        with pytest.raises(UnsupportedOperationError, match="same random values"):
            product()


@pytest.mark.parametrize("function", [
    lambda x: torch.addcmul(x, x, x), lambda x: torch.addcmul(x, x, x, value=-0.7), lambda x: torch.addcmul(x, x, C),
    lambda x: torch.addcmul(x, C, x, value=2), lambda x: torch.addcmul(C, x, x, value=3),
    lambda x: torch.lerp(x, x, 0.3), lambda x: x.addcmul_(x, x),
])  # fmt: skip
def test_the_same_object_twice_is_exact_by_quadrature(function):
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    z, w = torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())
    m, v = torch.tensor([-1.5, 0.0, 0.4], dtype=torch.float64), torch.tensor([0.5, 2.0, 1e-6], dtype=torch.float64)
    found = function(Moments(m.clone(), v.clone()))
    values = function((m + v.sqrt() * z[:, None]).clone())
    mean = w @ values
    torch.testing.assert_close(found.loc, mean)
    torch.testing.assert_close(found.variance, w @ (values - mean).square(), rtol=1e-9, atol=1e-15)


def test_numpy_is_refused():
    x = Moments(torch.zeros(2), 1.0)
    assert (np.float32(2) * x).variance[0] == 4
    for operation in (lambda: np.ones(2) * x, lambda: np.asarray(x)):
        with pytest.raises((UnsupportedOperationError, TypeError)):
            operation()


def test_numpys_names_for_arguments():
    x = Moments(torch.ones(2, 3), 1.0)
    assert x.sum(axis=1, keepdims=True).shape == (2, 1)
    assert torch.ones(2, dtype=torch.float64).to(x).dtype is torch.float32
    assert x.to(torch.float32) is x


def test_in_place_keeps_gradients():
    loc = torch.tensor([0.5, -0.5], requires_grad=True)
    x = Moments(loc, 1.0) * 2
    x += 1
    x.relu_()
    x.loc.sum().backward()
    assert (loc.grad > 0).all()
