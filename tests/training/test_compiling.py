"""torch.compile of the training step: when, with what result, and what happens where it fails."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from bedl import BEDL, Dirichlet, GaussianConv2d, GaussianLinear, Normal, fit
from bedl.methods import Batch
from bedl.training.compile import should_compile, variance_precision
from bedl.training.data import Points


def problem(n: int = 70) -> tuple[BEDL, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(n, 3)
    net = nn.Sequential(GaussianLinear(3, 8), nn.ReLU(), GaussianLinear(8, 2))
    return BEDL(net, Normal(1)), (x, x.sum(1))


def test_a_compiled_run_ends_where_the_plain_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bedl.moments.rules.relu.MIN_NUMEL", 0)  # kernels are called in small networks, too
    results = []
    for compile in (False, True):
        method, data = problem()
        fit(method, data, epochs=3, batch_size=32, accelerator="cpu", compile=compile)
        results.append(torch.cat([p.detach().flatten() for p in method.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_long_runs_of_large_networks_compile_and_short_ones_do_not(caplog: pytest.LogCaptureFixture) -> None:
    small, (x, y) = problem()
    points = Points((x, y))
    assert not should_compile("auto", small, points, 32, 1_000, "cpu")
    assert should_compile("auto", small, points, 32, 1_000_000, "cpu")
    images = Points((torch.randn(4, 1, 28, 28), torch.zeros(4, dtype=torch.long)))
    lenet = BEDL(
        nn.Sequential(GaussianConv2d(1, 20, 5), nn.ReLU(), nn.Flatten(), GaussianLinear(11_520, 10)), Dirichlet(10)
    )
    assert not should_compile("auto", lenet, images, 100, 100, "cpu")
    assert should_compile("auto", lenet, images, 100, 100_000, "cpu")
    assert "compiling the training step (a minute or so, once)" in caplog.text
    deep = BEDL(nn.Sequential(*(GaussianLinear(3, 3) for _ in range(20)), GaussianLinear(3, 2)), Normal(1))
    assert should_compile("auto", deep, points, 32, 10**6, "cpu")
    assert re.search(r"about \d minutes", caplog.text)
    with pytest.raises(ValueError, match="compile must be"):
        should_compile("yes", small, points, 32, 1, "cpu")


def test_without_a_compiler_it_goes_on_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bedl.training.compile.shutil.which", lambda name: None)
    method, data = problem()
    assert not should_compile("auto", method, Points(data), 32, 1_000_000, "cpu")
    assert "no C++ compiler" in caplog.text


def test_what_cannot_be_compiled_goes_on_plainly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(function: Callable, **options: Any) -> Callable:
        def fails(batch: Batch, loss: bool) -> torch.Tensor:
            raise RuntimeError("the compiler is out of order\nand more")

        return fails

    monkeypatch.setattr(torch, "compile", broken)
    method, data = problem()
    with caplog.at_level(logging.WARNING):
        assert fit(method, data, epochs=2, accelerator="cpu", compile=True).steps == 6
    (line,) = [record.getMessage() for record in caplog.records if record.name == "bedl"]
    assert line == "torch.compile failed, so training goes on uncompiled: the compiler is out of order"


def test_what_is_wrong_with_the_data_is_said_as_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    method, (x, _) = problem()
    with pytest.raises(ValueError, match="shape"):
        fit(method, (x, torch.zeros(70, 3)), epochs=1, accelerator="cpu", compile=True)


def test_variances_are_multiplied_in_bfloat16_where_that_is_fast(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bedl.training.compile.has_fast_bfloat16", lambda: True)
    assert variance_precision("auto", True, "cpu") == torch.bfloat16
    assert variance_precision("auto", False, "cpu") is None
    assert variance_precision("float32", True, "cpu") is None
    assert variance_precision("bfloat16", False, "cpu") == torch.bfloat16
    assert not caplog.text
    monkeypatch.setattr("bedl.training.compile.has_fast_bfloat16", lambda: False)
    assert variance_precision("auto", True, "cpu") is None
    assert variance_precision("bfloat16", True, "cpu") == torch.bfloat16
    assert "no instructions for bfloat16" in caplog.text
    method, data = problem()
    assert should_compile("auto", method, Points(data), 32, 1_000_000, "cpu")
    assert "variances stay in float32" in caplog.text
    with pytest.raises(ValueError, match="variance_products must be"):
        variance_precision("half", True, "cpu")


@pytest.mark.parametrize("compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_in_bfloat16_ends_near_the_one_in_float32(compile: bool) -> None:
    states = []
    for precision in ("float32", "bfloat16"):
        method, data = problem()
        fit(method, data, epochs=3, batch_size=32, accelerator="cpu", compile=compile, variance_products=precision)
        states.append(torch.cat([p.detach().flatten() for p in method.parameters()]))
    assert not torch.equal(*states)
    torch.testing.assert_close(*states, rtol=1e-2, atol=2e-3)
