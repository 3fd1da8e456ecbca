"""Padding: values, the order in which gradients of copies are added, modules, what is refused."""

import pytest
import torch

from reference import resample as reference
from repkernels import nn
from repkernels.nn.functional import pad
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

MODES = ("reflect", "replicate", "circular")
# Shapes, sizes; some negative, some axes untouched.
CASES = (((2, 3, 7), (3, 2)), ((3, 4, 5), (-1, 2, 3, 0)), ((1, 2, 3, 4, 4), (2, 1, 0, 0, 2, 2)))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", MODES)
def test_against_the_definition(device, mode):
    for shape, pads in CASES:
        for dtype in (torch.float32, torch.bfloat16) if len(shape) == 3 else (torch.float64,):
            x = randn(*shape, dtype=dtype)
            leaf = x.to(device).requires_grad_()
            y = pad(leaf, pads, mode)
            assert_same_bits(y.detach(), torch.nn.functional.pad(leaf.detach(), pads, mode))
            g = randn(*y.shape, dtype=dtype, seed=1)
            (grad,) = torch.autograd.grad(y, leaf, g.to(device))
            out, wanted = reference.pad(values(x), values(g), pads, mode, name(dtype))
            assert_same_bits(y.cpu(), tensor(out, dtype))
            assert_same_bits(grad.cpu(), tensor(wanted, dtype))


def test_gradients_of_gradients_vmap_and_memory():
    x = randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    y = pad(x, (1, 2, 3, 1), "reflect")
    assert y.stride() == torch.nn.functional.pad(x.detach(), (1, 2, 3, 1), "reflect").stride()
    w = randn(*y.shape, seed=1).to(memory_format=torch.channels_last).requires_grad_()
    (grad,) = torch.autograd.grad(y, x, w, create_graph=True)
    assert grad.stride() == x.stride()
    (second,) = torch.autograd.grad(grad, w, x.detach())
    assert_same_bits(second, y)
    batch = randn(3, 2, 3, 4)
    found = torch.vmap(lambda v: pad(v, (1, 1, 2, 1), "circular"))(batch)
    assert_same_bits(found, torch.stack([pad(v, (1, 1, 2, 1), "circular") for v in batch]))
    assert pad(torch.empty(0, 2, 3), (1, 1), "reflect").shape == (0, 2, 5)
    assert_same_bits(
        pad(torch.arange(6).view(2, 3), (1, 1), "reflect"), torch.tensor([[1, 0, 1, 2, 1], [4, 3, 4, 5, 4]])
    )
    flushed = torch.full((1, 1, 3), 1e-40)
    torch.set_flush_denormal(True)
    try:
        kept = pad(flushed, (1, 1), "reflect")
    finally:
        torch.set_flush_denormal(False)
    assert (kept.view(torch.int32) == flushed.view(torch.int32)[0, 0, 0]).all()


def test_constant():
    x = randn(2, 3).requires_grad_()
    y = pad(x, (1, -1, 2, 0), value=7.0)
    assert_same_bits(y, torch.nn.functional.pad(x, (1, -1, 2, 0), value=7.0))
    assert_same_bits(torch.autograd.grad(y.sum(), x)[0], torch.ones(2, 3) * torch.tensor([1.0, 1.0, 0.0]))


def test_compiled():
    x = randn(1, 2, 4, 5).requires_grad_()
    y = torch.compile(lambda v: pad(v, (1, 2, 2, 1), "reflect"), fullgraph=True, backend="aot_eager")(x)
    wanted = pad(x, (1, 2, 2, 1), "reflect")
    assert_same_bits(y, wanted)
    g = randn(*y.shape, seed=1)
    assert_same_bits(torch.autograd.grad(y, x, g)[0], torch.autograd.grad(wanted, x, g)[0])


@pytest.mark.parametrize("kind", ["Reflection", "Replication", "Circular", "Constant", "Zero"])
def test_modules(kind):
    for axes in (1, 2, 3):
        arguments = (1, 0.5) if kind == "Constant" else (1,)
        ours, theirs = (getattr(m, f"{kind}Pad{axes}d")(*arguments) for m in (nn, torch.nn))
        assert isinstance(ours, type(theirs)) and repr(ours) == repr(theirs)
        x = randn(1, 2, 3, 4, 5).view(1, 2, *(3, 4, 5)[-axes:], -1)[..., 0]
        assert_same_bits(ours(x), theirs(x))


@pytest.mark.parametrize(
    ("shape", "pads", "mode", "value", "error", "what"),
    [
        ((1, 2, 3), (1,), "reflect", None, RuntimeError, "even"),
        ((2,), (1, 1, 1, 1), "constant", None, RuntimeError, "4 sizes for 1"),
        ((1, 2, 3), (1, 3), "reflect", None, RuntimeError, "less than the corresponding"),
        ((1, 2, 3), (4, 0), "circular", None, RuntimeError, "more than once"),
        ((1, 2, 3), (-2, -1), "replicate", None, RuntimeError, "leaves nothing"),
        ((3,), (1, 1), "reflect", None, NotImplementedError, "Only 2D"),
        ((1, 2, 3), (1, 1), "mirror", None, NotImplementedError, "mirror"),
        ((1, 2, 3), (1, 1), "reflect", 1.0, RuntimeError, "value"),
        ((1, 0, 3), (1, 1), "reflect", None, RuntimeError, "only the batch"),
    ],
)
def test_what_is_refused(shape, pads, mode, value, error, what):
    with pytest.raises(error, match=what):
        pad(torch.zeros(shape), pads, mode, value)
