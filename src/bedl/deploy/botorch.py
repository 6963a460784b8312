"""A BoTorch `Model` for Bayesian optimisation: closed-form marginals, learned noise, and joint samples of functions.

Acquisition functions that need means and variances only, such as `LogExpectedImprovement`, get them in closed form.
Those of several points together, such as `qLogExpectedImprovement`, get samples of whole functions: one draw of the
weights for all points, which has the correlations between points that the network has. The same draws are kept while
an acquisition function is optimised.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors import Posterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from torch import Tensor, nn
from torch.func import functional_call

import bedl
from bedl._utils.errors import BEDLError
from bedl.methods import BEDL, Ensemble
from bedl.moments import Moments
from bedl.nn import GaussianLayer, deterministic

__all__ = ["BEDLModel", "BEDLPosterior", "FunctionSampler"]


class BEDLModel(Model):
    """A fitted regressor as a BoTorch model.

    Args:
        estimator: a fitted `BEDLRegressor` of numeric columns, whose method is one of one network (such as "evidence",
            "bedl" or "bedl+reg"), or an ensemble of these.
        input_transform: a BoTorch input transform, applied to X before the estimator sees it.

    Example:
        >>> import torch
        >>> from botorch.acquisition import qLogExpectedImprovement
        >>> X = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None]
        >>> model = BEDLModel.fit(X, (6 * X).sin(), epochs=20, ensemble=2)
        >>> model.posterior(X).mean.shape
        torch.Size([12, 1])
        >>> acquisition = qLogExpectedImprovement(model, best_f=1.0)
        >>> acquisition(torch.rand(5, 2, 1, dtype=torch.float64)).shape  # of five pairs of points
        torch.Size([5])
    """

    def __init__(self, estimator: Any, input_transform: nn.Module | None = None):
        super().__init__()
        self.loc: Tensor
        self.scale: Tensor
        method = getattr(estimator, "method_", None)
        if method is None:
            raise BEDLError("BEDLModel takes a fitted BEDLRegressor: call its fit first, or use BEDLModel.fit")
        method = copy.deepcopy(method)
        members = list(method.members) if isinstance(method, Ensemble) else [method]
        if estimator.task_ != "regression" or not all(isinstance(member, BEDL) for member in members):
            raise BEDLError(
                "BEDLModel samples functions by drawing weights, which needs a method of one network or an ensemble of "
                f"such, and real targets: BEDLRegressor(method='evidence', ensemble=5), not {estimator.built_[0]!r}"
            )
        if estimator.encoder_ is not None:
            raise BEDLError("BEDLModel takes columns of numbers without missing values; this estimator encodes a table")
        self.method: Any = method
        self.networks = nn.ModuleList(deterministic(member.net) for member in members)
        self.members = members
        self.register_buffer("loc", torch.as_tensor(estimator.target_loc_))
        self.register_buffer("scale", torch.as_tensor(estimator.target_scale_))
        if input_transform is not None:
            self.input_transform = input_transform
        self.eval()
        self.requires_grad_(False)

    @classmethod
    def fit(
        cls, train_X: Tensor, train_Y: Tensor, *, input_transform: nn.Module | None = None, **options: Any
    ) -> BEDLModel:
        """Train on points and values.

        Args:
            train_X: shape (n, d)
            train_Y: shape (n, m)
            input_transform: a BoTorch input transform.
            options: of `BEDLRegressor`; by default five networks of the method "evidence", with learned noise.
        """
        settings = {"method": "evidence", "ensemble": 5, "random_state": 0, "device": "cpu", **options}
        x = train_X if input_transform is None else input_transform(train_X)
        estimator = bedl.BEDLRegressor(**settings)
        estimator.fit(x.detach().cpu().numpy(), train_Y.detach().cpu().numpy())
        return cls(estimator, input_transform).to(train_X.device)

    @property
    def num_outputs(self) -> int:
        return len(self.loc)

    @property
    def dtype(self) -> torch.dtype:
        """That of the networks."""
        return next(self.method.parameters()).dtype

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: Sequence[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """The posterior of the function at some points, or of noisy observations of it.

        Args:
            X: shape (*batch, q, d)
            output_indices: which targets; None: all.
            observation_noise: whether the noise that the networks have learned is added.
            posterior_transform: applied to the result.
        """
        if isinstance(observation_noise, Tensor):
            raise BEDLError("the noise is learned; observation_noise is True or False")
        indices = list(range(self.num_outputs)) if output_indices is None else list(output_indices)
        posterior = BEDLPosterior(self, self.transform_inputs(X), indices, observation_noise)
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def marginals(self, x: Tensor, observation_noise: bool) -> tuple[Tensor, Tensor]:
        """Mean and variance of each target, in closed form and with gradients. x: shape (n, d) -> (n, m)"""
        prediction: Any = self.method(x).rescale(self.loc, self.scale)
        return prediction.mean, prediction.total if observation_noise else prediction.epistemic

    def draw(self, n: int, generator: torch.Generator) -> FunctionDraws:
        """Weights of `n` functions: of a network of the ensemble each, and what evidence lacks at all points alike."""
        own = torch.randint(len(self.members), (n,), generator=generator)
        weights = []
        for number, member in enumerate(self.members):
            weights.append(_weights(member.net, int((own == number).sum()), generator))
        shape = (n, 1, self.num_outputs)
        return FunctionDraws(own, weights, torch.randn(shape, generator=generator, dtype=torch.float64))

    def functions(self, x: Tensor, draws: FunctionDraws) -> tuple[Tensor, Tensor]:
        """Values of the functions, and the noise variance there. x: shape (n, d) -> (draws, n, m)"""
        values: list[Tensor] = []
        noises: list[Tensor] = []
        for network, member, weights in zip(self.networks, self.members, draws.weights, strict=True):
            if not weights or not len(next(iter(weights.values()))):
                continue
            outputs = torch.vmap(lambda w, net=network: functional_call(net, w, (x,)))(weights)
            given: Any = member.head.given(outputs)
            values.append(torch.stack([given.mean, given.distributional.sqrt()]))
            noises.append(given.data)
        order = torch.argsort(torch.argsort(draws.own, stable=True)).to(x.device)  # from members back to draws
        (mean, spread), noise = torch.cat(values, 1)[:, order], torch.cat(noises)[order]
        return self.loc + self.scale * (mean + spread * draws.normal.to(x)), self.scale.square() * noise


@dataclass(frozen=True)
class FunctionDraws:
    """Draws of whole functions.

    Attributes:
        own: the network of each. shape: (n,)
        weights: of each network's draws, by name. shapes: (draws of it, *weight)
        normal: how far the lack of evidence moves each. shape: (n, 1, m)
    """

    own: Tensor
    weights: list[dict[str, Tensor]]
    normal: Tensor


def _weights(net: nn.Module, n: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Draws of the weights of all Gaussian layers, by their names in `deterministic(net)`; shared ones are shared."""
    found: dict[str, Tensor] = {}
    drawn: dict[int, Tensor] = {}
    for name, layer in net.named_modules():
        if not isinstance(layer, GaussianLayer):
            continue
        for weight in layer.gaussian_parameters:
            mean = layer._parameters.get(f"{weight}_mean")
            if mean is None:
                continue
            if id(mean) not in drawn:
                pair = layer.gaussian(weight)
                loc, variance = (pair.loc, pair.variance) if isinstance(pair, Moments) else (pair, None)
                noise = torch.randn((n, *loc.shape), generator=generator, dtype=torch.float64).to(loc)
                drawn[id(mean)] = loc.detach() + (0.0 if variance is None else variance.detach().sqrt() * noise)
            found[f"{name}.{weight}" if name else weight] = drawn[id(mean)]
    return found


