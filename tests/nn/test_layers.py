"""Gaussian layers: parameters, initialisation, the sampling oracle."""

import math

import pytest
import torch
from torch import nn

import bedl
from bedl import Moments
from bedl.nn import GaussianConvTranspose1d, GaussianEmbeddingBag, GaussianMultiheadAttention, GaussianParameter
from tests.closeness import assert_same_up_to_rounding

LAYERS = {
    "linear": (lambda: bedl.GaussianLinear(6, 4), (2, 6)),
    "linear no bias": (lambda: bedl.GaussianLinear(6, 4, bias=False), (3, 6)),
    "conv1d": (lambda: bedl.GaussianConv1d(2, 3, 3, stride=2, padding=1), (2, 2, 5)),
    "conv2d": (lambda: bedl.GaussianConv2d(2, 4, 3, padding="same", groups=2), (2, 2, 4, 3)),
    "conv2d circular": (lambda: bedl.GaussianConv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 2, 4, 3)),
    "conv2d reflect": (lambda: bedl.GaussianConv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 2, 4, 3)),
    "conv3d": (lambda: bedl.GaussianConv3d(1, 2, 2, dilation=2), (1, 1, 3, 4, 3)),
    "conv2d of one channel": (lambda: bedl.GaussianConv2d(1, 3, (3, 2), (2, 1), padding=(1, 0)), (2, 1, 5, 4)),
    "linear, variances by output": (lambda: bedl.GaussianLinear(6, 4, variances="output"), (2, 6)),
    "conv2d, variances by output": (
        lambda: bedl.GaussianConv2d(2, 3, 3, 2, padding=1, dilation=(1, 2), variances="output"),
        (2, 2, 5, 6),
    ),
    "conv2d of one channel, variances by output": (
        lambda: bedl.GaussianConv2d(1, 3, (3, 2), (2, 1), padding=(1, 0), variances="output"),
        (2, 1, 5, 4),
    ),
    "conv2d in groups, variances by output": (
        lambda: bedl.GaussianConv2d(2, 4, 3, padding="same", groups=2, variances="output"),
        (2, 2, 4, 3),
    ),
    "conv_transpose1d": (lambda: GaussianConvTranspose1d(2, 3, 3, stride=2), (2, 2, 4)),
    "conv_transpose2d": (lambda: bedl.GaussianConvTranspose2d(2, 3, 3, 2, 1, output_padding=1), (2, 2, 3, 3)),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def widen(layer):
    """Weights as uncertain as they are large, so that a wrong variance shows."""
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("logvar"):
                parameter.uniform_(-3.0, -1.0)
            elif name.endswith("bias"):
                parameter.normal_()
    return layer


def assert_draws_agree(mean, variance, result, count):
    """Tolerances from the sample count: five standard errors; the outputs are nearly normal, so Var(s²) ≈ 2v²/n,
    with room for the heavier tails of products of normals.
    """
    assert ((result.loc - mean).abs() < 5.5 * (variance / count).sqrt() + 1e-6).all()
    assert ((result.variance / variance - 1).abs() < 5.5 * math.sqrt(6 / count)).all()


