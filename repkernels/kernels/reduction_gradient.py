"""The gradients of reductions on a GPU (SPEC.md, "Reductions"): each element from its column's few numbers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide
from repkernels.kernels.functions import exp_f32
from repkernels.kernels.launch import launch
from repkernels.kernels.scalar import bits, scalar
from repkernels.kernels.sizes import cdiv, next_power_of_2
from repkernels.kernels.terms import along, at_columns, at_rows, tie


@triton.jit
def reduction_gradient_kernel(
    x, out, g, a, b, R, R2, N, N2, x_r1, x_r2, x_n1, x_n2, out_r1, out_r2, out_n1, out_n2, divisor,
    FORMULA: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, SPLIT: tl.constexpr, FAR: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """ROWS rows of COLS columns."""
    tiles = tl.cdiv(N, COLS)
    top = (tl.program_id(0) // tiles).to(tl.int64) * ROWS
    rows = top + tl.arange(0, ROWS)
    cols = (tl.program_id(0) % tiles) * COLS + tl.arange(0, COLS)
    inside = cols < N
    mask = (rows < R)[:, None] & inside[None, :]
    r = rows if FAR else rows.to(tl.int32)
    at = at_rows(r, R2, x_r1, x_r2, SPLIT)[:, None] + at_columns(cols, N2, x_n1, x_n2)[None, :]
    v = tl.load(x + at, mask=mask, other=0.0).to(WIDE)
    s = tl.load(g + cols, mask=inside, other=0.0)
    if FORMULA == "quotient":
        v = divide(v, scalar(divisor, WIDE))
    elif FORMULA == "variance":
        s = divide(s + s, scalar(divisor, WIDE))
        v = (v - tl.load(a + cols, mask=inside, other=0.0)[None, :]) * s[None, :]
    elif FORMULA == "deviation":
        root = tl.load(b + cols, mask=inside, other=0.0)
        s = tl.where(root == 0.0, 0.0, divide(divide(s, root), scalar(divisor, WIDE)))
        v = (v - tl.load(a + cols, mask=inside, other=0.0)[None, :]) * s[None, :]
    elif FORMULA == "root":
        root = tl.load(b + cols, mask=inside, other=0.0)
        v = v * tl.where(root == 0.0, 0.0, divide(s, root))[None, :]
    elif FORMULA == "sign":
        v = sign(v) * s[None, :]
    elif FORMULA == "tie":
        s = divide(s, tl.load(b + cols, mask=inside, other=0.0))
        v = tl.where(tie(v, tl.load(a + cols, mask=inside, other=0.0)[None, :]), s[None, :], 0.0)
    elif FORMULA == "magnitude tie":
        s = divide(s, tl.load(b + cols, mask=inside, other=0.0))
        tied = tie(tl.abs(v), tl.load(a + cols, mask=inside, other=0.0)[None, :])
        v = tl.where(tied, sign(v) * s[None, :], 0.0)
    elif FORMULA == "exponential":
        d = v - tl.load(a + cols, mask=inside, other=0.0)[None, :]
        v = exp_f32(tl.where(d > 0.0, 0.0, d)) * s[None, :]
    to = at_rows(r, R2, out_r1, out_r2, SPLIT)[:, None] + at_columns(cols, N2, out_n1, out_n2)[None, :]
    tl.store(out + to, v.to(out.dtype.element_ty), mask=mask)


@triton.jit
def sign(v):
    """1 or -1; zeros and NaN stay."""
    return tl.where(v > 0.0, 1.0, tl.where(v < 0.0, -1.0, v))


def gradient(
    x: Tensor, out: Tensor, g: Tensor, a: Tensor | None, b: Tensor | None, formula: str, divisor: float
) -> None:
    """Writes `out` from x, both (R1, R2, N1, N2), any strides; g, a, b: (N1 * N2,) contiguous, of the wide format."""
    rows, columns = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    if along(x):
        lanes = min(1024, next_power_of_2(rows))
        cols = min(next_power_of_2(columns), 1024 // lanes)
    else:
        cols = min(1024, next_power_of_2(columns))
        lanes = min(next_power_of_2(rows), max(1, 2048 // cols))
    launch(
        reduction_gradient_kernel, (cdiv(rows, lanes) * cdiv(columns, cols),), x, out, g,
        g if a is None else a, g if b is None else b, rows, x.shape[1], columns, x.shape[3], *x.stride(), *out.stride(),
        bits(divisor), FORMULA=formula, ROWS=lanes, COLS=cols, SPLIT=x.shape[0] > 1, FAR=rows >= 2**31,
        WIDE=tl.float64 if g.dtype == torch.float64 else tl.float32, num_warps=4,
    )  # fmt: skip
