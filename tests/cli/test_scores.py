"""`bedl evaluate` and `bedl report` against scikit-learn, SciPy and the predictions themselves."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score, root_mean_squared_error

from bedl.data import open_table
from bedl.estimators.tabular import load
from tests.cli.tables import FLOWERS, HOUSES
from tests.cli.verbs import run


def predicted(*words: object) -> pandas.DataFrame:
    return pandas.read_csv(io.StringIO(run("predict", *words, ok=True).stdout))


def scores(*words: object) -> dict:
    return json.loads(run("evaluate", *words, "--json", ok=True).stdout)["scores"]


@pytest.mark.parametrize("model", ["houses", "houses_onnx"])
def test_regression(model, request, shelf):
    model, table = request.getfixturevalue(model), shelf / "houses.csv"
    found, rows, y = scores(model, table), predicted(model, table), pandas.read_csv(table)["price"]
    assert found["rmse"] == pytest.approx(root_mean_squared_error(y, rows["prediction"]), rel=1e-5)
    nll = -stats.norm.logpdf(y, rows["prediction"], rows["std"]).mean()
    if model.is_dir():  # a mixture, whose density is not that of a normal with the same moments
        x = np.concatenate([load(model).encoder.features(batch) for batch in open_table(table).batches()])
        mixture = load(model).estimator.predict_dist(x)
        means, weights = mixture.means[:, 0].numpy(), mixture.log_weights[:, 0].exp().numpy()
        parts = (mixture.members_data, mixture.members_distributional, mixture.members_model)
        stds = np.sqrt(sum(part[:, 0].numpy() for part in parts))
        nll = -np.log((weights * stats.norm.pdf(y.to_numpy()[:, None], means, stds)).sum(1)).mean()
    assert found["nll"] == pytest.approx(nll, rel=1e-4)
    assert found["coverage"] == pytest.approx(((rows["lower"] <= y) & (y <= rows["upper"])).mean())


@pytest.mark.parametrize("model", ["flowers", "flowers_onnx"])
def test_classification_with_foreign_rows(model, request, shelf, tmp_path):
    model, table = request.getfixturevalue(model), shelf / "flowers.csv"
    # Neither the label nor the further column has to be known: these rows are foreign on purpose.
    (tmp_path / "ood.csv").write_text("length,width,kind,more\n" + "9,-9,orchid,1\n-3,8,fern,2\n1,1,moss,3\n")
    found, rows = scores(model, table, "--ood", tmp_path / "ood.csv"), predicted(model, table)
    truth = pandas.read_csv(table)["kind"]
    probabilities = rows[[f"probability_{name}" for name in ("iris", "rose", "tulip")]].to_numpy(np.float64)
    assert found["accuracy"] == accuracy_score(truth, rows["prediction"])
    assert found["nll"] == pytest.approx(log_loss(truth, probabilities / probabilities.sum(1, keepdims=True)), rel=1e-4)
    foreign = predicted(model, tmp_path / "ood.csv", "--extra", "ignore")
    entropy = np.concatenate([rows["entropy"], foreign["entropy"]])
    assert found["ood_auroc"] == pytest.approx(roc_auc_score(np.arange(123) >= 120, entropy), abs=1e-6)


def test_the_likelihood_and_the_intervals_of_an_ensemble_are_those_of_the_mixture(shelf, tmp_path):
    table = shelf / "houses.csv"
    words = ["--epochs", 2, "--ensemble", 3, "--holdout", 0, "--out", tmp_path / "m"]
    run("fit", table, "-t", "price", *words, ok=True)
    model = load(tmp_path / "m")
    x = np.concatenate([model.encoder.features(batch) for batch in open_table(table).batches()])
    y = pandas.read_csv(table)["price"].to_numpy()
    mixture = model.estimator.predict_dist(x)
    means = mixture.means[:, 0].numpy()
    variances = mixture.members_data + mixture.members_distributional + mixture.members_model
    stds = variances.sqrt()[:, 0].numpy()
    density = stats.norm.pdf(y[:, None], means, stds).mean(1)
    assert scores(tmp_path / "m", table)["nll"] == pytest.approx(-np.log(density).mean(), rel=1e-6)
    lower = predicted(tmp_path / "m", table)["lower"].to_numpy()
    np.testing.assert_allclose(stats.norm.cdf(lower[:, None], means, stds).mean(1), 0.05, atol=1e-6)


def test_rows_without_a_target_are_predicted_and_not_scored(flowers, tmp_path):
    (tmp_path / "all.csv").write_text(FLOWERS)
    (tmp_path / "some.csv").write_text(FLOWERS + "1,1,\n0,0,\n")
    assert scores(flowers, tmp_path / "some.csv")["nll"] == pytest.approx(scores(flowers, tmp_path / "all.csv")["nll"])
    said = run("evaluate", flowers, tmp_path / "some.csv", ok=True)
    assert "2 rows have no target" in said.stderr
    assert "120 rows" in said.stdout
    document = json.loads(run("evaluate", flowers, tmp_path / "some.csv", "--json", ok=True).stdout)
    assert (document["rows"], document["rows_without_target"]) == (120, 2)


def test_scores_for_people(houses, shelf, monkeypatch):
    for width in ("40", "200"):
        monkeypatch.setenv("COLUMNS", width)
        text = run("evaluate", houses, shelf / "houses.csv", ok=True).stdout
        assert "RMSE" in text
        assert "Coverage" in text
        assert max(map(len, text.splitlines())) <= int(width)


def test_a_page_with_examples_and_escaped_text(houses, tmp_path):
    (tmp_path / "t.csv").write_text(HOUSES.replace("red", "<script>alert(1)</script>"))
    words = ["--handle-unknown", "ignore", "--out", tmp_path / "page.html"]
    run("report", houses, tmp_path / "t.csv", *words, ok=True)
    page = (tmp_path / "page.html").read_text()
    assert "Most uncertain" in page
    assert "colour" in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("kind", ["houses", "houses_onnx"])
def test_unseen_categories_are_counted_and_scored(request, tmp_path, kind):
    (tmp_path / "t.csv").write_text(HOUSES.replace("red", "violet"))
    with pytest.warns(UserWarning, match="'colour': .* rows hold values that training did not see.*'violet'"):
        found = run("evaluate", request.getfixturevalue(kind), tmp_path / "t.csv", "--json", ok=True)
    assert json.loads(found.stdout)["rows"] == len(HOUSES.splitlines()) - 1
    refused = run("evaluate", request.getfixturevalue(kind), tmp_path / "t.csv", "--handle-unknown", "error", ok=False)
    assert "training saw no 'violet'" in refused.stderr


def test_the_rows_of_the_fit_are_called_so(houses, shelf, tmp_path):
    said = "These are training rows"
    assert said in run("evaluate", houses, shelf / "houses.csv", ok=True).stderr
    run("report", houses, shelf / "houses.csv", "--out", tmp_path / "page.html", ok=True)
    assert said in (tmp_path / "page.html").read_text()
    (tmp_path / "new.csv").write_text(HOUSES)
    assert said not in run("evaluate", houses, tmp_path / "new.csv", ok=True).stderr


def test_a_page_without_targets(flowers, tmp_path):
    (tmp_path / "t.csv").write_text("length,width\n0.1,0.2\n2,0\n")
    said = run("report", flowers, tmp_path / "t.csv", "--out", tmp_path / "p.html", "--json", ok=True)
    document = json.loads(said.stdout)
    assert document["rows"] == 2
    assert "accuracy" not in document["scores"]
    assert (tmp_path / "p.html").is_file()


def test_images_are_shown_as_images_also_of_a_table_that_does_not_say_so(tmp_path):
    run("fit", "digits:train", "--epochs", 1, "--hidden", 10, "--out", tmp_path / "m", ok=True)
    table = open_table("digits:test")
    (tmp_path / "some.csv").write_text(_text(next(table.batches(100))))
    words = ["--ood", "digits:mirrored", "--out", tmp_path / "p.html"]
    run("report", tmp_path / "m", tmp_path / "some.csv", *words, ok=True)
    page = (tmp_path / "p.html").read_text()
    assert page.count("<img ") == 54
    assert "data:image/png" in page
    assert "AUROC" in page


def _text(batch) -> str:
    return batch.to_pandas().to_csv(index=False)
