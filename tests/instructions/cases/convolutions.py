"""Convolutions: `ordered`, `fixed`, `native`, depthwise, and what meets elements that are not finite."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.kernels import conv_depthwise, conv_fixed, conv_native, conv_nonfinite, conv_ordered
from repkernels.kernels.configuration import Configuration, use_configuration
from repkernels.kernels.engine import use_engine
from tests.instructions.case import Case, everything, tensor
from tests.instructions.compiled import TARGETS

FP32, BF16 = torch.float32, torch.bfloat16


def _operands(
    dtype: torch.dtype, c: int, h: int, out: int, kernel: int, stride: int = 1, groups: int = 1, last: bool = False,
    odd: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Convolution]:  # fmt: skip
    """x, w, the result or its gradient, a bias that fits either, and the geometry, of 32 samples of h by h pixels."""
    padding = kernel // 2
    size = (h + 2 * padding - kernel) // stride + 1
    g = Convolution((1, h, h), (1, kernel, kernel), (1, stride, stride), (0, padding, padding), (1, 1, 1),
                    (1, size, size), groups)  # fmt: skip

    def images(channels: int, side: int) -> Tensor:
        if last:
            return tensor(32, 1, side, side, channels, dtype=dtype, odd=odd).permute(0, 4, 1, 2, 3)
        return tensor(32, channels, 1, side, side, dtype=dtype, odd=odd)

    w = tensor(out, c // groups, 1, kernel, kernel, dtype=dtype, odd=odd)
    return images(c, h), w, images(out, size), tensor(max(c, out), dtype=dtype, odd=odd), g


def _ordered(only: str, bias: bool, *shape: object, **options: object) -> None:
    x, w, g, b, c = _operands(*shape, **options)
    if "f" in only:
        conv_ordered.forward(x, w, b if bias else None, g, c)
    if "i" in only:
        conv_ordered.input_gradient(g, w, b if bias else None, x, c)
    if "w" in only:
        conv_ordered.weight_gradient(g, x, torch.empty_like(w), c)


def _forced(configuration: Configuration) -> None:
    with use_configuration(configuration):
        _ordered("f", False, FP32, 64, 56, 64, 3)


def _depthwise(only: str, contract: str, *shape: object, **options: object) -> None:
    x, w, g, b, c = _operands(*shape, **options)
    if "f" in only:
        conv_depthwise.forward(x, w, b, g, c)
    if "i" in only:
        conv_depthwise.input_gradient(g, w, None, x, c)
    if "w" in only:
        conv_depthwise.weight_gradient(g, x, torch.empty_like(w), c, contract)


def _fixed(only: str, S: int, *shape: object, engine: str = "int8", **options: object) -> None:
    x, w, g, b, c = _operands(*shape, **options)
    with use_engine(engine):
        if "f" in only:
            conv_fixed.forward(x, w, b, g, c, S)
        if "i" in only:
            conv_fixed.input_gradient(g, w, None, x, c, S)
        if "w" in only:
            conv_fixed.weight_gradient(g, x, torch.empty_like(w), c, S)


def _native(*shape: object, **options: object) -> None:
    x, w, g, b, c = _operands(*shape, **options)
    conv_native.forward(x, w, b, g, c)
    conv_native.input_gradient(g, w, None, x, c)
    conv_native.weight_gradient(g, x, torch.empty_like(w), c)


def _nonfinite(dtype: torch.dtype) -> None:
    x, w, g, b, c = _operands(dtype, 64, 56, 64, 3)
    flags = torch.empty(32 * 58 * 58, dtype=torch.int32)
    conv_nonfinite.fix_forward(x, w, b, g, c, flags, flags, (1, 57, 58))
    conv_nonfinite.fix_input_gradient(g, w, None, x, c, flags, flags, (1, 57, 58))
    conv_nonfinite.fix_weight_gradient(g, x, torch.empty_like(w), c, flags, flags[None])


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    # fp32 products of tiles have no one order on AMD's matrix cores, so `ordered` writes its chains out there.
    chains = frozenset() if TARGETS[target].hip else frozenset({"f32"})

    def ordered(what: str, only: str, *shape: object, bias: bool = False, **options: object) -> Case:
        return Case(f"conv ordered {what}", partial(_ordered, only, bias, *shape, **options), chains, chains)

    yield ordered("3x3", "fiw", FP32, 64, 56, 64, 3)
    yield ordered("bf16, odd, strided", "fi", BF16, 30, 27, 20, 3, stride=2, groups=2, bias=True, odd=True)
    yield Case("conv ordered binary64", partial(_ordered, "fw", True, torch.float64, 8, 28, 8, 3))
    # Kernels of many taps are long, and a few taps show all their instructions.
    taps = 3 if everything(target) else 2
    depthwise = partial(_depthwise, "fiw", "fixed24", FP32, 96, 56, 96, taps, groups=96)
    yield Case("conv depthwise", depthwise, frozenset({"f16"}))
    half = (BF16, 30, 29, 30, 5, 2, 30)
    yield Case("conv depthwise odd", partial(_depthwise, "iw", "ordered", *half, odd=True))
    int8, half_products = frozenset({"i8"}), frozenset({"f16"})
    yield Case("conv fixed 3x3", partial(_fixed, "fiw", 3, FP32, 64, 56, 64, 3), int8, int8)
    odd = partial(_fixed, "fw", 2, BF16, 30, 27, 20, 3, stride=2, groups=2, odd=True)
    yield Case("conv fixed bf16, odd, strided", odd, int8, int8)
    yield Case("conv fixed pointwise", partial(_fixed, "f", 4, FP32, 256, 28, 64, 1), int8, int8)
    window16 = partial(_fixed, "f", 2, BF16, 64, 28, 64, 3, engine="window16")
    yield Case("conv fixed window16", window16, half_products, half_products)
    yield Case("conv native", partial(_native, BF16, 64, 56, 64, 3), frozenset({"bf16"}), frozenset({"bf16"}))
    yield Case("conv non-finite", partial(_nonfinite, FP32), frozenset({"f16"}), frozenset({"f16"}))
    if everything(target):
        yield Case("conv fixed 7x7", partial(_fixed, "fw", 3, FP32, 3, 112, 64, 7, stride=2, last=True), int8, int8)
        yield ordered("channels_last", "fw", FP32, 64, 56, 64, 3, last=True)
        yield ordered("pointwise", "fiw", FP32, 256, 56, 64, 1)
        yield ordered("7x7", "f", FP32, 3, 224, 64, 7, stride=2)
        yield ordered("two chunks, strided", "i", FP32, 64, 14, 512, 3, stride=2)
        depthwise = partial(_depthwise, "fiw", "fixed16", BF16, 96, 56, 96, 3, groups=96, last=True)
        yield Case("conv depthwise channels_last", depthwise, frozenset({"f16"}))
        for c in conv_ordered.CONFIGURATIONS:
            yield Case(f"conv ordered {c.BM}x{c.BN}x{c.BK}", partial(_forced, c), chains, chains)
