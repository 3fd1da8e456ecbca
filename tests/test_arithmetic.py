"""Arithmetic on tensors and scalars: bits on both backends, promotion, broadcasting, gradients."""

import itertools
import math

import numpy as np
import pytest
import torch

import repkernels
from reference import arithmetic as reference
from reference import formats
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values
from tests.test_unary import on

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SPECIAL = (0.0, -0.0, 1e-45, 1.0, -1.0, 3.0, -0.3, 7.5, 3e38, np.inf, -np.inf, np.nan)


def pairs(dtype):
    """Every pair of special numbers, exact multiples and their neighbours, and ordinary numbers."""
    special = torch.tensor(list(itertools.product(SPECIAL, SPECIAL)), dtype=torch.float64)
    whole = torch.arange(1, 31, dtype=torch.float64)
    drawn = torch.stack([100 * randn(60, dtype=torch.float64), randn(60, dtype=torch.float64, seed=1)], 1)
    a = torch.cat([special[:, 0], whole * 0.7, drawn[:, 0]]).to(dtype)
    b = torch.cat([special[:, 1], torch.full((30,), 0.7, dtype=torch.float64), drawn[:, 1]]).to(dtype)
    return a, b


def expected(function, dtype, *operands):
    with np.errstate(all="ignore"):
        return tensor(formats.rounded(function(*operands), name(dtype)), dtype)


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_arithmetic_is_the_definition(backend, dtype):
    a, b = pairs(dtype)
    c, g = b.flip(0), randn(len(a), dtype=dtype, seed=3)
    kind = np.float64 if dtype == torch.float64 else np.float32
    v, x, y, z, w = kind(-1.7), values(a), values(b), values(c), values(g)
    with np.errstate(all="ignore"):
        gradients = {f: h(w, *((x, y, z, v) if f.startswith("add") else (x, y, z)[: 2 + (f == "lerp")]))
                     for f, h in reference.GRADIENTS.items()}  # fmt: skip
    for function in ("div", "div_floor", "div_trunc"):
        assert_same_bits(on(backend, function, a, b), expected(reference.FORWARD[function], dtype, x, y))
    assert_same_bits(on(backend, "lerp", a, b, c), expected(reference.lerp, dtype, x, y, z))
    assert_same_bits(on(backend, "lerp", a, b, s=0.3), expected(reference.lerp, dtype, x, y, kind(0.3)))
    for function in ("addcmul", "addcdiv"):
        found = on(backend, function, a, b, c, s=float(v))
        assert_same_bits(found, expected(reference.FORWARD[function], dtype, x, y, z, v))
    for function, operands, wanted in (
        ("div_gradient", (g, a, b), gradients["div"][1]),
        ("lerp_start_gradient", (g, c), gradients["lerp"][0]),
        ("product", (g, c), gradients["lerp"][1]),
        ("lerp_weight_gradient", (g, a, b), gradients["lerp"][2]),
        ("addcmul_gradient", (g, c), gradients["addcmul"][1]),
        ("addcdiv_gradient", (g, c), gradients["addcdiv"][1]),
        ("addcdiv_divisor_gradient", (g, b, c), gradients["addcdiv"][2]),
    ):
        assert_same_bits(on(backend, function, *operands, s=float(v)), expected(lambda r: r, dtype, wanted))


