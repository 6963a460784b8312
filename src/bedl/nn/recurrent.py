"""Recurrent layers with Gaussian weights: nn.RNN, nn.LSTM and nn.GRU, and their cells.

The weights meet the state at every step, and each time they are taken as independent of it. They are not: the state
carries what the same weights did before. docs/approximation.md measures it against weights drawn once per sequence,
which is what `bedl.sampled` does here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from bedl.moments import Moments
from bedl.moments.rules._base import LayerWeight
from bedl.moments.rules.attention import gru_step, lstm_step, rnn_step
from bedl.nn.compat import patch_libraries
from bedl.nn.draws import point_value
from bedl.nn.layers import LOGVAR_JITTER, GaussianLayer

Operand = Any  # a tensor or Moments
State = tuple[Operand, ...]  # (hidden,), or (hidden, cell) of an LSTM
Weights = dict[str, Any]  # by the parameter's name: a Gaussian weight as Moments or a draw of it, or a bias


class _Recurrent(GaussianLayer):
    """What layers and cells share: where they start from, and what one step does."""

    hidden_size: int
    kind: ClassVar[str]
    nonlinearity: str
    takes_groups = False

    def reset_parameters(self) -> None:
        """As torch does: weights and biases between ±1/√hidden. With variances, weights have that second moment."""
        if not any(f"{name}_mean" in self._parameters for name in self.gaussian_parameters):
            return
        total = 1 / (3 * self.hidden_size)
        logvar = self.init_logvar if self.init == "he" else min(self.init_logvar, math.log(total / 2))
        reach = math.sqrt(3 * (total if self.init == "he" else total - math.exp(logvar)))
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                if parameter is not None and name.endswith("_logvar"):
                    parameter.normal_(logvar, LOGVAR_JITTER)
                elif parameter is not None:
                    parameter.uniform_(-reach, reach)

    def _weights(self) -> Weights:
        """The Gaussian weights, and what every product needs of them once; and the biases."""
        weights: Weights = {name: p for name, p in self._parameters.items() if name.startswith("bias")}
        for name in self.gaussian_parameters:
            if self.drawn is not None and self.drawn.for_all:
                weights[name] = self.read(name)
                continue
            pair = self.gaussian(name)
            weights[name] = LayerWeight(pair.loc, pair.variance, pair.loc.to(pair.variance.dtype).square())
        return weights

    def _drawn_weights(self) -> Weights:
        return {name: w.sample() if isinstance(w, Moments) else w for name, w in self._weights().items()}

    def _step(self, from_input: Operand, state: State, weights: Weights, place: str) -> State:
        """The next state, of shape (n, hidden) each. from_input: shape (n, gates·hidden); place: `_l0` and so on."""
        from_state = F.linear(state[0], weights[f"weight_hh{place}"], weights.get(f"bias_hh{place}"))
        if self.kind == "GRU":
            return (gru_step(from_input, from_state, state[0]),)
        if self.kind == "RNN":
            return (rnn_step(from_input, from_state, torch.tanh if self.nonlinearity == "tanh" else torch.relu),)
        hidden, cell = lstm_step(from_input, from_state, state[1])
        projection = weights.get(f"weight_hr{place}")
        return (hidden if projection is None else F.linear(hidden, projection)), cell


class _GaussianSequenceLayer(_Recurrent):
    """nn.RNN, nn.LSTM or nn.GRU with Gaussian weights; all forms of input that torch takes."""

    num_layers: int
    bidirectional: bool
    batch_first: bool
    dropout: float
    proj_size: int
    input_size: int

    @classmethod
    def weight_names(cls, layer: nn.Module) -> tuple[str, ...]:
        return tuple(name for name in cast(Any, layer)._flat_weights_names if name.startswith("weight"))

    @property
    def gaussian_parameters(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.weight_names(self)

    @classmethod
    def make_plain(cls, layer: nn.Module) -> None:
        cast(Any, layer)._init_flat_weights()

    def _init_flat_weights(self) -> None:
        """torch's list of weights for its own kernels, which are not used here."""
        self._flat_weights, self._flat_weight_refs = [], []  # type: ignore[var-annotated]

    def split_weights(self) -> None:
        super().split_weights()
        self._init_flat_weights()

    def __getattr__(self, name: str) -> Any:
        names = self.__dict__.get("_flat_weights_names", ())
        if name in names and f"{name}_mean" in self._parameters:
            return self.read(name)
        return super().__getattr__(name)

    def forward(self, input: Operand, hx: Any = None) -> Any:
        patch_libraries()
        if self.is_sampling:
            return super().forward(_drawn(input), _drawn(hx))
        return self.forward_with_draw(input, hx)

    def forward_with_draw(self, input: Operand, hx: Any = None) -> Any:
        weights = self._weights()
        return self._in_any_form(input, hx, lambda x, state, mask: self._all_layers(weights, x, state, mask))

    @property
    def point_axis(self) -> int:  # type: ignore[override]
        return 0 if self.batch_first else 1

    def sample(self, input: Operand, hx: Any = None) -> Any:
        """The output with weights drawn *once for each sequence*."""

        def run(x: Operand, state: State, mask: Tensor | None) -> tuple[Operand, State]:
            def one(x: Tensor, mask: Tensor | None, *state: Tensor) -> Any:
                several = [t.unsqueeze(1) for t in (x, *state)]
                rows = None if mask is None else mask.unsqueeze(1)
                y, end = self._all_layers(self._drawn_weights(), several[0], tuple(several[1:]), rows)
                return y.squeeze(1), tuple(t.squeeze(1) for t in end)

            in_dims = (1, None if mask is None else 1, *[1] * len(state))
            each: Any = torch.func.vmap(one, in_dims, 1, randomness="different")
            return each(x, mask, *state)

        return self._in_any_form(input, hx, run)

    def n_points(self, input: Any, *inputs: Any, **kwargs: Any) -> int:
        """How many sequences there are among the inputs."""
        if isinstance(input, PackedSequence):
            return int(input.batch_sizes[0])
        return 1 if input.dim() == 2 else input.shape[0 if self.batch_first else 1]

    def _in_any_form(self, input: Operand, hx: Any, run: Callable) -> Any:
        """Packed, padded, one sequence alone, the batch first or second: all as (time, n, features), and back."""
        packed, mask = isinstance(input, PackedSequence), cast(Any, None)
        if packed:
            x, lengths = pad_packed_sequence(PackedSequence(input.data, input.batch_sizes))
            mask = (torch.arange(x.shape[0]).unsqueeze(1) < lengths).unsqueeze(-1).to(x.device)
        else:
            self._refuse_misfit(input)
            x = input.unsqueeze(1) if input.dim() == 2 else input.transpose(0, 1) if self.batch_first else input
        state = self._started(x, hx, alone=not packed and input.dim() == 2)
        if packed:
            state = tuple(_reordered(t, input.sorted_indices) for t in state)
        y, state = run(x, state, mask)
        if packed:
            data = y[mask.squeeze(-1)]  # time by time, the longest sequences first: as they are packed
            y = PackedSequence(data, input.batch_sizes, input.sorted_indices, input.unsorted_indices)
            state = tuple(_reordered(t, input.unsorted_indices) for t in state)
        elif input.dim() == 2:
            y, state = y.squeeze(1), tuple(t.squeeze(1) for t in state)
        elif self.batch_first:
            y = y.transpose(0, 1)
        return y, (state if self.kind == "LSTM" else state[0])

    def _refuse_misfit(self, input: Operand) -> None:
        if input.dim() not in (2, 3) or input.shape[-1] != self.input_size:
            raise ValueError(
                f"{type(self).__name__}: an input is (time, n, {self.input_size}), with batch_first (n, time, "
                f"{self.input_size}), or one sequence (time, {self.input_size}); not {tuple(input.shape)}"
            )

    def _started(self, x: Operand, hx: Any, alone: bool) -> State:
        """The state at the start, each part of shape (layers·directions, n, hidden)."""
        if hx is None:
            several = self.num_layers * (2 if self.bidirectional else 1)
            sizes = [self.proj_size or self.hidden_size, self.hidden_size][: 2 if self.kind == "LSTM" else 1]
            return tuple(x.new_zeros(several, x.shape[1], size) for size in sizes)
        state = hx if self.kind == "LSTM" else (hx,)
        return tuple(t.unsqueeze(1) for t in state) if alone else tuple(state)

    def _all_layers(self, weights: Weights, x: Operand, state: State, mask: Tensor | None) -> tuple[Operand, State]:
        """Layer upon layer. x: shape (time, n, features); mask: of the steps that there are. shape (time, n, 1)"""
        directions = ("", "_reverse")[: 2 if self.bidirectional else 1]
        ends: list[State] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = F.dropout(x, self.dropout, self.training)
            outputs = []
            for suffix in directions:
                start = tuple(t[len(ends)] for t in state)
                output, end = self._one_way(weights, f"_l{layer}{suffix}", x, start, mask)
                outputs.append(output)
                ends.append(end)
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        return x, tuple(torch.stack(parts) for parts in zip(*ends, strict=True))

    def _one_way(
        self, weights: Weights, place: str, x: Operand, state: State, mask: Tensor | None
    ) -> tuple[Operand, State]:
        """One layer, from the first step to the last or back. Sequences that have ended keep their state."""
        from_input = F.linear(x, weights[f"weight_ih{place}"], weights.get(f"bias_ih{place}"))
        steps = range(x.shape[0])
        outputs: list[Operand] = [None] * len(steps)
        for t in reversed(steps) if place.endswith("_reverse") else steps:
            new = self._step(from_input[t], state, weights, place)
            if mask is not None:
                new = tuple(torch.where(mask[t], a, b) for a, b in zip(new, state, strict=True))
            state, outputs[t] = new, new[0]
        return torch.stack(outputs), state