@each_layer
@pytest.mark.parametrize("random_input", [False, True])
def test_moments_agree_with_draws_of_the_weights(name, random_input):
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = widen(make())
    x = torch.randn(shape)
    count = 6_000
    if random_input and name == "conv2d reflect":
        pytest.skip("a reflected entry meets its own copy in one window, and copies are taken as independent")
    if random_input:
        x = Moments(x, torch.rand(shape))
    with torch.no_grad():
        copies = 200  # each call draws the weights anew for every data point, so repeat points within a call
        many = Moments(*(t.repeat(copies, *[1] * (t.dim() - 1)) for t in (x.loc, x.variance))) if random_input else \
            x.repeat(copies, *[1] * (x.dim() - 1))  # fmt: skip
        draws = torch.cat([layer.sample(many).unflatten(0, (copies, shape[0])) for _ in range(count // copies)])
        assert_draws_agree(draws.double().mean(0), draws.double().var(0), layer(x), count)


def test_each_data_point_has_its_own_weights():
    layer = widen(bedl.GaussianLinear(4, 2))
    out = layer.sample(torch.ones(5, 4))
    assert len(out[:, 0].unique()) == 5


def test_embedding():
    torch.manual_seed(0)
    layer = widen(bedl.GaussianEmbedding(7, 3, padding_idx=2))
    index = torch.tensor([[0, 2, 6], [1, 1, 2]])
    y = layer(index)
    assert torch.equal(y.loc[0, 0], layer.weight_mean[0])
    assert_same_up_to_rounding(y.variance[1, 0], layer.weight_logvar[1].exp())
    assert not y[0, 1].loc.any()
    assert not y[0, 1].variance.any()
    draws = torch.stack([layer.sample(index) for _ in range(4000)])
    assert ((draws.var(0) - y.variance).abs() < 0.15 * y.variance + 1e-9).all()
    assert not draws[:, 0, 1].any()


BAGS = {
    "rows": (torch.tensor([[0, 2, 6], [1, 1, 2], [2, 2, 2]]), {}),
    "offsets": (torch.tensor([0, 2, 6, 1, 1, 5, 5]), {"offsets": torch.tensor([0, 3, 6])}),
    "last offset": (torch.tensor([0, 2, 6, 1, 1]), {"offsets": torch.tensor([0, 3, 5])}),
    "weights": (torch.tensor([[0, 3], [4, 4]]), {"per_sample_weights": torch.tensor([[2.0, -1.0], [0.5, 3.0]])}),
}


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("name", BAGS)
def test_bags_of_embeddings(name, mode):
    torch.manual_seed(0)
    index, others = BAGS[name]
    mode = "sum" if name == "weights" else mode
    last = name == "last offset"
    layer = widen(GaussianEmbeddingBag(7, 3, mode=mode, padding_idx=2, include_last_offset=last))
    plain = bedl.deterministic(layer)
    y = layer(index, **others)
    assert torch.equal(y.loc, plain(index, **others))
    with torch.no_grad():
        draws = torch.stack([layer.sample(index, **others) for _ in range(3000)]).double()
    empty = y.variance == 0  # bags of padding alone
    assert not draws[:, empty].any()
    mean, variance = draws.mean(0)[~empty], draws.var(0)[~empty]
    assert_draws_agree(mean, variance, Moments(y.loc[~empty], y.variance[~empty]), 3000)


def test_bags_of_embeddings_in_a_network_are_drawn_for_each_point():
    torch.manual_seed(0)
    net = bedl.bayesianize(
        nn.Sequential(nn.EmbeddingBag(9, 4, mode="mean"), nn.Tanh(), nn.Linear(4, 2)), init_logvar=-3
    )
    x = torch.randint(9, (20, 5))
    assert bedl.nn.std_ratio(net, x, draws=300) == pytest.approx(1, abs=0.1)
    with pytest.raises(bedl.UnsupportedOperationError, match="mode='sum' or 'mean'"):
        bedl.bayesianize(nn.EmbeddingBag(9, 4, mode="max"))(x)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.out = GaussianParameter(torch.tensor([1.0, -2.0, 3.0]), init_logvar=-2.0), nn.Linear(3, 1)

    def forward(self, x):
        return self.out(x * self.scale())


def test_a_gaussian_parameter():
    torch.manual_seed(0)
    net, x = Scaled(), torch.randn(6, 3)
    w = net.out.weight[0]
    torch.testing.assert_close(net(x).variance[:, 0], (x * w).square().sum(1) * torch.tensor(-2.0).exp())
    net(x).variance.sum().backward()
    assert net.scale.value_logvar.grad.abs().min() > 0
    with torch.no_grad(), bedl.sampled(net, per="call"):
        draws = torch.stack([net(x) for _ in range(4000)])
    assert_draws_agree(draws.double().mean(0), draws.double().var(0), net(x), 4000)
    plain = bedl.deterministic(net)
    torch.testing.assert_close(plain(x), net(x).loc)
    again = Scaled()
    again.load_state_dict(net.state_dict())
    assert torch.equal(again(x).variance, net(x).variance)
    with pytest.warns(UserWarning, match="'scale'"), bedl.sampled(net):
        net(x)


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch has no batched bilinear
def test_bilinear():
    torch.manual_seed(0)
    layer = widen(bedl.GaussianBilinear(3, 2, 4))
    a, b = Moments(torch.randn(2, 3), torch.rand(2, 3)), Moments(torch.randn(2, 2), torch.rand(2, 2))
    with torch.no_grad():
        draws = torch.stack([layer.sample(a, b) for _ in range(3_000)]).double()
    y = layer(a, b)
    assert ((y.loc - draws.mean(0)).abs() < 5.5 * (draws.var(0) / 3_000).sqrt()).all()
    assert ((y.variance / draws.var(0) - 1).abs() < 0.25).all()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kdim", [None, 6])
def test_multihead_attention(batch_first, kdim):
    torch.manual_seed(0)
    layer = GaussianMultiheadAttention(8, 2, batch_first=batch_first, kdim=kdim, vdim=kdim, init_logvar=-6.0)
    query = torch.randn(2, 3, 8)
    key = torch.randn(2, 3, kdim or 8)
    y, shares = layer(query, key, key)
    assert y.shape == query.shape
    with torch.no_grad():
        draws = torch.stack([layer.sample(query, key, key)[0] for _ in range(1000)]).double()
    # a fifth of a standard deviation is what softmax to first order may be off
    assert ((y.loc - draws.mean(0)).abs() < (0.2 + 6 / 1000**0.5) * draws.std(0)).all()
    ratio = (y.variance / draws.var(0)).sqrt()
    assert 0.85 < ratio.mean() < 1.15  # softmax to first order, with weights that are not small
    torch.testing.assert_close(shares.loc.sum(-1), torch.ones(shares.shape[:-1]))


@each_layer
def test_parameters_and_repr(name):
    layer = LAYERS[name][0]()
    names = [n for n, _ in layer.named_parameters()]
    assert {"weight_mean", "weight_logvar"} <= set(names)
    assert "weight" not in names
    assert ("bias" in names) == (layer.bias is not None)
    plain = layer.plain_class()
    shown = repr(layer).replace("Gaussian", "")
    assert ("variances='output'" in shown) == ("by output" in name)
    assert shown.replace(", variances='output'", "") == repr(plain(*_arguments(name)))


def _arguments(name):
    return {"linear": (6, 4), "linear no bias": (6, 4, False), "conv1d": (2, 3, 3, 2, 1),
            "conv2d": (2, 4, 3, 1, "same", 1, 2), "conv2d circular": (2, 3, 3, 1, 1, 1, 1, True, "circular"),
            "conv2d reflect": (2, 3, 3, 1, 1, 1, 1, True, "reflect"), "conv3d": (1, 2, 2, 1, 0, 2),
            "conv2d of one channel": (1, 3, (3, 2), (2, 1), (1, 0)),
            "linear, variances by output": (6, 4), "conv2d, variances by output": (2, 3, 3, 2, 1, (1, 2)),
            "conv2d of one channel, variances by output": (1, 3, (3, 2), (2, 1), (1, 0)),
            "conv2d in groups, variances by output": (2, 4, 3, 1, "same", 1, 2),
            "conv_transpose1d": (2, 3, 3, 2), "conv_transpose2d": (2, 3, 3, 2, 1, 1)}[name]  # fmt: skip


@pytest.mark.parametrize("fan_in", [10, 500, 4800, 20_000])
def test_initial_second_moment(fan_in):
    """mean² + variance of the weights is 2/fan-in, the log-variances N(−9, 0.001²) as long as there is room."""
    torch.manual_seed(0)
    layer = bedl.GaussianLinear(fan_in, 400_000 // fan_in)
    weight = layer.weight
    total = (weight.loc.square() + weight.variance).mean().item()
    assert total == pytest.approx(2 / fan_in, rel=0.02)
    if fan_in < 8000:
        assert layer.weight_logvar.mean().item() == pytest.approx(-9, abs=1e-4)
        assert layer.weight_logvar.std().item() == pytest.approx(0.001, rel=0.05)
    he = bedl.GaussianLinear(fan_in, 400_000 // fan_in, init="he")
    assert he.weight_mean.square().mean().item() == pytest.approx(2 / fan_in, rel=0.02)
    assert not layer.bias.any()


def test_fan_in_of_convolutions():
    assert bedl.GaussianConv2d(6, 4, 5, groups=2).fan_in() == 3 * 25
    assert bedl.GaussianConvTranspose2d(6, 4, 4, stride=2).fan_in() == 6 * 4
    assert bedl.GaussianBilinear(3, 5, 2).fan_in() == 15


def test_the_wide_cifar_net_keeps_its_scale():
    """With He's means on top of the variances this net's outputs explode by the depth; here they stay of order one."""
    torch.manual_seed(0)
    net = nn.Sequential(
        bedl.GaussianConv2d(3, 192, 5, stride=2), nn.ReLU(), bedl.GaussianConv2d(192, 192, 5, stride=2), nn.ReLU(),
        nn.Flatten(), bedl.GaussianLinear(192 * 25, 1000), nn.ReLU(), bedl.GaussianLinear(1000, 5),
    )  # fmt: skip
    y = net(torch.randn(4, 3, 32, 32))
    total = (y.loc.square() + y.variance).mean().sqrt()
    assert 0.3 < total < 3


def test_wrong_init_is_refused():
    with pytest.raises(ValueError, match="'second-moment' or 'he'"):
        bedl.GaussianLinear(2, 2, init="xavier")


def test_dtype_device_and_seed():
    layer = bedl.GaussianLinear(3, 2, dtype=torch.float64, device="meta")
    assert layer.weight_mean.dtype is torch.float64
    assert layer.weight_logvar.device.type == "meta"
    torch.manual_seed(5)
    a = bedl.GaussianLinear(3, 2).weight_mean
    torch.manual_seed(5)
    assert torch.equal(a, bedl.GaussianLinear(3, 2).weight_mean)


def test_sampled_restores_even_after_an_error():
    net = nn.Sequential(bedl.GaussianLinear(3, 2))
    with pytest.raises(RuntimeError), bedl.sampled(net):
        net(torch.ones(1, 4))
    with bedl.sampled(net):
        assert isinstance(net(torch.ones(1, 3)), torch.Tensor)
    assert isinstance(net(torch.ones(1, 3)), Moments)
