"""Activations as data: a torch function, its kinks, and how exactly its rule is claimed to hold (float64)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Case:
    name: str
    function: Callable  # elementwise, on tensors and on Moments alike
    kinks: tuple[float, ...] = ()
    tolerance: float = 1e-6  # relative, of mean and variance, against quadrature in float64
    floor: float = 0.0  # what may be lost of the input's own standard deviation and variance, far in a tail
    largest_std: float = 1e3  # exp overflows beyond
    largest_ratio: float = 1e4


QUADRATURE = {"tolerance": 1e-4, "floor": 1e-8}

CASES = [
    Case("relu", F.relu, (0,)),
    Case("relu method", lambda x: x.relu(), (0,)),
    Case("leaky_relu", F.leaky_relu, (0,)),
    Case("leaky_relu 0.3", lambda x: F.leaky_relu(x, 0.3), (0,)),
    Case("leaky_relu −0.5", lambda x: F.leaky_relu(x, -0.5), (0,)),
    Case("prelu", lambda x: F.prelu(x, torch.tensor([0.2], dtype=x.dtype)), (0,)),
    Case("abs", torch.abs, (0,)),
    Case("elu", F.elu, (0,)),
    Case("elu 0.3", lambda x: F.elu(x, 0.3), (0,)),
    Case("elu 2.5", lambda x: F.elu(x, alpha=2.5), (0,)),
    Case("selu", F.selu, (0,)),
    Case("celu 0.7", lambda x: F.celu(x, 0.7), (0,)),
    Case("relu6", F.relu6, (0, 6)),
    Case("hardtanh", F.hardtanh, (-1, 1)),
    Case("hardtanh −2 0.5", lambda x: F.hardtanh(x, -2.0, 0.5), (-2, 0.5)),
    Case("clamp", lambda x: torch.clamp(x, -0.3, 4.0), (-0.3, 4)),
    Case("clamp_min", lambda x: x.clamp_min(0.7), (0.7,)),
    Case("clamp_max", lambda x: x.clamp(max=0.7), (0.7,)),
    Case("hardsigmoid", F.hardsigmoid, (-3, 3)),
    Case("exp", torch.exp, largest_std=2.0, largest_ratio=10),
    Case("expm1", torch.expm1, largest_std=2.0, largest_ratio=10),
    Case("sin", torch.sin, largest_std=10),
    Case("cos", torch.cos, largest_std=10),
    Case("square", torch.square),
    Case("pow 2", lambda x: x**2),
    Case("pow 3", lambda x: x**3),
    Case("pow 4", lambda x: x**4, largest_std=1.0),
    Case("pow 5", lambda x: x**5, largest_std=1.0),
    Case("pow 7", lambda x: x**7, largest_std=0.5, largest_ratio=100),
    Case("2^x", lambda x: 2.0**x, largest_std=2.0, largest_ratio=10),
    Case("x·x", lambda x: x * x),
    Case("erf", torch.erf, **QUADRATURE),
    Case(
        "clamp tensors",
        lambda x: x.clamp(torch.tensor(-0.3, dtype=x.dtype), torch.tensor([4.0], dtype=x.dtype)),
        (-0.3, 4),
    ),
    Case("clamp_min tensor", lambda x: x.clamp(min=torch.tensor(0.7, dtype=x.dtype)), (0.7,)),
    Case("sigmoid", torch.sigmoid, **QUADRATURE),
    Case("tanh", torch.tanh, **QUADRATURE),
    Case("silu", F.silu, **QUADRATURE),
    Case("mish", F.mish, **QUADRATURE),
    Case("gelu", F.gelu, **QUADRATURE),
    Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), **QUADRATURE),
    Case("softplus", F.softplus, **QUADRATURE),
    Case("softplus 2", lambda x: F.softplus(x, beta=2.0), **QUADRATURE),
    Case("logsigmoid", F.logsigmoid, **QUADRATURE),
    Case("hardswish", F.hardswish, (-3, 3), **QUADRATURE),
    Case("softsign", F.softsign, (0,), **QUADRATURE),
    Case("atan", torch.atan, **QUADRATURE),
    Case("softshrink", lambda x: F.softshrink(x, 0.7), (-0.7, 0.7)),
]
