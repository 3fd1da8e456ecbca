"""Softmax cross-entropy on both backends against its definition, to the bit."""

import numpy as np
import pytest
import torch

from reference import cross_entropy as reference
from tests.backends import each_backend
from tests.support import assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# The borders of halving, of the lanes, of what a GPU keeps in registers, of a block; four blocks.
CLASSES = (1, 2, 3, 10, 1023, 1024, 1025, 16385, 65536, 65537, 200000)
INFINITY = float("inf")


def targets(rows, classes, device, seed=0):
    return torch.randint(0, classes, (rows,), generator=torch.Generator().manual_seed(seed)).to(device)


def check(backend, x, target, scale=None):
    """Loss and gradient of every row; returns them."""
    kernels = backend.module("cross_entropy")
    scale = randn(len(x), device=backend.device, seed=9) if scale is None else scale
    loss, largest, log_sum, inv_sum, _ = kernels.forward(x, target)
    grad = kernels.backward(x, target, largest, inv_sum, scale)
    assert grad.is_contiguous()
    wanted = reference.forward(values(x), target.cpu().numpy(), "float32", "none")
    assert_same_bits(loss.cpu(), torch.from_numpy(wanted))
    wanted = reference.backward(values(scale), values(x), target.cpu().numpy(), name(x.dtype), "none")
    assert_same_bits(grad.cpu(), tensor(wanted, x.dtype))
    for saved in (largest, log_sum, inv_sum):
        assert saved.dtype == torch.float32
        assert saved.shape == loss.shape
    return loss, grad


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", CLASSES)
def test_lengths(backend, dtype, classes):
    if classes > 2000 and dtype != torch.bfloat16:
        pytest.skip("a dtype is widened the same way however long a row is")
    rows = 5 if classes < 2000 else 1
    x = (5 * randn(rows, classes, dtype=torch.float64, seed=classes)).to(device=backend.device, dtype=dtype)
    check(backend, x, targets(rows, classes, backend.device))


@each_backend
def test_numbers_of_rows(backend):
    for rows in (0, 1, 2, 19):
        check(backend, randn(rows, 10, device=backend.device), targets(rows, 10, backend.device))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(backend, dtype):
    target = targets(6, 33, backend.device)
    for x in (
        randn(33, 6, dtype=dtype, device=backend.device).t(),
        randn(12, 66, dtype=dtype, device=backend.device)[::2, ::2],
        randn(6 * 33 + 1, dtype=dtype, device=backend.device)[1:].view(6, 33),
        randn(1, 33, dtype=dtype, device=backend.device).expand(6, 33),
        randn(6, 1, dtype=dtype, device=backend.device).expand(6, 33),
    ):
        check(backend, x, target)
        check(backend, x, target.repeat_interleave(2)[::2], randn(1, device=backend.device).expand(6))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("classes", [7, 1500])
def test_rows_that_are_not_finite(backend, dtype, classes):
    """-inf is a masked class; a row of nothing else, +inf and NaN give NaN, in their own row only."""
    x = randn(8, classes, dtype=dtype, device=backend.device)
    x[0] = -INFINITY
    x[1, 2] = float("nan")
    x[2, -1] = INFINITY
    x[3, 1:] = -INFINITY
    x[4, ::2] = -INFINITY
    x[5, 0], x[5, 1] = INFINITY, -INFINITY
    target = targets(8, classes, backend.device)
    target[3] = 0
    target[4] = 2
    loss, grad = check(backend, x, target)
    assert loss.isnan().tolist() == [True, True, True, False, False, True, False, False]
    assert loss[3] == 0
    assert loss[4] == INFINITY
    assert grad[6:].isfinite().all()
    assert grad[[0, 1, 2, 5]].isnan().any(1).all()
    alone, alone_grad = check(backend, x[6:], target[6:], randn(8, device=backend.device, seed=9)[6:])
    assert_same_bits(alone, loss[6:])
    assert_same_bits(alone_grad, grad[6:])


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_are_easily_lost(backend, dtype):
    """Zeros of both signs, subnormals, far-apart and overflowing logits."""
    info = torch.finfo(dtype)
    special = torch.tensor(
        [0.0, -0.0, info.smallest_normal, -info.smallest_normal / 4, info.max, -info.max, 1.0, -87.5], dtype=dtype
    )
    choice = torch.randint(0, len(special), (12, 40), generator=torch.Generator().manual_seed(0))
    choice[4:] %= 4
    choice[8:] %= 2
    x = special[choice].to(backend.device)
    check(backend, x, targets(12, 40, backend.device))
    check(backend, x, targets(12, 40, backend.device), torch.full((12,), 1e-44, device=backend.device))
    check(backend, x, targets(12, 40, backend.device), torch.zeros(12, device=backend.device))


