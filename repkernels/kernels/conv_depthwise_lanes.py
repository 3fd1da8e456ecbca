"""How depthwise convolutions are cut up: a lane computes a block of rows and columns of the result.

Taps of neighbouring results meet the same elements of the source, which a lane then reads once. Which tap of which
result an element meets is known when the kernel is compiled.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution

# Lanes of a tile along a row of the result, of which this part may be idle before more, shorter pieces are taken.
WIDEST = 128
IDLE = 1 / 8


class Axis(NamedTuple):
    """An axis of the source and of the result. Block b of results finds its sources from b * step + base on."""

    source: int
    result: int
    padding: int
    dilation: int
    step: int
    base: int


class Cut(NamedTuple):
    """What is known of an axis when a kernel is compiled: how many `results` a block has, and where taps meet.

    rest: padding modulo stride, which decides what meets what in an input gradient (back).
    """

    results: int
    stride: int
    dilation: int
    taps: int
    rest: int
    back: bool


@triton.constexpr_function
def offsets(cut):
    """How far from a block's base the sources of its results lie, in the order in which every result's taps ascend."""
    count, stride, dilation, taps, rest, back = cut
    if back:
        lowest, highest = -(((taps - 1) * dilation - rest) // stride), (rest + count - 1) // stride
        return tuple(range(highest, lowest - 1, -1))
    return tuple(range((count - 1) * stride + (taps - 1) * dilation + 1))


@triton.constexpr_function
def results(cut):
    """How many results a block has."""
    return cut[0]


@triton.constexpr_function
def span(cut):
    """How many they are."""
    return len(offsets(cut))


@triton.constexpr_function
def offset(cut, i):
    """The i-th of them."""
    return offsets(cut)[i]


@triton.constexpr_function
def tap(cut, i, result):
    """The tap by which a block's result meets the i-th of them, or -1."""
    stride, dilation, taps, rest, back = cut[1:]
    at = offsets(cut)[i]
    reach = rest + result - at * stride if back else at - result * stride
    return reach // dilation if reach % dilation == 0 and 0 <= reach // dilation < taps else -1


@triton.constexpr_function
def tap_of(h, w, i, j, r, q):
    """The tap, row-major, by which result (r, q) of a block meets the i-th row's j-th offset, or -1."""
    across, down = tap(w, j, q), tap(h, i, r)
    return down * w[3] + across if down >= 0 and across >= 0 else -1


@triton.constexpr_function
def met_by_itself(cut):
    """The same blocks where every result meets its own position alone."""
    return (cut[0], 1, 1, 1, 0, False)


@triton.jit
def replaced(values, i: tl.constexpr, v):
    """A tuple with v in place i."""
    return values[:i] + (v,) + values[i + 1 :]


@triton.jit
def repeated(v, COUNT: tl.constexpr):
    """A tuple of COUNT times v."""
    values = ()
    for _ in tl.static_range(COUNT):
        values = values + (v,)
    return values


@triton.jit
def within(base, offset, size):
    """Whether base + offset lies in 0 .. size - 1."""
    return (offset >= 0 - base) & (offset < size - base)


@triton.jit
def cells(x, line, has, base, size, stride, W: tl.constexpr, OWN: tl.constexpr, VECTOR: tl.constexpr):
    """The elements at all offsets of a row, in order: a tuple of (channels, lanes), 0 outside of the source.

    x + line: where offset 0 lies, its position `base` of `size`. has: whether the row exists. From the OWN-th offset
    on, VECTOR of them are read together, whose memory is aligned and which exist or not together.
    """
    if VECTOR > 1:
        words = line[:, :, None] + (tl.arange(0, VECTOR) + OWN)[None, None, :]
        words = tl.max_contiguous(tl.multiple_of(words, [1, 1, VECTOR]), [1, 1, VECTOR])
        exist = has & within(base, OWN, size)[None, :]
        own = separate(tl.load(x + words, mask=exist[:, :, None], other=0.0), VECTOR)
    values = ()
    for j in tl.static_range(span(W)):
        if offset(W, j) >= OWN and offset(W, j) < OWN + VECTOR and VECTOR > 1:
            values = values + (own[offset(W, j) - OWN],)
        else:
            exist = has & within(base, offset(W, j), size)[None, :]
            values = values + (tl.load(x + line + offset(W, j) * stride, mask=exist, other=0.0),)
    return values


@triton.jit
def separate(v, COUNT: tl.constexpr):
    """v (a, b, COUNT) as a tuple of COUNT, 2 or 4."""
    if COUNT == 2:
        parts = tl.split(v)
    else:
        even, odd = tl.split(tl.reshape(v, (v.shape[0], v.shape[1], 2, 2)))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        parts = (first, second, third, fourth)
    return parts


