"""The weight gradient: rows are output channels, columns (channel, tap), and k the positions (sample, z, y, x).

Only a stretch of k of the rows and columns of one block is laid out at a time.
"""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from repkernels.cpu.blocks import Block, blocks, is_small
from repkernels.cpu.compile import kernel
from repkernels.cpu.conv_direct import direct_taps
from repkernels.cpu.conv_gather import gather_taps
from repkernels.cpu.conv_pixels import add, largest_of
from repkernels.cpu.fixed_products import FEWEST
from repkernels.cpu.fixed_store import store_integers
from repkernels.cpu.fixed_sum import LANES, SLAB, STEP, sum_block
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers
from repkernels.cpu.matmul_fixed import NARROW
from repkernels.cpu.matmul_ordered import CHUNK, chains
from repkernels.cpu.memory import memory, widened
from repkernels.cpu.multiply import GROUPS, INTEGER_GROUPS
from repkernels.cpu.quantize import quantize
from repkernels.cpu.spread import spread
from repkernels.cpu.threads import buffer, share
from repkernels.cpu.vectors import BYTES
from repkernels.digits import padded

Tables = tuple[np.ndarray, ...]
# Largest block of the result of one task.
MOST = (256, 288)
# k of `fixed` that is laid out at a time: at least, and otherwise until the digits of a block have about these bytes.
STRETCH = 2048
STRETCH_BYTES = 1 << 20


def contract(g: Tensor, x: Tensor, out: Tensor, tables: Tables, groups: int, digits: int) -> None:
    """Fills out (O, C/g, kd, kh, kw), fp32 or fp64, from g (N, O, ...) and x (N, C, ...); digits 0 is `ordered`."""
    g, x = g.contiguous(), x.contiguous()
    if digits:
        _fixed(g, x, out, tables, groups, digits)
    else:
        _ordered(widened(g), widened(x), out, tables, groups)


