"""max_pool on a GPU (SPEC.md, "Pooling"): every result looks at its taps, every element at the windows around it.

A gradient's program takes, of STEP neighbouring rows of an image that the same windows cover, all: it reads what those
windows took once.
"""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.windows import ELEMENTS, UNROLLED, Tiles, around, at, constants, end, first, tile
from repkernels.windows import Windows

# Windows around an element whose results are kept in registers.
KEPT = 16


@triton.jit
def better(
    best, tap, k, x, inside, d0, h0, w0, d1, h1, w1, s2, s3, s4, KH: tl.constexpr, KW: tl.constexpr, RD: tl.constexpr,
    RH: tl.constexpr, RW: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The larger of best and tap k. Taps come in descending order: of equals, the last seen one is the first."""
    d, h, w = d0 + k // (KH * KW) * RD, h0 + k // KW % KH * RH, w0 + k % KW * RW
    there = inside & ((d >= 0) & (d < d1)) & ((h >= 0) & (h < h1)) & ((w >= 0) & (w < w1))
    offset = d.to(INDEX) * s2 + h.to(INDEX) * s3 + w.to(INDEX) * s4
    v = tl.load(x + offset, mask=there, other=0.0).to(WIDE)
    # A NaN stays, so it is the last one in ascending order.
    take = there & (best == best) & ((v >= best) | (v != v))
    return tl.where(take, v, best), tl.where(take, k, tap)


@triton.jit
def max_pool_kernel(
    x, starts, values, taps, rows, C, D, H, W, OD, OH, OW, s0, s1, s2, s3, s4, t0, t1, t2, t3, t4,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    ADAPTIVE: tl.constexpr, STARTS: tl.constexpr, STATIC: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """values and taps (N, C, OD, OH, OW) of x; strides s of x, t of both results."""
    n, c, d, h, w, inside = tile(rows, C, OD, OH, OW, CHANNELS, ROWS, COLS, INDEX)
    if STARTS:
        table = starts + (n * C + c).to(tl.int64) * (OD + OH + OW)
        d0 = tl.load(table + d, mask=inside, other=0).to(tl.int32)
        h0 = tl.load(table + (OD + h), mask=inside, other=0).to(tl.int32)
        w0 = tl.load(table + (OD + OH + w), mask=inside, other=0).to(tl.int32)
    else:
        d0 = first(d, D, OD, SD, PD, ADAPTIVE)
        h0 = first(h, H, OH, SH, PH, ADAPTIVE)
        w0 = first(w, W, OW, SW, PW, ADAPTIVE)
    d1, h1, w1 = end(d, D, OD, ADAPTIVE), end(h, H, OH, ADAPTIVE), end(w, W, OW, ADAPTIVE)
    plane = x + (n * s0 + c.to(INDEX) * s1)
    best = tl.full((ROWS, COLS), float("-inf"), WIDE)
    tap = tl.full((ROWS, COLS), -1, tl.int32)
    COUNT: tl.constexpr = KD * KH * KW
    if STATIC:
        for i in tl.static_range(COUNT):
            best, tap = better(
                best, tap, COUNT - 1 - i, plane, inside, d0, h0, w0, d1, h1, w1, s2, s3, s4, KH, KW, RD, RH, RW, INDEX,
                WIDE,
            )  # fmt: skip
    else:
        for i in range(COUNT):
            best, tap = better(
                best, tap, COUNT - 1 - i, plane, inside, d0, h0, w0, d1, h1, w1, s2, s3, s4, KH, KW, RD, RH, RW, INDEX,
                WIDE,
            )  # fmt: skip
    to = at(n, c, d, h, w, t0, t1, t2, t3, t4, INDEX)
    tl.store(values + to, best.to(values.dtype.element_ty), mask=inside)
    tl.store(taps + to, tap.to(taps.dtype.element_ty), mask=inside)


@triton.jit
def max_pool_gradient_kernel(
    grad, taps, out, rows, C, D, H, W, CELLS, OD, OH, OW, g0, g1, g2, g3, g4, s0, s1, s2, s3, s4,
    KD: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
    PD: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, RD: tl.constexpr, RH: tl.constexpr, RW: tl.constexpr,
    ADAPTIVE: tl.constexpr, MD: tl.constexpr, MH: tl.constexpr, MW: tl.constexpr, STEP: tl.constexpr,
    CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, INDEX: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """out (N, C, D, H, W); strides g of grad and taps, s of out. Row q of CELLS is STEP rows of an image, from q * SH.

    STEP is SH, or 1 and a row is one of the image; 0: the same, in a loop over the windows.
    """
    n, c, d, q, w, inside = tile(rows, C, D, CELLS, W, CHANNELS, ROWS, COLS, INDEX)
    plane = n * g0 + c.to(INDEX) * g1
    COUNT: tl.constexpr = MD * MH * MW
    if STEP == 0:
        total = tl.zeros((ROWS, COLS), WIDE)
        for k in range(COUNT):
            od, td, is_d = around(d, k // (MH * MW), D, OD, MD, KD, SD, PD, RD, ADAPTIVE)
            oh, th, is_h = around(q, k // MW % MH, H, OH, MH, KH, SH, PH, RH, ADAPTIVE)
            ow, tw, is_w = around(w, k % MW, W, OW, MW, KW, SW, PW, RW, ADAPTIVE)
            there = inside & is_d & is_h & is_w
            of = plane + (od.to(INDEX) * g2 + oh.to(INDEX) * g3) + ow.to(INDEX) * g4
            tap = tl.load(taps + of, mask=there, other=0).to(tl.int32)
            g = tl.load(grad + of, mask=there, other=0.0).to(WIDE)
            total = tl.where(there & (tap == (td * KH + th) * KW + tw), total + g, total)
        to = at(n, c, d, q, w, s0, s1, s2, s3, s4, INDEX)
        tl.store(out + to, total.to(out.dtype.element_ty), mask=inside)
    else:
        grads, took = (), ()
        for k in tl.static_range(COUNT):
            od, td, is_d = around(d, k // (MH * MW), D, OD, MD, KD, SD, PD, RD, ADAPTIVE)
            ow, tw, is_w = around(w, k % MW, W, OW, MW, KW, SW, PW, RW, ADAPTIVE)
            if STEP > 1:
                oh = q - (MH - 1) + k // MW % MH
                is_h = (oh >= 0) & (oh < OH)
                expected = td * KH * KW + tw
            else:
                oh, th, is_h = around(q, k // MW % MH, H, OH, MH, KH, SH, PH, RH, ADAPTIVE)
                expected = (td * KH + th) * KW + tw
            there = inside & is_d & is_h & is_w
            of = plane + (od.to(INDEX) * g2 + oh.to(INDEX) * g3) + ow.to(INDEX) * g4
            tap = tl.load(taps + of, mask=there, other=0).to(tl.int32)
            # What is left of it: the tap's row, times KW.
            took = took + (tl.where(there, tap - expected, -1),)
            grads = grads + (tl.load(grad + of, mask=there, other=0.0).to(WIDE),)
        for f in tl.static_range(STEP):
            total = tl.zeros((ROWS, COLS), WIDE)
            for k in tl.static_range(COUNT):
                if STEP > 1:
                    if (f + (MH - 1 - k // MW % MH) * SH) % RH == 0 and (f + (MH - 1 - k // MW % MH) * SH) // RH < KH:
                        here = took[k] == (f + (MH - 1 - k // MW % MH) * SH) // RH * KW
                        total = tl.where(here, total + grads[k], total)
                else:
                    total = tl.where(took[k] == 0, total + grads[k], total)
            h = q * STEP + f - PH if STEP > 1 else q
            to = at(n, c, d, h, w, s0, s1, s2, s3, s4, INDEX)
            tl.store(out + to, total.to(out.dtype.element_ty), mask=inside & (h >= 0) & (h < H))


def forward(x: Tensor, starts: Tensor | None, values: Tensor, taps: Tensor, w: Windows) -> None:
    """x (N, C, D, H, W), any strides -> values, taps (N, C, *output), of one set of strides, without gaps.

    taps: the number of the tap that was taken, row-major within the kernel; uint8 or int32, -1 where there is none.
    starts: int64 (N * C, sum of output), the first positions of the windows of each plane along its three axes, instead
    of those of `w`.
    """
    tiles = Tiles(values, (x,))
    launch(
        max_pool_kernel, tiles.grid, x, taps if starts is None else starts, values, taps, tiles.rows, x.shape[1],
        *w.size, *w.output, *x.stride(), *values.stride(), **constants(w), STARTS=starts is not None,
        STATIC=w.taps <= UNROLLED, **tiles.constants,
    )  # fmt: skip


def backward(grad: Tensor, taps: Tensor, out: Tensor, w: Windows) -> None:
    """grad, taps (N, C, *output), of one set of strides -> out (N, C, D, H, W), without gaps, the input's gradient."""
    step, cells = steps(w)
    most = w.around
    tiles = Tiles(out, (grad,), ELEMENTS if most[0] * most[1] * most[2] <= 4 else ELEMENTS // 2, cells)
    launch(
        max_pool_gradient_kernel, tiles.grid, grad, taps, out, tiles.rows, out.shape[1], *w.size, cells, *w.output,
        *grad.stride(), *out.stride(), **constants(w), MD=most[0], MH=most[1], MW=most[2], STEP=step,
        **tiles.constants,
    )  # fmt: skip


def steps(w: Windows) -> tuple[int, int]:
    """How many rows of an image a program takes together (0: it loops over the windows), and how often."""
    most, stride = w.around, w.stride[1]
    if most[0] * most[1] * most[2] > KEPT:
        return 0, w.size[1]
    if w.adaptive or not 1 < stride <= 4:
        return 1, w.size[1]
    return stride, (w.size[1] - 1 + w.padding[1]) // stride + 1
