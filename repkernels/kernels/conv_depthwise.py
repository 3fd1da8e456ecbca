"""Depthwise convolutions, one input channel a group: bound by memory, not by products (SPEC.md, "Convolutions").

Results and input gradients are short `ordered` chains, element by element. A weight gradient contracts all positions of
a channel with those of another: under `fixed` a sum of products of digits that each program forms as it reads.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels import conv_ordered
from repkernels.kernels.arith import LAST_SIGNIFICAND, ldexp, low_digit, positive_zeros, quantized, scale_exponent
from repkernels.kernels.conv_copy import is_channels_last
from repkernels.kernels.conv_digits import extents
from repkernels.kernels.conv_gather import CHUNK, Strides
from repkernels.kernels.conv_nonfinite import fix_weight_gradient
from repkernels.kernels.conv_weight_ordered import sum_chunks
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_finish import rounded

# Taps that a kernel writes out; longer chains are those of conv_ordered.py.
MOST_TAPS = 128
# Channels by positions of a tile.
TILE = (4, 512)
TILE_LAST = (64, 16)
SUM_TILE = (1, 2048)
SUM_TILE_LAST = (32, 64)


class Axis(NamedTuple):
    """An axis of the source and of the result, and how they meet."""

    source: int
    result: int
    padding: int
    dilation: int


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
def origin(p, axis, STRIDE: tl.constexpr, BACK: tl.constexpr):
    """Where tap 0 of results p lies in the source, where other taps are as many dilations on, or back."""
    return p + axis.padding if BACK else p * STRIDE - axis.padding


@triton.jit
def positions(k, d, h, w):
    """Numbers of result positions, samples outermost -> sample and position by axis."""
    pw = k % w.result
    ph = k // w.result % h.result
    pd = k // (w.result * h.result) % d.result
    return k // (w.result * h.result * d.result), pd, ph, pw


@triton.jit
def distance(n, d, h, w, s, zero, LAST: tl.constexpr):
    """Of positions in memory, in 64 bits. zero: as conv_gather.py's `offset` has it. LAST: channels are innermost."""
    at = n.to(tl.int64) * s.n + d.to(tl.int64) * s.d + h.to(tl.int64) * s.h + w.to(tl.int64) * s.w
    return at if LAST else tl.max_contiguous(at + zero, [2])


