"""Conditional neural processes: a network that is told a context of points, and predicts others from it.

    r = mean_i h(x_i, y_i) over the context,   p(y | x, context) = the head of g(x, r)

h and g are learned together, on contexts and targets that are drawn from one table again and again, or from many
functions of a kind (`fit_functions`); a new context then takes one pass, no learning (`condition`). M. Garnelo et al.,
"Conditional Neural Processes", ICML 2018. All that is uncertain is in the predicted distribution, ``data``: the network
does not know what it has not been told.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bedl.heads import MeanVariance, Softmax
from bedl.heads.predictive import Predictive
from bedl.methods.base import Method
from bedl.methods.networks import ACTIVATIONS, widths_of
from bedl.methods.registry import Problem, register
from bedl.moments import Moments

HELD_OUT, FEW = 0.15, 40  # share of rows that say when to stop, and up to how many rows there are none
LOOK, PATIENCE = 10, 25  # steps between looks at them, and looks without improvement


class NeuralProcess(Method):
    """A conditional neural process; learns by itself.

    Args:
        n_features: of a point.
        head: what g's outputs say about a target.
        widths: of the hidden layers of h and of g; the last is also that of r.
        front: what stands in front of both.
        activation: between layers.
        steps: of Adam.
        lr: its learning rate, which falls to a tenth.
        batch_size: points that a context and its targets are drawn from.

    Example:
        >>> import torch
        >>> from bedl.heads import MeanVariance
        >>> _ = torch.manual_seed(0)
        >>> x = torch.linspace(-1, 1, 40)[:, None]
        >>> method = NeuralProcess(1, MeanVariance(1), (16, 16), steps=200)
        >>> method.fit(x, 2 * x)
        >>> bool((method.predict(x).mean - 2 * x).abs().mean() < 0.3)
        True
    """

    context: Tensor

    def __init__(
        self,
        n_features: int,
        head: MeanVariance | Softmax,
        widths: Sequence[int] = (64, 64),
        front: nn.Module | None = None,
        activation: Callable[[], nn.Module] = nn.ReLU,
        steps: int = 2000,
        lr: float = 3e-3,
        batch_size: int = 128,
    ):
        super().__init__()
        if steps < 1 or batch_size < 1 or not widths:
            raise ValueError("a neural process needs hidden layers, and at least one step of one point")
        self.front, self.head = nn.Identity() if front is None else front, head
        n_targets = head.n_targets if isinstance(head, MeanVariance) else head.n_outputs
        self.n_targets, self.steps, self.lr, self.batch_size = n_targets, steps, lr, batch_size
        self.encoder = _layers([n_features + n_targets, *widths, widths[-1]], activation)
        self.decoder = _layers([n_features + widths[-1], *widths, head.n_outputs], activation)
        self.register_buffer("context", torch.zeros(widths[-1]))
        self.seed = int(torch.randint(2**62, ()))

    # -- predicting -------------------------------------------------------------------------------
    def forward(self, x: Tensor | Moments) -> Predictive:
        if not isinstance(x, Tensor):
            raise ValueError("a neural process knows no noise of inputs (X_var); leave it out")
        return self._decode(self._rows_of(x), self.context)

    def _decode(self, z: Tensor, r: Tensor) -> Predictive:
        return self.head(self.decoder(torch.cat([z, r.unsqueeze(-2).expand(*z.shape[:-1], -1)], -1)))

    def encode(self, z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """r of contexts; of none, 0.

        Args:
            z: shape (*functions, n, features)
            y: classes, shape (*functions, n), or targets, shape (*functions, n, D)
            weight: shape (*functions, n)

        Returns:
            shape (*functions, R)
        """
        told = y.to(z) if y.is_floating_point() else F.one_hot(y, self.n_targets).to(z)
        shares = weight / weight.sum(-1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
        return (shares[..., None] * self.encoder(torch.cat([z, told], -1))).sum(-2)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Predict from this context from now on. x: shape (n, features), y: shape (n,) or (n, D)"""
        z = self._rows_of(x)
        counts = torch.ones(len(z)).to(z) if weight is None else weight.to(z)
        self.context.copy_(self.encode(z, _columns(y), counts))

    def _rows_of(self, x: Tensor) -> Tensor:
        return self.front(x).flatten(1)

    # -- learning ---------------------------------------------------------------------------------
    def fit(self, x: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """Learn from contexts within one table, and predict from all of it. Rows that are held out say when to stop."""
        z, y = self._rows_of(x), _columns(y)
        counts = torch.ones(len(z)).to(z) if weight is None else weight.to(z)
        order = torch.randperm(len(z), generator=torch.Generator().manual_seed(self.seed)).to(z.device)
        n_out = round(HELD_OUT * len(z)) if len(z) >= FEW else 0
        out, kept = order[:n_out], order[n_out:]

        def draw(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
            rows = kept[torch.randperm(len(kept), generator=generator)[: self.batch_size].to(z.device)]
            return z[rows], y[rows], counts[rows]

        def score() -> float:
            said = self._decode(z[out], self.encode(z[kept], y[kept], counts[kept])).log_prob(y[out])
            return (counts[out] @ said / counts[out].sum()).item()

        self._learn(draw, score if n_out else None)
        self.condition(x, y, weight)

    def fit_functions(self, draw: Callable[[torch.Generator], tuple[Tensor, Tensor]]) -> None:
        """Learn from many functions; afterwards `condition` on points of one.

        Args:
            draw: gives points of some functions, x of shape (functions, n, features) and y of shape (functions, n, D),
                or (functions, n) for classes, with random numbers of the generator that it is given.
        """

        def weighted(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
            x, y = draw(generator)
            z = self.front(x.to(self.context))
            return z, y.to(z.device), torch.ones(z.shape[:-1]).to(z)

        self._learn(weighted)

    def _learn(
        self, draw: Callable[[torch.Generator], tuple[Tensor, Tensor, Tensor]], score: Callable[[], float] | None = None
    ) -> None:
        """Adam on contexts and targets; if there is a score, the weights of the best one are kept."""
        luck = torch.Generator().manual_seed(self.seed)
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 ** (1 / self.steps))
        best, state, waited = -torch.inf, None, 0
        self.train()
        for step in range(self.steps):
            with torch.enable_grad():
                optimizer.zero_grad()
                self._negative_log_density(*draw(luck), luck).backward()
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if score is None or step % LOOK:
                continue
            with torch.no_grad():
                found = score()
            waited += 1
            if found > best:
                best, state, waited = found, copy.deepcopy(self.state_dict()), 0
            if waited > PATIENCE:
                break
        if state is not None:
            self.load_state_dict(state)
        self.eval()

    def _negative_log_density(self, z: Tensor, y: Tensor, weight: Tensor, luck: torch.Generator) -> Tensor:
        """Mean over points, any part of which is the context. shapes: as for `encode` -> ()"""
        n = z.shape[-2]
        told = int(torch.randint(n + 1, (), generator=luck))
        r = self.encode(z, y, weight * (torch.arange(n, device=z.device) < told))
        return -(weight * self._decode(z, r).log_prob(y)).sum() / weight.sum()


def _columns(y: Tensor) -> Tensor:
    """Real targets with an axis of their own; classes as they are. shape: (n, D) or (n,)"""
    return y[:, None] if y.is_floating_point() and y.dim() == 1 else y


def _layers(sizes: Sequence[int], activation: Callable[[], nn.Module]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for fan_in, width in pairwise(sizes):
        parts += [nn.Linear(fan_in, width), activation()]
    return nn.Sequential(*parts[:-1])


@register(
    "neural-process",
    "conditional neural process, told all rows that it learned from (Garnelo et al. 2018)",
    tasks=("regression", "classification"),
)
def neural_process(problem: Problem, steps: int = 2000, lr: float = 3e-3) -> NeuralProcess:
    """Garnelo et al. 2018 on one table: contexts are drawn from its rows, and all of them are told in the end.

    See `NeuralProcess` for `steps`, `lr`.
    """
    if problem.net is not None:
        raise ValueError("method 'neural-process' has networks of its own; leave net out, or name another method")
    regression = problem.task == "regression"
    head: MeanVariance | Softmax = MeanVariance(problem.n_targets) if regression else Softmax(problem.n_targets)
    if not callable(problem.activation) and problem.activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {problem.activation!r}")
    make = problem.activation if callable(problem.activation) else ACTIVATIONS[problem.activation]
    front = None if problem.front is None else problem.front()
    n_features = torch.Size(problem.input_shape).numel()
    return NeuralProcess(n_features, head, widths_of(problem, default=(64, 64)), front, make, steps, lr)
