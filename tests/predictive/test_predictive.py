"""Predictions against scipy and torch.distributions, their arithmetic, their travels."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.utils import _pytree as pytree

from bedl.heads import Dirichlet
from bedl.heads.predictive import CategoricalPredictive, NormalMixturePredictive, NormalPredictive, mixture
from bedl.moments import Moments
from tests.closeness import assert_same_up_to_rounding

PARTS = ("data", "distributional", "model")
G = torch.Generator().manual_seed(0)


def normal(n=5, d=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    rand = lambda: torch.rand(n, d, generator=g, dtype=torch.float64)
    return NormalPredictive(3 * rand() - 1, 0.1 + rand(), 0.05 + rand(), 0.02 + rand())


def classes(n=5, c=3, seed=0):
    """Exactly: each point's softmax takes two values with probability one half; lambda keeps 0.7 of their entropy."""
    g = torch.Generator().manual_seed(seed)
    s = torch.softmax(2 * torch.randn(2, n, c, generator=g, dtype=torch.float64), -1)
    return CategoricalPredictive(
        log_probabilities=s.mean(0).log(),
        data=-0.7 * (s * s.log()).sum(-1).mean(0),
        distributional=-0.3 * (s * s.log()).sum(-1).mean(0),
        vacuity=torch.rand(n, generator=g, dtype=torch.float64),
        spread=s.var(0, correction=0),
    )


KINDS = [normal(), classes(), mixture([normal(seed=1), normal(seed=2), normal(seed=3)])]
each_kind = pytest.mark.parametrize("p", KINDS, ids=lambda p: type(p).__name__)


@each_kind
def test_three_parts_add_up(p):
    parts = [p.data, p.distributional, p.model]
    assert all(bool((part >= 0).all()) for part in parts)
    assert torch.allclose(sum(parts), p.total, atol=1e-12)
    assert torch.allclose(p.total, p.entropy if p.task == "classification" else p.variance)
    assert torch.equal(p.aleatoric, p.data)
    assert torch.allclose(p.aleatoric + p.epistemic, p.total, atol=1e-12)
    assert torch.allclose(p.std.square(), p.variance)
    paper = p.paper_split()
    assert torch.allclose(paper.aleatoric + paper.epistemic, p.variance, atol=1e-12)
    assert set(p.outputs()) == set(p.output_names)


@each_kind
def test_is_a_container(p):
    assert len(p) == 5
    assert_same_up_to_rounding(p[3:5].mean, p.mean[3:5])
    assert_same_up_to_rounding(p[torch.tensor([True, False, False, True, False])].std, p.std[[0, 3]])
    assert p[2].mean.shape == p.mean.shape[1:]
    assert p.to(torch.float32).mean.dtype == torch.float32
    assert not p.detach().mean.requires_grad
    with pytest.raises(TypeError, match="by point"):
        p[:, 0]
    leaves, spec = pytree.tree_flatten(p)
    again = pytree.tree_unflatten(leaves, spec)
    assert type(again) is type(p)
    assert torch.equal(again.entropy, p.entropy)


@each_kind
def test_survives_vmap_and_compile(p):
    doubled = torch.func.vmap(lambda one: one)(p)
    assert_same_up_to_rounding(doubled.mean, p.mean)
    compiled = torch.compile(lambda p: p[1:3], fullgraph=True, backend="aot_eager")(p)
    assert type(compiled) is type(p)
    assert_same_up_to_rounding(compiled.mean, p.mean[1:3])


def test_normal_against_scipy():
    p = normal()
    truth = scipy.stats.norm(p.mean.numpy(), p.std.numpy())
    y = torch.randn(5, 2, dtype=torch.float64, generator=G)
    assert np.allclose(p.log_prob(y), truth.logpdf(y).sum(-1))
    assert np.allclose(p.cdf(y), truth.cdf(y))
    assert np.allclose(p.quantile(0.3), truth.ppf(0.3))
    several = p.quantile(torch.tensor([0.1, 0.9]))
    assert several.shape == (2, 5, 2)
    assert np.allclose(several[1], truth.ppf(0.9))
    assert np.allclose(np.stack(p.interval(0.8)), several)
    assert np.allclose(p.entropy, truth.entropy().sum(-1))


