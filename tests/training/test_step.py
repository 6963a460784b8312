"""One gradient, however the points are spread: over processes, over micro-batches, or not at all."""

from __future__ import annotations

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from bedl.methods import Batch
from bedl.training import Constant, GradientOptions, fit
from bedl.training.engines.fabric import GradientStep, Statistics
from tests.closeness import assert_same_up_to_rounding
from tests.training.problems import classes, method, regression, vector

sgd = functools.partial(torch.optim.SGD, lr=1.0)
ROOT = Path(__file__).parents[2]


def gradient_by_autograd(kind: str, head: str = "normal") -> Tensor:
    """The gradient of the loss of all 50 points at once, and the loss, without any of the training code.

    shape: (P + 1,)
    """
    x, y = regression(dtype=torch.float64) if head == "normal" else classes(dtype=torch.float64)
    model = method(kind, head=head).double()
    loss = model.loss(Batch(x, y, n_train=50))
    loss.backward()
    return torch.cat([*(p.grad.reshape(-1) for p in model.parameters()), loss.detach().reshape(1)])


def gradient_by_fit(kind: str, head: str = "normal", accumulate: int = 1, **how: object) -> Tensor:
    """What one SGD step of `fit` with learning rate 1 subtracts, and the loss that it reports. shape: (P + 1,)"""
    data = regression(dtype=torch.float64) if head == "normal" else classes(dtype=torch.float64)
    model = method(kind, head=head).double()
    before = vector(model)
    run = fit(
        model,
        data,
        epochs=1,
        batch_size=50,
        optimizer=sgd,
        schedule=Constant(),
        gradient=GradientOptions(clip=None, accumulate=accumulate),
        fabric={"accelerator": "cpu", "precision": "64-true", **how},
    )
    return torch.cat([before - vector(model), torch.tensor([run.rows[-1]["loss"]], dtype=torch.float64)])


@pytest.mark.parametrize("accumulate", [1, 2, 3, 7, 50])
@pytest.mark.parametrize("kind", ["none", "pac", "authors-code", "pac+hyper"])
def test_accumulation_gives_the_gradient_of_the_whole_batch(kind: str, accumulate: int) -> None:
    assert torch.allclose(
        gradient_by_fit(kind, accumulate=accumulate), gradient_by_autograd(kind), atol=1e-10, rtol=1e-9
    )


def test_accumulation_of_classes() -> None:
    assert torch.allclose(
        gradient_by_fit("pac", "classes", accumulate=4), gradient_by_autograd("pac", "classes"), atol=1e-9
    )


def test_averaging_the_roots_would_be_something_else() -> None:
    """The test above can fail: with the mean of the micro-batches' own losses it does."""
    x, y = regression(dtype=torch.float64)
    model = method("pac").double()
    for part in range(5):
        chosen = slice(10 * part, 10 * part + 10)
        (model.loss(Batch(x[chosen], y[chosen], n_train=50)) / 5).backward()
    naive = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
    assert float((naive - gradient_by_autograd("pac")[:-1]).abs().max()) > 1e-4


class Noisy(nn.Module):
    """Dropout and batch norm in front of the Gaussian layers: what a second look at a batch could get wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Dropout(0.5))
        self.rest = method("pac", hidden=8).net
        self.rest[0] = type(self.rest[0])(16, 8)

    def forward(self, x: Tensor) -> object:
        return self.rest(self.front(x))


def test_the_first_pass_leaves_no_trace() -> None:
    """With dropout, both passes draw the same; running means see each batch once."""
    model = method("pac")
    torch.manual_seed(0)
    model.net = Noisy()
    x, y = regression(40)
    fabric = Fabric(accelerator="cpu")
    step = GradientStep(fabric, fabric.setup(Statistics(model)), model)
    seen: list[Tensor] = []
    model.net.front.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    halves = [(Batch(x[:20], y[:20], 40), 20), (Batch(x[20:], y[20:], 40), 20)]
    step(halves, 40)
    first, second = torch.cat(seen[:2]), torch.cat(seen[2:])
    assert len(seen) == 4
    assert_same_up_to_rounding(first, second)  # the first pass keeps no gradients
    assert int(model.net.front[1].num_batches_tracked) == 2


SCRIPT = """
import sys, torch
from tests.training.test_step import gradient_by_fit
if __name__ == "__main__":
    path, *cases = sys.argv[1:]
    results = {}
    for case in cases:
        kind, *how = case.split(",")
        options = {key: int(value) if value.isdigit() else value for key, value in (item.split("=") for item in how)}
        results[case] = gradient_by_fit(kind, **options)
    torch.save(results, path)
    if torch.distributed.is_initialized():  # gloo's threads must not outlive the interpreter, nor one process the other
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
"""


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def free_port() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def check(path: Path, cases: list[str]) -> None:
    results = torch.load(path, weights_only=True)
    assert list(results) == cases
    for case, gradient in results.items():
        kind, *how = case.split(",")
        head = "classes" if "head=classes" in how else "normal"
        assert torch.allclose(gradient, gradient_by_autograd(kind, head), atol=1e-6, rtol=1e-6), case


def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    """Two processes with gloo, each told who it is as torchrun does: here, the only process of one of two machines."""
    where = "strategy=ddp,devices=1,num_nodes=2"
    cases = [f"pac+hyper,{where}", f"authors-code,{where}", f"pac,{where},accumulate=3", f"pac,{where},head=classes"]
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
              "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "test"}  # fmt: skip
    jobs = []
    for rank in range(2):
        command = [sys.executable, str(script), str(tmp_path / f"{rank}.pt"), *cases]
        env = environment(**common, RANK=str(rank), GROUP_RANK=str(rank))
        jobs.append(subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for job in jobs:
        _, errors = job.communicate(timeout=200)
        assert job.returncode == 0, errors.decode()[-2000:]
    for rank in range(2):
        check(tmp_path / f"{rank}.pt", cases)


@pytest.mark.slow
def test_processes_that_fabric_starts(tmp_path: Path) -> None:
    """The trained weights come back from the processes that Fabric started."""
    cases = ["pac,devices=2,strategy=ddp_spawn,accumulate=2"]
    script, result = tmp_path / "run.py", tmp_path / "gradient.pt"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(result), *cases]
    subprocess.run(command, check=True, env=environment(), cwd=ROOT, timeout=300, capture_output=True)
    check(result, cases)
