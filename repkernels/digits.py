"""The digits of a contracted operand, as kept and passed around by every engine (SPEC.md, "Fixed-point digits")."""

from typing import NamedTuple

from torch import Tensor

ALIGN = 16


class Digits(NamedTuple):
    """Balanced base-256 digits of vectors along K, and their exponents.

    planes: int8, (S, B, R, Kpad), contiguous; plane 0 is the most significant digit; Kpad is K rounded up to a
    multiple of 16 and the padding is 0. An empty 1-D tensor where only the scales were kept.
    scale: int32, (B, R): 2 * e + flag, where flag is 1 if the vector has a non-finite element.
    """

    planes: Tensor
    scale: Tensor


def padded(k: int) -> int:
    """K rounded up, so that every row of digits starts on a 16-byte border."""
    return -(-k // ALIGN) * ALIGN
