"""Losses of single elements and nll_loss: bits on both backends, gradients of any order against torch, errors."""

import warnings

import mpmath
import numpy as np
import pytest
import torch

from reference import losses as reference
from repkernels import nn
from repkernels.nn import functional as F
from repkernels.ops.loss_formulas import FORMULAS
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

PARAMETER = {"smooth_l1": 0.7, "huber": 0.8}
LOSSES = tuple(reference.FORMULAS)
OF_DIFFERENCES = ("mse", "l1", "smooth_l1", "huber")
INFINITY, NAN = float("inf"), float("nan")


def operands(loss, shape, dtype, device="cpu"):
    """x and y in the loss's domain, with the values at its ends."""
    x, y = 2 * randn(*shape, dtype=torch.float64), randn(*shape, dtype=torch.float64, seed=1)
    ends = torch.tensor([0.0, -0.0, 1.0, 1e-40, -1.0, 40.0, -40.0, 0.5])
    if loss in ("bce", "bce_with_logits") or loss == "kl_div":
        y = torch.sigmoid(3 * y)
        y.view(-1)[: len(ends)] = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.5])[: y.numel()]
    if loss == "bce":
        x, ends = torch.sigmoid(x), torch.tensor([0.0, 1.0, 1.0, 1e-40, 0.0, 1e-3, 0.999, 0.5])
    x.view(-1)[: len(ends)] = ends[: x.numel()]
    return x.to(device=device, dtype=dtype), y.to(device=device, dtype=dtype)


def check(backend, loss, x, y, w=None, v=None):
    """Elements, their SUM, and gradients of both operands from a scalar and from elements."""
    kernels, dtype, parameter = backend.module("losses"), name(x.dtype), PARAMETER.get(loss, 0.0)
    weights = [None if t is None else values(t) for t in (w, v)]

    def wanted(reduction, into=dtype):
        return reference.forward(loss, values(x), values(y), into, reduction, *weights, parameter)

    found = kernels.elementwise(loss, x, y, w, v, None, parameter)
    assert_same_bits(found.cpu(), tensor(wanted("none"), x.dtype))
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    assert_same_bits(kernels.total(loss, x, y, w, v, parameter).cpu(), tensor(wanted("sum", name(wide)), wide))
    for g in (randn(*x.shape, dtype=x.dtype, device=x.device, seed=5), torch.tensor(0.37, dtype=wide, device=x.device)):
        by_x, by_y = reference.backward(loss, values(g), values(x), values(y), dtype, "none", *weights, parameter)
        formula = FORMULAS[loss]
        assert_same_bits(kernels.elementwise(formula.by_x, x, y, w, v, g, parameter).cpu(), tensor(by_x, x.dtype))
        if formula.by_y != "-":
            assert_same_bits(kernels.elementwise(formula.by_y, x, y, w, v, g, parameter).cpu(), tensor(by_y, x.dtype))


@each_backend
@pytest.mark.parametrize("loss", LOSSES)
def test_elements_sums_and_gradients(backend, loss):
    x, y = operands(loss, (3, 11), torch.float32, backend.device)
    check(backend, loss, x, y)
    w, v = (torch.rand(3, 11, generator=torch.Generator().manual_seed(i)).to(backend.device) for i in (2, 3))
    check(backend, loss, x, y, w, v if loss == "bce_with_logits" else None)
    check(backend, loss, *operands(loss, (2, 9), torch.bfloat16, backend.device))


@each_backend
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes(backend, dtype):
    for loss in ("mse", "smooth_l1") if dtype == torch.float64 else ("mse",):
        check(backend, loss, *operands(loss, (2, 9), dtype, backend.device))


@each_backend
@pytest.mark.parametrize("size", [0, 1, 1025, 65536, 70001])
def test_sizes_of_sums(backend, size):
    kernels = backend.module("losses")
    x, y = randn(size, device=backend.device), randn(size, device=backend.device, seed=1)
    wanted = reference.forward("mse", values(x), values(y), "float32", "sum")
    assert_same_bits(kernels.total("mse", x, y, None, None, 0.0).cpu(), tensor(wanted, torch.float32))


