"""Covariances that one pass drops, fitted once: against closed forms and against draws of the weights."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl import GaussianConv1d, GaussianConv2d, GaussianConv3d, GaussianLinear, Moments
from bedl.nn import GaussianConvTranspose1d, GaussianConvTranspose2d, correct_variances, remove_correction
from bedl.nn.covariance_fit import as_layer_has_it, fitted_factor, outputs_first, refinement, seen_by
from bedl.nn.layers import CORRECTION
from bedl.training.stacked import check_same_build
from tests.closeness import assert_same_up_to_rounding


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(GaussianConv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x):
        return torch.relu(x + self.body(x))


def mlp(depth=2):
    hidden = [layer for _ in range(depth - 1) for layer in (GaussianLinear(20, 20), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), GaussianLinear(36, 20), nn.ReLU(), *hidden, GaussianLinear(20, 5))


def flattened():
    return nn.Sequential(
        GaussianConv2d(1, 6, 3, padding=1), nn.ReLU(), GaussianConv2d(6, 6, 3), nn.ReLU(), nn.Flatten(),
        GaussianLinear(96, 5),
    )  # fmt: skip


def averaged():
    return nn.Sequential(
        GaussianConv2d(1, 6, 3, padding=1), nn.ReLU(), GaussianConv2d(6, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), GaussianLinear(6, 5),
    )  # fmt: skip


def residual():
    return nn.Sequential(
        GaussianConv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), Residual(6), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), GaussianLinear(6, 5),
    )  # fmt: skip


NETS = {"mlp": lambda: mlp(3), "flattened": flattened, "averaged": averaged, "residual": residual}
each_net = pytest.mark.parametrize("name", NETS)


def images(n, seed=0):
    """Smooth spots of different sizes."""
    noise = torch.rand(n, 1, 3, 3, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(noise, (6, 6), mode="bilinear")


def make(name):
    torch.manual_seed(0)
    net = NETS[name]()
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, bedl.nn.GaussianLayer):
                layer.weight_logvar.fill_(-5.0)  # weights uncertain enough for covariances to matter
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.uniform_(0, 0.3)
                layer.running_var.uniform_(0.5, 2)
    return net.eval()


def drawn(net, x, draws):
    with torch.no_grad(), bedl.sampled(net):
        values = [net(x.repeat(100, *[1] * (x.dim() - 1))).unflatten(0, (100, len(x))) for _ in range(draws // 100)]
    return torch.cat(values).double()


# -- the numbers -----------------------------------------------------------------------------------
@each_net
def test_standard_deviations_are_right_on_average_for_inputs_not_seen(name):
    net, x = make(name), images(100, seed=1)
    truth = drawn(net, x, 300)
    std = truth.std(0)
    before = net(x)
    after = correct_variances(net, images(100))(x)
    ratio, ratio_before = after.variance.sqrt() / std, before.variance.sqrt() / std
    # 0.02 is the goal; the noise of a mean over 100 inputs that are up to 0.08 off is 0.008
    assert abs(ratio.mean() - 1) < 0.02
    assert (ratio - 1).abs().mean() < (ratio_before - 1).abs().mean()
    if name in ("averaged", "residual"):
        assert ratio_before.mean() < 0.85
    noise = 1 / math.sqrt(300)
    shift = (((after.loc - truth.mean(0)) / std).square().mean().sqrt(), (before.loc - truth.mean(0)) / std)
    assert shift[0] < shift[1].square().mean().sqrt() + noise


@each_net
def test_outputs_may_keep_how_much_they_vary(name):
    """The weights' variances are scaled instead, and the draws with them; taken back, all is as before."""
    net, x = make(name), images(100)
    before, weights = net(x).variance.detach(), copy.deepcopy(net.state_dict())
    after = correct_variances(net, x, draws=30, keep=True)(x).variance.detach()
    assert float((after / before).log().mean().exp()) == pytest.approx(1, abs=0.01)
    x = images(100, seed=1)
    ratio = net(x).variance.detach().sqrt() / drawn(net, x, 300).std(0)
    assert float(ratio.log().mean().exp()) == pytest.approx(1, abs=0.05)
    twin = make(name)
    twin.load_state_dict(net.state_dict())
    assert torch.equal(twin(x).variance, net(x).variance)
    twin.load_state_dict(weights)
    for other in (remove_correction(net), twin):
        torch.testing.assert_close(other.state_dict(), weights, rtol=1e-5, atol=1e-5)


