"""First derivatives of elementwise functions times g, SPEC.md, "Derivatives": steps of fp32, each rounded."""

from collections.abc import Callable

import numpy as np

from reference import formats, unary
from reference.fma import fma32
from reference.functions import exp_f32

F = np.float32


def constant(digits: str) -> np.float32:
    return F(float.fromhex(digits))


MILLS = [
    constant(c)
    for c in (
        "0x1.1dedfcp-3", "0x1.1ec2a8p-3", "0x1.e4f61ep-4", "0x1.cdc434p-4", "-0x1.7447fep-5",
        "0x1.a02690p-3", "-0x1.3ebb20p-2", "0x1.7fc004p-3", "-0x1.8b6e36p-5", "0x1.dbda9ap-9",
    )
]  # fmt: skip
LINEAR, CUBIC, SLOPE = constant("0x1.988454p+0"), constant("0x1.2444f2p-4"), constant("0x1.b6676cp-3")
SCALE, SCALE_ALPHA = constant("0x1.0cfabep+0"), constant("0x1.c212ccp+0")


def within(x: np.ndarray, limit: float) -> np.ndarray:
    """x, moved to -limit or limit where it lies beyond."""
    return np.where(x < -limit, F(-limit), np.where(x > limit, F(limit), x))


def exp_of_square(x: np.ndarray, scale: float) -> np.ndarray:
    """e^(-scale * x^2) of 0 <= x <= 16."""
    h = x * x
    rest = fma32(x, x, -h)
    e = exp_f32(-(h * F(scale)))
    return fma32(e, -(rest * F(scale)), e)


def sigmoid(v: np.ndarray) -> np.ndarray:
    t = exp_f32(-np.abs(v))
    r = F(1) / (t + F(1))
    return np.where(v >= 0, r, t * r)


