"""`fixed` contractions on Hopper: the same exact integer sums, with asynchronous int8 products in flight all the time.

Triton's own pipeline waits after every product with an integer accumulator, so this kernel is written in Gluon: one
loop over all (tile, k) steps of a program, loads running ahead across tiles, one wait a step.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from repkernels.digits import Digits
from repkernels.kernels import arith, matmul_fixed_finish, matmul_nonfinite
from repkernels.kernels.configuration import Configuration, processors
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_finish import UNSPECIALISED

# Triton 3.6 knows it by its older name.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared

tile_of, ldexp, positive_zeros = (gluon.jit(f.fn) for f in (arith.tile_of, arith.ldexp, arith.positive_zeros))
joined, sign_class = gluon.jit(matmul_fixed_finish.joined.fn), gluon.jit(matmul_nonfinite.sign_class.fn)


@gluon.jit
def place(item, M, N, BM: gl.constexpr, BN: gl.constexpr, SPLITS, GROUP: gl.constexpr):
    """Batch, split, first row and first column of an item."""
    tiles = gl.cdiv(M, BM) * gl.cdiv(N, BN)
    pm, pn = tile_of(item % tiles, M, N, BM, BN, GROUP)
    return item // (tiles * SPLITS), (item // tiles) % SPLITS, pm * BM, pn * BN


@gluon.jit
def load_step(
    digits_a, digits_b, tiles_a, tiles_b, ready, row_a, row_b, plane_a, plane_b, k, stage, wanted, S: gl.constexpr
):
    """Starts the copies of one k step of all digits of both operands into a stage."""
    bar = ready.index(stage)
    mbarrier.expect(bar, S * (digits_a.block_type.nbytes + digits_b.block_type.nbytes), wanted)
    for i in gl.static_range(S):
        async_load(digits_a, [row_a + i * plane_a, k], bar, tiles_a.index(stage * S + i), wanted)
        async_load(digits_b, [row_b + i * plane_b, k], bar, tiles_b.index(stage * S + i), wanted)


@gluon.jit
def operand(tiles_a, index, REGISTERS: gl.constexpr, layout: gl.constexpr):
    """A tile of the first operand: as it lies in shared memory, or read once into registers."""
    tile = tiles_a.index(index)
    return tile.load(layout) if REGISTERS else tile


@gluon.jit
def products(tiles_a, tiles_b, stage, c0, c1, c2, c3, c4, S: gl.constexpr, REGISTERS: gl.constexpr, mma: gl.constexpr):
    """Starts the products of all digits of a stage, added to the sums of products of equal weight."""
    fragment: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=mma, k_width=4)
    x0 = operand(tiles_a, stage * S, REGISTERS, fragment)
    y0 = tiles_b.index(stage * S).permute((1, 0))
    c0 = warpgroup_mma(x0, y0, c0, is_async=True)
    if S > 1:
        x1 = operand(tiles_a, stage * S + 1, REGISTERS, fragment)
        y1 = tiles_b.index(stage * S + 1).permute((1, 0))
        c1 = warpgroup_mma(x0, y1, c1, is_async=True)
        c1 = warpgroup_mma(x1, y0, c1, is_async=True)
        c2 = warpgroup_mma(x1, y1, c2, is_async=True)
    if S > 2:
        x2 = operand(tiles_a, stage * S + 2, REGISTERS, fragment)
        y2 = tiles_b.index(stage * S + 2).permute((1, 0))
        c2 = warpgroup_mma(x0, y2, c2, is_async=True)
        c2 = warpgroup_mma(x2, y0, c2, is_async=True)
        c3 = warpgroup_mma(x1, y2, c3, is_async=True)
        c3 = warpgroup_mma(x2, y1, c3, is_async=True)
    if S > 3:
        x3 = operand(tiles_a, stage * S + 3, REGISTERS, fragment)
        y3 = tiles_b.index(stage * S + 3).permute((1, 0))
        c3 = warpgroup_mma(x0, y3, c3, is_async=True)
        c3 = warpgroup_mma(x3, y0, c3, is_async=True)
        c4 = warpgroup_mma(x1, y3, c4, is_async=True)
        c4 = warpgroup_mma(x2, y2, c4, is_async=True)
        c4 = warpgroup_mma(x3, y1, c4, is_async=True)
    return c0, c1, c2, c3, c4


@gluon.jit
def settled(c0, c1, c2, c3, c4, S: gl.constexpr, LEFT: gl.constexpr):
    """The sums once all but LEFT of the products started last have ended."""
    if S == 1:
        c0 = warpgroup_mma_wait(num_outstanding=LEFT, deps=(c0,))
    elif S == 2:
        c0, c1, c2 = warpgroup_mma_wait(num_outstanding=LEFT, deps=(c0, c1, c2))
    elif S == 3:
        c0, c1, c2, c3 = warpgroup_mma_wait(num_outstanding=LEFT, deps=(c0, c1, c2, c3))
    else:
        c0, c1, c2, c3, c4 = warpgroup_mma_wait(num_outstanding=LEFT, deps=(c0, c1, c2, c3, c4))
    return c0, c1, c2, c3, c4


@gluon.jit
def with_nonfinite(r, pa, pb, in_a, in_b, K, stride_ak, stride_bk):
    """r where the dot product of sign classes is finite, that dot product elsewhere. One k at a time: it is rare."""
    classes = gl.zeros_like(r)
    for _ in range(K):
        x = sign_class(gl.load(pa, mask=in_a, other=0.0).to(gl.float32))
        y = sign_class(gl.load(pb, mask=in_b, other=0.0).to(gl.float32))
        classes += x[:, None] * y[None, :]
        pa += stride_ak
        pb += stride_bk
    finite = (classes.to(gl.int32, bitcast=True) & 0x7F800000) != 0x7F800000
    return gl.where(finite, r, classes)


@gluon.jit(do_not_specialize=[*UNSPECIALISED, "Kpad", "SPLITS", "SPAN"])
def hopper_kernel(
    digits_a, digits_b, part, Kpad, SPLITS, SPAN, scale_a, scale_b, bias, c, a, b, M, N, K, BATCH, BATCH_A, BATCH_B,
    stride_ab, stride_am, stride_ak, stride_bb, stride_bk, stride_bn, stride_cb, stride_cm, stride_cn,
    S: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr, SPLIT: gl.constexpr,
    BIAS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Persistent over (batch, split, tile). digits: descriptors over (S * batch * rows, Kpad).

    A split covers SPAN of K, S * SPAN <= 131071, so that every sum fits int32. SPLIT: its P' goes to part,
    (SPLITS, batch, M, N) int64.
    """
    BM: gl.constexpr = digits_a.block_type.shape[0]
    BN: gl.constexpr = digits_b.block_type.shape[0]
    BK: gl.constexpr = digits_a.block_type.shape[1]
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, min(BN, 128), 32]
    )
    IN_FLIGHT: gl.constexpr = 0 if REGISTERS else (0, 1, 4, 8, 13)[S]
    tiles_a = gl.allocate_shared_memory(gl.int8, [STAGES * S, BM, BK], digits_a.layout)
    tiles_b = gl.allocate_shared_memory(gl.int8, [STAGES * S, BN, BK], digits_b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)

    gdc_launch_dependents()
    gdc_wait()
    items = BATCH * SPLITS * gl.cdiv(M, BM) * gl.cdiv(N, BN)
    plane_a, plane_b = BATCH_A * M, BATCH_B * N
    programs = gl.num_programs(0)
    next_item = gl.program_id(0)
    batch, split, row, col = place(next_item, M, N, BM, BN, SPLITS, GROUP)
    row_a, row_b = (batch % BATCH_A) * M + row, (batch % BATCH_B) * N + col
    next_k = split * SPAN
    last_k = gl.minimum(next_k + SPAN, Kpad)
    for i in gl.static_range(STAGES - 1):
        load_step(digits_a, digits_b, tiles_a, tiles_b, ready, row_a, row_b, plane_a, plane_b, next_k, i,
                  next_item < items, S)  # fmt: skip
        next_k += BK
        if next_k >= last_k:
            next_item += programs
            batch, split, row, col = place(next_item, M, N, BM, BN, SPLITS, GROUP)
            row_a, row_b = (batch % BATCH_A) * M + row, (batch % BATCH_B) * N + col
            next_k = split * SPAN
            last_k = gl.minimum(next_k + SPAN, Kpad)

    stage = gl.program_id(0) * 0
    phase = stage
    for item in range(gl.program_id(0), items, programs):
        c0 = gl.zeros((BM, BN), gl.int32, mma)
        c1, c2, c3, c4 = c0, c0, c0, c0
        batch, split, row, col = place(item, M, N, BM, BN, SPLITS, GROUP)
        for _ in range(split * SPAN, gl.minimum(split * SPAN + SPAN, Kpad), BK):
            mbarrier.wait(ready.index(stage), phase)
            c0, c1, c2, c3, c4 = products(tiles_a, tiles_b, stage, c0, c1, c2, c3, c4, S, REGISTERS, mma)
            c0, c1, c2, c3, c4 = settled(c0, c1, c2, c3, c4, S, IN_FLIGHT)
            free = gl.where(stage == 0, STAGES - 1, stage - 1)
            load_step(digits_a, digits_b, tiles_a, tiles_b, ready, row_a, row_b, plane_a, plane_b, next_k, free,
                      next_item < items, S)  # fmt: skip
            next_k += BK
            if next_k >= last_k:
                next_item += programs
                batch, split, row, col = place(next_item, M, N, BM, BN, SPLITS, GROUP)
                row_a, row_b = (batch % BATCH_A) * M + row, (batch % BATCH_B) * N + col
                next_k = split * SPAN
                last_k = gl.minimum(next_k + SPAN, Kpad)
            stage += 1
            if stage == STAGES:
                stage = stage * 0
                phase ^= 1
        c0, c1, c2, c3, c4 = settled(c0, c1, c2, c3, c4, S, 0)

        total = joined(c0, c1, c2, c3, c4, S)
        batch, split, row, col = place(item, M, N, BM, BN, SPLITS, GROUP)
        rows = row + gl.arange(0, BM, layout=gl.SliceLayout(1, mma))
        cols = col + gl.arange(0, BN, layout=gl.SliceLayout(0, mma))
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        if SPLIT:
            at = ((split * BATCH + batch).to(gl.int64) * M + rows.to(gl.int64)[:, None]) * N + cols[None, :]
            gl.store(part + at, total, mask=mask)
        else:
            s_a = gl.load(scale_a + (batch % BATCH_A) * M + rows, mask=rows < M, other=0)
            s_b = gl.load(scale_b + (batch % BATCH_B) * N + cols, mask=cols < N, other=0)
            shift: gl.constexpr = (0, 0, 0, 8, 16)[S]
            r = ldexp(total.to(gl.float32), (s_a >> 1)[:, None] + (s_b >> 1)[None, :] + shift)
            if gl.max(s_a & 1, 0) + gl.max(s_b & 1, 0) > 0:
                pa = a + batch.to(gl.int64) * stride_ab + rows.to(gl.int64) * stride_am
                pb = b + batch.to(gl.int64) * stride_bb + cols.to(gl.int64) * stride_bn
                r = with_nonfinite(r, pa, pb, rows < M, cols < N, K, stride_ak, stride_bk)
            if BIAS:
                r = r + gl.load(bias + cols, mask=cols < N, other=0.0).to(gl.float32)[None, :]
            r = positive_zeros(r, c.dtype.element_ty).to(c.dtype.element_ty)
            at = batch.to(gl.int64) * stride_cb + rows.to(gl.int64)[:, None] * stride_cm + cols[None, :] * stride_cn
            gl.store(c + at, r, mask=mask)


