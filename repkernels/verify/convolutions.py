"""What must change no bit of a convolution: the samples around a sample, memory formats, engines, threads.

Each check takes the contract, dtype and device, and returns None or the first difference.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.verify import inputs, invariance
from repkernels.verify.compare import difference
from repkernels.verify.invariance import Check


class Shape(NamedTuple):
    """A two-dimensional convolution, or a transposed one."""

    name: str
    sample: tuple[int, int, int]
    weight: tuple[int, int, int, int]
    options: dict[str, Any]
    transposed: bool = False


SHAPES = (
    Shape("3x3", (20, 9, 10), (24, 20, 3, 3), {"padding": 1}),
    Shape("3x3, stride 2, dilation 2", (20, 9, 10), (24, 20, 3, 3), {"stride": 2, "padding": 2, "dilation": 2}),
    Shape("1x1", (35, 7, 7), (24, 35, 1, 1), {}),
    Shape("1x1, stride 2", (35, 7, 7), (24, 35, 1, 1), {"stride": 2}),
    Shape("7x7 of 3 channels", (3, 16, 15), (17, 3, 7, 7), {"stride": 2, "padding": 3}),
    Shape("3 groups", (12, 8, 9), (18, 4, 3, 3), {"padding": 1, "groups": 3}),
    Shape("depthwise", (20, 9, 10), (20, 1, 3, 3), {"padding": 1, "groups": 20}),
    Shape("transposed", (20, 5, 6), (20, 12, 4, 4), {"stride": 2, "padding": 1}, transposed=True),
)
# Samples: on a GPU more rows than any tile has, whichever shape.
SAMPLES = {"cpu": 5, "cuda": 130}


def batches(contract: str, dtype: str, device: torch.device) -> str | None:
    """Result and input gradient of a sample are those it has alone and among fewer samples.

    And no weight gradient under `fixed` depends on the order of the samples.
    """
    count = SAMPLES[device.type]
    for shape in SHAPES:
        x, weight, grad = _operands(shape, dtype, device, count)
        whole = _results(shape, (x, weight, grad), contract)
        for part in (slice(0, 1), slice(count - 1, count), slice(1, 4), slice(0, count // 2)):
            found = _results(shape, (x[part], weight, grad[part]), contract)
            for name in ("result", "input gradient"):
                if message := difference(found[name], whole[name][part]):
                    return f"{shape.name}, samples {part.start} to {part.stop - 1} alone, {name}: {message}"
        if contract.startswith("fixed"):
            found = _results(shape, (x.flip(0), weight, grad.flip(0)), contract)
            if message := difference(found["weight gradient"], whole["weight gradient"]):
                return f"{shape.name}, samples in reverse, weight gradient: {message}"
    return None


def layouts(contract: str, dtype: str, device: torch.device) -> str | None:
    """channels_last, strided, misaligned and expanded operands give the bits of contiguous ones."""
    last = torch.channels_last
    for shape in SHAPES:
        x, weight, grad = _operands(shape, dtype, device, 3)
        for name, operands in (
            ("x channels_last", [x.contiguous(memory_format=last), weight, grad]),
            ("all channels_last", [v.contiguous(memory_format=last) for v in (x, weight, grad)]),
            ("strided", [_strided(v) for v in (x, weight, grad)]),
            ("transposed", [v.mT.contiguous().mT for v in (x, weight, grad)]),
            ("misaligned", [_misaligned(v) for v in (x, weight, grad)]),
            ("one sample expanded", [x[:1].expand_as(x), weight, grad[:1].expand_as(grad)]),
        ):
            found = _results(shape, operands, contract)
            wanted = _results(shape, [v.contiguous() for v in operands], contract)
            if message := _differing(found, wanted):
                return f"{shape.name}, {name}: {message}"
    return None


def threads(contract: str, dtype: str, device: torch.device) -> str | None:
    """Any number of CPU threads gives the bits of one thread."""
    before = torch.get_num_threads()
    try:
        for shape in SHAPES:
            operands = _operands(shape, dtype, device, 3)
            torch.set_num_threads(1)
            wanted = _results(shape, operands, contract)
            for count in (2, 3):
                torch.set_num_threads(count)
                if message := _differing(_results(shape, operands, contract), wanted):
                    return f"{shape.name}, {count} threads: {message}"
    finally:
        torch.set_num_threads(before)
    return None


def engines(contract: str, dtype: str, device: torch.device) -> str | None:
    """Every engine that the device can run gives the bits of the one it would choose."""
    for shape in SHAPES:
        operands = _operands(shape, dtype, device, SAMPLES[device.type])
        wanted = _results(shape, operands, contract)
        for name in invariance.other_engines(device):
            with invariance.use_engine(name):
                if message := _differing(_results(shape, operands, contract), wanted):
                    return f"{shape.name}, engine {name}: {message}"
    return None


def checks(contract: str, device: torch.device) -> Iterator[tuple[str, Check]]:
    """The checks that concern a contract on a device."""
    yield "batches", batches
    yield "layouts", layouts
    if device.type == "cpu":
        yield "threads", threads
    elif contract.startswith("fixed"):
        yield "engines", engines


def _convolution(shape: Shape, x: Tensor, weight: Tensor, contract: str) -> Tensor:
    function = functional.conv_transpose2d if shape.transposed else functional.conv2d
    return function(x, weight, **shape.options, contract=contract)


def _results(shape: Shape, operands: Sequence[Tensor], contract: str) -> dict[str, Tensor]:
    x, weight = (v.detach().requires_grad_() for v in operands[:2])
    out = _convolution(shape, x, weight, contract)
    grad_x, grad_weight = torch.autograd.grad(out, (x, weight), operands[2])
    return {"result": out.detach(), "input gradient": grad_x, "weight gradient": grad_weight}


def _operands(shape: Shape, dtype: str, device: torch.device, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight, and a gradient of the result."""
    x, weight = (
        inputs.operand("ordinary", dtype, size, 0, stream).to(device)
        for stream, size in enumerate(((count, *shape.sample), shape.weight))
    )
    function = torch.nn.functional.conv_transpose2d if shape.transposed else torch.nn.functional.conv2d
    size = function(x.to("meta"), weight.to("meta"), **shape.options).shape
    return x, weight, inputs.operand("ordinary", dtype, tuple(size), 0, 3).to(device)


def _strided(x: Tensor) -> Tensor:
    """x as every second element of each axis."""
    wide = x
    for axis in range(x.ndim):
        wide = wide.repeat_interleave(2, axis)
    return wide[(slice(None, None, 2),) * x.ndim]


def _misaligned(x: Tensor) -> Tensor:
    """x behind one element."""
    return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)


def _differing(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> str | None:
    for name, value in found.items():
        if message := difference(value, wanted[name]):
            return f"{name}: {message}"
    return None
