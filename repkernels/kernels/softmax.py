"""softmax and log_softmax of rows on a GPU (SPEC.md, "softmax"): a row stays in registers up to 16384 elements."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import BLOCK, LANES, exp_f32, ln_f32, minus_zero
from repkernels.kernels.launch import launch
from repkernels.kernels.rows import (
    LONGEST_ROW,
    MOST_CHUNKS,
    chunks_of,
    halve,
    largest,
    total_of,
    where_present,
    width_of,
)
from repkernels.kernels.sizes import cdiv, next_power_of_2


@triton.jit
def softmax_kernel(
    x, y, N, C, stride_n, stride_c, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    EVEN: tl.constexpr, LOG: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """ROWS rows of CHUNKS chunks each. A NaN that the maximum loses still makes its exponential, and the SUM, NaN."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    rows = i < N
    values = ()
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        at = x + i * stride_n + j.to(tl.int64) * stride_c
        v = tl.load(at) if EVEN else tl.load(at, mask=rows & (j < C), other=float("-inf"))
        v = v.to(tl.float32)
        top = v if c == 0 else tl.maximum(top, v)  # noqa: F821
        values = values + (v,)
    m = largest(top, ROWS)
    terms = ()
    for c in tl.static_range(CHUNKS):
        e = exp_f32(values[c] - m)
        terms = terms + (where_present(e, c * WIDTH + lane < C, EVEN),)
    total = total_of(terms, CHUNKS, ROWS, WIDTH, WARPS)
    if LOG:
        shift = ln_f32(total)
    else:
        factor = tl.div_rn(tl.full((ROWS, 1), 1.0, tl.float32), total)
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        result = (values[c] - m) - shift if LOG else terms[c] * factor
        tl.store(y + i * C + j, result.to(y.dtype.element_ty), mask=None if EVEN else rows & (j < C))


