"""Pooling against its definition, to the bit: both implementations, layouts, gradients, torch's results and errors."""

import math
import pickle

import pytest
import torch

import repkernels
from reference import pooling as reference
from repkernels import nn
from repkernels.nn import functional
from repkernels.ops import max_pool
from repkernels.windows import Windows, adaptive, largest
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

FORMS = (torch.contiguous_format, torch.channels_last_3d)


def fixed(size, kernel, stride=(1, 1, 1), padding=(0, 0, 0), dilation=(1, 1, 1)):
    each = zip(size, kernel, stride, padding, dilation, strict=True)
    output = tuple((n + 2 * p - (k - 1) * d - 1) // s + 1 for n, k, s, p, d in each)
    return Windows(size, kernel, stride, padding, dilation, output, False)


# What a kernel does differently: overlapping windows of rows that are taken together or not, more windows around an
# element or more taps than are unrolled, no padding, all axes, adaptive windows of several sizes, and more than one.
WINDOWS = {
    "overlap": fixed((1, 5, 7), (1, 3, 3), (1, 2, 2), (0, 1, 1)),
    "stride 1": fixed((1, 5, 4), (1, 3, 2), (1, 1, 1), (0, 1, 0)),
    "apart": fixed((1, 7, 9), (1, 3, 2), (1, 2, 3), (0, 1, 0), (1, 2, 1)),
    "many around": fixed((1, 6, 6), (1, 6, 6), (1, 1, 1), (0, 3, 2)),
    "3-D": fixed((3, 4, 5), (3, 2, 2), (2, 2, 1), (1, 0, 1)),
    "adaptive": adaptive((3, 4, 5), (2, 6, 3)),
}


def defined(w):
    if w.adaptive:
        return reference.Windows(output=w.output)
    return reference.Windows(w.kernel, w.stride, w.padding, w.dilation)


def special(shape, dtype, device="cpu", seed=0):
    """Normal numbers with NaN, infinities, zeros of both signs and a plane of -inf."""
    x = randn(*shape, dtype=dtype, device=device, seed=seed)
    x[x > 1.3], x[x < -1.3] = math.nan, -math.inf
    x[(x > 0) & (x < 0.3)], x[(x < 0) & (x > -0.3)] = 0.0, -0.0
    x[0, 0] = -math.inf
    return x


@each_backend
@pytest.mark.parametrize("form", FORMS, ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("kind", WINDOWS)
def test_windows(backend, form, kind):
    w = WINDOWS[kind]
    dtype = {"apart": torch.float64, "3-D": torch.bfloat16}.get(kind, torch.float32)
    shape, device = (2, 3), backend.device

    def memory(size, dtype=dtype):
        return torch.empty((*shape, *size), dtype=dtype, device=device, memory_format=form)

    x = special((*shape, *w.size), dtype, device).contiguous(memory_format=form)
    g = randn(*shape, *w.output, dtype=dtype, device=device, seed=1).contiguous(memory_format=form)
    y, grad, taps = memory(w.output), memory(w.size), memory(w.output, max_pool.tap_type(w))
    kernels = backend.module("max_pool")
    kernels.forward(x, None, y, taps, w)
    kernels.backward(g, taps, grad, w)
    wanted, indices = reference.max_pool(values(x), defined(w))
    assert_same_bits(y.cpu(), tensor(wanted, dtype))
    assert_same_bits(max_pool.positions(taps, w).cpu(), torch.from_numpy(indices))
    wanted = reference.max_pool_gradient(values(g), values(x), defined(w), name(dtype))
    assert_same_bits(grad.cpu(), tensor(wanted, dtype))
    if w.dilation != (1, 1, 1):
        return
    x, kernels = randn(*x.shape, dtype=dtype, device=device, seed=2).contiguous(memory_format=form), "avg_pool"
    for divide_by, divisor in ((0, 0), (1, 0), (0, -3)):
        backend.module(kernels).forward(x, y, w, divide_by, divisor)
        backend.module(kernels).backward(g, grad, w, divide_by, divisor)
        how = divide_by == 1, divisor
        assert_same_bits(y.cpu(), tensor(reference.avg_pool(values(x), defined(w), name(dtype), *how), dtype))
        wanted = reference.avg_pool_gradient(values(g), tuple(x.shape), defined(w), name(dtype), *how)
        assert_same_bits(grad.cpu(), tensor(wanted, dtype))


@each_backend
def test_more_taps_than_lanes(backend):
    w = fixed((1, 40, 30), (1, 39, 29), (1, 1, 1), (0, 0, 0))
    x = randn(1, 1, *w.size, device=backend.device)
    y = torch.empty(1, 1, *w.output, device=backend.device)
    backend.module("avg_pool").forward(x, y, w, 0, 0)
    assert_same_bits(y.cpu(), tensor(reference.avg_pool(values(x), defined(w), "float32"), torch.float32))


@each_backend
def test_windows_that_begin_by_a_table(backend):
    w = fixed((1, 5, 6), (1, 2, 3))._replace(output=(1, 2, 3))
    x = randn(1, 2, *w.size, device=backend.device)
    starts = torch.tensor([[0, 1, 3, 0, 2, 3], [0, 0, 2, 1, 2, 3]], device=backend.device)
    y = torch.empty(1, 2, *w.output, device=backend.device)
    taps = torch.empty(y.shape, dtype=torch.uint8, device=backend.device)
    backend.module("max_pool").forward(x, starts, y, taps, w)
    for c, (_, *rows) in enumerate(starts.tolist()):
        for h, w_ in ((h, w_) for h in range(2) for w_ in range(3)):
            window = x[0, c, 0, rows[h] : rows[h] + 2, rows[2 + w_] : rows[2 + w_] + 3]
            assert y[0, c, 0, h, w_] == window.max() and taps[0, c, 0, h, w_] == window.argmax()


def test_the_largest_adaptive_window():
    for size in range(1, 14):
        for output in range(1, 14):
            sizes = [-(-(o + 1) * size // output) - o * size // output for o in range(output)]
            assert largest(size, output) == max(sizes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_selections_are_those_of_torch(device, dims):
    """Results, indices and, where few windows overlap so that torch adds in order, gradients."""

    def both(function, x, *args, **options):
        found = []
        for where, library in ((device, functional), ("cpu", torch.nn.functional)):
            leaf = x.to(where).requires_grad_()
            given = [a.to(where) if isinstance(a, torch.Tensor) else a for a in args]
            y = getattr(library, f"{function}{dims}d")(leaf, *given, **options)
            y = y if isinstance(y, tuple) else (y,)
            (grad,) = torch.autograd.grad(y[0], leaf, randn(*y[0].shape, device=where, seed=1))
            found.append([v.cpu() for v in (*y, grad)])
        for ours, theirs in zip(*found, strict=True):
            assert_same_bits(ours, theirs)
            assert ours.stride() == theirs.stride()
        return found[0]

    x = special((2, 3, *(9, 8, 7)[:dims]), torch.float32)
    both("max_pool", x, 3, 2, 1, return_indices=True)
    both("max_pool", x, 2, 3, 1, ceil_mode=True, return_indices=True)
    both("max_pool", x[0], 3, 1, 0, 2, return_indices=True)
    both("adaptive_max_pool", x, 3, return_indices=True)
    y, indices, _ = both("max_pool", x, 2, return_indices=True)
    both("max_unpool", y, indices, 2, output_size=x.shape[2:])
    # Several elements for one place, where torch on a GPU leaves one of them.
    both("max_unpool", y, indices // 3 * 3, 2, output_size=x.shape[2:])
    if dims > 1:
        samples = torch.rand(2, 3, dims, generator=torch.Generator().manual_seed(0))
        options = {"return_indices": True, "_random_samples": samples.to(device)}
        ours = getattr(functional, f"fractional_max_pool{dims}d")(x.to(device), 2, 4, **options)
        options["_random_samples"] = samples
        theirs = getattr(torch.nn.functional, f"fractional_max_pool{dims}d")(x, 2, 4, **options)
        for a, b in zip(ours, theirs, strict=True):
            assert_same_bits(a.cpu(), b)


@pytest.mark.parametrize("device", DEVICES)
def test_means(device):
    """One window has the bits of `mean`; other means are near torch's."""
    x = randn(3, 4, 6, 5, device=device)
    for form in (torch.contiguous_format, torch.channels_last):
        leaf = x.contiguous(memory_format=form).requires_grad_()
        for y in (functional.adaptive_avg_pool2d(leaf, 1), functional.avg_pool2d(leaf, (6, 5))):
            assert_same_bits(y.detach()[..., 0, 0], repkernels.mean(x, (2, 3)))
            assert y.is_contiguous(memory_format=form)
            (grad,) = torch.autograd.grad(y, leaf, x[..., :1, :1])
            assert_same_bits(grad, repkernels.div(x[..., :1, :1], 30).expand(x.shape))
            assert grad.stride() == leaf.stride()
    for size in ((2, 3), (None, 2), 4):
        torch.testing.assert_close(
            functional.adaptive_avg_pool2d(x, size), torch.nn.functional.adaptive_avg_pool2d(x, size)
        )
    for window in ((3, 2, 1, True, False), (2, None, 0), ((3, 2), (2, 1), (1, 0), True, True, 5)):
        torch.testing.assert_close(functional.avg_pool2d(x, *window), torch.nn.functional.avg_pool2d(x, *window))


@pytest.mark.parametrize("device", DEVICES)
def test_layout_and_batch_change_no_bit(device):
    x, g = special((3, 4, 6, 8), torch.bfloat16, device), randn(3, 4, 3, 4, dtype=torch.bfloat16, device=device)
    last = torch.channels_last
    inner = x.permute(3, 1, 2, 0).contiguous().permute(3, 1, 2, 0)
    views = (x, x.to(memory_format=last), x.repeat_interleave(2, 3)[..., ::2], inner)
    for pool in (functional.max_pool2d, functional.avg_pool2d):
        results = []
        for view in views:
            leaf = view.detach().requires_grad_()
            y = pool(leaf, 3, 2, 1)
            form = last if view.is_contiguous(memory_format=last) else torch.contiguous_format
            assert y.is_contiguous(memory_format=form)
            for upstream in (g, g.to(memory_format=last), g[..., :1].expand(g.shape)):
                (grad,) = torch.autograd.grad(y, leaf, upstream, retain_graph=True)
                assert grad.is_contiguous(memory_format=form)
                results.append((upstream, y, grad))
        for k, (_, y, grad) in enumerate(results):
            assert_same_bits(y.detach(), results[0][1].detach())
            assert_same_bits(grad, results[2 * (k % 3 == 2)][2])
        assert_same_bits(pool(x[1:2], 3, 2, 1), results[0][1].detach()[1:2])


def test_power_averages():
    for p, dims in ((2, 2), (1.5, 1), (math.inf, 2), (-math.inf, 3)):
        x = randn(1, 2, *(7, 6, 3)[:dims]).abs().requires_grad_()
        window = (p, 3 if dims == 1 else (3, 2, 2)[:dims], None, True)
        y = getattr(functional, f"lp_pool{dims}d")(x, *window)
        if math.isinf(p):  # torch 2.11 raises to that power
            z = getattr(torch.nn.functional, f"max_pool{dims}d")(x * math.copysign(1, p), *window[1:3], ceil_mode=True)
            z = z * math.copysign(1, p)
        else:
            z = getattr(torch.nn.functional, f"lp_pool{dims}d")(x, *window)
        torch.testing.assert_close(y, z)
        ours, theirs = (torch.autograd.grad(v.sum(), x)[0] for v in (y, z))
        torch.testing.assert_close(ours, theirs)
    zeros = torch.zeros(1, 1, 4, requires_grad=True)
    y = functional.lp_pool1d(zeros, 2, 2)
    assert y.tolist() == [[[0, 0]]] and torch.autograd.grad(y.sum(), zeros)[0].tolist() == [[[0, 0, 0, 0]]]


def test_derivatives():
    x = randn(1, 1, 4, 5, dtype=torch.float64).requires_grad_()
    for pool in (
        lambda x: functional.max_pool2d(x, 3, 2, 1),
        lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: functional.adaptive_avg_pool2d(x, (2, 4)),
    ):
        assert torch.autograd.gradcheck(pool, x)
        assert torch.autograd.gradgradcheck(pool, x, fast_mode=True)


def test_transforms_and_compilers():
    x, g = randn(2, 3, 6, 5), randn(2, 3, 3, 3, seed=1)

    def step(x):
        y, indices = functional.max_pool2d(x, 3, 2, 1, return_indices=True)
        z = functional.avg_pool2d(x, 3, 2, 1)
        return y, indices, z, functional.max_unpool2d(y, indices, 2, output_size=(6, 5)), y + z

    leaf = x.clone().requires_grad_()
    wanted, compiled = step(leaf), torch.compile(step, fullgraph=True, backend="aot_eager")(leaf)
    for found, want in zip(compiled, wanted, strict=True):
        assert_same_bits(found.detach(), want.detach())
    for found, want in zip(*(torch.autograd.grad(v[3:], leaf, [x, g]) for v in (compiled, wanted)), strict=True):
        assert_same_bits(found, want)
    batched = torch.func.vmap(lambda x: functional.max_pool2d(x, 3, 2, 1) + functional.avg_pool2d(x, 3, 2, 1))(x)
    assert_same_bits(batched, wanted[4].detach())
    with torch.no_grad():
        stacked = torch.func.vmap(lambda x: functional.avg_pool2d(x, 3, 2, 1))(x.expand(2, 2, 3, 6, 5))
    assert_same_bits(stacked[1], wanted[2].detach())
    w = fixed((1, 6, 5), (1, 3, 3), (1, 2, 2), (0, 1, 1)).flat()
    leaf = x[:, :, None].clone().requires_grad_()
    taps = torch.ops.repkernels.max_pool(leaf, w, False)[1]
    for op, args in (
        (torch.ops.repkernels.max_pool.default, (leaf, w, False)),
        (torch.ops.repkernels.max_pool_gradient.default, (g[:, :, None].requires_grad_(), taps, w, True)),
        (torch.ops.repkernels.max_pool_pick.default, (leaf, taps, w, False)),
        (torch.ops.repkernels.avg_pool.default, (leaf, w, True, 1, 0)),
        (torch.ops.repkernels.avg_pool_gradient.default, (g[:, :, None].requires_grad_(), w, False, 0, 2)),
    ):
        torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def test_flushed_subnormals():
    x = torch.full((1, 1, 4, 4), 0.0).view(torch.int32).add(torch.arange(1, 17, dtype=torch.int32).view(4, 4) * 64)
    x = x.view(torch.float32)
    wanted = [functional.max_pool2d(x, 2), functional.avg_pool2d(x, 3, 1), functional.adaptive_avg_pool2d(x, 1)]
    torch.set_flush_denormal(True)
    try:
        found = [functional.max_pool2d(x, 2), functional.avg_pool2d(x, 3, 1), functional.adaptive_avg_pool2d(x, 1)]
    finally:
        torch.set_flush_denormal(False)
    for a, b in zip(found, wanted, strict=True):
        assert_same_bits(a, b)


def test_nothing():
    for pool in (functional.max_pool2d, functional.avg_pool2d):
        x = torch.empty(0, 3, 6, 5, requires_grad=True)
        y = pool(x, 2)
        assert y.shape == (0, 3, 3, 2) and torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    for size in (1, 2):  # no channels, as torch has it
        x = torch.empty(2, 0, 6, 5, requires_grad=True)
        y = functional.adaptive_avg_pool2d(x, size)
        assert y.shape == (2, 0, size, size) and torch.autograd.grad(y.sum(), x)[0].shape == x.shape
    x = torch.ones(2, 3, 6, 5, requires_grad=True)
    for y in (functional.adaptive_avg_pool2d(x, (0, 2)), functional.adaptive_max_pool2d(x, (0, 2))):
        assert y.shape == (2, 3, 0, 2) and not torch.autograd.grad(y.sum(), x)[0].any()
    # Taps at -2 and 1, around the only element.
    x = torch.ones(1, 1, 1, requires_grad=True)
    y, index = functional.max_pool1d(x, 2, 1, 2, 3, return_indices=True)
    assert y.tolist() == [[[-math.inf, -math.inf]]] and index.tolist() == [[[-1, -1]]]
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [[[0.0]]]


def test_autocast_and_samples():
    x = randn(1, 2, 4, 4, 4, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        for pool in (functional.max_pool3d, functional.avg_pool3d):
            assert pool(x, 2).dtype == torch.float32
        assert functional.max_pool2d(x[0], 2).dtype == torch.bfloat16
    repkernels.manual_seed(3)
    first = functional.fractional_max_pool2d(x[0].float(), 2, 3)
    repkernels.manual_seed(3)
    samples = repkernels.random.uniform((2, 4, 2))
    again = functional.fractional_max_pool2d(x[0].float(), 2, output_ratio=0.75, _random_samples=samples)
    assert_same_bits(again, first)


MODULES = {
    "MaxPool1d": ((3, 2, 1), 1), "MaxPool2d": ((3, 2, 1), 2), "MaxPool3d": ((2,), 3), "AvgPool1d": ((3, 2, 1), 1),
    "AvgPool2d": ((3, 2, 1, True, False, 5), 2), "AvgPool3d": ((2, 1), 3), "LPPool1d": ((2, 3), 1),
    "LPPool2d": ((2, 3), 2), "LPPool3d": ((2, 2), 3), "AdaptiveMaxPool1d": ((3,), 1), "AdaptiveMaxPool2d": ((3,), 2),
    "AdaptiveMaxPool3d": ((3,), 3), "AdaptiveAvgPool1d": ((3,), 1), "AdaptiveAvgPool2d": (((None, 2),), 2),
    "AdaptiveAvgPool3d": ((1,), 3), "FractionalMaxPool2d": ((2, 3), 2), "FractionalMaxPool3d": ((2, 2), 3),
}  # fmt: skip


def test_modules():
    for kind, (args, dims) in MODULES.items():
        ours, theirs = getattr(nn, kind)(*args), getattr(torch.nn, kind)(*args)
        assert isinstance(ours, getattr(torch.nn, kind)) and repr(ours) == repr(theirs)
        x = randn(2, 3, *(6, 5, 4)[:dims]).abs()
        y = pickle.loads(pickle.dumps(ours))(x)
        if "Fractional" in kind:
            assert y.shape == theirs(x).shape
        else:
            torch.testing.assert_close(y, theirs(x))
    for dims in (1, 2, 3):
        pool = getattr(nn, f"MaxPool{dims}d")(2, return_indices=True)
        x = randn(2, 3, *(6, 4, 4)[:dims])
        y = getattr(nn, f"MaxUnpool{dims}d")(2)(*pool(x))
        assert_same_bits(y, getattr(torch.nn, f"MaxUnpool{dims}d")(2)(*pool(x)))


def test_bad_arguments():
    x = randn(2, 3, 6, 5)
    y, indices = functional.max_pool2d(x, 2, return_indices=True)
    for error, match, call in (
        (TypeError, "^input: expected a Tensor", lambda: functional.max_pool2d([1.0], 2)),
        (NotImplementedError, "^input: dtype", lambda: functional.avg_pool2d(x.long(), 2)),
        (RuntimeError, "input: expected 3 or 4 dim", lambda: functional.max_pool2d(x[0, 0], 2)),
        (RuntimeError, "only the batch may be empty", lambda: functional.avg_pool2d(x[:, :0], 2)),
        (TypeError, "^kernel_size: expected an int", lambda: functional.max_pool2d(x, 2.5)),
        (RuntimeError, "^kernel_size: expected an int or 2", lambda: functional.max_pool2d(x, (2, 2, 2))),
        (RuntimeError, "^stride: expected values >= 1", lambda: functional.max_pool2d(x, 2, 0)),
        (RuntimeError, "^padding: must be at most half", lambda: functional.avg_pool2d(x, 2, 2, 2)),
        (RuntimeError, "kernel is larger", lambda: functional.max_pool2d(x, 7)),
        (RuntimeError, "^divisor_override", lambda: functional.avg_pool2d(x, 2, divisor_override=0)),
        (RuntimeError, "^output_size: expected values >= 0", lambda: functional.adaptive_avg_pool2d(x, -1)),
        (RuntimeError, "^output_size: expected an int or 2", lambda: functional.adaptive_max_pool2d(x, (1, 2, 3))),
        (RuntimeError, "^indices: expected an int64", lambda: functional.max_unpool2d(y, indices.int(), 2)),
        (RuntimeError, "^indices: expected shape", lambda: functional.max_unpool2d(y, indices[:1], 2)),
        (RuntimeError, "^indices: expected places", lambda: functional.max_unpool2d(y, indices + 24, 2)),
        (ValueError, "^output_size", lambda: functional.max_unpool2d(y, indices, 2, output_size=(9, 9))),
        (ValueError, "either an output_size or", lambda: functional.fractional_max_pool2d(x, 2)),
        (RuntimeError, "do not fit", lambda: functional.fractional_max_pool2d(x, 3, 5)),
        (RuntimeError, "^_random_samples", lambda: functional.fractional_max_pool2d(x, 2, 3, _random_samples=x)),
        (NotImplementedError, "fp64", lambda: functional.lp_pool2d(x.double(), 2, 2)),
        (TypeError, "^norm_type", lambda: functional.lp_pool2d(x, "2", 2)),
        (ZeroDivisionError, "^norm_type", lambda: functional.lp_pool2d(x, 0, 2)),
    ):
        with pytest.raises(error, match=match):
            call()
