"""Mixtures of experts: router, order of rows, sums by slot, the whole against the reference, gradients."""

import pytest
import torch

import repkernels
from reference import moe as reference
from repkernels.nn import functional
from repkernels.ops import moe as operations
from repkernels.ops import plain
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

pytestmark = pytest.mark.slow


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_router(backend, dtype):
    """Ties, infinities and NaN; both ways, composed and in one kernel."""
    logits = randn(9, 11, dtype=dtype)
    logits[1, 3:8], logits[2], logits[3, 4], logits[4, 5], logits[5, 2] = 2.0, 0.5, float("nan"), float("inf"), -1e30
    for k, norm in ((3, True), (1, False), (11, True)):
        weights, index = torch.empty(9, k), torch.empty(9, k, dtype=torch.int64)
        on = [x.to(backend.device) for x in (weights, index)]
        if not backend.module("moe").router(logits.to(backend.device), norm, *on):
            on = operations._composed_router(logits, k, norm)
        wanted, experts = reference.router(values(logits), k, norm)
        assert_same_bits(on[0].cpu(), torch.from_numpy(wanted))
        assert (on[1].cpu() == torch.from_numpy(experts)).all()


@each_backend
def test_order_and_sums(backend):
    """Slots by ascending expert, then by place; the sum of a token's rows in the order of its slots."""
    index = torch.randint(0, 6, (70, 3), generator=torch.Generator().manual_seed(1))  # 5 stands for none
    order, inverse, offs = (torch.empty(n, dtype=t, device=backend.device)
                            for n, t in ((210, torch.int64), (210, torch.int64), (5, torch.int32)))  # fmt: skip
    if backend.module("moe").groups(index.reshape(-1).to(backend.device), 5, order, inverse, offs):
        wanted = torch.sort(index.reshape(-1), stable=True)[1]
        assert (order.cpu() == wanted).all() and (wanted[inverse.cpu()] == torch.arange(210)).all()
        assert offs.tolist() == [int((index <= g).sum()) for g in range(5)]
    order, inverse, offs = operations._groups(index.int(), 5)
    assert offs.tolist() == [int((index <= g).sum()) for g in range(5)]
    for dtype in (torch.float32, torch.bfloat16):
        x, w = randn(210, 33, dtype=dtype), randn(70, 3, seed=1)
        x[5, 1], w[3, 0] = float("nan"), -0.0
        out = torch.empty(70, 33, dtype=dtype, device=backend.device)
        on = [t.to(backend.device) for t in (x, w, inverse)]
        backend.module("moe").combine(on[0], on[1], on[2], 3, out)
        terms = x[inverse].view(70, 3, 33).float() * w[:, :, None]
        assert_same_bits(out.cpu(), ((terms[:, 0] + terms[:, 1]) + terms[:, 2]).to(dtype))
        backend.module("moe").rows(out, on[2] * 0 + order.to(backend.device), 3, on[0])
        assert_same_bits(on[0].cpu(), out.cpu()[order // 3])


def experts(dtype, device="cpu", tokens=7, count=4, hidden=12, inner=9):
    x = randn(tokens, hidden, dtype=dtype, device=device)
    gate_up = randn(count, 2 * inner, hidden, dtype=dtype, device=device, seed=1)
    down = randn(count, hidden, inner, dtype=dtype, device=device, seed=2)
    weights, index = functional.topk_router(randn(tokens, count, device=device, seed=3), 2)
    return x, index, weights, gate_up, down


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("dtype", "contract", "activation"), [
    (torch.float32, "fixed24", "silu"), (torch.bfloat16, "fixed16", "gelu_tanh"), (torch.float32, "ordered", "gelu"),
])  # fmt: skip
def test_moe(device, dtype, contract, activation):
    """The reference's tokens; each alone; kept digits; an expert that is not there."""
    x, index, weights, gate_up, down = experts(dtype, device)
    index[2, 1] = 4
    gated = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}[activation]
    out = functional.moe(x, index, weights, gate_up, down, activation, contract=contract)
    arrays = (values(x), index.cpu().numpy(), values(weights), values(gate_up), values(down))
    assert_same_bits(out.cpu(), tensor(reference.forward(*arrays, gated, name(dtype), contract), dtype))
    alone = functional.moe(x[None, 3:4], index[None, 3:4], weights[None, 3:4],
                           repkernels.prepare(gate_up, contract), repkernels.prepare(down, contract), activation,
                           contract=contract)  # fmt: skip
    assert_same_bits(alone[0], out[3:4])


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_are_those_of_the_parts(device):
    x, index, weights, gate_up, down = experts(torch.float32, device)
    leaves = [t.requires_grad_() for t in (x, weights, gate_up, down)]
    g = randn(7, 12, device=device, seed=5)
    out = functional.moe(x, index, weights, gate_up, down)
    found = torch.autograd.grad(out, leaves, g)
    parts = []
    for j in range(2):
        rows = []
        for i, e in enumerate(index[:, j].tolist()):
            h = functional.swiglu(functional.linear(x[i : i + 1], gate_up[e]))
            rows.append(functional.linear(h, down[e]))
        parts.append(plain.multiply(torch.cat(rows), weights[:, j : j + 1]))
    composed = plain.add(parts[0], parts[1])
    assert_same_bits(out, composed)
    wanted = torch.autograd.grad(composed, leaves, g)
    assert_same_bits(found[0], wanted[0])
    assert_same_bits(found[1], wanted[1])
    for a, b in zip(found[2:], wanted[2:], strict=True):  # a contraction over the rows, not a sum of their products
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_gradient_of_the_router():
    logits = randn(5, 7).requires_grad_()
    weights, index = functional.topk_router(logits, 3)
    theirs, same = torch.softmax(logits, -1).topk(3)
    assert (index == same).all()
    g = randn(5, 3, seed=1).requires_grad_()
    for norm in (True, False):
        found = []
        for y in (functional.topk_router(logits, 3, norm)[0], operations._composed_router(logits, 3, norm)[0]):
            (grad,) = torch.autograd.grad(y, logits, g, create_graph=True)
            found.append([y, grad, *torch.autograd.grad(grad.square().sum(), (logits, g))])
        for a, b in zip(found[0][:2], found[1][:2], strict=True):
            assert_same_bits(a, b)
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights, theirs / theirs.sum(-1, keepdim=True))


