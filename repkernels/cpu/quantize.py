"""Fixed-point digits of vectors along K: one exponent per vector, from the bits of its largest finite element alone,
and the balanced base-256 digits of its elements (SPEC.md, "Fixed-point digits").
"""

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.blocks import flat, is_small
from repkernels.cpu.compile import kernel
from repkernels.cpu.digit_vectors import WIDTH, largest, split
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import bitcast, widened
from repkernels.cpu.pack import pack_transposed
from repkernels.cpu.threads import buffer, share
from repkernels.cpu.vectors import BYTES
from repkernels.digits import Digits, padded

# F * 2^x with 2^23 <= F < 2^24 is at most L * 2^(x - 8S + 25) iff F is at most this (S = 1..4).
THRESHOLDS = (16646144, 16711168, 16711422, 16711422)

# Elements of one tile of an operand whose vectors are not contiguous: a square of vectors that lie side by side, or a
# stretch of one.
TILE = 4096
EDGE = 64
# Elements of one thread's task, about.
PIECE = 1 << 18


def quantize(v: Tensor, digits: int, scale: Tensor | None = None) -> Digits:
    """Digits of v (B, R, K), any strides; fp32, bf16 or fp16. `scale` (B, R) skips the search for the exponents."""
    batch, rows, k = v.shape
    width = padded(k)
    planes = torch.empty(digits, batch, rows, width, dtype=torch.int8, device=v.device)
    scales = torch.empty(batch, rows, dtype=torch.int32, device=v.device) if scale is None else scale.contiguous()
    if batch * rows == 0:
        return Digits(planes, scales)
    v = _merged(v)
    batch, rows = v.shape[:2]
    source, out, exponents = flat(v), planes.numpy().reshape(-1), scales.numpy().reshape(-1)
    small = is_small(v.numel())
    share_of_one = rows if small else min(math.ceil(rows / torch.get_num_threads()), PIECE // max(k, 1))
    step = max(1, math.ceil(share_of_one / EDGE)) * EDGE
    starts = [(i, r) for i in range(batch) for r in range(0, rows, step)]

    def task(index: int) -> None:
        i, first = starts[index]
        _quantize(
            source.array,
            i * source.strides[0] + first * source.strides[1],
            source.strides[1],
            source.strides[2],
            min(step, rows - first),
            k,
            digits,
            THRESHOLDS[digits - 1],
            scale is not None,
            exponents,
            i * rows + first,
            out,
            planes.stride(0),
            width,
            buffer("tile", TILE, np.float32),
        )

    share(task, len(starts), alone=small)
    return Digits(planes, scales)


def _merged(v: Tensor) -> Tensor:
    """v with its batch and row axes as one, where that needs no copy."""
    try:
        return v.view(1, -1, v.shape[2])
    except RuntimeError:
        return v


@njit
def _load(x, at, row, step, count, depth, tile, width):
    """tile[r * width + k] = element (r, k), widened; zeros follow up to a multiple of WIDTH."""
    lanes = BYTES // tile.itemsize
    done = 0
    if row == 1 and step != 1:
        done = count // lanes * lanes
        for k in range(0, depth, lanes):
            pack_transposed(x, at + k * step, step, min(lanes, depth - k) - 1, count // lanes, tile, k, width)
    for r in range(done, count):
        if step == 1:
            source, target = x[at + r * row : at + r * row + depth], tile[r * width : r * width + depth]
            for k in range(depth):
                target[k] = widened(source[k])
        else:
            for k in range(depth):
                tile[r * width + k] = widened(x[at + r * row + k * step])
    for r in range(count):
        tile[r * width + depth : r * width + (depth + WIDTH - 1) // WIDTH * WIDTH] = 0


@njit
def power(exponent):
    """2^exponent as fp32, -126 <= exponent <= 127."""
    return bitcast(np.int32((exponent + 127) << 23))


@njit
def _scale(finite, any_element, digits, threshold):
    """2 * e + flag of a vector with these largest magnitudes, as bits: of its finite elements, and of all."""
    flag = 1 if any_element >= 0x7F800000 else 0
    if finite == 0:
        return flag
    fraction, place = finite & 0x7FFFFF, finite >> 23
    if place == 0:
        place = 1
        while fraction < 0x800000:
            fraction <<= 1
            place -= 1
    else:
        fraction |= 0x800000
    return 2 * (place - 150 + 25 - 8 * digits + (1 if fraction > threshold else 0)) + flag


@kernel
def _quantize(
    x, at, row, step, count, k, digits, threshold, known, scales, scales_at, planes, plane, width, tile
):  # fmt: skip
    """`count` vectors; their scales and digits are numbers `scales_at`, ... of `scales` and of every plane."""
    state = keep_subnormals()
    height, length = (EDGE, EDGE) if row == 1 and step != 1 else (1, TILE)
    finite, every = np.empty(EDGE, np.int32), np.empty(EDGE, np.int32)
    for first in range(0, count, height):
        here = min(height, count - first)
        finite[:] = 0
        every[:] = 0
        for start in range(0, 0 if known else k, length):
            depth = min(length, k - start)
            _load(x, at + first * row + start * step, row, step, here, depth, tile, length)
            for r in range(here):
                most = largest(tile, r * length, (depth + WIDTH - 1) // WIDTH)
                finite[r], every[r] = max(finite[r], most[0]), max(every[r], most[1])
        for r in range(0 if known else here):
            scales[scales_at + first + r] = _scale(finite[r], every[r], digits, threshold)
        for start in range(0, k, length):
            depth = min(length, k - start)
            # One tile that holds all of k is still there.
            if known or k > length:
                _load(x, at + first * row + start * step, row, step, here, depth, tile, length)
            for r in range(here):
                vector = scales_at + first + r
                exponent = -(scales[vector] >> 1)
                near = min(max(exponent, -126), 127)
                one, two = power(near), power(exponent - near)
                place, blocks = vector * width + start, (depth + WIDTH - 1) // WIDTH
                split(tile, r * length, blocks, one, two, digits, planes, place, plane)
    restore(state)
