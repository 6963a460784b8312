"""What a method costs per point, in forward passes of the deterministic network: the paper's costs, measured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bedl._utils.io import Row
from bedl.bench.benchmark import Cell, Column, Root, RunResult, Table
from bedl.bench.presets import SAME, figures
from bedl.bench.util import PeakMemory, cifar_net, lenet5, medians, mlp, threads
from bedl.methods import Batch, Method, Problem, registry
from bedl.moments import Moments

SHAPES = {"table": (8,), "lenet": (1, 28, 28), "cifar-net": (3, 32, 32)}
POINTS = {"table": 4096, "lenet": 100, "cifar-net": 20}  # in a batch
ROWS = 10_000  # of the training set, for terms that are divided by it
PAPER = ("bedl", "bedl+reg", "dvi", "varout", "mc-dropout", "edl", "deterministic")
DRAWS = 5  # "each model gets access to five samples"
DRAWN = ("mc-dropout", "varout")
DROPOUT = {"mc-dropout": 0.05}


class Cost(Table):
    """Times are medians of runs taken in turns in one process; ratios hold on a busy machine, too."""

    name = "cost"
    title = "What a method costs"
    about = (
        "In forward passes F of the deterministic network on the same batch: a prediction, the loss of a training "
        "batch, a whole training step with gradients and Adam, and the first two by the paper's formula with L and R "
        "as measured, and S = 1 where nothing is drawn. Memory: peak of a step over that of the deterministic network."
    )
    datasets = tuple(SHAPES)
    methods = {"paper": PAPER, "best": PAPER}  # noqa: RUF012
    columns = (
        Column("prediction", "prediction, F", "lower", places=1),
        Column("formula_prediction", "by the formula", "lower", places=1),
        Column("training", "loss of a batch, F", "lower", places=1),
        Column("formula_training", "by the formula", "lower", places=1),
        Column("step", "training step, F", "lower", places=1),
        Column("memory", "memory of a step", "lower", places=1),
        Column("likelihood", "L, F", "lower"),
        Column("regulariser", "R, F", "lower"),
        Column("microseconds", "F a point, µs", "lower", places=None),
    )
    across = "metrics"

    def work(self, cell: Cell, root: Root = None) -> RunResult:
        torch.manual_seed(cell.seed)
        draws = DRAWS if cell.preset == "paper" else 100
        options: dict[str, Any] = {"samples": draws} if cell.method in DRAWN else {}
        task = "regression" if cell.dataset == "table" and cell.method != "edl" else "classification"
        problem, without = (_problem(cell.dataset, task, dropout) for dropout in (DROPOUT.get(cell.method, 0.0), 0.0))
        own, plain = registry.get(cell.method)(problem, **options), registry.get("deterministic")(without)
        batch = _batch(problem, POINTS[cell.dataset])
        with threads(1):
            metrics = _measured(own, plain, batch)
        metrics |= _formulas(cell.method, metrics, draws if cell.method in DRAWN else 1)
        settings: dict[str, Any] = {
            "batch": POINTS[cell.dataset],
            "threads": 1,
            "draws": draws if options else None,
            "deviations": (),
        }
        if cell.method.startswith("bedl") or cell.method == "dvi":
            settings["deviations"] = (
                "likelihood and divergence are in closed form or by quadrature: nothing is drawn",
            )
        return RunResult(metrics, settings)

    def sections(self, rows: Sequence[Row]) -> Sequence[str]:
        from bedl.evaluation.report.layout import data, table

        known = figures()["cost_per_point"]
        lines = [[data(name), *(data(text) for text in known[name])] for name in known if name in SAME]
        grid = table("The paper's formulas", ["method", "training", "prediction"], lines)
        how = f'<p class="how">{data(known["legend"], 300)}</p>'
        return [f'<section class="card wide"><h2>What a method costs: the paper\'s formulas</h2>{how}{grid}</section>']


# -- what is measured --------------------------------------------------------------------------------
def _problem(dataset: str, task: str, dropout: float) -> Problem:
    if dataset == "table":
        targets = 1 if task == "regression" else 10
        return Problem(task, targets, SHAPES[dataset], net=functools.partial(_table_net, dropout=dropout))
    make, classes = (lenet5, 10) if dataset == "lenet" else (cifar_net, 5)
    return Problem(task, classes, SHAPES[dataset], net=make(classes, dropout=dropout))


def _table_net(features: int, outputs: int, dropout: float = 0.0) -> torch.nn.Module:
    return mlp(features, 50, outputs, dropout)


def _batch(problem: Problem, n: int) -> Batch:
    x = torch.randn(n, *problem.input_shape)
    y = torch.randint(problem.n_targets, (n,)) if problem.task == "classification" else torch.randn(n, 1)
    return Batch(x, y, n_train=ROWS)


def _measured(own: Method, plain: Method, batch: Batch) -> dict[str, float]:
    """Ratios to the deterministic network's forward pass, which is `microseconds` a point."""
    own.train(), plain.train()
    runs: dict[str, Callable[[], object]] = {
        "forward": torch.no_grad()(lambda: plain.net(batch.x)),  # type: ignore[operator]
        "prediction": lambda: own.predict(batch.x).mean,
        "training": torch.no_grad()(lambda: own.loss(batch)),
        "step": _step(own, batch),
        **_pieces(own, plain, batch),
    }
    times = medians(runs)
    unit = times.pop("forward")
    ratios = {name: seconds / unit for name, seconds in times.items()}
    through = ratios.pop("pass", None)
    if through is not None:
        ratios["regulariser"] = max(0.0, ratios["training"] - through - ratios["likelihood"])
    memory = _peak(own, batch) / _peak(plain, batch)
    return {**ratios, "memory": memory, "microseconds": 1e6 * unit / len(batch.x)}


