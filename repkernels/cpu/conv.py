"""Convolutions and their gradients on the CPU (SPEC.md, "Convolutions").

Tensors are 5-D, of any strides and not empty; every result is made in the computing format and rounded once more for
half types. `contract` is "ordered", "fixedNN" or "native", which is "ordered".
"""

from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.cpu import conv_pixels, conv_taps
from repkernels.cpu.compile import kernel
from repkernels.cpu.conv_gather import outputs, positions
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import numbers
from repkernels.cpu.memory import like, memory, widened
from repkernels.cpu.spread import spread
from repkernels.cpu.store import put_result

_DIGITS = {"fixed8": 1, "fixed16": 2, "fixed24": 3, "fixed32": 4}


def conv(x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str) -> None:
    """x (N, C, D, H, W), w (O, C/g, kd, kh, kw), bias (O,) -> out (N, O, D', H', W')."""
    weight = widened(w).reshape(c.groups, w.shape[0] // c.groups, w.shape[1], -1)
    tables = tuple(positions(*axis) for axis in _axes(c))
    wide = like(out)
    conv_pixels.contract(x, weight, bias, wide, tables, c.pointwise, None, _DIGITS.get(contract, 0))
    _round(out, wide)


def conv_input_gradient(g: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, c: Convolution, contract: str) -> None:
    """g (N, O, D', H', W'), w (O, C/g, kd, kh, kw), bias (C,) -> out (N, C, D, H, W)."""
    weight = widened(w).reshape(c.groups, w.shape[0] // c.groups, w.shape[1], -1).transpose(1, 2)
    tables = tuple(outputs(*axis) for axis in _axes(c))
    wide = like(out)
    conv_pixels.contract(g, weight, bias, wide, tables, c.pointwise, c.stride, _DIGITS.get(contract, 0))
    _round(out, wide)


def conv_weight_gradient(g: Tensor, x: Tensor, out: Tensor, c: Convolution, contract: str) -> None:
    """g (N, O, D', H', W'), x (N, C, D, H, W) -> out (O, C/g, kd, kh, kw)."""
    tables = tuple(positions(*axis) for axis in _axes(c))
    wide = like(out)
    conv_taps.contract(g, x, wide, tables, c.groups, _DIGITS.get(contract, 0))
    _round(out, wide)


def _axes(c: Convolution) -> list[tuple[int, ...]]:
    return list(zip(*c[:6], strict=True))


def _round(out: Tensor, wide: Tensor) -> None:
    """out = wide, rounded once, zeros as +0; nothing where they are one."""
    if out is not wide:
        n = out.numel()
        spread(_round_results, n, n, memory(wide), numbers(out.as_strided((n,), (1,))))


@kernel
def _round_results(start, stop, wide, out):
    state = keep_subnormals()
    for i in range(start, stop):
        put_result(out, i, wide[i])
    restore(state)
