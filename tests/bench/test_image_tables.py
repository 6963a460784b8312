"""The tables of images, on tiny data sets made here."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import kl_divergence

from bedl import BEDLClassifier
from bedl.bench import Cell, Choice, get
from bedl.bench.images import (
    CHECKPOINTS,
    LATIN,
    RESEMBLES,
    Images,
    class_scores,
    detection_scores,
    entropy_curve,
    foreign_sets,
    letters,
    network_setup,
    strokes,
)
from bedl.bench.tables import adversarial, gp, ood
from bedl.bench.util import lenet5, two_layers
from bedl.data import DataFileNotFoundError
from bedl.heads.predictive import CategoricalPredictive
from bedl.methods import Batch, registry
from bedl.methods.registry import Problem
from bedl.nn import GaussianLayer
from tests.data.test_images import idx, write_mnist


def bars(n: int, side: int = 28, classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """A bright bar whose height says the class. shapes: (n, side, side), (n,)"""
    rng, y = np.random.default_rng(n), np.arange(n) % classes
    images = rng.integers(0, 40, (n, side, side))
    for image, label in zip(images, y, strict=True):
        image[2 + 2 * label : 5 + 2 * label, 4:24] = 230
    return images.astype(np.uint8), y.astype(np.uint8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("data")
    for part, n in (("train", 300), ("t10k", 50)):
        images, labels = bars(n)
        write_mnist(place, packed=False, images=idx(images), labels=idx(labels), part=part)
        noise = np.random.default_rng(1).integers(0, 256, images.shape, dtype=np.uint8)
        write_mnist(place, "FashionMNIST", packed=False, images=idx(noise), labels=idx(labels), part=part)
    folder = place / "cifar-10-batches-bin"
    folder.mkdir()
    images, labels = bars(40, 32)
    rows = np.concatenate([labels[:, None], np.repeat(images.reshape(40, -1), 3, 1)], 1)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return place


def prediction(p: list[list[float]]) -> CategoricalPredictive:
    log_p = torch.tensor(p).log()
    n = len(p)
    return CategoricalPredictive(log_p, torch.zeros(n), torch.zeros(n), torch.ones(n), torch.zeros_like(log_p))


# -- scores ------------------------------------------------------------------------------------------
def test_scores_of_a_prediction_that_can_be_done_by_hand() -> None:
    known, foreign = prediction([[0.9, 0.1], [0.2, 0.8]]), prediction([[0.5, 0.5]])
    scores = class_scores(known, np.array([0, 0]))
    assert scores["error"] == 0.5
    assert scores["nll"] == pytest.approx(-(math.log(0.9) + math.log(0.2)) / 2, rel=1e-5)
    assert scores["brier"] == pytest.approx((2 * 0.1**2 + 2 * 0.8**2) / 2, rel=1e-5)
    found = detection_scores(known, foreign)
    assert found["ecdf_auc"] == pytest.approx(0.0, abs=1e-6)
    assert (found["auroc_total"], found["auroc_softmax"], found["fpr95"]) == (1.0, 1.0, 0.0)
    curve = entropy_curve(known, points=3)
    assert curve[0] == pytest.approx(known.entropy.min().item(), abs=1e-4)
    assert curve == sorted(curve)


# -- ood ---------------------------------------------------------------------------------------------
def test_a_cell_of_ood_is_learned_and_scored(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    table, cell = get("ood"), Cell("ood", "mnist", "edl", "paper")
    first = table.work(cell, root)
    assert first.metrics["error"] < 0.1
    assert first.metrics["auroc_total"] > 0.9
    assert {"ece", "brier", "aupr", "fpr95", "auroc_epistemic_turned", "ecdf_auc_noise"} <= first.metrics.keys()
    assert first.settings["epochs"] == first.settings["epochs_run"] == 50
    assert first.settings["method_options"] == {"evidence": "relu", "decay": 0.005}
    assert first.settings["network"] == {"dropout": 0.5, "dropped": "dense"}
    assert any("epochs" in said for said in first.settings["deviations"])
    assert first.curves.keys() == {"known", "foreign"}
    assert [folder.name for folder in tmp_path.iterdir()] == ["ood-mnist-edl-paper-0-0"]
    again = table.work(cell, root)  # from the checkpoint
    assert again.metrics == pytest.approx(first.metrics, rel=1e-6)


def test_foreign_sets_are_named_and_missing_ones_are_said(root: Path, tmp_path: Path) -> None:
    test = np.random.default_rng(0).random((6, 1, 28, 28), dtype=np.float32)
    sets, left_out = foreign_sets("mnist", test, root, most=4)
    assert next(iter(sets)) == ood.OUT_OF_DOMAIN["mnist"]
    assert sets.keys() | left_out.keys() <= RESEMBLES.keys()
    assert {images.shape for images in sets.values()} == {(4, 1, 28, 28)}
    np.testing.assert_array_equal(sets["inverted"], 1 - test[:4])
    np.testing.assert_array_equal(sets["turned"][0, 0], np.rot90(test[0, 0]))
    _, left_out = foreign_sets("mnist", test, tmp_path)
    assert "bedl data fetch" in left_out["fashion"]
    scenes, _ = foreign_sets("cifar-1-5", np.zeros((3, 3, 32, 32), np.float32), root)
    assert {images.shape[1:] for images in scenes.values()} == {(3, 32, 32)}
    assert len(scenes["cifar-6-10"]) == 20


def test_letters_lie_in_the_frame_as_digits_do() -> None:
    try:
        drawn = letters(LATIN, 10, seed=0)
    except (ImportError, OSError):
        pytest.skip("no fonts to draw with")
    for images in (drawn, strokes(10, seed=0)):
        assert images.shape == (10, 1, 28, 28)
        assert images.min() >= 0
        assert images.max() <= 1
        middle = (images.sum(2)[:, 0] * np.arange(28)).sum(1) / images.sum((1, 2, 3))
        assert np.abs(middle - 13.5).max() < 4.5
    assert len({image.tobytes() for image in drawn}) == 10


def test_missing_data_are_refused_before_any_work(tmp_path: Path) -> None:
    for name in ("ood", "gp", "adversarial"):
        with pytest.raises(DataFileNotFoundError, match="bedl data fetch"):
            get(name).check(Choice(), tmp_path)


def test_published_figures_are_shares() -> None:
    found = {(p.label, p.metric): p.values for p in get("ood").published()}
    assert found["BEDL+Reg", "error"]["mnist"][0] == pytest.approx(0.0066)
    assert found["BEDL+Reg", "ecdf_auc"]["cifar-1-5"][0] == pytest.approx(0.083)
    found = {(p.label, p.metric): p.values for p in get("gp").published()}
    assert found["ResNet GP", "error"] == {"mnist": (pytest.approx(0.0084), None)}


# -- gp ----------------------------------------------------------------------------------------------
def test_kernels_are_solved_for_subsets_only() -> None:
    cells = list(get("gp").cells(Choice(presets=("paper", "best"))))
    whole = {cell.method for cell in cells if cell.dataset == "mnist"}
    assert {"bedl", "conv-gp"} <= whole
    assert "nngp" not in whole
    assert {cell.dataset for cell in cells if cell.method == "resnet-gp"} == {"mnist-1000", "cifar10-1000"}


@pytest.mark.parametrize("method", ["nngp", "deterministic"])
def test_a_cell_of_gp(method: str) -> None:
    images, y = bars(60)
    x = images[:, None].astype(np.float32) / 255
    outcome = gp.run(
        Cell("gp", "mnist-1000", method, "paper"), Images(x[:40], y[:40].astype(int), x, y.astype(int), 10)
    )
    assert outcome.metrics["error"] < 0.2
    assert outcome.settings["images"] == 40


def test_dropout_stands_behind_all_hidden_layers_or_the_dense_one() -> None:
    for made, hidden, dense in ((lenet5, 3, 1), (functools.partial(two_layers, 28, 1), 2, 0)):
        for dropped, count in (("hidden", hidden), ("dense", dense)):
            layers = list(made(10, dropout=0.5, dropped=dropped))  # type: ignore[operator]
            places = [number for number, layer in enumerate(layers) if isinstance(layer, nn.Dropout)]
            assert len(places) == count
        assert all(isinstance(layers[place - 2], nn.Linear) for place in places)


# -- under attack ------------------------------------------------------------------------------------
def test_the_attack_is_the_gradient_of_what_is_predicted() -> None:
    images, y = bars(80)
    x, y = images[:, None].astype(np.float64) / 255, y.astype(int)
    model = BEDLClassifier(method="bedl", net=lambda _, n: lenet5(n), epochs=2, random_state=0, device="cpu").fit(x, y)
    model.temperatures_ = (0.5, 0.8)
    found, size = adversarial.attacked(model, x[:2], y[:2]), 1e-4

    def cost(moved: np.ndarray) -> float:
        return -float(model.predict_log_proba(moved)[np.arange(2), y[:2]].sum())

    for place in ((0, 0, 3, 10), (1, 0, 5, 12), (0, 0, 14, 14)):
        step = np.zeros_like(x[:2])
        step[place] = size
        slope = (cost(x[:2] + step) - cost(x[:2] - step)) / (2 * size)
        assert found[place] == pytest.approx(slope, rel=0.02, abs=1e-3)


def test_attacks_make_a_network_wrong(root: Path) -> None:
    outcome = get("adversarial").work(Cell("adversarial", "mnist", "deterministic", "paper"), root)
    accuracy = outcome.curves["accuracy"]
    assert accuracy[0] == outcome.metrics["accuracy_clean"] > 0.9
    assert min(accuracy) < 0.5
    assert len(accuracy) == len(outcome.curves["strength"]) == len(outcome.curves["entropy"]) == 11
    assert outcome.metrics["accuracy_weak"] == accuracy[1]


# -- pages -------------------------------------------------------------------------------------------
def test_curves_are_drawn_and_names_are_text() -> None:
    known = {"known": [0.0, 0.1, 0.5], "foreign": [1.0, 2.0, 2.3]}
    row = {"dataset": "mnist", "method": "<b>", "preset": "best", "split": 0, "seed": 0, "curves": known}
    (card,) = get("ood").sections([row])
    assert "<svg" in card
    assert "<b>" not in card
    curves = {"strength": [0.0, 0.1], "accuracy": [1.0, 0.5], "entropy": [0.1, 0.9]}
    (card,) = get("adversarial").sections([{**row, "curves": curves}])
    assert "<svg" in card
    assert "<b>" not in card


# -- the authors' code -------------------------------------------------------------------------------
def test_the_loss_of_the_authors_code_written_by_hand() -> None:
    """−log of a mean of five softmaxes, and sqrt((mean KL + log N − log 0.1)/N), KL of five Dirichlets by PyTorch."""
    plan = network_setup("authors", "bedl+reg", "mnist").estimator
    assert (plan["batch_size"], plan["epochs"], plan["learning_rate"]) == (100, 1, 1e-3)
    problem = Problem("classification", 10, (1, 28, 28), net=lambda _, outputs: lenet5(outputs))
    torch.manual_seed(0)
    method, n = registry.get("bedl+reg").build(problem, **plan["method_options"]), 60_000
    x, y = torch.rand(7, 1, 28, 28), torch.arange(7)
    torch.manual_seed(1)
    ours = method.loss(Batch(x, y, n))
    torch.manual_seed(1)
    f = method.net(x)
    draws = [f.loc + f.variance.sqrt() * torch.randn(5, 7, 10) for _ in range(2)]
    fit = -torch.softmax(draws[0], 2).mean(0)[torch.arange(7), y].log().mean()
    flat = torch.distributions.Dirichlet(torch.ones(10))
    apart = [kl_divergence(torch.distributions.Dirichlet(draw.exp()), flat) for draw in draws[1]]
    term = ((torch.stack(apart).mean() + math.log(n) - math.log(0.1)) / n).sqrt()
    torch.testing.assert_close(ours, fit + term, rtol=1e-3, atol=1e-5)


def test_weights_start_as_in_the_authors_code() -> None:
    plan = network_setup("authors", "bedl", "mnist").estimator["method_options"]
    assert plan["samples"] == 20
    problem = Problem("classification", 10, (1, 28, 28), net=lambda _, outputs: lenet5(outputs))
    for layer in registry.get("bedl").build(problem, **plan).net.modules():
        if isinstance(layer, GaussianLayer):
            mean, n = layer.weight_mean.detach(), layer.weight_mean.numel()
            assert float(mean.square().mean()) * layer.fan_in() == pytest.approx(1.0, abs=5 * (2 / n) ** 0.5)
            assert float(layer.weight_logvar.detach().mean()) == pytest.approx(-9.0, abs=0.001)
            assert not layer.bias.detach().any()
    with pytest.raises(ValueError, match="gain must be positive"):
        registry.get("bedl").build(problem, gain=0.0)


def test_a_cell_of_the_authors_code(root: Path) -> None:
    cells = list(get("ood").cells(Choice(presets=("authors",), datasets=["mnist"])))
    assert [cell.method for cell in cells] == ["bedl", "bedl+reg"]
    found = get("ood").work(cells[1], root)
    assert found.settings["method_options"]["pac"] == {"delta": 0.1, "kl_scale": "authors-code"}
    assert found.settings["epochs_run"] == 1
    assert 0 <= found.metrics["error"] <= 1
    with pytest.raises(ValueError, match="'paper' or 'best'"):
        network_setup("authors", "edl", "mnist")
