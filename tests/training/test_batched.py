"""Networks run as one without vmap, in PyTorch and in C, against vmap and autograd."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bedl import GaussianLinear
from bedl._kernels import inference
from bedl.heads import Dirichlet, Normal, dirichlet
from bedl.methods import BEDL, Batch, Problem, registry
from bedl.nn.tabular import PeriodicEmbedding, SkipLinear, Standardize
from bedl.objectives import PAC, HyperPrior, Known, MarginalLikelihood, Objective, Sum, Unknown, WeightPrior
from bedl.objectives.ood_samples import around_and_beyond
from bedl.training.engines.fused import OutputLoss, Pair
from bedl.training.engines.stacked import StackedNetworks

R, N, D = 3, 20, 4
Regularizer = Objective | Sum | None


def mlp(outputs: int, activation: Callable[[], nn.Module] = nn.ReLU) -> nn.Sequential:
    return nn.Sequential(
        GaussianLinear(D, 9), activation(), GaussianLinear(9, 7), activation(), GaussianLinear(7, outputs)
    )


def table(outputs: int, size: int = 4) -> nn.Sequential:
    columns = PeriodicEmbedding(D, size=size)
    body = nn.Sequential(GaussianLinear(columns.n_outputs, 8), nn.ReLU(), GaussianLinear(8, outputs))
    return nn.Sequential(Standardize(torch.randn(D), torch.rand(D) + 0.5), SkipLinear(columns, body, outputs))


def gap(strength: float = 3.0, share: float = 1.0) -> Sum:
    return Known(0.3) + Unknown(0.4, around_and_beyond, share) + WeightPrior(strength)


METHODS: dict[str, Callable[[int], BEDL]] = {
    "plain": lambda _: BEDL(mlp(2), Normal(), None),
    "paper": lambda _: BEDL(mlp(2), Normal(beta=3.0, prior_precision=2.0), PAC()),
    "learned noise, two targets": lambda _: BEDL(mlp(6), Normal(2, noise="learned"), PAC(strength=0.5) + Known()),
    "table": lambda r: BEDL(table(3), Normal(noise="learned"), gap(1.0 + r)),
    "table, copies of some": lambda _: BEDL(table(3), Normal(noise="learned"), gap(2.0, share=0.3)),
    "table, long embedding": lambda _: BEDL(table(6, size=9), Normal(2, noise="learned"), gap()),
    "table, bounded only": lambda _: BEDL(table(2, size=0), Normal(), gap()),
    "strengths that differ": lambda r: BEDL(mlp(2), Normal(), PAC(strength=0.2 * r) + Known(0.1 * r)),
    "other activation": lambda _: BEDL(mlp(2, nn.Tanh), Normal(), PAC(evidence="all", kl_scale="authors-code")),
    "classes": lambda _: BEDL(mlp(3), Dirichlet(3), PAC(evidence="misleading") + WeightPrior()),
    "classes of a table": lambda _: BEDL(table(3), Dirichlet(3), gap()),
    "classes of a table, copies of some": lambda _: BEDL(table(3), Dirichlet(3), gap(share=0.3)),
    "classes, strengths that differ": lambda r: BEDL(mlp(3), Dirichlet(3, 24, 8), Known(0.1 * r) + WeightPrior()),
}


def problem(name: str, dtype: torch.dtype, weighted: bool) -> tuple[StackedNetworks, Batch]:
    g = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        methods = [METHODS[name](r).to(dtype) for r in range(R)]
    for method in methods:
        if "table" in name:  # replicas share what scales their inputs, and may have another
            method.net[0].load_state_dict(methods[min(1, len(name) % 3)].net[0].state_dict())  # type: ignore[union-attr]
        for parameter in method.parameters():  # far from where they start, where much is 0
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=g)
        for logvar in (p for key, p in method.named_parameters() if key.endswith("logvar")):
            logvar.data += 6
    x = torch.randn(R, N, D, generator=g, dtype=torch.float64).to(dtype)
    targets = getattr(methods[0].head, "n_targets", 1)
    y = torch.randn(R, N, targets, generator=g, dtype=torch.float64).to(dtype)
    classes = torch.randint(3, (R, N), generator=g)
    weight = None
    if weighted:
        weight = torch.rand(R, N, generator=g, dtype=torch.float64).to(dtype)
        weight[:, -3:] = 0.0
        y[:, -1] = 1e6  # padding
    batch = Batch(x, classes if "classes" in name else y, torch.tensor([100.0, 200.0, 50.0]), weight)
    return StackedNetworks(methods), methods[0].prepare(batch, g)


def both_ways(stacked: StackedNetworks, batch: Batch) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Loss and gradient of each replica, as it comes and by vmap. shapes: (R,), (R, P)"""
    assert stacked.batched is not None
    loss, gradient = stacked.gradients(batch)
    found = loss, gradient.clone()  # which is written to again
    kept, stacked.batched = stacked.batched, None
    expected = stacked.gradients(batch)
    stacked.batched = kept
    return found, expected


