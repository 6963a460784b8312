"""Does the epistemic part know where data are missing, and does it shrink as they come in? A cubic with a gap.

What was found, epistemic variance of standardised targets, noise variance 0.01, 1-50-2 ReLU unless said otherwise:

- One net, plain or PAC: no. The likelihood sees only the sum of both uncertainties, and nothing in it depends on N:
  the epistemic part on the data rises, 0.0007 → 0.0017 from 50 to 5,000 points (PAC: 0.0036 → 0.0046). A ReLU layer's
  variance grows with x², so it is least at the origin, gap or not.
- An ensemble: yes for the gap and outside, by disagreement, tens of times what it says on the data. On the data it does
  not shrink, because the members' own part does not.
- The hyper-prior counts once against N points, so it alone ties the epistemic part to N. With features that are local,
  the weights that no point speaks about keep their prior variance. Together with an ensemble this shows all of it.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from bedl import GaussianLinear
from bedl.heads import Normal
from bedl.methods import BEDL, Ensemble
from bedl.objectives import HyperPrior
from bedl.training import Cosine, fit_replicas

REGIONS = {  # in units of x, with data on 2 ≤ |x| ≤ 4
    "data": torch.cat([torch.linspace(-4, -2, 50), torch.linspace(2, 4, 50)]),
    "gap": torch.linspace(-1.5, 1.5, 50),
    "outside": torch.cat([torch.linspace(-7, -5, 50), torch.linspace(5, 7, 50)]),
}


def cubic(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """y = x³ + noise, x from both sides of the gap; scaled to about unit size. shapes: (n, 1), (n,)"""
    g = torch.Generator().manual_seed(seed)
    x = (2 + 2 * torch.rand(n, generator=g)) * torch.where(torch.rand(n, generator=g) < 0.5, -1.0, 1.0)
    y = x**3 + 3 * torch.randn(n, generator=g)
    return (x / 3)[:, None], y / 30


class Bumps(nn.Module):
    """Forty bell curves side by side: features that are each about one place."""

    def __init__(self, reach: float = 3.0, count: int = 40):
        super().__init__()
        self.register_buffer("centres", torch.linspace(-reach, reach, count))
        self.width = 3 * reach / count

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((x - self.centres) / self.width) ** 2)


def bumps() -> nn.Module:
    return nn.Sequential(Bumps(), GaussianLinear(40, 2))


def relu() -> nn.Module:
    net = nn.Sequential(GaussianLinear(1, 50), nn.ReLU(), GaussianLinear(50, 2))
    nn.init.uniform_(net[0].bias, -2, 2)  # kinks everywhere, not all at the origin
    return net


def trained(net, regularizer: HyperPrior | None, n: int, seed: int, steps: int) -> Ensemble:
    ensemble = Ensemble.of(5, lambda: BEDL(net(), Normal(1, beta=100.0), regularizer), seed=seed)
    batch_size = min(n, 250)
    epochs = round(steps / math.ceil(n / batch_size))
    fit_replicas(
        ensemble, cubic(n, seed), epochs=epochs, batch_size=batch_size, lr=1e-2, gradient_clip=10.0, schedule=Cosine()
    )
    return ensemble


def epistemic(method) -> dict[str, float]:
    """Mean epistemic variance in each region."""
    return {name: float(method.predict((x / 3)[:, None]).epistemic.mean()) for name, x in REGIONS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_epistemic_knows_the_gap_and_shrinks_with_data(seed: int) -> None:
    found = {}
    for n in (50, 500, 5000):
        ensemble = trained(bumps, HyperPrior(a0=1.0, b0=0.01, alpha0=0.1), n, seed, steps=1200)
        found[n] = epistemic(ensemble)
        x, y = cubic(1000, seed=99)
        error = float((ensemble.predict(x).mean[:, 0] - y).square().mean().sqrt()) * 30
        assert error < (3.3 if n > 50 else 5.0), "the noise has a std of 3; 50 points leave some bumps without any"
        assert found[n]["gap"] > 1.5 * found[n]["data"], found
        assert found[n]["outside"] > 1.5 * found[n]["data"], found
    print(found)
    assert found[5000]["data"] < found[500]["data"] < found[50]["data"], found
    assert found[5000]["data"] < 0.7 * found[50]["data"], found
    # a member by itself knows too, if there are points enough to overrule its prior
    alone = epistemic(ensemble.members[0])
    assert alone["gap"] > 1.3 * alone["data"], alone
    assert alone["outside"] > 1.3 * alone["data"], alone


@pytest.mark.slow
def test_an_ensemble_of_relu_nets_knows_the_gap_and_a_single_one_does_not() -> None:
    ensemble = trained(relu, None, n=500, seed=0, steps=1200)
    together, alone = epistemic(ensemble), epistemic(ensemble.members[0])
    print(together, alone)
    assert together["gap"] > 5 * together["data"]
    assert together["outside"] > 5 * together["data"]
    assert alone["gap"] < alone["data"]
