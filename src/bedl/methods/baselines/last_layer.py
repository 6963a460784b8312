"""A Gaussian last layer on a plain network: Laplace's approximation of its posterior, and SNGP.

Laplace:

D. MacKay, "A Practical Bayesian Framework for Backpropagation Networks", Neural Computation 1992; A. Kristiadi,
M. Hein, P. Hennig, "Being Bayesian, Even Just a Bit, Fixes Overconfidence in ReLU Networks", ICML 2020; E. Daxberger et
al., "Laplace Redux – Effortless Bayesian Deep Learning", NeurIPS 2021, whose package laplace-torch does the same for
more layers and in more ways.

    phi: what the last layer reads, and a 1 for its bias;  theta: its weights
    H = Σ_n (phi phi') ⊗ Λ_n,  Λ = 1/noise for targets, diag p − p p' for classes          (Gauss–Newton, full)
    theta ~ N(theta_MAP, (H + d I)⁻¹),  d by points that were held out, as Kristiadi et al. choose it, or, without such,
                                       by the evidence  ½ P log d − ½ log|H + d I| − ½ d ‖theta_MAP‖²

A network that fits its points exactly has no curvature left, and the evidence then knows the prior alone. Targets are
predicted in closed form, phi' Σ phi being ``model``; for classes draws of theta are averaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bedl.heads import Head, MeanVariance
from bedl.heads.predictive import NormalPredictive
from bedl.methods.base import Method
from bedl.methods.baselines.dropout import noise_of
from bedl.methods.baselines.evidential import known
from bedl.methods.networks import plain_network
from bedl.methods.plain import BOTH, check_samples, plain_head
from bedl.methods.registry import Problem, register
from bedl.moments import Moments
from bedl.objectives import Batch

if TYPE_CHECKING:
    from bedl.heads.predictive import Predictive


import math
from typing import TYPE_CHECKING

import torch.nn.functional as F

from bedl.methods.networks import ACTIVATIONS, widths_of

if TYPE_CHECKING:
    from bedl.heads.predictive import Predictive


PRECISIONS = torch.logspace(-4, 6, 101, dtype=torch.float64)
MAX_WEIGHTS = 4096  # weights of a last layer whose covariance is kept whole


class Laplace(Method):
    """A network with ordinary weights, and a Gaussian posterior of its last layer once it is trained.

    Args:
        net: a tensor in, outputs of shape (n, head.n_outputs) out; its last layer is an `nn.Linear`.
        head: `Softmax`, or `MeanVariance` with a noise that points share.
        prior_precision: of the last layer's weights; None: the one under which points that were held out are most
            likely, or, if none were, the one that maximises the evidence.
        samples: draws for classes.
        seed: of these draws.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from bedl.heads import MeanVariance
        >>> from bedl.methods import Batch
        >>> method = Laplace(nn.Linear(1, 1), MeanVariance(1, noise="fixed"), prior_precision=1.0)
        >>> method.on_fit_end([Batch(torch.tensor([[1.0], [-1.0]]), torch.zeros(2), 2)])
        >>> method.predict(torch.tensor([[3.0]])).model.item()  # (9 + 1)/(1 + 2)
        3.3333...
    """

    covariance: Tensor
    draws: Tensor

    def __init__(
        self, net: nn.Module, head: Head, prior_precision: float | None = None, samples: int = 100, seed: int = 0
    ):
        super().__init__()
        if prior_precision is not None and not prior_precision > 0:
            raise ValueError(f"prior_precision must be positive, not {prior_precision!r}")
        self.net, self.head, self.prior_precision = net, head, prior_precision
        self.samples, self.seed = check_samples(samples), seed
        last = self.last
        width, outputs = last.in_features + (last.bias is not None), last.out_features
        if outputs != head.n_outputs or width * outputs > MAX_WEIGHTS:
            raise ValueError(
                f"the last layer has {outputs} outputs and {width * outputs} weights; laplace needs {head.n_outputs} "
                f"outputs, and keeps the covariance of at most {MAX_WEIGHTS} weights: make the layer before it narrower"
            )
        if isinstance(head, MeanVariance):
            self.register_buffer("covariance", torch.zeros(outputs, width, width))
        else:
            self.register_buffer("draws", torch.zeros(self.samples, outputs, width))

    @property
    def last(self) -> nn.Linear:
        """The layer that there is a posterior of."""
        found = [layer for layer in self.net.modules() if isinstance(layer, nn.Linear)]
        if not found:
            raise ValueError("laplace is about a last nn.Linear layer, and net has none")
        return found[-1]

    def read(self, x: Tensor | Moments) -> tuple[Tensor, Tensor]:
        """The outputs, and what the last layer reads, with a 1 for its bias. shapes: (n, n_outputs), (n, width)"""
        seen: list[Any] = []
        last = self.last
        hook = last.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            f = known(self.net(x))
        finally:
            hook.remove()
        phi = known(seen[-1])
        return f, phi if last.bias is None else torch.cat([phi, torch.ones_like(phi[..., :1])], -1)

    def forward(self, x: Tensor | Moments) -> Predictive:
        return self._given(*self.read(x))

    def _given(self, f: Tensor, phi: Tensor) -> Predictive:
        """The prediction from outputs and what the last layer reads. shapes: (n, n_outputs), (n, width)"""
        if isinstance(self.head, MeanVariance):
            m, _, log_noise = self.head.split(f)
            model = ((phi @ self.covariance) * phi).sum(-1).mT
            return NormalPredictive(m, log_noise.exp(), torch.zeros_like(m), model)
        return self.head.given(f + phi @ self.draws.mT).mixed()

    def batch_loss(self, batch: Batch) -> Tensor:
        """−mean log p(y | x) of the network as a point. shape: ()"""
        return -batch.mean(self.head.log_marginal(known(self.net(batch.x)), batch.y))

    def on_fit_end(self, batches: Iterable[Batch], held_out: Iterable[Batch] = ()) -> None:
        """The posterior of the last layer, given the others."""
        last = self.last
        theta = last.weight if last.bias is None else torch.cat([last.weight, last.bias[:, None]], 1)
        theta = theta.detach().double()  # shape: (outputs, width)
        if isinstance(self.head, MeanVariance):
            curvature = self._of_targets(batches)  # shape: (outputs, width, width)
        else:
            curvature, theta = self._of_classes(batches)[None], theta.reshape(1, -1)
        spectra = [torch.linalg.eigh(part) for part in curvature]
        validation_batches = list(held_out) if self.prior_precision is None else []
        if self.prior_precision is not None:
            chosen = [self.prior_precision] * len(spectra)
        elif validation_batches:
            chosen = [self._best_for(validation_batches, spectra)] * len(spectra)
        else:
            chosen = [best_precision(part, own) for part, own in zip(curvature, theta, strict=True)]
        self._put(spectra, chosen)

    def _put(self, spectra: Sequence[tuple[Tensor, Tensor]], precisions: Sequence[float]) -> None:
        """The posterior under prior precisions, of all classes or of each target."""
        pairs = zip(spectra, precisions, strict=True)
        roots = [basis / (values.clamp_min(0.0) + d).sqrt() for (values, basis), d in pairs]
        if isinstance(self.head, MeanVariance):
            self.covariance.copy_(torch.stack([root @ root.T for root in roots]))
            return
        generator = torch.Generator().manual_seed(self.seed)
        noise = torch.randn(self.samples, len(roots[0]), generator=generator).to(roots[0])
        self.draws.copy_((noise @ roots[0].T).reshape(self.draws.shape))

    def _best_for(self, validation_batches: Sequence[Batch], spectra: Sequence[tuple[Tensor, Tensor]]) -> float:
        """The prior precision under which points that were held out are most likely."""
        read = [(*self.read(batch.x), batch) for batch in validation_batches]

        def likelihood(precision: float) -> float:
            self._put(spectra, [precision] * len(spectra))
            total = 0.0
            for f, phi, batch in read:
                log_p = self._given(f, phi).log_prob(self.head.check_targets(batch.y, f.shape[:-1])).double()
                total += (log_p if batch.weight is None else log_p * batch.weight.double()).sum().item()
            return total

        return max(PRECISIONS[::5].tolist(), key=likelihood)

    def _of_targets(self, batches: Iterable[Batch]) -> Tensor:
        """Σ phi phi' / noise, for each target. shape: (outputs, width, width)"""
        total: Any = 0.0
        for batch in batches:
            f, phi = self.read(batch.x)
            self._check(f, phi)
            noise = self.head.split(f)[2].double().exp()[0]  # type: ignore[operator]
            weighted = phi.double() if batch.weight is None else phi.double() * batch.weight.double()[:, None]
            total = total + (weighted.mT @ phi.double()) / noise[:, None, None]
        return total

    def _of_classes(self, batches: Iterable[Batch]) -> Tensor:
        """Σ (diag p − p p') ⊗ phi phi'. shape: (outputs · width, outputs · width)"""
        total: Any = 0.0
        for batch in batches:
            f, phi = self.read(batch.x)
            self._check(f, phi)
            p, phi = torch.softmax(f, -1).double(), phi.double()
            weight = torch.ones_like(p[:, 0]) if batch.weight is None else batch.weight.double()
            inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]  # shape: (n, C, C)
            outer = [torch.einsum("n,nd,ni,nj->dij", weight, inner[:, c], phi, phi) for c in range(p.shape[1])]
            total = total + torch.stack(outer)
        return total.transpose(1, 2).reshape(total.shape[0] * total.shape[2], -1)

    def _check(self, f: Tensor, phi: Tensor) -> None:
        """That the outputs are those of the last layer: a network of the user's own may do more."""
        last = self.last
        again = nn.functional.linear(phi[:, : last.in_features], last.weight, last.bias)
        if again.shape != f.shape or not torch.allclose(again, f, rtol=1e-3, atol=1e-4):
            raise ValueError(
                "laplace: the outputs of net are not those of its last nn.Linear layer; let it end with one"
            )


