"""Weight gradients of depthwise convolutions under `fixed` (SPEC.md, "The sum").

P is a sum over positions, an integer whatever its order. Each lane keeps those of up to 16 taps over many blocks of
positions, whose digits it forms as it reads; the taps of a block meet the same elements.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels.arith import (
    LAST_SIGNIFICAND,
    ldexp,
    low_digit,
    positive_zeros,
    power_of_two,
    round_half_even,
    scale_exponent,
)
from repkernels.kernels.configuration import processors
from repkernels.kernels.conv_copy import is_channels_last
from repkernels.kernels.conv_depthwise_lanes import (
    axes,
    block_of,
    cells,
    columns_together,
    cuts,
    distance,
    met,
    met_by_itself,
    offset,
    repeated,
    replaced,
    results,
    rows_together,
    span,
    tap,
    tap_of,
    tile_of_lanes,
    vector,
    within,
)
from repkernels.kernels.conv_digits import extents
from repkernels.kernels.conv_gather import Strides
from repkernels.kernels.conv_nonfinite import fix_weight_gradient
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_finish import rounded

# Taps that a lane sums at a time, products that it writes out, rows (by number of digits) and columns of a block.
MOST_SUMS = 16
MOST_PRODUCTS, MOST_ROWS, COLUMNS = 256, (0, 7, 7, 7, 4), 2
LANES = 128
TILE_LAST = (32, 4)
# Positions that a lane sums at most, and programs of a multiprocessor.
MOST_POSITIONS, PROGRAMS = 2**16, 16


@triton.jit
def digits_of(v, up, more, S: tl.constexpr):
    """q = rhe(v * up * more) of fp32 v, 0 where that is not finite, as three int32 that `products` multiplies.

    S < 3: q alone. S = 3: q and its last digit. S = 4: h, the last digit d and h2, with q = 256 h + d, h = 256 h2 + d2.
    """
    v = v.to(tl.float32)
    q = round_half_even(tl.where(tl.abs(v) < float("inf"), v, 0.0) * up * more, S)
    if S == 3:
        parts = (q, q.to(tl.int8).to(tl.int32), q)
    elif S == 4:
        last, rest = low_digit(q)
        parts = (rest, last.to(tl.int32), low_digit(rest)[1])
    else:
        parts = (q, q, q)
    return parts


@triton.jit
def products(a, b, S: tl.constexpr):
    """The digit products that count: an int64 and an int32, to be added to it, or taken off for S = 3.

    They are over 65536 for S = 4. S = 3: all but that of the last digits. S = 4: q q' is 65536 h h' + 256 (h d' + d h')
    + d d', of which d d' and what d2 and d2' bring in do not count; that leaves 65536 (h h' + h2 d' + d h2').
    |q| < 2**23 for S = 3 and |h| < 2**23 for S = 4, so the first is below 2**46 and fits 2**16 times; the second is
    below 2**23 and fits 255 times.
    """
    first = a[0].to(tl.int64) * b[0].to(tl.int64)
    if S == 3:
        second = a[1] * b[1]
    elif S == 4:
        second = a[2] * b[1] + a[1] * b[2]
    else:
        second = a[0] * 0
    return first, second


@triton.jit
def increased(values, i: tl.constexpr, v):
    """A tuple with v added in place i."""
    return replaced(values, i, values[i] + v)


@triton.jit(do_not_specialize=["zero", "ROWS", "PARTS"])
def conv_depthwise_sums_kernel(
    g, x, extent_g, extent_x, sums, zero, ROWS, PARTS, C, MULTIPLE, blocks_h, blocks_w, d, h, w, sg, s,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, SD: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
    S: tl.constexpr, LAST_SIGNIFICAND: tl.constexpr, OWN: tl.constexpr, VECTOR: tl.constexpr, VECTOR_G: tl.constexpr,
    LAST: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """Adds part of P / 256**max(0, S - 2) to sums (2, C * taps) int64, its low 32 bits and the rest, which begin as 0.

    OWN, VECTOR: columns of x that are read together, as `cells` has it, and VECTOR_G of a block of g.
    A program sees H.taps by W.taps of the TD by TH by TW taps, and one of PARTS parts of all ROWS blocks of rows.
    """
    blocks_c = tl.cdiv(C, BC)
    pieces_h: tl.constexpr = (TH + H.taps - 1) // H.taps
    pieces_w: tl.constexpr = (TW + W.taps - 1) // W.taps
    job = tl.program_id(0) // blocks_c
    c = tl.program_id(0) % blocks_c * BC + tl.arange(0, BC)
    piece = job % (TD * pieces_h * pieces_w)
    job = job // (TD * pieces_h * pieces_w)
    first_w = piece % pieces_w * W.taps
    first_h = piece // pieces_w % pieces_h * H.taps
    td = piece // (pieces_w * pieces_h)
    lanes = tl.arange(0, BL)
    col = job % blocks_w * BW + lanes % BW
    part = job // blocks_w

    e_g = scale_exponent(tl.load(extent_g + c, mask=c < C, other=0), S, LAST_SIGNIFICAND)[:, None]
    e_x = scale_exponent(tl.load(extent_x + c // MULTIPLE, mask=c < C, other=0), S, LAST_SIGNIFICAND)[:, None]
    near_g, near_x = tl.minimum(tl.maximum(-e_g, -126), 127), tl.minimum(tl.maximum(-e_x, -126), 127)
    up_g, more_g, up_x, more_x = (
        power_of_two(near_g), power_of_two(-e_g - near_g), power_of_two(near_x), power_of_two(-e_x - near_x),
    )  # fmt: skip
    of_g = c.to(tl.int64)[:, None] * sg.c
    of_x = (c // MULTIPLE).to(tl.int64)[:, None] * s.c
    from_w = col * w.step + w.base + first_w * w.dilation
    real = (c < C)[:, None] & (col * W.results < w.result)[None, :]
    total = repeated(tl.zeros((BC, BL), tl.int64), H.taps * W.taps)
    for row0 in range(part * (BL // BW), ROWS, PARTS * (BL // BW)):
        row = row0 + lanes // BW
        n, pd, block = block_of(row, blocks_h, d)
        inside = real & (row < ROWS)[None, :]
        line_g = of_g + distance(n, pd, block * H.results, col * W.results, sg, zero, LAST)[None, :]
        at_d, has_d = met(pd, td, d, SD, False)
        from_h = block * h.step + h.base + first_h * h.dilation
        line_x = of_x + distance(n, at_d, from_h, from_w, s, zero, LAST)[None, :]
        inside_x = inside & has_d[None, :]
        small = repeated(tl.zeros((BC, BL), tl.int32), H.taps * W.taps)
        of_block = ()
        for i in tl.static_range(span(H)):
            for r in tl.static_range(results(H)):
                # Rows of g where they are first met, so that few are kept.
                if tap(H, i, r) == 0:
                    has = inside & within(block * H.results, r, h.result)[None, :]
                    at = line_g + r * sg.h
                    row_g = cells(g, at, has, col * W.results, w.result, sg.w, met_by_itself(W), 0, VECTOR_G)
                    for q in tl.static_range(results(W)):
                        of_block = of_block + (digits_of(row_g[q], up_g, more_g, S),)
            has = inside_x & within(from_h, offset(H, i), h.source)[None, :]
            row_x = cells(x, line_x + offset(H, i) * s.h, has, from_w, w.source, s.w, W, OWN, VECTOR)
            for j in tl.static_range(span(W)):
                b = digits_of(row_x[j], up_x, more_x, S)
                for r in tl.static_range(results(H)):
                    for q in tl.static_range(results(W)):
                        if tap_of(H, W, i, j, r, q) >= 0:
                            large, little = products(of_block[r * W.results + q], b, S)
                            total = increased(total, tap_of(H, W, i, j, r, q), large)
                            small = increased(small, tap_of(H, W, i, j, r, q), little)
        if S > 2:
            for t in tl.static_range(H.taps * W.taps):
                total = increased(total, t, 0 - small[t].to(tl.int64) if S == 3 else small[t])

    for t in tl.static_range(H.taps * W.taps):
        th, tw = first_h + t // W.taps, first_w + t % W.taps
        sum_t = total[t] >> 8 if S == 3 else total[t]
        to = sums + c * (TD * TH * TW) + (td * TH + th) * TW + tw
        mask = c < tl.where((th < TH) & (tw < TW), C, 0)
        tl.atomic_add(to, tl.sum(sum_t & 0xFFFFFFFF, 1), mask=mask, sem="relaxed")
        tl.atomic_add(to + C * (TD * TH * TW), tl.sum(sum_t >> 32, 1), mask=mask, sem="relaxed")


@triton.jit
def conv_depthwise_finish_kernel(
    sums, extent_g, extent_x, out, C, TAPS, MULTIPLE, S: tl.constexpr, LAST_SIGNIFICAND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out (C, taps), contiguous, from the sums: one rounding, exponents, output type."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < C * TAPS
    r = rounded(tl.load(sums + i, mask=mask, other=0), tl.load(sums + C * TAPS + i, mask=mask, other=0))
    c = i // TAPS
    e_g = scale_exponent(tl.load(extent_g + c, mask=mask, other=0), S, LAST_SIGNIFICAND)
    e_x = scale_exponent(tl.load(extent_x + c // MULTIPLE, mask=mask, other=0), S, LAST_SIGNIFICAND)
    shift: tl.constexpr = 8 * (S - 2) if S > 2 else 0
    y = positive_zeros(ldexp(r, e_g + e_x + shift), out.dtype.element_ty)
    tl.store(out + i, y.to(out.dtype.element_ty), mask=mask)


def fixed_weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, S: int) -> None:
    """g (N, O, D', H', W'), x (N, C, D, H, W) into out (O, 1, kd, kh, kw), contiguous; nothing is empty."""
    (N, C, D, height, width), taps = g.shape, out[0].numel()
    extent_g, extent_x = (extents(t, 1, False, True)[1] for t in (g, x))
    sums = torch.zeros(2 * out.numel(), dtype=torch.int64, device=g.device)
    across = min(c.kernel[2], MOST_SUMS)
    down = min(c.kernel[1], MOST_SUMS // across)
    last = is_channels_last(g) and is_channels_last(x)
    columns, words = columns_together(x, g, 1, c.stride[2])
    if columns == 1 and not last:
        columns = min(COLUMNS, width)
    most = min(MOST_ROWS[S], MOST_PRODUCTS // (columns * across * down))
    rows = rows_together(height, down, c.dilation[1], most)
    blocks = triton.cdiv(height, rows), triton.cdiv(width, columns)
    tile = tile_of_lanes(C, N * D * blocks[0], blocks[1], LANES, TILE_LAST if last else None)
    blocks_w = triton.cdiv(blocks[1], tile["BW"])
    pieces = c.kernel[0] * triton.cdiv(c.kernel[1], down) * triton.cdiv(c.kernel[2], across)
    together = triton.cdiv(C, tile["BC"]) * blocks_w * pieces
    turns = triton.cdiv(N * D * blocks[0], tile["BL"] // tile["BW"])
    parts = triton.cdiv(PROGRAMS * processors(g.device), together)
    parts = triton.cdiv(turns, min(triton.cdiv(turns, min(parts, turns)), MOST_POSITIONS // (rows * columns)))
    scaling: dict[str, Any] = {"S": S, "LAST_SIGNIFICAND": LAST_SIGNIFICAND[S]}
    H, W = cuts(c, False, (rows, columns), (down, across))
    TD, TH, TW = c.kernel
    launch(conv_depthwise_sums_kernel, (together * parts,), g, x, extent_g, extent_x, sums, 0, N * D * blocks[0], parts,
           C, C // c.groups, blocks[0], blocks_w, *axes(c, False, (rows, columns)), Strides(*g.stride()),
           Strides(*x.stride()), TD=TD, TH=TH, TW=TW, SD=c.stride[0], H=H, W=W, OWN=c.padding[2],
           VECTOR=words if across == TW else 1, VECTOR_G=vector(g, columns), LAST=last, num_warps=4,
           **tile, **scaling)  # fmt: skip
    launch(conv_depthwise_finish_kernel, (triton.cdiv(out.numel(), 512),), sums, extent_g, extent_x, out, C, taps,
           C // c.groups, BLOCK=512, **scaling)  # fmt: skip
    rows_flags, cols_flags = extent_g[C:].view(c.groups, -1), extent_x[c.groups :].view(c.groups, 1)
    fix_weight_gradient(g, x, out, c, rows_flags, cols_flags)
