"""The loop: what it trains, what it writes, what it refuses."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from bedl import GaussianLinear, Moments
from bedl.heads import Normal
from bedl.methods import BEDL, Batch, Ensemble, Method
from bedl.training import (
    Callback,
    Constant,
    Cosine,
    EarlyStopping,
    GradientOptions,
    History,
    Progress,
    Warmup,
    adam,
    fit,
    fit_replicas,
    read_history,
)
from bedl.training.data import epoch_order, global_batches, shard_of
from tests.training.problems import classes, method, regression, vector


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=12, cycle_momentum=False)


@pytest.mark.parametrize("schedule", [Warmup(5), one_cycle], ids=["ours", "PyTorch's"])
def test_it_is_the_plain_loop(schedule) -> None:
    """The same steps written out by hand, with torch alone."""
    x, y = regression(50)
    model, by_hand = method("pac"), method("pac")
    fit(
        model,
        (x, y),
        epochs=3,
        batch_size=16,
        optimizer=adam(0.01),
        schedule=schedule,
        seed=7,
        gradient=GradientOptions(clip=0.5),
        fabric={"accelerator": "cpu"},
    )
    optimizer, step = torch.optim.Adam(by_hand.parameters(), lr=0.01), 0
    scheduler = schedule(optimizer) if schedule is one_cycle else None
    for epoch in range(3):
        order = torch.from_numpy(epoch_order(50, seed=7, epoch=epoch))
        for start in range(0, 50, 16):
            index = order[start : start + 16]
            if scheduler is None:
                optimizer.param_groups[0]["lr"] = 0.01 * min(1.0, (step + 1) / 5)
            optimizer.zero_grad()
            by_hand.loss(Batch(x[index], y[index], n_train=50)).backward()
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 0.5)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            step += 1
    assert torch.allclose(vector(model), vector(by_hand), atol=1e-6)


def test_a_dataset_gives_the_same_as_tensors() -> None:
    x, y = regression(30)
    a, b, c = method(), method(), method()
    fit(a, (x, y), epochs=2, fabric={"accelerator": "cpu"})
    fit(b, TensorDataset(x, y), epochs=2, fabric={"accelerator": "cpu"})
    fit(c, (x.numpy(), y.numpy()), epochs=2, fabric={"accelerator": "cpu"})
    assert torch.equal(vector(a), vector(b))
    assert torch.equal(vector(a), vector(c))


def test_inputs_may_be_random() -> None:
    """Noise that hides one input teaches the net to trust the other."""
    x, _ = regression(200)
    target = x[:, 0] + x[:, 1]
    noise = torch.zeros_like(x)
    noise[:, 0] = 4.0
    x, y = x[:, :2], target

    def make() -> BEDL:
        torch.manual_seed(0)
        return BEDL(GaussianLinear(2, 2), Normal(1, beta=10.0), regularizer=None)

    noisy, clean = make(), make()
    fit(noisy, (Moments(x, noise[:, :2]), y), epochs=100, optimizer=adam(0.05), fabric={"accelerator": "cpu"})
    fit(clean, (x, y), epochs=60, optimizer=adam(0.03), fabric={"accelerator": "cpu"})
    assert abs(float(clean.net.weight_mean[0, 0].detach())) > 0.9
    assert abs(float(noisy.net.weight_mean[0, 0].detach())) < 0.5


@pytest.mark.parametrize("precision", ["bf16-mixed", "64-true", "32-true"])
def test_precisions(precision: str) -> None:
    model = method("pac", head="classes")
    rows = fit(
        model, classes(200), epochs=8, optimizer=adam(0.01), fabric={"accelerator": "cpu", "precision": precision}
    ).rows
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1


def test_the_same_seed_gives_the_same_and_leaves_the_generators_alone() -> None:
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    results = []
    for seed in (0, 0, 1):
        model = method("perturbed", dropout=0.5)
        fit(model, regression(), epochs=2, seed=seed, fabric={"accelerator": "cpu"})
        results.append(vector(model))
        torch.manual_seed(5)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002


def test_history_has_a_row_per_epoch(tmp_path: Path) -> None:
    result = fit(
        method(),
        regression(),
        epochs=3,
        batch_size=10,
        validation=regression(20, seed=1),
        callbacks=[History(tmp_path / "h.jsonl")],
        fabric={"accelerator": "cpu"},
    )
    rows = read_history(tmp_path / "h.jsonl")
    assert rows == result.rows
    assert [row["epoch"] for row in rows] == [0, 1, 2]
    assert all(math.isfinite(row["loss"]) and math.isfinite(row["val_nll"]) for row in rows)
    with pytest.raises(ValueError, match="another run"):
        fit(method(), regression(), epochs=1, callbacks=[History(tmp_path / "h.jsonl")], fabric={"accelerator": "cpu"})


def test_a_line_cut_short_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert read_history(path) == [{"step": 1}, {"step": 2}]


def test_validation_is_the_mean_negative_log_density() -> None:
    x, y = regression(30, seed=1)
    model = method()
    row = fit(model, regression(), epochs=1, validation=(x, y), fabric={"accelerator": "cpu"}).rows[-1]
    prediction = model.predict(x)
    normal = torch.distributions.Normal(prediction.mean[:, 0], prediction.std[:, 0])
    assert row["val_nll"] == pytest.approx(-float(normal.log_prob(y).mean()), rel=1e-5)


def test_early_stopping_restores_the_best() -> None:
    data, held_out = regression(20), regression(50, seed=1)
    model = method("none", hidden=50)
    result = fit(
        model,
        data,
        epochs=300,
        validation=held_out,
        optimizer=adam(0.03),
        callbacks=[EarlyStopping(patience=5)],
        fabric={"accelerator": "cpu"},
    )
    scores = [row["val_nll"] for row in result.rows]
    assert result.stopped_early
    assert len(scores) < 300
    assert scores.index(min(scores)) == len(scores) - 7
    prediction = model.predict(held_out[0])
    final = -float(prediction.log_prob(held_out[1][:, None]).mean())
    assert final == pytest.approx(min(scores), rel=1e-5)


def test_a_callback_sees_and_stops() -> None:
    class TableCallback(Callback):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_start(self, run) -> None:
            self.seen.append("start")

        def on_step(self, run, row) -> None:
            self.seen.append(f"step {row['step']}")
            run.stop = row["step"] == 3

        def on_end(self, run) -> None:
            self.seen.append("end")

    callback = TableCallback()
    result = fit(method(), regression(), epochs=5, batch_size=25, callbacks=[callback], fabric={"accelerator": "cpu"})
    assert callback.seen == ["start", "step 1", "step 2", "step 3", "end"]
    assert (result.steps, result.stopped_early) == (3, True)


def test_progress_in_plain_text(capsys: pytest.CaptureFixture) -> None:

    fit(method(), regression(), epochs=2, callbacks=[Progress(seconds=0.0)], fabric={"accelerator": "cpu"})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "step 4/4" in lines[-1]
    assert "loss" in lines[-1]
    assert "points/s" in lines[-1]
    assert "0 s left" in lines[-1]


def test_progress_as_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rich")
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress()
    result = fit(method(), regression(), epochs=2, callbacks=[progress], fabric={"accelerator": "cpu"})
    (task,) = progress.bar.tasks
    assert (task.completed, task.total, task.fields["epoch"]) == (4, 4, 1)
    assert math.isfinite(task.fields["loss"])
    assert task.fields["rate"] > 0
    assert result.steps == 4


def test_loggers_get_the_epochs(tmp_path: Path) -> None:
    from lightning_fabric.loggers import CSVLogger

    result = fit(method(), regression(), epochs=2, fabric={"accelerator": "cpu", "loggers": CSVLogger(tmp_path)})
    (table,) = tmp_path.rglob("metrics.csv")  # fewer rows than it collects before it writes
    with open(table) as file:
        found = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in found] == [row["loss"] for row in result.rows]


# -- the order of the points -----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "n, batch_size, world, accumulate", [(50, 16, 1, 1), (50, 16, 3, 2), (17, 16, 4, 8), (3, 8, 5, 1)]
)
def test_every_point_counts_once_an_epoch(n: int, batch_size: int, world: int, accumulate: int) -> None:
    seen: list[int] = []
    for batch in global_batches(n, batch_size, seed=0, epoch=1):
        shards = [shard_of(batch, rank, world, accumulate) for rank in range(world)]
        assert len({len(share) for share in shards}) == 1
        assert all(len(chunk) >= 1 for share in shards for chunk, _ in share)
        seen += [int(i) for share in shards for chunk, count in share for i in chunk[:count]]
    assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("n, batch_size", [(33, 32), (9, 4), (4, 3)])
def test_no_batch_is_a_single_point(n: int, batch_size: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), GaussianLinear(4, 2))
    x = torch.randn(n, 2)
    done = fit(BEDL(net, Normal(1)), (x, x[:, :1]), epochs=2, batch_size=batch_size, fabric={"accelerator": "cpu"})
    assert len(done.rows) == 2
    assert min(map(len, global_batches(n, batch_size, 0, 0))) > 1


def test_epochs_differ_and_seeds_differ() -> None:
    orders = {tuple(epoch_order(20, seed, epoch)) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


def test_schedules() -> None:
    assert [Warmup(2)(s, 100) for s in range(3)] == [0.5, 1.0, 1.0]
    assert Warmup()(0, 100) == pytest.approx(1 / 5)
    assert Warmup()(0, 10**6) == pytest.approx(1 / 500)
    assert Constant()(0, 10) == 1.0
    assert Cosine(1)(0, 100) == 1.0
    assert Cosine(1)(50, 100) == pytest.approx(0.5)
    assert Cosine(1, floor=0.1)(100, 100) == pytest.approx(0.1)


# -- what is refused -------------------------------------------------------------------------------------
class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(3), torch.zeros(())


class SelfMade(Method):
    def fit(self, x: Tensor, y: Tensor) -> None: ...

    def predict(self, x: Tensor) -> None: ...


@pytest.mark.parametrize(
    "wrong, error, complaint",
    [
        ({"method": nn.Linear(1, 1)}, TypeError, "Method"),
        ({"method": SelfMade()}, TypeError, "its own fit"),
        ({"method": Ensemble([method()])}, TypeError, "fit_replicas"),
        ({"data": Stream()}, TypeError, "length"),
        ({"data": torch.zeros(3)}, TypeError, "pair"),
        ({"data": (torch.zeros(3, 3), torch.zeros(2))}, ValueError, "3 points and y has 2"),
        ({"data": (torch.zeros(0, 3), torch.zeros(0))}, ValueError, "empty"),
        ({"epochs": 0}, ValueError, "epochs"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"optimizer": adam(), "lr": 0.1}, TypeError, "an optimizer of your own"),
        ({"fabric": "gpu"}, TypeError, "accelerator"),
        ({"callbacks": [EarlyStopping()]}, ValueError, "validation"),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong: dict, error: type, complaint: str) -> None:
    settings = {"method": method(), "data": regression(), "epochs": 1, "fabric": {"accelerator": "cpu"}, **wrong}
    with pytest.raises(error, match=complaint):
        fit(settings.pop("method"), settings.pop("data"), **settings)


class Augmented(Dataset):
    """Draws from every generator there is."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        import random

        x = torch.full((3,), float(i)) / 20 + 0.1 * torch.randn(3) + 0.1 * random.random() + 0.1 * np.random.rand()  # noqa: NPY002
        return x, x.sum()


