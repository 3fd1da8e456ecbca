"""Gated activations and the soft cap: bits against the reference and the unfused operations, gradients, errors."""

import pytest
import torch

from reference import gated as reference
from repkernels.nn import functional
from repkernels.ops import plain
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values
from tests.test_unary import arguments, on

NAMES = ("swiglu", "geglu", "geglu_tanh")


@each_backend
@pytest.mark.parametrize("function", NAMES)
def test_kernels(backend, function):
    """Arguments of every size; each type rounds the activation, or g * up, by itself."""
    kinds = (torch.float32, torch.bfloat16, torch.float16) if function == "swiglu" else (torch.bfloat16,)
    for dtype in kinds:
        gate, up, g = arguments(dtype), arguments(dtype, seed=2).flip(0), randn(55, dtype=dtype, seed=1)
        wanted = reference.forward(function, values(gate), values(up), name(dtype))
        assert_same_bits(on(backend, function, gate, up), tensor(wanted, dtype))
        wanted, _ = reference.gradients(function, values(g), values(gate), values(up), name(dtype))
        assert_same_bits(on(backend, f"{function}_gate_gradient", g, gate, up), tensor(wanted, dtype))


@each_backend
def test_softcap_kernels(backend):
    for dtype in (torch.float32, torch.bfloat16):
        x, g = arguments(dtype), randn(55, dtype=dtype, seed=1)
        wanted = reference.softcap(values(x), 30.0, name(dtype))
        assert_same_bits(on(backend, "softcap", x, s=30.0), tensor(wanted, dtype))
        wanted = reference.softcap_gradient(values(g), values(x), 30.0, name(dtype))
        assert_same_bits(on(backend, "softcap_gradient", g, x, s=30.0), tensor(wanted, dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_fusion_changes_no_bit(device):
    """The activation, stored, and the product: result and gradients, packed or not."""
    packed = randn(5, 14, dtype=torch.bfloat16, device=device).requires_grad_()
    g = randn(5, 7, dtype=torch.bfloat16, device=device, seed=1)
    fused = functional.swiglu(packed)
    gate, up = packed.chunk(2, -1)
    assert_same_bits(functional.swiglu(gate, up), fused)
    unfused = plain.multiply(functional.silu(gate), up)
    assert_same_bits(fused, unfused)
    found, wanted = (torch.autograd.grad(y, packed, g)[0] for y in (fused, unfused))
    assert_same_bits(found, wanted)
    assert_same_bits(
        functional.geglu(packed[2:3], approximate="tanh"), functional.geglu(packed, approximate="tanh")[2:3]
    )


def test_second_derivatives():
    x, u = (randn(6, seed=s).requires_grad_() for s in (0, 1))
    silu = torch.nn.functional.silu
    cases = (
        ((x, u), lambda: functional.swiglu(x, u), lambda: silu(x) * u),
        ((x,), lambda: functional.softcap(x, 2.0), lambda: torch.tanh(x / 2) * 2),
    )
    for operands, *both in cases:
        found = []
        for function in both:
            grads = torch.autograd.grad(function().sum(), operands, create_graph=True)
            second = torch.autograd.grad(sum((v * v).sum() for v in grads), operands)
            found.append([*grads, *second])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_errors():
    x = torch.ones(2, 3)
    for call, error, message in (
        (lambda: functional.swiglu(x), RuntimeError, "gate: without up its last size must be even"),
        (lambda: functional.swiglu(x, x[:1]), RuntimeError, "up: expected gate's shape"),
        (lambda: functional.swiglu(x, x.half()), RuntimeError, "up: dtype torch.float16 differs"),
        (lambda: functional.swiglu(x.double(), x), NotImplementedError, "gate: dtype torch.float64"),
        (lambda: functional.geglu(x, x, approximate="erf"), RuntimeError, "approximate: expected 'none' or 'tanh'"),
        (lambda: functional.softcap(x, 0.0), ValueError, "cap: expected a positive number"),
    ):
        with pytest.raises(error, match=message):
            call()
