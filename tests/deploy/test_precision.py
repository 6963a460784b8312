"""Weights in fewer bits: smaller files, a known loss, variances that survive."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import numpy_helper
from torch import nn

from bedl import BEDL, GaussianLinear, Normal
from bedl.deploy import ExportReport, OnnxModel, export
from bedl.deploy import onnx as onnx_room
from bedl.deploy.onnx import eight_bits, store_weights
from bedl.deploy.prepare import ExportOptions, prepare
from tests.deploy.models import inputs


def wide():
    torch.manual_seed(0)
    net = nn.Sequential(GaussianLinear(4, 200), nn.ReLU(), GaussianLinear(200, 100), nn.ReLU(), GaussianLinear(100, 2))
    with torch.no_grad():
        net[2].weight_logvar.normal_(-16.0, 3.0)  # variances of 1e-11 to 1e-2, which half precision does not have
    return BEDL(net, Normal(1))


@pytest.fixture(scope="module")
def method_and_graph():
    """Captured once; the precision is a matter of what follows."""
    method = wide()
    return method, onnx_room.to_onnx(prepare(method, ExportOptions(inputs())))


@pytest.mark.parametrize("precision, size, tolerance", [("float16", 0.7, 0.005), ("int8", 0.5, 0.05)])
def test_small_files_with_a_measured_loss(precision, size, tolerance, method_and_graph, tmp_path, monkeypatch):
    (method, graph), x = method_and_graph, inputs(2000, seed=5)
    monkeypatch.setattr(onnx_room, "to_onnx", lambda prepared: copy.deepcopy(graph))
    report = export(method, tmp_path / "m.onnx", example=inputs(), precision=precision)
    assert report.size == (tmp_path / "m.onnx").stat().st_size
    assert report.size_ratio < size
    model = OnnxModel(tmp_path / "m.onnx")
    assert model.precision == precision
    outputs = model.predict(x.numpy())
    truth = {name: value.numpy() for name, value in method.predict(x).outputs().items()}
    ratio = outputs["std"] / truth["std"]
    assert 1 - tolerance < ratio.min() <= ratio.max() < 1 + tolerance
    np.testing.assert_allclose(outputs["epistemic"], truth["epistemic"], rtol=4 * tolerance)
    # the report's figures are of other points around the same example
    assert 0 < report.loss["mean_in_stds"] < 0.2
    assert 1 - tolerance < report.loss["std_ratio_min"] <= report.loss["std_ratio_max"] < 1 + tolerance
    assert f"cost of {precision}" in str(report)


def test_eight_bits_are_within_half_a_step():
    weight = np.random.default_rng(0).normal(-9, 2, (7, 30)).astype(np.float32)
    codes, step, middle = eight_bits(weight)
    assert codes.dtype == np.int8
    width = weight.max(1) - weight.min(1)
    assert (np.abs(codes * step + middle - weight).max(1) <= width / 254 / 2 * 1.001).all()


def test_values_outside_the_range_of_half_precision_stay_in_float32():
    onnx = pytest.importorskip("onnx")
    arrays = {
        "variances": np.logspace(-12, -2, 400, dtype=np.float32),
        "large": np.linspace(1, 1e6, 400, dtype=np.float32),
        "weights": np.random.default_rng(0).normal(0, 0.05, 400).astype(np.float32),
        "few": np.ones(3, np.float32),
    }
    graph = onnx.helper.make_graph([], "g", [], [], [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items()])
    model = onnx.helper.make_model(graph)
    with np.errstate(over="ignore"):
        assert store_weights(model, "float16") == 1
    kept = {i.name for i in model.graph.initializer}
    assert kept == {"variances", "large", "weights.half", "few"}


def test_a_precision_that_changes_answers_is_warned_of(tmp_path, monkeypatch, method_and_graph):
    method, graph = method_and_graph
    monkeypatch.setattr(onnx_room, "to_onnx", lambda prepared: copy.deepcopy(graph))

    def rough(proto, precision):  # as two bits would
        for entry in proto.graph.initializer:
            values = numpy_helper.to_array(entry)
            if values.dtype == np.float32 and values.ndim == 2:
                entry.CopyFrom(numpy_helper.from_array(np.round(values * 2) / 2, entry.name))

    monkeypatch.setattr(onnx_room, "store_weights", rough)
    with pytest.warns(UserWarning, match=r"with weights in int8 means move by up to .* export in float16 or float32"):
        report = export(method, tmp_path / "m.onnx", example=inputs(), precision="int8")
    assert report.loss["mean_in_stds"] > 0.2
    assert (tmp_path / "m.onnx").is_file()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"mean_in_stds": 0.46, "std_ratio_min": 0.99, "std_ratio_max": 1.01}, "up to 0.46 predicted standard"),
        ({"mean_in_stds": 0.01, "std_ratio_min": 0.7, "std_ratio_max": 1.01}, "0.7 to 1 times"),
        ({"mean_in_stds": 0.01, "std_ratio_min": 0.99, "std_ratio_max": 1.01}, ""),
        ({"probability": 0.01, "entropy": 0.5, "labels_changed": 0.001}, ""),
        ({}, ""),
    ],
)
def test_what_is_noticed_of_a_lower_precision(loss, words):
    caution = ExportReport(Path("m.onnx"), "regression", "int8", 1, 1, 0.3, 0.1, loss=loss).caution
    assert words in caution
    assert bool(words) == bool(caution)
