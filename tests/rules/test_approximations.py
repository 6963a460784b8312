"""Rules that approximate: right to first order, and measurably close to sampling where the variance is not small."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bedl import Moments, UnsupportedOperationError
from bedl.moments.rules.pooling import maximum_of
from tests import oracles
from tests.closeness import assert_same_up_to_rounding


def normals(*shape, scale=0.3, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=generator, dtype=dtype)
    return Moments(loc, scale**2 * (0.2 + torch.rand(shape, generator=generator, dtype=dtype)))


def sampled_moments(function, x, count=40_000):
    torch.manual_seed(0)
    draws = x.loc + x.variance.sqrt() * torch.randn(count, *x.shape, dtype=x.dtype)
    y = torch.func.vmap(function)(draws)
    return y.mean(0), y.var(0)


WEIGHT, BIAS = torch.tensor([1.5, -0.5, 2.0, 0.7]).double(), torch.tensor([0.1, 0.0, -1.0, 2.0]).double()
MASK = torch.tensor([[True, True, False], [True, True, True]])
FIRST_ORDER = {
    "layer_norm": (lambda x: F.layer_norm(x, (4,), WEIGHT, BIAS), (3, 4)),
    "layer_norm 2 axes": (lambda x: F.layer_norm(x, (3, 4)), (2, 3, 4)),
    "rms_norm": (lambda x: F.rms_norm(x, (4,), WEIGHT, 1e-5), (3, 4)),
    "group_norm": (lambda x: F.group_norm(x, 2, WEIGHT, BIAS), (2, 4, 3)),
    "normalize": (lambda x: F.normalize(x, dim=1), (2, 4, 3)),
    "glu": (lambda x: F.glu(x, dim=1), (2, 4, 3)),
    "instance_norm": (lambda x: F.instance_norm(x, weight=WEIGHT, bias=BIAS), (2, 4, 5)),
    "softmax": (lambda x: torch.softmax(x, -1), (3, 4)),
    "F.softmin": (lambda x: F.softmin(x, dim=1), (3, 4)),
    "F.softmax": (lambda x: F.softmax(x, dim=0), (3, 4)),
    "Tensor.softmax": (lambda x: x.softmax(1), (3, 4)),
    "log_softmax": (lambda x: x.log_softmax(-1), (3, 4)),
    "std": (lambda x: x.std(-1), (3, 4)),
    "norm": (lambda x: x.norm(dim=1, keepdim=True), (3, 4)),
    "logsumexp": (lambda x: x.logsumexp((0, 1)), (3, 4)),
    "cosine_similarity": (lambda x: F.cosine_similarity(x, WEIGHT.to(x.dtype), dim=-1), (3, 4)),
}


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_first_order_in_the_limit(name):
    """With vanishing variance, the variance is that of the linearised function."""
    function, shape = FIRST_ORDER[name]
    x = normals(*shape, scale=1e-4)
    y = function(x)
    _, variance = oracles.multilinear(function, [x])
    torch.testing.assert_close(y.loc, function(x.loc), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(y.variance, variance, rtol=1e-5, atol=1e-15)


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_without_variance_it_is_the_plain_function(name):
    function, shape = FIRST_ORDER[name]
    plain = {"layer_norm": lambda x: F.layer_norm(x, (4,)), "rms_norm": lambda x: F.rms_norm(x, (4,)),
             "group_norm": lambda x: F.group_norm(x, 2), "instance_norm": F.instance_norm}  # fmt: skip
    for dtype, apply in ((torch.float64, function), (torch.float32, plain.get(name, function))):
        loc = normals(*shape).loc.to(dtype)
        y = apply(Moments(loc, 0.0))
        assert_same_up_to_rounding(y.loc, apply(loc))
        assert not y.variance.any(), dtype


@pytest.mark.parametrize("name", FIRST_ORDER)
def test_never_negative_never_nan(name):
    function, shape = FIRST_ORDER[name]
    for scale in (1e-3, 1.0, 100.0):
        x = normals(*shape, scale=scale, seed=3)
        loc, variance = (t.clone().requires_grad_() for t in (x.loc * 10, x.variance))
        y = function(Moments(loc, variance))
        assert torch.isfinite(y.loc).all()
        assert (y.variance >= 0).all()
        (y.loc.sum() + y.variance.sum()).backward()
        assert torch.isfinite(loc.grad).all()
        assert torch.isfinite(variance.grad).all()


@pytest.mark.parametrize("function", [F.layer_norm, F.rms_norm])
def test_norms_are_close_to_sampling(function):
    """64 features whose spread comes half from their means and half from their variances."""
    x = normals(4, 64, scale=1.0)
    mean, variance = sampled_moments(lambda t: function(t, (64,)), x, 10_000)
    y = function(x, (64,))
    assert (y.loc - mean).abs().max() < 0.04
    ratio = y.variance / variance
    assert abs(ratio.mean() - 1) < 0.02
    assert (ratio - 1).abs().max() < 0.1


def test_gates_and_directions_are_close_to_sampling():
    x = normals(4, 64, scale=1.0)
    for function, tolerance in ((F.glu, 0.05), (lambda t: F.normalize(t, dim=-1), 0.1)):
        mean, variance = sampled_moments(function, x, 20_000)
        y = function(x)
        assert (y.loc - mean).abs().max() < 0.04
        assert (y.variance / variance - 1).abs().max() < tolerance


@pytest.mark.parametrize("call", [lambda x: F.normalize(x, p=1.0), lambda x: torch.einsum("...i->i", x)])
def test_what_is_not_defined_is_refused(call):
    with pytest.raises(UnsupportedOperationError, match=r"is defined|not defined"):
        call(normals(2, 3))


def test_entries_are_assigned():
    x, y = normals(3, 4), normals(4, seed=5)
    loc, variance = x.loc.clone(), x.variance.clone()
    x[1] = y
    x[:, 0] = 2.0
    loc[1], variance[1] = y.loc, y.variance
    loc[:, 0], variance[:, 0] = 2.0, 0.0
    assert torch.equal(x.loc, loc)
    assert torch.equal(x.variance, variance)
    with pytest.raises(UnsupportedOperationError, match="cannot hold Moments"):
        torch.zeros(3, 4)[1] = y


def test_softmax_is_close_to_sampling():
    x = normals(50, 10, scale=0.5)
    mean, variance = sampled_moments(lambda t: t.softmax(-1), x)
    y = x.softmax(-1)
    assert (y.loc - mean).abs().max() < 0.03
    assert (y.variance.sqrt() - variance.sqrt()).abs().max() < 0.03
    uncertain = normals(50, 10, scale=20.0).softmax(-1)
    assert (uncertain.variance <= uncertain.loc * (1 - uncertain.loc) + 1e-12).all()


# -- batch norm while training -------------------------------------------------------------------
@pytest.mark.parametrize("shape", [(8, 3), (8, 3, 5), (4, 3, 2, 5)])
def test_batch_norm_training_uses_the_mixture_of_the_batch(shape):
    layer = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](3).double().train()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
    x = normals(*shape, scale=1.0)
    y = layer(x)
    # By sampling: a large batch drawn from the mixture has its statistics, up to sampling noise.
    torch.manual_seed(0)
    draws = (x.loc + x.variance.sqrt() * torch.randn(20_000, *shape, dtype=torch.float64)).flatten(0, 1)
    twin = type(layer)(3).double().train()
    twin(draws)
    n = x.numel() / 3
    torch.testing.assert_close(layer.running_mean, twin.running_mean, rtol=0.02, atol=1e-3)
    torch.testing.assert_close((layer.running_var - 0.9) * (n - 1) / n, twin.running_var - 0.9, rtol=0.02, atol=1e-3)
    assert layer.num_batches_tracked == 1
    dims = [d for d in range(len(shape)) if d != 1]
    total = y.variance.mean(dims) + y.loc.var(dims, unbiased=False)
    torch.testing.assert_close(total, layer.weight.detach() ** 2, rtol=1e-3, atol=0)


def test_batch_norm_training_without_variance():
    plain, layer = nn.BatchNorm2d(3).double().train(), nn.BatchNorm2d(3).double().train()
    x = normals(4, 3, 2, 5).loc
    y = layer(Moments(x, 0.0))
    torch.testing.assert_close(y.loc, plain(x), rtol=1e-12, atol=1e-12)
    assert not y.variance.any()
    torch.testing.assert_close(layer.running_mean, plain.running_mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.running_var, plain.running_var, rtol=1e-12, atol=1e-12)


def test_batch_norm_needs_more_than_one_value():
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        nn.BatchNorm1d(3).train()(Moments(torch.zeros(1, 3), 1.0))


# -- dropout ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("layer", [nn.Dropout(0.3), nn.AlphaDropout(0.3)], ids=lambda m: type(m).__name__)
def test_dropout_has_the_moments_of_its_noise(layer):
    x = normals(1, 4, scale=1.0)
    torch.manual_seed(0)
    count = 400_000
    noisy = layer(x.loc + x.variance.sqrt() * torch.randn(count, 4, dtype=torch.float64))
    y = layer(x)
    assert ((y.loc[0] - noisy.mean(0)).abs() < 5 * (noisy.var(0) / count).sqrt()).all()
    fourth = ((noisy - noisy.mean(0)) ** 4).mean(0)
    assert ((y.variance[0] - noisy.var(0)).abs() < 5 * ((fourth - noisy.var(0) ** 2) / count).sqrt()).all()
    assert layer.eval()(x) is x


# -- maxima ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("spread, tolerance", [(0.0, 3e-4), (0.5, 3e-4), (1.5, 1e-3), (3.0, 5e-3)])
@pytest.mark.parametrize("k", [3, 4, 9])
def test_maximum_agrees_with_integration(k, spread, tolerance):
    """`spread` is how much the standard deviations differ: e^spread either way."""
    rng = np.random.default_rng(k)
    loc, std = rng.normal(size=(12, k)), np.exp(spread * rng.normal(size=(12, k)))
    mean, variance = maximum_of(torch.from_numpy(loc), torch.from_numpy(std**2))
    for i in range(12):
        true_mean, true_variance = oracles.maximum(loc[i], std[i])
        assert abs(mean[i] - true_mean) < tolerance * true_variance**0.5
        assert abs(variance[i] / true_variance - 1) < 2 * tolerance


@pytest.mark.parametrize("pool, shape", [
    (lambda x: F.max_pool1d(x, 2), (2, 3, 6)),
    (lambda x: F.max_pool2d(x, 2), (1, 2, 4, 6)),
    (lambda x: F.max_pool2d(x, 3, stride=2, padding=1), (2, 2, 5, 6)),
    (lambda x: F.max_pool2d(x, (2, 3), ceil_mode=True), (1, 2, 5, 7)),
    (lambda x: F.max_pool2d(x, 2, stride=1, dilation=2), (1, 2, 5, 6)),
    (lambda x: F.max_pool2d(x, 3), (2, 6, 6)),
    (lambda x: F.max_pool3d(x, 2), (1, 1, 4, 2, 2)),
    (lambda x: F.adaptive_max_pool2d(x, (2, 1)), (1, 2, 4, 3)),
    (lambda x: torch.amax(x, 1), (2, 5)), (lambda x: torch.amin(x, (0, 2), keepdim=True), (2, 3, 4)),
    (lambda x: torch.max(x), (2, 4)),
])  # fmt: skip
def test_max_pool_windows(pool, shape):
    """The right entries in each window: against draws, and exactly the plain result without variance."""
    x = normals(*shape, scale=1.0)
    y = pool(x)
    assert torch.equal(pool(Moments(x.loc, 0.0)).loc, pool(x.loc))
    assert not pool(Moments(x.loc, 0.0)).variance.any()
    count = 20_000
    mean, variance = sampled_moments(pool, x, count)
    assert ((y.loc - mean).abs() < 5.5 * (variance / count).sqrt() + 1e-3).all()
    assert (y.variance / variance - 1).abs().max() < 6 * (2.5 / count) ** 0.5


def test_max_pool_gradients():
    x = normals(1, 1, 4, 4, scale=1.0)

    def moments(m, v):
        y = F.max_pool2d(Moments(m, v), 2)
        return y.loc, y.variance

    # The node positions are constants to the gradient, so it differs from the true one by the rule's own error.
    leaves = (x.loc.requires_grad_(), x.variance.requires_grad_())
    assert torch.autograd.gradcheck(moments, leaves, atol=1e-3, rtol=1e-2)


def test_max_pool_in_float32_at_the_extremes():
    std = torch.cat([torch.logspace(-6, 3, 10), torch.tensor([1e-18, 1e-12])])
    loc = torch.randn(200, 9, generator=torch.Generator().manual_seed(0))
    for s in std:
        m, v = (loc * s).requires_grad_(), ((s * torch.rand(200, 9)) ** 2).requires_grad_()
        if s < 1e-6:
            m = loc.clone().requires_grad_()
        mean, variance = maximum_of(m, v)
        assert torch.isfinite(mean).all()
        assert (variance >= 0).all()
        (mean.sum() + variance.sum()).backward()
        assert torch.isfinite(m.grad).all()
        assert torch.isfinite(v.grad).all()


def test_max_of_which_entry_is_refused():
    with pytest.raises(TypeError, match=r"torch\.amax"):
        torch.max(Moments(torch.zeros(2, 3), 1.0), dim=1)


# -- attention -------------------------------------------------------------------------------------
@pytest.mark.parametrize("random", ["k", "v", "kv"])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"attn_mask": MASK}, {"scale": 0.2}], ids=str)
def test_attention_to_first_order(random, options):
    parts = {name: normals(2, n, 4, scale=1e-4, seed=i) for i, (name, n) in enumerate([("q", 2), ("k", 3), ("v", 3)])}
    operands = [x if name in random else x.loc for name, x in parts.items()]

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, **options)

    y = attend(*operands)
    mean, variance = oracles.multilinear(attend, operands)
    torch.testing.assert_close(y.loc, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(y.variance, variance, rtol=1e-4, atol=1e-14)


def test_attention_is_close_to_sampling():
    """All three random. Scores of one query share it, which the rule does not know: hence the wide margin."""
    parts = [normals(8, 6, 16, scale=0.3, seed=i) for i in range(3)]
    torch.manual_seed(0)
    draws = [x.loc + x.variance.sqrt() * torch.randn(4000, *x.shape, dtype=x.dtype) for x in parts]
    sampled = F.scaled_dot_product_attention(*draws)
    y = F.scaled_dot_product_attention(*parts)
    assert (y.loc - sampled.mean(0)).abs().max() < 0.1
    ratio = (y.variance / sampled.var(0)).sqrt()
    assert 0.9 < ratio.mean() < 1.1
    assert 0.6 < ratio.min() < ratio.max() < 1.6


def test_attention_over_equal_values_has_no_doubt():
    query, key = normals(2, 4, 8, scale=2.0, seed=0), normals(2, 5, 8, scale=2.0, seed=1)
    value = torch.full((2, 5, 3), 7.0, dtype=torch.float64)
    y = F.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(y.loc, torch.full_like(y.loc, 7.0))
    assert y.variance.max() < 1e-12


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multi_head_attention_is_torchs_own_without_variance(batch_first, need_weights):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=batch_first).double().eval()
    x = normals(3, 5, 8).loc
    padding = torch.zeros(3 if batch_first else 5, 5 if batch_first else 3, dtype=torch.bool)
    padding[:, -1] = True
    length = 5 if batch_first else 3
    causal = torch.ones(length, length, dtype=torch.bool).triu(1)
    arguments = {"key_padding_mask": padding, "attn_mask": causal, "need_weights": need_weights}
    plain, plain_weights = layer(x, x, x, **arguments)
    y = Moments(x, 0.0)
    out, weights = layer(y, y, y, **arguments)
    torch.testing.assert_close(out.loc, plain, rtol=1e-12, atol=1e-12)
    assert not out.variance.any()
    if need_weights:
        torch.testing.assert_close(weights.loc, plain_weights, rtol=1e-12, atol=1e-12)
