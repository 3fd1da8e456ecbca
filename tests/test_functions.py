"""exp_f32, ln_f32, halving and conversions: the CPU's against definitions and proofs, Triton's against the CPU's."""

import json
from fractions import Fraction
from pathlib import Path
from types import FunctionType

import mpmath
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from numba import njit

from bench.proofs import published as proof
from reference import functions as reference
from reference.sum import tree
from repkernels.cpu import functions as cpu
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.kernels import functions as kernels
from repkernels.kernels.launch import launch
from tests.support import assert_same_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RECORD = json.loads((Path(__file__).parent.parent / "bench/results/functions-cpu.json").read_text())
HARD = [int(bits, 16) for bits in RECORD["ln_f32"]["hard_cases"]]
# Inputs at which rounding a correctly rounded binary64 logarithm is wrong.
TWICE_ROUNDED = [0x3C413D3A, 0x41178FEB, 0x4C5D65A5, 0x65D890D3, 0x6F31A8EC]
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -1e-45, 1e-45, 1.0, 3.4e38, -3.4e38], np.float32)


def fp32(bits):
    return np.array(bits, np.uint32).view(np.float32)


def drawn(first, last, count, seed):
    return fp32(np.random.default_rng(seed).integers(first, last, count))


def not_positive(count=60000):
    """Arguments of exp_f32: all binades, those with results below 1, the borders."""
    near = [np.nextafter(np.float32(v), np.float32(-d)) for v in (-87.33654, -88, -0.34657359) for d in (1e9, 0)]
    ends = np.array([0.0, -0.0, -np.inf, np.nan, -87.3, -87.34, -88, -88.1, -1e-45, *near], np.float32)
    return np.concatenate([ends, drawn(0x80000000, 0xFF800000, count, 0), drawn(0xBE000000, 0xC2B00000, count, 1)])


