"""`fixed` contractions on Hopper: the same exact integer sums, with asynchronous int8 products in flight all the time.

Triton's own pipeline waits after every product with an integer accumulator, so this kernel is written in Gluon: one
loop over all (tile, k) steps of a program, loads running ahead across tiles, one wait a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from repkernels.digits import Digits
from repkernels.kernels.configuration import Configuration, processors
from repkernels.kernels.launch import launch

# Triton 3.6 knows it by its older name.
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def tile_of(t, M, N, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr):
    rows, cols = gl.cdiv(M, BM), gl.cdiv(N, BN)
    group = t // (GROUP * cols)
    first = group * GROUP
    height = min(rows - first, GROUP)
    return first + (t % (GROUP * cols)) % height, (t % (GROUP * cols)) // height


@gluon.jit
def place(item, M, N, BM: gl.constexpr, BN: gl.constexpr, GROUP: gl.constexpr, SPLITS: gl.constexpr):
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
    if REGISTERS:
        return tile.load(layout)
    else:
        return tile


@gluon.jit
def power_of_two(e):
    return ((e + 127) << 23).to(gl.float32, bitcast=True)


@gluon.jit
def ldexp(x, e):
    e1 = gl.minimum(gl.maximum(e, -126), 127)
    e2 = gl.minimum(gl.maximum(e - e1, -126), 127)
    return x * power_of_two(e1) * power_of_two(e2)


@gluon.jit
def positive_zeros(r, FORMAT: gl.constexpr):
    smallest: gl.constexpr = 2.0**-134 if FORMAT == gl.bfloat16 else 2.0**-25 if FORMAT == gl.float16 else 0.0
    return gl.where(gl.abs(r) <= smallest, 0.0, r)


@gluon.jit
def hopper_kernel(
    digits_a, digits_b, scale_a, scale_b, bias, c, part, M, N, Kpad, BATCH, BATCH_A, BATCH_B, stride_cb, stride_cm, stride_cn,
    S: gl.constexpr, GROUP: gl.constexpr, PROGRAMS: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
    SPLITS: gl.constexpr, SPAN: gl.constexpr, BIAS: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Persistent over (batch, split, tile). digits: descriptors over (S * batch * rows, Kpad).

    A split covers SPAN of K, S * SPAN <= 131071, so that every sum fits int32. SPLITS > 1: its P' goes to part,
    (SPLITS, batch, M, N) int64.
    """
    BM: gl.constexpr = digits_a.block_type.shape[0]
    BN: gl.constexpr = digits_b.block_type.shape[0]
    BK: gl.constexpr = digits_a.block_type.shape[1]
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, min(BN, 128), 32]
    )
    fragment: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=mma, k_width=4)
    IN_FLIGHT: gl.constexpr = 0 if REGISTERS else (0, 1, 4, 8, 13)[S]
    tiles_a = gl.allocate_shared_memory(gl.int8, [STAGES * S, BM, BK], digits_a.layout)
    tiles_b = gl.allocate_shared_memory(gl.int8, [STAGES * S, BN, BK], digits_b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)

    items = BATCH * SPLITS * gl.cdiv(M, BM) * gl.cdiv(N, BN)
    plane_a, plane_b = BATCH_A * M, BATCH_B * N
    next_item = gl.program_id(0)
    batch, split, row, col = place(next_item, M, N, BM, BN, GROUP, SPLITS)
    row_a, row_b = (batch % BATCH_A) * M + row, (batch % BATCH_B) * N + col
    next_k = split * SPAN
    last_k = gl.minimum(next_k + SPAN, Kpad)
    for i in gl.static_range(STAGES - 1):
        load_step(digits_a, digits_b, tiles_a, tiles_b, ready, row_a, row_b, plane_a, plane_b, next_k, i,
                  next_item < items, S)  # fmt: skip
        next_k += BK
        if next_k >= last_k:
            next_item += PROGRAMS
            batch, split, row, col = place(next_item, M, N, BM, BN, GROUP, SPLITS)
            row_a, row_b = (batch % BATCH_A) * M + row, (batch % BATCH_B) * N + col
            next_k = split * SPAN
            last_k = gl.minimum(next_k + SPAN, Kpad)

    stage = gl.program_id(0) * 0
    phase = stage
    for item in range(gl.program_id(0), items, PROGRAMS):
        c0 = gl.zeros((BM, BN), gl.int32, mma)
        c1 = c0
        c2 = c0
        c3 = c0
        c4 = c0
        batch, split, row, col = place(item, M, N, BM, BN, GROUP, SPLITS)
        for _ in range(split * SPAN, gl.minimum(split * SPAN + SPAN, Kpad), BK):
            mbarrier.wait(ready.index(stage), phase)
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
            if S == 1:
                c0 = warpgroup_mma_wait(num_outstanding=IN_FLIGHT, deps=(c0,))
            elif S == 2:
                c0, c1, c2 = warpgroup_mma_wait(num_outstanding=IN_FLIGHT, deps=(c0, c1, c2))
            elif S == 3:
                c0, c1, c2, c3 = warpgroup_mma_wait(num_outstanding=IN_FLIGHT, deps=(c0, c1, c2, c3))
            else:
                c0, c1, c2, c3, c4 = warpgroup_mma_wait(num_outstanding=IN_FLIGHT, deps=(c0, c1, c2, c3, c4))
            free = gl.where(stage == 0, STAGES - 1, stage - 1)
            load_step(digits_a, digits_b, tiles_a, tiles_b, ready, row_a, row_b, plane_a, plane_b, next_k, free,
                      next_item < items, S)  # fmt: skip
            next_k += BK
            if next_k >= last_k:
                next_item += PROGRAMS
                batch, split, row, col = place(next_item, M, N, BM, BN, GROUP, SPLITS)
                row_a, row_b = (batch % BATCH_A) * M + row, (batch % BATCH_B) * N + col
                next_k = split * SPAN
                last_k = gl.minimum(next_k + SPAN, Kpad)
            stage += 1
            if stage == STAGES:
                stage = stage * 0
                phase ^= 1
        if S == 1:
            c0 = warpgroup_mma_wait(num_outstanding=0, deps=(c0,))
        elif S == 2:
            c0, c1, c2 = warpgroup_mma_wait(num_outstanding=0, deps=(c0, c1, c2))
        elif S == 3:
            c0, c1, c2, c3 = warpgroup_mma_wait(num_outstanding=0, deps=(c0, c1, c2, c3))
        else:
            c0, c1, c2, c3, c4 = warpgroup_mma_wait(num_outstanding=0, deps=(c0, c1, c2, c3, c4))

        total = c0.to(gl.int64)
        if S > 1:
            total = (((total << 8) + c1) << 8) + c2
        if S > 2:
            total = (total << 8) + c3
        if S > 3:
            total = (total << 8) + c4
        batch, split, row, col = place(item, M, N, BM, BN, GROUP, SPLITS)
        rows = row + gl.arange(0, BM, layout=gl.SliceLayout(1, mma))
        cols = col + gl.arange(0, BN, layout=gl.SliceLayout(0, mma))
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        if SPLITS > 1:
            at = ((split * BATCH + batch).to(gl.int64) * M + rows.to(gl.int64)[:, None]) * N + cols[None, :]
            gl.store(part + at, total, mask=mask)
        else:
            e_a = gl.load(scale_a + (batch % BATCH_A) * M + rows, mask=rows < M, other=0) >> 1
            e_b = gl.load(scale_b + (batch % BATCH_B) * N + cols, mask=cols < N, other=0) >> 1
            shift: gl.constexpr = (0, 0, 0, 8, 16)[S]
            r = ldexp(total.to(gl.float32), e_a[:, None] + e_b[None, :] + shift)
            if BIAS:
                r = r + gl.load(bias + cols, mask=cols < N, other=0.0).to(gl.float32)[None, :]
            r = positive_zeros(r, c.dtype.element_ty).to(c.dtype.element_ty)
            at = batch.to(gl.int64) * stride_cb + rows.to(gl.int64)[:, None] * stride_cm + cols[None, :] * stride_cn
            gl.store(c + at, r, mask=mask)


