"""Dropout: the reference's masks on both backends, gradients, checkpoints, compiled code, vmap."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import repkernels
from reference import dropout as reference
from repkernels import nn, random
from repkernels.nn import functional
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
SHAPES = {"dropout": (3, 4, 5), "dropout1d": (3, 4, 5), "dropout2d": (3, 4, 5, 2), "dropout3d": (3, 4, 5, 1, 2)}
LAYERS = {
    "dropout": nn.Dropout, "dropout1d": nn.Dropout1d, "dropout2d": nn.Dropout2d, "dropout3d": nn.Dropout3d,
    "alpha_dropout": nn.AlphaDropout, "feature_alpha_dropout": nn.FeatureAlphaDropout,
}  # fmt: skip


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("alpha", [False, True])
def test_kernels(backend, dtype, alpha):
    """Sizes around a block, special values, all probabilities, words shared by channels."""
    for p, shape, inner in ((0.3, (1025,), 1), (0.5, (7, 5, 11), 11), (0.0, (6,), 1), (1.0, (6,), 1), (1e-9, (0,), 1)):
        x = randn(*shape, dtype=dtype, device=backend.device)
        for i, special in enumerate((math.nan, math.inf, -0.0, torch.finfo(dtype).smallest_normal / 4)):
            x.reshape(-1)[i : i + 1] = special
        scalars = reference._scalars(p, alpha)
        threshold = int((1 - p) * 2.0**32)
        found = backend.module("dropout").dropout(x, 2**64 - 3, 2**63 + 9, threshold, *scalars, inner)
        wanted = reference.forward(values(x), 2**64 - 3, 2**63 + 9, p, name(dtype), alpha, inner)
        assert_same_bits(found.cpu(), tensor(wanted, dtype))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("what", LAYERS)
def test_functions_and_layers(device, what):
    shape = SHAPES.get(what, (3, 4, 5))
    x = randn(*shape, device=device).requires_grad_()
    inner = math.prod(shape[2:]) if what not in ("dropout", "alpha_dropout") else 1
    for dtype in DTYPES:
        repkernels.manual_seed(7)
        random.next_stream()
        y = getattr(functional, what)(x.to(dtype), 0.4, True)
        wanted = reference.forward(values(x.to(dtype)), 7, 1, 0.4, name(dtype), "alpha" in what, inner)
        assert_same_bits(y.cpu(), tensor(wanted, dtype))
        grad = randn(*shape, dtype=dtype, device=device, seed=1)
        (found,) = torch.autograd.grad(y, x, grad)
        wanted = reference.backward(values(grad), 7, 1, 0.4, name(dtype), "alpha" in what, inner)
        assert_same_bits(found.cpu(), tensor(wanted, dtype).float())
        assert random.get_state() == {"seed": 7, "stream": 2}
    layer, theirs = LAYERS[what](0.4), getattr(torch.nn, LAYERS[what].__name__)(0.4)
    assert repr(layer) == repr(theirs)
    random.set_state({"seed": 7, "stream": 1})
    assert_same_bits(layer(x), _again(what, x))
    assert layer.eval()(x) is x
    assert random.get_state() == {"seed": 7, "stream": 2}


def _again(what, x):
    random.set_state({"seed": 7, "stream": 1})
    return getattr(functional, what)(x, 0.4, True)


def test_shares():
    """As many survive as should, and the mean stays."""
    repkernels.manual_seed(0)
    n = 1_000_000
    for p in (0.1, 0.5, 0.9):
        y = functional.dropout(torch.ones(n), p)
        assert abs((y != 0).double().mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / n)
        assert abs(y.double().mean() - 1) < 5 * math.sqrt(p / (1 - p) / n)
    z = functional.alpha_dropout(random.normal(n), 0.2, True).double()
    assert abs(z.mean()) < 0.01
    assert abs(z.var() - 1) < 0.01


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_change_no_element(device):
    base = randn(2, 6, 4, 10, device=device)
    for x in (base.transpose(1, 3), base[..., ::2], base.to(memory_format=torch.channels_last), torch._neg_view(base)):
        for f in (functional.dropout, functional.dropout2d):
            random.set_state({"seed": 1, "stream": 0})
            y = f(x)
            random.set_state({"seed": 1, "stream": 0})
            assert_same_bits(y, f(x.resolve_neg().contiguous()))
            assert y.stride() == torch.empty_like(x).stride()
    whole, part = torch.ones(3, 5, device=device), torch.ones(2, 5, device=device)
    masks = []
    for x in (whole, part):
        repkernels.manual_seed(1)
        masks.append(functional.dropout(x))
    assert_same_bits(masks[0][:2], masks[1])


def test_in_place():
    x = randn(40)
    repkernels.manual_seed(1)
    wanted = functional.dropout(x)
    repkernels.manual_seed(1)
    y = x.clone()
    assert functional.dropout(y, inplace=True) is y
    assert_same_bits(y, wanted)
    leaf = randn(40).requires_grad_()
    repkernels.manual_seed(1)
    out = functional.dropout(leaf * 1, inplace=True)
    out.sum().backward()
    assert_same_bits(leaf.grad, torch.where(wanted == 0, 0.0, 2.0))


def block(x):
    return functional.dropout(torch.tanh(functional.dropout(x, 0.3)), 0.5) * x


def gradient(f, x):
    repkernels.manual_seed(6)
    y = f(x)
    functional.dropout(x)  # the generator goes on before the second run
    return y, *torch.autograd.grad(y.sum(), x)


def test_gradients_of_gradients():
    x = randn(3, 4, dtype=torch.float64).requires_grad_()

    def f(x):
        random.set_state({"seed": 3, "stream": 0})
        return functional.alpha_dropout(functional.dropout(x, 0.5) * x, 0.3, True)

    assert torch.autograd.gradcheck(f, x)
    assert torch.autograd.gradgradcheck(f, x)
    y = f(x)
    together = torch.autograd.grad(y, x, torch.eye(12, dtype=torch.float64).view(12, 3, 4), is_grads_batched=True)[0]
    apart = torch.autograd.grad(f(x)[0, 0], x)[0]
    assert_same_bits(together[0], apart)


def test_checkpoints_repeat_the_masks():
    x = randn(5, 7).requires_grad_()
    wanted = gradient(block, x)
    contexts = {"use_reentrant": False, "context_fn": repkernels.checkpoint_contexts}
    nested = lambda x: checkpoint(block, x, **contexts)  # noqa: E731
    for f in (nested, lambda x: checkpoint(nested, x, **contexts)):
        for got, want in zip(gradient(f, x), wanted, strict=True):
            assert_same_bits(got, want)
        assert random.get_state() == {"seed": 6, "stream": 3}
    seen = []

    def remember(x):
        seen.append(repkernels.get_contract())
        return torch.tanh(x)

    with repkernels.contract("fixed8"):
        inside = checkpoint(remember, x, **contexts)
    inside.sum().backward()
    assert seen == [repkernels.Contract("fixed8", "fixed8")] * 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_that_would_draw_other_masks_is_refused(reentrant):
    x = randn(5, 7).requires_grad_()
    with pytest.raises(RuntimeError, match="^dropout: a checkpoint"):
        checkpoint(block, x, use_reentrant=reentrant).sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager"])
def test_compiled_code_takes_streams_when_it_runs(backend):
    torch._dynamo.reset()
    x = randn(5, 7).requires_grad_()
    compiled = torch.compile(block, fullgraph=True, backend=backend)
    repkernels.manual_seed(6)
    expected = [block(x) for _ in range(3)]
    after = random.get_state()
    repkernels.manual_seed(6)
    for want in expected:
        got = compiled(x)
        assert_same_bits(got, want)
        for a, b in zip(*(torch.autograd.grad(y.sum(), x) for y in (got, want)), strict=True):
            assert_same_bits(a, b)
    assert random.get_state() == after
    around = lambda x: checkpoint(  # noqa: E731
        compiled, x, use_reentrant=False, context_fn=repkernels.checkpoint_contexts
    )
    for got, want in zip(gradient(around, x), gradient(block, x), strict=True):
        assert_same_bits(got, want)
    inside = torch.compile(lambda x: checkpoint(block, x, use_reentrant=False), backend=backend)
    with pytest.raises(RuntimeError, match="dropout: a checkpoint"):
        inside(x).sum().backward()
    torch._dynamo.reset()


def test_vmap():
    x = torch.ones(3, 40)
    repkernels.manual_seed(2)
    different = torch.vmap(functional.dropout, randomness="different")(x)
    repkernels.manual_seed(2)
    assert_same_bits(different, torch.stack([functional.dropout(row) for row in x]))
    repkernels.manual_seed(2)
    same = torch.vmap(functional.dropout, randomness="same")(x)
    repkernels.manual_seed(2)
    assert_same_bits(same, functional.dropout(x[0]).expand(3, 40))
    with pytest.raises(RuntimeError, match="^vmap: dropout"):
        torch.vmap(functional.dropout)(x)
    repkernels.manual_seed(2)
    grads = torch.vmap(torch.func.grad(lambda v: functional.dropout(v).sum()), randomness="different")(x)
    assert_same_bits(grads, different)
    jacobian = torch.func.jacrev(functional.dropout)(x[0])
    assert_same_bits(jacobian, jacobian.diagonal().diag())
    compiled = torch.compile(torch.vmap(functional.dropout, randomness="same"), backend="aot_eager", fullgraph=True)
    with pytest.raises(Exception, match="compiled vmap"):
        compiled(x)


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    x = randn(3, 4, device=device).requires_grad_()
    key = torch.tensor([5, -1])
    torch.library.opcheck(torch.ops.repkernels.dropout.default, (x, key, 1 << 31, 2.0, 0.0, 0.0, 1))
    torch.library.opcheck(torch.ops.repkernels.dropout.default, (x.detach().t(), key, 1 << 31, 2.0, 0.5, -1.0, 3))
    size = [3, 4]
    torch.library.opcheck(
        torch.ops.repkernels.draw.default, (key, "normal", size, 0.0, 1.0, torch.float32, torch.device(device))
    )
    torch.library.opcheck(torch.ops.repkernels.dropout_key.default, (x,), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(
        torch.ops.repkernels.take_stream.default,
        (random.Generator(3).memory, x.detach()),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_a_model_trains_alike_twice_and_resumes():
    def run(steps, state=None):
        repkernels.manual_seed(0)
        torch.manual_seed(0)
        model = nn.Sequential(torch.nn.Linear(8, 16), nn.Dropout(0.5), torch.nn.Linear(16, 4))
        optimizer = repkernels.optim.SGD(model.parameters(), lr=0.1)
        if state is not None:
            model.load_state_dict(state[0])
            random.set_state(state[1])
        for _ in range(steps):
            optimizer.zero_grad()
            model(randn(5, 8)).square().sum().backward()
            optimizer.step()
        return copy.deepcopy(model.state_dict()), random.get_state()

    whole = run(4)
    assert repkernels.digest(whole[0]) == repkernels.digest(run(2, run(2))[0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: functional.dropout(torch.ones(3), 1.5), ValueError, "^p"),
        (lambda: functional.dropout(torch.ones(3), -0.1, False), ValueError, "^p"),
        (lambda: functional.dropout(torch.ones(3), math.nan), ValueError, "^p"),
        (lambda: functional.dropout(torch.ones(3, dtype=torch.int64)), NotImplementedError, "^input"),
        (lambda: functional.dropout([1.0]), TypeError, "^input"),
        (lambda: functional.dropout1d(torch.ones(3, 3, 3, 3)), RuntimeError, "^input"),
        (lambda: functional.feature_alpha_dropout(torch.ones(3), 0.5, True), RuntimeError, "^input"),
        (lambda: nn.Dropout(2.0), ValueError, "probability"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_torchs_warnings():
    for f, x in ((functional.dropout2d, torch.ones(2, 3, 4)), (functional.dropout3d, torch.ones(2, 3, 4))):
        with pytest.warns(UserWarning, match="3-D"):
            f(x)
    assert np.isin(functional.dropout1d(torch.ones(30, 4)).sum(1).numpy(), (0, 8)).all()
