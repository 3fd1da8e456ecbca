"""The polynomials of repkernels/coefficients/trigonometric.py: `python -m bench.fit_trigonometric`.

Fitted and printed as those of bench/fit_functions.py. The argument is z, the square of a part of a quarter turn.
"""

import mpmath
from mpmath import mpf

from bench.fit_functions import PRECISION, Fit, show

with mpmath.workprec(PRECISION):
    _QUARTER = mpmath.pi / 2


def sine(z: mpf) -> mpf:
    """sin(pi/2 f) / f"""
    f = mpmath.sqrt(z)
    return mpmath.sin(_QUARTER * f) / f if z else _QUARTER


def cosine(z: mpf) -> mpf:
    """(cos(pi/2 f) - 1) / f^2"""
    with mpmath.workprec(2 * PRECISION):
        return -2 * mpmath.sin(_QUARTER / 2 * mpmath.sqrt(z)) ** 2 / z if z else -(_QUARTER**2) / 2


def sine_fit(degree: int) -> Fit:
    return Fit(sine, mpf(0), mpf(1) / 4, degree, lambda z: 1 / sine(z))


def cosine_fit(degree: int) -> Fit:
    """Weighed by z, so that the error meant is that of the cosine."""
    return Fit(cosine, mpf(0), mpf(1) / 4, degree, lambda z: z + mpf(2) ** -10)


FITS = {"SINPI": sine_fit(5), "COSPI": cosine_fit(5), "SIN": sine_fit(6), "COS": cosine_fit(6)}


def main() -> None:
    with mpmath.workprec(PRECISION):
        bits = int(mpmath.floor(mpmath.ldexp(2 / mpmath.pi, 7 * 32)))
        print("TWO_OVER_PI", *(f"0x{bits >> 32 * i & 0xFFFFFFFF:08X}" for i in reversed(range(7))))
    for name, wanted in FITS.items():
        show(name, wanted)


if __name__ == "__main__":
    main()
