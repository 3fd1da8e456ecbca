"""ReLU (SPEC.md, "relu"): one pass over memory, or, for other types and under transforms, a selection by torch."""

from typing import Any

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.elementwise import elementwise
from repkernels.ops.operation import alone

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """x where x > 0 or x is NaN, else +0; any shape, dtype and device.

    The gradient is g where x > 0 or x is NaN, else +0 (SPEC.md, "relu"). inplace: writes to `input`, as
    torch.nn.functional.relu does. Raises torch's errors.
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"input: expected a Tensor, got {type(input).__name__}")
    if input.dtype in checks.FLOATS and input.layout == torch.strided and not input.is_meta:
        if not inplace:
            return elementwise("relu", input)
        if input.numel() and alone(input) and _writable(input):
            return _InPlace.apply(input)
    x = input.detach().resolve_neg()  # torch can't view a tensor with the negative bit as integers
    if x.dtype.is_floating_point and x.element_size() > 1 and not torch._C._functorch.is_batchedtensor(x):
        # By the bits, since `x <= 0` holds of a positive subnormal where torch.set_flush_denormal is on. (torch 2.11
        # can't view a batch of vmap as integers.)
        rest = (x.view(_INTEGERS[x.element_size()]) <= 0) & (x == x)
    else:
        rest = x <= 0
    return input.masked_fill_(rest, 0) if inplace else input.masked_fill(rest, 0)


def _writable(x: Tensor) -> bool:
    """Whether a kernel may write over x: it has no gaps, and autograd has nothing to say about it."""
    recorded = torch.is_grad_enabled() and x.requires_grad
    return torch.empty_like(x).stride() == x.stride() and not (recorded and (x.is_leaf or x._is_view()))


class _InPlace(torch.autograd.Function):
    """relu written over its argument, whose gradient needs the result alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        backend("elementwise", checks.device_type(x)).elementwise("relu", [x], (0.0, 0.0), x)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return elementwise("threshold_gradient", grad, y, s=0.0)
