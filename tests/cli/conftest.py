"""One tiny model per task, fitted once, and a way to call the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.tables import FLOWERS, HOUSES
from tests.cli.verbs import run


@pytest.fixture(scope="session")
def shelf(tmp_path_factory) -> Path:
    """A folder with the tables houses.csv and flowers.csv."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "houses.csv").write_text(HOUSES)
    (folder / "flowers.csv").write_text(FLOWERS)
    return folder


@pytest.fixture(scope="session")
def houses(shelf) -> Path:
    """A regression model of a table with categories, dates and missing values."""
    run("fit", shelf / "houses.csv", "--target", "price", "--epochs", 2, "--out", shelf / "houses", ok=True)
    return shelf / "houses"


@pytest.fixture(scope="session")
def flowers(shelf) -> Path:
    """A classification model of three classes."""
    run("fit", shelf / "flowers.csv", "--target", "kind", "--epochs", 2, "--out", shelf / "flowers", ok=True)
    return shelf / "flowers"


@pytest.fixture(scope="session")
def houses_onnx(houses) -> Path:
    said = run("export", houses, "--onnx", houses.with_suffix(".onnx"), ok=True)
    assert "agrees with PyTorch to" in said.stdout
    return houses.with_suffix(".onnx")


@pytest.fixture(scope="session")
def flowers_onnx(flowers) -> Path:
    run("export", flowers, "--onnx", flowers.with_suffix(".onnx"), ok=True)
    return flowers.with_suffix(".onnx")
