"""Print docs/approximation.md's table: `python tools/measure_approximation.py` (some minutes; needs scikit-learn).

The one-pass standard deviation of a network's outputs over that of many draws of its weights.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import bedl
from bedl import GaussianConv2d, GaussianLinear

digits = load_digits()
IMAGES = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
LABELS = nn.functional.one_hot(torch.tensor(digits.target), 10).float()


def mlp(depth):
    layers = [nn.Flatten(), GaussianLinear(64, 50), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [GaussianLinear(50, 50), nn.ReLU()]
    return nn.Sequential(*layers, GaussianLinear(50, 10))


def convolutional(depth, average):
    layers, channels = [], 1
    for _ in range(depth):
        layers += [GaussianConv2d(channels, 16, 3, padding=1), nn.ReLU()]
        channels = 16
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), GaussianLinear(16, 10)] if average else \
        [nn.Flatten(), GaussianLinear(16 * 64, 10)]  # fmt: skip
    return nn.Sequential(*layers, *end)


def train(net, epochs=15):
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for epoch in range(epochs):
        for rows in torch.randperm(1500, generator=torch.Generator().manual_seed(epoch)).split(100):
            out = net(IMAGES[rows])
            spread = out.variance + 0.05
            loss = ((LABELS[rows] - out.loc).square() / spread + spread.log()).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()


def ratio(net, points=20, draws=1000):
    x = IMAGES[1500 : 1500 + points]
    with torch.no_grad():
        y = net(x)
        with bedl.sampled(net):
            values = torch.cat([net(x.repeat(20, 1, 1, 1)).unflatten(0, (20, points)) for _ in range(draws // 20)])
    std = values.std(0)
    shift = ((y.loc - values.mean(0)) / std).square().mean().sqrt()
    ratios = y.variance.sqrt() / std
    return f"{ratios.mean():.2f} ({ratios.min():.2f}–{ratios.max():.2f}) | {shift:.2f}"


if __name__ == "__main__":
    print(
        "| network | fresh: std ratio | mean shift | trained: std ratio | mean shift |\n| --- | --- | --- | --- | --- |"
    )
    for name, make in [
        *((f"fully connected, {d} × 50", lambda d=d: mlp(d)) for d in (1, 2, 3, 5)),
        *((f"convolutional, {d} × 16, flattened", lambda d=d: convolutional(d, False)) for d in (1, 2, 4)),
        *((f"convolutional, {d} × 16, averaged", lambda d=d: convolutional(d, True)) for d in (1, 2, 4)),
    ]:
        torch.manual_seed(0)
        net = make()
        fresh = ratio(net)
        train(net)
        print(f"| {name} | {fresh} | {ratio(net)} |", flush=True)
