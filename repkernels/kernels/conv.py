"""Convolutions and their gradients on a GPU: one function for every contract (SPEC.md, "Convolutions").

Depthwise convolutions and their input gradients are `ordered` under every contract.
"""

from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels import conv_depthwise, conv_fixed, conv_native, conv_ordered, conv_weight_ordered
from repkernels.kernels.conv_nonfinite import fix_forward, fix_input_gradient, fix_weight_gradient
from repkernels.kernels.matmul import matmul_into


def conv(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str) -> None:
    """x (N, C, D, H, W) with w (O, C / groups, kd, kh, kw) + bias (O,) into out (N, O, D', H', W'), any strides."""
    if conv_depthwise.is_depthwise(w, c):
        conv_depthwise.forward(x, w, bias, out, c)
    elif contract == "ordered":
        conv_ordered.forward(x, w, bias, out, c)
    elif _is_product(x, out, c):
        matmul_into(_pixels(x), w.reshape(len(w), -1).T, bias, _pixels(out), contract)
    elif contract == "native":
        conv_native.forward(x, w, bias, out, c)
    else:
        flags = conv_fixed.forward(x, w, bias, out, c, _digits(contract))
        fix_forward(x, w, bias, out, c, *flags)


def conv_input_gradient(g: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str) -> None:
    """g (N, O, D', H', W') with w (O, C / groups, kd, kh, kw) + bias (C,) into out (N, C, D, H, W), any strides."""
    if conv_depthwise.is_depthwise(w, c):
        conv_depthwise.input_gradient(g, w, bias, out, c)
    elif contract == "ordered":
        conv_ordered.input_gradient(g, w, bias, out, c)
    elif _is_product(g, out, c):
        matmul_into(_pixels(g), w.reshape(len(w), -1), bias, _pixels(out), contract)
    elif contract == "native":
        conv_native.input_gradient(g, w, bias, out, c)
    else:
        flags = conv_fixed.input_gradient(g, w, bias, out, c, _digits(contract))
        fix_input_gradient(g, w, bias, out, c, *flags)


def conv_weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, contract: str) -> None:
    """g (N, O, D', H', W') with x (N, C, D, H, W) into out (O, C / groups, kd, kh, kw), any strides."""
    if conv_depthwise.is_depthwise(out, c) and contract != "native":
        conv_depthwise.weight_gradient(g, x, out, c, contract)
    elif contract == "ordered":
        conv_weight_ordered.weight_gradient(g, x, out, c)
    elif contract == "native":
        conv_native.weight_gradient(g, x, out, c)
    else:
        flags = conv_fixed.weight_gradient(g, x, out, c, _digits(contract))
        fix_weight_gradient(g, x, out, c, *flags[:2])


def _is_product(x: Tensor, out: Tensor, c: Convolution) -> bool:
    """Whether pixels are, as they lie, the rows of a matrix product, which the rule makes of such a convolution."""
    rows = all(t.permute(0, 2, 3, 4, 1).is_contiguous() for t in (x, out))
    return rows and c.pointwise and c.stride == (1, 1, 1) and c.groups == 1 and c.size == c.output


def _pixels(t: Tensor) -> Tensor:
    return t.permute(0, 2, 3, 4, 1).view(-1, t.shape[1])


def _digits(contract: str) -> int:
    return int(contract[5:]) // 8
