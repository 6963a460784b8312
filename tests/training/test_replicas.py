"""Many networks as one: the same as each alone."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bedl import GaussianLinear
from bedl.heads import Normal
from bedl.methods import BEDL
from bedl.objectives import PAC, HyperPrior, Unknown
from bedl.objectives.ood_samples import around_and_beyond, permute_columns
from bedl.training import Constant, NonFiniteLossError, adam, fit, fit_replicas
from bedl.training.data import Points
from bedl.training.engines.stacked import BatchPreparation, ReplicaBatch, ReplicaBatches, VectorAdam, clipping, norms
from benchmarks.replicas import concrete, paper_net
from tests.training.problems import classes, method, regression, vector


def as_solo(models: list[BEDL], data: list, epochs: int, seeds: list[int], lr: list[float], **how: object) -> Tensor:
    """Each trained by `fit`, one after the other. shape: (R, P)"""
    for model, pair, seed, rate in zip(models, data, seeds, lr, strict=True):
        fit(model, pair, epochs=epochs, seed=seed, optimizer=adam(rate), accelerator="cpu", precision="64-true", **how)
    return torch.stack([vector(model) for model in models])


@pytest.mark.parametrize("kind", ["none", "pac", "authors-code", "pac+hyper", "perturbed"])
def test_replicas_equal_solo_runs(kind: str) -> None:
    """Different seeds, training sets of different sizes, learning rates; float64, so that only mistakes show."""
    seeds, lr = [3, 1, 4], [1e-3, 1e-2, 3e-3]
    data = [regression(n, seed=n, dtype=torch.float64) for n in (45, 64, 33)]
    together, alone = ([method(kind, seed=s).double() for s in seeds] for _ in range(2))
    fit_replicas(together, data, epochs=6, batch_size=16, lr=lr, seeds=seeds)
    expected = as_solo(alone, data, 6, seeds, lr, batch_size=16)
    found = torch.stack([vector(model) for model in together])
    assert torch.allclose(found, expected, atol=1e-8), float((found - expected).abs().max())
    assert float((found[0] - vector(method(kind, seed=3).double())).abs().max()) > 1e-3  # they did move


def test_replicas_equal_solo_runs_in_single_precision() -> None:
    models, alone = ([method("pac", seed=s) for s in range(4)] for _ in range(2))
    fit_replicas(models, regression(), epochs=10)
    for seed, model in enumerate(alone):
        fit(model, regression(), epochs=10, seed=seed, accelerator="cpu")
    difference = torch.stack([vector(a) - vector(b) for a, b in zip(models, alone, strict=True)])
    assert float(difference.abs().max()) < 1e-5


def test_replicas_of_a_classifier() -> None:
    models, alone = ([method("pac", seed=s, head="classes") for s in range(2)] for _ in range(2))
    result = fit_replicas(models, classes(), epochs=5)
    for seed, model in enumerate(alone):
        rows = fit(model, classes(), epochs=5, seed=seed, accelerator="cpu").rows
        assert torch.allclose(vector(models[seed]), vector(model), atol=1e-5)
        own = [row["loss"] for row in result.rows if row["replica"] == seed]
        assert own == pytest.approx([row["loss"] for row in rows], rel=1e-5)
        assert result.loss[seed].item() == pytest.approx(rows[-1]["loss"], rel=1e-5)


def test_compiled_replicas_equal_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedl.moments.rules.relu.MIN_NUMEL", 0)  # kernels are called in small networks, too
    results = []
    for compile in (False, True):
        models = [method(seed=seed) for seed in range(3)]
        fit_replicas(models, regression(64), epochs=4, device="cpu", compile=compile)
        results.append(torch.stack([vector(model) for model in models]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_numbers_of_objectives_may_differ() -> None:
    """A sweep over a hyper-parameter is one run."""

    def make(strength: float, b0: float) -> BEDL:
        model = method("pac").double()
        return BEDL(model.net, model.head, PAC(delta=0.1, strength=strength) + HyperPrior(b0=b0))

    values = [(0.0, 0.01), (0.5, 0.1), (2.0, 0.01)]
    together, alone = ([make(*v) for v in values] for _ in range(2))
    data = regression(dtype=torch.float64)
    fit_replicas(together, data, epochs=4, seeds=[0, 0, 0])
    expected = as_solo(alone, [data] * 3, 4, [0, 0, 0], [1e-3] * 3)
    # the numbers themselves are kept in single precision
    assert torch.allclose(torch.stack([vector(m) for m in together]), expected, atol=1e-6)
    assert [model.objective.terms[1].strength for model in together] == [0.0, 0.5, 2.0]


@pytest.mark.parametrize(
    "other, complaint",
    [
        (lambda: method(hidden=9), "hidden|features|shape"),
        (lambda: method(head="classes"), "modules"),
        (lambda: method(dropout=0.5), "p = 0.5"),
        (lambda: method("none"), "kinds of objectives"),
        (lambda: method("authors-code"), "kl_scale"),
    ],
)
def test_replicas_of_another_build_are_refused(other: Callable[[], BEDL], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fit_replicas([method(), other()], regression(), epochs=1)


def test_a_replica_that_fails_is_named() -> None:
    models = [method(seed=s) for s in range(3)]
    with torch.no_grad():
        models[1].net[0].weight_mean[0, 0] = float("inf")
    before = [vector(model) for model in models]
    with pytest.raises(NonFiniteLossError, match=r"replica 1: net\.0\.weight_mean"):
        fit_replicas(models, regression(), epochs=1)
    assert all(torch.equal(vector(m), b) for m, b in zip(models, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_vector_adam_is_torchs_adam(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    start, lr = torch.randn(4, 7, generator=g, dtype=dtype), [1e-3, 1e-2, 0.0, 1.0]
    rows = start.clone()
    mine = VectorAdam(rows, betas=(0.8, 0.99), eps=1e-6)
    theirs = [nn.Parameter(row.clone()) for row in start]
    optimizers = [
        torch.optim.Adam([p], lr=rate, betas=(0.8, 0.99), eps=1e-6) for p, rate in zip(theirs, lr, strict=True)
    ]
    for _ in range(50):
        gradient = torch.randn(4, 7, generator=g, dtype=dtype)
        mine.step(gradient, lr)
        for parameter, row, optimizer in zip(theirs, gradient, optimizers, strict=True):
            parameter.grad = row.clone()
            optimizer.step()
    expected = torch.stack([p.detach() for p in theirs])
    assert torch.allclose(rows, expected, rtol=1e-6 if dtype is torch.float32 else 1e-13, atol=1e-6)
    assert torch.equal(rows[2], start[2])


def test_clipping_is_torchs() -> None:
    gradient = (
        torch.randn(5, 6, generator=torch.Generator().manual_seed(0)) * torch.tensor([0.01, 0.1, 1.0, 10, 100])[:, None]
    )
    scale = clipping(norms(gradient).tolist(), 1.0)
    for row, clipped in zip(gradient, gradient * torch.tensor(scale)[:, None], strict=True):
        parameter = nn.Parameter(torch.zeros(6))
        parameter.grad = row.clone()
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        assert torch.allclose(clipped, parameter.grad, rtol=1e-6)


def test_batches_are_those_of_fit() -> None:
    """Every replica sees each of its points once an epoch; padding has weight 0; a set used twice is stored once."""
    big, small = regression(10), regression(7, seed=1)
    batches = ReplicaBatches([big, small, big], [0, 1, 2], epochs=2, batch_size=4, device=torch.device("cpu"))
    assert len(batches) == 6
    assert batches.totals == [6, 4, 6]
    assert len(batches.joined.x) == 17
    for replica, (x, _) in enumerate((big, small, big)):
        seen = []
        for step in range(batches.totals[replica]):
            rows = batches[step]
            count = rows.counts[replica]
            weight = torch.ones(rows.y.shape[1]) if rows.weight is None else rows.weight[replica]
            assert weight.tolist() == [1.0] * count + [0.0] * (len(weight) - count)
            seen.append(rows.x[replica, :count])
        both = torch.cat(seen)
        for epoch in (both[: len(x)], both[len(x) :]):
            assert torch.equal(epoch.sort(0).values, x.sort(0).values)
    assert batches[5].counts == [2, 0, 2]
    assert isinstance(Points(big), Points)


# -- real data ----------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.skipif("BEDL_DATA" not in os.environ, reason="set BEDL_DATA to a folder with UCI_Datasets/concrete")
def test_twenty_splits_of_concrete_equal_solo_runs() -> None:
    sets = [concrete(split) for split in range(20)]
    together = [paper_net(seed) for seed in range(20)]
    fit_replicas(together, sets, epochs=5, schedule=Constant())
    for split in (0, 7, 19):
        alone = paper_net(split)
        fit(alone, sets[split], epochs=5, seed=split, schedule=Constant(), accelerator="cpu")
        assert float((vector(together[split]) - vector(alone)).abs().max()) < 1e-5


def test_copies_of_some_points_stand_where_their_points_do() -> None:
    """A replica with fewer points has copies for all of them that count, whether drawn for all replicas or for each."""
    for perturbation in (permute_columns, around_and_beyond):
        methods = [
            BEDL(GaussianLinear(2, 2), Normal(1), Unknown(perturbation=perturbation, share=0.5)) for _ in range(2)
        ]
        weight = torch.tensor([[1.0] * 8, [1.0] * 5 + [0.0] * 3])
        x = torch.randn(2, 8, 2)
        x[1, 5:] = 1e6  # padding
        rows = ReplicaBatch(x, torch.randn(2, 8, 1), weight, [8, 5])
        batch = BatchPreparation(methods, [0, 1])(rows, [8, 5])
        assert batch.perturbed.shape == (2, 4, 2)
        assert batch.perturbed.abs().max() < 1e4