class BEDLPosterior(Posterior):
    """What a `BEDLModel` says about some points: marginals in closed form, joint samples by draws of the weights.

    The lack of evidence, the variance part ``distributional``, moves all values of a sampled function together.
    """

    def __init__(self, model: BEDLModel, X: Tensor, indices: list[int], observation_noise: bool):
        self.model, self.X, self.indices, self.observation_noise = model, X, indices, observation_noise
        self._moments: tuple[Tensor, Tensor] | None = None

    @property
    def device(self) -> torch.device:
        return self.X.device

    @property
    def dtype(self) -> torch.dtype:
        return self.X.dtype

    def _marginals(self) -> tuple[Tensor, Tensor]:
        if self._moments is None:
            flat = self.X.reshape(-1, self.X.shape[-1])
            pair = self.model.marginals(flat.to(self.model.dtype), self.observation_noise)
            mean, variance = (part[:, self.indices].reshape(*self.X.shape[:-1], -1).to(self.X.dtype) for part in pair)
            self._moments = mean, variance
        return self._moments

    @property
    def mean(self) -> Tensor:
        """shape: (*batch, q, m)"""
        return self._marginals()[0]

    @property
    def variance(self) -> Tensor:
        """shape: (*batch, q, m)"""
        return self._marginals()[1]

    def quantile(self, value: Tensor) -> Tensor:
        """Quantiles of the marginals, taken for normal. value: shape (k,) -> (k, *batch, q, m)"""
        value = value.to(self.X).reshape(-1, *(1,) * self.mean.ndim)
        return self.mean + self.variance.sqrt() * torch.special.ndtri(value)

    def density(self, value: Tensor) -> Tensor:
        """Density of the marginals, taken for normal. value: shape (*batch, q, m)"""
        return torch.distributions.Normal(self.mean, self.variance.sqrt()).log_prob(value).exp()

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008
        return torch.Size((*sample_shape, *self.X.shape[:-1], len(self.indices)))

    @property
    def batch_range(self) -> tuple[int, int]:
        return (0, 0)

    @property
    def base_sample_shape(self) -> torch.Size:
        return torch.Size()

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Values of newly drawn functions, with gradients towards the points. shape: (*sample_shape, *batch, q, m)"""
        shape = torch.Size([1]) if sample_shape is None else sample_shape
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ()).item()))
        return self.of_draws(self.model.draw(shape.numel(), generator), shape, generator)

    def of_draws(self, draws: FunctionDraws, shape: torch.Size, generator: torch.Generator) -> Tensor:
        """Values of functions that were drawn before.

        Args:
            draws: as many as `shape` has entries.
            shape: of the samples.
            generator: for the noise of observations, if that is asked for; each point has noise of its own.
        """
        flat = self.X.reshape(-1, self.X.shape[-1])
        values, noise = self.model.functions(flat.to(self.model.dtype), draws)
        if self.observation_noise:
            noises = torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values)
            values = values + noise.sqrt() * noises
        return values[..., self.indices].reshape(self._extended_shape(shape)).to(self.X.dtype)


class FunctionSampler(MCSampler):
    """BoTorch's sampler for `BEDLPosterior`: the same functions at every call, of this model and all that are alike.

    Args:
        sample_shape: how many.
        seed: of the draws.
    """

    def __init__(self, sample_shape: torch.Size, seed: int | None = None):
        super().__init__(sample_shape, seed)
        self._draws: tuple[BEDLModel, FunctionDraws] | None = None

    def forward(self, posterior: Posterior) -> Tensor:
        """Samples. shape: (*sample_shape, *batch, q, m)"""
        if not isinstance(posterior, BEDLPosterior):
            raise BEDLError(f"this sampler draws functions of a BEDLModel, not of a {type(posterior).__name__}")
        if self._draws is None or self._draws[0] is not posterior.model:
            generator = torch.Generator().manual_seed(self.seed)
            self._draws = posterior.model, posterior.model.draw(self.sample_shape.numel(), generator)
        noise = torch.Generator().manual_seed(self.seed + 1)
        return posterior.of_draws(self._draws[1], self.sample_shape, noise)

    def _update_base_samples(self, posterior: Any, base_sampler: Any) -> None:
        self._instance_check(base_sampler)
        self._draws = base_sampler._draws


@GetSampler.register(BEDLPosterior)
def _sampler(posterior: BEDLPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> FunctionSampler:
    return FunctionSampler(sample_shape, seed)