def best_precision(curvature: Tensor, theta: Tensor) -> float:
    """The prior precision, on a grid, that maximises the evidence of a Laplace approximation.

    Args:
        curvature: of the negative log-likelihood at theta. shape: (P, P)
        theta: the most probable weights. shape: (P,)
    """
    values = torch.linalg.eigvalsh(curvature.double()).clamp_min(0.0)
    grid = PRECISIONS.to(values.device)[:, None]
    evidence = 0.5 * (grid.log() - (values + grid).log()).sum(1) - 0.5 * grid[:, 0] * theta.double().square().sum()
    return float(grid[evidence.argmax(), 0])


@register(
    "laplace", "last-layer Laplace (Kristiadi et al. 2020): a plain net, a posterior of its last layer", tasks=BOTH
)
def laplace(problem: Problem, prior_precision: float | None = None, samples: int = 100, seed: int = 0) -> Laplace:
    """See `Laplace` for the options; the noise of targets is learned, and the same for all points."""
    head = plain_head(problem, **noise_of(None))
    return Laplace(plain_network(problem, head.n_outputs), head, prior_precision, samples, seed)


# SNGP: a residual network that keeps distances, and a Gaussian process in random features on top. One pass.
#
# J. Liu, Z. Lin, S. Padhy, D. Tran, T. Bedrax-Weiss, B. Lakshminarayanan, "Simple and Principled Uncertainty
# Estimation with Deterministic Deep Learning via Distance Awareness", NeurIPS 2020.
#
#     h ← h + act(W h + b),  ‖W‖ ≤ c           spectral norm: neither collapses nor stretches distances much
#     phi = sqrt(2/R) cos(A h + u),  A ~ N(0, 1/l²), u ~ U(0, 2 pi), both fixed          random Fourier features
#     f = B phi,  B ~ N(0, 1/s) a priori
#     Cov(f) = phi' (s I + Σ_n k_n phi_n phi_n')⁻¹ phi,  k = 1/noise for targets, p (1 − p) of the largest p for classes
#
# The covariance is that of a Laplace approximation, computed once after training. f ~ N(m, v) then goes into the
# integral that Gaussian logits have everywhere here, in place of the paper's mean-field formula. The noise is ``data``,
# v is ``model``.


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

    def batch_loss(self, batch: Batch) -> Tensor:
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

    See `SNGP` for `n_random`, `ridge`.

    Args:
        problem: what it is for; a network of the user's own gives `width` features.
        length_scale: of its kernel.
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
