"""batch_norm and instance_norm against their definition, to the bit: kernels, functions, statistics, modules."""

import pytest
import torch

from reference import batch_norm as reference
from repkernels import nn
from repkernels.nn.functional import batch_norm, instance_norm
from tests.backends import BACKENDS, each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
EPS, MOMENTUM = 1e-5, 0.3


def _values(v):
    return None if v is None else values(v)


def operands(shape, dtype, device):
    x, g = (randn(*shape, dtype=dtype, device=device, seed=i) for i in (0, 1))
    weight, bias, mean, var = (randn(shape[1], dtype=dtype, device=device, seed=i) for i in (2, 3, 4, 5))
    return x, g, weight, bias, mean, var.abs()


def check(backend, x, g, weight, bias, mean, var):
    """Training, evaluation and both gradients of one backend, x (N, C, S) or (N, C)."""
    kernels = backend.module("batch_norm")
    dtype = name(x.dtype)
    flat, upstream = (values(v).reshape(*v.shape[:2], -1) for v in (x, g))
    running = reference.Running(values(mean), values(var))

    def same(found, wanted, dtype=x.dtype):
        assert_same_bits(found.cpu(), tensor(wanted.reshape(found.shape), dtype))

    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    y, m, r, *new = kernels.training(x, weight, bias, mean, var, MOMENTUM, EPS)
    wanted, moved = reference.training(flat, _values(weight), _values(bias), EPS, dtype, MOMENTUM, running)
    same(y, wanted)
    for found, want in zip(new, moved, strict=True):
        same(found, want, mean.dtype)
    results = zip(
        kernels.backward(g, x, m, r, weight, True),
        reference.backward(upstream, flat, _values(weight), EPS, dtype),
        (x.dtype, wide, wide),
        strict=True,
    )
    for found, want, of in results:
        same(found, want, of)
    y, m, r = kernels.evaluation(x, weight, bias, mean, var, EPS)
    same(y, reference.evaluation(flat, _values(weight), _values(bias), EPS, dtype, running))
    results = zip(
        kernels.backward(g, x, m, r, weight, False),
        reference.backward(upstream, flat, _values(weight), EPS, dtype, running),
        (x.dtype, wide, wide),
        strict=True,
    )
    for found, want, of in results:
        same(found, want, of)


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7), (1, 2, 1030), (1100, 2)], ids=str)
def test_shapes(backend, dtype, shape):
    if backend.package == "kernels" and dtype != torch.float32 and max(shape) > 100:
        pytest.skip("slow in the interpreter; fp32 goes the same way")
    x, g, *rest = operands(shape, dtype, backend.device)
    check(backend, x, g, *rest)
    check(backend, x, g, None, None, *rest[2:])


@pytest.mark.parametrize("shape", [(3, 2, 30000), (70000, 3), (70, 2, 1000)])
def test_many_terms_on_the_cpu(shape):
    check(BACKENDS[0], *operands(shape, torch.float32, "cpu"))


@each_backend
def test_fp32_parameters_of_half_inputs(backend):
    x, g, *rest = operands((3, 4, 5), torch.bfloat16, backend.device)
    check(backend, x, g, *(v.float() for v in rest))


@each_backend
def test_values_that_are_easily_lost(backend):
    """NaN, infinities, overflow, zeros and subnormals, each in its own channel."""
    x, g, *rest = operands((4, 8, 6), torch.float32, backend.device)
    for channel, special in enumerate((float("nan"), float("inf"), 3e38, 0.0, -0.0, 1e-44)):
        x[1 if channel < 3 else slice(None), channel] = special
    check(backend, x, g, *rest)


