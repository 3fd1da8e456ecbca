"""Sums of norms over anything: statistics of long rows and of channels, and SUMs of g * xhat and g for gradients.

Operands are strided views (R1, R2, N1, N2) as in kernels/sum.py: row r is (r // R2, r % R2), and rows are summed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide, square_root
from repkernels.kernels.functions import BLOCK, LANES, minus_zero, tree_sum_rows
from repkernels.kernels.launch import launch
from repkernels.kernels.norm_apply import TYPES
from repkernels.kernels.sizes import cdiv, next_power_of_2
from repkernels.kernels.sum import BUSY, reduce
from repkernels.kernels.terms import along, at_columns, at_rows

SIZE = 256


@triton.jit
def pair_sums_kernel(
    g, x, mean, inverse, weight, out, R, R2, N, N2, stride_gr1, stride_gr2, stride_gn1, stride_gn2, stride_xr1,
    stride_xr2, stride_xn1, stride_xn2, DIV, STEP: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, SPLIT: tl.constexpr, BY_COLUMN: tl.constexpr, CENTRED: tl.constexpr, WEIGHT: tl.constexpr,
    STORED: tl.constexpr, FAR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The SUMs of a block of STEP rows for COLS columns, of w * g * xhat and w * g, w by row.

    A program takes ROWS of a block's LANES lanes. STORED: neighbouring ones, and out[LANES * block + lane, 0 or 1, N]
    takes them. Otherwise lanes l, l + G, l + 2G, ... with G = LANES / ROWS, which are the first to be halved, and
    out[G * block + l, 0 or 1, N] takes what is left of them. Statistics belong to column n // DIV (BY_COLUMN), or to
    the row.
    """
    tiles = tl.cdiv(N, COLS)
    groups: tl.constexpr = LANES // ROWS
    block = (tl.program_id(0) // (tiles * groups)).to(tl.int64)
    group = tl.program_id(0) // tiles % groups
    if STORED:
        lanes = group * ROWS + tl.arange(0, ROWS)
    else:
        lanes = group + groups * tl.arange(0, ROWS)
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    inside = cols < N
    top = block * STEP
    count = tl.minimum(R - top, STEP).to(tl.int32)
    at_g = g + at_columns(cols, N2, stride_gn1, stride_gn2)[None, :]
    at_x = x + at_columns(cols, N2, stride_xn1, stride_xn2)[None, :]
    nothing = minus_zero(WIDE)
    products = tl.broadcast_to(nothing, (ROWS, COLS))
    plain = products
    if BY_COLUMN:
        r = tl.load(inverse + cols // DIV, mask=inside, other=0.0)[None, :]
        m = tl.load(mean + cols // DIV, mask=inside, other=0.0)[None, :] if CENTRED else r
    for start in range(0, count, LANES):
        rows = start + lanes
        here = rows < count
        mask = here[:, None] & inside[None, :]
        # FAR: rows are counted in 64 bits, in which a division is slow.
        row = (top if FAR else top.to(tl.int32)) + rows
        u = tl.load(at_g + at_rows(row, R2, stride_gr1, stride_gr2, SPLIT)[:, None], mask=mask, other=0.0).to(WIDE)
        v = tl.load(at_x + at_rows(row, R2, stride_xr1, stride_xr2, SPLIT)[:, None], mask=mask, other=0.0).to(WIDE)
        if not BY_COLUMN:
            r = tl.load(inverse + row, mask=here, other=0.0)[:, None]
            m = tl.load(mean + row, mask=here, other=0.0)[:, None] if CENTRED else r
        if WEIGHT:
            u = u * tl.load(weight + row, mask=here, other=0.0).to(WIDE)[:, None]
        d = v - m if CENTRED else v
        products += tl.where(mask, u * (d * r), nothing)
        plain += tl.where(mask, u, nothing)
    if STORED:
        at = out + (block * LANES + lanes)[:, None] * (2 * N) + cols[None, :]
        tl.store(at, products, mask=inside[None, :])
        tl.store(at + N, plain, mask=inside[None, :])
    else:
        at = out + (block * groups + group) * (2 * N) + cols
        tl.store(at, tree_sum_rows(products, ROWS, COLS), mask=inside)
        tl.store(at + N, tree_sum_rows(plain, ROWS, COLS), mask=inside)


@triton.jit
def inverse_kernel(squares, inverse, N, terms, EPS: tl.constexpr, SIZE: tl.constexpr, WIDE: tl.constexpr):
    """inverse = div_rn(1, sqrt_rn(RN(div_rn(squares, terms) + eps)))."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    v = tl.load(squares + at, mask=at < N, other=1.0)
    v = divide(v, tl.zeros((SIZE,), WIDE) + terms) + tl.full((SIZE,), EPS, WIDE)
    tl.store(inverse + at, divide(tl.full((SIZE,), 1.0, WIDE), square_root(v)), mask=at < N)


def column_statistics(x: Tensor, eps: float, centred: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """Of the terms of each column of x (R1, R2, N1, N2): mean (empty unless centred), SUM of squared deviations, r."""
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    terms = x.shape[0] * x.shape[1]
    if centred:
        mean = reduce(x, "value", None, "mean", terms, wide)
        squares = reduce(x, "deviation", mean, "sum", 1, wide)
    else:
        mean = torch.empty(0, dtype=wide, device=x.device)
        squares = reduce(x, "square", None, "sum", 1, wide)
    inverse = torch.empty_like(squares)
    constants = {"EPS": float(eps), "SIZE": SIZE, "WIDE": TYPES[wide]}
    launch(inverse_kernel, (cdiv(len(inverse), SIZE),), squares, inverse, len(inverse), terms, **constants)
    return mean, squares, inverse


def pair_sums(
    g: Tensor, x: Tensor, mean: Tensor | None, inverse: Tensor, weight: Tensor | None, by_column: int
) -> tuple[Tensor, Tensor]:
    """For each column of g and x (R1, R2, N1, N2), not empty: SUM over rows of w * g * xhat, and of w * g, each (N,).

    by_column: how many neighbouring columns share a statistic; 0 where each row has its own. mean None: +0. weight:
    one number for each row, contiguous.
    """
    rows, columns = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    lanes = min(LANES.value, next_power_of_2(rows))
    blocks = cdiv(rows, BLOCK.value)
    if along(x):
        cols = 1
        # Few programs that take a whole block would leave most of the GPU idle.
        stored = rows > LANES.value and 2 * blocks * columns < BUSY
        part = min(lanes, 128) if stored else lanes
    else:
        cols, stored, part = min(next_power_of_2(columns), 128), False, min(lanes, 32)
    tiles = cdiv(columns, cols)
    kept = lanes if stored else lanes // part
    out = torch.empty((blocks, kept, 2 * columns), dtype=inverse.dtype, device=x.device)
    launch(
        pair_sums_kernel, (tiles * (lanes // part) * blocks,), g, x, inverse if mean is None else mean, inverse,
        inverse if weight is None else weight, out, rows, x.shape[1], columns, x.shape[3], *g.stride(), *x.stride(),
        max(1, by_column), STEP=BLOCK.value, LANES=lanes, ROWS=part, COLS=cols, SPLIT=x.shape[0] > 1,
        BY_COLUMN=by_column > 0, CENTRED=mean is not None, WEIGHT=weight is not None, STORED=stored, FAR=rows >= 2**31,
        WIDE=TYPES[inverse.dtype], num_warps=8 if part * cols >= 8192 else 4,
    )  # fmt: skip
    sums = halved(out)
    return sums[:columns].clone(), sums[columns:].clone()


def halved(stored: Tensor) -> Tensor:
    """The SUM of blocks whose lanes are stored: (blocks, lanes, N), a power of two of lanes -> (N,)."""
    blocks, lanes, columns = stored.shape
    if lanes > 1:
        by_block = stored.transpose(0, 1)[None]
        stored = reduce(by_block, "value", None, "sum", 1, stored.dtype).view(blocks, 1, columns)
    if blocks > 1:
        return reduce(stored.transpose(0, 1)[:, :, None], "value", None, "sum", 1, stored.dtype)
    return stored.view(columns)
