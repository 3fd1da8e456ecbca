"""torch.nn's recurrent layers and cells with defined bits (SPEC.md, "Recurrent layers")."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from repkernels.contract import ContractLike
from repkernels.nn import init
from repkernels.ops.index_add import index_select
from repkernels.ops.recurrent import recurrent

_MODES = {"LSTM": "lstm", "GRU": "gru", "RNN_TANH": "tanh", "RNN_RELU": "relu"}


class _Initialised(torch.nn.Module):
    contract: ContractLike | None = None
    hidden_size: int

    def reset_parameters(self) -> None:
        """Draws each parameter from U(-bound, bound), bound = 1 / sqrt(hidden_size), a stream for each, in order."""
        bound = init.linear_bound(self.hidden_size)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)


class _Recurrent(_Initialised, torch.nn.RNNBase):
    """torch's arguments, attributes and state_dict; `contract` as for `nn.Linear`. Not for fp64.

    torch.compile takes it under `torch._dynamo.config.allow_rnn`, as it does torch's.
    """

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        if isinstance(input, PackedSequence):
            y, state = self._of_rows(input.data, input.batch_sizes, hx, input.sorted_indices, input.unsorted_indices)
            return PackedSequence(y, input.batch_sizes, input.sorted_indices, input.unsorted_indices), state
        if not isinstance(input, Tensor):
            raise TypeError(f"input: expected a Tensor or a PackedSequence, got {type(input).__name__}")
        if input.dim() not in (2, 3):
            raise ValueError(f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D instead")
        time, batched = 1 if self.batch_first and input.dim() == 3 else 0, input.dim() == 3
        if not batched:
            input = input.unsqueeze(1)
            hx = self._each(hx, lambda t: self._widened_state(t))
        elif hx is not None:
            for t in hx if isinstance(hx, tuple) else (hx,):
                if t.dim() != 3:
                    raise RuntimeError(f"For batched 3-D input, hx should also be 3-D but got {t.dim()}-D tensor")
        if input.shape[time] == 0:
            raise RuntimeError("input: expected a sequence of at least one step")
        self.check_input(input, None)
        x = input.transpose(0, 1) if time else input
        steps, batch = x.shape[:2]
        y, state = self._of_rows(x.reshape(steps * batch, x.shape[2]), [batch] * steps, hx, None, None)
        y = y.view(steps, batch, y.shape[1])
        if not batched:
            return y.squeeze(1), self._each(state, lambda t: t.squeeze(1))
        return (y.transpose(0, 1) if time else y), state

    def _of_rows(
        self, rows: Tensor, batch_sizes: Any, hx: Any, order: Tensor | None, back: Tensor | None
    ) -> tuple[Tensor, Any]:
        packed = isinstance(batch_sizes, Tensor)
        sizes: list[int] = batch_sizes.tolist() if packed else batch_sizes
        if packed:
            self.check_input(rows, batch_sizes)
        shapes = self._state_shapes(sizes[0])
        if hx is None:
            states = [rows.new_zeros(shape) for shape in shapes]
        else:
            if isinstance(hx, tuple) != (self.mode == "LSTM"):
                raise TypeError("hx: expected (h_0, c_0) for an LSTM, one Tensor for the others")
            states = [_permuted(t, order) for t in (hx if isinstance(hx, tuple) else (hx,))]
            for name, t, shape in zip(("hidden[0]", "hidden[1]"), states, shapes, strict=False):
                self.check_hidden_size(t, shape, f"Expected {name} size {{}}, got {{}}")
        weights = [
            [getattr(self, name.format(suffix), None) for name in self._names]
            for layer in range(self.num_layers)
            for suffix in ([f"{layer}", f"{layer}_reverse"] if self.bidirectional else [f"{layer}"])
        ]
        y, *last = recurrent(
            rows, sizes, states[0], states[1] if len(states) > 1 else None, weights, _MODES[self.mode],
            self.bidirectional, self.dropout, self.training, self.contract,
        )  # fmt: skip
        states = [_permuted(t, back) for t in last if t is not None]
        return y, tuple(states) if self.mode == "LSTM" else states[0]

    _names = ("weight_ih_l{}", "weight_hh_l{}", "bias_ih_l{}", "bias_hh_l{}", "weight_hr_l{}")

    def _state_shapes(self, batch: int) -> list[tuple[int, int, int]]:
        count = self.num_layers * (2 if self.bidirectional else 1)
        shapes = [(count, batch, self.proj_size or self.hidden_size)]
        return [*shapes, (count, batch, self.hidden_size)] if self.mode == "LSTM" else shapes

    @staticmethod
    def _widened_state(t: Tensor) -> Tensor:
        if t.dim() != 2:
            raise RuntimeError(f"For unbatched 2-D input, hx should also be 2-D but got {t.dim()}-D tensor")
        return t.unsqueeze(1)

    @staticmethod
    def _each(state: Any, function: Any) -> Any:
        if isinstance(state, tuple):
            return tuple(function(t) for t in state)
        return None if state is None else function(state)


def _permuted(t: Tensor, order: Tensor | None) -> Tensor:
    return t if order is None else index_select(t, 1, order)


class RNN(_Recurrent, torch.nn.RNN):
    """torch.nn.RNN: h = tanh(RN(p + q)), or relu, as SPEC.md, "Recurrent layers"."""


class LSTM(_Recurrent, torch.nn.LSTM):
    """torch.nn.LSTM, with projections, as SPEC.md, "Recurrent layers"."""


class GRU(_Recurrent, torch.nn.GRU):
    """torch.nn.GRU, as SPEC.md, "Recurrent layers"."""


class _Cell(_Initialised, torch.nn.RNNCellBase):
    """One step of one layer, with torch's arguments, attributes and state_dict."""

    def _step(self, mode: str, input: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        for name, t in zip(("input", "hx", "cx"), (input, *states), strict=False):
            if t.dim() not in (1, 2):
                raise ValueError(f"{type(self).__name__}: Expected {name} to be 1D or 2D, got {t.dim()}D instead")
        batched = input.dim() == 2
        x, *found = (t if t.dim() == 2 else t.unsqueeze(0) for t in (input, *states))
        if x.shape[1] != self.input_size:
            raise RuntimeError(f"input has inconsistent input_size: got {x.shape[1]} expected {self.input_size}")
        for t in found:
            if t.shape != (len(x), self.hidden_size):
                raise RuntimeError(f"hx: expected shape {(len(x), self.hidden_size)}, got {tuple(t.shape)}")
        weights = [[self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh, None]]
        cell = found[1].unsqueeze(0) if mode == "lstm" else None
        h = found[0].unsqueeze(0)
        _, h, new_cell = recurrent(x, [len(x)], h, cell, weights, mode, contract=self.contract)
        results = [h[0]] if new_cell is None else [h[0], new_cell[0]]
        return tuple(t if batched else t[0] for t in results)

    def _zeros(self, input: Tensor) -> Tensor:
        return input.new_zeros(*input.shape[:-1], self.hidden_size)


class RNNCell(_Cell, torch.nn.RNNCell):
    """torch.nn.RNNCell, a step of `RNN`."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in ("tanh", "relu"):
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self._step(self.nonlinearity, input, self._zeros(input) if hx is None else hx)[0]


class LSTMCell(_Cell, torch.nn.LSTMCell):
    """torch.nn.LSTMCell, a step of `LSTM`."""

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._step("lstm", input, *((self._zeros(input), self._zeros(input)) if hx is None else hx))
        return h, c


class GRUCell(_Cell, torch.nn.GRUCell):
    """torch.nn.GRUCell, a step of `GRU`."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step("gru", input, self._zeros(input) if hx is None else hx)[0]
