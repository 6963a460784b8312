"""Gaussian linear layers of many networks: the kernel against double precision."""

from __future__ import annotations

import pytest
import torch

from bedl import _kernels

pytestmark = pytest.mark.skipif(not _kernels.is_built(), reason="there are no kernels")

# networks, points, inputs, outputs: whole tiles, parts of them, more than one panel, single numbers
SIZES = [
    (10, 96, 64, 64),
    (3, 7, 5, 4),
    (2, 13, 130, 70),
    (1, 6, 16, 8),
    (5, 1, 1, 1),
    (2, 33, 64, 200),
    (4, 24, 50, 3),
]
GAP = 3.5  # stands where nothing is to be written


def layer(networks: int, n: int, inputs: int, outputs: int, known: bool) -> dict:
    g = torch.Generator().manual_seed(n)
    size = inputs * outputs
    parameters = torch.randn(networks, 2 * size + outputs + 3, generator=g)  # as in `bedl.training.engines.fused`
    made = [torch.rand(networks, size + 5, generator=g) for _ in range(2)]
    weight = [rows[:, :size].unflatten(1, (outputs, inputs)) for rows in (parameters, *made)]
    x, v = torch.randn(networks, n, inputs, generator=g), torch.rand(networks, n, inputs, generator=g)
    by = [torch.randn(networks, n, outputs, generator=g) for _ in range(2)]
    return {
        "weight": weight, "bias": parameters[:, 2 * size : 2 * size + outputs], "x": x, "v": None if known else v,
        "by": by, "rows": [torch.full_like(rows, GAP) for rows in (parameters, *made)],
    }  # fmt: skip


def assert_close(found: torch.Tensor, truth: torch.Tensor) -> None:
    assert (found - truth).abs().max() <= 3e-6 * truth.abs().max()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_as_in_double_precision(sizes, known):
    one = layer(*sizes, known)
    mean, variance, second = (part.double() for part in one["weight"])
    x, v, by_loc, by_variance = (None if part is None else part.double() for part in (one["x"], one["v"], *one["by"]))
    square, loc, made = torch.empty_like(one["x"]), torch.empty_like(one["by"][0]), torch.empty_like(one["by"][0])
    _kernels.training.affine(one["weight"], one["bias"], one["x"], one["v"], square, loc, made)
    assert_close(square, x.square())
    assert_close(loc, x @ mean.mT + one["bias"].double()[:, None])
    assert_close(made, x.square() @ variance.mT + (0 if known else v @ second.mT))

    size = sizes[2] * sizes[3]
    own = [rows[:, :size].unflatten(1, mean.shape[1:]) for rows in one["rows"]]
    bias = one["rows"][0][:, 2 * size : 2 * size + sizes[3]]
    to = torch.empty_like(one["x"]), None if known else torch.empty_like(one["x"])
    _kernels.training.affine_gradients(one["weight"], one["x"], one["v"], square, *one["by"], (*own, bias), to)
    assert_close(own[0], by_loc.mT @ x)
    assert_close(own[1], by_variance.mT @ x.square())
    assert_close(bias, by_loc.sum(1))
    assert_close(to[0], by_loc @ mean + 2 * x * (by_variance @ variance))
    if not known:
        assert_close(own[2], by_variance.mT @ v)
        assert_close(to[1], by_variance @ second)
    assert bool((one["rows"][0][:, size : 2 * size] == GAP).all())
    assert bool((one["rows"][1][:, size:] == GAP).all())
    assert bool((one["rows"][2][:, size:] == GAP).all())


def test_without_bias_and_without_derivatives_by_inputs():
    one = layer(2, 9, 12, 7, known=False)
    square, loc, made = torch.empty_like(one["x"]), torch.empty_like(one["by"][0]), torch.empty_like(one["by"][0])
    _kernels.training.affine(one["weight"], None, one["x"], one["v"], square, loc, made)
    assert_close(loc, one["x"].double() @ one["weight"][0].double().mT)
    own = [rows[:, :84].unflatten(1, (7, 12)) for rows in one["rows"]]
    given = one["weight"], one["x"], one["v"], square, *one["by"]
    _kernels.training.affine_gradients(*given, (*own, None), (None, None))
    assert_close(own[0], one["by"][0].double().mT @ one["x"].double())
    assert bool((one["rows"][0][:, 84:] == GAP).all())


def test_any_number_of_threads():
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            one = layer(5, 40, 20, 30, known=False)
            square, loc, made = (
                torch.empty_like(one["x"]),
                torch.empty_like(one["by"][0]),
                torch.empty_like(one["by"][0]),
            )
            _kernels.training.affine(one["weight"], one["bias"], one["x"], one["v"], square, loc, made)
            results.append(torch.cat([loc, made]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)  # the same computation, whoever does it
