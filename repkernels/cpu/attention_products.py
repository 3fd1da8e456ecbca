"""The contractions of attention on a CPU: rows with rows, and weights with rows (SPEC.md, "Attention")."""

import numpy as np
from numba import njit

from repkernels.cpu.attention_operands import NARROW, UNIT, WIDE
from repkernels.cpu.attention_places import SEGMENT
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, F64, I64, bitcast, fma
from repkernels.cpu.multiply import GROUPS, ROWS, multiply_chain

# Terms of one chain of `ordered`, and of one exact sum of `fixed`; S = 4 has shorter ones.
CHUNK, SHORT = 4096, 128


@njit
def _multiply(a, a_at, b, b_at, lane, depth, count, m, width, c):
    """c (m, width) += the products over `count` units of groups that are `depth` units long."""
    group = depth * lane
    for column in range(0, width, GROUPS * lane):
        for row in range(0, m, ROWS):
            left = a_at + row // lane * group + row % lane
            multiply_chain(a, left, b, b_at + column * depth, group, count, c, row * width + column, width)


@kernel
def multiply(a, b, units, m, live, n, step_of_b, depth, digits, own_powers, out):
    """out (units, m, padded n) = m rows of a times n rows or columns of b, both `Packed`, for each unit.

    m: a multiple of NARROW, of which the first `live` count. step_of_b: what lies between units of b, in its units of
    `depth`. own_powers: whether rows of b have powers beside those of a's rows.
    """
    state = keep_subnormals()
    width = (n + UNIT - 1) // UNIT * UNIT
    size = m * width
    factors = max(1, digits - 1)
    step = SHORT if digits == 4 else CHUNK
    chains = np.empty(size if digits == 0 and depth > step else 0, np.float32)
    sums, whole = (
        np.empty(size if digits else 0, np.float64),
        np.empty(size if digits and depth > step else 0, np.int64),
    )
    a_plane, b_plane = a.wide.size // factors, b.wide.size // factors
    shift = bitcast(I64((8 * max(0, digits - 2) + 1023) << 52))
    for unit in range(units):
        result = out[unit * size : (unit + 1) * size]
        a_at, b_at = unit * m * depth, unit * step_of_b * depth
        result[:] = 0
        whole[:] = 0
        for start in range(0, depth, step):
            count = min(step, depth - start)
            if digits == 0:
                chains[:] = 0
                target = result if start == 0 else chains
                at = start * NARROW
                _multiply(a.narrow, a_at + at, b.narrow, b_at + at, NARROW, depth, count, live, width, target)
                if start > 0:
                    for i in range(size):
                        result[i] += chains[i]
                continue
            sums[:] = 0
            for plane in range(factors):
                left, right = a_at + plane * a_plane + start * WIDE, b_at + plane * b_plane + start * WIDE
                _multiply(a.wide, left, b.wide, right, WIDE, depth, count, live, width, sums)
            for i in range(whole.size):
                whole[i] += I64(sums[i])
        if digits == 0:
            continue
        for i in range(live):
            power = a.power[unit * m + i] * shift
            for j in range(n):
                r = F32(whole[i * width + j]) if depth > step else F32(sums[i * width + j])
                result[i * width + j] = F32(F64(r) * power * (b.power[unit * n + j] if own_powers else F64(1)))
    restore(state)


@njit
def _sign(x):
    if np.isfinite(x):
        return F32(1) if x > 0 else (F32(-1) if x < 0 else F32(0))
    return x


@kernel
def mend_products(a, b, units, m, n, out):
    """After `multiply` under `fixed`: the results whose rows of a and b have elements that are not finite."""
    width = (n + UNIT - 1) // UNIT * UNIT
    for unit in range(units):
        for i in range(m):
            for j in range(n):
                if a.special[unit * m + i] or b.special[unit * n + j]:
                    left, right = a.raw[unit * m + i], b.raw[unit * n + j]
                    t = F32(0)
                    for k in range(left.size):
                        t = fma(_sign(left[k]), _sign(right[k]), t)
                    if not np.isfinite(t):
                        out[(unit * m + i) * width + j] = t


@kernel
def mend_sums(w, rows, seen, at, row_step, step, units, m, digits, out):
    """After `multiply` with weights: the results where a row that is not finite is among those of its segment.

    seen[at[unit] + i * row_step + j * step]: whether row i sees row j of the segment; what it does not see takes no
    part, not even times 0.
    """
    state = keep_subnormals()
    n = rows.raw.shape[1]
    width = (n + UNIT - 1) // UNIT * UNIT
    for unit in range(units):
        some = False
        for j in range(SEGMENT):
            some |= rows.special[unit * SEGMENT + j] != 0
        for i in range(m):
            weights, start = w.raw[unit * m + i], at[unit] + i * row_step
            if not some and (digits == 0 or not w.special[unit * m + i]):
                continue
            for c in range(n):
                t = F32(0)
                for j in range(SEGMENT):
                    if seen[start + j * step]:
                        x, y = weights[j], rows.raw[unit * SEGMENT + j, c]
                        t = fma(x, y, t) if digits == 0 else fma(_sign(x), _sign(y), t)
                if digits == 0 or not np.isfinite(t):
                    out[(unit * m + i) * width + c] = t
    restore(state)
