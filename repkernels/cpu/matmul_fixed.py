"""`fixedNN`: the exact integer contraction of digits, one rounding, on a CPU (SPEC.md, "Contractions").

quantize.py makes the digits, fixed_sum.py their exact sum, fixed_store.py rounds it. Outputs that non-finite elements
take part in are found by the `ordered` product of signs: its class is theirs, in any order.
"""

import numpy as np
from torch import Tensor

from repkernels.cpu.blocks import blocks, flat, is_small
from repkernels.cpu.fixed_products import DIGITS_OF_B, FEWEST, ONE_DIGIT_OF_B
from repkernels.cpu.fixed_store import store_integers
from repkernels.cpu.fixed_sum import LANES, SLAB, STEP, STRETCH, sum_block, sum_few_rows
from repkernels.cpu.matmul_ordered import ordered
from repkernels.cpu.multiply import INTEGER_GROUPS
from repkernels.cpu.quantize import quantize
from repkernels.cpu.threads import buffer, share
from repkernels.digits import Digits

# Largest block of the result of one task.
MOST = (512, 528)
# Rows of A up to which digits of B are not packed.
FEW = 4
# Elements of B whose digits are made at a time where they are not kept.
PART = 1 << 21
# The longest K whose sums int64 holds, for S = 1..4; beyond, two words. Multiples of all steps of K.
NARROW = (1 << 48, 1 << 33, 1 << 25, 1 << 17)


def fixed(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, digits: int, b_digits: Digits | None) -> None:
    """out (B, M, N) = a (B or 1, M, K) @ b (B or 1, K, N) + bias (N,), rounded to out's type."""
    left = quantize(a, digits)
    columns = b.transpose(1, 2)
    n, k = columns.shape[1:]
    kept = b_digits is not None and b_digits.planes.dim() == 4
    step = n if kept else max(INTEGER_GROUPS * LANES, PART // max(1, k * len(b)))
    touched_columns = []
    for start in range(0, n, step):
        part = slice(start, start + step)
        if b_digits is not None and kept:
            right = b_digits
        else:
            known = None if b_digits is None else b_digits.scale[:, part]
            right = quantize(columns[:, part], digits, known)
        touched_columns.append(right.scale.numpy() & 1)
        product(left, right, k, None if bias is None else bias[part], out, start)
    touched_rows = left.scale.numpy() & 1
    if touched_rows.any() or any(part.any() for part in touched_columns):
        ordered(a, b, bias, out, (touched_rows, np.concatenate(touched_columns, 1)))


def product(left: Digits, right: Digits, k: int, bias: Tensor | None, out: Tensor, first: int) -> None:
    """Stores columns `first`, ... of the result, one for each vector of `right`, which may have a single digit."""
    digits, _, _, length = left.planes.shape
    batch, m, width = out.shape
    n = right.planes.shape[2]
    few, narrow = m <= FEW, NARROW[digits - 1]
    one = len(right.planes) == 1
    plan = (ONE_DIGIT_OF_B if one else DIGITS_OF_B if few else FEWEST)[digits - 1]
    # Digits of one matrix of several lie apart by more than their own planes.
    a, b = (flat(x).array for x in (left.planes, right.planes))
    a_scales, b_scales = (x.numpy().reshape(-1) for x in (left.scale, right.scale))
    result = flat(out)
    offset = result.array[:0] if bias is None else flat(bias.contiguous()).array
    panel = INTEGER_GROUPS * LANES
    work = blocks(batch, m, n, k * len(plan.products), MOST, (LANES, panel))

    def task(index: int) -> None:
        block = work[index]
        rows = block.rows if few else -(-block.rows // LANES) * LANES
        columns = -(-block.columns // panel) * panel
        a_row = (block.batch * m if left.planes.shape[1] > 1 else 0) + block.row
        b_row = (block.batch * n if right.planes.shape[1] > 1 else 0) + block.column
        size, extra = rows * columns, rows * columns if k > narrow else 0
        sums = buffer("sums", size, np.int64)[:size]
        high, low = buffer("high", extra, np.int64)[:extra], buffer("low", extra, np.uint64)[:extra]
        sources = (
            a,
            a_row * length,
            left.planes.stride(0),
            b,
            b_row * length,
            right.planes.stride(0),
            length,
            plan.left,
            plan.right,
            plan.products,
            narrow,
            block.rows,
            block.columns,
        )
        if few:
            packed = buffer("rows", len(plan.left) * block.rows * STRETCH, np.int16)
            sum_few_rows(*sources, packed, sums, high, low)
        else:
            packed = buffer("rows", len(plan.left) * SLAB * STEP, np.int16)
            packed_columns = buffer("columns", len(plan.right) * columns * STEP, np.int16)
            sum_block(*sources, packed, packed_columns, sums, high, low, False)
        store_integers(
            sums,
            high,
            low,
            columns,
            a_scales,
            a_row,
            b_scales,
            b_row,
            0 if one else 8 * max(0, digits - 2),
            offset,
            block.column,
            result.array,
            (block.batch * m + block.row) * width + first + block.column,
            width,
            block.rows,
            block.columns,
            buffer("line", block.columns, np.float32),
        )

    share(task, len(work), alone=is_small(batch, m, n, k))
