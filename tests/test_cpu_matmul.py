"""The CPU's products: bits as the reference for any layout, size, thread count and state of the floating-point unit."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from reference import formats
from reference import matmul as reference
from repkernels.cpu.functions import numbers
from repkernels.cpu.matmul import matmul, quantize
from repkernels.cpu.store import store
from tests.support import assert_same_bits, name, randn, tensor, values


@njit
def _store(line, bias, out):
    store(line, bias, out)


FIXED = ("fixed8", "fixed16", "fixed24", "fixed32")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = [(dtype, contract) for dtype in DTYPES for contract in ("ordered", *FIXED)] + [(torch.float64, "ordered")]

# (M, K, N), each with what it stands for.
SIZES = [
    pytest.param((1, 1, 1), id="one"),
    pytest.param((3, 0, 5), id="no-k"),
    pytest.param((4, 8, 16), id="whole-groups"),
    pytest.param((5, 17, 9), id="ragged-groups"),
    pytest.param((1, 70, 130), id="one-row"),
    pytest.param((101, 33, 1), id="one-column"),
    pytest.param((2, 1025, 3), id="two-steps-and-one"),
    pytest.param((260, 20, 3), id="two-slabs"),
    pytest.param((2, 4100, 2), id="two-chunks"),
    pytest.param((2, 8200, 1), id="three-chunks"),
]


def spread(*shape: int, dtype: torch.dtype, seed: int, exponents: int = 12) -> torch.Tensor:
    """Normal numbers times powers of two between 2^-exponents and 2^exponents."""
    generator = torch.Generator().manual_seed(seed)
    powers = torch.randint(-exponents, exponents + 1, shape, generator=generator)
    return torch.ldexp(randn(*shape, dtype=torch.float64, seed=seed), powers).to(dtype)


def expected(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, contract: str) -> torch.Tensor:
    """The reference's product of two or three axes."""
    offset = None if bias is None else values(bias)
    return tensor(reference.matmul(values(a), values(b), name(a.dtype), contract, offset), a.dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "contract"), CASES)
def test_sizes(dtype, contract, size):
    m, k, n = size
    if dtype == torch.float64 and m * k * n > 20000:
        m, k, n = min(m, 3), k, min(n, 2)
    a, b = spread(1, m, k, dtype=dtype, seed=1), spread(1, k, n, dtype=dtype, seed=2)
    bias = randn(n, dtype=dtype, seed=3)
    assert_same_bits(matmul(a, b, None, contract), expected(a, b, None, contract))
    assert_same_bits(matmul(a, b, bias, contract), expected(a, b, bias, contract))


