"""A graph network: nodes send messages along edges, and each says how sure it is of its label.

A graph with four communities, made here: nodes of one community are joined four times as often as others, and what is
known of each node alone is noise around its community's mean. Some nodes have no edges at all.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bedl

QUICK = "--quick" in sys.argv
torch.manual_seed(0)
N, LONELY, CLASSES = 400, 60, 4
labels = torch.randint(0, CLASSES, (N,))
same = labels[:, None] == labels[None]
joined = torch.rand(N, N) < torch.where(same, 0.06, 0.015)
joined[:LONELY] = joined[:, :LONELY] = False
source, target = torch.where(joined & ~torch.eye(N, dtype=torch.bool))
features = torch.randn(CLASSES, 8)[labels] + 2.0 * torch.randn(N, 8)


class Messages(nn.Module):
    """Each node's own features, and the sum of what its neighbours send. Nothing in the class knows of bedl."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.send, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(32, CLASSES)

    def forward(self, nodes: Tensor) -> Tensor:
        h = F.relu(self.encode(features))
        received = torch.zeros_like(h).index_add(0, target, F.relu(self.send(h))[source])
        degree = torch.zeros(N).index_add(0, target, torch.ones(len(target))).clamp(min=1)
        return self.out(torch.cat([h, received / degree[:, None]], 1))[nodes]


order = torch.randperm(N)
train, test = order[:200], order[200:]
method = bedl.BEDL(bedl.bayesianize(Messages()), bedl.Dirichlet(CLASSES), regularizer=None)
bedl.fit(method, (train, labels[train]), epochs=5 if QUICK else 40, batch_size=50, lr=0.01)

prediction = method.predict(test)  # one pass, no random numbers
right = prediction.label == labels[test]
lonely = test < LONELY
print(f"edges: {len(source)}")
print(f"accuracy, nodes with edges: {right[~lonely].float().mean():.3f}")
print(f"accuracy, nodes without: {right[lonely].float().mean():.3f}")
print(f"mean entropy, nodes with edges: {prediction.entropy[~lonely].mean():.2f}")
print(f"mean entropy, nodes without: {prediction.entropy[lonely].mean():.2f}")
