"""Chains of layers in one call of a kernel, against the same layers in double precision."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl import Dirichlet, GaussianConv2d, GaussianLinear, _kernels
from bedl.methods import BEDL
from bedl.nn import fused
from bedl.nn.fused import outputs_of_chain
from bedl.nn.tabular import Standardize

pytestmark = pytest.mark.skipif(not _kernels.is_built(), reason="there are no kernels")


def images(*layers: nn.Module) -> nn.Sequential:
    net = nn.Sequential(*layers)
    torch.manual_seed(0)
    for parameter in net.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return net.eval()


def lenet() -> nn.Sequential:
    return images(
        GaussianConv2d(1, 20, 5, stride=2), nn.ReLU(), GaussianConv2d(20, 50, 5, stride=2), nn.ReLU(), nn.Flatten(),
        GaussianLinear(50, 70), nn.ReLU(), nn.Dropout(0.5), GaussianLinear(70, 10),
    )  # fmt: skip


# Outputs that are more, less and as many as a vector's lanes, or a panel's; windows that are runs, or one.
NETWORKS: dict[str, tuple[nn.Sequential, tuple[int, ...]]] = {
    "strides": (lenet(), (1, 15, 15)),
    "zeros around": (
        images(GaussianConv2d(3, 7, 3, padding=1), nn.ReLU(), GaussianConv2d(7, 64, 3, stride=(2, 1), padding=(0, 2))),
        (3, 6, 5),
    ),
    "in a container": (
        images(
            Standardize(torch.randn(2, 1, 1), torch.rand(2, 1, 1) + 0.5),
            nn.Sequential(GaussianConv2d(2, 130, (1, 3), bias=False), nn.ReLU(), nn.Sequential(nn.Flatten())),
            GaussianLinear(130 * 6, 24),
            nn.ReLU(),
        ),
        (2, 3, 4),
    ),
    "pixels as columns": (images(nn.Unflatten(1, (1, 4, 4)), GaussianConv2d(1, 4, 2), nn.Flatten()), (16,)),
    "a table": (
        images(GaussianLinear(12, 33), nn.ReLU(), GaussianLinear(33, 65), nn.ReLU(), GaussianLinear(65, 3)),
        (12,),
    ),
}


@pytest.mark.parametrize("points", [1, 7, 200])
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_one_call_says_what_all_layers_say(
    name: str, prepared: bool, points: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, shape = NETWORKS[name]
    monkeypatch.setattr(fused, "MIN_REUSE", 1e9)
    x = torch.randn(points, *shape)
    with torch.no_grad(), bedl.cached_weights(net) if prepared else nullcontext():
        found = outputs_of_chain(net, x)
    assert found is not None
    truth = copy.deepcopy(net).double()(x.double()).detach()
    assert found.shape == truth.shape
    torch.testing.assert_close(found.loc.double(), truth.loc, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(found.variance.double(), truth.variance, rtol=1e-4, atol=1e-7)


def test_points_beyond_what_is_kept_between_layers_come_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    net, shape = NETWORKS["strides"]
    x = torch.randn(50, *shape)
    with torch.no_grad(), bedl.cached_weights(net):
        whole = outputs_of_chain(net, x)
        monkeypatch.setattr("bedl._kernels.inference.ROOM", 20_000)
        groups = outputs_of_chain(net, x)
    assert whole is not None
    assert groups is not None
    torch.testing.assert_close(groups.loc, whole.loc)
    torch.testing.assert_close(groups.variance, whole.variance)


def test_weights_that_changed_are_seen_after_the_block() -> None:
    net, shape = copy.deepcopy(NETWORKS["strides"][0]), (1, 15, 15)
    x = torch.randn(60, *shape)
    with torch.no_grad():
        with bedl.cached_weights(net):
            before = outputs_of_chain(net, x)
        for parameter in net.parameters():
            parameter.mul_(1.1)
        with bedl.cached_weights(net):
            after = outputs_of_chain(net, x)
        truth = net(x)
    assert before is not None
    assert after is not None
    assert not torch.allclose(before.loc, after.loc, rtol=1e-3)
    torch.testing.assert_close(after.loc, truth.loc, rtol=1e-4, atol=1e-4)


def test_corrected_variances_keep_their_factor() -> None:
    net, x = images(GaussianLinear(6, 20), nn.ReLU(), GaussianLinear(20, 2)), torch.randn(300, 6)
    for layer in net:
        if isinstance(layer, GaussianLinear):
            layer.covariance_factor = torch.full((layer.out_features, 1), 1.7)
    with torch.no_grad(), bedl.cached_weights(net):
        found, truth = outputs_of_chain(net, x), net(x)
    assert found is not None
    torch.testing.assert_close(found.variance, truth.variance, rtol=1e-4, atol=1e-6)


def changed(change: Callable[[nn.Sequential], object]) -> nn.Sequential:
    net = lenet()
    change(net)
    return net


OTHERS: dict[str, nn.Module] = {
    "a hook": changed(lambda net: net[2].register_forward_hook(lambda *_: None)),
    "another activation": changed(lambda net: net.__setitem__(1, nn.Tanh())),
    "dropout in training": changed(lambda net: net.train()),
    "groups": images(GaussianConv2d(1, 4, 3), GaussianConv2d(4, 4, 3, groups=2)),
    "dilation": images(GaussianConv2d(1, 4, 3, dilation=2)),
    "padding by name": images(GaussianConv2d(1, 4, 3, padding="same")),
    "circular padding": images(GaussianConv2d(1, 4, 3, padding=1, padding_mode="circular")),
    "variances that outputs share": images(GaussianConv2d(1, 4, 3, variances="output")),
    "a variance that outputs have in common": changed(
        lambda net: setattr(net[0], "common_variance", torch.full((20,), 0.1))
    ),
    "a layer that is not random": images(nn.Conv2d(1, 4, 3), GaussianConv2d(4, 4, 3)),
    "maps behind a linear layer": images(GaussianConv2d(1, 4, 3), GaussianLinear(13, 4)),
    "no container": lenet()[0],
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_go_layer_by_layer(name: str) -> None:
    with torch.no_grad(), bedl.cached_weights(OTHERS[name]):
        assert outputs_of_chain(OTHERS[name], torch.zeros(80, 1, 15, 15)) is None


@pytest.mark.parametrize(
    "inside",
    [
        torch.enable_grad,
        lambda: bedl.use_rules({F.conv2d: lambda *_: None}),
        lambda: bedl.nn.variance_products(torch.bfloat16),
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: bedl.nn.sampled(NETWORKS["strides"][0]),
        lambda: bedl.nn.drawn_function(NETWORKS["strides"][0]),
    ],
    ids=["gradients", "other rules", "rounded products", "autocast", "sampling", "one draw"],
)
def test_other_circumstances_go_layer_by_layer(inside: Callable[[], AbstractContextManager]) -> None:
    with torch.no_grad(), inside():
        assert outputs_of_chain(NETWORKS["strides"][0], torch.zeros(80, 1, 15, 15)) is None


def test_predictions_take_the_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    method = BEDL(lenet(), Dirichlet(10))
    calls: list[int] = []
    kernel = _kernels.chain
    monkeypatch.setattr(_kernels, "chain", lambda *given: calls.append(1) or kernel(*given))
    method.predict(torch.zeros(80, 1, 15, 15))
    assert calls == [1]


def test_weights_of_a_transform_go_layer_by_layer() -> None:
    net, shape = NETWORKS["strides"]
    x = torch.randn(3, *shape)
    weights = {name: torch.stack([p.detach(), p.detach()]) for name, p in net.named_parameters()}
    method = BEDL(net, Dirichlet(10))

    def mean(values: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(method, {f"net.{k}": v for k, v in values.items()}, (x,)).mean

    with torch.no_grad():
        found = torch.func.vmap(mean)(weights)
        truth = method(x).mean
    torch.testing.assert_close(found[1], truth, rtol=1e-4, atol=1e-5)
