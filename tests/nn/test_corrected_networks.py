"""What a correction leaves alone; how it is saved and loaded; corrected networks captured, exported and stacked."""

import copy
import math

import pytest
import torch
from torch import nn

import bedl
from bedl import GaussianLinear, Moments
from bedl.nn import correct_variances, remove_correction
from bedl.nn.layers import CORRECTION
from bedl.training.engines.stacked import check_same_build
from tests.nn.correctable import averaged, images, make, mlp


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


def test_what_is_refused_leaves_no_half_correction():
    with pytest.raises(bedl.BEDLError, match="no Gaussian layer"):
        correct_variances(nn.Linear(2, 2), torch.ones(3, 2))
    with pytest.raises(ValueError, match="at least 2 draws"):
        correct_variances(mlp(), images(3), draws=1)
    with pytest.raises(ValueError, match="1 input"):
        correct_variances(mlp(), images(3)[:0])
    net = nn.Sequential(GaussianLinear(4, 4), nn.ReLU(), GaussianLinear(4, 2))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        correct_variances(net, torch.ones(7, 3))
    assert not any(isinstance(layer, bedl.nn.GaussianLayer) and layer.is_sampling for layer in net.modules())
    assert not any("covariance" in name for name in net.state_dict())


# -- transforms ------------------------------------------------------------------------------------
def assert_same(a, b):
    torch.testing.assert_close(a.loc, b.loc, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(a.variance, b.variance, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
def test_a_corrected_network_is_captured_whole_and_trains():
    torch._dynamo.reset()
    net, x = correct_variances(make("flattened"), images(20), draws=20), images(4)
    twin = copy.deepcopy(net)
    expected, result = net(x), torch.compile(twin, fullgraph=True, backend="aot_eager")(x)
    assert_same(result, expected)
    for y in (expected, result):
        y.variance.sum().backward()
    torch.testing.assert_close(net[5].weight_mean.grad, twin[5].weight_mean.grad, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
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
