"""DataLoaders of all kinds: what they give is what is learned from, and a stopped run goes on as if it had not been."""

from __future__ import annotations

import dataclasses
import logging

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)  # fmt: skip

import bedl
from bedl.training import Callback, Checkpoints, Constant, GradientOptions, TrainingData, fit
from bedl.training.data import as_points, unpacked
from bedl.training.loaders import LoaderPoints, Stream
from tests.training.problems import classes, method, regression, vector

X, Y = regression(50)


class Random(Dataset):
    """Points with random noise, as augmentation adds it."""

    def __len__(self) -> int:
        return 50

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return X[number] + 0.1 * torch.randn(3) + float(np.random.rand()), Y[number]  # noqa: NPY002


class Flow(IterableDataset):
    """Points one after the other, shuffled by the global generator."""

    def __iter__(self):
        for number in torch.randperm(50).tolist():
            yield X[number], Y[number]


class ByLength(Sampler):
    """A sampler of batches that shuffles with a generator of its own, whose state goes on from epoch to epoch."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(3)

    def __len__(self) -> int:
        return 6

    def __iter__(self):
        yield from np.array_split(self.generator.permutation(50), 6)


class Whole(Dataset):
    """Batches by number."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if number >= 5:
            raise IndexError
        return X[10 * number : 10 * number + 10], Y[10 * number : 10 * number + 10]


DATA = TensorDataset(X, Y)
LOADERS = {
    "shuffled": (lambda: DataLoader(DATA, batch_size=8, shuffle=True), {}),
    "generator": (lambda: DataLoader(DATA, batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(1)), {}),
    "drop_last": (lambda: DataLoader(DATA, batch_size=8, shuffle=True, drop_last=True), {}),
    "subset": (lambda: DataLoader(DATA, batch_size=8, sampler=SubsetRandomSampler(range(30))), {}),
    "weighted": (lambda: DataLoader(DATA, batch_size=8, sampler=WeightedRandomSampler(torch.ones(50), 24)), {}),
    "batches": (lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 8, False)), {}),
    "own sampler": (lambda: DataLoader(DATA, batch_sampler=ByLength()), {}),
    "augmented": (lambda: DataLoader(Random(), batch_size=8, shuffle=True), {}),
    "iterable": (lambda: DataLoader(Flow(), batch_size=8), {"n_train": 50}),
    "whole batches": (lambda: DataLoader(Whole(), batch_size=None), {"n_train": 50}),
    "list of batches": (lambda: _Batches(), {"n_train": 50}),
}


class _Batches:
    def __iter__(self):
        return iter([(X[:20], Y[:20]), (X[20:], Y[20:])])


class _Stop(Callback):
    def __init__(self, step: int):
        self.step = step

    def on_step(self, run, row):
        if row["step"] == self.step:
            raise KeyboardInterrupt


@pytest.mark.parametrize("name", LOADERS)
def test_a_stopped_run_goes_on_as_if_it_had_not_been(name, tmp_path, caplog):
    make, options = LOADERS[name]
    whole, stopped = method("pac", dropout=0.3), method("pac", dropout=0.3)
    fit(whole, TrainingData(make(), **options), epochs=3, fabric={"accelerator": "cpu"})
    places = Checkpoints(tmp_path, every_steps=1)
    with pytest.raises(KeyboardInterrupt):
        fit(
            stopped,
            TrainingData(make(), **options),
            epochs=3,
            checkpoint=places,
            callbacks=[_Stop(4)],
            fabric={"accelerator": "cpu"},
        )
    stopped = method("pac", seed=5, dropout=0.3)
    with caplog.at_level(logging.WARNING, "bedl"):
        fit(
            stopped,
            TrainingData(make(), **options),
            epochs=3,
            checkpoint=dataclasses.replace(places, resume=True),
            fabric={"accelerator": "cpu"},
        )
    assert torch.equal(vector(whole), vector(stopped))
    streamed = isinstance(as_points(TrainingData(make(), **options)), Stream)
    assert ("read from the start" in caplog.text) is streamed