@pytest.mark.parametrize("native", [True, False], ids=["C", "PyTorch"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", METHODS)
def test_gradients_are_those_of_vmap(name: str, weighted: bool, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(inference, "_library", None)
    dtype, most = (torch.float32, 1e-5) if native else (torch.float64, 1e-10)
    stacked, batch = problem(name, dtype, weighted)
    for _ in range(2):  # memory is used again
        (loss, gradient), (expected_loss, expected) = both_ways(stacked, batch)
        torch.testing.assert_close(loss, expected_loss, rtol=most, atol=most)
        for part, wanted in zip(gradient.split(stacked.sizes, 1), expected.split(stacked.sizes, 1), strict=True):
            assert wanted.norm() > 0
            assert (part - wanted).norm() <= most * wanted.norm()
        batch = Batch(*(part if part is None or part.dim() < 2 else part[:, :11] for part in batch))  # type: ignore


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("logvar", [(-12.0, 1.0), (-1.0, 1.0), (1.0, 2.0)], ids=["known", "some", "any"])
@pytest.mark.parametrize("classes", [2, 10, 40])
def test_losses_of_classes_in_c_are_those_in_double_precision(classes: int, logvar: tuple, weighted: bool) -> None:
    g = torch.Generator().manual_seed(classes)
    loc, variance = (torch.randn(R, 2 * N, classes, generator=g) for _ in range(2))
    loc, variance = 4 * loc, (logvar[0] + logvar[1] * variance).exp()
    y = torch.randint(classes, (R, N), generator=g)
    weight = torch.rand(R, N, generator=g) * (torch.arange(N) < N - 3) if weighted else None
    loss = OutputLoss(Dirichlet(classes), MarginalLikelihood() + gap(), {})
    assert loss.kernel is not None
    batch = Batch(loc, y, torch.tensor([100.0, 200.0, 50.0]), weight)
    value, by = loss(Pair(loc, variance), batch)
    loss.kernel = None
    exact = None if weight is None else weight.double()
    expected, wanted = loss(Pair(loc.double(), variance.double()), batch._replace(weight=exact))
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-5)
    for found, truth in zip(by, wanted, strict=True):
        assert found is not None
        assert truth is not None
        torch.testing.assert_close(found.double(), truth, rtol=1e-3, atol=1e-4 * truth.abs().max().item())


@pytest.mark.parametrize("name", ["paper", "learned noise, two targets", "classes of a table"])
def test_log_densities_are_those_of_each_prediction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And classes are scored without the parts of their uncertainty, which would take most of the time."""
    stacked, batch = problem(name, torch.float32, weighted=False)
    truth = [
        method.predict(x).log_prob(y) for method, x, y in zip(stacked.methods, batch.x, batch.y, strict=True)
    ]  # fmt: skip
    monkeypatch.setattr(dirichlet, "expected_data_entropy", None)
    torch.testing.assert_close(stacked.log_densities(batch.x, batch.y), torch.stack(truth), rtol=1e-4, atol=1e-5)


def test_heads_of_classes_that_c_does_not_know_go_by_torch() -> None:
    for head in (Dirichlet(3, class_weight=[1.0, 2.0, 1.0]), Dirichlet(3, ignore_index=1), Dirichlet(3, nodes=80)):
        assert OutputLoss(head, MarginalLikelihood() + Known(), {}).kernel is None
    assert OutputLoss(Dirichlet(3), MarginalLikelihood() + PAC(), {}).kernel is None


def test_what_is_not_known_goes_by_vmap() -> None:
    shared = GaussianLinear(D, D)
    hooked = mlp(2)
    hooked[0].register_forward_hook(lambda *_: None)
    constant = mlp(2)
    constant[0].weight_mean.requires_grad_(False)
    learned = BEDL(mlp(2), Normal(learn_beta=True), None)
    for method in (
        BEDL(mlp(2), Normal(), HyperPrior()),
        BEDL(nn.Sequential(shared, nn.ReLU(), shared, GaussianLinear(D, 2)), Normal(), None),
        BEDL(nn.Sequential(GaussianLinear(D, 2), nn.BatchNorm1d(2)), Normal(), None),
        BEDL(nn.Sequential(GaussianLinear(D, 2, variances="output")), Normal(), None),
        *(BEDL(net, Normal(), None) for net in (hooked, constant)),
        learned,
    ):
        assert StackedNetworks([method]).batched is None


def test_a_method_of_ones_own_goes_by_vmap() -> None:
    class Own(BEDL):
        def statistics(self, batch: Batch) -> Tensor:
            return 2 * super().statistics(batch)

    assert StackedNetworks([BEDL(mlp(2), Normal(), None)]).batched is not None
    assert StackedNetworks([Own(mlp(2), Normal(), None)]).batched is None


def test_a_table_in_a_blink() -> None:
    """What tables are trained with by default is known."""
    for task, targets in (("regression", 2), ("classification", 3)):
        method = registry.get("evidence")(Problem(task, targets, (D,)))
        assert StackedNetworks(list(method.members)).batched is not None
