"""`sampled` where rows are not data points: positions folded into rows, points that meet, weights used directly.

The truth is a loop in plain PyTorch: all weights drawn once, the plain network run with them, again and again.
"""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl.nn.layers import GaussianLayer

DRAWS = 1500


class Folded(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 16), nn.Linear(16, 2)

    def forward(self, x):
        n, length, d = x.shape
        return self.b(F.relu(self.a(x.reshape(n * length, d)))).reshape(n, length, -1).mean(1)


class FoldedTimeFirst(Folded):
    def forward(self, x):
        n, length, d = x.shape
        h = x.transpose(0, 1).reshape(length * n, d)
        return self.b(F.relu(self.a(h))).reshape(length, n, -1).mean(0)


class TimeFirst(Folded):
    """As many points as positions, so that shapes do not tell them apart."""

    def forward(self, x):
        return self.b(F.relu(self.a(x.transpose(0, 1)))).mean(0)


class Frames(nn.Module):
    """A video's frames in the batch, then a layer that sees points."""

    def __init__(self):
        super().__init__()
        self.conv, self.out = nn.Conv2d(1, 4, 3), nn.Linear(4, 2)

    def forward(self, x):
        h = F.relu(self.conv(x.flatten(0, 1))).mean((2, 3))
        return self.out(h.unflatten(0, x.shape[:2]).mean(1))


class RecurrentFrames(nn.Module):
    """Sequences of a point beside each other, in a layer that draws per sequence."""

    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x):
        h = self.rnn(x.flatten(0, 1))[0][:, -1]
        return self.out(h).unflatten(0, x.shape[:2]).mean(1)


