"""The page as text: what it holds, what it must not hold, and how it is written."""

import dataclasses
import math
import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk
from sklearn.datasets import load_iris
from sklearn.dummy import DummyClassifier, DummyRegressor

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import tabular
from bedl.evaluation import tasks
from bedl.evaluation.report import ClassificationResults, Examples, ResultsError, render, score
from bedl.evaluation.report.page import preview
from bedl.evaluation.report.pages.regression import _fan
from tests.report.data import SCRIPT, classification, nasty_classification, nasty_regression, regression

PAGES = {
    "targets": regression,
    "targets, no labels": lambda: regression(y=None),
    "targets, one row": lambda: regression(1, ood=False),
    "targets, many rows": lambda: regression(5000),
    "targets, some labels": lambda: regression(y=np.where(np.arange(60) % 2, 10.0, np.nan)),
    "targets, constant": lambda: regression(y=np.full(60, 10.0)),
    "targets, no spread": lambda: regression(
        std=np.zeros(60), aleatoric_std=np.zeros(60), epistemic_std=np.zeros(60), lower=np.ones(60), upper=np.ones(60)
    ),
    "targets, two parts": lambda: regression(data_std=None, distributional_std=None, model_std=None),
    "targets, nasty": nasty_regression,
    "classes": classification,
    "classes, rows": lambda: classification(images=False),
    "classes, no labels": lambda: classification(labels=None, ood=False),
    "classes, one row": lambda: classification(1, ood=False),
    "classes, two": lambda: classification(classes=2),
    "classes, many": lambda: classification(300, 40),
    "classes, many rows": lambda: classification(5000),
    "classes, some labels": lambda: classification(labels=np.arange(80) % 5 - 1),
    "classes, two parts": lambda: classification(data_entropy=None, distributional_entropy=None, model_entropy=None),
    "classes, nasty": nasty_classification,
}


class Page(HTMLParser):
    """Elements, and the rows of each table, by its caption."""

    VOID = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self, html):
        super().__init__()
        self.elements, self.open, self.tables, self.text = [], [], {}, []
        self.caption = self.cell = None
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "caption":
            self.caption = ""
        elif tag == "tr":
            self.tables.setdefault(self.caption, []).append([])
        elif tag in ("td", "th"):
            self.tables[self.caption][-1].append("")
            self.cell = True

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another element"
        if tag in ("td", "th"):
            self.cell = None

    def handle_data(self, data):
        if self.open and self.open[-1] == "caption":
            self.caption += data
        elif self.cell:
            self.tables[self.caption][-1][-1] += data
        if self.open and self.open[-1] not in ("style", "script"):
            self.text.append(data)


def plain(cell):
    """The number in a cell."""
    value = float(cell.replace("−", "-").replace(",", "").replace("\u00a0%", ""))
    return value / 100 if "%" in cell else value


@pytest.fixture(scope="module", params=PAGES, ids=PAGES.keys())
def html(request):
    return render(PAGES[request.param]())


def test_every_element_is_closed_and_ids_are_unique(html):
    page = Page(html)
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_nothing_is_loaded_from_elsewhere(html):
    for tag, attributes in Page(html).elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
            assert attributes.get(name, "#").startswith(("#", "data:image/png;base64,"))
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"url\(|@import|https?:", html)


