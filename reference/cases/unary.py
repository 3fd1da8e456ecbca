"""Golden cases of the functions of one tensor, result and gradient, and of pow."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import derivatives, formats, inputs, unary

Case = dict[str, Any]

ROUNDED = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "rsqrt", "reciprocal", "sqrt",
    "silu", "mish", "selu", "softplus",
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Ordinary numbers, all binades, subnormals, special values, and any bits: of those many, with the digest alone."""
    for function in ROUNDED:
        for kind, size in (("ordinary", 48), ("spread", 96), ("subnormal", 24), ("nonfinite", 192), ("patterns", 8200)):
            yield _case(function, "float32", kind, size)
        for dtype in ("bfloat16", "float16"):
            yield _case(function, dtype, "patterns", 200)


def _case(function: str, dtype: str, kind: str, size: int) -> Case:
    return {"op": "unary", "dtype": dtype, "kind": kind, "shapes": [[size]], "function": function}


def _unary(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    name, dtype = case["function"], case["dtype"]
    out = formats.rounded(unary.forward(name, x[0]), dtype)
    g = inputs.operand("ordinary", dtype, x[0].shape, case["seed"], 3)
    return {"out": out, "grad": derivatives.gradient(name, dtype, g, x[0], out)}


COMPUTE = {"unary": _unary}
