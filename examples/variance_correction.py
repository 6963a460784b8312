"""Variance correction: put back what one pass leaves out.

One pass carries variances, no covariances. The positions of an image share one draw of a convolution's weights, so a
network that averages over positions reports a standard deviation that is too small. `correct_variances` measures this
once, by drawing weights for some inputs, and stores a factor per output; prediction costs the same as before.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bedl
from bedl.nn import correct_variances

QUICK = "--quick" in sys.argv

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)
train, some, test = (slice(0, 1200), slice(1200, 1300), slice(1300, 1320))

net = nn.Sequential(
    bedl.GaussianConv2d(1, 8, 3, padding=1), nn.ReLU(), bedl.GaussianConv2d(8, 8, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), bedl.GaussianLinear(8, 10),
)  # fmt: skip
method = bedl.BEDL(net, bedl.Dirichlet(10), regularizer=None)
# fit would correct such a network by itself
bedl.fit(method, (images[train], labels[train]), epochs=1 if QUICK else 5, lr=0.01, correct=False)


@torch.no_grad()
def drawn(draws: int) -> Tensor:
    """Standard deviations of the outputs over draws of all weights: the truth. shape: (20, 10)"""
    with bedl.sampled(net):
        return torch.stack([net(images[test]) for _ in range(draws)]).std(0)


net.eval()
truth = drawn(200 if QUICK else 500)
with torch.no_grad():
    before = net(images[test]).variance.sqrt()
    correct_variances(net, images[some])
    after = net(images[test]).variance.sqrt()

for name, std in (("before", before), ("after", after)):
    ratio = std / truth
    print(f"std over the drawn one, {name}: {ratio.mean():.2f} (from {ratio.min():.2f} to {ratio.max():.2f})")