def test_only_our_script_is_there_and_the_policy_names_it(html):
    page = Page(html)
    assert [tag for tag, _ in page.elements].count("script") == 1
    policy = next(a["content"] for tag, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    assert "script-src 'sha256-" in policy


def test_every_number_of_every_plot_is_finite(html):
    page = Page(html)
    assert any(tag == "svg" for tag, _ in page.elements)
    for tag, attributes in page.elements:
        if tag in ("path", "circle", "rect", "text"):
            for name in ("d", "x", "y", "cx", "cy", "r", "width", "height", "transform", "fill-opacity"):
                for value in re.findall(r"[^\sMLHVlvzrotate(),]+", attributes.get(name, "")):
                    assert math.isfinite(float(value)), (tag, attributes)
    assert not re.search(r"\b(nan|inf|None)\b", " ".join(page.text))


def test_labels_of_our_own_are_shown_in_full():
    for results in (regression(), classification()):
        html = render(results)
        labels = re.findall(r'<text class="label"[^>]*>([^<]*)<', html)
        assert len(labels) >= 10
        assert not [label for label in labels if "…" in label]


def test_every_plot_is_named_and_reached_by_keyboard(html):
    for tag, attributes in Page(html).elements:
        if tag == "svg":
            assert attributes["tabindex"] == "0"
            assert attributes["aria-label"]
        if tag == "th":
            assert attributes["scope"] in ("row", "col")
        if tag == "img":
            assert attributes["alt"]


def test_scores_of_targets_agree_with_scikit_learn_and_scipy():
    results = regression()
    scores = score(results)
    assert scores["rmse"] == pytest.approx(sk.root_mean_squared_error(results.y, results.mean))
    assert scores["nll"] == pytest.approx(-stats.norm.logpdf(results.y, results.mean, results.std).mean())
    assert scores["coverage"] == np.mean((results.y >= results.lower) & (results.y <= results.upper))
    truth = np.r_[np.zeros(60), np.ones(30)]
    assert scores["ood_auroc"] == pytest.approx(sk.roc_auc_score(truth, np.r_[results.std, results.ood.std]))
    epistemic = np.r_[results.epistemic_std, results.ood.epistemic_std]
    assert scores["ood_auroc_epistemic"] == pytest.approx(sk.roc_auc_score(truth, epistemic))


def test_scores_of_classes_agree_with_scikit_learn():
    results = classification()
    scores = score(results)
    assert scores["accuracy"] == sk.accuracy_score(results.labels, results.probabilities.argmax(1))
    assert scores["nll"] == pytest.approx(sk.log_loss(results.labels, results.probabilities, labels=range(4)))
    assert scores["ecdf_auc"] == pytest.approx(math.log(4) - results.entropy.mean())
    truth = np.r_[np.zeros(80), np.ones(40)]
    assert scores["ood_aupr"] == pytest.approx(
        sk.average_precision_score(truth, np.r_[results.entropy, results.ood.entropy])
    )


def test_tables_of_targets_hold_the_numbers():
    results = regression(5000)
    tables = Page(render(results)).tables
    rows = tables["Coverage of central intervals"][1:]
    assert len(rows) == 19
    for nominal, observed, _ in rows:
        lower, upper = stats.norm.interval(plain(nominal), results.mean, results.std)
        assert plain(observed) == pytest.approx(np.mean((results.y >= lower) & (results.y <= upper)), abs=5.1e-4)
    quantiles = {row[0]: row[1:] for row in tables["Std in the target's unit, all rows"]}
    assert plain(quantiles["median"][3]) == pytest.approx(np.median(results.std), rel=1e-3)
    assert plain(quantiles["95 %"][5]) == pytest.approx(np.quantile(results.ood.distributional_std, 0.95), rel=1e-3)
    groups = tables["Rows in groups by predicted std, smallest first"][1:]
    first = np.argsort(results.std)[:1000]
    assert plain(groups[0][3]) == pytest.approx(np.sqrt(np.mean((results.y - results.mean)[first] ** 2)), rel=1e-3)
    assert sum(plain(row[1]) for row in groups) == 5000


def test_tables_of_classes_hold_the_numbers():
    results = classification(600)
    tables = Page(render(results)).tables
    matrix = tables["Rows by true class (down) and predicted class (across)"]
    expected = sk.confusion_matrix(results.labels, results.probabilities.argmax(1))
    assert [[int(plain(n)) for n in row[1:]] for row in matrix[1:]] == expected.tolist()
    bins = tables["Rows by confidence, 15 bins"][1:]
    assert sum(plain(row[1]) for row in bins) == 600
    confidence = results.probabilities.max(1)
    last = confidence > 14 / 15
    right = results.probabilities.argmax(1) == results.labels
    assert plain(bins[-1][3]) == pytest.approx(right[last].mean(), abs=5.1e-4)
    answered = tables["Rejecting the most uncertain rows"][1:]
    half = np.argsort(results.entropy)[:300]
    assert plain(answered[4][1]) == pytest.approx(1 - right[half].mean(), abs=5.1e-4)
    by = {row[0]: row[1:] for row in tables["Detection of OOD rows"]}
    assert plain(by["total entropy"][0]) == pytest.approx(score(results)["ood_auroc"], rel=1e-3)


def test_the_most_uncertain_rows_come_first():
    results = regression()
    table = Page(render(results)).tables["Most uncertain rows: 20 of 60"]
    order = np.argsort(-results.std)[:20]
    assert [int(row[0]) for row in table[1:]] == (order + 1).tolist()
    assert table[0][-2:] == ["age", "city"]
    assert [row[-1] for row in table[1:]] == [f"city {i}" for i in order]
    assert [plain(row[2]) for row in table[1:]] == pytest.approx(results.std[order], rel=1e-3)


def test_the_most_surprising_rows_come_first():
    results = regression()
    table = Page(render(results)).tables["Most surprising rows: 20 of 60"]
    off = np.abs(results.y - results.mean) / results.std
    order = np.argsort(-off)[:20]
    assert [int(row[0]) for row in table[1:]] == (order + 1).tolist()
    assert [plain(row[table[0].index("|residual| / std")]) for row in table[1:]] == pytest.approx(off[order], rel=1e-3)
    assert "Most surprising rows" not in render(regression(y=None))
    results = classification(images=False)
    table = Page(render(results)).tables["Most surprising examples: 20 of 80"]
    order = np.argsort(results.probabilities[np.arange(80), results.labels], kind="stable")[:20]
    assert [int(row[0]) for row in table[1:]] == (order + 1).tolist()


def test_recall_and_precision_of_each_class():
    results = classification(600)
    rows = Page(render(results)).tables["Each class, lowest recall first"][1:]
    recall = sk.recall_score(results.labels, results.predicted, average=None)
    precision = sk.precision_score(results.labels, results.predicted, average=None)
    order = np.argsort(recall, kind="stable")
    assert [row[0] for row in rows] == [f"class {i}" for i in order]
    assert [plain(row[2]) for row in rows] == pytest.approx(recall[order], abs=5.1e-4)
    assert [plain(row[3]) for row in rows] == pytest.approx(precision[order], abs=5.1e-4)


def test_baselines_are_those_of_scikit_learn():
    results, x = regression(), np.zeros((60, 1))
    mean = DummyRegressor().fit(x, results.y).predict(x)
    found = tasks.get("regression").baseline(results)
    assert found["rmse"] == pytest.approx(sk.root_mean_squared_error(results.y, mean))
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(results.y, mean))
    assert found["nll"] == pytest.approx(-stats.norm.logpdf(results.y, mean, results.y.std()).mean())
    results, x = classification(), np.zeros((80, 1))
    dummy = DummyClassifier(strategy="prior").fit(x, results.labels)
    found = tasks.get("classification").baseline(results)
    assert found["accuracy"] == pytest.approx(dummy.score(x, results.labels))
    assert found["nll"] == pytest.approx(sk.log_loss(results.labels, dummy.predict_proba(x)))
    assert found["brier"] == pytest.approx(((dummy.predict_proba(x) - np.eye(4)[results.labels]) ** 2).sum(1).mean())
    assert "baseline" in render(results)
    assert tasks.get("classification").baseline(classification(labels=None)) == {}


