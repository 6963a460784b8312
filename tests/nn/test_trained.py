"""Published networks, trained on shapes in noise: after `fit` their standard deviations are those of drawn weights.

And what they predict is as good as without the correction.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import bedl

pytestmark = [pytest.mark.slow, pytest.mark.arch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def shapes(n: int, seed: int, size: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """Images of discs, squares, diamonds and rings in noise, which of them it is, and where it is."""
    g = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 4, (n,), generator=g)
    row, column = 8 + 8 * torch.rand(2, n, 1, 1, generator=g)
    r, at = 3 + 4 * torch.rand(n, 1, 1, generator=g), torch.arange(float(size))
    dy, dx = (at[:, None] - row).abs(), (at - column).abs()
    far = dy.hypot(dx)
    each = torch.stack([far < r, torch.maximum(dy, dx) < 0.9 * r, dy + dx < 1.2 * r, (far < r) & (far > 0.6 * r)])
    mask = each[kind, torch.arange(n)]
    bright = 0.5 + torch.rand(n, 1, 1, generator=g)
    return (mask * bright + 0.3 * torch.randn(n, size, size, generator=g))[:, None], kind, mask.long()


def monai_net(name: str) -> nn.Module:
    nets = pytest.importorskip("monai.networks.nets")
    sizes = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
    if name == "ResNet":
        first = {"n_input_channels": 1, "num_classes": 4, "conv1_t_size": 3, "spatial_dims": 2}
        return nets.ResNet("basic", [1, 1, 1, 1], [8, 16, 16, 32], **first)
    if name == "DenseNet":
        return nets.DenseNet(2, 1, 4, init_features=16, growth_rate=8, block_config=(2, 2, 2))
    return nets.AttentionUnet(**sizes, channels=(8, 16, 32), strides=(2, 2))


def deviations(net: nn.Module, x: Tensor, draws: int = 300) -> tuple[Tensor, Tensor]:
    """Standard deviations of one pass, and those of drawn weights, by output."""
    net.eval()
    with torch.no_grad():
        variance = net(x).variance.double()
        with bedl.sampled(net):
            outputs = torch.stack([net(x) for _ in range(draws)]).double()
    return variance.sqrt(), outputs.std(0)


@pytest.mark.parametrize("name", ["ResNet", "DenseNet", "AttentionUnet"])
def test_standard_deviations_after_fit_are_right_to_5_percent(name: str) -> None:
    """In the mean and in the geometric mean, over images that were neither learned from nor fitted on."""
    x, kind, mask = shapes(600, seed=1)
    torch.manual_seed(0)
    dense = name == "AttentionUnet"
    held_out = shapes(300, seed=3)
    head = bedl.Dirichlet(2, dim=1) if dense else bedl.Dirichlet(4)
    method = bedl.BEDL(bedl.bayesianize(monai_net(name)), head, bedl.PAC(strength=0.1))
    bedl.fit(
        method,
        (x, mask if dense else kind),
        epochs=8,
        batch_size=32,
        compile=False,
        validation=(held_out[0], held_out[2 if dense else 1]),
        fabric={"accelerator": "cpu"},
    )
    new = shapes(150, seed=2)
    one_pass, drawn = deviations(method.net, new[0][: 10 if dense else 150])
    assert float(one_pass.mean() / drawn.mean()) == pytest.approx(1, abs=0.05)
    assert float((one_pass / drawn).log().mean().exp()) == pytest.approx(1, abs=0.05)  # where they are small, too
    after = likelihood(method, *new)
    bedl.nn.remove_correction(method.net)
    assert after > likelihood(method, *new) - 0.02


def likelihood(method: bedl.BEDL, x: Tensor, kind: Tensor, mask: Tensor) -> float:
    """Mean log p(y|x), of pixels or of images."""
    return float(method.predict(x).log_prob(mask if method.head.dim == 1 else kind).mean())