@each_backend
def test_one_class_has_no_loss(backend):
    loss, grad = check(backend, randn(4, 1, device=backend.device), targets(4, 1, backend.device))
    assert_same_bits(loss.cpu(), torch.zeros(4))
    assert not grad.any()


@each_backend
def test_a_row_does_not_depend_on_the_batch(backend):
    x, target = randn(33, 1100, device=backend.device), targets(33, 1100, backend.device)
    kernels = backend.module("cross_entropy")
    whole = kernels.forward(x, target)
    for i in (0, 17, 32):
        for found, wanted in zip(kernels.forward(x[i : i + 1], target[i : i + 1]), whole, strict=True):
            assert_same_bits(found, wanted[i : i + 1])


@each_backend
def test_a_target_out_of_range_gives_nan_in_its_row(backend):
    x, target = randn(4, 10, device=backend.device), targets(4, 10, backend.device)
    kernels = backend.module("cross_entropy")
    wanted = kernels.forward(x, target)[0]
    for wrong in (-1, 10, 2**40, -(2**62)):
        spoilt = target.clone()
        spoilt[2] = wrong
        loss = kernels.forward(x, spoilt)[0]
        assert loss[2].isnan()
        assert_same_bits(loss[[0, 1, 3]], wanted[[0, 1, 3]])


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormals_stay_where_the_caller_flushes_them(dtype, threads):
    from repkernels.cpu import cross_entropy

    x, target = (0.5 * randn(40, 3000, dtype=torch.float64)).to(dtype), targets(40, 3000, "cpu")
    # Gradients below 2^-126, and logits that are subnormal.
    x[7] *= torch.finfo(dtype).smallest_normal
    scale = torch.full((40,), 2.0**-120)
    wanted = reference.backward(values(scale), values(x), target.numpy(), name(dtype), "none")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        loss, largest, _, inv_sum, _ = cross_entropy.forward(x, target)
        grad = cross_entropy.backward(x, target, largest, inv_sum, scale)
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    assert_same_bits(loss, torch.from_numpy(reference.forward(values(x), target.numpy(), "float32", "none")))
    assert_same_bits(grad, tensor(wanted, dtype))
    if dtype != torch.float16:
        assert (np.abs(values(grad)) < 2.0**-126).any() and grad.any()


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_near_the_exact_loss(backend, dtype):
    """Against the same function in binary64: the loss within a few ulp of its terms, gradients that cancel."""
    x, target = randn(16, 500, dtype=dtype, device=backend.device), targets(16, 500, backend.device)
    loss, grad = check(backend, x, target, torch.ones(16, device=backend.device))
    wide = x.double().requires_grad_()
    exact = torch.nn.functional.cross_entropy(wide, target, reduction="none")
    exact.sum().backward()
    torch.testing.assert_close(loss.double(), exact.detach(), rtol=4e-7, atol=0)
    torch.testing.assert_close(grad.double(), wide.grad, rtol=1e-6 + torch.finfo(dtype).eps, atol=1e-7)


def test_the_mean_keeps_subnormals_where_the_caller_flushes_them():
    from repkernels.nn.functional import cross_entropy

    target = torch.zeros(7, dtype=torch.int64)
    results = []
    for flush in (False, True):
        # The upstream gradient is normal, and a seventh of it subnormal.
        x = randn(7, 5).requires_grad_()
        torch.set_flush_denormal(flush)
        try:
            results.append(torch.autograd.grad(cross_entropy(x, target), x, torch.tensor(2e-38))[0])
        finally:
            torch.set_flush_denormal(False)
    assert results[0].any()
    assert_same_bits(*results)


