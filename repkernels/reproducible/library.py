"""This library's functions of torch's names, for the tables here; the package itself imports those."""

from repkernels.ops.arithmetic import (
    addcdiv,
    addcmul,
    div,
    lerp,
    pow,
)
from repkernels.ops.bincount import bincount
from repkernels.ops.cumsum import cumsum
from repkernels.ops.extrema import amax, amin, argmax, argmin, max, maximum, min, minimum
from repkernels.ops.index_add import gather, index_add, index_select, scatter_add
from repkernels.ops.logsumexp import logsumexp
from repkernels.ops.matmul import matmul
from repkernels.ops.norm import norm
from repkernels.ops.sort import argsort, sort, topk
from repkernels.ops.sum import mean, sum
from repkernels.ops.unary import (
    cos,
    erf,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    log10,
    reciprocal,
    rsqrt,
    sigmoid,
    sin,
    sqrt,
    tanh,
)
from repkernels.ops.var import std, std_mean, var, var_mean

__all__ = [
    "addcdiv",
    "addcmul",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "argsort",
    "bincount",
    "cos",
    "cumsum",
    "div",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "gather",
    "index_add",
    "index_select",
    "lerp",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "norm",
    "pow",
    "reciprocal",
    "rsqrt",
    "scatter_add",
    "sigmoid",
    "sin",
    "sort",
    "sqrt",
    "std",
    "std_mean",
    "sum",
    "tanh",
    "topk",
    "var",
    "var_mean",
]
