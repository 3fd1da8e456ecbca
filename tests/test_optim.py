"""SGD: the reference's bits, torch's arguments, state and schedulers."""

import copy
import inspect

import numpy as np
import pytest
import torch

import repkernels
from reference import sgd as reference
from repkernels import nn
from repkernels.optim import SGD, Adam
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

OPTIONS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.1},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"weight_decay": 0.1, "maximize": True},
]


def _run(cls, options, steps=3, dtype=torch.float32, **more):
    p = torch.nn.Parameter(randn(7, 5, dtype=dtype))
    optimizer = cls([p], lr=0.1, **options, **more)
    for i in range(steps):
        p.grad = randn(7, 5, dtype=dtype, seed=i + 1)
        optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("options", OPTIONS)
def test_bits(device, dtype, options):
    p = torch.nn.Parameter(randn(7, 5, dtype=dtype, device=device))
    optimizer = SGD([p], lr=0.1, **options)
    expected, v = values(p), None
    for i in range(4):
        p.grad = randn(7, 5, dtype=dtype, device=device, seed=i + 1)
        expected, v = reference.step(expected, values(p.grad), v, name(dtype), lr=0.1, **options)
        optimizer.step()
        assert_same_bits(p.data.cpu(), tensor(expected, dtype))
    if v is not None:
        momentum = optimizer.state[p]["momentum_buffer"].cpu()
        assert_same_bits(momentum, tensor(v, torch.float64 if dtype == torch.float64 else torch.float32))


def test_loop_foreach_and_fused_are_one():
    """cases: 16."""
    expected, _ = _run(SGD, {"momentum": 0.9})
    for more in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        assert_same_bits(_run(SGD, {"momentum": 0.9}, **more)[0].data, expected.data)


@pytest.mark.parametrize("options", OPTIONS)
def test_near_torch(options):
    ours, theirs = (_run(cls, options)[0] for cls in (SGD, torch.optim.SGD))
    torch.testing.assert_close(ours, theirs)


def test_torchs_arguments():
    assert inspect.signature(SGD).parameters.keys() == inspect.signature(torch.optim.SGD).parameters.keys()
    ours, theirs = (inspect.signature(cls).parameters for cls in (SGD, torch.optim.SGD))
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]


def test_torchs_state_continues_and_goes_back():
    options = {"momentum": 0.9, "weight_decay": 0.01}
    _, theirs = _run(torch.optim.SGD, options)
    p, ours = _run(SGD, options, steps=0)
    ours.load_state_dict(theirs.state_dict())
    momentum = next(iter(theirs.state.values()))["momentum_buffer"]
    assert_same_bits(ours.state[p]["momentum_buffer"], momentum)
    p.grad = torch.ones_like(p)
    ours.step()
    _, other = _run(torch.optim.SGD, options, steps=0)
    other.load_state_dict(ours.state_dict())
    assert ours.state_dict()["param_groups"] == other.state_dict()["param_groups"]
    assert ours.state_dict()["state"].keys() == other.state_dict()["state"].keys()


