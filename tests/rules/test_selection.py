"""The largest k and an order, tensors made from Moments, bounds, and products with sparse matrices."""

import pytest
import torch
from torch import nn

import bedl
from bedl import Moments, UnsupportedOperationError


def normals(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    loc = torch.randn(shape, generator=generator, dtype=torch.float64)
    return Moments(loc, 0.05 + torch.rand(shape, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("call", [
    lambda x: torch.topk(x, 2), lambda x: x.topk(3, dim=0, largest=False), lambda x: torch.sort(x),
    lambda x: x.sort(0, descending=True), lambda x: torch.sort(x, dim=-1, stable=True),
])  # fmt: skip
def test_an_order_is_that_of_the_means(call):
    x = normals(4, 5)
    y, plain = call(x), call(x.loc)
    assert torch.equal(y.indices, plain.indices)
    assert torch.equal(y.values.loc, plain.values)
    values, indices = y
    of = {m.item(): v.item() for m, v in zip(x.loc.flatten(), x.variance.flatten(), strict=True)}
    assert all(of[m.item()] == v.item() for m, v in zip(values.loc.flatten(), values.variance.flatten(), strict=True))
    assert torch.equal(torch.argsort(x), torch.argsort(x.loc))
    assert indices.dtype == torch.long


def test_order_of_well_separated_values_agrees_with_draws():
    """Where the order is not in doubt, the largest two are what draws say they are."""
    x = Moments(torch.tensor([5.0, -3.0, 9.0, 0.0]), torch.tensor([0.1, 0.3, 0.2, 0.1]))
    torch.manual_seed(0)
    draws = torch.stack([x.sample() for _ in range(20_000)]).topk(2).values
    y = x.topk(2).values
    assert (y.loc - draws.mean(0)).abs().max() < 0.02
    assert (y.variance.sqrt() / draws.std(0) - 1).abs().max() < 0.03


MAKERS = [
    torch.zeros_like, torch.ones_like, torch.empty_like, lambda x: torch.full_like(x, 3.0), torch.rand_like,
    torch.randn_like, lambda x: torch.zeros_like(x, dtype=torch.bool), lambda x: x.new_zeros(3, 1),
    lambda x: x.new_ones((2,)), lambda x: x.new_empty(4), lambda x: x.new_full((2, 2), 5.0),
    lambda x: x.new_tensor([1]),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_made_tensors_are_plain(make):
    x = Moments(torch.randn(2, 3, dtype=torch.float64), 1.0)
    made, plain = make(x), make(x.loc)
    assert type(made) is torch.Tensor
    assert (made.shape, made.dtype, made.device) == (plain.shape, plain.dtype, plain.device)


def test_clamp_refuses_random_bounds_and_follows_torch_where_bounds_cross():
    x = normals(3)
    with pytest.raises(UnsupportedOperationError, match="bounds are random"):
        x.clamp(min=normals(3, seed=1))
    low, high = torch.tensor([1.0, -1.0, 0.0]).double(), torch.tensor([0.0, 1.0, 0.0]).double()
    y = x.clamp(low, high)
    assert y.loc[0] == 0
    assert y.variance[0] == 0
    assert y.loc[2] == 0
    assert torch.equal(Moments(x.loc, 0.0).clamp(low, high).loc, x.loc.clamp(low, high))


# -- sparse ----------------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_products_are_those_of_the_dense_matrix(layout):
    index = torch.tensor([[0, 0, 1, 3, 3], [1, 1, 2, 0, 2]])  # (0, 1) is stored in two parts
    matrix = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0, -3.0, 0.5, 4.0], dtype=torch.float64), (4, 3))
    dense, x, c = matrix.to_dense(), normals(3, 2), normals(4, 2, seed=1)
    if layout == "csr":
        matrix = matrix.to_sparse_csr()
    for y in (torch.sparse.mm(matrix, x), matrix @ x, torch.mm(matrix, x)):
        torch.testing.assert_close(y.loc, dense @ x.loc)
        torch.testing.assert_close(y.variance, dense.square() @ x.variance)
    y = torch.sparse.addmm(c, matrix, x, beta=2.0, alpha=-0.5)
    torch.testing.assert_close(y.loc, 2 * c.loc - 0.5 * dense @ x.loc)
    torch.testing.assert_close(y.variance, 4 * c.variance + 0.25 * dense.square() @ x.variance)


@pytest.mark.parametrize("call", [
    lambda x, i: torch.zeros(4).scatter_reduce(0, i, x, "prod"),
    lambda x, i: torch.zeros(4).scatter(0, i, x, reduce="add"),
    lambda x, i: torch.zeros(4).index_add_(0, i, x), lambda x, i: torch.zeros(4).scatter_add_(0, i, x),
])  # fmt: skip
def test_what_is_not_defined_is_refused(call):
    with pytest.raises(UnsupportedOperationError, match=r"not defined|cannot hold Moments"):
        call(Moments(torch.zeros(3), 1.0), torch.tensor([0, 1, 1]))


# -- groups that an index names --------------------------------------------------------------------
GROUPS = torch.tensor([2, 0, 2, 2, 4, 0])


@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("dim", [0, 1])
def test_largest_of_groups_agrees_with_draws(reduce, include_self, dim):
    x, own = normals(6, 3), normals(5, 3, seed=1)
    index = GROUPS[:, None].expand(6, 3).clone()
    index[1, 2] = 3  # columns may differ

    def reduced(a, b):
        a, b, i = (t.movedim(0, dim) for t in (a, b, index))
        return a.scatter_reduce(dim, i, b, reduce, include_self=include_self).movedim(dim, 0)

    generator = torch.Generator().manual_seed(2)
    draws = [m.loc + m.variance.sqrt() * torch.randn(20_000, *m.shape, generator=generator).double() for m in (own, x)]
    expected = torch.func.vmap(reduced)(*draws)
    y = reduced(own, x)
    std = expected.std(0)
    assert ((y.loc - expected.mean(0)).abs() / std).max() < 0.05
    assert (y.variance.sqrt() / std - 1).abs().max() < 0.05
    plain = reduced(Moments(own.loc, 0.0), Moments(x.loc, 0.0))
    torch.testing.assert_close(plain.loc, reduced(own.loc, x.loc))
    assert not plain.variance.any()


def test_a_smaller_index_leaves_the_rest_alone():
    own, x, index = normals(5, 3), normals(6, 3, seed=1), torch.tensor([[0, 1], [0, 1]])
    y = own.scatter_reduce(0, index, x, "amax")
    torch.testing.assert_close(own.loc[2:], y.loc[2:])
    torch.testing.assert_close(own.variance[:, 2], y.variance[:, 2])
    largest = torch.stack([own[0, 0], x[0, 0], x[1, 0]]).amax(0)
    torch.testing.assert_close(y.loc[0, 0], largest.loc)
    torch.testing.assert_close(y.variance[0, 0], largest.variance)


def test_refusals_say_what_to_write():
    x = Moments(torch.zeros(3), 1.0)
    with pytest.raises(UnsupportedOperationError, match=r"write x = x\.index_add\(…\), without the underscore"):
        torch.zeros(4).index_add_(0, torch.tensor([0, 1, 1]), x)
    for compare in (lambda: x > 0, lambda: x <= 0, lambda: torch.lt(x, 1.0), lambda: x.le(x)):
        with pytest.raises(UnsupportedOperationError, match=r"whether it holds is random; F\.relu"):
            compare()


def test_added_in_place():
    x, y, index = normals(4, 2), normals(3, 2, seed=1), torch.tensor([0, 0, 2])
    expected = x.index_add(0, index, y)
    assert x.index_add_(0, index, y) is x
    assert torch.equal(x.variance, expected.variance)


# -- what they are for -----------------------------------------------------------------------------
class Mixture(nn.Module):
    """The two best of four experts for each point, by a gate."""

    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 3) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros(len(x), 3)
        for i, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == i)
            out = torch.index_add(out, 0, rows, expert(x[rows]) * weights[rows, place, None])
        return out


def test_a_gated_mixture_runs():
    torch.manual_seed(0)
    net, x = Mixture(), torch.randn(6, 4)
    y = bedl.bayesianize(net)(x)
    certain = bedl.bayesianize(net, init_logvar=-float("inf"))(x)
    torch.testing.assert_close(certain.loc, net(x))
    assert not certain.variance.any()
    assert (y.variance > 0).all()
    with bedl.sampled(bedl.bayesianize(net), per="call") as drawn:  # an expert's rows are those of some points
        draws = torch.stack([drawn(x) for _ in range(2000)])
    ratio = y.variance.sqrt() / draws.std(0)
    assert 0.8 < ratio.mean() < 1.25
