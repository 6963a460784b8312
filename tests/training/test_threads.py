"""Small runs take one thread, whatever there is; large ones what they are given."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from bedl import BEDLClassifier, GaussianLinear
from bedl.heads import Normal
from bedl.methods import BEDL
from bedl.training import Callback, fit_replicas
from bedl.training.compile import MULTITHREADED_MULTIPLICATIONS, limit_threads


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Threads(Callback):
    def __init__(self) -> None:
        self.seen: set[int] = set()

    def on_step(self, run: object, row: object) -> None:
        self.seen.add(torch.get_num_threads())


@pytest.mark.parametrize(("width", "threads"), [(20, 1), (3000, 2)])
def test_a_run_of_replicas_takes_one_thread_if_its_steps_are_small(width: int, threads: int) -> None:
    nets = [nn.Sequential(GaussianLinear(10, width), nn.ReLU(), GaussianLinear(width, 2)) for _ in range(8)]
    look = Threads()
    x, y = torch.randn(128, 10), torch.randn(128, 1)
    fit_replicas([BEDL(net, Normal()) for net in nets], (x, y), epochs=1, batch_size=128, callbacks=[look])
    assert (look.seen, torch.get_num_threads()) == ({threads}, 2)


def test_estimators_give_threads_back() -> None:
    look = Threads()
    X = np.random.default_rng(0).normal(size=(60, 3))
    model = BEDLClassifier(epochs=2, random_state=0, callbacks=[look]).fit(X, X[:, 0] > 0)
    assert (look.seen, torch.get_num_threads()) == ({1}, 2)
    model.predict(X[:5])
    assert torch.get_num_threads() == 2


def test_threads_are_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), limit_threads(MULTITHREADED_MULTIPLICATIONS - 1):
        1 / (torch.get_num_threads() - 1)
    assert torch.get_num_threads() == 2
