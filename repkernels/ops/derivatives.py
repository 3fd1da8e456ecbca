"""The derivatives of elementwise operations (SPEC.md, "Derivatives").

The first is a formula of its own, one kernel. Those beyond come from it: `NAME_gradient` is linear in its first operand
and has in the argument of NAME the second derivative, put together from operations that are differentiable in turn.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops.elementwise import RULES, Rule, elementwise

ROOT_2_OVER_PI = (2 / 3.141592653589793) ** 0.5


def _of(function: str, x: Tensor) -> Tensor:
    return elementwise(function, x)


def _exp(x: Tensor) -> Tensor:
    return _of("exp", x)


def _tanh_curvature(x: Tensor, call: Any) -> Tensor:
    y = _of("tanh", x)
    return -2 * y * (1 - y * y)


def _sigmoid_slope(x: Tensor) -> Tensor:
    s = _of("sigmoid", x)
    return s * (1 - s)


def _sigmoid_curvature(x: Tensor, call: Any) -> Tensor:
    s = _of("sigmoid", x)
    return s * (1 - s) * (1 - 2 * s)


def _erf_curvature(x: Tensor, call: Any) -> Tensor:
    return -2 * x * elementwise("erf_gradient", torch.ones_like(x), x)


def _gelu_curvature(x: Tensor, call: Any) -> Tensor:
    density = elementwise("erf_gradient", torch.ones_like(x), x * 0.5**0.5) * 0.5**1.5
    return density * (2 - x * x)


def _gelu_tanh_curvature(x: Tensor, call: Any) -> Tensor:
    y = _of("tanh", ROOT_2_OVER_PI * (x + 0.044715 * x * x * x))
    slope = ROOT_2_OVER_PI * (1 + 3 * 0.044715 * x * x)
    first, bend = 1 - y * y, 6 * 0.044715 * ROOT_2_OVER_PI * x
    return first * slope + 0.5 * x * first * (bend - 2 * y * slope * slope)


def _silu_curvature(x: Tensor, call: Any) -> Tensor:
    s = _of("sigmoid", x)
    return s * (1 - s) * (2 + x * (1 - 2 * s))


def _softplus_curvature(x: Tensor, call: Any) -> Tensor:
    v = x * call.s
    return torch.where(v > call.t, 0.0, _sigmoid_slope(v) * call.s)


def _logsigmoid_curvature(x: Tensor, call: Any) -> Tensor:
    return -_sigmoid_slope(x)


def _mish_curvature(x: Tensor, call: Any) -> Tensor:
    y, s = _of("tanh", elementwise("softplus", x, s=1.0, t=20.0)), _of("sigmoid", x)
    slope = s * (1 - y * y)
    return 2 * slope + x * slope * (1 - s - 2 * y * s)


def _below_zero(x: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.where(x > 0, 0.0, value(x.clamp(max=0)))


def _elu_curvature(x: Tensor, call: Any) -> Tensor:
    return _below_zero(x, lambda v: call.s * _exp(v))


def _selu_curvature(x: Tensor, call: Any) -> Tensor:
    return _below_zero(x, lambda v: 1.0507009873554805 * 1.6732632423543772 * _exp(v))


def _celu_curvature(x: Tensor, call: Any) -> Tensor:
    def below(v: Tensor) -> Tensor:
        return elementwise("div", _exp(elementwise("div", v, s=call.s)), s=call.s)

    return torch.where(x > 0, 0.0, below(torch.where(x > 0, 0.0, x)))


def _hardswish_curvature(x: Tensor, call: Any) -> Tensor:
    return torch.where((x > -3) & (x < 3), 1 / 3, torch.zeros_like(x))


def _softsign_curvature(x: Tensor, call: Any) -> Tensor:
    d = x.abs() + 1
    return elementwise("div", -2 * x.sign(), d * d * d)


def _inverse_square(x: Tensor) -> Tensor:
    y = _of("reciprocal", x)
    return -(y * y)


Curvature = Callable[[Tensor, Any], Tensor]

# Functions whose gradient reads the argument, with their second derivative; None: it is 0.
OF_ARGUMENT: dict[str, Curvature | None] = {
    "expm1": lambda x, call: _exp(x),
    "log": lambda x, call: _inverse_square(x),
    "log2": lambda x, call: _inverse_square(x) * 1.4426950408889634,
    "log10": lambda x, call: _inverse_square(x) * 0.4342944819032518,
    "log1p": lambda x, call: _inverse_square(x + 1),
    "sin": lambda x, call: -_of("sin", x),
    "cos": lambda x, call: -_of("cos", x),
    "tanh": _tanh_curvature,
    "sigmoid": _sigmoid_curvature,
    "erf": _erf_curvature,
    "gelu": _gelu_curvature,
    "gelu_tanh": _gelu_tanh_curvature,
    "silu": _silu_curvature,
    "softplus": _softplus_curvature,
    "logsigmoid": _logsigmoid_curvature,
    "mish": _mish_curvature,
    "elu": _elu_curvature,
    "selu": _selu_curvature,
    "celu": _celu_curvature,
    "tanhshrink": lambda x, call: -_tanh_curvature(x, call),
    "hardswish": _hardswish_curvature,
    "softsign": _softsign_curvature,
    "hardtanh": None,
    "leaky_relu": None,
    "threshold": None,
    "hardsigmoid": None,
}

# Functions whose gradient reads the result y, with the derivative of g -> gradient by y.
OF_RESULT: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.ones_like,
    "exp2": lambda y: torch.full_like(y, 0.6931471805599453),
    "sqrt": lambda y: elementwise("div", torch.full_like(y, -0.5), y * y),
    "rsqrt": lambda y: -1.5 * y * y,
    "reciprocal": lambda y: -2 * y,
}


def _first(name: str, letter: str) -> Callable[[Tensor, Any], Tensor]:
    return lambda g, call: elementwise(name, g, getattr(call, letter), s=call.s, t=call.t)


def _add_argument(function: str, name: str, curvature: Curvature | None) -> None:
    RULES[function] = Rule("a", (_first(name, "a"),))
    RULES[name] = Rule(
        "ab",
        (_first(name, "b"), lambda g, v: torch.zeros_like(g) if curvature is None else g * v.a * curvature(v.b, v)),
    )


def _add_result(function: str, name: str, slope: Callable[[Tensor], Tensor]) -> None:
    RULES[function] = Rule("y", (_first(name, "y"),))
    RULES[name] = Rule("ab", (_first(name, "b"), lambda g, v: g * v.a * slope(v.b)))


for _name, _curvature in OF_ARGUMENT.items():
    _add_argument(_name, f"{_name}_gradient", _curvature)
for _name, _slope in OF_RESULT.items():
    _add_result(_name, f"{_name}_gradient", _slope)
for _name in ("hardshrink", "softshrink"):
    _add_argument(_name, "shrink_gradient", None)


# Of the result, which the layer after it keeps as well.
RULES["relu"] = Rule("y", (lambda g, v: elementwise("threshold_gradient", g, v.y, s=0.0),))


def _not_above_zero(x: Tensor, value: Tensor) -> Tensor:
    return torch.where(x > 0, 0.0, value)


RULES["prelu"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("prelu_gradient", g, v.a, v.b),
        lambda g, v: elementwise("prelu_weight_gradient", g, v.a),
    ),
)
RULES["prelu_gradient"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("prelu_gradient", g, v.b, v.c),
        lambda g, v: torch.zeros_like(g),
        lambda g, v: _not_above_zero(v.b, g * v.a),
    ),
)
RULES["prelu_weight_gradient"] = Rule(
    "ab",
    (lambda g, v: elementwise("prelu_weight_gradient", g, v.b), lambda g, v: _not_above_zero(v.b, g * v.a)),
)
RULES["glu"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("glu_gradient", g, v.b),
        lambda g, v: elementwise("glu_gate_gradient", g, v.a, v.b),
    ),
)
RULES["glu_gradient"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("glu_gradient", g, v.b),
        lambda g, v: elementwise("glu_gate_gradient", g, v.a, v.b),
    ),
)
RULES["glu_gate_gradient"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("glu_gate_gradient", g, v.b, v.c),
        lambda g, v: elementwise("glu_gate_gradient", g, v.a, v.c),
        lambda g, v: g * v.a * v.b * _sigmoid_curvature(v.c, v),
    ),
)

# b (c for lerp) is None where it is the scalar s.
RULES["div"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("div", g, v.b, s=v.s),
        lambda g, v: elementwise("div_gradient", g, v.a, v.b),
    ),
)
RULES["div_gradient"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("div_gradient", g, v.b, v.c),
        lambda g, v: elementwise("div_gradient", g, v.a, v.c),
        lambda g, v: elementwise("div", elementwise("div_gradient", g * v.a, v.b, v.c), v.c) * -2,
    ),
)
RULES["div_floor"] = RULES["div_trunc"] = Rule("", (lambda g, v: torch.zeros_like(g), lambda g, v: torch.zeros_like(g)))
RULES["lerp"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("lerp_start_gradient", g, v.c, s=v.s),
        lambda g, v: elementwise("product", g, v.c, s=v.s),
        lambda g, v: elementwise("lerp_weight_gradient", g, v.a, v.b),
    ),
)
RULES["lerp_start_gradient"] = Rule(
    "ab",
    (lambda g, v: elementwise("lerp_start_gradient", g, v.b, s=v.s), lambda g, v: -(g * v.a)),
)
RULES["product"] = Rule(
    "ab",
    (lambda g, v: elementwise("product", g, v.b, s=v.s), lambda g, v: elementwise("product", g, v.a)),
)
RULES["add"] = Rule("", (lambda g, v: g, lambda g, v: g))
RULES["subtract"] = Rule("", (lambda g, v: g, lambda g, v: -g))
RULES["lerp_weight_gradient"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("lerp_weight_gradient", g, v.b, v.c),
        lambda g, v: -(g * v.a),
        lambda g, v: g * v.a,
    ),
)
RULES["addcmul"] = Rule(
    "bc",
    (
        lambda g, v: g,
        lambda g, v: elementwise("addcmul_gradient", g, v.c, s=v.s),
        lambda g, v: elementwise("addcmul_gradient", g, v.b, s=v.s),
    ),
)
RULES["addcmul_gradient"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("addcmul_gradient", g, v.b, s=v.s),
        lambda g, v: elementwise("addcmul_gradient", g, v.a, s=v.s),
    ),
)
RULES["addcdiv"] = Rule(
    "bc",
    (
        lambda g, v: g,
        lambda g, v: elementwise("addcdiv_gradient", g, v.c, s=v.s),
        lambda g, v: elementwise("addcdiv_divisor_gradient", g, v.b, v.c, s=v.s),
    ),
)
RULES["addcdiv_gradient"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("addcdiv_gradient", g, v.b, s=v.s),
        lambda g, v: elementwise("addcdiv_divisor_gradient", g, v.a, v.b, s=v.s),
    ),
)
RULES["addcdiv_divisor_gradient"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("addcdiv_divisor_gradient", g, v.b, v.c, s=v.s),
        lambda g, v: elementwise("addcdiv_divisor_gradient", g, v.a, v.c, s=v.s),
        lambda g, v: elementwise("div", elementwise("addcdiv_divisor_gradient", g * v.a, v.b, v.c, s=v.s), v.c) * -2,
    ),
)


def _power(x: Tensor, y: Tensor | None, less: float, s: float) -> Tensor:
    """x^(y - less), y being s where it is None."""
    return elementwise("pow", x, s=s - less) if y is None else elementwise("pow", x, y - less)


def _power_bend(x: Tensor, y: Tensor | None, s: float) -> Tensor:
    """The derivative of y * x^(y - 1) by y, and of x^y * ln x by x."""
    return _power(x, y, 1, s) * (1 + (s if y is None else y) * elementwise("log", x))


def _power_curvature(g: Tensor, x: Tensor, y: Tensor | None, s: float) -> Tensor:
    exponent = torch.full_like(x, s) if y is None else y
    bent = elementwise("pow_gradient", g * exponent, x, exponent - 1)
    return torch.where(exponent == 0, 0.0, bent)


RULES["pow"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("pow_gradient", g, v.a, v.b, s=v.s),
        lambda g, v: elementwise("pow_exponent_gradient", g, v.a, v.b),
    ),
)
RULES["pow_gradient"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("pow_gradient", g, v.b, v.c, s=v.s),
        lambda g, v: _power_curvature(g * v.a, v.b, v.c, v.s),
        lambda g, v: g * v.a * _power_bend(v.b, v.c, v.s),
    ),
)
RULES["pow_exponent_gradient"] = Rule(
    "abc",
    (
        lambda g, v: elementwise("pow_exponent_gradient", g, v.b, v.c),
        lambda g, v: g * v.a * _power_bend(v.b, v.c, v.s),
        lambda g, v: elementwise("pow_exponent_gradient", g * v.a * elementwise("log", v.b), v.b, v.c),
    ),
)
RULES["pow_base"] = Rule("a", (lambda g, v: elementwise("pow_base_gradient", g, v.a, s=v.s),))
RULES["pow_base_gradient"] = Rule(
    "ab",
    (
        lambda g, v: elementwise("pow_base_gradient", g, v.b, s=v.s),
        lambda g, v: elementwise(
            "pow_base_gradient", g * v.a * elementwise("log", torch.full_like(v.b, v.s)), v.b, s=v.s
        ),
    ),
)
