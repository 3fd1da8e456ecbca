"""Convolutions and their gradients on a GPU: one function for every contract (SPEC.md, "Convolutions").

Depthwise convolutions and their input gradients are `ordered` under every contract.
"""

from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels import conv_depthwise, conv_fixed, conv_native, conv_ordered, conv_weight_ordered
from repkernels.kernels.conv_nonfinite import fix_forward, fix_input_gradient, fix_weight_gradient


def conv(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str) -> None:
    """x (N, C, D, H, W) with w (O, C / groups, kd, kh, kw) + bias (O,) into out (N, O, D', H', W'), any strides."""
    if conv_depthwise.is_depthwise(w, c):
        conv_depthwise.forward(x, w, bias, out, c)
    elif contract == "ordered":
        conv_ordered.forward(x, w, bias, out, c)
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


def _digits(contract: str) -> int:
    return int(contract[5:]) // 8
