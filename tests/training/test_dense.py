"""A prediction at every place: trained, scored, weighted, in replicas, in tables and on pages."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

import bedl
from bedl.evaluation import metrics
from bedl.evaluation.report import map_results, render
from bedl.evaluation.tasks import ResultsError, score
from bedl.training import EarlyStopping, GradientOptions, fit, fit_replicas
from tests.training.problems import vector

G = torch.Generator().manual_seed(0)
IMAGES = torch.rand(12, 1, 6, 5, generator=G)
LABELS = (IMAGES[:, 0] > 0.5).long()
SETTINGS = {"epochs": 2, "batch_size": 5, "fabric": {"accelerator": "cpu"}}


def method(head=None, seed=0, outputs=2):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, outputs, 1))
    return bedl.BEDL(bedl.bayesianize(net), bedl.Dirichlet(2, dim=1) if head is None else head)


def test_pixels_are_learned_as_points_would_be():
    """A 1 × 1 convolution over images is a linear layer over pixels: the same losses."""
    dense = bedl.BEDL(bedl.GaussianConv2d(1, 2, 1), bedl.Dirichlet(2, dim=1))
    flat = bedl.BEDL(bedl.GaussianLinear(1, 2), bedl.Dirichlet(2))
    with torch.no_grad():
        for one, other in zip(flat.parameters(), dense.parameters(), strict=True):
            one.copy_(other.reshape(one.shape))
    x, y = IMAGES.movedim(1, -1).reshape(-1, 1), LABELS.reshape(-1)
    losses = [m.loss(bedl.methods.Batch(*data, n_train=9)) for m, data in ((dense, (IMAGES, LABELS)), (flat, (x, y)))]
    torch.testing.assert_close(*losses)


def test_validation_and_early_stopping_go_by_pixel():
    model = method()
    weight = torch.rand(LABELS.shape, generator=G)
    rows = fit(
        model, (IMAGES, LABELS), validation=(IMAGES, LABELS, weight), **SETTINGS, callbacks=[EarlyStopping()]
    ).rows
    log_p = model.predict(IMAGES).log_prob(LABELS)
    assert log_p.shape == LABELS.shape
    assert min(row["val_nll"] for row in rows) == pytest.approx(-float((log_p * weight).sum() / weight.sum()), rel=1e-4)


def test_a_pixel_that_is_ignored_is_one_of_weight_0():
    marked = torch.where(IMAGES[:, 0] > 0.8, 255, LABELS)
    ignoring, weighing = method(bedl.Dirichlet(2, dim=1, ignore_index=255)), method()
    fit(ignoring, (IMAGES, marked), **SETTINGS, gradient=GradientOptions(accumulate=2))
    fit(weighing, (IMAGES, LABELS, (marked != 255).float()), **SETTINGS, gradient=GradientOptions(accumulate=2))
    torch.testing.assert_close(vector(ignoring), vector(weighing), rtol=1e-4, atol=1e-6)


def test_replicas_learn_pixels_as_one_does():
    alone, together = method(seed=1), method(seed=1)
    weight = torch.rand(LABELS.shape, generator=G)
    fit(
        alone,
        (IMAGES, LABELS, weight),
        epochs=2,
        batch_size=5,
        optimizer=bedl.training.adam(1e-3),
        fabric={"accelerator": "cpu"},
    )
    fit_replicas([together, method(seed=2)], (IMAGES, LABELS, weight), epochs=2, batch_size=5)
    torch.testing.assert_close(vector(together), vector(alone), rtol=1e-3, atol=1e-5)


def test_a_table_has_a_row_for_every_pixel():
    frame = method().predict(IMAGES).to_frame()
    assert len(frame) == LABELS.numel()
    at = frame[(frame.point == 3) & (frame.row == 2) & (frame.column == 4)]
    assert float(at.probabilities_1.iloc[0]) == pytest.approx(float(method().predict(IMAGES).probabilities[3, 2, 4, 1]))
    sequence = bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1)).predict(torch.rand(2, 4, 3)).to_frame()
    assert list(sequence.columns[:2]) == ["point", "position"]
    assert len(sequence) == 8


def test_scores_and_maps_of_a_page():
    prediction = method().predict(IMAGES)
    known = torch.where(IMAGES[:, 0] > 0.9, -1, LABELS)
    results = map_results(prediction, IMAGES, known, names=["dark", "<bright>"], show=3, title="Dots")
    assert score(results)["accuracy"] == metrics.accuracy(
        known[known >= 0].numpy(), prediction.probabilities[known >= 0].numpy()
    )
    maps = results.maps
    most = prediction.entropy.mean((1, 2)).argsort(descending=True)[:3]
    assert maps.index.tolist() == most.tolist()
    np.testing.assert_allclose(sum(maps.parts.values()), prediction.entropy[most].numpy(), atol=1e-5)
    page = render(results)
    assert page.count("<img") >= 3 * 6
    assert "&lt;bright&gt;" in page
    assert "<bright>" not in page
    assert "Images and maps" not in render(dataclasses.replace(results, maps=None))


def test_maps_of_numbers_and_what_is_refused():
    head = bedl.Normal(1, dim=1)
    results = map_results(method(head).predict(IMAGES), IMAGES, IMAGES[:, 0])
    assert results.maps.names is None
    assert "Images and maps" in render(results)
    flat = bedl.BEDL(bedl.GaussianLinear(3, 2), bedl.Normal(1)).predict(torch.rand(2, 3))
    with pytest.raises(ResultsError, match=r"\(n, H, W"):
        map_results(flat, IMAGES)
    with pytest.raises(ResultsError, match="task="):
        map_results(dict(method().predict(IMAGES).outputs()), IMAGES)
    with pytest.raises(ResultsError, match="as many and as large"):
        map_results(method().predict(IMAGES), IMAGES[:, :, :3])
