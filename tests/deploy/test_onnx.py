"""ONNX files say what PyTorch says, in onnxruntime and by themselves."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bedl
from bedl._utils.io import OutputFileError
from bedl.deploy import Exportable, ExportError, OnnxModel, export, export_program
from bedl.deploy import onnx as onnx_room
from bedl.deploy.prepare import ExportOptions, prepare
from bedl.heads import Dirichlet, Sampled
from bedl.moments import Moments
from tests.deploy.models import body, classification, ensemble, inputs, regression

RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}


def proto(path):
    import onnx

    return onnx.load(path)


def assert_agrees(outputs, prediction, tolerance=1e-4):
    expected = prediction.outputs()
    assert set(outputs) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)


def test_classes_agree_for_any_batch(classes_file):
    path, method, report = classes_file
    model = OnnxModel(path, threads=1)
    for n in (1, 2, 10_000):
        x = 3 * inputs(n, seed=n)
        assert_agrees(model.predict(x.numpy()), method.predict(x))
    assert report.points == 256
    assert max(report.scaled.values()) < 1e-4


def test_targets_agree_for_any_batch(targets_file):
    path, method, _ = targets_file
    model = OnnxModel(path, threads=1)
    for n in (1, 2, 10_000):
        x = 3 * inputs(n, seed=n)
        assert_agrees(model.predict(x.numpy()), method.predict(x))


def test_the_outputs_add_up(classes_file, targets_file):
    x = 3 * inputs(500).numpy()
    classes, targets = (OnnxModel(path).predict(x) for path, *_ in (classes_file, targets_file))
    p = classes["probabilities"]
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-5)
    np.testing.assert_allclose(classes["entropy"], -(p * np.log(p)).sum(1), atol=1e-4)
    np.testing.assert_allclose(classes["data"] + classes["distributional"], classes["expected_entropy"], atol=1e-5)
    for outputs, total in ((classes, classes["entropy"]), (targets, targets["std"] ** 2)):
        three = [outputs[part] for part in ("data", "distributional", "model")]
        assert min(float(part.min()) for part in three) >= 0
        np.testing.assert_allclose(sum(three), total, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(outputs["aleatoric"], outputs["data"])
        np.testing.assert_allclose(outputs["aleatoric"] + outputs["epistemic"], total, rtol=1e-5, atol=1e-5)


def test_the_graph_holds_what_is_needed_and_no_more(classes_file):
    path, _, report = classes_file
    graph = proto(path).graph
    assert not RANDOM & {node.op_type for node in graph.node}
    assert [entry.name for entry in graph.input] == ["x"]
    # nothing is computed that no output needs, such as the vacuity of the prediction
    used = {name for node in graph.node for name in node.input} | {entry.name for entry in graph.output}
    assert all(used & set(node.output) for node in graph.node)
    assert {entry.name for entry in graph.initializer} <= used
    assert report.nodes == len(graph.node)


def test_the_file_says_nothing_about_the_machine(classes_file):
    content = classes_file[0].read_bytes()
    assert b".py" not in content
    assert str(classes_file[0].parent).encode() not in content


@pytest.mark.parametrize("make", [
    lambda: ensemble(lambda: regression(2), 2),
    pytest.param(lambda: classification(2), marks=pytest.mark.slow),
    pytest.param(lambda: classification(10, nodes=32, components=8), marks=pytest.mark.slow),
    pytest.param(lambda: classification(100), marks=pytest.mark.slow),
    pytest.param(lambda: ensemble(lambda: classification(3)), marks=pytest.mark.slow),
])  # fmt: skip
def test_every_head(make, tmp_path):
    model = make()
    export(model, tmp_path / "model.onnx", example=inputs())
    x = 3 * inputs(1000, seed=1)
    # `heads/integrals/export.py`: another form of the data part, which differs by so much where stds are above 1
    assert_agrees(OnnxModel(tmp_path / "model.onnx").predict(x.numpy()), model.predict(x), tolerance=2e-4)


def test_a_network_by_itself(tmp_path):
    """Its Moments, without a head."""
    torch.manual_seed(0)
    net, x = bedl.bayesianize(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))), torch.randn(20, 3)
    bedl.export(net, tmp_path / "net.onnx", example=x)
    found, y = bedl.deploy.OnnxModel(tmp_path / "net.onnx").predict(x.numpy()), net(x)
    np.testing.assert_allclose(found["mean"], y.loc.detach(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["std"], y.stddev.detach(), rtol=1e-4)
    np.testing.assert_allclose(found["model"], y.variance.detach(), rtol=1e-4)
    assert not found["data"].any()
    with pytest.raises(bedl.deploy.ExportError, match="not Moments"):
        bedl.export(nn.Linear(3, 2), tmp_path / "plain.onnx", example=x)


def test_scaling_is_inside(tmp_path):
    method = regression(2, beta=7.0, learn_beta=True)
    loc, scale = torch.tensor([1.0, -2.0, 0.0, 5.0]), torch.tensor([3.0, 0.5, 1.0, 10.0])
    units = (torch.tensor([100.0, -3.0]), torch.tensor([50.0, 0.1]))
    x = loc + scale * inputs()
    export(
        method, tmp_path / "m.onnx", example=x, input_scale=(loc, scale), target_scale=units, target_names=["a", "b"]
    )
    model = OnnxModel(tmp_path / "m.onnx")
    assert model.target_names == ("a", "b")
    assert_agrees(model.predict(x.numpy()), method.predict((x - loc) / scale).rescale(*units), 1e-3)


def test_an_ensemble_for_classes_has_one_race():
    """The graph of three members is not three times as large; and mixes exactly as the ensemble does."""
    model = ensemble(lambda: classification(3))
    prepared = prepare(model, ExportOptions(inputs()))
    heads = [m for m in prepared.module.modules() if isinstance(m, bedl.Dirichlet)]
    assert len(heads) == 1
    assert_agrees(prepared.run(inputs()), model.predict(inputs()), 1e-5)  # the graph has no kernels
    # members with different heads are left as they are
    mixed = bedl.Ensemble([classification(3), classification(3, nodes=24)])
    prepared = prepare(mixed, ExportOptions(inputs()))
    assert sum(isinstance(m, bedl.Dirichlet) for m in prepared.module.modules()) == 2


class Estimator:
    """What another room offers: its own scaling, names and example."""

    def __init__(self, task="regression"):
        self.method, self.task = regression(), task

    def _exportable(self):
        return Exportable(self.method, inputs(), self.task, ["a", "b", "c", "d"], None, ["y"])


def test_an_estimator_brings_its_own_example_and_names():
    estimator = Estimator()
    prepared = prepare(estimator, ExportOptions(metadata={"seen": 3}))
    said = prepared.description
    assert (said.feature_names, said.target_names, said.metadata) == (("a", "b", "c", "d"), ("y",), {"seen": 3})
    assert torch.equal(prepared.example[0], inputs())
    assert_agrees(prepared.run(inputs()), estimator.method.predict(inputs()), 1e-6)
    with pytest.raises(ExportError, match="says it is for classification"):
        prepare(Estimator("classification"), ExportOptions())


def test_the_model_is_left_as_it_was(targets_file):
    _, method, _ = targets_file
    assert method.training
    assert all(p.requires_grad for p in method.parameters())


def test_a_sampling_head_is_refused(tmp_path):
    with pytest.raises(ExportError, match="random numbers"):
        export(bedl.BEDL(body(3), Sampled(Dirichlet(3))), tmp_path / "m.onnx", example=inputs())
    assert not list(tmp_path.iterdir())


def test_a_graph_that_disagrees_is_not_written(targets_file, tmp_path, monkeypatch):
    from onnx import numpy_helper

    path, method, _ = targets_file
    spoilt = proto(path)
    weight = next(entry for entry in spoilt.graph.initializer if "weight_mean" in entry.name)
    weight.CopyFrom(numpy_helper.from_array(1.5 * numpy_helper.to_array(weight), weight.name))
    monkeypatch.setattr(onnx_room, "to_onnx", lambda prepared: spoilt)
    with pytest.raises(ExportError, match="does not agree"):
        export(method, tmp_path / "m.onnx", example=inputs())
    assert not list(tmp_path.iterdir())
    report = export(method, tmp_path / "m.onnx", example=inputs(), check=False)
    assert report.points == 0
    assert [(tmp_path / "m.onnx").stat().st_size] == [f.stat().st_size for f in tmp_path.iterdir()] == [report.size]


@pytest.mark.parametrize("settings, error, words", [
    ({"example": None}, ExportError, "example="),
    ({"example": torch.randn(0, 4)}, ExportError, "at least one row"),
    ({"feature_names": ["a"]}, ValueError, "1 feature names for 4"),
    ({"feature_names": ["a", "b", "c", "a"]}, ValueError, "differ"),
    ({"class_names": ["a", "b"]}, ExportError, "do not go with regression"),
    ({"target_scale": (0.0, -1.0)}, ValueError, "positive"),
    ({"metadata": {"a": object()}}, TypeError, "JSON"),
    ({"precision": "int4"}, ValueError, "float16"),
])  # fmt: skip
def test_bad_arguments_change_nothing(tmp_path, settings, error, words):
    with pytest.raises(error, match=words):
        export(regression(), tmp_path / "m.onnx", **{"example": inputs(), **settings})
    assert not list(tmp_path.iterdir())


def test_bad_paths(tmp_path):
    (tmp_path / "there.onnx").write_text("mine")
    for path, words in (
        (tmp_path / "there.onnx", "overwrite"),
        (tmp_path, "folder"),
        (tmp_path / "no" / "m", "Create"),
    ):
        with pytest.raises(OutputFileError, match=words):
            export(regression(), path, example=inputs())
    assert (tmp_path / "there.onnx").read_text() == "mine"
    with pytest.raises(TypeError, match="not str"):
        export("net", tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="pt2"):
        export_program(regression(), tmp_path / "m.onnx", example=inputs())


@pytest.mark.parametrize("make", [
    lambda: regression(2),
    pytest.param(lambda: classification(3), marks=pytest.mark.slow),
])  # fmt: skip
def test_a_program_loads_and_agrees(make, tmp_path):
    method = make()
    report = export_program(method, tmp_path / "m.pt2", example=inputs(1), metadata={"a": 1})
    files = {"bedl": ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=files).module()
    for n in (1, 7):
        with torch.no_grad():
            outputs = {name: value.numpy() for name, value in program(inputs(n)).items()}
        assert_agrees(outputs, method.predict(inputs(n)), 1e-4)
    assert '"metadata": {"a": 1}' in files["bedl"]
    assert report.size == (tmp_path / "m.pt2").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MLP 8-50-2", "LeNet-5", "CIFAR net", "ResNet-18"])
def test_every_net_of_the_benchmarks(name, tmp_path):
    from benchmarks.nets import NETS

    net = NETS[name]
    method = net.factory()
    export(method, tmp_path / "net.onnx", example=net.inputs(8))
    x = net.inputs(50, seed=1)
    assert_agrees(OnnxModel(tmp_path / "net.onnx").predict(x.numpy()), method.predict(x))


class Rewritten(nn.Module):
    """Operations that are written otherwise for ONNX."""

    def forward(self, x):
        y = (1 - x).square().unflatten(1, (2, 2)).movedim(1, -1)
        return torch.where((y > 0.5) & (y < 2), y, -y).flatten(1)


@pytest.mark.parametrize("layer", [Rewritten(), nn.BatchNorm1d(4)], ids=["traced once", "traced again"])
def test_operations_that_onnx_has_otherwise(layer, tmp_path):
    """As they are, and where PyTorch's decompositions are needed."""
    torch.manual_seed(0)
    net, x = nn.Sequential(layer, bedl.GaussianLinear(4, 2)).eval(), torch.randn(20, 4)
    report = bedl.export(net, tmp_path / "net.onnx", example=x)
    assert max(report.scaled.values()) < 1e-4


