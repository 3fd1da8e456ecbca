"""torch.compile: whole graphs, the bits of eager mode, the contract in force when the code runs."""

import shutil

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import repkernels
from repkernels import nn
from repkernels.nn.functional import linear
from tests.support import DEVICES, assert_same_bits, randn

# Inductor writes C++ for the CPU, so it needs a compiler there.
BACKENDS = ("aot_eager", "inductor") if shutil.which("c++") or shutil.which("g++") else ("aot_eager",)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _gradients(f, inputs, contract):
    with repkernels.contract(contract):
        result = f(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    return [result, *torch.autograd.grad(result, wanted, randn(*result.shape, seed=9, device=result.device.type))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_contract_in_force_at_run_time(device, backend):
    inputs = [randn(2, 3, 7), randn(5, 7, seed=1), randn(5, seed=2)]
    inputs = [x.to(device).requires_grad_() for x in inputs]
    compiled = torch.compile(linear, fullgraph=True, backend=backend)
    for contract in ("ordered", "fixed8", ("fixed24", "ordered"), None, "ordered"):
        actual, expected = _gradients(compiled, inputs, contract), _gradients(linear, inputs, contract)
        for got, want in zip(actual, expected, strict=True):
            assert_same_bits(got, want)


def test_a_named_contract_wins():
    a, b = randn(3, 40).requires_grad_(), randn(40, 5, seed=1).requires_grad_()

    def product(a, b):
        return repkernels.matmul(a, b, contract=("fixed8", "ordered"))

    compiled = torch.compile(product, fullgraph=True, backend="aot_eager")
    actual, expected = _gradients(compiled, [a, b], "fixed32"), _gradients(product, [a, b], None)
    for got, want in zip(actual, expected, strict=True):
        assert_same_bits(got, want)


def test_a_contract_that_does_not_fit_raises_at_run_time():
    compiled = torch.compile(repkernels.matmul, fullgraph=True, backend="aot_eager")
    a, b = randn(3, 4, dtype=torch.float64), randn(4, 5, dtype=torch.float64)
    compiled(a, b)
    with repkernels.contract("fixed8"), pytest.raises(ValueError, match="'fixed8' is not defined"):
        compiled(a, b)


@pytest.mark.parametrize(
    "shapes", [((7,), (7,)), ((7,), (7, 3)), ((5, 7), (7,)), ((2, 1, 5, 7), (3, 7, 4)), ((5, 0), (0, 3))]
)
def test_shapes(shapes):
    inputs = [randn(*s, seed=i).requires_grad_() for i, s in enumerate(shapes)]
    compiled = torch.compile(repkernels.matmul, fullgraph=True, backend="aot_eager")
    for got, want in zip(
        _gradients(compiled, inputs, "ordered"), _gradients(repkernels.matmul, inputs, "ordered"), strict=True
    ):
        assert_same_bits(got, want)


def test_dynamic_shapes():
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager", dynamic=True)
    w = randn(5, 7, seed=1).requires_grad_()
    for rows in (2, 3, 11):
        x = randn(rows, 4, 7)
        actual, expected = _gradients(compiled, [x, w], None), _gradients(linear, [x, w], None)
        for got, want in zip(actual, expected, strict=True):
            assert_same_bits(got, want)


def test_numbers_that_change():
    def f(x, index, w):
        return repkernels.lerp(x, repkernels.pow(x, w), w) + repkernels.index_add(x, 0, index, x, alpha=w)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    x, index = randn(5, 3).abs().requires_grad_(), torch.tensor([0, 3, 3, 1, 0])
    for w in (0.3, 0.7, 1.1):
        outs = [g(x, index, w) for g in (compiled, f)]
        assert_same_bits(*outs)
        assert_same_bits(*(torch.autograd.grad(out.sum(), x)[0] for out in outs))


def test_errors_stay_clear():
    compiled = torch.compile(repkernels.matmul, backend="aot_eager")
    with pytest.raises(Exception, match="do not fit"):
        compiled(randn(3, 4), randn(3, 4))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model_and_its_loss(backend):
    repkernels.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 10))
    loss, x, target = nn.CrossEntropyLoss(), randn(8, 10), torch.arange(8) % 5

    def step(x, target):
        return loss(model(x), target)

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    parameters = list(model.parameters())
    for contract in ("ordered", None):
        with repkernels.contract(contract):
            results = [f(x, target) for f in (compiled, step)]
        assert_same_bits(results[0], results[1])
        for got, want in zip(*(torch.autograd.grad(r, parameters) for r in results), strict=True):
            assert_same_bits(got, want)