@pytest.mark.parametrize(("loader", "options"), LOADERS.values(), ids=LOADERS)
def test_every_batch_of_the_loader_is_seen(loader, options):
    points, seen = as_points(TrainingData(loader(), **options)), []
    model = method("none")
    original = model.prepare
    model.prepare = lambda batch, generator=None: (seen.append(len(batch.y)), original(batch, generator))[1]
    result = fit(model, TrainingData(loader(), **options), epochs=1, fabric={"accelerator": "cpu"})
    planned = points.steps(points.batch_size)
    assert result.steps == len(seen) == (planned if planned != 3 or not isinstance(points, Stream) else 2)  # 20 and 30


def test_the_size_of_the_training_set_is_that_of_what_is_drawn_from():
    sizes = {name: as_points(TrainingData(make(), **options)).n_train for name, (make, options) in LOADERS.items()}
    assert sizes == {**dict.fromkeys(LOADERS, 50), "subset": 30}
    assert as_points(TrainingData(DataLoader(DATA), n_train=7)).n_train == 7


def test_a_loader_and_the_data_it_holds_lead_to_the_same_place():
    """The gradient of one batch of all points is the same, whoever makes the batch."""
    by_loader, by_data = method(), method()
    settings = {"epochs": 3, "schedule": Constant(), "fabric": {"accelerator": "cpu"}}
    fit(by_loader, DataLoader(DATA, batch_size=50), **settings)
    fit(by_data, (X, Y), batch_size=50, **settings)
    torch.testing.assert_close(vector(by_loader), vector(by_data), rtol=1e-4, atol=1e-6)


def test_micro_batches_of_a_stream_give_the_gradient_of_the_whole():
    one, two = method("pac"), method("pac")
    loader = DataLoader(TensorDataset(X, Y), batch_size=None, sampler=[slice(0, 25), slice(25, 50)])
    for model, accumulate in ((one, 1), (two, 3)):
        fit(
            model,
            TrainingData(loader, n_train=50),
            epochs=2,
            gradient=GradientOptions(accumulate=accumulate),
            fabric={"accelerator": "cpu"},
        )
    torch.testing.assert_close(vector(one), vector(two), rtol=1e-4, atol=1e-6)


def test_an_endless_stream_has_epochs_of_as_many_points_as_are_stated():
    class Endless(IterableDataset):
        def __iter__(self):
            while True:
                yield X[0], Y[0]

    assert (
        fit(
            method(),
            TrainingData(DataLoader(Endless(), batch_size=8), n_train=20),
            epochs=2,
            fabric={"accelerator": "cpu"},
        ).steps
        == 6
    )


def test_workers_read_and_draw_the_same_twice():
    models = [method(), method()]
    for model in models:
        fit(
            model,
            DataLoader(Random(), batch_size=16, shuffle=True, num_workers=1),
            epochs=1,
            fabric={"accelerator": "cpu"},
        )
    assert torch.equal(vector(models[0]), vector(models[1]))


def test_a_validation_loader_is_scored_whole():
    x, y = regression(30, seed=1)
    data = TensorDataset(x, y, torch.arange(30.0))
    rows = [
        fit(method(), (X, Y), epochs=1, validation=held_out, fabric={"accelerator": "cpu"}).rows[0]["val_nll"]
        for held_out in ((x, y, torch.arange(30.0)), DataLoader(data, batch_size=7), _Parts(data))
    ]
    assert rows[1:] == pytest.approx([rows[0]] * 2, rel=1e-5)


class _Parts:
    def __init__(self, data):
        self.data = data

    def __iter__(self):
        yield from (self.data[i : i + 7] for i in range(0, 30, 7))


# -- batches that are put together otherwise -------------------------------------------------------
class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(1, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, a, b):
        return self.last(torch.relu(self.a(a) + self.b(b)))


CX, CY = classes(50)
A, B = CX[:, :1], CX[:, 1:]
BATCHES = {
    "tuple in memory": (((A, B), CY), {}),
    "dict in memory": (({"b": B.numpy(), "a": A.numpy()}, CY), {}),
    "nested": (DataLoader([((a, b), y) for a, b, y in zip(A, B, CY, strict=True)], batch_size=32), {}),
    "dict": (
        DataLoader([{"a": a, "b": b, "labels": y} for a, b, y in zip(A, B, CY, strict=True)], batch_size=32),
        {},
    ),
    "dict with weights": (
        DataLoader(
            [{"a": a, "b": b, "label": y, "weights": 1.0} for a, b, y in zip(A, B, CY, strict=True)], batch_size=32
        ),
        {},
    ),
    "unpacked": (DataLoader(TensorDataset(A, B, CY), batch_size=32), {"unpack": lambda t: ((t[0], t[1]), t[2])}),
}


