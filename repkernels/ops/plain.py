"""Sums, differences and products of two tensors inside of this library's composed functions.

Each is the one rounded operation that torch's `+`, `-`, `*` is too, but one that no compiler fuses, that keeps
subnormals, and whose gradients, where an operand is broadcast, are SUMs (SPEC.md, "Elementwise operations").
"""

from torch import Tensor

from repkernels.ops import derivatives  # noqa: F401  (the gradients' rules)
from repkernels.ops.elementwise import elementwise


def add(a: Tensor, b: Tensor | float) -> Tensor:
    """RN(a + b), a and b of one floating dtype, broadcast; a number b is rounded to the format of computation."""
    return elementwise("add", a, b) if isinstance(b, Tensor) else elementwise("add", a, s=b)


def subtract(a: Tensor, b: Tensor) -> Tensor:
    """RN(a - b), likewise."""
    return elementwise("subtract", a, b)


def multiply(a: Tensor, b: Tensor | float) -> Tensor:
    """RN(a * b), likewise."""
    return elementwise("product", a, b) if isinstance(b, Tensor) else elementwise("product", a, s=b)
