"""bayesianize and deterministic."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import bedl
from bedl.nn import GaussianLayer, GaussianMultiheadAttention
from tests.closeness import assert_same_up_to_rounding


class Net(nn.Module):
    """Shared module, shared parameter, a subclass of Linear, batch norm."""

    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.shared = nn.Linear(4, 4)
        self.again = self.shared
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.first.weight
        self.scaled = Net.Scaled(4, 2)

    def forward(self, x):
        return self.scaled(self.tied(self.again(self.shared(self.norm(self.first(x)).relu()).relu())))


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def test_the_original_is_untouched(net):
    before = copy.deepcopy(net.state_dict())
    bayesian = bedl.bayesianize(net)
    assert type(net.first) is nn.Linear
    assert isinstance(bayesian.first, bedl.GaussianLinear)
    with torch.no_grad():
        bayesian.first.weight_mean.add_(1)
    for name, value in before.items():
        assert torch.equal(value, net.state_dict()[name])


def test_exact_types_only(net):
    bayesian = bedl.bayesianize(net)
    assert type(bayesian.scaled) is Net.Scaled
    assert type(bayesian.norm) is nn.BatchNorm1d
    assert [n for n, _ in bedl.nn.kept_deterministic(bayesian)] == ["norm", "scaled"]


def test_means_are_the_trained_weights(net):
    bayesian = bedl.bayesianize(net, init_logvar=-300.0)
    x = torch.randn(5, 4)
    y = bayesian(x)
    assert_same_up_to_rounding(y.loc, net(x))
    assert not y.variance.any()
    assert torch.equal(bedl.bayesianize(net).first.weight_mean, net.first.weight)
    assert bedl.bayesianize(net).first.weight_logvar.unique().tolist() == [-9.0]
    assert not torch.equal(bedl.bayesianize(net, keep_means=False).first.weight_mean, net.first.weight)


def test_shared_modules_and_shared_weights_stay_shared(net):
    bayesian = bedl.bayesianize(net)
    assert bayesian.shared is bayesian.again
    assert bayesian.first.weight_mean is bayesian.tied.weight_mean
    assert bayesian.first.weight_logvar is bayesian.tied.weight_logvar
    back = bedl.deterministic(bayesian)
    assert back.first.weight is back.tied.weight
    assert back.shared is back.again


@pytest.mark.parametrize("include, exclude, converted", [
    (None, None, {"first", "shared", "tied"}),
    (None, "first", {"shared", "tied"}),
    ("shared", None, {"shared"}),
    (["sha*", "tied"], None, {"shared", "tied"}),
    (nn.Linear, "t*", {"first", "shared"}),
    (None, nn.Linear, set()),
    (lambda name, module: module.bias is None, None, {"tied"}),
    ([nn.BatchNorm1d, lambda name, module: name == "first"], None, {"first"}),
])  # fmt: skip
def test_include_and_exclude(net, include, exclude, converted):
    bayesian = bedl.bayesianize(net, include=include, exclude=exclude)
    assert {n for n, m in bayesian.named_modules() if isinstance(m, GaussianLayer)} == converted


def test_a_name_chooses_everything_below_it():
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    bayesian = bedl.bayesianize(net, exclude="0")
    assert [isinstance(m, GaussianLayer) for m in (bayesian[0][0], bayesian[0][1], bayesian[1])] == [False, False, True]


def test_a_slip_does_not_leave_a_net_deterministic(net):
    with pytest.raises(ValueError, match="exclude='frist' fits no layer"):
        bedl.bayesianize(net, exclude="frist")
    with pytest.raises(ValueError, match="Conv2d"):
        bedl.bayesianize(net, include=[nn.Linear, nn.Conv2d])
    with pytest.raises(bedl.BEDLError, match="no layer to convert"):
        bedl.bayesianize(nn.BatchNorm1d(3))
    with pytest.raises(TypeError, match=r"takes an nn\.Module"):
        bedl.bayesianize(torch.relu)


def test_wrong_selector(net):
    with pytest.raises(TypeError, match="names, layer types or functions"):
        bedl.bayesianize(net, include=3)


def test_state_dicts_round_trip(net):
    bayesian = bedl.bayesianize(net)
    with torch.no_grad():
        for parameter in bayesian.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    other = bedl.bayesianize(net)
    other.load_state_dict(bayesian.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(other(x).variance, bayesian(x).variance)
    back = bedl.deterministic(bayesian)
    net.load_state_dict(back.state_dict())
    assert torch.equal(net(x), back(x))
    assert [n for n, _ in back.named_parameters()] == [n for n, _ in net.named_parameters()]


def test_every_layer_type_goes_there_and_back():
    torch.manual_seed(0)
    layers = nn.ModuleList([
        nn.Linear(3, 2), nn.Conv1d(2, 2, 3), nn.Conv2d(2, 2, 3), nn.Conv3d(1, 1, 2), nn.ConvTranspose1d(2, 2, 3),
        nn.ConvTranspose2d(2, 2, 3), nn.ConvTranspose3d(1, 1, 2), nn.Embedding(4, 2, padding_idx=1),
        nn.Bilinear(2, 3, 2),
        nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2, kdim=3, vdim=5), nn.EmbeddingBag(4, 2),
    ])  # fmt: skip
    bayesian = bedl.bayesianize(layers)
    assert all(isinstance(m, GaussianLayer) for m in bayesian)
    assert isinstance(bayesian[9], GaussianMultiheadAttention)
    assert isinstance(bayesian[9].out_proj, bedl.GaussianLinear)
    back = bedl.deterministic(bayesian)
    assert [type(m) for m in back] == [type(m) for m in layers]
    assert list(back.state_dict()) == list(layers.state_dict())
    for name, value in layers.state_dict().items():
        assert torch.equal(value, back.state_dict()[name])
    assert repr(back).replace("NonDynamicallyQuantizable", "") == repr(layers).replace("NonDynamicallyQuantizable", "")


def test_root_layer_hooks_mode_and_frozen_weights():
    layer = nn.Linear(3, 2).eval().requires_grad_(False).double()
    calls = []
    layer.register_forward_hook(lambda *args: calls.append(1))
    bayesian = bedl.bayesianize(layer)
    bayesian(torch.ones(1, 3, dtype=torch.float64))
    assert calls
    assert not bayesian.training
    assert bayesian.weight_logvar.dtype is torch.float64
    assert not any(p.requires_grad for p in bayesian.parameters())


class Wide(nn.Conv2d):
    """Only a constructor of its own."""

    def __init__(self, channels):
        super().__init__(channels, 2 * channels, 3, groups=channels)


def test_subclasses_that_add_nothing_are_converted():
    net, x = nn.Sequential(Wide(3)), torch.randn(2, 3, 5, 5)
    bayesian = bedl.bayesianize(net)
    assert isinstance(bayesian[0], bedl.GaussianConv2d)
    assert torch.equal(copy.deepcopy(bayesian)(x).variance, bayesian(x).variance)
    assert (bayesian(x).variance > 0).all()
    back = bedl.deterministic(bayesian)
    assert type(back[0]) is Wide
    assert torch.equal(back(x), net(x))


NORMS = [
    nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm, nn.utils.weight_norm,
    nn.utils.spectral_norm, nn.utils.parametrizations.orthogonal,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("derive", NORMS)
def test_dropping_what_computes_weights_is_said(derive):
    net = nn.Sequential(derive(nn.Linear(3, 4)), nn.ReLU(), derive(nn.Linear(4, 4)), nn.Linear(4, 1))
    kind = derive.__name__.replace("_", "")
    with pytest.warns(UserWarning, match=rf"(?i){kind} of '0', '2' is dropped.*exclude"):
        bedl.bayesianize(net)
    x, kept = torch.randn(2, 3), bedl.bayesianize(net.eval(), exclude=["0", "2"])  # no warning
    torch.testing.assert_close(kept(x).loc, net(x))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated", "ignore:.* is dropped")
@pytest.mark.parametrize("derive", NORMS)
@pytest.mark.parametrize("training", [True, False])
def test_computed_weights_become_means(derive, training):
    net = nn.Sequential(derive(nn.Conv2d(3, 4, 3)), nn.Flatten(), derive(nn.Linear(16, 2))).train(training)
    x = torch.randn(5, 3, 4, 4)
    net(x)
    bayesian = bedl.bayesianize(net, init_logvar=-float("inf"))
    assert isinstance(bayesian[0], bedl.GaussianConv2d)
    assert isinstance(bayesian[2], bedl.GaussianLinear)
    assert bayesian.training == training
    torch.testing.assert_close(bayesian(x).loc, net.eval()(x), rtol=1e-5, atol=1e-6)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    assert set(bayesian.state_dict()) == set(bedl.bayesianize(plain).state_dict())
    assert not torch.equal(bedl.bayesianize(net, include=nn.Linear)(x).variance, torch.zeros(5, 2))


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated", "ignore:.* is dropped")
@pytest.mark.parametrize("derive", NORMS[:-1])
def test_computed_weights_of_a_plain_model_are_loaded_as_means(derive):
    def plain(seed):
        torch.manual_seed(seed)
        layers = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 6, 3), nn.Linear(16, 2)
        first, second, last = (derive(layer) for layer in layers)
        return nn.Sequential(first, second, nn.Flatten(2), last)

    x, trained, bayesian = torch.randn(5, 3, 4, 4), plain(1), bedl.bayesianize(plain(2), init_logvar=-3.0)
    trained(x)  # a step of spectral norm's iteration
    logvar, state = bayesian[3].weight_logvar.clone(), trained.state_dict()
    bayesian.load_state_dict(state)
    assert list(state) == list(trained.state_dict())
    torch.testing.assert_close(bedl.deterministic(bayesian)(x), trained.eval()(x), rtol=1e-5, atol=1e-6)
    assert torch.equal(bayesian[3].weight_logvar, logvar)


@pytest.mark.filterwarnings("ignore:.* is dropped")
def test_what_computes_a_weight_in_ways_unknown_is_said():
    net = nn.Sequential(nn.utils.parametrizations.orthogonal(nn.Linear(3, 3)))
    with pytest.raises(
        bedl.BEDLError, match=r"layer '0' \(parametrizations\.weight\.original\).*plain model and convert"
    ):
        bedl.bayesianize(net).load_state_dict(net.state_dict())


def test_weights_computed_otherwise_are_not_converted_silently():
    net = nn.Sequential(nn.Linear(3, 2))
    prune.l1_unstructured(net[0], "weight", 2)
    with pytest.raises(bedl.BEDLError, match=r"computed.*exclude='0'"):
        bedl.bayesianize(net)


def test_weights_of_a_plain_model_are_loaded_as_means(net):
    torch.manual_seed(5)
    other, bayesian = copy.deepcopy(net), bedl.bayesianize(net, init_logvar=-3.0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    state = other.state_dict()
    before = {name: t.clone() for name, t in bayesian.state_dict().items() if name.endswith("logvar")}
    bayesian.load_state_dict(state)
    assert list(state) == list(other.state_dict())  # what was given is left alone
    assert all(torch.equal(bayesian.state_dict()[name], t) for name, t in before.items())
    torch.testing.assert_close(bedl.deterministic(bayesian).eval()(torch.ones(2, 4)), other.eval()(torch.ones(2, 4)))
    with pytest.raises(RuntimeError, match="Missing key"):
        bayesian.load_state_dict({name: t for name, t in state.items() if not name.startswith("first")})


def test_converting_twice_changes_nothing(net):
    once = bedl.bayesianize(net)
    twice = bedl.bayesianize(once)
    assert list(once.state_dict()) == list(twice.state_dict())


def test_variances_of_a_posterior_from_elsewhere():
    """Of a linear layer the output's variance is Σ x² s², and points keep their values."""
    torch.manual_seed(0)
    plain, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), torch.randn(5, 3)
    first, last = torch.rand(4, 3), torch.rand(2, 4)
    last[0] = 0.0
    y = bedl.bayesianize(plain[0], variances={"weight": first})(x)
    torch.testing.assert_close(y.variance, x.square() @ first.T)
    one = bedl.bayesianize(plain, variances={"2.weight": last})
    assert type(one[0]) is nn.Linear
    h = torch.tanh(plain[0](x))
    torch.testing.assert_close(one(x).variance, h.square() @ last.T)
    both = bedl.bayesianize(plain, variances={"0.weight": first, "2.weight": last})
    torch.testing.assert_close(both[0].weight.variance, first)
    assert bedl.nn.std_ratio(both, x, draws=2000) == pytest.approx(1, abs=0.05)
    with pytest.warns(UserWarning, match=r"'0.bias' stay point values"):
        bedl.bayesianize(plain, variances={"0.bias": first[:, 0], "0.weight": first})


