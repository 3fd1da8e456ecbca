"""Windows of pooling as kernels walk them: tiles of positions, and the taps and windows around one.

A tile is (ROWS, COLS): its columns are neighbours in memory, channels of a channels_last tensor, otherwise positions
along the last axis; a row is the rest of a position. Coordinates are columns (ROWS, 1) and rows (1, COLS), so that what
follows from one of them is computed once for each.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.sizes import cdiv, next_power_of_2
from repkernels.windows import Windows

# Elements of a tile at most, and taps that are unrolled.
ELEMENTS = 1024
UNROLLED = 32


@triton.jit
def tile(rows, C, D, H, W, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, INDEX: tl.constexpr):
    """(n, c, d, h, w, inside) of this program's positions in a tensor (N, C, D, H, W); rows: how many it has."""
    columns = C if CHANNELS else W
    tiles = tl.cdiv(columns, COLS)
    pid = tl.program_id(0)
    r = (pid // tiles).to(INDEX) * ROWS + tl.arange(0, ROWS)[:, None]
    col = (pid % tiles) * COLS + tl.arange(0, COLS)[None, :]
    inside = (r < rows) & (col < columns)
    if CHANNELS:
        w, r = (r % W).to(tl.int32), r // W
        c = col
    else:
        w = col
        c = tl.zeros((ROWS, 1), tl.int32)
    h, r = (r % H).to(tl.int32), r // H
    d, n = (r % D).to(tl.int32), r // D
    if not CHANNELS:
        c, n = (n % C).to(tl.int32), n // C
    return n, c, d, h, w, inside


@triton.jit
def at(n, c, d, h, w, s0, s1, s2, s3, s4, INDEX: tl.constexpr):
    """Offsets of elements."""
    return n * s0 + c.to(INDEX) * s1 + (d.to(INDEX) * s2 + h.to(INDEX) * s3) + w.to(INDEX) * s4


@triton.jit
def first(o, size, output, STRIDE: tl.constexpr, PADDING: tl.constexpr, ADAPTIVE: tl.constexpr):
    """Where window o of an axis begins."""
    if ADAPTIVE:
        r = (o.to(tl.int64) * size // output).to(tl.int32)
    else:
        r = o * STRIDE - PADDING
    return r


@triton.jit
def end(o, size, output, ADAPTIVE: tl.constexpr):
    """The first position that is no tap of window o of an axis any more, as far as the kernel reaches."""
    if ADAPTIVE:
        r = (((o.to(tl.int64) + 1) * size + output - 1) // output).to(tl.int32)
    else:
        r = tl.zeros_like(o) + size
    return r


@triton.jit
def divided_by(o, size, output, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
               ADAPTIVE: tl.constexpr, INSIDE: tl.constexpr):  # fmt: skip
    """How many positions of window o of an axis are counted: those in the padded input, or (INSIDE) in the input."""
    low = first(o, size, output, STRIDE, PADDING, ADAPTIVE)
    if ADAPTIVE:
        count = end(o, size, output, ADAPTIVE) - low
    elif INSIDE:
        count = tl.minimum(low + KERNEL, size) - tl.maximum(low, 0)
    else:
        count = tl.minimum(low + KERNEL, size + PADDING) - low
    return count


@triton.jit
def around(i, m, size, output, MOST: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr,
           DILATION: tl.constexpr, ADAPTIVE: tl.constexpr):  # fmt: skip
    """Of the up to MOST windows that have position i of an axis number m, ascending: (window, tap, whether it is)."""
    if ADAPTIVE:
        o = (i.to(tl.int64) * output // size).to(tl.int32) + m
        tap = i - first(o, size, output, STRIDE, PADDING, ADAPTIVE)
        there = o.to(tl.int64) * size < (i.to(tl.int64) + 1) * output
    else:
        o = (i + PADDING) // STRIDE - (MOST - 1) + m
        apart = i + PADDING - o * STRIDE
        tap = apart // DILATION
        there = (o >= 0) & (o < output) & (tap < KERNEL)
        if DILATION > 1:
            there = there & (apart % DILATION == 0)
    return o, tap, there


def constants(w: Windows) -> dict[str, Any]:
    """The windows' numbers as constants of a kernel: KD, KH, KW, strides S., paddings P., dilations R., ADAPTIVE."""
    named = {"K": w.kernel, "S": w.stride, "P": w.padding, "R": w.dilation}
    found: dict[str, Any] = {k + axis: v for k, three in named.items() for axis, v in zip("DHW", three, strict=True)}
    return found | {"ADAPTIVE": w.adaptive}


class Tiles:
    """How a tensor `out` is cut into tiles: `grid`, the count of `rows`, and `constants` of the kernel.

    others: tensors that are read. elements: of a tile, a power of two.
    """

    def __init__(self, out: Tensor, others: tuple[Tensor, ...], elements: int = ELEMENTS, height: int | None = None):
        samples, channels, depth, full_height, width = out.shape
        height = full_height if height is None else height
        last = out.stride(1) == 1 and out.stride(4) != 1
        columns = channels if last else width
        cols = _columns(columns)
        self.rows = samples * depth * height * (width if last else channels)
        rows = max(1, elements // cols)
        self.grid = (cdiv(self.rows, rows) * cdiv(columns, cols),)
        reach = max(sum((n - 1) * abs(s) for n, s in zip(x.shape, x.stride(), strict=True)) for x in (out, *others))
        index = tl.int64 if max(reach, self.rows + rows) >= 2**31 else tl.int32
        self.constants = {
            "CHANNELS": last, "ROWS": rows, "COLS": cols, "INDEX": index, "WIDE": wide(out.dtype),
        }  # fmt: skip


def _columns(columns: int) -> int:
    """A power of two: as many as fit, but where a sixth of the last ones would be idle fewer."""
    cols = min(128, next_power_of_2(columns))
    while cols > 16 and cdiv(columns, cols) * cols > columns + columns // 6:
        cols //= 2
    return cols


def wide(dtype: torch.dtype) -> Any:
    """The format that is computed in."""
    return tl.float64 if dtype == torch.float64 else tl.float32
