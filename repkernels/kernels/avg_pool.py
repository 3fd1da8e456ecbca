"""avg_pool on a GPU (SPEC.md, "Pooling"): every result sums its taps, every element what its windows give it."""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide
from repkernels.kernels.functions import BLOCK, LANES, minus_zero, tree_sum_rows
from repkernels.kernels.launch import launch
from repkernels.kernels.max_pool import steps
from repkernels.kernels.sizes import cdiv, next_power_of_2
from repkernels.kernels.windows import (
    ELEMENTS,
    UNROLLED,
    Tiles,
    around,
    at,
    constants,
    divided_by,
    end,
    first,
    tile,
    wide,
)
from repkernels.windows import Windows


@triton.jit
def divisor_of(
    d, h, w, D, H, W, OD, OH, OW, given, KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr,
    SH: tl.constexpr, SW: tl.constexpr, PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, ADAPTIVE: tl.constexpr,
    INSIDE: tl.constexpr, GIVEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """RN of what windows (d, h, w) are divided by."""
    if GIVEN:
        count = tl.zeros_like(d + h + w) + given
    else:
        count = divided_by(d, D, OD, KD, SD, PD, ADAPTIVE, INSIDE) * divided_by(h, H, OH, KH, SH, PH, ADAPTIVE, INSIDE)
        count = count * divided_by(w, W, OW, KW, SW, PW, ADAPTIVE, INSIDE)
    return count.to(WIDE)


@triton.jit
def halved(terms, HALF: tl.constexpr, COUNT: tl.constexpr):
    """The first HALF of COUNT terms, each plus the one HALF further on, if there is one."""
    sums = ()
    for j in tl.static_range(HALF):
        if j + HALF < COUNT:
            sums = sums + (terms[j] + terms[j + HALF],)
        else:
            sums = sums + (terms[j],)
    return sums


@triton.jit
def total_of(terms, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """The SUM of COUNT terms; WIDTH: their number or the next power of two."""
    for level in tl.static_range(1, WIDTH.bit_length()):
        terms = halved(terms, WIDTH >> level, COUNT if level == 1 else WIDTH >> (level - 1))
    return terms[0]


@triton.jit
def avg_pool_kernel(
    x, out, rows, C, D, H, W, OD, OH, OW, given, s0, s1, s2, s3, s4, t0, t1, t2, t3, t4,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    ADAPTIVE: tl.constexpr, INSIDE: tl.constexpr, GIVEN: tl.constexpr, FULL: tl.constexpr, WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Windows of few taps, all in registers. WIDTH: their number or the next power of two. FULL: none is missing."""
    n, c, d, h, w, inside = tile(rows, C, OD, OH, OW, CHANNELS, ROWS, COLS, INDEX)
    d0, h0 = first(d, D, OD, SD, PD, ADAPTIVE), first(h, H, OH, SH, PH, ADAPTIVE)
    w0 = first(w, W, OW, SW, PW, ADAPTIVE)
    d1, h1, w1 = end(d, D, OD, ADAPTIVE), end(h, H, OH, ADAPTIVE), end(w, W, OW, ADAPTIVE)
    plane = x + (n * s0 + c.to(INDEX) * s1)
    COUNT: tl.constexpr = KD * KH * KW
    terms = ()
    for k in tl.static_range(COUNT):
        i, j, e = d0 + k // (KH * KW), h0 + k // KW % KH, w0 + k % KW
        there = inside
        if not FULL:
            there = inside & ((i >= 0) & (i < d1)) & ((j >= 0) & (j < h1)) & ((e >= 0) & (e < w1))
        offset = i.to(INDEX) * s2 + j.to(INDEX) * s3 + e.to(INDEX) * s4
        v = tl.load(plane + offset, mask=there, other=0.0).to(WIDE)
        if not FULL:
            v = tl.where(there, v, minus_zero(WIDE))
        terms = terms + (v,)
    divisor = divisor_of(
        d, h, w, D, H, W, OD, OH, OW, given, KD, KH, KW, SD, SH, SW, PD, PH, PW, ADAPTIVE, INSIDE, GIVEN, WIDE
    )
    mean = divide(total_of(terms, COUNT, WIDTH), tl.broadcast_to(divisor, (ROWS, COLS)))
    to = at(n, c, d, h, w, t0, t1, t2, t3, t4, INDEX)
    tl.store(out + to, mean.to(out.dtype.element_ty), mask=inside)


@triton.jit
def avg_pool_lanes_kernel(
    x, out, total, C, D, H, W, OD, OH, OW, given, s0, s1, s2, s3, s4, t0, t1, t2, t3, t4,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    ADAPTIVE: tl.constexpr, INSIDE: tl.constexpr, GIVEN: tl.constexpr, WIDTH: tl.constexpr, COLS: tl.constexpr,
    BLOCKS: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Any windows: taps on WIDTH lanes, COLS results to a program; total: of all results, in row-major order."""
    o = tl.program_id(0).to(tl.int64) * COLS + tl.arange(0, COLS)
    inside = o < total
    w, r = (o % OW).to(tl.int32), o // OW
    h, r = (r % OH).to(tl.int32), r // OH
    d, r = (r % OD).to(tl.int32), r // OD
    c, n = r % C, r // C
    d0, h0 = first(d, D, OD, SD, PD, ADAPTIVE)[None, :], first(h, H, OH, SH, PH, ADAPTIVE)[None, :]
    w0 = first(w, W, OW, SW, PW, ADAPTIVE)[None, :]
    d1, h1 = end(d, D, OD, ADAPTIVE)[None, :], end(h, H, OH, ADAPTIVE)[None, :]
    w1 = end(w, W, OW, ADAPTIVE)[None, :]
    plane = x + (n * s0 + c * s1)[None, :]
    lane = tl.arange(0, WIDTH)[:, None]
    COUNT: tl.constexpr = KD * KH * KW
    sums = tl.broadcast_to(minus_zero(WIDE), (BLOCKS, COLS))
    for block in range(tl.cdiv(COUNT, BLOCK)):
        lanes = tl.broadcast_to(minus_zero(WIDE), (WIDTH, COLS))
        for start in range(block * BLOCK, tl.minimum((block + 1) * BLOCK, COUNT), WIDTH):
            k = start + lane
            i, j, e = d0 + k // (KH * KW), h0 + k // KW % KH, w0 + k % KW
            there = inside[None, :] & (k < COUNT) & ((i >= 0) & (i < d1)) & ((j >= 0) & (j < h1))
            there = there & ((e >= 0) & (e < w1))
            offset = i.to(tl.int64) * s2 + j.to(tl.int64) * s3 + e.to(tl.int64) * s4
            v = tl.load(plane + offset, mask=there, other=0.0).to(WIDE)
            lanes = lanes + tl.where(there, v, minus_zero(WIDE))
        s = tree_sum_rows(lanes, WIDTH, COLS)
        sums = tl.where(tl.arange(0, BLOCKS)[:, None] == block, s[None, :], sums)
    if BLOCKS > 1:
        s = tree_sum_rows(sums, BLOCKS, COLS)
    else:
        s = tl.reshape(sums, (COLS,))
    divisor = divisor_of(
        d, h, w, D, H, W, OD, OH, OW, given, KD, KH, KW, SD, SH, SW, PD, PH, PW, ADAPTIVE, INSIDE, GIVEN, WIDE
    )
    to = n * t0 + c * t1 + d.to(tl.int64) * t2 + h.to(tl.int64) * t3 + w.to(tl.int64) * t4
    tl.store(out + to, divide(s, divisor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def avg_pool_gradient_kernel(
    grad, out, rows, C, D, H, W, CELLS, OD, OH, OW, given, g0, g1, g2, g3, g4, s0, s1, s2, s3, s4,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    ADAPTIVE: tl.constexpr, INSIDE: tl.constexpr, GIVEN: tl.constexpr, MD: tl.constexpr, MH: tl.constexpr,
    MW: tl.constexpr, STEP: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out (N, C, D, H, W); strides g of grad, s of out. CELLS and STEP as for max_pool's gradient."""
    n, c, d, q, w, inside = tile(rows, C, D, CELLS, W, CHANNELS, ROWS, COLS, INDEX)
    plane = grad + (n * g0 + c.to(INDEX) * g1)
    COUNT: tl.constexpr = MD * MH * MW
    if STEP == 0:
        total = tl.zeros((ROWS, COLS), WIDE)
        for k in range(COUNT):
            od, _, is_d = around(d, k // (MH * MW), D, OD, MD, KD, SD, PD, RD, ADAPTIVE)
            oh, _, is_h = around(q, k // MW % MH, H, OH, MH, KH, SH, PH, RH, ADAPTIVE)
            ow, _, is_w = around(w, k % MW, W, OW, MW, KW, SW, PW, RW, ADAPTIVE)
            there = inside & is_d & is_h & is_w
            of = (od.to(INDEX) * g2 + oh.to(INDEX) * g3) + ow.to(INDEX) * g4
            g = tl.load(plane + of, mask=there, other=0.0).to(WIDE)
            divisor = divisor_of(
                od, oh, ow, D, H, W, OD, OH, OW, given, KD, KH, KW, SD, SH, SW, PD, PH, PW, ADAPTIVE, INSIDE, GIVEN,
                WIDE,
            )  # fmt: skip
            total = tl.where(there, total + divide(g, tl.broadcast_to(divisor, (ROWS, COLS))), total)
        to = at(n, c, d, q, w, s0, s1, s2, s3, s4, INDEX)
        tl.store(out + to, total.to(out.dtype.element_ty), mask=inside)
    else:
        shares = ()
        for k in tl.static_range(COUNT):
            od, _, is_d = around(d, k // (MH * MW), D, OD, MD, KD, SD, PD, RD, ADAPTIVE)
            ow, _, is_w = around(w, k % MW, W, OW, MW, KW, SW, PW, RW, ADAPTIVE)
            if STEP > 1:
                oh = q - (MH - 1) + k // MW % MH
                is_h = (oh >= 0) & (oh < OH)
            else:
                oh, _, is_h = around(q, k // MW % MH, H, OH, MH, KH, SH, PH, RH, ADAPTIVE)
            there = inside & is_d & is_h & is_w
            of = (od.to(INDEX) * g2 + oh.to(INDEX) * g3) + ow.to(INDEX) * g4
            g = tl.load(plane + of, mask=there, other=0.0).to(WIDE)
            divisor = divisor_of(
                od, oh, ow, D, H, W, OD, OH, OW, given, KD, KH, KW, SD, SH, SW, PD, PH, PW, ADAPTIVE, INSIDE, GIVEN,
                WIDE,
            )  # fmt: skip
            share = divide(g, tl.broadcast_to(divisor, (ROWS, COLS)))
            # The total begins as +0, which -0 leaves as it is.
            shares = shares + (tl.where(there, share, minus_zero(WIDE)),)
        for f in tl.static_range(STEP):
            total = tl.zeros((ROWS, COLS), WIDE)
            for k in tl.static_range(COUNT):
                if STEP == 1 or f + (MH - 1 - k // MW % MH) * SH < KH:
                    total = total + shares[k]
            h = q * STEP + f - PH if STEP > 1 else q
            to = at(n, c, d, h, w, s0, s1, s2, s3, s4, INDEX)
            tl.store(out + to, total.to(out.dtype.element_ty), mask=inside & (h >= 0) & (h < H))


def forward(x: Tensor, out: Tensor, w: Windows, divide_by: int, divisor: int) -> None:
    """x (N, C, D, H, W), any strides -> out (N, C, *output), without gaps.

    divisor: of every window, or 0: divide_by 0 counts the window's positions in the padded input, 1 those inside.
    """
    shared = constants(w) | {"INSIDE": divide_by == 1, "GIVEN": divisor != 0}
    if w.taps <= UNROLLED:
        tiles = Tiles(out, (x,), ELEMENTS if w.taps <= 4 else ELEMENTS // 2)
        launch(
            avg_pool_kernel, tiles.grid, x, out, tiles.rows, x.shape[1], *w.size, *w.output, divisor, *x.stride(),
            *out.stride(), **shared, FULL=w.full, WIDTH=next_power_of_2(w.taps), **tiles.constants,
        )  # fmt: skip
        return
    width = min(LANES.value, next_power_of_2(w.taps))
    blocks = cdiv(w.taps, BLOCK.value)
    if blocks > LANES.value:
        raise NotImplementedError(f"kernel_size: {w.kernel} has more than {LANES.value * BLOCK.value} taps")
    cols = max(4, 2048 // width)
    launch(
        avg_pool_lanes_kernel, (cdiv(out.numel(), cols),), x, out, out.numel(), x.shape[1], *w.size, *w.output,
        divisor, *x.stride(), *out.stride(), **shared, WIDTH=width, COLS=cols, BLOCKS=next_power_of_2(blocks),
        BLOCK=BLOCK.value, WIDE=wide(out.dtype),
    )  # fmt: skip


def backward(grad: Tensor, out: Tensor, w: Windows, divide_by: int, divisor: int) -> None:
    """grad (N, C, *output), any strides -> out (N, C, D, H, W), without gaps, the input's gradient."""
    step, cells = steps(w)
    most = w.around
    tiles = Tiles(out, (grad,), ELEMENTS if most[0] * most[1] * most[2] <= 4 else ELEMENTS // 2, cells)
    launch(
        avg_pool_gradient_kernel, tiles.grid, grad, out, tiles.rows, out.shape[1], *w.size, cells, *w.output, divisor,
        *grad.stride(), *out.stride(), **constants(w), INSIDE=divide_by == 1, GIVEN=divisor != 0, MD=most[0],
        MH=most[1], MW=most[2], STEP=step, **tiles.constants,
    )  # fmt: skip
