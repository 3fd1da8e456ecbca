"""The polynomials of repkernels/coefficients/half.py, before they are moved: `python -m bench.fit_half`.

Fitted and printed as those of bench/fit_functions.py, in fp32. They are moved at random by less than their error, with
all inputs of all functions counted again, until few inputs are wrong.
"""

import mpmath
import numpy as np
from mpmath import mpf

from bench.fit_error import exp2_quotient
from bench.fit_functions import PRECISION, Fit, remez

SHIFT = mpf("3.25")


def exp2_fit(degree: int) -> Fit:
    return Fit(exp2_quotient, -mpf(1) / 2, mpf(1) / 2, degree, lambda r: (abs(r) + mpf(2) ** -6) / mpmath.power(2, r))


def mills_fit(degree: int, last: str) -> Fit:
    """e^(t^2 / 2) Phi(-t) up to t = last, in v, which runs from -1 to 1."""
    scale, offset = mills_map(last)

    def mills(v: mpf) -> mpf:
        t = max(scale / (v - offset) - SHIFT, mpf(0))
        return mpmath.exp(t * t / 2) * mpmath.erfc(t / mpmath.sqrt(2)) / 2

    low, high = (scale / (t + SHIFT) + offset for t in (mpf(last), mpf(0)))
    return Fit(mills, low, high, degree, lambda v: 1 / mills(v))


def mills_map(last: str) -> tuple[mpf, mpf]:
    """The fp32 numbers SCALE and OFFSET of v = SCALE / (t + SHIFT) + OFFSET."""
    low, high = 1 / (mpf(last) + SHIFT), 1 / SHIFT
    return single(2 / (high - low)), single(-(high + low) / (high - low))


def single(x: mpf) -> mpf:
    return mpf(float(np.float32(float(x))))


with mpmath.workprec(PRECISION):
    FITS = {
        "EXP2_BF16": exp2_fit(3),
        "EXP2_FP16": exp2_fit(5),
        "MILLS_BF16": mills_fit(6, "13.8"),
        "MILLS_FP16": mills_fit(7, "5.9"),
    }


def main() -> None:
    with mpmath.workprec(PRECISION):
        for last in ("13.8", "5.9"):
            print("SCALE, OFFSET", *(float(v).hex() for v in mills_map(last)))
        for name, wanted in FITS.items():
            coefficients, error = remez(wanted)
            print(f"{name} (2^{float(mpmath.log(error, 2)):.2f}):")
            for c in reversed(coefficients):
                print(f'    "{float(single(c)).hex()}",')


if __name__ == "__main__":
    main()