def _drawn(value: Any) -> Any:
    """A draw of Moments, also of those that are packed or in a tuple."""
    if isinstance(value, PackedSequence):
        return PackedSequence(_drawn(value.data), value.batch_sizes, value.sorted_indices, value.unsorted_indices)
    return tuple(_drawn(part) for part in value) if isinstance(value, tuple) else point_value(value)


def _reordered(t: Operand, order: Tensor | None) -> Operand:
    return t if order is None else t.index_select(1, order)


class GaussianRNN(_GaussianSequenceLayer, nn.RNN):
    """`nn.RNN` with Gaussian weights."""

    kind = "RNN"


class GaussianLSTM(_GaussianSequenceLayer, nn.LSTM):
    """`nn.LSTM` with Gaussian weights.

    Example:
        >>> import torch
        >>> from bedl.nn import GaussianLSTM
        >>> y, (hidden, cell) = GaussianLSTM(3, 5, num_layers=2, batch_first=True)(torch.zeros(4, 7, 3))
        >>> y.loc.shape, hidden.variance.shape
        (torch.Size([4, 7, 5]), torch.Size([2, 4, 5]))
    """

    kind = "LSTM"


class GaussianGRU(_GaussianSequenceLayer, nn.GRU):
    """`nn.GRU` with Gaussian weights."""

    kind = "GRU"


