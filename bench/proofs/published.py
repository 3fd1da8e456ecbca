"""exp_f32 and ln_f32 over every fp32 input, on the CPU.

exp_f32 over all x <= 0, NaN included: its largest error against a binary64 exponential, exp(0), the threshold below
which it gives +0, whether it is monotonic. ln_f32 over all x > 0: whether it is RN32(ln x), against a logarithm in two
binary64 words by another method (a table and a polynomial of 1 + u). Inputs that two words cannot decide go to mpmath,
which also measures both measuring functions on samples. The record does not depend on the number of threads.
"""

from typing import Any, NamedTuple

import mpmath
import numpy as np

from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import bitcast, exp_f32, fma, ln_f32
from repkernels.cpu.threads import share

CHUNK = 1 << 20

# ln x = k ln 2 - ln c + ln(1 + u), u = m * c - 1 exactly, for c of few bits near 64 / i where i = round(64 m).
FIRST, LAST = 45, 91
C = np.array([round(2.0**16 / i) / 2.0**10 for i in range(FIRST, LAST + 1)])
SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
# Where the logarithm in two words is trusted: its relative error is below this, by analysis and by samples.
LN_ERROR = 2.0**-64
# An input is kept as a hard case if ln x is this near, in ulp, to where rounding changes.
HARD = 2.0**-25
KEPT = 64


def two_words(exact: mpmath.mpf, low_zeros: int = 0) -> tuple[float, float]:
    """High and low word of a number; the high word has `low_zeros` zero bits at its end."""
    with mpmath.workprec(53 - low_zeros):
        high = +exact
    return float(high), float(exact - high)


with mpmath.workprec(200):
    _table = [two_words(-mpmath.log(mpmath.mpf(float(c)))) for c in C]
    T_HIGH, T_LOW = (np.array(column) for column in zip(*_table, strict=True))
    LN2_HIGH, LN2_LOW = two_words(mpmath.ln(2), 11)
    LOG2_E = float(1 / mpmath.ln(2))


@kernel
def ln_words(x: Any) -> Any:
    """ln x of a positive finite fp32 number as two binary64 words, |low| <= ulp(high) / 2."""
    bits = bitcast(np.float64(x))
    k = (bits - SQRT_HALF_BITS) >> 52
    m = bitcast(np.int64(bits - (k << 52)))
    i = np.int64(m * 64.0 + 0.5) - FIRST
    u = fma(m, C[i], -1.0)
    square = u * u
    q = 1.0 / 14.0
    for j in range(13, 2, -1):
        q = 1.0 / j - u * q
    low = np.float64(k) * LN2_LOW + T_LOW[i] + (square * u) * q - 0.5 * fma(u, u, -square)
    high = np.float64(k) * LN2_HIGH
    for term in (T_HIGH[i], u, -0.5 * square):
        total = high + term
        part = total - high
        low += (high - (total - part)) + (term - part)
        high = total
    total = high + low
    return total, low - (total - high)


@kernel
def exp_parts(x: Any) -> Any:
    """e**x of fp32 x in [-200, 0] as p * 2**n: a binary64 p in [0.7, 1.42] and an integral n."""
    n = np.floor(x * LOG2_E + 0.5)
    r = fma(-n, LN2_LOW, fma(-n, LN2_HIGH, np.float64(x)))
    p = 1.0 / 6227020800.0
    for denominator in (479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0):
        p = fma(p, r, 1.0 / denominator)
    return fma(fma(p, r, 1.0), r, 1.0), n


@kernel
def check_exp(first: Any, last: Any, found: Any) -> None:
    """x of the bits first..last - 1, descending; found: errors of several kinds, see `ExpFindings`."""
    state = keep_subnormals()
    before = np.float32(1.0) if first == 0x80000000 else exp_f32(bitcast(np.int32(first - 1 - 2**32)))
    for bits in range(first, last):
        x = bitcast(np.int32(bits - 2**32))
        y = exp_f32(x)
        found[0] += y > before
        before = y
        if x < np.float32(-200.0):
            found[1] += y != np.float32(0.0)
            continue
        p, n = exp_parts(x)
        exact = p * bitcast(np.int64(np.int64(n + 1023.0) << 52))
        if y == np.float32(0.0):
            found[1] += exact > 2.0**-126 * (1.0 + 2.0**-22)
            found[2] += 1
            continue
        ulp = bitcast(np.int64((bitcast(exact) >> 52 << 52) - (np.int64(23) << 52)))
        error = abs(np.float64(y) - exact) / max(ulp, 2.0**-149)
        found[3] += error > 0.5
        if error > found[4]:
            found[4], found[5] = error, bits
    restore(state)


@kernel
def check_ln(first: Any, last: Any, found: Any, hard: Any) -> None:
    """x of the bits first..last - 1; found: wrong, undecided, kept; hard: up to KEPT bits, undecided ones first."""
    state = keep_subnormals()
    for bits in range(first, last):
        y = ln_f32(bitcast(np.int32(bits)))
        if bits == 0x3F800000:
            found[0] += bitcast(y) != 0
            continue
        high, low = ln_words(bitcast(np.int32(bits)))
        pattern = bitcast(y)
        outward = np.float64(bitcast(np.int32(pattern + 1)))
        inward = np.float64(bitcast(np.int32(pattern - 1)))
        away = abs((high - np.float64(y)) + low)
        side = outward if (abs(high) > abs(np.float64(y))) or (high == np.float64(y) and low * high > 0) else inward
        half = 0.5 * abs(side - np.float64(y))
        margin = half - away
        undecided = abs(margin) < LN_ERROR * abs(high)
        found[1] += undecided
        found[0] += margin < 0 and not undecided
        if undecided or abs(margin) < HARD * 2.0 * half:
            if found[2] < KEPT:
                hard[found[2]] = bits
            found[2] += 1
    restore(state)


