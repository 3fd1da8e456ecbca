"""The functions that are measured, by the names of the library's."""

from typing import Any

from . import error, exponential, logarithm, root, trigonometric

TRUTHS: dict[str, Any] = {
    name: getattr(module, name)
    for module, names in (
        (exponential, ("exp", "exp2", "expm1", "sigmoid", "tanh", "silu", "mish", "elu", "selu", "gelu_tanh")),
        (logarithm, ("log", "log2", "log10", "log1p", "softplus")),
        (trigonometric, ("sin", "cos")),
        (error, ("erf", "gelu")),
        (root, ("sqrt", "rsqrt", "reciprocal")),
    )
    for name in names
}

# On part of the fp32 numbers.
PARTIAL: dict[str, Any] = {"sinpi": trigonometric.sinpi, "cospi": trigonometric.cospi}
