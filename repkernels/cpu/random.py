"""Random numbers on the CPU (SPEC.md, "Random numbers"): Philox4x32-10, a chunk of words at a time.

Seeds and streams are integers below 2^64; an element's words depend on its index alone.
"""

import numpy as np
from numba import njit
from torch import Tensor

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers, put
from repkernels.cpu.spread import spread
from repkernels.subnormals import subnormals_kept

U32, U64, F32, F64 = np.uint32, np.uint64, np.float32, np.float64
CHUNK = 4096  # words
LOW, HALF = U64(0xFFFFFFFF), U64(32)
UNIT = F32(2.0**-24)


@njit
def philox(block, seed, stream):
    """The four words of a block, as uint64."""
    x0, x1 = block & LOW, block >> HALF
    x2, x3 = stream & LOW, stream >> HALF
    k0, k1 = seed & LOW, seed >> HALF
    for _ in range(10):
        p0, p1 = x0 * U64(0xD2511F53), x2 * U64(0xCD9E8D57)
        x0, x1 = (p1 >> HALF) ^ x1 ^ k0, p1 & LOW
        x2, x3 = (p0 >> HALF) ^ x3 ^ k1, p0 & LOW
        k0, k1 = (k0 + U64(0x9E3779B9)) & LOW, (k1 + U64(0xBB67AE85)) & LOW
    return x0, x1, x2, x3


@njit
def fill(words, block, seed, stream):
    """The words of consecutive blocks, the first of them `block`."""
    for i in range(words.size // 4):
        a, b, c, d = philox(U64(block) + U64(i), seed, stream)
        words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3] = U32(a), U32(b), U32(c), U32(d)


def uniform(out: Tensor, seed: int, stream: int, low: float, high: float) -> None:
    """out, contiguous: U(low, high), rounded to its dtype."""
    with subnormals_kept():
        scalars = np.array([high - low, low], F32)
    over_chunks(_uniform, out.numel(), CHUNK, seed, stream, numbers(out).reshape(-1), scalars)


def below(out: Tensor, seed: int, stream: int, thresholds: Tensor) -> None:
    """out, contiguous bool: word < threshold, of int64 thresholds, one for each element or one for all."""
    over_chunks(_below, out.numel(), CHUNK, seed, stream, out.numpy().reshape(-1), thresholds.numpy().reshape(-1))


def integers(out: Tensor, seed: int, stream: int, spans: Tensor, low: int) -> None:
    """out, contiguous int64: low + floor(W * span / 2^64); spans: int64, bits of unsigned ones, each for as many
    elements."""
    each = out.numel() // max(1, spans.numel())
    shares = spans.numpy().view(U64)
    over_chunks(_integers, out.numel(), CHUNK // 2, seed, stream, out.numpy().reshape(-1), shares, each, np.int64(low))


def keys(out: Tensor, seed: int, stream: int) -> None:
    """out, contiguous int64: the 64-bit words in the order of signed integers, less 2^63."""
    over_chunks(_keys, out.numel(), CHUNK // 2, seed, stream, out.numpy().reshape(-1))


def over_chunks(kernel, count, chunk, seed, stream, *args):
    """The kernel over chunks of elements."""
    spread(kernel, -(-count // chunk), 4 * count, U64(seed), U64(stream), *args)


@kernel
def _uniform(start, stop, seed, stream, out, scalars):
    state = keep_subnormals()
    words = np.empty(CHUNK, U32)
    scale, low = scalars[0], scalars[1]
    for chunk in range(start, stop):
        fill(words, chunk * CHUNK // 4, seed, stream)
        top = chunk * CHUNK
        for i in range(min(CHUNK, out.size - top)):
            put(out, top + i, F32(np.int32(words[i] >> U32(8))) * UNIT * scale + low)
    restore(state)


@kernel
def _below(start, stop, seed, stream, out, thresholds):
    words = np.empty(CHUNK, U32)
    one = thresholds.size == 1
    for chunk in range(start, stop):
        fill(words, chunk * CHUNK // 4, seed, stream)
        top = chunk * CHUNK
        for i in range(min(CHUNK, out.size - top)):
            out[top + i] = np.int64(words[i]) < thresholds[0 if one else top + i]


@kernel
def _integers(start, stop, seed, stream, out, spans, each, low):
    words = np.empty(CHUNK, U32)
    for chunk in range(start, stop):
        fill(words, chunk * CHUNK // 4, seed, stream)
        top = chunk * (CHUNK // 2)
        for i in range(min(CHUNK // 2, out.size - top)):
            span = spans[(top + i) // each]
            out[top + i] = low + np.int64(_high_product(U64(words[2 * i]), U64(words[2 * i + 1]), span))


@njit
def _high_product(high, low, span):
    """floor((high * 2^32 + low) * span / 2^64)."""
    a, b = span >> HALF, span & LOW
    middle = high * b + (low * b >> HALF)
    return high * a + (middle >> HALF) + (low * a + (middle & LOW) >> HALF)


@kernel
def _keys(start, stop, seed, stream, out):
    words = np.empty(CHUNK, U32)
    for chunk in range(start, stop):
        fill(words, chunk * CHUNK // 4, seed, stream)
        top = chunk * (CHUNK // 2)
        for i in range(min(CHUNK // 2, out.size - top)):
            word = U64(words[2 * i]) << HALF | U64(words[2 * i + 1])
            out[top + i] = np.int64(word ^ U64(1 << 63))
