"""Fast Dropout: the noise of dropout as moments, in training and prediction, without a draw.

S. Wang, C. Manning, "Fast dropout training", ICML 2013.

    x·b/(1 − p):  mean m,  variance (v + p m²)/(1 − p)          every layer's input; see `bedl.rules`
    f ~ N(m, v),  loss −mean E_f log p(y | f)
    targets:   E log N(y; f, 1/tau) = log N(y; m, 1/tau) − ½ tau v
    classes:   E log softmax(f)_y ≈ m_y − logsumexp(m) − ½ Σ p_c (1 − p_c) v_c,   p = softmax(m)

What MC Dropout averages over masks, in one pass. The noise of the target is ``data``, that of the masks ``model``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import Head, MeanVariance
from bedl.methods.base import Method
from bedl.methods.deterministic import BOTH, plain_head
from bedl.methods.mc_dropout import dropout_network, dropouts_of, noise_of
from bedl.methods.registry import Problem, register
from bedl.moments import Moments, as_moments
from bedl.objectives import Batch
from bedl.special import normal_log_density

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["FastDropout", "expected_log_likelihood"]


class FastDropout(Method):
    """A network with dropout layers, whose noise goes through it as moments.

    Args:
        net: a tensor in, outputs of shape (n, head.n_outputs) out; its `nn.Dropout` layers are what is noisy.
        head: `Softmax`, or `MeanVariance` with the precision tau.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import MeanVariance
        >>> net = nn.Sequential(nn.Dropout(0.5), nn.Linear(1, 1, bias=False))
        >>> nn.init.constant_(net[1].weight, 2.0).shape
        torch.Size([1, 1])
        >>> p = FastDropout(net, MeanVariance(1, noise="fixed")).predict(torch.tensor([[3.0]]))
        >>> p.mean.item(), p.model.item()  # 12 or 0, each as often
        (6.0, 36.0)
    """

    def __init__(self, net: nn.Module, head: Head):
        super().__init__()
        self.net, self.head = net, head
        for layer in dropouts_of(net):
            layer.__class__ = StandingDropout

    def forward(self, x: Tensor | Moments) -> Predictive:
        return self.head(self.net(as_moments(x)))

    def loss(self, batch: Batch) -> Tensor:
        """−mean E_f log p(y | f). shape: ()"""
        f = as_moments(self.net(as_moments(batch.x)))
        return -batch.mean(expected_log_likelihood(self.head, f, batch.y))


class StandingDropout(nn.Dropout):
    """Dropout that is on in training and prediction alike: moments have it in closed form."""

    def forward(self, input: Tensor | Moments) -> Any:
        return F.dropout(as_moments(input), self.p, True)  # type: ignore[arg-type]


def expected_log_likelihood(head: Head, f: Moments, y: Tensor) -> Tensor:
    """E_f log p(y | f), f ~ N(loc, variance): exact for a shared noise, to second order for classes.

    Args:
        head: `MeanVariance` or `Softmax`.
        f: moments of the network's outputs. shape: (n, n_outputs)
        y: targets. shape: (n,) or (n, D)

    Returns:
        shape: (n,)
    """
    if isinstance(head, MeanVariance):
        m, v, log_noise = head.split(f)
        y = head.check_targets(y, m.shape[:-1])
        return (normal_log_density(y, m, log_noise) - 0.5 * v * (-log_noise).exp()).sum(-1)
    m, v = head.check_outputs(f)
    y = head.check_targets(y, m.shape[:-1])
    p = torch.softmax(m, -1)
    return torch.log_softmax(m, -1).gather(-1, y[..., None])[..., 0] - 0.5 * (p * (1 - p) * v).sum(-1)


@register("fast-dropout", "Fast Dropout (Wang & Manning 2013): the noise of dropout as moments, one pass", tasks=BOTH)
def fast_dropout(problem: Problem, dropout: float = 0.05, tau: float | None = None) -> FastDropout:
    """Layers with dropout in front of each.

    Args:
        problem: what it is for.
        dropout: probability of being dropped; a network of the user's own has its own dropout layers.
        tau: precision of the noise in units of standardised targets; None: learned.
    """
    head = plain_head(problem, **noise_of(tau))
    return FastDropout(dropout_network(problem, head.n_outputs, dropout), head)
