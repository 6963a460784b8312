"""`python -m benchmarks.bayesopt`: Bayesian optimisation with `BEDLModel` and with BoTorch's `SingleTaskGP`.

Regret after each evaluation on Branin, Hartmann-6 and a function whose noise differs from place to place, ten seeds.
Rows are appended to a file as they are made, and those that are there are not made again; at the end a table of them.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bedl.deploy.botorch import BEDLModel

F64 = torch.float64


class Heteroscedastic:
    """(6x − 2)² sin(12x − 4) + 0.5 (y − 0.5)² on the unit square, measured with noise from 0.1 (left) to 3 (right).

    A. Forrester, A. Sóbester, A. Keane, "Engineering Design via Surrogate Modelling", 2008, for the function of x.
    """

    dim, optimal_value = 2, -6.02074
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=F64)

    def exact(self, x: Tensor) -> Tensor:
        return (6 * x[:, 0] - 2).square() * (12 * x[:, 0] - 4).sin() + 0.5 * (x[:, 1] - 0.5).square()

    def noise(self, x: Tensor) -> Tensor:
        return 0.1 + 2.9 * x[:, 0]


FUNCTIONS: dict[str, tuple[Any, int, int]] = {  # and points to begin with, and evaluations after them
    "branin": (Branin(), 6, 24),
    "hartmann6": (Hartmann(), 14, 50),
    "heteroscedastic": (Heteroscedastic(), 8, 32),
}


def bedl(X: Tensor, Y: Tensor, seed: int) -> Any:
    return BEDLModel.fit(X, Y, random_state=seed)


def gp(X: Tensor, Y: Tensor, seed: int) -> Any:
    model = SingleTaskGP(X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def nothing(X: Tensor, Y: Tensor, seed: int) -> Any:
    """Points at random."""


MODELS = {"bedl": bedl, "gp": gp, "random": nothing}


def run(name: str, model: str, seed: int, batch: int) -> dict[str, Any]:
    """One optimisation; the regret is that of the point with the best measurement so far."""
    function, start, steps = FUNCTIONS[name]
    low, high = function.bounds.to(F64)
    generator = torch.Generator().manual_seed(seed)
    exact = getattr(function, "exact", None) or (lambda x: function(x))
    unit = torch.stack([torch.zeros(function.dim), torch.ones(function.dim)]).to(F64)

    def measure(u: Tensor) -> tuple[Tensor, Tensor]:
        x = low + (high - low) * u
        value = exact(x)
        noise = torch.randn(len(x), generator=generator, dtype=F64)
        return value, value + (function.noise(x) * noise if hasattr(function, "noise") else 0.0)

    U = torch.quasirandom.SobolEngine(function.dim, scramble=True, seed=seed).draw(start).to(F64)
    values, measured = measure(U)
    began = time.perf_counter()
    for step in range(math.ceil(steps / batch)):
        torch.manual_seed(1000 * seed + step)
        fitted = MODELS[model](U, -measured[:, None], seed=1000 * seed + step)
        if fitted is None:
            candidate = torch.rand(batch, function.dim, dtype=F64)
        else:
            acquisition = qLogNoisyExpectedImprovement(fitted, U, prune_baseline=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                candidate, _ = optimize_acqf(acquisition, unit, q=batch, num_restarts=4, raw_samples=128,
                                             options={"maxiter": 100})  # fmt: skip
        value, noisy = measure(candidate)
        U, values, measured = torch.cat([U, candidate]), torch.cat([values, value]), torch.cat([measured, noisy])
    best = [int(measured[: i + 1].argmin()) for i in range(start - 1, len(measured))]
    regret = [float(values[i]) - float(function.optimal_value) for i in best]
    return {"function": name, "model": model, "seed": seed, "batch": batch, "regret": regret,
            "seconds": round(time.perf_counter() - began, 1)}  # fmt: skip


def table(rows: list[dict[str, Any]]) -> str:
    """Median regrets at the beginning, in the middle and at the end, with their quartiles."""
    groups: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
    for row in rows:
        groups[row["function"], row["model"]].append(row["regret"])
    lines = ["| function | model | seeds | at the start | in the middle | at the end |", "|---|---|---|---|---|---|"]
    for (function, model), curves in sorted(groups.items()):
        array = np.array(curves)
        cells = []
        for place in (0, array.shape[1] // 2, array.shape[1] - 1):
            low, middle, high = np.quantile(array[:, place], (0.25, 0.5, 0.75))
            cells.append(f"{middle:.3g} ({low:.3g} – {high:.3g})")
        lines.append(f"| {function} | {model} | {len(curves)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=2, help="points asked for together")
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", type=Path, default=Path("results/bayesopt.jsonl"))
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    done = {(row["function"], row["model"], row["seed"], row["batch"]) for row in rows}
    for seed in range(options.seeds):
        for function in options.functions:
            for model in options.models:
                if (function, model, seed, options.batch) not in done:
                    rows.append(run(function, model, seed, options.batch))
                    with options.out.open("a") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