def test_a_dataset_that_draws_is_resumed_exactly(tmp_path: Path) -> None:
    from bedl.training import Checkpoints

    class Interrupt(Callback):
        def on_step(self, run, row) -> None:
            if row["step"] == 6:
                raise KeyboardInterrupt

    places = Checkpoints(tmp_path, every_steps=2)
    settings = {"epochs": 3, "batch_size": 4, "fabric": {"accelerator": "cpu"}}
    with pytest.raises(KeyboardInterrupt):
        fit(method(), Augmented(), checkpoint=places, callbacks=[Interrupt()], **settings)
    resumed, whole = method(), method()
    fit(resumed, Augmented(), checkpoint=places, **settings)
    fit(whole, Augmented(), **settings)
    assert torch.equal(vector(resumed), vector(whole))


@pytest.mark.parametrize("head", ["normal", "dirichlet"])
def test_a_network_that_died_is_told(head: str, recwarn: pytest.WarningsRecorder) -> None:
    """Nothing else would: its loss is finite."""
    (x, y), model = regression(50) if head == "normal" else classes(50), method(head=head)
    fit(model, (x, y), epochs=1, fabric={"accelerator": "cpu"})
    with torch.no_grad():
        model.net[0].bias.fill_(-1e3)  # type: ignore[index, union-attr, operator]
    fit(model, (x, torch.zeros_like(y)), epochs=1, fabric={"accelerator": "cpu"})  # there is nothing to learn
    assert not [w for w in recwarn if "all the same" in str(w.message)]
    with pytest.warns(UserWarning, match=r"predictions for 32 training points .* are all the same"):
        fit(model, (x, y), epochs=1, fabric={"accelerator": "cpu"})


