"""Softmax cross-entropy on a GPU (SPEC.md, "cross_entropy"): rows in registers, long ones a program each."""

from typing import Any

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
    width_of,
)
from repkernels.kernels.sizes import cdiv, next_power_of_2

Saved = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@triton.jit
def coefficient(
    target, weight, at, j, present, keep, share, PROBABILITIES: tl.constexpr, WEIGHTED: tl.constexpr,
    SMOOTH: tl.constexpr,
):  # fmt: skip
    """c_j: probabilities, smoothed and weighted; with class indices the weights alone. `at` is where a row begins."""
    if PROBABILITIES:
        c = tl.load(at, mask=present, other=0.0).to(tl.float32)
        if SMOOTH:
            c = c * keep + share
        if WEIGHTED:
            c = c * tl.load(weight + j, mask=present, other=0.0).to(tl.float32)
    elif WEIGHTED:
        c = tl.load(weight + j, mask=present, other=0.0).to(tl.float32)
    else:
        c = tl.full(j.shape, 1.0, tl.float32)
    return c


@triton.jit
def store_rows(
    x, target, weight, whole, keep, share, ignore_index, loss, maximum, log_sum, inv_sum, factor, i, rows, C, stride_n,
    stride_c, target_n, m, total, linear, mass, PROBABILITIES: tl.constexpr, WEIGHTED: tl.constexpr,
    SMOOTH: tl.constexpr,
):  # fmt: skip
    """The loss of rows i and what their gradient needs, from MAX, and the SUMs of exp, of c * s and of c."""
    log_total = ln_f32(total)
    if PROBABILITIES:
        result = mass * log_total - linear
        tl.store(factor + i, mass, mask=rows)
    else:
        y = tl.load(target + i * target_n, mask=rows, other=0)
        inside = rows & (y >= 0) & (y < C)
        chosen = tl.load(x + i * stride_n + y * stride_c, mask=inside, other=float("nan")).to(tl.float32)
        result = log_total - (chosen - m)
        if WEIGHTED:
            a = tl.load(weight + y, mask=inside, other=0.0).to(tl.float32)
        else:
            a = tl.full(i.shape, 1.0, tl.float32)
        if SMOOTH:
            if WEIGHTED:
                all_weights = tl.load(whole)
            else:
                all_weights = whole
            a = a * keep
            result = a * result + (log_total * all_weights - linear) * share
            tl.store(factor + i, a + share * all_weights, mask=rows)
        elif WEIGHTED:
            result = a * result
        result = tl.where(y == ignore_index, 0.0, result)
    tl.store(loss + i, result, mask=rows)
    tl.store(maximum + i, m, mask=rows)
    tl.store(log_sum + i, log_total, mask=rows)
    tl.store(inv_sum + i, tl.div_rn(tl.full(i.shape, 1.0, tl.float32), total), mask=rows)


