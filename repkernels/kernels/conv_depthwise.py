"""Depthwise convolutions, one input channel a group: bound by memory, not by products (SPEC.md, "Convolutions").

Results and input gradients are short `ordered` chains, element by element. A weight gradient contracts all positions of
a channel with those of another: conv_depthwise_fixed.py, or `ordered` chains here.
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels import conv_ordered
from repkernels.kernels.arith import positive_zeros
from repkernels.kernels.conv_copy import is_channels_last
from repkernels.kernels.conv_depthwise_fixed import fixed_weight_gradient
from repkernels.kernels.conv_depthwise_lanes import (
    axes,
    block_of,
    cells,
    columns_together,
    cuts,
    distance,
    met,
    offset,
    positions,
    repeated,
    replaced,
    results,
    rows_together,
    span,
    tap_of,
    tile_of_lanes,
    together,
    vector,
    within,
)
from repkernels.kernels.conv_gather import CHUNK, Strides
from repkernels.kernels.conv_weight_ordered import sum_chunks
from repkernels.kernels.launch import launch

# Taps that a kernel writes out; longer chains are those of conv_ordered.py.
MOST_TAPS = 128
# Products that a lane writes out, and rows of its block.
MOST_PRODUCTS, MOST_ROWS = 100, 8
# Strides, multiplied, of input gradients whose results a lane computes together.
MOST_TOGETHER = 16
# Lanes of a tile; channels by lanes where channels are innermost in memory.
LANES = 128
TILE_LAST = (64, 8)


@triton.jit
def chains(
    x, at, weights, acc, pd, from_h, from_w, inside, d, h, w, s, TD: tl.constexpr, SD: tl.constexpr, H: tl.constexpr,
    W: tl.constexpr, OWN: tl.constexpr, VECTOR: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """acc, the results of each lane's block, continued over the taps of one channel of the source.

    x + at: (channels, lanes), offsets 0 on the last two axes, position 0 on the first. weights: (channels, 1) by tap.
    SKIP: elements outside of the source take no part, otherwise they are +0.
    """
    for td in tl.static_range(TD):
        at_d, has_d = met(pd, td, d, SD, H.back)
        plane = at + (at_d.to(tl.int64) * s.d)[None, :]
        for i in tl.static_range(span(H)):
            has = inside & (has_d & within(from_h, offset(H, i), h.source))[None, :]
            row = cells(x, plane + offset(H, i) * s.h, has, from_w, w.source, s.w, W, OWN, VECTOR)
            for j in tl.static_range(span(W)):
                v = row[j].to(acc[0].dtype)
                for r in tl.static_range(results(H)):
                    for q in tl.static_range(results(W)):
                        if tap_of(H, W, i, j, r, q) >= 0:
                            before = acc[r * W.results + q]
                            weight = weights[td * (H.taps * W.taps) + tap_of(H, W, i, j, r, q)]
                            longer = tl.fma(tl.broadcast_to(weight, v.shape), v, before)
                            if SKIP:
                                part = has & within(from_w, offset(W, j), w.source)[None, :]
                                longer = tl.where(part, longer, before)
                            acc = replaced(acc, r * W.results + q, longer)
    return acc


@triton.jit(do_not_specialize=["zero", "ROWS"])
def conv_depthwise_kernel(
    x, weights, bias, out, zero, ROWS, C, MULTIPLE, blocks_h, blocks_w, d, h, w, s, so, stride_o, stride_t,
    TD: tl.constexpr, SD: tl.constexpr, H: tl.constexpr, W: tl.constexpr, BIAS: tl.constexpr, TYPE: tl.constexpr,
    OWN: tl.constexpr, VECTOR: tl.constexpr, STORED: tl.constexpr, LAST: tl.constexpr, BC: tl.constexpr,
    BW: tl.constexpr, BL: tl.constexpr,
):  # fmt: skip
    """C channels of a convolution's result, or of an input gradient (H.back).

    Lanes are BW blocks of columns of BL // BW blocks of rows, of which there are ROWS in all. MULTIPLE: output channels
    of a group. d, h, w: axes; H, W: how the last two are cut. s, so: strides of x and out. SD: the convolution's. OWN,
    VECTOR: columns of x that are read together, as `cells` has it. STORED: whether all of a block's are stored so.
    """
    blocks_c = tl.cdiv(C, BC)
    job = tl.program_id(0) // blocks_c
    c = tl.program_id(0) % blocks_c * BC + tl.arange(0, BC)
    lanes = tl.arange(0, BL)
    row = job // blocks_w * (BL // BW) + lanes // BW
    col = job % blocks_w * BW + lanes % BW
    n, pd, block = block_of(row, blocks_h, d)
    inside = (c < C)[:, None] & ((row < ROWS) & (col * W.results < w.result))[None, :]
    from_h, from_w = block * h.step + h.base, col * w.step + w.base
    source = distance(n, pd * 0, from_h, from_w, s, zero, LAST)[None, :]
    TAPS: tl.constexpr = TD * H.taps * W.taps
    acc = repeated(tl.zeros((BC, BL), TYPE), H.results * W.results)
    for k in range(MULTIPLE if H.back else 1):
        o = c * MULTIPLE + k if H.back else c
        at = source + (o if H.back else c // MULTIPLE).to(tl.int64)[:, None] * s.c
        taps = ()
        unusual = tl.zeros((BC,), tl.int32)
        for t in tl.static_range(TAPS):
            v = tl.load(weights + o * stride_o + t * stride_t, mask=c < C, other=0.0).to(TYPE)
            taps = taps + (v[:, None],)
            unusual |= (~(tl.abs(v) < float("inf"))).to(tl.int32)
        if H.back:
            # As +0, what takes no part changes a chain only where a weight is not finite: of a chain of -0 it makes one
            # of +0, which no later sum tells apart, nor the result.
            if tl.max(unusual, 0) != 0:
                acc = chains(x, at, taps, acc, pd, from_h, from_w, inside, d, h, w, s, TD, SD, H, W, OWN,
                             VECTOR, True)  # fmt: skip
            else:
                acc = chains(x, at, taps, acc, pd, from_h, from_w, inside, d, h, w, s, TD, SD, H, W, OWN, VECTOR, False)
        else:
            acc = chains(x, at, taps, acc, pd, from_h, from_w, inside, d, h, w, s, TD, SD, H, W, OWN, VECTOR, False)
    added = tl.zeros((BC, 1), TYPE)
    if BIAS:
        added = tl.load(bias + c, mask=c < C, other=0.0).to(TYPE)[:, None]
    for r in tl.static_range(results(H)):
        line = block * H.results + r
        at = c.to(tl.int64)[:, None] * so.c + distance(n, pd, line, col * W.results, so, zero, LAST)[None, :]
        stored = inside & (line < h.result)[None, :]
        ys = ()
        for q in tl.static_range(results(W)):
            ys = ys + (finished(acc[r * W.results + q], added, out, BIAS),)
        if STORED:
            words = at[:, :, None] + tl.arange(0, results(W))[None, None, :]
            words = tl.max_contiguous(tl.multiple_of(words, [1, 1, results(W)]), [1, 1, results(W)])
            tl.store(out + words, together(ys, results(W)), mask=stored[:, :, None])
        else:
            for q in tl.static_range(results(W)):
                tl.store(out + at + q * so.w, ys[q], mask=stored & (col * W.results + q < w.result)[None, :])


@triton.jit
def finished(r, added, out, BIAS: tl.constexpr):
    """r with the bias, rounded to the output type, every zero +0."""
    if BIAS:
        r = r + added
    if out.dtype.element_ty.primitive_bitwidth < 32:
        r = positive_zeros(r, out.dtype.element_ty).to(out.dtype.element_ty)
    else:
        r = r + 0.0
    return r


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
    phases = c.stride[1] * c.stride[2]
    if w.numel() // out.shape[1] > CHUNK or w[0].numel() > MOST_TAPS or phases > MOST_TOGETHER:
        conv_ordered.input_gradient(g, w, bias, out, c)
    else:
        _launch(g, w, bias, out, c, True)


def _launch(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, back: bool) -> None:
    (N, C, D, height, width), taps = out.shape, w[0].numel()
    last = is_channels_last(x) and is_channels_last(out)
    (multiple, gap), step = c.stride[1:] if back else (1, 1), 1 if back else c.stride[2]
    rows = rows_together(height, c.kernel[1], c.dilation[1], min(MOST_ROWS, MOST_PRODUCTS * multiple // taps), multiple)
    columns, words = columns_together(x, out, gap, step)
    blocks = triton.cdiv(height, rows), triton.cdiv(width, columns)
    tile = tile_of_lanes(C, N * D * blocks[0], blocks[1], LANES, TILE_LAST if last else None)
    weights = w.reshape(len(w), -1)
    if last:
        weights = weights.T.contiguous().T
    blocks_w = triton.cdiv(blocks[1], tile["BW"])
    programs = triton.cdiv(C, tile["BC"]) * blocks_w * triton.cdiv(N * D * blocks[0], tile["BL"] // tile["BW"])
    H, W = cuts(c, back, (rows, columns))
    launch(conv_depthwise_kernel, (programs,), x, weights, out if bias is None else bias.contiguous(), out, 0,
           N * D * blocks[0], C, len(w) // c.groups, blocks[0], blocks_w, *axes(c, back, (rows, columns)),
           Strides(*x.stride()), Strides(*out.stride()), *weights.stride(), TD=c.kernel[0], SD=c.stride[0], H=H, W=W,
           BIAS=bias is not None, TYPE=tl.float64 if out.dtype == torch.float64 else tl.float32,
           OWN=-(c.padding[2] // gap) if back else c.padding[2], VECTOR=words,
           STORED=columns > 1 and vector(out, columns) == columns, LAST=last, num_warps=4, **tile)  # fmt: skip


def weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, contract: str) -> None:
    """g (N, O, D', H', W'), x (N, C, D, H, W) into out (O, 1, kd, kh, kw), `ordered` or `fixed`; nothing is empty."""
    flat = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    if contract == "ordered":
        sum_chunks(partial(_chains, g, x, c), g.numel() // g.shape[1], flat.view(1, len(out), -1))
    else:
        fixed_weight_gradient(g, x, flat, c, int(contract[5:]) // 8)
    if flat is not out:
        out.copy_(flat)


def _chains(g: Tensor, x: Tensor, c: Convolution, part: Tensor, begin: int) -> None:
    """part: (chunks, 1, O, taps)."""
    (chunks, _, C, taps), K = part.shape, g.numel() // g.shape[1]
    BT = triton.next_power_of_2(taps)
    BC = max(1, min(128 // BT, triton.next_power_of_2(C)))
    constants: dict[str, Any] = dict(zip(("TD", "TH", "TW", "SD", "SH", "SW"), c.kernel + c.stride, strict=True))
    launch(conv_depthwise_chains_kernel, (chunks * triton.cdiv(C, BC),), g, x, part, K, C, C // c.groups, begin,
           *axes(c, False, (1, 1)), Strides(*g.stride()), Strides(*x.stride()), CHUNK=CHUNK, BC=BC, BT=BT,
           TYPE=tl.float64 if part.dtype == torch.float64 else tl.float32,
           num_warps=max(1, min(4, BC * BT // 32)), **constants)  # fmt: skip