def test_torchs_state_without_momentum():
    _, theirs = _run(torch.optim.SGD, {})
    p, ours = _run(SGD, {"momentum": 0.9}, steps=0)
    ours.load_state_dict(theirs.state_dict())
    p.grad = torch.ones_like(p)
    ours.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resuming_is_the_straight_run(dtype, tmp_path):
    """cases: 15."""
    straight, _ = _run(SGD, {"momentum": 0.9}, steps=5, dtype=dtype)
    p, optimizer = _run(SGD, {"momentum": 0.9}, steps=2, dtype=dtype)
    torch.save({"p": p.data, "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt")
    q = torch.nn.Parameter(saved["p"])
    resumed = SGD([q], lr=7.0)
    resumed.load_state_dict(saved["optimizer"])
    assert repkernels.digest(resumed) == repkernels.digest(optimizer)
    for i in range(2, 5):
        q.grad = randn(7, 5, dtype=dtype, seed=i + 1)
        resumed.step()
    assert_same_bits(q.data, straight.data)


def test_schedulers_and_groups():
    p, q, still = (torch.nn.Parameter(randn(3, seed=i)) for i in range(3))
    optimizer = SGD([{"params": [p, still]}, {"params": [q], "lr": 0.5, "momentum": 0.9}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    expected_p, expected_q, v = values(p), values(q), None
    before = still.detach().clone()
    for i in range(3):
        p.grad, q.grad = randn(3, seed=i + 5), randn(3, seed=i + 9)
        expected_p, _ = reference.step(expected_p, values(p.grad), None, "float32", lr=0.1 * 0.5**i)
        expected_q, v = reference.step(expected_q, values(q.grad), v, "float32", lr=0.5 * 0.5**i, momentum=0.9)
        optimizer.step()
        scheduler.step()
    assert_same_bits(p.data, tensor(expected_p, torch.float32))
    assert_same_bits(q.data, tensor(expected_q, torch.float32))
    assert_same_bits(still.data, before)


def test_a_tensor_as_the_rate():
    first, _ = _run(SGD, {})
    p = torch.nn.Parameter(randn(7, 5))
    optimizer = SGD([p], lr=torch.tensor(0.1, dtype=torch.float64))
    for i in range(3):
        p.grad = randn(7, 5, seed=i + 1)
        optimizer.step()
    assert_same_bits(p.data, first.data)


@pytest.mark.parametrize("view", [lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[1:]])
def test_any_strides(view):
    memory, grads = randn(6, 8), randn(6, 8, seed=1)
    p, q = torch.nn.Parameter(view(memory.clone())), torch.nn.Parameter(view(memory).contiguous())
    for _ in range(2):
        for x in (p, q):
            x.grad = view(grads)
    a, b = SGD([p], lr=0.1, momentum=0.9), SGD([q], lr=0.1, momentum=0.9)
    for _ in range(3):
        a.step()
        b.step()
    assert_same_bits(p.data, q.data)


def test_versions_rise():
    p = torch.nn.Parameter(randn(3))
    optimizer = SGD([p], lr=0.1, momentum=0.9)
    p.grad = torch.ones(3)
    optimizer.step()
    versions = p._version, optimizer.state[p]["momentum_buffer"]._version
    optimizer.step()
    assert p._version > versions[0]
    assert optimizer.state[p]["momentum_buffer"]._version > versions[1]


def test_closure():
    p = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = SGD([p], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert p.item() == 1.0


def test_a_compiled_step():
    torch._dynamo.reset()
    p, q = (torch.nn.Parameter(randn(3, 2)) for _ in range(2))
    eager, compiled = SGD([p], lr=0.1, momentum=0.9), SGD([q], lr=0.1, momentum=0.9)
    step = torch.compile(compiled.step, backend="aot_eager")
    for i in range(3):
        p.grad, q.grad = randn(3, 2, seed=i + 1), randn(3, 2, seed=i + 1)
        eager.step()
        step()
    assert_same_bits(q.data, p.data)


def test_copies_and_pickles():
    _, optimizer = _run(SGD, {"momentum": 0.9})
    assert repkernels.digest(copy.deepcopy(optimizer)) == repkernels.digest(optimizer)


@pytest.mark.parametrize("make", [SGD, Adam])
def test_meta_parameters(make):
    p = torch.nn.Parameter(torch.zeros(3, device="meta"))
    p.grad = torch.zeros(3, device="meta")
    make([p], lr=0.1).step()
    assert p.is_meta


def test_empty_parameters():
    p = torch.nn.Parameter(torch.empty(0, 3))
    p.grad = torch.empty(0, 3)
    SGD([p], lr=0.1, momentum=0.9).step()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, "^lr"),
        ({"momentum": -0.1}, ValueError, "^momentum"),
        ({"weight_decay": -0.1}, ValueError, "^weight_decay"),
        ({"nesterov": True}, ValueError, "^nesterov"),
        ({"nesterov": True, "momentum": 0.9, "dampening": 0.1}, ValueError, "^nesterov"),
        ({"differentiable": True}, NotImplementedError, "^differentiable"),
        ({"foreach": True, "fused": True}, RuntimeError, "^foreach and fused"),
        ({"lr": torch.ones(2)}, ValueError, "^lr"),
    ],
)
def test_bad_arguments(options, error, message):
    with pytest.raises(error, match=message):
        SGD([torch.nn.Parameter(torch.ones(2))], **options)


def test_bad_parameters_and_gradients():
    with pytest.raises(NotImplementedError, match="^params: dtype torch.complex64"):
        SGD([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = SGD(table.parameters(), lr=0.1)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()


@pytest.mark.parametrize("device", DEVICES)
def test_training_gives_one_digest(device):
    """A small model's every bit after ten steps, whatever the layout of its batches."""
    digests = []
    for layout in (lambda x: x, lambda x: x.t().contiguous().t()):
        repkernels.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
        optimizer, loss = SGD(model.parameters(), lr=0.1, momentum=0.9), nn.CrossEntropyLoss()
        x, target = layout(randn(32, 8, device=device)), torch.arange(32, device=device) % 4
        losses = []
        for _ in range(10):
            optimizer.zero_grad()
            value = loss(model(x), target)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        digests.append((repkernels.digest(model), repkernels.digest(optimizer)))
        assert losses[-1] < losses[0]
        assert np.isfinite(losses).all()
    assert digests[0] == digests[1]
