"""group_norm on both backends against its definition, to the bit; what all norms are to torch."""

import pytest
import torch

from reference import group_norm as reference
from repkernels import nn
from repkernels.nn import functional as F
from tests.backends import BACKENDS, each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EPS = 1e-5


def _values(v):
    return None if v is None else values(v)


def check(backend, x, g, groups, weight, bias):
    kernels = backend.module("group_norm")
    y, mean, inverse = kernels.forward(x, groups, weight, bias, EPS, x.dtype)
    wanted = reference.forward(values(x), groups, _values(weight), _values(bias), EPS, name(x.dtype))
    assert_same_bits(y.cpu(), tensor(wanted, x.dtype))
    found = kernels.backward(g, x, mean, inverse, groups, weight)
    expected = reference.backward(values(g), values(x), groups, _values(weight), EPS, name(x.dtype))
    for got, want, dtype in zip(found, expected, (x.dtype, mean.dtype, mean.dtype), strict=True):
        assert_same_bits(got.cpu(), tensor(want, dtype))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("shape", "groups"), [((2, 6, 5), 3), ((3, 4, 1), 2), ((1, 2, 700), 1), ((2, 3, 1030), 3)], ids=str
)
def test_shapes(backend, dtype, shape, groups):
    if backend.package == "kernels" and dtype != torch.float32 and max(shape) > 100:
        pytest.skip("slow in the interpreter; fp32 goes the same way")
    x, g = (randn(*shape, dtype=dtype, device=backend.device, seed=i) for i in (0, 1))
    w, b = (randn(shape[1], dtype=dtype, device=backend.device, seed=i) for i in (2, 3))
    check(backend, x, g, groups, w, b)
    check(backend, x, g, groups, None, None)


def test_long_groups_on_the_cpu():
    x, g, w = randn(2, 4, 50000), randn(2, 4, 50000, seed=1), randn(4, seed=2)
    check(BACKENDS[0], x, g, 2, w, w)


@each_backend
def test_values_that_are_easily_lost(backend):
    x, g, w = (randn(*s, device=backend.device, seed=i) for i, s in enumerate([(6, 4, 5), (6, 4, 5), (4,)]))
    for sample, special in enumerate((float("nan"), float("inf"), 3e38, 0.0, -0.0)):
        x[sample, 1, 2 if sample < 3 else slice(None)] = special
        x[3:5, 0] = 0.0
    check(backend, x, g, 2, w, w)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_public_function(device, dtype):
    """Leading shapes, memory formats, gradients, layer_norm's bits, samples that do not see each other."""
    x, g = (randn(3, 4, 5, 6, dtype=dtype, device=device, seed=i) for i in (0, 1))
    w, b = (randn(4, dtype=dtype, device=device, seed=i).requires_grad_() for i in (2, 3))
    wanted = reference.forward(values(x).reshape(3, 4, 30), 2, values(w), values(b), EPS, name(dtype))
    for form in (torch.contiguous_format, torch.channels_last):
        leaf = x.to(memory_format=form, copy=True).requires_grad_()
        y = F.group_norm(leaf, 2, w, b)
        assert y.is_contiguous(memory_format=form)
        assert_same_bits(y.cpu(), tensor(wanted.reshape(x.shape), dtype))
        expected = reference.backward(
            values(g).reshape(3, 4, 30), values(x).reshape(3, 4, 30), 2, values(w), EPS, name(dtype)
        )
        for got, want in zip(torch.autograd.grad(y, (leaf, w, b), g), expected, strict=True):
            assert_same_bits(got.cpu(), tensor(want.reshape(got.shape), dtype))
        assert_same_bits(F.group_norm(x[1:2], 2, w, b), y[1:2])
    assert_same_bits(F.group_norm(x, 2).view(6, 60), F.layer_norm(x.view(6, 60), (60,)))
    assert_same_bits(torch.func.vmap(lambda x: F.group_norm(x, 2, w, b))(torch.stack([x, g]))[0], y)


def test_derivatives():
    inputs = [randn(*s, dtype=torch.float64, seed=i).requires_grad_() for i, s in enumerate([(2, 4, 3), (4,), (4,)])]
    f = lambda x, w, b: F.group_norm(x, 2, w, b)  # noqa: E731
    assert torch.autograd.gradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(f, inputs)
    assert torch.autograd.gradgradcheck(lambda x: F.group_norm(x, 2), inputs[0])


def test_bad_arguments():
    x, w = randn(2, 4, 3), torch.ones(4)
    for error, match, call in (
        (RuntimeError, "^num_groups: 3 does not divide", lambda: F.group_norm(x, 3)),
        (ValueError, "^num_groups", lambda: F.group_norm(x, 0)),
        (ValueError, "more than 1 value per channel", lambda: F.group_norm(x[:1, :, :1], 4)),
        (ValueError, "^eps", lambda: F.group_norm(x, 2, eps=-1.0)),
        (RuntimeError, "^weight: expected shape", lambda: F.group_norm(x, 2, w[:2])),
        (RuntimeError, "^bias: dtype", lambda: F.group_norm(x, 2, w, w.half())),
        (RuntimeError, "^input: expected", lambda: F.group_norm(w, 2)),
    ):
        with pytest.raises(error, match=match):
            call()