class _GaussianCell(_Recurrent):
    """nn.RNNCell, nn.LSTMCell or nn.GRUCell with Gaussian weights."""

    gaussian_parameters = ("weight_ih", "weight_hh")

    weight_ih: Any = property(lambda self: self.read("weight_ih"))
    weight_hh: Any = property(lambda self: self.read("weight_hh"))

    def forward(self, input: Operand, hx: Any = None) -> Any:
        patch_libraries()
        if self.is_sampling:
            return super().forward(_drawn(input), _drawn(hx))
        return self.forward_with_draw(input, hx)

    def forward_with_draw(self, input: Operand, hx: Any = None) -> Any:
        return self._in_any_form(input, hx, lambda x, state: self._next(self._weights(), x, state))

    def sample(self, input: Operand, hx: Any = None) -> Any:
        def run(x: Operand, state: State) -> State:
            def one(*point: Tensor) -> State:
                x, *state = (t.unsqueeze(0) for t in point)
                return tuple(t.squeeze(0) for t in self._next(self._drawn_weights(), x, tuple(state)))

            return torch.func.vmap(one, randomness="different")(x, *state)

        return self._in_any_form(input, hx, run)

    def n_points(self, input: Any, *inputs: Any, **kwargs: Any) -> int:
        return 1 if input.dim() == 1 else input.shape[0]

    def _next(self, weights: Weights, x: Operand, state: State) -> State:
        return self._step(F.linear(x, weights["weight_ih"], weights.get("bias_ih")), state, weights, "")

    def _in_any_form(self, input: Operand, hx: Any, run: Callable) -> Any:
        """A batch, or one data point alone."""
        alone = input.dim() == 1
        x = input.unsqueeze(0) if alone else input
        if hx is None:
            state: State = (x.new_zeros(x.shape[0], self.hidden_size),) * (2 if self.kind == "LSTM" else 1)
        else:
            state = hx if self.kind == "LSTM" else (hx,)
            state = tuple(t.unsqueeze(0) for t in state) if alone else tuple(state)
        state = run(x, state)
        state = tuple(t.squeeze(0) for t in state) if alone else state
        return state if self.kind == "LSTM" else state[0]


class GaussianRNNCell(_GaussianCell, nn.RNNCell):
    """`nn.RNNCell` with Gaussian weights."""

    kind = "RNN"


class GaussianLSTMCell(_GaussianCell, nn.LSTMCell):
    """`nn.LSTMCell` with Gaussian weights."""

    kind = "LSTM"


class GaussianGRUCell(_GaussianCell, nn.GRUCell):
    """`nn.GRUCell` with Gaussian weights."""

    kind = "GRU"