@pytest.mark.parametrize("factor, words", [(1.0, "Intervals are calibrated"), (0.3, "too narrow"), (3.0, "too wide")])
def test_the_verdict_on_intervals(factor, words):
    results = regression(2000)
    half = factor * (results.upper - results.mean)
    html = render(regression(2000, lower=results.mean - half, upper=results.mean + half))
    assert words in html.split('class="verdict"')[1].split("</ul>")[0]


def test_the_verdict_on_errors_and_confidence():
    noise = np.random.default_rng(0).normal(10, 3, 2000)
    assert "no better than a constant one" in render(regression(2000, y=noise))
    assert "smaller than those of a constant prediction" in render(regression(2000))
    assert "calibrated on average" in render(classification(2000))
    assert "The model is overconfident" in render(classification(2000, labels=np.arange(2000) % 4))


def test_stacked_bars_are_as_high_as_the_total_and_split_by_the_parts():
    results = regression(48, ood=False)
    card = render(results).split("<h2>Uncertainty components")[1].split("</svg>")[0]
    heights = {}
    for kind in ("noise", "evidence", "network"):
        group = card.split(f'<g class="bar {kind}">')[1].split("</g>")[0]
        heights[kind] = np.array([float(h) for h in re.findall(r'height="([\d.]+)"', group)])
    total = np.sort(results.std)
    scale = 224 / (1.05 * results.std.max())  # pixels
    np.testing.assert_allclose(sum(heights.values()), scale * total, atol=0.2)
    order = np.argsort(results.std, kind="stable")
    for kind, part in zip(heights, results.parts, strict=True):
        share = getattr(results, part)[order] ** 2 / results.std[order] ** 2
        np.testing.assert_allclose(heights[kind], scale * share * total, atol=0.2)


