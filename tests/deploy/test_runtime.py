"""The runtime: without PyTorch, in bounded memory, and clear about files that it cannot run."""

import json
import subprocess
import sys

import numpy as np
import pandas
import pytest

from bedl.deploy import ModelFileError, OnnxModel
from bedl.deploy.schema import KEY, LENGTH, SCHEMA, with_checksum
from bedl.evaluation import tasks
from tests.closeness import assert_same_up_to_rounding
from tests.deploy.models import inputs

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # any import of it fails
import numpy as np
from bedl.deploy.runtime import OnnxModel
model = OnnxModel(sys.argv[1], threads=1)
columns = model.predict_columns(np.load(sys.argv[2]))
np.savez(sys.argv[3], **columns)
heavy = {"torch", "pandas", "sklearn", "scipy", "onnx", "lightning_fabric"} & {n for n, m in sys.modules.items() if m}
assert not heavy, heavy
"""


def test_it_runs_without_torch(classes_file, tmp_path):
    path, method, _ = classes_file
    x = inputs(20)
    np.save(tmp_path / "x.npy", x.numpy())
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, path, tmp_path / "x.npy", tmp_path / "out.npz"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    prediction, columns = method.predict(x), np.load(tmp_path / "out.npz")
    np.testing.assert_allclose(columns["probability_bee"], prediction.probabilities[:, 1].numpy(), atol=1e-5)
    assert columns["prediction"].tolist() == [["ant", "bee", "cat"][i] for i in prediction.label]


def test_what_the_file_says_about_itself(classes_file, targets_file):
    model = OnnxModel(classes_file[0])
    assert (model.task, model.class_names, model.target_names) == ("classification", ("ant", "bee", "cat"), None)
    assert (model.feature_names, model.n_outputs, model.input_shape) == (("a", "b", "c", "d"), 3, (4,))
    assert model.metadata == {"encoder": {"columns": ["a"]}}
    model = OnnxModel(targets_file[0])
    assert (model.task, model.target_names, model.class_names) == ("regression", ("price",), None)


def test_a_table_in_place_of_an_array(classes_file):
    model, x = OnnxModel(classes_file[0]), inputs(3).numpy()
    frame = pandas.DataFrame(x, columns=list("abcd"))
    np.testing.assert_array_equal(model.predict(frame)["probabilities"], model.predict(x)["probabilities"])
    for other in (frame[list("dcba")], frame.assign(e="text")):  # in another order: a wrong answer without a word
        with pytest.raises(TypeError, match=r"bedl\.tabular\.load\(.*\)\.predict\(table\)"):
            model.predict(other)


def test_chunks_do_not_change_the_answer(classes_file):
    model, x = OnnxModel(classes_file[0]), inputs(101).numpy()
    whole = model.predict(x, chunk=1000)
    for name, values in model.predict(x, chunk=7).items():
        np.testing.assert_allclose(values, whole[name], atol=1e-6)


def test_no_points_and_other_number_types(classes_file):
    model = OnnxModel(classes_file[0])
    empty = model.predict(np.empty((0, 4)))
    shapes = {name: values.shape for name, values in empty.items()}
    assert shapes == {name: (0, 3) if name == "probabilities" else (0,) for name in tasks.get("classification").outputs}
    ints = np.arange(8).reshape(2, 4)
    np.testing.assert_array_equal(model.predict(ints)["entropy"], model.predict(ints.astype(np.float32))["entropy"])


@pytest.mark.parametrize("x, error, words", [
    (np.zeros((3, 5)), ValueError, r"\(n, 4\), not \(3, 5\)"),
    (np.zeros(4), ValueError, r"\(n, 4\)"),
    (np.array([["a", "b", "c", "d"]]), TypeError, "numbers"),
    (np.array([[0, 0, 0, 0], [0, 0, np.nan, 0]]), ValueError, "row 1 has a missing"),
    (np.array([[0, 0, 0, 1e300]]), ValueError, "row 0"),
])  # fmt: skip
def test_bad_inputs(classes_file, x, error, words):
    with pytest.raises(error, match=words), np.errstate(over="ignore"):
        OnnxModel(classes_file[0]).predict(x)


def rewritten(path, target, change):
    """The file with another description."""
    import onnx

    model = onnx.load(path)
    entry = next(entry for entry in model.metadata_props if entry.key == KEY)
    entry.value = change(json.loads(entry.value))
    sealed_entry = next(entry for entry in model.metadata_props if entry.key == "bedl.sha256")
    model.metadata_props.remove(sealed_entry)
    target.write_bytes(with_checksum(model.SerializeToString()))
    return target


@pytest.mark.parametrize("change, words", [
    (lambda d: json.dumps({**d, "schema": SCHEMA + 1, "bedl_version": "9.1"}), "newer bedl.*9.1"),
    (lambda d: "{", "cannot be read"),
    (lambda d: "[" * 100_000, "cannot be read"),
    (lambda d: json.dumps({**d, "task": "ranking"}), "unknown task"),
    (lambda d: json.dumps({**d, "task": "regression"}), "inputs or outputs"),
    (lambda d: json.dumps({**d, "class_names": {"a": 1}}), "not a list of names"),
    (lambda d: json.dumps({**d, "class_names": ["a", "b"]}), "2 class names for 3"),
])  # fmt: skip
def test_descriptions_that_cannot_be_trusted(classes_file, tmp_path, change, words):
    path = rewritten(classes_file[0], tmp_path / "m.onnx", change)
    with pytest.raises(ModelFileError, match=words):
        OnnxModel(path)


def test_files_that_are_no_models(classes_file, tmp_path):
    import onnx

    content = classes_file[0].read_bytes()
    for damaged in (b"", b"a,b\n1,2\n", content[: len(content) // 2]):
        (tmp_path / "m.onnx").write_bytes(damaged)
        with pytest.raises(ModelFileError, match=r"damaged or no ONNX model|not written by bedl"):
            OnnxModel(tmp_path / "m.onnx")
    foreign = onnx.load_from_string(content)
    foreign.ClearField("metadata_props")
    (tmp_path / "m.onnx").write_bytes(foreign.SerializeToString())
    with pytest.raises(ModelFileError, match="not written by bedl"):
        OnnxModel(tmp_path / "m.onnx")
    with pytest.raises(FileNotFoundError):
        OnnxModel(tmp_path / "nothing.onnx")
    with pytest.raises(ValueError, match="threads"):
        OnnxModel(classes_file[0], threads=0)


def test_one_flipped_bit_is_refused(targets_file, tmp_path):
    content, random = targets_file[0].read_bytes(), np.random.default_rng(0)
    places = [*random.integers(0, len(content), 250), *range(len(content) - LENGTH, len(content))]
    for place, bit in zip(places, random.integers(0, 8, len(places)), strict=True):
        damaged = bytearray(content)
        damaged[place] ^= 1 << bit
        (tmp_path / "m.onnx").write_bytes(damaged)
        with pytest.raises(ModelFileError, match=r"damaged|metadata"):
            OnnxModel(tmp_path / "m.onnx")


def test_other_programs_read_a_sealed_file(targets_file):
    import onnx

    model = onnx.load(targets_file[0])
    onnx.checker.check_model(model)
    assert {entry.key for entry in model.metadata_props} == {KEY, "bedl.sha256"}


def test_columns_of_a_prediction_by_pytorch(classes_file, targets_file):
    x = inputs(50)
    prediction = targets_file[1].predict(x)
    outputs = {name: value.numpy() for name, value in prediction.outputs().items()}
    columns = tasks.get("regression").columns(outputs, ["price"], coverage=0.9)
    lower, upper = prediction.interval(0.9)
    np.testing.assert_allclose(columns["lower"], lower[:, 0].numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(columns["upper"], upper[:, 0].numpy(), rtol=1e-4, atol=1e-5)

    prediction = classes_file[1].predict(x)
    outputs = {name: value.numpy() for name, value in prediction.outputs().items()}
    columns = tasks.get("classification").columns(outputs, [3, 5, 9])
    assert columns["prediction"].tolist() == [[3, 5, 9][i] for i in prediction.label]
    assert list(columns)[1:4] == ["entropy", "aleatoric_entropy", "epistemic_entropy"]
    assert_same_up_to_rounding(columns["aleatoric_entropy"] + columns["epistemic_entropy"], columns["entropy"], ulps=2)
    np.testing.assert_allclose(columns["epistemic_entropy"], prediction.epistemic.numpy(), atol=1e-6)
    assert list(columns)[4:7] == ["data_entropy", "distributional_entropy", "model_entropy"]
    assert list(columns)[7:] == ["probability_3", "probability_5", "probability_9"]
