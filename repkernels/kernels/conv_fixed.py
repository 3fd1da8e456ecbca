"""`fixed` convolutions on any GPU: implicit products of digits, exact in any order (SPEC.md, "Convolutions").

conv_grid.py says how positions lie, conv_digits.py makes the digits, conv_fixed_finish.py the results. On Hopper the
products are those of conv_fixed_hopper.py; the splits, tiles and engines are as free as in matmul_fixed.py.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution, Triple
from repkernels.kernels.arith import tile_of
from repkernels.kernels.configuration import Configuration, fitted, pick_for, processors
from repkernels.kernels.conv_digits import Planes, by_lines, by_pixels, extents, weight_digits
from repkernels.kernels.conv_fixed_finish import UNSPECIALISED, finish_kernel, finished, group_of, places, step
from repkernels.kernels.conv_fixed_hopper import by_vectors, conv_hopper, conv_hopper_fits
from repkernels.kernels.conv_grid import Tap, backwards, grid_of, shifts, steps
from repkernels.kernels.engine import engine_for
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed import digit_dot
from repkernels.kernels.matmul_fixed_finish import LONGEST_INT32, LONGEST_INT64, joined
from repkernels.kernels.matmul_fixed_hopper import on_hopper
from repkernels.kernels.operand import describe
from repkernels.kernels.sizes import cdiv, next_power_of_2

# Up to so many channels of a group the taps of a row are contracted together with them.
FEW_CHANNELS = 8


@triton.jit(do_not_specialize=[*UNSPECIALISED, "STEPS", "SPLITS", "SPAN"])
def conv_fixed_kernel(
    digits_a, digits_b, part, STEPS, SPLITS, SPAN, table, scale_a, scale_b, bias, out, BATCH, M, N, TAPS, SECTIONS_A,
    SECTIONS_B, PER, P, PH, PW, OD, OH, OW, stride_n, stride_c, stride_d, stride_h, stride_w, CPG, ACROSS,
    S: tl.constexpr, LINES: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GROUP: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, WINDOW16: tl.constexpr,
):  # fmt: skip
    """Persistent over (batch, split, tile). A split covers SPAN steps, drained to int64 every WINDOW of them."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    groups = group_of(BATCH, TAPS, LINES)
    plane_a, plane_b = groups * SECTIONS_A * M, groups * SECTIONS_B * N
    for item in tl.range(tl.program_id(0), BATCH * tiles * SPLITS, tl.num_programs(0)):
        batch = item // (tiles * SPLITS)
        split = (item // tiles) % SPLITS
        pm, pn = tile_of(item % tiles, M, N, BM, BN, GROUP)
        last = min(split * SPAN + SPAN, STEPS)
        total = tl.zeros((BM, BN), tl.int64)
        for window in tl.range(split * SPAN, last, WINDOW, num_stages=1):
            c0 = tl.zeros((BM, BN), tl.int32)
            c1, c2, c3, c4 = c0, c0, c0, c0
            for i in range(window, min(window + WINDOW, last)):
                row_a, k_a, row_b, k_b = step(i, batch, pm * BM, pn * BN, table, M, N, TAPS, SECTIONS_A, SECTIONS_B,
                                              PER, BK, LINES)  # fmt: skip
                x0 = digits_a.load([row_a, k_a])
                y0 = digits_b.load([row_b, k_b]).T
                c0 = digit_dot(x0, y0, c0, WINDOW16)
                if S > 1:
                    x1 = digits_a.load([row_a + plane_a, k_a])
                    y1 = digits_b.load([row_b + plane_b, k_b]).T
                    c1 = digit_dot(x0, y1, c1, WINDOW16)
                    c1 = digit_dot(x1, y0, c1, WINDOW16)
                    c2 = digit_dot(x1, y1, c2, WINDOW16)
                if S > 2:
                    x2 = digits_a.load([row_a + 2 * plane_a, k_a])
                    y2 = digits_b.load([row_b + 2 * plane_b, k_b]).T
                    c2 = digit_dot(x0, y2, c2, WINDOW16)
                    c2 = digit_dot(x2, y0, c2, WINDOW16)
                    c3 = digit_dot(x1, y2, c3, WINDOW16)
                    c3 = digit_dot(x2, y1, c3, WINDOW16)
                if S > 3:
                    x3 = digits_a.load([row_a + 3 * plane_a, k_a])
                    y3 = digits_b.load([row_b + 3 * plane_b, k_b]).T
                    c3 = digit_dot(x0, y3, c3, WINDOW16)
                    c3 = digit_dot(x3, y0, c3, WINDOW16)
                    c4 = digit_dot(x1, y3, c4, WINDOW16)
                    c4 = digit_dot(x2, y2, c4, WINDOW16)
                    c4 = digit_dot(x3, y1, c4, WINDOW16)
            total += joined(c0, c1, c2, c3, c4, S)
        rows = pm * BM + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        if SPLIT:
            at = part + ((split * BATCH + batch).to(tl.int64) * M + rows.to(tl.int64)[:, None]) * N + cols[None, :]
            tl.store(at, total, mask=(rows < M)[:, None] & (cols < N)[None, :])
        else:
            at_rows, at_cols, in_rows, in_cols = places(
                batch, rows, cols, M, N, TAPS, P, PH, PW, OD, OH, OW, CPG, ACROSS,
                stride_n, stride_c, stride_d, stride_h, stride_w, LINES,
            )  # fmt: skip
            y = finished(total.to(tl.float32), group_of(batch, TAPS, LINES), rows, cols, in_rows, in_cols, scale_a,
                         scale_b, bias, out.dtype.element_ty, M, N, S, BIAS)  # fmt: skip
            tl.store(out + at_rows[:, None] + at_cols[None, :], y, mask=in_rows[:, None] & in_cols[None, :])


class Scales(NamedTuple):
    """2 * e + flag of each row and each column of the products, (groups, vectors): which hold a non-finite element.

    pitch: of the line that rows lie on, where they are positions.
    """

    rows: Tensor
    cols: Tensor
    pitch: Triple


class _Shape(NamedTuple):
    """What both kinds of product tell their kernels, in the order in which these take it."""

    BATCH: int
    M: int
    N: int
    TAPS: int
    SECTIONS_A: int
    SECTIONS_B: int
    PER: int
    P: int = 1
    PH: int = 1
    PW: int = 1
    OD: int = 1
    OH: int = 1
    OW: int = 1
    stride_n: int = 0
    stride_c: int = 0
    stride_d: int = 0
    stride_h: int = 0
    stride_w: int = 0
    CPG: int = 1
    ACROSS: int = 1


CONFIGURATIONS = {
    1: (Configuration(128, 128, 128, 8, 4), Configuration(128, 64, 128, 8, 4), Configuration(64, 64, 128, 4, 4)),
    2: (Configuration(128, 128, 128, 8, 3), Configuration(128, 64, 128, 8, 4), Configuration(64, 64, 128, 4, 4)),
    3: (Configuration(128, 64, 128, 8, 3), Configuration(64, 64, 128, 4, 3)),
    4: (Configuration(128, 64, 128, 8, 2), Configuration(64, 64, 128, 4, 2)),
}
WINDOW16_CONFIGURATIONS = (Configuration(64, 64, 64, 4, 2),)


def spread_for_few(channels: int, c: Convolution) -> int:
    """Of how many last axes the taps are contracted together with the channels."""
    return int(channels <= FEW_CHANNELS and c.kernel[2] > 1)


# Digits along a line are read in blocks that begin on 16-byte borders.
BORDER = 16


def spread_by_lines(c: Convolution) -> int:
    """Of how many last axes the taps are rows of their own in a contraction over positions.

    Two where rows of outputs are so short that borders would make them half as long again, or more.
    """
    if c.pointwise:
        return 0
    return 2 if 2 * (-c.output[2] % BORDER) >= c.output[2] else 1


def forward(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, S: int) -> Scales:
    """x (N, C, D, H, W) with w into out (N, O, D', H', W'), nothing empty; fp32, bf16 or fp16."""
    grid = grid_of(c, spread_for_few(w.shape[1], c))
    a = by_pixels(x, c, grid, S, c.stride, None if c.pointwise else extents(x, c.groups, True, False)[0])
    b = weight_digits(w, c.groups, S, grid.spread, False)
    _over_channels(a, b, grid.taps, grid.pitch, bias, out, S)
    return Scales(a.scale, b.scale, grid.pitch)


def input_gradient(g: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, S: int) -> Scales:
    """g (N, O, D', H', W') with w into out (N, C, D, H, W), one phase of its positions after another."""
    grid = grid_of(c, 0).at_outputs()
    a = by_pixels(g, c, grid, S, (1, 1, 1), None if c.pointwise else extents(g, c.groups, True, False)[0])
    b = weight_digits(w, c.groups, S, 0, True)
    phases = backwards(c)
    if not all(taps for _, taps in phases):
        out.copy_(torch.zeros_like(out) if bias is None else torch.where(bias == 0, 0, bias)[:, None, None, None])
    for (pd, ph, pw), taps in phases:
        part = out[:, :, pd :: c.stride[0], ph :: c.stride[1], pw :: c.stride[2]]
        if taps and part.numel():
            _over_channels(a, b, taps, grid.pitch, bias, part, S)
    return Scales(a.scale, b.scale, grid.pitch)


def weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, S: int) -> Scales:
    """g (N, O, D', H', W') with x (N, C, D, H, W) into out (O, C / groups, kd, kh, kw)."""
    cpg = out.shape[1]
    grid = grid_of(c, spread_by_lines(c), BORDER)
    a = by_lines(g, c, grid.at_outputs(), S, (1, 1, 1), extents(g, 1, False, True)[1])
    b = by_lines(x, c, grid, S, c.stride, extents(x, 1, False, True)[1])
    taps, line = len(grid.taps), a.rows.shape[-1]
    (groups, M), N = a.scale.shape, b.scale.shape[1]
    shape = _Shape(groups * taps, M, N, taps, 1, len(grid.phases), 1, CPG=cpg, ACROSS=N // cpg)
    target = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    _product(a, b, shifts(grid.taps, g.device), shape, line, True, None, target, S)
    if target is not out:
        out.copy_(target)
    return Scales(a.scale, b.scale, grid.pitch)


def _over_channels(
    a: Planes, b: Planes, taps: tuple[Tap, ...], pitch: Triple, bias: Tensor | None, out: Tensor, S: int
) -> None:
    groups, M = a.scale.shape
    sections = a.rows.shape[2], b.rows.shape[2]
    shape = _Shape(groups, M, b.scale.shape[1], len(taps), *sections, 1, math.prod(pitch), *pitch[1:], *out.shape[2:],
                   *out.stride())  # fmt: skip
    _product(a, b, steps(taps, M, out.device), shape, a.rows.shape[-1], False, bias, out, S)


def _product(
    a: Planes, b: Planes, table: Tensor, shape: _Shape, K: int, lines: bool, bias: Tensor | None, out: Tensor, S: int
) -> None:
    """K: of one row, which by lines is all of it and otherwise one tap."""
    device = out.device
    window16 = engine_for(device) == "window16"
    hopper = on_hopper(device) and not window16
    configurations = WINDOW16_CONFIGURATIONS if window16 else CONFIGURATIONS[S]
    # A result may pass through shared memory: by vectors, and elsewhere than on Hopper.
    result = 4 if not hopper or out.stride(1) == 1 else 0
    c = _tile(configurations, shape, K, 3 * S if window16 else S, result, device)
    per = cdiv(K, c.BK)
    count = per if lines else per * shape.TAPS
    tiles = shape.BATCH * c.tiles(shape.M, shape.N)
    longest = LONGEST_INT32 // (S * c.BK)
    least = cdiv(count, longest) if hopper else cdiv(count * c.BK, LONGEST_INT64[S])
    splits, span = _splits(count, tiles, least, processors(device))
    part = out.new_empty((splits, shape.BATCH, shape.M, shape.N) if splits > 1 else (1,), dtype=torch.int64)
    arguments = (table, a.scale, b.scale, out if bias is None else bias.contiguous(), out, *shape._replace(PER=per))
    common: dict[str, Any] = {"S": S, "LINES": lines, "BIAS": bias is not None}
    planes = (a.rows.view(-1, a.rows.shape[-1]), b.rows.view(-1, b.rows.shape[-1]))
    programs = min(tiles * splits, processors(device))
    if hopper and conv_hopper_fits(c):
        last = not lines and by_vectors(out, shape.N, c.BN)
        common |= {"SPLIT": splits > 1, "LAST": last and splits == 1}
        conv_hopper(c, *planes, (part, count, splits, span, *arguments), programs, common)
    else:
        launch(conv_fixed_kernel, (programs,), describe(planes[0], [c.BM, c.BK]), describe(planes[1], [c.BN, c.BK]),
               part, count, splits, span, *arguments, BM=c.BM, BN=c.BN, BK=c.BK, GROUP=c.GROUP, SPLIT=splits > 1,
               WINDOW=longest, WINDOW16=window16, num_warps=c.num_warps, num_stages=c.num_stages, **common)  # fmt: skip
    if splits > 1:
        common = {name: common[name] for name in ("S", "LINES", "BIAS")}
        grid = (shape.BATCH * cdiv(shape.M, 32) * cdiv(shape.N, 64),)
        launch(finish_kernel, grid, part, splits, *arguments, BM=32, BN=64, WIDE=count * c.BK > LONGEST_INT64[S],
               **common)  # fmt: skip


def _tile(
    configurations: tuple[Configuration, ...], shape: _Shape, K: int, element: int, result: int, device: torch.device
) -> Configuration:
    """A configuration for the shape, its tile no wider than the columns and no deeper than one row's k."""
    c = pick_for(configurations, (shape.BATCH, shape.M, shape.N), element, device, result)
    BN = max(16, min(c.BN, next_power_of_2(shape.N)))
    BK = max(32, min(c.BK, next_power_of_2(K)))
    return fitted(c._replace(BN=BN, BK=BK, num_stages=min(8, c.num_stages * c.BK // BK)), element, device, result)


# What starting and storing a tile costs, in steps of k, alone and where a split's sums go through memory.
TILE_STEPS = (3, 8)


@functools.lru_cache(4096)
def _splits(count: int, tiles: int, least: int, processors: int) -> tuple[int, int]:
    """Into how many parts `count` steps are cut, and their length, so that the last program ends soonest."""

    def cost(splits: int) -> int:
        span = cdiv(count, splits)
        return cdiv(tiles * splits, processors) * (span + TILE_STEPS[splits > 1])

    splits = min(range(least, max(least, min(count // 4, 4 * processors // tiles)) + 1), key=cost)
    span = cdiv(count, splits)
    return cdiv(count, span), span