def test_empty():
    w = torch.ones(4, requires_grad=True)
    y = F.group_norm(torch.empty(0, 4, 3), 2, w)
    assert y.shape == (0, 4, 3)
    assert_same_bits(torch.autograd.grad(y.sum(), w)[0], torch.zeros(4))


SIGNATURES = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm")


def test_signatures_are_torchs():
    import inspect

    for function in SIGNATURES:
        ours, theirs = (inspect.signature(getattr(m, function)) for m in (F, torch.nn.functional))
        assert [(p.name, p.default) for p in ours.parameters.values()] == [
            (p.name, p.default) for p in theirs.parameters.values()
        ]


@pytest.mark.parametrize("make", ["LayerNorm([4, 3])", "RMSNorm(3)", "GroupNorm(2, 4)", "LayerNorm(3, bias=False)"])
def test_modules(make):
    ours, theirs = eval(f"nn.{make}"), eval(f"torch.nn.{make}")
    x = randn(2, 4, 3)
    assert repr(ours) == repr(theirs) and isinstance(ours, type(theirs))
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x), theirs(x))
    assert_same_bits(ours.to(torch.bfloat16)(x.bfloat16()), ours(x.bfloat16()))


def _compiled_cases():
    x, z, w, b = randn(3, 4, 6), randn(3, 4, 6, seed=1), randn(6, seed=2), randn(4, seed=3)
    mean, var = randn(4, seed=4), randn(4, seed=5).abs()
    leaves = [v.requires_grad_() for v in (x, z, w, b)]
    return [
        (lambda x, z, w, b: F.layer_norm(x, (6,), w, w), leaves),
        (lambda x, z, w, b: sum(F.add_rms_norm(x, z, (6,), w)), leaves),
        (lambda x, z, w, b: F.add_layer_norm(x, z, (6,), w, w)[0], leaves),
        (lambda x, z, w, b: F.group_norm(x, 2, b, b), leaves),
        (lambda x, z, w, b: F.batch_norm(x, mean.clone(), var.clone(), b, b, True), leaves),
        (lambda x, z, w, b: F.batch_norm(x, mean, var, b, b), leaves),
        (lambda x, z, w, b: F.instance_norm(x, mean.clone(), var.clone(), b, b), leaves),
    ]


@pytest.mark.parametrize("index", range(len(_compiled_cases())))
def test_compiled_whole_with_the_same_bits(index):
    f, inputs = _compiled_cases()[index]
    torch._dynamo.reset()
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    results = []
    for call in (f, compiled):
        y = call(*inputs)
        results.append([y, *torch.autograd.grad(y, inputs, torch.ones_like(y), allow_unused=True)])
    for got, want in zip(*results, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            assert_same_bits(got, want)


def test_compiled_modules_track_statistics():
    torch._dynamo.reset()
    layers = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    compiled = torch.compile(layers[0], fullgraph=True, backend="aot_eager")
    for step in range(2):
        x = randn(3, 4, 5, seed=step)
        assert_same_bits(compiled(x), layers[1](x))
    for got, want in zip(layers[0].state_dict().values(), layers[1].state_dict().values(), strict=True):
        assert_same_bits(got, want)


def _operations():
    x, g, w = (randn(*s, seed=i).requires_grad_() for i, s in enumerate([(3, 6), (3, 6), (6,)]))
    mean, r, channels = randn(3), randn(3).abs(), randn(2, 6, 4)
    each = randn(6).abs()
    f32 = torch.float32
    return [
        ("layer_norm", (x, w, w.detach(), EPS, f32)),
        ("layer_norm", (x.detach().bfloat16(), None, None, EPS, f32)),
        ("rms_norm", (x, w, None, EPS, f32)),
        ("add_layer_norm", (x, g, w, None, EPS, f32)),
        ("add_rms_norm", (x, g, w, None, EPS, f32)),
        ("layer_norm_gradient", (g, x, mean, r, w, None, EPS, True)),
        ("rms_norm_gradient", (g, x, mean[:0], r, None, g.detach(), EPS, False)),
        ("group_norm", (channels.requires_grad_(), 2, w, w.detach(), EPS, f32)),
        ("group_norm_gradient", (channels, channels, randn(4), randn(4).abs(), w, 2, EPS)),
        ("batch_norm", (channels, w, None, each, each, True, 0.1, EPS)),
        ("batch_norm", (x, w, None, each, each, False, 0.1, EPS)),
        ("batch_norm_gradient", (g, x, each, each, w, True, EPS)),
        ("instance_norm_mean", (channels.detach()[0],)),
    ]


@pytest.mark.parametrize("index", range(len(_operations())), ids=lambda i: _operations()[i][0])
def test_opcheck(index):
    operation, args = _operations()[index]
    torch.library.opcheck(getattr(torch.ops.repkernels, operation).default, args)