def test_compiled_code_follows_the_contract_in_force():
    x, _, _, gate_up, down = experts(torch.float32)
    logits, q = randn(7, 4, seed=3), functional.quantize_int8(randn(5, 12))

    def function(x, logits):
        weights, index = functional.topk_router(logits, 2)
        mixed = functional.moe(x, index, weights, gate_up, down)
        return functional.softcap(functional.int8_linear(mixed, *q), 30.0)

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for contract in ("fixed16", "fixed32"):
        found = []
        for f in (compiled, function):
            leaves = [x.clone().requires_grad_(), logits.clone().requires_grad_()]
            with repkernels.contract(contract):
                y = f(*leaves)
            found.append([y, *torch.autograd.grad(y, leaves, randn(7, 5, seed=6))])
        for a, b in zip(*found, strict=True):
            assert_same_bits(a, b)


def test_errors():
    x, index, weights, gate_up, down = experts(torch.float32)
    for arguments, error, message in (
        ((x, index, weights, gate_up, down, "tanh"), ValueError, "activation: unknown 'tanh'"),
        ((x, index, weights, gate_up[:, :, 1:], down), RuntimeError, "gate_up_proj: expected"),
        ((x, index, weights, gate_up, down.mT), RuntimeError, "down_proj: expected"),
        ((x, index, weights[:1], gate_up, down), RuntimeError, "top_k_weights: expected"),
        ((x, index.float(), weights, gate_up, down), NotImplementedError, "top_k_index: dtype"),
        ((x, index, weights, gate_up.half(), down), RuntimeError, "gate_up_proj: dtype torch.float16 differs"),
    ):
        with pytest.raises(error, match=message):
            functional.moe(*arguments)
    with pytest.raises(RuntimeError, match="k: expected 1 <= k"):
        functional.topk_router(x, 13)
    nothing = functional.moe(x[:0], index[:0], weights[:0], gate_up, down)
    assert nothing.shape == (0, 12)
