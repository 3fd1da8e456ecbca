"""Random numbers on a GPU (SPEC.md, "Random numbers"): Philox4x32-10, four elements of each block.

Seeds and streams are integers below 2^64; an element's words depend on its index alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.launch import launch
from repkernels.kernels.scalar import bits, scalar, signed
from repkernels.kernels.sizes import cdiv
from repkernels.subnormals import subnormals_kept

BLOCKS = 256  # Philox blocks of a program


@triton.jit
def philox(block, seed, stream):
    """The four words of each block (int64), as uint32."""
    x0, x1 = low_word(block), high_word(block)
    x2, x3 = low_word(stream) + tl.zeros_like(x0), high_word(stream) + tl.zeros_like(x0)
    k0, k1 = low_word(seed), high_word(seed)
    m0, m1 = tl.full([], 0xD2511F53, tl.uint32), tl.full([], 0xCD9E8D57, tl.uint32)
    w0, w1 = tl.full([], 0x9E3779B9, tl.uint32), tl.full([], 0xBB67AE85, tl.uint32)
    for _ in tl.static_range(10):
        x0, x1, x2, x3 = tl.umulhi(x2, m1) ^ x1 ^ k0, x2 * m1, tl.umulhi(x0, m0) ^ x3 ^ k1, x0 * m0
        k0, k1 = k0 + w0, k1 + w1
    return x0, x1, x2, x3


@triton.jit
def low_word(x):
    """The low half of int64 x."""
    return x.to(tl.uint32)


@triton.jit
def high_word(x):
    """The high half of int64 x."""
    return (x >> 32).to(tl.uint32)


@triton.jit
def in_order(a, b, c, d):
    """a[0], b[0], c[0], d[0], a[1], ...: what was computed by block, by element."""
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def unit(word):
    """The word's 24 highest bits as a number below 1."""
    return (word >> 8).to(tl.int32).to(tl.float32) * 0.000000059604644775390625


@triton.jit
def quotient(i, divisor, reciprocal):
    """i // divisor of int64 i >= 0, by a product, since a division in this format takes long; see `reciprocal_of`."""
    q = tl.umulhi(i.to(tl.uint64), reciprocal.to(tl.uint64)).to(tl.int64)
    return q + (i - q * divisor >= divisor).to(tl.int64)


@triton.jit
def word64(high, low):
    """high * 2^32 + low as uint64."""
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def uniform_kernel(out, n, seed: tl.int64, stream: tl.int64, scale: tl.int64, low: tl.int64, BLOCKS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    a, b, c, d = philox(first + tl.arange(0, BLOCKS), seed, stream)
    u = in_order(unit(a), unit(b), unit(c), unit(d))
    i = 4 * first + tl.arange(0, 4 * BLOCKS)
    tl.store(out + i, (u * scalar(scale, tl.float32) + scalar(low, tl.float32)).to(out.dtype.element_ty), mask=i < n)


@triton.jit
def below_kernel(out, thresholds, n, seed: tl.int64, stream: tl.int64, EACH: tl.constexpr, BLOCKS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    a, b, c, d = philox(first + tl.arange(0, BLOCKS), seed, stream)
    word = in_order(a, b, c, d).to(tl.int64)
    i = 4 * first + tl.arange(0, 4 * BLOCKS)
    if EACH:
        threshold = tl.load(thresholds + i, mask=i < n, other=0)
    else:
        threshold = tl.load(thresholds)
    tl.store(out + i, (word < threshold).to(tl.int8), mask=i < n)


@triton.jit
def integers_kernel(
    out, spans, n, each, reciprocal: tl.int64, seed: tl.int64, stream: tl.int64, low: tl.int64, ONE: tl.constexpr,
    BLOCKS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    a, b, c, d = philox(first + tl.arange(0, BLOCKS), seed, stream)
    word = tl.interleave(word64(a, b), word64(c, d))
    i = 2 * first + tl.arange(0, 2 * BLOCKS)
    if ONE:
        span = tl.load(spans) + tl.zeros_like(i)
    else:
        span = tl.load(spans + quotient(i, each, reciprocal), mask=i < n, other=0)
    share = tl.umulhi(word, span.to(tl.uint64, bitcast=True)).to(tl.int64, bitcast=True)
    tl.store(out + i, low + share, mask=i < n)


@triton.jit
def keys_kernel(out, n, seed: tl.int64, stream: tl.int64, BLOCKS: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    a, b, c, d = philox(first + tl.arange(0, BLOCKS), seed, stream)
    word = tl.interleave(word64(a, b), word64(c, d)).to(tl.int64, bitcast=True)
    i = 2 * first + tl.arange(0, 2 * BLOCKS)
    tl.store(out + i, word ^ (-0x8000000000000000), mask=i < n)


def uniform(out: Tensor, seed: int, stream: int, low: float, high: float) -> None:
    """out, contiguous: U(low, high), rounded to its dtype."""
    with subnormals_kept():
        scale = high - low
    launch(
        uniform_kernel, grid(out, 4), out, out.numel(), signed(seed), signed(stream), bits(scale), bits(low),
        BLOCKS=BLOCKS,
    )  # fmt: skip


def below(out: Tensor, seed: int, stream: int, thresholds: Tensor) -> None:
    """out, contiguous bool: word < threshold, of int64 thresholds, one for each element or one for all."""
    launch(
        below_kernel, grid(out, 4), out.view(torch.int8), thresholds, out.numel(), signed(seed), signed(stream),
        EACH=thresholds.numel() != 1, BLOCKS=BLOCKS,
    )  # fmt: skip


def integers(out: Tensor, seed: int, stream: int, spans: Tensor, low: int) -> None:
    """out, contiguous int64: low + floor(W * span / 2^64); spans: int64, bits of unsigned ones, each for as many
    elements."""
    each = max(1, out.numel() // max(1, spans.numel()))
    launch(
        integers_kernel, grid(out, 2), out, spans, out.numel(), each, reciprocal_of(each), signed(seed), signed(stream),
        low, ONE=spans.numel() == 1, BLOCKS=BLOCKS,
    )  # fmt: skip


def keys(out: Tensor, seed: int, stream: int) -> None:
    """out, contiguous int64: the 64-bit words in the order of signed integers, less 2^63."""
    launch(keys_kernel, grid(out, 2), out, out.numel(), signed(seed), signed(stream), BLOCKS=BLOCKS)


def reciprocal_of(divisor: int) -> int:
    """floor(2^64 / divisor), or 2^64 - 1 for 1: with it the product's high half is the quotient or one less."""
    return signed(min((1 << 64) - 1, (1 << 64) // divisor))


def grid(out: Tensor, of_block: int) -> tuple[int]:
    """Programs for all elements, of_block from each Philox block."""
    return (cdiv(out.numel(), of_block * BLOCKS),)
