"""Gradients of matmul: torch's in fp64, the reference's bits elsewhere, the captured contract, and every transform."""

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint

import repkernels
from reference import matmul as reference
from repkernels.contract import resolve
from repkernels.nn.functional import linear
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

SHAPES = [
    ((5, 7), (7, 3)),
    ((7,), (7,)),
    ((7,), (7, 3)),
    ((5, 7), (7,)),
    ((2, 5, 7), (7,)),
    ((7,), (2, 7, 3)),
    ((2, 5, 7), (7, 3)),
    ((5, 7), (2, 7, 3)),
    ((2, 3, 5, 7), (2, 3, 7, 4)),
    ((2, 1, 5, 7), (1, 3, 7, 4)),
    ((3, 5, 7), (2, 1, 7, 4)),
    ((2, 3, 1, 7), (3, 7, 1)),
]
EMPTY = [((5, 0), (0, 3)), ((0, 7), (7, 3)), ((5, 7), (7, 0)), ((0, 5, 7), (7, 3)), ((0, 1, 5, 7), (1, 3, 7, 2))]


def _operands(a, b, dtype=torch.float32, device="cpu"):
    x, y = randn(*a, dtype=dtype, device=device), randn(*b, dtype=dtype, device=device, seed=1)
    return x.requires_grad_(), y.requires_grad_()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("a", "b"), SHAPES + EMPTY)
@pytest.mark.parametrize(
    ("dtype", "contract"), [(torch.float32, "ordered"), (torch.float32, None), (torch.bfloat16, None)]
)
def test_bits(device, a, b, dtype, contract):
    x, y = _operands(a, b, dtype, device)
    result = repkernels.matmul(x, y, contract=contract)
    grad = randn(*result.shape, dtype=dtype, device=device, seed=2)
    actual = torch.autograd.grad(result, (x, y), grad)
    rule = resolve(contract, dtype, device).gradient
    expected = reference.gradients(values(grad), values(x), values(y), name(dtype), rule)
    for got, want in zip(actual, expected, strict=True):
        assert_same_bits(got.cpu(), tensor(want, dtype))


@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_first_and_second_order_in_fp64(a, b):
    a, b = ([min(size, 3) for size in shape] for shape in (a, b))
    x, y = _operands(a, b, torch.float64)
    bias = None
    if len(b) > 1:
        bias = randn(b[-1], dtype=torch.float64, seed=3).requires_grad_()
    inputs = (x, y) if bias is None else (x, y, bias)

    def product(x, y, bias=None):
        return repkernels.matmul(x, y, bias=bias)

    assert torch.autograd.gradcheck(product, inputs)
    assert torch.autograd.gradgradcheck(product, inputs)


def test_second_order_is_made_of_the_same_contractions():
    """The gradient of <u, g y^T> with respect to g is u y, under the gradient contract."""
    x, y = _operands((5, 7), (7, 3))
    g = randn(5, 3, seed=2).requires_grad_()
    (grad_x,) = torch.autograd.grad(repkernels.matmul(x, y, contract=("fixed8", "fixed16")), x, g, create_graph=True)
    assert_same_bits(grad_x.detach(), repkernels.matmul(g, y.t(), contract="fixed16").detach())
    u = randn(5, 7, seed=4)
    grad_g, grad_y = torch.autograd.grad(grad_x, (g, y), u)
    assert_same_bits(grad_g, repkernels.matmul(u, y, contract="fixed16").detach())
    assert_same_bits(grad_y, repkernels.matmul(u.t(), g, contract="fixed16").detach())


def test_the_gradient_of_a_bias_is_a_sum():
    x, y = randn(4, 3, 5), randn(5, 6, seed=1)
    bias = randn(6, seed=2).requires_grad_()
    grad = randn(4, 3, 6, seed=3)
    (actual,) = torch.autograd.grad(repkernels.matmul(x, y, bias=bias), bias, grad)
    assert_same_bits(actual, tensor(reference.bias_gradient(values(grad), "float32"), torch.float32))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("contract", ["ordered", "fixed16", None])
