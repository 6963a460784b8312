"""How close two routes to one number have to come.

One route, walked twice on the same numbers, gives the same bits: compare with `torch.equal`. Two routes (a fused
product, and a product with a sum after it; weights prepared, and weights computed on the way; all rows, and some of
them) are rounded differently, and how depends on the processor and on the libraries that know it: compare with the
function below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bedl import Moments


def assert_same_up_to_rounding(found: Any, expected: Any, ulps: float = 16, scale: float | None = None) -> None:
    """Each entry lies within `ulps` units in the last place of the result's scale.

    Args:
        found: tensors, arrays or Moments, of the same kind, shape and precision as `expected`.
        expected: the same by the other route.
        ulps: how many roundings there may be between the two: some per layer of a network.
        scale: what the rounding is measured against; the largest magnitude among the expected entries unless given,
            because an entry that is small by cancellation has the error of the terms that cancelled.
    """
    if isinstance(expected, Moments):
        assert isinstance(found, Moments)
        assert_same_up_to_rounding(found.loc, expected.loc, ulps, scale)
        assert_same_up_to_rounding(found.variance, expected.variance, ulps, scale)
        return
    found, expected = _tensor(found), _tensor(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    size = expected.detach().abs().nan_to_num(posinf=0).max().item() if expected.numel() else 0.0
    unit = torch.finfo(expected.dtype).eps * (size if scale is None else scale)
    torch.testing.assert_close(found, expected, rtol=0, atol=ulps * unit, equal_nan=True)


def _tensor(values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
