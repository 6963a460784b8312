"""Seeded fits of every method, task and engine, small enough to be run at every change. See `test_lock`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import nn

import bedl
from bedl import BEDLClassifier, BEDLRegressor
from bedl.methods import registry

# Minutes each, or hundreds of steps, which processors round apart; their own tests hold them to reference figures.
LEFT_OUT = {
    "hmc", "conv-gp", "resnet-gp", "residual-cnn-gp", "convnet-gp", "neural-process/classification", "distilled",
    "auto/classification", "auto/regression",
}  # fmt: skip


def table(n: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """A smooth function of four columns, with noise that no generator of a library makes."""
    i = np.arange(n * 4).reshape(n, 4)
    X = np.sin(i * 0.7 + 0.3 * i**1.1) + 0.1 * np.cos(13.0 * i)
    return X, X[:, 0] * X[:, 1] + np.abs(X[:, 2]) + 0.1 * np.sin(101.0 * np.arange(n))


def refits() -> dict[str, Callable[[], np.ndarray]]:
    """Names of fits, and functions that run them and return what is predicted for five rows."""
    found = {}
    for name in registry.names():
        method = registry.get(name)
        for task in ("regression", "classification", "multilabel", "count"):
            if not {name, f"{name}/{task}"} & LEFT_OUT and (method.tasks is None or task in method.tasks):
                found[f"{name}/{task}"] = _estimator(name, task)
    found |= {f"engine/{name}": engine for name, engine in _engines()}
    return found


def _estimator(method: str, task: str) -> Callable[[], np.ndarray]:
    def fit() -> np.ndarray:
        X, y = table()
        if task in ("regression", "count"):
            y = np.floor(np.exp(y)) if task == "count" else y
            model = BEDLRegressor(
                method=method, likelihood="count" if task == "count" else "normal", random_state=0, **_steps(method)
            )
        else:
            y = (
                np.digitize(y, np.quantile(y, [0.3, 0.6]))
                if task == "classification"
                else np.stack([y > np.median(y), X[:, 3] > y], 1).astype(int)
            )
            model = BEDLClassifier(method=method, random_state=0, **_steps(method))
        model.fit(X, y)
        if task in ("regression", "count"):
            prediction = model.predict_dist(X[:5])
            return np.stack([np.asarray(prediction.mean), np.asarray(prediction.std)])
        return np.asarray(model.predict_proba(X[:5]))

    return fit


def _steps(method: str) -> dict[str, object]:
    return {"epochs": 4, "batch_size": 16, "image_shape": (2, 2) if method == "images" else None}


def _engines() -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """The ways in which steps are taken: one network or many, written out or autograd, dense or convolutional."""
    X, y = (torch.tensor(a, dtype=torch.float32) for a in table())

    def mlp(activation: type[nn.Module] = nn.ReLU) -> bedl.BEDL:
        net = nn.Sequential(nn.Linear(4, 8), activation(), nn.Linear(8, 2))
        return bedl.BEDL(bedl.bayesianize(net), bedl.Normal(1), bedl.PAC())

    def outputs(method: bedl.BEDL) -> np.ndarray:
        prediction = method.predict(X[:5])
        return np.stack([prediction.mean.squeeze(-1).numpy(), prediction.std.squeeze(-1).numpy()])

    def one(**options: object) -> Callable[[], np.ndarray]:
        def fit() -> np.ndarray:
            torch.manual_seed(0)
            method = mlp()
            bedl.fit(method, (X, y), epochs=4, batch_size=16, compile=False, **options)  # type: ignore
            return outputs(method)

        return fit

    def many(activation: type[nn.Module], **options: object) -> Callable[[], np.ndarray]:
        def fit() -> np.ndarray:
            torch.manual_seed(0)
            methods = [mlp(activation) for _ in range(3)]
            bedl.fit_replicas(methods, (X, y), epochs=4, batch_size=16, **options)  # type: ignore
            return np.stack([outputs(method) for method in methods])

        return fit

    def convolutional() -> np.ndarray:
        torch.manual_seed(0)
        images = torch.sin(torch.arange(48 * 64) * 0.37).reshape(48, 1, 8, 8)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        method = bedl.BEDL(bedl.bayesianize(net), bedl.Dirichlet(3))
        bedl.fit(method, (images, torch.arange(48) % 3), epochs=2, batch_size=16, compile=False)
        return method.predict(images[:5]).probabilities.numpy()

    yield "one", one()
    yield "one-accumulate", one(gradient=bedl.training.GradientOptions(accumulate=2))
    yield "one-early-stopping", one(validation=(X[:12], y[:12]), callbacks=[bedl.training.EarlyStopping(patience=1)])
    yield "replicas-fused", many(nn.ReLU)
    yield "replicas-vmap", many(nn.Tanh)
    yield "convolutional", convolutional
