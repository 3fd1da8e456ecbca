"""One step of recurrent layers on the CPU (SPEC.md, "Recurrent layers"), element by element, in fp32.

Half operands are widened before and results rounded after, by torch, which is exact and one rounding.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.rounded.exponential import sigmoid, tanh
from repkernels.cpu.spread import spread

ONE, ZERO = np.float32(1), np.float32(0)


def _array(x: Tensor) -> np.ndarray:
    """The elements of a contiguous tensor as fp32, row-major; fp32 ones where they lie."""
    return x.detach().float().reshape(-1).numpy()


def _run(loop: Any, elements: int, size: int, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    """loop(start, stop, size, *inputs, *outputs) over all elements; outputs of half types are rounded afterwards."""
    wide = [x if x.dtype == torch.float32 else torch.empty_like(x, dtype=torch.float32) for x in outputs]
    arrays = [_array(x) for x in inputs] + [x.reshape(-1).numpy() for x in wide]
    spread(loop, elements, 16 * elements, size, *arrays)
    for x, w in zip(outputs, wide, strict=True):
        if w is not x:
            x.copy_(w)


def forward(mode: str, p: Tensor, q: Tensor, state: Tensor, acts: Tensor, h: Tensor, c: Tensor) -> None:
    """A step of b sequences: p and q (b, G) the contributions of input and state, G = 4H, 3H, H by mode.

    lstm: state (b, H) the cell state before, c that after, acts (b, 4H) fp32. gru: state (b, H) the hidden state,
    acts (b, 4H) fp32. tanh, relu: neither. h (b, H): the hidden state after. Contiguous; acts, h, c are written.
    """
    n, size = h.numel(), h.shape[-1]
    if mode == "lstm":
        _run(_lstm, n, size, (p, q, state), (acts, c, h))
    elif mode == "gru":
        _run(_gru, n, size, (p, q, state), (acts, h))
    else:
        _run(_tanh if mode == "tanh" else _relu, n, size, (p, q), (h,))


def backward(
    mode: str, g: Tensor, carried: Tensor, share: Tensor, acts: Tensor, state: Tensor, dp: Tensor, dq: Tensor
) -> None:
    """The gradients dp and dq (b, G) of p and q, from that of h: RN(g + carried), or g where carried is empty.

    lstm: state (b, H) is the cell state before the step, share (b, H) fp32 the gradient of the one after, which becomes
    that of the one before; dq is not written, being dp. gru: state is the hidden state before, share what later steps
    add to carried, which becomes what this one adds. tanh, relu: state is the hidden state after; dq is not written.
    """
    n, size = g.numel(), g.shape[-1]
    total = g if carried.numel() == 0 else _total(g, carried, share if mode == "gru" else None)
    if mode == "lstm":
        _run(_lstm_gradient, n, size, (total, acts, state), (share, dp))
    elif mode == "gru":
        _run(_gru_gradient, n, size, (total, acts, state), (share, dp, dq))
    else:
        _run(_tanh_gradient if mode == "tanh" else _relu_gradient, n, size, (total, state), (dp,))


def _total(g: Tensor, carried: Tensor, share: Tensor | None) -> Tensor:
    out = torch.empty_like(g, dtype=torch.float32)
    inputs = (g, carried, carried if share is None else share)
    _run(_add if share is None else _add_three, g.numel(), g.shape[-1], inputs, (out,))
    return out


def summed(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = RN(a + b), rounded to its type; contiguous, of one shape."""
    _run(_add, a.numel(), a.shape[-1], (a, b, b), (out,))


@kernel
def _add(start, stop, size, a, b, c, out):
    state = keep_subnormals()
    for i in range(start, stop):
        out[i] = a[i] + b[i]
    restore(state)


@kernel
def _add_three(start, stop, size, a, b, c, out):
    state = keep_subnormals()
    for i in range(start, stop):
        out[i] = a[i] + (c[i] + b[i])
    restore(state)


@kernel
def _lstm(start, stop, size, p, q, cells, acts, c, h):
    state = keep_subnormals()
    for e in range(start, stop):
        at = (e // size) * 4 * size + e % size
        i = sigmoid(p[at] + q[at])
        f = sigmoid(p[at + size] + q[at + size])
        g = tanh(p[at + 2 * size] + q[at + 2 * size])
        o = sigmoid(p[at + 3 * size] + q[at + 3 * size])
        cell = f * cells[e] + i * g
        acts[at] = i
        acts[at + size] = f
        acts[at + 2 * size] = g
        acts[at + 3 * size] = o
        c[e] = cell
        h[e] = o * tanh(cell)
    restore(state)


@kernel
def _lstm_gradient(start, stop, size, total, acts, cells, share, d):
    state = keep_subnormals()
    for e in range(start, stop):
        at = (e // size) * 4 * size + e % size
        i, f, g, o = acts[at], acts[at + size], acts[at + 2 * size], acts[at + 3 * size]
        t = tanh(f * cells[e] + i * g)
        dh = total[e]
        dc = share[e] + (dh * o) * (ONE - t * t)
        d[at] = (dc * g) * (i * (ONE - i))
        d[at + size] = (dc * cells[e]) * (f * (ONE - f))
        d[at + 2 * size] = (dc * i) * (ONE - g * g)
        d[at + 3 * size] = (dh * t) * (o * (ONE - o))
        share[e] = dc * f
    restore(state)


@kernel
def _gru(start, stop, size, p, q, hidden, acts, h):
    state = keep_subnormals()
    for e in range(start, stop):
        row, j = e // size, e % size
        at = row * 3 * size + j
        r = sigmoid(p[at] + q[at])
        z = sigmoid(p[at + size] + q[at + size])
        m = q[at + 2 * size]
        n = tanh(p[at + 2 * size] + r * m)
        to = row * 4 * size + j
        acts[to] = r
        acts[to + size] = z
        acts[to + 2 * size] = n
        acts[to + 3 * size] = m
        h[e] = n + z * (hidden[e] - n)
    restore(state)


@kernel
def _gru_gradient(start, stop, size, total, acts, hidden, share, dp, dq):
    state = keep_subnormals()
    for e in range(start, stop):
        row, j = e // size, e % size
        at, to = row * 4 * size + j, row * 3 * size + j
        r, z, n, m = acts[at], acts[at + size], acts[at + 2 * size], acts[at + 3 * size]
        dh = total[e]
        dn = (dh * (ONE - z)) * (ONE - n * n)
        dr = (dn * m) * (r * (ONE - r))
        dz = (dh * (hidden[e] - n)) * (z * (ONE - z))
        dp[to] = dr
        dq[to] = dr
        dp[to + size] = dz
        dq[to + size] = dz
        dp[to + 2 * size] = dn
        dq[to + 2 * size] = dn * r
        share[e] = dh * z
    restore(state)


@kernel
def _tanh(start, stop, size, p, q, h):
    state = keep_subnormals()
    for i in range(start, stop):
        h[i] = tanh(p[i] + q[i])
    restore(state)


@kernel
def _relu(start, stop, size, p, q, h):
    state = keep_subnormals()
    for i in range(start, stop):
        x = p[i] + q[i]
        h[i] = ZERO if x <= ZERO else x
    restore(state)


@kernel
def _tanh_gradient(start, stop, size, total, h, d):
    state = keep_subnormals()
    for i in range(start, stop):
        d[i] = total[i] * (ONE - h[i] * h[i])
    restore(state)


@kernel
def _relu_gradient(start, stop, size, total, h, d):
    state = keep_subnormals()
    for i in range(start, stop):
        d[i] = ZERO if h[i] <= ZERO else total[i]
    restore(state)
