"""The file format: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bedl.training import CheckpointError, Checkpoints, fit, load_weights
from bedl.training import checkpoint as ck
from tests.training.problems import method, regression, vector

STATE = {
    "tensor": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "nested": {"list": [1, 2.5, None, True, "text"], "tuple": (0.9, 0.999), "by number": {0: torch.ones(1), 7: {}}},
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "number": torch.tensor(3),
    "infinite": math.inf,
    "looks like a mark": {"tensor": "not one"},
}


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_round_trip(tmp_path: Path) -> None:
    ck.write(tmp_path / "a.safetensors", STATE)
    assert same(ck.read(tmp_path / "a.safetensors"), STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_optimizer_states_round_trip(kind: type, tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    ck.write(tmp_path / "a.safetensors", {"optimizer": optimizer.state_dict()})
    assert same(ck.read(tmp_path / "a.safetensors")["optimizer"], optimizer.state_dict())


def test_what_is_no_plain_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"a\.b is a Linear"):
        ck.write(tmp_path / "a.safetensors", {"a": {"b": torch.nn.Linear(1, 1)}})
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    ck.write(path, {"a": 1})

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(ck.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        ck.write(path, {"a": 2})
    monkeypatch.undo()
    assert ck.read(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


# -- files that must not be loaded ---------------------------------------------------------------------
def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps({"method": [1.0]}))


def foreign(path: Path) -> None:
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path, {"format": "pt"})


def flipped_bit_in_a_tensor(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


def with_header(path: Path, change: dict[str, str]) -> None:
    with safetensors.safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    safetensors.torch.save_file(tensors, path, {**header, **change})


def newer_version(path: Path) -> None:
    with_header(path, {"version": str(ck.VERSION + 1)})


def nonsense_version(path: Path) -> None:
    with_header(path, {"version": "one"})


def another_learning_rate(path: Path) -> None:
    with safetensors.safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    state["position"]["step"] = 1
    with_header(path, {"state": json.dumps(state)})


DAMAGE = {
    truncated: "not a whole", cut_in_the_header: "not a whole", empty: "not a whole", pickled: "not a whole",
    foreign: "not a checkpoint of", flipped_bit_in_a_tensor: "checksum", newer_version: "newer",
    nonsense_version: "version", another_learning_rate: "checksum",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    directory = tmp_path_factory.mktemp("run")
    fit(method(), regression(), epochs=2, batch_size=10, checkpoint=directory, fabric={"accelerator": "cpu"})
    (path,) = list(directory.glob("*10.safetensors"))
    return path.read_bytes()


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_a_damaged_checkpoint_changes_nothing(damage, trained: bytes, tmp_path: Path) -> None:
    path = ck.path_of(tmp_path, 10)
    path.write_bytes(trained)
    damage(path)
    model = method(seed=5)
    before, random = vector(model), torch.get_rng_state()
    files = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match=DAMAGE[damage]):
        fit(model, regression(), epochs=3, batch_size=10, checkpoint=tmp_path, fabric={"accelerator": "cpu"})
    with pytest.raises(CheckpointError, match=DAMAGE[damage]):
        load_weights(model, path)
    assert torch.equal(vector(model), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == files


@pytest.mark.parametrize(
    "other, complaint",
    [
        ({"batch_size": 5}, "batch_size=10 .now 5"),
        ({"seed": 3}, "seed=0"),
        ({"data": regression(40)}, "n_train=50 .now 40"),
        ({"optimizer": torch.optim.RMSprop}, "holds Adam"),
        ({"method": method(hidden=9)}, "has shape"),
        ({"method": method(head="classes")}, "another network"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(other: dict, complaint: str, trained: bytes, tmp_path: Path) -> None:
    ck.path_of(tmp_path, 10).write_bytes(trained)
    settings = {"batch_size": 10, **{k: v for k, v in other.items() if k not in ("data", "method")}}
    model = other.get("method", method())
    before = vector(model)
    with pytest.raises(CheckpointError, match=complaint):
        fit(
            model,
            other.get("data", regression()),
            epochs=3,
            checkpoint=tmp_path,
            **settings,
            fabric={"accelerator": "cpu"},
        )
    assert torch.equal(vector(model), before)


def test_weights_alone(trained: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(trained)
    model = method(seed=5)
    load_weights(model, path)
    reference = method()
    fit(reference, regression(), epochs=2, batch_size=10, fabric={"accelerator": "cpu"})
    assert torch.equal(vector(model), vector(reference))


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    places = Checkpoints(tmp_path, every_steps=2, keep=3)
    (tmp_path / ".step-0000000001.safetensors.99.part").write_bytes(b"left by a crash")
    result = fit(method(), regression(), epochs=2, batch_size=10, checkpoint=places, fabric={"accelerator": "cpu"})
    assert [p.name for p in ck.stored(tmp_path)] == [ck.path_of(tmp_path, s).name for s in (6, 8, 10)]
    assert result.checkpoint == ck.path_of(tmp_path, 10)
    assert not list(tmp_path.glob(".*"))


def test_resume_says_what_it_expects(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        fit(
            method(),
            regression(),
            epochs=1,
            checkpoint=Checkpoints(tmp_path, resume=True),
            fabric={"accelerator": "cpu"},
        )
    fit(method(), regression(), epochs=1, checkpoint=tmp_path, fabric={"accelerator": "cpu"})
    with pytest.raises(CheckpointError, match="earlier run"):
        fit(
            method(),
            regression(),
            epochs=1,
            checkpoint=Checkpoints(tmp_path, resume=False),
            fabric={"accelerator": "cpu"},
        )
