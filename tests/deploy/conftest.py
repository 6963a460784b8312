"""Exports that several tests look at; made once, since a graph of a Dirichlet head takes seconds to write."""

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from bedl.deploy import export
from tests.deploy.models import classification, inputs, regression


@pytest.fixture(scope="session")
def classes_file(tmp_path_factory):
    """(path, method, report) of a classification with names and metadata."""
    path, method = tmp_path_factory.mktemp("classes") / "classes.onnx", classification(3)
    report = export(
        method, path, example=inputs(), class_names=["ant", "bee", "cat"], feature_names=["a", "b", "c", "d"],
        metadata={"encoder": {"columns": ["a"]}},
    )  # fmt: skip
    return path, method, report


@pytest.fixture(scope="session")
def targets_file(tmp_path_factory):
    """(path, method, report) of a regression with one target."""
    path, method = tmp_path_factory.mktemp("targets") / "targets.onnx", regression(1, beta=5.0)
    return path, method, export(method, path, example=inputs(), target_names=["price"])
