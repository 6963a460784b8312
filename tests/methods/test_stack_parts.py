"""The parts of a stack's uncertainty, held against noise and errors that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bedl import BEDLClassifier, BEDLRegressor
from bedl.bench.util import SOURCES
from bedl.methods import Problem, registry


def drawn(name: str, n: int, noise: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x, y = SOURCES[name].draw(n, noise, np.random.default_rng(seed))
    return x.astype(np.float32), y


def rms(values: Any) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(values)))))


@pytest.mark.parametrize(("name", "n", "noise"), [("sine", 400, 0.2), ("sine", 400, 0.6), ("friedman", 800, 0.2)])
def test_data_is_the_noise_and_epistemic_is_how_far_off_the_mean_is(name: str, n: int, noise: float) -> None:
    model = BEDLRegressor(random_state=0, device="cpu").fit(*drawn(name, n, noise))
    x, truth = drawn(name, 1000, 0.0, seed=1)
    _, noisy = drawn(name, 1000, noise, seed=1)
    p = model.predict_dist(x)
    assert rms(p.data.sqrt()) == pytest.approx(rms(noisy - truth), rel=0.2)
    assert 0.5 < rms(p.epistemic.sqrt()) / rms(p.mean[:, 0].numpy() - truth) < 2.2
    torch.testing.assert_close(p.data + p.distributional + p.model, p.variance)


def test_labels_drawn_anew_are_noise_and_more_rows_leave_less_unknown() -> None:
    x, clean = drawn("blobs", 500, 0.0, seed=1)
    true = np.full((500, 3), 0.3 / 3)
    true[np.arange(500), clean] += 0.7
    entropy = float(-(true[0] * np.log(true[0])).sum())
    found = {}
    for n in (60, 600):
        model = BEDLClassifier(random_state=0, device="cpu").fit(*drawn("blobs", n, 0.3))
        p = found[n] = model.predict_dist(x)
        torch.testing.assert_close(p.data + p.distributional + p.model, p.entropy, atol=1e-5, rtol=0)
    assert float(found[600].data.mean()) == pytest.approx(entropy, abs=0.08)
    assert found[600].epistemic.mean() < 0.5 * found[60].epistemic.mean()
    between = model.predict_dist(np.zeros((1, 2), dtype=np.float32))  # as far from all classes as it gets
    assert between.epistemic.item() > 10 * found[600].epistemic.mean()


def test_noise_is_first_what_members_take_for_it_then_usual_ignorance_from_below() -> None:
    stack: Any = registry.get("stack")(Problem("regression", 1, (3,)), folds=2)
    stack.usual_ignorance = torch.tensor([[1.0, 1.0, 1.0]])
    data = torch.tensor([1.0, 1.0, 2.0]).reshape(3, 1, 1).expand(3, 1, 3)
    ignorance = torch.tensor([0.2, 0.8, 5.0]).reshape(3, 1, 1).expand(3, 1, 3)
    for level, expected in (
        (0.5, [0.5, 0.5, 1.0]),
        (1.0, [1.0, 1.0, 2.0]),
        (1.5, [1.2, 1.5, 2.5]),
        (2.0, [1.2, 1.8, 3.0]),
    ):
        ordinary, noise = stack._noise(data, ignorance, torch.tensor([level]))
        assert noise[:, 0, 0].tolist() == pytest.approx(expected)
        assert ordinary[:, 0, 0].tolist() == pytest.approx([1.2, 1.8, 3.0])


def test_members_say_no_more_than_rows_held_out_have_and_the_target_varies() -> None:
    stack: Any = registry.get("stack")(Problem("regression", 2, (3,)), folds=2)
    stack.most_data = torch.tensor([[1.0, 2.0]] * 3)
    parts = [torch.full((3, 5, 2), value) for value in (7.0, 1.5, 0.8, 0.8)]
    mean, data, ignorance = stack._kinds(parts, None)
    assert mean.unique().tolist() == [7.0]
    assert data[:, 0].tolist() == [[1.0, 1.5]] * 3
    assert ignorance.unique().tolist() == [1.0]
    mean, data, _ = stack._kinds(parts, torch.full((2, 5, 2), 0.5))  # networks once more, corrected
    assert mean[:, 0, 0].tolist() == [7.0, 7.0, 7.0, 7.5, 7.5]
    assert data[:, 0].tolist() == [[1.0, 1.5]] * 5


def test_one_part_held_out_shows_no_folds_and_all_that_is_usual_is_noise() -> None:
    options = {"folds": 4, "held": 1, "groups": 1}
    model = BEDLRegressor(method="stack", method_options=options, epochs=40, random_state=0, device="cpu").fit(
        *drawn("sine", 400, 0.2)
    )
    assert model.method_.noise.item() == pytest.approx(2.0, abs=1e-6)
    p = model.predict_dist(drawn("sine", 100, 0.0, seed=1)[0])
    assert (p.data > p.epistemic).float().mean() > 0.8