@triton.jit
def cross_entropy_kernel(
    x, target, weight, whole, keep, share, ignore_index, loss, maximum, log_sum, inv_sum, factor, N, C, stride_n,
    stride_c, target_n, target_c, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    PROBABILITIES: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """ROWS rows of CHUNKS chunks. A NaN that the maximum loses still makes its exponential, and the SUM, NaN."""
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    lane = tl.arange(0, WIDTH)[None, :]
    rows = i < N
    wanted = rows if PROBABILITIES else rows & (tl.load(target + i * target_n, mask=rows, other=0) != ignore_index)
    nothing = minus_zero(tl.float32)
    values = ()
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        at = x + i * stride_n + j.to(tl.int64) * stride_c
        v = tl.load(at, mask=wanted & (j < C), other=float("-inf")).to(tl.float32)
        top = v if c == 0 else tl.maximum(top, v)  # noqa: F821
        values = values + (v,)
    m = largest(top, ROWS)
    terms, linears, masses = (), (), ()
    for c in tl.static_range(CHUNKS):
        j = c * WIDTH + lane
        s = values[c] - m
        terms = terms + (tl.where(j < C, exp_f32(s), nothing),)
        if PROBABILITIES or SMOOTH:
            at = target + i * target_n + j.to(tl.int64) * target_c
            f = coefficient(target, weight, at, j, wanted & (j < C), keep, share, PROBABILITIES, WEIGHTED, SMOOTH)
            linears = linears + (tl.where(j < C, f * s, nothing),)
            masses = masses + (tl.where(j < C, f, nothing),)
    total = total_of(terms, CHUNKS, ROWS, WIDTH)
    linear, mass = total, total
    if PROBABILITIES or SMOOTH:
        linear = total_of(linears, CHUNKS, ROWS, WIDTH)
    if PROBABILITIES:
        mass = total_of(masses, CHUNKS, ROWS, WIDTH)
    store_rows(
        x, target, weight, whole, keep, share, ignore_index, loss, maximum, log_sum, inv_sum, factor, i, rows, C,
        stride_n, stride_c, target_n, m, total, linear, mass, PROBABILITIES, WEIGHTED, SMOOTH,
    )  # fmt: skip


@triton.jit
def cross_entropy_long_kernel(
    x, target, weight, whole, keep, share, ignore_index, loss, maximum, log_sum, inv_sum, factor, C, stride_n, stride_c,
    target_n, target_c, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, BLOCKS: tl.constexpr, PROBABILITIES: tl.constexpr,
    WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr,
):  # fmt: skip
    """One row, read twice, CHUNKS chunks at a time; an ignored one is not read."""
    STEP: tl.constexpr = WIDTH * CHUNKS
    i = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)[None, :]
    at = x + i * stride_n
    count = C
    if not PROBABILITIES:
        count = tl.where(tl.load(target + i * target_n) == ignore_index, 0, C)
    even = count // STEP * STEP
    top = tl.full((1, WIDTH), float("-inf"), tl.float32)
    for start in range(0, even, STEP):
        for c in tl.static_range(CHUNKS):
            j = start + c * WIDTH + lane
            top = tl.maximum(top, tl.load(at + j.to(tl.int64) * stride_c).to(tl.float32))
    for start in range(even, count, WIDTH):
        j = start + lane
        v = tl.load(at + j.to(tl.int64) * stride_c, mask=j < C, other=float("-inf"))
        top = tl.maximum(top, v.to(tl.float32))
    m = largest(top, 1)

    blocks = tl.arange(0, BLOCKS)[None, :]
    nothing = minus_zero(tl.float32)
    none = tl.broadcast_to(nothing, (1, BLOCKS))
    sums, linear_sums, mass_sums = none, none, none
    for block in range(tl.cdiv(count, BLOCK)):
        lanes = tl.broadcast_to(nothing, (1, WIDTH))
        linears, masses = lanes, lanes
        first, last = block * BLOCK, tl.minimum((block + 1) * BLOCK, count)
        even = first + (last - first) // STEP * STEP
        for start in range(first, even, STEP):
            for c in tl.static_range(CHUNKS):
                j = start + c * WIDTH + lane
                s = tl.load(at + j.to(tl.int64) * stride_c).to(tl.float32) - m
                lanes += exp_f32(s)
                if PROBABILITIES or SMOOTH:
                    there = target + i * target_n + j.to(tl.int64) * target_c
                    f = coefficient(target, weight, there, j, j < C, keep, share, PROBABILITIES, WEIGHTED, SMOOTH)
                    linears += f * s
                    masses += f
        for start in range(even, last, WIDTH):
            j = start + lane
            s = tl.load(at + j.to(tl.int64) * stride_c, mask=j < C, other=0.0).to(tl.float32) - m
            lanes += tl.where(j < C, exp_f32(s), nothing)
            if PROBABILITIES or SMOOTH:
                there = target + i * target_n + j.to(tl.int64) * target_c
                f = coefficient(target, weight, there, j, j < C, keep, share, PROBABILITIES, WEIGHTED, SMOOTH)
                linears += tl.where(j < C, f * s, nothing)
                masses += tl.where(j < C, f, nothing)
        sums = tl.where(blocks == block, halve(lanes, 1, WIDTH), sums)
        if PROBABILITIES or SMOOTH:
            linear_sums = tl.where(blocks == block, halve(linears, 1, WIDTH), linear_sums)
        if PROBABILITIES:
            mass_sums = tl.where(blocks == block, halve(masses, 1, WIDTH), mass_sums)
    total, linear, mass = halve(sums, 1, BLOCKS), halve(linear_sums, 1, BLOCKS), halve(mass_sums, 1, BLOCKS)
    here = i + tl.zeros((1, 1), tl.int64)
    store_rows(
        x, target, weight, whole, keep, share, ignore_index, loss, maximum, log_sum, inv_sum, factor, here, here >= 0,
        C, stride_n, stride_c, target_n, m, total, linear, mass, PROBABILITIES, WEIGHTED, SMOOTH,
    )  # fmt: skip


