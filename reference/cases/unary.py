"""Golden cases of the functions of one tensor, result and gradient, and of pow."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from reference import derivatives, formats, inputs, power, unary

Case = dict[str, Any]

ROUNDED = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "rsqrt", "reciprocal", "sqrt",
    "silu", "mish", "selu", "softplus", "erf", "gelu", "gelu_tanh", "sin", "cos",
)  # fmt: skip


def cases() -> Iterator[Case]:
    """Ordinary numbers, all binades, subnormals, special values, and any bits: of those many, with the digest alone."""
    for function in ROUNDED:
        for kind, size in (("ordinary", 48), ("spread", 96), ("subnormal", 24), ("nonfinite", 192), ("patterns", 8200)):
            yield _case(function, "float32", kind, size)
        for dtype in ("bfloat16", "float16"):
            yield _case(function, dtype, "patterns", 200)
    for kind, size in (("ordinary", 160), ("spread", 160), ("nonfinite", 400), ("zeros", 60), ("patterns", 8200)):
        yield {"op": "pow", "dtype": "float32", "kind": kind, "shapes": [[size], [size]]}
    for dtype in ("bfloat16", "float16"):
        yield {"op": "pow", "dtype": dtype, "kind": "ordinary", "shapes": [[200], [200]]}
    for options in ({"exponent": 2.0}, {"exponent": 0.5}, {"exponent": -3.0}, {"exponent": 2.4}, {"input": 2.0}):
        yield {"op": "pow", "dtype": "float32", "kind": "spread", "shapes": [[100]], "options": options}


def _case(function: str, dtype: str, kind: str, size: int) -> Case:
    return {"op": "unary", "dtype": dtype, "kind": kind, "shapes": [[size]], "function": function}


def _unary(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    name, dtype = case["function"], case["dtype"]
    out = formats.rounded(unary.forward(name, x[0]), dtype)
    g = inputs.operand("ordinary", dtype, x[0].shape, case["seed"], 3)
    return {"out": out, "grad": derivatives.gradient(name, dtype, g, x[0], out)}


def _pow(case: Case, x: list[np.ndarray]) -> dict[str, np.ndarray]:
    dtype, options = case["dtype"], case.get("options", {})
    g = inputs.operand("ordinary", dtype, x[0].shape, case["seed"], 3)
    base = np.asarray(options["input"], np.float32) if "input" in options else x[0]
    exponent = np.asarray(options["exponent"], np.float32) if "exponent" in options else x[-1]
    with np.errstate(all="ignore"):
        found = {"out": power.forward(base, exponent)}
        of_base, of_exponent = power.gradients(g, base, exponent)
    if "input" not in options:
        found["grad_0"] = of_base
    if "exponent" not in options:
        found["grad_1"] = of_exponent
    return {name: formats.rounded(v, dtype) for name, v in found.items()}


COMPUTE = {"unary": _unary, "pow": _pow}
