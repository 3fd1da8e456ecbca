"""sincospi: all 2^24 arguments on the CPU against the definition, Triton's against the CPU's."""

import mpmath
import numpy as np
import torch
import triton
import triton.language as tl
from numba import njit

from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.rounded.trigonometric import sincospi
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
    """sin(pi x) over the first eighth, then the others: from the sine and cosine of the distance to a quarter."""
    k = np.arange(1 << 24)
    s, c = on_cpu(k.astype(np.float32) * STEP)
    quarter = 2 * EIGHTH
    turns, within = (k + EIGHTH) // quarter, (k + EIGHTH) % quarter - EIGHTH
    small, large = s[np.abs(within)] * np.sign(within), c[np.abs(within)]
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
