"""Deep-learning operations whose every bit is defined: by the operands and the contract, and by nothing else."""

from repkernels import nn, optim, random, sampling
from repkernels.audit import audit
from repkernels.contract import Contract, checkpoint_contexts, contract, get_contract, set_contract
from repkernels.digest import digest
from repkernels.nn.conversion import UnsupportedModules, convert
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
from repkernels.prepare import Prepared, prepare
from repkernels.random import manual_seed
from repkernels.reproducible import NotReproducible, NotReproducibleWarning, reproducible

__version__ = "0.1.0"

# Rises whenever any bit of any result changes.
NUMERICS_VERSION = 2

__all__ = [
    "Contract",
    "NUMERICS_VERSION",
    "NotReproducible",
    "NotReproducibleWarning",
    "Prepared",
    "UnsupportedModules",
    "addcdiv",
    "addcmul",
    "amax",
    "amin",
    "argmax",
    "argmin",
    "argsort",
    "audit",
    "bincount",
    "checkpoint_contexts",
    "contract",
    "convert",
    "cos",
    "cumsum",
    "digest",
    "div",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "gather",
    "get_contract",
    "index_add",
    "index_select",
    "lerp",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "manual_seed",
    "matmul",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "nn",
    "norm",
    "optim",
    "pow",
    "prepare",
    "random",
    "reciprocal",
    "reproducible",
    "rsqrt",
    "sampling",
    "scatter_add",
    "set_contract",
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
