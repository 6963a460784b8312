"""Positions that share a draw of the weights: averages over them, against draws."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl import Moments
from bedl.moments.rules.correlated import Positions, _seen
from bedl.nn import shared_draws


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = (nn.Conv2d(c, 8, 3, padding=1) for c in (1, 8, 8))
        self.norm, self.out = nn.BatchNorm2d(8), nn.Linear(16, 2)

    def forward(self, x):
        x = F.relu(self.stem(x), inplace=True)
        y = self.norm(self.a(x))
        y += x
        y = F.avg_pool2d(F.relu(y), 2)
        return self.out(torch.cat([y, F.gelu(self.b(y))], 1).mean((2, 3)))


NETS = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2), nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)),
    "groups": lambda: nn.Sequential(
        nn.Conv2d(1, 8, 3, padding="same"), nn.ReLU(), nn.Conv2d(8, 16, 3, groups=4, dilation=2), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(16, 3)),
    "residual": Residual,
}  # fmt: skip


@pytest.mark.parametrize("name", NETS)
def test_averages_have_the_spread_of_draws(name):
    torch.manual_seed(0)
    net, x = bedl.bayesianize(NETS[name]().eval(), init_logvar=-7.0), torch.rand(4, 1, 12, 12)
    with torch.no_grad():
        with bedl.sampled(net):
            truth = torch.cat([net(x.repeat(50, 1, 1, 1)).unflatten(0, (50, 4)) for _ in range(16)]).std(0)
        plain = net(x)
        with shared_draws():
            y = net(x)
    assert torch.equal(net(x).variance, plain.variance)  # outside the block nothing has changed
    torch.testing.assert_close(y.loc, plain.loc, rtol=0.05, atol=0.02)
    before, after = (t.variance.sqrt() / truth for t in (plain, y))
    assert before.mean() < 0.85
    assert abs(after.mean() - 1) < 0.08
    assert (after - 1).abs().max() < 0.3


def test_exact_for_one_convolution_of_a_plain_image():
    """Of one sign: where the weights pull positions apart, ρ stops at 0."""
    torch.manual_seed(0)
    layer, x = bedl.GaussianConv2d(2, 3, 3, padding=1).double(), torch.rand(2, 2, 5, 6, dtype=torch.float64)
    with shared_draws():
        y = layer(x).mean((-2, -1))
    pair = layer.gaussian("weight")
    patches = F.unfold(x, 3, padding=1).mean(-1)  # (n, inputs·window)
    torch.testing.assert_close(y.variance, patches.square() @ pair.variance.flatten(1).T)


@pytest.mark.parametrize("window, stride, padding, dilation", [
    ((3, 3), (1, 1), (1, 1), (1, 1)), ((3, 2), (2, 1), (0, 1), (1, 2)), ((1, 1), (2, 2), (0, 0), (1, 1)),
    ((7, 7), (2, 2), (3, 3), (1, 1)), ((3, 5), (1, 1), "same", (1, 1)), ((3, 3), (1, 1), "valid", (2, 2)),
])  # fmt: skip
def test_what_offsets_see(window, stride, padding, dilation):
    x = torch.randn(2, 3, 9, 10, dtype=torch.float64)
    unit = torch.eye(window[0] * window[1], dtype=torch.float64).view(-1, 1, *window)
    one_by_one = F.conv2d(x.flatten(0, 1).unsqueeze(1), unit, None, stride, padding, dilation).mean((2, 3))
    torch.testing.assert_close(_seen(x, window, stride, padding, dilation).flatten(2), one_by_one.unflatten(0, (2, 3)))


def test_gradients_are_finite():
    net = bedl.bayesianize(Residual())
    with shared_draws():
        y = net(torch.zeros(3, 1, 8, 8))  # black images: variances that vanish
    (y.loc.square().sum() + y.variance.sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())


def test_changed_in_place_by_other_rules_it_is_forgotten():
    x = Positions(torch.ones(1, 2, 3, 3), torch.ones(1, 2, 3, 3), torch.ones(1, 2))
    x.mul_(2.0)
    assert x.together is None
    with shared_draws():
        assert x.mean((2, 3)).variance[0, 0] == pytest.approx(4 / 9)
        assert type(Moments(x.loc, x.variance).mean((2, 3))) is Moments
