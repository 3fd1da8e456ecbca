"""SUM on a GPU (SPEC.md, "Sums"): blocks of 65536 rows, each added on 1024 lanes that are then halved.

The lanes' high bits lie in registers, so the first halvings move nothing between threads. Where one program per block
would leave most of the GPU idle, programs take some lanes each and store them: the SUM of 1024 stored lanes is their
halving.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import BLOCK, LANES, minus_zero, tree_sum_rows
from repkernels.kernels.launch import launch

# As many programs as keep a large GPU busy; no bit depends on it.
BUSY = 128


@triton.jit
def sum_kernel(
    x, out, R, N, stride_r, stride_n, SIZE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """out[block, n], contiguous: the SUM of a block of SIZE rows, for COLS columns on ROWS lanes."""
    tiles = tl.cdiv(N, COLS)
    top = (tl.program_id(0) // tiles).to(tl.int64) * SIZE
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    total = lanes_of(x, R, N, stride_r, stride_n, top, cols, tl.arange(0, ROWS), SIZE, ROWS, ROWS, COLS, 1, WIDE)
    result = tree_sum_rows(total, ROWS, COLS).to(out.dtype.element_ty)
    tl.store(out + (top // SIZE) * N + cols, result, mask=cols < N)


@triton.jit
def lanes_kernel(
    x, out, R, N, stride_r, stride_n, SIZE: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out[LANES * block + lane, n], contiguous: ROWS of the LANES lanes of a block of SIZE rows; -0 where no row is."""
    tiles = tl.cdiv(N, COLS)
    groups = LANES // ROWS
    block = (tl.program_id(0) // (tiles * groups)).to(tl.int64)
    lanes = (tl.program_id(0) // tiles % groups) * ROWS + tl.arange(0, ROWS)
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    total = lanes_of(x, R, N, stride_r, stride_n, block * SIZE, cols, lanes, SIZE, LANES, ROWS, COLS, 8, WIDE)
    at = out + (block * LANES + lanes)[:, None] * N + cols[None, :]
    tl.store(at, total, mask=(cols < N)[None, :])


@triton.jit
def lanes_of(
    x, R, N, stride_r, stride_n, top, cols, lanes, SIZE: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, UNROLL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """(ROWS, COLS): rows top + lane, top + lane + STEP, ... of the block that starts at `top`, added in this order."""
    count = tl.minimum(R - top, SIZE).to(tl.int32)
    at = x + top * stride_r + cols.to(tl.int64)[None, :] * stride_n
    total = tl.broadcast_to(minus_zero(WIDE), (ROWS, COLS))
    nothing = minus_zero(x.dtype.element_ty)
    for start in tl.range(0, count, STEP, loop_unroll_factor=UNROLL):
        rows = start + lanes
        mask = (rows < count)[:, None] & (cols < N)[None, :]
        total += tl.load(at + rows.to(tl.int64)[:, None] * stride_r, mask=mask, other=nothing).to(WIDE)
    return total


def sum_rows(x: Tensor) -> Tensor:
    """The SUM of every column of x (R, N), any strides -> (N,) in x's dtype; half types are rounded once."""
    if x.numel() == 0:
        return x.new_zeros(x.shape[1])
    return _sum_blocks(x, x.dtype, BLOCK.value)


def _sum_blocks(x: Tensor, dtype: torch.dtype, size: int) -> Tensor:
    """SUM over blocks of `size` rows, then of the blocks' sums by the general rule."""
    (rows, columns), wide = x.shape, torch.float64 if x.dtype == torch.float64 else torch.float32
    blocks = triton.cdiv(rows, size)
    lanes = min(LANES.value, triton.next_power_of_2(rows))
    across = x.stride(1) <= x.stride(0)
    widest = max(128 // wide.itemsize if across else 4, min(1024, 8192 // lanes))
    cols = min(triton.next_power_of_2(columns), widest)
    # 32 bytes of a row are read at once in any case.
    while across and cols > 8 and blocks * triton.cdiv(columns, cols) < BUSY:
        cols //= 2
    tiles = triton.cdiv(columns, cols)
    constants = {"COLS": cols, "WIDE": tl.float64 if wide == torch.float64 else tl.float32}
    arguments = (rows, columns, x.stride(0), x.stride(1))
    if rows > LANES.value and size > LANES.value and 4 * blocks * tiles < BUSY:
        stored = torch.empty((blocks * lanes, columns), dtype=wide, device=x.device)
        part = min(128, max(32, 1024 // cols))
        launch(
            lanes_kernel, (tiles * (lanes // part) * blocks,), x, stored, *arguments,
            SIZE=size, LANES=lanes, ROWS=part, num_warps=4, **constants,
        )  # fmt: skip
        return _sum_blocks(stored, dtype, lanes)
    out = torch.empty((blocks, columns), dtype=dtype if blocks == 1 else wide, device=x.device)
    launch(
        sum_kernel, (tiles * blocks,), x, out, *arguments,
        SIZE=size, ROWS=lanes, num_warps=16 if lanes * cols >= 16384 else 4, **constants,
    )  # fmt: skip
    return out[0] if blocks == 1 else _sum_blocks(out, dtype, BLOCK.value)
