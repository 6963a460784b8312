"""A network that died in its first steps trains on without a sign: its loss is that of knowing nothing, and finite."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from bedl.methods import Batch, Method

__all__ = ["warn_if_dead"]

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
