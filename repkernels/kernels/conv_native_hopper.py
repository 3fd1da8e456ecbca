"""`native` convolutions on Hopper: conv_fixed_hopper.py's loop over a table of taps, with half elements for digits."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from repkernels.kernels.configuration import Configuration
from repkernels.kernels.conv_fixed_finish import UNSPECIALISED
from repkernels.kernels.conv_fixed_hopper import load_step, places, store_vectors
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_hopper import place, positive_zeros


@gluon.jit(do_not_specialize=[*UNSPECIALISED, "STEPS"])
def conv_native_hopper_kernel(
    a, b, STEPS, table, bias, out, BATCH, M, N, TAPS, SECTIONS_A, SECTIONS_B, PER, P, PH, PW, OD, OH, OW,
    stride_n, stride_c, stride_d, stride_h, stride_w, BIAS: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    U: gl.constexpr, LAST: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Persistent over (group, tile). a: rows of positions, b: rows of output channels by tap, channels along both."""
    BM: gl.constexpr = a.block_type.shape[0]
    BN: gl.constexpr = b.block_type.shape[0]
    BK: gl.constexpr = a.block_type.shape[1]
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BN, 16]
    )
    tiles_a = gl.allocate_shared_memory(a.dtype, [STAGES * U, BM, BK], a.layout)
    tiles_b = gl.allocate_shared_memory(b.dtype, [STAGES * U, BN, BK], b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)

    items = BATCH * gl.cdiv(M, BM) * gl.cdiv(N, BN)
    programs = gl.num_programs(0)
    next_item = gl.program_id(0)
    batch, split, row, col = place(next_item, M, N, BM, BN, 1, GROUP)
    next_step = split * 0
    for i in gl.static_range(STAGES - 1):
        load_step(a, b, tiles_a, tiles_b, ready.index(i), next_step, STEPS, batch, row, col, table, M, N, TAPS,
                  SECTIONS_A, SECTIONS_B, PER, 0, 0, i, next_item < items, 1, U, False)  # fmt: skip
        next_step += U
        if next_step >= STEPS:
            next_item += programs
            batch, split, row, col = place(gl.minimum(next_item, items - 1), M, N, BM, BN, 1, GROUP)
            next_step = next_step * 0

    stage = gl.program_id(0) * 0
    phase = stage
    for item in range(gl.program_id(0), items, programs):
        acc = gl.zeros((BM, BN), gl.float32, mma)
        for _ in range(0, STEPS, U):
            mbarrier.wait(ready.index(stage), phase)
            for u in gl.static_range(U):
                x = tiles_a.index(stage * U + u)
                acc = warpgroup_mma(x, tiles_b.index(stage * U + u).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(num_outstanding=U, deps=(acc,))
            free = gl.where(stage == 0, STAGES - 1, stage - 1)
            load_step(a, b, tiles_a, tiles_b, ready.index(free), next_step, STEPS, batch, row, col, table, M, N, TAPS,
                      SECTIONS_A, SECTIONS_B, PER, 0, 0, free, next_item < items, 1, U, False)  # fmt: skip
            next_step += U
            if next_step >= STEPS:
                next_item += programs
                batch, split, row, col = place(gl.minimum(next_item, items - 1), M, N, BM, BN, 1, GROUP)
                next_step = next_step * 0
            stage += 1
            if stage == STAGES:
                stage = stage * 0
                phase ^= 1
        acc = warpgroup_mma_wait(num_outstanding=0, deps=(acc,))

        this_batch, this_split, this_row, this_col = place(item, M, N, BM, BN, 1, GROUP)
        rows = this_row + gl.arange(0, BM, layout=gl.SliceLayout(1, mma))
        cols = this_col + gl.arange(0, BN, layout=gl.SliceLayout(0, mma))
        at_rows, at_cols, in_rows, in_cols = places(this_batch, rows, cols, M, N, TAPS, P, PH, PW, OD, OH, OW, 1, 1,
                                                    stride_n, stride_c, stride_d, stride_h, stride_w,
                                                    False)  # fmt: skip
        if BIAS:
            acc = acc + gl.load(bias + this_batch * N + cols, mask=in_cols, other=0.0).to(gl.float32)[None, :]
        y = positive_zeros(acc, out.dtype.element_ty).to(out.dtype.element_ty)
        if LAST:
            store_vectors(y, out, this_batch, this_row, this_col, M, N, TAPS, P, PH, PW, OD, OH, OW, stride_n, stride_d,
                          stride_h, stride_w, num_warps)  # fmt: skip
        else:
            gl.store(out + at_rows[:, None] + at_cols[None, :], y, mask=in_rows[:, None] & in_cols[None, :])


@functools.cache
def _layout(rows: int, BK: int, dtype: torch.dtype) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, BK], gl.bfloat16 if dtype == torch.bfloat16 else gl.float16)


def conv_native_hopper(
    c: Configuration, a: Tensor, b: Tensor, arguments: Sequence[Any], programs: int, bias: bool, last: bool
) -> None:
    """Starts the kernel over rows of elements of both operands; arguments: as the kernel takes them after these.

    last: `by_vectors` of the output.
    """
    descriptors = (
        TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [block, c.BK], _layout(block, c.BK, rows.dtype))
        for rows, block in ((a, c.BM), (b, c.BN))
    )
    U = 128 // c.BK
    launch(conv_native_hopper_kernel, (programs,), *descriptors, *arguments, BIAS=bias, GROUP=c.GROUP,
           STAGES=max(2, c.num_stages // U), U=U, LAST=last, num_warps=c.num_warps)  # fmt: skip
