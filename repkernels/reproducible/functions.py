"""Which function of torch, as Python code calls it, has one of this library's in its place, with its gradient."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.reproducible import library, recurrent
from repkernels.reproducible.contractions import addbmm, addmm, addmv, attention, baddbmm, grouped_mm, matmul
from repkernels.reproducible.elementwise import clamp, log_softmax, softmax, square

Function = Callable[..., Any]

# Functions of `repkernels` with the name and arguments of a function of torch and of a method of Tensor.
_TORCH = """
exp exp2 expm1 log log2 log10 log1p sin cos tanh sigmoid erf rsqrt reciprocal sqrt div lerp addcmul addcdiv pow sum mean
var std var_mean std_mean amax amin argmax argmin max min maximum minimum cumsum logsumexp sort argsort topk index_add
scatter_add gather index_select bincount norm
""".split()

# Of `repkernels.nn.functional`, which torch has outside of torch.nn.functional too, with the same arguments.
_BOTH = """
relu prelu celu selu hardshrink dropout alpha_dropout feature_alpha_dropout sigmoid tanh pixel_shuffle pixel_unshuffle
conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d avg_pool1d adaptive_avg_pool1d
adaptive_max_pool1d max_pool1d max_pool2d max_pool3d bilinear
""".split()

_OTHERS: dict[str, Function] = {
    "matmul": matmul,
    "mm": matmul,
    "bmm": matmul,
    "mv": matmul,
    "__matmul__": matmul,
    "__rmatmul__": lambda self, other: matmul(other, self),
    "addmm": addmm,
    "addbmm": addbmm,
    "addmv": addmv,
    "baddbmm": baddbmm,
    "_grouped_mm": grouped_mm,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "clamp": clamp,
    "clip": clamp,
    "square": square,
    "divide": library.div,
    "true_divide": library.div,
    "__truediv__": library.div,
    "__div__": library.div,
}

# Functions that only show a tensor.
QUIET = frozenset((Tensor.__repr__, Tensor.__format__))

CONTRACTIONS: set[Function] = {matmul, addmm, addbmm, addmv, baddbmm, attention, grouped_mm, _OTHERS["__rmatmul__"]}

_OF_CONTRACTIONS = ("linear", "conv", "bilinear", "scaled_dot_product_attention", "lstm", "gru", "rnn", "multi_head")


@functools.cache
def table() -> dict[Any, Function]:
    """torch's function or method -> this library's."""
    found: dict[Any, Function] = {}
    ours, public = functional, torch.nn.functional
    for name in ours.__all__:
        function = getattr(ours, name)
        if name.startswith(_OF_CONTRACTIONS):
            CONTRACTIONS.add(function)
        holders = (public, torch, Tensor) if name in _BOTH else (public,)
        _add(found, name, function, holders)
    for name in _TORCH:
        _add(found, name, getattr(library, name), (torch, Tensor, torch.special))
    for name, function in _OTHERS.items():
        _add(found, name, function, (torch, Tensor))
    for name, function in recurrent.FUNCTIONS.items():
        found[getattr(torch, name)] = found[getattr(torch._VF, name)] = function
        CONTRACTIONS.add(function)
    if hasattr(public, "grouped_mm"):
        found[public.grouped_mm] = grouped_mm
    found.setdefault(public.scaled_dot_product_attention, attention)
    found[torch.linalg.vector_norm] = _vector_norm
    return found


def _add(found: dict[Any, Function], name: str, function: Function, holders: tuple[Any, ...]) -> None:
    for holder in holders:
        theirs = getattr(holder, name, None)
        if theirs is not None:
            found[theirs] = function
        written = getattr(holder, f"{name}_", None)
        if written is not None and not name.startswith("__"):
            found[written] = _in_place(function)


@functools.cache
def _in_place(function: Function) -> Function:
    """`function` whose result is written to its first argument, with its gradient."""

    def call(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        recorded = torch.is_grad_enabled() and input.requires_grad
        kwargs.pop("inplace", None)
        return input.copy_(function(input.clone() if recorded else input, *args, **kwargs))

    return call


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    return library.norm(x, ord, dim, keepdim, dtype=dtype)