def hopper_fits(c: Configuration, device: torch.device) -> bool:
    """Whether the device is a Hopper GPU and the tile one that two warpgroups share."""
    on_hopper = device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == 9
    return on_hopper and c.num_warps == 8 and c.BM == 128 and c.BK == 128 and c.num_stages > 1


def hopper(
    c: Configuration,
    a: Digits,
    b: Digits,
    arguments: Sequence[Any],
    items: int,
    span: int,
    constexprs: Mapping[str, Any],
) -> None:
    """Starts the kernel over the digits of both operands; arguments: as the kernel takes them after the descriptors."""
    programs = min(items, processors(a.scale.device))
    descriptors = (_describe(digits, rows, c.BK) for digits, rows in ((a, c.BM), (b, c.BN)))
    launch(hopper_kernel, (programs,), *descriptors, *arguments, GROUP=c.GROUP, PROGRAMS=programs, STAGES=c.num_stages,
           REGISTERS=REGISTERS[constexprs["S"]], SPAN=span, num_warps=c.num_warps, **constexprs)  # fmt: skip


# Whether the first operand's tiles are read into registers once, instead of from shared memory by each product.
REGISTERS = (False, False, False, True, True)


def _describe(digits: Digits, rows: int, BK: int) -> TensorDescriptor:
    flat = digits.planes.view(-1, digits.planes.shape[-1])
    layout = gl.NVMMASharedLayout.get_default_for([rows, BK], gl.int8)
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [rows, BK], layout)
