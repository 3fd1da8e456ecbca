"""Where the tiles of a `fixed` convolution read and write, and how an exact sum becomes a result.

Two kinds. By pixels: an output row is a position of the line, contracted over the steps (tap, channel block); a batch
is a group. By lines: an output is (output channel, input channel) of one tap, contracted over the line; a batch is
(group, tap).
"""

import triton
import triton.language as tl

from repkernels.kernels.arith import ldexp, positive_zeros, tile_of
from repkernels.kernels.matmul_fixed_finish import rounded

# What no kernel is compiled anew for.
UNSPECIALISED = [
    "BATCH", "M", "N", "TAPS", "SECTIONS_A", "SECTIONS_B", "PER", "P", "PH", "PW", "OD", "OH", "OW", "CPG", "ACROSS",
    "stride_n", "stride_c", "stride_d", "stride_h", "stride_w",
]  # fmt: skip


@triton.jit
def group_of(batch, TAPS, LINES: tl.constexpr):
    """The group of a batch."""
    return batch // TAPS if LINES else batch


@triton.jit
def step(i, batch, row, col, table, M, N, TAPS, SECTIONS_A, SECTIONS_B, PER, BK: tl.constexpr, LINES: tl.constexpr):
    """(row of a, k of a, row of b, k of b) of step i of a tile, in the first plane. table: as conv_grid makes it.

    a has SECTIONS_A times M rows a group (its phases), b has SECTIONS_B times N (taps; phases).
    """
    g = group_of(batch, TAPS, LINES)
    tap = batch % TAPS if LINES else i // PER
    along = tl.load(table + tap)
    section = tl.load(table + TAPS + tap)
    k = (i if LINES else i % PER) * BK
    row_a = g * SECTIONS_A * M + row
    row_b = (g * SECTIONS_B + section) * N + col
    return (row_a, k, row_b, k + along) if LINES else (row_a + along, k, row_b, k)


@triton.jit
def places(
    batch, rows, cols, M, N, TAPS, P, PH, PW, OD, OH, OW, CPG, ACROSS,
    stride_n, stride_c, stride_d, stride_h, stride_w, LINES: tl.constexpr,
):  # fmt: skip
    """Offsets in the output of a tile's rows and of its columns, and which of them exist.

    By lines the output is a contiguous weight, CPG channels a group, ACROSS taps of the last axis in a column.
    """
    if LINES:
        taps = TAPS * ACROSS
        g = batch // TAPS
        at_rows = (g * M + rows).to(tl.int64) * (CPG * taps) + batch % TAPS * ACROSS
        at_cols = ((cols % CPG) * taps + cols // CPG).to(tl.int64)
        inside = rows < M
    else:
        rest = rows % P
        d = rest // (PH * PW)
        h = rest // PW % PH
        w = rest % PW
        inside = (rows < M) & (d < OD) & (h < OH) & (w < OW)
        at_rows = (rows // P).to(tl.int64) * stride_n + d.to(tl.int64) * stride_d + h.to(tl.int64) * stride_h
        at_rows += w.to(tl.int64) * stride_w
        at_cols = (batch * N + cols).to(tl.int64) * stride_c
    return at_rows, at_cols, inside, cols < N


@triton.jit(do_not_specialize=[*UNSPECIALISED, "SPLITS"])
def finish_kernel(
    part, SPLITS, table, scale_a, scale_b, bias, out, BATCH, M, N, TAPS, SECTIONS_A, SECTIONS_B, PER, P, PH, PW,
    OD, OH, OW, stride_n, stride_c, stride_d, stride_h, stride_w, CPG, ACROSS,
    S: tl.constexpr, LINES: tl.constexpr, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The result from part (SPLITS, BATCH, M, N) int64. WIDE: their total may pass int64, so it is in two words."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    batch = tl.program_id(0) // tiles
    pm, pn = tile_of(tl.program_id(0) % tiles, M, N, BM, BN, 1)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    at_rows, at_cols, in_rows, in_cols = places(batch, rows, cols, M, N, TAPS, P, PH, PW, OD, OH, OW, CPG, ACROSS,
                                                stride_n, stride_c, stride_d, stride_h, stride_w, LINES)  # fmt: skip
    mask = in_rows[:, None] & in_cols[None, :]
    low = tl.zeros((BM, BN), tl.int64)
    high = tl.zeros((BM, BN), tl.int64)
    for split in range(SPLITS):
        at = part + ((split * BATCH + batch).to(tl.int64) * M + rows.to(tl.int64)[:, None]) * N + cols[None, :]
        total = tl.load(at, mask=mask, other=0)
        if WIDE:
            low += total & 0xFFFFFFFF
            high += total >> 32
        else:
            low += total
    r = rounded(low, high) if WIDE else low.to(tl.float32)
    y = finished(r, group_of(batch, TAPS, LINES), rows, cols, in_rows, in_cols, scale_a, scale_b, bias,
                 out.dtype.element_ty, M, N, S, BIAS)  # fmt: skip
    tl.store(out + at_rows[:, None] + at_cols[None, :], y, mask=mask)


@triton.jit
def finished(
    r, g, rows, cols, in_rows, in_cols, scale_a, scale_b, bias, FORMAT: tl.constexpr, M, N,
    S: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """From RN32(P') to the result in FORMAT: exponents, bias, output type."""
    sa = tl.load(scale_a + g.to(tl.int64) * M + rows, mask=in_rows, other=0) >> 1
    sb = tl.load(scale_b + g * N + cols, mask=in_cols, other=0) >> 1
    shift: tl.constexpr = 8 * (S - 2) if S > 2 else 0
    r = ldexp(r, sa[:, None] + sb[None, :] + shift)
    if BIAS:
        r = r + tl.load(bias + g * N + cols, mask=in_cols, other=0.0).to(tl.float32)[None, :]
    return positive_zeros(r, FORMAT).to(FORMAT)
