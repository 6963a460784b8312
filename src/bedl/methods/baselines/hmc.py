"""Hamiltonian Monte Carlo over all weights of a small network: the posterior itself, as draws.

    p(w | data) ∝ Π_n p(y_n | f_w(x_n)) · N(w; 0, σ²/fan-in) · N(b; 0, 1)

Trajectories of leapfrog steps  p ← p − ε/2 ∇U, w ← w + ε p, p ← p − ε/2 ∇U  of the energy U = −log p(w, data), each
ended by Metropolis' rule, so that the draws are exact up to the length of the chains (S. Duane et al. 1987; R. Neal,
"MCMC Using Hamiltonian Dynamics", 2011). Several chains run side by side, from points near the prior. While they warm
up, the step size is adapted to an acceptance of 0.8 (M. Hoffman, A. Gelman, "The No-U-Turn Sampler", JMLR 2014, section
3.2), and so is the scale of each weight, to its variance over the chains; the number of steps in a trajectory is drawn
anew each time, so that none closes on itself. The prediction is the mixture over the draws: what they disagree about is
``model``.

For small tables: each trajectory looks at all points as often as it has steps. `potential_scale_reduction` tells
whether the chains agree (A. Gelman, D. Rubin, 1992).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from bedl._utils.errors import BEDLError
from bedl.heads import MeanVariance, Softmax
from bedl.heads.predictive import Predictive
from bedl.methods.base import Method
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.moments import Moments

ACCEPTANCE = 0.8
MAX_DRAWN_NUMEL = 2**15  # outputs of one draw and one point that are computed together


class HMC(Method):
    """Draws from the posterior of a network's weights; learns by itself.

    Args:
        net: the network; its parameters are what is drawn.
        head: the likelihood; parameters that it has, such as one noise for all points, are drawn, too.
        draws: in all, that are kept.
        chains: that run side by side.
        warmup: trajectories of each chain before the first draw is kept.
        thin: trajectories from one draw to the next.
        steps: of a trajectory, at most; at least half of them.
        prior_scale: σ of the weights' prior.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import MeanVariance
        >>> x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
        >>> method = HMC(nn.Linear(1, 2), MeanVariance(1), draws=20, warmup=40, thin=2, steps=8).double()
        >>> method.fit(x, 2 * x + 0.1 * torch.sin(50 * x))
        >>> bool((method.predict(x).mean - 2 * x).abs().max() < 0.5)
        True
    """

    samples: Tensor

    def __init__(
        self,
        net: nn.Module,
        head: MeanVariance | Softmax,
        draws: int = 200,
        chains: int = 4,
        warmup: int = 300,
        thin: int = 5,
        steps: int = 20,
        prior_scale: float = 1.5,
    ):
        super().__init__()
        if min(draws, chains, warmup, thin, steps) < 1 or not prior_scale > 0:
            raise ValueError("HMC: draws, chains, warmup, thin, steps and prior_scale must be positive")
        self.body = nn.ModuleDict({"net": net, "head": head})
        self.per_chain = -(-draws // chains)
        self.chains, self.warmup, self.thin, self.steps = chains, warmup, thin, steps
        self.names = [name for name, _ in self.body.named_parameters()]
        self.shapes = [p.shape for p in self.body.parameters()]
        self.sizes = [p.numel() for p in self.body.parameters()]
        self.register_buffer("prior_std", self._prior(prior_scale))
        self.register_buffer("samples", torch.zeros(self.per_chain * chains, sum(self.sizes)))
        self.seed = int(torch.randint(2**62, ()))
        self.accepted, self.step_size, self.reduction = math.nan, math.nan, math.nan
        for parameter in self.body.parameters():  # only carriers of the draws
            parameter.requires_grad_(False)

    prior_std: Tensor

    def _prior(self, scale: float) -> Tensor:
        """Standard deviations of the prior: of weights by their fan-in, of all else 1. shape: (P,)"""
        parts = []
        for shape, size in zip(self.shapes, self.sizes, strict=True):
            fan_in = math.prod(shape[1:]) if len(shape) > 1 else None
            parts.append(torch.full((size,), 1.0 if fan_in is None else scale / math.sqrt(fan_in)))
        return torch.cat(parts)

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        if not isinstance(x, Tensor):
            raise ValueError("HMC knows no noise of inputs (X_var); leave it out")
        if torch.compiler.is_exporting():
            raise BEDLError("HMC: hundreds of networks are not exported; use save and load, or export method 'dvi'")
        chunks = x.split(max(1, MAX_DRAWN_NUMEL // len(self.samples)))
        parts = [vmap(self._outputs, (0, None))(self.samples, chunk) for chunk in chunks]
        return self._given(torch.cat([outputs for outputs, _ in parts], 1), parts[0][1]).mixed()

    def _parameters_of(self, w: Tensor) -> dict[str, Tensor]:
        """One draw by the parameters' names. w: shape (P,)"""
        parts = zip(self.names, w.split(self.sizes), self.shapes, strict=True)
        return {name: part.view(shape) for name, part, shape in parts}

    def _outputs(self, w: Tensor, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The network's outputs under one draw, and the head's parameters. w: shape (P,); result: shape (n, outputs)"""
        values = self._parameters_of(w)
        net = {name.removeprefix("net."): value for name, value in values.items() if name.startswith("net.")}
        extras = {name.removeprefix("head."): value for name, value in values.items() if name.startswith("head.")}
        return functional_call(self.body["net"], net, (x,)), extras

    def _given(self, outputs: Tensor, extras: dict[str, Tensor]) -> Predictive:
        """Predictions under each draw. outputs: shape (draws, n, k); extras: shapes (draws, *)"""
        head: Any = self.body["head"]
        wide = {name: value.unsqueeze(1) for name, value in extras.items()}  # beside the axis of points
        return functional_call(_Given(head), {f"head.{k}": v for k, v in wide.items()}, (outputs,))

    def log_joint(self, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """log p(w, data) up to a constant, of each chain. w: shape (chains, P), weight: shape (n,) -> (chains,)"""
        outputs, extras = vmap(self._outputs, (0, None))(w, x)
        given = self._given(outputs, extras).log_prob(y.expand(len(w), *y.shape))
        return given @ weight - 0.5 * (w / self.prior_std).square().sum(1)

    # -- learning ---------------------------------------------------------------------------------
    @torch.no_grad()
    def fit(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        y = y.reshape(len(y), -1) if y.is_floating_point() else y
        counts = torch.ones(len(x)).to(self.samples) if weight is None else weight.to(self.samples)
        self.eval()
        sampler = _Sampler(lambda w: self.log_joint(w, x, y, counts), self.steps, self.seed)
        w = 0.3 * self.prior_std * sampler.normal((self.chains, len(self.prior_std)), self.samples)
        sampler.inverse_mass = self.prior_std.square().clone()
        w = sampler.warm_up(w, self.warmup)
        kept = []
        for number in range(self.per_chain * self.thin):
            w = sampler.trajectory(w)
            if number % self.thin == self.thin - 1:
                kept.append(w)
        draws = torch.stack(kept)  # shape: (per chain, chains, P)
        self.samples.copy_(draws.flatten(0, 1))
        self.accepted, self.step_size = sampler.accepted, sampler.step_size
        said = torch.stack([self.log_joint(state, x, y, counts) for state in kept])
        self.reduction = potential_scale_reduction(said).item()

    def summary(self) -> str:
        if math.isnan(self.reduction):
            return ""
        return f"{len(self.samples)} draws of {self.chains} chains, potential scale reduction {self.reduction:.3f}"

    def extra_repr(self) -> str:
        return f"draws={len(self.samples)}, chains={self.chains}, reduction={self.reduction:.3g}"


class _Given(nn.Module):
    """A head seen as a module whose forward is `given`: so its parameters can be replaced."""

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head = head

    def forward(self, f: Tensor) -> Predictive:
        return self.head.given(f)  # type: ignore[operator]


class _Sampler:
    """Leapfrog trajectories of several chains of the same density.

    Args:
        log_density: of states of shape (chains, P), differentiable; result of shape (chains,).
        steps: of a trajectory, at most.
        seed: of momenta and decisions.
    """

    def __init__(self, log_density: Any, steps: int, seed: int):
        self.log_density, self.steps = log_density, steps
        self.generator = torch.Generator().manual_seed(seed)
        self.inverse_mass: Tensor | float = 1.0
        self.step_size, self.accepted = 0.1, 0.0

    def normal(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, dtype=torch.float64, generator=self.generator).to(like)

    def gradient(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """Log-densities and their gradients. shapes: (chains,), (chains, P)"""
        with torch.enable_grad():
            w = w.detach().requires_grad_()
            value = self.log_density(w)
            return value.detach(), torch.autograd.grad(value.sum(), w)[0]

    def trajectory(self, w: Tensor) -> Tensor:
        """The next state of each chain. shape: (chains, P)"""
        count = int(torch.randint(max(1, self.steps // 2), self.steps + 1, (), generator=self.generator))
        scale = torch.as_tensor(self.inverse_mass).sqrt()
        momentum = self.normal(tuple(w.shape), w) / scale
        value, slope = self.gradient(w)
        energy = value - 0.5 * (momentum * scale).square().sum(1)
        new = w
        for _ in range(count):
            momentum = momentum + 0.5 * self.step_size * slope
            new = new + self.step_size * self.inverse_mass * momentum
            value, slope = self.gradient(new)
            momentum = momentum + 0.5 * self.step_size * slope
        change = (value - 0.5 * (momentum * scale).square().sum(1) - energy).nan_to_num(nan=-torch.inf)
        chance = change.clamp(max=0.0).exp()
        self.accepted = chance.mean().item()
        luck = torch.rand(len(w), dtype=torch.float64, generator=self.generator).to(w)
        return torch.where((luck < chance)[:, None], new, w)

    def warm_up(self, w: Tensor, count: int) -> Tensor:
        """States after `count` trajectories, with a step size and scales that suit the density."""
        w, _ = self._adapt(w, count // 4)  # to where the density is
        w, seen = self._adapt(w, count // 2 - count // 4)
        if len(seen) >= 10:
            n, within = len(seen), torch.stack(seen).var(0).mean(0)  # chains may be in different modes
            self.inverse_mass = (within * n + 0.005 * torch.as_tensor(self.inverse_mass)) / (n + 5)
        w, _ = self._adapt(w, count - count // 2)
        return w

    def _adapt(self, w: Tensor, count: int) -> tuple[Tensor, list[Tensor]]:
        """Trajectories with a step size that is adapted by dual averaging of its logarithm, and all states."""
        centre, average, error, seen = math.log(3 * self.step_size), 0.0, 0.0, []
        for number in range(1, count + 1):
            w = self.trajectory(w)
            seen.append(w)
            error += (ACCEPTANCE - self.accepted - error) / (number + 10)
            log_step = min(max(centre - math.sqrt(number) / 0.05 * error, -12.0), 2.0)
            share = number**-0.75
            average = share * log_step + (1 - share) * average
            self.step_size = math.exp(log_step)
        if count:
            self.step_size = math.exp(average)
        return w, seen


def potential_scale_reduction(values: Tensor) -> Tensor:
    """Gelman and Rubin's R: near 1 where chains agree. values: shape (draws, chains); result: shape (), NaN of one draw

    Example:
        >>> x = torch.linspace(-1, 1, 100)[:, None]
        >>> bool(potential_scale_reduction(x + torch.tensor([0.0, 5.0])) > 2)
        True
    """
    n = len(values)
    if n < 2:
        return values.new_tensor(math.nan)
    within, between = values.var(0).mean(), values.mean(0).var() if values.shape[1] > 1 else values.new_zeros(())
    return (((n - 1) / n * within + between) / within.clamp_min(torch.finfo(values.dtype).tiny)).sqrt()


@register(
    "hmc",
    "Hamiltonian Monte Carlo over all weights of a small net: a reference, for small tables",
    tasks=("regression", "classification"),
)
def hmc(
    problem: Problem,
    draws: int = 200,
    chains: int = 4,
    warmup: int = 300,
    thin: int = 5,
    steps: int = 20,
    prior_scale: float = 1.5,
    noise: str = "shared",
) -> HMC:
    """All weights and biases of the network, and the noise.

    See `HMC` for `draws`, `chains`, `warmup`, `thin`, `steps`.

    Args:
        prior_scale: σ of a weight's prior, times the root of its fan-in.
        noise: of real targets: "shared" by all points, or "varying".
    """
    head: MeanVariance | Softmax
    if problem.task == "regression":
        head = MeanVariance(problem.n_targets, noise)  # type: ignore[arg-type]
    else:
        head = Softmax(problem.n_targets)
    net = plain_network(problem, head.n_outputs)
    return HMC(net, head, draws, chains, warmup, thin, steps, prior_scale)
