"""Every operation as torch sees it: opcheck, subclasses, modes, profiling."""

import subprocess
import sys

import pytest
import torch

import repkernels
from repkernels.nn.functional import cross_entropy, linear, relu
from repkernels.ops.sum import sum_rows
from repkernels.optim import SGD
from tests.support import DEVICES, assert_same_bits, randn


def _cases(device):
    a = randn(2, 3, 4, device=device).requires_grad_()
    b = randn(4, 5, device=device, seed=1).requires_grad_()
    bias = randn(5, device=device, seed=2).requires_grad_()
    token = torch.tensor(3, dtype=torch.uint8)
    target = torch.tensor([1, -100, 0], device=device)
    p, g, v = (randn(3, 2, device=device, seed=i) for i in range(3))
    scalars = (0.1, 0.9, 0.0, 0.01, False, False, False)
    return [
        ("matmul", (a, b, bias, 0, "fixed16", "ordered")),
        ("matmul", (a[0], b, None, 0, "ordered", "fixed8")),
        ("matmul", (a.detach()[:, :0], b.detach(), None, 0, "fixed24", "fixed24")),
        ("contract_in_force", (a,)),
        ("matmul_by_token", (a, b, bias, 0, token, False)),
        ("matmul_by_token", (a, b, None, 0, token, True)),
        ("sum_rows", (b,)),
        ("repeat_rows", (bias, 3)),
        ("cross_entropy", (randn(3, 4, device=device).requires_grad_(), target, None, 0.0, -100)),
        ("quotient", (bias[0].detach().requires_grad_(), torch.tensor(3.0, device=device))),
        ("sgd_step", (p, g, v, *scalars)),
        ("sgd_step", (p.bfloat16(), g.bfloat16(), None, 0.1, 0.0, *scalars[2:])),
    ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("index", range(len(_cases("cpu"))), ids=lambda i: _cases("cpu")[i][0])
def test_opcheck(device, index):
    name, args = _cases(device)[index]
    torch.library.opcheck(getattr(torch.ops.repkernels, name).default, args)


def test_the_direct_call_and_the_dispatched_one_agree():
    a, b, bias = randn(2, 3, 4), randn(4, 5, seed=1), randn(5, seed=2)
    direct = repkernels.matmul(a, b, bias=bias, contract=("fixed16", "ordered"))
    assert_same_bits(torch.ops.repkernels.matmul(a, b, bias, 0, "fixed16", "ordered"), direct)
    with repkernels.contract(("fixed16", "ordered")):
        token = torch.ops.repkernels.contract_in_force(a)
    assert_same_bits(torch.ops.repkernels.matmul_by_token(a, b, bias, 0, token, False), direct)
    gradient = torch.ops.repkernels.matmul_by_token(a, b, None, 0, token, True)
    assert_same_bits(gradient, repkernels.matmul(a, b, contract="ordered"))


def test_dispatch_modes_see_the_operation():
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Record(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    with Record():
        linear(randn(3, 4), randn(5, 4))
    assert "repkernels::matmul" in seen


def test_subclasses_go_through_torch():
    class Marked(torch.Tensor):
        pass

    a, b = randn(3, 4).as_subclass(Marked), randn(4, 5, seed=1)
    assert_same_bits(
        repkernels.matmul(a, b).as_subclass(torch.Tensor), repkernels.matmul(a.as_subclass(torch.Tensor), b)
    )


def test_a_trace_by_torch_jit_is_refused():
    with pytest.raises(NotImplementedError, match="torch.jit.trace"):
        torch.jit.trace(sum_rows, randn(3, 2), check_trace=False)


def test_make_fx_traces_it():
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(lambda a, b: repkernels.matmul(a, b))(randn(3, 4), randn(4, 5, seed=1))
    assert "repkernels.matmul" in graph.code


def test_sum_rows_checks_and_differentiates():
    x = randn(5, 3, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(sum_rows, x)
    assert torch.autograd.gradgradcheck(sum_rows, x)
    with pytest.raises(RuntimeError, match="^x: expected 2 dimensions"):
        sum_rows(randn(3))
    with pytest.raises(NotImplementedError, match="^x: dtype"):
        sum_rows(torch.ones(2, 2, dtype=torch.int64))


def test_importing_loads_no_compiler():
    """A CPU without Triton imports the library, and a GPU machine without numba."""
    code = "import sys, repkernels; print([m for m in ('triton', 'numba') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("contract", ["ordered", "fixed16"])
def test_the_negative_bit_is_part_of_the_value(device, contract):
    a, b, bias = (randn(*s, device=device, seed=i) for i, s in enumerate([(3, 4), (4, 5), (5,)]))
    na, nb, nbias = (torch._neg_view(x) for x in (a, b, bias))
    assert_same_bits(
        repkernels.matmul(na, nb, bias=nbias, contract=contract),
        repkernels.matmul(-a, -b, bias=-bias, contract=contract),
    )
    weight = torch._neg_view(randn(5, 4, device=device))
    expected = repkernels.matmul(a, weight.resolve_neg().t(), contract=contract)
    assert_same_bits(repkernels.matmul(a, repkernels.prepare(weight, contract=contract), contract=contract), expected)
    assert_same_bits(linear(a, weight, contract=contract), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_the_negative_bit_in_sums_losses_relu_and_steps(device):
    x, target = randn(3, 4, device=device), torch.tensor([1, 0, 3], device=device)
    for f in (sum_rows, relu, lambda x: cross_entropy(x, target)):
        of_view, of_copy = torch._neg_view(x).requires_grad_(), (-x).requires_grad_()
        assert_same_bits(f(of_view), f(of_copy))
        (g,), (h,) = (torch.autograd.grad(f(v).sum(), v) for v in (of_view, of_copy))
        assert_same_bits(g.resolve_neg(), h)
    steps = []
    for grad in (torch._neg_view(x), -x):
        p = torch.nn.Parameter(torch.ones_like(x))
        p.grad = grad
        SGD([p], lr=0.1, momentum=0.9).step()
        steps.append(p.detach())
    assert_same_bits(*steps)


@pytest.mark.parametrize("device", DEVICES)
def test_batched_gradients(device):
    a, w, bias = randn(6, 4, device=device), randn(2, 4, device=device, seed=1), randn(2, device=device, seed=2)
    leaves = [x.requires_grad_() for x in (a, w, bias)]
    y, rows = linear(*leaves), randn(3, 6, 2, device=device, seed=3)
    together = torch.autograd.grad(y, leaves, rows, is_grads_batched=True, retain_graph=True)
    apart = [torch.autograd.grad(y, leaves, row, retain_graph=True) for row in rows]
    for batch, each in zip(together, zip(*apart, strict=True), strict=True):
        assert_same_bits(batch, torch.stack(each))
