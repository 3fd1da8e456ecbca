"""`ordered`: chunks of 4096 along K, each one FMA chain per output, k ascending from +0; chunk results added ascending.

fp32 (half types widened exactly) or fp64. A partial chain is stored between steps of K and taken up again, which
changes nothing, since it has its own precision. SPEC.md, "Contractions".
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from repkernels.cpu.blocks import Block, blocks, flat, is_small
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.multiply import GROUPS, ROWS, multiply_chain
from repkernels.cpu.pack import pack, to_signs
from repkernels.cpu.store import store, store_special
from repkernels.cpu.threads import buffer, share
from repkernels.cpu.vectors import BYTES

CHUNK = 4096
# Units of k packed at a time, a divisor of CHUNK: the packed columns of one inner loop stay in the first-level cache.
STEP = 256
# Rows of A packed at a time: they stay in the second-level cache.
SLAB = 256
# Largest block of the result of one task.
MOST = (512, 528)


def ordered(
    a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, touched: tuple[np.ndarray, np.ndarray] | None = None
) -> None:
    """out (B, M, N) = a (B or 1, M, K) @ b (B or 1, K, N) + bias (N,), rounded to out's type.

    With `touched`, flags of A's rows (B or 1, M) and B's columns (B or 1, N) that hold non-finite elements: computes
    with the signs of finite elements instead, and stores only results that are not finite.
    """
    batch, m, n = out.shape
    k = a.shape[-1]
    size = 8 if a.dtype == torch.float64 else 4
    compute = np.float64 if size == 8 else np.float32
    left, right, result = flat(a), flat(b), flat(out)
    offset = result.array[:0] if bias is None else flat(bias.contiguous()).array
    unit = (BYTES // size, GROUPS * BYTES // size)
    work = blocks(batch, m, n, k, MOST, unit)

    def task(index: int) -> None:
        block = work[index]
        if touched is not None and not _is_touched(block, touched):
            return
        rows, columns = -(-block.rows // unit[0]) * unit[0], -(-block.columns // unit[1]) * unit[1]
        multiply_block(
            left.array,
            (block.batch * left.strides[0] if len(a) > 1 else 0) + block.row * left.strides[1],
            left.strides[1],
            left.strides[2],
            right.array,
            (block.batch * right.strides[0] if len(b) > 1 else 0) + block.column * right.strides[2],
            right.strides[2],
            right.strides[1],
            k,
            offset,
            block.column,
            result.array,
            (block.batch * m + block.row) * n + block.column,
            n,
            block.rows,
            block.columns,
            buffer("rows", min(rows, SLAB) * STEP, compute),
            buffer("columns", columns * STEP, compute),
            buffer("chains", rows * columns, compute)[: rows * columns],
            buffer("totals", rows * columns if k > CHUNK else 0, compute)[: rows * columns if k > CHUNK else 0],
            touched is not None,
        )

    share(task, len(work), alone=is_small(batch, m, n, k))


def chains(
    a: np.ndarray, a_at: int, b: np.ndarray, b_at: int, row: int, k: int, out: np.ndarray, m: int, n: int
) -> None:
    """out (m, n) = rows of a with rows of b, k contiguous elements of each `row`, by the present thread; all fp32 or
    fp64.
    """
    compute = out.dtype
    lane = BYTES // compute.itemsize
    rows, columns = -(-m // lane) * lane, -(-n // (GROUPS * lane)) * GROUPS * lane
    area, more = rows * columns, rows * columns if k > CHUNK else 0
    multiply_block(
        a, a_at, row, 1, b, b_at, row, 1, k, out[:0], 0, out, 0, n, m, n,
        buffer("rows", min(rows, SLAB) * STEP, compute), buffer("columns", columns * STEP, compute),
        buffer("chains", area, compute)[:area], buffer("totals", more, compute)[:more], False,
    )  # fmt: skip


def _is_touched(block: Block, touched: tuple[np.ndarray, np.ndarray]) -> bool:
    rows, columns = (flags[min(block.batch, len(flags) - 1)] for flags in touched)
    return bool(
        rows[block.row : block.row + block.rows].any() or columns[block.column : block.column + block.columns].any()
    )


@njit
def _add_chunk(totals, chains):
    for i in range(len(chains)):
        totals[i] += chains[i]
        chains[i] = 0


@kernel
def multiply_block(
    a, a_at, a_row, a_step, b, b_at, b_row, b_step, k, bias, bias_at, out, out_at, out_width, m, n,
    rows, columns, chains, totals, signs,
):  # fmt: skip
    """One block of the result; `rows`, `columns`, `chains` and `totals` are this thread's own memory."""
    state = keep_subnormals()
    lane = BYTES // chains.itemsize
    panel, group = GROUPS * lane, lane * STEP
    width = (n + panel - 1) // panel * panel
    chains[:] = 0
    totals[:] = 0
    for start in range(0, k, STEP):
        if start > 0 and start % CHUNK == 0:
            _add_chunk(totals, chains)
        depth = min(STEP, k - start)
        # Rows of B are read whole; columns of B when they are first needed, which is soon enough for any layout.
        at_once = b_row == 1
        if at_once:
            pack(b, b_at + start * b_step, b_row, b_step, n, depth, columns, group)
            if signs:
                to_signs(columns)
        for slab in range(0, m, SLAB):
            height = min(SLAB, m - slab)
            pack(a, a_at + slab * a_row + start * a_step, a_row, a_step, height, depth, rows, group)
            if signs:
                to_signs(rows)
            for column in range(0, width, panel):
                panel_at = column * STEP
                if slab == 0 and not at_once:
                    mine = columns[panel_at : panel_at + panel * STEP]
                    at = b_at + column * b_row + start * b_step
                    pack(b, at, b_row, b_step, min(panel, n - column), depth, mine, group)
                    if signs:
                        to_signs(mine)
                for row in range(0, height, ROWS):
                    place = row // lane * group + row % lane
                    target = (slab + row) * width + column
                    multiply_chain(rows, place, columns, panel_at, group, depth, chains, target, width)
    if k > CHUNK:
        _add_chunk(totals, chains)
    result = totals if k > CHUNK else chains
    for i in range(m):
        line, start = result[i * width : i * width + n], out_at + i * out_width
        if signs:
            store_special(line, bias[bias_at : bias_at + n], out[start : start + n])
        else:
            store(line, bias[bias_at : bias_at + n], out[start : start + n])
    restore(state)