def test_autocast_inside_and_outside():
    x, w = randn(3, 7), randn(5, 7, seed=1)

    def inside(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return linear(x, w)

    expected = inside(x, w)
    assert_same_bits(torch.compile(inside, fullgraph=True, backend="aot_eager")(x, w), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(torch.compile(linear, fullgraph=True, backend="aot_eager")(x, w), expected)


def test_no_grad_and_inference_mode():
    x, w = randn(3, 7), randn(5, 7, seed=1)
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert_same_bits(compiled(x, w), linear(x, w))


def test_a_checkpoint_with_a_named_contract():
    x, w = randn(5, 7).requires_grad_(), randn(7, 7, seed=1).requires_grad_()

    def block(x):
        return linear(torch.tanh(linear(x, w, contract="fixed8")), w, contract="fixed8")

    def run(x):
        return checkpoint(block, x, use_reentrant=False)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad(f(x).sum(), (x, w)) for f in (compiled, block)]
    for got, want in zip(*grads, strict=True):
        assert_same_bits(got, want)


def test_a_checkpoint_whose_contract_is_lost_in_backward_is_refused():
    x, w = randn(5, 7).requires_grad_(), randn(7, 7, seed=1).requires_grad_()

    def block(x):
        return linear(torch.tanh(linear(x, w)), w)

    inside = torch.compile(lambda x: checkpoint(block, x, use_reentrant=False), fullgraph=True, backend="aot_eager")
    with repkernels.contract("fixed8"):
        expected = torch.autograd.grad(block(x).sum(), (x, w))
        first = inside(x)
        for got, want in zip(torch.autograd.grad(inside(x).sum(), (x, w)), expected, strict=True):
            assert_same_bits(got, want)
    with pytest.raises(RuntimeError, match="a compiled checkpoint runs again in backward"):
        first.sum().backward()

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    with repkernels.contract("fixed8"):
        around = checkpoint(compiled, x, use_reentrant=False, context_fn=repkernels.checkpoint_contexts)
    for got, want in zip(torch.autograd.grad(around.sum(), (x, w)), expected, strict=True):
        assert_same_bits(got, want)


def test_prepared_weights():
    x, w = randn(3, 7), randn(5, 7, seed=1)
    prepared = repkernels.prepare(w)
    compiled = torch.compile(lambda x: linear(x, prepared), fullgraph=True, backend="aot_eager")
    assert_same_bits(compiled(x), linear(x, w))
    w.mul_(2)
    assert_same_bits(compiled(x), linear(x, w))


def test_export():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 5)

        def forward(self, x):
            return torch.relu(self.layer(x))

    model, x = Model(), randn(3, 4)
    program = torch.export.export(model, (x,))
    for contract in ("ordered", "fixed8"):
        with repkernels.contract(contract):
            assert_same_bits(program.module()(x), model(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_prepared_weights_that_change(backend):
    """Inductor's view of the weight has a counter of its own: the digits follow the weight's."""
    prepared = repkernels.prepare(randn(3, 7))
    compiled = torch.compile(lambda x: repkernels.matmul(x, prepared), backend=backend)
    x = randn(5, 7)
    for _ in range(3):
        assert_same_bits(compiled(x), repkernels.matmul(x, prepared.weight.t()))
        prepared.weight.mul_(2)
