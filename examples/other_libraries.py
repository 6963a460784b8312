"""Bayesian optimisation of Branin's function with BoTorch, by a network with learned noise.

python examples/other_libraries.py
"""

from __future__ import annotations

import argparse
import warnings

import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin

from bedl.deploy.botorch import BEDLModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller run")
    steps = 2 if parser.parse_args().quick else 12
    function = Branin()
    low, high = function.bounds.double()
    unit = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    X = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(6).double()
    Y = -function(low + (high - low) * X)[:, None]
    print(f"best of 6 points to begin with: {-Y.max():.3f}; the minimum is {function.optimal_value:.3f}")
    for step in range(steps):
        model = BEDLModel.fit(X, Y, random_state=step)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of searches that end early
            candidates, _ = optimize_acqf(
                qLogNoisyExpectedImprovement(model, X), unit, q=2, num_restarts=4, raw_samples=64
            )
        X = torch.cat([X, candidates])
        Y = torch.cat([Y, -function(low + (high - low) * candidates)[:, None]])
        print(f"best of {len(X)} points: {-Y.max():.3f}")


if __name__ == "__main__":
    main()