@triton.jit(do_not_specialize=["zero", "K"])
def conv_depthwise_kernel(
    x, weights, bias, out, zero, K, C, MULTIPLE, d, h, w, s, so, stride_o, stride_t, TD: tl.constexpr, TH: tl.constexpr,
    TW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, BACK: tl.constexpr, BIAS: tl.constexpr,
    LINEAR: tl.constexpr, LAST: tl.constexpr, TYPE: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """C channels of K positions of the result of a convolution, or of an input gradient (BACK).

    LINEAR: taps are fixed distances apart, as they are forward, or without a stride. MULTIPLE: output channels of a
    group. d, h, w: axes. s, so: strides of x and out. SD, SH, SW: the convolution's.
    """
    blocks = tl.cdiv(C, BC)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    k = tl.program_id(0) // blocks * BP + tl.arange(0, BP)
    n, pd, ph, pw = positions(k, d, h, w)
    inside = (c < C)[:, None] & (k < K)[None, :]
    acc = tl.zeros((BC, BP), TYPE)
    for j in range(MULTIPLE if BACK else 1):
        row = c * MULTIPLE + j if BACK else c
        px = x + (row if BACK else c // MULTIPLE).to(tl.int64)[:, None] * s.c
        if LINEAR:
            from_d, from_h, from_w = origin(pd, d, SD, BACK), origin(ph, h, SH, BACK), origin(pw, w, SW, BACK)
            px += distance(n, from_d, from_h, from_w, s, zero, LAST)[None, :]
        for t in tl.static_range(TD * TH * TW):
            at_d, has_d = met(pd, t // (TH * TW), d, SD, BACK)
            at_h, has_h = met(ph, t // TW % TH, h, SH, BACK)
            at_w, has_w = met(pw, t % TW, w, SW, BACK)
            part = inside & (has_d & has_h & has_w)[None, :]
            if LINEAR:
                on_d = t // (TH * TW) * (d.dilation * s.d)
                on_h = t // TW % TH * (h.dilation * s.h)
                on_w = t % TW * (w.dilation * s.w)
                # Taps of a row are constants apart where its elements are neighbours.
                at = px - (on_d + on_h) - on_w if BACK else px + (on_d + on_h) + on_w
            else:
                at = px + distance(n, at_d, at_h, at_w, s, zero, LAST)[None, :]
            v = tl.load(at, mask=part, other=0.0).to(TYPE)
            weight = tl.load(weights + row * stride_o + t * stride_t, mask=c < C, other=0.0).to(TYPE)[:, None]
            longer = tl.fma(tl.broadcast_to(weight, (BC, BP)), v, acc)
            acc = tl.where(part, longer, acc) if BACK else longer
    if BIAS:
        acc = acc + tl.load(bias + c, mask=c < C, other=0.0).to(TYPE)[:, None]
    y = positive_zeros(acc, out.dtype.element_ty).to(out.dtype.element_ty)
    at = out + c.to(tl.int64)[:, None] * so.c + distance(n, pd, ph, pw, so, zero, LAST)[None, :]
    tl.store(at, y, mask=inside)


@triton.jit
def digit_products(a, b, S: tl.constexpr):
    """The digit products of int32 a and b that count, over 256**max(0, S - 2), as int64.

    With a = 256 h + d or 65536 h + l, and b likewise, what is left out leaves h b + d h' or h b + l h' + d d', d the
    upper digit of l.
    """
    if S < 3:
        total = a.to(tl.int64) * b.to(tl.int64)
    elif S == 3:
        low_a, high_a = low_digit(a)
        low_b, high_b = low_digit(b)
        total = high_a.to(tl.int64) * b.to(tl.int64) + low_a.to(tl.int32) * high_b
    else:
        last_a, rest_a = low_digit(a)
        low_a, high_a = low_digit(rest_a)
        last_b, rest_b = low_digit(b)
        low_b, high_b = low_digit(rest_b)
        both = low_a.to(tl.int32) * 256 + last_a.to(tl.int32)
        total = high_a.to(tl.int64) * b.to(tl.int64) + (both * high_b + low_a.to(tl.int32) * low_b.to(tl.int32))
    return total


@triton.jit(do_not_specialize=["zero", "K"])
def conv_depthwise_sums_kernel(
    g, x, extent_g, extent_x, sums, zero, K, C, MULTIPLE, d, h, w, sg, s, TD: tl.constexpr, TH: tl.constexpr,
    TW: tl.constexpr, SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, S: tl.constexpr,
    LAST_SIGNIFICAND: tl.constexpr, LAST: tl.constexpr, BC: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Adds a tile's part of P' to sums (2, C * taps) int64, its low 32 bits and the rest, which begin as 0."""
    blocks = tl.cdiv(C, BC)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    k = tl.program_id(0) // blocks * BP + tl.arange(0, BP)
    n, pd, ph, pw = positions(k, d, h, w)
    inside = (c < C)[:, None] & (k < K)[None, :]
    e_g = scale_exponent(tl.load(extent_g + c, mask=c < C, other=0), S, LAST_SIGNIFICAND)
    e_x = scale_exponent(tl.load(extent_x + c // MULTIPLE, mask=c < C, other=0), S, LAST_SIGNIFICAND)
    at = g + c.to(tl.int64)[:, None] * sg.c + distance(n, pd, ph, pw, sg, zero, LAST)[None, :]
    a = quantized(tl.load(at, mask=inside, other=0.0).to(tl.float32), e_g, S)
    from_d, from_h, from_w = origin(pd, d, SD, False), origin(ph, h, SH, False), origin(pw, w, SW, False)
    px = x + (c // MULTIPLE).to(tl.int64)[:, None] * s.c + distance(n, from_d, from_h, from_w, s, zero, LAST)[None, :]
    TAPS: tl.constexpr = TD * TH * TW
    for t in range(TAPS):
        at_d, has_d = met(pd, t // (TH * TW), d, SD, False)
        at_h, has_h = met(ph, t // TW % TH, h, SH, False)
        at_w, has_w = met(pw, t % TW, w, SW, False)
        part = inside & (has_d & has_h & has_w)[None, :]
        on = t // (TH * TW) * (d.dilation * s.d) + t // TW % TH * (h.dilation * s.h) + t % TW * (w.dilation * s.w)
        v = tl.load(px + on, mask=part, other=0.0).to(tl.float32)
        total = tl.sum(digit_products(a, quantized(v, e_x, S), S), 1)
        tl.atomic_add(sums + c * TAPS + t, total & 0xFFFFFFFF, mask=c < C, sem="relaxed")
        tl.atomic_add(sums + C * TAPS + c * TAPS + t, total >> 32, mask=c < C, sem="relaxed")


@triton.jit
def conv_depthwise_finish_kernel(
    sums, extent_g, extent_x, out, C, TAPS, MULTIPLE, S: tl.constexpr, LAST_SIGNIFICAND: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out (C, taps), contiguous, from the sums: one rounding, exponents, output type."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < C * TAPS
    r = rounded(tl.load(sums + i, mask=mask, other=0), tl.load(sums + C * TAPS + i, mask=mask, other=0))
    c = i // TAPS
    e_g = scale_exponent(tl.load(extent_g + c, mask=mask, other=0), S, LAST_SIGNIFICAND)
    e_x = scale_exponent(tl.load(extent_x + c // MULTIPLE, mask=mask, other=0), S, LAST_SIGNIFICAND)
    shift: tl.constexpr = 8 * (S - 2) if S > 2 else 0
    y = positive_zeros(ldexp(r, e_g + e_x + shift), out.dtype.element_ty)
    tl.store(out + i, y.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["K", "first_chunk"])
def conv_depthwise_chains_kernel(
    g, x, part, K, C, MULTIPLE, first_chunk, d, h, w, sg, s, TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    SD: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, CHUNK: tl.constexpr, TYPE: tl.constexpr, BC: tl.constexpr,
    BT: tl.constexpr,
):  # fmt: skip
    """part[chunk - first_chunk, c, t], contiguous: the `ordered` chains of a chunk of positions."""
    TAPS: tl.constexpr = TD * TH * TW
    blocks = tl.cdiv(C, BC)
    c = tl.program_id(0) % blocks * BC + tl.arange(0, BC)
    chunk = tl.program_id(0) // blocks
    t = tl.arange(0, BT)
    mask = (c < C)[:, None] & (t < TAPS)[None, :]
    pg = g + c.to(tl.int64) * sg.c
    px = x + (c // MULTIPLE).to(tl.int64)[:, None] * s.c
    acc = tl.zeros((BC, BT), TYPE)
    k0 = (first_chunk + chunk) * CHUNK
    for k in tl.range(k0, min(K, k0 + CHUNK), loop_unroll_factor=4):
        n, pd, ph, pw = positions(k, d, h, w)
        at_d, has_d = met(pd, t // (TH * TW), d, SD, False)
        at_h, has_h = met(ph, t // TW % TH, h, SH, False)
        at_w, has_w = met(pw, t % TW, w, SW, False)
        at = n.to(tl.int64) * s.n + at_d * s.d + at_h * s.h + at_w * s.w
        v = tl.load(px + at[None, :], mask=mask & (has_d & has_h & has_w)[None, :], other=0.0).to(TYPE)
        at_g = n.to(tl.int64) * sg.n + pd * sg.d + ph * sg.h + pw * sg.w
        u = tl.load(pg + at_g, mask=c < C, other=0.0).to(TYPE)[:, None]
        acc = tl.fma(tl.broadcast_to(u, (BC, BT)), v, acc)
    tl.store(part + (chunk * C + c).to(tl.int64)[:, None] * TAPS + t[None, :], acc, mask=mask)


def is_depthwise(w: Tensor, c: Convolution) -> bool:
    """Whether a convolution with w (O, C / g, kd, kh, kw) is one of these."""
    return c.groups > 1 and w.shape[1] == 1


def forward(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str = "ordered") -> None:
    """x (N, C, D, H, W), w (O, 1, kd, kh, kw), bias (O,) into out (N, O, D', H', W'), `ordered`; nothing is empty.

    fp32, bf16, fp16, or fp64 in binary64; any strides.
    """
    if w[0].numel() > MOST_TAPS:
        conv_ordered.forward(x, w, bias, out, c)
    else:
        _launch(x, w, bias, out, c, False)


def input_gradient(
    g: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str = "ordered"
) -> None:
    """g (N, O, D', H', W'), w (O, 1, kd, kh, kw), bias (C,) into out (N, C, D, H, W), `ordered`; nothing is empty."""
    if w.numel() // out.shape[1] > CHUNK or w[0].numel() > MOST_TAPS:
        conv_ordered.input_gradient(g, w, bias, out, c)
    else:
        _launch(g, w, bias, out, c, True)


def _launch(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, back: bool) -> None:
    C, K = out.shape[1], out.numel() // out.shape[1]
    last = is_channels_last(x) and is_channels_last(out)
    BC, BP = _tile(TILE_LAST if last else TILE, C, K)
    weights = w.reshape(len(w), -1)
    if last:
        weights = weights.T.contiguous().T
    linear = not back or c.stride == (1, 1, 1)
    launch(conv_depthwise_kernel, (triton.cdiv(C, BC) * triton.cdiv(K, BP),), x, weights,
           out if bias is None else bias.contiguous(), out, 0, K, C, len(w) // c.groups, *_axes(c, back),
           Strides(*x.stride()), Strides(*out.stride()), *weights.stride(), BACK=back, BIAS=bias is not None,
           LINEAR=linear, LAST=last, TYPE=tl.float64 if out.dtype == torch.float64 else tl.float32, BC=BC, BP=BP,
           num_warps=4, **_constants(c))  # fmt: skip


def weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, contract: str) -> None:
    """g (N, O, D', H', W'), x (N, C, D, H, W) into out (O, 1, kd, kh, kw), `ordered` or `fixed`; nothing is empty."""
    flat = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    if contract == "ordered":
        sum_chunks(partial(_chains, g, x, c), g.numel() // g.shape[1], flat.view(1, len(out), -1))
    else:
        _fixed(g, x, flat, c, int(contract[5:]) // 8)
    if flat is not out:
        out.copy_(flat)


def _chains(g: Tensor, x: Tensor, c: Convolution, part: Tensor, begin: int) -> None:
    """part: (chunks, 1, O, taps)."""
    (chunks, _, C, taps), K = part.shape, g.numel() // g.shape[1]
    BT = triton.next_power_of_2(taps)
    BC = max(1, min(128 // BT, triton.next_power_of_2(C)))
    launch(conv_depthwise_chains_kernel, (chunks * triton.cdiv(C, BC),), g, x, part, K, C, C // c.groups, begin,
           *_axes(c, False), Strides(*g.stride()), Strides(*x.stride()), CHUNK=CHUNK, BC=BC, BT=BT,
           TYPE=tl.float64 if part.dtype == torch.float64 else tl.float32,
           num_warps=max(1, min(4, BC * BT // 32)), **_constants(c))  # fmt: skip


def _fixed(g: Tensor, x: Tensor, out: Tensor, c: Convolution, S: int) -> None:
    C, K, taps = len(out), g.numel() // g.shape[1], out[0].numel()
    extent_g, extent_x = (extents(t, 1, False, True)[1] for t in (g, x))
    sums = torch.zeros(2 * out.numel(), dtype=torch.int64, device=g.device)
    last = is_channels_last(g) and is_channels_last(x)
    BC, BP = _tile(SUM_TILE_LAST if last else SUM_TILE, C, K)
    scaling: dict[str, Any] = {"S": S, "LAST_SIGNIFICAND": LAST_SIGNIFICAND[S]}
    launch(conv_depthwise_sums_kernel, (triton.cdiv(C, BC) * triton.cdiv(K, BP),), g, x, extent_g, extent_x, sums, 0, K,
           C, C // c.groups, *_axes(c, False), Strides(*g.stride()), Strides(*x.stride()), LAST=last, BC=BC, BP=BP,
           num_warps=4, **scaling, **_constants(c))  # fmt: skip
    launch(conv_depthwise_finish_kernel, (triton.cdiv(out.numel(), 512),), sums, extent_g, extent_x, out, C, taps,
           C // c.groups, BLOCK=512, **scaling)  # fmt: skip
    rows, cols = extent_g[C:].view(c.groups, -1), extent_x[c.groups :].view(c.groups, 1)
    fix_weight_gradient(g, x, out, c, rows, cols)


def _tile(tile: tuple[int, int], C: int, K: int) -> tuple[int, int]:
    """No larger than the channels and positions need."""
    return min(tile[0], triton.next_power_of_2(C)), min(tile[1], max(16, triton.next_power_of_2(K)))


def _axes(c: Convolution, back: bool) -> list[Axis]:
    source, result = (c.output, c.size) if back else (c.size, c.output)
    return [Axis(*values) for values in zip(source, result, c.padding, c.dilation, strict=True)]


def _constants(c: Convolution) -> dict[str, Any]:
    taps = dict(zip(("TD", "TH", "TW"), c.kernel, strict=True))
    return taps | dict(zip(("SD", "SH", "SW"), c.stride, strict=True))
