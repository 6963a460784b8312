"""PyTorch Geometric: graphs in batches, its layers and its pool converted as they are.

Small molecules, made here: rings and chains of atoms, of which some carry a charge. A ring with a charge binds.
"""

import sys
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bedl
from bedl.training import TrainingData

warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # as torch_geometric is imported
try:
    from torch_geometric.data import Batch, Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool
except ImportError:
    print("skipped: needs torch_geometric")
    sys.exit(0)

QUICK = "--quick" in sys.argv
torch.manual_seed(0)


def molecule(kind: str) -> Data:
    n, charged = int(torch.randint(5, 9, ())), bool(torch.rand(()) < 0.5)
    ahead = torch.arange(1, n) if kind != "ring" else torch.arange(1, n + 1) % n
    behind = torch.arange(len(ahead))
    x = 0.3 * torch.randn(n, 4)
    x[torch.randint(n, ()), 0] += 2.0 * charged
    edges = torch.stack([torch.cat([behind, ahead]), torch.cat([ahead, behind])])
    return Data(x=x, edge_index=edges, y=torch.tensor([int(charged and kind == "ring")]))


class Molecules(nn.Module):
    """Nothing in the class knows of bedl."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(a, 16), nn.ReLU(), nn.Linear(16, 16)) for a in (4, 16)]
        self.first, self.second, self.out = GINConv(layers[0]), GINConv(layers[1]), nn.Linear(16, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = F.relu(self.second(F.relu(self.first(x, edge_index)), edge_index))
        return self.out(global_add_pool(h, batch))


def parts(batch: Batch) -> tuple:
    return (batch.x, batch.edge_index, batch.batch), batch.y


train = [molecule(kind) for kind in ("ring", "chain") for _ in range(50 if QUICK else 300)]
method = bedl.BEDL(bedl.bayesianize(Molecules()), bedl.Dirichlet(2), bedl.PAC(strength=0.1))
loader = DataLoader(train, batch_size=50, shuffle=True)
bedl.fit(method, TrainingData(loader, unpack=parts, n_train=len(train)), epochs=3 if QUICK else 40, lr=0.01)

test = Batch.from_data_list([molecule(kind) for kind in ("ring", "chain") for _ in range(200)])
prediction = method.predict(parts(test)[0])  # one pass, no random numbers
right = prediction.label == test.y
print(f"accuracy: {right.float().mean():.3f}")
print(f"mean entropy where it is right: {prediction.entropy[right].mean():.2f}")
print(f"mean entropy where it is wrong: {prediction.entropy[~right].mean():.2f}")
