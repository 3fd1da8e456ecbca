"""`ordered` convolutions: one chain of fused multiply-adds per output, k ascending (SPEC.md, "Convolutions")."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels import matmul_ordered
from repkernels.kernels.arith import magnitude, positive_zeros, tile_of
from repkernels.kernels.configuration import Configuration, pick, processors
from repkernels.kernels.conv_copy import channels_first, channels_last_rows, is_channels_last
from repkernels.kernels.conv_gather import (
    CHUNK,
    MOST_BITS,
    Pass,
    Strides,
    border,
    covers,
    forward_pass,
    gradient_passes,
    inside_bits,
    need_bits,
    offset,
    pixels_of,
    readable,
    table,
    taps_of,
)
from repkernels.kernels.conv_weight_ordered import weight_gradient
from repkernels.kernels.launch import launch

__all__ = ["forward", "input_gradient", "weight_gradient"]

# Result channels (BM) by pixels (BN).
CONFIGURATIONS = (
    Configuration(64, 128, 32, 4, 3),
    Configuration(64, 64, 32, 4, 3),
    Configuration(32, 64, 32, 4, 3),
    Configuration(16, 128, 32, 4, 3),
    Configuration(4, 512, 16, 4, 3),
)
# Of the written-out chains, which need no shared memory.
WRITTEN_OUT = Configuration(32, 64, 1, 4, 1)


@triton.jit
def gathered_chain(
    px, pw, table, inside, sd, sh, sw, acc, k0, k1, K, d, h, w, s,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, MASK: tl.constexpr,
    FAR: tl.constexpr, VECTOR: tl.constexpr, TABLE: tl.constexpr,
):  # fmt: skip
    """acc (rows, pixels) continued over k0..k1. `tl.dot` in ieee mode is one FMA chain per output.

    TABLE: distances and bits of k come from `table` (2, K). MASK: 0 every tap reads inside the source, 1 by the bits
    `inside` of each pixel, 2 by comparing positions. VECTOR: pixels are neighbours in memory, four at a time.
    """
    for k in range(k0, k1, BK):
        ks = k + tl.arange(0, BK)
        td, th, tw, need = ks, ks, ks, ks
        if TABLE:
            if EVEN:
                offsets = tl.load(table + ks)
            else:
                offsets = tl.load(table + ks, mask=ks < k1, other=0)
            if MASK and EVEN:
                need = tl.load(table + K + ks).to(tl.int32)
            elif MASK:
                need = tl.load(table + K + ks, mask=ks < k1, other=0).to(tl.int32)
        else:
            td, th, tw, offsets = taps_of(ks, d, h, w, s, TD, TH, TW, FAR)
            need = need_bits(td, th, tw, TH, TW)
        if VECTOR:
            offsets = tl.multiple_of(offsets, [4])
        at = px[None, :] + offsets[:, None]
        if MASK:
            mask = readable(td, th, tw, need, inside, sd, sh, sw, d, h, w, MASK)
        if EVEN:
            weights = tl.load(pw[:, None] + ks[None, :])
            if MASK:
                x = tl.load(at, mask=mask, other=0.0)
            else:
                x = tl.load(at)
        else:
            weights = tl.load(pw[:, None] + ks[None, :], mask=(ks < k1)[None, :], other=0.0)
            if MASK:
                x = tl.load(at, mask=mask & (ks < k1)[:, None], other=0.0)
            else:
                x = tl.load(at, mask=(ks < k1)[:, None], other=0.0)
        acc = tl.dot(weights.to(tl.float32), x.to(tl.float32), acc, input_precision="ieee")
    return acc


@triton.jit
def written_out_chain(
    px, pw, sd, sh, sw, acc, k0, k1, d, h, w, s, TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    FAR: tl.constexpr, SKIP: tl.constexpr,
):  # fmt: skip
    """The same chain one k at a time, in acc's type. SKIP: elements outside the source take no part, else are +0."""
    for k in range(k0, k1):
        td, th, tw, offset = taps_of(k, d, h, w, s, TD, TH, TW, FAR)
        position_d, position_h, position_w = sd + td * d.reach, sh + th * h.reach, sw + tw * w.reach
        mask = (position_d >= 0) & (position_d < d.source) & (position_h >= 0) & (position_h < h.source)
        mask = mask & (position_w >= 0) & (position_w < w.source)
        x = tl.broadcast_to(tl.load(px + offset, mask=mask, other=0.0).to(acc.dtype)[None, :], acc.shape)
        weights = tl.broadcast_to(tl.load(pw + k).to(acc.dtype)[:, None], acc.shape)
        longer = tl.fma(weights, x, acc)
        acc = tl.where(mask[None, :], longer, acc) if SKIP else longer
    return acc


