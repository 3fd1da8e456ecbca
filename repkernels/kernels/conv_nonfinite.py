"""Results of a `fixed` convolution that meet an infinity or a NaN (SPEC.md, "Non-finite elements").

These kernels follow every `fixed` convolution, and end at once where no vector of theirs is flagged. So they read the
geometry from memory, rather than being compiled for each.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution, Triple
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_nonfinite import sign_class
from repkernels.kernels.sizes import cdiv


@triton.jit
def met(p, t, geometry, AXIS: tl.constexpr, BACK: tl.constexpr):
    """Where results p of an axis meet the source by taps t, and whether they do."""
    stride = tl.load(geometry + 6 + AXIS)
    padding = tl.load(geometry + 9 + AXIS)
    dilation = tl.load(geometry + 12 + AXIS)
    if BACK:
        distance = p + padding - t * dilation
        at = distance // stride
        exists = (distance >= 0) & (distance % stride == 0) & (at < tl.load(geometry + 15 + AXIS))
    else:
        at = p * stride + t * dilation - padding
        exists = (at >= 0) & (at < tl.load(geometry + AXIS))
    return at, exists


@triton.jit
def split(i, a, b, c):
    """A row-major number -> (rest, i of a, i of b, i of c)."""
    return i // (a * b * c), i // (b * c) % a, i // c % b, i % c


@triton.jit
def elements(source, n, c, d, h, w, td, th, tw, mask, geometry, strides, BACK: tl.constexpr):
    """Elements that results (n, d, h, w) meet by taps, in fp32, and whether they exist; +0 where they don't."""
    at_d, has_d = met(d, td, geometry, 0, BACK)
    at_h, has_h = met(h, th, geometry, 1, BACK)
    at_w, has_w = met(w, tw, geometry, 2, BACK)
    mask = mask & has_d & has_h & has_w
    at = n * tl.load(strides) + c * tl.load(strides + 1) + at_d * tl.load(strides + 2) + at_h * tl.load(strides + 3)
    return tl.load(source + at + at_w * tl.load(strides + 4), mask=mask, other=0.0).to(tl.float32), mask