def silu_slope(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    t = exp_f32(-np.abs(v))
    r = F(1) / (t + F(1))
    q = t * r
    return np.where(v >= 0, r, q) * (x * np.where(v >= 0, q, r) + F(1))


def tanh(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    t = exp_f32(np.abs(x) * F(-2))
    d = t + F(1)
    return g * ((t * F(4)) / (d * d))


def sigmoid_gradient(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    t = exp_f32(-np.abs(x))
    d = t + F(1)
    return g * (t / (d * d))


def erf(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    return g * (exp_of_square(np.abs(within(x, 16)), 1.0) * constant("0x1.20dd76p+0"))


def gelu(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    a = np.abs(within(x, 16))
    e = exp_of_square(a, 0.5)
    u = F(1) / fma32(a, constant("0x1.666666p-2"), F(1))
    p = np.asarray(MILLS[-1])
    for c in MILLS[-2::-1]:
        p = fma32(p, u, c)
    left = e * fma32(a, -constant("0x1.988454p-2"), p * u)
    return g * np.where(x > 0, F(1) - left, left)


def silu(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    return g * silu_slope(within(x, 128), within(x, 128))


def gelu_tanh(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    x = within(x, 16)
    w = x * x
    return g * silu_slope(x * fma32(w, SLOPE, LINEAR), x * fma32(w, CUBIC, LINEAR))


def softplus(g: np.ndarray, x: np.ndarray, beta: float = 1.0, limit: float = 20.0) -> np.ndarray:
    v = x * F(beta)
    return np.where(v > F(limit), g, g * sigmoid(v))


def mish(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    x = within(x, 128)
    t = exp_f32(-np.abs(x))
    above = x >= 0
    n = np.where(above, (t + t) + F(1), t * (t + F(2)))
    d = n + np.where(above, (t + t) * t, F(2))
    m = (t * (t + F(1))) * np.where(above, t * F(4), F(4))
    r = F(1) / d
    return g * (n * r + x * ((m * r) * r))


def below_zero(x: np.ndarray) -> np.ndarray:
    return exp_f32(np.where(x > 0, F(0), x))


def elu(g: np.ndarray, x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, g, g * (F(alpha) * below_zero(x)))


def celu(g: np.ndarray, x: np.ndarray, alpha: float = 1.0) -> np.ndarray:
    return np.where(x > 0, g, g * unary.forward("exp", x / F(alpha)))


def tanhshrink(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    y = unary.forward("tanh", x)
    return g * (y * y)


def glu(g: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of both operands."""
    return g * sigmoid(b), sigmoid_gradient(g * a, b)


def inside(g: np.ndarray, kept: np.ndarray) -> np.ndarray:
    return np.where(kept, g, g.dtype.type(0))


def hardswish(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    kind = x.dtype.type
    slope = g * (x / kind(3) + kind(0.5))
    return np.where(x <= -3, kind(0), np.where(x >= 3, g, slope))


def prelu(g: np.ndarray, x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of both operands, before the SUM of the weight's."""
    return np.where(x > 0, g, g * weight), np.where(x > 0, g.dtype.type(0), g * x)


def softsign(g: np.ndarray, x: np.ndarray) -> np.ndarray:
    d = np.abs(x) + x.dtype.type(1)
    return g / (d * d)


Formula = Callable[..., np.ndarray]

# From the argument, in fp32 and, for the last ones, fp64.
OF_ARGUMENT: dict[str, Formula] = {
    "expm1": lambda g, x: g * unary.forward("exp", x),
    "log": lambda g, x: g / x,
    "log2": lambda g, x: (g / x) * constant("0x1.715476p+0"),
    "log10": lambda g, x: (g / x) * constant("0x1.bcb7b2p-2"),
    "log1p": lambda g, x: g / (x + F(1)),
    "sin": lambda g, x: g * unary.forward("cos", x),
    "cos": lambda g, x: -(g * unary.forward("sin", x)),
    "tanh": tanh, "sigmoid": sigmoid_gradient, "erf": erf, "gelu": gelu, "gelu_tanh": gelu_tanh, "silu": silu,
    "softplus": softplus, "logsigmoid": lambda g, x: g * sigmoid(-x), "mish": mish, "elu": elu,
    "selu": lambda g, x: g * np.where(x > 0, SCALE, below_zero(x) * SCALE_ALPHA),
    "celu": celu, "tanhshrink": tanhshrink, "hardswish": hardswish, "softsign": softsign,
    "hardtanh": lambda g, x, low=-1.0, high=1.0: inside(g, ~((x <= x.dtype.type(low)) | (x >= x.dtype.type(high)))),
    "leaky_relu": lambda g, x, slope=0.01: np.where(x > 0, g, g * x.dtype.type(slope)),
    "threshold": lambda g, x, limit, value: inside(g, ~(x <= x.dtype.type(limit))),
    "hardsigmoid": lambda g, x: inside(g / g.dtype.type(6), ~((x <= -3) | (x >= 3))),
    "hardshrink": lambda g, x, limit=0.5: inside(g, ~(np.abs(x) <= x.dtype.type(limit))),
    "softshrink": lambda g, x, limit=0.5: inside(g, ~(np.abs(x) <= x.dtype.type(limit))),
}  # fmt: skip

# From the stored result y.
OF_RESULT: dict[str, Formula] = {
    "exp": lambda g, y: g * y,
    "exp2": lambda g, y: g * (y * constant("0x1.62e430p-1")),
    "sqrt": lambda g, y: g / (y + y),
    "rsqrt": lambda g, y: (g * F(-0.5)) * (y * (y * y)),
    "reciprocal": lambda g, y: -(g * (y * y)),
}


def gradient(
    name: str, dtype: str, g: np.ndarray, x: np.ndarray, y: np.ndarray, *scalars: float, **named: float
) -> np.ndarray:
    """The gradient in `dtype` of the argument x, y being the stored result; all in the format of computation."""
    with np.errstate(all="ignore"):
        if name in OF_RESULT:
            return formats.rounded(OF_RESULT[name](g, y), dtype)
        return formats.rounded(OF_ARGUMENT[name](g, x, *scalars, **named), dtype)
