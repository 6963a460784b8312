"""Small networks in one call of a kernel, against the same layers in double precision."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl import GaussianLinear, _kernels
from bedl.heads import Normal
from bedl.methods import BEDL
from bedl.nn.fused import forward
from bedl.nn.tabular import QuantileCodes, Standardize

pytestmark = pytest.mark.skipif(not _kernels.is_built(), reason="there are no kernels")


def network(*widths: int, standardized: bool = False, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    front = [Standardize(torch.randn(widths[0]), torch.rand(widths[0]) + 0.5)] if standardized else []
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [GaussianLinear(inputs, outputs, bias=bias), nn.ReLU()]
    net = nn.Sequential(*front, *layers[:-1])
    for parameter in net.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return net.eval()


NETWORKS = [network(8, 50, 2), network(1, 3), network(20, 17, 9, 4, standardized=True), network(5, 70, 3, bias=False)]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("net", NETWORKS)
def test_one_call_says_what_all_layers_say(net: nn.Sequential, prepared: bool) -> None:
    x = torch.randn(9, next(layer.in_features for layer in net if isinstance(layer, GaussianLinear)))
    with torch.no_grad(), bedl.cached_weights(net) if prepared else nullcontext():
        found = forward(net, x)
    assert found is not None
    truth = copy.deepcopy(net).double()(x.double()).detach()
    torch.testing.assert_close(found.loc.double(), truth.loc, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance.double(), truth.variance, rtol=1e-5, atol=1e-7)


def test_relu_may_come_last() -> None:
    net = nn.Sequential(*network(4, 6, 3), nn.ReLU())
    with torch.no_grad():
        found, truth = forward(net, torch.ones(2, 4)), net(torch.ones(2, 4))
    assert found is not None
    torch.testing.assert_close(found.loc, truth.loc)
    torch.testing.assert_close(found.variance, truth.variance)


def test_codes_of_quantiles_and_nested_containers_stand_in_front() -> None:
    codes = QuantileCodes([torch.tensor([-1.0, 0.0, 2.0]), torch.tensor([-1.0, 1.0])])
    net = nn.Sequential(Standardize(torch.ones(2), 2 * torch.ones(2)), codes, network(4, 6, 3))
    x = torch.randn(5, 2)
    with torch.no_grad():
        found, truth = forward(net, x), copy.deepcopy(net).double()(x.double())
    assert found is not None
    torch.testing.assert_close(found.loc.double(), truth.loc, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.variance.double(), truth.variance, rtol=1e-5, atol=1e-7)


def changed(change: Callable[[nn.Sequential], object]) -> nn.Sequential:
    net = network(3, 12, 2)
    change(net)
    return net


OTHERS: dict[str, nn.Module] = {
    "a hook": changed(lambda net: net[0].register_forward_hook(lambda *_: None)),
    "double precision": network(3, 12, 2).double(),
    "another activation": changed(lambda net: net.__setitem__(1, nn.Tanh())),
    "variances that outputs share": nn.Sequential(GaussianLinear(3, 2, variances="output")),
    "a layer that is not random": nn.Sequential(nn.Linear(3, 2)),
    "no container": network(3, 2)[0],
    "too much to be small": network(3, 3000, 300, 2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_go_layer_by_layer(name: str) -> None:
    x = torch.zeros(4, 3, dtype=torch.float64 if name == "double precision" else torch.float32)
    with torch.no_grad():
        assert forward(OTHERS[name], x) is None


@pytest.mark.parametrize(
    "inside",
    [
        torch.enable_grad,
        lambda: bedl.use_rules({F.relu: lambda x: x}),
        lambda: bedl.nn.variance_products(torch.bfloat16),
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: bedl.nn.sampled(NETWORKS[0]),
    ],
    ids=["gradients", "other rules", "rounded products", "autocast", "sampling"],
)
def test_other_circumstances_go_layer_by_layer(inside: Callable[[], AbstractContextManager]) -> None:
    with torch.no_grad(), inside():
        assert forward(NETWORKS[0], torch.zeros(4, 8)) is None


def test_predictions_take_the_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    method = BEDL(network(3, 12, 2), Normal())
    calls: list[int] = []
    kernel = _kernels.small_network
    monkeypatch.setattr(_kernels, "small_network", lambda *given: calls.append(1) or kernel(*given))
    method.predict(torch.zeros(4, 3))
    assert calls == [1]


@pytest.mark.parametrize("noise", ["fixed", "learned"])
@pytest.mark.parametrize("targets", [1, 3])
def test_parts_of_a_normal_prediction_in_c_are_those_in_double_precision(noise: str, targets: int) -> None:
    head = Normal(targets, noise=noise)  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(0)
    loc = 12 * torch.randn(200, head.n_outputs, generator=g)
    variance = torch.exp(3 * torch.randn(200, head.n_outputs, generator=g))
    with torch.no_grad():
        found = head(bedl.Moments(loc, variance))
        truth = head(bedl.Moments(loc.double(), variance.double()))
    for name in ("mean", "data", "distributional", "model"):
        torch.testing.assert_close(getattr(found, name).double(), getattr(truth, name), rtol=1e-4, atol=1e-10)
