"""Fold ensembles of classes, and the logistic regression among their members."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from bedl import BEDLClassifier
from bedl.estimators import load
from bedl.methods.stack.classification import ClassStack
from bedl.methods.stack.linear import _covariance, _most_probable, bayesian_logistic

QUICK: dict[str, Any] = {"method": "stack", "hidden_layers": (16,), "epochs": 30, "random_state": 0, "device": "cpu"}


def line(n: int, seed: int = 0, slope: float = 3.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns, labels by a logistic law of the first, and the true probability of label 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)).astype(np.float32)
    p = 1 / (1 + np.exp(-slope * X[:, 0]))
    return X, (rng.random(n) < p).astype(int), p


def circle(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(seed).normal(size=(n, 2)).astype(np.float32)
    return X, (np.square(X).sum(1) > 1.4).astype(int)


@pytest.fixture(scope="module")
def model() -> BEDLClassifier:
    return BEDLClassifier(**QUICK).fit(*line(200)[:2])


def test_the_linear_member_wins_where_the_truth_is_linear(model: BEDLClassifier) -> None:
    assert isinstance(model.method_, ClassStack)
    assert model.method_.shares[-1] > 0.5
    X, _, p = line(2000, seed=1)
    assert np.abs(model.predict_proba(X)[:, 1] - p).mean() < 0.06
    assert "linear" in model.chosen_


def test_networks_win_on_a_circle() -> None:
    model = BEDLClassifier(**{**QUICK, "epochs": 150}).fit(*circle(150))
    assert model.method_.shares[-1] < 0.2
    assert model.score(*circle(1000, seed=1)) > 0.9


def test_the_prediction_is_the_weighted_mixture_of_the_members(model: BEDLClassifier) -> None:
    stack, x = model.method_, torch.as_tensor(20 * line(6, seed=2)[0])
    p = stack.predict(x)
    with torch.no_grad():
        unknown = stack.nearness.beyond(stack.nearness(x))
        unknown = (unknown / (4 + unknown))[:, None]  # half at log-odds of 2
        assert unknown.max() > 0.1
        members = [member.predict(x).probabilities for member in stack.members] + list(stack.linear(x).probabilities)
        members = [((1 - unknown) * p + unknown * stack.log_frequencies.exp()).log() for p in members]
    expected = stack.weights[-1].sum() * stack.log_frequencies.exp().expand(6, 2)
    for number, log_p in enumerate(members):
        for temperature, weight in zip(stack.temperatures, stack.weights[number // 5], strict=True):
            tempered = log_p.exp() ** (1 / temperature)
            expected = expected + weight / 5 * tempered / tempered.sum(-1, keepdim=True)
    torch.testing.assert_close(p.probabilities, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(p.data + p.distributional + p.model, p.entropy, atol=1e-5, rtol=0)
    assert bool((p.model >= 0).all() and (p.distributional >= 0).all() and (p.data >= 0).all())
    assert bool((p.spread <= p.variance + 1e-6).all())


def test_what_is_far_is_less_known(model: BEDLClassifier) -> None:
    near = model.uncertainty(line(200)[0]).epistemic
    far = model.uncertainty(np.array([[0.0, 60.0], [0.0, -60.0]], dtype=np.float32)).epistemic
    assert far.min() > 2 * near.median()


def test_saved_and_loaded(model: BEDLClassifier, tmp_path: Path) -> None:
    X = line(20, seed=3)[0]
    model.save(tmp_path / "model.bedl")
    np.testing.assert_allclose(load(tmp_path / "model.bedl").predict_proba(X), model.predict_proba(X), atol=1e-6)


def test_rows_of_weight_two_count_as_two(model: BEDLClassifier) -> None:
    X, y, _ = line(60)
    stack = model.method_
    fold = torch.arange(60) % 5
    both = torch.cat([torch.as_tensor(X)] * 2), torch.cat([torch.as_tensor(y)] * 2), torch.cat([fold] * 2)
    stack.finish(*both)
    twice = stack.weights.clone(), stack.linear.coefficients.clone()
    stack.finish(torch.as_tensor(X), torch.as_tensor(y), fold, torch.full((60,), 2.0))
    torch.testing.assert_close(stack.weights, twice[0], atol=1e-3, rtol=0)
    torch.testing.assert_close(stack.linear.coefficients, twice[1], atol=1e-3, rtol=1e-3)


def test_many_rows_hold_out_one_part() -> None:
    options = {**QUICK, "method_options": {"folds": 4, "held": 1, "groups": 1}}
    X, y, p = line(300)
    model = BEDLClassifier(**options).fit(X, y)
    assert len(model.method_.members) == 1
    assert np.abs(model.predict_proba(X)[:, 1] - p).mean() < 0.1


# -- logistic regression ---------------------------------------------------------------------------
def standard_rows(n: int, classes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    logits = x @ rng.normal(size=(3, classes))
    y = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    return torch.as_tensor(np.column_stack([x, np.ones(n)])), torch.as_tensor(y)


@pytest.mark.parametrize("precision", [0.1, 10.0])
def test_the_most_probable_coefficients_are_those_of_scikit_learn(precision: float) -> None:
    design, y = standard_rows(200, 4)
    start = torch.zeros(1, 4, 4, dtype=torch.float64)
    for _ in range(5):  # from where the last call ended, as along the path
        start = _most_probable(start, design, y, torch.ones(1, 200, dtype=torch.float64), precision)
    theirs = LogisticRegression(C=1 / precision, tol=1e-10, max_iter=5000).fit(design[:, :3].numpy(), y.numpy())
    np.testing.assert_allclose(start[0, :, :3].numpy(), theirs.coef_, atol=2e-3)


def test_the_covariance_of_two_classes_is_laplace_s() -> None:
    design, y = standard_rows(150, 2)
    counts = torch.ones(1, 150, dtype=torch.float64)
    found = _most_probable(torch.zeros(1, 2, 4, dtype=torch.float64), design, y, counts, 2.0)

    def minus_log_posterior(difference: torch.Tensor) -> torch.Tensor:
        likelihood = torch.nn.functional.logsigmoid((2 * y - 1) * (design @ difference)).sum()
        return -likelihood + 0.5 * (2.0 / 2) * difference[:3].square().sum()  # the prior of a difference is wider

    difference = found[0, 1] - found[0, 0]
    hessian: Any = torch.autograd.functional.hessian(minus_log_posterior, difference)
    expected = design @ torch.linalg.inv(hessian) * design
    own = _covariance(found, design, counts, 2.0)[0]
    variance = ((design @ own) * design).sum(-1).sum(0)  # of the two classes' logits, taken as independent
    torch.testing.assert_close(variance, expected.sum(-1), rtol=0.05, atol=0)


def test_rows_that_are_held_out_choose_the_prior() -> None:
    """Labels that nothing foretells: a weak prior would follow them."""
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(100, 5)))
    y = torch.as_tensor(np.random.default_rng(1).integers(0, 2, 100))
    found = bayesian_logistic(x, y, 2, torch.arange(100) % 5, 5)
    assert float(found.coefficients[..., :-1].abs().max()) < 0.2


def test_the_weights_that_are_told_add_up() -> None:
    model = BEDLClassifier(**QUICK).fit(*line(200)[:2])
    stack = model.method_
    stack.weights.zero_()
    stack.weights[:, 0] = torch.tensor([0.08, 0.08, 0.38, 0.46]).to(stack.weights)
    assert model.chosen_.endswith(
        "networks, a linear model and the class frequencies; out-of-fold weights 16 %, 38 % and 46 %"
    )
