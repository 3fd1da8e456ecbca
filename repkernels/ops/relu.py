"""ReLU (SPEC.md, "relu"): one pass, or, in place and for other types, a selection by torch."""

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.elementwise import elementwise

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def relu(input: Tensor, inplace: bool = False) -> Tensor:
    """x where x > 0 or x is NaN, else +0; any shape, dtype and device.

    The gradient is g where x > 0 or x is NaN, else +0 (SPEC.md, "relu"). inplace: writes to `input`, as
    torch.nn.functional.relu does. Raises torch's errors.
    """
    if not isinstance(input, Tensor):
        raise TypeError(f"input: expected a Tensor, got {type(input).__name__}")
    if not inplace and input.dtype in checks.FLOATS and input.layout == torch.strided and input.device.type != "meta":
        return elementwise("relu", input)
    x = input.detach().resolve_neg()  # torch can't view a tensor with the negative bit as integers
    if x.dtype.is_floating_point and x.element_size() > 1 and not torch._C._functorch.is_batchedtensor(x):
        # By the bits, since `x <= 0` holds of a positive subnormal where torch.set_flush_denormal is on. (torch 2.11
        # can't view a batch of vmap as integers.)
        rest = (x.view(_INTEGERS[x.element_size()]) <= 0) & (x == x)
    else:
        rest = x <= 0
    return input.masked_fill_(rest, 0) if inplace else input.masked_fill(rest, 0)
