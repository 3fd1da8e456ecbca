"""`native` convolutions: floating-point tensor cores, taps and channels ascending (SPEC.md, "Convolutions").

Positions lie on the line of conv_grid.py, as they do for `fixed`. A weight gradient is cut into chunks of CHUNK
positions of the line, whose sums are added in ascending order; no other sum is ever split.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.convolution import Convolution, Triple
from repkernels.digits import padded
from repkernels.kernels.arith import positive_zeros, tile_of
from repkernels.kernels.configuration import Configuration, fitted, pick_for, processors
from repkernels.kernels.conv_digits import elements
from repkernels.kernels.conv_fixed import spread_for_few
from repkernels.kernels.conv_fixed_finish import UNSPECIALISED, places, step
from repkernels.kernels.conv_fixed_hopper import by_vectors
from repkernels.kernels.conv_grid import Tap, backwards, grid_of, shifts, steps
from repkernels.kernels.conv_native_hopper import conv_native_hopper
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_hopper import on_hopper
from repkernels.kernels.matmul_native import lacks_bfloat16
from repkernels.kernels.operand import describe
from repkernels.kernels.sizes import cdiv, next_power_of_2

CHUNK = 4096

CONFIGURATIONS = (
    Configuration(128, 256, 64, 8, 4),
    Configuration(128, 128, 64, 8, 5),
    Configuration(128, 64, 64, 8, 6),
    Configuration(64, 64, 64, 4, 6),
)
LINES = (Configuration(128, 128, 64, 8, 4), Configuration(64, 64, 64, 4, 4))


@triton.jit(do_not_specialize=[*UNSPECIALISED, "STEPS"])
def conv_native_kernel(
    a, b, STEPS, table, bias, out, BATCH, M, N, TAPS, SECTIONS_A, SECTIONS_B, PER, P, PH, PW, OD, OH, OW,
    stride_n, stride_c, stride_d, stride_h, stride_w, BIAS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Persistent over (group, tile). a: rows of positions, b: rows of output channels by tap, channels along both."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for item in tl.range(tl.program_id(0), BATCH * tiles, tl.num_programs(0)):
        batch = item // tiles
        pm, pn = tile_of(item % tiles, M, N, BM, BN, GROUP)
        acc = tl.zeros((BM, BN), tl.float32)
        for i in range(STEPS):
            row_a, k_a, row_b, k_b = step(i, batch, pm * BM, pn * BN, table, M, N, TAPS, SECTIONS_A, SECTIONS_B, PER,
                                          BK, False)  # fmt: skip
            acc = tl.dot(a.load([row_a, k_a]), b.load([row_b, k_b]).T, acc)
        rows = pm * BM + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        at_rows, at_cols, in_rows, in_cols = places(
            batch, rows, cols, M, N, TAPS, P, PH, PW, OD, OH, OW, 1, 1,
            stride_n, stride_c, stride_d, stride_h, stride_w, False,
        )  # fmt: skip
        if BIAS:
            acc = acc + tl.load(bias + batch * N + cols, mask=in_cols, other=0.0).to(tl.float32)[None, :]
        y = positive_zeros(acc, out.dtype.element_ty).to(out.dtype.element_ty)
        tl.store(out + at_rows[:, None] + at_cols[None, :], y, mask=in_rows[:, None] & in_cols[None, :])


@triton.jit(do_not_specialize=["M", "N", "K", "BATCH", "CHUNKS", "TAPS", "PHASES"])
def conv_native_chunk_kernel(
    a, b, part, table, BATCH, CHUNKS, M, N, K, TAPS, PHASES,
    CHUNK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Persistent over (group and tap, chunk, tile): part (CHUNKS, BATCH, M, N), fp32.

    a, b: rows of positions, K of a phase, a multiple of BK.
    """
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    for item in tl.range(tl.program_id(0), BATCH * CHUNKS * tiles, tl.num_programs(0)):
        batch = item // (tiles * CHUNKS)
        chunk = (item // tiles) % CHUNKS
        pm, pn = tile_of(item % tiles, M, N, BM, BN, 8)
        g = batch // TAPS
        row_a = g * K
        row_b = (g * PHASES + tl.load(table + TAPS + batch % TAPS)) * K + tl.load(table + batch % TAPS)
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, K), BK):
            acc = tl.dot(a.load([row_a + k, pm * BM]).T, b.load([row_b + k, pn * BN]), acc)
        rows = pm * BM + tl.arange(0, BM)
        cols = pn * BN + tl.arange(0, BN)
        at = part + ((chunk * BATCH + batch).to(tl.int64) * M + rows.to(tl.int64)[:, None]) * N + cols[None, :]
        tl.store(at, acc, mask=(rows < M)[:, None] & (cols < N)[None, :])


