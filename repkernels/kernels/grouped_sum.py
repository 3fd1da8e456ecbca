"""The SUM of each group of rows on a GPU (SPEC.md, "Grouped sums").

Three kinds of groups, each with a launch of its own, which leaves the others' results alone; how many there are of a
kind is known on the device only, so programs beyond their number end at once. Groups of up to SHORT rows: a program
takes WIDTH results, of one group or of many. Longer ones up to a block: a program takes a group for some columns.
Beyond: a program takes a block, and the blocks' sums are groups in turn.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide
from repkernels.kernels.functions import BLOCK, LANES, minus_zero, tree_sum, tree_sum_rows
from repkernels.kernels.launch import launch
from repkernels.kernels.scalar import bits, scalar
from repkernels.kernels.sizes import cdiv, next_power_of_2

# The most rows of a group that is added within one tile, and those that do not yet need all lanes.
SHORT = 16
FEW = 128
WIDTH = 256


@triton.jit
def finished(total, n, base, at, mask, alpha, FINISH: tl.constexpr, WIDE: tl.constexpr):
    """What becomes of the SUM of a group of n rows."""
    total = tl.where(n == 0, 0.0, total)
    if FINISH == "mean":
        total = tl.where(n == 0, 0.0, divide(total, tl.maximum(n, 1).to(WIDE)))
    if FINISH == "add":
        b = tl.load(base + at, mask=mask, other=0.0).to(WIDE)
        total = tl.where(n == 0, b, b + scalar(alpha, WIDE) * total)
    return total


@triton.jit
def grouped_sum_kernel(
    x, order, starts, counts, base, out, alpha, N, C, stride_p, stride_c, ROWS: tl.constexpr, WIDTH: tl.constexpr,
    FINISH: tl.constexpr, LATER: tl.constexpr, FAR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """WIDTH of the N = T * C results. LATER: rows are sums of blocks, and groups without any have their result."""
    e = tl.program_id(0).to(tl.int64 if FAR else tl.int32) * WIDTH + tl.arange(0, WIDTH)
    inside = e < N
    group = e // C
    c = (e - group * C).to(tl.int64)
    first = tl.load(starts + group, mask=inside, other=0)
    n = tl.load(starts + group + 1, mask=inside, other=0) - first
    i = tl.arange(0, ROWS)[:, None]
    present = (i < n[None, :]) & (n <= ROWS)[None, :]
    p = first[None, :] + i
    if not LATER:
        p = tl.load(order + p, mask=present, other=0)
    at = x + p * stride_p + c[None, :] * stride_c
    total = tree_sum_rows(tl.load(at, mask=present, other=minus_zero(x.dtype.element_ty)).to(WIDE), ROWS, WIDTH)
    mine = inside & (n <= ROWS)
    if LATER:
        mine &= n > 0
    result = finished(total, tl.load(counts + group, mask=mine, other=0), base, e, mine, alpha, FINISH, WIDE)
    tl.store(out + e, result.to(out.dtype.element_ty), mask=mine)


@triton.jit
def sum_of_rows(
    x, order, top, count, cols, C, stride_p, stride_c, ROWS: tl.constexpr, COLS: tl.constexpr, LATER: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """(COLS,): the SUM of the `count` rows from place `top` of the order, on ROWS lanes."""
    total = tl.broadcast_to(minus_zero(WIDE), (ROWS, COLS))
    nothing = minus_zero(x.dtype.element_ty)
    for start in range(0, count, ROWS):
        i = start + tl.arange(0, ROWS)
        p = top + i
        if not LATER:
            p = tl.load(order + p, mask=i < count, other=0)
        at = x + p[:, None] * stride_p + cols.to(tl.int64)[None, :] * stride_c
        total += tl.load(at, mask=(i < count)[:, None] & (cols < C)[None, :], other=nothing).to(WIDE)
    if COLS == 1:
        # Triton 3.6 takes minutes to compile halvings of more than one dimension where one would do.
        result = tl.broadcast_to(tree_sum(tl.reshape(total, (ROWS,)), ROWS), (1,))
    else:
        result = tree_sum_rows(total, ROWS, COLS)
    return result


@triton.jit
def grouped_blocks_kernel(
    x, order, starts, counts, which, begins, base, out, alpha, T, C, stride_p, stride_c, SIZE: tl.constexpr,
    FEW: tl.constexpr, LANES: tl.constexpr, COLS: tl.constexpr, FINISH: tl.constexpr, LATER: tl.constexpr,
    PARTIAL: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The group which[slot], for COLS columns; PARTIAL: its block slot - begins[group], stored at out[slot]."""
    tiles = tl.cdiv(C, COLS)
    slot = (tl.program_id(0) // tiles).to(tl.int64)
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    group = tl.load(which + slot)
    if group < T:
        top = tl.load(starts + group)
        left = tl.load(starts + group + 1) - top
        if PARTIAL:
            skipped = (slot - tl.load(begins + group)) * SIZE
            top += skipped
            left -= skipped
        count = tl.minimum(left, SIZE).to(tl.int32)
        if count <= FEW:
            total = sum_of_rows(x, order, top, count, cols, C, stride_p, stride_c, FEW, COLS, LATER, WIDE)
        else:
            total = sum_of_rows(x, order, top, count, cols, C, stride_p, stride_c, LANES, COLS, LATER, WIDE)
        mask = cols < C
        if PARTIAL:
            tl.store(out + slot * C + cols, total, mask=mask)
        else:
            at = group * C + cols
            n = tl.load(counts + group)
            result = finished(total, n, base, at, mask, alpha, FINISH, WIDE)
            tl.store(out + at, result.to(out.dtype.element_ty), mask=mask)


def grouped_sum(
    x: Tensor, order: Tensor, starts: Tensor, base: Tensor | None, alpha: float, mean: bool, dtype: torch.dtype
) -> Tensor:
    """x (P, C), any strides -> (T, C) in `dtype`: row t from the rows order[starts[t]] .. order[starts[t + 1] - 1].

    Their SUM; mean: divided by their number; base (T, C): base + alpha * SUM, or base itself where there are none.
    order (P,), starts (T + 1,): int64, contiguous. alpha: rounded once to the format of the sum.
    """
    out = torch.empty((starts.shape[0] - 1, x.shape[1]), dtype=dtype, device=x.device)
    if out.numel():
        finish = "mean" if mean else "sum" if base is None else "add"
        onto = out if base is None else base.contiguous()
        _grouped_sum(x, order, starts, starts.diff(), onto, out, bits(alpha), finish, False, BLOCK.value)
    return out


def _grouped_sum(
    x: Tensor, order: Tensor, starts: Tensor, counts: Tensor, base: Tensor, out: Tensor, alpha: int, finish: str,
    later: bool, size: int,
) -> None:  # fmt: skip
    """Fills `out`; counts: how many terms each group had at first."""
    rows, (groups, columns) = x.shape[0], out.shape
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    constants = {"FINISH": finish, "LATER": later, "WIDE": tl.float64 if wide == torch.float64 else tl.float32}
    launch(
        grouped_sum_kernel, (cdiv(out.numel(), WIDTH),), x, order, starts, counts, base, out, alpha,
        out.numel(), columns, *x.stride(), ROWS=SHORT, WIDTH=WIDTH, FAR=out.numel() >= 2**31 - WIDTH,
        num_warps=4, **constants,
    )  # fmt: skip
    if rows <= SHORT:
        return
    cols = min(16, next_power_of_2(columns))
    tiles = cdiv(columns, cols)
    warps = 16 if cols == 16 else 4
    shared = {"SIZE": size, "FEW": FEW, "LANES": LANES.value, "COLS": cols, "num_warps": warps, **constants}
    lengths = starts.diff()
    medium = ((lengths > SHORT) & (lengths <= size)).long()
    which, begins = _slots(medium, min(groups, rows // (SHORT + 1)))
    launch(
        grouped_blocks_kernel, (which.shape[0] * tiles,), x, order, starts, counts, which, begins, base, out, alpha,
        groups, columns, *x.stride(), PARTIAL=False, **shared,
    )  # fmt: skip
    if rows <= size:
        return
    blocks = torch.where(lengths > size, (lengths + (size - 1)) // size, 0)
    which, begins = _slots(blocks, rows // size + min(groups, rows // (size + 1)))
    sums = torch.empty((which.shape[0], columns), dtype=wide, device=x.device)
    launch(
        grouped_blocks_kernel, (which.shape[0] * tiles,), x, order, starts, counts, which, begins, base, sums, alpha,
        groups, columns, *x.stride(), PARTIAL=True, **shared,
    )  # fmt: skip
    borders = torch.cat([begins, (begins[-1:] + blocks[-1:])])
    _grouped_sum(sums, order, borders, counts, base, out, alpha, finish, True, size)


def _slots(blocks: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """(which, begins): slot s is of group which[s], T beyond the last; group t has blocks[t] slots from begins[t]."""
    ends = blocks.cumsum(0)
    slots = torch.arange(most, device=blocks.device)
    return torch.searchsorted(ends, slots, right=True), ends - blocks
