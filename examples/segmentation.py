"""Segmentation: a class for every pixel, and the three parts of the uncertainty as maps.

Discs and squares in noise, made here. Test images hold a thing that training never showed, a striped patch.
`python segmentation.py maps.html` writes the page with images, predictions and maps.
"""

import sys

import torch
from torch import Tensor, nn

import bedl

QUICK, PAGE = "--quick" in sys.argv, [word for word in sys.argv[1:] if word.endswith(".html")]
NAMES = ["background", "disc", "square"]


class Net(nn.Module):
    """A small U-Net: down, up again, and the fine features beside the coarse ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.deep, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.fine(x))
        coarse = torch.relu(self.deep(torch.relu(self.coarse(fine))))
        return self.last(torch.cat([fine, torch.relu(self.up(coarse))], 1))  # shape: (n, 3, H, W)


def scenes(n: int, seed: int, size: int = 24) -> tuple[Tensor, Tensor]:
    """Images and the class of each pixel; 255 on a frame of one pixel, which nobody labelled."""
    g = torch.Generator().manual_seed(seed)
    at, label = torch.arange(size), torch.zeros(n, size, size, dtype=torch.long)
    for kind in (1, 2):
        row, column = torch.randint(6, size - 6, (2, n, 1, 1), generator=g)
        r = torch.randint(3, 7, (n, 1, 1), generator=g)
        dy, dx = (at[:, None] - row).float(), (at - column).float()
        label[(dy.hypot(dx) if kind == 1 else torch.maximum(dy.abs(), dx.abs())) < r] = kind
    bright = torch.tensor([0.0, 1.0, 0.7])[label] + 0.35 * torch.randn(n, size, size, generator=g)
    label[:, [0, -1]], label[:, :, [0, -1]] = 255, 255
    return bright[:, None], label


torch.manual_seed(0)
train, test = scenes(32 if QUICK else 240, seed=1), scenes(20, seed=2)
head = bedl.Dirichlet(3, dim=1, ignore_index=255, class_weight=[1.0, 2.0, 2.0])
method = bedl.BEDL(bedl.bayesianize(Net()), head, bedl.PAC(on="perturbed", strength=0.2))
bedl.fit(method, train, epochs=1 if QUICK else 12, batch_size=16, lr=0.02, compile=False)

foreign = test[0].clone()
foreign[:, :, 6:18, 6:18] = 2.0 * (torch.arange(12) % 4 < 2)  # stripes: nothing like a disc or a square
known, strange = method.predict(test[0]), method.predict(foreign)
labelled = test[1] != 255
print(f"accuracy of pixels: {(known.label == test[1])[labelled].float().mean():.3f}")
inside = known.epistemic[:, 6:18, 6:18].mean()
print(f"epistemic there, stripes over scenes: {strange.epistemic[:, 6:18, 6:18].mean() / inside:.2f}")
print(known.to_frame().loc[[0, 1], ["point", "row", "column", "label", "data", "distributional", "model"]])
if PAGE:
    images, truth = torch.cat([test[0][:4], foreign[:4]]), test[1][[0, 1, 2, 3] * 2]
    truth[4:, 6:18, 6:18], truth[truth == 255] = -1, -1  # what nobody labelled
    results = bedl.report.map_results(method.predict(images), images, truth, names=NAMES, title="Discs and squares")
    print("wrote", bedl.report.write_report(results, PAGE[0], overwrite=True))
