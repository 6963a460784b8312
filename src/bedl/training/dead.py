"""What trains on without a sign: a network that died in its first steps, and weights that no gradient reaches.

The loss of a dead network is that of knowing nothing, and finite.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from bedl.methods import Batch, Method
from bedl.nn import GaussianLayer

__all__ = ["warn_if_dead", "warn_of_missing_gradients"]

LEAST = 1e-4  # by how much predictions differ, in units of how unsure they are


@torch.no_grad()
def warn_if_dead(method: Method, batch: Batch) -> None:
    """Warns where predictions are the same for all points though targets are not.

    Args:
        method: what was trained.
        batch: points that it learned from.
    """
    if not _spread(batch.y.double().nan_to_num()) > 0:
        return
    method.eval()
    found = method.predict(batch.x)
    if _spread(found.mean.double().flatten(0, -2)) <= LEAST * found.variance.double().amax().sqrt():
        warnings.warn(
            f"predictions for {len(batch.y)} training points with different targets are all the same: the network has "
            "learned nothing of its inputs. Its units may have died in the first steps: lower the learning rate, or "
            "let it rise from 0 (schedule='warmup' of estimators, schedule=Warmup() of fit)",
            stacklevel=2,
        )


def _spread(values: Tensor) -> Tensor:
    """The greatest difference between two rows, over all columns. shape: ()"""
    return (values.amax(0) - values.amin(0)).amax()


def warn_of_missing_gradients(method: Method) -> None:
    """Warns of Gaussian weights without a gradient, by name; called after a backward.

    Args:
        method: what is trained.
    """
    missing = [
        f"{name}.{weight}"
        for name, layer in method.named_modules()
        if isinstance(layer, GaussianLayer)
        for weight in layer.gaussian_parameters
        if (mean := layer._parameters.get(f"{weight}_mean")) is not None and mean.requires_grad and mean.grad is None
    ]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        warnings.warn(
            f"no gradient reaches {shown}: these weights stay as they are. The network does not use them, or code "
            "behind them stops gradients (torch.no_grad, .detach, values of .loc made into new Moments). "
            "bedl.check(net, example_input) tells the two apart; exclude= of bayesianize leaves layers out",
            stacklevel=2,
        )
