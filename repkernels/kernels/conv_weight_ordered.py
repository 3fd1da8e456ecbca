"""`ordered` weight gradients: k = (sample, output position) is long, results are few (SPEC.md, "Convolutions").

Chunks of k go to different programs, which store their chains; these are then added in ascending order. Of the two
operands one is gathered, its channels and taps the rows of a tile, and the other lies as rows of channels: so both
are read along memory, and the tile of the second feeds the FMAs without bank conflicts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels.arith import positive_zeros, tile_of
from repkernels.kernels.configuration import Configuration, pick, processors
from repkernels.kernels.conv_copy import channels_first, channels_last_rows, is_channels_last
from repkernels.kernels.conv_gather import (
    CHUNK,
    MOST_BITS,
    Pass,
    Strides,
    forward_pass,
    inside_bits,
    need_bits,
    offset,
    pixels_of,
    readable,
    taps_of,
)
from repkernels.kernels.launch import launch
from repkernels.kernels.sizes import cdiv

# Rows of gathered channels and taps (BM) by channels of the other operand (BN).
CONFIGURATIONS = (
    Configuration(64, 128, 32, 4, 3),
    Configuration(64, 64, 32, 4, 3),
    Configuration(32, 64, 32, 4, 3),
    Configuration(32, 32, 32, 4, 3),
    Configuration(32, 16, 32, 2, 3),
)
# Bytes of stored chains at a time.
WORKSPACE = 2**26


@triton.jit
def weight_places(
    a, b, K, R, C, LD, first_chunk, d, h, w, s, TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    GROUPS: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN_ROWS: tl.constexpr,
    EVEN_COLS: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Of a program: its job (chunk, group), k0, k1, rows with their taps and offsets, columns and where those are.

    Rows and columns past the end repeat the last one.
    """
    tiles = tl.cdiv(R, BM) * tl.cdiv(C, BN)
    job = tl.program_id(0) // tiles
    group = job % GROUPS
    k0 = (first_chunk + job // GROUPS) * CHUNK
    k1 = min(K, k0 + CHUNK)
    pm, pn = tile_of(tl.program_id(0) % tiles, R, C, BM, BN, 8)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    row = rows if EVEN_ROWS else tl.minimum(rows, R - 1)
    col = cols if EVEN_COLS else tl.minimum(cols, C - 1)
    td, th, tw, offsets = taps_of(row, d, h, w, s, TD, TH, TW, FAR)
    pa = a + (group * (R // (TD * TH * TW))).to(tl.int64) * s.c
    return job, k0, k1, rows, cols, td, th, tw, offsets, pa, b + group * C + col


@triton.jit(do_not_specialize=["zero", "K", "first_chunk"])
def conv_weight_ordered_kernel(
    a, b, part, zero, K, R, C, LD, first_chunk, d, h, w, s, TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    GROUPS: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    EVEN: tl.constexpr, EVEN_ROWS: tl.constexpr, EVEN_COLS: tl.constexpr, MASK: tl.constexpr, FAR: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """part[chunk - first_chunk, group, row, col], contiguous: one tile of a chunk's chains.

    a: gathered, R rows (channel, tap) a group; b: (K, LD), C columns a group. VECTOR: neighbouring positions are
    neighbours in a, four at a time.
    """
    job, k0, k1, rows, cols, td, th, tw, offsets, pa, pb = weight_places(
        a, b, K, R, C, LD, first_chunk, d, h, w, s, TD, TH, TW, GROUPS, CHUNK, BM, BN, EVEN_ROWS, EVEN_COLS, FAR
    )
    need = need_bits(td, th, tw, TH, TW)
    acc = tl.zeros((BM, BN), tl.float32)
    if VECTOR:
        offsets = tl.multiple_of(offsets, [4])
    for k in range(k0, k1, BK):
        ks = k + tl.arange(0, BK)
        kc = ks if EVEN else tl.minimum(ks, k1 - 1)
        n, sd, sh, sw, rd, rh, rw, exists = pixels_of(kc, 0, 0, 0, d, h, w)
        if VECTOR:
            plane = d.count * h.count * w.count
            at = n.to(tl.int64) * s.n + kc % plane
            pk = pa + tl.max_contiguous(tl.multiple_of(at, [4]), [4])
        else:
            pk = pa + offset(n, 0, sd, sh, sw, s, zero, 16)
        inside = kc
        if MASK == 1:
            inside = inside_bits(sw, w, TW, 0) | inside_bits(sh, h, TH, TW) | inside_bits(sd, d, TD, TW + TH)
        at_a, at_b = pk[None, :] + offsets[:, None], pb[None, :] + kc.to(tl.int64)[:, None] * LD
        if MASK:
            mask = readable(td, th, tw, need, inside, sd, sh, sw, d, h, w, MASK)
            if not EVEN:
                mask = mask & (ks < k1)[None, :]
            x = tl.load(at_a, mask=mask, other=0.0)
        elif EVEN:
            x = tl.load(at_a)
        else:
            x = tl.load(at_a, mask=(ks < k1)[None, :], other=0.0)
        if EVEN:
            y = tl.load(at_b)
        else:
            y = tl.load(at_b, mask=(ks < k1)[:, None], other=0.0)
        acc = tl.dot(x.to(tl.float32), y.to(tl.float32), acc, input_precision="ieee")
    at = part + (job.to(tl.int64) * R + rows[:, None]) * C + cols[None, :]
    tl.store(at, acc, mask=(rows < R)[:, None] & (cols < C)[None, :])


@triton.jit(do_not_specialize=["zero", "K", "R", "C", "first_chunk"])
def conv_weight_written_out_kernel(
    a, b, part, zero, K, R, C, LD, first_chunk, d, h, w, s, TD: tl.constexpr, TH: tl.constexpr, TW: tl.constexpr,
    GROUPS: tl.constexpr, CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, FAR: tl.constexpr,
    TYPE: tl.constexpr,
):  # fmt: skip
    """The same with chains written out: binary64, and GPUs whose fp32 `tl.dot` is not one ascending chain."""
    job, k0, k1, rows, cols, td, th, tw, offsets, pa, pb = weight_places(
        a, b, K, R, C, LD, first_chunk, d, h, w, s, TD, TH, TW, GROUPS, CHUNK, BM, BN, False, False, FAR
    )
    pb += tl.cast(k0, tl.int64) * LD
    acc = tl.zeros((BM, BN), TYPE)
    for k in range(k0, k1):
        n, sd, sh, sw, rd, rh, rw, exists = pixels_of(k, 0, 0, 0, d, h, w)
        position_d, position_h, position_w = sd + td * d.reach, sh + th * h.reach, sw + tw * w.reach
        mask = (position_d >= 0) & (position_d < d.source) & (position_h >= 0) & (position_h < h.source)
        mask = mask & (position_w >= 0) & (position_w < w.source)
        x = tl.load(pa + n.to(tl.int64) * s.n + sd * s.d + sh * s.h + sw * s.w + offsets, mask=mask, other=0.0).to(TYPE)
        y = tl.load(pb).to(TYPE)
        pb += LD
        acc = tl.fma(tl.broadcast_to(x[:, None], (BM, BN)), tl.broadcast_to(y[None, :], (BM, BN)), acc)
    at = part + (job.to(tl.int64) * R + rows[:, None]) * C + cols[None, :]
    tl.store(at, acc, mask=(rows < R)[:, None] & (cols < C)[None, :])


@triton.jit(do_not_specialize=["CHUNKS"])
def conv_weight_total_kernel(
    part, out, CHUNKS, SIZE, R, C, stride_g, stride_r, stride_c, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """part (CHUNKS, G, R, C), SIZE = G * R * C, added in ascending order, rounded once; every zero is +0."""
    tiles_c = tl.cdiv(C, BN)
    tiles = tl.cdiv(R, BM) * tiles_c
    group = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    rows = (tile // tiles_c * BM + tl.arange(0, BM))[:, None]
    cols = (tile % tiles_c * BN + tl.arange(0, BN))[None, :]
    mask = (rows < R) & (cols < C)
    at = part + (group.to(tl.int64) * R + rows) * C + cols
    total = tl.load(at, mask=mask, other=0.0)
    for _ in range(1, CHUNKS):
        at += SIZE
        total += tl.load(at, mask=mask, other=0.0)
    y = positive_zeros(total, out.dtype.element_ty).to(out.dtype.element_ty)
    to = out + group.to(tl.int64) * stride_g + rows.to(tl.int64) * stride_r + cols.to(tl.int64) * stride_c
    tl.store(to, y, mask=mask)


def weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, contract: str = "ordered") -> None:
    """g (N, O, D', H', W'), x (N, C, D, H, W) into out (O, C/g, kd, kh, kw), nothing of them empty.

    fp32, bf16, fp16, or fp64 in binary64; any strides. Positions outside x are operands +0.
    """
    G, O, C = c.groups, g.shape[1] // c.groups, x.shape[1] // c.groups
    phases = forward_pass(c)
    plain = c.pointwise and c.stride == (1, 1, 1) and c.size == c.output
    turned = plain and C < O
    a, b = (g, x) if turned else (x, g)
    if plain:
        # Both are read in one order, so that the copy is that of the smaller one, and positions are one axis.
        a, phases = _one_axis(a if is_channels_last(a) else a.contiguous())
    elif is_channels_last(a):
        a = channels_first(a)
    rows = channels_last_rows(b)
    flat = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    view = flat.view(G, O, -1)
    sum_chunks(partial(_chains, a, rows, phases), len(rows), view if turned else view.transpose(1, 2))
    if flat is not out:
        out.copy_(flat)


def _one_axis(t: Tensor) -> tuple[Tensor, Pass]:
    """A dense t (N, C, D, H, W) with positions on one axis, and samples too where channels are innermost."""
    N, C, *sizes = t.shape
    P = sizes[0] * sizes[1] * sizes[2]
    if is_channels_last(t):
        N, P = 1, N * P
        t = t.as_strided((1, C, 1, 1, P), (C * P, 1, C * P, C * P, C))
    else:
        t = t.as_strided((N, C, 1, 1, P), (C * P, P, P, P, 1))
    one = (1, 1, 1)
    return t, forward_pass(Convolution((1, 1, P), one, one, (0, 0, 0), one, (1, 1, P), 1))


def sum_chunks(chains: Callable[[Tensor, int], None], K: int, result: Tensor) -> None:
    """result (G, R, C), any strides: the sum of the chunks of K.

    chains: stores those of (chunks, G, R, C) from a given chunk on.
    """
    chunks = cdiv(K, CHUNK)
    (G, R, C), size = result.shape, result.numel()
    wide = torch.float64 if result.dtype == torch.float64 else torch.float32
    slab = max(2, min(chunks, WORKSPACE // (size * wide.itemsize)))
    part = torch.empty((min(chunks, slab), G, R, C), dtype=wide, device=result.device)
    begin, kept = 0, 0
    while begin < chunks:
        # What earlier slabs gave is the first term.
        count = min(slab - kept, chunks - begin)
        chains(part[kept : kept + count], begin)
        begin += count
        to = result if begin == chunks else part[0]
        launch(conv_weight_total_kernel, (G * cdiv(R, 32) * cdiv(C, 32),), part, to, kept + count, size,
               R, C, *to.stride(), BM=32, BN=32, num_warps=4)  # fmt: skip
        kept = 1


def _chains(a: Tensor, b: Tensor, phases: Pass, part: Tensor, begin: int) -> None:
    """part: (chunks, G, R, C). a: (N, G * channels, ...) gathered; b: (K, G * C)."""
    K, (chunks, G, R, C) = len(b), part.shape
    jobs = chunks * G
    TD, TH, TW = phases.taps
    s = Strides(*a.stride())
    c = _choose(jobs, R, C, part)
    arguments = (a, b, part, 0, K, R, C, b.shape[1], begin, *phases.axes, s)
    common: dict[str, Any] = {
        "TD": TD, "TH": TH, "TW": TW, "GROUPS": G, "CHUNK": CHUNK, "BM": c.BM, "BN": c.BN,
        "FAR": phases.far(R // (TD * TH * TW), s),
    }  # fmt: skip
    grid = (jobs * c.tiles(R, C),)
    if part.dtype == torch.float64 or torch.version.hip is not None:
        kind = tl.float64 if part.dtype == torch.float64 else tl.float32
        launch(conv_weight_written_out_kernel, grid, *arguments, TYPE=kind, num_warps=4, **common)
        return
    mask = 0 if not phases.masked else 1 if TD + TH + TW <= MOST_BITS else 2
    launch(conv_weight_ordered_kernel, grid, *arguments, BK=c.BK, EVEN=K % c.BK == 0, EVEN_ROWS=R % c.BM == 0,
           EVEN_COLS=C % c.BN == 0, MASK=mask, VECTOR=phases.vectors(a), num_warps=c.num_warps,
           num_stages=c.num_stages, **common)  # fmt: skip


def _choose(jobs: int, M: int, N: int, part: Tensor) -> Configuration:
    """The first whose tiles occupy the device twice and are not mostly empty, or the last that is not."""
    fitting = [c for c in CONFIGURATIONS if c.BM < 2 * M and c.BN < 2 * N] or [CONFIGURATIONS[-1]]
    busy = 2 * processors(part.device)
    chosen = next((c for c in fitting if jobs * c.tiles(M, N) >= busy), fitting[-1])
    return pick((chosen,), part.as_strided((jobs, M, N), (0, 0, 0)), 4)
