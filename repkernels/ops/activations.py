"""Activations, with the names and signatures of torch.nn.functional (SPEC.md, "Elementwise operations").

gelu, silu, mish, selu, elu with alpha = 1, softplus with beta = 1, logsigmoid, tanh and sigmoid are the real functions,
correctly rounded, in fp32 and half types; fp64 raises NotImplementedError. The others are formulas of single rounded
operations; those without an exponential take fp64 too.
"""

import torch
from torch import Tensor

from repkernels.ops import checks, documentation
from repkernels.ops.elementwise import elementwise
from repkernels.ops.unary import DTYPES, argument


def _activation(
    name: str, input: Tensor, inplace: bool = False, s: float = 0.0, t: float = 0.0, wide: bool = True
) -> Tensor:
    """wide: fp64 is taken too."""
    checks.operand("input", input, checks.FLOATS if wide else DTYPES)
    if not inplace:
        return elementwise(name, input, s=s, t=t)
    # The gradient reads what is overwritten here.
    recorded = torch.is_grad_enabled() and input.requires_grad
    return input.copy_(elementwise(name, input.clone() if recorded else input, s=s, t=t))


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """RN(x * Phi(x)), or, for approximate="tanh", RN(x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) / 2).

    Gradient from x, in fp32, within 4 ulp ("tanh": 64 in the left tail), near its zero at -0.75 within 4 * 2^-24 * |g|.
    Raises RuntimeError for another `approximate`.
    """
    if approximate not in ("none", "tanh"):
        raise RuntimeError(f"approximate: expected 'none' or 'tanh', got {approximate!r}")
    return _activation("gelu" if approximate == "none" else "gelu_tanh", input, wide=False)


def silu(input: Tensor, inplace: bool = False) -> Tensor:
    """RN(x / (1 + e^-x)). Gradient from x, in fp32, within 5 ulp, near its zero at -1.28 within 4 * 2^-24 * |g|."""
    return _activation("silu", input, inplace, wide=False)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """x where v = RN(beta * x) > threshold, otherwise RN(RN(ln(1 + e^v)) / beta). Under autocast in fp32."""
    s, t = checks.number("beta", beta), checks.number("threshold", threshold)
    return elementwise("softplus", argument(input, True), s=s, t=t)


def logsigmoid(input: Tensor) -> Tensor:
    """RN(ln(1 / (1 + e^-x))). Gradient: RN(g * sigmoid(-x)), the sigmoid in fp32: within 3 ulp."""
    return _activation("logsigmoid", input, wide=False)


def mish(input: Tensor, inplace: bool = False) -> Tensor:
    """RN(x * tanh(ln(1 + e^x))). Gradient in fp32, within 8 ulp, near its zero at -1.19 within 4 * 2^-24 * |g|."""
    return _activation("mish", input, inplace, wide=False)


def elu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, otherwise RN(alpha * RN(e^x - 1))."""
    return _activation("elu", input, inplace, checks.number("alpha", alpha), wide=False)


def selu(input: Tensor, inplace: bool = False) -> Tensor:
    """RN(scale * x) where x >= 0, otherwise RN(scale * alpha * (e^x - 1)), with torch's binary64 constants."""
    return _activation("selu", input, inplace, wide=False)


