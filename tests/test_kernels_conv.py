"""The Triton kernels of convolutions against the reference: on a GPU, or in the interpreter where there is none."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

import reference.conv as reference
import reference.matmul as reference_matmul
from repkernels.convolution import Convolution
from repkernels.kernels import conv, conv_depthwise, conv_nonfinite, conv_ordered, conv_weight_ordered
from repkernels.kernels.configuration import Configuration, use_configuration
from repkernels.kernels.engine import use_engine
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
    "pointwise, special": {
        "n": 2, "c": 4, "size": (1, 3, 5), "out": 6, "kernel": (1, 1, 1), "stride": (1, 1, 2), "groups": 2,
        "special": True,
    },
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


@pytest.mark.parametrize(
    ("shape", "last"),
    [
        *((shape, shape != "three axes") for shape in SHAPES if shape != "pointwise, special"),
        ("3x3", False),
        ("strides, special", False),
    ],
)
def test_ordered(shape: str, last: bool) -> None:
    Problem(**SHAPES[shape], last=last).check(conv_ordered, "ordered")


class Slices(Problem):
    """Operands that are channels of wider channels_last tensors, as gradients of torch.cat are; biases with gaps."""

    def placed(self, t: Tensor) -> Tensor:
        if t.ndim == 1:
            return super().placed(torch.stack([t, t + 1], 1))[:, 0]
        return super().placed(torch.cat([t, t], 1))[:, : t.shape[1]]

    def result(self, shape: Sequence[int]) -> Tensor:
        return super().placed(torch.full(tuple(shape), 7.0, dtype=self.dtype))


@pytest.mark.parametrize("shape", ["3x3", "pointwise"])
def test_slices(shape: str) -> None:
    for module, contract in ((conv_ordered, "ordered"), (DISPATCH, "fixed16")):
        Slices(**SHAPES[shape], last=True).check(module, contract)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_ordered_types(dtype: torch.dtype) -> None:
    Problem(**SHAPES["strides, special"], dtype=dtype).check(conv_ordered, "ordered")


def flags(v: Tensor) -> Tensor:
    """int32 (R,): odd where a row of v (R, K) has an element that is not finite."""
    return 6 + (~v.isfinite()).any(1).int()


@pytest.mark.parametrize(("shape", "last"), [("strides, special", True), ("pointwise, special", False)])
def test_nonfinite(shape: str, last: bool) -> None:
    """Added to results of the finite elements alone, these kernels give the results of all."""
    p = Problem(**SHAPES[shape], last=last)
    whole, finite = (p.x, p.w, p.grad), tuple(t.where(t.isfinite(), 0) for t in (p.x, p.w, p.grad))
    (x, w, g), c, N = map(p.placed, whole), p.c, len(p.x)
    pitch = tuple(size + extra for size, extra in zip(c.output, (0, 2, 1), strict=True))
    grouped = w.unflatten(0, (c.groups, -1))

    def of(t: Tensor) -> Tensor:
        # Positions of the pitch beyond the outputs stay unflagged.
        line = torch.zeros((c.groups, N, *pitch), dtype=torch.int32, device=DEVICE)
        vectors = t.unflatten(1, (c.groups, -1)).transpose(0, 1)
        if not c.pointwise:
            line[:] = flags(vectors.flatten(0, 1).flatten(1)).view(c.groups, N, 1, 1, 1)
        else:
            pixels = vectors[..., :: c.stride[0], :: c.stride[1], :: c.stride[2]] if t is x else vectors
            d, h, v = c.output
            line[:, :, :d, :h, :v] = flags(pixels.movedim(2, -1).flatten(0, -2)).view(c.groups, N, d, h, v)
        return line.view(c.groups, -1)

    def check(actual: Tensor, function: object, *operands: Tensor) -> None:
        assert_same_bits(actual.cpu(), tensor(function(*map(values, operands), p.g, "float32", "fixed16"), p.dtype))

    out = p.placed(tensor(reference.forward(*map(values, (*finite[:2], p.bias)), p.g, "float32", "fixed16"), p.dtype))
    conv_nonfinite.fix_forward(x, w, p.bias.to(DEVICE), out, c, of(x), flags(w.flatten(1)), pitch)
    check(out, reference.forward, *whole[:2], p.bias)
    before = reference.input_gradient(*map(values, (finite[2], finite[1], p.reverse)), p.g, "float32", "fixed16")
    out = p.placed(tensor(before, p.dtype))
    cols = flags(grouped.transpose(1, 2).flatten(0, 1).flatten(1))
    conv_nonfinite.fix_input_gradient(g, w, p.reverse.to(DEVICE), out, c, of(g), cols, pitch)
    check(out, reference.input_gradient, p.grad, p.w, p.reverse)
    out = tensor(reference.weight_gradient(*map(values, finite[::2][::-1]), p.g, "float32", "fixed16"), p.dtype)
    out = out.to(DEVICE)
    rows, cols = (flags(t.transpose(0, 1).flatten(1)).view(c.groups, -1) for t in (g, x))
    conv_nonfinite.fix_weight_gradient(g, x, out, c, rows, cols)
    check(out, reference.weight_gradient, p.grad, p.x)


DEPTHWISE = {
    "3x3": {
        "n": 2, "c": 3, "size": (1, 5, 7), "out": 3, "kernel": (1, 3, 3), "stride": (1, 2, 1), "padding": (0, 1, 2),
        "groups": 3, "special": True,
    },
    "more outputs": {
        "n": 1, "c": 2, "size": (3, 4, 5), "out": 4, "kernel": (2, 2, 1), "dilation": (1, 2, 1), "groups": 2,
        "spread": 9,
    },
    "words of 4": {
        "n": 1, "c": 2, "size": (1, 10, 8), "out": 2, "kernel": (1, 3, 3), "padding": (0, 1, 1), "groups": 2,
        "special": True,
    },
    "words, strided": {
        "n": 2, "c": 2, "size": (1, 6, 8), "out": 2, "kernel": (1, 3, 3), "stride": (1, 2, 2), "padding": (0, 1, 1),
        "groups": 2, "spread": 9,
    },
    "many taps": {
        "n": 1, "c": 2, "size": (1, 1, 18), "out": 2, "kernel": (1, 2, 17), "padding": (0, 1, 8), "groups": 2,
        "spread": 9,
    },
}  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", ["3x3", "more outputs"])
def test_depthwise(shape: str, last: bool) -> None:
    Problem(**DEPTHWISE[shape], last=last).check(conv_depthwise, "ordered")


@pytest.mark.parametrize("contract", ["fixed8", "fixed16", "fixed24", "fixed32"])
def test_depthwise_weight_gradient(contract: str) -> None:
    Problem(**DEPTHWISE["3x3"]).check(conv_depthwise, contract, "w")
    Problem(**DEPTHWISE["more outputs"], last=True, dtype=torch.bfloat16).check(conv_depthwise, contract, "w")


@pytest.mark.parametrize("shape", ["words of 4", "words, strided", "many taps"])
def test_depthwise_words(shape: str) -> None:
    """What is aligned is read and stored in words; of many taps, a kernel sums some at a time."""
    Problem(**DEPTHWISE[shape]).check(conv_depthwise, "fixed24")


def test_depthwise_binary64() -> None:
    Problem(**DEPTHWISE["3x3"], dtype=torch.float64).check(conv_depthwise, "ordered")


@pytest.fixture
def chunks_of_32(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides, so that few terms make several chunks, and memory for the chains of two."""
    for module in (reference_matmul, conv_ordered, conv_weight_ordered, conv_depthwise):
        monkeypatch.setattr(module, "CHUNK", 32)
    monkeypatch.setattr(conv_weight_ordered, "WORKSPACE", 0)


