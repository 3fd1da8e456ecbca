"""Resampling on a GPU (SPEC.md, "Resampling"): an output gathers its taps of all axes, or of one axis after the other.

A chain over the taps of the last axis, of these over those of the axis before, is what passes over the axes give, so
both ways have the same bits; passes cost less where an output has many taps.
"""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.functions import minus_zero
from repkernels.kernels.launch import launch

SIZE = 512
# Taps of one output, over all axes, from which passes pay.
MANY = 24

Taps = tuple[Tensor, Tensor, Tensor, int]


@triton.jit
def taps_of(starts, o, mask, TAPS: tl.constexpr):
    """(first, count) of the taps of outputs o: TAPS of each, or as many as `starts` says (0), or o itself (-1)."""
    if TAPS == 0:
        first = tl.load(starts + o, mask=mask, other=0)
        count = tl.load(starts + o + 1, mask=mask, other=0) - first
    else:
        first = o.to(tl.int32) * TAPS
        count = tl.full(o.shape, 1 if TAPS < 0 else TAPS, tl.int32)
    return first, count


@triton.jit
def most(count, TAPS: tl.constexpr):
    """The largest count."""
    return tl.max(count, 0) if TAPS == 0 else (1 if TAPS < 0 else TAPS)


@triton.jit
def tap(index, weight, o, first, count, i, mask, TAPS: tl.constexpr, WIDE: tl.constexpr):
    """(there, position, weight) of tap i."""
    there = mask & (i < count)
    if TAPS < 0:
        at = o.to(tl.int64)
        w = tl.full(o.shape, 1.0, WIDE)
    else:
        at = tl.load(index + first + i, mask=there, other=0).to(tl.int64)
        w = tl.load(weight + first + i, mask=there, other=0.0)
    return there, at, w


@triton.jit
def resample_kernel(
    x, out, total, C, D, H, W, x_n, x_c, x_d, x_h, x_w, starts_d, index_d, weight_d, starts_h, index_h, weight_h,
    starts_w, index_w, weight_w, TAPS_D: tl.constexpr, TAPS_H: tl.constexpr, TAPS_W: tl.constexpr, LAST: tl.constexpr,
    SIZE: tl.constexpr, FAR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """SIZE elements of out (N, C, D, H, W), dense, in the order of its memory; LAST: channels innermost."""
    e = tl.program_id(0).to(tl.int64 if FAR else tl.int32) * SIZE + tl.arange(0, SIZE)
    mask = e < total
    rest = e
    if LAST:
        c, rest = rest % C, rest // C
    w, rest = rest % W, rest // W
    h, rest = rest % H, rest // H
    d, n = rest % D, rest // D
    if not LAST:
        c, n = n % C, n // C
    base = x + n.to(tl.int64) * x_n + c.to(tl.int64) * x_c
    first_d, count_d = taps_of(starts_d, d, mask, TAPS_D)
    first_h, count_h = taps_of(starts_h, h, mask, TAPS_H)
    first_w, count_w = taps_of(starts_w, w, mask, TAPS_W)
    nothing = tl.broadcast_to(minus_zero(WIDE), (SIZE,))
    result = nothing
    for i in range(most(count_d, TAPS_D)):
        in_d, at_d, w_d = tap(index_d, weight_d, d, first_d, count_d, i, mask, TAPS_D, WIDE)
        plane = nothing
        for j in range(most(count_h, TAPS_H)):
            in_h, at_h, w_h = tap(index_h, weight_h, h, first_h, count_h, j, in_d, TAPS_H, WIDE)
            row = nothing
            for k in range(most(count_w, TAPS_W)):
                in_w, at_w, w_w = tap(index_w, weight_w, w, first_w, count_w, k, in_h, TAPS_W, WIDE)
                v = tl.load(base + at_d * x_d + at_h * x_h + at_w * x_w, mask=in_w, other=0.0).to(WIDE)
                row = tl.where(in_w, tl.fma(w_w, v, row), row)
            # fma onto -0 is the rounded product, whatever its sign.
            plane = tl.where(in_h, tl.fma(w_h, row, plane), plane)
        result = tl.where(in_d, tl.fma(w_d, plane, result), result)
    result = tl.where((count_d > 0) & (count_h > 0) & (count_w > 0), result, 0.0)
    tl.store(out + e, result.to(out.dtype.element_ty), mask=mask)


def resample(x: Tensor, out: Tensor, tables: Sequence[Taps | None]) -> None:
    """out (N, C, D', H', W'), contiguous or channels_last, from x (N, C, D, H, W), any strides.

    tables: for each of the three axes (starts, index, weight, taps of each output or 0), or None for a copy.
    """
    sizes = list(x.shape)
    average = math.prod(1.0 if t is None else t[1].numel() / max(1, t[0].numel() - 1) for t in tables)
    active = [d for d in (2, 1, 0) if tables[d] is not None]
    if average < MANY or len(active) < 2:
        _launch(x, out, tables)
        return
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    for d in active:
        sizes[2 + d] = out.shape[2 + d]
        last = d == active[-1]
        target = out if last else _like(out, sizes, wide)
        _launch(x, target, [tables[k] if k == d else None for k in range(3)])
        x = target


def _like(out: Tensor, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor of these sizes, in the memory format of `out`."""
    order = torch.contiguous_format if out.is_contiguous() else torch.channels_last_3d
    return torch.empty(sizes, dtype=dtype, device=out.device, memory_format=order)


def _launch(x: Tensor, out: Tensor, tables: Sequence[Taps | None]) -> None:
    arguments: list[Tensor] = []
    taps = []
    for table in tables:
        arguments += [out, out, out] if table is None else table[:3]
        taps.append(-1 if table is None else table[3])
    launch(
        resample_kernel, (triton.cdiv(out.numel(), SIZE),), x, out, out.numel(), *out.shape[1:], *x.stride(),
        *arguments, TAPS_D=taps[0], TAPS_H=taps[1], TAPS_W=taps[2], LAST=not out.is_contiguous(), SIZE=SIZE,
        FAR=out.numel() >= 2**31 - SIZE, WIDE=tl.float64 if x.dtype == torch.float64 else tl.float32,
    )  # fmt: skip
