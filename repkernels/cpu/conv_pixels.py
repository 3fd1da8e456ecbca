"""The convolution and its input gradient: rows are pixels, columns the weight's vectors.

Only the rows of one block at a time are laid out as a product needs them.
"""

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repkernels.cpu.blocks import Block, blocks, is_small
from repkernels.cpu.compile import kernel
from repkernels.cpu.conv_depthwise import depthwise_lines
from repkernels.cpu.conv_direct import direct_pixels
from repkernels.cpu.conv_gather import gather_pixels
from repkernels.cpu.fixed_products import FEWEST
from repkernels.cpu.fixed_store import store_integers
from repkernels.cpu.fixed_sum import LANES, SLAB, STEP, sum_block
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers
from repkernels.cpu.matmul_fixed import MOST, NARROW
from repkernels.cpu.matmul_ordered import CHUNK, chains
from repkernels.cpu.memory import memory, widened
from repkernels.cpu.multiply import GROUPS, INTEGER_GROUPS
from repkernels.cpu.quantize import quantize
from repkernels.cpu.spread import spread
from repkernels.cpu.threads import buffer, share
from repkernels.cpu.vectors import BYTES

Tables = tuple[np.ndarray, ...]
# Bytes of the rows of one block, about.
ROWS_BYTES = 1 << 21


class _Call(NamedTuple):
    """One contraction: x (N, G * S, ...) with weight (G, R, S, T) into out (N, G * R, ...), fp32 or fp64.

    tables: of conv_gather.py, a place of x for each pixel of the result and tap. absent: taps that meet no place take
    no part; otherwise they meet +0. cuts: where chunks of k begin and end, if taps were left out of a long k.
    """

    x: Tensor
    weight: Tensor
    bias: np.ndarray
    out: Tensor
    tables: Tables
    absent: bool
    cuts: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        return self.x.shape[0] * math.prod(len(table) for table in self.tables)

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(self.x.shape[2:])


def contract(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    tables: Tables,
    pointwise: bool,
    stride: tuple[int, ...] | None,
    digits: int,
) -> None:
    """Fills out (N, G * R, ...) from x (N, G * S, ...) and weight (G, R, S, T); digits 0 is `ordered`.

    stride: of an input gradient, where taps that meet nothing take no part; None for a convolution.
    """
    absent = stride is not None
    wide = np.float64 if out.dtype == torch.float64 else np.float32
    offset = np.empty(0, wide) if bias is None else numbers(widened(bias).contiguous())
    call = _Call(x, weight.contiguous(), offset, out, tables, absent)
    groups, results, channels, taps = weight.shape
    if digits:
        _fixed(call, digits, pointwise, stride)
    elif groups > 1 and (results if absent else channels) == 1 and channels * taps <= CHUNK:
        _depthwise(call)
    else:
        _ordered(call, stride)


def _parts(call: _Call, stride: tuple[int, ...] | None) -> list[_Call]:
    """The pixels that differ by multiples of the stride, and the taps that these meet anything by, on their own.

    Where there are none, the result is what an empty contraction gives, and it is stored.
    """
    if stride is None or stride == (1, 1, 1):
        return [call]
    (groups, results, channels, taps), kernel_size = call.weight.shape, [table.shape[1] for table in call.tables]
    weight = call.weight.view(groups, results, channels, *kernel_size)
    numbered = np.arange(channels * taps).reshape(channels, *kernel_size)
    found = []
    for first in itertools.product(*(range(min(s, len(table))) for s, table in zip(stride, call.tables, strict=True))):
        z, y, x = (slice(i, None, s) for i, s in zip(first, stride, strict=True))
        kept = [np.flatnonzero((t[i] >= 0).any(0)) for t, i in zip(call.tables, (z, y, x), strict=True)]
        out = call.out[:, :, z, y, x]
        if any(len(k) == 0 for k in kept):
            bits: np.ndarray = call.bias.view(f"i{call.bias.itemsize}")
            value = np.where(bits << 1, bits, 0).view(call.bias.dtype)
            out.copy_(torch.from_numpy(value).view(1, -1, 1, 1, 1) if len(value) else out.new_zeros(()))
            continue
        d, h, w = (torch.from_numpy(k) for k in kept)
        part = weight[..., d, :, :][..., h, :][..., w].reshape(groups, results, channels, -1)
        numbers_of_k = numbered[np.ix_(np.arange(channels), *kept)].reshape(-1)
        chunks = range(0, channels * taps, CHUNK)
        cuts = np.searchsorted(numbers_of_k, [*chunks, channels * taps]) if len(chunks) > 1 else ()
        tables = tuple(np.ascontiguousarray(t[i][:, k]) for t, i, k in zip(call.tables, (z, y, x), kept, strict=True))
        found.append(_Call(call.x, part, call.bias, out, tables, True, tuple(int(c) for c in cuts)))
    return found


