"""The Triton kernels of matmul against the reference: on a GPU, or in the interpreter where there is none."""

import numpy as np
import pytest
import torch
from torch import Tensor

import reference.matmul as reference
from repkernels.digits import Digits
from repkernels.kernels import matmul as kernels
from repkernels.kernels.configuration import Configuration
from repkernels.kernels.engine import use_engine
from repkernels.kernels.matmul_fixed_finish import finish_splits
from tests.support import assert_same_bits, name, tensor, values

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
on_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="minutes in the interpreter; `repkernels verify` covers the CPU")
FIXED = ("fixed8", "fixed16", "fixed24", "fixed32")
ENGINES = ("int8", "window16")


def operands(
    M: int, K: int, N: int, dtype: torch.dtype, spread: int = 0, special: bool = False
) -> tuple[Tensor, Tensor]:
    """Normal numbers times powers of two up to 2**±spread; special: infinities and NaN, and a zero that meets one."""
    rng = np.random.default_rng([M, K, N, spread])
    a = rng.standard_normal((M, K)) * 2.0 ** rng.integers(-spread, spread + 1, (M, K))
    b = rng.standard_normal((K, N)) * 2.0 ** rng.integers(-spread, spread + 1, (K, N))
    if special:
        a[0, 1], b[2, 0], b[0, N - 1], a[M - 1, 0] = np.inf, np.nan, -np.inf, 0
    return torch.from_numpy(a).to(dtype), torch.from_numpy(b).to(dtype)


