"""The polynomials of repkernels/coefficients, fitted by Remez's exchange: `python -m bench.fit_functions [NAME ...]`.

Each is the polynomial of its degree whose largest weighted error on its interval is smallest, every coefficient then
rounded to binary64. Prints the coefficients, highest degree first, and the binary logarithm of that largest error.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import mpmath
from mpmath import mpf

PRECISION = 250
Function = Callable[[mpf], mpf]


class Fit(NamedTuple):
    """f on [first, last] by a polynomial of `degree`, with the error weighed by `weight`."""

    f: Function
    first: mpf
    last: mpf
    degree: int
    weight: Function


def series(term: Callable[[int], mpf], count: int = 60) -> Function:
    """x -> sum of term(k) x^k."""
    terms = [term(k) for k in range(count)][::-1]
    return lambda x: mpmath.polyval(terms, x)


with mpmath.workprec(PRECISION):
    _LN2 = mpmath.ln(2)
    # A reduced argument may pass half an interval by the rounding of the multiple that is taken off.
    _HALF = mpf(1) / 2 + mpf(2) ** -20
    # (m - 1) / (m + 1) of m in [sqrt(1/2), sqrt(2)), squared.
    _ATANH = ((mpmath.sqrt(2) - 1) / (mpmath.sqrt(2) + 1)) ** 2 + mpf(2) ** -40
    # A floor under weights that vanish at 0, where the error vanishes too.
    _FLOOR = mpf(2) ** -40

    FITS = {
        # (e^r - 1 - r) / r^2
        "EXP": Fit(
            series(lambda k: 1 / mpmath.factorial(k + 2)), -_LN2 * _HALF, _LN2 * _HALF, 9, lambda r: r * r + _FLOOR
        ),
        # (2^r - 1) / r
        "EXP2": Fit(
            series(lambda k: mpmath.ln(2) ** (k + 1) / mpmath.factorial(k + 1)),
            -_HALF,
            _HALF,
            10,
            lambda r: abs(r) + _FLOOR,
        ),  # fmt: skip
        # (2 atanh(s) - 2 s) / s^3 in z = s^2
        "ATANH": Fit(series(lambda k: mpf(2) / (2 * k + 3)), mpf(0), _ATANH, 6, lambda z: z + _FLOOR),
        # The same for s up to 1/3.
        "ATANH_WIDE": Fit(series(lambda k: mpf(2) / (2 * k + 3)), mpf(0), mpf(1) / 9, 9, lambda z: z + _FLOOR),
        # The same, times log2(e) and log10(e).
        "ATANH_LOG2": Fit(
            series(lambda k: mpf(2) / (2 * k + 3) / mpmath.ln(2)), mpf(0), _ATANH, 6, lambda z: z + _FLOOR
        ),
        "ATANH_LOG10": Fit(
            series(lambda k: mpf(2) / (2 * k + 3) / mpmath.ln(10)), mpf(0), _ATANH, 6, lambda z: z + _FLOOR
        ),
    }


def fit(wanted: Fit) -> tuple[list[float], float]:
    """The binary64 coefficients, highest degree first, and log2 of the largest weighted error."""
    with mpmath.workprec(PRECISION):
        coefficients, error = remez(wanted)
        return [float(c) for c in reversed(coefficients)], float(mpmath.log(error, 2))


def show(name: str, wanted: Fit) -> None:
    coefficients, logarithm = fit(wanted)
    print(f"{name} (2^{logarithm:.2f}):")
    for c in coefficients:
        print(f'    "{c.hex()}",')


def remez(wanted: Fit, rounds: int = 10) -> tuple[list[mpf], mpf]:
    """Coefficients, lowest degree first, and the largest weighted error."""
    points = wanted.degree + 2
    at = extrema(wanted, points - 1)
    for _ in range(rounds):
        system, values = mpmath.matrix(points, points), mpmath.matrix(points, 1)
        for i, x in enumerate(at):
            for j in range(points - 1):
                system[i, j] = x**j
            system[i, points - 1] = (-1) ** i / wanted.weight(x)
            values[i] = wanted.f(x)
        coefficients = list(mpmath.lu_solve(system, values))[:-1]
        grid = extrema(wanted, 40 * points)
        errors = [error(wanted, coefficients, x) for x in grid]
        peaks = alternating(grid, errors, points)
        if len(peaks) < points:
            break
        at = peaks
    return coefficients, max(abs(e) for e in errors)


def extrema(wanted: Fit, count: int) -> list[mpf]:
    """The count + 1 extrema of a Chebyshev polynomial on the interval."""
    middle, half = (wanted.first + wanted.last) / 2, (wanted.last - wanted.first) / 2
    return [middle - half * mpmath.cos(mpmath.pi * i / count) for i in range(count + 1)]


def error(wanted: Fit, coefficients: list[mpf], x: mpf) -> mpf:
    return (mpmath.polyval(coefficients[::-1], x) - wanted.f(x)) * wanted.weight(x)


def alternating(grid: list[mpf], errors: list[mpf], count: int) -> list[mpf]:
    """The `count` places of largest error of alternating sign, fewer if there are not so many."""
    peaks: list[tuple[mpf, mpf]] = []
    for x, e in zip(grid, errors, strict=True):
        if not peaks or (e > 0) != (peaks[-1][1] > 0):
            peaks.append((x, e))
        elif abs(e) > abs(peaks[-1][1]):
            peaks[-1] = (x, e)
    while len(peaks) > count:
        peaks.pop(0 if abs(peaks[0][1]) < abs(peaks[-1][1]) else -1)
    return [x for x, _ in peaks]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fit_functions", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FITS)}; all by default")
    for name in parser.parse_args().names or FITS:
        show(name, FITS[name])


if __name__ == "__main__":
    main()
