"""The entropy that knowing class probabilities would leave: the kernel in C against PyTorch in double precision."""

from __future__ import annotations

import pytest
import torch

from bedl import _kernels
from bedl.heads.integrals import expected_data_entropy


@pytest.mark.skipif(not _kernels.is_built(), reason="there are no kernels")
@pytest.mark.parametrize(
    "logvar", [(-9.0, 1.0), (-1.0, 1.0), (2.0, 1.0), (0.0, 4.0)], ids=["known", "some", "wide", "any"]
)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_kernel_says_what_double_precision_says(
    classes: int, logvar: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    g = torch.Generator().manual_seed(classes)
    m, v = (torch.randn(4, 25, classes, generator=g) for _ in range(2))
    m, v = 4 * m, (logvar[0] + logvar[1] * v).exp()
    truth = expected_data_entropy(m.double(), v.double())
    calls: list[int] = []
    kernel = _kernels.data_entropy
    monkeypatch.setattr(_kernels, "data_entropy", lambda *given: calls.append(1) or kernel(*given))
    found = expected_data_entropy(m, v)
    assert calls == [1]
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=1e-4)
    assert 0.0 <= found.min() <= found.max() <= torch.tensor(float(classes)).log() + 1e-4


def test_what_is_no_number_stays_so() -> None:
    m, v = torch.zeros(3, 2), torch.ones(3, 2)
    m[1, 0] = torch.nan
    assert expected_data_entropy(m, v).isnan().tolist() == [False, True, False]
