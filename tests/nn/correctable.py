"""Networks in which covariances matter, inputs for them, and the truth: draws of all weights."""

import torch
import torch.nn.functional as F
from torch import nn

import bedl
from bedl import GaussianConv2d, GaussianLinear


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
