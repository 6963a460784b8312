"""SNGP: a residual network that keeps distances, and a Gaussian process in random features on top. One pass.

J. Liu, Z. Lin, S. Padhy, D. Tran, T. Bedrax-Weiss, B. Lakshminarayanan, "Simple and Principled Uncertainty Estimation
with Deterministic Deep Learning via Distance Awareness", NeurIPS 2020.

    h ← h + act(W h + b),  ‖W‖ ≤ c           spectral norm: neither collapses nor stretches distances much
    phi = sqrt(2/R) cos(A h + u),  A ~ N(0, 1/l²), u ~ U(0, 2 pi), both fixed          random Fourier features
    f = B phi,  B ~ N(0, 1/s) a priori
    Cov(f) = phi' (s I + Σ_n k_n phi_n phi_n')⁻¹ phi,   k = 1/noise for targets, p (1 − p) of the largest p for classes

The covariance is that of a Laplace approximation, computed once after training. f ~ N(m, v) then goes into the
integral that Gaussian logits have everywhere here, in place of the paper's mean-field formula. The noise is ``data``,
v is ``model``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import Head, MeanVariance
from bedl.methods.base import Method
from bedl.methods.baselines.dropout import noise_of
from bedl.methods.baselines.evidential import known
from bedl.methods.networks import ACTIVATIONS, plain_network, widths_of
from bedl.methods.plain import BOTH, plain_head
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch

if TYPE_CHECKING:
    from bedl.heads.predictive import Predictive


class BoundedLinear(nn.Linear):
    """A linear layer whose spectral norm is at most `bound`; computed, not estimated from step to step.

    Args:
        n_inputs, n_outputs: of the layer.
        bound: on the norm.
    """

    shrunk: Tensor

    def __init__(self, n_inputs: int, n_outputs: int, bound: float):
        super().__init__(n_inputs, n_outputs)
        self.bound = bound
        self.register_buffer("shrunk", torch.ones(()))  # for exported graphs, which know no singular values

    def factor(self) -> Tensor:
        """What the weight is multiplied by. shape: ()"""
        return (self.bound / torch.linalg.matrix_norm(self.weight, 2)).clamp(max=1.0)

    def forward(self, input: Tensor) -> Tensor:
        factor = self.shrunk if torch.compiler.is_exporting() else self.factor()
        return F.linear(input, self.weight * factor, self.bias)


class Residual(nn.Module):
    """x + act(W x + b)."""

    def __init__(self, width: int, activation: nn.Module, bound: float):
        super().__init__()
        self.linear, self.activation = BoundedLinear(width, width, bound), activation

    def forward(self, x: Tensor) -> Tensor:
        return x + self.activation(self.linear(x))


class SNGP(Method):
    """A network that keeps distances, and a Gaussian process on what it makes of the inputs.

    Args:
        net: a tensor in, features of shape (n, width) out.
        width: how many features.
        head: `Softmax`, or `MeanVariance` with a noise that points share.
        n_random: random features R of the Gaussian process.
        length_scale: l of its kernel, in units of sqrt(width).
        ridge: s, the prior precision.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import Softmax
        >>> p = SNGP(nn.Linear(2, 8), 8, Softmax(3)).predict(torch.zeros(4, 2))
        >>> p.probabilities.shape
        torch.Size([4, 3])
    """

    slopes: Tensor
    phases: Tensor
    covariance: Tensor

    def __init__(
        self,
        net: nn.Module,
        width: int,
        head: Head,
        n_random: int = 256,
        length_scale: float = 1.0,
        ridge: float = 1.0,
    ):
        super().__init__()
        if not length_scale > 0 or not ridge > 0 or n_random < 1:
            raise ValueError("length_scale, ridge and n_random must be positive")
        self.net, self.head, self.ridge = net, head, ridge
        self.last = nn.Linear(n_random, head.n_outputs, bias=False)
        self.bias = nn.Parameter(torch.zeros(head.n_outputs))
        self.register_buffer("slopes", torch.randn(n_random, width) / (length_scale * math.sqrt(width)))
        self.register_buffer("phases", 2 * math.pi * torch.rand(n_random))
        self.register_buffer("covariance", torch.eye(n_random) / ridge)

    def features(self, x: Tensor | Moments) -> Tensor:
        """Random Fourier features of what the network makes of x. shape: (n, R)"""
        h = known(self.net(x))
        return math.sqrt(2 / len(self.phases)) * torch.cos(F.linear(h, self.slopes, self.phases))

    def outputs(self, phi: Tensor) -> Tensor:
        """shape: (n, n_outputs)"""
        return self.last(phi) + self.bias

    def forward(self, x: Tensor | Moments) -> Predictive:
        phi = self.features(x)
        m = self.outputs(phi)
        v = ((phi @ self.covariance) * phi).sum(-1, keepdim=True).clamp_min(0.0)
        return self.head(Moments(m, v.expand(m.shape)))

    def loss(self, batch: Batch) -> Tensor:
        """−mean log p(y | m) and the prior of the last layer. shape: ()"""
        fit = -batch.mean(self.head.log_marginal(self.outputs(self.features(batch.x)), batch.y))
        return fit + 0.5 * self.ridge * self.last.weight.square().sum() / batch.n_train

    def on_fit_end(self, batches: Iterable[Batch], held_out: Iterable[Batch] = ()) -> None:
        """The posterior covariance of the last layer; the other layers stay as they are from now on."""
        for layer in self.net.modules():
            if isinstance(layer, BoundedLinear):
                layer.shrunk.copy_(layer.factor())
        total: Any = self.ridge * torch.eye(len(self.phases), dtype=torch.float64, device=self.phases.device)
        for batch in batches:
            phi = self.features(batch.x)
            weighted = self._curvature(self.outputs(phi)).double()[:, None] * phi.double()
            if batch.weight is not None:
                weighted = weighted * batch.weight.double()[:, None]
            total = total + weighted.mT @ phi.double()
        self.covariance.copy_(torch.linalg.inv(total))

    def _curvature(self, f: Tensor) -> Tensor:
        """How much a point tells about the last layer. shape: (n, n_outputs) -> (n,)"""
        if isinstance(self.head, MeanVariance):
            return (-self.head.split(f)[2]).exp().mean(-1)
        p = torch.softmax(f, -1).amax(-1)
        return p * (1 - p)


@register("sngp", "SNGP (Liu et al. 2020): a network that keeps distances, a Gaussian process on top", tasks=BOTH)
def sngp(
    problem: Problem,
    n_random: int = 256,
    length_scale: float = 1.0,
    ridge: float = 1.0,
    bound: float = 0.95,
    width: int = 50,
) -> SNGP:
    """A residual block for each hidden layer behind a fixed random projection of the inputs.

    Args:
        problem: what it is for; a network of the user's own gives `width` features.
        n_random: random features of the Gaussian process.
        length_scale: of its kernel.
        ridge: its prior precision.
        bound: on the spectral norm of each block's weights.
        width: features of a network of the user's own, or of the blocks where hidden layers are "auto".
    """
    if not bound > 0:
        raise ValueError(f"bound must be positive, not {bound!r}")
    head = plain_head(problem, **noise_of(None))
    if problem.net is not None:
        return SNGP(plain_network(problem, width), width, head, n_random, length_scale, ridge)
    widths = widths_of(problem, default=(width, width))
    if len(set(widths)) > 1 or not widths:
        raise ValueError(f"blocks that add to their input are of one width: hidden_layers=(50, 50), not {widths}")
    make = problem.activation if callable(problem.activation) else ACTIVATIONS[problem.activation]
    into = nn.Linear(problem.input_shape[0], widths[0])
    nn.init.normal_(into.weight, std=1 / math.sqrt(problem.input_shape[0]))
    for parameter in into.parameters():
        parameter.requires_grad_(False)
    front = [] if problem.front is None else [problem.front()]
    net = nn.Sequential(*front, into, *(Residual(size, make(), bound) for size in widths))
    return SNGP(net, widths[0], head, n_random, length_scale, ridge)
