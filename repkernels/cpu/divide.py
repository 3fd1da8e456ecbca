"""Division as IEEE-754 has it: Numba's own `/` raises at a zero divisor, and so is not vectorised."""

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def divide(typingctx: Any, a: Any, b: Any) -> Any:
    """RN(a / b) of two fp32 or two fp64 numbers; x / 0 is an infinity, 0 / 0 NaN."""
    if not (isinstance(a, types.Float) and a == b):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fdiv(*args)

    return a(a, a), codegen