class Graph(nn.Module):
    """Nodes in place of points: each sees the others."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 16), nn.Linear(16, 2)

    def forward(self, x):
        return self.b(torch.full((len(x), len(x)), 1 / len(x)) @ F.relu(self.a(x)))


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.o = nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return F.linear(F.relu(self.a(x)), self.o.weight, self.o.bias)


class TiedAutoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 4)

    def forward(self, x):
        return self.l(x) @ self.l.weight


class TiedTokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(9, 4)
        self.o = nn.Linear(4, 9, bias=False)
        self.o.weight = self.e.weight

    def forward(self, tokens):
        return self.o(self.e(tokens).mean(1)) + F.linear(self.e(tokens)[:, 0], self.e.weight)


class Positions(nn.Module):
    """A table of positions: looked up once for all points."""

    def __init__(self):
        super().__init__()
        self.e, self.p, self.o = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(4, 2)

    def forward(self, tokens):
        return self.o(F.relu(self.e(tokens) + self.p(torch.arange(tokens.shape[1]))).mean(1))


def net_of(kind):
    torch.manual_seed(0)
    net = bedl.bayesianize(kind(), init_logvar=-3.0).eval()
    return net


def plain_with_draws(net):
    """The plain network, and a function that draws all its weights; those that are one parameter are drawn once."""
    plain = bedl.deterministic(net)
    drawn = {}
    for name, layer in net.named_modules():
        if isinstance(layer, GaussianLayer):
            for weight in layer.gaussian_parameters:
                if layer.gaussian(weight) is None:
                    continue
                target = getattr(plain.get_submodule(name), weight)
                mean = getattr(layer, f"{weight}_mean").detach().clone()
                std = (getattr(layer, f"{weight}_logvar").detach() / 2).exp()
                drawn.setdefault(id(target), (target, mean, std))

    def draw():
        for target, mean, std in drawn.values():
            target.data.copy_(mean + std * torch.randn_like(mean))

    return plain, draw


@torch.no_grad()
def truth_of(net, x, draws=DRAWS):
    plain, draw = plain_with_draws(net)
    out = []
    for _ in range(draws):
        draw()
        out.append(plain(x))
    return torch.stack(out).double()


@torch.no_grad()
def sampled_of(net, x, draws=DRAWS):
    with warnings.catch_warnings(), bedl.sampled(net):
        warnings.simplefilter("ignore")
        return torch.stack([net(x) for _ in range(draws)]).double()


def assert_same_distribution(found, truth, tolerance=0.1):
    ratio = found.std(0) / truth.std(0)
    assert (ratio.log().abs() < tolerance).all(), ratio
    assert ((found.mean(0) - truth.mean(0)).abs() < 0.2 * truth.std(0)).all()


def input_of(kind):
    torch.manual_seed(1)
    if kind in (TiedTokens, Positions):
        return torch.randint(1, 9, (4, 5))
    if kind is Frames:
        return torch.rand(3, 5, 1, 6, 6) + 0.5
    if kind is RecurrentFrames:
        return 1 + 0.2 * torch.randn(3, 4, 5, 3)
    if kind in (Graph, Direct, TiedAutoencoder):
        return 1 + 0.2 * torch.randn(6, 3)
    return 2 + 0.2 * torch.randn(4, 4 if kind is TimeFirst else 20, 3)


FOLDED = [Folded, FoldedTimeFirst, Frames]  # each point draws for itself
SHARED = [TimeFirst, RecurrentFrames, Graph, Direct, TiedAutoencoder, TiedTokens, Positions]  # points share a draw


@pytest.mark.parametrize("kind", [*FOLDED, *SHARED])
def test_draws_have_the_spread_of_networks_with_drawn_weights(kind):
    net, x = net_of(kind), input_of(kind)
    truth = truth_of(net, x)
    assert_same_distribution(sampled_of(net, x), truth, 0.12)
    assert_same_distribution(sampled_of(net, x[:1]), truth[:, :1] if kind is not Graph else truth_of(net, x[:1]), 0.12)


@pytest.mark.parametrize("kind", [*FOLDED, Folded, Direct, TiedAutoencoder])
def test_per_call_has_the_same_spread_and_no_trials(kind):
    net, x = net_of(kind), input_of(kind)
    with torch.no_grad(), bedl.sampled(net, per="call"):
        found = torch.stack([net(x) for _ in range(DRAWS)]).double()
        repeated = net(x[:1].repeat(3, *[1] * (x.dim() - 1)))
    assert_same_distribution(found, truth_of(net, x), 0.12)
    torch.testing.assert_close(repeated[0], repeated[2])


@pytest.mark.parametrize("kind", FOLDED)
def test_points_of_folded_networks_are_independent(kind):
    net, x = net_of(kind), input_of(kind)[:1]
    with torch.no_grad(), bedl.sampled(net):  # without a warning: they would be errors here
        drawn = net(x.expand(DRAWS, *x.shape[1:])).double()
    assert_same_distribution(drawn, truth_of(net, x)[:, 0], 0.12)
    correlation = torch.corrcoef(torch.stack([drawn[:-1, 0], drawn[1:, 0]]))[0, 1]
    assert abs(correlation) < 5 / DRAWS**0.5


@pytest.mark.parametrize(
    "kind, name", [(Direct, "'o'"), (TiedAutoencoder, "'l'"), (Graph, "'a', 'b'"), (Positions, "'p'")]
)
def test_what_points_share_is_said_once(kind, name):
    net, x = net_of(kind), input_of(kind)
    with torch.no_grad(), bedl.sampled(net):
        with pytest.warns(UserWarning, match=f"all data points of a call share one draw of the weights of {name} "):
            net(x)
        net(x)


def test_a_weight_that_is_used_directly_is_that_of_the_layers_call():
    class Same(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(3, 4)

        def forward(self, x):
            assert self.l.weight.shape == (4, 3)  # asking is no use
            assert isinstance(self.l.weight, torch.Tensor)
            return self.l(x) - F.linear(x, self.l.weight, self.l.bias), self.l.weight - self.l.weight

    net = bedl.bayesianize(Same(), init_logvar=0.0)
    with torch.no_grad(), bedl.sampled(net, per="call"):
        for part in net(torch.rand(5, 3)):
            assert (part == 0).all()
    with torch.no_grad(), bedl.sampled(net), pytest.warns(UserWarning, match="used other than by calling"):
        parts = net(torch.rand(5, 3))
    assert all((part == 0).all() for part in parts)


def test_to_ask_for_a_weights_shape_is_no_use_of_it():
    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(3, 4)

        def forward(self, x):
            return self.l(x.to(self.l.weight.dtype).to(self.l.weight.device))[:, : self.l.weight.shape[0]]

    with torch.no_grad(), bedl.sampled(bedl.bayesianize(Asks(), init_logvar=0.0)) as net:
        y = net(torch.ones(2, 3))
    assert (y[0] != y[1]).all()


def test_another_way_than_in_the_trials_is_refused():
    """Which way the network takes depends on the weights drawn; without that it takes neither layer directly."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.g, self.o, self.calls = nn.Linear(3, 1), nn.Linear(3, 2), 0

        def forward(self, x):
            way = self.g(x)
            return self.o(x) if abs(float(way.mean() - way[0])) < 1e-6 else F.linear(x, self.o.weight)

    net = bedl.bayesianize(Gated(), init_logvar=0.0)
    with torch.no_grad():
        net.g.weight_mean.zero_()
    with torch.no_grad(), bedl.sampled(net), pytest.raises(bedl.BEDLError, match="per='call'"):
        net(torch.rand(5, 3))
    with torch.no_grad(), bedl.sampled(net, per="call"):
        net(torch.rand(5, 3))