def test_what_is_kept_are_outputs_that_are_named():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make("averaged")

        def forward(self, x):
            return {"scores": self.net(x), "doubled": 2 * self.net(x)}

    net, x = Two(), images(30)
    before = net(x)["scores"].variance.detach()
    correct_variances(net, x, draws=10, keep=True, output="scores")
    kept = (net(x)["scores"].variance.detach() / before).log().mean().exp()
    assert float(kept) == pytest.approx(1, abs=0.01)
    with pytest.raises(bedl.BEDLError, match="say which"):
        correct_variances(net, x, draws=10, keep=True)
    with pytest.raises(bedl.BEDLError, match="outputs with variances, not Tensor"):
        correct_variances(net, x, draws=10, keep=True, output=lambda given: given["scores"].loc)


def test_a_plain_network_is_loaded_with_the_variances_that_were_learned():
    net, x = make("averaged"), images(20)
    logvars = {name: p.clone() for name, p in net.named_parameters() if name.endswith("logvar")}
    correct_variances(net, x, draws=10, keep=True)
    assert not torch.allclose(net[0].weight_logvar, logvars["0.weight_logvar"], atol=0.1)
    net.load_state_dict(bedl.deterministic(net).state_dict())
    for name, p in net.named_parameters():
        if name.endswith("logvar"):
            torch.testing.assert_close(p, logvars[name], rtol=1e-5, atol=1e-5)


def test_average_of_a_convolution_against_its_closed_form():
    """Without an activation, the average over positions is one linear map of the average patch."""
    torch.manual_seed(0)
    net = nn.Sequential(
        GaussianConv2d(1, 4, 3, bias=False, init_logvar=-3.0), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        GaussianLinear(4, 3, init_logvar=-3.0),
    )  # fmt: skip
    x = images(30, seed=1)
    patch = F.unfold(x, 3).mean(-1)  # shape: (n, 9)
    m = patch @ net[0].weight_mean.flatten(1).T
    v = patch.square() @ net[0].weight_logvar.exp().flatten(1).T
    last_mean, last_variance = net[3].weight_mean, net[3].weight_logvar.exp()
    exact = (m.square() + v) @ last_variance.T + v @ last_mean.square().T
    assert (net(x).variance / exact).mean() < 0.7
    ratio = correct_variances(net, images(200))(x).variance / exact
    assert (ratio.mean() - 1).abs() < 0.02
    assert (ratio - 1).abs().max() < 0.15


@pytest.mark.parametrize("draws", [4, 200])
def test_what_is_exact_stays_so(draws):
    """Units behind one layer are independent given a plain input: nothing to correct, up to the noise of the draws."""
    torch.manual_seed(0)
    net, x = mlp(1), images(50, seed=1)
    before, count = net(x).variance, 200
    ratio = correct_variances(net, images(count), draws=draws)(x).variance / before
    assert net[1].covariance_factor is None  # the input is plain
    noise = math.sqrt(2 / (count * (draws - 1)))
    assert (ratio.mean() - 1).abs() < 3 * noise  # no bias from few draws
    assert (ratio - 1).abs().max() < 12 * noise


def test_the_fit_recovers_a_factor():
    torch.manual_seed(0)
    own, independent = torch.rand(3, 500), torch.rand(3, 500)
    truth = torch.tensor([0.05, 1.0, 30.0])
    found = fitted_factor(own, independent, own, truth[:, None] * independent, 10**9)
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)
    nothing = torch.zeros(1, 5)
    assert fitted_factor(nothing, nothing, nothing, nothing, 10).item() == 1
    smaller = fitted_factor(own, independent, own / 2, 0 * own, 10)  # no factor makes it as small: the least there is
    assert (smaller < 1e-4).all()
    assert (smaller >= 0).all()


def test_refinement_comes_closer_and_stays_positive():
    """Variances of 4 inputs, of which the second comes with a covariance and the last with none at all."""
    torch.manual_seed(0)
    squares, v, own = torch.rand(3, 4), torch.rand(400, 4), torch.rand(3, 400)
    v[:, 3] = 0
    total = own + (squares * torch.tensor([1.0, 4.0, 1.0, 1.0])) @ v.T
    factor, common = refinement(squares[..., None], v[..., None], own, total)
    before = ((own + squares @ v.T) / total).log().square().mean()
    assert ((own + squares * factor @ v.T + common[:, None]) / total).log().square().mean() < before / 20
    assert (factor[:, 1] > factor[:, [0, 2]].amax(1)).all()
    assert (factor > 0).all()
    assert (common < 0.1).all()  # there is none
    assert (factor[:, 3] == 1).all()
    nothing = torch.zeros(3, 400)
    factor, common = refinement(squares[..., None], 0 * v[..., None], nothing, nothing)
    assert (factor == 1).all()
    assert not common.any()