def test_images_are_shown_as_images():
    page = Page(render(classification()))
    assert [tag for tag, _ in page.elements].count("img") == 54  # uncertain, surprising, uncertain and foreign


def test_plots_are_thinned_out_and_say_so():
    small, large = render(regression(300)), render(regression(50_000))
    assert len(large) < 1.5e6
    assert large == render(regression(50_000))
    for html in (small, large):
        circles = len(re.findall("<circle", html))
        assert circles < 5000
        assert "at most 1,000 points" in html
    assert "Drawn: 120 of 50,000 rows." in " ".join(Page(large).text)
    assert "at most 1,000" not in render(regression(50))


def test_what_cannot_be_computed_is_left_out_and_said():
    text = " ".join(Page(render(regression(y=None))).text)
    assert "There are no observed targets" in text
    assert "RMSE" not in text
    text = " ".join(Page(render(classification(labels=None, ood=False))).text)
    assert "There are no labels" in text
    assert "No out-of-distribution (OOD) rows were given" in text
    assert "Accuracy" not in text
    assert "30 of 60 rows have observed targets" in render(PAGES["targets, some labels"]())


def test_given_scores_replace_and_add():
    text = " ".join(Page(render(regression(), {"nll": -123.4, "Epochs": 17, "Kind <b>": "<i>"})).text)
    assert "−123.4" in text
    assert "Epochs" in text
    assert "Kind <b>" in text  # shown, not obeyed
    with pytest.raises(ResultsError, match="number"):
        render(regression(), {"nll": "<b>"})


def test_a_pit_of_ones_own_is_used():
    results = regression(pit=np.full(60, 0.5))
    assert score(results)["calibration_error"] == pytest.approx(np.mean(1 - np.arange(0.05, 0.951, 0.05)))
    assert "take each prediction for a normal" not in render(results)


def test_an_exact_likelihood_is_used():
    probabilities = np.tile([1.0, 0.0], (3, 1))
    zero = np.zeros(3)
    results = ClassificationResults(probabilities, zero, zero, zero, ["a", "b"], np.array([0, 1, -1]))
    assert score(results)["nll"] == math.inf
    assert "∞" in render(results)
    exact = dataclasses.replace(results, log_density=np.array([0.0, -200.0, np.nan]))
    assert score(exact)["nll"] == 100.0


def test_names_from_data_are_shown_as_text():
    for results in (nasty_regression(), nasty_classification()):
        html = render(results)
        assert SCRIPT not in html
        assert "<img src=x" not in html
        assert "\u202e" not in html
        assert SCRIPT in " ".join(Page(html).text)
        assert "w" * 400 not in html


def test_other_things_are_refused():
    with pytest.raises(ResultsError, match="not dict"):
        render({})


def test_colour_images_and_examples_of_some_rows():
    images = np.zeros((2, 3, 8, 8), np.uint8)
    html = render(classification(examples=Examples(images=images, index=np.array([5, 70])), ood=None))
    assert html.count("<img") == 4  # both among the uncertain and among the surprising
    assert "row 71" in html


def test_metrics_and_report_need_no_torch():
    """Imported by their files, since the package itself may bring in torch."""
    code = (
        "import sys, types; package = types.ModuleType('bedl'); package.__path__ = [sys.argv[1]]; "
        "sys.modules['bedl'] = package; import bedl.evaluation.report, bedl.evaluation.metrics; "
        "assert not {'torch', 'scipy', 'sklearn', 'pandas'} & set(sys.modules), 'heavy imports'"
    )
    import bedl.evaluation.report

    folder = os.path.dirname(bedl.__file__)
    subprocess.run([sys.executable, "-c", code, folder], check=True, timeout=60)