def test_trials_leave_the_network_and_its_hooks_alone():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    net, seen = bedl.bayesianize(net), []
    net[0].register_forward_hook(lambda *_: seen.append(1))
    state = torch.get_rng_state()
    with torch.no_grad(), bedl.sampled(net), pytest.warns(UserWarning, match="depends on the others"):
        net(torch.rand(5, 3))  # in training mode, where points share their batch's statistics
    assert len(seen) == 1
    assert net[1].num_batches_tracked == 1
    assert copy.deepcopy(net)[0].drawn is None
    torch.set_rng_state(state)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_transformers_draw_for_each_point():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    net, x = bedl.bayesianize(layer, init_logvar=-5.0).eval(), torch.randn(2, 4, 8)
    with torch.no_grad(), bedl.sampled(net):
        drawn = net(x[:1].expand(DRAWS, 4, 8)).double()
    assert_same_distribution(drawn, truth_of(net, x[:1])[:, 0], 0.15)


def test_padding_stays_zero_whatever_is_drawn():
    layer = bedl.GaussianEmbedding(5, 3, padding_idx=2, init_logvar=0.0)
    for block in (bedl.sampled(layer, per="call"), bedl.sampled(layer), bedl.nn.drawn_function(layer)):
        with torch.no_grad(), block:
            y = layer(torch.tensor([[2, 3], [1, 2]]))
        assert (y[0, 0] == 0).all()
        assert (y[1, 1] == 0).all()
        assert (y[0, 1] != 0).all()


def test_points_that_are_all_alike_are_told_apart():
    net = bedl.bayesianize(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(3, 2)), init_logvar=-1.0)
    with torch.no_grad(), bedl.sampled(net):
        y = net(torch.full((2000, 1), 3))
    assert (y.std(0) > 0.1).all()


def test_random_inputs_are_drawn_once_in_a_pass():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(3, 4)

        def forward(self, x):
            return self.l(x) - self.l(x)

    with torch.no_grad(), bedl.sampled(bedl.bayesianize(Twice())) as net:
        y = net(bedl.Moments(torch.rand(5, 3), 1.0))
    assert y.abs().max() < 1e-5


def test_a_wrong_per_is_refused():
    with (
        pytest.raises(ValueError, match="per is 'point' or 'call', not 'row'"),
        bedl.sampled(nn.Linear(2, 2), per="row"),
    ):
        pass


# -- what builds on it -------------------------------------------------------------------------------
class Deep(nn.Module):
    """Positions folded into rows of three layers; time first, or point by point."""

    def __init__(self, strided):
        super().__init__()
        self.a, self.b, self.c, self.strided = nn.Linear(3, 16), nn.Linear(16, 16), nn.Linear(16, 2), strided

    def forward(self, x):
        n, length, d = x.shape
        if self.strided:
            h = F.relu(self.b(F.relu(self.a(x.transpose(0, 1).reshape(length * n, d)))))
            return self.c(h.reshape(length, n, -1).mean(0))
        h = F.relu(self.b(F.relu(self.a(x.reshape(n * length, d)))))
        return self.c(h.reshape(n, length, -1).mean(1))


class DeepDirect(Deep):
    def forward(self, x):
        h = F.relu(self.a(x))
        h = F.relu(F.linear(h, self.b.weight, self.b.bias))
        return self.c(h.mean(1))


@pytest.mark.parametrize("make", [lambda: Deep(False), lambda: Deep(True), lambda: DeepDirect(False)])
def test_the_correction_takes_folded_positions_into_account(make):
    net, x = net_of(make), 1 + 0.5 * torch.randn(30, 12, 3)
    truth = truth_of(net, x).std(0)
    with torch.no_grad():
        before = (net(x).variance.sqrt() / truth).log().mean().exp()
        after = (bedl.correct_variances(net, x, draws=40)(x).variance.sqrt() / truth).log().mean().exp()
    assert before < 0.85
    assert abs(after - 1) < 0.06


def test_the_order_of_folding_changes_no_correction():
    x = 1 + 0.5 * torch.randn(30, 12, 3)
    factors = []
    for strided in (False, True):
        net = bedl.correct_variances(net_of(lambda s=strided: Deep(s)), x, draws=40)
        factors.append(net.b.covariance_factor)
    assert ((factors[0] / factors[1]).log().abs() < 0.2).all()
    assert ((factors[0] / factors[1]).log().mean().abs() < 0.02).all()


def test_check_says_what_points_share():
    text = str(bedl.check(Direct(), input_of(Direct)))
    assert "weights of 'o' (its weight is used other than by calling the layer)" in text
    text = str(bedl.check(Folded(), input_of(Folded)))
    assert "the rows of a data point share its draw: a, b: 20 rows for each data point" in text
    assert "rows for each" not in str(bedl.check(nn.Sequential(nn.Linear(3, 2)), torch.rand(4, 3)))