def options(classes, dtype, seed=2):
    """Class weights, and the same on the device of the backend that asks."""
    return torch.rand(classes, generator=torch.Generator().manual_seed(seed)).to(dtype)


@each_backend
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("probabilities", [False, True], ids=["indices", "probabilities"])
def test_options(backend, probabilities, weighted, smoothing):
    kernels, device = backend.module("cross_entropy"), backend.device
    sizes = ((1, torch.float32), (33, torch.bfloat16), (1025, torch.float32), (17000, torch.float32))
    for classes, dtype in sizes[: 4 if smoothing and weighted else 3]:
        x = (4 * randn(5 if classes < 2000 else 1, classes, dtype=torch.float64)).to(device=device, dtype=dtype)
        target = targets(len(x), classes, device)
        target[1:2] = -100
        if probabilities:
            target = torch.softmax(randn(*x.shape, seed=3), 1).to(device=device, dtype=dtype)
        weight = options(classes, dtype).to(device) if weighted else None
        w = None if weight is None else values(weight)
        whole = None if w is None else torch.tensor([reference._mass(w, classes)], device=device)
        shares = [float(s) for s in reference._shares(smoothing, classes)]
        loss, largest, log_sum, inv_sum, factor = kernels.forward(x, target, weight, whole, *shares)
        both = values(x), values(target) if probabilities else target.cpu().numpy()
        arguments = "none", w, smoothing
        assert_same_bits(loss.cpu(), tensor(reference.forward(*both, "float32", *arguments), torch.float32))
        scale = randn(len(x), device=device, seed=9)
        grad = kernels.backward(x, target, largest, inv_sum, scale, factor, weight, *shares)
        wanted = reference.backward(values(scale), *both, name(dtype), *arguments)
        assert_same_bits(grad.cpu(), tensor(wanted, dtype))
        if probabilities:
            grad = kernels.target_gradient(x, target, largest, log_sum, scale, weight, shares[0])
            wanted = reference.target_gradient(values(scale), *both, name(dtype), *arguments)
            assert_same_bits(grad.cpu(), tensor(wanted, dtype))
        else:
            assert not loss[1:2].any() and not grad[1:2].any()


@each_backend
def test_ignored_rows_are_zero_whatever_they_hold(backend):
    for classes in (7, 17000):
        x = randn(3, classes, device=backend.device)
        x[1] = float("nan")
        target = torch.tensor([0, 3, 2], device=backend.device)
        kernels = backend.module("cross_entropy")
        loss, largest, _, inv_sum, _ = kernels.forward(x, target, ignore_index=3)
        scale = torch.full((3,), INFINITY, device=backend.device)
        grad = kernels.backward(x, target, largest, inv_sum, scale, ignore_index=3)
        for row in (loss[1], grad[1]):
            assert_same_bits(row.cpu(), torch.zeros_like(row).cpu())
        assert loss[[0, 2]].isfinite().all()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("probabilities", [False, True], ids=["indices", "probabilities"])
