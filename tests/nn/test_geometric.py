"""Layers of PyTorch Geometric, converted as they are."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bedl
from tests.closeness import assert_same_up_to_rounding

pytestmark = [pytest.mark.arch, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
geometric = pytest.importorskip("torch_geometric.nn")

pytestmark = pytest.mark.reference

NODES, EDGES = 12, torch.randint(0, 12, (2, 40), generator=torch.Generator().manual_seed(0))
GRAPHS = torch.arange(NODES) // 6


def two_layers(a, b):
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, b))


CONVOLUTIONS = {
    "GCNConv": lambda a, b: geometric.GCNConv(a, b),
    "SAGEConv": lambda a, b: geometric.SAGEConv(a, b),
    "SAGEConv, largest": lambda a, b: geometric.SAGEConv(a, b, aggr="max"),
    "SAGEConv, projected": lambda a, b: geometric.SAGEConv(a, b, project=True, normalize=True),
    "GATConv": lambda a, b: geometric.GATConv(a, b // 2, heads=2),
    "GATv2Conv": lambda a, b: geometric.GATv2Conv(a, b // 2, heads=2),
    "GINConv": lambda a, b: geometric.GINConv(two_layers(a, b), train_eps=True),
    "TransformerConv": lambda a, b: geometric.TransformerConv(a, b),
}
POOLS = {
    "none": lambda h: h,
    "mean": lambda h: geometric.global_mean_pool(h, GRAPHS),
    "sum": lambda h: geometric.global_add_pool(h, GRAPHS),
    "largest": lambda h: geometric.global_max_pool(h, GRAPHS),
}


class Net(nn.Module):
    def __init__(self, convolution, pool="none"):
        super().__init__()
        self.first, self.second = CONVOLUTIONS[convolution](5, 8), CONVOLUTIONS[convolution](8, 8)
        self.out, self.pool = nn.Linear(8, 3), POOLS[pool]

    def forward(self, x, edges):
        h = F.relu(self.second(F.relu(self.first(x, edges)), edges))
        return self.out(self.pool(h))


CASES = [(name, "none") for name in CONVOLUTIONS] + [("GCNConv", name) for name in POOLS if name != "none"]


@pytest.mark.parametrize(("convolution", "pool"), CASES)
def test_a_converted_network_is_the_plain_one_with_variances(convolution, pool):
    torch.manual_seed(0)
    net, x = Net(convolution, pool).eval(), torch.randn(NODES, 5)
    plain = net(x, EDGES)
    assert_same_up_to_rounding(bedl.bayesianize(net, init_logvar=-float("inf"))(x, EDGES).loc, plain)
    random = bedl.bayesianize(net)
    y = random(x, EDGES)
    with torch.no_grad(), bedl.sampled(random, per="call"):
        draws = torch.stack([random(x, EDGES) for _ in range(300)])
    ratio = y.variance.detach().sqrt().mean() / draws.std(0).mean()
    # nodes share the draws of weights, which a sum over nodes adds up and Moments take for independent
    assert float(ratio) == pytest.approx(1, abs=0.2 if pool in ("mean", "sum") else 0.12)


def test_plain_tensors_go_the_way_they_went():
    from torch_geometric.utils import scatter, softmax

    bedl.bayesianize(nn.Linear(2, 2))
    x, index = torch.randn(5, 2), torch.tensor([0, 0, 1, 3, 3])
    torch.testing.assert_close(scatter(x, index, reduce="mean")[3], x[3:].mean(0))
    torch.testing.assert_close(softmax(x, index)[:2], x[:2].softmax(0))


def test_it_learns():
    torch.manual_seed(0)
    group = torch.arange(60) % 2
    source, target = torch.randint(0, 60, (2, 600))
    edges = torch.stack([source, target])[:, group[source] == group[target]]
    features = torch.randn(60, 5) + 0.3 * group[:, None]

    class Nodes(Net):
        def forward(self, number):
            return super().forward(features, edges)[number]

    method = bedl.BEDL(bedl.bayesianize(Nodes("SAGEConv")), bedl.Dirichlet(3), regularizer=None)
    bedl.fit(
        method,
        (torch.arange(60), group),
        epochs=60,
        batch_size=60,
        compile=False,
        lr=0.01,
        fabric={"accelerator": "cpu"},
    )
    assert (method.predict(torch.arange(60)).label == group).float().mean() > 0.9
