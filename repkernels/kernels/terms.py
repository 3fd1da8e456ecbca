"""The terms of the sums of reductions (SPEC.md, "Reductions"), what is done with a sum, and where rows and columns lie.

Strided operands are (R1, R2, N1, N2): row r is (r // R2, r % R2), column n is (n // N2, n % N2).
"""

import triton
import triton.language as tl
from torch import Tensor

from repkernels.kernels.binary import divide, square_root
from repkernels.kernels.functions import exp_f32, ln_f32
from repkernels.kernels.scalar import scalar


@triton.jit
def tie(a, b):
    """Whether a stands for the extreme b: equal numbers, whatever the signs of zeros, or both NaN."""
    return (a == b) | ((a != a) & (b != b))


@triton.jit
def term(v, c, TERM: tl.constexpr, WIDE: tl.constexpr):
    """The term of v, whose column has the center c."""
    if TERM == "magnitude":
        v = tl.abs(v)
    elif TERM == "square":
        v = v * v
    elif TERM == "deviation":
        d = v - c
        v = d * d
    elif TERM == "exponential":
        v = exp_f32(v - c)
    elif TERM == "nonzero":
        v = (v != 0.0).to(WIDE)
    elif TERM == "tie":
        v = tie(v, c).to(WIDE)
    elif TERM == "magnitude tie":
        v = tie(tl.abs(v), c).to(WIDE)
    return v


@triton.jit
def finished(total, center, divisor, FINISH: tl.constexpr, WIDE: tl.constexpr):
    """What becomes of the SUM of a column."""
    if FINISH == "mean" or FINISH == "mean root":
        total = divide(total, scalar(divisor, WIDE))
    if FINISH == "root" or FINISH == "mean root":
        total = square_root(total)
    if FINISH == "logarithm":
        # A maximum that is an infinity or NaN is the result; of nothing it is -inf.
        total = tl.where(tl.abs(center) < float("inf"), center + ln_f32(total), center)
    return total


@triton.jit
def at_rows(r, R2, stride_1, stride_2, SPLIT: tl.constexpr):
    """Offsets of rows r. SPLIT: whether R1 > 1."""
    if SPLIT:
        return (r // R2).to(tl.int64) * stride_1 + (r % R2).to(tl.int64) * stride_2
    return r.to(tl.int64) * stride_2


@triton.jit
def at_columns(n, N2, stride_1, stride_2):
    """Offsets of columns n."""
    return (n // N2).to(tl.int64) * stride_1 + (n % N2).to(tl.int64) * stride_2


def along(x: Tensor) -> bool:
    """Whether the rows of a column of x (R1, R2, N1, N2) are nearer to one another than columns are."""
    return x.shape[3] == 1 or 0 < x.stride(1) < x.stride(3)