@pytest.mark.parametrize("device", DEVICES)
def test_division_with_a_rounding_mode(device):
    """The exact floor, Python's for integers held as floats; torch's where its own steps are exact."""
    a = torch.tensor([7.0, -7.0, 7.0, -7.0, 6.0, 0.0, -0.0], device=device)
    b = torch.tensor([2.0, 2.0, -2.0, -2.0, 3.0, 5.0, 5.0], device=device)
    for mode in ("floor", "trunc"):
        assert_same_bits(repkernels.div(a, b, rounding_mode=mode), torch.div(a, b, rounding_mode=mode))
        whole = repkernels.div(a.int(), b.int(), rounding_mode=mode)
        assert whole.dtype == torch.int32
        assert whole.tolist() == [int(v) for v in repkernels.div(a, b, rounding_mode=mode)]
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.integers(1, 2**24, 400).astype(np.float32)).to(device) for _ in range(2))
    found = repkernels.div(x * y[0], y, rounding_mode="floor").tolist()
    wanted = [float(np.float32(int(p) // int(q))) for p, q in zip((x * y[0]).tolist(), y.tolist(), strict=True)]
    assert found == wanted


@pytest.mark.parametrize("device", DEVICES)
def test_scalars_divide_truly(device):
    x = randn(1000, device=device)
    assert_same_bits(repkernels.div(x, 3.0), x / torch.full_like(x, 3.0))
    assert_same_bits(repkernels.div(x, 0.1), x / torch.full_like(x, 0.1))
    assert_same_bits(repkernels.div(x, 0), x / torch.zeros_like(x))
    assert_same_bits(repkernels.div(x.double(), 0.1), x.double() / torch.full_like(x.double(), 0.1))


@pytest.mark.parametrize("device", DEVICES)
def test_promotion(device):
    single, half = randn(4, device=device), randn(4, dtype=torch.bfloat16, device=device, seed=1)
    other, whole = randn(4, dtype=torch.float16, device=device, seed=2), torch.arange(1, 5, device=device)
    for a, b in itertools.permutations((single, half, other, whole, single.double(), single[0].double()), 2):
        found = repkernels.div(a, b)
        assert found.dtype == torch.result_type(a, b)
        assert_same_bits(found, repkernels.div(a.to(found.dtype), b.to(found.dtype)))
    assert repkernels.div(whole, whole).dtype == repkernels.div(whole, 2).dtype == torch.float32
    assert repkernels.addcmul(half, single, half).dtype == torch.float32
    assert repkernels.pow(whole, 0.5).dtype == torch.float32
    cpu_scalar = torch.tensor(3.0)
    assert_same_bits(repkernels.div(single, cpu_scalar), repkernels.div(single, 3.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_promotion_to_fp64_keeps_subnormals(dtype):
    x = (randn(200, 300) * torch.finfo(dtype).smallest_normal).to(dtype).t().requires_grad_()
    b, c = randn(200, dtype=torch.float64), randn(300, 200, seed=1, dtype=torch.float64) * 1e-37

    def results():
        out = repkernels.div(x, b)
        return [out, torch.autograd.grad(out, x, c)[0], repkernels.maximum(x, b * 0)]

    expected = results()
    torch.set_flush_denormal(True)
    try:
        found = results()
    finally:
        torch.set_flush_denormal(False)
    for got, want in zip(found, expected, strict=True):
        assert_same_bits(got, want)
        assert got.stride() == want.stride()


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_what_is_broadcast_are_sums(device):
    from reference.sum import sum_rows

    a, b = randn(300, 5, device=device).requires_grad_(), randn(5, device=device, seed=1).requires_grad_()
    g = randn(300, 5, device=device, seed=2)
    _, grad_b = torch.autograd.grad(repkernels.div(a, b), (a, b), g)
    terms = reference.div_gradients(values(g), values(a), values(b))[1]
    assert_same_bits(grad_b.cpu(), tensor(sum_rows(terms, "float32"), torch.float32))


def test_gradients_in_binary64():
    """First and second derivatives by finite differences."""
    a, b, c = (
        (randn(*s, dtype=torch.float64, seed=i).abs() + 0.3).requires_grad_()
        for i, s in enumerate([(3, 2), (2,), (3, 1)])
    )
    for f in (
        repkernels.div,
        lambda x, y: repkernels.div(x, 0.7) + y,
        lambda x, y: repkernels.lerp(x, y, 0.3),
        lambda x, y: repkernels.lerp(x, y, c),
        lambda x, y: repkernels.addcmul(x, y, c, value=0.3),
        lambda x, y: repkernels.addcdiv(x, y, c, value=0.3),
        lambda x, y: repkernels.addcdiv(c, x, y, value=-0.3),
    ):
        assert torch.autograd.gradcheck(f, (a, b), fast_mode=True)
        assert torch.autograd.gradgradcheck(f, (a, b), fast_mode=True)
    assert not torch.autograd.grad(repkernels.div(a, b, rounding_mode="floor").sum(), a)[0].any()


@each_backend
def test_powers(backend):
    from reference.power import forward

    x = torch.tensor([0.0, -0.0, 2.0, -3.0, 0.7, 1.0, np.inf, np.nan, 1e-3, 5.5])
    y = torch.tensor([0.0, 1.0, -1.0, 2.0, 3.0, 0.5, -2.5, np.inf, np.nan, 1e-2])
    x, y = (v.flatten().contiguous() for v in torch.meshgrid(x, y, indexing="ij"))
    assert_same_bits(on(backend, "pow", x, y), tensor(forward(values(x), values(y)), torch.float32))
    for s in (0.5, -1.0):
        assert_same_bits(on(backend, "pow", x, s=s), on(backend, "pow", x, torch.full_like(x, s)))
        assert_same_bits(on(backend, "pow_base", x, s=s), on(backend, "pow", torch.full_like(x, s), x))
    g = randn(len(x), seed=1)
    with np.errstate(all="ignore"):
        less = forward(values(x), values(y) - np.float32(1))
        wanted = np.where(values(y) == 0, np.float32(0), values(g) * (values(y) * less))
    assert_same_bits(on(backend, "pow_gradient", g, x, y), tensor(wanted, torch.float32))


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_of_powers(device):
    x, y = (randn(6, device=device, seed=i).abs() + 0.3 for i in range(2))
    for f, h in (
        (repkernels.pow, torch.pow),
        (lambda a, b: repkernels.pow(a, 2.5) + b, lambda a, b: torch.pow(a, 2.5) + b),
        (lambda a, b: repkernels.pow(2.5, a) + b, lambda a, b: torch.pow(2.5, a) + b),
    ):
        results = []
        for function, dtype in ((f, torch.float32), (h, torch.float64)):
            leaves = [v.to(dtype).requires_grad_() for v in (x, y)]
            grads = torch.autograd.grad(function(*leaves).sum(), leaves, create_graph=True)
            total = sum((g * g).sum() for g in grads)
            results.append([*grads, *torch.autograd.grad(total, leaves, allow_unused=True)])
        for a, b in zip(*results, strict=True):
            if b is not None:
                torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)


def test_bad_input():
    x = randn(3)
    for call, error, match in (
        (lambda: repkernels.div(x, x, rounding_mode="ceil"), RuntimeError, "^rounding_mode: .*'ceil'"),
        (lambda: repkernels.div(x, "2"), TypeError, "^other: expected a Tensor or a real number"),
        (lambda: repkernels.div(1.0, x), TypeError, "^input: expected a Tensor"),
        (lambda: repkernels.div(x.cfloat(), x), NotImplementedError, "^input: dtype torch.complex64"),
        (lambda: repkernels.lerp(x, x.double(), 0.5), RuntimeError, "^end: dtype torch.float64"),
        (lambda: repkernels.lerp(x, x, x.half()), RuntimeError, "^weight: dtype torch.float16"),
        (lambda: repkernels.addcmul(x, x.long(), x), NotImplementedError, "^tensor1: dtype torch.int64"),
        (lambda: repkernels.addcdiv(x, x, x, value="1"), TypeError, "^value"),
        (lambda: repkernels.pow(2.0, 3.0), TypeError, "^input"),
        (lambda: repkernels.pow(x.double(), 2), NotImplementedError, "^input: dtype torch.float64"),
        (lambda: repkernels.div(x, randn(4)), RuntimeError, "[Ss]hape|broadcast|size"),
    ):
        with pytest.raises(error, match=match):
            call()
    assert math.isnan(repkernels.div(x, float("nan"))[0])
