"""MC Dropout: dropout that stays on at prediction, so that each mask is a draw of the network.

Y. Gal, Z. Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
ICML 2016.

    loss  −mean log p(y | f, tau) + (1 − p) l² / (2N) · Σ‖W‖²        W: weights, l: prior length-scale, p: dropout
    p(y | x) = 1/S Σ_s p(y | f_s(x), tau)

With p(y | f, tau) = N(f, 1/tau) and ½ tau taken out, the second term is the paper's weight decay l² (1 − p)/(2 N tau).
The noise is ``data``; what the draws disagree about is ``model``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bedl.heads import Head
from bedl.methods.base import Method
from bedl.methods.deterministic import BOTH, plain_head
from bedl.methods.networks import plain_network
from bedl.methods.registry import Problem, register
from bedl.methods.sampling import check_samples, mixture_of_draws
from bedl.moments import Moments
from bedl.objectives import Batch

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["MCDropout", "dropout_network", "noise_of"]


class DrawnDropout(nn.Dropout):
    """Dropout with a mask for each point in training, and one mask for all points where functions are drawn."""

    draws = False
    whole_channels = False

    def forward(self, input: Tensor) -> Tensor:
        if self.training or not self.draws or self.p == 0:
            return super().forward(input)
        if self.p == 1:
            return input * 0
        places = (1,) * (input.ndim - 2) if self.whole_channels else input.shape[2:]
        kept = torch.rand((1, *input.shape[1:2], *places), device=input.device) >= self.p
        return input * (kept.to(input.dtype) / (1 - self.p))


class MCDropout(Method):
    """A network with dropout layers, of which prediction draws `samples`.

    Args:
        net: a tensor in, outputs of shape (n, head.n_outputs) out; its `nn.Dropout` layers are what is drawn.
        head: `Softmax`, or `MeanVariance` with the precision tau.
        length_scale: l of the prior; 0.01 in the authors' experiments, which hardly decays weights.
        samples: draws at prediction.
        seed: of these draws.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import MeanVariance
        >>> net = nn.Sequential(nn.Linear(3, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 1))
        >>> method = MCDropout(net, MeanVariance(1, noise="shared"), samples=50)
        >>> p = method.predict(torch.ones(5, 3))
        >>> bool((p.model > 0).all()), bool((p.mean == method.predict(torch.ones(5, 3)).mean).all())
        (True, True)
    """

    def __init__(self, net: nn.Module, head: Head, length_scale: float = 0.01, samples: int = 100, seed: int = 0):
        super().__init__()
        if not length_scale >= 0:
            raise ValueError(f"length_scale must be at least 0, not {length_scale!r}")
        self.net, self.head = net, head
        self.length_scale, self.samples, self.seed = length_scale, check_samples(samples), seed
        self._dropouts = [make_drawn(layer) for layer in dropouts_of(net)]

    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture of `samples` draws; while training, one draw with a mask for each point."""
        if self.training:
            return self.head(self.net(x))
        return mixture_of_draws(lambda: self._draw(x), self.samples, self.seed, x.device)

    def _draw(self, x: Tensor | Moments) -> Predictive:
        layers = [layer for layer in self.net.modules() if isinstance(layer, DrawnDropout)]
        try:
            for layer in layers:
                layer.draws = True
            return self.head(self.net(x))
        finally:
            for layer in layers:
                layer.draws = False

    def loss(self, batch: Batch) -> Tensor:
        """The mean −log p(y | f) of one mask per point, and the weight decay. shape: ()"""
        fit = -batch.mean(self.head.log_marginal(self.net(batch.x), batch.y))
        return fit + self.decay() / batch.n_train

    def decay(self) -> Tensor:
        """½ l² (1 − p) Σ‖W‖² over the weights of the network. shape: ()"""
        kept = 1 - sum(self._dropouts) / max(len(self._dropouts), 1)
        squares = [parameter.square().sum() for parameter in self.net.parameters() if parameter.ndim > 1]
        return 0.5 * self.length_scale**2 * kept * torch.stack(squares).sum()

    def extra_repr(self) -> str:
        return f"samples={self.samples}, length_scale={self.length_scale}"


def dropouts_of(net: nn.Module) -> list[nn.Module]:
    """The dropout layers of a network, or an error that says where to put some."""
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
    found: list[nn.Module] = [layer for layer in net.modules() if isinstance(layer, kinds)]
    if not found:
        raise ValueError("net has no dropout layer, so nothing would be drawn: put nn.Dropout between its layers")
    return found


def make_drawn(layer: nn.Module) -> float:
    """Let a dropout layer draw functions, in place; gives its probability."""
    if not isinstance(layer, DrawnDropout):
        whole = not isinstance(layer, nn.Dropout)
        layer.__class__ = DrawnDropout
        layer.whole_channels = whole  # type: ignore[assignment]
    return float(layer.p)  # type: ignore[arg-type]


def dropout_network(problem: Problem, n_outputs: int, dropout: float) -> nn.Sequential:
    """Layers with dropout in front of each, as the authors have it; a network of the user's own has its dropout."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout is a probability from 0 to below 1, not {dropout!r}")
    return plain_network(problem, n_outputs, linear=lambda i, o: nn.Sequential(nn.Dropout(dropout), nn.Linear(i, o)))


def noise_of(tau: float | None) -> dict[str, object]:
    """Options of `MeanVariance`: a noise that all points share, of this precision or learned.

    It starts at a quarter of the target's variance: a step of Adam changes its logarithm by the learning rate at most,
    and from the whole variance some thousand steps would not lead far enough.
    """
    return {"noise": "shared", "precision": 4.0} if tau is None else {"noise": "fixed", "precision": tau}


@register("mc-dropout", "MC Dropout (Gal & Ghahramani 2016): dropout stays on, predictions are averaged", tasks=BOTH)
def mc_dropout(
    problem: Problem,
    dropout: float = 0.05,
    tau: float | None = None,
    length_scale: float = 0.01,
    samples: int = 100,
    seed: int = 0,
) -> MCDropout:
    """Layers with dropout in front of each.

    Args:
        problem: what it is for.
        dropout: probability of being dropped; a network of the user's own has its own dropout layers.
        tau: precision of the noise in units of standardised targets; None: learned.
        length_scale: of the prior.
        samples: draws at prediction.
        seed: of these draws.
    """
    head = plain_head(problem, **noise_of(tau))
    return MCDropout(dropout_network(problem, head.n_outputs, dropout), head, length_scale, samples, seed)