def reshaped(x, dtype, device):
    x = x.to(device=device, dtype=dtype)
    return {
        "contiguous": x,
        "channels_last": x.to(memory_format=torch.channels_last),
        "strided": x.repeat_interleave(2, 3)[..., ::2],
        "batch inside": x.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_formats_change_no_bit(device, dtype):
    views = reshaped(randn(3, 4, 5, 6), dtype, device)
    w, b = (randn(4, device=device, seed=i).requires_grad_() for i in (1, 2))
    g = randn(3, 4, 5, 6, dtype=dtype, device=device, seed=3)
    results = {}
    for kind, x in views.items():
        x = x.detach().requires_grad_()
        mean, var = (v.clone() for v in (b.detach(), w.detach().abs()))
        y = batch_norm(x, mean, var, w, b, True, MOMENTUM)
        z = instance_norm(x, None, None, w, b)
        grads = torch.autograd.grad(y, (x, w, b), g), torch.autograd.grad(z, (x, w, b), g)
        results[kind] = [y, z, mean, var, *grads[0], *grads[1], batch_norm(x, mean, var, w, b)]
    assert results["channels_last"][0].is_contiguous(memory_format=torch.channels_last)
    for found in results.values():
        for got, want in zip(found, results["contiguous"], strict=True):
            assert_same_bits(got, want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_instance_norm(device, dtype):
    x, g, w, b, mean, var = operands((3, 4, 9), dtype, device)
    running = reference.Running(values(mean).copy(), values(var).copy())
    x, w, b = (v.requires_grad_() for v in (x, w, b))
    y = instance_norm(x, mean, var, w, b, momentum=MOMENTUM)
    wanted, new = reference.instance(values(x), values(w), values(b), EPS, name(dtype), MOMENTUM, running)
    for found, want in zip((y, mean, var), (wanted, *new), strict=True):
        assert_same_bits(found.cpu(), tensor(want, dtype))
    expected = reference.instance_backward(values(g), values(x), values(w), EPS, name(dtype))
    for found, want in zip(torch.autograd.grad(y, (x, w, b), g), expected, strict=True):
        assert_same_bits(found.cpu(), tensor(want, dtype))
    assert_same_bits(instance_norm(x, mean, var, w, b, False), batch_norm(x, mean, var, w, b, False))
    assert_same_bits(instance_norm(x[1:2]), instance_norm(x)[1:2])


MODULES = {
    "BatchNorm1d": (4, 6), "BatchNorm2d": (3, 4, 5, 2), "BatchNorm3d": (2, 4, 3, 2, 2), "InstanceNorm1d": (3, 4, 5),
    "InstanceNorm2d": (3, 4, 5, 2), "InstanceNorm3d": (2, 4, 3, 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("momentum", [0.2, None])
@pytest.mark.parametrize("tracked", [True, False])
def test_modules_follow_torchs(kind, momentum, tracked):
    """Three batches, then evaluation: results and states near torch's, which load into ours."""
    shape = MODULES[kind]
    features = shape[1]
    options = {"momentum": momentum, "affine": True, "track_running_stats": tracked}
    ours, theirs = getattr(nn, kind)(features, **options), getattr(torch.nn, kind)(features, **options)
    assert repr(ours) == repr(theirs) and isinstance(ours, type(theirs))
    with torch.no_grad():
        theirs.weight.copy_(randn(features))
    ours.load_state_dict(theirs.state_dict())
    if momentum is None and tracked and kind.startswith("Instance"):
        momentum = 0.0
    for step in range(3):
        x = randn(*shape, seed=step)
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value, rtol=1e-5, atol=1e-6)
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


def test_running_averages_are_written_out():
    """momentum None: 1 / number of batches in binary64; each step as in the reference."""
    layer = nn.BatchNorm1d(3, momentum=None)
    running = reference.Running(values(layer.running_mean).copy(), values(layer.running_var).copy())
    for step in range(3):
        x = randn(5, 3, seed=step)
        layer(x)
        _, running = reference.training(values(x)[:, :, None], None, None, EPS, "float32", 1 / (step + 1), running)
        assert_same_bits(layer.running_mean, torch.from_numpy(running.mean))
        assert_same_bits(layer.running_var, torch.from_numpy(running.var))
    assert layer.num_batches_tracked == 3


def test_derivatives():
    x, w, b, mean, var = (
        randn(*s, dtype=torch.float64, seed=i) for i, s in enumerate([(2, 2, 3), (2,), (2,), (2,), (2,)])
    )
    inputs = [v.requires_grad_() for v in (x, w, b)]
    for f in (
        lambda x, w, b: batch_norm(x, None, None, w, b, True),
        lambda x, w, b: batch_norm(x, mean, var.abs(), w, b),
        lambda x, w, b: instance_norm(x, None, None, w, b),
    ):
        assert torch.autograd.gradcheck(f, inputs)
        assert torch.autograd.gradgradcheck(f, inputs)


def test_subnormals_stay_where_the_caller_flushes_them():
    x, g, w, b, mean, var = operands((3, 4, 50), torch.float32, "cpu")
    g, x[:, 1], mean[2], var[2] = g * 2.0**-127, x[:, 1] * 2.0**-130, 2.0**-140, 2.0**-140
    results = []
    try:
        for flush in (False, True):
            torch.set_flush_denormal(flush)
            leaf, m, v = x.clone().requires_grad_(), mean.clone(), var.clone()
            y = batch_norm(leaf, m, v, w, b, True, 0.01, 1e-40)
            results.append([y, m, v, *torch.autograd.grad(y, leaf, g), batch_norm(x, m, v, eps=0.0)])
    finally:
        torch.set_flush_denormal(False)
    for found, wanted in zip(*results, strict=True):
        assert_same_bits(found, wanted)


def test_empty_batches_change_no_statistic():
    mean, var, w = randn(3), randn(3, seed=1).abs(), torch.ones(3, requires_grad=True)
    before = mean.clone(), var.clone()
    y = batch_norm(torch.empty(0, 3, 5), mean, var, w, None, True)
    assert y.shape == (0, 3, 5)
    assert_same_bits(torch.autograd.grad(y.sum(), w)[0], torch.zeros(3))
    assert_same_bits(mean, before[0])
    assert_same_bits(var, before[1])


def test_bad_arguments():
    x, v = randn(2, 3, 4), torch.ones(3)
    for error, match, call in (
        (ValueError, "more than 1 value per channel", lambda: batch_norm(x[:1, :, 0], None, None, training=True)),
        (ValueError, "more than 1 spatial element", lambda: instance_norm(x[:, :, :1])),
        (ValueError, "^eps", lambda: batch_norm(x, None, None, training=True, eps=0.0)),
        (ValueError, "^eps", lambda: batch_norm(x, v, v, eps=-1.0)),
        (ValueError, "^momentum", lambda: batch_norm(x, v, v, training=True, momentum=1.5)),
        (ValueError, "^momentum", lambda: batch_norm(x, v, v, training=True, momentum=float("nan"))),
        (TypeError, "^momentum", lambda: batch_norm(x, v, v, training=True, momentum=None)),
        (RuntimeError, "^running_mean", lambda: batch_norm(x, None, None)),
        (ValueError, "^running_mean and running_var", lambda: batch_norm(x, v, None, training=True)),
        (RuntimeError, "^running_mean", lambda: instance_norm(x, use_input_stats=False)),
        (RuntimeError, "^running_var: expected shape", lambda: batch_norm(x, v, v[:2])),
        (RuntimeError, "^weight: expected shape", lambda: batch_norm(x, v, v, v[:2])),
        (RuntimeError, "^weight: dtype", lambda: batch_norm(x, v, v, v.double())),
        (RuntimeError, "^input: expected", lambda: batch_norm(v, v, v)),
        (ValueError, "expected 4D", lambda: nn.BatchNorm2d(3)(x)),
        (ValueError, "num_features", lambda: nn.InstanceNorm1d(2, affine=True)(x)),
    ):
        with pytest.raises(error, match=match):
            call()
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.func.vmap(lambda x: batch_norm(x, None, None, training=True))(x[None])
