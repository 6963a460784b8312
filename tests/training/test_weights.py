"""Points that count more or less than others."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from bedl import Moments
from bedl.methods import Batch
from bedl.training import Constant, EarlyStopping, GradientOptions, adam, fit, fit_replicas
from bedl.training.data import Points
from tests.training.problems import classes, method, regression, vector

sgd = functools.partial(torch.optim.SGD, lr=1.0)
WEIGHT = torch.tensor([2.0, 1.0, 0.0, 3.0, 1.0] * 10, dtype=torch.float64)


def gradient(
    data: object, kind: str = "pac", n_train: float | None = None, batch_size: int = 200, accumulate=1
) -> Tensor:
    """What one SGD step of `fit` with learning rate 1 subtracts. shape: (P,)"""
    model = method(kind).double()
    before = vector(model)
    points = Points(data)
    if n_train is not None:
        points.n_train = n_train
    fit(
        model,
        points,
        epochs=1,
        batch_size=batch_size,
        optimizer=sgd,
        schedule=Constant(),
        gradient=GradientOptions(clip=None, accumulate=accumulate),
        fabric={"accelerator": "cpu", "precision": "64-true"},
    )
    return before - vector(model)


@pytest.mark.parametrize("kind", ["none", "pac", "pac+hyper"])
def test_weights_are_repetitions(kind: str) -> None:
    x, y = regression(dtype=torch.float64)
    counts = WEIGHT.long()
    repeated = x.repeat_interleave(counts, 0), y.repeat_interleave(counts)
    weighted = gradient((x, y, WEIGHT), kind, n_train=70)
    assert torch.allclose(weighted, gradient(repeated, kind, n_train=70), atol=1e-12)
    assert float((weighted - gradient((x, y), kind, n_train=70)).abs().max()) > 1e-4


def test_weight_zero_is_leaving_out_whatever_the_value() -> None:
    x, y = regression(dtype=torch.float64)
    kept = WEIGHT > 0
    broken = torch.where(kept, y, torch.nan)
    for batch_size in (200, 7):  # the order of the points is the same too
        left_out = gradient((x[kept], y[kept], WEIGHT[kept]), batch_size=batch_size)
        assert torch.equal(gradient((x, broken, WEIGHT), batch_size=batch_size), left_out)


@pytest.mark.parametrize("accumulate", [1, 2, 7, 50])
@pytest.mark.parametrize("kind", ["none", "pac", "pac+hyper"])
def test_accumulation_gives_the_gradient_of_the_whole_batch(kind: str, accumulate: int) -> None:
    """From a Dataset, whose points of weight 0 are only known once they are fetched."""
    x, y = regression(dtype=torch.float64)
    model = method(kind).double()
    model.loss(Batch(x, y, n_train=50, weight=WEIGHT)).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    for data in (TensorDataset(x, y, WEIGHT), (x, y, WEIGHT)):
        assert torch.allclose(gradient(data, kind, n_train=50, accumulate=accumulate), expected, atol=1e-10)


def test_a_batch_that_does_not_count_is_passed_over() -> None:
    x, y = regression(8)
    model, weight = method(), torch.tensor([1.0] + [0.0] * 7)
    result = fit(model, TensorDataset(x, y, weight), epochs=1, batch_size=2, fabric={"accelerator": "cpu"})
    assert bool(vector(model).isfinite().all())
    assert result.steps == 4


def test_validation_is_weighted() -> None:
    x, y = regression(seed=1)
    model = method()
    row = fit(model, regression(), epochs=1, validation=(x, y, WEIGHT), fabric={"accelerator": "cpu"}).rows[-1]
    log_p = model.predict(x).log_prob(y[:, None]).double()
    assert row["val_nll"] == pytest.approx(-float((WEIGHT * log_p).sum() / WEIGHT.sum()), rel=1e-6)


@pytest.mark.parametrize("kind", ["pac", "none"])
def test_replicas_weigh_as_fit_does(kind: str) -> None:
    x, y = regression(dtype=torch.float64)
    data = [(x, y, WEIGHT), (x[:30], y[:30])]
    together, alone = ([method(kind, seed=s).double() for s in range(2)] for _ in range(2))
    fit_replicas(together, data, epochs=4, batch_size=16, lr=0.01)
    for seed, (one, other) in enumerate(zip(together, alone, strict=True)):
        fit(
            other,
            data[seed],
            epochs=4,
            batch_size=16,
            optimizer=adam(0.01),
            seed=seed,
            fabric={"accelerator": "cpu", "precision": "64-true"},
        )
        assert torch.allclose(vector(one), vector(other), atol=1e-9)


@pytest.mark.parametrize(
    "weight, complaint",
    [
        (torch.ones(3), "shape"),
        (-WEIGHT, "at least 0"),
        (WEIGHT * torch.nan, "finite"),
        (0 * WEIGHT, "weight 0"),
    ],
)
def test_wrong_weights_are_refused(weight: Tensor, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        fit(method(), (*regression(), weight), epochs=1, fabric={"accelerator": "cpu"})


# -- data that stays where it is -------------------------------------------------------------------------
def test_a_subset_equals_its_rows(tmp_path: Path) -> None:
    """Of tensors, arrays, memory-mapped files that cannot be written to, Moments and Datasets."""
    x, y = regression(60)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    chosen = np.array([5, 50, 7, 8, 33, 21, 2, 40])
    expected = method()
    fit(expected, (x[chosen], y[chosen]), epochs=2, batch_size=3, fabric={"accelerator": "cpu"})
    for data in [(x, y), (x.numpy(), y.numpy()), (mapped, y), TensorDataset(x, y), (Moments(x, 0.0), y)]:
        model = method()
        fit(model, Points(data).subset(chosen), epochs=2, batch_size=3, fabric={"accelerator": "cpu"})
        assert torch.allclose(vector(model), vector(expected), atol=1e-6)


def test_double_data_fits_a_single_net() -> None:
    x, y = regression(40)
    a, b = method(), method()
    fit(a, (x, y), epochs=2, validation=(x, y), fabric={"accelerator": "cpu"})
    fit(
        b,
        (x.double().numpy(), y.double().numpy()),
        epochs=2,
        validation=(x.double(), y.double()),
        fabric={"accelerator": "cpu"},
    )
    assert torch.equal(vector(a), vector(b))


# -- many at once ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("head", ["normal", "classes"])
def test_replicas_stop_early_as_fit_does(head: str) -> None:
    """Sets of different sizes, so that epochs end at different steps; weights in one validation set."""
    make = regression if head == "normal" else classes
    data = [make(n, seed=n, dtype=torch.float64) for n in (20, 33)]
    held_out = [(*make(50, seed=7, dtype=torch.float64), WEIGHT), make(41, seed=8, dtype=torch.float64)]
    stopping = EarlyStopping(patience=3)
    together, alone = ([method("none", seed=s, hidden=30, head=head).double() for s in range(2)] for _ in range(2))
    result = fit_replicas(together, data, epochs=60, batch_size=8, lr=0.03, validation=held_out, callbacks=[stopping])
    lengths = []
    for seed, (one, other) in enumerate(zip(together, alone, strict=True)):
        rows = fit(
            other,
            data[seed],
            epochs=60,
            batch_size=8,
            optimizer=adam(0.03),
            seed=seed,
            validation=held_out[seed],
            callbacks=[stopping],
            fabric={"accelerator": "cpu", "precision": "64-true"},
        ).rows
        own = [row for row in result.rows if row["replica"] == seed]
        assert [row["val_nll"] for row in own] == pytest.approx([row["val_nll"] for row in rows], rel=1e-7)
        assert torch.allclose(vector(one), vector(other), atol=1e-8)
        lengths.append(len(own))
    assert max(lengths) < 60


# -- what is refused -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "wrong, error, complaint",
    [
        ({"optimizer": torch.optim.Adam(method().parameters())}, TypeError, "pass lr="),
        ({"callbacks": [EarlyStopping()]}, ValueError, "validation="),
        ({"data": (np.array([["a"], ["b"]]), np.zeros(2))}, TypeError, "not numbers"),
        ({"data": (*classes(), None, None)}, TypeError, "triple"),
        ({"validation": (classes()[0], classes()[1] + 1)}, ValueError, "between 0 and 2, got 1 to 3"),
        ({"data": (classes()[0], torch.eye(3).long()[classes()[1]])}, ValueError, r"y\.argmax"),
    ],
)
def test_slips_get_a_remedy(wrong: dict, error: type, complaint: str) -> None:
    settings = {"data": classes(), "epochs": 1, "fabric": {"accelerator": "cpu"}, **wrong}
    with pytest.raises(error, match=complaint):
        fit(method(head="classes"), settings.pop("data"), **settings)


def test_early_stopping_may_be_switched_on() -> None:
    result = fit(
        method(hidden=30),
        regression(20),
        epochs=400,
        optimizer=adam(0.05),
        validation=regression(30, seed=1),
        callbacks=[EarlyStopping()],
        fabric={"accelerator": "cpu"},
    )
    assert result.stopped_early