@pytest.mark.usefixtures("chunks_of_32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_chunks(dtype: torch.dtype) -> None:
    """Borders between chunks lie within the taps of a channel, and beside those of a phase."""
    shape = {
        "n": 3,
        "c": 7,
        "size": (1, 5, 8),
        "out": 5,
        "kernel": (1, 3, 4),
        "stride": (1, 1, 2),
        "padding": (0, 1, 2),
    }
    Problem(**shape, dtype=dtype).check(conv_ordered, "ordered")
    Problem(**DEPTHWISE["3x3"] | {"n": 6}, dtype=dtype).check(conv_depthwise, "ordered", "w")


@pytest.mark.parametrize("configuration", (*conv_ordered.CONFIGURATIONS[::2], *conv_weight_ordered.CONFIGURATIONS[::2]))
def test_every_configuration(configuration: Configuration) -> None:
    with use_configuration(configuration):
        Problem(**SHAPES["3x3"]).check(conv_ordered, "ordered", "fw")


DISPATCH = SimpleNamespace(
    forward=conv.conv, input_gradient=conv.conv_input_gradient, weight_gradient=conv.conv_weight_gradient
)
SMALL = Configuration(32, 32, 32, 4, 2)


@pytest.mark.parametrize(
    ("shape", "contract", "last"),
    [
        ("3x3", "fixed24", False),
        ("strides, special", "fixed16", True),
        ("stride past the kernel", "fixed32", False),
        ("pointwise", "fixed16", True),
        ("pointwise, special", "fixed24", False),
        ("three axes", "fixed8", True),
    ],
)
def test_fixed(shape: str, contract: str, last: bool) -> None:
    Problem(**SHAPES[shape], last=last).check(DISPATCH, contract)


def test_fixed_of_many_channels() -> None:
    """More than one block of channels, and more positions than one block: splits, windows, tails."""
    problem = Problem(2, 70, (1, 5, 9), 33, (1, 3, 3), (1, 2, 1), (0, 1, 0), dtype=torch.bfloat16, spread=6)
    with use_configuration(SMALL):
        problem.check(DISPATCH, "fixed16")


def test_fixed_on_floating_point_tensor_cores() -> None:
    with use_engine("window16"):
        Problem(**SHAPES["3x3"]).check(DISPATCH, "fixed24")


@pytest.mark.parametrize("shape", ["3x3", "strides, special"])
def test_native(shape: str) -> None:
    """Near the real values, and a sample's result and gradient do not know of the batch."""
    problem = Problem(**{**SHAPES[shape], "special": False}, dtype=torch.bfloat16)
    x, w, grad, bias, reverse = map(problem.placed, (problem.x, problem.w, problem.grad, problem.bias, problem.reverse))
    out, back, weight = problem.result(grad.shape), problem.result(x.shape), torch.empty_like(w)
    conv.conv(x, w, bias, out, problem.c, "native")
    conv.conv_input_gradient(grad, w, reverse, back, problem.c, "native")
    conv.conv_weight_gradient(grad, x, weight, problem.c, "native")
    exact = [values(t).astype(np.float64) for t in (x, w, grad, bias, reverse)]
    for result, expected in (
        (out, reference.forward(exact[0], exact[1], exact[3], problem.g, "float64", "ordered")),
        (back, reference.input_gradient(exact[2], exact[1], exact[4], problem.g, "float64", "ordered")),
        (weight, reference.weight_gradient(exact[2], exact[0], problem.g, "float64", "ordered")),
    ):
        error = np.abs(values(result.cpu()).astype(np.float64) - expected)
        assert error.max() < 2**-7 * np.abs(expected).max()
    alone, alone_back = problem.result(grad[:1].shape), problem.result(x[:1].shape)
    conv.conv(x[1:], w, bias, alone, problem.c, "native")
    conv.conv_input_gradient(grad[1:], w, reverse, alone_back, problem.c, "native")
    assert_same_bits(alone.cpu(), out[1:].cpu())
    assert_same_bits(alone_back.cpu(), back[1:].cpu())