@triton.jit
def conv_nonfinite_kernel(
    x, w, bias, out, rows, cols, geometry, strides, BACK: tl.constexpr, PIXELS: tl.constexpr, BIAS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Over (group, pixels, channels) of the result of a convolution, or of an input gradient (BACK).

    rows: of each position of a line of samples; cols: (groups, channels); flags are their lowest bits. PIXELS: the
    flags of a sample differ by position.
    """
    result = geometry if BACK else geometry + 15
    RD, RH, RW = tl.load(result), tl.load(result + 1), tl.load(result + 2)
    KD, KH, KW = tl.load(geometry + 3), tl.load(geometry + 4), tl.load(geometry + 5)
    N, CPG, M = tl.load(geometry + 18), tl.load(geometry + 19), tl.load(geometry + 20)
    PD, PH, PW = tl.load(geometry + 21), tl.load(geometry + 22), tl.load(geometry + 23)
    pixels = N * RD * RH * RW
    tiles_n = tl.cdiv(M, BN)
    tiles = tl.cdiv(pixels, BM) * tiles_n
    group = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    p = tile // tiles_n * BM + tl.arange(0, BM)
    m = tile % tiles_n * BN + tl.arange(0, BN)
    n, d, h, v = split(p, RD, RH, RW)
    at, flagged = n * (PD * PH * PW), p < pixels
    if PIXELS:
        at_d, has_d = met(d, 0, geometry, 0, BACK)
        at_h, has_h = met(h, 0, geometry, 1, BACK)
        at_w, has_w = met(v, 0, geometry, 2, BACK)
        if BACK:
            at += (at_d * PH + at_h) * PW + at_w
        else:
            at += (d * PH + h) * PW + v
        flagged = flagged & has_d & has_h & has_w
    line = N * PD * PH * PW
    any_row = tl.max(tl.load(rows + group * line + at, mask=flagged, other=0) & 1, 0)
    any_col = tl.max(tl.load(cols + group * M + m, mask=m < M, other=0) & 1, 0)
    if any_row + any_col > 0:
        K = CPG * KD * KH * KW
        pw = w + group * tl.load(strides + 10) + m * tl.load(strides + 11)
        classes = tl.zeros((BM, BN), tl.float32)
        if BACK and any_col > 0:
            # An element that takes no part must not meet a weight that is not finite, not even as a zero.
            for k in range(K):
                c, td, th, tw = split(k, KD, KH, KW)
                a, part = elements(x, n, group * CPG + c, d, h, v, td, th, tw, p < pixels, geometry, strides, BACK)
                to = pw + weight_offset(c, td, th, tw, strides)
                b = tl.load(to, mask=m < M, other=0.0).to(tl.float32)
                product = sign_class(a)[:, None] * sign_class(b)[None, :]
                classes += tl.where(part[:, None], product, 0.0)
        else:
            for k in range(0, K, BK):
                ks = k + tl.arange(0, BK)
                c, td, th, tw = split(ks, KD, KH, KW)
                a, part = elements(
                    x, n[:, None], (group * CPG + c)[None, :], d[:, None], h[:, None], v[:, None], td[None, :],
                    th[None, :], tw[None, :], (p < pixels)[:, None] & (ks < K)[None, :], geometry, strides, BACK,
                )  # fmt: skip
                to = pw[None, :] + weight_offset(c, td, th, tw, strides)[:, None]
                b = tl.load(to, mask=(ks < K)[:, None] & (m < M)[None, :], other=0.0).to(tl.float32)
                classes = tl.dot(
                    sign_class(a).to(tl.float16), sign_class(b).to(tl.float16), classes, out_dtype=tl.float32
                )
        touched = (classes.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000
        if BIAS:
            classes = classes + tl.load(bias + group * M + m, mask=m < M, other=0.0).to(tl.float32)[None, :]
        to = result_offset(n, d, h, v, strides)
        to = out + to[:, None] + ((group * M + m) * tl.load(strides + 6))[None, :]
        tl.store(to, classes.to(out.dtype.element_ty), mask=touched & (p < pixels)[:, None] & (m < M)[None, :])


@triton.jit
def result_offset(n, d, h, w, strides):
    """Distance in memory of positions of the result from the first."""
    at = n * tl.load(strides + 5) + d * tl.load(strides + 7)
    return at + h * tl.load(strides + 8) + w * tl.load(strides + 9)


@triton.jit
def weight_offset(c, td, th, tw, strides):
    """Distance in memory of a weight's channels and taps from the first."""
    at = c * tl.load(strides + 12) + td * tl.load(strides + 13)
    return at + th * tl.load(strides + 14) + tw * tl.load(strides + 15)


@triton.jit
def conv_weight_nonfinite_kernel(
    g, x, out, rows, cols, geometry, strides, CROSS, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Over (group, output channels, channels and taps) of a weight gradient. rows: (groups, output channels) of g;
    cols: (groups, CROSS), of which the first channels are those of x.
    """
    KD, KH, KW = tl.load(geometry + 3), tl.load(geometry + 4), tl.load(geometry + 5)
    OD, OH, OW = tl.load(geometry + 15), tl.load(geometry + 16), tl.load(geometry + 17)
    N, CPG, M = tl.load(geometry + 18), tl.load(geometry + 19), tl.load(geometry + 20)
    columns = CPG * KD * KH * KW
    tiles_n = tl.cdiv(columns, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    group = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    m = tile // tiles_n * BM + tl.arange(0, BM)
    r = tile % tiles_n * BN + tl.arange(0, BN)
    c, td, th, tw = split(r, KD, KH, KW)
    any_row = tl.max(tl.load(rows + group * M + m, mask=m < M, other=0) & 1, 0)
    any_col = tl.max(tl.load(cols + group * CROSS + c, mask=r < columns, other=0) & 1, 0)
    if any_row + any_col > 0:
        K = N * OD * OH * OW
        classes = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            ks = k + tl.arange(0, BK)
            n, d, h, v = split(ks, OD, OH, OW)
            at = result_offset(n, d, h, v, strides)
            at = g + at[None, :] + ((group * M + m) * tl.load(strides + 6))[:, None]
            a = tl.load(at, mask=(m < M)[:, None] & (ks < K)[None, :], other=0.0).to(tl.float32)
            b, part = elements(
                x, n[:, None], (group * CPG + c)[None, :], d[:, None], h[:, None], v[:, None], td[None, :],
                th[None, :], tw[None, :], (ks < K)[:, None] & (r < columns)[None, :], geometry, strides, False,
            )  # fmt: skip
            classes = tl.dot(sign_class(a).to(tl.float16), sign_class(b).to(tl.float16), classes, out_dtype=tl.float32)
        touched = (classes.to(tl.int32, bitcast=True) & 0x7F800000) == 0x7F800000
        to = group * tl.load(strides + 10) + (m * tl.load(strides + 11))[:, None]
        to = out + to + weight_offset(c, td, th, tw, strides)[None, :]
        tl.store(to, classes.to(out.dtype.element_ty), mask=touched & (m < M)[:, None] & (r < columns)[None, :])


def fix_forward(
    x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, rows: Tensor, cols: Tensor, pitch: Triple
) -> None:
    """Overwrites the results of x (N, C, D, H, W) with w in out that meet an element that is not finite.

    rows: int32 (groups, N * positions of `pitch`), the lowest bit whether the vector of the output there has such an
    element; of a sample's, only the first is looked at unless pixels have vectors of their own. cols: (groups, O / g).
    """
    G, M = c.groups, len(w) // c.groups
    _fix(x, w.unflatten(0, (G, M)), bias, out, c, rows, cols, pitch, False)


def fix_input_gradient(
    g: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, rows: Tensor, cols: Tensor, pitch: Triple
) -> None:
    """The same of the gradient of x; rows: of g's positions; cols: (groups, C / g)."""
    G, M = c.groups, len(w) // c.groups
    _fix(g, w.unflatten(0, (G, M)).transpose(1, 2), bias, out, c, rows, cols, pitch, True)


def fix_weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, rows: Tensor, cols: Tensor) -> None:
    """The same of out (O, C / g, kd, kh, kw). rows: (groups, O / g), flags of g's channels; cols: (groups, C / g or
    more), flags of x's.
    """
    G, CPG, columns = c.groups, out.shape[1], out[0].numel()
    M = len(out) // G
    w = out.unflatten(0, (G, M))
    numbers = _numbers((*_of(c), len(x), CPG, M), torch.int32, x.device)
    strides = _numbers((*x.stride(), *g.stride(), *w.stride()), torch.int64, x.device)
    launch(conv_weight_nonfinite_kernel, (G * cdiv(M, 32) * cdiv(columns, 32),), g, x, out, rows, cols,
           numbers, strides, cols.shape[-1], BM=32, BN=32, BK=16, num_warps=4, num_stages=1)  # fmt: skip


def _fix(
    x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, rows: Tensor, cols: Tensor, pitch: Triple,
    back: bool,
) -> None:  # fmt: skip
    """w: (groups, result channels, source channels, kd, kh, kw)."""
    G, M, CPG = w.shape[:3]
    numbers = _numbers((*_of(c), len(x), CPG, M, *pitch), torch.int32, x.device)
    strides = _numbers((*x.stride(), *out.stride(), *w.stride()), torch.int64, x.device)
    pixels = out.numel() // out.shape[1]
    launch(conv_nonfinite_kernel, (G * cdiv(pixels, 64) * cdiv(M, 64),), x, w,
           out if bias is None else bias.contiguous(), out, rows, cols, numbers, strides, BACK=back,
           PIXELS=c.pointwise, BIAS=bias is not None, BM=64, BN=64, BK=16, num_warps=4, num_stages=1)  # fmt: skip


def _of(c: Convolution) -> tuple[int, ...]:
    return tuple(number for triple in c[:6] for number in triple)


# Nothing leaves it: a CUDA graph reads a table where it lies.
@functools.cache
def _numbers(values: tuple[int, ...], dtype: torch.dtype, on: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=on)
