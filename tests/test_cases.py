"""What people report of today's libraries, and what holds here (README, "Limits" says what does not)."""

import math

import numpy as np
import pytest
import torch

import repkernels
from reference import matmul as reference
from repkernels.nn import functional
from repkernels.ops.sum import sum_rows
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

CONTRACTS = ("ordered", "fixed8", "fixed16", "fixed24", "fixed32")
HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)

pytestmark = pytest.mark.parametrize("device", DEVICES)


@pytest.mark.parametrize("contract", ["ordered", "fixed32", "fixed24"])
@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
def test_no_tf32_in_fp32(device, contract, precision):
    """Every integer below 8192 is exact; TF32 gives 2048 at index 2049. torch's precision setting must not reach us."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        wanted = torch.arange(8192.0, device=device)[None]
        found = repkernels.matmul(torch.ones(1, 1, device=device), wanted, contract=contract)
        assert_same_bits(found, wanted)
        # The same with other rows around, and as a product over a longer k.
        a = torch.ones(65, 2, device=device)
        assert_same_bits(repkernels.matmul(a, wanted.expand(2, -1), contract=contract), (2 * wanted).expand(65, -1))
    finally:
        torch.set_float32_matmul_precision(before)


def test_threads_change_no_sum(device):
    """torch's own float sum of these terms is 0, 131072, 0 and -16384 at 1, 2, 4 and 6 threads."""
    x = (torch.arange(8 * 80**3, dtype=torch.float64) - 4 * 80**3 + 0.5).float()
    shapes = {"column": x[:, None], "rows": x.view(-1, 80)}
    before = torch.get_num_threads()
    try:
        for name_, rows in shapes.items():
            found = []
            for threads in (1, 2, 4, 6):
                torch.set_num_threads(threads)
                found.append(sum_rows(rows.to(device)).cpu())
            for other in found[1:]:
                assert_same_bits(other, found[0])
            assert np.isfinite(found[0].numpy()).all(), name_
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("bias", [False, True])
def test_expanded_gradients(device, dtype, bias):
    """sum().backward() hands a stride-0 gradient to the products of the backward pass."""

    def gradients(expanded):
        x = randn(7, 33, dtype=dtype, device=device).requires_grad_()
        weight = randn(13, 33, dtype=dtype, device=device, seed=1).requires_grad_()
        b = randn(13, dtype=dtype, device=device, seed=2).requires_grad_() if bias else None
        out = functional.linear(x, weight, b)
        ones = torch.ones((), dtype=dtype, device=device).expand(7, 13)
        out.backward(ones if expanded else ones.contiguous())
        return [p.grad for p in (x, weight, b) if p is not None]

    for expanded, contiguous in zip(gradients(True), gradients(False), strict=True):
        assert_same_bits(expanded, contiguous)


def test_sum_backward_is_the_contiguous_gradient(device):
    x, weight = randn(7, 33, device=device).requires_grad_(), randn(13, 33, device=device, seed=1)
    functional.linear(x, weight).sum().backward()
    (wanted,) = torch.autograd.grad(functional.linear(x, weight), x, torch.ones(7, 13, device=device))
    assert_same_bits(x.grad, wanted)


@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
@pytest.mark.parametrize("contract", CONTRACTS)
def test_unaligned_rows(device, dtype, contract):
    x = randn(5000, dtype=dtype, device=device)
    b = randn(64, 37, dtype=dtype, device=device, seed=1)
    for a in (x.as_strided((64, 64), (65, 1)), x[1 : 1 + 4096].view(64, 64), x.as_strided((64, 64), (65, 1), 1)):
        assert_same_bits(
            repkernels.matmul(a, b, contract=contract), repkernels.matmul(a.contiguous(), b, contract=contract)
        )
    shifted = randn(1 + 64 * 37, dtype=dtype, device=device, seed=1)[1:].view(64, 37)
    a = x[:4096].view(64, 64)
    assert_same_bits(
        repkernels.matmul(a, shifted, contract=contract), repkernels.matmul(a, shifted.clone(), contract=contract)
    )


