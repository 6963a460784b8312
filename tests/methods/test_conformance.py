"""What every method has to hold, whatever it is: this suite goes through the registry, a new method adds nothing here.

`tests.methods.cases` says how a method is run quickly, and what to expect of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from bedl import BEDLClassifier, BEDLRegressor
from bedl.estimators import load
from bedl.methods import registry
from tests.methods.cases import case_of, served

SETTINGS = {
    "hidden_layers": (20,), "epochs": 10, "batch_size": 64, "learning_rate": 0.02, "early_stopping": False,
    "device": "cpu",
}  # fmt: skip
TASKS = ("regression", "classification")
DATA = {"diabetes": load_diabetes, "breast_cancer": load_breast_cancer, "digits": load_digits}
OF_TASK = {"regression": "diabetes", "classification": "breast_cancer"}
both = pytest.mark.parametrize("name, task", served(*TASKS))


def fresh(name: str, task: str, seed: int = 0, **options: Any) -> Any:
    """An estimator of a method that learns enough in a moment."""
    missing = [package for package in registry.get(name).needs if not _importable(package)]
    if missing:
        pytest.skip(f"{name} needs {missing[0]}")
    case, kind = case_of(name), BEDLRegressor if task == "regression" else BEDLClassifier
    chosen = {**case.options, **options}
    settings = {**SETTINGS, **case.settings, "random_state": seed, "method": name, "method_options": chosen or None}
    return kind(**settings)


def _importable(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        return False
    return True


@functools.cache
def split(data: str, rows: int = 300) -> tuple[np.ndarray, ...]:
    """Rows to learn from and others, X and y of each, in single precision."""
    X, y = DATA[data](return_X_y=True)
    order = np.random.default_rng(1).permutation(len(X))
    train, test = order[: min(rows, len(X) - 100)], order[-100:]
    X = X.astype(np.float32)
    return X[train], y[train], X[test], y[test]


@functools.cache
def fitted(name: str, data: str, task: str) -> Any:
    X, y, _, _ = split(data)
    more = case_of(name).digits if data == "digits" else None
    return fresh(name, task, **(more or {})).fit(X, y)


@functools.cache
def small(task: str) -> tuple[np.ndarray, ...]:
    """Seventy rows and four columns that say something about the target."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 4)).astype(np.float32)
    y = X[:, 0] - 0.5 * X[:, 1] + 0.1 * rng.normal(size=70)
    return X, y if task == "regression" else (y > 0).astype(int) + (y > 1)


def answers(model: Any, X: Any, **more: Any) -> np.ndarray:
    """All that the model says of some rows, as one array. shape: (n, k)"""
    said = model.predict_dist(X, **more)
    parts = (said.mean, said.total, said.data, said.distributional, said.model)
    return np.concatenate([part.reshape(len(X), -1).double().numpy() for part in parts], 1)


def unless_refused(act: Callable[[], Any], *words: str) -> Any:
    """What is asked for, or None where the method refuses and says of what: one of these words."""
    try:
        return act()
    except ValueError as error:
        if not any(word in str(error) for word in words):
            raise
        return None


# -- it learns ----------------------------------------------------------------------------------------
@both
def test_better_than_a_constant(name: str, task: str) -> None:
    check_learned(name, OF_TASK[task], task)


@pytest.mark.slow
@pytest.mark.parametrize("name, task", served("classification"))
def test_better_than_a_constant_on_digits(name: str, task: str) -> None:
    check_learned(name, "digits", task)


def check_learned(name: str, data: str, task: str) -> None:
    """A fifth better than the constant by error, and better by likelihood, on rows that were not learned from."""
    _, y, X_new, y_new = split(data)
    model = fitted(name, data, task)
    if task == "regression":
        assert model.score(X_new, y_new) > 0.2
        log_p = model.predict_dist(X_new).log_prob(torch.as_tensor(y_new)[:, None]).mean().item()
        constant = np.mean(-0.5 * np.log(2 * np.pi * y.var()) - 0.5 * (y_new - y.mean()) ** 2 / y.var())
    else:
        shares = np.bincount(y) / len(y)
        assert model.score(X_new, y_new) > shares.max() + 0.2
        log_p = np.log(model.predict_proba(X_new)[np.arange(len(y_new)), y_new]).mean()
        constant = np.log(shares[y_new]).mean()
    assert log_p > constant


