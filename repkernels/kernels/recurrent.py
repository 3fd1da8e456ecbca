"""One step of recurrent layers on a GPU (SPEC.md, "Recurrent layers"): one kernel for each direction and kind."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.rounded.exponential import sigmoid, tanh
from repkernels.kernels.sizes import cdiv, next_power_of_2

SIZE = 256


@triton.jit
def place(size, SIZE: tl.constexpr):
    """This program's row, its elements of a state (b, size), and which of them there are."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    return row, row * size + j, j < size


@triton.jit
def lstm_kernel(p, q, cells, acts, c, h, size, SIZE: tl.constexpr):
    row, e, mask = place(size, SIZE)
    at = e + 3 * size * row
    i = sigmoid(gate(p, q, at, mask))
    f = sigmoid(gate(p, q, at + size, mask))
    g = tanh(gate(p, q, at + 2 * size, mask))
    o = sigmoid(gate(p, q, at + 3 * size, mask))
    before = tl.load(cells + e, mask=mask, other=0.0).to(tl.float32)
    cell = f * before + i * g
    tl.store(acts + at, i, mask=mask)
    tl.store(acts + at + size, f, mask=mask)
    tl.store(acts + at + 2 * size, g, mask=mask)
    tl.store(acts + at + 3 * size, o, mask=mask)
    tl.store(c + e, cell.to(c.dtype.element_ty), mask=mask)
    tl.store(h + e, (o * tanh(cell)).to(h.dtype.element_ty), mask=mask)


@triton.jit
def gate(p, q, at, mask):
    """The sum of both contributions."""
    x = tl.load(p + at, mask=mask, other=0.0).to(tl.float32)
    return x + tl.load(q + at, mask=mask, other=0.0).to(tl.float32)


@triton.jit
def total_of(g, carried, share, e, mask, CARRIED: tl.constexpr, SHARED: tl.constexpr):
    """The gradient of the hidden state: what came from outside, and what later steps left."""
    x = tl.load(g + e, mask=mask, other=0.0).to(tl.float32)
    if CARRIED:
        later = tl.load(carried + e, mask=mask, other=0.0).to(tl.float32)
        if SHARED:
            later = tl.load(share + e, mask=mask, other=0.0) + later
        x = x + later
    return x


@triton.jit
def lstm_gradient_kernel(g, carried, share, acts, cells, d, size, CARRIED: tl.constexpr, SIZE: tl.constexpr):
    row, e, mask = place(size, SIZE)
    at = e + 3 * size * row
    i = tl.load(acts + at, mask=mask, other=0.0)
    f = tl.load(acts + at + size, mask=mask, other=0.0)
    x = tl.load(acts + at + 2 * size, mask=mask, other=0.0)
    o = tl.load(acts + at + 3 * size, mask=mask, other=0.0)
    before = tl.load(cells + e, mask=mask, other=0.0).to(tl.float32)
    dh = total_of(g, carried, share, e, mask, CARRIED, False)
    t = tanh(f * before + i * x)
    dc = tl.load(share + e, mask=mask, other=0.0) + (dh * o) * (1.0 - t * t)
    kind = d.dtype.element_ty
    tl.store(d + at, ((dc * x) * (i * (1.0 - i))).to(kind), mask=mask)
    tl.store(d + at + size, ((dc * before) * (f * (1.0 - f))).to(kind), mask=mask)
    tl.store(d + at + 2 * size, ((dc * i) * (1.0 - x * x)).to(kind), mask=mask)
    tl.store(d + at + 3 * size, ((dh * t) * (o * (1.0 - o))).to(kind), mask=mask)
    tl.store(share + e, dc * f, mask=mask)


@triton.jit
def gru_kernel(p, q, hidden, acts, h, size, SIZE: tl.constexpr):
    row, e, mask = place(size, SIZE)
    at = e + 2 * size * row
    r = sigmoid(gate(p, q, at, mask))
    z = sigmoid(gate(p, q, at + size, mask))
    m = tl.load(q + at + 2 * size, mask=mask, other=0.0).to(tl.float32)
    x = tanh(tl.load(p + at + 2 * size, mask=mask, other=0.0).to(tl.float32) + r * m)
    to = e + 3 * size * row
    tl.store(acts + to, r, mask=mask)
    tl.store(acts + to + size, z, mask=mask)
    tl.store(acts + to + 2 * size, x, mask=mask)
    tl.store(acts + to + 3 * size, m, mask=mask)
    before = tl.load(hidden + e, mask=mask, other=0.0).to(tl.float32)
    tl.store(h + e, (x + z * (before - x)).to(h.dtype.element_ty), mask=mask)


