"""Coefficients in double-double, computed by mpmath: one array of binary64 numbers, and where each series begins in it.

A coefficient c is at 2 * (start + k), its rest c - c_high after it.
"""

import functools

import mpmath
import numpy as np
import torch
import triton.language as tl

# Terms after which the series of e^r, |r| <= 0.347, of atanh(s), |s| <= 0.172, of sin and cos, |r| <= pi / 4, and of
# erf(x), |x| < 1/2, are below 2^-102 of the sum.
EXP_TERMS = tl.constexpr(24)
ATANH_TERMS = tl.constexpr(22)
CIRCLE_TERMS = tl.constexpr(15)
ERF_TERMS = tl.constexpr(22)
# e^(z^2) erfc(z) as a function of w = z or w = sqrt(2) z about w = 0, 1/4, 1/2, ...
TAIL_TERMS = tl.constexpr(28)
TAIL_CENTRES = tl.constexpr(66)

EXP_START = tl.constexpr(0)
ATANH_START = tl.constexpr(24)
CIRCLE_START = tl.constexpr(46)
ERF_START = tl.constexpr(76)
ERF_TAIL_START = tl.constexpr(98)
GELU_TAIL_START = tl.constexpr(98 + 28 * 66)

# The digits of 2 / pi after 64 zeros, as 32-bit words.
WORDS = 14
LEADING_ZEROS = tl.constexpr(64)


def split(exact: mpmath.mpf, bits: int = 53) -> tuple[float, float]:
    """The number rounded to `bits` bits, and what is left of it."""
    with mpmath.workprec(bits):
        high = +exact
    return float(high), float(exact - high)


def three_parts(exact: mpmath.mpf) -> tuple[float, float, float]:
    """The number as 40 bits, 40 bits and the rest: small integers times the first two are exact."""
    high, _ = split(exact, 40)
    middle, low = split(exact - high, 40)
    return high, middle, low


@functools.cache
def table(device: torch.device) -> torch.Tensor:
    """All series, on `device`."""
    with mpmath.workprec(1200):
        half_root = mpmath.sqrt(mpmath.mpf(1) / 2)
        series = [
            *(1 / mpmath.factorial(k + 1) for k in range(EXP_TERMS.value)),
            *(mpmath.mpf(2) / (2 * k + 1) for k in range(ATANH_TERMS.value)),
            *((-1) ** k / mpmath.factorial(2 * k + 1) for k in range(CIRCLE_TERMS.value)),
            *((-1) ** k / mpmath.factorial(2 * k) for k in range(CIRCLE_TERMS.value)),
            *(_erf(k) for k in range(ERF_TERMS.value)),
            *(a for i in range(TAIL_CENTRES.value) for a in _tail(mpmath.mpf(i) / 4, mpmath.mpf(1))),
            *(a for i in range(TAIL_CENTRES.value) for a in _tail(mpmath.mpf(i) / 4, half_root)),
        ]
        numbers = np.array([split(c) for c in series])
    return torch.from_numpy(numbers.reshape(-1)).to(device)


@functools.cache
def words(device: torch.device) -> torch.Tensor:
    """2 / pi's digits, int64 holding 32 bits each."""
    length = 32 * WORDS - LEADING_ZEROS.value
    with mpmath.workprec(length + 64):
        digits = int(mpmath.floor(mpmath.ldexp(2 / mpmath.pi, length)))
    return torch.tensor([digits >> (32 * (WORDS - 1 - i)) & 0xFFFFFFFF for i in range(WORDS)], device=device)


def _erf(k: int) -> mpmath.mpf:
    return 2 / mpmath.sqrt(mpmath.pi) * (-1) ** k / (mpmath.factorial(k) * (2 * k + 1))


def _tail(centre: mpmath.mpf, scale: mpmath.mpf) -> list[mpmath.mpf]:
    """Taylor coefficients of f(w) = e^(z^2) erfc(z), z = scale * w, about a centre.

    g(z) = e^(z^2) erfc(z) has g' = 2 z g - 2 / sqrt(pi), so that (k + 1) a[k + 1] = 2 z a[k] + 2 a[k - 1].
    """
    z = scale * centre
    a = [mpmath.exp(z * z) * mpmath.erfc(z)]
    a.append(2 * z * a[0] - 2 / mpmath.sqrt(mpmath.pi))
    for k in range(1, TAIL_TERMS.value - 1):
        a.append((2 * z * a[k] + 2 * a[k - 1]) / (k + 1))
    return [scale**k * c for k, c in enumerate(a)]
