"""matmul: shapes as torch, bits as the reference, errors before any launch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import repkernels
from reference import matmul as reference
from repkernels.contract import resolve
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

HALF = (torch.bfloat16, torch.float16)
FIXED = ("fixed8", "fixed16", "fixed24", "fixed32")

# Each with what it stands for.
SHAPES = [
    pytest.param((5, 7), (7, 3), id="matrices"),
    pytest.param((1, 7), (7, 1), id="one-element"),
    pytest.param((7,), (7,), id="vectors"),
    pytest.param((7,), (7, 3), id="vector-matrix"),
    pytest.param((5, 7), (7,), id="matrix-vector"),
    pytest.param((2, 5, 7), (7,), id="batch-vector"),
    pytest.param((7,), (2, 7, 3), id="vector-batch"),
    pytest.param((2, 5, 7), (7, 3), id="linear"),
    pytest.param((5, 7), (2, 7, 3), id="one-left"),
    pytest.param((2, 3, 5, 7), (2, 3, 7, 4), id="batches"),
    pytest.param((2, 1, 5, 7), (1, 3, 7, 4), id="both-broadcast"),
    pytest.param((3, 5, 7), (2, 1, 7, 4), id="ranks-differ"),
    pytest.param((1, 1, 5, 7), (7, 4), id="ones"),
    pytest.param((5, 0), (0, 3), id="no-k"),
    pytest.param((2, 5, 0), (2, 0, 3), id="no-k-batched"),
    pytest.param((0,), (0,), id="no-k-vectors"),
    pytest.param((0, 7), (7, 3), id="no-rows"),
    pytest.param((5, 7), (7, 0), id="no-columns"),
    pytest.param((0, 5, 7), (7, 3), id="no-batch"),
    pytest.param((0, 1, 5, 7), (1, 3, 7, 2), id="no-batch-broadcast"),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize(
    ("dtype", "contract"),
    [
        (torch.float32, "ordered"),
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.float16, "fixed8"),
        (torch.float64, None),
    ],
)
def test_shapes_and_bits(device, a, b, dtype, contract):
    x, y = randn(*a, dtype=dtype, device=device), randn(*b, dtype=dtype, device=device, seed=1)
    result = repkernels.matmul(x, y, contract=contract)
    assert result.shape == torch.matmul(x.cpu().double(), y.cpu().double()).shape
    assert result.is_contiguous()
    rule = resolve(contract, dtype, device).forward
    assert_same_bits(result.cpu(), tensor(reference.matmul(values(x), values(y), name(dtype), rule), dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("contract", ["ordered", *FIXED])
def test_every_contract_with_bias(device, dtype, contract):
    x, y = randn(9, 33, dtype=dtype, device=device), randn(33, 10, dtype=dtype, device=device, seed=1)
    bias = randn(10, dtype=dtype, device=device, seed=2)
    result = repkernels.matmul(x, y, bias=bias, contract=contract)
    expected = reference.matmul(values(x), values(y), name(dtype), contract, values(bias))
    assert_same_bits(result.cpu(), tensor(expected, dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_hard_values(device):
    """Non-finite neighbours, cancellation, subnormals, zeros of both signs: only what they touch changes."""
    x, y = randn(6, 8, device=device), randn(8, 5, device=device, seed=1)
    x[1, 2], x[2, 3], x[3, 0] = float("nan"), float("inf"), 2.0**-140
    y[3, 4] = 0.0
    x[4], x[5] = -0.0, torch.tensor([2.0**100, 2.0**-100] * 4)
    for contract in ("ordered", *FIXED):
        result = repkernels.matmul(x, y, contract=contract)
        expected = reference.matmul(values(x), values(y), "float32", contract)
        assert_same_bits(result.cpu(), tensor(expected, torch.float32))
        assert result[2, 4].isnan()
        assert not result[4].signbit().any()


@pytest.mark.parametrize("device", DEVICES)
def test_no_k_gives_the_bias(device):
    bias = torch.tensor([1.5, -0.0, 0.0], device=device)
    for contract in ("ordered", "fixed24"):
        result = repkernels.matmul(
            torch.empty(2, 0, device=device), torch.empty(0, 3, device=device), contract=contract
        )
        assert_same_bits(result.cpu(), torch.zeros(2, 3))
        empty = torch.empty(4, 2, 0, device=device), torch.empty(0, 3, device=device)
        result = repkernels.matmul(*empty, bias=bias, contract=contract)
        assert_same_bits(result.cpu(), torch.tensor([1.5, 0.0, 0.0]).expand(4, 2, 3).contiguous())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("contract", ["ordered", "fixed16", "fixed24"])
def test_strides_change_nothing(device, contract):
    dtype = torch.float16
    rows = randn(5000, dtype=dtype, device=device).as_strided((64, 64), (65, 1))
    offset = randn(64 * 64 + 1, dtype=dtype, device=device)[1:].view(64, 64)
    batch = randn(4, 64, 3, 64, dtype=dtype, device=device).transpose(1, 2)
    b = randn(64, 64, dtype=dtype, device=device, seed=1)
    row = randn(1, 64, dtype=dtype, device=device).expand(64, 64)
    for x in (rows, offset, b.t(), b[:, ::2].repeat(1, 2), b.flip(0), batch, row, batch[1, 2].mT):
        for y in (b, b.t(), offset, row.mT):
            expected = repkernels.matmul(x.contiguous(), y.contiguous(), contract=contract)
            assert_same_bits(repkernels.matmul(x, y, contract=contract), expected)


@given(
    batch=st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["both", "a", "b"])), max_size=3),
    m=st.integers(1, 4),
    k=st.integers(0, 5),
    n=st.integers(1, 4),
    drop=st.integers(0, 3),
    contract=st.sampled_from(["ordered", "fixed24"]),
)
def test_broadcasting_is_a_loop(batch, m, k, n, drop, contract):
    a_batch = [size if who != "b" else 1 for size, who in batch]
    b_batch = [size if who != "a" else 1 for size, who in batch][drop:]
    a, b = randn(*a_batch, m, k), randn(*b_batch, k, n, seed=1)
    result = repkernels.matmul(a, b, contract=contract)
    shape = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    assert result.shape == (*shape, m, n)
    left, right = a.expand(*shape, m, k), b.expand(*shape, k, n)
    for index in np.ndindex(*shape):
        assert_same_bits(result[index], repkernels.matmul(left[index], right[index], contract=contract))


def test_the_bound_of_the_docstring_holds():
    a, b = randn(20, 300), randn(300, 20, seed=1)
    exact = a.double() @ b.double()
    for digits, contract in enumerate(FIXED, 1):
        result = repkernels.matmul(a, b, contract=contract).double()
        limit = 127 * (256**digits - 1) / 255
        m_a, m_b = a.double().abs().amax(1, keepdim=True), b.double().abs().amax(0, keepdim=True)
        sum_a, sum_b = a.double().abs().sum(1, keepdim=True), b.double().abs().sum(0, keepdim=True)
        d = (0, 0, 2**16, 2**25 + 2**16)[digits - 1]
        bound = (m_a * sum_b + m_b * sum_a) / limit + 300 * m_a * m_b * (1 + d) / limit**2 + 2**-24 * result.abs()
        assert ((result - exact).abs() <= bound).all()


def test_every_integer_is_exact():
    """No TF32 or half-precision shortcut (cases: 1)."""
    for contract in ("ordered", "fixed24", "fixed32"):
        result = repkernels.matmul(torch.ones(1, 1), torch.arange(8192.0)[None], contract=contract)
        assert torch.equal(result[0], torch.arange(8192.0))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_autograd(mode):
    a, b = randn(3, 4).requires_grad_(), randn(4, 5, seed=1)
    expected = repkernels.matmul(a, b)
    with mode():
        assert_same_bits(repkernels.matmul(a, b), expected)
        assert_same_bits(repkernels.matmul(a.clone(), b.clone()), expected)


def test_the_meta_device_gives_shapes():
    a, b = torch.empty(2, 3, 4, device="meta"), torch.empty(4, 5, device="meta", requires_grad=True)
    result = repkernels.matmul(a, b)
    assert result.is_meta
    assert result.shape == (2, 3, 5)
    result.sum().backward()
    assert b.grad.shape == (4, 5)


def test_fake_tensors():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        result = repkernels.matmul(torch.empty(2, 1, 3, 4), torch.empty(5, 4, 6), bias=torch.empty(6))
        assert result.shape == (2, 5, 3, 6)


F32 = torch.ones(3, 4)


@pytest.mark.parametrize(
    ("a", "b", "bias", "contract", "error", "message"),
    [
        (F32, F32, None, None, RuntimeError, r"a and b: shapes \(3, 4\) and \(3, 4\) do not fit"),
        (F32, torch.ones(3), None, None, RuntimeError, "do not fit"),
        (torch.ones(2, 3, 4), torch.ones(3, 4, 5), None, None, RuntimeError, r"a and b: batch sizes \(2,\) and \(3,\)"),
        (torch.ones(()), F32, None, None, RuntimeError, "^a: .*at least 1 dimension"),
        (F32, torch.ones(()), None, None, RuntimeError, "^b: .*at least 1 dimension"),
        (F32, F32.t().double(), None, None, RuntimeError, "^b: dtype torch.float64 differs from a's torch.float32"),
        (F32, F32.t().bfloat16(), None, None, RuntimeError, "^b: dtype"),
        (F32, F32.t().to("meta"), None, None, RuntimeError, "^b: on meta but a is on cpu"),
        (F32.int(), F32.t().int(), None, None, NotImplementedError, "^a: dtype torch.int32 is not supported; use one"),
        (F32, F32.t().long(), None, None, NotImplementedError, "^b: dtype torch.int64"),
        (F32.bool(), F32.t().bool(), None, None, NotImplementedError, "^a: dtype torch.bool"),
        (F32.to(torch.complex64), F32.t(), None, None, NotImplementedError, "^a: dtype torch.complex64"),
        (F32.to(torch.float8_e4m3fn), F32.t(), None, None, NotImplementedError, "^a: dtype torch.float8_e4m3fn"),
        (F32.to_sparse(), F32.t(), None, None, NotImplementedError, "^a: only dense strided"),
        (F32.numpy(), F32.t(), None, None, TypeError, "^a: expected a Tensor, got ndarray"),
        (F32, 2.0, None, None, TypeError, "^b: expected a Tensor, got float"),
        (
            F32,
            F32.t(),
            torch.ones(4),
            None,
            RuntimeError,
            r"^bias: expected shape \(3,\), one per column of b, got \(4",
        ),
        (F32, F32.t(), torch.ones(1, 3), None, RuntimeError, r"^bias: expected shape \(3,\)"),
        (F32, F32.t(), torch.ones(1), None, RuntimeError, r"^bias: expected shape \(3,\)"),
        (F32, torch.ones(4), torch.ones(3), None, RuntimeError, r"^bias: expected shape \(\)"),
        (F32, F32.t(), torch.ones(3).double(), None, RuntimeError, "^bias: dtype"),
        (F32, F32.t(), torch.ones(3).long(), None, NotImplementedError, "^bias: dtype"),
        (F32, F32.t(), torch.ones(3, device="meta"), None, RuntimeError, "^bias: on meta"),
        (F32, F32.t(), 1.0, None, TypeError, "^bias: expected a Tensor"),
        (F32, F32.t(), None, "fast", ValueError, "^contract: unknown contract 'fast'"),
        (F32, F32.t(), None, "native", ValueError, "^contract: 'native'"),
        (F32.double(), F32.t().double(), None, "fixed32", ValueError, "^contract: 'fixed32' is not defined"),
        (F32, F32.t(), None, 3, TypeError, "^contract: expected a name"),
    ],
)
def test_bad_input(a, b, bias, contract, error, message, monkeypatch):
    monkeypatch.setitem(repkernels.matmul.__globals__, "backend", None)  # any launch would fail with another error
    with pytest.raises(error, match=message):
        repkernels.matmul(a, b, bias=bias, contract=contract)


def test_bias_of_a_matrix_vector_product_is_a_scalar():
    a, b, bias = randn(3, 4), randn(4, seed=1), torch.tensor(0.5)
    expected = repkernels.matmul(a, b[:, None], bias=bias[None])[:, 0]
    assert_same_bits(repkernels.matmul(a, b, bias=bias), expected)
    assert_same_bits(repkernels.matmul(a[0], b, bias=bias), expected[0])


def test_float32_matmul_precision_does_not_reach_it():
    a, b = randn(64, 300), randn(300, 64, seed=1)
    expected = [repkernels.matmul(a, b, contract=c) for c in ("ordered", "fixed24")]
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        actual = [repkernels.matmul(a, b, contract=c) for c in ("ordered", "fixed24")]
    finally:
        torch.set_float32_matmul_precision(before)
    for x, y in zip(actual, expected, strict=True):
        assert_same_bits(x, y)


def test_thread_counts_change_nothing():
    a, b = randn(70, 400, seed=3), randn(400, 50, seed=1)
    results, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append([repkernels.matmul(a, b, contract=c) for c in ("ordered", "fixed16", "fixed32")])
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for x, y in zip(other, results[0], strict=True):
            assert_same_bits(x, y)


@pytest.mark.parametrize("contract", ["ordered", *FIXED])
def test_a_row_does_not_know_its_batch(contract):
    a, b = randn(65, 50), randn(50, 30, seed=1)
    whole = repkernels.matmul(a, b, contract=contract)
    for i in (0, 31, 64):
        assert_same_bits(repkernels.matmul(a[i], b, contract=contract), whole[i])
        assert_same_bits(repkernels.matmul(a[i:], b, contract=contract), whole[i:])
    stacked = repkernels.matmul(a.view(5, 13, 50), b, contract=contract)
    assert_same_bits(stacked.view(65, 30), whole)


def test_default_device_is_no_matter():
    a, b = randn(3, 5), randn(5, 2, seed=1)
    wanted = {contract: repkernels.matmul(a, b, contract=contract) for contract in ("ordered", "fixed24")}
    with torch.device("meta"):
        found = {contract: repkernels.matmul(a, b, contract=contract) for contract in wanted}
    for contract, result in wanted.items():
        assert_same_bits(found[contract], result)