class Cut(nn.Module):
    """Makes Moments anew, out of what autograd does not see."""

    def __init__(self, cut: bool):
        super().__init__()
        self.first, self.last, self.cut = GaussianLinear(8, 16), GaussianLinear(16, 2), cut

    def forward(self, x: Tensor) -> Moments:
        h = self.first(x)
        if self.cut:
            h = Moments(h.loc.detach(), h.variance.detach())
        return self.last(torch.relu(h))


@pytest.mark.parametrize("cut", [True, False])
def test_weights_that_no_gradient_reaches_are_named(cut: bool, recwarn: pytest.WarningsRecorder) -> None:
    net = Cut(cut)
    before = net.first.weight_mean.detach().clone()
    fit(
        BEDL(net, Normal(1), regularizer=None),
        (torch.randn(64, 8), torch.randn(64, 1)),
        epochs=2,
        fabric={"accelerator": "cpu"},
    )
    told = [str(w.message) for w in recwarn.list if "no gradient reaches" in str(w.message)]
    assert len(told) == cut
    assert torch.equal(net.first.weight_mean, before) == cut
    assert all("net.first.weight:" in text and "net.last" not in text for text in told)


def test_schedulers_that_look_at_a_score_are_refused():
    with pytest.raises(TypeError, match="ReduceLROnPlateau"):
        fit(method("pac"), regression(20), epochs=1, schedule=torch.optim.lr_scheduler.ReduceLROnPlateau,
            fabric={"accelerator": "cpu"})  # fmt: skip


def test_replicas_take_schedulers_of_pytorch():
    one, other = method("pac"), method("pac")
    made = lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    fit_replicas([one], regression(40), epochs=1, batch_size=10, schedule=made)
    fit_replicas([other], regression(40), epochs=1, batch_size=10, schedule=lambda step, total: 0.1 ** (step // 2))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b)
