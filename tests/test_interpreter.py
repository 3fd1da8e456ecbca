"""The patched interpreter rounds as a GPU does. On a GPU the same kernels run there, and the same must hold."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from repkernels.kernels.launch import launch
from tests.support import assert_same_bits, randn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
interpreted_only = pytest.mark.skipif(torch.cuda.is_available(), reason="concerns the interpreter")


@triton.jit
def fma_kernel(a, b, c, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(out + i, tl.fma(tl.load(a + i), tl.load(b + i), tl.load(c + i)))


@triton.jit
def cast_kernel(x, out, back, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    rounded = tl.load(x + i).to(out.dtype.element_ty)
    tl.store(out + i, rounded)
    tl.store(back + i, rounded.to(tl.float32))


@triton.jit
def dot_kernel(a, b, c, out, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    at = m[:, None] * N + n[None, :]
    total = tl.dot(x, y, tl.load(c + at), input_precision="ieee", out_dtype=c.dtype.element_ty)
    tl.store(out + at, total)


@triton.jit
def tf32_kernel(a, out):
    i = tl.arange(0, 16)
    x = tl.load(a + i[:, None] * 16 + i[None, :])
    tl.store(out + i[:, None] * 16 + i[None, :], tl.dot(x, x))


@triton.jit
def bf16_kernel(a, out):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(a + i) + tl.load(a + i))


@triton.jit
def sum_kernel(a, out, SIZE: tl.constexpr):
    tl.store(out, tl.sum(tl.load(a + tl.arange(0, SIZE)), 0))


@triton.jit
def count_kernel(out, n):
    total = 0
    for i in range(n):
        total += i
    tl.store(out, total)


def rounded(exact, precision):
    with mpmath.workprec(4000):
        quotient = mpmath.mpf(exact.numerator) / exact.denominator
    with mpmath.workprec(precision):
        return float(+quotient)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fma_rounds_once(dtype):
    """Results far above the smallest normal, many of them between a product that cancels and its rounding error."""
    a, b = randn(1024, dtype=dtype), randn(1024, dtype=dtype, seed=1)
    c = -(a * b) * (1 + torch.finfo(dtype).eps * torch.randint(-3, 4, (1024,), generator=torch.Generator()))
    c[::3] = randn(342, dtype=dtype, seed=2)
    out = torch.empty_like(a, device=DEVICE)
    launch(fma_kernel, (1,), a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), out, SIZE=1024)
    terms = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    exact = [Fraction(x) * Fraction(y) + Fraction(z) for x, y, z in terms]
    precision = 24 if dtype == torch.float32 else 53
    wanted = torch.tensor([rounded(v, precision) for v in exact], dtype=torch.float64).to(dtype)
    assert_same_bits(out.cpu(), wanted)


def test_fma_of_special_values():
    values = torch.tensor([0.0, -0.0, 1.0, -1e-38, 3e38, np.inf, -np.inf, np.nan])
    a, b, c = (v.reshape(-1) for v in torch.meshgrid(values, values, values, indexing="ij"))
    out = torch.empty_like(a, device=DEVICE)
    launch(fma_kernel, (1,), a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), out, SIZE=512)
    # A product of two fp32 numbers is exact in binary64, and these sums lose nothing that fp32 would keep.
    assert_same_bits(out.cpu(), (a.double() * b.double() + c.double()).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_casts_round_to_nearest_even(dtype):
    shift = 16 if dtype == torch.bfloat16 else 13
    middles = np.arange(0, 2**32, 1 << (shift - 1), dtype=np.int64)
    bits = (np.concatenate([middles, middles + 1, middles - 1]) & 0xFFFFFFFF).astype(np.uint32)
    bits = np.concatenate([bits, np.random.default_rng(0).integers(0, 2**32, 65536).astype(np.uint32)])
    x = torch.from_numpy(np.resize(bits, -(-len(bits) // 65536) * 65536).view(np.float32))
    out, back = torch.empty_like(x, dtype=dtype, device=DEVICE), torch.empty_like(x, device=DEVICE)
    launch(cast_kernel, (len(x) // 65536,), x.to(DEVICE), out, back, SIZE=65536)
    assert_same_bits(out.cpu(), x.to(dtype))
    assert_same_bits(back.cpu(), x.to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dot_is_a_chain_from_the_accumulator(dtype):
    a, b, c = randn(16, 32, dtype=dtype), randn(32, 16, dtype=dtype, seed=1), randn(16, 16, dtype=dtype, seed=2)
    if dtype == torch.float64 and DEVICE == "cuda":
        pytest.skip("the order of binary64 tensor cores is not stated")
    out = torch.empty(16, 16, dtype=dtype, device=DEVICE)
    launch(dot_kernel, (1,), a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), out, M=16, N=16, K=32)
    precision = 24 if dtype == torch.float32 else 53
    wanted = c.clone()
    for i in range(16):
        for j in range(16):
            total = c[i, j].item()
            for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True):
                total = rounded(Fraction(x) * Fraction(y) + Fraction(total), precision)
            wanted[i, j] = total
    assert_same_bits(out.cpu(), wanted)


def test_dot_of_integers_is_exact():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator) for shape in ((32, 64), (64, 32)))
    a[0], b[:, 0] = -128, -128
    c = torch.randint(-(2**30), 2**30, (32, 32), dtype=torch.int32, generator=generator)
    out = torch.empty(32, 32, dtype=torch.int32, device=DEVICE)
    launch(dot_kernel, (1,), a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), out, M=32, N=32, K=64)
    assert torch.equal(out.cpu(), (a.long() @ b.long() + c).int())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dot_of_half_types_is_exact_where_nothing_is_lost(dtype):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-128, 128, shape, generator=generator).to(dtype) for shape in ((16, 64), (64, 16)))
    c = torch.randint(-(2**20), 2**20, (16, 16), generator=generator).float()
    out = torch.empty(16, 16, device=DEVICE)
    launch(dot_kernel, (1,), a.to(DEVICE), b.to(DEVICE), c.to(DEVICE), out, M=16, N=16, K=64)
    assert_same_bits(out.cpu(), (a.double() @ b.double() + c.double()).float())


@interpreted_only
def test_dot_of_half_types_does_not_depend_on_the_tile():
    a, b = randn(16, 64, dtype=torch.bfloat16), randn(64, 16, dtype=torch.bfloat16, seed=1)
    whole, parts = torch.zeros(16, 16), torch.zeros(16, 16)
    launch(dot_kernel, (1,), a, b, whole, whole, M=16, N=16, K=64)
    for k in (0, 32):
        launch(dot_kernel, (1,), a[:, k : k + 32].contiguous(), b[k : k + 32], parts, parts, M=16, N=16, K=32)
    assert_same_bits(parts, whole)


@interpreted_only
def test_what_has_no_one_meaning_raises():
    x = torch.ones(256)
    with pytest.raises(Exception, match="TF32"):
        launch(tf32_kernel, (1,), x, x)
    with pytest.raises(Exception, match="widen"):
        launch(bf16_kernel, (1,), x.bfloat16(), x.bfloat16())
    with pytest.raises(Exception, match="order is undefined"):
        launch(sum_kernel, (1,), x, x, SIZE=4)


def test_sums_of_two_keep_the_sign_of_zero():
    for size in (1, 2):
        out = torch.ones(1, device=DEVICE)
        launch(sum_kernel, (1,), torch.full((2,), -0.0, device=DEVICE), out, SIZE=size)
        assert_same_bits(out.cpu(), torch.tensor([-0.0]))


def test_integer_sums_and_loop_bounds():
    out = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    launch(sum_kernel, (1,), torch.arange(64, dtype=torch.int32, device=DEVICE), out, SIZE=64)
    assert out.item() == 2016
    launch(count_kernel, (1,), out, 10)
    assert out.item() == 45
