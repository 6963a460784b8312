"""Covariances that one pass drops, fitted once: against closed forms and against draws of the weights."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl import GaussianConv2d, GaussianLinear, Moments
from bedl.nn import GaussianConvTranspose1d, correct_variances, remove_correction
from tests.closeness import assert_same_up_to_rounding
from tests.nn.correctable import NETS, drawn, images, make, mlp

each_net = pytest.mark.parametrize("name", NETS)


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


@pytest.mark.parametrize("keep", [False, True])
def test_points_behind_dead_units_do_not_count(keep):
    """For half of the points all units are dead: one pass has variances of 1e-8 there and less, the draws have none."""
    net, x, new = make("mlp"), images(100), images(100, seed=1)
    net.insert(0, nn.Conv2d(1, 1, 1))
    with torch.no_grad():
        net[0].weight.fill_(1.0), net[0].bias.zero_()
        net[2].weight_mean.abs_(), net[2].weight_logvar.fill_(-6.0)
    x[::2], new[::2] = -x[::2], -new[::2]
    before = net(x).variance.detach()
    assert float(before[::2].mean() / before[1::2].mean()) < 1e-6
    after = correct_variances(net, x, draws=30, keep=keep)(x).variance.detach()
    if keep:
        assert float((after / before)[1::2].log().mean().exp()) == pytest.approx(1, abs=0.01)
    ratio = net(new[1::2]).variance.detach().sqrt() / drawn(net, new[1::2], 300).std(0)
    assert float(ratio.log().mean().exp()) == pytest.approx(1, abs=0.05)


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