@triton.jit
def together(values, COUNT: tl.constexpr):
    """The inverse: COUNT of (a, b), 2 or 4, as (a, b, COUNT)."""
    if COUNT == 2:
        whole = tl.join(values[0], values[1])
    else:
        even, odd = tl.join(values[0], values[2]), tl.join(values[1], values[3])
        whole = tl.reshape(tl.join(even, odd), (values[0].shape[0], values[0].shape[1], 4))
    return whole


@triton.jit
def met(p, t, axis, STRIDE: tl.constexpr, BACK: tl.constexpr):
    """Where results p meet the source by tap t, and whether they do."""
    if BACK:
        distance = p + axis.padding - t * axis.dilation
        at = distance // STRIDE
        exists = (distance >= 0) & (distance % STRIDE == 0) & (at < axis.source)
    else:
        at = p * STRIDE + t * axis.dilation - axis.padding
        exists = (at >= 0) & (at < axis.source)
    return at, exists


@triton.jit
def positions(k, d, h, w):
    """Numbers of result positions, samples outermost -> sample and position by axis."""
    pw = k % w.result
    ph = k // w.result % h.result
    pd = k // (w.result * h.result) % d.result
    return k // (w.result * h.result * d.result), pd, ph, pw


@triton.jit
def block_of(row, blocks_h, d):
    """Blocks of rows by number, samples outermost -> sample, position on the first axis, block on the second."""
    rest = row // blocks_h
    return rest // d.result, rest % d.result, row % blocks_h


@triton.jit
def distance(n, d, h, w, s, zero, LAST: tl.constexpr):
    """Of positions in memory, in 64 bits. LAST: channels are innermost.

    zero: an argument that is 0, of which the compiler knows nothing. So it knows of no alignment along lanes, each of
    which has a thread.
    """
    at = n.to(tl.int64) * s.n + d.to(tl.int64) * s.d + h.to(tl.int64) * s.h + w.to(tl.int64) * s.w
    return at if LAST else at + zero


def tile_of_lanes(C: int, rows: int, columns: int, lanes: int, last: tuple[int, int] | None) -> dict[str, Any]:
    """Channels and lanes of a tile, and how many lanes follow a row, for so many blocks of each.

    last: the first two where channels are innermost in memory.
    """
    most_c, most_l = last or (C, lanes)
    BW = min(WIDEST, most_l, triton.next_power_of_2(columns))
    while BW > 8 and triton.cdiv(columns, BW) * BW * (1 - IDLE) > columns:
        BW //= 2
    BL = min(most_l, BW * triton.next_power_of_2(rows))
    BC = min(most_c if last else max(1, lanes // BL), triton.next_power_of_2(C))
    return {"BC": BC, "BW": BW, "BL": BL}


def rows_together(height: int, taps: int, dilation: int, most: int, multiple: int = 1) -> int:
    """Rows of a block: a multiple, at most so many, that read few rows for those they compute."""

    def cost(rows: int) -> int:
        return -(-height // rows) * (2 * rows + (taps - 1) * dilation)

    return min(range(max(most // multiple, 1) * multiple, 0, -multiple), key=cost)


def cuts(c: Convolution, back: bool, blocks: Sequence[int], taps: Sequence[int] | None = None) -> list[Cut]:
    """The last two axes where blocks have so many results. taps: of all of them, those that a kernel sees."""
    columns = (blocks, c.stride[1:], c.dilation[1:], c.kernel[1:] if taps is None else taps, c.padding[1:])
    return [Cut(n, s, d, t, p % s, back) for n, s, d, t, p in zip(*columns, strict=True)]


def axes(c: Convolution, back: bool, blocks: Sequence[int]) -> list[Axis]:
    """The axes, of the last two of which blocks have so many results."""
    source, result = (c.output, c.size) if back else (c.size, c.output)
    steps = [b // s if back else b * s for b, s in zip((c.stride[0], *blocks), c.stride, strict=True)]
    bases = [p // s if back else -p for p, s in zip(c.padding, c.stride, strict=True)]
    return [Axis(*values) for values in zip(source, result, c.padding, c.dilation, steps, bases, strict=True)]


def columns_together(source: Tensor, result: Tensor, gap: int = 1, step: int = 1) -> tuple[int, int]:
    """Columns of a block, a multiple of gap, and how many of the source's, step / gap times as many, are read as one.

    Few, so that neighbouring lanes read neighbours.
    """
    for columns in (4, 2):
        words = columns * step // gap
        if columns % gap == 0 and 1 < words <= 4 and vector(source, words) == words:
            if vector(result, columns) == columns:
                return columns, words
    return gap, 1


def vector(t: Tensor, most: int) -> int:
    """How many columns of t (N, C, D, H, W), 4, 2 or 1 and at most so many, lie as aligned words in memory."""
    if t.stride(4) != 1:
        return 1
    steps = [stride for size, stride in zip(t.shape[:4], t.stride()[:4], strict=True) if size > 1]
    numbers = (*steps, t.shape[4], t.data_ptr() // t.element_size())
    return next(v for v in (4, 2, 1) if v <= most and all(number % v == 0 for number in numbers))
