"""Convolutions and their gradients under each contract beside cuDNN: layers of ResNet-50 and MobileNetV2."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from repkernels.convolution import Convolution
from repkernels.ops.backend import backend

from .registry import Run, Variant, Work, benchmark
from .tensors import normal


class Layer(NamedTuple):
    """n samples of c channels and h x h pixels to o channels, by k x k kernels."""

    n: int
    c: int
    h: int
    o: int
    k: int
    stride: int
    groups: int = 1

    @property
    def out(self) -> int:
        return (self.h + 2 * (self.k // 2) - self.k) // self.stride + 1

    @property
    def operations(self) -> int:
        return 2 * self.n * self.o * self.out**2 * self.c // self.groups * self.k**2


LAYERS = (
    Layer(64, 64, 56, 64, 3, 1),
    Layer(64, 128, 28, 128, 3, 1),
    Layer(64, 256, 14, 256, 3, 1),
    Layer(64, 512, 7, 512, 3, 1),
    Layer(64, 256, 56, 64, 1, 1),
    Layer(64, 1024, 14, 256, 1, 1),
    Layer(64, 3, 224, 64, 7, 2),
)
DEPTHWISE = (
    Layer(64, 32, 112, 32, 3, 1, 32),
    Layer(64, 96, 112, 96, 3, 2, 96),
    Layer(64, 144, 56, 144, 3, 1, 144),
    Layer(64, 384, 14, 384, 3, 1, 384),
    Layer(64, 960, 7, 960, 3, 1, 960),
)
CPU_LAYERS = (Layer(4, 16, 28, 16, 3, 1), Layer(4, 3, 56, 16, 7, 2))
KINDS = ("forward", "input gradient", "weight gradient")
CUDNN = "cuDNN"


class Operands(NamedTuple):
    """x, weight and gradient, 4-D."""

    layer: Layer
    x: Tensor
    w: Tensor
    g: Tensor


@benchmark("conv")
def conv(device: torch.device, quick: bool) -> Iterator[Work]:
    """fp32 with TF32 off and bf16 (channels_last for ours too), cuDNN in benchmark mode and in either layout."""
    if device.type == "cpu":
        for layer in CPU_LAYERS[:1] if quick else CPU_LAYERS:
            yield from _works(device, torch.float32, layer, ("ordered", "fixed24", "fixed32"))
        return
    for layer in LAYERS[::3] if quick else LAYERS:
        yield from _works(device, torch.float32, layer, ("ordered", "fixed16", "fixed24", "fixed32"))
        yield from _works(device, torch.bfloat16, layer, ("fixed16", "native"))
    for layer in DEPTHWISE[:1] if quick else DEPTHWISE:
        yield from _works(device, torch.float32, layer, ("fixed24", "fixed32"))


def _works(device: torch.device, dtype: torch.dtype, layer: Layer, contracts: tuple[str, ...]) -> Iterator[Work]:
    half = dtype == torch.bfloat16
    element = dtype.itemsize
    size_x, size_g = layer.n * layer.c * layer.h**2, layer.n * layer.o * layer.out**2
    name = "depthwise" if layer.groups > 1 else "conv"
    for kind in KINDS:
        theirs = [Variant(f"{CUDNN} {form}", partial(_torchs, form == "channels_last", kind)) for form in FORMS]
        yield Work(
            name=f"{name} {kind} {layer.n}x{layer.c}x{layer.h} to {layer.o}, {layer.k}x{layer.k}, "
            f"stride {layer.stride} {str(dtype).removeprefix('torch.')}",
            group=f"{name} {kind}",
            operands=partial(_operands, device, dtype, layer),
            variants=[*theirs, *(Variant(contract, partial(_ours, contract, half, kind)) for contract in contracts)],
            baseline=f"{CUDNN} {FORMS[0]}",
            operations=layer.operations,
            traffic=(size_x + size_g) * element,
            sizes=layer._asdict(),
        )


FORMS = ("contiguous", "channels_last")


def _operands(device: torch.device, dtype: torch.dtype, layer: Layer) -> Operands:
    n, c, h, o, k, _, groups = layer
    shapes = (n, c, h, h), (o, c // groups, k, k), (n, o, layer.out, layer.out)
    return Operands(layer, *(normal(device, dtype, *shape, seed=seed) for seed, shape in enumerate(shapes)))


def _laid(operands: Operands, last: bool) -> Operands:
    form = torch.channels_last if last else torch.contiguous_format
    layer, *tensors = operands
    return Operands(layer, *(t.contiguous(memory_format=form) for t in tensors))


def _torchs(last: bool, kind: str, operands: Operands) -> Run:
    layer, x, w, g = _laid(operands, last)
    stride, padding = (layer.stride,) * 2, (layer.k // 2,) * 2
    wanted = [kind == KINDS[1], kind == KINDS[2], False]

    def run(i: int) -> object:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False):
            if kind == KINDS[0]:
                return torch.nn.functional.conv2d(x, w, None, stride, padding, 1, layer.groups)
            return torch.ops.aten.convolution_backward(
                g, x, w, None, stride, padding, (1, 1), False, (0, 0), layer.groups, wanted
            )

    return run


def _ours(contract: str, last: bool, kind: str, operands: Operands) -> Run:
    layer, x, w, g = _laid(operands, last)
    x, w, g = (t.unsqueeze(2) for t in (x, w, g))
    h, k, s, p, o = layer.h, layer.k, layer.stride, layer.k // 2, layer.out
    c = Convolution((1, h, h), (1, k, k), (1, s, s), (0, p, p), (1, 1, 1), (1, o, o), layer.groups)
    kernels = backend("conv", x.device.type)
    along_channels = "ordered" if layer.groups > 1 else contract

    def run(i: int) -> Tensor:
        out = torch.empty_like((g, x, w)[KINDS.index(kind)])
        if kind == KINDS[0]:
            kernels.conv(x, w, None, out, c, along_channels)
        elif kind == KINDS[1]:
            kernels.conv_input_gradient(g, w, None, out, c, along_channels)
        else:
            kernels.conv_weight_gradient(g, x, out, c, contract)
        return out

    return run
