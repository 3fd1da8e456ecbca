"""int8 weights: bits against the reference on both backends, few rows and many, the layer, gradients, errors."""

import copy

import pytest
import torch

import repkernels
from reference import int8_linear as reference
from repkernels import nn
from repkernels.kernels.engine import use_engine
from repkernels.nn import functional
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

CASES = [("fixed16", torch.bfloat16), ("fixed8", torch.bfloat16), ("fixed24", torch.float32),
         ("fixed32", torch.float32)]  # fmt: skip


@each_backend
@pytest.mark.parametrize(("contract", "dtype"), CASES)
def test_kernels(backend, contract, dtype):
    """One row, few and more than a narrow tile holds; a channel of zeros; infinities that meet weights of 0 too."""
    weight = randn(21, 37, dtype=dtype, seed=1)
    weight[4] = 0
    q, scale = functional.quantize_int8(weight)
    bias = randn(21, dtype=dtype, seed=2)
    for rows, with_bias in ((1, False), (5, True), (40, True)):
        x = randn(rows, 37, dtype=dtype)
        if rows > 1:
            x[1, 3], x[2, 4], x[3] = float("inf"), float("nan"), 0.0
        out = torch.empty(rows, 21, dtype=dtype, device=backend.device)
        on = [t.to(backend.device) for t in (x, q, scale, bias)]
        S = int(contract[5:]) // 8
        backend.module("int8_linear").int8_linear(*on[:3], on[3] if with_bias else None, out, S)
        arrays = values(x), q.numpy().astype("int64"), values(scale), values(bias) if with_bias else None
        assert_same_bits(out.cpu(), tensor(reference.forward(*arrays, name(dtype), contract), dtype))


@each_backend
def test_window16_and_long_rows(backend):
    q = torch.full((16, 132000), 127, dtype=torch.int8, device=backend.device)
    x = torch.full((33, 132000), 1.0078125, device=backend.device)
    scale = torch.ones(16, device=backend.device)
    out = torch.empty(33, 16, device=backend.device)
    if backend.device == "cuda" or backend.package == "cpu":  # slow where it is interpreted
        backend.module("int8_linear").int8_linear(x, q, scale, None, out, 2)
        assert (out == 127 * 1.0078125 * 132000).all()
    with use_engine("window16"):
        x, q = randn(5, 48, device=backend.device), q[:, :48].contiguous()
        backend.module("int8_linear").int8_linear(x, q, scale, None, out[:5], 2)
    wanted = reference.forward(values(x), q.cpu().numpy().astype("int64"), values(scale), None, "float32", "fixed16")
    assert_same_bits(out[:5].cpu(), torch.from_numpy(wanted))


def test_quantization():
    tiny = torch.tensor([[3e-45, -1e-43, 0.0], [0.0, -0.0, 0.0], [1.0, -127.0, 63.5], [3.0, 2.0, 1.5]])
    for weight in (tiny, randn(9, 33), randn(9, 33, dtype=torch.float16)):
        q, scale = functional.quantize_int8(weight)
        wanted, wanted_scale = reference.quantize(values(weight))
        assert (q == torch.from_numpy(wanted)).all()
        assert_same_bits(scale, torch.from_numpy(wanted_scale))
    with pytest.raises(ValueError, match="weight: has elements that are not finite"):
        functional.quantize_int8(torch.tensor([[1.0, float("nan")]]))


@pytest.mark.parametrize("device", DEVICES)
def test_layer(device):
    """Rows alone, error, gradients, state, casts; a contract without digits is refused."""
    linear = torch.nn.Linear(48, 20, device=device)
    layer = nn.Int8Linear.from_linear(linear)
    x = randn(3, 5, 48, device=device).requires_grad_()
    y = layer(x)
    assert_same_bits(layer(x[1, 2]), y[1, 2])
    assert (y - linear(x)).abs().max() < 0.02
    g = randn(3, 5, 20, device=device, seed=1)
    grads = torch.autograd.grad(y, (x, layer.bias), g)
    wide = layer.weight.float() * layer.scale[:, None]
    assert_same_bits(grads[0], repkernels.matmul(g, wide, contract="fixed32"))
    torch.testing.assert_close(grads[1], g.sum((0, 1)))
    other = nn.Int8Linear(48, 20, device=device)
    other.load_state_dict(layer.state_dict())
    assert_same_bits(copy.deepcopy(other)(x), y)
    half = layer.to(torch.bfloat16)
    assert half.scale.dtype == torch.float32 and half.weight.dtype == torch.int8
    assert half(x.bfloat16()).dtype == torch.bfloat16
    half.contract = "ordered"
    with pytest.raises(ValueError, match="int8 weights need digits"):
        half(x.bfloat16())


def test_errors():
    x, q, scale = torch.ones(2, 3), torch.ones(4, 3, dtype=torch.int8), torch.ones(4)
    for arguments, error, message in (
        ((x, q.float(), scale), NotImplementedError, "weight: dtype torch.float32"),
        ((x[:, :2], q, scale), RuntimeError, "input and weight: shapes"),
        ((x, q, scale[:1]), RuntimeError, "scale: expected shape"),
        ((x, q, scale, scale.half()), RuntimeError, "bias: dtype torch.float16 differs"),
    ):
        with pytest.raises(error, match=message):
            functional.int8_linear(*arguments)
    assert functional.int8_linear(x[:0], q, scale).shape == (0, 4)
    assert (functional.int8_linear(x[:, :0], q[:, :0], scale, -0.0 * scale) == 0).all()