# -- what it says -------------------------------------------------------------------------------------
@both
def test_the_parts_add_up(name: str, task: str) -> None:
    X_new = split(OF_TASK[task])[2]
    model = fitted(name, OF_TASK[task], task)
    far = X_new * np.float32(100.0)
    for rows in (X_new, far):
        said = model.predict_dist(rows)
        assert bool(said.mean.isfinite().all())
        for part in (said.data, said.distributional, said.model, said.total):
            assert bool(part.isfinite().all())
            assert part.shape == (said.mean.shape if task == "regression" else said.mean.shape[:1])
        assert min(part.min().item() for part in (said.data, said.distributional, said.model)) >= 0
        torch.testing.assert_close(said.data + said.distributional + said.model, said.total, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(said.aleatoric + said.epistemic, said.total, rtol=1e-4, atol=1e-5)
        if task == "classification":
            p = said.probabilities
            torch.testing.assert_close(p.sum(-1), torch.ones(len(p), dtype=p.dtype), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(said.total, -(p * p.clamp_min(1e-30).log()).sum(-1), rtol=1e-3, atol=1e-4)
        else:
            torch.testing.assert_close(said.std.square(), said.total, rtol=1e-4, atol=0)


@both
def test_shapes(name: str, task: str) -> None:
    X_new = split(OF_TASK[task])[2]
    model = fitted(name, OF_TASK[task], task)
    for n in (1, 7):
        assert model.predict(X_new[:n]).shape == (n,)
        assert len(model.uncertainty(X_new[:n])) == n
        if task == "regression":
            lower, upper = model.predict_interval(X_new[:n], 0.8)
            assert lower.shape == upper.shape == (n,)
            assert (lower < upper).all()
        else:
            assert model.predict_proba(X_new[:n]).shape == (n, 2)


@pytest.mark.parametrize("name, task", served("regression"))
def test_several_targets(name: str, task: str) -> None:
    X, y = small(task)
    model = fresh(name, task).set_params(epochs=2).fit(X, np.stack([y, -3 * y], 1))
    assert model.predict(X[:5]).shape == (5, 2)
    assert model.uncertainty(X[:5]).shape == (5, 12)


@both
def test_a_row_does_not_depend_on_its_neighbours(name: str, task: str) -> None:
    X_new = split(OF_TASK[task])[2]
    model = fitted(name, OF_TASK[task], task)
    whole = answers(model, X_new)
    np.testing.assert_allclose(answers(model, X_new[40:45]), whole[40:45], rtol=2e-3, atol=1e-4)
    np.testing.assert_allclose(answers(model, X_new[::-1])[::-1], whole, rtol=2e-3, atol=1e-4)


# -- it can be repeated -------------------------------------------------------------------------------
@both
def test_seeds_and_clones(name: str, task: str) -> None:
    X, y = small(task)
    model = fresh(name, task, seed=3).set_params(epochs=2)
    before = torch.random.get_rng_state()
    first = answers(model.fit(X, y), X)
    np.testing.assert_array_equal(answers(model, X), first)
    np.testing.assert_array_equal(answers(clone(model).fit(X, y), X), first)
    assert torch.equal(torch.random.get_rng_state(), before)
    other = answers(clone(model).set_params(random_state=4).fit(X, y), X)
    assert np.array_equal(other, first) == case_of(name).seedless


@both
def test_several_of_them_as_an_ensemble(name: str, task: str) -> None:
    """Side by side, with rows held out: what is drawn, ramped or concluded has to come about there, too."""
    X, y = small(task)
    model = fresh(name, task).set_params(ensemble=2, epochs=1, early_stopping=True)
    said = unless_refused(lambda: answers(model.fit(X, y), X[:5]), "leave ensemble at 1", "early_stopping")
    assert said is None or np.isfinite(said).all()


@both
def test_saved_and_loaded(name: str, task: str, tmp_path: Path) -> None:
    X_new = split(OF_TASK[task])[2]
    model = fitted(name, OF_TASK[task], task)
    again = load(model.save(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(answers(again, X_new), answers(model, X_new))
    assert again.built_ == model.built_


# -- limits -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, task", [pair for pair in served(*TASKS) if case_of(pair[0]).quiet is not None])
def test_without_noise_nothing_about_the_network_is_unknown(name: str, task: str) -> None:
    X, y = small(task)
    said = fresh(name, task, **case_of(name).quiet).set_params(epochs=2).fit(X, y).predict_dist(X)
    assert said.model.abs().max().item() < 1e-6 * float(said.total.max())


@both
def test_inputs_of_no_noise_are_plain_inputs(name: str, task: str) -> None:
    X_new = split(OF_TASK[task])[2][:10]
    model = fitted(name, OF_TASK[task], task)
    said = unless_refused(lambda: answers(model, X_new, X_var=0.0), "X_var")
    if said is None:
        return
    np.testing.assert_allclose(said, answers(model, X_new), rtol=2e-3, atol=2e-3)


# -- weights ------------------------------------------------------------------------------------------
@both
def test_a_row_of_weight_0_is_not_there(name: str, task: str) -> None:
    X, y = small(task)
    weight = np.ones(len(X))
    weight[50:] = 0.0
    spoilt = X.copy()
    spoilt[50:] = -5 * X[50:]
    model = fresh(name, task).set_params(batch_size=25, epochs=5)
    said = unless_refused(lambda: answers(clone(model).fit(spoilt, y, sample_weight=weight), X), "sample_weight")
    if said is None:
        return
    alone = answers(model.fit(X[:50], y[:50]), X)
    if not case_of(name).draws_per_row:
        np.testing.assert_allclose(said, alone, rtol=1e-2, atol=1e-3)
    assert np.corrcoef(said[:, 0], alone[:, 0])[0, 1] > 0.8


# -- what cannot be -----------------------------------------------------------------------------------
@both
def test_bad_input(name: str, task: str) -> None:
    X, y = small(task)
    model = fresh(name, task)
    with pytest.raises(ValueError, match=r"infinity|finite"):
        clone(model).fit(np.where(np.arange(4) == 2, np.inf, X), y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        clone(model).fit(X, y[:-1])
    with pytest.raises(ValueError, match=r"no_such_option|chooses its options itself"):
        fresh(name, task, no_such_option=1).fit(X, y)
    with pytest.raises(ValueError, match="features"):
        fitted(name, OF_TASK[task], task).predict(X)


@pytest.mark.parametrize("name", registry.names())
def test_what_a_method_does_not_serve_it_refuses(name: str) -> None:
    entry = registry.get(name)
    for task in TASKS:
        if entry.tasks is None or task in entry.tasks:
            continue
        X, y = small(task)
        with pytest.raises(registry.UnknownMethodError, match=f"'{name}' is for .*not for {task}"):
            fresh(name, task).fit(X, y)


@both
@pytest.mark.filterwarnings("ignore:3 rows are too few to calibrate:UserWarning")
def test_three_rows(name: str, task: str) -> None:
    """Too few to say anything, but no reason for nonsense."""
    X, y = small(task)
    rows = [int(np.flatnonzero(y == label)[0]) for label in (0, 1, 2)] if task == "classification" else [0, 1, 2]
    model = fresh(name, task).set_params(epochs=2)
    said = unless_refused(lambda: answers(model.fit(X[rows], y[rows]), X), "sample", "point", "row")
    assert said is None or np.isfinite(said).all()
