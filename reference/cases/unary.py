"""Golden cases of the functions of one tensor, result and gradient, and of pow."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import activations, derivatives, inputs

Case = dict[str, Any]

SINGLE_AND_HALF = ("float32", "bfloat16", "float16")
ROUNDED = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "rsqrt", "reciprocal", "sqrt",
    "silu", "mish", "selu", "logsigmoid", "tanhshrink",
)  # fmt: skip
SCALED = (
    ("softplus", {}), ("softplus", {"beta": 2.5, "threshold": 7.0}), ("elu", {}), ("elu", {"alpha": 0.7}),
    ("celu", {"alpha": 1.3}),
)  # fmt: skip
PIECEWISE = (
    ("hardtanh", {"min_val": -0.3, "max_val": 1.1}), ("relu6", {}), ("leaky_relu", {"negative_slope": 0.3}),
    ("threshold", {"threshold": 0.1, "value": -2.7}), ("hardswish", {}), ("hardsigmoid", {}), ("softsign", {}),
    ("hardshrink", {"lambd": 0.6}), ("softshrink", {"lambd": 0.6}),
)  # fmt: skip
# torch's names of scalar arguments, and the reference's.
SCALARS = {
    "beta": "beta", "threshold": "limit", "alpha": "alpha", "min_val": "low", "max_val": "high", "lambd": "limit",
    "negative_slope": "slope", "value": "value",
}  # fmt: skip


def cases() -> Iterator[Case]:
    """Ordinary numbers, all binades, subnormals, and any bits: these many, with the digest alone, for what rounds."""
    for function, scalars in (*((name, {}) for name in ROUNDED), *SCALED):
        yield from _cases(function, scalars, "float32", ordinary=48, spread=96, subnormal=24, nonfinite=192)
        yield from _cases(function, scalars, "float32", patterns=8200)
        for dtype in ("bfloat16", "float16"):
            yield from _cases(function, scalars, dtype, patterns=160)
    for function, scalars in PIECEWISE:
        for dtype in (*SINGLE_AND_HALF, "float64"):
            yield from _cases(function, scalars, dtype, logits=64)
        yield from _cases(function, scalars, "float32", nonfinite=192)


def _cases(function: str, scalars: dict[str, float], dtype: str, **sizes: int) -> Iterator[Case]:
    for kind, size in sizes.items():
        case = {"op": "unary", "dtype": dtype, "kind": kind, "shapes": [[size]], "function": function}
        yield {**case, "options": scalars} if scalars else case


def _unary(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    name, dtype = case["function"], case["dtype"]
    scalars = {SCALARS[key]: value for key, value in case.get("options", {}).items()}
    if name == "relu6":
        name, scalars = "hardtanh", {"low": 0.0, "high": 6.0}
    out = activations.forward(name, dtype, x[0], **scalars)
    g = inputs.operand("ordinary", dtype, x[0].shape, case["seed"], 3)
    return {"out": out, "grad": derivatives.gradient(name, dtype, g, x[0], out, **scalars)}


COMPUTE = {"unary": _unary}
