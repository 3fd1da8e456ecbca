"""pow(x, y) correctly rounded: the CPU's against the definition, Triton's against the CPU's."""

import functools

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from mpmath import factorial, ln, workprec
from numba import njit

from reference import power as reference
from repkernels.coefficients import power as coefficients
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.rounded import power as cpu
from repkernels.kernels.launch import launch
from repkernels.kernels.rounded import power as kernels
from tests.support import assert_same_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SPECIAL = np.array(
    [0, 1e-45, 2.0**-126, 0.5, 1 - 2.0**-24, 1, 1 + 2.0**-23, 1.5, 2, 3, 2.0**23 + 1, 2.0**24, 2.0**24 + 2, 3.4e38,
     np.inf], np.float32,
)  # fmt: skip


def special():
    values = np.concatenate([SPECIAL, -SPECIAL, np.array([np.nan], np.float32)])
    return tuple(v.ravel() for v in np.meshgrid(values, values))


@functools.cache
def exact(count=400):
    """m^k * 2^(ek), of 24 or 25 bits, from x = m^(2^j) * 2^(e 2^j): half-way or exact, some of them subnormal."""
    rng = np.random.default_rng(0)
    found = []
    while len(found) < count:
        j, k = (int(v) for v in rng.integers((0, 1), (4, 16)))
        m = int(rng.uniform(2 ** (23 / k), 2 ** (25 / k))) | 1
        e = int(rng.choice([-149, -150, -174, rng.integers(-160, 100)])) // k
        if m**k < 2**25 and m ** (2**j) < 2**24 and -149 <= e * 2**j < 100:
            found.append((float(m ** (2**j)) * 2.0 ** (e * 2**j), k / 2**j))
    return tuple(np.array(column, np.float32) for column in zip(*found, strict=True))


def drawn(count, seed=1):
    """Any bits; results of every size; results near 1; powers of two, of which some are half the least subnormal."""
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 1 << 32, (2, count)).astype(np.uint32).view(np.float32)
    x = np.exp(rng.uniform(-80, 80, count)).astype(np.float32)
    y = rng.uniform(-160, 140, count) / np.log2(x.astype(np.float64))
    near = (1 + rng.integers(-500, 500, count) * 2.0**-23).astype(np.float32)
    two = np.float32(2.0) ** rng.integers(-149, 128, count).astype(np.float32)
    halving = -150 / np.maximum(np.abs(np.log2(two)), 1) * np.sign(np.log2(two))
    parts = [any_bits, (x, y), (near, rng.standard_normal(count) * 1e5), (two, halving), (two, y)]
    with np.errstate(all="ignore"):
        return tuple(np.concatenate([p[i] for p in parts]).astype(np.float32) for i in range(2))


@njit(error_model="numpy")
def _pow(x, y, out):
    state = keep_subnormals()
    for i in range(x.size):
        out[i] = cpu.pow(x[i], y[i])
    restore(state)


def on_cpu(x, y):
    out = np.empty(x.size, np.float32)
    _pow(x, y, out)
    return torch.from_numpy(out)


@triton.jit
def pow_kernel(x, y, out, n, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    mask = i < n
    tl.store(out + i, kernels.pow(tl.load(x + i, mask=mask, other=1.0), tl.load(y + i, mask=mask, other=1.0)), mask)


@pytest.mark.parametrize("pairs", [special, exact, lambda: drawn(250)], ids=["special", "exact", "drawn"])
def test_the_definition(pairs):
    x, y = pairs()
    assert_same_bits(on_cpu(x, y), torch.from_numpy(reference.forward(x, y)))


def test_special_values_are_torchs():
    x, y = (torch.from_numpy(v) for v in special())
    ours, theirs = on_cpu(x.numpy(), y.numpy()), torch.pow(x.double(), y.double()).float()
    assert torch.equal(ours.isnan(), theirs.isnan())
    assert torch.equal(ours.signbit() & ~ours.isnan(), theirs.signbit() & ~theirs.isnan())
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0, equal_nan=True)


def test_half_way_cases_occur():
    mantissas = [reference._exact(float(a), float(b))[0] for a, b in zip(*exact(), strict=True)]
    assert sum(m.bit_length() == 25 and m % 2 for m in mantissas) > 20


def test_triton_is_the_cpus():
    x, y = (np.concatenate(v) for v in zip(special(), exact(), drawn(1000, 2), strict=True))
    left, right = (torch.from_numpy(v).to(DEVICE) for v in (x, y))
    out = torch.empty_like(left)
    launch(pow_kernel, (1,), left, right, out, len(x), SIZE=1 << 13)
    assert len(x) <= 1 << 13
    assert_same_bits(out.cpu(), on_cpu(x, y))


def test_coefficients_are_the_series():
    with workprec(300):
        log2 = [2 / ((2 * k + 1) * ln(2)) for k in range(20)]
        exp2 = [ln(2) ** k / factorial(k) for k in range(23)]
        for exact_, head, tail in (
            (log2, coefficients.LOG2_HEAD, coefficients.LOG2_TAIL),
            (exp2, coefficients.EXP2_HEAD, coefficients.EXP2_TAIL),
        ):
            words = [(float(c), float(c - float(c))) for c in exact_]
            assert tuple(words[len(head) - 1 :: -1]) == head
            assert tuple(high for high, _ in words[: len(head) - 1 : -1]) == tail
