"""The correctly rounded device functions: the CPU's against the definition, Triton's against the CPU's."""

import functools
import importlib

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from numba import njit

from bench.fit_functions import FITS, fit
from reference import unary as reference
from repkernels.coefficients import error, exponential, logarithm
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.kernels.launch import launch
from tests.support import assert_same_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODULES = {
    "exponential": ("exp", "exp2", "expm1", "tanh", "sigmoid", "silu", "softplus", "mish", "selu"),
    "logarithm": ("log", "log2", "log10", "log1p"),
    "root": ("sqrt", "rsqrt", "reciprocal"),
    "error": ("erf", "gelu", "gelu_tanh"),
    "trigonometric": ("sin", "cos"),
}
NAMES = [(module, name) for module, names in MODULES.items() for name in names]
each_function = pytest.mark.parametrize("module, name", NAMES, ids=[name for _, name in NAMES])

LISTED = {
    "exp2": exponential.EXP2_PATCHES,
    "silu": exponential.SILU_PATCHES,
    "softplus": exponential.SOFTPLUS_PATCHES,
    "mish": exponential.MISH_PATCHES,
    "log": logarithm.LOG_PATCHES,
    "log10": logarithm.LOG10_PATCHES,
    "log1p": logarithm.LOG1P_PATCHES,
    "gelu_tanh": error.GELU_TANH_PATCHES,
}
BORDERS = (88.72283, 88.72284, -87.33655, -103.27893, -103.97208, -104.1, 128.0, 127.99999, -126.0, -149.0, -150.0,
           9.010913, 17.32868, -17.32868, 38.23081, 10.0, 100.0, 1e10, 1e-10, 2.0**-126, 2.0**-149, -(2.0**-149),
           110.0, -108.5, 40.0, -0.99999994, 1.0000001, 0.99999994, 1.4142135)  # fmt: skip


def fp32(patterns):
    return np.array(patterns, np.int64).astype(np.uint32).view(np.float32)


def special():
    """Zeros, ones, infinities, NaN of several payloads, subnormals, the largest numbers."""
    positive = [0, 1, 2, 3, 0x7FFFFF, 0x800000, 0x800001, 0x3F800000, 0x7F7FFFFF, 0x7F800000]
    nan = [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x7FC00123]
    return fp32([sign | bits for sign in (0, 1 << 31) for bits in positive + nan])


def half_way():
    """Numbers of few digits: polynomials of low degree with few digits too, so near a number half-way between two."""
    short = [np.float32(m * 2.0**k) for m in range(1, 32, 2) for k in range(-28, -10)]
    return np.array([s * x for x in short for s in (1, -1)], np.float32)


def drawn(count, seed=0):
    """Of all bits, of the binades in which most functions have their curve, and around 1."""
    rng = np.random.default_rng(seed)
    ranges = ((0, 1 << 32), (0x35000000, 0x43000000), (0xB5000000, 0xC3000000), (0x3F000000, 0x40000000))
    return np.concatenate([fp32(rng.integers(first, last, count)) for first, last in ranges])


def listed(name):
    return fp32([bits for bits, _ in LISTED.get(name, ())])


def arguments(name, count):
    borders = np.array(BORDERS, np.float32)
    near = [np.nextafter(borders, np.float32(end)) for end in (np.inf, -np.inf)]
    return np.concatenate([special(), borders, *near, listed(name), half_way(), drawn(count)])


def function(package, module, name):
    return getattr(importlib.import_module(f"repkernels.{package}.rounded.{module}"), name)


@functools.cache
def applied(compiled):
    @njit(error_model="numpy")
    def apply(x, out):
        state = keep_subnormals()
        for i in range(x.size):
            out[i] = compiled(x[i])
        restore(state)

    return apply


def on_cpu(compiled, x, dtype=np.float32):
    out = np.empty(x.size, dtype)
    applied(compiled)(x, out)
    return torch.from_numpy(out)


@triton.jit
def apply_kernel(x, out, n, FUNCTION: tl.constexpr, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, FUNCTION(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


def on_triton(function, x):
    x = torch.from_numpy(x).to(DEVICE)
    out = torch.empty_like(x)
    size = triton.next_power_of_2(len(x))
    launch(apply_kernel, (1,), x, out, len(x), FUNCTION=function, SIZE=size)
    return out.cpu()


@each_function
def test_the_definition(module, name):
    x = arguments(name, 40)
    wanted = torch.from_numpy(reference.forward(name, x))
    assert_same_bits(on_cpu(function("cpu", module, name), x), wanted)


@each_function
def test_triton_is_the_cpus(module, name):
    x = arguments(name, 3000)
    assert len(x) <= 1 << 14
    found = on_triton(function("kernels", module, name), x)
    assert_same_bits(found, on_cpu(function("cpu", module, name), x))


@pytest.mark.parametrize("name", LISTED)
def test_no_patch_is_idle(name):
    """Binary64 alone is wrong at each listed input, so the lists belong to these very operations."""
    module = next(module for module, names in MODULES.items() if name in names)
    x = listed(name)
    found = on_cpu(function("cpu", module, f"wide_{name}"), x, np.float64).to(torch.float32).numpy()
    assert (found != reference.forward(name, x)).all()
    np.testing.assert_array_equal([value for _, value in LISTED[name]], reference.forward(name, x))


def test_coefficients_are_the_fitted_ones():
    coefficients, logarithm_of_error = fit(FITS["ATANH"])
    assert tuple(coefficients) == logarithm.ATANH
    assert logarithm_of_error < -58
