"""Functions of one tensor, element by element, with torch's names (SPEC.md, "Elementwise operations").

Each is RN32(f(x)) of the real function f for every fp32 x. Half types are widened, and the result is rounded once more;
integers and bool are rounded to fp32 first. fp64 raises NotImplementedError.

Gradients are formulas of their own in fp32 (SPEC.md, "Derivatives"), within 3 ulp of g * f'(x) unless a docstring says
otherwise, where no step is subnormal; those that read the stored result y of a half type inherit its rounding.
"""

import torch
from torch import Tensor

from repkernels.ops import checks, derivatives, documentation  # noqa: F401  (the gradients' rules)
from repkernels.ops.elementwise import elementwise

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def argument(x: object, wide_under_autocast: bool = False, name: str = "input") -> Tensor:
    """x as a function takes it: integers as fp32, and, where torch's autocast asks for that, half types too."""
    if isinstance(x, Tensor) and x.dtype in INTEGERS:
        return x.to(torch.float32)
    checks.operand(name, x, DTYPES)
    assert isinstance(x, Tensor)
    if wide_under_autocast and checks.autocast(x.device.type) is not None:
        return x.float()
    return x


def exp(input: Tensor) -> Tensor:
    """RN(e^x). Gradient: RN(g * y), y the stored result. Under autocast in fp32."""
    return elementwise("exp", argument(input, True))


def exp2(input: Tensor) -> Tensor:
    """RN(2^x). Gradient: RN(g * RN(y * ln 2)), y the stored result."""
    return elementwise("exp2", argument(input))


def expm1(input: Tensor) -> Tensor:
    """RN(e^x - 1). Gradient: RN(g * exp(x)). Under autocast in fp32."""
    return elementwise("expm1", argument(input, True))


def log(input: Tensor) -> Tensor:
    """RN(ln x): -inf at zeros, NaN below. Gradient: RN(g / x). Under autocast in fp32."""
    return elementwise("log", argument(input, True))


def log2(input: Tensor) -> Tensor:
    """RN(log2 x): -inf at zeros, NaN below. Gradient: RN(RN(g / x) * log2 e). Under autocast in fp32."""
    return elementwise("log2", argument(input, True))


def log10(input: Tensor) -> Tensor:
    """RN(log10 x): -inf at zeros, NaN below. Gradient: RN(RN(g / x) * log10 e). Under autocast in fp32."""
    return elementwise("log10", argument(input, True))


def log1p(input: Tensor) -> Tensor:
    """RN(ln(1 + x)): -inf at -1, NaN below. Gradient: RN(g / RN(x + 1)). Under autocast in fp32."""
    return elementwise("log1p", argument(input, True))


def sin(input: Tensor) -> Tensor:
    """RN(sin x) for every x, however large; NaN at infinities. Gradient: RN(g * cos(x))."""
    return elementwise("sin", argument(input))


def cos(input: Tensor) -> Tensor:
    """RN(cos x) for every x, however large; NaN at infinities. Gradient: -RN(g * sin(x))."""
    return elementwise("cos", argument(input))


def tanh(input: Tensor) -> Tensor:
    """RN(tanh x). Gradient from x, by t = e^(-2|x|): RN(g * RN(4t / RN(d * d))), d = RN(t + 1): within 4 ulp."""
    return elementwise("tanh", argument(input))


def sigmoid(input: Tensor) -> Tensor:
    """RN(1 / (1 + e^-x)). Gradient from x, by t = e^-|x|: RN(g * RN(t / RN(d * d))), d = RN(t + 1): within 4 ulp."""
    return elementwise("sigmoid", argument(input))


def erf(input: Tensor) -> Tensor:
    """RN(erf x). Gradient from x: RN(g * RN(e^(-x^2) * 2 / sqrt(pi))), by the formula of SPEC.md."""
    return elementwise("erf", argument(input))


def rsqrt(input: Tensor) -> Tensor:
    """RN(1 / sqrt(x)): an infinity of its sign at a zero, NaN below. Gradient from y: -g y^3 / 2. Autocast: fp32."""
    return elementwise("rsqrt", argument(input, True))


def reciprocal(input: Tensor) -> Tensor:
    """RN(1 / x). Gradient: -RN(g * RN(y * y)), y the stored result. Under autocast in fp32."""
    return elementwise("reciprocal", argument(input, True))


def sqrt(input: Tensor) -> Tensor:
    """RN(sqrt(x)): zeros stay, NaN below. Gradient: RN(g / RN(y + y)), y the stored result."""
    return elementwise("sqrt", argument(input))


documentation.add(
    (exp, exp2, expm1, log, log2, log10, log1p, sin, cos, tanh, sigmoid, erf, rsqrt, reciprocal, sqrt),
    """
    input: fp32, bf16, fp16, any shape and strides; integers and bool are rounded to fp32. Result: its shape, in its
    dtype (fp32 for integers); half types are rounded once more from fp32. Bits: SPEC.md, "Functions".
    Raises NotImplementedError for fp64 and other dtypes, sparse tensors and other devices, TypeError for no tensor.
    """,
)
