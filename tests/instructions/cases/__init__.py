"""What is launched for the checks: calls of the library's kernel functions, at shapes that reach each way they compile.

Aligned operands start on 16-byte borders and have sizes that 16 divides, so Triton specialises pointers, strides and
sizes; odd ones do not. Each module of a family has `cases(target)`.
"""

from collections.abc import Iterator
from types import ModuleType

from tests.instructions.case import Case
from tests.instructions.cases import (
    attention,
    contractions,
    convolutions,
    decoder,
    indexing,
    layers,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    reductions,
    resampling,
    sampling,
    softmax,
    unary,
)

FAMILIES: tuple[ModuleType, ...] = (
    attention,
    contractions,
    convolutions,
    decoder,
    indexing,
    layers,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    reductions,
    resampling,
    sampling,
    softmax,
    unary,
)


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    for family in FAMILIES:
        yield from family.cases(target)
