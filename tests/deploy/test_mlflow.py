"""MLflow stores and loads models as they are, and predicts what they predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("mlflow.pyfunc", exc_type=ImportError)

from bedl.deploy.mlflow import save_model
from bedl.estimators import tabular

pytestmark = pytest.mark.filterwarnings("ignore")
GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", ["houses-model", "houses.onnx"])
def test_a_stored_model_predicts_the_same(name: str, tmp_path: Path) -> None:
    import mlflow

    save_model(tmp_path / "stored", GOLDEN / name)
    assert not [path for path in (tmp_path / "stored").rglob("*") if path.suffix in (".pkl", ".pickle")]
    frame = pd.read_csv(GOLDEN / "houses.csv").drop(columns="price")
    found: Any = mlflow.pyfunc.load_model(str(tmp_path / "stored")).predict(frame)
    pd.testing.assert_frame_equal(found, tabular.load(GOLDEN / name).predict(frame))


def test_what_is_no_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="there is no model"):
        save_model(tmp_path / "stored", tmp_path / "missing")
    assert not (tmp_path / "stored").exists()
