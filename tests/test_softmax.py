"""Softmax and its logarithm on both backends against their definition, to the bit; gradients of any order."""

import warnings

import mpmath
import numpy as np
import pytest
import torch

from reference import softmax as reference
from repkernels import nn
from repkernels.nn import functional as F
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The borders of halving, of the lanes, of what a GPU keeps in registers, of a block; two blocks.
LENGTHS = (1, 2, 3, 33, 1024, 1025, 16384, 16385, 65537)
INFINITY, NAN = float("inf"), float("nan")


def check(backend, x, log, g=None):
    """The result and the gradient of rows x; returns them."""
    kernels, dtype = backend.module("softmax"), name(x.dtype)
    y = kernels.softmax(x, log)
    assert y.is_contiguous()
    assert_same_bits(y.cpu(), tensor(reference.forward(values(x), dtype, log), x.dtype))
    g = randn(*x.shape, dtype=x.dtype, device=backend.device, seed=9) if g is None else g
    grad = kernels.softmax_backward(g, y, log)
    assert grad.is_contiguous()
    assert_same_bits(grad.cpu(), tensor(reference.backward(values(g), values(y), dtype, log), x.dtype))
    return y, grad


@each_backend
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("length", LENGTHS)
def test_lengths(backend, log, length):
    for dtype in DTYPES if length in (33, 1025) else (torch.bfloat16,) if length == 16384 else (torch.float32,):
        x = (5 * randn(5 if length < 2000 else 1, length, dtype=torch.float64, seed=length)).to(dtype)
        check(backend, x.to(backend.device), log)


def test_a_row_of_more_than_2_to_20():
    from repkernels.cpu import softmax as kernels

    x = randn(1, 1_100_000)
    y = kernels.softmax(x, False)
    assert_same_bits(y, tensor(reference.forward(values(x), "float32"), torch.float32))
    assert abs(y.double().sum() - 1) < 1e-5


@each_backend
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
def test_numbers_of_rows_and_strides(backend, log):
    for rows in (0, 2, 19):
        check(backend, randn(rows, 10, device=backend.device), log)
    g = randn(33, 6, device=backend.device, seed=3).t()
    for x in (
        randn(33, 6, device=backend.device).t(),
        randn(12, 66, device=backend.device)[::2, ::2],
        randn(6 * 33 + 1, device=backend.device)[1:].view(6, 33),
        randn(1, 33, device=backend.device).expand(6, 33),
        randn(6, 1, device=backend.device).expand(6, 33),
    ):
        check(backend, x, log, g)
    check(backend, x, log, randn(1, 1, device=backend.device).expand(6, 33))


@each_backend
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
def test_rows_that_are_not_finite(backend, log):
    """-inf is a masked element; a row of nothing else, +inf and NaN give NaN, in their own row only."""
    for length in (7, 1500):
        x = randn(8, length, device=backend.device)
        x[0] = -INFINITY
        x[1, 2] = NAN
        x[2, -1] = INFINITY
        x[3, 1:] = -INFINITY
        x[4, ::2] = -INFINITY
        x[5, 0], x[5, 1] = INFINITY, -INFINITY
        y, _ = check(backend, x, log)
        assert y.isnan().all(1).tolist() == [True, True, True, False, False, True, False, False]
        assert (y[4, ::2] == (-INFINITY if log else 0)).all()
        assert y[3, 0] == (0 if log else 1)
        alone, _ = check(backend, x[6:], log)
        assert_same_bits(alone, y[6:])


