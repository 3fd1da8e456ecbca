"""Softmax cross-entropy on a GPU (SPEC.md, "Cross-entropy"): a program per row forward, elementwise backward."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import (
    BLOCK,
    LANES,
    LOWEST_KEY,
    exp_f32,
    from_order_key,
    ln_f32,
    minus_zero,
    order_key,
    tree_sum,
)
from repkernels.kernels.launch import launch

LONGEST_ROW = BLOCK.value * LANES.value


@triton.jit
def forward_kernel(
    x, target, loss, largest, log_sum, inv_sum, C, stride_n, stride_c, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """One row on ROWS lanes: its maximum, then the SUM of its exponentials, block by block."""
    i = tl.program_id(0).to(tl.int64)
    at = x + i * stride_n
    lanes = tl.arange(0, ROWS)
    key = tl.full((ROWS,), LOWEST_KEY, tl.int32)
    for start in range(0, C, ROWS):
        j = start + lanes
        v = tl.load(at + j.to(tl.int64) * stride_c, mask=j < C, other=float("-inf")).to(tl.float32)
        key = tl.maximum(key, order_key(v))
    m = from_order_key(tl.max(key, 0))

    blocks = tl.arange(0, BLOCKS)
    nothing = minus_zero(tl.float32)
    sums = tl.broadcast_to(nothing, (BLOCKS,))
    for block in range(tl.cdiv(C, BLOCK)):
        total = tl.broadcast_to(nothing, (ROWS,))
        for start in range(block * BLOCK, tl.minimum((block + 1) * BLOCK, C), ROWS):
            j = start + lanes
            v = tl.load(at + j.to(tl.int64) * stride_c, mask=j < C, other=float("-inf")).to(tl.float32)
            total += tl.where(j < C, exp_f32(v - m), nothing)
        sums = tl.where(blocks == block, tree_sum(total, ROWS), sums)
    total = tree_sum(sums, BLOCKS)

    log_total = ln_f32(total)
    y = tl.load(target + i)
    chosen = tl.load(at + y * stride_c, mask=(y >= 0) & (y < C), other=float("nan")).to(tl.float32)
    tl.store(largest + i, m)
    tl.store(log_sum + i, log_total)
    tl.store(inv_sum + i, tl.div_rn(tl.full([], 1.0, tl.float32), total))
    tl.store(loss + i, log_total - (chosen - m))


@triton.jit
def backward_kernel(x, target, largest, inv_sum, scale, grad, C, stride_n, stride_c, COLS: tl.constexpr):
    """COLS elements of one row of the gradient, contiguous."""
    chunks = tl.cdiv(C, COLS)
    i = (tl.program_id(0) // chunks).to(tl.int64)
    j = (tl.program_id(0) % chunks) * COLS + tl.arange(0, COLS)
    v = tl.load(x + i * stride_n + j.to(tl.int64) * stride_c, mask=j < C, other=0.0).to(tl.float32)
    p = exp_f32(v - tl.load(largest + i)) * tl.load(inv_sum + i)
    difference = p - tl.where(j == tl.load(target + i), 1.0, 0.0)
    tl.store(grad + i * C + j, (difference * tl.load(scale + i)).to(grad.dtype.element_ty), mask=j < C)


def forward(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x (N, C) of fp32, bf16 or fp16, any strides; target (N,) int64 -> loss, max, log_sum, inv_sum, each (N,) fp32.

    The loss of a row whose target is not in [0, C) is NaN.
    """
    rows, columns = x.shape
    if columns > LONGEST_ROW:
        raise NotImplementedError(f"x: rows of at most {LONGEST_ROW} classes on a GPU, got {columns}")
    loss, largest, log_sum, inv_sum = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(4))
    lanes = min(LANES.value, triton.next_power_of_2(columns))
    launch(
        forward_kernel, (rows,), x, target.contiguous(), loss, largest, log_sum, inv_sum, columns, *x.stride(),
        ROWS=lanes, BLOCKS=triton.next_power_of_2(triton.cdiv(columns, BLOCK.value)),
        num_warps=4 if columns > LANES.value else 1,
    )  # fmt: skip
    return loss, largest, log_sum, inv_sum


def backward(x: Tensor, target: Tensor, largest: Tensor, inv_sum: Tensor, scale: Tensor) -> Tensor:
    """The gradient of x (N, C), in x's dtype; largest and inv_sum come from `forward`, scale is (N,) fp32."""
    rows, columns = x.shape
    grad = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    cols = min(1024, triton.next_power_of_2(columns))
    launch(
        backward_kernel, (rows * triton.cdiv(columns, cols),), x, target.contiguous(), largest, inv_sum,
        scale.contiguous(), grad, columns, *x.stride(), COLS=cols, num_warps=4 if cols == 1024 else 1,
    )  # fmt: skip
    return grad
