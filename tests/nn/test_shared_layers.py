"""A layer that is used more than once in a pass: drawn once, and named by `check`."""

import math

import pytest
import torch
from torch import nn

import bedl
from bedl.nn import GaussianMultiheadAttention
from bedl.nn.draws import noise_of_rows

DRAWS = 4000


class Siamese(nn.Module):
    """The difference of two rows that one layer sees: Var = Σ s² (a − b)², not Σ s² (a² + b²)."""

    def __init__(self, layer, other=None):
        super().__init__()
        self.layer, self.other = layer, other or layer

    def forward(self, x):
        return self.layer(x[:, 0]) - self.other(x[:, 1])


def layer_and_input(kind):
    if kind == "linear":
        return bedl.GaussianLinear(6, 2, init_logvar=-2.0), torch.rand(2, 6)
    if kind == "linear, rows":
        return bedl.GaussianLinear(6, 2, init_logvar=-2.0), torch.rand(2, 3, 6)
    return bedl.GaussianConv1d(2, 2, 3, init_logvar=-2.0), torch.rand(2, 2, 6)


@pytest.mark.parametrize("kind", ["linear", "linear, rows", "convolution"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_difference_of_two_calls_has_the_variance_of_one_draw(kind, tied):
    torch.manual_seed(0)
    layer, pair = layer_and_input(kind)
    pair[1] = pair[0] + 0.05 * torch.randn(pair[0].shape)
    other = type(layer)(*((6, 2) if kind.startswith("linear") else (2, 2, 3)))
    for name in ("weight_mean", "weight_logvar"):
        setattr(other, name, getattr(layer, name))
    net = Siamese(layer, other if tied else None)
    x = pair.expand(DRAWS, *pair.shape)
    with torch.no_grad(), bedl.sampled(net):
        drawn = net(x)
    # truth: the layer is linear, so the difference of its calls is the call of the difference
    with torch.no_grad():
        truth = layer((pair[0] - pair[1]).unsqueeze(0)).variance[0]
    noise = math.sqrt(2 / DRAWS)
    torch.testing.assert_close(drawn.var(0), truth, rtol=5 * noise, atol=0)


def test_one_call_of_the_same_twice_gives_the_same_and_the_next_call_another():
    layer = bedl.GaussianLinear(4, 3)
    net = Siamese(layer)
    x = torch.rand(5, 1, 4).expand(5, 2, 4)
    with torch.no_grad(), bedl.sampled(net):
        assert net(x).abs().max() < 1e-6
        assert not torch.equal(layer(x[:, 0]), layer(x[:, 0]))  # two passes


def test_points_still_draw_independently():
    layer = bedl.GaussianLinear(4, 3)
    net = Siamese(layer)
    x = torch.rand(1, 2, 4).expand(50, 2, 4)
    with torch.no_grad(), bedl.sampled(net):
        assert (net(x).std(0) > 0).all()


def test_rows_of_a_point_have_the_covariances_of_its_weights():
    torch.manual_seed(1)
    rows, s2 = torch.randn(4, 5), torch.rand(1, 5)
    rows[3] = rows[1]
    earlier: list = []
    noise = torch.stack([noise_of_rows(row.expand(200_000, 5), s2, earlier)[:, 0] for row in rows])
    torch.testing.assert_close(noise.double().cov(), ((rows * s2) @ rows.T).double(), rtol=0.03, atol=0.03)
    torch.testing.assert_close(noise[3], noise[1].double(), rtol=1e-4, atol=1e-4)


def test_attention_that_is_called_twice_draws_once():
    torch.manual_seed(0)
    layer = GaussianMultiheadAttention(8, 2, batch_first=True, init_logvar=-2.0)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, x, x)[0] - self.layer(x, x, x)[0]

    with torch.no_grad(), bedl.sampled(Twice()) as net:
        assert net(torch.rand(3, 4, 8)).abs().max() < 1e-6


def test_rows_and_then_sequences_meet_the_same_weights():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = bedl.GaussianLinear(4, 4, init_logvar=-2.0)

        def forward(self, x):
            return self.layer(x) - self.layer(x[:, None])[:, 0]

    with torch.no_grad(), bedl.sampled(Both()) as net:
        assert net(torch.rand(3, 4)).abs().max() < 1e-5


def test_an_error_ends_the_pass():
    net = Siamese(bedl.GaussianLinear(4, 3))
    with torch.no_grad(), bedl.sampled(net):
        with pytest.raises(RuntimeError):
            net(torch.rand(2, 2, 5))
        assert net.layer.drawn is None
        net(torch.rand(2, 2, 4))
    assert net.layer.drawn is None
    assert not net.layer.is_sampling


def test_check_names_a_shared_layer_and_says_by_how_much_it_errs():
    torch.manual_seed(0)
    net = Siamese(nn.Linear(16, 8))
    row = torch.rand(4, 1, 16)
    pair = torch.cat([row, row + 0.05 * torch.randn(4, 1, 16)], 1)
    report = bedl.check(net, pair)
    (shared,) = report.shared
    assert (shared.path, shared.calls) == ("layer", 2)
    a, b = pair.unbind(1)  # all weights have the same variance here
    truth = ((a.square() + b.square()).sum(-1) / (a - b).square().sum(-1)).sqrt().log().mean().exp().item()
    assert truth > 10
    assert shared.error == pytest.approx(truth, rel=0.1)
    assert "layer is called 2 times" in str(report)
    assert report.ok
    assert not bedl.check(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))).shared


def test_layers_with_one_weight_count_as_one():
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    (shared,) = bedl.check(net).shared
    assert (shared.path, shared.calls) == ("0", 2)
