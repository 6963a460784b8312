"""What is no data is noticed by the epistemic part: classes in the plane, digits, and MNIST where it is on disk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from bedl import BEDLClassifier
from bedl.data import DataFileNotFoundError
from bedl.data.datasets.builtin import load_images
from bedl.evaluation import metrics
from bedl.methods import Batch, Problem, registry

datasets = pytest.importorskip("sklearn.datasets")


# -- in the plane -----------------------------------------------------------------------------------
def blobs(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes, far apart. shapes: (n, 2), (n,)"""
    rng, y = np.random.default_rng(0), np.arange(n) % 3
    centre = np.array([[-3.0, -2.0], [3.0, -2.0], [0.0, 3.0]])
    return (centre[y] + 0.6 * rng.normal(size=(n, 2))).astype(np.float32), y


def moons(n: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = datasets.make_moons(n, noise=0.1, random_state=0)
    return X.astype(np.float32), y


def epistemic(model: BEDLClassifier, points: object) -> np.ndarray:
    return model.uncertainty(np.asarray(points, dtype=np.float32)).epistemic.to_numpy()


def around(centre: np.ndarray, distance: float) -> np.ndarray:
    angle = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    return centre + distance * np.stack([np.cos(angle), np.sin(angle)], 1)


@pytest.mark.parametrize(
    ("make", "gap"),
    [
        pytest.param(blobs, [[0, -0.3], [0, -2], [-1.5, 0.5]], id="blobs"),
        pytest.param(moons, [[-0.7, -0.7], [1.7, 1.2], [0.5, -1.2]], id="moons", marks=pytest.mark.slow),
    ],
)
def test_it_rises_in_gaps_and_beyond(make, gap: list) -> None:
    X, y = make(300)
    model = BEDLClassifier(method="evidence", random_state=0, device="cpu").fit(X, y)
    assert model.score(X, y) > 0.97
    on_data = float(np.median(epistemic(model, X)))
    print(on_data, epistemic(model, gap), [np.sort(epistemic(model, around(X.mean(0), d)))[[0, 12]] for d in (8, 1e3)])
    assert epistemic(model, gap).min() > 3 * on_data
    for distance in (8, 1000):  # nor does it fall again far away
        assert epistemic(model, around(X.mean(0), distance)).min() > 3 * on_data


@pytest.mark.slow
def test_it_falls_with_data() -> None:
    """By a third only (0.032 to 0.021 nats): how near copies come to the data does not depend on how many there are."""
    few, many = (
        np.median(epistemic(BEDLClassifier(method="evidence", random_state=0, device="cpu").fit(X, y), X))
        for X, y in (blobs(60), blobs(1500))
    )
    print(few, many)
    assert many < 0.85 * few


# -- images -----------------------------------------------------------------------------------------
def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    X, y = datasets.load_digits(return_X_y=True)
    X, test = X.astype(np.float32), np.arange(len(X)) % 5 == 4
    return X[~test], y[~test], X[test], y[test]


def test_turned_and_inverted_digits_are_noticed() -> None:
    X, y, X_test, y_test = digits()
    model = BEDLClassifier((50,), image_shape=(8, 8), epochs=16, random_state=0, device="cpu").fit(X, y)
    assert model.built_ == ("images", {})
    assert model.score(X_test, y_test) > 0.93
    images = X_test.reshape(-1, 8, 8)
    for foreign in (np.rot90(images, axes=(1, 2)), 16 - images):
        known, unknown = (model.uncertainty(np.array(x).reshape(-1, 64)) for x in (X_test, foreign))
        found = [metrics.auroc(known[part], unknown[part]) for part in ("epistemic", "total")]
        print(found)
        assert min(found) > 0.95
        assert unknown.epistemic.mean() > unknown.aleatoric.mean()  # not "noise, of which more data would not help"


def test_images_set_aside_decide_how_bold_it_is() -> None:
    """As trained it is too cautious: the likelihood of images that were never seen rises, the choice stays."""
    X, y, X_test, y_test = digits()
    model = BEDLClassifier((50,), image_shape=(8, 8), epochs=12, random_state=0, device="cpu").fit(X, y)
    assert model.temperatures_ is not None
    assert all(0.3 < t < 0.98 for t in model.temperatures_)
    chosen, label = model.predict_log_proba(X_test), model.predict(X_test)
    model.temperatures_ = None
    trained = model.predict_log_proba(X_test)
    better = metrics.nll_categorical(y_test, trained) - metrics.nll_categorical(y_test, chosen)
    print(model.temperatures_, better)
    assert better > 0.01
    assert np.array_equal(label, model.predict(X_test))


def test_a_network_of_ones_own_and_pixels_as_columns_are_images() -> None:
    own = Problem("classification", 3, (1, 8, 8), net=lambda shape, n: nn.Sequential(nn.Flatten(), nn.Linear(64, n)))
    columns = Problem("classification", 3, (64,), image_shape=(8, 8))
    for problem, shape in ((own, (9, 1, 8, 8)), (columns, (9, 64))):
        assert registry.resolve("auto", problem) == ("images", {})
        method = registry.get("images")(problem)
        batch = Batch(torch.rand(shape), torch.arange(9) % 3, n_train=9)
        prepared = method.prepare(batch, torch.Generator().manual_seed(0))
        assert prepared.x.shape == prepared.perturbed.shape == shape
        assert not torch.equal(prepared.x, batch.x)
        assert torch.isfinite(method.loss(batch))
        still = registry.get("images")(problem, augment=False)
        assert torch.equal(still.prepare(batch).x, batch.x)
        facing = registry.get("images")(problem, augment=False, mirror=True)
        facing = facing.prepare(batch, torch.Generator().manual_seed(0)).x.reshape(9, 8, 8)
        x = batch.x.reshape(9, 8, 8)
        same, other = ((facing == way).flatten(1).all(1) for way in (x, x.flip(-1)))
        assert bool((same ^ other).all())
        assert 0 < int(other.sum()) < 9
    table = Problem("classification", 3, (64,))
    assert registry.resolve("auto", table)[0] != "images"
    with pytest.raises(ValueError, match="image_shape"):
        registry.get("images")(table)


@pytest.mark.parametrize(("shape", "message"), [((8, 9), "72 pixels"), ((64,), "height"), ("8x8", "height")])
def test_an_image_shape_that_does_not_fit_is_refused(shape: object, message: str) -> None:
    X, y, *_ = digits()
    with pytest.raises(ValueError, match=message):
        BEDLClassifier(image_shape=shape).fit(X, y)


@pytest.mark.slow
def test_a_part_of_mnist() -> None:
    try:
        images, y, _ = load_images("mnist")
    except DataFileNotFoundError:
        pytest.skip("MNIST is not on disk")
    X = images.astype(np.float32) / 255
    test, y_test = X[-2000:], y[-2000:]
    net = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip
    model = BEDLClassifier(net=net, epochs=4, random_state=0, device="cpu").fit(X[:10_000], y[:10_000])
    assert model.score(test, y_test) > 0.96
    turned, noise = np.rot90(test, axes=(2, 3)).copy(), np.random.default_rng(0).random(test.shape, dtype=np.float32)
    known = model.uncertainty(test)
    for foreign, least in ((turned, 0.96), (1 - test, 0.99), (noise, 0.99)):
        unknown = model.uncertainty(foreign)
        found = [metrics.auroc(known[part], unknown[part]) for part in ("epistemic", "total")]
        print(found)
        assert found[0] > max(least, found[1] - 0.005)
