"""Blocks and options that change how products are computed: prepared weights, shared variances, rounded products."""

import copy
import threading

import pytest
import torch
from torch import nn

import bedl
from bedl import Moments
from bedl.methods import Batch
from bedl.nn import GaussianMultiheadAttention, variance_products
from tests.closeness import assert_same_up_to_rounding


def small_net(**options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    return bedl.bayesianize(net, init_logvar=-4.0, **options)


@pytest.mark.parametrize("variances", ["full", "output"])
@pytest.mark.parametrize("corrected", [False, True])
def test_frozen_weights_give_the_same_numbers(variances, corrected):
    net, x = small_net(variances=variances), torch.randn(5, 1, 8, 8)
    if corrected:
        bedl.correct_variances(net, x, draws=10)
    expected = net(x)
    with bedl.cached_weights(net) as inside:
        assert inside is net
        assert_same_up_to_rounding(net(x), expected)
        assert net[0].weight.variance is net[0].weight.variance  # computed once
        assert net[0].weight.gain is not None
    assert net[0].weight.variance is not net[0].weight.variance
    assert net[0].weight.variance.requires_grad


@pytest.mark.parametrize(
    "make, x",
    [
        (lambda: bedl.GaussianEmbedding(5, 3, padding_idx=0), torch.tensor([[0, 2, 4]])),
        (lambda: bedl.nn.GaussianConvTranspose1d(2, 3, 3), torch.ones(2, 2, 4)),
        (lambda: GaussianMultiheadAttention(4, 2, batch_first=True), torch.ones(2, 3, 4)),
        (lambda: GaussianMultiheadAttention(4, 2, kdim=4, vdim=4, batch_first=True), torch.ones(2, 3, 4)),
    ],
)
def test_frozen_layers_of_every_kind(make, x):
    layer = make()
    call = (lambda: layer(x, x, x)[0]) if isinstance(layer, GaussianMultiheadAttention) else (lambda: layer(x))
    expected = call()
    with bedl.cached_weights(layer):
        assert_same_up_to_rounding(call(), expected)


def test_frozen_ends_after_an_error_and_may_be_nested():
    net, x = small_net(), torch.randn(2, 1, 8, 8)

    def fail():
        with bedl.cached_weights(net[2]):
            net(x)
        assert net[2].prepared is not None
        raise KeyError

    with pytest.raises(KeyError), bedl.cached_weights(net):
        fail()
    assert all(layer.prepared is None for layer in net.modules() if isinstance(layer, bedl.nn.GaussianLayer))


def test_frozen_weights_are_not_trained():
    net, x = small_net(), torch.randn(4, 1, 8, 8)
    method, y = bedl.BEDL(net, bedl.Normal(1)), torch.zeros(4)
    with bedl.cached_weights(net):
        copied = copy.deepcopy(method)
        with pytest.raises(bedl.BEDLError, match="fit: inside"):
            bedl.fit(method, (x, y), epochs=1, fabric={"accelerator": "cpu"})
        with pytest.raises(bedl.BEDLError, match="fit_replicas: inside"):
            bedl.fit_replicas([method], (x, y), epochs=1)
        with pytest.raises(bedl.BEDLError, match="loss, with gradients: inside"):
            method.loss(Batch(x, y, 4))
        with torch.no_grad():
            assert method.loss(Batch(x, y, 4)).isfinite()
        with pytest.raises(bedl.BEDLError, match="correct_variances: inside"):
            bedl.correct_variances(net, x)
        with pytest.raises(bedl.BEDLError, match="load_state_dict: inside"):
            net.load_state_dict(net.state_dict())
    assert copied.net[0].prepared is None  # a copy has its own weights
    bedl.fit(copied, (x, y), epochs=1, fabric={"accelerator": "cpu"})


def test_frozen_weights_have_no_gradient():
    net = nn.Sequential(bedl.GaussianLinear(3, 4), nn.ReLU(), bedl.GaussianLinear(4, 2))
    x = torch.randn(5, 3, requires_grad=True)
    with bedl.cached_weights(net):
        y = net(x)
    (y.loc.sum() + y.variance.sum()).backward()
    assert all(p.grad is None for name, p in net.named_parameters() if "weight" in name)
    assert x.grad is not None
    with pytest.raises(TypeError, match=r"nn\.Module, not Tensor"), bedl.cached_weights(x):
        pass


def test_blocks_of_several_threads_may_overlap():
    net, x = small_net(), torch.randn(1, 1, 8, 8)
    expected = net(x)
    results = []

    def work():
        for _ in range(20):
            with bedl.cached_weights(net), torch.no_grad():
                results.append(net(x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80
    for result in results:
        assert_same_up_to_rounding(result, expected)
    assert all(layer.prepared is None for layer in net.modules() if isinstance(layer, bedl.nn.GaussianLayer))


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_under_vmap(channels):
    """As replicas use them; the layout in memory is hidden there."""
    torch.manual_seed(0)
    layer, x = bedl.GaussianConv2d(channels, 4, 3), torch.randn(5, channels, 6, 6)
    expected = layer(x)
    one_by_one = torch.func.vmap(lambda point: layer(point.unsqueeze(0)).squeeze(0))(x)
    torch.testing.assert_close(one_by_one.loc, expected.loc)
    torch.testing.assert_close(one_by_one.variance, expected.variance)

    def net():
        plain = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
        return bedl.BEDL(bedl.bayesianize(plain), bedl.Dirichlet(3))

    methods = [net(), net()]
    alone = copy.deepcopy(methods[1])
    data = (x, torch.tensor([0, 1, 2, 0, 1]))
    bedl.fit_replicas(methods, data, epochs=2, batch_size=5, seeds=[0, 1], device="cpu")
    bedl.fit(alone, data, epochs=2, batch_size=5, seed=1, fabric={"accelerator": "cpu"})
    for a, b in zip(methods[1].parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_frozen_compiles():
    net, x = small_net(), torch.randn(2, 1, 8, 8)
    expected = net(x)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    with bedl.cached_weights(net), torch.no_grad():
        frozen = compiled(x)
    for result in (frozen, compiled(x)):
        torch.testing.assert_close(result.loc, expected.loc)
        torch.testing.assert_close(result.variance, expected.variance)


def test_variances_by_output_are_those_of_full_ones_that_are_equal():
    shared, full, x = small_net(variances="output"), small_net(), torch.randn(4, 1, 8, 8)
    with torch.no_grad():
        for a, b in zip(shared.parameters(), full.parameters(), strict=True):
            a.uniform_(-3, -1) if a.shape != b.shape else a.normal_()
            b.copy_(a)
    for result in (shared(x), shared(Moments(x, torch.rand_like(x)))):
        assert result.shape == (4, 2)
    torch.testing.assert_close(shared(x).variance, full(x).variance, rtol=1e-5, atol=1e-6)
    assert sum(p.numel() for p in shared.parameters()) < 0.6 * sum(p.numel() for p in full.parameters())
    noisy = Moments(x, torch.rand_like(x))
    torch.testing.assert_close(shared(noisy).variance, full(noisy).variance, rtol=1e-5, atol=1e-6)
    # unbatched images, and back to a plain network
    torch.testing.assert_close(shared[0](x[0]).variance, full[0](x[0]).variance, rtol=1e-5, atol=1e-6)
    assert (bedl.deterministic(shared)(x) == bedl.deterministic(full)(x)).all()


def test_a_shared_variance_has_one_prior():
    shared = bedl.GaussianLinear(3, 2, variances="output", init_logvar=-2.0)
    prior = bedl.HyperPrior()
    before = prior.log_density(shared)
    with torch.no_grad():
        shared.weight_logvar[0] = -1.0
    one = bedl.GaussianLinear(1, 1)
    with torch.no_grad():
        one.weight_mean.zero_(), one.weight_logvar.fill_(-1.0)
        low = prior.log_density(one)
        one.weight_logvar.fill_(-2.0)
    torch.testing.assert_close(prior.log_density(shared) - before, low - prior.log_density(one), rtol=1e-3, atol=1e-3)


def test_wrong_variances_are_refused():
    with pytest.raises(ValueError, match="GaussianLinear are 'full' or 'output', not 'rows'"):
        bedl.GaussianLinear(2, 2, variances="rows")
    with pytest.raises(ValueError, match="GaussianEmbedding are 'full', not 'output'"):
        bedl.GaussianEmbedding(2, 2, variances="output")
    with pytest.raises(ValueError, match="'full', 'output' or tensors"):
        bedl.bayesianize(nn.Linear(2, 2), variances="rows")


@pytest.mark.parametrize("variances", ["full", "output"])
def test_products_of_variances_in_bfloat16(variances):
    net, x = small_net(variances=variances), torch.randn(50, 1, 8, 8)
    exact = net(x)
    with variance_products(torch.bfloat16):
        result = net(x)
        gradients = torch.autograd.grad(result.loc.sin().sum() + result.variance.log().sum(), list(net.parameters()))
    expected = torch.autograd.grad(exact.loc.sin().sum() + exact.variance.log().sum(), list(net.parameters()))
    assert result.variance.dtype == torch.float32
    assert ((result.variance / exact.variance).sqrt() - 1).abs().max() < 5e-3
    assert ((result.loc - exact.loc).abs() / exact.variance.sqrt()).max() < 5e-3
    assert not (result.variance == exact.variance).all()
    for a, b in zip(gradients, expected, strict=True):
        assert (a - b).norm() < 0.01 * b.norm()
    assert_same_up_to_rounding(net(x), exact, ulps=0)  # after the block, the way of before


def test_second_moments_are_made_again_not_kept():
    """E[x²] is as large as the input; of a linear layer autograd keeps mean and variance, and that is all."""
    layer = bedl.GaussianLinear(30, 20)
    x = Moments(torch.randn(50, 30, requires_grad=True), torch.rand(50, 30, requires_grad=True))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.data_ptr()) or t, lambda t: t):
        y = layer(x)
    found = torch.autograd.grad(y.variance.sin().sum() + y.loc.sin().sum(), [x.loc, x.variance, *layer.parameters()])
    assert kept.count(x.loc.data_ptr()) >= 1
    loc, variance = y.loc.new_tensor(0), None  # the same without the rule's own hooks
    weight, spread = layer.weight_mean, layer.weight_logvar.exp()
    loc = nn.functional.linear(x.loc, weight, layer.bias)
    variance = x.variance @ weight.square().T + (x.loc.square() + x.variance) @ spread.T
    expected = torch.autograd.grad(variance.sin().sum() + loc.sin().sum(), [x.loc, x.variance, *layer.parameters()])
    torch.testing.assert_close(found, expected)


def test_other_precisions_are_refused_and_exports_are_not_rounded():
    for wrong in (torch.float16, torch.int8, "bfloat16"):
        with pytest.raises(ValueError, match=r"torch\.bfloat16 or None"), variance_products(wrong):
            pass
    net, x = small_net(), torch.randn(2, 1, 8, 8)
    with variance_products(torch.bfloat16):
        program = torch.export.export(net, (x,))
    torch.testing.assert_close(program.module()(x).variance, net(x).variance)