@functools.cache
def on_hopper(device: torch.device) -> bool:
    """Whether the device is a Hopper GPU."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9


def hopper_fits(c: Configuration) -> bool:
    """Whether the tile is one of whole warpgroups."""
    return c.BM == 16 * c.num_warps and c.BK == 128 and c.num_stages > 1


@functools.cache
def _layout(rows: int, BK: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, BK], gl.int8)


def hopper(
    c: Configuration,
    a: Digits,
    b: Digits,
    arguments: Sequence[Any],
    items: int,
    constexprs: Mapping[str, Any],
) -> None:
    """Starts the kernel over the digits of both operands; arguments: as the kernel takes them after the descriptors."""
    programs = min(items, processors(a.scale.device))
    descriptors = (_describe(digits, rows, c.BK) for digits, rows in ((a, c.BM), (b, c.BN)))
    launch(hopper_kernel, (programs,), *descriptors, *arguments, GROUP=c.GROUP,
           STAGES=c.num_stages, REGISTERS=REGISTERS[constexprs["S"]], num_warps=c.num_warps, overlap=True,
           **constexprs)  # fmt: skip


# Whether the first operand's tiles are read into registers once, instead of from shared memory by each product.
REGISTERS = (False, False, False, True, False)


def _describe(digits: Digits, rows: int, BK: int) -> TensorDescriptor:
    flat = digits.planes.view(-1, digits.planes.shape[-1])
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [rows, BK], _layout(rows, BK))
