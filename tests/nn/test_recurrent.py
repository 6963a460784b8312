"""Recurrent layers and cells: torch's own without variance, in every form of input, and draws once per sequence."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import bedl
from bedl import Moments
from bedl.moments.rules.attention import mixture
from tests import oracles

LAYERS = {
    "RNN": lambda **s: nn.RNN(3, 4, **s),
    "RNN relu": lambda **s: nn.RNN(3, 4, nonlinearity="relu", **s),
    "LSTM": lambda **s: nn.LSTM(3, 4, **s),
    "LSTM projected": lambda **s: nn.LSTM(3, 4, proj_size=2, **s),
    "GRU": lambda **s: nn.GRU(3, 4, **s),
}
SETTINGS = [{}, {"batch_first": True}, {"num_layers": 2, "bidirectional": True}, {"bias": False, "bidirectional": True}]
each_layer = pytest.mark.parametrize("name", LAYERS)
CELLS = {
    "RNNCell": lambda: nn.RNNCell(3, 4, nonlinearity="relu"),
    "LSTMCell": lambda: nn.LSTMCell(3, 4),
    "GRUCell": lambda: nn.GRUCell(3, 4),
}


def certain(net):
    return bedl.bayesianize(net, init_logvar=-float("inf"))


def leaves(result):
    """Every tensor or Moments of a result that may be nested."""
    if isinstance(result, PackedSequence):
        return [result.data]
    if isinstance(result, tuple):
        return [leaf for part in result for leaf in leaves(part)]
    return [result]


def assert_same(result, plain):
    result, plain = leaves(result), leaves(plain)
    assert len(result) == len(plain)
    for y, expected in zip(result, plain, strict=True):
        torch.testing.assert_close(y.loc, expected, rtol=1e-12, atol=1e-12)
        assert not y.variance.any()


@each_layer
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_without_variance_it_is_torchs_own(name, settings):
    torch.manual_seed(0)
    net = LAYERS[name](**settings).double()
    x = torch.randn(5, 6, 3, dtype=torch.float64)
    assert_same(certain(net)(x), net(x))
    assert_same(certain(net)(x[0]), net(x[0]))  # one sequence alone
    _, end = net(x)
    assert_same(certain(net)(x, end), net(x, end))  # from a given state
    random = bedl.bayesianize(net)(x)
    assert all((y.variance > 0).any() and torch.isfinite(y.variance).all() for y in leaves(random))


@each_layer
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_packed_sequences(name, batch_first, enforce_sorted):
    torch.manual_seed(0)
    net = LAYERS[name](batch_first=batch_first, bidirectional=True, num_layers=2).double()
    lengths = [5, 3, 1] if enforce_sorted else [3, 5, 1]
    x = torch.randn(*((3, 5) if batch_first else (5, 3)), 3, dtype=torch.float64)
    packed = pack_padded_sequence(x, lengths, batch_first, enforce_sorted)
    _, end = net(packed)
    assert_same(certain(net)(packed), net(packed))
    assert_same(certain(net)(packed, end), net(packed, end))
    # Moments are packed, too, and unpacked
    random = pack_padded_sequence(Moments(x, 0.0), lengths, batch_first, enforce_sorted)
    result, _ = certain(net)(random)
    y, n = pad_packed_sequence(result, batch_first)
    plain, plain_n = pad_packed_sequence(net(packed)[0], batch_first)
    assert_same(y, plain)
    assert torch.equal(n, plain_n)


@pytest.mark.parametrize("name", CELLS)
def test_cells(name):
    torch.manual_seed(0)
    cell, x = CELLS[name]().double(), torch.randn(2, 3, dtype=torch.float64)
    state = cell(x)
    assert_same(certain(cell)(x), state)
    assert_same(certain(cell)(x, state), cell(x, state))
    assert_same(certain(cell)(x[0]), cell(x[0]))
    again = bedl.deterministic(bedl.bayesianize(cell))
    assert all(torch.equal(a, b) for a, b in zip(leaves(again(x)), leaves(state), strict=True))


def by_hand(net, x, draws):
    """The last output for weights drawn once per sequence, by torch's own layer with each draw put in."""
    result = []
    for _ in range(draws):
        plain = bedl.deterministic(net)
        with torch.no_grad():
            for name in net.gaussian_parameters:
                getattr(plain, name).copy_(net.gaussian(name).sample())
            result.append(plain(x)[0][-1])
    return torch.stack(result)


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_agrees_with_draws_once_per_sequence(name):
    """Fresh weights, inputs that change sign: what the weights did at other steps matters little on average."""
    torch.manual_seed(0)
    net, x = bedl.bayesianize(LAYERS[name](), init_logvar=-5.0), torch.randn(6, 4, 3)
    with torch.no_grad():
        y, drawn = net(x)[0][-1], by_hand(net, x, 2000)
        with bedl.sampled(net):
            sampled = torch.cat([net(x.repeat(1, 50, 1))[0][-1].unflatten(0, (50, 4)) for _ in range(40)])
    assert (sampled.std(0) / drawn.std(0) - 1).abs().max() < 0.1
    assert ((sampled.mean(0) - drawn.mean(0)).abs() < 0.15 * drawn.std(0)).all()
    ratio = y.variance.sqrt() / drawn.std(0)
    assert abs(ratio.mean() - 1) < 0.2
    assert 0.6 < ratio.min() < ratio.max() < 1.7
    assert ((y.loc - drawn.mean(0)).abs() < 0.2 * drawn.std(0)).all()