@triton.jit
def softmax_long_kernel(
    x, y, C, stride_n, stride_c, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, BLOCKS: tl.constexpr,
    LOG: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """One row, read three times, CHUNKS chunks of WIDTH at a time."""
    i = tl.program_id(0).to(tl.int64)
    at = x + i * stride_n
    lane = tl.arange(0, WIDTH)[None, :]
    STEP: tl.constexpr = WIDTH * CHUNKS
    top = tl.full((1, WIDTH), float("-inf"), tl.float32)
    for start in range(0, C, STEP):
        for c in tl.static_range(CHUNKS):
            j = start + c * WIDTH + lane
            v = tl.load(at + j.to(tl.int64) * stride_c, mask=j < C, other=float("-inf")).to(tl.float32)
            top = tl.maximum(top, v)
    m = largest(top, 1)

    blocks = tl.arange(0, BLOCKS)[None, :]
    nothing = minus_zero(tl.float32)
    sums = tl.broadcast_to(nothing, (1, BLOCKS))
    for block in range(tl.cdiv(C, BLOCK)):
        lanes = tl.broadcast_to(nothing, (1, WIDTH))
        for start in range(block * BLOCK, tl.minimum((block + 1) * BLOCK, C), STEP):
            for c in tl.static_range(CHUNKS):
                j = start + c * WIDTH + lane
                v = tl.load(at + j.to(tl.int64) * stride_c, mask=j < C, other=float("-inf")).to(tl.float32)
                lanes += tl.where(j < C, exp_f32(v - m), nothing)
        sums = tl.where(blocks == block, halve(lanes, 1, WIDTH, WARPS), sums)
    total = halve(sums, 1, BLOCKS)
    if LOG:
        shift = ln_f32(total)
    else:
        factor = tl.div_rn(tl.full((1, 1), 1.0, tl.float32), total)
    for start in range(0, C, STEP):
        for c in tl.static_range(CHUNKS):
            j = start + c * WIDTH + lane
            v = tl.load(at + j.to(tl.int64) * stride_c, mask=j < C, other=float("-inf")).to(tl.float32) - m
            result = v - shift if LOG else exp_f32(v) * factor
            tl.store(y + i * C + j, result.to(y.dtype.element_ty), mask=j < C)


@triton.jit
def softmax_backward_kernel(
    g, y, grad, N, C, stride_gn, stride_gc, stride_yn, stride_yc, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr, EVEN: tl.constexpr, LOG: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The gradient of ROWS rows from the stored result y."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    rows = i < N
    upstream, stored, terms = (), (), ()
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        at_g = g + i * stride_gn + j.to(tl.int64) * stride_gc
        at_y = y + i * stride_yn + j.to(tl.int64) * stride_yc
        u = tl.load(at_g) if EVEN else tl.load(at_g, mask=rows & (j < C), other=0.0)
        v = tl.load(at_y) if EVEN else tl.load(at_y, mask=rows & (j < C), other=0.0)
        term = u.to(tl.float32) if LOG else u.to(tl.float32) * v.to(tl.float32)
        upstream, stored = upstream + (u,), stored + (v,)
        terms = terms + (where_present(term, j < C, EVEN),)
    total = total_of(terms, CHUNKS, ROWS, WIDTH, WARPS)
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        result = gradient_of(upstream[c].to(tl.float32), stored[c].to(tl.float32), total, LOG)
        tl.store(grad + i * C + j, result.to(grad.dtype.element_ty), mask=None if EVEN else rows & (j < C))


@triton.jit
def softmax_backward_long_kernel(
    g, y, grad, C, stride_gn, stride_gc, stride_yn, stride_yc, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    BLOCKS: tl.constexpr, LOG: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """The gradient of one row, read twice."""
    i = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)[None, :]
    STEP: tl.constexpr = WIDTH * CHUNKS
    blocks = tl.arange(0, BLOCKS)[None, :]
    nothing = minus_zero(tl.float32)
    sums = tl.broadcast_to(nothing, (1, BLOCKS))
    for block in range(tl.cdiv(C, BLOCK)):
        lanes = tl.broadcast_to(nothing, (1, WIDTH))
        for start in range(block * BLOCK, tl.minimum((block + 1) * BLOCK, C), STEP):
            for c in tl.static_range(CHUNKS):
                j = start + c * WIDTH + lane
                u = tl.load(g + i * stride_gn + j.to(tl.int64) * stride_gc, mask=j < C, other=0.0).to(tl.float32)
                if not LOG:
                    v = tl.load(y + i * stride_yn + j.to(tl.int64) * stride_yc, mask=j < C, other=0.0)
                    u = u * v.to(tl.float32)
                lanes += tl.where(j < C, u, nothing)
        sums = tl.where(blocks == block, halve(lanes, 1, WIDTH, WARPS), sums)
    total = halve(sums, 1, BLOCKS)
    for start in range(0, C, STEP):
        for c in tl.static_range(CHUNKS):
            j = start + c * WIDTH + lane
            u = tl.load(g + i * stride_gn + j.to(tl.int64) * stride_gc, mask=j < C, other=0.0).to(tl.float32)
            v = tl.load(y + i * stride_yn + j.to(tl.int64) * stride_yc, mask=j < C, other=0.0).to(tl.float32)
            tl.store(grad + i * C + j, gradient_of(u, v, total, LOG).to(grad.dtype.element_ty), mask=j < C)


@triton.jit
def gradient_of(u, v, total, LOG: tl.constexpr):
    """The gradient at elements whose result is v and whose result's gradient is u."""
    if LOG:
        return u - exp_f32(tl.where(v > 0.0, 0.0, v)) * total
    return v * (u - total)


def softmax(x: Tensor, log: bool) -> Tensor:
    """softmax, or log_softmax, of each row of x (N, C), any strides -> (N, C), contiguous, in x's dtype."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(softmax_kernel, softmax_long_kernel, (x, y), (x,), log)
    return y


def softmax_backward(g: Tensor, y: Tensor, log: bool) -> Tensor:
    """The gradient of x from that of the result, g (N, C), and the stored result y (N, C) -> (N, C), contiguous."""
    grad = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    _launch(softmax_backward_kernel, softmax_backward_long_kernel, (g, y, grad), (g, y), log)
    return grad


def _launch(
    short: triton.JITFunction,
    long: triton.JITFunction,
    tensors: tuple[Tensor, ...],
    read: tuple[Tensor, ...],
    log: bool,
) -> None:
    rows, columns = tensors[0].shape
    strides = [stride for tensor in read for stride in tensor.stride()]
    chunks, width = chunks_of(columns), width_of(columns)
    if columns > LONGEST_ROW:
        raise NotImplementedError(f"input: rows of at most {LONGEST_ROW} elements on a GPU, got {columns}")
    if chunks > MOST_CHUNKS:
        launch(
            long, (rows,), *tensors, columns, *strides, WIDTH=LANES.value, CHUNKS=4,
            BLOCKS=next_power_of_2(cdiv(columns, BLOCK.value)), LOG=log, WARPS=8,
            num_warps=8,
        )  # fmt: skip
        return
    many, warps, registers = configuration(columns, len(read) == 2, log)
    launch(
        short, (cdiv(rows, many),), *tensors, rows, columns, *strides, ROWS=many, WIDTH=width, CHUNKS=chunks,
        EVEN=chunks * width == columns and rows % many == 0, LOG=log, WARPS=warps, num_warps=warps, registers=registers,
    )  # fmt: skip


def configuration(columns: int, backward: bool, log: bool) -> tuple[int, int, int | None]:
    """Rows of a program, its warps, and the most registers of a thread; no bit depends on them."""
    chunks, width = chunks_of(columns), width_of(columns)
    if chunks == 1:
        return 1024 // width, 1, None
    if backward:
        return 1, 2 if chunks <= 4 else 4 if chunks <= 8 or not log else 8, None
    # Three rows of 16384 fit into the registers of a multiprocessor only if each thread has at most 80.
    return 1, 1 if chunks == 2 else 4 if chunks <= 8 else 8, None if chunks <= 8 else 80
