"""The correctly rounded functions, SPEC.md, "Correctly rounded functions": RN32(f(x)) by mpmath.

`forward(name, x)` takes fp32 values and gives fp32 values; half types are widened before and rounded once more after.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import mpmath
import numpy as np

from reference.rounding import magnitude, rounded

NAN, ZERO, ONE, INF = 0x7FC00000, 0x00000000, 0x3F800000, 0x7F800000
NEGATIVE = 0x80000000
SAME = None

# selu's two constants, as torch's binary64 literals.
SCALE, ALPHA = 1.0507009873554804934193349852946, 1.6732632423543772848170429916717


class Function(NamedTuple):
    """A function by its value at real numbers other than 0 in its domain, and fp32 bits at the ends.

    value: x -> f(x), both mpf, to the working precision. zero: f(+-0), SAME for a zero of x's sign. low, high: f at
    -infinity and +infinity. outside: where f is NaN. fixed: f at x where it is 0, infinite, or half-way between two
    fp32 numbers, so that no number of digits would decide.
    """

    value: Callable[[Any], Any]
    zero: int | None
    low: int
    high: int
    outside: Callable[[float], bool] = lambda x: False
    fixed: Callable[[float], int | None] = lambda x: None


def bits(x: float) -> int:
    """The bits of fp32 x."""
    return int(np.float32(x).view(np.uint32))


def number(pattern: int) -> float:
    """The value of fp32 bits."""
    return float(np.uint32(pattern).view(np.float32))


def negative(x: float) -> bool:
    return x < 0


def at(where: float, pattern: int) -> Callable[[float], int | None]:
    return lambda x: pattern if x == where else None


def power_of_two(x: float) -> int | None:
    """exp2 of an integer, which may be half the least subnormal."""
    if x != int(x):
        return None
    return INF if x > 127 else ZERO if x < -150 else magnitude(1, int(x))


def exact_sqrt(x: float) -> int | None:
    """sqrt from the integer square root: 80 bits and a sticky bit."""
    _, mantissa, exponent, _ = mpmath.mpf(x)._mpf_
    mantissa, exponent = int(mantissa) << (160 + exponent % 2), exponent - 160 - exponent % 2
    root = mpmath.libmp.isqrt(mantissa)
    return magnitude(int(root) << 1 | (root * root != mantissa), exponent // 2 - 1)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + mpmath.exp(-x))


def softplus(x: Any) -> Any:
    return x + mpmath.log1p(mpmath.exp(-x)) if x > 0 else mpmath.log1p(mpmath.exp(x))


def mish(x: Any) -> Any:
    e = mpmath.exp(-abs(x))
    return x * (1 + 2 * e) / (1 + 2 * e + 2 * e * e) if x > 0 else x * e * (e + 2) / (e * e + 2 * e + 2)


def gelu(x: Any) -> Any:
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def gelu_tanh(x: Any) -> Any:
    return x * sigmoid(mpmath.sqrt(8 / mpmath.pi) * (x + mpmath.mpf(44715) / 10**6 * x**3))


def selu(x: Any) -> Any:
    return x * SCALE if x > 0 else mpmath.expm1(x) * mpmath.mpf(ALPHA) * SCALE


def vanishing(value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function below 2^-160 in size, and negative, for all x < -200: no digits are wasted there."""
    return lambda x: -mpmath.ldexp(1, -1000) if x < -200 else x * (1 - mpmath.ldexp(1, -300)) if x > 300 else value(x)


FUNCTIONS = {
    "exp": Function(mpmath.exp, ONE, ZERO, INF),
    "exp2": Function(lambda x: mpmath.exp(x * mpmath.ln(2)), ONE, ZERO, INF, fixed=power_of_two),
    "expm1": Function(mpmath.expm1, SAME, bits(-1), INF),
    "log": Function(mpmath.log, bits(-np.inf), NAN, INF, negative, at(1, ZERO)),
    "log2": Function(lambda x: mpmath.log(x) / mpmath.ln(2), bits(-np.inf), NAN, INF, negative, at(1, ZERO)),
    "log10": Function(lambda x: mpmath.log(x) / mpmath.ln(10), bits(-np.inf), NAN, INF, negative, at(1, ZERO)),
    "log1p": Function(mpmath.log1p, SAME, NAN, INF, lambda x: x < -1, at(-1, bits(-np.inf))),
    "sin": Function(mpmath.sin, SAME, NAN, NAN),
    "cos": Function(mpmath.cos, ONE, NAN, NAN),
    "tanh": Function(mpmath.tanh, SAME, bits(-1), ONE),
    "sigmoid": Function(sigmoid, bits(0.5), ZERO, ONE),
    "erf": Function(mpmath.erf, SAME, bits(-1), ONE),
    "rsqrt": Function(lambda x: 1 / mpmath.sqrt(x), INF, NAN, ZERO, negative),
    "reciprocal": Function(lambda x: 1 / x, INF, NEGATIVE, ZERO),
    "sqrt": Function(mpmath.sqrt, SAME, NAN, INF, negative, exact_sqrt),
    "gelu": Function(vanishing(gelu), SAME, NEGATIVE, INF),
    "gelu_tanh": Function(vanishing(gelu_tanh), SAME, NEGATIVE, INF),
    "silu": Function(vanishing(lambda x: x * sigmoid(x)), SAME, NEGATIVE, INF),
    "softplus": Function(softplus, bits(np.log(2)), ZERO, INF),
    "mish": Function(vanishing(mish), SAME, NEGATIVE, INF),
    "elu": Function(lambda x: x if x > 0 else mpmath.expm1(x), SAME, bits(-1), INF),
    "selu": Function(selu, SAME, bits(-SCALE * ALPHA), INF),
}


@functools.lru_cache(1 << 16)
def value(name: str, pattern: int) -> int:
    """The bits of RN32(f(x)) for the fp32 bits of x. Every NaN is one."""
    function, x = FUNCTIONS[name], number(pattern)
    if x != x:
        return NAN
    if x == 0:
        # 1/x and 1/sqrt(x) go to the infinity of the zero's sign.
        if function.zero is SAME:
            return pattern
        return function.zero | (pattern if name in ("reciprocal", "rsqrt") else 0)
    if abs(x) == np.inf:
        return function.high if x > 0 else function.low
    if function.outside(x):
        return NAN
    fixed = function.fixed(x)
    return rounded(lambda: function.value(mpmath.mpf(x))) if fixed is None else fixed


def forward(name: str, x: np.ndarray) -> np.ndarray:
    """RN32(f(x)) of an fp32 array."""
    pattern = np.ascontiguousarray(x, np.float32).view(np.uint32)
    found, place = np.unique(pattern, return_inverse=True)
    results = np.array([value(name, int(p)) for p in found], np.uint32)
    return results[place].view(np.float32).reshape(np.shape(x))