@triton.jit(do_not_specialize=["CHUNKS", "BATCH", "M", "N", "TAPS", "CPG", "ACROSS"])
def conv_native_add_kernel(part, out, CHUNKS, BATCH, M, N, TAPS, CPG, ACROSS, BM: tl.constexpr, BN: tl.constexpr):
    """The weight's gradient, contiguous, from part (CHUNKS, BATCH, M, N): chunks added in ascending order."""
    tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
    batch = tl.program_id(0) // tiles
    pm, pn = tile_of(tl.program_id(0) % tiles, M, N, BM, BN, 1)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    at_rows, at_cols, in_rows, in_cols = places(batch, rows, cols, M, N, TAPS, 1, 1, 1, 1, 1, 1, CPG, ACROSS,
                                                0, 0, 0, 0, 0, True)  # fmt: skip
    mask = in_rows[:, None] & in_cols[None, :]
    at = part + (batch.to(tl.int64) * M + rows.to(tl.int64)[:, None]) * N + cols[None, :]
    total = tl.load(at, mask=mask, other=0.0)
    for _ in range(1, CHUNKS):
        at += tl.cast(BATCH, tl.int64) * M * N
        total += tl.load(at, mask=mask, other=0.0)
    y = positive_zeros(total, out.dtype.element_ty).to(out.dtype.element_ty)
    tl.store(out + at_rows[:, None] + at_cols[None, :], y, mask=mask)


def forward(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution) -> None:
    """x (N, C, D, H, W) with w into out (N, O, D', H', W'), nothing empty; bf16 or fp16."""
    grid = grid_of(c, spread_for_few(w.shape[1], c))
    a = elements(x, c, grid, c.stride)
    weights = _weights(w, c.groups, c.kernel[2] if grid.spread else 1, False)
    _over_channels(a, weights, grid.taps, grid.pitch, bias, out, c.groups)


def input_gradient(g: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution) -> None:
    """g (N, O, D', H', W') with w into out (N, C, D, H, W), one phase of its positions after another."""
    grid = grid_of(c, 0).at_outputs()
    a = elements(g, c, grid, (1, 1, 1))
    weights = _weights(w, c.groups, 1, True)
    phases = backwards(c)
    if not all(taps for _, taps in phases):
        out.copy_(torch.zeros_like(out) if bias is None else torch.where(bias == 0, 0, bias)[:, None, None, None])
    for (pd, ph, pw), taps in phases:
        part = out[:, :, pd :: c.stride[0], ph :: c.stride[1], pw :: c.stride[2]]
        if taps and part.numel():
            _over_channels(a, weights, taps, grid.pitch, bias, part, c.groups)


def weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution) -> None:
    """g (N, O, D', H', W') with x (N, C, D, H, W) into out (O, C / groups, kd, kh, kw)."""
    _refuse(g)
    cpg = out.shape[1]
    grid = grid_of(c, spread_for_few(cpg, c))
    a = elements(g, c, grid.at_outputs(), (1, 1, 1), 64)
    b = elements(x, c, grid, c.stride, 64)
    across = c.kernel[2] if grid.spread else 1
    taps, line, M, N = len(grid.taps), a.shape[2], out.shape[0] // c.groups, cpg * across
    batch, chunks = c.groups * taps, cdiv(line, CHUNK)
    t = fitted(pick_for(LINES, (batch * chunks, M, N), 2, out.device), 2, out.device)
    part = out.new_empty((chunks, batch, M, N), dtype=torch.float32)
    launch(conv_native_chunk_kernel, (min(batch * chunks * t.tiles(M, N), processors(out.device)),),
           describe(a.view(-1, a.shape[-1]), [t.BK, t.BM]), describe(b.view(-1, b.shape[-1]), [t.BK, t.BN]), part,
           shifts(grid.taps, out.device), batch, chunks, M, N, line, taps, len(grid.phases), CHUNK=CHUNK, BM=t.BM,
           BN=t.BN, BK=t.BK, num_warps=t.num_warps, num_stages=t.num_stages)  # fmt: skip
    target = out if out.is_contiguous() else torch.empty_like(out, memory_format=torch.contiguous_format)
    launch(conv_native_add_kernel, (batch * cdiv(M, 32) * cdiv(N, 32),), part, target, chunks, batch, M,
           N, taps, cpg, across, BM=32, BN=32)  # fmt: skip
    if target is not out:
        out.copy_(target)


def _weights(w: Tensor, groups: int, across: int, transposed: bool) -> Tensor:
    """(groups, taps / across, R, K rounded up to 16): rows of output channels, or of input channels if transposed.

    K is (tap of the last axis, where it goes across; channel).
    """
    O, cpg = w.shape[:2]
    taps = w[0, 0].numel()
    split = w.reshape(groups, O // groups, cpg, taps // across, across)
    split = split.permute(0, 3, 2, 4, 1) if transposed else split.permute(0, 3, 1, 4, 2)
    rows = split.reshape(groups, taps // across, split.shape[2], -1)
    return torch.nn.functional.pad(rows, (0, padded(rows.shape[-1]) - rows.shape[-1])).contiguous()


def _over_channels(
    a: Tensor, b: Tensor, taps: tuple[Tap, ...], pitch: Triple, bias: Tensor | None, out: Tensor, groups: int
) -> None:
    _refuse(a)
    M, N, K = a.shape[2], b.shape[2], a.shape[3]
    c = pick_for(CONFIGURATIONS, (groups, M, N), 2, out.device)
    c = c._replace(BN=max(16, min(c.BN, next_power_of_2(N))), BK=max(16, min(c.BK, next_power_of_2(K))))
    c = fitted(c, 2, out.device, 2 * (out.stride(1) == 1))
    per = cdiv(K, c.BK)
    programs = min(groups * c.tiles(M, N), processors(out.device))
    arguments = (per * len(taps), steps(taps, M, out.device), out if bias is None else bias.contiguous(), out, groups,
                 M, N, len(taps), a.shape[1], b.shape[1], per, math.prod(pitch), *pitch[1:], *out.shape[2:],
                 *out.stride())  # fmt: skip
    if on_hopper(out.device) and c.BM == 16 * c.num_warps and c.num_stages > 1:
        last = by_vectors(out, N, c.BN)
        conv_native_hopper(c, a.view(-1, K), b.view(-1, b.shape[-1]), arguments, programs, bias is not None, last)
        return
    launch(conv_native_kernel, (programs,), describe(a.view(-1, K), [c.BM, c.BK]),
           describe(b.view(-1, b.shape[-1]), [c.BN, c.BK]), *arguments, BIAS=bias is not None, BM=c.BM, BN=c.BN,
           BK=c.BK, GROUP=c.GROUP, num_warps=c.num_warps, num_stages=c.num_stages)  # fmt: skip


def _refuse(a: Tensor) -> None:
    if a.dtype == torch.bfloat16 and lacks_bfloat16(a.device):
        raise NotImplementedError(
            f"contract: native has no bfloat16 tensor cores on {a.device}; use fixed16 or float16"
        )