@triton.jit
def gru_gradient_kernel(g, carried, share, acts, hidden, dp, dq, size, CARRIED: tl.constexpr, SIZE: tl.constexpr):
    row, e, mask = place(size, SIZE)
    at, to = e + 3 * size * row, e + 2 * size * row
    r = tl.load(acts + at, mask=mask, other=0.0)
    z = tl.load(acts + at + size, mask=mask, other=0.0)
    x = tl.load(acts + at + 2 * size, mask=mask, other=0.0)
    m = tl.load(acts + at + 3 * size, mask=mask, other=0.0)
    before = tl.load(hidden + e, mask=mask, other=0.0).to(tl.float32)
    dh = total_of(g, carried, share, e, mask, CARRIED, True)
    dn = (dh * (1.0 - z)) * (1.0 - x * x)
    dr = (dn * m) * (r * (1.0 - r))
    dz = (dh * (before - x)) * (z * (1.0 - z))
    kind = dp.dtype.element_ty
    tl.store(dp + to, dr.to(kind), mask=mask)
    tl.store(dq + to, dr.to(kind), mask=mask)
    tl.store(dp + to + size, dz.to(kind), mask=mask)
    tl.store(dq + to + size, dz.to(kind), mask=mask)
    tl.store(dp + to + 2 * size, dn.to(kind), mask=mask)
    tl.store(dq + to + 2 * size, (dn * r).to(kind), mask=mask)
    tl.store(share + e, dh * z, mask=mask)


@triton.jit
def plain_kernel(p, q, h, n, TANH: tl.constexpr, SIZE: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = e < n
    x = gate(p, q, e, mask)
    if TANH:
        y = tanh(x)
    else:
        y = tl.where(x <= 0.0, 0.0, x)
    tl.store(h + e, y.to(h.dtype.element_ty), mask=mask)


@triton.jit
def plain_gradient_kernel(g, carried, h, d, n, TANH: tl.constexpr, CARRIED: tl.constexpr, SIZE: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = e < n
    dh = total_of(g, carried, g, e, mask, CARRIED, False)
    y = tl.load(h + e, mask=mask, other=0.0).to(tl.float32)
    if TANH:
        x = dh * (1.0 - y * y)
    else:
        x = tl.where(y <= 0.0, 0.0, dh)
    tl.store(d + e, x.to(d.dtype.element_ty), mask=mask)


@triton.jit
def sum_kernel(a, b, out, n, SIZE: tl.constexpr):
    e = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = e < n
    x = gate(a, b, e, mask)
    tl.store(out + e, x.to(out.dtype.element_ty), mask=mask)


def forward(mode: str, p: Tensor, q: Tensor, state: Tensor, acts: Tensor, h: Tensor, c: Tensor) -> None:
    """A step of b sequences, as cpu/recurrent.py says."""
    n, (grid, block) = h.numel(), _rows(h)
    if mode == "lstm":
        launch(lstm_kernel, grid, p, q, state, acts, c, h, h.shape[1], SIZE=block)
    elif mode == "gru":
        launch(gru_kernel, grid, p, q, state, acts, h, h.shape[1], SIZE=block)
    else:
        launch(plain_kernel, _grid(n), p, q, h, n, TANH=mode == "tanh", SIZE=SIZE)


def backward(
    mode: str, g: Tensor, carried: Tensor, share: Tensor, acts: Tensor, state: Tensor, dp: Tensor, dq: Tensor
) -> None:
    """The gradients of a step, as cpu/recurrent.py says."""
    n, with_carried, (grid, block) = g.numel(), carried.numel() != 0, _rows(g)
    if not with_carried:
        carried = g
    tensors = (g, carried, share, acts, state, dp)
    options: dict[str, Any] = {"CARRIED": with_carried, "SIZE": block}
    if mode == "lstm":
        launch(lstm_gradient_kernel, grid, *tensors, g.shape[1], **options)
    elif mode == "gru":
        launch(gru_gradient_kernel, grid, *tensors, dq, g.shape[1], **options)
    else:
        options = {"TANH": mode == "tanh", "CARRIED": with_carried, "SIZE": SIZE}
        launch(plain_gradient_kernel, _grid(n), g, carried, state, dp, n, **options)


def summed(a: Tensor, b: Tensor, out: Tensor) -> None:
    """out = RN(a + b), rounded to its type; contiguous, of one shape."""
    launch(sum_kernel, _grid(a.numel()), a, b, out, a.numel(), SIZE=SIZE)


def _rows(x: Tensor) -> tuple[tuple[int, int], int]:
    """A grid of rows and their pieces, since a division to find the row would cost more, and the pieces' size."""
    block = min(SIZE, max(32, next_power_of_2(x.shape[1])))
    return (len(x), cdiv(x.shape[1], block)), block


def _grid(n: int) -> tuple[int]:
    return (cdiv(n, SIZE),)