def _pieces(own: Method, plain: Method, batch: Batch) -> dict[str, Callable[[], object]]:
    """The likelihood by itself, and where the network carries moments its pass, so that the rest can be told."""
    outputs: Any
    with torch.no_grad():
        outputs = own.net(batch.x) if own.parts is not None else plain.net(batch.x)  # type: ignore[operator]
    if own.parts is None or not isinstance(outputs, Moments):
        head: Any = plain.head
        with torch.no_grad():
            outputs = plain.net(batch.x)  # type: ignore[operator]
        return {"likelihood": torch.no_grad()(lambda: head.log_marginal(outputs, batch.y))}
    _, head, _ = own.parts
    net: Any = own.net
    likelihood = getattr(head, "expected_log_prob", head.log_marginal)
    return {
        "likelihood": torch.no_grad()(lambda: likelihood(outputs, batch.y)),
        "pass": torch.no_grad()(lambda: net(batch.x)),
    }


def _step(method: Method, batch: Batch) -> Callable[[], object]:
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-6)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = method.loss(batch)
        loss.backward()
        optimizer.step()
        return loss

    return step


def _peak(method: Method, batch: Batch) -> float:
    """Bytes of parameters and of what lives at once in a step."""
    run = _step(method, batch)
    with PeakMemory(batch.x, batch.y) as memory:
        run()
        run()
    return memory.peak + sum(parameter.nbytes for parameter in method.parameters())


def _formulas(method: str, found: dict[str, float], draws: int) -> dict[str, float]:
    """The paper's costs in units of F; W/N is left out, as it is far below 1 per point."""
    L, R, S = found["likelihood"], found.get("regulariser", 0.0), draws
    known = {
        "mc-dropout": ((1 + L) * 1, (1 + L) * S),
        "varout": (2 * (1 + L), 2 * (1 + L) * S),
        "dvi": (2 + S * L, 2 + S * L),
        "edl": (1 + L, 1 + L),
        "bedl": (3 + S * L, 3 + S * L),
        "bedl+reg": (3 + S * (L + R), 3 + S * L),
    }
    if method not in known:
        return {}
    training, prediction = known[method]
    return {"formula_training": training, "formula_prediction": prediction}


TABLE = Cost()