LAYOUTS = {
    "columns": lambda x: x.mT.contiguous().mT,
    "every-other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "wider-rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "both-strided": lambda x: x.repeat_interleave(3, -2).repeat_interleave(2, -1)[..., ::3, ::2],
    "batch-innermost": lambda x: x.permute(1, 2, 0).contiguous().permute(2, 0, 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("dtype", "contract"), CASES)
def test_layouts(dtype, contract, layout):
    a, b = spread(3, 21, 75, dtype=dtype, seed=1), spread(3, 75, 37, dtype=dtype, seed=2)
    plain = matmul(a, b, None, contract)
    for x, y in ((LAYOUTS[layout](a), b), (a, LAYOUTS[layout](b)), (LAYOUTS[layout](a), LAYOUTS[layout](b))):
        assert torch.equal(x, a)
        assert torch.equal(y, b)
        assert_same_bits(matmul(x, y, None, contract), plain)


@pytest.mark.parametrize(("dtype", "contract"), CASES)
def test_expanded_operands(dtype, contract):
    row, column = randn(1, 1, 9, dtype=dtype), randn(1, 9, 1, dtype=dtype, seed=1)
    a, b = row.expand(2, 30, 9), column.expand(2, 9, 50)
    assert_same_bits(matmul(a, b, None, contract), matmul(a.contiguous(), b.contiguous(), None, contract))
    constant = torch.ones((), dtype=dtype).expand(1, 12, 33)
    assert (matmul(constant, constant.mT, None, contract) == 33).all()


@pytest.mark.parametrize(("dtype", "contract"), CASES)
@pytest.mark.parametrize("counts", [(4, 1), (1, 4), (4, 4)], ids=str)
def test_batches(dtype, contract, counts):
    a, b = randn(counts[0], 5, 40, dtype=dtype), randn(counts[1], 40, 18, dtype=dtype, seed=1)
    bias = randn(18, dtype=dtype, seed=2)
    together = matmul(a, b, bias, contract)
    for i in range(4):
        x, y = a[i % counts[0]][None], b[i % counts[1]][None]
        assert_same_bits(together[i], matmul(x, y, bias, contract)[0])


@pytest.mark.parametrize(("dtype", "contract"), CASES)
def test_empty(dtype, contract):
    for a, b in (((0, 3, 4), (1, 4, 5)), ((2, 0, 4), (1, 4, 5)), ((2, 3, 4), (2, 4, 0)), ((1, 3, 4), (0, 4, 5))):
        result = matmul(torch.ones(a, dtype=dtype), torch.ones(b, dtype=dtype), None, contract)
        batch = 0 if 0 in (a[0], b[0]) else max(a[0], b[0])
        assert result.shape == (batch, a[1], b[2])


@pytest.mark.parametrize("contract", ("ordered", *FIXED))
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_alone_is_a_row_of_many(dtype, contract):
    a, b = spread(1, 600, 90, dtype=dtype, seed=1), spread(1, 90, 30, dtype=dtype, seed=2)
    together = matmul(a, b, None, contract)
    for rows in (slice(0, 1), slice(511, 513), slice(599, 600), slice(100, 377)):
        assert_same_bits(matmul(a[:, rows], b, None, contract), together[:, rows])


@pytest.mark.parametrize(("dtype", "contract"), CASES)
def test_threads(dtype, contract):
    a, b = spread(1, 300, 520, dtype=dtype, seed=1), spread(1, 520, 210, dtype=dtype, seed=2)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            results.append(matmul(a, b, None, contract))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert_same_bits(result, results[0])


def test_calls_from_several_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        operands = [(randn(1, 90, 600, seed=i), randn(1, 600, 110, seed=i + 50)) for i in range(12)]
        alone = [[matmul(a, b, None, contract) for a, b in operands] for contract in ("ordered", "fixed24")]
        with ThreadPoolExecutor(6) as pool:
            for contract, results in zip(("ordered", "fixed24"), alone, strict=True):
                together = pool.map(lambda pair, rule=contract: matmul(*pair, None, rule), operands * 3)
                for got, wanted in zip(together, results * 3, strict=True):
                    assert_same_bits(got, wanted)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes():
    script = (
        "import os, torch\n"
        "from repkernels.cpu.matmul import matmul\n"
        "torch.set_num_threads(2)\n"
        "a = torch.ones(1, 100, 100)\n"
        "matmul(a, a, None, 'ordered')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if (matmul(a, a, None, 'ordered') == 100).all() else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0


@pytest.mark.parametrize(("dtype", "contract"), CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_subnormals_are_kept_whatever_the_thread_has_set(dtype, contract, threads):
    tiny = {torch.float32: -140, torch.bfloat16: -130, torch.float16: -20, torch.float64: -1040}[dtype]
    a = torch.ldexp(randn(1, 200, 40, dtype=torch.float64), torch.tensor(tiny)).to(dtype)
    b = randn(1, 40, 200, dtype=dtype, seed=1)
    small = (torch.ldexp(randn(200, dtype=torch.float64, seed=2), torch.tensor(tiny))).to(dtype)
    wanted = [expected(a[:, :9], b[:, :, :9], offset, contract) for offset in (None, small[:9])]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    flushed = torch.set_flush_denormal(True)
    try:
        results = [matmul(a, b, offset, contract) for offset in (None, small)]
        still_flushes = bool((torch.full((1,), 1e-40) * 0.5 == 0).all())
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    assert still_flushes == flushed
    for result, want in zip(results, wanted, strict=True):
        assert (result != 0).any()
        assert_same_bits(result[:, :9, :9], want)


def test_pool_threads_started_while_flushing_keep_subnormals():
    script = (
        "import torch\n"
        "from repkernels.cpu.matmul import matmul\n"
        "torch.set_num_threads(2)\n"
        "a, one = torch.full((1, 400, 400), 2.0**-140), torch.eye(400)[None]\n"
        "torch.set_flush_denormal(True)\n"
        "for contract in ('ordered', 'fixed24'):\n"
        "    out = matmul(a, one, None, contract).view(torch.int32)\n"
        "    assert (out == 2**9).all(), contract\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=120, check=True)


def test_no_numba_before_the_first_call():
    script = "import sys, repkernels.cpu.matmul; raise SystemExit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0


def test_the_precision_setting_of_torch_changes_nothing():
    a, b = randn(1, 64, 64), randn(1, 64, 64, seed=1)
    before = torch.get_float32_matmul_precision()
    plain = [matmul(a, b, None, contract) for contract in ("ordered", *FIXED)]
    try:
        torch.set_float32_matmul_precision("medium")
        for contract, result in zip(("ordered", *FIXED), plain, strict=True):
            assert_same_bits(matmul(a, b, None, contract), result)
    finally:
        torch.set_float32_matmul_precision(before)


SPECIAL = {
    torch.float32: [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000],
    torch.bfloat16: [0x0000, 0x8000, 0x0001, 0x807F, 0x0080, 0x7F7F, 0x7F80, 0xFF80],
    torch.float16: [0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x7C00, 0xFC00],
}
NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}


@st.composite
def operands(draw):
    """Small operands of any bit patterns, the special ones often."""
    dtype = draw(st.sampled_from(DTYPES))
    m, k, n = (draw(st.integers(1, 12)) for _ in range(3))
    most = 2**32 - 1 if dtype == torch.float32 else 2**16 - 1
    ordinary = st.integers(0, most)
    palette = st.one_of(ordinary, st.sampled_from(SPECIAL[dtype]), st.sampled_from(SPECIAL[dtype][:6]))
    if draw(st.booleans()):
        palette = st.one_of(palette, st.just(NAN[dtype]))
    size = m * k + k * n + n
    pattern = draw(st.lists(palette, min_size=size, max_size=size))
    array = torch.from_numpy(formats.from_bits(np.array(pattern, np.int64), name(dtype)).copy()).to(dtype)
    a, b, bias = array.split([m * k, k * n, n])
    return a.view(1, m, k), b.view(1, k, n), bias


@given(operands(), st.sampled_from(("ordered", *FIXED)), st.booleans())
def test_any_bit_patterns(case, contract, with_bias):
    a, b, bias = case
    offset = bias if with_bias else None
    assert_same_bits(matmul(a, b, offset, contract), expected(a, b, offset, contract))


@pytest.mark.parametrize("contract", FIXED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_non_finite_elements_touch_only_their_products(dtype, contract):
    a, b = randn(2, 70, 90, dtype=dtype), randn(2, 90, 61, dtype=dtype, seed=1)
    a[0, 3, 5], a[0, 4, 7], a[1, 69, 0] = float("nan"), float("inf"), float("-inf")
    b[0, 7, 10], b[1, 0, 11], b[1, 2, 60] = 0, 0, float("inf")
    assert_same_bits(matmul(a, b, None, contract), expected(a, b, None, contract))
    one = b[:1]
    assert_same_bits(matmul(a, one, None, contract), expected(a, one, None, contract))
    bias = torch.full((61,), float("-inf"), dtype=dtype)
    assert_same_bits(matmul(a, b, bias, contract), expected(a, b, bias, contract))


@pytest.mark.parametrize("k", [1024, 65536, 131072, 131073, 300000])
@pytest.mark.parametrize("contract", FIXED)
def test_constants_fill_the_accumulators(contract, k):
    """1.0078125 is 127 * 2^e + ...: all digits 127 but the first, products as large as they get."""
    a, b = torch.full((1, 3, k), 1.0078125), torch.full((1, k, 2), -1.0078125)
    a[:, 1] *= torch.tensor([1, -1]).repeat(k // 2 + 1)[:k]
    a[:, 2, ::3] = 0.0072
    assert_same_bits(matmul(a, b, None, contract), expected(a, b, None, contract))


@pytest.mark.parametrize("contract", FIXED)
def test_two_words(contract, monkeypatch):
    """The sums of long K in two words equal those in one; rounding sees every bit below the kept ones."""
    from repkernels.cpu import matmul_fixed

    a, b = spread(1, 9, 9000, dtype=torch.float32, seed=1), spread(1, 9000, 21, dtype=torch.float32, seed=2)
    many, few = matmul(a, b, None, contract), matmul(a[:, :2], b, None, contract)
    assert_same_bits(few, many[:, :2])
    monkeypatch.setattr(matmul_fixed, "NARROW", (512, 512, 1024, 4096))
    assert_same_bits(matmul(a, b, None, contract), many)
    assert_same_bits(matmul(a[:, :2], b, None, contract), few)


def test_rounding_of_two_words():
    from repkernels.cpu.fixed_store import rounded

    generator = np.random.default_rng(0)
    numbers = [0, 1, -1, 2**24 + 1, -(2**24 + 1), 2**63, -(2**63), 2**64, -(2**64), 2**65, 2**100]
    for places in range(20, 120):
        head = int(generator.integers(2**23, 2**24))
        half = 1 << (places - 1)
        # Exactly half, and half give or take the last of all bits: only a sticky bit tells them apart.
        numbers += [(head << places) + half + d for d in (-1, 0, 1)] + [-(head << places) - half - 1]
        numbers.append(int(generator.integers(0, 2**62)) << places >> 40)
    for p in numbers:
        if abs(p) < 2**125:
            got = rounded(np.int64(p >> 64), np.uint64(p & (2**64 - 1)))
            assert float(got) == reference.round32(p), p


@pytest.mark.parametrize("contract", FIXED)
def test_sticky_bit_of_a_sum_beyond_two_to_the_53(contract):
    """A sum one unit beyond a tie: a rounding to binary64 on the way to fp32 would lose the unit."""
    k = 4096
    a, b = torch.ones(1, 2, k), torch.ones(1, k, 1)
    a[0, 0, 1] = a[0, 1, 1] = 2.0**-20
    a[0, 1, 2] = -(2.0**-20)
    b[0, 0, 0] += 2.0**-23
    assert_same_bits(matmul(a, b, None, contract), expected(a, b, None, contract))


@pytest.mark.parametrize("keep", ["digits", "scales"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("contract", FIXED)
def test_kept_digits(contract, dtype, keep):
    a, b = spread(1, 6, 130, dtype=dtype, seed=1), spread(1, 130, 70, dtype=dtype, seed=2)
    b[0, 9, 5] = float("inf")
    digits = int(contract[5:]) // 8
    for y in (b, b.mT.contiguous().mT):
        kept = quantize(y.mT, digits)
        if keep == "scales":
            kept = kept._replace(planes=torch.empty(0, dtype=torch.int8))
        assert_same_bits(matmul(a, y, None, contract, kept), expected(a, b, None, contract))


def test_digits_are_made_in_stretches(monkeypatch):
    from repkernels.cpu import matmul_fixed

    a, b = randn(2, 6, 130), randn(2, 130, 170, seed=2)
    bias = randn(170, seed=3)
    b[1, 3, 169] = float("nan")
    scales = quantize(b.mT, 3)._replace(planes=torch.empty(0, dtype=torch.int8))
    whole = matmul(a, b, bias, "fixed24")
    monkeypatch.setattr(matmul_fixed, "PART", 130 * 50)
    assert_same_bits(matmul(a, b, bias, "fixed24"), whole)
    assert_same_bits(matmul(a, b, bias, "fixed24", scales), whole)


def test_an_error_in_one_thread_is_raised():
    from repkernels.cpu.threads import share

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        both = threading.Barrier(2)

        def task(index: int) -> None:
            both.wait(10)
            if threading.current_thread() is not threading.main_thread():
                raise ValueError("here")

        with pytest.raises(ValueError, match="here"):
            share(task, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_to_half_types(dtype):
    """Every number of the type, what lies beside it and beside the ties in fp32: sums of two exact products."""
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype).float()
    beside = torch.tensor([-1, 0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001], dtype=torch.int32)
    near = (every.view(torch.int32)[:, None] + beside).flatten().view(torch.float32)
    near = near[near.isfinite()]
    out = torch.empty(len(near), dtype=dtype)
    _store(near.numpy().copy(), numbers(out)[:0], numbers(out))
    assert_same_bits(out, tensor(formats.positive_zeros(formats.rounded(near.numpy(), name(dtype))), dtype))


def test_machines_without_wide_vectors(tmp_path):
    """Compiled for the least processor of this kind, with neither FMA nor 256-bit vectors: the same bits."""
    script = (
        "import sys, torch\n"
        "from repkernels.cpu.matmul import matmul\n"
        "a, b, *wanted = torch.load(sys.argv[1])\n"
        "for contract, want in zip(('ordered', 'fixed32'), wanted, strict=True):\n"
        "    assert torch.equal(matmul(a, b, None, contract).view(torch.int32), want.view(torch.int32)), contract\n"
    )
    a, b = spread(1, 6, 700, dtype=torch.float32, seed=1), spread(1, 700, 30, dtype=torch.float32, seed=2)
    torch.save([a, b, *(matmul(a, b, None, contract) for contract in ("ordered", "fixed32"))], tmp_path / "case")
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", script, str(tmp_path / "case")]
    subprocess.run(command, env=os.environ | plain, timeout=300, check=True)