def test_gradients_up_to_the_second_are_torchs(probabilities, weighted, smoothing):
    from repkernels.nn import functional as F

    target = torch.tensor([[0, 2], [-100, 1]])
    if probabilities:
        target = torch.softmax(randn(2, 3, 2, seed=4), 1).double().requires_grad_()
    weight = torch.tensor([0.3, 0.2, 0.9], dtype=torch.float64) if weighted else None
    for reduction in ("mean", "sum", "none"):
        results = []
        for module, dtype in ((F, torch.float32), (torch.nn.functional, torch.float64)):
            x, scale = randn(2, 3, 2, dtype=dtype).requires_grad_(), torch.tensor(1.5, dtype=dtype, requires_grad=True)
            y = target.to(dtype).detach().requires_grad_() if probabilities else target
            w = None if weight is None else weight.to(dtype)
            arguments = {"reduction": reduction, "label_smoothing": smoothing}
            loss = module.cross_entropy(x, y, w, **arguments)
            first = torch.autograd.grad(loss.sum(), (x, y) if probabilities else (x,))
            loss = module.cross_entropy(x, y.detach(), w, **arguments)
            (grad,) = torch.autograd.grad((loss * scale).sum(), x, create_graph=True)
            second = torch.autograd.grad((grad * randn(2, 3, 2, dtype=dtype, seed=7)).sum(), (x, scale))
            results.append([t.double() for t in (loss.detach(), *first, *second)])
        for ours, theirs in zip(*results, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_mean_of_weights_and_of_probabilities():
    from repkernels.nn.functional import cross_entropy

    x, w = randn(6, 5), options(5, torch.float32)
    target, q = torch.tensor([0, 4, -100, 1, 1, 2]), torch.softmax(randn(6, 5, seed=1), 1)
    for y, array in ((target, target.numpy()), (q, values(q))):
        for dtype in DTYPES:
            z = x.to(dtype).requires_grad_()
            loss = cross_entropy(z, y.to(dtype) if y is q else y, w.to(dtype), label_smoothing=0.1)
            array = values(y.to(dtype)) if y is q else array
            arguments = values(z), array, name(dtype), "mean", values(w.to(dtype)), 0.1
            assert_same_bits(loss.detach(), tensor(reference.forward(*arguments), dtype))
            (grad,) = torch.autograd.grad(loss, z)
            assert_same_bits(grad, tensor(reference.backward(1.0, *arguments), dtype))


def test_batches_and_compiled_code():
    from repkernels.nn.functional import cross_entropy

    x, target, q = randn(4, 6, 5), torch.arange(24).reshape(4, 6) % 5, torch.softmax(randn(4, 6, 5, seed=1), 2)
    w = options(5, torch.float32)

    def f(x, y):
        return cross_entropy(x, y, w, label_smoothing=0.1)

    for y in (target, q):
        together = torch.func.vmap(torch.func.grad(f))(x, y)
        for i in range(4):
            assert_same_bits(together[i], torch.func.grad(f)(x[i], y[i]))
        z = x[0].clone().requires_grad_()
        compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
        assert_same_bits(compiled(z, y[0]), f(z, y[0]))
        assert_same_bits(*(torch.autograd.grad(g(z, y[0]), z)[0] for g in (compiled, f)))
    with pytest.raises(NotImplementedError, match="^weight: vmap"):
        torch.func.vmap(lambda x, w: cross_entropy(x, target[0], w))(x, torch.stack([w] * 4))


def test_opcheck():
    x, w, q = randn(3, 4).requires_grad_(), options(4, torch.float32), torch.softmax(randn(3, 4, seed=1), 1)
    ops, target, each = torch.ops.repkernels, torch.tensor([1, -100, 0]), torch.ones(3)
    for args in ((x, target, w, 0.1, -100), (x, q.requires_grad_(), w, 0.1, -100)):
        torch.library.opcheck(ops.cross_entropy.default, args)
    gradient = (x, target, w, each, each, each[:0], each, 0.0, -100)
    torch.library.opcheck(ops.cross_entropy_gradient.default, gradient)
    torch.library.opcheck(ops.cross_entropy_target_gradient.default, (x.detach(), q.detach(), w, each, each, each, 0.1))


@pytest.mark.parametrize("classes", [10, 300])
def test_the_bound_of_the_docstring(classes):
    """Against mpmath: the absolute error of a row's loss."""
    import mpmath

    from repkernels.nn.functional import cross_entropy

    for spread in (1.0, 20.0):
        x, target = spread * randn(8, classes), targets(8, classes, "cpu")
        found = cross_entropy(x, target, reduction="none").tolist()
        for row, y, loss in zip(x.tolist(), target.tolist(), found, strict=True):
            with mpmath.workprec(120):
                exact = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(v) - row[y]) for v in row))
            bound = max(row) - row[y] + abs(loss) + 2 * np.log(classes) + np.log2(classes) + 4
            assert abs(loss - exact) <= bound * 2.0**-24
