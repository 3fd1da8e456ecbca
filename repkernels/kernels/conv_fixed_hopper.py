"""`fixed` convolutions on Hopper: the loop of matmul_fixed_hopper.py, whose steps follow a table of taps."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from repkernels.kernels import conv_fixed_finish
from repkernels.kernels.configuration import Configuration
from repkernels.kernels.conv_fixed_finish import UNSPECIALISED
from repkernels.kernels.launch import launch
from repkernels.kernels.matmul_fixed_hopper import REGISTERS, async_load, joined, place, products, settled

step, places, finished, group_of = (
    gluon.jit(f.fn)
    for f in (conv_fixed_finish.step, conv_fixed_finish.places, conv_fixed_finish.finished, conv_fixed_finish.group_of)
)


# Beyond every row's end, and on a border: copies from there bring zeros.
NOWHERE = gl.constexpr(1 << 24)


@gluon.jit
def load_step(
    digits_a, digits_b, tiles_a, tiles_b, bar, i, last, batch, row, col, table, M, N, TAPS, SECTIONS_A, SECTIONS_B, PER,
    plane_a, plane_b, stage, wanted, S: gl.constexpr, U: gl.constexpr, LINES: gl.constexpr,
):  # fmt: skip
    """Starts the copies of U steps from i on, of all digits of both operands, into a stage; zeros from `last` on."""
    mbarrier.expect(bar, U * S * (digits_a.block_type.nbytes + digits_b.block_type.nbytes), wanted)
    for u in gl.static_range(U):
        row_a, k_a, row_b, k_b = step(gl.minimum(i + u, last - 1), batch, row, col, table, M, N, TAPS, SECTIONS_A,
                                      SECTIONS_B, PER, digits_a.block_type.shape[1], LINES)  # fmt: skip
        k_a = gl.where(i + u < last, k_a, NOWHERE)
        for d in gl.static_range(S):
            at = (stage * U + u) * S + d
            async_load(digits_a, [row_a + d * plane_a, k_a], bar, tiles_a.index(at), wanted)
            async_load(digits_b, [row_b + d * plane_b, k_b], bar, tiles_b.index(at), wanted)


@gluon.jit
def store_vectors(
    y, out, batch, row, col, M, N, TAPS, P, PH, PW, OD, OH, OW, stride_n, stride_d, stride_h, stride_w,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Stores a tile of positions whose channels lie together, eight neighbours at a time: `by_vectors`."""
    BM: gl.constexpr = y.shape[0]
    BN: gl.constexpr = y.shape[1]
    together: gl.constexpr = gl.BlockedLayout([1, 8], [256 // BN, BN // 8], [num_warps, 1], [1, 0])
    rows = row + gl.arange(0, BM, layout=gl.SliceLayout(1, together))
    cols = col + gl.arange(0, BN, layout=gl.SliceLayout(0, together))
    at_rows, at_cols, in_rows, _ = places(batch, rows, cols, M, N, TAPS, P, PH, PW, OD, OH, OW, 1, 1, stride_n, 1,
                                          stride_d, stride_h, stride_w, False)  # fmt: skip
    at = gl.max_contiguous(gl.multiple_of(at_rows[:, None] + at_cols[None, :], [1, 8]), [1, 8])
    gl.store(out + at, gl.convert_layout(y, together), mask=in_rows[:, None])


def by_vectors(out: Tensor, channels: int, columns: int) -> bool:
    """Whether tiles of so many columns cover a group's channels, whose vectors of eight lie on borders."""
    strides = (out.stride(0), *out.stride()[2:])
    whole = channels % columns == 0 and out.stride(1) == 1 and out.data_ptr() % 16 == 0
    return whole and all(s % 8 == 0 for s, n in zip(strides, (out.shape[0], *out.shape[2:]), strict=True) if n > 1)


@gluon.jit(do_not_specialize=[*UNSPECIALISED, "STEPS", "SPLITS", "SPAN"])
def conv_hopper_kernel(
    digits_a, digits_b, part, STEPS, SPLITS, SPAN, table, scale_a, scale_b, bias, out, BATCH, M, N, TAPS, SECTIONS_A,
    SECTIONS_B, PER, P, PH, PW, OD, OH, OW, stride_n, stride_c, stride_d, stride_h, stride_w, CPG, ACROSS,
    S: gl.constexpr, LINES: gl.constexpr, BIAS: gl.constexpr, GROUP: gl.constexpr, STAGES: gl.constexpr,
    U: gl.constexpr, REGISTERS: gl.constexpr, SPLIT: gl.constexpr, LAST: gl.constexpr,
    num_warps: gl.constexpr,
):  # fmt: skip
    """Persistent over (batch, split, tile). A split covers SPAN steps of k, U to a stage; int32 holds their sums."""
    BM: gl.constexpr = digits_a.block_type.shape[0]
    BN: gl.constexpr = digits_b.block_type.shape[0]
    BK: gl.constexpr = digits_a.block_type.shape[1]
    mma: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, min(BN, 128), 32]
    )
    IN_FLIGHT: gl.constexpr = 0 if REGISTERS else U * (0, 1, 4, 8, 13)[S]
    tiles_a = gl.allocate_shared_memory(gl.int8, [STAGES * U * S, BM, BK], digits_a.layout)
    tiles_b = gl.allocate_shared_memory(gl.int8, [STAGES * U * S, BN, BK], digits_b.layout)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)

    items = BATCH * SPLITS * gl.cdiv(M, BM) * gl.cdiv(N, BN)
    groups = group_of(BATCH, TAPS, LINES)
    plane_a, plane_b = groups * SECTIONS_A * M, groups * SECTIONS_B * N
    programs = gl.num_programs(0)
    next_item = gl.program_id(0)
    batch, split, row, col = place(next_item, M, N, BM, BN, SPLITS, GROUP)
    next_step = split * SPAN
    last_step = gl.minimum(next_step + SPAN, STEPS)
    for i in gl.static_range(STAGES - 1):
        load_step(digits_a, digits_b, tiles_a, tiles_b, ready.index(i), next_step, last_step, batch, row, col, table,
                  M, N, TAPS, SECTIONS_A, SECTIONS_B, PER, plane_a, plane_b, i, next_item < items, S, U,
                  LINES)  # fmt: skip
        next_step += U
        if next_step >= last_step:
            next_item += programs
            batch, split, row, col = place(gl.minimum(next_item, items - 1), M, N, BM, BN, SPLITS, GROUP)
            next_step = split * SPAN
            last_step = gl.minimum(next_step + SPAN, STEPS)

    stage = gl.program_id(0) * 0
    phase = stage
    for item in range(gl.program_id(0), items, programs):
        c0 = gl.zeros((BM, BN), gl.int32, mma)
        c1, c2, c3, c4 = c0, c0, c0, c0
        this_batch, this_split, this_row, this_col = place(item, M, N, BM, BN, SPLITS, GROUP)
        for _ in range(this_split * SPAN, gl.minimum(this_split * SPAN + SPAN, STEPS), U):
            mbarrier.wait(ready.index(stage), phase)
            for u in gl.static_range(U):
                c0, c1, c2, c3, c4 = products(tiles_a, tiles_b, stage * U + u, c0, c1, c2, c3, c4, S, REGISTERS, mma)
            c0, c1, c2, c3, c4 = settled(c0, c1, c2, c3, c4, S, IN_FLIGHT)
            free = gl.where(stage == 0, STAGES - 1, stage - 1)
            load_step(digits_a, digits_b, tiles_a, tiles_b, ready.index(free), next_step, last_step, batch, row, col,
                      table, M, N, TAPS, SECTIONS_A, SECTIONS_B, PER, plane_a, plane_b, free, next_item < items, S, U,
                      LINES)  # fmt: skip
            next_step += U
            if next_step >= last_step:
                next_item += programs
                batch, split, row, col = place(gl.minimum(next_item, items - 1), M, N, BM, BN, SPLITS, GROUP)
                next_step = split * SPAN
                last_step = gl.minimum(next_step + SPAN, STEPS)
            stage += 1
            if stage == STAGES:
                stage = stage * 0
                phase ^= 1
        c0, c1, c2, c3, c4 = settled(c0, c1, c2, c3, c4, S, 0)

        total = joined(c0, c1, c2, c3, c4, S)
        rows = this_row + gl.arange(0, BM, layout=gl.SliceLayout(1, mma))
        cols = this_col + gl.arange(0, BN, layout=gl.SliceLayout(0, mma))
        if SPLIT:
            at = (this_split * BATCH + this_batch).to(gl.int64) * M + rows.to(gl.int64)
            gl.store(part + at[:, None] * N + cols[None, :], total, mask=(rows < M)[:, None] & (cols < N)[None, :])
        else:
            at_rows, at_cols, in_rows, in_cols = places(
                this_batch, rows, cols, M, N, TAPS, P, PH, PW, OD, OH, OW, CPG, ACROSS,
                stride_n, stride_c, stride_d, stride_h, stride_w, LINES,
            )  # fmt: skip
            y = finished(total.to(gl.float32), group_of(this_batch, TAPS, LINES), rows, cols, in_rows, in_cols, scale_a,
                         scale_b, bias, out.dtype.element_ty, M, N, S, BIAS)  # fmt: skip
            if LAST:
                store_vectors(y, out, this_batch, this_row, this_col, M, N, TAPS, P, PH, PW, OD, OH, OW, stride_n,
                              stride_d, stride_h, stride_w, num_warps)  # fmt: skip
            else:
                gl.store(out + at_rows[:, None] + at_cols[None, :], y, mask=in_rows[:, None] & in_cols[None, :])


def conv_hopper_fits(c: Configuration) -> bool:
    """Whether the tile is one of whole warpgroups."""
    return c.BM == 16 * c.num_warps and c.BK in (32, 64, 128) and c.num_stages > 1


@functools.cache
def _layout(rows: int, BK: int) -> gl.NVMMASharedLayout:
    return gl.NVMMASharedLayout.get_default_for([rows, BK], gl.int8)


def conv_hopper(
    c: Configuration, a: Tensor, b: Tensor, arguments: Sequence[Any], programs: int, constexprs: Mapping[str, Any]
) -> None:
    """Starts the kernel over all rows of digits of both operands; arguments: as the kernel takes them after these."""
    descriptors = (
        TensorDescriptor(rows, list(rows.shape), list(rows.stride()), [block, c.BK], _layout(block, c.BK))
        for rows, block in ((a, c.BM), (b, c.BN))
    )
    U = 128 // c.BK
    launch(conv_hopper_kernel, (programs,), *descriptors, *arguments, GROUP=c.GROUP, STAGES=max(2, c.num_stages // U),
           U=U, REGISTERS=REGISTERS[constexprs["S"]], num_warps=c.num_warps, **constexprs)  # fmt: skip