def check(
    a: Tensor, b: Tensor, contract: str, bias: Tensor | None = None, across: bool = False, keep: str = ""
) -> None:
    """The kernels' bits are the reference's. across: both operands lie the other way around in memory."""
    expected = reference.matmul(values(a), values(b), name(a.dtype), contract, None if bias is None else values(bias))
    a, b = a.to(DEVICE)[None], b.to(DEVICE)[None]
    if across:
        a, b = (x.mT.contiguous().mT for x in (a, b))
    kept = None
    if keep:
        kept = kernels.quantize(b.mT, int(contract[5:]) // 8)
        if keep == "scales":
            kept = Digits(kept.planes.new_empty(0), kept.scale)
    actual = kernels.matmul(a, b, None if bias is None else bias.to(DEVICE), contract, kept)[0].cpu()
    assert_same_bits(actual, tensor(expected, a.dtype))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("contract", FIXED)
class TestFixed:
    def test_exponents_spread(self, contract: str, engine: str) -> None:
        with use_engine(engine):
            check(*operands(66, 40, 66, torch.float32, spread=20), contract)

    def test_non_finite_few_rows(self, contract: str, engine: str) -> None:
        with use_engine(engine):
            check(*operands(5, 33, 70, torch.float32, special=True), contract, torch.randn(70))

    def test_non_finite_many_rows(self, contract: str, engine: str) -> None:
        with use_engine(engine):
            check(*operands(70, 48, 20, torch.float16, spread=2, special=True), contract, torch.ones(20).half(), True)

    def test_bfloat16_across(self, contract: str, engine: str) -> None:
        with use_engine(engine):
            check(*operands(17, 40, 33, torch.bfloat16, spread=30), contract, across=True)

    def test_split(self, contract: str, engine: str) -> None:
        """Few tiles and a long K: partial sums of several programs are added."""
        with use_engine(engine):
            check(*operands(20, 2100, 3, torch.float32), contract)

    @pytest.mark.parametrize("keep", ["digits", "scales"])
    def test_kept(self, contract: str, engine: str, keep: str) -> None:
        with use_engine(engine):
            check(*operands(4, 64, 40, torch.bfloat16), contract, keep=keep)


@pytest.mark.parametrize(("contract", "configuration"), [(f, c) for f in FIXED for c in kernels.configurations(f)])
def test_every_configuration_of_fixed(contract: str, configuration: Configuration) -> None:
    with kernels.use_configuration(configuration):
        check(*operands(14, 300, 70, torch.float32, spread=5), contract, torch.randn(70))


@pytest.mark.parametrize("configuration", kernels.configurations("ordered"))
def test_every_configuration_of_ordered(configuration: Configuration) -> None:
    with kernels.use_configuration(configuration):
        check(*operands(70, 90, 70, torch.float32), "ordered")


@on_gpu
@pytest.mark.parametrize("K", [2**17 + 100, 2**18])
def test_sums_past_int64(K: int) -> None:
    """fixed32 beyond K = 131072: two words, one rounding."""
    a = torch.full((2, K), 1.0078125)
    a[1, ::2] = -1
    check(a, torch.full((K, 1), 1.0078125), "fixed32")


@on_gpu
@pytest.mark.parametrize("contract", FIXED)
def test_accumulators_full(contract: str) -> None:
    """Constant operands fill int32 sums, so that a long K takes several windows or splits."""
    for M in (1, 70):
        check(torch.full((M, 65536), 1.0078125), torch.full((65536, 2), -1.0078125), contract)


def test_two_words_round_once() -> None:
    """Sums of splits past int64, on both sides of a tie and far above it, against Python's integers."""
    most = 2**62
    halfway = 2**39  # of the last place of a sum near 2**63
    parts = [
        [most, most, halfway, 0],
        [most, most, halfway, 1],
        [most, most, halfway, -1],
        [-most, -most, -halfway, -1],
        [2**24 + 1, 0, 0, 0],
        [-(2**31), 2**31, 0, -5],
        [most, -most, 2**61 + 1, 3],
    ]
    part = torch.tensor(parts).T.reshape(4, 1, len(parts), 1).contiguous().to(DEVICE)
    M = len(parts)
    scale = torch.zeros(1, M, dtype=torch.int32, device=DEVICE)
    a, b, out = (torch.ones(1, r, c, device=DEVICE) for r, c in ((M, 1), (1, 1), (M, 1)))
    arguments = (scale, scale, out, out, a, b, M, 1, 1, 1, 1, 1, M, 1, 1, 1, 1, 1, M, 1, 1)
    finish_splits(part, arguments, 2**26, {"S": 4, "BIAS": 0})
    expected = [reference.round32(sum(p)) * 2.0**16 for p in parts]
    assert_same_bits(out[0, :, 0].cpu(), torch.tensor(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
class TestOrdered:
    def test_odd_sizes(self, dtype: torch.dtype) -> None:
        check(*operands(20, 70, 33, dtype, special=True), "ordered", torch.randn(33).to(dtype))

    def test_two_chunks_across(self, dtype: torch.dtype) -> None:
        check(*operands(2, 4160, 3, dtype), "ordered", across=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("M", "K", "N"), [(3, 64, 70), (40, 100, 33), (130, 72, 260)])
def test_native_is_near(dtype: torch.dtype, M: int, K: int, N: int) -> None:
    """`native` has no reference: its bits are proven against itself on each GPU, its size against binary64 here."""
    a, b = operands(M, K, N, dtype)
    exact = a.double() @ b.double()
    actual = kernels.matmul(a.to(DEVICE)[None], b.to(DEVICE)[None], None, "native")[0].cpu().double()
    bound = a.double().abs() @ b.double().abs()
    assert ((actual - exact).abs() <= 2**-7 * bound).all()


@pytest.mark.skipif(DEVICE == "cpu", reason="tensor cores")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_native_ignores_tiles_and_layouts(dtype: torch.dtype) -> None:
    for M, K, N in ((300, 1000, 520), (64, 4096, 512), (512, 2048, 640)):
        a, b = (x.to(DEVICE)[None] for x in operands(M, K, N, dtype, spread=2))
        results = []
        for configuration in kernels.configurations("native"):
            with kernels.use_configuration(configuration):
                results += [
                    kernels.matmul(x, y, None, "native")
                    for x in (a, a.mT.contiguous().mT)
                    for y in (b, b.mT.contiguous().mT)
                ]
        turned = kernels.matmul(b.mT, a.mT, None, "native").mT
        for result in (*results, turned):
            assert_same_bits(result.cpu(), results[0].cpu())


def test_broadcast_batches() -> None:
    rng = np.random.default_rng(0)
    a, b = (
        torch.from_numpy(rng.standard_normal((3, 18, 20))).float(),
        torch.from_numpy(rng.standard_normal((3, 20, 17))).float(),
    )
    for contract in ("fixed16", "ordered"):
        for x, y in ((a, b), (a[:1], b), (a, b[:1]), (a.mT.contiguous().mT, b.mT.contiguous().mT)):
            expected = tensor(reference.matmul(values(x), values(y), "float32", contract), torch.float32)
            assert_same_bits(kernels.matmul(x.to(DEVICE), y.to(DEVICE), None, contract).cpu(), expected)


@pytest.mark.parametrize("contract", ["ordered", "fixed16", "fixed24"])
@pytest.mark.parametrize("M", [3, 70])
def test_bias_of_any_stride(contract: str, M: int) -> None:
    a, b = operands(M, 20, 5, torch.float32)
    check(a, b, contract, torch.arange(10.0)[::2])
    check(a, b, contract, torch.tensor([3.0]).expand(5))


def test_nothing_to_sum() -> None:
    for contract in ("ordered", "fixed24"):
        bias = torch.tensor([-0.0, 2.0], device=DEVICE)
        empty = torch.empty(1, 3, 0, device=DEVICE)
        out = kernels.matmul(empty, torch.empty(1, 0, 2, device=DEVICE), bias, contract)
        assert_same_bits(out.cpu(), torch.tensor([[[0.0, 2.0]] * 3]))
        assert kernels.matmul(empty[:, :0], torch.empty(1, 0, 2, device=DEVICE), None, contract).shape == (1, 0, 2)