def _ordered(g: Tensor, x: Tensor, out: Tensor, tables: Tables, groups: int) -> None:
    outs, channels = g.shape[1] // groups, x.shape[1] // groups
    pixels, places, size = g[0, 0].numel(), x[0, 0].numel(), tuple(x.shape[2:])
    total, left, right = len(g) * pixels, numbers(g).reshape(-1), numbers(x).reshape(-1)
    wide, flat = left.dtype, _flat_tables(pixels)

    def task(block: Block) -> None:
        m, n = block.rows, block.columns
        line, chunk = (buffer(name, m * n, wide)[: m * n] for name in ("conv line", "conv chunk"))
        for start in range(0, total, CHUNK):
            stop = min(start + CHUNK, total)
            depth = stop - start
            rows = buffer("conv rows", m * depth, wide)[: m * depth]
            columns = buffer("conv columns", n * depth, wide)[: n * depth]
            from_g = (g.shape[1] * pixels, 1, pixels, block.batch * outs * pixels)
            from_x = (x.shape[1] * places, 1, places, block.batch * channels * places)
            gather_taps(left, 0, from_g, block.row, m, start, stop, *flat, (1, 1, pixels), rows, depth)
            gather_taps(right, 0, from_x, block.column, n, start, stop, *tables, size, columns, depth)
            chains(rows, 0, columns, 0, depth, depth, line if start == 0 else chunk, m, n)
            if start > 0:
                add(line, chunk)
        _store(line, block, out, outs)

    unit = (BYTES // wide.itemsize, GROUPS * BYTES // wide.itemsize)
    _share(task, (groups, outs, channels * out[0, 0].numel(), total), (MOST[0] // 2, MOST[1] // 2), unit)


def _fixed(g: Tensor, x: Tensor, out: Tensor, tables: Tables, groups: int, digits: int) -> None:
    outs, channels = g.shape[1] // groups, x.shape[1] // groups
    pixels, size = g[0, 0].numel(), tuple(x.shape[2:])
    total, flat = len(g) * pixels, _flat_tables(pixels)
    left, left_scales, g_width = _digits(g, digits)
    right, right_scales, x_width = _digits(x, digits)
    plan, narrow, panel, none = FEWEST[digits - 1], NARROW[digits - 1], INTEGER_GROUPS * LANES, np.empty(0, np.float32)
    taps = out[0, 0].numel()

    def task(block: Block) -> None:
        m, n = block.rows, block.columns
        down, across = -(-m // LANES) * LANES, -(-n // panel) * panel
        area, extra = down * across, down * across if total > narrow else 0
        sums = buffer("sums", area, np.int64)[:area]
        high, low = buffer("high", extra, np.int64)[:extra], buffer("low", extra, np.uint64)[:extra]
        packed = buffer("rows", len(plan.left) * SLAB * STEP, np.int16)
        packed_columns = buffer("columns", len(plan.right) * across * STEP, np.int16)
        from_g = (g.shape[1] * g_width, 1, g_width, block.batch * outs * g_width)
        from_x = (x.shape[1] * x_width, 1, x_width, block.batch * channels * x_width)
        stretch = min(max(STRETCH_BYTES // (digits * (m + n)) // STRETCH, 1) * STRETCH, narrow)
        for start in range(0, total, stretch):
            stop = min(start + stretch, total)
            depth = padded(stop - start)
            rows = buffer("conv digits", digits * m * depth, np.int8)[: digits * m * depth]
            columns = buffer("conv columns", digits * n * depth, np.int8)[: digits * n * depth]
            plane_g, plane_x = len(left) // digits, len(right) // digits
            gather_taps(left, plane_g, from_g, block.row, m, start, stop, *flat, (1, 1, pixels), rows, depth)
            gather_taps(right, plane_x, from_x, block.column, n, start, stop, *tables, size, columns, depth)
            sum_block(
                rows, 0, m * depth, columns, 0, n * depth, depth,
                plan.left, plan.right, plan.products, narrow, m, n, packed, packed_columns, sums, high, low, start > 0,
            )  # fmt: skip
        line, column_scales = buffer("conv line", m * n, np.float32), buffer("conv scales", n, np.int32)
        first = block.batch * channels
        column_scales[:n] = right_scales[first + np.arange(block.column, block.column + n) // taps]
        store_integers(
            sums, high, low, across, left_scales, block.batch * outs + block.row, column_scales, 0,
            8 * max(0, digits - 2), none, 0, line, 0, n, m, n, buffer("line", n, np.float32),
        )  # fmt: skip
        _store(line, block, out, outs)

    _share(task, (groups, outs, channels * taps, total), MOST, (LANES, panel))
    g_flags, x_flags = ((scales & 1).astype(np.uint8) for scales in (left_scales, right_scales))
    if g_flags.any() or x_flags.any():
        a, b = (numbers(widened(v)).reshape(-1) for v in (g, x))
        work = out.numel() * total
        spread(
            direct_taps, len(out) * channels, work, a, b, outs, channels, *tables, size, memory(out), out.stride(),
            g_flags, x_flags,
        )  # fmt: skip


def _digits(v: Tensor, digits: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Digits of v (N, C, ...), one scale for each channel, positions padded to the width that is returned too."""
    scales = quantize(largest_of(v, (0, 2, 3, 4)), digits).scale
    made = quantize(v.flatten(2), digits, scale=scales.expand(len(v), -1))
    return numbers(made.planes).reshape(-1), numbers(scales).reshape(-1), made.planes.shape[3]


def _flat_tables(pixels: int) -> Tables:
    """Tables of a kernel of size 1: a row is a channel as it is."""
    one = np.zeros((1, 1), np.int64)
    return one, one, np.arange(pixels)[:, None]


def _share(
    task: Callable[[Block], None], sizes: tuple[int, int, int, int], most: tuple[int, int], unit: tuple[int, int]
) -> None:
    work = blocks(*sizes, most, unit)
    share(lambda index: task(work[index]), len(work), alone=is_small(*sizes))


def _store(line: np.ndarray, block: Block, out: Tensor, outs: int) -> None:
    kernel_size = tuple(out.shape[2:])
    _finish(
        line, block.batch * outs + block.row, block.rows, block.column, block.columns, kernel_size, memory(out),
        out.stride(),
    )  # fmt: skip


@kernel
def _finish(line, row, m, column, n, size, out, strides):
    """out = line (m, n): output channels row, ..., (channel, tap) column, ...; zeros as +0."""
    state = keep_subnormals()
    zero = out.dtype.type(0)
    for j in range(n):
        tap = column + j
        tap, kw = tap // size[2], tap % size[2]
        tap, kh = tap // size[1], tap % size[1]
        channel, kd = tap // size[0], tap % size[0]
        at = row * strides[0] + channel * strides[1] + kd * strides[2] + kh * strides[3] + kw * strides[4]
        for i in range(m):
            out[at + i * strides[0]] = line[i * n + j] + zero
    restore(state)