def test_an_expanded_gradient_is_its_copy(device, contract):
    """cases: 10."""
    x, w, bias = randn(6, 9, 7, device=device), randn(5, 7, device=device, seed=1), randn(5, device=device, seed=2)
    inputs = [t.requires_grad_() for t in (x, w, bias)]
    result = linear(*inputs, contract=contract)
    expanded = torch.autograd.grad(result.sum(), inputs, retain_graph=True)
    written = torch.autograd.grad(result, inputs, torch.ones_like(result))
    for got, want in zip(expanded, written, strict=True):
        assert_same_bits(got, want)


def test_only_what_is_asked_for_is_computed(monkeypatch):
    calls = []
    kernels = repkernels.matmul.__globals__["backend"]("matmul", "cpu")
    monkeypatch.setattr(kernels, "matmul", lambda *args, run=kernels.matmul: calls.append(1) or run(*args))
    for needs in ((True, False), (False, True), (True, True)):
        x, y = randn(3, 4).requires_grad_(needs[0]), randn(4, 5, seed=1).requires_grad_(needs[1])
        result = repkernels.matmul(x, y)
        saved = [t for t in result.grad_fn.saved_tensors if t is not None and t.numel()]
        assert len(saved) == sum(needs)
        calls.clear()
        result.sum().backward()
        assert len(calls) == sum(needs)


@pytest.mark.parametrize("column_major", [False, True])
def test_gradients_are_laid_out_as_their_operands(column_major):
    x, y = randn(5, 7).requires_grad_(), randn(7, 4, seed=1)
    if column_major:
        y = y.t().contiguous().t()
    y.requires_grad_()
    actual = torch.autograd.grad(repkernels.matmul(x, y), (x, y), randn(5, 4, seed=2))
    assert [g.stride() for g in actual] == [x.stride(), y.stride()]


def test_the_contract_is_captured_in_the_forward_pass():
    x, y = _operands((5, 7), (7, 3))
    grad = randn(5, 3, seed=2)
    with repkernels.contract(("fixed8", "ordered")):
        result = repkernels.matmul(x, y)
    with repkernels.contract("fixed32"):
        actual = torch.autograd.grad(result, (x, y), grad)
    expected = reference.gradients(values(grad), values(x), values(y), "float32", "ordered")
    for got, want in zip(actual, expected, strict=True):
        assert_same_bits(got, tensor(want, torch.float32))


def test_operands_changed_in_place_are_refused():
    x, y = _operands((5, 7), (7, 3))
    result = repkernels.matmul(x, y)
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


class TestAutocast:
    @pytest.mark.parametrize("device", DEVICES)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_operands_are_cast(self, device, dtype):
        x, w, bias = (randn(*s, device=device, seed=i).requires_grad_() for i, s in enumerate([(3, 7), (5, 7), (5,)]))
        with torch.autocast(device, dtype=dtype):
            result = linear(x, w, bias)
            mixed = linear(x.to(dtype), w, bias)
        assert_same_bits(result, linear(x.to(dtype), w.to(dtype), bias.to(dtype)))
        assert_same_bits(mixed, result)
        grads = torch.autograd.grad(result, (x, w, bias), torch.ones_like(result))
        assert [g.dtype for g in grads] == [torch.float32] * 3

    def test_fp64_is_left_alone(self):
        x, y = randn(3, 4, dtype=torch.float64), randn(4, 5, dtype=torch.float64, seed=1)
        with torch.autocast("cpu"):
            result = repkernels.matmul(x, y)
            assert_same_bits(result, repkernels.matmul(x, y))
            with pytest.raises(RuntimeError, match="^b: dtype"):
                repkernels.matmul(x, y.float())
        assert result.dtype == torch.float64

    def test_the_other_devices_autocast_is_not_ours(self):
        x, y = randn(3, 4), randn(4, 5, seed=1)
        with torch.autocast("cpu", enabled=False):
            assert repkernels.matmul(x, y).dtype == torch.float32

    def test_integers_are_still_refused(self):
        with torch.autocast("cpu"), pytest.raises(NotImplementedError, match="^a: dtype torch.int64"):
            repkernels.matmul(torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2))