@triton.jit
def cross_entropy_backward_kernel(
    x, target, weight, keep, share, ignore_index, maximum, inv_sum, scale, factor, grad, N, C, stride_n, stride_c,
    target_n, target_c, stride_scale, ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr,
    PROBABILITIES: tl.constexpr, WEIGHTED: tl.constexpr, SMOOTH: tl.constexpr, TARGET: tl.constexpr,
):  # fmt: skip
    """CHUNKS chunks of ROWS rows of the gradient, contiguous: of x, or (TARGET, with log_sum as inv_sum) of targets."""
    pieces = tl.cdiv(C, WIDTH * CHUNKS)
    i = (tl.program_id(0) // pieces).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    first = (tl.program_id(0) % pieces) * (WIDTH * CHUNKS)
    rows = i < N
    m = tl.load(maximum + i, mask=rows, other=0.0)
    r = tl.load(inv_sum + i, mask=rows, other=0.0)
    s = tl.load(scale + i * stride_scale, mask=rows, other=0.0)
    wanted = rows
    if not PROBABILITIES:
        y = tl.load(target + i * target_n, mask=rows, other=0)
        wanted = rows & (y != ignore_index)
        if WEIGHTED:
            a = tl.load(weight + y, mask=wanted & (y >= 0) & (y < C), other=0.0).to(tl.float32)
        else:
            a = tl.full(i.shape, 1.0, tl.float32)
        if SMOOTH:
            a = a * keep
        else:
            s = s * a
    if PROBABILITIES or SMOOTH:
        k = tl.load(factor + i, mask=rows, other=0.0)
    for c in tl.static_range(CHUNKS):
        j = first + c * WIDTH + tl.arange(0, WIDTH)[None, :]
        present = wanted & (j < C)
        v = tl.load(x + i * stride_n + j.to(tl.int64) * stride_c, mask=present, other=0.0).to(tl.float32)
        if TARGET:
            f = r - (v - m)
            if WEIGHTED:
                f = tl.load(weight + j, mask=present, other=0.0).to(tl.float32) * keep * f
            else:
                f = f * keep
            result = f * s
        else:
            p = exp_f32(v - m) * r
            if PROBABILITIES or SMOOTH:
                at = target + i * target_n + j.to(tl.int64) * target_c
                q = coefficient(target, weight, at, j, present, keep, share, PROBABILITIES, WEIGHTED, SMOOTH)
                if not PROBABILITIES:
                    q = q * share
                    q = tl.where(j == y, a + q, q)
                p = p * k
            else:
                q = tl.where(j == y, 1.0, 0.0)
            result = tl.where(wanted, (p - q) * s, 0.0)
        tl.store(grad + i * C + j, result.to(grad.dtype.element_ty), mask=rows & (j < C))


def forward(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    whole: Tensor | None = None,
    keep: float = 1.0,
    share: float = 0.0,
    ignore_index: int = -100,
) -> Saved:
    """The loss of each row of x (N, C) and what its gradient needs: loss, max, log_sum, inv_sum, factor, fp32.

    x: fp32, bf16 or fp16, any strides. target: (N,) int64, or (N, C) probabilities. weight: (C,), whole: its SUM, (1,).
    keep, share: RN32(1 - label_smoothing), RN32(label_smoothing / C). factor is (N,) with probabilities or smoothing,
    otherwise (0,). The loss of a row whose target is not in [0, C) and not ignore_index is NaN.
    """
    rows, columns = x.shape
    if columns > LONGEST_ROW:
        raise NotImplementedError(f"input: rows of at most {LONGEST_ROW} classes on a GPU, got {columns}")
    loss, maximum, log_sum, inv_sum = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(4))
    kind = _kind(target, weight, share)
    general = kind["PROBABILITIES"] or kind["SMOOTH"]
    factor = torch.empty(rows if general else 0, dtype=torch.float32, device=x.device)
    first = x, target, weight, float(columns) if whole is None else whole, keep, share, ignore_index
    results = loss, maximum, log_sum, inv_sum, factor
    strides = (*x.stride(), *_strides(target))
    if (chunks := chunks_of(columns)) > MOST_CHUNKS:
        launch(
            cross_entropy_long_kernel, (rows,), *first, *results, columns, *strides, WIDTH=LANES.value, CHUNKS=8,
            BLOCKS=next_power_of_2(cdiv(columns, BLOCK.value)),
            num_warps=16 if columns > BLOCK.value else 8, **kind,
        )  # fmt: skip
    else:
        width = width_of(columns)
        many = max(1, 1024 // width)
        launch(
            cross_entropy_kernel, (cdiv(rows, many),), *first, *results, rows, columns, *strides, ROWS=many,
            WIDTH=width, CHUNKS=chunks, num_warps=1 if chunks == 1 else min(8, max(2, chunks // 2)), **kind,
        )  # fmt: skip
    return loss, maximum, log_sum, inv_sum, factor


def backward(
    x: Tensor,
    target: Tensor,
    largest: Tensor,
    inv_sum: Tensor,
    scale: Tensor,
    factor: Tensor | None = None,
    weight: Tensor | None = None,
    keep: float = 1.0,
    share: float = 0.0,
    ignore_index: int = -100,
) -> Tensor:
    """The gradient of x (N, C), contiguous, in x's dtype; scale (N,) fp32, any stride, is that of each row's loss."""
    grad = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    per_row = largest, inv_sum, scale, scale if factor is None else factor
    _backward(grad, x, target, weight, (keep, share, ignore_index), per_row, _kind(target, weight, share), False)
    return grad


def target_gradient(
    x: Tensor,
    target: Tensor,
    largest: Tensor,
    log_sum: Tensor,
    scale: Tensor,
    weight: Tensor | None = None,
    keep: float = 1.0,
) -> Tensor:
    """The gradient of the probabilities (N, C), contiguous, in their dtype."""
    grad = torch.empty(target.shape, dtype=target.dtype, device=x.device)
    per_row = largest, log_sum, scale, scale
    _backward(grad, x, target, weight, (keep, 0.0, 0), per_row, _kind(target, weight, 0.0), True)
    return grad


def _backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    options: tuple[float, float, int],
    per_row: tuple[Tensor, ...],
    kind: dict[str, Any],
    of_target: bool,
) -> None:
    rows, columns = x.shape
    width = width_of(columns)
    many, chunks = max(1, 1024 // width), min(4, chunks_of(columns))
    launch(
        cross_entropy_backward_kernel, (cdiv(rows, many) * cdiv(columns, width * chunks),), x, target,
        weight, *options, *per_row, grad, rows, columns, *x.stride(), *_strides(target), per_row[2].stride(0),
        ROWS=many, WIDTH=width, CHUNKS=chunks, TARGET=of_target, num_warps=4, **kind,
    )  # fmt: skip


def _kind(target: Tensor, weight: Tensor | None, share: float) -> dict[str, Any]:
    return {"PROBABILITIES": target.ndim == 2, "WEIGHTED": weight is not None, "SMOOTH": share != 0}


def _strides(target: Tensor) -> tuple[int, int]:
    return target.stride(0), target.stride(1) if target.ndim == 2 else 0
