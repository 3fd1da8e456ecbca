"""Contractions inside of attention, of tiles held by a program: FMA chains (S = 0) and exact digit sums (S = 1 .. 4).

Two kinds: of rows with rows over the head dimension, (M, K) and (N, K) -> (M, N); and of weights with rows over the
positions of a segment, (M, 128) and (128, N) -> (M, N), where rows that a weight does not see take no part.
"""

import triton
import triton.language as tl

from repkernels.kernels.arith import ldexp
from repkernels.kernels.attention_digits import (
    SHIFT_OF,
    digits16,
    digits_of_rows,
    is_finite,
    products,
    products_stacked,
    stacked,
    weight_digits,
    with_classes,
)
from repkernels.kernels.matmul_nonfinite import sign_class


@triton.jit
def rows_at(base, places, there, columns, WIDTH: tl.constexpr):
    """The rows at base + places (R,), fp32; zeros where not `there` and from column WIDTH on."""
    at = base + places[:, None] + columns[None, :]
    return tl.load(at, mask=there[:, None] & (columns < WIDTH)[None, :], other=0.0).to(tl.float32)


@triton.jit
def prepared(x, S: tl.constexpr, SLOTS: tl.constexpr):
    """The first operand x (M, K) of contractions of rows: what its products take, exponents and flags (M,).

    SLOTS: 0 or into how many blocks of rows of one tensor the digits are stacked.
    """
    if S == 0:
        digits = (x,)
        e = tl.zeros((x.shape[0],), tl.int32)
        odd = e
    else:
        q, e, odd = digits_of_rows(x, S)
        if SLOTS == 0:
            digits = digits16(q, S)
        else:
            digits = (stacked(q, S, SLOTS),)
    return digits, e, odd


@triton.jit
def chains(base_a, a, in_a, base_b, b, in_b, WIDTH: tl.constexpr):
    """Contractions of rows as chains written out, for GPUs whose fp32 products of tiles have another order."""
    t = tl.zeros((a.shape[0], b.shape[0]), tl.float32)
    for k in range(WIDTH):
        x = tl.load(base_a + a + k, mask=in_a, other=0.0).to(tl.float32)
        y = tl.load(base_b + b + k, mask=in_b, other=0.0).to(tl.float32)
        t = tl.fma(tl.broadcast_to(x[:, None], t.shape), tl.broadcast_to(y[None, :], t.shape), t)
    return t


@triton.jit
def of_rows(
    digits, e, odd, base_a, a, in_a, base_b, b, in_b, columns,
    WIDTH: tl.constexpr, S: tl.constexpr, SLOTS: tl.constexpr, WRITTEN: tl.constexpr,
):  # fmt: skip
    """r (M, N) of the first operand, `prepared` from the rows at base_a + a, and the rows at base_b + b."""
    if S == 0:
        if WRITTEN:
            r = chains(base_a, a, in_a, base_b, b, in_b, WIDTH)
        else:
            y = rows_at(base_b, b, in_b, columns, WIDTH)
            r = tl.dot(digits[0], tl.trans(y), input_precision="ieee", out_dtype=tl.float32)
    else:
        q, e_b, odd_b = digits_of_rows(rows_at(base_b, b, in_b, columns, WIDTH), S)
        if SLOTS == 0:
            r = products(digits, q, S, True)
        else:
            r = products_stacked(digits[0], q, S, SLOTS, True)
        r = ldexp(r, e[:, None] + e_b[None, :] + SHIFT_OF[S])
        if tl.max(odd, 0) + tl.max(odd_b, 0) > 0:
            # Rare, so the operands are read again rather than kept.
            first = rows_at(base_a, a, in_a, columns, WIDTH)
            second = rows_at(base_b, b, in_b, columns, WIDTH)
            r = with_classes(r, first, tl.trans(second))
    return r


@triton.jit
def over_rows(p, sees, base, places, there, columns, WIDTH: tl.constexpr, CLASSES: tl.constexpr):
    """Weights p (M, K) with the rows at base + places, one row at a time, over those that `sees` (M, K) admits.

    An FMA chain; CLASSES: of the signs of finite elements, of which only what is not finite counts.
    """
    index = tl.arange(0, p.shape[1])
    bits = p.to(tl.int32, bitcast=True)
    t = tl.zeros((p.shape[0], columns.shape[0]), tl.float32)
    for j in range(p.shape[1]):
        here = index == j
        row = base + tl.sum(tl.where(here, places, 0), 0)
        width = WIDTH * tl.sum((here & there).to(tl.int32), 0)
        y = tl.load(row + columns, mask=columns < width, other=0.0).to(tl.float32)
        x = tl.sum(tl.where(here[None, :], bits, 0), 1).to(tl.float32, bitcast=True)
        seen = tl.sum((here[None, :] & sees).to(tl.int32), 1) > 0
        if CLASSES:
            x, y = sign_class(x), sign_class(y)
        t = tl.where(
            seen[:, None], tl.fma(tl.broadcast_to(x[:, None], t.shape), tl.broadcast_to(y[None, :], t.shape), t), t
        )
    return t


@triton.jit
def of_weights(
    p, sees, base, places, there, columns, WIDTH: tl.constexpr, S: tl.constexpr, SLOTS: tl.constexpr,
    WRITTEN: tl.constexpr,
):  # fmt: skip
    """r (M, N) of weights p (M, K), +0 where not `sees`, and the rows at base + places, K <= 256."""
    if S == 0 and WRITTEN:
        r = over_rows(p, sees, base, places, there, columns, WIDTH, False)
    else:
        y = rows_at(base, places, there, columns, WIDTH)
        if S == 0:
            r = tl.dot(p, y, input_precision="ieee", out_dtype=tl.float32)
            odd = tl.max((~is_finite(y)).to(tl.int32), 1)
        else:
            q, e, odd = digits_of_rows(y, S)
            w, e_p = weight_digits(p, e, S)
            if SLOTS == 0:
                r = products(digits16(w, S), q, S, False)
            else:
                r = products_stacked(stacked(w, S, SLOTS), q, S, SLOTS, False)
            r = ldexp(r, (e_p + SHIFT_OF[S])[:, None])
            odd = tl.maximum(odd, tl.max(tl.max((~is_finite(p)).to(tl.int32), 1), 0))
        if tl.max(odd, 0) > 0:
            # An unseen weight of +0 would meet an infinity or a NaN.
            other = over_rows(p, sees, base, places, there, columns, WIDTH, S > 0)
            if S == 0:
                r = other
            else:
                r = tl.where(is_finite(other), r, other)
    return r
