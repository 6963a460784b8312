"""Small networks of many kinds, each with a task to train on: what one pass says of them is compared with draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bedl

Task = tuple[Tensor, Tensor]


class MLPMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(8, 16), nn.Linear(16, 2)
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        h = h + self.tokens(h.transpose(1, 2)).transpose(1, 2)
        h = h + self.channels(h)
        return self.out(h.mean(1))


class ConvLSTM(nn.Module):
    """One cell over the frames of a film."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.gates, self.out, self.width = nn.Conv2d(1 + width, 4 * width, 3, padding=1), nn.Linear(width, 2), width

    def forward(self, x: Any) -> Any:
        h = c = torch.zeros(len(x), self.width, *x.shape[3:])
        for frame in x.unbind(1):
            i, f, o, g = self.gates(torch.cat([frame, h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.out(h.mean((2, 3)))


class GraphNet(nn.Module):
    """Three rounds of messages around a ring with chords, by a dense adjacency matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.out = nn.Linear(4, 16), nn.Linear(16, 2)
        self.own = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.others = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        ring = torch.eye(10).roll(1, 0) + torch.eye(10).roll(-1, 0) + torch.eye(10).roll(5, 0)
        self.register_buffer("adjacency", ring / ring.sum(1, keepdim=True))

    def forward(self, x: Any) -> Any:
        h = F.relu(self.encode(x))
        for own, others in zip(self.own, self.others, strict=True):
            h = F.relu(own(h) + others(self.adjacency @ h))
        return self.out(h.sum(1) / 3)


class MixtureOfExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)) for _ in range(4))

    def forward(self, x: Any) -> Any:
        shares = torch.softmax(self.gate(x), -1)
        return (shares[:, :, None] * torch.stack([expert(x) for expert in self.experts], 1)).sum(1)


class SwiGLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Linear(8, 24), nn.Linear(24, 2)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"gate": nn.Linear(24, 48), "up": nn.Linear(24, 48), "down": nn.Linear(48, 24)})
            for _ in range(3)
        )

    def forward(self, x: Any) -> Any:
        h = self.embed(x)
        for block in self.blocks:
            z = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
            h = h + block["down"](F.silu(block["gate"](z)) * block["up"](z))
        return self.out(h)


class Einsum(nn.Module):
    """Two views of the input that meet in a product, and a readout without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.mix = nn.Linear(8, 24), nn.Linear(8, 24), nn.Linear(12, 24)

    def forward(self, x: Any) -> Any:
        one, two = torch.tanh(self.one(x)).view(-1, 2, 12), torch.tanh(self.two(x)).view(-1, 2, 12)
        h = F.elu(self.mix(torch.einsum("nac,nbc->nabc", one, two).mean(2))).view(-1, 2, 2, 12)
        return torch.einsum("nabc,nbc->nab", h, one).mean(-1)


class GroupNormResNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(1, width, 3, padding=1), nn.Linear(width, 2)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.GroupNorm(2, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
                nn.GroupNorm(2, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        h = self.stem(x)
        for block in self.blocks:
            h = h + block(h)
        return self.out(F.silu(h).mean((2, 3)))


class WaveNet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv1d(1, width, 1), nn.Conv1d(width, 2, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**i) for i in range(4))
        self.skips = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(4))

    def forward(self, x: Any) -> Any:
        h, total = self.stem(x), 0
        for dilated, skip in zip(self.dilated, self.skips, strict=True):
            filtered, gate = dilated(F.pad(h, (dilated.dilation[0], 0))).chunk(2, 1)
            residual, out = skip(torch.tanh(filtered) * torch.sigmoid(gate)).chunk(2, 1)
            h, total = h + residual, total + out
        return self.out(F.relu(total)).mean(-1)


class ViT(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches, self.out = nn.Conv2d(1, width, 3, stride=3), nn.Linear(width, 2)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.1 * torch.randn(1, 17, width))
        self.blocks = nn.ModuleList(
            nn.ModuleDict({
                "norm1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width),
                "norm2": nn.LayerNorm(width),
                "mlp": nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)),
            })
            for _ in range(2)
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(len(x), -1, -1), h], 1) + self.positions
        for block in self.blocks:
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in block["qkv"](block["norm1"](h)).chunk(3, -1))
            a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            h = h + block["proj"](a)
            h = h + block["mlp"](block["norm2"](h))
        return self.out(h[:, 0])


class UNet(nn.Module):
    """Per pixel, of images of 12 × 12."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.bottom, self.up2 = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.up1, self.last, self.out = (
            nn.ConvTranspose2d(16, 8, 2, stride=2),
            nn.Conv2d(16, 8, 3, padding=1),
            nn.Conv2d(8, 2, 1),
        )
        self.norm = nn.InstanceNorm2d(8, affine=True)

    def forward(self, x: Any) -> Any:
        one = F.relu(self.norm(self.down1(x)))
        two = F.relu(self.down2(F.max_pool2d(one, 2)))
        h = self.up2(F.relu(self.bottom(F.max_pool2d(two, 2))))
        h = torch.cat([h, F.avg_pool2d(one, 2)], 1)
        h = torch.cat([self.up1(h), one], 1)
        return self.out(F.leaky_relu(self.last(h))).movedim(1, -1)


class Encoder(nn.Module):
    """A transformer encoder over tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(12, width), nn.Linear(width, 2)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Any) -> Any:
        return self.out(self.encoder(self.embed(x)).mean(1))


