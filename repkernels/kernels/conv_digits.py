"""Digits of the operands of a convolution, on the line of a grid (SPEC.md, "Convolutions" and "Fixed-point digits").

Positions are laid by pixels, channels together, for contractions over channels; or by lines, positions together, for
contractions over positions. Scales come from a pass before, but those of pixels.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution, Triple
from repkernels.digits import padded
from repkernels.kernels.arith import LAST_SIGNIFICAND, ldexp, low_digit, magnitude, round_half_even, scale_exponent
from repkernels.kernels.conv_grid import Grid, origins
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv, next_power_of_2


class Planes(NamedTuple):
    """int8 digits in `rows` (S, groups, phases or taps, R, K rounded up to 16), most significant first.

    scale: int32 (groups, R), 2 * e + flag of each row, as Digits has it; R counts the rows of one phase.
    """

    rows: Tensor
    scale: Tensor


@triton.jit(do_not_specialize=["C", "L", "CPG", "stride_n"])
def extent_kernel(
    x, samples, channels, C, L, CPG, stride_n, stride_c, stride_l,
    BY_SAMPLE: tl.constexpr, BY_CHANNEL: tl.constexpr, BC: tl.constexpr, BL: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """The largest finite magnitude, as bits, and whether any element is not finite, of x (N, C, L).

    samples: (2, N, groups), groups of CPG channels. channels: (2, C). Both begin as 0; BC divides CPG or is 1.
    """
    parts, blocks = tl.cdiv(L, BL * STEPS), tl.cdiv(C, BC)
    part = tl.program_id(0) % parts
    block = (tl.program_id(0) // parts) % blocks
    n = tl.program_id(0) // (parts * blocks)
    cs = block * BC + tl.arange(0, BC)
    at = x + n.to(tl.int64) * stride_n + cs.to(tl.int64) * stride_c
    largest = tl.zeros((BC,), tl.int32)
    flag = tl.zeros((BC,), tl.int32)
    for step in tl.static_range(STEPS):
        ls = (part * STEPS + step) * BL + tl.arange(0, BL)
        mask = (cs < C)[:, None] & (ls < L)[None, :]
        bits = magnitude(
            tl.load(at[:, None] + ls.to(tl.int64)[None, :] * stride_l, mask=mask, other=0.0).to(tl.float32)
        )
        finite = bits < 0x7F800000
        largest = tl.maximum(largest, tl.max(tl.where(finite, bits, 0), 1))
        flag = tl.maximum(flag, tl.max((~finite).to(tl.int32), 1))
    if BY_CHANNEL:
        tl.atomic_max(channels + cs, largest, mask=cs < C, sem="relaxed")
        tl.atomic_max(channels + C + cs, flag, mask=(cs < C) & (flag != 0), sem="relaxed")
    if BY_SAMPLE:
        groups = C // CPG
        samples_all = groups * (tl.num_programs(0) // (parts * blocks))
        to = samples + n * groups + (block * BC) // CPG
        tl.atomic_max(to, tl.max(largest, 0), sem="relaxed")
        tl.atomic_max(to + samples_all, tl.max(flag, 0), sem="relaxed")


def extents(x: Tensor, groups: int, by_sample: bool, by_channel: bool) -> tuple[Tensor, Tensor]:
    """((2, N, groups), (2, C)) int32: largest finite magnitudes as bits, then flags; zeros where not asked for."""
    N, C = x.shape[:2]
    line = lined(x)
    L, cpg = line.shape[2], C // groups
    both = x.new_zeros((2 * N * groups + 2 * C,), dtype=torch.int32)
    samples, channels = both[: 2 * N * groups], both[2 * N * groups :]
    BL = min(next_power_of_2(L), 1024) if line.stride(2) == 1 else 32
    BC = max(1, 4096 // BL)
    if by_sample:
        BC = min(BC, cpg & -cpg)  # the largest power of two that divides it
    steps = min(4, cdiv(L, BL))
    grid = (N * cdiv(C, BC) * cdiv(L, BL * steps),)
    launch(extent_kernel, grid, line, samples, channels, C, L, cpg, *line.stride(), BY_SAMPLE=by_sample,
           BY_CHANNEL=by_channel, BC=BC, BL=BL, STEPS=steps)  # fmt: skip
    return samples, channels


def lined(x: Tensor) -> Tensor:
    """(N, C, D, H, W) as (N, C, positions), a view where the spatial axes lie in one line."""
    return x.flatten(2)


@triton.jit
def store_planes(x, e, at, mask, plane, S: tl.constexpr, TURNED: tl.constexpr):
    """The digits of fp32 x with exponents e, whose shapes broadcast, at `at` of S planes; 0 for what is not finite.

    TURNED: `at` and mask are those of the transposed x. So its elements are read, and its digits written, each in the
    order that memory has, which the compiler would make one order for both.
    """
    finite = tl.where(magnitude(x) < 0x7F800000, x, 0.0)
    q = round_half_even(ldexp(finite, -e), S)
    for i in tl.static_range(S):
        d, q = low_digit(q)
        if TURNED:
            d = tl.trans(d)
        tl.store(at + (S - 1 - i) * plane, d, mask=mask)


@triton.jit
def place(m, origins, f, P, PH, PW, SD, SH, SW):
    """Sample and input coordinates of positions m of a line, phase f."""
    rest = m % P
    d = (rest // (PH * PW)) * SD + tl.load(origins + 3 * f)
    h = (rest // PW) % PH * SH + tl.load(origins + 3 * f + 1)
    w = rest % PW * SW + tl.load(origins + 3 * f + 2)
    return m // P, d, h, w


_UNSPECIALISED = [
    "N", "CPG", "CROSS", "D", "H", "W", "P", "PH", "PW", "KW", "DILH", "DILW", "PADH", "PADW", "stride_n",
]  # fmt: skip


@triton.jit(do_not_specialize=_UNSPECIALISED)
def digits_kernel(
    x, extent, planes, scale, origins, N, CPG, CROSS, D, H, W, P, PH, PW, SD, SH, SW, KW, DILH, DILW, PADH, PADW,
    LINE, PHASES,
    stride_n, stride_c, stride_d, stride_h, stride_w, plane, to_row, CPAD,
    S: tl.constexpr, LAST: tl.constexpr, PIXELS: tl.constexpr, TOGETHER: tl.constexpr,
    SPREAD: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Digits of x (N, groups of CPG channels, D, H, W) on the line of each phase, LINE positions and CPAD channels.

    PIXELS: scales follow samples, extent is (2, N, groups); otherwise channels, extent is (2, groups * CPG).
    S = 0: the elements themselves. The taps of some last axes, KW in a row, may be spread: by lines, a section of the
    lines of all channels each; by pixels, with TOGETHER, the taps of the last axis, channel k being (tap, channel).
    """
    if PIXELS:
        blocks, taps = tl.cdiv(CPAD, BC), 1
    else:
        blocks, taps = tl.cdiv(CPG, BC), CROSS // CPG
    parts = tl.cdiv(LINE, BP)
    each = tl.program_id(0) // taps
    tap = tl.program_id(0) % taps
    part = each % parts
    block = (each // parts) % blocks
    f = (each // (parts * blocks)) % PHASES
    g = each // (parts * blocks * PHASES)
    groups = tl.num_programs(0) // (taps * parts * blocks * PHASES)
    m = part * BP + tl.arange(0, BP)
    k = block * BC + tl.arange(0, BC)
    n, d, h, w = place(m, origins, f, P, PH, PW, SD, SH, SW)
    inside = (m < N * P) & (d < D)
    at = x + n.to(tl.int64) * stride_n + d.to(tl.int64) * stride_d
    # Positions are the first axis of a tile: of two that it knows nothing of, the compiler reads along the first.
    if TOGETHER:
        c = g * CPG + k % CPG
        across = w[:, None] + (k // CPG * DILW - PADW)[None, :]
        mask = (inside & (h < H))[:, None] & (k < CROSS)[None, :] & (across >= 0) & (across < W)
        at += h.to(tl.int64) * stride_h
        v = tl.load(at[:, None] + c.to(tl.int64)[None, :] * stride_c + across * stride_w, mask=mask, other=0.0)
    else:
        c = g * CPG + k
        if SPREAD > 1:
            h += tap // KW * DILH - PADH
        if SPREAD > 0:
            w += tap % KW * DILW - PADW
        inside = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        at += h.to(tl.int64) * stride_h + w * stride_w
        mask = inside[:, None] & (k < CPG)[None, :]
        v = tl.load(at[:, None] + c.to(tl.int64)[None, :] * stride_c, mask=mask, other=0.0)
    v = v.to(tl.float32)
    section = (g * PHASES + f).to(tl.int64) * to_row
    if PIXELS:
        to = planes + section + m.to(tl.int64)[:, None] * CPAD + k[None, :]
        written = (m < LINE)[:, None] & (k < CPAD)[None, :]
    else:
        to = planes + section + (tap * CPG + k).to(tl.int64)[:, None] * LINE + m[None, :]
        written = (m < LINE)[None, :] & (k < CPG)[:, None]
    plane = tl.cast(plane, tl.int64)
    if S == 0:
        tl.store(to, v.to(planes.dtype.element_ty), mask=written)
    elif PIXELS:
        known = m < N * P
        e = scale_exponent(tl.load(extent + n * groups + g, mask=known, other=0), S, LAST)
        if block == 0 and f == 0:
            flag = tl.load(extent + (N + n) * groups + g, mask=known, other=0)
            tl.store(scale + g.to(tl.int64) * N * P + m, 2 * e + flag, mask=known)
        store_planes(v, e[:, None], to, written, plane, S, False)
    else:
        e = scale_exponent(tl.load(extent + c, mask=k < CPG, other=0), S, LAST)
        if part == 0 and f == 0:
            flag = tl.load(extent + groups * CPG + c, mask=k < CPG, other=0)
            tl.store(scale + g * CROSS + tap * CPG + k, 2 * e + flag, mask=k < CPG)
        store_planes(v, e[None, :], to, written, plane, S, True)


@triton.jit(do_not_specialize=["N", "CPG", "P", "PH", "PW", "stride_n"])
def pixels_kernel(
    x, planes, scale, origins, N, CPG, P, PH, PW, SD, SH, SW, stride_n, stride_c, stride_d, stride_h, stride_w, plane,
    CPAD, S: tl.constexpr, LAST: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Pixels that have scales of their own: (groups, N * P, CPAD) digits, every position of the line inside."""
    parts = tl.cdiv(N * P, BP)
    m = tl.program_id(0) % parts * BP + tl.arange(0, BP)
    g = tl.program_id(0) // parts
    n, d, h, w = place(m, origins, 0, P, PH, PW, SD, SH, SW)
    inside = m < N * P
    at = x + n.to(tl.int64) * stride_n + d.to(tl.int64) * stride_d + h.to(tl.int64) * stride_h + w * stride_w
    largest = tl.zeros((BP,), tl.int32)
    flag = tl.zeros((BP,), tl.int32)
    for k0 in range(0, CPG, BC):
        k = k0 + tl.arange(0, BC)
        mask = inside[:, None] & (k < CPG)[None, :]
        v = tl.load(at[:, None] + (g * CPG + k).to(tl.int64)[None, :] * stride_c, mask=mask, other=0.0)
        bits = magnitude(v.to(tl.float32))
        finite = bits < 0x7F800000
        largest = tl.maximum(largest, tl.max(tl.where(finite, bits, 0), 1))
        flag = tl.maximum(flag, tl.max((~finite).to(tl.int32), 1))
    e = scale_exponent(largest, S, LAST)
    row = g.to(tl.int64) * N * P + m
    tl.store(scale + row, 2 * e + flag, mask=inside)
    for k0 in range(0, CPAD, BC):
        k = k0 + tl.arange(0, BC)
        mask = inside[:, None] & (k < CPG)[None, :]
        v = tl.load(at[:, None] + (g * CPG + k).to(tl.int64)[None, :] * stride_c, mask=mask, other=0.0)
        to = planes + row[:, None] * CPAD + k[None, :]
        store_planes(v.to(tl.float32), e[:, None], to, inside[:, None] & (k < CPAD)[None, :],
                     tl.cast(plane, tl.int64), S, False)  # fmt: skip


def by_pixels(x: Tensor, c: Convolution, grid: Grid, S: int, stride: Triple, samples: Tensor | None) -> Planes:
    """Digits of x with the channels of a position together: (S, groups, phases, N * positions, channels).

    stride: of x's coordinates along the grid. samples: extents of samples; None where pixels have their own scales.
    """
    N, C = x.shape[:2]
    cpg, P = C // c.groups, grid.positions
    cross = cpg * math.prod(c.kernel[3 - grid.spread :])
    cpad, M, F = padded(cross), N * P, len(grid.phases)
    rows = x.new_empty((S, c.groups, F, M, cpad), dtype=torch.int8)
    scale = x.new_empty((c.groups, M), dtype=torch.int32)
    common: dict[str, Any] = {"S": S, "LAST": LAST_SIGNIFICAND[S]}
    BC = min(64, next_power_of_2(cpad))
    at = origins(grid.phases, x.device)
    plane = rows.stride(0)
    if samples is None:
        BP = 32 if x.stride(1) != 1 else 16
        launch(pixels_kernel, (c.groups * cdiv(M, BP),), x, rows, scale, at, N, cpg, P, *grid.pitch[1:], *stride,
               *x.stride(), plane, cpad, BC=min(128, next_power_of_2(cpad)), BP=BP, **common)  # fmt: skip
        return Planes(rows, scale)
    BP = 4096 // BC
    programs = c.groups * F * cdiv(cpad, BC) * cdiv(M, BP)
    launch(digits_kernel, (programs,), x, samples, rows, scale, at, N, cpg, cross, *x.shape[2:], P, *grid.pitch[1:],
           *stride, c.kernel[2], *c.dilation[1:], *c.padding[1:], M, F, *x.stride(), plane, M * cpad, cpad,
           PIXELS=True, TOGETHER=grid.spread > 0, SPREAD=0, BC=BC, BP=BP, **common)  # fmt: skip
    return Planes(rows, scale)


def elements(x: Tensor, c: Convolution, grid: Grid, stride: Triple, multiple: int = 1) -> Tensor:
    """(groups, phases, line, channels rounded up to 16): x itself with the channels of a position together.

    line: N * positions, rounded up to a multiple with zeros.
    """
    N, C = x.shape[:2]
    cpg, P = C // c.groups, grid.positions
    cross = cpg * math.prod(c.kernel[3 - grid.spread :])
    cpad, line, F = padded(cross), cdiv(N * P, multiple) * multiple, len(grid.phases)
    rows = x.new_empty((c.groups, F, line, cpad))
    BC = min(64, next_power_of_2(cpad))
    programs = c.groups * F * cdiv(cpad, BC) * cdiv(line, 4096 // BC)
    launch(digits_kernel, (programs,), x, x, rows, x, origins(grid.phases, x.device), N, cpg, cross, *x.shape[2:], P,
           *grid.pitch[1:], *stride, c.kernel[2], *c.dilation[1:], *c.padding[1:], line, F,
           *x.stride(), 0, line * cpad, cpad, S=0, LAST=0, PIXELS=True, TOGETHER=grid.spread > 0, SPREAD=0, BC=BC,
           BP=4096 // BC)  # fmt: skip
    return rows


# Channels and positions of a program where channels are apart in memory, and where they lie together.
LINES = (32, 128)
LINES_LAST = (64, 128)


def by_lines(x: Tensor, c: Convolution, grid: Grid, S: int, stride: Triple, channels: Tensor) -> Planes:
    """Digits of x with the positions of a channel together: (S, groups, phases, channels, N * positions).

    channels: extents of channels.
    """
    N, C = x.shape[:2]
    cpg = C // c.groups
    cross = cpg * math.prod(c.kernel[3 - grid.spread :])
    line, F = padded(N * grid.positions), len(grid.phases)
    rows = x.new_empty((S, c.groups, F, cross, line), dtype=torch.int8)
    scale = x.new_empty((c.groups, cross), dtype=torch.int32)
    BC, BP = LINES_LAST if x.stride(1) == 1 else LINES
    BC = min(BC, next_power_of_2(cpg))
    programs = c.groups * F * (cross // cpg) * cdiv(cpg, BC) * cdiv(line, BP)
    launch(digits_kernel, (programs,), x, channels, rows, scale, origins(grid.phases, x.device), N, cpg, cross,
           *x.shape[2:], grid.positions, *grid.pitch[1:], *stride, c.kernel[2], *c.dilation[1:], *c.padding[1:], line,
           F, *x.stride(), rows.stride(0), cross * line, cpg, S=S, LAST=LAST_SIGNIFICAND[S], PIXELS=False,
           TOGETHER=False, SPREAD=grid.spread, BC=BC, BP=BP,
           num_warps=max(1, BC * BP // 1024))  # fmt: skip
    return Planes(rows, scale)


@triton.jit(do_not_specialize=["R", "C", "T1", "T2", "KW"])
def weight_kernel(
    w, planes, scale, R, C, T1, T2, KW, stride_g, stride_r, stride_c, plane,
    S: tl.constexpr, LAST: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Digits of rows of a weight, over C channels and T1 * T2 taps, to (group, T1, R, KW), k = (tap of T2, channel)."""
    g = tl.program_id(0) // tl.cdiv(R, BR)
    r = tl.program_id(0) % tl.cdiv(R, BR) * BR + tl.arange(0, BR)
    at = w + g.to(tl.int64) * stride_g + r.to(tl.int64) * stride_r
    largest = tl.zeros((BR,), tl.int32)
    flag = tl.zeros((BR,), tl.int32)
    T = T1 * T2
    for j0 in range(0, C * T, BK):
        j = j0 + tl.arange(0, BK)
        mask = (j < C * T)[:, None] & (r < R)[None, :]
        v = tl.load(at[None, :] + ((j // T).to(tl.int64) * stride_c + j % T)[:, None], mask=mask, other=0.0)
        bits = magnitude(v.to(tl.float32))
        finite = bits < 0x7F800000
        largest = tl.maximum(largest, tl.max(tl.where(finite, bits, 0), 0))
        flag = tl.maximum(flag, tl.max((~finite).to(tl.int32), 0))
    e = scale_exponent(largest, S, LAST)
    tl.store(scale + g * R + r, 2 * e + flag, mask=r < R)
    for t in range(T1):
        to = planes + ((g * T1 + t).to(tl.int64) * R + r) * KW
        for k0 in range(0, KW, BK):
            k = k0 + tl.arange(0, BK)
            mask = (k < C * T2)[:, None] & (r < R)[None, :]
            taken = (k % C).to(tl.int64) * stride_c + t * T2 + k // C
            v = tl.load(at[None, :] + taken[:, None], mask=mask, other=0.0).to(tl.float32)
            written = (k < KW)[:, None] & (r < R)[None, :]
            store_planes(v, e[None, :], to[None, :] + k[:, None], written, tl.cast(plane, tl.int64), S, False)


def weight_digits(w: Tensor, groups: int, S: int, spread: int, across: bool) -> Planes:
    """Digits of w (O, C / groups, kd, kh, kw): (S, groups, taps, R, K), taps without `spread` last axes.

    R is an output channel of the group and K its input channels, or with `across` the other way round.
    """
    O, cpg = w.shape[:2]
    T = math.prod(w.shape[2:])
    T2 = math.prod(w.shape[5 - spread :])
    T1 = T // T2
    rows_first = w.reshape(groups, O // groups, cpg, T)
    w = (rows_first.transpose(1, 2) if across else rows_first).contiguous()
    R, C = w.shape[1:3]
    KW = padded(C * T2)
    rows = w.new_empty((S, groups, T1, R, KW), dtype=torch.int8)
    scale = w.new_empty((groups, R), dtype=torch.int32)
    BK = min(512, next_power_of_2(KW))
    BR = min(1024 // BK, next_power_of_2(R))
    launch(weight_kernel, (groups * cdiv(R, BR),), w, rows, scale, R, C, T1, T2, KW, *w.stride()[:3],
           rows.stride(0), S=S, LAST=LAST_SIGNIFICAND[S], BR=BR, BK=BK)  # fmt: skip
    return Planes(rows, scale)
