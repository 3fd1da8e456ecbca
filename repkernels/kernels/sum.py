"""SUM on a GPU (SPEC.md, "Sums"): blocks of 65536 rows, each added on 1024 lanes that are then halved.

Columns that lie along memory get a warp each, which reads 1024 neighbours at once and then halves by itself; short
ones share it. Columns that are neighbours in memory are taken side by side. The lanes' high bits lie in registers, so
the first halvings move nothing between threads. Where one program per block would leave most of the GPU idle, programs
take some lanes each and store them: the SUM of 1024 stored lanes is their halving.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import BLOCK, LANES, minus_zero, tree_sum, tree_sum_rows
from repkernels.kernels.launch import launch
from repkernels.kernels.scalar import bits
from repkernels.kernels.sizes import cdiv, next_power_of_2
from repkernels.kernels.terms import along, at_columns, at_rows, finished, term

# As many programs as keep a large GPU busy; no bit depends on it.
BUSY = 128


@triton.jit
def sum_kernel(
    x, center, out, R, R2, N, N2, stride_r1, stride_r2, stride_n1, stride_n2, divisor, SIZE: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, TERM: tl.constexpr, FINISH: tl.constexpr, SPLIT: tl.constexpr,
    FAR: tl.constexpr, UNROLL: tl.constexpr, CENTERED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out[block, n], contiguous: the SUM of a block of SIZE rows, for COLS columns on ROWS lanes."""
    tiles = tl.cdiv(N, COLS)
    top = (tl.program_id(0) // tiles).to(tl.int64) * SIZE
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    c = centers_of(center, cols, N, COLS, CENTERED, WIDE)
    total = lanes_of(
        x, c, R, R2, N, N2, stride_r1, stride_r2, stride_n1, stride_n2, top, cols, tl.arange(0, ROWS),
        SIZE, ROWS, ROWS, COLS, TERM, SPLIT, FAR, UNROLL, WIDE,
    )  # fmt: skip
    if COLS == 1:
        # Triton 3.6 takes minutes to compile halvings of more than one dimension where one would do.
        total = tl.broadcast_to(tree_sum(tl.reshape(total, (ROWS,)), ROWS), (1,))
    else:
        total = tree_sum_rows(total, ROWS, COLS)
    result = finished(total, c, divisor, FINISH, WIDE)
    tl.store(out + (top // SIZE) * N + cols, result.to(out.dtype.element_ty), mask=cols < N)


@triton.jit
def lanes_kernel(
    x, center, out, R, R2, N, N2, stride_r1, stride_r2, stride_n1, stride_n2, SIZE: tl.constexpr,
    LANES: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, TERM: tl.constexpr, SPLIT: tl.constexpr,
    FAR: tl.constexpr, CENTERED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out[LANES * block + lane, n], contiguous: ROWS of the LANES lanes of a block of SIZE rows; -0 where no row is."""
    tiles = tl.cdiv(N, COLS)
    groups = LANES // ROWS
    block = (tl.program_id(0) // (tiles * groups)).to(tl.int64)
    lanes = (tl.program_id(0) // tiles % groups) * ROWS + tl.arange(0, ROWS)
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    c = centers_of(center, cols, N, COLS, CENTERED, WIDE)
    total = lanes_of(
        x, c, R, R2, N, N2, stride_r1, stride_r2, stride_n1, stride_n2, block * SIZE, cols, lanes,
        SIZE, LANES, ROWS, COLS, TERM, SPLIT, FAR, 8, WIDE,
    )  # fmt: skip
    at = out + (block * LANES + lanes)[:, None] * N + cols[None, :]
    tl.store(at, total, mask=(cols < N)[None, :])


@triton.jit
def centers_of(center, cols, N, COLS: tl.constexpr, CENTERED: tl.constexpr, WIDE: tl.constexpr):
    """(COLS,): each column's center, or 0."""
    if CENTERED:
        return tl.load(center + cols, mask=cols < N, other=0.0).to(WIDE)
    return tl.zeros((COLS,), WIDE)


@triton.jit
def lanes_of(
    x, c, R, R2, N, N2, stride_r1, stride_r2, stride_n1, stride_n2, top, cols, lanes, SIZE: tl.constexpr,
    STEP: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, TERM: tl.constexpr, SPLIT: tl.constexpr,
    FAR: tl.constexpr, UNROLL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """(ROWS, COLS): rows top + lane, top + lane + STEP, ... of the block that starts at `top`, added in this order."""
    count = tl.minimum(R - top, SIZE).to(tl.int32)
    at = x + at_columns(cols, N2, stride_n1, stride_n2)[None, :]
    if not SPLIT:
        at += top * stride_r2
    total = tl.broadcast_to(minus_zero(WIDE), (ROWS, COLS))
    nothing = minus_zero(x.dtype.element_ty)
    for start in tl.range(0, count, STEP, loop_unroll_factor=UNROLL):
        rows = start + lanes
        mask = (rows < count)[:, None] & (cols < N)[None, :]
        if SPLIT:
            # FAR: rows are counted in 64 bits, in which a division is slow.
            r = (top if FAR else top.to(tl.int32)) + rows
        else:
            r = rows
        v = tl.load(at + at_rows(r, R2, stride_r1, stride_r2, SPLIT)[:, None], mask=mask, other=nothing).to(WIDE)
        if TERM != "value":
            v = tl.where(mask, term(v, c[None, :], TERM, WIDE), minus_zero(WIDE))
        total += v
    return total


def sum_rows(x: Tensor) -> Tensor:
    """The SUM of every column of x (R, N), any strides -> (N,) in x's dtype; half types are rounded once."""
    return reduce(x[None, :, None], "value", None, "sum", 1, x.dtype)


def reduce(x: Tensor, term: str, center: Tensor | None, finish: str, divisor: float, dtype: torch.dtype) -> Tensor:
    """x (R1, R2, N1, N2), any strides -> (N1 * N2,) in `dtype`: the SUM of the terms of each column, finished.

    term, finish: names of terms.py. center: (N,) contiguous, for the terms and the finish that take one. divisor:
    rounded once to the format of the sum, fp64 if x or the result is fp64, fp32 otherwise.
    """
    wide = torch.float64 if torch.float64 in (x.dtype, dtype) else torch.float32
    columns = x.shape[2] * x.shape[3]
    if columns == 0:
        return x.new_empty(0, dtype=dtype)
    if x.numel() == 0:
        # No term: a column whose only term is +0 has the same sum.
        x, term = x.new_zeros((1, 1, 1, columns), dtype=wide), "value"
    return _reduce(x, term, center, finish, divisor, dtype, wide, BLOCK.value)


def _reduce(
    x: Tensor, term: str, center: Tensor | None, finish: str, divisor: float, dtype: torch.dtype, wide: torch.dtype,
    size: int,
) -> Tensor:  # fmt: skip
    """SUM over blocks of `size` rows, then of the blocks' sums by the general rule."""
    rows, columns = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    blocks = cdiv(rows, size)
    lanes = min(LANES.value, next_power_of_2(rows))
    cols, warps = _tile(x, lanes, columns, blocks, wide)
    tiles = cdiv(columns, cols)
    constants = {
        "COLS": cols, "TERM": term, "SPLIT": x.shape[0] > 1, "FAR": rows >= 2**31,
        "CENTERED": center is not None, "WIDE": tl.float64 if wide == torch.float64 else tl.float32,
    }  # fmt: skip
    arguments = (rows, x.shape[1], columns, x.shape[3], *x.stride())
    if rows > LANES.value and size > LANES.value and 4 * blocks * tiles < BUSY:
        stored = torch.empty((1, blocks * lanes, 1, columns), dtype=wide, device=x.device)
        part = min(128, max(32, 1024 // cols))
        launch(
            lanes_kernel, (tiles * (lanes // part) * blocks,), x, x if center is None else center, stored, *arguments,
            SIZE=size, LANES=lanes, ROWS=part, num_warps=4, **constants,
        )  # fmt: skip
        return _reduce(stored, "value", center, finish, divisor, dtype, wide, lanes)
    last = blocks == 1
    out = torch.empty((1, blocks, 1, columns), dtype=dtype if last else wide, device=x.device)
    launch(
        sum_kernel, (tiles * blocks,), x, x if center is None else center, out, *arguments, bits(divisor),
        SIZE=size, ROWS=lanes, FINISH=finish if last else "sum", UNROLL=4 if warps == 1 else 1, num_warps=warps,
        **constants,
    )  # fmt: skip
    return out.view(-1) if last else _reduce(out, "value", center, finish, divisor, dtype, wide, BLOCK.value)


def _tile(x: Tensor, lanes: int, columns: int, blocks: int, wide: torch.dtype) -> tuple[int, int]:
    """(COLS, num_warps) of a sum on `lanes` lanes."""
    if along(x):
        return min(next_power_of_2(columns), max(1, 1024 // lanes)), 1
    widest = max(128 // wide.itemsize, min(1024, 8192 // lanes))
    cols = min(next_power_of_2(columns), widest)
    # 32 bytes of a row are read at once in any case.
    while cols > 8 and blocks * cdiv(columns, cols) < BUSY:
        cols //= 2
    return cols, 16 if lanes * cols >= 16384 else 4