@pytest.fixture
def poisoned(device):
    """Freed memory of the sizes below holds NaN, so that a result nobody wrote shows."""
    for count in (1, 6, 8, 12, 16, 24, 64):
        kept = [torch.full((count,), math.nan, device=device) for _ in range(32)]
        del kept


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((2, 0), (0, 3)),
        ((3, 2, 0), (0, 4)),
        ((3, 2, 0), (3, 0, 4)),
        ((0, 5), (5, 3)),
        ((2, 5), (5, 0)),
        ((0,), (0,)),
        ((0, 0), (0, 0)),
    ],
)
def test_nothing_to_contract(poisoned, device, contract, a_shape, b_shape):
    a = torch.ones(a_shape, device=device, requires_grad=True)
    b = torch.ones(b_shape, device=device, requires_grad=True)
    out = repkernels.matmul(a, b, contract=contract)
    assert_same_bits(out, torch.zeros_like(torch.matmul(a, b)))
    out.backward(torch.ones_like(out))
    assert_same_bits(a.grad, torch.zeros(a_shape))
    assert_same_bits(b.grad, torch.zeros(b_shape))


@pytest.mark.parametrize("contract", CONTRACTS)
def test_nothing_to_contract_gives_the_bias(poisoned, device, contract):
    bias = torch.tensor([1.0, -0.0, -2.0], device=device, requires_grad=True)
    out = functional.linear(torch.ones(4, 0, device=device), torch.ones(3, 0, device=device), bias, contract=contract)
    assert_same_bits(out, torch.tensor([1.0, 0.0, -2.0]).expand(4, 3))
    out.backward(torch.ones_like(out))
    assert_same_bits(bias.grad, torch.full((3,), 4.0))


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, 3e38])
def test_neighbours_of_a_special_row_keep_their_bits(device, contract, special):
    a, b = randn(33, 70, device=device), randn(70, 20, device=device, seed=1)
    wanted = repkernels.matmul(a, b, contract=contract)
    a[2, 5] = special
    found = repkernels.matmul(a, b, contract=contract)
    others = [i for i in range(33) if i != 2]
    assert_same_bits(found[others], wanted[others])
    b[3, 7] = special
    columns = [j for j in range(20) if j != 7]
    assert_same_bits(repkernels.matmul(a, b, contract=contract)[others][:, columns], wanted[others][:, columns])


@pytest.mark.parametrize("contract", CONTRACTS)
def test_rows_of_far_magnitudes(device, contract):
    """Rows near 2^100 and 2^-100 side by side, and elements of both within a row."""
    a, b = randn(33, 70, device=device), randn(70, 20, device=device, seed=1)
    powers = torch.where(torch.arange(33, device=device) % 2 == 0, 2.0**100, 2.0**-100)[:, None]
    wanted = repkernels.matmul(a, b, contract=contract) * powers
    assert_same_bits(repkernels.matmul(a * powers, b, contract=contract), wanted)
    mixed = a * torch.where(torch.arange(70, device=device) % 3 == 0, 2.0**100, 2.0**-100)
    whole = repkernels.matmul(mixed, b, contract=contract)
    assert_same_bits(whole, tensor(reference.matmul(values(mixed), values(b), "float32", contract), torch.float32))
    assert_same_bits(whole[4], repkernels.matmul(mixed[4], b, contract=contract))


# SPEC.md, "Cancellation".
CANCELLATION = {"ordered": 0.0, "fixed8": 0.0, "fixed16": 0.0, "fixed24": 0.0, "fixed32": 1.0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("contract", CONTRACTS)
def test_cancellation(device, contract, dtype):
    a = torch.tensor([2.0**24, 1, -(2.0**24)], dtype=dtype, device=device)
    found = repkernels.matmul(a, torch.ones(3, dtype=dtype, device=device), contract=contract)
    assert found.item() == CANCELLATION[contract]
    assert float(reference.matmul(values(a), np.ones(3, np.float32), name(dtype), contract)) == CANCELLATION[contract]


@pytest.mark.parametrize("contract", CONTRACTS)
def test_order_of_k_matters_only_where_the_contract_says(device, contract):
    a, b = randn(5, 300, device=device), randn(300, 7, device=device, seed=1)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0)).to(device)
    found = repkernels.matmul(a[:, order], b[order], contract=contract)
    wanted = repkernels.matmul(a, b, contract=contract)
    if contract == "ordered":
        assert (found != wanted).any()
    else:
        assert_same_bits(found, wanted)