def test_what_outputs_have_in_common_is_found():
    torch.manual_seed(0)
    squares, v = torch.rand(3, 4), torch.rand(400, 4) * torch.rand(400, 1) ** 4  # some inputs hardly vary
    total = squares @ v.T + torch.tensor([0.3, 0.1, 0.0])[:, None]
    _, common = refinement(squares[..., None], v[..., None], torch.zeros(3, 400), total)
    torch.testing.assert_close(common, torch.tensor([0.3, 0.1, 0.0]), rtol=0.05, atol=2e-3)


CONVOLUTIONS = {
    "linear": (lambda: GaussianLinear(6, 4), (3, 5, 6)),
    "1-d": (lambda: GaussianConv1d(4, 6, 3, padding=2, dilation=2, groups=2), (3, 4, 9)),
    "2-d": (lambda: GaussianConv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), (3, 2, 7, 6)),
    "same, reflected": (lambda: GaussianConv2d(2, 3, 3, padding="same", padding_mode="reflect"), (3, 2, 7, 6)),
    "3-d": (lambda: GaussianConv3d(2, 2, 2, padding=1), (2, 2, 3, 4, 3)),
    "transposed 1-d": (lambda: GaussianConvTranspose1d(4, 6, 3, 2, padding=1, output_padding=1, groups=2), (3, 4, 5)),
    "transposed 2-d": (lambda: GaussianConvTranspose2d(2, 3, (3, 2), (2, 3), dilation=(2, 1)), (2, 2, 4, 5)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_what_outputs_see_times_the_weights_is_the_layer(name):
    """Patches against PyTorch's own convolution with the same weights."""
    torch.manual_seed(0)
    layer, v = CONVOLUTIONS[name][0](), torch.rand(CONVOLUTIONS[name][1])
    weight = torch.rand_like(layer.weight_mean)
    expected = layer.with_weights({"weight": weight, "bias": None}).forward(v)
    channel = -1 if name == "linear" else 1
    seen, at = seen_by(layer, v, expected.shape[2:])
    own = outputs_first(layer, weight)
    groups = getattr(layer, "groups", 1)
    own = own.reshape(groups, own.shape[0] // groups, own.shape[1], -1)
    found = torch.einsum("goik,mgik->gom", own, seen.unflatten(1, (groups, -1))).flatten(0, 1)
    torch.testing.assert_close(found, expected.movedim(channel, 0).flatten(1)[:, at])
    assert torch.equal(as_layer_has_it(layer, outputs_first(layer, weight)), weight)


def test_a_factor_scales_what_comes_from_the_inputs_variance_alone():
    torch.manual_seed(0)
    layers = [
        (GaussianLinear(6, 4), (2, 6)), (GaussianConv2d(4, 4, 3, groups=2, padding=1), (2, 4, 5, 5)),
        (GaussianConvTranspose1d(6, 4, 3, stride=2, groups=2), (2, 6, 5)),
    ]  # fmt: skip
    for layer, shape in layers:
        x = Moments(torch.randn(shape), torch.rand(shape))
        plain = layer(x)
        factor = torch.tensor([0.5, 1.0, 2.0, 7.0])
        own = copy.deepcopy(layer)
        with torch.no_grad():
            own.weight_logvar.fill_(-math.inf)
        from_input = own(x).variance
        layer.covariance_factor = layer.per_weight(factor)
        result = layer(x)
        along = factor if layer.plain_class() is nn.Linear else factor.view(1, 4, *[1] * (len(shape) - 2))
        assert_same_up_to_rounding(result.loc, plain.loc)
        torch.testing.assert_close(result.variance, plain.variance + (along - 1) * from_input)
        assert_same_up_to_rounding(layer(x.loc).variance, type(layer).forward(own_without(layer), x.loc).variance)


def own_without(layer):
    layer = copy.deepcopy(layer)
    layer.covariance_factor = None
    return layer


def test_means_do_not_change_where_only_the_last_layer_is_corrected():
    net, x = mlp(1), images(10)
    before = net(x).loc
    assert_same_up_to_rounding(correct_variances(net, x)(x).loc, before)


def test_zero_variance_gives_the_plain_network():
    net = make("averaged")
    with torch.no_grad():
        for layer in net.modules():
            if isinstance(layer, bedl.nn.GaussianLayer):
                layer.weight_logvar.fill_(-math.inf)
    x = images(10)
    before = net(x).loc
    torch.testing.assert_close(before, bedl.deterministic(net)(x))
    result = correct_variances(net, x, draws=5)(x)
    assert_same_up_to_rounding(result.loc, before)
    assert not result.variance.any()


def test_random_inputs():
    net, x = make("flattened"), images(30)
    noisy = Moments(x, torch.full_like(x, 0.02))
    test = Moments(images(10, seed=1), torch.full((10, 1, 6, 6), 0.02))
    many = Moments(test.loc.repeat(1500, 1, 1, 1), test.variance.repeat(1500, 1, 1, 1))
    with torch.no_grad(), bedl.sampled(net):
        std = net(many).unflatten(0, (1500, 10)).std(0)
    after = correct_variances(net, noisy)(test)
    assert abs((after.variance.sqrt() / std).mean() - 1) < 0.03


# -- the state -------------------------------------------------------------------------------------
def test_the_same_seed_gives_the_same_factors_and_leaves_everything_else_alone():
    net = make("residual")
    net.train()
    net[3].eval()
    modes = [m.training for m in net.modules()]
    state = {name: value.clone() for name, value in net.state_dict().items()}
    random = torch.get_rng_state()
    correct_variances(net, images(20), draws=7, seed=3)
    assert torch.equal(torch.get_rng_state(), random)
    assert [m.training for m in net.modules()] == modes
    assert not any(layer.is_sampling for layer in net.modules() if isinstance(layer, bedl.nn.GaussianLayer))
    after = net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in state.items())
    added = {name: after[name] for name in after if name not in state}
    assert list(added) == [f"{layer}.{name}" for layer in ("3.body.0", "6") for name in CORRECTION[:2]]
    torch.randn(5)
    correct_variances(net, images(20), draws=7, seed=3)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in added.items())
    correct_variances(net, images(20), draws=7, seed=4)
    assert not torch.equal(net.state_dict()["6.covariance_factor"], added["6.covariance_factor"])