def celu(input: Tensor, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """x where x > 0, otherwise RN(alpha * RN(e^v - 1)), v = RN(x / alpha). Raises RuntimeError for alpha = 0."""
    alpha = checks.number("alpha", alpha)
    if alpha == 0:
        raise RuntimeError("alpha: celu divides by it, so it cannot be 0")
    return _activation("celu", input, inplace, alpha, wide=False)


def tanhshrink(input: Tensor) -> Tensor:
    """RN(x - RN(tanh x))."""
    return _activation("tanhshrink", input, wide=False)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """RN(a * RN(sigmoid(b))), a and b the halves of input along dim; rounded to input's type once.

    Raises RuntimeError for a 0-d input and an odd size, IndexError for a dim out of range.
    """
    checks.operand("input", input, DTYPES)
    if input.ndim == 0:
        raise RuntimeError("input: glu needs a dimension to halve, got a 0-d tensor")
    if not -input.ndim <= dim < input.ndim:
        raise IndexError(
            f"dim: expected one of {-input.ndim}..{input.ndim - 1} for shape {tuple(input.shape)}, got {dim}"
        )
    if input.shape[dim] % 2:
        raise RuntimeError(f"dim: size {input.shape[dim]} of dimension {dim} is odd; glu halves it")
    a, b = input.split(input.shape[dim] // 2, dim) if input.shape[dim] else (input, input)
    return elementwise("glu", a, b)


def hardtanh(input: Tensor, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Tensor:
    """min_val where x < min_val, max_val where x > max_val, otherwise x. Gradient: g strictly inside, otherwise +0.

    Raises ValueError for min_val > max_val.
    """
    low, high = checks.number("min_val", min_val), checks.number("max_val", max_val)
    if low > high:
        raise ValueError(f"min_val: {min_val} is greater than max_val, {max_val}")
    return _activation("hardtanh", input, inplace, low, high)


def relu6(input: Tensor, inplace: bool = False) -> Tensor:
    """`hardtanh` from 0 to 6."""
    return hardtanh(input, 0.0, 6.0, inplace)


def leaky_relu(input: Tensor, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """x where x > 0, otherwise RN(x * negative_slope)."""
    return _activation("leaky_relu", input, inplace, checks.number("negative_slope", negative_slope))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """x where x > 0, otherwise RN(x * w), w the weight of the channel (dimension 1), or the only one.

    weight: (1,) or (C,), of input's dtype. Its gradient is the SUM of RN(g * x) (rounded to the type) where x <= 0.
    Under autocast both are cast to its dtype, as torch does.
    Raises RuntimeError for another number of weights, dtype or device.
    """
    checks.operand("input", input)
    checks.operand("weight", weight)
    dtype = checks.autocast(checks.device_type(input))
    if dtype is not None:
        input, weight = checks.cast(input, dtype), checks.cast(weight, dtype)
    checks.same("weight", weight, "input", input)
    channels = input.shape[1] if input.ndim > 1 else 1
    if weight.ndim > 1 or weight.numel() not in (1, channels):
        raise RuntimeError(
            f"weight: expected 1 or {channels} numbers for input of shape {tuple(input.shape)}, "
            f"got shape {tuple(weight.shape)}"
        )
    shape = [1] * input.ndim
    if input.ndim > 1:
        shape[1] = weight.numel()
    return elementwise("prelu", input, weight.reshape(shape))


def threshold(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """value where x <= threshold, otherwise x. Gradient: +0 there, otherwise g."""
    s, t = checks.number("threshold", threshold), checks.number("value", value)
    return _activation("threshold", input, inplace, s, t)


def hardswish(input: Tensor, inplace: bool = False) -> Tensor:
    """+0 where x <= -3, x where x >= 3, otherwise RN(RN(x * RN(x + 3)) / 6)."""
    return _activation("hardswish", input, inplace)


def hardsigmoid(input: Tensor, inplace: bool = False) -> Tensor:
    """+0 where x <= -3, 1 where x >= 3, otherwise RN(RN(x + 3) / 6)."""
    return _activation("hardsigmoid", input, inplace)


def softsign(input: Tensor) -> Tensor:
    """RN(x / RN(|x| + 1)); NaN at an infinity, as torch."""
    return _activation("softsign", input)


def hardshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """+0 where |x| <= lambd, otherwise x. Gradient: +0 there, otherwise g."""
    return _activation("hardshrink", input, s=checks.number("lambd", lambd))


def softshrink(input: Tensor, lambd: float = 0.5) -> Tensor:
    """RN(x - lambd) where x > lambd, RN(x + lambd) where x < -lambd, otherwise +0.

    Raises RuntimeError for lambd < 0.
    """
    lambd = checks.number("lambd", lambd)
    if not lambd >= 0:
        raise RuntimeError(f"lambd: expected a number of at least 0, got {lambd}")
    return _activation("softshrink", input, s=lambd)


for _dtypes, _functions in (
    ("fp32, bf16, fp16", (gelu, silu, softplus, logsigmoid, mish, elu, selu, celu, tanhshrink, glu)),
    ("fp32, bf16, fp16, fp64", (hardtanh, relu6, leaky_relu, prelu, threshold, hardswish, hardsigmoid, softsign)),
    ("fp32, bf16, fp16, fp64", (hardshrink, softshrink)),
):
    documentation.add(
        _functions,
        f"""
        input: {_dtypes}, any shape and strides. Result: its dtype; half types are rounded once from fp32. Bits:
        SPEC.md, "Functions" and "Elementwise operations".
        Raises NotImplementedError for other dtypes, sparse tensors and other devices, TypeError for no tensor.
        """,
    )
