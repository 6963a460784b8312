"""Other people's machinery around Moments: einops, transformers, torch.compile, torch.jit.trace, torch's encoder,
custom autograd functions.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl import Moments
from bedl.moments import dispatch


def test_einops():
    einops = pytest.importorskip("einops")
    layers = pytest.importorskip("einops.layers.torch")
    h = bedl.GaussianLinear(3, 4)(torch.randn(2, 6, 3))
    rearranged = einops.rearrange(h, "n (a b) c -> n c a b", a=2)
    assert torch.equal(rearranged.variance, einops.rearrange(h.variance, "n (a b) c -> n c a b", a=2))
    assert torch.equal(einops.repeat(h, "n t c -> n t c k", k=2).variance[..., 1], h.variance)
    mean = einops.reduce(h, "n t c -> n c", "mean")
    torch.testing.assert_close(mean.variance, h.variance.sum(1) / 36)
    net = nn.Sequential(nn.Linear(3, 4), layers.Rearrange("n t c -> n (t c)"), nn.Linear(24, 2))
    x = torch.randn(2, 6, 3)
    torch.testing.assert_close(bedl.bayesianize(net, init_logvar=-float("inf"))(x).loc, net(x))


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        a, b = self.a(x), self.b(x)
        scores = a @ b.transpose(-1, -2)
        return 1 - (torch.ones(3, 3) @ scores @ b.new_ones(3, 2)) ** 5 / 3 + 2 / (a @ x.mT).square().add(1)[..., :2]


class Positive(Products):
    def forward(self, x):
        h = self.a(x).square() + 1
        top, _ = torch.topk(torch.rsqrt(h) + torch.log(h) + h**0.3 + torch.erf(h) + 2 / h, 2)
        return top.clamp(torch.zeros(2), torch.ones(2)).index_add(1, torch.tensor([0, 0]), top[:, :2])


@pytest.mark.parametrize("kind", [Products, Positive])
def test_operators_and_new_rules_are_captured_whole(kind):
    torch._dynamo.reset()
    torch.manual_seed(0)
    net, x = bedl.bayesianize(kind()), torch.randn(2, 3, 4)
    compiled = torch.compile(net, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x).variance, net(x).variance)


@pytest.mark.arch
def test_outputs_of_transformers_are_captured_for_any_number_of_points():
    """They go through whatever is no tensor to them, which would fix how many points there are."""
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = bedl.GaussianLinear(3, 2)

        def forward(self, x):
            y = outputs.BaseModelOutput(last_hidden_state=self.linear(x)).last_hidden_state
            return y.loc, y.variance

    net, x = Named(), torch.randn(4, 3)
    net(x)
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(net, (x,), dynamic_shapes=shapes, strict=False).module()
    for rows in (x[:2], torch.randn(7, 3)):
        torch.testing.assert_close(program(rows), net(rows))


@pytest.mark.filterwarnings("ignore:`torch.jit.trace", "ignore:`torch.jit.script`")
def test_jit_is_refused_in_one_line():
    with pytest.raises(bedl.BEDLError, match=r"^torch\.jit\.trace cannot follow Moments; use bedl\.export.*$"):
        torch.jit.trace(bedl.bayesianize(nn.Linear(3, 2)), torch.ones(1, 3))
    with pytest.raises(bedl.BEDLError, match=r"^torch\.jit\.script cannot follow Moments; use bedl\.export.*$"):
        torch.jit.script(bedl.bayesianize(nn.Sequential(nn.Linear(3, 2), nn.ReLU())))


class Embedded(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.embed, self.encoder = nn.Linear(16, 16), encoder
        self.eval()

    def forward(self, x, src_key_padding_mask):
        return self.encoder(self.embed(x), src_key_padding_mask=src_key_padding_mask)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("embedded", [True, False])
def test_transformer_encoder_with_a_padding_mask(nested, grad, embedded):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    if embedded:  # what comes to the encoder is random already
        net = Embedded(net)
    x, padding = torch.randn(3, 5, 16), torch.zeros(3, 5, dtype=torch.bool)
    padding[0, 3:] = True
    with torch.set_grad_enabled(grad):
        plain = net(x, src_key_padding_mask=padding)
        certain = bedl.bayesianize(net, init_logvar=-float("inf"))(x, src_key_padding_mask=padding)
        y = bedl.bayesianize(net)(x, src_key_padding_mask=padding)
        moved = x.clone()
        moved[0, 3:] += 1  # what is padded does not matter
        same = bedl.bayesianize(net)(moved, src_key_padding_mask=padding)
    torch.testing.assert_close(certain.loc[~padding], plain[~padding], rtol=1e-4, atol=1e-5)
    assert isinstance(y, Moments)
    torch.testing.assert_close(y.variance[~padding], same.variance[~padding])


class SquaredReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0) ** 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x.clamp(min=0)


class Reversed(torch.autograd.Function):
    """Gradient reversal. No operation meets its argument, so that Moments would go through with their gradient."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return -grad


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 0 + x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, grad):
        return grad