@each_backend
@pytest.mark.parametrize("loss", ["mse", "l1", "smooth_l1", "huber", "bce_with_logits", "kl_div", "kl_div_log"])
def test_what_is_not_finite(backend, loss):
    """NaN stays one, and infinities follow from the formulas."""
    ends = torch.tensor([INFINITY, -INFINITY, NAN, 0.0, -0.0, 1.0, 3e38, -3e38, 1e-45])
    x = ends.repeat_interleave(len(ends)).to(backend.device)
    y = ends.repeat(len(ends)).to(backend.device)
    check(backend, loss, x, y)
    alone = backend.module("losses").elementwise(loss, x, y, None, None, None, 1.0)
    assert alone[x.isnan() | y.isnan()].isnan().all()


CALLS = [
    ("mse_loss", {}),
    ("mse_loss", {"weight": (5, 7)}),
    ("l1_loss", {}),
    ("l1_loss", {"weight": (5, 7)}),
    ("smooth_l1_loss", {"beta": 0.7}),
    ("smooth_l1_loss", {"beta": 0.0}),
    ("huber_loss", {"delta": 0.8}),
    ("huber_loss", {"delta": 0.8, "weight": (5, 7)}),
    ("binary_cross_entropy_with_logits", {}),
    ("binary_cross_entropy_with_logits", {"weight": (7,), "pos_weight": (5, 1)}),
    ("binary_cross_entropy", {}),
    ("binary_cross_entropy", {"weight": (5, 1)}),
    ("kl_div", {}),
    ("kl_div", {"log_target": True}),
]