def test_how_it_was_learned_is_shown_and_not_trusted() -> None:
    course = {"chosen": "method 'bedl': <b>2</b> groups", "loss": [3.0, 1.0, 0.5], "settings": {"epochs<i>": "</td>9"}}
    page = render(dataclasses.replace(regression(), training=course))
    assert "Training</h2>" in page
    assert "epoch 3: loss 0.5" in page
    assert "<b>2</b>" not in page
    assert "</td>9" not in page
    assert "<i>" not in page
    assert "Training</h2>" not in render(regression())
    assert "Training</h2>" not in render(dataclasses.replace(regression(), training={"loss": [float("nan")]}))


def test_the_band_of_errors_is_that_of_the_intervals_and_no_normal_one():
    n = 400
    std = np.linspace(0.5, 2.0, n)
    mean = np.zeros(n)
    results = regression(
        n, mean=mean, std=std, aleatoric_std=std, epistemic_std=0 * std, lower=mean - 0.5 * std, upper=mean + 3 * std,
        data_std=None, distributional_std=None, model_std=None, ood=None, y=mean, examples=Examples(),
    )  # fmt: skip
    at, low, high = _fan(results, np.arange(n))
    np.testing.assert_allclose(low, -0.5 * at, atol=0.03)
    np.testing.assert_allclose(high, 3 * at, atol=0.12)
    assert (at[0], at[-1]) == (0.5, 2.0)


def test_numbers_that_were_text_are_shown_with_few_digits():
    html = render(regression(3, ood=None, examples=Examples({
        "size": ["0.12573022109339841", "-7.5e-3", "12"], "key": ["1.2.3456789", "x0.123456", "00123456789012345"],
    })))  # fmt: skip
    assert "<bdi>0.1257</bdi>" in html
    assert "0.12573" not in html
    for kept in ("-7.5e-3", "12", "1.2.3456789", "x0.123456", "00123456789012345"):
        assert f"<bdi>{kept}</bdi>" in html


def test_nothing_is_said_of_domains_where_there_is_one():
    assert "ECDF-AUC in-domain" not in render(classification(ood=False))


def test_many_classes_leave_no_half_of_a_line_empty():
    many, few = (render(classification(400, count, ood=False)) for count in (99, 4))
    assert '<section class="card wide"><h2>Scores by class' in many
    assert '<section class="card"><h2>Scores by class' in few


@pytest.mark.parametrize("make", [regression, classification])
def test_a_preview_is_a_frame_with_the_first_cards(make):
    page = Page(preview(make(ood=False)))
    (frame,) = [attributes for tag, attributes in page.elements if tag == "iframe"]
    assert frame["sandbox"] == "allow-scripts"
    inside = Page(frame["srcdoc"])
    assert [tag for tag, _ in inside.elements].count("svg") == 2


def test_models_and_predictions_are_shown_in_notebooks():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 2)), rng.normal(size=80)
    model = BEDLRegressor(method="bedl", epochs=2, random_state=0, device="cpu").fit(X, y)
    html = model.predict_dist(X)._repr_html_()
    assert "90\u00a0% interval" in Page(html).elements[0][1]["srcdoc"]
    assert "<table" in model.fit(X, np.stack([y, -y], 1)).predict_dist(X)._repr_html_()
    tables = tabular.fit("iris", method="bedl", epochs=2, device="cpu")
    shown = Page(tables._repr_html_()).elements[0][1]["srcdoc"]
    assert "Accuracy" in shown
    assert "135" in shown
    X, y = load_iris(return_X_y=True)
    classes = BEDLClassifier(method="bedl", epochs=2, random_state=0, device="cpu").fit(X, y)
    assert "Uncertainty components" in Page(classes.predict_dist(X)._repr_html_()).elements[0][1]["srcdoc"]


def test_a_gain_over_the_most_frequent_class_has_to_be_significant():
    labels = np.r_[np.zeros(930, int), np.ones(70, int)]
    for found, kind in ((10, "so"), (50, "good"), (2, "bad")):
        predicted = labels.copy()
        predicted[930 + found :], predicted[:4] = 0, 1
        p = np.where(predicted[:, None] == [0, 1], 0.9, 0.1)
        h = np.full(1000, 0.3)
        html = render(ClassificationResults(p, h, h, 0 * h, ["no", "yes"], labels))
        assert f'<li class="{kind}">' in html.split('class="verdict"')[1].split("</li>")[0], found