@triton.jit(do_not_specialize=["zero", "N", "M", "CPG"])
def conv_ordered_kernel(
    x, weights, bias, out, table, zero, N, M, CPG, K, ALL, d, h, w, s, so,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, EVEN: tl.constexpr, ONE_CHUNK: tl.constexpr, WHOLE: tl.constexpr, MASK: tl.constexpr,
    FAR: tl.constexpr, VECTOR: tl.constexpr, TABLE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """One tile a program, (group, phase, tile). weights: (G, phases, M, K) contiguous, M result channels of a group.

    CPG: source channels of a group. ALL: the length of k with the taps of other phases. d, h, w: axes. s, so: strides
    of x and out.
    """
    group, phase_d, phase_h, phase_w, rows, px, pw, sd, sh, sw, po, exists = places(
        x, weights, out, zero, N, M, CPG, K, d, h, w, s, so, BM, BN, VECTOR
    )
    inside = tl.zeros((BN,), tl.int32)
    if MASK == 1:
        inside = inside_bits(sw, w, TW, 0) | inside_bits(sh, h, TH, TW) | inside_bits(sd, d, TD, TW + TH)
    start = tl.zeros((BM, BN), tl.float32)
    k1 = K
    if not ONE_CHUNK:
        k1 = min(K, border(CHUNK, phase_d, phase_h, phase_w, d, h, w, TD, TH, TW, WHOLE))
    total = gathered_chain(px, pw, table, inside, sd, sh, sw, start, 0, k1, K, d, h, w, s, TD, TH, TW, BK, EVEN, MASK,
                           FAR, VECTOR, TABLE)  # fmt: skip
    if not ONE_CHUNK:
        for place in tl.range(CHUNK, ALL, CHUNK, num_stages=1):
            k0 = border(place, phase_d, phase_h, phase_w, d, h, w, TD, TH, TW, WHOLE)
            k1 = min(K, border(place + CHUNK, phase_d, phase_h, phase_w, d, h, w, TD, TH, TW, WHOLE))
            total += gathered_chain(px, pw, table, inside, sd, sh, sw, start, k0, k1, K, d, h, w, s, TD, TH, TW, BK,
                                    EVEN, MASK, FAR, VECTOR, TABLE)  # fmt: skip
    store_pixels(total, bias, po, group, rows, exists, M, so, BIAS)


@triton.jit(do_not_specialize=["zero", "N", "M", "CPG", "K", "LD", "ALL"])
def conv_written_out_kernel(
    x, weights, bias, out, flags, zero, N, M, CPG, K, LD, ALL, d, h, w, s, so,
    TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    WHOLE: tl.constexpr, FAR: tl.constexpr, BIAS: tl.constexpr, SKIP: tl.constexpr, FLAGGED: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """The same with chains written out: binary64, and GPUs whose fp32 `tl.dot` is not one ascending chain.

    LD: from row to row of the weights. FLAGGED: only channels are computed and stored whose flags (G, M) are not 0.
    """
    group, phase_d, phase_h, phase_w, rows, px, pw, sd, sh, sw, po, exists = places(
        x, weights, out, zero, N, M, CPG, LD, d, h, w, s, so, BM, BN, False
    )
    wanted = rows < M
    if FLAGGED:
        wanted = wanted & (tl.load(flags + group * M + rows, mask=rows < M, other=0) != 0)
        ALL = tl.where(tl.max(wanted.to(tl.int32), 0) != 0, ALL, 0)
    total = tl.zeros((BM, BN), TYPE)
    for place in range(0, ALL, CHUNK):
        k0 = border(place, phase_d, phase_h, phase_w, d, h, w, TD, TH, TW, WHOLE)
        k1 = tl.minimum(K, border(place + CHUNK, phase_d, phase_h, phase_w, d, h, w, TD, TH, TW, WHOLE))
        start = tl.zeros((BM, BN), TYPE)
        acc = written_out_chain(px, pw, sd, sh, sw, start, k0, k1, d, h, w, s, TD, TH, TW, FAR, SKIP)
        total = acc if place == 0 else total + acc
    store_pixels(total, bias, po, group, tl.where(wanted, rows, M), exists, M, so, BIAS)


@triton.jit
def places(
    x, weights, out, zero, N, M, CPG, LD, d, h, w, s, so, BM: tl.constexpr, BN: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Of a program: its group and phases, its rows and pixels, and where those are. Past the end, others repeat."""
    phases = d.phases * h.phases * w.phases
    pixels = N * (d.count * h.count * w.count)
    tiles = tl.cdiv(M, BM) * tl.cdiv(pixels, BN)
    job = tl.program_id(0) // tiles
    group, phase = job // phases, job % phases
    phase_w = phase % w.phases
    phase_h = phase // w.phases % h.phases
    phase_d = phase // (w.phases * h.phases)
    pm, pn = tile_of(tl.program_id(0) % tiles, M, pixels, BM, BN, 8)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    # Four at a time, so that those past the end are neighbours too.
    p = tl.where(cols < pixels, cols, cols % 4) if VECTOR else tl.minimum(cols, pixels - 1)
    n, sd, sh, sw, rd, rh, rw, exists = pixels_of(p, phase_d, phase_h, phase_w, d, h, w)
    channel = (group * CPG).to(tl.int64)
    if VECTOR:
        at = n.to(tl.int64) * s.n + channel * s.c + p % (d.count * h.count * w.count)
        px = x + tl.max_contiguous(tl.multiple_of(at, [4]), [4])
    else:
        px = x + offset(n, channel, sd, sh, sw, s, zero, 16)
    pw = weights + (job * M + tl.minimum(rows, M - 1)).to(tl.int64) * LD
    po = out + offset(n, (group * M).to(tl.int64), rd, rh, rw, so, zero, 2)
    return group, phase_d, phase_h, phase_w, rows, px, pw, sd, sh, sw, po, exists & (cols < pixels)


@triton.jit
def store_pixels(r, bias, po, group, rows, exists, M, so, BIAS: tl.constexpr):
    """r (rows, pixels): adds the bias of each row, rounds once to the output type, stores every zero as +0."""
    if BIAS:
        r = r + tl.load(bias + group * M + rows, mask=rows < M, other=0.0).to(r.dtype)[:, None]
    y = positive_zeros(r, po.dtype.element_ty).to(po.dtype.element_ty)
    tl.store(po[None, :] + rows.to(tl.int64)[:, None] * so.c, y, mask=(rows < M)[:, None] & exists[None, :])


@triton.jit(do_not_specialize=["COUNT", "INNER"])
def nonfinite_rows_kernel(w, flags, COUNT, INNER, stride_g, stride_r, stride_k, stride_t, M, BLOCK: tl.constexpr):
    """flags[row] of w (G, M, COUNT, INNER): whether the row has an element that is not finite."""
    row = tl.program_id(0)
    at = w + (row // M).to(tl.int64) * stride_g + (row % M).to(tl.int64) * stride_r
    found = tl.zeros((BLOCK,), tl.int32)
    for k in range(0, COUNT * INNER, BLOCK):
        ks = k + tl.arange(0, BLOCK)
        here = at + (ks // INNER).to(tl.int64) * stride_k + (ks % INNER) * stride_t
        v = tl.load(here, mask=ks < COUNT * INNER, other=0.0)
        found |= (magnitude(v.to(tl.float32)) >= 0x7F800000).to(tl.int32)
    tl.store(flags + row, tl.max(found, 0))


def forward(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str = "ordered") -> None:
    """x (N, C, D, H, W), w (O, C/g, kd, kh, kw), bias (O,) into out (N, O, D', H', W'), nothing of them empty.

    fp32, bf16, fp16, or fp64 in binary64; any strides.
    """
    if c.pointwise and c.groups == 1 and is_channels_last(x) and is_channels_last(out) and not _written_out(out):
        _as_matmul(x, w.flatten(1), bias, out, c)
        return
    if is_channels_last(x):
        x = channels_first(x)
    weights = w.unflatten(0, (c.groups, -1))
    _launch(x, weights, bias, out, forward_pass(c), c, skip=False)


def input_gradient(
    g: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str = "ordered"
) -> None:
    """g (N, O, D', H', W'), w (O, C/g, kd, kh, kw), bias (C,) into out (N, C, D, H, W), nothing of them empty."""
    dense = c.pointwise and c.stride == (1, 1, 1) and c.size == c.output and c.groups == 1
    if dense and is_channels_last(g) and is_channels_last(out) and not _written_out(out):
        _as_matmul(g, w.flatten(1).T, bias, out, c)
        return
    if is_channels_last(g):
        g = channels_first(g)
    if not covers(c):
        # Results that no tap meets.
        if bias is None:
            out.zero_()
        else:
            out.copy_(torch.where(bias == 0, 0, bias)[:, None, None, None])
    weights = w.unflatten(0, (c.groups, -1)).transpose(1, 2)
    for phases in gradient_passes(c):
        _launch(g, weights, bias, out, phases, c, skip=phases.masked)


def _written_out(out: Tensor) -> bool:
    return out.dtype == torch.float64 or torch.version.hip is not None


def _as_matmul(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution) -> None:
    """A pointwise convolution of channels_last tensors: pixels (rows) by channels. w: (results, channels)."""
    if c.stride != (1, 1, 1):
        x = x[:, :, :: c.stride[0], :: c.stride[1], :: c.stride[2]]
        x = x[:, :, : c.output[0], : c.output[1], : c.output[2]].contiguous(memory_format=torch.channels_last_3d)
    rows, result = channels_last_rows(x), channels_last_rows(out)
    matmul_ordered.ordered(rows[None], w.T[None], None if bias is None else bias.contiguous(), result[None])


def _launch(
    x: Tensor, weights: Tensor, bias: Tensor | None, out: Tensor, phases: Pass, c: Convolution, skip: bool
) -> None:
    """One pass. weights: (G, M, channels, kd, kh, kw). skip: elements outside the source take no part."""
    G, M, channels = weights.shape[:3]
    bias = None if bias is None else bias.contiguous()
    N, sx, so = len(x), Strides(*x.stride()), Strides(*out.stride())
    jobs, pixels = G * phases.phases, N * phases.pixels
    TD, TH, TW = phases.taps
    K, everything = channels * TD * TH * TW, channels * weights[0, 0, 0].numel()
    one, written_out = everything <= CHUNK, _written_out(out)
    chosen = WRITTEN_OUT if written_out else _choose(jobs, M, pixels, out)
    tabled = phases.taps != (1, 1, 1) and TD + TH + TW <= MOST_BITS and not written_out
    whole = phases.whole or one
    matrix = phases.weights(weights, chosen.BK if tabled and whole else 1)
    LD = matrix.shape[3]
    flags = torch.empty(1, dtype=torch.int32, device=x.device)
    arguments = (x, matrix, out if bias is None else bias, out)
    axes = (everything, *phases.axes, sx, so)
    common: dict[str, Any] = {
        "TD": TD, "TH": TH, "TW": TW, "CHUNK": CHUNK, "WHOLE": phases.whole, "FAR": phases.far(channels, sx),
        "BIAS": bias is not None,
    }  # fmt: skip
    if not written_out:
        mask = 0 if LD == K and not phases.masked else 1 if TD + TH + TW <= MOST_BITS else 2
        # Loads that wait for the table's take twice the stages for as many buffers.
        stages = 2 * chosen.num_stages - 1 if tabled else chosen.num_stages
        of_k = table(phases, channels, LD, sx, x.device) if tabled else flags
        launch(conv_ordered_kernel, (jobs * chosen.tiles(M, pixels),), *arguments, of_k, 0, N, M, channels, LD, *axes,
               BM=chosen.BM, BN=chosen.BN, BK=chosen.BK, EVEN=whole and LD % chosen.BK == 0, ONE_CHUNK=one, MASK=mask,
               VECTOR=phases.vectors(x), TABLE=tabled, num_warps=chosen.num_warps, num_stages=stages,
               **common)  # fmt: skip
    if written_out or skip:
        # The products of tiles have an element +0 for none, which a weight that is not finite turns into NaN.
        if not written_out:
            chosen, flags = WRITTEN_OUT, nonfinite_rows(weights)
        launch(conv_written_out_kernel, (jobs * chosen.tiles(M, pixels),), *arguments, flags, 0, N, M, channels, K, LD,
               *axes, BM=chosen.BM, BN=chosen.BN, SKIP=skip, FLAGGED=not written_out,
               TYPE=tl.float64 if out.dtype == torch.float64 else tl.float32, num_warps=chosen.num_warps,
               **common)  # fmt: skip


def nonfinite_rows(weights: Tensor) -> Tensor:
    """Of weights (G, M, channels, kd, kh, kw), int32 (G * M,): whether a row has an element that is not finite."""
    G, M, channels = weights.shape[:3]
    flat = weights.flatten(3)
    flags = torch.empty(G * M, dtype=torch.int32, device=weights.device)
    launch(nonfinite_rows_kernel, (G * M,), flat, flags, channels, flat.shape[3], *flat.stride(), M, BLOCK=1024)
    return flags


def _choose(jobs: int, M: int, pixels: int, out: Tensor) -> Configuration:
    """The first whose tiles occupy the device twice and are not mostly empty, or the last that is not."""
    fitting = [c for c in CONFIGURATIONS if c.BM < 2 * M] or [CONFIGURATIONS[-1]]
    busy = 2 * processors(out.device)
    chosen = next((c for c in fitting if jobs * c.tiles(M, pixels) >= busy), fitting[-1])
    return pick((chosen,), out.as_strided((jobs, M, pixels), (0, 0, 0)), 4)
