"""Grouped products: bits against the reference on both backends, rows alone, gradients, kept digits, errors."""

import pytest
import torch

import repkernels
from reference import grouped_mm as reference
from repkernels.kernels.engine import use_engine
from repkernels.nn import functional
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

pytestmark = pytest.mark.slow

# Groups of one row, none, more than a tile; rows that no group has.
OFFS = torch.tensor([1, 1, 1, 36, 40, 40], dtype=torch.int32)
CASES = [
    ("fixed16", torch.bfloat16), ("fixed24", torch.float32), ("fixed32", torch.float32), ("ordered", torch.float32),
    ("ordered", torch.float64),
]  # fmt: skip


def operands(dtype, device, rows=43, k=37, n=21):
    a, b, g = randn(rows, k, dtype=dtype), randn(len(OFFS), k, n, dtype=dtype, seed=1), randn(rows, n, seed=2)
    a[3, 5], b[3, 2, 7], b[4, 1, 0] = float("inf"), float("nan"), -float("inf")
    return a.to(device), b.to(device), g.to(device, dtype)


@each_backend
@pytest.mark.parametrize(("contract", "dtype"), CASES)
def test_kernels(backend, contract, dtype):
    """Results and gradients; matrices by rows and by columns, sizes that no tile divides."""
    a, b, g = operands(dtype, backend.device)
    offs = OFFS.to(backend.device)
    kernels = backend.module("grouped_mm")
    for laid_out in (b, b.mT.contiguous().mT):
        out = torch.empty(len(a), b.shape[2], dtype=dtype, device=backend.device)
        kernels.grouped_mm(a, laid_out, offs, out, contract, None)
        wanted = reference.forward(values(a), values(b), OFFS.numpy(), name(dtype), contract)
        assert_same_bits(out.cpu(), tensor(wanted, dtype))
    out = torch.empty_like(b)
    kernels.grouped_mm_weight(a, g, offs, out, contract)
    _, wanted = reference.gradients(values(g), values(a), values(b), OFFS.numpy(), name(dtype), contract)
    assert_same_bits(out.cpu(), tensor(wanted, dtype))


@each_backend
def test_native_rows_alone(backend):
    """What a row is does not depend on the rows around it, nor a matrix's gradient on other groups."""
    if backend.package == "cpu":
        pytest.skip("on a CPU native is ordered")
    kernels, offs = backend.module("grouped_mm"), OFFS.to(backend.device)
    for k, n in ((128, 64), (37, 21)):
        a, b, g = (randn(*s, dtype=torch.bfloat16, device=backend.device) for s in ((43, k), (6, k, n), (43, n)))
        wanted = torch.cat([backend.module("matmul").matmul(a[None, i : i + 1], b[None, j], None, "native")[0]
                            for i, j in ((0, 0), (5, 3), (35, 3), (39, 4))])  # fmt: skip
        out = a.new_empty(43, n)
        kernels.grouped_mm(a, b, offs, out, "native", None)
        assert_same_bits(out[[0, 5, 35, 39]], wanted)
        out = torch.empty_like(b)
        kernels.grouped_mm_weight(a, g, offs, out, "native")
        wanted = backend.module("matmul").matmul(a[None, 1:36].mT, g[None, 1:36], None, "native")[0]
        assert_same_bits(out[3], wanted)
        assert (out[1] == 0).all() and (out[5] == 0).all()


@each_backend
def test_window16_and_no_rows(backend):
    a, b, g = operands(torch.bfloat16, backend.device)
    offs = OFFS.to(backend.device)
    kernels = backend.module("grouped_mm")
    found = []
    for engine in ("int8", "window16"):
        with use_engine(engine):
            out, weight = g.new_empty(g.shape), torch.empty_like(b)
            kernels.grouped_mm(a, b, offs, out, "fixed16", None)
            kernels.grouped_mm_weight(a, g, offs, weight, "fixed16")
            found.append((out, weight))
    for x, y in zip(*found, strict=True):
        assert_same_bits(x, y)
    weight = torch.full_like(b, float("nan"))
    kernels.grouped_mm_weight(a[:0], g[:0], offs * 0, weight, "fixed16")
    assert (weight == 0).all()
    out = torch.full_like(g, float("nan"))
    kernels.grouped_mm(a[:, :0], b[:, :0], offs, out, "fixed16", None)
    assert (out == 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_function(device):
    """Rows as `matmul` has them alone, gradients by the second name of the contract, digits that are kept."""
    offs, weight = OFFS.to(device), torch.nn.Parameter(randn(6, 21, 37, device=device, seed=1))
    a = randn(43, 37, device=device).requires_grad_()
    out = functional.grouped_mm(a, weight.mT, offs=offs)
    assert_same_bits(out[5:6], repkernels.matmul(a[5:6], weight[3].T))
    assert (out[40:] == 0).all()
    g = randn(43, 21, device=device, seed=2)
    grad_a, grad_b = torch.autograd.grad(out, (a, weight), g)
    assert_same_bits(grad_a[5:6], repkernels.matmul(g[5:6], weight[3], contract="fixed32"))
    assert_same_bits(grad_b[3], repkernels.matmul(g[1:36].T, a[1:36], contract="fixed32"))
    assert grad_b.is_contiguous()
    for keep in ("digits", "scales"):
        prepared = repkernels.prepare(weight, keep=keep)
        assert_same_bits(functional.grouped_mm(a, prepared, offs=offs), out)
    torch.library.opcheck(
        torch.ops.repkernels.grouped_mm,
        (a, weight.mT, offs, None, 0, "fixed24", "fixed32"),
        test_utils="test_faketensor",
    )


def test_gradients_of_gradients():
    a, b = randn(7, 3, dtype=torch.float64).requires_grad_(), randn(2, 3, 4, dtype=torch.float64).requires_grad_()
    offs = torch.tensor([2, 6], dtype=torch.int32)

    def function(x, y):
        return functional.grouped_mm(x, y, offs=offs)

    assert torch.autograd.gradcheck(function, (a, b))
    assert torch.autograd.gradgradcheck(function, (a, b))


def test_errors():
    a, b, offs = torch.ones(4, 3), torch.ones(2, 3, 5), torch.tensor([1, 4], dtype=torch.int32)
    for arguments, error, message in (
        ((a, b.mT, offs), RuntimeError, "mat_a and mat_b: expected shapes"),
        ((a, b.half(), offs), RuntimeError, "mat_b: dtype torch.float16 differs"),
        ((a, b, offs.long()), NotImplementedError, "offs: dtype torch.int64"),
        ((a, b, offs[:1]), RuntimeError, "offs: expected shape"),
        ((a.int(), b, offs), NotImplementedError, "mat_a: dtype torch.int32"),
    ):
        with pytest.raises(error, match=message):
            functional.grouped_mm(arguments[0], arguments[1], offs=arguments[2])
    with pytest.raises(ValueError, match="native"):
        functional.grouped_mm(a, b, offs=offs, contract="native")
