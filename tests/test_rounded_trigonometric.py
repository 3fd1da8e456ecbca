"""sincospi: an eighth of a turn whole against the definition, the others by symmetry; hard inputs of sin and cos.

Triton's results are the CPU's. test_rounded.py has other inputs of sin and cos.
"""

import mpmath
import numpy as np
import torch
import triton
import triton.language as tl
from numba import njit

from reference import unary
from repkernels.coefficients.trigonometric import COS_PATCHES
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.rounded.trigonometric import cos, sin, sincospi, wide_sine
from repkernels.kernels.launch import launch
from repkernels.kernels.rounded import trigonometric as kernels
from tests.support import assert_same_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEP = np.float32(2.0**-23)
EIGHTH = 1 << 21
# Relative errors of NumPy's binary64 sine and cosine, with a margin, and of an angle of few binary64 digits.
LIBRARY_ERROR = 2.0**-46


@njit
def _apply(x, s, c):
    state = keep_subnormals()
    for i in range(x.size):
        s[i], c[i] = sincospi(x[i])
    restore(state)


def on_cpu(x):
    s, c = np.empty_like(x), np.empty_like(x)
    _apply(x, s, c)
    return s, c


@triton.jit
def apply_kernel(x, s, c, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    sine, cosine = kernels.sincospi(tl.load(x + i))
    tl.store(s + i, sine)
    tl.store(c + i, cosine)


def exact(function, k):
    """RN32 of `function` of pi * k / 2^23, not 0."""
    with mpmath.workprec(120):
        value = function(mpmath.pi * int(k) / 2**23)
    with mpmath.workprec(24):
        return np.float32(float(+value))


def defined(k, near, function):
    """RN32 of the binary64 numbers `near`, but where their error could matter RN32 of the real number."""
    wanted = near.astype(np.float32)
    unsure = (near * (1 - LIBRARY_ERROR)).astype(np.float32) != (near * (1 + LIBRARY_ERROR)).astype(np.float32)
    assert unsure.sum() < 100
    wanted[unsure] = [exact(function, v) for v in k[unsure]]
    return wanted


def test_an_eighth_of_a_turn():
    k = np.arange(1, EIGHTH + 1)
    s, c = on_cpu(k.astype(np.float32) * STEP)
    angle = k * (np.pi / 2**23)
    np.testing.assert_array_equal(s, defined(k, np.sin(angle), mpmath.sin))
    np.testing.assert_array_equal(c, defined(k, np.cos(angle), mpmath.cos))


def test_the_whole_turn_by_symmetry():
    """Every 13th argument: from the sine and cosine of its distance to the nearest quarter."""
    k = np.arange(0, 1 << 24, 13)
    s, c = on_cpu(k.astype(np.float32) * STEP)
    quarter = 2 * EIGHTH
    turns, within = (k + EIGHTH) // quarter, (k + EIGHTH) % quarter - EIGHTH
    small, large = on_cpu(np.abs(within).astype(np.float32) * STEP)
    small *= np.sign(within)
    zero = np.float32(0)
    for value, turn in ((s, turns), (c, turns + 1)):
        wanted = np.where(turn & 1, large, small) * np.where(turn & 2, -1, 1) + zero
        assert_same_bits(torch.from_numpy(value), torch.from_numpy(wanted.astype(np.float32)))


def test_quarters_are_exact():
    s, c = on_cpu(np.array([0, 0.5, 1, 1.5], np.float32))
    for found, wanted in ((s, [0, 1, 0, -1]), (c, [1, 0, -1, 0])):
        assert_same_bits(torch.from_numpy(found), torch.tensor(wanted, dtype=torch.float32))


def test_triton_is_the_cpus():
    k = np.random.default_rng(0).integers(0, 1 << 24, 4096)
    k[:8] = [0, EIGHTH, 2 * EIGHTH, 3 * EIGHTH, 4 * EIGHTH, 6 * EIGHTH, (1 << 24) - 1, 2 * EIGHTH + 1]
    x = k.astype(np.float32) * STEP
    s, c = torch.empty(2, 4096, device=DEVICE)
    launch(apply_kernel, (1,), torch.from_numpy(x).to(DEVICE), s, c, SIZE=4096)
    for found, wanted in zip((s, c), on_cpu(x), strict=True):
        assert_same_bits(found.cpu(), torch.from_numpy(wanted))


def number(pattern):
    return np.uint32(pattern).view(np.float32)


def bits_of(x):
    return np.float32(x).view(np.uint32)


def test_patches_of_the_cosine():
    """Binary64 alone is wrong there, and the cosine is even."""
    for pattern, value in COS_PATCHES:
        for bits in (pattern, pattern | 1 << 31):
            assert bits_of(cos(number(bits))) == unary.value("cos", bits)
        y, _ = wide_sine(number(pattern), 1)
        assert abs(np.float32(y)) != abs(value)
        assert bits_of(value) == unary.value("cos", pattern)


def test_arguments_nearest_to_quarter_turns():
    """Of all exponents: continued fractions give the multiples of pi/2 that fp32 numbers come nearest to."""
    patterns = []
    for exponent in range(-1, 128):
        unit = mpmath.mpf(2) ** (exponent - 23)
        with mpmath.workprec(400):
            ratio = unit / (mpmath.pi / 2)
            near = nearest(ratio - mpmath.floor(ratio))
        patterns += [int(np.float32(float(m * unit)).view(np.uint32)) for m in near]
    for pattern in patterns:
        x = number(pattern)
        assert bits_of(sin(x)) == unary.value("sin", pattern)
        assert bits_of(cos(x)) == unary.value("cos", pattern)


def nearest(ratio):
    """24-bit integers m with m * ratio near an integer: the denominators of its convergents, times small numbers."""
    found, before, last = [], 0, 1
    rest = ratio
    while last < 1 << 24 and rest:
        quotient = int(1 / rest)
        before, last = last, quotient * last + before
        rest = 1 / rest - quotient
        found += [last * k for k in (1, 2, 3) if 1 << 23 <= last * k < 1 << 24]
        if last < 1 << 23:
            found.append(last << (24 - last.bit_length()))
    return found[-4:]