@each_backend
@pytest.mark.parametrize("log", [False, True], ids=["softmax", "log_softmax"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_easily_lost(backend, log, dtype):
    """Zeros of both signs, subnormals, far-apart and overflowing elements, in pairs and in rows of one."""
    info = torch.finfo(dtype)
    special = torch.tensor(
        [0.0, -0.0, info.smallest_normal, -info.smallest_normal / 4, info.max, -info.max, 1.0, -87.5], dtype=dtype
    )
    choice = torch.randint(0, len(special), (12, 40), generator=torch.Generator().manual_seed(0))
    choice[4:] %= 4
    choice[8:] %= 2
    check(backend, special[choice].to(backend.device), log)
    pairs = torch.stack([special.repeat(8), special.repeat_interleave(8)], 1).to(backend.device)
    check(backend, pairs, log)
    check(backend, special[:, None].to(backend.device), log)


@each_backend
def test_a_row_does_not_depend_on_the_batch(backend):
    kernels = backend.module("softmax")
    for length in (10, 1100):
        x, g = randn(33, length, device=backend.device), randn(33, length, device=backend.device, seed=1)
        for log in (False, True):
            y = kernels.softmax(x, log)
            grad = kernels.softmax_backward(g, y, log)
            for i in (0, 17, 32):
                part = slice(i, i + 1)
                assert_same_bits(kernels.softmax(x[part], log), y[part])
                assert_same_bits(kernels.softmax_backward(g[part], y[part], log), grad[part])


@pytest.mark.parametrize("threads", [1, 5])
def test_subnormals_stay_where_the_caller_flushes_them(threads):
    from repkernels.cpu import softmax as kernels

    x, g = 30 * randn(40, 3000), torch.full((40, 3000), 2.0**-120)
    g[:, ::2] *= 1.5
    # On this thread: torch's others, once started where subnormals are flushed, flush them ever after.
    small = g * 1e-6
    y = kernels.softmax(x, False)
    wanted = [y, kernels.softmax_backward(g, y, False), kernels.softmax_backward(small, y, True)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        found = [kernels.softmax(x, False), kernels.softmax_backward(g, y, False)]
        found.append(kernels.softmax_backward(small, y, True))
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    for a, b in zip(found, wanted, strict=True):
        assert_same_bits(a, b)
    assert (wanted[1].abs() < 2.0**-126).any() and wanted[1].any()


@pytest.mark.parametrize("device", DEVICES)
def test_error_bounds_of_the_docstrings(device):
    """Against mpmath: relative for softmax, absolute for its logarithm."""
    for length, spread in ((3, 1.0), (200, 3.0), (200, 20.0), (1500, 1.0)):
        x = spread * randn(1, length, seed=length)
        found, logs = F.softmax(x.to(device), 1).cpu()[0], F.log_softmax(x.to(device), 1).cpu()[0]
        with mpmath.workprec(120):
            top = max(x[0].tolist())
            terms = [mpmath.exp(mpmath.mpf(v) - top) for v in x[0].tolist()]
            total = mpmath.fsum(terms)
            additions = np.log2(length) if length <= 1024 else length / 1024 + 10
            for v, term, y, z in zip(x[0].tolist(), terms, found.tolist(), logs.tolist(), strict=True):
                exact, log = term / total, mpmath.log(term / total)
                bound = top - v + np.log(length) + additions + 6
                assert abs(y - exact) <= bound * 2.0**-24 * exact + 2.0**-126
                bound = top - v + abs(float(log)) + 2 * np.log(length) + additions + 4
                assert abs(z - log) <= bound * 2.0**-24


def test_properties():
    x = randn(50, 300)
    y = F.softmax(x, 1)
    assert (y.double().sum(1) - 1).abs().max() < 1e-6
    # A shift that loses no bit changes none.
    whole = torch.randint(-50, 50, (20, 30), generator=torch.Generator().manual_seed(0)).float()
    assert_same_bits(F.softmax(whole + 1000, 1), F.softmax(whole, 1))
    assert_same_bits(F.softmin(x, 1), F.softmax(-x, 1))
    order = torch.randperm(2, generator=torch.Generator().manual_seed(0))
    assert_same_bits(F.softmax(x[:, :2][:, order], 1), F.softmax(x[:, :2], 1)[:, order])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("f", ["softmax", "log_softmax", "softmin"])
def test_any_axis_and_gradients_up_to_the_third(device, f):
    ours, theirs = getattr(F, f), getattr(torch.nn.functional, f)
    for dim in (0, 1, 2, -2):
        x = randn(4, 5, 6, device=device).requires_grad_()
        y, z = ours(x, dim), theirs(x, dim)
        assert y.is_contiguous()
        if f != "softmin":
            wanted = reference.along(values(x), "float32", dim, f == "log_softmax")
            assert_same_bits(y.detach().cpu(), tensor(wanted, torch.float32))
        for order in range(3):
            torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)
            u = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(order)).to(device)
            (y,) = torch.autograd.grad(y, x, u, create_graph=True)
            (z,) = torch.autograd.grad(z, x, u, create_graph=True)
        torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-5)


def test_second_gradients_are_the_definition():
    """SPEC.md, "softmax": the gradient of the gradient, to the bit."""
    for log in (False, True):
        x, g, u = (randn(3, 7, seed=i).requires_grad_() for i in range(3))
        y = (F.log_softmax if log else F.softmax)(x, 1).detach().requires_grad_()
        from repkernels.ops.softmax import _gradient, _row_sums

        by_g, by_y = torch.autograd.grad(_gradient(g, y, log), (g, y), u.detach())
        g, y, u = g.detach(), y.detach(), u.detach()
        if log:
            p = F.softmax(y, 1)
            assert_same_bits(by_g, u - _row_sums(u * p))
            assert_same_bits(by_y, -(u * p * _row_sums(g)))
        else:
            assert_same_bits(by_g, tensor(reference.backward(values(u), values(y), "float32"), torch.float32))
            assert_same_bits(by_y, u * (g - _row_sums(g * y)) - g * _row_sums(u * y))