def _ordered(call: _Call, stride: tuple[int, ...] | None) -> None:
    x = numbers(widened(call.x).contiguous()).reshape(-1)
    for part in _parts(call, stride):
        _ordered_part(part, x)
    if call.absent:  # zeros stood for taps that take no part, which is the same but where the weight is not finite
        groups, results, channels, taps = call.weight.shape
        broken = (~np.isfinite(numbers(call.weight))).any((2, 3)).reshape(-1)
        if broken.any():
            _direct(call, np.zeros((len(call.x), groups), np.uint8), broken.astype(np.uint8), False)


def _ordered_part(call: _Call, x: np.ndarray) -> None:
    weight = numbers(call.weight).reshape(-1)
    groups, results, channels, taps = call.weight.shape
    k, places, wide = channels * taps, math.prod(call.size), weight.dtype
    cuts = call.cuts or (0, k)

    def task(block: Block) -> None:
        m, n = block.rows, block.columns
        rows = buffer("conv rows", m * k, wide)[: m * k]
        steps = (groups * channels * places, 1, places, block.batch * channels * places)
        gather_pixels(x, 0, steps, channels, (taps, 1), block.row, m, *call.tables, call.size, rows, k)
        line, chunk = (buffer(name, m * n, wide)[: m * n] for name in ("conv line", "conv chunk"))
        at = (block.batch * results + block.column) * k
        for i, (start, stop) in enumerate(itertools.pairwise(cuts)):
            chains(rows, start, weight, at + start, k, stop - start, chunk if i else line, m, n)
            if i:
                add(line, chunk)
        _store(call, line, block)

    _share(task, call, (BYTES // wide.itemsize, GROUPS * BYTES // wide.itemsize), k * wide.itemsize)


def _depthwise(call: _Call) -> None:
    x = numbers(widened(call.x).contiguous()).reshape(-1)
    groups, results, channels, taps = call.weight.shape
    layers = len(call.x) * groups * results * len(call.tables[0])
    work = call.rows * groups * results * channels * taps
    spread(
        depthwise_lines, layers, work, x, groups, channels, *call.tables, call.size, numbers(call.weight).reshape(-1),
        results, call.bias, memory(call.out), call.out.stride(), call.absent,
    )  # fmt: skip


def _fixed(call: _Call, digits: int, pointwise: bool, stride: tuple[int, ...] | None) -> None:
    left = _source_digits(call, digits, pointwise)
    scale = quantize(largest_of(call.weight, (2, 3)), digits).scale
    for part in _parts(call, stride):
        _fixed_part(part, left, scale, digits, pointwise)
    columns = (numbers(scale).reshape(-1) & 1).astype(np.uint8)
    if left.flags.any() or columns.any():
        _direct(call, left.flags, columns, True)


def _fixed_part(call: _Call, left: "_Source", scale: Tensor, digits: int, pointwise: bool) -> None:
    groups, results, channels, taps = call.weight.shape
    right = quantize(call.weight.transpose(2, 3).reshape(1, groups * results, taps * channels), digits, scale)
    width, plan, narrow = right.planes.shape[3], FEWEST[digits - 1], NARROW[digits - 1]
    weight, weight_scales = numbers(right.planes).reshape(-1), numbers(right.scale).reshape(-1)
    panel, none = INTEGER_GROUPS * LANES, np.empty(0, np.float32)

    def task(block: Block) -> None:
        m, n = block.rows, block.columns
        rows = buffer("conv digits", digits * m * width, np.int8)[: digits * m * width]
        row_scales = buffer("conv scales", m, np.int32)[:m]
        steps = (*left.steps[:2], 1, block.batch * left.steps[2])
        gather_pixels(
            left.digits, left.plane, steps, channels, (1, channels), block.row, m, *call.tables, call.size, rows, width
        )
        _scales_of_rows(left.scales, left.depth, steps, pointwise, block.row, *call.tables, call.size, row_scales)
        down, across = -(-m // LANES) * LANES, -(-n // panel) * panel
        area, extra = down * across, down * across if width > narrow else 0
        sums = buffer("sums", area, np.int64)[:area]
        high, low = buffer("high", extra, np.int64)[:extra], buffer("low", extra, np.uint64)[:extra]
        packed = buffer("rows", len(plan.left) * SLAB * STEP, np.int16)
        packed_columns = buffer("columns", len(plan.right) * across * STEP, np.int16)
        first = block.batch * results + block.column
        sum_block(
            rows, 0, m * width, weight, first * width, right.planes.stride(0), width,
            plan.left, plan.right, plan.products, narrow, m, n, packed, packed_columns, sums, high, low, False,
        )  # fmt: skip
        line = buffer("conv line", m * n, np.float32)
        store_integers(
            sums, high, low, across, row_scales, 0, weight_scales, first, 8 * max(0, digits - 2), none, 0,
            line, 0, n, m, n, buffer("line", n, np.float32),
        )  # fmt: skip
        _store(call, line, block)

    _share(task, call, (LANES, panel), width * digits)


class _Source(NamedTuple):
    """Digits of x, the channels of a group side by side in `depth` places of each of the planes, which are `plane`
    apart; the scale of each such run of channels; whether (N, G) has a scale with a flag; and how far apart samples,
    places and groups are.
    """

    digits: np.ndarray
    plane: int
    depth: int
    scales: np.ndarray
    flags: np.ndarray
    steps: tuple[int, int, int]


def _source_digits(call: _Call, digits: int, pointwise: bool) -> _Source:
    x, (groups, _, channels, _) = call.x, call.weight.shape
    samples, places = x.shape[0], math.prod(call.size)
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last_3d)
    if last:
        vectors = x.permute(0, 2, 3, 4, 1).reshape(1, samples * places * groups, channels)
    else:
        vectors = x.contiguous().view(samples * groups, channels, places).transpose(1, 2)
    scale = None
    if not pointwise:
        known = quantize(largest_of(x.unflatten(1, (groups, channels)), (2, 3, 4, 5)), digits).scale
        known = known.view(samples, 1, groups) if last else known.view(samples * groups, 1)
        scale = known.expand(samples, places, groups).reshape(1, -1) if last else known.expand(-1, places)
    made = quantize(vectors, digits, scale)
    depth = made.planes.shape[3]
    flags = made.scale.view(samples, places, groups) if last else made.scale.view(samples, groups, places)
    return _Source(
        numbers(made.planes).reshape(-1),
        made.planes.stride(0),
        depth,
        numbers(made.scale).reshape(-1),
        np.any(numbers(flags) & 1, axis=1 if last else 2).astype(np.uint8),
        (groups * places * depth, (groups if last else 1) * depth, (1 if last else places) * depth),
    )


def largest_of(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """(1, kept, 2): the largest magnitudes over `axes` of x, of finite elements and of all; what scales come from."""
    integers = torch.int16 if x.element_size() == 2 else torch.int32
    infinity = torch.tensor(float("inf"), dtype=x.dtype).view(integers)
    bits = x.detach().view(integers) & torch.iinfo(integers).max
    every = finite = bits.amax(axes)
    if bool((every >= infinity).any()):
        finite = bits.where(bits < infinity, 0).amax(axes)
    return torch.stack((finite, every), -1).view(x.dtype).view(1, -1, 2)


def _direct(call: _Call, samples: np.ndarray, columns: np.ndarray, signs: bool) -> None:
    """Outputs of flagged samples (N, G) and columns (G * R,) by `direct_pixels`."""
    x = numbers(widened(call.x).contiguous()).reshape(-1)
    groups, results, channels, taps = call.weight.shape
    lines = len(call.x) * groups * len(call.tables[0]) * len(call.tables[1])
    work = call.rows * groups * results * channels * taps
    spread(
        direct_pixels, lines, work, x, groups, channels, *call.tables, call.size, numbers(call.weight).reshape(-1),
        results, call.bias, memory(call.out), call.out.stride(), call.absent, signs, samples, columns,
    )  # fmt: skip


def _share(task: Callable[[Block], None], call: _Call, unit: tuple[int, int], row_bytes: int) -> None:
    """`task` for blocks (group, pixels, columns) of the result, the rows of each of about ROWS_BYTES."""
    groups, results, channels, taps = call.weight.shape
    most = max(unit[0], min(MOST[0], ROWS_BYTES // row_bytes))
    sizes = groups, call.rows, results, channels * taps
    work = blocks(*sizes, (most, MOST[1]), unit)
    share(lambda index: task(work[index]), len(work), alone=is_small(*sizes))


def _store(call: _Call, line: np.ndarray, block: Block) -> None:
    across = buffer("conv places", block.rows, np.int64)
    results = call.weight.shape[1]
    sizes = tuple(len(table) for table in call.tables)
    first = block.batch * results + block.column
    _finish(
        line, block.row, block.rows, first, block.columns, sizes, across, call.bias, memory(call.out), call.out.stride()
    )


@kernel
def add(line, chunk):
    """line += chunk."""
    state = keep_subnormals()
    for i in range(line.size):
        line[i] += chunk[i]
    restore(state)


@kernel
def _scales_of_rows(scales, depth, steps, pointwise, first, deep, high, wide, size, out):
    """The scale of each pixel's row: that of its place if pointwise, otherwise that of its sample and group."""
    pixels = deep.shape[0] * high.shape[0] * wide.shape[0]
    for i in range(out.size):
        sample, pixel = (first + i) // pixels, (first + i) % pixels
        at = steps[3] + sample * steps[0]
        if pointwise:
            z = deep[pixel // (high.shape[0] * wide.shape[0]), 0]
            y, x = high[pixel // wide.shape[0] % high.shape[0], 0], wide[pixel % wide.shape[0], 0]
            if z >= 0 and y >= 0 and x >= 0:
                at += ((z * size[1] + y) * size[2] + x) * steps[1]
        out[i] = scales[at // depth]


@kernel
def _finish(line, first, m, column, n, sizes, places, bias, out, strides):
    """out = line (m, n) + bias: pixels first, ..., columns column, ...; zeros as +0."""
    state = keep_subnormals()
    zero = out.dtype.type(0)
    for i in range(m):
        pixel, x = (first + i) // sizes[2], (first + i) % sizes[2]
        pixel, y = pixel // sizes[1], pixel % sizes[1]
        sample, z = pixel // sizes[0], pixel % sizes[0]
        places[i] = sample * strides[0] + z * strides[2] + y * strides[3] + x * strides[4]
    if bias.size > 0:
        for i in range(m):
            for j in range(n):
                line[i * n + j] += bias[column + j]
    if strides[1] == 1:
        for i in range(m):
            at = places[i] + column
            for j in range(n):
                out[at + j] = line[i * n + j] + zero
    else:
        start = 0
        while start < m:  # pixels that lie side by side
            stop = start + 1
            while stop < m and places[stop] == places[stop - 1] + 1:
                stop += 1
            for j in range(n):
                at = places[start] + (column + j) * strides[1]
                run = out[at : at + stop - start]
                for i in range(stop - start):
                    run[i] = line[(start + i) * n + j] + zero
            start = stop
    restore(state)
