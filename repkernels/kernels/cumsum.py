"""Cumulative sums on a GPU (SPEC.md, "cumsum"): a scan of every block of 1024, then what came before it.

Every element carries its prefix and the total of its group; to join two groups, the right one adds the left one's
total. A neighbour's total is what integers of the bits, whose sum has no order, leave of the pair's sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import minus_zero
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv, next_power_of_2
from repkernels.kernels.terms import along, at_columns

BLOCK = 1024
# Fewer columns than this are cut into blocks that run at once.
BUSY = 256


@triton.jit
def scan(v, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr):
    """(prefixes, totals) of v (ROWS, COLS) along its rows; the totals stand in every row."""
    INTEGER: tl.constexpr = tl.int64 if WIDE == tl.float64 else tl.int32
    total = v
    right = tl.arange(0, 2)[None, :, None, None] == 1
    for i in tl.static_range(ROWS.bit_length() - 1):
        v = tl.reshape(v, (ROWS >> (i + 1), 2, 1 << i, COLS))
        total = tl.reshape(total, (ROWS >> (i + 1), 2, 1 << i, COLS))
        bits = total.to(INTEGER, bitcast=True)
        other = (tl.sum(bits, 1, keep_dims=True) - bits).to(WIDE, bitcast=True)
        v = tl.reshape(tl.where(right, other + v, v), (ROWS, COLS))
        total = tl.reshape(other + total, (ROWS, COLS))
    return v, total


@triton.jit
def cumsum_kernel(
    x, out, carries, R, N, N2, x_r, x_n1, x_n2, out_r, out_n1, out_n2, ROWS: tl.constexpr, COLS: tl.constexpr,
    MODE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """COLS columns. MODE: all blocks in order ("whole"), or one block: its total to carries[block, n] ("totals"),
    or its results, given its carry ("rest")."""
    tiles = tl.cdiv(N, COLS)
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    block = (tl.program_id(0) // tiles).to(tl.int64)
    lanes = tl.arange(0, ROWS)
    at = x + at_columns(cols, N2, x_n1, x_n2)[None, :]
    to = out + at_columns(cols, N2, out_n1, out_n2)[None, :]
    carry = tl.broadcast_to(minus_zero(WIDE), (ROWS, COLS))
    first, end = block * ROWS, tl.minimum((block + 1) * ROWS, R)
    if MODE == "whole":
        end = end * 0 + R
    if MODE == "rest":
        carry += tl.load(carries + block * N + cols, mask=cols < N, other=0.0)[None, :]
    for start in range(first, end, ROWS):
        rows = start + lanes
        mask = (rows < R)[:, None] & (cols < N)[None, :]
        v = tl.load(at + (rows * x_r)[:, None], mask=mask, other=0.0).to(WIDE)
        v, total = scan(v, ROWS, COLS, WIDE)
        if MODE == "totals":
            tl.store(carries + block * N + cols[None, :] + lanes[:, None] * 0, total, mask=(lanes == 0)[:, None] & mask)
        else:
            tl.store(to + (rows * out_r)[:, None], (carry + v).to(out.dtype.element_ty), mask=mask)
            carry += total


@triton.jit
def carries_kernel(carries, B, N, COLS: tl.constexpr, WIDE: tl.constexpr):
    """carries[b, n], a block's total, becomes the sum of the totals before it, in order; -0 for the first block."""
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    carry = tl.broadcast_to(minus_zero(WIDE), (COLS,))
    at = carries + cols
    for _ in range(B):
        total = tl.load(at, mask=cols < N, other=0.0)
        tl.store(at, carry, mask=cols < N)
        carry += total
        at += N


def cumsum(x: Tensor, out: Tensor, reverse: bool) -> None:
    """Writes to `out` the cumulative sums of x along its rows, both (1, R, N1, N2), any strides.

    reverse: from the last row to the first.
    """
    rows, columns = x.shape[1], x.shape[2] * x.shape[3]
    wide = torch.float64 if torch.float64 in (x.dtype, out.dtype) else torch.float32
    near = along(x)
    lanes = min(BLOCK, next_power_of_2(rows))
    cols = min(next_power_of_2(columns), max(1 if near else 16, 1024 // lanes))
    blocks, tiles = cdiv(rows, lanes), cdiv(columns, cols)
    strides = [*x.stride()[1:], *out.stride()[1:]]
    bases = [x, out]
    if reverse:
        # Triton takes a pointer and a stride, and no tensor of torch has a negative one.
        bases = [t.as_strided((1,), (1,), t.storage_offset() + (rows - 1) * t.stride(1)) for t in bases]
        strides[0], strides[3] = -strides[0], -strides[3]
    constants = {"ROWS": lanes, "COLS": cols, "WIDE": tl.float64 if wide == torch.float64 else tl.float32}
    warps = 1 if near else 8
    apart = blocks > 1 and tiles < BUSY
    carries = torch.empty((blocks, columns) if apart else (1,), dtype=wide, device=x.device)

    def start(mode: str, programs: int) -> None:
        launch(
            cumsum_kernel, (programs,), *bases, carries, rows, columns, x.shape[3], *strides,
            MODE=mode, num_warps=warps, **constants,
        )  # fmt: skip

    if not apart:
        start("whole", tiles)
        return
    start("totals", tiles * blocks)
    launch(carries_kernel, (cdiv(columns, 32),), carries, blocks, columns, COLS=32, WIDE=constants["WIDE"])
    start("rest", tiles * blocks)
