"""The half types' own sequences, all 65536 inputs of each: RN16(RN32(f(x))), and Triton's results are the CPU's."""

import functools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from numba import njit

from reference import unary
from repkernels.coefficients import half as coefficients
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.rounded import half as cpu
from repkernels.kernels.launch import launch
from repkernels.kernels.rounded import half as kernels
from tests.support import assert_same_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
FUNCTIONS = ("exp", "tanh", "sigmoid", "silu", "gelu", "gelu_tanh")
SEQUENCES = [f"{function}_{form}" for function in FUNCTIONS for form in DTYPES]
# Far above the relative errors of `approximate`.
ERROR = 2.0**-40


def inputs(form):
    return torch.arange(-32768, 32768).to(torch.int16).view(DTYPES[form])


def approximate(function, x):
    """f(x) in binary64."""
    if function in ("exp", "tanh", "sigmoid"):
        return getattr(torch, function)(x)
    if function == "gelu":
        return x * torch.special.erfc(x * -(0.5**0.5)) / 2
    z = x if function == "silu" else (8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)
    return x / (1 + torch.exp(-z))


@functools.cache
def defined(function, form):
    """RN16(RN32(f(x))) by binary64, and by mpmath where its errors might matter."""
    x = inputs(form)
    near = approximate(function, x.double())
    low, high = (v.float().to(DTYPES[form]) for v in (near * (1 - ERROR), near * (1 + ERROR)))
    unsure = (low.view(torch.int16) != high.view(torch.int16)) | near.isnan() | (near == 0)
    unsure &= ~x.isnan()
    exact = unary.forward(function, x.float().numpy()[unsure.numpy()])
    return low.masked_scatter(unsure, torch.from_numpy(exact).to(DTYPES[form]))


@functools.cache
def on_cpu(name):
    compiled = getattr(cpu, name)

    @njit
    def apply(x, out):
        state = keep_subnormals()
        for i in range(x.size):
            out[i] = compiled(x[i])
        restore(state)

    form = name[-4:]
    x = inputs(form).float().numpy()
    out = np.empty_like(x)
    apply(x, out)
    return torch.from_numpy(out)


@triton.jit
def apply_kernel(x, out, FUNCTION: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, FUNCTION(tl.load(x + i).to(tl.float32)))


@pytest.mark.parametrize("name", SEQUENCES)
def test_all_inputs(name):
    function, form = name[:-5], name[-4:]
    assert_same_bits(on_cpu(name).to(DTYPES[form]), defined(function, form))


@pytest.mark.parametrize("name", SEQUENCES)
def test_triton_is_the_cpus(name):
    x = inputs(name[-4:])
    out = torch.empty(x.shape, device=DEVICE)
    launch(apply_kernel, (1,), x.to(DEVICE), out, FUNCTION=getattr(kernels, name), SIZE=len(x))
    assert_same_bits(out.cpu(), on_cpu(name))


@pytest.mark.parametrize("name", [name for name in SEQUENCES if hasattr(coefficients, f"{name.upper()}_PATCHES")])
def test_patches_are_halves_and_the_defined_results(name):
    function, form = name[:-5], name[-4:]
    patterns, found = zip(*getattr(coefficients, f"{name.upper()}_PATCHES"), strict=True)
    x = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    assert (x.to(DTYPES[form]).float() == x).all()
    wanted = torch.from_numpy(unary.forward(function, x.numpy())).to(DTYPES[form])
    assert_same_bits(torch.tensor(found).to(DTYPES[form]), wanted)