class _ByLength(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = bedl.GaussianLinear(4, 3)

    def forward(self, x: Tensor) -> Moments:
        return self.inside(x) + torch.zeros(len(x), 3)


def test_a_number_of_rows_that_is_fixed_is_refused_with_a_remedy(tmp_path):
    method = bedl.BEDL(_ByLength(), bedl.Dirichlet(3))
    with pytest.raises(ExportError, match=r"^the network computes for the example's .* write x\.shape\[0\]"):
        export(method, tmp_path / "model.onnx", example=torch.randn(8, 4))


class _Mixed(nn.Module):
    """Flags and lengths among the numbers, which have to be cast."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = bedl.GaussianLinear(4, 3)

    def forward(self, x: Tensor) -> Moments:
        return self.inside(x * (x > 0) + x * x.shape[0] / (x.shape[0] + 1) + torch.arange(4))


def test_numbers_of_several_types(tmp_path):
    x = torch.randn(32, 4)
    method = bedl.BEDL(_Mixed(), bedl.Dirichlet(3))
    export(method, tmp_path / "model.onnx", example=x, check=False)
    given, truth = OnnxModel(tmp_path / "model.onnx").predict(x.numpy(), chunk=32), method.predict(x)
    np.testing.assert_allclose(given["probabilities"], truth.probabilities.numpy(), atol=1e-5)


def test_normalisation_and_transposed_convolution_are_translated_at_once(tmp_path, monkeypatch):
    calls, translate = [], torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *args, **kwargs: calls.append(0) or translate(*args, **kwargs))
    net = nn.Sequential(nn.ConvTranspose2d(1, 2, 2, stride=2), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 2))
    method = bedl.BEDL(bedl.bayesianize(net), bedl.Normal(1))
    bedl.nn.correct_variances(method.net, torch.randn(20, 1, 2, 2), draws=2)
    report = export(method, tmp_path / "model.onnx", example=torch.randn(8, 1, 2, 2))
    assert len(calls) == 1
    assert max(report.scaled.values()) < 1e-5
