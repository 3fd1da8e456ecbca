"""The Triton kernels of convolutions against the reference: on a GPU, or in the interpreter where there is none."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

import reference.conv as reference
from repkernels.convolution import Convolution
from repkernels.kernels import conv_ordered
from tests.support import assert_same_bits, name, tensor, values

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Problem:
    """A convolution of 5-D operands: normal numbers, some of them special."""

    def __init__(
        self, n: int, c: int, size: Sequence[int], out: int, kernel: Sequence[int], stride: Sequence[int] = (1, 1, 1),
        padding: Sequence[int] = (0, 0, 0), dilation: Sequence[int] = (1, 1, 1), groups: int = 1,
        dtype: torch.dtype = torch.float32, last: bool = False, special: bool = False, spread: int = 0,
    ) -> None:  # fmt: skip
        self.g = reference.geometry(size, kernel, stride, padding, dilation, groups)
        self.c = Convolution(*(tuple(getattr(self.g, field)) for field in Convolution._fields[:6]), groups)
        rng = np.random.default_rng([n, c, out, *size])
        self.dtype = dtype
        shapes = ((n, c, *size), (out, c // groups, *kernel), (n, out, *self.c.output))
        self.x, self.w, self.grad = (self._operand(rng, shape, spread) for shape in shapes)
        self.bias, self.reverse = (self._operand(rng, (k,), 0) for k in (out, c))
        if special:
            inf, nan = np.inf, np.nan
            self.x[0, 0, 0, 0, 0], self.w[0, -1, 0, 0, 0], self.w[out - 1, 0, -1, -1, -1] = inf, -inf, nan
            self.grad[0, 0, -1, -1, -1], self.grad[-1, -1, 0, 0, 0] = -inf, nan
            self.w[0, 0, 0, 0, 0] = 0
        self.last = last

    def _operand(self, rng: np.random.Generator, shape: tuple[int, ...], spread: int) -> Tensor:
        v = rng.standard_normal(shape) * 2.0 ** rng.integers(-spread, spread + 1, shape)
        return torch.from_numpy(v).to(self.dtype)

    def placed(self, t: Tensor) -> Tensor:
        t = t.to(DEVICE)
        return t.contiguous(memory_format=torch.channels_last_3d) if self.last and t.ndim == 5 else t

    def result(self, shape: Sequence[int]) -> Tensor:
        return self.placed(torch.full(tuple(shape), 7.0, dtype=self.dtype))

    def check(self, module: object, contract: str, only: str = "fiw") -> None:
        """Bits of forward, input gradient and weight gradient of a module against the reference."""
        x, w, grad, bias, reverse = map(self.placed, (self.x, self.w, self.grad, self.bias, self.reverse))
        kind = name(self.dtype)
        if "f" in only:
            out = self.result(self.grad.shape)
            module.forward(x, w, bias, out, self.c, contract)
            expected = reference.forward(*map(values, (x, w, bias)), self.g, kind, contract)
            assert_same_bits(out.cpu(), tensor(expected, self.dtype))
        if "i" in only:
            out = self.result(self.x.shape)
            module.input_gradient(grad, w, reverse, out, self.c, contract)
            expected = reference.input_gradient(*map(values, (grad, w, reverse)), self.g, kind, contract)
            assert_same_bits(out.cpu(), tensor(expected, self.dtype))
        if "w" in only:
            out = torch.full(tuple(self.w.shape), 7.0, dtype=self.dtype, device=DEVICE)
            module.weight_gradient(grad, x, out, self.c, contract)
            expected = reference.weight_gradient(*map(values, (grad, x)), self.g, kind, contract)
            assert_same_bits(out.cpu(), tensor(expected, self.dtype))


SHAPES = {
    "3x3": {"n": 2, "c": 3, "size": (1, 6, 5), "out": 5, "kernel": (1, 3, 3), "padding": (0, 1, 1)},
    "strides, special": {
        "n": 2, "c": 4, "size": (1, 9, 7), "out": 6, "kernel": (1, 3, 4), "stride": (1, 2, 3), "padding": (0, 1, 2),
        "dilation": (1, 1, 2), "groups": 2, "special": True,
    },
    "stride past the kernel": {"n": 1, "c": 2, "size": (1, 7, 6), "out": 3, "kernel": (1, 1, 2), "stride": (1, 2, 3)},
    "pointwise": {"n": 2, "c": 3, "size": (1, 2, 4), "out": 6, "kernel": (1, 1, 1)},
    "three axes": {
        "n": 1, "c": 2, "size": (4, 3, 5), "out": 2, "kernel": (2, 3, 2), "stride": (2, 1, 1), "padding": (1, 2, 0),
    },
    "dilation shares the stride": {
        "n": 1, "c": 1, "size": (1, 1, 9), "out": 2, "kernel": (1, 1, 3), "stride": (1, 1, 4), "dilation": (1, 1, 2),
        "padding": (0, 0, 3),
    },
    "kernel of many bits": {
        "n": 1, "c": 1, "size": (1, 3, 20), "out": 2, "kernel": (1, 1, 31), "padding": (0, 0, 15), "special": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", SHAPES)
def test_ordered(shape: str, last: bool) -> None:
    Problem(**SHAPES[shape], last=last).check(conv_ordered, "ordered")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_ordered_types(dtype: torch.dtype) -> None:
    Problem(**SHAPES["strides, special"], dtype=dtype).check(conv_ordered, "ordered")
