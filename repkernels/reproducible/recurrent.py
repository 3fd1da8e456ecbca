"""Recurrent layers and cells as Python code calls them: torch._VF's arguments, this library's `recurrent`."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from repkernels.ops.recurrent import recurrent

Weights = Sequence[Tensor]


def _layers(flat: Weights, biases: bool, count: int) -> list[list[Tensor | None]]:
    """torch's flat list as w_ih, w_hh, b_ih, b_hh, w_hr of each layer and direction."""
    each = len(flat) // count
    found: list[list[Tensor | None]] = []
    for i in range(count):
        own: list[Tensor | None] = list(flat[i * each : (i + 1) * each])
        projection = own.pop() if each in (3, 5) else None
        found.append([*own, *([] if biases else [None, None]), projection])
    return found


def _layer(mode: str) -> Callable[..., Any]:
    def call(input: Tensor, *args: Any) -> Any:
        if isinstance(args[0], Tensor) and isinstance(args[1], (Tensor, tuple, list)) and _is_list(args[2]):
            return packed(input, *args)
        hx, flat, biases, layers, dropout, train, bidirectional, batch_first = args
        x = input.transpose(0, 1) if batch_first else input
        steps, batch = x.shape[:2]
        options = (hx, flat, biases, layers, dropout, train, bidirectional)
        y, *states = run(x.reshape(steps * batch, x.shape[2]), [batch] * steps, *options)
        y = y.view(steps, batch, y.shape[1])
        return y.transpose(0, 1) if batch_first else y, *states

    def packed(data: Tensor, sizes: Tensor, *args: Any) -> Any:
        return run(data, sizes.tolist(), *args)

    def run(
        rows: Tensor,
        sizes: list[int],
        hx: Any,
        flat: Weights,
        biases: bool,
        layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> tuple[Tensor, ...]:
        h, c = hx if isinstance(hx, (tuple, list)) else (hx, None)
        weights = _layers(flat, biases, layers * (2 if bidirectional else 1))
        results = recurrent(rows, sizes, h, c, weights, mode, bidirectional, dropout, train)
        return tuple(t for t in results if t is not None)

    return call


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(v, Tensor) for v in value)


def _cell(mode: str) -> Callable[..., Any]:
    def call(
        input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Any:
        batched = input.ndim == 2
        states = [t if batched else t.unsqueeze(0) for t in (hx if isinstance(hx, (tuple, list)) else (hx,))]
        x = input if batched else input.unsqueeze(0)
        cell = states[1].unsqueeze(0) if mode == "lstm" else None
        weights = [[w_ih, w_hh, b_ih, b_hh, None]]
        _, h, c = recurrent(x, [len(x)], states[0].unsqueeze(0), cell, weights, mode)
        results = [t[0] if batched else t[0, 0] for t in (h, c) if t is not None]
        return results[0] if mode != "lstm" else tuple(results)

    return call


_MODES = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _layer(mode) for name, mode in _MODES.items()},
    **{f"{name}_cell": _cell(mode) for name, mode in _MODES.items()},
}
