"""The questions of the critics' table, on answers that are known."""

from __future__ import annotations

import numpy as np
import pytest

from bedl.bench import Cell, Choice, tables
from bedl.bench.tables import critics


class Known:
    """A model that says what is asked of it."""

    def __init__(self, epistemic: float, data: float, mean: float = 0.0):
        self.said = epistemic, data, mean

    def predict_dist(self, x: np.ndarray) -> object:
        import torch

        from bedl.heads.predictive import NormalPredictive

        epistemic, data, mean = (torch.full((len(x), 1), value) for value in self.said)
        return NormalPredictive(mean, data, torch.zeros(len(x), 1), epistemic)


def answer(monkeypatch: pytest.MonkeyPatch, dataset: str, fitted: object) -> dict[str, float]:
    monkeypatch.setattr(critics, "_fitted", fitted)
    return dict(tables.get("critics").work(Cell("critics", dataset, "bedl", "best")).metrics)


def test_a_variance_that_halves_with_twice_the_rows_has_slope_minus_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(monkeypatch, "rows", lambda cell, drawn: [Known(5.0 / len(drawn[0][1]), 1.0)])
    assert found["slope_epistemic"] == pytest.approx(-1)
    certain = answer(monkeypatch, "rows", lambda cell, drawn: [Known(0.0, 1.0)])
    assert np.isnan(certain["slope_model"])


def test_an_epistemic_variance_is_held_against_that_of_refits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = answer(monkeypatch, "refits", lambda cell, drawn: [Known(0.25, 1.0, float(i)) for i in range(len(drawn))])
    assert found["ratio_epistemic"] == pytest.approx(0.25 / np.var(np.arange(critics.REFITS), ddof=1))


def test_the_data_part_is_held_against_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = (critics.NOISE * 0.7) ** 2  # of the sine
    found = answer(monkeypatch, "bias", lambda cell, drawn, hidden_layers: [Known(0.0, noise)])
    assert found["noise_ratio"] == pytest.approx(1, rel=0.02)
    assert found["bias_ratio"] == pytest.approx(noise / (noise + 0.5), rel=0.1)  # a mean of 0 for a sine


def test_parts_that_follow_what_they_should_have_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def sweep(cell: object, source: object, wanted: list[tuple[int, float]]) -> dict[str, list[float]]:
        error = [1 / n + noise for n, noise in wanted]
        of_rows = len({n for n, _ in wanted}) > 1
        return {"epistemic": [e * of_rows for e in error], "data": [e * (not of_rows) for e in error], "error": error}

    monkeypatch.setattr(critics, "_sweep", sweep)
    found = tables.get("critics").work(Cell("critics", "parts", "bedl", "best")).metrics
    assert found["disentanglement_error"] == pytest.approx(0)


def test_the_cells_are_of_all_questions() -> None:
    table = tables.get("critics")
    assert {cell.dataset for cell in table.cells(Choice(presets=["best"]))} == set(table.datasets)


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["bias", "parts"])
def test_a_cell_runs(dataset: str) -> None:
    found = tables.get("critics").work(Cell("critics", dataset, "deterministic", "best")).metrics
    assert all(np.isfinite(value) for value in found.values())
