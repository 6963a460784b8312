"""Laplace approximation of the last layer: a plain network, then a Gaussian posterior of its last weights.

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

    def loss(self, batch: Batch) -> Tensor:
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
