"""Fixed-point digits of vectors along K: one exponent per vector, balanced base-256 digits (SPEC.md, "Fixed-point digits").

The exponent comes from the bits of the largest finite element alone. A digit string costs one addition: the bytes of
q + 128 * (256^S - 1) / 255 are the balanced digits plus 128.
"""

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.blocks import ALONE, flat
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import bitcast, widened
from repkernels.cpu.threads import buffer, share
from repkernels.cpu.vectors import BYTES, pack_transposed, round_even
from repkernels.digits import Digits, padded

# F * 2^x with 2^23 <= F < 2^24 is at most L * 2^(x - 8S + 25) iff F is at most this (S = 1..4).
THRESHOLDS = (16646144, 16711168, 16711422, 16711422)

# Elements of one tile: a stretch of one vector, or a square where vectors lie side by side in memory.
TILE = 4096
EDGE = 64

_INFINITY = np.int32(0x7F800000)
_MAGNITUDE = np.int32(0x7FFFFFFF)


def quantize(v: Tensor, digits: int, scale: Tensor | None = None) -> Digits:
    """Digits of v (B, R, K), any strides; fp32, bf16 or fp16. `scale` (B, R) skips the search for the exponents."""
    batch, rows, k = v.shape
    width = padded(k)
    planes = torch.empty(digits, batch, rows, width, dtype=torch.int8)
    scales = torch.empty(batch, rows, dtype=torch.int32) if scale is None else scale.contiguous()
    if batch * rows == 0:
        return Digits(planes, scales)
    source, out, exponents = flat(v), planes.view(-1).numpy(), scales.view(-1).numpy()
    alone = v.numel() < ALONE
    step = rows if alone else max(1, min(EDGE, math.ceil(rows / torch.get_num_threads())))
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
            buffer("row", TILE, np.int32),
        )

    if alone:
        for index in range(len(starts)):
            task(index)
    else:
        share(task, len(starts))
    return Digits(planes, scales)


@njit
def _load(x, at, row, step, count, depth, tile, width):
    """tile[r * width + k] = element (r, k), widened."""
    lanes = BYTES // tile.itemsize
    if row == 1 and step != 1:
        whole = count // lanes * lanes
        for k in range(0, depth, lanes):
            last = min(lanes, depth - k) - 1
            pack_transposed(x, at + k * step, step, last, count // lanes, tile, k, width)
        for r in range(whole, count):
            for k in range(depth):
                tile[r * width + k] = widened(x[at + r + k * step])
        return
    for r in range(count):
        for k in range(depth):
            tile[r * width + k] = widened(x[at + r * row + k * step])


@njit
def _exponent(largest, digits, threshold):
    """e of a vector whose largest finite magnitude has the bits `largest`; 0 for a zero."""
    if largest == 0:
        return 0
    fraction, place = largest & 0x7FFFFF, largest >> 23
    if place == 0:
        place = 1
        while fraction < 0x800000:
            fraction <<= 1
            place -= 1
    else:
        fraction |= 0x800000
    return place - 150 + 25 - 8 * digits + (fraction > threshold)


@njit
def power(exponent):
    """2^exponent as fp32, -126 <= exponent <= 127."""
    return bitcast(np.int32((exponent + 127) << 23))


@kernel
def _quantize(
    x, at, row, step, count, k, digits, threshold, known, scales, scales_at, planes, plane, width, tile, words
):  # fmt: skip
    """`count` vectors; their scales and digits are numbers `scales_at`, ... of `scales` and of every plane."""
    state = keep_subnormals()
    side = row == 1 and step != 1
    half = np.int32(0)
    for _ in range(digits):
        half = np.int32((half << 8) | 128)
    height, length = (EDGE, EDGE) if side else (1, TILE)
    for first in range(0, count, height):
        here = min(height, count - first)
        if not known:
            largest, flags = np.zeros(EDGE, np.int32), np.zeros(EDGE, np.int32)
            for start in range(0, k, length):
                depth = min(length, k - start)
                _load(x, at + first * row + start * step, row, step, here, depth, tile, length)
                for r in range(here):
                    most, odd = largest[r], flags[r]
                    for i in range(depth):
                        bits = bitcast(tile[r * length + i]) & _MAGNITUDE
                        special = bits >= _INFINITY
                        most = max(most, np.int32(0) if special else bits)
                        odd |= np.int32(special)
                    largest[r], flags[r] = most, odd
            for r in range(here):
                scales[scales_at + first + r] = 2 * _exponent(largest[r], digits, threshold) + flags[r]
        for start in range(0, k, length):
            depth = min(length, k - start)
            _load(x, at + first * row + start * step, row, step, here, depth, tile, length)
            for r in range(here):
                exponent = -(scales[scales_at + first + r] >> 1)
                near = min(max(exponent, -126), 127)
                one, two = power(near), power(exponent - near)
                for i in range(depth):
                    v = tile[r * length + i]
                    v = np.float32(0) if (bitcast(v) & _MAGNITUDE) >= _INFINITY else v
                    words[i] = np.int32(round_even((v * one) * two)) + half
                place = (scales_at + first + r) * width + start
                for digit in range(digits):
                    shift = np.int32(8 * (digits - 1 - digit))
                    to = planes[digit * plane + place : digit * plane + place + depth]
                    for i in range(depth):
                        to[i] = np.int8((words[i] >> shift) ^ 128)
        for r in range(here):
            for digit in range(digits):
                place = digit * plane + (scales_at + first + r) * width
                planes[place + k : place + width] = 0
    restore(state)