def test_a_posterior_of_shared_weights_and_of_some_weights_of_a_layer():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(torch.relu(self.a(x)))

    net = bedl.bayesianize(Tied(), variances={"a.weight": torch.full((3, 3), 0.5)})
    assert net.a.weight_logvar is net.b.weight_logvar
    torch.testing.assert_close(net.b.weight.variance, torch.full((3, 3), 0.5))
    lstm = bedl.bayesianize(nn.LSTM(2, 3), variances={"weight_hh_l0": torch.ones(12, 3)})
    assert not lstm.weight_ih_l0_logvar.exp().any()
    assert (lstm.weight_hh_l0_logvar == 0).all()


@pytest.mark.parametrize(
    ("variances", "error", "match"),
    [
        ({"0.weigth": torch.ones(2, 3)}, ValueError, "did you mean '0.weight'"),
        ({"0.weight": torch.ones(3, 2)}, ValueError, r"must have shape \(2, 3\), not \(3, 2\)"),
        ({"0.weight": 1.0}, ValueError, r"must have shape \(2, 3\), not float"),
        ({"0.weight": -torch.ones(2, 3)}, ValueError, "not negative"),
        ({"0.weight": torch.full((2, 3), float("nan"))}, ValueError, "finite"),
        ({"0.bias": torch.ones(2)}, bedl.BEDLError, "names no weight"),
        ("half", ValueError, "tensors by parameter names"),
    ],
)
def test_variances_that_fit_nothing(variances, error, match):
    with pytest.raises(error, match=match):
        bedl.bayesianize(nn.Sequential(nn.Linear(3, 2)), variances=variances)