class Custom(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.function = nn.Linear(4, 8), nn.Linear(8, 1), function

    def forward(self, x):
        return self.b(self.function.apply(self.a(x)))


@pytest.mark.parametrize("function", [SquaredReLU, Reversed, StraightThrough])
@pytest.mark.parametrize("grad", [True, False])
def test_custom_functions_are_refused_with_a_remedy(function, grad):
    """Their backward would be skipped, without a word."""
    net, name = Custom(function), f"{function.__name__}.apply"
    with (
        pytest.raises(bedl.UnsupportedOperationError, match=f"register_rule.{name}") as caught,
        torch.set_grad_enabled(grad),
    ):
        bedl.bayesianize(net)(torch.randn(3, 4))
    assert caught.value.name == name
    report = bedl.check(net, torch.randn(3, 4))
    assert [op.function for op in report.unsupported] == [name]
    assert f"register_rule({name}" in str(report)


def test_a_custom_function_is_differentiated_by_the_rule_that_is_registered():
    rules = {
        SquaredReLU.apply: bedl.rules.quadrature(SquaredReLU.apply, kinks=[0.0]),
        Reversed.apply: lambda x: Moments(Reversed.apply(x.loc), Reversed.apply(x.variance)),
    }
    x = torch.randn(3, 4)
    with bedl.use_rules(rules):
        for function, sign in ((SquaredReLU, 1.0), (Reversed, -1.0)):
            net = bedl.bayesianize(Custom(function))
            assert bedl.check(net, x).ok
            net(x).loc.sum().backward()
            plain = bedl.deterministic(net)
            known = Moments(plain.a(x), net.a(x).variance)  # E of the square of the positive part, as PyTorch has it
            loc = F.relu(known.loc) ** 2 if sign > 0 else known.loc
            expected = torch.autograd.grad((loc @ plain.b.weight.T).sum(), plain.a.weight)[0]
            torch.testing.assert_close(net.a.weight_mean.grad, sign * expected, atol=2e-3, rtol=2e-3)
    net = bedl.bayesianize(Custom(SquaredReLU))
    with pytest.raises(bedl.UnsupportedOperationError):
        net(x)


def test_a_rule_registered_for_a_custom_function_lasts(monkeypatch):
    monkeypatch.setattr(dispatch, "_RULES", dict(dispatch._RULES))
    monkeypatch.setattr(dispatch, "_OWN", set(dispatch._OWN))
    bedl.register_rule(SquaredReLU.apply, bedl.rules.quadrature(SquaredReLU.apply))
    x = Moments(torch.tensor([5.0, -5.0]), 0.25)
    found = SquaredReLU.apply(x)
    torch.testing.assert_close(found.loc, torch.tensor([25.25, 0.0]))
    plain = torch.tensor([2.0, -1.0], requires_grad=True)
    SquaredReLU.apply(plain).sum().backward()
    assert torch.equal(plain.grad, torch.tensor([4.0, 0.0]))


def test_reentrant_checkpoints_are_refused():
    """They run a part of the network without gradients, and would find no tensor to hang its backward on."""
    from torch.utils.checkpoint import checkpoint

    layer = bedl.GaussianLinear(4, 4)
    h = layer(torch.randn(2, 4))
    with pytest.raises(bedl.UnsupportedOperationError, match="use_reentrant=False"):
        checkpoint(layer, h, use_reentrant=True)
    direct = layer(h)
    again = checkpoint(layer, h, use_reentrant=False)
    assert torch.equal(again.variance, direct.variance)
    grads = [torch.autograd.grad(y.loc.sum(), layer.weight_mean, retain_graph=True)[0] for y in (direct, again)]
    torch.testing.assert_close(*grads)