def test_in_parts_as_in_one(monkeypatch):
    """Few points at a time, when weights are large: other draws, the same factors up to their noise."""
    x = images(60)
    whole = correct_variances(make("averaged"), x, draws=50)(x).variance
    monkeypatch.setattr(bedl.nn.correction, "_DRAWN_AT_ONCE", 50 * 324)  # 324 weights in the largest layer
    parts = correct_variances(make("averaged"), x, draws=50)(x).variance
    assert (whole / parts - 1).abs().max() < 8 * math.sqrt(2 / (60 * 50))
    assert not torch.equal(whole, parts)


def test_state_dicts_with_and_without_a_correction():
    net, x = make("averaged"), images(10)
    before = net(x).variance
    older = copy.deepcopy(net.state_dict())
    correct_variances(net, x, draws=20)
    after = net(x).variance
    twin = averaged()
    twin.load_state_dict(net.state_dict())
    assert torch.equal(twin(x).variance, after)
    assert not torch.equal(after, before)
    twin.load_state_dict(older)  # saved before there was a correction
    assert torch.equal(twin(x).variance, before)
    net.load_state_dict({}, strict=False)  # weights stay, and so does what belongs to them
    assert torch.equal(net(x).variance, after)
    assert torch.equal(copy.deepcopy(net)(x).variance, after)
    assert torch.equal(remove_correction(net)(x).variance, before)


def test_new_weights_and_plain_layers_have_no_correction():
    net = correct_variances(make("flattened"), images(10), draws=5)
    plain = bedl.deterministic(net)
    assert not any(name.endswith(CORRECTION) for name in plain.state_dict())
    plain(images(2))
    net[2].reset_parameters()
    assert net[2].covariance_factor is None


def test_a_layer_that_is_called_twice():
    torch.manual_seed(0)
    shared = GaussianLinear(20, 20, init_logvar=-5.0)
    net = nn.Sequential(nn.Flatten(), GaussianLinear(36, 20), nn.ReLU(), shared, nn.ReLU(), shared)
    correct_variances(net, images(50), draws=20)
    assert shared.covariance_factor.shape == (20, 20)
    assert (shared.covariance_factor - 1).abs().max() > 0.01


def test_hooks_see_the_whole_batch_while_weights_are_drawn():
    layer, shapes = GaussianLinear(3, 2), []
    layer.register_forward_hook(lambda layer, inputs, output: shapes.append(tuple(inputs[0].shape)))
    with bedl.sampled(layer):
        layer(torch.ones(5, 3))
    assert shapes == [(5, 3)]