@pytest.mark.parametrize("name", BATCHES)
def test_several_inputs_reach_the_network_by_place_or_by_name(name):
    data, options = BATCHES[name]
    model = _two_inputs()
    before = vector(model)
    fit(model, TrainingData(data, **options), epochs=2, validation=((A, B), CY), fabric={"accelerator": "cpu"})
    assert not torch.equal(vector(model), before)
    by_name, by_place = model.predict({"a": A, "b": B}), model.predict((A, B))
    assert torch.equal(by_name.probabilities, by_place.probabilities)


def test_several_inputs_in_memory_are_those_of_a_single_one():
    one, several = _two_inputs(), _two_inputs()

    class Cut(nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net

        def forward(self, x):
            return self.net(x[:, :1], x[:, 1:])

    one.net = Cut(one.net)
    for model, x in ((one, CX), (several, {"a": A, "b": B})):
        fit(
            model,
            (x, CY),
            epochs=2,
            batch_size=16,
            gradient=GradientOptions(accumulate=2),
            fabric={"accelerator": "cpu"},
        )
    assert torch.equal(vector(one), vector(several))


def _two_inputs() -> bedl.BEDL:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return bedl.BEDL(bedl.bayesianize(Sum()), bedl.Dirichlet(3))


def test_the_only_other_entry_of_a_dict_is_the_input():
    assert torch.equal(unpacked({"image": A, "label": CY}).x, A)


REFUSED = {
    "no target": (DataLoader([{"a": 1.0, "z": 2.0}]), {}, "has none of labels"),
    "two targets": (DataLoader([{"a": 1.0, "y": 2.0, "label": 2}]), {}, "has label and y"),
    "four parts": (DataLoader(TensorDataset(A, A, A, A)), {}, "unpack="),
    "size unknown": (DataLoader(Flow(), batch_size=8), {}, "n_train="),
    "bare iterable data set": (Flow(), {}, "DataLoader"),
    "used up": (iter([(A, CY)]), {}, "used up"),
    "other batch size": (DataLoader(DATA, batch_size=8), {"batch_size": 16}, "leave out batch_size=16"),
    "other workers": (DataLoader(DATA), {"num_workers": 2}, "its own num_workers"),
    "empty": (DataLoader(DATA, batch_size=64, drop_last=True), {}, "at least batch_size points"),
    "unequal": (({"a": A, "b": B[:3]}, CY), {}, r"x\['b'\] has 3 points"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_on_is_refused_with_a_remedy(name):
    data, how, words = REFUSED[name]
    options = dict(how)
    batch_size = options.pop("batch_size", None)
    with pytest.raises((TypeError, ValueError), match=words):
        fit(method(), TrainingData(data, **options), epochs=1, batch_size=batch_size, fabric={"accelerator": "cpu"})


def test_replicas_ask_for_data_in_memory():
    with pytest.raises(TypeError, match="in memory"):
        bedl.training.fit_replicas([method()], DataLoader(DATA), epochs=1)


def test_loaders_with_numbers_are_not_streams():
    kinds = {name: type(as_points(TrainingData(make(), **options))) for name, (make, options) in LOADERS.items()}
    streams = {"iterable", "whole batches", "list of batches"}
    assert kinds == {name: Stream if name in streams else LoaderPoints for name in LOADERS}


def test_a_single_point_that_is_left_over_gets_company():
    """Batch normalisation knows no variance of one point, and 65 = 4 · 16 + 1."""
    x, y = classes(65)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    model = bedl.BEDL(bedl.bayesianize(net), bedl.Dirichlet(3))
    assert (
        fit(
            model, DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True), epochs=1, fabric={"accelerator": "cpu"}
        ).steps
        == 5
    )
    sizes = [len(batch) for batch in as_points(DataLoader(TensorDataset(x, y), batch_size=16)).batches(16, 0, 0)]
    assert sizes == [16, 16, 16, 15, 2]