def call(module, function, x, y, reduction, options):
    weights = {
        key: torch.rand(value, generator=torch.Generator().manual_seed(3)).to(x.dtype)
        if isinstance(value, tuple)
        else value
        for key, value in options.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(module, function)(x, y, reduction=reduction, **weights)


def public_operands(function, dtype=torch.float32, shape=(5, 7)):
    x, y = randn(*shape), randn(*shape, seed=1)
    if function.startswith("binary") or function == "kl_div":
        y = torch.sigmoid(y)
    if function == "binary_cross_entropy":
        x = torch.sigmoid(x)
    return x.to(dtype).requires_grad_(), y.to(dtype).requires_grad_()


@pytest.mark.parametrize(("function", "options"), CALLS)
def test_values_and_gradients_are_torchs(function, options):
    """Near torch in binary64, first gradients of both operands, second ones of the input."""
    for reduction in ("none", "sum", "mean") + (("batchmean",) if function == "kl_div" else ()):
        x, y = public_operands(function)
        wide = [t.detach().double().requires_grad_() for t in (x, y)]
        ours, theirs = (
            call(module, function, *pair, reduction, options)
            for module, pair in ((F, (x, y)), (torch.nn.functional, wide))
        )
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
        u = randn(*ours.shape, seed=7)
        first = torch.autograd.grad(ours, (x, y), u)
        for a, b in zip(first, torch.autograd.grad(theirs, wide, u.double()), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)
        if function == "binary_cross_entropy":
            continue
        second = []
        for module, (a, b) in ((F, (x, y.detach())), (torch.nn.functional, (wide[0], wide[1].detach()))):
            s = torch.tensor(0.3, dtype=a.dtype, requires_grad=True)
            loss = call(module, function, a, b, reduction, options)
            (grad,) = torch.autograd.grad((loss * s).sum(), a, create_graph=True)
            product = (grad * randn(5, 7, dtype=a.dtype, seed=8)).sum()
            second.append(torch.autograd.grad(product, (a, s), allow_unused=True, materialize_grads=True))
        for a, b in zip(*second, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-4, atol=1e-5)


def test_bits_of_reductions_through_the_public_functions():
    for loss, function, options in (
        ("mse", "mse_loss", {}), ("huber", "huber_loss", {"delta": 0.8}), ("kl_div", "kl_div", {}),
    ):  # fmt: skip
        for dtype in (torch.float32, torch.bfloat16):
            x, y = public_operands(function, dtype)
            for reduction in ("none", "sum", "mean") + (("batchmean",) if loss == "kl_div" else ()):
                found = call(F, function, x, y, reduction, options)
                arguments = values(x), values(y), name(dtype), reduction, None, None, PARAMETER.get(loss, 0.0)
                assert_same_bits(found.detach(), tensor(reference.forward(loss, *arguments), dtype))
                g = randn(*found.shape, dtype=dtype, seed=4)
                by_x, by_y = torch.autograd.grad(found, (x, y), g)
                wanted = reference.backward(loss, values(g), *arguments)
                assert_same_bits(by_x, tensor(wanted[0], dtype))
                assert_same_bits(by_y, tensor(wanted[1], dtype))


def test_weighted_means_divide_by_the_sum_of_weights():
    x, y = public_operands("mse_loss")
    w = torch.rand(5, 7, generator=torch.Generator().manual_seed(0))
    found = F.mse_loss(x, y, weight=w)
    wanted = reference.forward("mse", values(x), values(y), "float32", "mean", values(w))
    assert_same_bits(found.detach(), tensor(wanted, torch.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_binary_cross_entropy_with_logits_is_within_5_ulp(device):
    x = torch.cat([20 * randn(120), torch.tensor([90.0, -90.0, 17.5, -17.5, 1e-6, 0.0])])
    for y in (torch.zeros_like(x), torch.ones_like(x), torch.sigmoid(randn(len(x), seed=1))):
        found = F.binary_cross_entropy_with_logits(x.to(device), y.to(device), reduction="none").cpu().double()
        for a, b, f in zip(x.tolist(), y.tolist(), found.tolist(), strict=True):
            with mpmath.workprec(200):
                t = mpmath.log1p(mpmath.exp(-abs(mpmath.mpf(a))))
                exact = (1 - mpmath.mpf(b)) * (max(a, 0) + t) + mpmath.mpf(b) * (max(-a, 0) + t)
                ulp = 2.0 ** max(np.floor(float(mpmath.log(exact, 2))) - 23, -149)
                assert abs(f - exact) <= 5 * ulp


@pytest.mark.parametrize("device", DEVICES)
def test_layouts_and_the_negative_bit(device):
    x, y = randn(6, 14, device=device), randn(3, 7, device=device, seed=1)
    plain = F.mse_loss(x[::2, ::2].contiguous(), y, reduction="none")
    assert_same_bits(F.mse_loss(x[::2, ::2], y, reduction="none"), plain)
    assert_same_bits(F.mse_loss(x[::2, ::2].t(), y.t()), F.mse_loss(x[::2, ::2].t().contiguous(), y.t().contiguous()))
    assert_same_bits(F.l1_loss(torch._neg_view(y), y), F.l1_loss(-y, y))
    assert_same_bits(F.mse_loss(y[:1].expand(3, 7), y), F.mse_loss(y[:1].repeat(3, 1), y))


def test_subnormals_stay_where_the_caller_flushes_them():
    x, y = randn(40000) * 1e-38, randn(40000, seed=1) * 1e-38
    results = []
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        try:
            results.append([F.l1_loss(x, y, reduction=r) for r in ("none", "sum", "mean")])
        finally:
            torch.set_flush_denormal(False)
    for a, b in zip(*results, strict=True):
        assert_same_bits(a, b)


def test_promotion_autocast_and_empty_operands():
    x, y = randn(3, 4), randn(3, 4, seed=1)
    assert F.mse_loss(x.bfloat16(), y).dtype == torch.float32
    assert_same_bits(F.mse_loss(x, torch.ones(3, 4, dtype=torch.int64)), F.mse_loss(x, torch.ones(3, 4)))
    with torch.autocast("cpu", torch.bfloat16):
        assert_same_bits(F.mse_loss(x.bfloat16(), y.bfloat16()), F.mse_loss(x.bfloat16().float(), y.bfloat16().float()))
        with pytest.raises(RuntimeError, match="unsafe under autocast"):
            F.binary_cross_entropy(x, y)
    empty = torch.empty(0, 3)
    assert F.mse_loss(empty, empty).isnan()
    assert_same_bits(F.mse_loss(empty, empty, reduction="sum"), torch.tensor(0.0))
    assert F.mse_loss(empty, empty, reduction="none").shape == (0, 3)
    assert F.kl_div(torch.tensor(0.5), torch.tensor(0.5), reduction="batchmean").shape == ()


@pytest.mark.parametrize(
    ("f", "error", "message"),
    [
        (lambda x: F.mse_loss(x, x[:1]), ValueError, "^target: expected input's shape"),
        (lambda x: F.mse_loss(x, 1.0), TypeError, "^target: expected a Tensor"),
        (lambda x: F.mse_loss(x.long(), x.long()), NotImplementedError, "^input: dtype torch.int64"),
        (lambda x: F.mse_loss(x, x.to("meta")), RuntimeError, "^target: on meta"),
        (lambda x: F.mse_loss(x, x, reduction="max"), ValueError, "^reduction: expected"),
        (lambda x: F.mse_loss(x, x, reduction="batchmean"), ValueError, "^reduction: expected"),
        (lambda x: F.mse_loss(x, x, size_average=True), NotImplementedError, "^size_average"),
        (lambda x: F.mse_loss(x, x, weight=x[:1]), ValueError, "^weight: expected input's shape"),
        (lambda x: F.mse_loss(x, x, weight=x.clone().requires_grad_()), NotImplementedError, "^weight: a gradient"),
        (lambda x: F.smooth_l1_loss(x, x, beta=-1.0), RuntimeError, "^beta: expected"),
        (lambda x: F.huber_loss(x, x, delta=0.0), RuntimeError, "^delta: expected"),
        (lambda x: F.binary_cross_entropy(x + 2, x), RuntimeError, "^input: all elements should be between 0 and 1"),
        (lambda x: F.binary_cross_entropy(x * NAN, x), RuntimeError, "^input: all elements"),
        (lambda x: F.binary_cross_entropy_with_logits(x.double(), x), NotImplementedError, "^input: dtype"),
        (lambda x: F.nll_loss(x, torch.tensor([0, 3])), IndexError, "^target: class 3 is out of range"),
        (lambda x: F.nll_loss(x, torch.tensor([0.0, 1.0])), RuntimeError, "^target: expected int64"),
        (lambda x: F.nll_loss(x, torch.tensor([0, 1]), torch.ones(2)), RuntimeError, "^weight: expected shape"),
    ],
)
def test_bad_input(f, error, message):
    with pytest.raises(error, match=message):
        f(torch.rand(2, 3))


def test_derivatives_that_are_not_supported_say_so():
    x, y = public_operands("binary_cross_entropy_with_logits")
    (grad,) = torch.autograd.grad(F.binary_cross_entropy_with_logits(x, y), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="^target: the derivative of bce_with_logits_gradient"):
        grad.sum().backward()


@pytest.mark.parametrize("device", DEVICES)
def test_nll_loss_bits(device):
    target = torch.tensor([2, -100, 0, 1, 2])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for w in (None, torch.tensor([0.3, 1.7, 0.9], dtype=dtype)):
            for reduction in ("none", "sum", "mean"):
                x = randn(5, 3, dtype=dtype).to(device).requires_grad_()
                x.data[1] = NAN
                weight = None if w is None else w.to(device)
                found = F.nll_loss(x, target.to(device), weight, reduction=reduction)
                g = randn(*found.shape, dtype=dtype, seed=3)
                arguments = None if w is None else values(w), -100, values(g)
                loss, grad = reference.nll(values(x), target.numpy(), name(dtype), reduction, *arguments)
                assert_same_bits(found.detach().cpu(), tensor(loss, dtype))
                (actual,) = torch.autograd.grad(found, x, g.to(device))
                assert_same_bits(actual.cpu(), tensor(grad, dtype))


@pytest.mark.parametrize("shape", [(4,), (3, 4), (3, 4, 2), (2, 4, 3, 5), (0, 4)])
def test_nll_loss_shapes_as_torch(shape):
    x = randn(*shape).requires_grad_()
    target_shape = shape[:1] + shape[2:] if len(shape) > 1 else ()
    target = (torch.arange(int(np.prod(target_shape))) % 4).reshape(target_shape)
    w = torch.tensor([0.1, 0.7, 1.0, 2.0])
    for reduction in ("mean", "sum", "none"):
        ours = F.nll_loss(x, target, w, reduction=reduction)
        theirs = torch.nn.functional.nll_loss(x, target, w, reduction=reduction)
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        grads = [torch.autograd.grad(loss.sum(), x)[0] for loss in (ours, theirs)]
        torch.testing.assert_close(*grads, equal_nan=True)


def test_nll_loss_of_log_softmax_is_cross_entropy():
    x, target = randn(6, 5), torch.tensor([0, 4, -100, 2, 1, 0])
    assert_same_bits(
        F.nll_loss(F.log_softmax(x, 1), target, reduction="sum"), F.cross_entropy(x, target, reduction="sum")
    )


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    x, y = (randn(3, 4, device=device, seed=i).requires_grad_() for i in range(2))
    w, g, target = randn(3, 4, device=device), torch.tensor(2.0, device=device), torch.tensor([0, -100, 3]).to(device)
    ops = torch.ops.repkernels
    for op, args in (
        (ops.loss, (x, y, w, None, "mse", 0.0)),
        (ops.loss_total, (x, y, None, w, "bce_with_logits", 0.0)),
        (ops.loss_gradient, (g, x, y, None, None, "huber_gradient", 1.0)),
        (ops.pick_classes, (x, target, 1, -100)),
        (ops.place_classes, (x[:, 0].detach(), target, 4, 1, -100)),
        (ops.probabilities, (torch.sigmoid(x.detach()).requires_grad_(),)),
    ):
        torch.library.opcheck(op.default, args)


def test_compiled_and_batched():
    def f(x, y):
        return F.huber_loss(x, y, delta=0.8) + F.mse_loss(x, y, reduction="none").select(0, 1)[2]

    x, y = public_operands("mse_loss")
    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for a, b in zip(
        (compiled(x, y), *torch.autograd.grad(compiled(x, y), (x, y))),
        (f(x, y), *torch.autograd.grad(f(x, y), (x, y))),
        strict=True,
    ):
        assert_same_bits(a, b)
    xs, ys, target = randn(3, 5, 7), randn(3, 5, 7, seed=1), torch.arange(15).reshape(3, 5) % 7
    together = torch.func.vmap(torch.func.grad(f))(xs, ys)
    logs = torch.func.vmap(torch.func.grad(F.nll_loss))(xs, target)
    for i in range(3):
        assert_same_bits(together[i], torch.func.grad(f)(xs[i], ys[i]))
        assert_same_bits(logs[i], torch.func.grad(F.nll_loss)(xs[i], target[i]))


def test_modules_are_torchs():
    x, y = public_operands("kl_div")
    w, target = torch.rand(7), torch.tensor([0, 2, 6, 1, 1])
    for ours, theirs, arguments in (
        (nn.MSELoss(), torch.nn.MSELoss(), (x, y)),
        (nn.L1Loss(reduction="sum"), torch.nn.L1Loss(reduction="sum"), (x, y)),
        (nn.SmoothL1Loss(beta=0.5), torch.nn.SmoothL1Loss(beta=0.5), (x, y)),
        (nn.HuberLoss(delta=0.5), torch.nn.HuberLoss(delta=0.5), (x, y)),
        (nn.BCEWithLogitsLoss(pos_weight=w), torch.nn.BCEWithLogitsLoss(pos_weight=w), (x, y)),
        (nn.BCELoss(w), torch.nn.BCELoss(w), (y, torch.sigmoid(x))),
        (nn.KLDivLoss(reduction="batchmean"), torch.nn.KLDivLoss(reduction="batchmean"), (x, y)),
        (nn.NLLLoss(w, ignore_index=1), torch.nn.NLLLoss(w, ignore_index=1), (x, target)),
        (nn.CrossEntropyLoss(w, label_smoothing=0.1), torch.nn.CrossEntropyLoss(w, label_smoothing=0.1), (x, target)),
    ):
        torch.testing.assert_close(ours(*arguments), theirs(*arguments))
        assert repr(ours) == repr(theirs)
        ours.load_state_dict(theirs.state_dict())
        assert isinstance(ours, type(theirs))