def test_the_short_way_to_draw_a_linear_layer():
    """Outputs drawn in place of weights: the same mean and covariance as with the weights drawn."""
    torch.manual_seed(0)
    layer, count = GaussianLinear(3, 2, init_logvar=-1.0), 20_000
    x = torch.tensor([[1.0, -2.0, 0.5]]).expand(count, 3)
    with torch.no_grad():
        short, long = layer.sample(x).double(), bedl.nn.GaussianLayer.sample(layer, x).double()
    spread = long.T.cov()
    error = (spread.diag() / count).sqrt()
    assert ((short.mean(0) - long.mean(0)).abs() < 5 * math.sqrt(2) * error).all()
    largest = spread.diag().max()
    assert ((short.T.cov() - spread).abs() < 5 * math.sqrt(2) * math.sqrt(2 / count) * largest).all()


class TimeFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GaussianLinear(4, 4), GaussianLinear(4, 2)

    def forward(self, x):
        return self.second(self.first(x).transpose(0, 1)).transpose(0, 1)


def test_what_is_refused_leaves_no_half_correction():
    with pytest.raises(bedl.BEDLError, match="no Gaussian layer"):
        correct_variances(nn.Linear(2, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match="at least 2 draws"):
        correct_variances(mlp(), images(3), draws=1)
    with pytest.raises(ValueError, match="1 input"):
        correct_variances(mlp(), images(3)[:0])
    net = TimeFirst()
    with pytest.raises(bedl.BEDLError, match="'second' has shape"):
        correct_variances(net, torch.ones(7, 3, 4))
    assert not any(isinstance(layer, bedl.nn.GaussianLayer) and layer.is_sampling for layer in net.modules())
    assert not any("covariance" in name for name in net.state_dict())


# -- transforms ------------------------------------------------------------------------------------
def assert_same(a, b):
    torch.testing.assert_close(a.loc, b.loc, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(a.variance, b.variance, rtol=1e-3, atol=1e-6)


def test_a_corrected_network_is_captured_whole_and_trains():
    torch._dynamo.reset()
    net, x = correct_variances(make("flattened"), images(20), draws=20), images(4)
    twin = copy.deepcopy(net)
    expected, result = net(x), torch.compile(twin, fullgraph=True, backend="aot_eager")(x)
    assert_same(result, expected)
    for y in (expected, result):
        y.variance.sum().backward()
    torch.testing.assert_close(net[5].weight_mean.grad, twin[5].weight_mean.grad, rtol=1e-3, atol=1e-6)


def test_a_corrected_network_as_onnx(tmp_path):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    net, x = correct_variances(make("mlp"), images(20), draws=20), images(5)
    path = tmp_path / "net.onnx"
    torch.onnx.export(net, (x,), path, dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False)
    session = runtime.InferenceSession(path)
    loc, variance = session.run(None, {session.get_inputs()[0].name: x[:3].numpy()})
    with torch.no_grad():
        assert_same(Moments(torch.from_numpy(loc), torch.from_numpy(variance)), net(x[:3]))


def test_replicas_each_with_their_own_correction():
    nets = [correct_variances(mlp(), images(20), draws=10, seed=seed) for seed in range(3)]
    check_same_build(nets)
    parameters, buffers = torch.func.stack_module_state(nets)
    base = copy.deepcopy(nets[0]).to("meta")
    x = images(4)
    stacked = torch.func.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(parameters, buffers)
    for i, net in enumerate(nets):
        assert_same(stacked[i], net(x))
    with pytest.raises(ValueError, match="covariance_factor has another shape"):
        check_same_build([nets[0], remove_correction(nets[1])])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    net = make("averaged")
    expected = correct_variances(net, images(20), draws=50)(images(5, seed=1))
    twin = make("averaged").to(dtype)
    result = correct_variances(twin, images(20).to(dtype), draws=50)(images(5, seed=1).to(dtype))
    assert result.variance.dtype == (torch.float64 if dtype is torch.float64 else torch.float32)
    torch.testing.assert_close(result.variance.float(), expected.variance, rtol=0.2, atol=1e-4)


def test_inputs_that_are_no_tensor_are_refused():
    net = nn.Sequential(bedl.GaussianLinear(3, 4), nn.ReLU(), bedl.GaussianLinear(4, 2))
    with pytest.raises(TypeError, match="a tensor, not ndarray"):
        bedl.correct_variances(net, torch.randn(5, 3).numpy())
