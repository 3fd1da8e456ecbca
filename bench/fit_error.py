"""The polynomials of repkernels/coefficients/error.py: `python -m bench.fit_error`.

Fitted and printed as those of bench/fit_functions.py.
"""

import mpmath
from mpmath import mpf

from bench.fit_functions import PRECISION, Fit, Function, show

# v = SCALE / (t + SHIFT) + OFFSET runs from -1 at t = LAST to 1 at t = 0.
SHIFT, LAST = mpf("5.25"), mpf("14.25")


def mills_map() -> tuple[mpf, mpf]:
    """SCALE and OFFSET, in binary64."""
    low, high = 1 / (LAST + SHIFT), 1 / SHIFT
    return mpf(float(2 / (high - low))), mpf(float(-(high + low) / (high - low)))


def relative(f: Function, first: mpf, last: mpf, degree: int) -> Fit:
    """f by a polynomial of least relative error."""
    return Fit(f, first, last, degree, lambda x: 1 / f(x))


def exp2_quotient(r: mpf) -> mpf:
    """(2^r - 1) / r"""
    with mpmath.workprec(2 * PRECISION):
        return mpmath.expm1(r * mpmath.ln(2)) / r if r else mpmath.ln(2)


def mills(v: mpf) -> mpf:
    """e^(t^2 / 2) * Phi(-t) at the t >= 0 that v stands for."""
    scale, offset = mills_map()
    t = max(scale / (v - offset) - SHIFT, mpf(0))
    return mpmath.exp(t * t / 2) * mpmath.erfc(t / mpmath.sqrt(2)) / 2


def erf_quotient(v: mpf) -> mpf:
    """erf(t) / t at t^2 = 8 (v + 1)"""
    t = mpmath.sqrt(8 * (v + 1))
    return mpmath.erf(t) / t if t else 2 / mpmath.sqrt(mpmath.pi)


FITS = {
    "EXP2": relative(exp2_quotient, mpf(-1) / 2, mpf(1) / 2, 9),
    "MILLS": relative(mills, mpf(-1), mpf(1), 18),
    "ERF": relative(erf_quotient, mpf(-1), mpf("3.92") ** 2 / 8 - 1, 26),
}


def main() -> None:
    with mpmath.workprec(PRECISION):
        scale, offset = mills_map()
        print(f"SCALE {float(scale).hex()}\nOFFSET {float(offset).hex()}")
    for name, wanted in FITS.items():
        show(name, wanted)


if __name__ == "__main__":
    main()