def test_rescaling_is_a_change_of_units():
    scale, loc = torch.tensor([2.0, 10.0]).double(), torch.tensor([-1.0, 100.0]).double()
    y = torch.randn(5, 2, dtype=torch.float64, generator=G)
    for p in (normal(), KINDS[2]):
        q = p.rescale(loc, scale)
        assert torch.allclose(q.mean, loc + scale * p.mean)
        assert torch.allclose(q.std, scale * p.std)
        assert torch.allclose(q.aleatoric + q.epistemic, q.variance)
        assert torch.allclose(q.log_prob(loc + scale * y), p.log_prob(y) - scale.log().sum())
        assert torch.allclose(q.interval(0.9)[1], loc + scale * p.interval(0.9)[1])
    assert torch.allclose(normal(d=1).rescale(3.0, 2.0).std, 2 * normal(d=1).std)


def test_classes_against_their_definition():
    p, g = classes(), torch.Generator().manual_seed(0)
    s = torch.softmax(2 * torch.randn(2, 5, 3, generator=g, dtype=torch.float64), -1)
    assert torch.allclose(p.probabilities, s.mean(0))
    assert torch.allclose(p.paper_split().aleatoric, (s * (1 - s)).mean(0))
    assert torch.allclose(p.variance, p.probabilities * (1 - p.probabilities))
    truth = torch.distributions.Categorical(probs=p.probabilities)
    assert torch.allclose(p.entropy, truth.entropy())
    information = (s * (s / s.mean(0)).log()).sum(-1).mean(0)  # the mean divergence of the members from the mean
    assert torch.allclose(p.model, information)
    y = torch.tensor([0, 1, 2, 1, 0])
    assert torch.allclose(p.log_prob(y), truth.log_prob(y))
    assert torch.equal(p.label, p.probabilities.argmax(-1))
    certain = CategoricalPredictive(*(torch.tensor([x]) for x in ([0.0, -math.inf], 0.0, 0.0, 1.0, [0.0, 0.0])))
    assert certain.entropy.item() == 0


@each_kind
def test_draws_follow_the_prediction(p):
    n = 20_000
    y = p.sample(n, torch.Generator().manual_seed(1))
    assert y.shape[0] == n
    values = torch.nn.functional.one_hot(y, 3).double() if isinstance(p, CategoricalPredictive) else y
    assert ((values.mean(0) - p.mean).abs() < 4.5 * p.std / n**0.5).all()
    square = (values - p.mean).square()
    assert ((square.mean(0) - p.variance).abs() < 4.5 * square.std(0) / n**0.5).all()


def test_mixture_of_normals_against_quadrature():
    members = [normal(seed=i) for i in range(4)]
    p = mixture(members)
    assert isinstance(p, NormalMixturePredictive)
    assert torch.allclose(p.aleatoric, torch.stack([m.aleatoric for m in members]).mean(0))
    means = torch.stack([m.mean for m in members])
    assert torch.allclose(p.epistemic, torch.stack([m.epistemic for m in members]).mean(0) + means.var(0, correction=0))
    grid = torch.linspace(-15, 15, 20_001, dtype=torch.float64)
    density = sum(scipy.stats.norm(m.mean[..., None], m.std[..., None]).pdf(grid) for m in members) / 4
    step = float(grid[1] - grid[0])
    mean = (density * grid.numpy()).sum(-1) * step
    assert np.allclose(p.mean, mean, atol=1e-9)
    assert np.allclose(p.variance, (density * (grid.numpy() - mean[..., None]) ** 2).sum(-1) * step, atol=1e-9)
    entropy = -(density * np.log(density + 1e-300)).sum(-1).sum(-1) * step
    assert np.allclose(p.entropy, entropy, atol=2e-3)
    y = torch.randn(5, 2, dtype=torch.float64, generator=G)
    joint = torch.stack([m.log_prob(y) for m in members]).exp().mean(0)
    assert torch.allclose(p.log_prob(y).exp(), joint)


