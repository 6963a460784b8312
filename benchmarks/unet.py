"""A small U-Net, compiled and trained for a step: prints the CPU seconds of this process and of the compiler's."""

from __future__ import annotations

import resource
import time

import torch
from torch import Tensor, nn

import bedl


class UNet(nn.Module):
    """Down, up again, and the fine features beside the coarse ones: a class for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.deep, self.up = nn.Conv2d(16, 16, 3, padding=1), nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.last = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 1))

    def forward(self, x: Tensor) -> Tensor:
        fine = torch.relu(self.fine(x))
        coarse = torch.relu(self.deep(torch.relu(self.coarse(fine))))
        return self.last(torch.cat([fine, torch.relu(self.up(coarse))], 1))


def main() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(16, 1, 24, 24), torch.randint(3, (16, 24, 24))
    method = bedl.BEDL(bedl.bayesianize(UNet()), bedl.Dirichlet(3, dim=1))
    bedl.fit(method, (x, y), epochs=1, batch_size=16, compile=True)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(time.process_time(), children.ru_utime + children.ru_stime)


if __name__ == "__main__":
    main()
