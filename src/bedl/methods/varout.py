"""Variational dropout: Gaussian weights that all points share, by local reparameterisation.

D. Kingma, T. Salimans, M. Welling, "Variational Dropout and the Local Reparameterization Trick", NeurIPS 2015;
D. Molchanov, A. Ashukha, D. Vetrov, "Variational Dropout Sparsifies Deep Neural Networks", ICML 2017.

    −mean log p(y | f_draw) + ramp/N · KL(Q ‖ P),   Q = Π N(mu, sigma²),  f_draw: activations drawn for each point

    normal prior N(0, 1/a):   KL = ½ Σ a (mu² + sigma²) − 1 − log(a sigma²)
    log-uniform prior:        −KL ≈ Σ k1 S(k2 + k3 log r) − ½ log(1 + 1/r) − k1,   r = sigma²/mu²,  S: sigmoid
                              k1, k2, k3 = 0.63576, 1.87320, 1.48695

Prediction averages draws of the weights, each one function for all points. The noise is ``data``; what the draws
disagree about is ``model``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import Head
from bedl.methods.base import Method
from bedl.methods.deterministic import BOTH, plain_head
from bedl.methods.mc_dropout import noise_of
from bedl.methods.networks import gaussian_network
from bedl.methods.registry import Problem, register
from bedl.methods.sampling import check_samples, mixture_of_draws
from bedl.moments import Moments
from bedl.nn import drawn_function, warn_if_deterministic
from bedl.nn.modes import drawing
from bedl.objectives import Batch
from bedl.objectives.hyperprior import gaussian_pairs

if TYPE_CHECKING:
    from bedl.predictive import Predictive

__all__ = ["VarOut", "log_uniform_kl", "normal_kl"]

Prior = Literal["normal", "log-uniform"]
K1, K2, K3 = 0.63576, 1.87320, 1.48695


class VarOut(Method):
    """A network with Gaussian weights and a posterior over them, trained by the evidence lower bound.

    Args:
        net: a network with Gaussian weights.
        head: `Softmax`, or `MeanVariance`.
        prior: ``"normal"`` or ``"log-uniform"``.
        precision: a of the normal prior.
        ramp: epochs in which the divergence rises to its full weight; 0: it has it from the start.
        samples: draws at prediction.
        seed: of these draws.

    Example:
        >>> import torch
        >>> from bedl import GaussianLinear
        >>> from bedl.heads import MeanVariance
        >>> method = VarOut(GaussianLinear(3, 1), MeanVariance(1, noise="shared"), samples=50)
        >>> p = method.predict(torch.ones(5, 3))
        >>> bool((p.model > 0).all()), bool((p.mean == method.predict(torch.ones(5, 3)).mean).all())
        (True, True)
    """

    paced = True

    def __init__(
        self,
        net: nn.Module,
        head: Head,
        prior: Prior = "normal",
        precision: float = 1.0,
        ramp: float = 0.0,
        samples: int = 100,
        seed: int = 0,
    ):
        super().__init__()
        warn_if_deterministic(net, type(self).__name__)
        if prior not in ("normal", "log-uniform"):
            raise ValueError(f"prior must be 'normal' or 'log-uniform', not {prior!r}")
        if not precision > 0 or not ramp >= 0:
            raise ValueError(f"precision must be positive and ramp at least 0, not {precision!r} and {ramp!r}")
        self.net, self.head, self.prior, self.precision = net, head, prior, precision
        self.ramp, self.samples, self.seed = ramp, check_samples(samples), seed

    def forward(self, x: Tensor | Moments) -> Predictive:
        """The mixture of `samples` draws of the weights; while training, one draw for each point."""
        if self.training:
            return self.head(self._drawn(x))
        return mixture_of_draws(lambda: self._function(x), self.samples, self.seed, x.device)

    def _function(self, x: Tensor | Moments) -> Predictive:
        with drawn_function(self.net):
            return self.head(self.net(x))

    def _drawn(self, x: Tensor | Moments) -> Tensor:
        """Outputs with activations drawn for each point: local reparameterisation. shape: (n, n_outputs)"""
        with drawing(self.net, once=False):
            return self.net(x)

    def loss(self, batch: Batch) -> Tensor:
        """The negative evidence lower bound, per point. shape: ()"""
        fit = -batch.mean(self.head.log_marginal(self._drawn(batch.x), batch.y))
        ramp = batch.ramp(self.ramp) if self.ramp > 0 else 1.0
        return fit + ramp * self.divergence() / batch.n_train

    def divergence(self) -> Tensor:
        """KL(Q ‖ P) of all Gaussian weights. shape: ()"""
        terms = []
        for mean, logvar in gaussian_pairs(self.net):
            logvar = logvar.expand(mean.shape)
            own = normal_kl(mean, logvar, self.precision) if self.prior == "normal" else log_uniform_kl(mean, logvar)
            terms.append(own.sum())
        return torch.stack(terms).sum()

    def extra_repr(self) -> str:
        return f"prior={self.prior!r}, samples={self.samples}"


def normal_kl(mean: Tensor, logvar: Tensor, precision: float) -> Tensor:
    """KL(N(mean, exp logvar) ‖ N(0, 1/precision)). shape: (*shape)"""
    scaled = logvar + torch.log(torch.as_tensor(precision, dtype=mean.dtype, device=mean.device))
    return 0.5 * (precision * mean.square() + scaled.exp() - 1 - scaled)


def log_uniform_kl(mean: Tensor, logvar: Tensor) -> Tensor:
    """KL of N(mean, exp logvar) from the log-uniform prior, up to 4e-4 and a constant that makes it 0 for mean = 0.

    shape: (*shape)
    """
    log_r = logvar - mean.square().clamp_min(1e-16).log()
    return K1 - K1 * torch.sigmoid(K2 + K3 * log_r) + 0.5 * F.softplus(-log_r)


@register("varout", "variational dropout (Kingma et al. 2015): weights that all points share, drawn", tasks=BOTH)
def varout(
    problem: Problem,
    prior: Prior = "normal",
    precision: float = 1.0,
    tau: float | None = None,
    noise: Literal["shared", "varying"] = "shared",
    ramp: float = 0.0,
    samples: int = 100,
    seed: int = 0,
) -> VarOut:
    """Layers with Gaussian weights.

    Args:
        problem: what it is for.
        prior: ``"normal"``, as in the comparison of Haussmann et al., or ``"log-uniform"``.
        precision: of the normal prior.
        tau: precision of the noise in units of standardised targets; None: learned. Where the noise varies, its
            largest precision.
        noise: of real targets: one for all points, or exp f2 of a second output on top of 1/tau, as BEDL has it.
        ramp: epochs in which the divergence rises to its full weight.
        samples: draws at prediction.
        seed: of these draws.
    """
    if noise not in ("shared", "varying"):
        raise ValueError(f"noise must be 'shared' or 'varying', not {noise!r}")
    least = {} if tau is None else {"least_noise": 1 / tau}
    head = plain_head(problem, **({"noise": noise, **least} if noise == "varying" else noise_of(tau)))
    return VarOut(gaussian_network(problem, head.n_outputs), head, prior, precision, ramp, samples, seed)
