"""MC Dropout: dropout that stays on at prediction, so that each mask is a draw of the network.

Y. Gal, Z. Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
ICML 2016.

    loss  −mean log p(y | f, tau) + (1 − p) l² / (2N) · Σ‖W‖²        W: weights, l: prior length-scale, p: dropout
    p(y | x) = 1/S Σ_s p(y | f_s(x), tau)

With p(y | f, tau) = N(f, 1/tau) and ½ tau taken out, the second term is the paper's weight decay l² (1 − p)/(2 N tau).
The noise is ``data``; what the draws disagree about is ``model``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import Head, MeanVariance
from bedl.methods.base import Method
from bedl.methods.networks import gaussian_network, plain_network
from bedl.methods.plain import BOTH, check_samples, mixture_of_draws, plain_head
from bedl.methods.registry import Problem, register
from bedl.moments import Moments, as_moments
from bedl.moments.numerics import normal_log_density
from bedl.nn import drawn_function, warn_if_deterministic
from bedl.nn.sampling import drawing
from bedl.objectives import Batch
from bedl.objectives.priors import gaussian_pairs

if TYPE_CHECKING:
    from bedl.heads.predictive import Predictive


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

    def batch_loss(self, batch: Batch) -> Tensor:
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

    See `MCDropout` for `length_scale`, `samples`, `seed`.

    Args:
        dropout: probability of being dropped; a network of the user's own has its own dropout layers.
        tau: precision of the noise in units of standardised targets; None: learned.
    """
    head = plain_head(problem, **noise_of(tau))
    return MCDropout(dropout_network(problem, head.n_outputs, dropout), head, length_scale, samples, seed)


# Fast Dropout: the noise of dropout as moments, in training and prediction, without a draw.
#
# S. Wang, C. Manning, "Fast dropout training", ICML 2013.
#
#     x·b/(1 − p):  mean m,  variance (v + p m²)/(1 − p)          every layer's input; see `bedl.moments.rules`
#     f ~ N(m, v),  loss −mean E_f log p(y | f)
#     targets:   E log N(y; f, 1/tau) = log N(y; m, 1/tau) − ½ tau v
#     classes:   E log softmax(f)_y ≈ m_y − logsumexp(m) − ½ Σ p_c (1 − p_c) v_c,   p = softmax(m)
#
# What MC Dropout averages over masks, in one pass. The noise of the target is ``data``, that of the masks ``model``.


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

    def batch_loss(self, batch: Batch) -> Tensor:
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
        dropout: probability of being dropped; a network of the user's own has its own dropout layers.
        tau: precision of the noise in units of standardised targets; None: learned.
    """
    head = plain_head(problem, **noise_of(tau))
    return FastDropout(dropout_network(problem, head.n_outputs, dropout), head)


# Variational dropout: Gaussian weights that all points share, by local reparameterisation.
#
# D. Kingma, T. Salimans, M. Welling, "Variational Dropout and the Local Reparameterization Trick", NeurIPS 2015;
# D. Molchanov, A. Ashukha, D. Vetrov, "Variational Dropout Sparsifies Deep Neural Networks", ICML 2017.
#
#     −mean log p(y | f_draw) + ramp/N · KL(Q ‖ P),   Q = Π N(mu, sigma²),  f_draw: activations drawn for each point
#
#     normal prior N(0, 1/a):   KL = ½ Σ a (mu² + sigma²) − 1 − log(a sigma²)
#     log-uniform prior:        −KL ≈ Σ k1 S(k2 + k3 log r) − ½ log(1 + 1/r) − k1,   r = sigma²/mu²,  S: sigmoid
#                               k1, k2, k3 = 0.63576, 1.87320, 1.48695
#
# Prediction averages draws of the weights, each one function for all points. The noise is ``data``; what the draws
# disagree about is ``model``.


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

    uses_epoch = True

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

    def batch_loss(self, batch: Batch) -> Tensor:
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

    See `VarOut` for `precision`, `ramp`, `samples`, `seed`.

    Args:
        prior: ``"normal"``, as in the comparison of Haussmann et al., or ``"log-uniform"``.
        tau: precision of the noise in units of standardised targets; None: learned. Where the noise varies, its
            largest precision.
        noise: of real targets: one for all points, or exp f2 of a second output on top of 1/tau, as BEDL has it.
    """
    if noise not in ("shared", "varying"):
        raise ValueError(f"noise must be 'shared' or 'varying', not {noise!r}")
    least = {} if tau is None else {"least_noise": 1 / tau}
    head = plain_head(problem, **({"noise": noise, **least} if noise == "varying" else noise_of(tau)))
    return VarOut(gaussian_network(problem, head.n_outputs), head, prior, precision, ramp, samples, seed)