class DenseNet(nn.Module):
    def __init__(self, growth: int = 6) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8 + 4 * growth, 2)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(8 + i * growth), nn.ReLU(), nn.Conv2d(8 + i * growth, growth, 3, padding=1))
            for i in range(4)
        )

    def forward(self, x: Any) -> Any:
        h = self.stem(x)
        for i, layer in enumerate(self.layers):
            h = torch.cat([h, layer(h)], 1)
            h = F.avg_pool2d(h, 2) if i == 1 else h
        return self.out(F.relu(h).mean((2, 3)))


class DeepSets(nn.Module):
    """Of the elements' features the sum; the residual network behind it counts in logarithms."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 24), nn.Softplus())
        self.all = nn.Sequential(nn.Linear(24, 24), nn.Hardswish(), nn.Linear(24, 2))

    def forward(self, x: Any) -> Any:
        return self.all(torch.log1p(self.each(x).sum(1)))


class BiGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.score, self.out = (
            nn.GRU(2, 12, batch_first=True, bidirectional=True),
            nn.Linear(24, 1),
            nn.Linear(24, 2),
        )

    def forward(self, x: Any) -> Any:
        h = self.gru(x)[0]
        return self.out((torch.softmax(self.score(h), 1) * h).sum(1))


def _of(shape: tuple[int, ...], label: Callable[[Tensor], Tensor]) -> Callable[[int, int], Task]:
    def make(n: int, seed: int) -> Task:
        x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
        return x, label(x)

    return make


def _images(n: int, seed: int) -> Task:
    """Bright crosses or bright squares, in noise. shape: (n, 1, 12, 12)"""
    g = torch.Generator().manual_seed(seed)
    x, y = 0.5 * torch.randn(n, 1, 12, 12, generator=g), torch.randint(2, (n,), generator=g)
    at = torch.randint(1, 7, (n, 2), generator=g)
    for i in range(n):
        r, c = at[i].tolist()
        if y[i]:
            x[i, 0, r + 2, c : c + 5] += 1.5
            x[i, 0, r : r + 5, c + 2] += 1.5
        else:
            x[i, 0, r : r + 5 : 4, c : c + 5] += 1.5
            x[i, 0, r : r + 5, c : c + 5 : 4] += 1.5
    return x, y


def _pixels(n: int, seed: int) -> Task:
    x, _ = _images(n, seed)
    return x, (F.avg_pool2d(x, 3, 1, 1)[:, 0] > 0.5).long()


def _tokens(n: int, seed: int) -> Task:
    x = torch.randint(12, (n, 10), generator=torch.Generator().manual_seed(seed))
    return x, ((x < 3).sum(1) > (x > 8).sum(1)).long()


_TABLE = _of((8,), lambda x: (x[:, 0] * x[:, 1] + x[:, 2].sin() + 0.3 * x[:, 3] > 0).long())
_FILM = _of((5, 1, 6, 6), lambda x: (x[:, -1].mean((1, 2, 3)) > x[:, 0].mean((1, 2, 3))).long())
_GRAPH = _of((10, 4), lambda x: (x.relu().sum((1, 2)) > 16).long())
_SERIES = _of((1, 24), lambda x: (x[:, 0, 1:] * x[:, 0, :-1]).sum(1).gt(0).long())
_STEPS = _of((12, 2), lambda x: (x[:, :, 0].cumsum(1).amax(1) > x[:, :, 1].cumsum(1).amax(1)).long())

TRAINED: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Task]]] = {
    "MLP-Mixer": (MLPMixer, _of((16, 8), lambda x: (x[:, :8].sum((1, 2)) > x[:, 8:].sum((1, 2))).long())),
    "ConvLSTM": (ConvLSTM, _FILM),
    "graph network": (GraphNet, _GRAPH),
    "mixture of experts": (MixtureOfExperts, _TABLE),
    "SwiGLU blocks": (SwiGLU, _TABLE),
    "einsum of two views": (Einsum, _TABLE),
    "GroupNorm ResNet": (GroupNormResNet, _images),
    "WaveNet": (WaveNet, _SERIES),
    "vision transformer": (ViT, _images),
    "U-Net, per pixel": (UNet, _pixels),
    "transformer encoder": (Encoder, _tokens),
    "DenseNet": (DenseNet, _images),
    "deep sets": (DeepSets, _GRAPH),
    "GRU with attention": (BiGRU, _STEPS),
}  # fmt: skip


def trained(name: str, epochs: int = 15, **options: Any) -> tuple[bedl.BEDL, Tensor]:
    """A network of this kind after `fit` on 600 points, and 40 inputs that it has not seen."""
    make, task = TRAINED[name]
    torch.manual_seed(0)
    method = bedl.BEDL(bedl.bayesianize(make()), bedl.Dirichlet(2))
    bedl.fit(method, task(600, 1), epochs=epochs, fabric={"accelerator": "cpu"}, **options)
    return method.eval(), task(40, 2)[0]


@torch.no_grad()
def std_ratio(net: nn.Module, x: Tensor, draws: int = 300) -> float:
    """Standard deviations of one pass over those of draws, in the geometric mean over points and outputs."""
    one = net(x).variance.sqrt()
    with bedl.sampled(net), torch.random.fork_rng():
        torch.manual_seed(3)
        drawn = torch.stack([net(x) for _ in range(draws)]).std(0)
    return float((one / drawn).log().mean().exp())