@pytest.mark.parametrize("device", DEVICES)
def test_dtypes_autocast_and_the_negative_bit(device):
    x = randn(3, 4, dtype=torch.bfloat16, device=device)
    assert_same_bits(F.softmax(x, 1, dtype=torch.float32), F.softmax(x.float(), 1))
    integers = torch.arange(12, device=device).view(3, 4)
    assert_same_bits(F.log_softmax(integers, 1, dtype=torch.float32), F.log_softmax(integers.float(), 1))
    assert_same_bits(F.softmin(integers, 1, dtype=torch.float32), F.softmin(integers.float(), 1))
    with torch.autocast(device, torch.bfloat16):
        assert_same_bits(F.softmax(x, 1), F.softmax(x.float(), 1))
        assert F.softmax(x, 1, dtype=torch.bfloat16).dtype == torch.bfloat16
    assert_same_bits(F.softmax(torch._neg_view(x), 1), F.softmax(-x, 1))


def test_shapes_as_torch():
    for shape, dim in (((), 0), ((), -1), ((3,), 0), ((0,), 0), ((2, 0, 3), 1), ((2, 0, 3), 2), ((0, 3), 1)):
        x = randn(*shape).requires_grad_()
        torch.testing.assert_close(F.softmax(x, dim), torch.softmax(x, dim))
        (grad,) = torch.autograd.grad(F.log_softmax(x, dim).sum(), x)
        assert grad.shape == shape
    with pytest.warns(UserWarning, match="Implicit dimension choice for softmax"):
        assert_same_bits(F.softmax(randn(2, 3)), F.softmax(randn(2, 3), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same_bits(F.log_softmax(randn(2, 3, 4)), F.log_softmax(randn(2, 3, 4), 0))


@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        (lambda: F.softmax([1.0], 0), TypeError, "^input: expected a Tensor"),
        (lambda: F.softmax(torch.ones(2, 3).double(), 0), NotImplementedError, "^input: dtype torch.float64"),
        (lambda: F.softmax(torch.ones(2, 3).long(), 0), NotImplementedError, "^input: dtype torch.int64"),
        (lambda: F.softmax(torch.ones(2, 3), 0, dtype=torch.float64), NotImplementedError, "^dtype: torch.float64"),
        (lambda: F.softmax(torch.ones(2, 3), 2), IndexError, r"^dim: 2 is out of range .* expected -2 to 1"),
        (lambda: F.softmin(torch.ones(2, 3).long(), 0), NotImplementedError, "^input: dtype torch.int64"),
        (lambda: F.log_softmax(torch.ones(()), 1), IndexError, "^dim: 1 is out of range"),
        (lambda: nn.Softmax2d()(torch.ones(2, 3)), ValueError, "^input: expected 3 or 4 dimensions"),
    ],
)
def test_bad_input(f, error, message):
    with pytest.raises(error, match=message):
        f()


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck_compile_and_vmap(device):
    x = randn(3, 4, device=device).requires_grad_()
    y = F.softmax(x, 1).detach().requires_grad_()
    for log in (False, True):
        torch.library.opcheck(torch.ops.repkernels.softmax.default, (x, log))
        torch.library.opcheck(torch.ops.repkernels.softmax_gradient.default, (x, y, log))

    def f(x):
        return F.softmax(x, 0) * F.log_softmax(x, -1)

    compiled, u = torch.compile(f, fullgraph=True, backend="aot_eager"), randn(3, 4, device=device, seed=4)
    assert_same_bits(compiled(x), f(x))
    assert_same_bits(*(torch.autograd.grad(g(x), x, u)[0] for g in (compiled, f)))
    batch = randn(5, 3, 4, device=device, seed=2)
    assert_same_bits(torch.func.vmap(f, in_dims=1)(batch), torch.stack([f(batch[:, i]) for i in range(3)]))
    together = torch.func.vmap(torch.func.grad(lambda x: (f(x) * u).sum()))(batch)
    (alone,) = torch.autograd.grad(f(z := batch[2].clone().requires_grad_()), z, u)
    assert_same_bits(together[2], alone)


def test_modules_are_torchs():
    x = randn(2, 3, 4, 5)
    for ours, theirs in (
        (nn.Softmax(1), torch.nn.Softmax(1)),
        (nn.LogSoftmax(dim=-1), torch.nn.LogSoftmax(dim=-1)),
        (nn.Softmin(2), torch.nn.Softmin(2)),
        (nn.Softmax2d(), torch.nn.Softmax2d()),
    ):
        torch.testing.assert_close(ours(x), theirs(x))
        assert repr(ours) == repr(theirs)
        assert isinstance(ours, type(theirs))