def positive(count=60000):
    """Arguments of ln_f32: hard ones, all binades, subnormals, and around 1."""
    return np.concatenate(
        [
            SPECIAL,
            fp32(HARD + TWICE_ROUNDED),
            drawn(0x00000001, 0x7F800000, count, 2),
            drawn(0x00000001, 0x00800000, count // 8, 3),
            fp32(np.arange(0x3F7FF000, 0x3F801000)),
        ]
    )


@njit
def _exp(x, out):
    state = keep_subnormals()
    for i in range(x.size):
        out[i] = cpu.exp_f32(x[i])
    restore(state)


@njit
def _ln(x, out):
    state = keep_subnormals()
    for i in range(x.size):
        out[i] = cpu.ln_f32(x[i])
    restore(state)


def on_cpu(compiled, x, dtype=np.float32):
    out = np.empty(x.size, dtype)
    compiled(np.ascontiguousarray(x), out)
    return torch.from_numpy(out)


@triton.jit
def exp_kernel(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, kernels.exp_f32(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def ln_kernel(x, out, n, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + i, kernels.ln_f32(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def key_kernel(x, keys, back, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    key = kernels.order_key(tl.load(x + i))
    tl.store(keys + i, key)
    tl.store(back + i, kernels.from_order_key(key))


@triton.jit
def tree_kernel(x, out, ROWS: tl.constexpr, WIDE: tl.constexpr):
    tl.store(out, kernels.tree_sum(tl.load(x + tl.arange(0, ROWS)).to(WIDE), ROWS))


def on_triton(kernel, x):
    x = torch.from_numpy(x).to(DEVICE)
    out = torch.empty_like(x)
    launch(kernel, (triton.cdiv(len(x), 4096),), x, out, len(x), SIZE=4096)
    return out.cpu()


def test_fma_rounds_once():
    rng = np.random.default_rng(0)
    for kind, words in ((np.float32, np.uint32), (np.float64, np.uint64)):
        with np.errstate(invalid="ignore"):
            a, b = (rng.standard_normal(300).astype(kind) for _ in range(2))
            c = (-(a * b) * (1 + rng.integers(-4, 4, 300) * np.finfo(kind).eps)).astype(kind)
        fused = njit(lambda a, b, c: cpu.fma(a, b, c))
        for x, y, z in zip(a, b, c, strict=True):
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            with mpmath.workprec(400):
                quotient = mpmath.mpf(exact.numerator) / exact.denominator
            with mpmath.workprec(24 if kind is np.float32 else 53):
                wanted = float(+quotient)
            assert kind(fused(x, y, z)).view(words) == kind(wanted).view(words)


def test_numba_contracts_nothing():
    """a * b + c over a vector stays two roundings, also where the machine has an instruction for both."""

    @njit
    def plain(a, b, c, out):
        for i in range(a.size):
            out[i] = a[i] * b[i] + c[i]

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(4096).astype(np.float32) for _ in range(2))
    c, out = -(a * b), np.empty(4096, np.float32)
    plain(a, b, c, out)
    assert not out.any()
    assert not any("vfm" in code or "fmla" in code or "fmadd" in code for code in plain.inspect_asm().values())


def test_exp_is_the_published_sequence():
    x = not_positive()
    assert_same_bits(on_cpu(_exp, x), torch.from_numpy(reference.exp_f32(x)))


def test_exp_at_its_ends():
    found = on_cpu(_exp, np.array([0.0, -0.0, -np.inf, -88.5, -3e38, np.nan], np.float32)).numpy()
    np.testing.assert_array_equal(found, np.array([1, 1, 0, 0, 0, np.nan], np.float32))
    assert not np.signbit(found[2:5]).any()


def test_exp_keeps_its_proven_bound():
    """The record's worst case, and some whole ranges of the proof again."""
    recorded = RECORD["exp_f32"]
    assert recorded["inputs"] == 0xFF800001 - 0x80000000
    assert recorded["largest_error_ulp"] <= 1
    assert recorded["increases_below"] == recorded["wrongly_zero_or_not"] == 0
    worst = int(recorded["at"], 16)
    assert proof.prove_exp(worst, worst + 1).largest_error_ulp == recorded["largest_error_ulp"]
    for first in np.random.default_rng(4).integers(0xBD000000, 0xC2AF0000, 8):
        found = proof.prove_exp(int(first), int(first) + (1 << 18))
        assert found.largest_error_ulp <= recorded["largest_error_ulp"]
        assert found.increases_below == found.wrongly_zero_or_not == 0
    assert proof.measuring_error_exp(300) < 2.0**-50


def test_exp_on_triton_is_the_cpus():
    x = not_positive()
    assert_same_bits(on_triton(exp_kernel, x), on_cpu(_exp, x))


def test_ln_at_its_ends():
    x = np.array([0.0, -0.0, -1e-45, -1, -np.inf, np.nan, np.inf, 1], np.float32)
    wanted = np.array([-np.inf, -np.inf, np.nan, np.nan, np.nan, np.nan, np.inf, 0], np.float32)
    assert_same_bits(on_cpu(_ln, x), torch.from_numpy(wanted))


def test_ln_hard_cases_by_mpmath():
    assert RECORD["ln_f32"]["not_correctly_rounded"] == 0
    assert set(TWICE_ROUNDED) <= set(HARD)
    assert all(proof.right_ln(bits) for bits in HARD)
    assert np.float32(cpu.ln_f32(proof.number(0x41178FEB))).view(np.uint32) == 0x400FE5E7


def test_ln_sample_by_the_definition():
    x = np.concatenate([drawn(1, 0x7F800000, 1500, 5), drawn(0x3F000000, 0x40000000, 500, 6), drawn(1, 1 << 23, 99, 7)])
    assert_same_bits(on_cpu(_ln, x), torch.from_numpy(reference.ln_f32(x)))


def test_ln_keeps_its_proof():
    """Some whole ranges of the proof again, with the subnormals' beginning, 1, and the last number."""
    starts = [1, 0x3F780000, 0x7F800000 - (1 << 18)]
    for first in (*starts, *np.random.default_rng(6).integers(1, 0x7F000000, 8)):
        wrong, undecided, hard = proof.prove_ln(int(first), int(first) + (1 << 18))
        assert (wrong, undecided) == (0, [])
        assert set(hard) <= set(RECORD["ln_f32"]["hard_cases"])
    assert proof.measuring_error_ln(300) < proof.LN_ERROR


def with_flaw(check, **flawed):
    """The compiled `check` of the proof, but of other functions."""
    code = check.py_func.__code__
    return njit(FunctionType(code, {**check.py_func.__globals__, **flawed}))


def test_the_proof_of_ln_would_find_an_error():
    """ln rounded to binary64 and then to fp32 is right but for a few inputs, and each of those is seen."""

    @njit
    def rounded_twice(x):
        high, _ = proof.ln_words(x)
        return np.float32(high)

    check = with_flaw(proof.check_ln, ln_f32=rounded_twice)
    seen, wrong = [], []
    for bits in HARD:
        found, hard = np.zeros(3, np.int64), np.zeros(proof.KEPT, np.int64)
        check(bits, bits + 1, found, hard)
        seen.append(found.tolist())
        wrong.append(np.float32(rounded_twice(proof.number(bits))) != np.float32(cpu.ln_f32(proof.number(bits))))
    assert any(wrong)
    assert seen == [[int(w), 0, 1] for w in wrong]


def test_the_proof_of_exp_would_find_an_error():
    @njit
    def one_ulp_up(x):
        return cpu.bitcast(np.int32(cpu.bitcast(cpu.exp_f32(x)) + 1))

    @njit
    def flushed(x):
        y = cpu.exp_f32(x)
        return y if y > np.float32(1e-30) else np.float32(0)

    @njit
    def uneven(x):
        return cpu.exp_f32(x) if cpu.bitcast(x) & 1 else one_ulp_up(x)

    found = np.zeros((3, 6))
    # Neighbouring arguments near -80 have results many ulp apart, so an uneven function shows only nearer to 0.
    flaws = ((one_ulp_up, 0xC2A00000), (flushed, 0xC2A00000), (uneven, 0xBE000000))
    for (function, first), into in zip(flaws, found, strict=True):
        with_flaw(proof.check_exp, exp_f32=function)(first, first + 4096, into)
    assert found[0][4] > 1
    assert found[1][1] > 0
    assert found[2][0] > 0


def test_ln_on_triton_is_the_cpus():
    x = positive()
    assert_same_bits(on_triton(ln_kernel, x), on_cpu(_ln, x))


def test_order_keys():
    x = np.sort(np.concatenate([drawn(0, 2**32, 4096 - 6, 8), np.float32([0, 1e-45, -1e-45, np.inf, -np.inf, 3e38])]))
    x = np.concatenate([x[np.isfinite(x) | np.isinf(x)], np.full(np.isnan(x).sum(), np.nan, np.float32)])
    keys, back = torch.empty(4096, dtype=torch.int32, device=DEVICE), torch.empty(4096, device=DEVICE)
    launch(key_kernel, (1,), torch.from_numpy(x).to(DEVICE), keys, back, SIZE=4096)
    assert_same_bits(back.cpu(), torch.from_numpy(x))
    assert (keys[1:] >= keys[:-1]).all()
    zeros = torch.tensor([-0.0, 0.0], device=DEVICE)
    launch(key_kernel, (1,), zeros, keys, back, SIZE=2)
    assert keys[0] < keys[1]
    assert keys[0] > kernels.LOWEST_KEY.value


def test_larger():
    values = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45], np.float32)
    for a in values:
        for b in values:
            wanted = np.float32(
                np.nan if np.isnan(a) or np.isnan(b) else max((a, b), key=lambda v: (v, ~np.signbit(v)))
            )
            assert_same_bits(torch.tensor(cpu.larger(a, b)), torch.tensor(float(wanted)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 2, 4, 64, 1024])
def test_halving_on_triton(rows, dtype):
    rng = np.random.default_rng(rows)
    wide = tl.float64 if dtype == torch.float64 else tl.float32
    for x in (rng.standard_normal(rows), np.full(rows, -0.0), rng.standard_normal(rows) * 1e-310):
        x = torch.from_numpy(x).to(dtype)
        out = torch.empty(1, dtype=dtype, device=DEVICE)
        launch(tree_kernel, (1,), x.to(DEVICE), out, ROWS=rows, WIDE=wide)
        assert_same_bits(out.cpu(), torch.from_numpy(tree(x.numpy()[:, None])))


@njit
def _widen(x, out):
    state = keep_subnormals()
    for i in range(x.size):
        out[i] = cpu.widened(x[i])
    restore(state)


@njit
def _put(x, out):
    state = keep_subnormals()
    for i in range(x.size):
        cpu.put(out, i, x[i])
    restore(state)


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversions(dtype, flush):
    """Every half number widened; fp32 of all sizes, midpoints and their neighbours too, rounded to nearest even."""
    halves = torch.arange(-32768, 32768).to(torch.int16).view(dtype)
    shift = 16 if dtype == torch.bfloat16 else 13
    middles = np.arange(0, 2**32, 1 << (shift - 1), dtype=np.int64)
    near = fp32(np.concatenate([middles, middles + 1, middles - 1]) & 0xFFFFFFFF)
    x = np.concatenate([near, drawn(0, 2**32, 100000, 9)])
    wide, narrow = halves.float(), torch.from_numpy(x).to(dtype)
    out = torch.empty(len(x), dtype=dtype)
    torch.set_flush_denormal(flush)
    try:
        found = on_cpu(_widen, cpu.numbers(halves))
        _put(x, cpu.numbers(out))
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(found, wide)
    assert_same_bits(out, narrow)
