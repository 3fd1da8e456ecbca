"""Power-average pooling (SPEC.md, "Pooling"), composed of pow and avg_pool."""

import math

import torch
from torch import Tensor

from repkernels.ops import windows as arguments
from repkernels.ops.arithmetic import pow
from repkernels.ops.avg_pool import _avg
from repkernels.ops.elementwise import elementwise
from repkernels.ops.max_pool import _max
from repkernels.ops.relu import _INTEGERS
from repkernels.ops.unary import argument
from repkernels.ops.windows import Sizes


def _lp(
    name: str, input: Tensor, dims: int, norm_type: float, kernel_size: Sizes, stride: Sizes | None, ceil_mode: bool
) -> Tensor:
    arguments.operand(name, input, dims)
    if isinstance(norm_type, bool) or not isinstance(norm_type, (int, float)):
        raise TypeError(f"norm_type: expected a number, got {type(norm_type).__name__}")
    if math.isinf(norm_type):
        v = input.abs()
        y = _max(name, v if norm_type > 0 else -v, dims, kernel_size, stride, 0, 1, ceil_mode, False)
        return y if norm_type > 0 else -y
    if norm_type == 0:
        raise ZeroDivisionError("norm_type: must not be 0, whose inverse is a power")
    if input.dtype == torch.float64:
        raise NotImplementedError(f"{name}: norm_type {norm_type} is not supported for fp64; use inf, -inf, or fp32")
    x = argument(input, True, "input")
    taps = math.prod(arguments.numbers("kernel_size", kernel_size, dims, 1))
    mean = _avg(name, pow(x.float(), norm_type), dims, kernel_size, stride, 0, ceil_mode, True, None)
    # torch multiplies sign and size of the mean, whose gradients leave out zeros.
    bits = mean.detach().resolve_neg()
    zero = bits == 0 if torch._C._functorch.is_batchedtensor(bits) else (bits.view(_INTEGERS[4]) << 1) == 0
    one = mean.new_ones(())
    total = elementwise("addcmul", mean.new_zeros(()), mean.masked_fill(zero, 1), one, s=float(taps))
    return pow(total, 1.0 / norm_type).masked_fill(zero, 0.0 if norm_type > 0 else math.inf).to(x.dtype)


def lp_pool2d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """The sum of the powers norm_type of every window to the power 1 / norm_type: torch.nn.functional.lp_pool2d.

    input: (N, C, H, W) or (C, H, W), fp32, bf16 or fp16, any strides; fp64 for norm_type inf and -inf, the largest and
    smallest magnitude. Powers are of x, not of its magnitude. A window that the input cuts off (ceil_mode) counts as if
    its mean filled it, as in torch. Result: input's dtype.

    Bits: SPEC.md, "Pooling": with m the `avg_pool2d` of RN(x^p), k the kernel's taps: pow(RN(m * k), RN(1 / p)), all in
    fp32, half types rounded once; +0 where m is 0. Differentiable any number of times; the gradient is +0 there.
    Raises as `avg_pool2d`; NotImplementedError for fp64, ZeroDivisionError for norm_type 0.
    """
    return _lp("lp_pool2d", input, 2, norm_type, kernel_size, stride, ceil_mode)


def lp_pool1d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """`lp_pool2d` of (N, C, L) or (C, L)."""
    return _lp("lp_pool1d", input, 1, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor, norm_type: float, kernel_size: Sizes, stride: Sizes | None = None, ceil_mode: bool = False
) -> Tensor:
    """`lp_pool2d` of (N, C, D, H, W) or (C, D, H, W)."""
    return _lp("lp_pool3d", input, 3, norm_type, kernel_size, stride, ceil_mode)
