"""SUM on a GPU (SPEC.md, "Sums"): a program adds a block of 65536 rows on 1024 lanes and halves them.

The lanes' high bits lie in registers, so the first halvings move nothing between threads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import BLOCK, LANES, tree_sum_rows
from repkernels.kernels.launch import launch


@triton.jit
def sum_kernel(
    x, out, R, N, stride_r, stride_n, ROWS: tl.constexpr, COLS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out[block, n], contiguous: the SUM of one block of rows for COLS columns."""
    tiles = tl.cdiv(N, COLS)
    top = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    lanes = tl.arange(0, ROWS)
    count = tl.minimum(R - top, BLOCK).to(tl.int32)
    at = x + top * stride_r + cols.to(tl.int64)[None, :] * stride_n
    total = tl.full((ROWS, COLS), -0.0, WIDE)
    for start in range(0, count, ROWS):
        rows = start + lanes
        mask = (rows < count)[:, None] & (cols < N)[None, :]
        total += tl.load(at + rows.to(tl.int64)[:, None] * stride_r, mask=mask, other=-0.0).to(WIDE)
    result = tree_sum_rows(total, ROWS, COLS)
    tl.store(out + (top // BLOCK) * N + cols, result.to(out.dtype.element_ty), mask=cols < N)


def sum_rows(x: Tensor) -> Tensor:
    """The SUM of every column of x (R, N), any strides -> (N,) in x's dtype; half types are rounded once."""
    return _sum_rows(x, x.dtype)


def _sum_rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    rows, columns = x.shape
    if x.numel() == 0:
        return torch.zeros(columns, dtype=dtype, device=x.device)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    blocks = triton.cdiv(rows, BLOCK.value)
    out = torch.empty((blocks, columns), dtype=dtype if blocks == 1 else wide, device=x.device)
    lanes = min(LANES.value, triton.next_power_of_2(rows))
    widest = 32 if x.stride(1) <= x.stride(0) else 4
    cols = min(triton.next_power_of_2(columns), max(widest, min(1024, 8192 // lanes)))
    launch(
        sum_kernel, (triton.cdiv(columns, cols) * blocks,), x, out, rows, columns, x.stride(0), x.stride(1),
        ROWS=lanes, COLS=cols, WIDE=tl.float64 if wide == torch.float64 else tl.float32,
        num_warps=16 if lanes * cols >= 16384 else 4,
    )  # fmt: skip
    return out[0] if blocks == 1 else _sum_rows(out, dtype)