class Last(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(16, 3)

    def forward(self, x):
        return self.out(self.layer(x)[0][:, -1])


def test_the_correction_makes_up_for_shared_steps():
    """Inputs of one sign: what the weights add at each step adds up, and one pass has too little of it."""
    torch.manual_seed(0)
    net, x = (
        bedl.bayesianize(Last(nn.GRU(2, 16, batch_first=True)).eval(), init_logvar=-7.0),
        torch.rand(30, 12, 2) + 0.5,
    )
    with torch.no_grad(), bedl.sampled(net):
        truth = torch.stack([net(x) for _ in range(600)]).std(0)
    with torch.no_grad():
        before = (net(x).variance.sqrt() / truth).mean()
        after = (bedl.correct_variances(net, x[:20], draws=60)(x).variance.sqrt() / truth).mean()
    assert before < 0.9
    assert abs(after - 1) < 0.05


def test_sampled_in_every_form():
    net = bedl.bayesianize(nn.LSTM(3, 4, batch_first=True))
    x = torch.randn(3, 5, 3)
    packed = pack_padded_sequence(Moments(x, 0.1), [5, 3, 2], batch_first=True)
    with bedl.sampled(net):
        y, (hidden, cell) = net(packed)
        alone, _ = net(x[0], (torch.zeros(1, 4), Moments(torch.zeros(1, 4), 1.0)))
    assert y.data.shape == (10, 4)
    assert hidden.shape == cell.shape == (1, 3, 4)
    assert alone.shape == (5, 4)


class Unrolled(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(3, 4)

    def forward(self, x):
        state = None
        for row in x.unbind(1):
            state = self.cell(row, state)
        return state


def test_cells_draw_once_per_sequence():
    """A loop over a cell has the spread of the layer, whose weights are drawn once."""
    torch.manual_seed(0)
    layer = bedl.bayesianize(nn.GRU(3, 4, batch_first=True), init_logvar=-4.0)
    loop = bedl.bayesianize(Unrolled())
    for name in ("weight_ih", "weight_hh"):
        for part in ("mean", "logvar"):
            setattr(loop.cell, f"{name}_{part}", getattr(layer, f"{name}_l0_{part}"))
    loop.cell.bias_ih, loop.cell.bias_hh = layer.bias_ih_l0, layer.bias_hh_l0
    x = torch.rand(3, 6, 3) + 1
    torch.testing.assert_close(loop(x).variance, layer(x)[1][0].variance)
    with torch.no_grad(), bedl.sampled(loop), bedl.sampled(layer):
        several = x.repeat(500, 1, 1)
        loops = torch.cat([loop(several).unflatten(0, (500, 3)) for _ in range(3)])
        layers = torch.cat([layer(several)[1][0].unflatten(0, (500, 3)) for _ in range(3)])
    assert (loops.std(0) / layers.std(0) - 1).abs().max() < 0.12


def test_mixture_is_exact_for_independent_parts():
    torch.manual_seed(0)
    parts = [Moments(torch.randn(3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)) for _ in range(3)]

    def plain(z, a, b):
        return (1 - z) * a + z * b

    y = mixture(*parts)
    mean, variance = oracles.multilinear(plain, parts)
    torch.testing.assert_close(y.loc, mean)
    torch.testing.assert_close(y.variance, variance)


class Classifier(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.embedding, self.layer, self.out = nn.Embedding(20, 3), layer, nn.Linear(4, 2)

    def forward(self, tokens):
        return self.out(self.layer(self.embedding(tokens))[0][:, -1])


@pytest.mark.parametrize("name", ["RNN", "LSTM", "GRU"])
def test_in_a_network(name):
    torch.manual_seed(0)
    plain, tokens = Classifier(LAYERS[name](batch_first=True)), torch.randint(0, 20, (5, 6))
    net = bedl.bayesianize(plain)
    assert bedl.check(plain, tokens).ok
    y = net(tokens)
    (y.loc.square().sum() + y.variance.sum()).backward()
    gradients = {name: p.grad for name, p in net.named_parameters()}
    assert all(g is not None and torch.isfinite(g).all() and g.any() for g in gradients.values()), gradients.keys()
    copied = copy.deepcopy(net)
    copied.load_state_dict(net.state_dict())
    assert torch.equal(copied(tokens).variance, y.variance)
    torch.testing.assert_close(net.double()(tokens).loc, y.loc.double(), rtol=1e-4, atol=1e-5)
    net = net.float()
    with bedl.cached_weights(net), torch.no_grad():
        torch.testing.assert_close(net(tokens).variance, y.variance)
    back = bedl.deterministic(net)
    assert type(back.layer) is type(plain.layer)
    assert list(back.state_dict()) == list(plain.state_dict())
    torch.testing.assert_close(back(tokens), plain(tokens))


def test_fresh_layers_start_like_torchs():
    torch.manual_seed(0)
    net = bedl.nn.GaussianLSTM(8, 32)
    for name in net.gaussian_parameters:
        pair = getattr(net, name)
        second = (pair.loc.square() + pair.variance).mean()
        assert abs(second * 3 * 32 - 1) < 0.1
    assert net.bias_ih_l0.abs().max() <= 32**-0.5


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"\(time, n, 3\).*not \(2, 5, 7\)"):
        bedl.bayesianize(nn.GRU(3, 4))(torch.zeros(2, 5, 7))


@pytest.mark.filterwarnings("ignore:dropout")
def test_dropout_between_layers():
    net = bedl.bayesianize(nn.LSTM(3, 4, num_layers=2, dropout=0.5))
    x = torch.randn(5, 2, 3)
    assert (net.train()(x)[0].variance > net.eval()(x)[0].variance).all()
