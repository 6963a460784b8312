"""Print the table of docs/approximation.md: `python tools/measure_approximation.py [name …]` (minutes; scikit-learn).

The one-pass standard deviation of a network's outputs over that of many draws of its weights, before and after
`bedl.nn.correct_variances`. LeNet-5 is measured where $BEDL_DATA holds MNIST and Fashion-MNIST in torchvision's layout.
"""

import gzip
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import bedl
from bedl import GaussianConv2d, GaussianLinear
from bedl.nn import correct_variances, remove_correction

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


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.body(x))


def residual(blocks, average):
    body = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    body += [Residual(16) for _ in range(blocks)]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)] if average else \
        [nn.Flatten(), nn.Linear(16 * 64, 10)]  # fmt: skip
    return bedl.bayesianize(nn.Sequential(*body, *end))


class Rows(nn.Module):
    """An image as a sequence of its rows."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.out = layer, nn.Linear(16, 10)

    def forward(self, x):
        return self.out(self.layer(x.squeeze(1))[0][:, -1])


def recurrent(kind):
    return bedl.bayesianize(Rows(kind(8, 16, batch_first=True)))


def lenet():
    return nn.Sequential(
        GaussianConv2d(1, 20, 5, stride=2), nn.ReLU(), GaussianConv2d(20, 50, 5, stride=2), nn.ReLU(), nn.Flatten(),
        GaussianLinear(800, 500), nn.ReLU(), GaussianLinear(500, 10),
    )  # fmt: skip


def train(net, images=IMAGES[:1500], labels=LABELS[:1500], epochs=15, rate=2e-3):
    optimizer = torch.optim.Adam(net.parameters(), rate)
    net.train()
    for epoch in range(epochs):
        for rows in torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).split(100):
            out = net(images[rows])
            spread = out.variance + 0.05
            loss = ((labels[rows] - out.loc).square() / spread + spread.log()).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    net.eval()


def drawn(net, x, draws):
    """Mean and standard deviation of the outputs over draws of the weights."""
    values = []
    with torch.no_grad(), bedl.sampled(net):
        for _ in range(draws // 20):
            values.append(net(x.repeat(20, 1, 1, 1)).unflatten(0, (20, len(x))))
    values = torch.cat(values)
    return values.mean(0), values.std(0)


def compare(net, x, mean, std):
    with torch.no_grad():
        y = net(x)
    shift = ((y.loc - mean) / std).square().mean().sqrt()
    ratios = y.variance.sqrt() / std
    low, high = torch.quantile(ratios, torch.tensor([0.05, 0.95]))
    return f"{ratios.mean():.3f} ({low:.2f}–{high:.2f}) | {(ratios - 1).abs().mean():.3f} | {shift:.2f}"


def measure(name, net, fitted_on, *test_sets, draws=2000):
    """A line per set of inputs: before, after."""
    truths = [drawn(net, x, draws) for _, x in test_sets]
    before = [compare(net, x, *truth) for (_, x), truth in zip(test_sets, truths, strict=True)]
    start = time.perf_counter()
    correct_variances(net, fitted_on)
    seconds = time.perf_counter() - start
    for (kind, x), truth, line in zip(test_sets, truths, before, strict=True):
        print(f"| {name}, {kind} | {line} | {compare(net, x, *truth)} | {seconds:.1f} |", flush=True)
    remove_correction(net)


def images_of(name, part, count):
    path = Path(os.environ["BEDL_DATA"], name, "raw", f"{part}-images-idx3-ubyte.gz")
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return torch.tensor(pixels[:count], dtype=torch.float32) / 255


def labels_of(name, part, count):
    path = Path(os.environ["BEDL_DATA"], name, "raw", f"{part}-labels-idx1-ubyte.gz")
    numbers = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=8)
    return nn.functional.one_hot(torch.tensor(numbers[:count], dtype=torch.long), 10).float()


def measure_lenet():
    torch.manual_seed(0)
    net = lenet()
    images = images_of("MNIST", "train", 20_000)
    test = [("MNIST", images_of("MNIST", "t10k", 20)), ("Fashion-MNIST", images_of("FashionMNIST", "t10k", 20))]
    measure("LeNet-5, fresh", net, images[:100], *test, draws=1000)
    train(net, images, labels_of("MNIST", "train", 20_000), epochs=4, rate=1e-3)
    measure("LeNet-5, trained", net, images[:100], *test, draws=1000)


NETWORKS = {
    **{f"fully connected, {d} × 50": lambda d=d: mlp(d) for d in (1, 2, 3, 5)},
    **{f"convolutional, {d} × 16, flattened": lambda d=d: convolutional(d, False) for d in (1, 2, 4)},
    **{f"convolutional, {d} × 16, averaged": lambda d=d: convolutional(d, True) for d in (1, 2, 4)},
    **{f"{kind.__name__}, 8 steps × 16": lambda kind=kind: recurrent(kind) for kind in (nn.RNN, nn.LSTM, nn.GRU)},
    "residual, 2 blocks × 16, flattened": lambda: residual(2, False),
    "residual, 2 blocks × 16, averaged": lambda: residual(2, True),
}


if __name__ == "__main__":
    wanted = sys.argv[1:]
    columns = ["network, inputs", *["std ratio", "error", "mean shift"] * 2, "seconds"]
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    for name, make in NETWORKS.items():
        if wanted and not any(word in name for word in wanted):
            continue
        torch.manual_seed(0)
        net = make().eval()
        measure(name, net, IMAGES[:100], ("fresh", IMAGES[1500:1520]))
        train(net)
        measure(name, net, IMAGES[:100], ("trained", IMAGES[1500:1520]))
    if "BEDL_DATA" in os.environ and (not wanted or "LeNet" in wanted):
        measure_lenet()
