"""Small problems that several tests train on; importable by the processes they start."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bedl import GaussianLinear
from bedl.heads import Dirichlet, Normal
from bedl.methods import BEDL
from bedl.objectives import PAC, HyperPrior, Objective, Sum

REGULARIZERS: dict[str, Objective | Sum | None] = {
    "none": None,
    "pac": PAC(),
    "authors-code": PAC(kl_scale="authors-code"),
    "hyper": HyperPrior(),
    "pac+hyper": PAC(strength=0.5) + HyperPrior(),
    "perturbed": PAC(on="perturbed"),
}


def regression(n: int = 50, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """x: shape (n, 3); y: shape (n,)"""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g, dtype=dtype)
    return x, x[:, 0].sin() + 0.5 * x[:, 1] * x[:, 2] + 0.1 * torch.randn(n, generator=g, dtype=dtype)


def classes(n: int = 50, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """x: shape (n, 3); y: shape (n,), 3 classes"""
    x, _ = regression(n, seed, dtype)
    return x, x.argmax(1)


def method(kind: str = "pac", seed: int = 0, hidden: int = 8, dropout: float = 0.0, head: str = "normal") -> BEDL:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        outputs = 2 if head == "normal" else 3
        layers = [GaussianLinear(3, hidden), nn.ReLU(), nn.Dropout(dropout), GaussianLinear(hidden, outputs)]
        return BEDL(
            nn.Sequential(*layers), Normal(1, beta=1.0) if head == "normal" else Dirichlet(3), REGULARIZERS[kind]
        )


def vector(module: nn.Module) -> Tensor:
    """All parameters in one. shape: (P,)"""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])
