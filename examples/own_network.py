"""Your own network: an ordinary PyTorch model with Gaussian weights, its forward() unchanged.

A small residual convolutional network for 8 × 8 digits. Nothing in the class knows of bedl.
"""

import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bedl

QUICK = "--quick" in sys.argv


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.out = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = x + F.relu(self.block(x))  # a residual connection
        return self.out(F.avg_pool2d(x, 2).flatten(1))


torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)
order = torch.randperm(len(images))
train, test = order[:1200], order[1200:]

report = bedl.check(Net(), images[:1])  # before anything is trained: has every operation a rule?
print(report)
print(f"operations without a rule: {len(report.unsupported)}")

net = bedl.bayesianize(Net())  # a copy, with GaussianConv2d and GaussianLinear in place of the layers
method = bedl.BEDL(net, bedl.Dirichlet(10), regularizer=None)
result = bedl.fit(method, (images[train], labels[train]), epochs=2 if QUICK else 8, lr=0.01)
prediction = method.predict(images[test])  # one pass, no random numbers
right = prediction.label == labels[test]

print(f"steps: {result.steps}")
print(f"accuracy: {right.float().mean():.3f}")
# Where it is wrong it is less sure, on average:
print(f"mean entropy where right: {prediction.entropy[right].mean():.2f}")
print(f"mean entropy where wrong: {prediction.entropy[~right].mean():.2f}")
