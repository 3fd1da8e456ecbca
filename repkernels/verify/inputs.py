"""The inputs of the golden cases, put together from Philox words by integer arithmetic (SPEC.md, "Golden inputs")."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from repkernels.random import words


class Format(NamedTuple):
    """A floating-point format: torch's dtype, an integer type of its width, its fraction bits and exponent bias."""

    dtype: torch.dtype
    integer: type[np.signedinteger]
    fraction: int
    bias: int


FORMATS = {
    "float32": Format(torch.float32, np.int32, 23, 127),
    "bfloat16": Format(torch.bfloat16, np.int16, 7, 127),
    "float16": Format(torch.float16, np.int16, 10, 15),
    "float64": Format(torch.float64, np.int64, 52, 1023),
}

# An element before it is packed: sign bit, biased exponent, fraction.
Fields = tuple[np.ndarray, np.ndarray, np.ndarray]


def operand(kind: str, dtype: str, shape: tuple[int, ...], seed: int, stream: int) -> Tensor:
    """One operand on the CPU, contiguous; `stream` is also its number in its case."""
    form = FORMATS[dtype]
    drawn = words(seed, stream, 2 * math.prod(shape)).astype(np.uint64)
    high, low = drawn[0::2], drawn[1::2]
    number = (high >> np.uint64(20) & np.uint64(2047)).astype(np.int64)
    fraction = ((high % np.uint64(1 << 20) << np.uint64(32) | low) >> np.uint64(52 - form.fraction)).astype(np.int64)
    ordinary = (high >> np.uint64(31)).astype(np.int64), form.bias - number % 4, fraction
    if kind in FIRST_OPERAND_ONLY and stream != 0:
        kind = "ordinary"
    sign, exponent, fraction = KINDS[kind](form, number, ordinary, shape)
    size = 8 * np.dtype(form.integer).itemsize
    packed = (fraction + (exponent << form.fraction)).astype(np.uint64) | sign.astype(np.uint64) << np.uint64(size - 1)
    unsigned = packed.astype(np.dtype(f"u{size // 8}"))
    return torch.from_numpy(unsigned.view(form.integer)).view(form.dtype).reshape(shape)


def targets(classes: int, count: int, seed: int, stream: int) -> Tensor:
    """Class indices, int64 (count,): each word modulo the number of classes."""
    return torch.from_numpy((words(seed, stream, count) % np.uint32(classes)).astype(np.int64))


def _spread(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    reach = 7 if form.bias == 15 else 60
    return fields[0], form.bias - reach + x % (2 * reach + 1), fields[2]


def _logits(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    return fields[0], form.bias - 1 + x % 5, fields[2]


def _subnormal(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    return fields[0], (x + 1) % 2 * (1 + x // 2 % 4), fields[2]


def _tiny(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    """The product of two such numbers is subnormal or less."""
    return fields[0], form.bias - (form.bias + 4) // 2 - x % 16, fields[2]


def _huge(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    """Sums of products of such numbers overflow now and then."""
    return fields[0], form.bias + form.bias // 2 - 2 + x % 3, fields[2]


def _extremes(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    far = form.bias - form.bias // 5
    return fields[0], form.bias - far + x % 2 * 2 * far, fields[2]


def _ties(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    """Two fraction bits: many values lie half-way between two multiples of a scale."""
    unit = 2 ** (form.fraction - 2)
    return fields[0], form.bias - 4 + x % 8, fields[2] // unit * unit


def _constant(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    """1.0078125 everywhere."""
    return 0 * x, 0 * x + form.bias, 0 * x + 2 ** (form.fraction - 7)


def _patterns(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    """Every bit pattern is as likely as any other: all binades, infinities and NaN."""
    return fields[0], x % (2 * form.bias + 2), fields[2]


def _zeros(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    """Three of four elements, and the whole first row, are zeros of either sign."""
    kept = (x % 4 == 3).astype(np.int64)
    kept[: shape[-1]] = 0
    return fields[0], fields[1] * kept, fields[2] * kept


def _nonfinite(form: Format, x: np.ndarray, fields: Fields, shape: tuple[int, ...]) -> Fields:
    """Of 192 elements one is NaN, one infinite, one zero."""
    sign, exponent, fraction = fields
    case = x % 192
    exponent = np.select([case < 2, case == 2], [2 * form.bias + 1, 0], exponent)
    quiet = 2 ** (form.fraction - 1)
    return sign, exponent, np.select([case == 0, case < 3], [quiet + fraction % quiet, 0], fraction)


FIRST_OPERAND_ONLY = ("subnormal", "extremes")
KINDS: dict[str, Callable[[Format, np.ndarray, Fields, tuple[int, ...]], Fields]] = {
    "ordinary": lambda form, x, fields, shape: fields,
    "spread": _spread,
    "logits": _logits,
    "subnormal": _subnormal,
    "tiny": _tiny,
    "huge": _huge,
    "extremes": _extremes,
    "ties": _ties,
    "constant": _constant,
    "patterns": _patterns,
    "zeros": _zeros,
    "nonfinite": _nonfinite,
}