class TestCheckpoint:
    def _gradients(self, run):
        x, w = randn(5, 7).requires_grad_(), randn(6, 7, seed=1).requires_grad_()

        def block(x):
            return linear(torch.tanh(linear(x, w)), w.t().contiguous())

        with repkernels.contract(("fixed8", "fixed16")):
            result = run(block, x)
        return torch.autograd.grad(result.sum(), (x, w))

    def test_the_second_run_keeps_the_contract(self):
        def checkpointed(block, x):
            return checkpoint(block, x, use_reentrant=False, context_fn=repkernels.checkpoint_contexts)

        actual, expected = self._gradients(checkpointed), self._gradients(lambda block, x: block(x))
        for got, want in zip(actual, expected, strict=True):
            assert_same_bits(got, want)

    def test_without_it_another_contract_is_refused(self):
        with pytest.raises(CheckpointError, match="different metadata"):
            self._gradients(lambda block, x: checkpoint(block, x, use_reentrant=False))

    def test_a_contract_entered_inside_holds_in_every_kind_of_checkpoint(self):
        expected = self._gradients(lambda block, x: block(x))
        for reentrant in (False, True):
            x, w = randn(5, 7).requires_grad_(), randn(6, 7, seed=1).requires_grad_()

            @repkernels.contract(("fixed8", "fixed16"))
            def block(x, w=w):
                return linear(torch.tanh(linear(x, w)), w.t().contiguous())

            result = checkpoint(block, x, use_reentrant=reentrant)
            result.sum().backward()
            for got, want in zip((x.grad, w.grad), expected, strict=True):
                assert_same_bits(got, want)


class TestTransforms:
    @pytest.mark.parametrize("contract", ["ordered", "fixed24"])
    def test_grad(self, contract):
        x, w = randn(3, 4), randn(5, 4, seed=1)

        def loss(w):
            return linear(x, w, contract=contract).square().sum()

        w_ = w.clone().requires_grad_()
        loss(w_).backward()
        assert_same_bits(torch.func.grad(loss)(w), w_.grad)

    def test_gradients_per_sample(self):
        x, w = randn(3, 4), randn(5, 4, seed=1)

        def loss(w, row):
            return linear(row, w).square().sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        for row, got in zip(x, each, strict=True):
            assert_same_bits(got, torch.func.grad(loss)(w, row))

    @pytest.mark.parametrize("in_dims", [(0, None, None), (None, 1, None), (0, 2, None), (0, 0, 0), (None, None, 1)])
    def test_vmap_is_a_loop(self, in_dims):
        shapes = [(3, 4), (4, 5), (5,)]
        args = []
        for i, (shape, d) in enumerate(zip(shapes, in_dims, strict=True)):
            shape = list(shape)
            if d is not None:
                shape.insert(d, 2)
            args.append(randn(*shape, seed=i))

        def product(a, b, bias):
            return repkernels.matmul(a, b, bias=bias)

        actual = torch.func.vmap(product, in_dims=in_dims)(*args)
        for i in range(2):
            one = [x if d is None else x.select(d, i) for x, d in zip(args, in_dims, strict=True)]
            assert_same_bits(actual[i], product(*one))

    def test_vmap_of_batches_of_different_rank(self):
        a, b = randn(2, 3, 4), randn(2, 5, 4, 6, seed=1)
        actual = torch.func.vmap(repkernels.matmul)(a, b)
        for i in range(2):
            assert_same_bits(actual[i], repkernels.matmul(a[i], b[i]))

    def test_hessian(self):
        x, w = randn(4, dtype=torch.float64), randn(2, 4, dtype=torch.float64, seed=1)

        def ours(w):
            return linear(x, w).pow(3).sum()

        def theirs(w):
            return torch.nn.functional.linear(x, w).pow(3).sum()

        hessian = torch.func.jacrev(torch.func.jacrev(ours))(w)
        torch.testing.assert_close(hessian, torch.func.jacrev(torch.func.jacrev(theirs))(w))

    def test_the_gradient_of_a_bias_under_transforms(self):
        x, w, bias = randn(3, 6, 4), randn(5, 4, seed=1), randn(5, seed=2)

        def loss(bias, x):
            return linear(x, w, bias).square().sum()

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(bias, x)
        for part, got in zip(x, each, strict=True):
            assert_same_bits(got, torch.func.grad(loss)(bias, part))

    def test_forward_mode_is_refused(self):
        a, b = randn(3, 4), randn(4, 5, seed=1)
        with pytest.raises(NotImplementedError, match="jvp|forward mode"):
            torch.func.jvp(lambda a: repkernels.matmul(a, b), (a,), (a,))
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(a, a)
            with pytest.raises((NotImplementedError, RuntimeError), match="jvp|forward mode|forward AD"):
                repkernels.matmul(dual, b)