class ExpFindings(NamedTuple):
    increases_below: int
    wrongly_zero_or_not: int
    zeros_above_minus_200: int
    not_correctly_rounded: int
    largest_error_ulp: float
    at: str


def prove_exp(first: int = 0x80000000, last: int = 0xFF800001) -> ExpFindings:
    """All x <= 0 from -0 (bits 0x80000000) to -infinity (0xFF800000)."""
    starts = range(first, last, CHUNK)
    found = np.zeros((len(starts), 6))
    share(lambda i: check_exp(starts[i], min(starts[i] + CHUNK, last), found[i]), len(starts))
    worst = found[found[:, 4].argmax()]
    below, zeros, above, wrong = (int(n) for n in found[:, :4].sum(axis=0))
    return ExpFindings(below, zeros, above, wrong, float(worst[4]), f"{int(worst[5]):08x}")


def prove_ln(first: int = 0x00000001, last: int = 0x7F800000) -> tuple[int, list[str], list[str]]:
    """All finite x > 0: how many are wrong, those only mpmath could decide, and all hard cases, as bits."""
    starts = range(first, last, CHUNK)
    found, hard = np.zeros((len(starts), 3), np.int64), np.zeros((len(starts), KEPT), np.int64)
    share(lambda i: check_ln(starts[i], min(starts[i] + CHUNK, last), found[i], hard[i]), len(starts))
    if (found[:, 2] > KEPT).any():
        raise RuntimeError("more hard cases in one chunk than there is room for")
    cases = [int(bits) for row, (_, _, count) in zip(hard, found, strict=True) for bits in row[:count]]
    undecided = [bits for bits in cases if margin_ulp(bits) < 2.0**-38] if found[:, 1].any() else []
    return int(found[:, 0].sum()), [f"{b:08x}" for b in undecided], [f"{b:08x}" for b in cases]


def number(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def exact_ln(bits: int) -> mpmath.mpf:
    with mpmath.workprec(200):
        return mpmath.ln(mpmath.mpf(float(number(bits))))


def right_ln(bits: int) -> bool:
    """Whether ln_f32 is RN32(ln x) by mpmath, for normal results."""
    with mpmath.workprec(24):
        return float(+exact_ln(bits)) == float(ln_f32(number(bits)))


def margin_ulp(bits: int) -> float:
    """How far ln x is from the nearest midpoint of two fp32 numbers, in ulp."""
    with mpmath.workprec(200):
        exact = exact_ln(bits)
        scaled = abs(exact) * mpmath.mpf(2) ** (23 - (mpmath.frexp(exact)[1] - 1))
        return float(abs(scaled - mpmath.floor(scaled) - mpmath.mpf(0.5)))


def sample(count: int, first: int, last: int, seed: int) -> list[int]:
    return [int(b) for b in np.random.default_rng(seed).integers(first, last, count)]


def measuring_error_ln(count: int) -> float:
    """Largest relative error of `ln_words` on a sample."""
    worst = mpmath.mpf(0)
    for bits in sample(count, 1, 0x7F800000, 1) + sample(count, 0x3F000000, 0x40000000, 2):
        if bits != 0x3F800000:
            high, low = ln_words(number(bits))
            with mpmath.workprec(200):
                exact = exact_ln(bits)
                worst = max(worst, abs((mpmath.mpf(high) + mpmath.mpf(low) - exact) / exact))
    return float(worst)


def measuring_error_exp(count: int) -> float:
    """Largest relative error of `exp_parts` on a sample."""
    worst = mpmath.mpf(0)
    for bits in sample(count, 0x80000000, 0xC2B00000, 3):
        p, n = exp_parts(number(bits))
        with mpmath.workprec(200):
            exact = mpmath.exp(mpmath.mpf(float(number(bits))))
            worst = max(worst, abs(mpmath.mpf(p) * mpmath.mpf(2) ** int(n) / exact - 1))
    return float(worst)


def prove(name: str) -> dict[str, Any]:
    """The record of one of the two; `holds` says whether what the documentation promises is so."""
    return _exp_record() if name == "exp_f32" else _ln_record()


def _exp_record() -> dict[str, Any]:
    found, error = prove_exp(), measuring_error_exp(20000)
    wrong = found.increases_below or found.wrongly_zero_or_not
    return {
        "inputs": 0xFF800001 - 0x80000000,
        **found._asdict(),
        "exp_of_0": float(exp_f32(np.float32(0))),
        "exp_of_nan_is_nan": bool(np.isnan(exp_f32(np.float32(np.nan)))),
        "relative_error_of_the_measure": error,
        "holds": found.largest_error_ulp <= 1 and not wrong and error < 2.0**-50,
    }


def _ln_record() -> dict[str, Any]:
    wrong, undecided, hard = prove_ln()
    wrong += sum(not right_ln(int(b, 16)) for b in undecided)
    error = measuring_error_ln(20000)
    nearest = sorted(hard, key=lambda b: margin_ulp(int(b, 16)))
    return {
        "inputs": 0x7F800000 - 1,
        "not_correctly_rounded": wrong,
        "left_to_mpmath": undecided,
        "hard_cases_wrong_by_mpmath": sum(not right_ln(int(b, 16)) for b in hard),
        "relative_error_of_the_measure": error,
        "nearest_midpoint_ulp": margin_ulp(int(nearest[0], 16)),
        "hard_cases": nearest,
        "holds": not wrong and error < LN_ERROR,
    }