@pytest.mark.parametrize("dtype, error", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_mixture_quantiles_invert_the_cdf(dtype, error):
    p = mixture([normal(seed=i) for i in range(3)]).to(dtype)
    q = torch.tensor([0.001, 0.05, 0.5, 0.95, 0.999], dtype=dtype)
    values = p.quantile(q)
    assert values.shape == (5, 5, 2)
    for value, probability in zip(values, q, strict=True):
        assert (p.cdf(value) - probability).abs().max() < error
    far = mixture(
        [NormalPredictive(*(torch.tensor([[x]], dtype=dtype) for x in (loc, 1.0, 0.0, 0.0))) for loc in (0.0, 1e3)]
    )
    low, high = far.interval(0.9)
    assert low.item() == pytest.approx(scipy.stats.norm.ppf(0.1), abs=1e-3)
    assert high.item() == pytest.approx(1e3 + scipy.stats.norm.ppf(0.9), abs=1e-3)


def test_one_member_is_itself_and_mixtures_nest():
    p = mixture([normal()])
    for name in ("mean", "data", "distributional", "model", "entropy"):
        assert torch.allclose(getattr(p, name), getattr(normal(), name), atol=1e-9), name
    nested = mixture([mixture([normal(seed=1), normal(seed=2)]), mixture([normal(seed=3), normal(seed=4)])])
    flat = mixture([normal(seed=i) for i in (1, 2, 3, 4)])
    assert torch.allclose(nested.variance, flat.variance)
    one = mixture([classes()])
    assert torch.allclose(one.log_probabilities, classes().log_probabilities)
    assert torch.allclose(one.epistemic, classes().epistemic)


def test_mixture_of_classes():
    members = [classes(seed=i) for i in range(4)]
    p = mixture(members)
    probabilities = torch.stack([m.probabilities for m in members])
    assert torch.allclose(p.probabilities, probabilities.mean(0))
    for part in ("data", "distributional", "vacuity"):
        assert torch.allclose(getattr(p, part), torch.stack([getattr(m, part) for m in members]).mean(0))
    mean = probabilities.mean(0)  # members disagree by their mean divergence from the mean
    disagreement = (probabilities * (probabilities / mean).log()).sum(-1).mean(0)
    assert torch.allclose(p.model, torch.stack([m.model for m in members]).mean(0) + disagreement)
    spread = torch.stack([m.spread for m in members]).mean(0) + probabilities.var(0, correction=0)
    assert torch.allclose(p.paper_split().epistemic, spread)


def test_mixture_refusals():
    for members in ([], [normal(), classes()], [normal(n=3), normal(n=4)]):
        with pytest.raises(ValueError, match="mixture"):
            mixture(members)


@pytest.mark.parametrize("level", [0.0, 1.0, 90])
def test_levels_are_probabilities(level):
    for p in (normal(), KINDS[2]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            p.interval(level)


def test_tables():
    arrays = normal().to_numpy()
    assert set(arrays) == {
        *("mean", "std", "aleatoric_std", "epistemic_std", "data_std", "distributional_std", "model_std"),
        *("lower_90", "upper_90"),
    }
    assert np.allclose(sum(arrays[f"{part}_std"] ** 2 for part in PARTS), arrays["std"] ** 2)
    assert np.allclose(arrays["upper_90"] - arrays["mean"], scipy.stats.norm.ppf(0.95) * arrays["std"])
    arrays = classes().to_numpy()
    assert arrays["probabilities"].shape == (5, 3)
    assert arrays["label"].dtype == np.int64
    assert np.allclose(sum(arrays[part] for part in PARTS), arrays["total"])
    pytest.importorskip("pandas")
    frame = classes().to_frame()
    assert len(frame) == 5
    assert np.allclose(frame[["probabilities_0", "probabilities_1", "probabilities_2"]].sum(axis=1), 1)
    assert list(normal(d=1).to_frame().columns)[:2] == ["mean", "std"]
    labels = [f"row {i}" for i in range(len(frame))]
    assert list(classes().to_frame(labels).index) == labels
    with pytest.raises(ValueError, match="index"):
        classes().to_frame(labels[1:])


def test_targets_never_broadcast() -> None:
    """(N,) against (N, 1) would compare every point with every other."""
    normal = NormalPredictive(torch.arange(3.0)[:, None], *torch.full((3, 3, 1), 0.5))
    y = torch.arange(3.0)
    assert torch.equal(normal.log_prob(y), normal.log_prob(y[:, None]))
    assert normal.cdf(y).shape == (3, 1)
    for wrong in (torch.zeros(3, 3), torch.zeros(2), torch.tensor(1.0), torch.zeros(1, 3)):
        with pytest.raises(ValueError, match="do not fit"):
            normal.log_prob(wrong)
    classes = Dirichlet(3)(Moments(torch.zeros(5, 3), 1.0))
    assert classes.log_prob(torch.zeros(5, dtype=torch.long)).shape == (5,)
    with pytest.raises(ValueError, match="do not fit"):
        classes.log_prob(torch.zeros(3, dtype=torch.long))
    with pytest.raises(TypeError, match="integers"):
        classes.log_prob(torch.full((5,), 1.9))


def test_members_of_a_mixture_may_weigh_differently():
    """Three normals of weights 0.6, 0.3, 0.1 as one of ten equal members has six, three and one of them."""
    parts = torch.rand(4, 5, 2, 3, dtype=torch.float64, generator=G) + 0.1
    log_weights = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log().expand(5, 1, 3)
    p = NormalMixturePredictive(*parts, log_weights)
    equal = NormalMixturePredictive(*parts.repeat_interleave(torch.tensor([6, 3, 1]), -1))
    y = torch.rand(5, 2, dtype=torch.float64, generator=G)
    for name in ("mean", "data", "distributional", "model", "variance", "entropy"):
        assert torch.allclose(getattr(p, name), getattr(equal, name)), name
    assert torch.allclose(p.log_prob(y), equal.log_prob(y))
    assert torch.allclose(p.cdf(y), equal.cdf(y))
    assert torch.allclose(p.quantile(0.3), equal.quantile(0.3))
    assert torch.allclose(p.rescale(3.0, 2.0).variance, 4 * p.variance)
    assert torch.allclose(p[1:3].log_prob(y[1:3]), p.log_prob(y)[1:3])
    twice = mixture([p, NormalMixturePredictive(*parts)])
    assert torch.allclose(twice.mean, 0.5 * (p.mean + parts[0].mean(-1)))
    assert torch.allclose(twice.log_weights.exp().sum(-1), torch.ones(5, 1, dtype=torch.float64))
    draws = p.sample(40_000, torch.Generator().manual_seed(0))
    assert ((draws.mean(0) - p.mean).abs() < 4.5 * p.std / 200).all()
    assert torch.allclose(draws.var(0), p.variance, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_cdf_stays_within_0_and_1(dtype):
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(200, 1, 30, generator=generator, dtype=torch.float32)
    log_weights = (weights / weights.sum(-1, keepdim=True)).log().to(dtype)  # their sum is 1 but for rounding
    one = torch.ones(200, 1, 30, dtype=dtype)
    p = NormalMixturePredictive(0 * one, one, 0 * one, 0 * one, log_weights)
    far = torch.full((200, 1), 1e3, dtype=dtype)
    assert p.cdf(far).max() <= 1
    assert p.cdf(-far).min() >= 0
    assert torch.allclose(p.cdf(far), torch.ones((), dtype=dtype))
