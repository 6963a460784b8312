"""What CONTRIBUTING.md tells people to write works when it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bedl import BEDL, PAC, BEDLRegressor, GaussianLinear, Normal, fit
from bedl.bench.benchmark import Cell
from bedl.methods import Batch, Method, registry
from bedl.moments import Moments, dispatch
from bedl.moments.rules import table
from tests import recipes
from tests.rules import test_elementwise, test_whole_range

SECTIONS = sorted({block.section for block in recipes.blocks()})


@pytest.mark.parametrize("section", SECTIONS)
def test_the_code_of_a_section_runs(section: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recipes.follow(section, monkeypatch)


@pytest.fixture
def own_rules() -> Iterator[None]:
    before = dict(dispatch._RULES)
    yield
    dispatch._RULES.clear()
    dispatch._RULES.update(before)


@pytest.mark.usefixtures("own_rules")
def test_an_activation_passes_the_tests_of_its_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rows, cases = recipes.follow("Add an activation", monkeypatch)
    assert isinstance(rows, dict)
    for names, rule in rows.items():
        assert names not in table.TABLE["activation"]
        monkeypatch.setitem(table.TABLE["activation"], names, rule)
    table._install()
    assert cases
    for case in cases:
        test_elementwise.test_agrees_with_quadrature(case)
        test_elementwise.test_extremes_in_float32(case)
        test_elementwise.test_float32_agrees_with_float64(case)
        test_elementwise.test_gradients(case)
        test_whole_range.test_over_all_of_float32(case)
        test_elementwise.test_without_variance_it_is_the_plain_function(case)
        test_elementwise.test_vanishing_variances_have_finite_gradients(case)


def test_a_method_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_METHODS", {name: registry.get(name) for name in registry.names()})
    (module,) = recipes.follow("Add a method", monkeypatch)
    kind = module.MyMethod  # type: ignore[union-attr]
    assert issubclass(kind, Method)
    torch.manual_seed(0)
    x = torch.randn(200, 2)
    y = x @ torch.tensor([1.0, -2.0]) + 0.1 * torch.randn(200)
    method = kind(GaussianLinear(2, 2), Normal(1))
    optimizer = lambda parameters: torch.optim.Adam(parameters, lr=0.05)
    fit(method, (x, y), epochs=40, optimizer=optimizer, fabric={"accelerator": "cpu"})
    prediction = method.predict(x)
    assert (prediction.mean[:, 0] - y).square().mean().sqrt() < 0.2
    by_name = BEDLRegressor(method="my-method", epochs=2, device="cpu", random_state=0).fit(x.numpy(), y.numpy())
    assert by_name.predict(x.numpy()).shape == (200,)


def test_a_head_is_integrated_by_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    (module,) = recipes.follow("Add a head", monkeypatch)
    torch.manual_seed(0)
    head = module.KnownNoise(1, noise=0.5)  # type: ignore[union-attr]
    head.samples = 20_000
    f, y = Moments(torch.tensor([[1.0]]), 2.0), torch.tensor([[2.5]])
    exact = torch.distributions.Normal(1.0, (2.0 + 0.25) ** 0.5)
    assert head.log_marginal(f, y).item() == pytest.approx(exact.log_prob(y).item(), abs=0.05)
    prediction = head(f)
    assert prediction.data.item() == pytest.approx(0.25)
    assert prediction.model.item() == pytest.approx(2.0, rel=0.06)


def test_a_bench_table_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    (module,) = recipes.follow("Add a bench table", monkeypatch)
    result = module.TABLE.work(Cell("rows", "200", "bedl", "best"))  # type: ignore[union-attr]
    assert set(result.metrics) == {column.metric for column in module.TABLE.columns}  # type: ignore[union-attr]
    assert result.metrics["rmse"] < 0.3


def test_an_objective_adds_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    (module,) = recipes.follow("Add an objective", monkeypatch)
    net, head = GaussianLinear(2, 2), Normal(1)
    batch = Batch(torch.randn(5, 2), torch.randn(5, 1), n_train=5)
    term = module.SmallSpread(0.5)  # type: ignore[union-attr]
    spread = net(batch.x).variance.mean()
    both = BEDL(net, head, PAC() + term).loss(batch)
    torch.testing.assert_close(both, BEDL(net, head, PAC()).loss(batch) + 0.5 * spread)


def test_a_block_without_its_file_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("## Add something\n\n```python\nx = 1\n```\n")
    (block,) = recipes.blocks(page)
    with pytest.raises(AssertionError, match=r"line 4: name the file, .*above 'x = 1'"):
        block.file  # noqa: B018
