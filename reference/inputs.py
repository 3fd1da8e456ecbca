"""Golden inputs (SPEC.md, section of this name): bit patterns put together from Philox words by integer arithmetic."""

import math

import numpy as np

from reference import formats
from reference.philox import words

# Fraction bits and bias of each format.
LAYOUT = {"bfloat16": (7, 127), "float16": (10, 15), "float32": (23, 127), "float64": (52, 1023)}
KINDS = (
    "ordinary", "spread", "subnormal", "tiny", "huge", "zeros", "nonfinite", "extremes", "ties", "logits", "constant",
    "patterns",
)  # fmt: skip


def operand(kind: str, dtype: str, shape: tuple[int, ...], seed: int, stream: int) -> np.ndarray:
    """The values of one operand; `stream` is also the operand's number in its case."""
    count = math.prod(shape)
    drawn = words(seed, stream, 2 * count).astype(np.int64).reshape(count, 2)
    high, low = drawn[:, 0], drawn[:, 1]
    pattern = _pattern(kind, dtype, shape, stream, high >> 31, high >> 20 & 0x7FF, (high & 0xFFFFF) << 32 | low)
    return formats.from_bits(pattern.reshape(shape), dtype)


def targets(classes: int, count: int, seed: int, stream: int) -> np.ndarray:
    """Class indices: each word modulo the number of classes; int64."""
    return words(seed, stream, count).astype(np.int64) % classes


def _pattern(
    kind: str, dtype: str, shape: tuple[int, ...], stream: int, sign: np.ndarray, x: np.ndarray, m: np.ndarray
) -> np.ndarray:
    """Bit patterns from each element's sign bit, 11-bit number x and 52-bit number m."""
    width, bias = LAYOUT[dtype]
    fraction = m >> (52 - width)
    none = 2 * bias + 1
    first = np.arange(len(x)) < (shape[-1] if shape else 1)
    reach = 7 if dtype == "float16" else 60
    field = bias - x % 4
    if kind == "spread":
        field = bias + x % (2 * reach + 1) - reach
    elif kind == "logits":
        field = bias + x % 5 - 1
    elif kind == "subnormal" and stream == 0:
        field = np.where(x % 2 == 1, 0, 1 + x // 2 % 4)
    elif kind == "tiny":
        field = bias + (1 - bias - 4) // 2 - x % 16
    elif kind == "huge":
        field = bias + bias // 2 - 2 + x % 3
    elif kind == "extremes" and stream == 0:
        field = bias + np.where(x % 2 == 1, 1, -1) * (bias - bias // 5)
    elif kind == "ties":
        field = bias + x % 8 - 4
        fraction = fraction >> (width - 2) << (width - 2)
    elif kind == "patterns":
        field = x % (2 * bias + 2)
    elif kind == "constant":
        sign, field, fraction = 0 * sign, 0 * x + bias, 0 * m + (1 << (width - 7))
    elif kind == "zeros":
        zero = (x % 4 != 3) | first
        field, fraction = np.where(zero, 0, field), np.where(zero, 0, fraction)
    elif kind == "nonfinite":
        case = x % 192
        field = np.where(case < 2, none, np.where(case == 2, 0, field))
        fraction = np.where(case == 0, fraction | 1 << (width - 1), np.where(case <= 2, 0, fraction))
    return sign << (_BITS[dtype] - 1) | field << width | fraction


_BITS = {"bfloat16": 16, "float16": 16, "float32": 32, "float64": 64}
