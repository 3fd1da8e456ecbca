"""Activations: bits against the reference on both backends, gradients, modules, errors."""

import mpmath
import numpy as np
import pytest
import torch

from reference import activations as reference
from reference import derivatives
from repkernels import nn
from repkernels.cpu import elementwise as cpu
from repkernels.nn import functional
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values
from tests.test_unary import arguments, on, ulps

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
# The name of each, with scalars.
ROUNDED = [
    (function, scalars)
    for function, scalars in (
        ("gelu", {}), ("gelu_tanh", {}), ("silu", {}), ("mish", {}), ("selu", {}), ("logsigmoid", {}),
        ("softplus", {"beta": 1.0, "limit": 20.0}), ("softplus", {"beta": 0.3, "limit": 2.0}), ("elu", {"alpha": 1.0}),
        ("elu", {"alpha": 0.7}), ("celu", {"alpha": 1.3}), ("tanhshrink", {}),
    )
    if function in cpu.FUNCTIONS
]  # fmt: skip
PIECEWISE = [
    ("hardtanh", {"low": -0.3, "high": 1.7}),
    ("leaky_relu", {"slope": 0.01}),
    ("threshold", {"limit": 0.1, "value": 7.3}),
    ("hardswish", {}),
    ("hardsigmoid", {}),
    ("softsign", {}),
    ("hardshrink", {"limit": 0.5}),
    ("softshrink", {"limit": 0.45}),
]
AT = torch.tensor([3.0, -3.0, 2.9999998, 0.5, -0.5, 0.45, 6.0, 20.0, 20.000002, 0.1])


def check(backend, function, scalars, dtype):
    """Result and gradient; a scalar that the gradient's formula has no use for is not given to it."""
    x = torch.cat([arguments(torch.float32), AT]).to(dtype)
    s, t = (*scalars.values(), 0.0, 0.0)[:2]
    y = on(backend, function, x, s=s, t=t)
    assert_same_bits(y, tensor(reference.forward(function, name(dtype), values(x), **scalars), dtype))
    g = randn(len(x), dtype=dtype, seed=1)
    gradient = "shrink" if function in ("hardshrink", "softshrink") else function
    found = on(backend, f"{gradient}_gradient", g, x, s=s, t=t)
    wanted = derivatives.gradient(function, name(dtype), values(g), values(x), values(y), **scalars)
    assert_same_bits(found, tensor(wanted, dtype))


@each_backend
@pytest.mark.parametrize(("function", "scalars"), ROUNDED, ids=str)
def test_activations_with_an_exponential(backend, function, scalars):
    for dtype in HALF_AND_SINGLE if backend.package == "cpu" else HALF_AND_SINGLE[:2]:
        check(backend, function, scalars, dtype)


@each_backend
@pytest.mark.parametrize(("function", "scalars"), PIECEWISE, ids=str)
def test_activations_without_an_exponential(backend, function, scalars):
    # fp64 compiles everything once more: where a constant or a division could go wrong.
    wide = (torch.float64,) if function in ("hardswish", "hardtanh", "softsign") else ()
    for dtype in (*HALF_AND_SINGLE, *wide):
        check(backend, function, scalars, dtype)


@each_backend
def test_glu_and_prelu(backend):
    for dtype in HALF_AND_SINGLE[:2]:
        a, b, g = arguments(dtype), arguments(dtype, seed=2).flip(0), randn(55, dtype=dtype, seed=1)
        assert_same_bits(
            on(backend, "glu", a, b), tensor(reference.forward("glu", name(dtype), values(a), values(b)), dtype)
        )
        found = on(backend, "glu_gradient", g, b), on(backend, "glu_gate_gradient", g, a, b)
        with np.errstate(all="ignore"):
            wanted = derivatives.glu(values(g), values(a), values(b))
        for x, y in zip(found, wanted, strict=True):
            assert_same_bits(x, tensor(y, dtype))
    for dtype in (torch.float32, torch.bfloat16):
        a, b, g = arguments(dtype), arguments(dtype, seed=2).flip(0), randn(55, dtype=dtype, seed=1)
        with np.errstate(all="ignore"):
            forward = reference.prelu(values(a), values(b))
            wanted = derivatives.prelu(values(g), values(a), values(b))
        assert_same_bits(on(backend, "prelu", a, b), tensor(forward, dtype))
        assert_same_bits(on(backend, "prelu_gradient", g, a, b), tensor(wanted[0], dtype))
        assert_same_bits(on(backend, "prelu_weight_gradient", g, a), tensor(wanted[1], dtype))


def slopes():
    """Derivatives by mpmath; in what range of x; where they are 0, and how large an error is allowed near it."""
    m = mpmath
    k, c = m.sqrt(2 / m.pi), m.mpf(44715) / 10**6

    def sigmoid(x):
        return 1 / (1 + m.exp(-x))

    def gelu_tanh(x):
        s = sigmoid(2 * k * (x + c * x**3))
        return s + x * s * (1 - s) * 2 * k * (1 + 3 * c * x * x)

    def mish(x):
        t = m.tanh(m.log1p(m.exp(x)))
        return t + x * (1 - t * t) * sigmoid(x)

    return {
        "gelu": (lambda x: m.ncdf(x) + x * m.npdf(x), 12, -0.75, 4),
        "gelu_tanh": (gelu_tanh, 3, -0.75, 16),
        "silu": (lambda x: sigmoid(x) * (1 + x * sigmoid(-x)), 80, -1.28, 5),
        "mish": (mish, 80, -1.19, 8),
        "logsigmoid": (lambda x: sigmoid(-x), 80, None, 3),
        "softplus": (sigmoid, 80, None, 3),
        "softsign": (lambda x: 1 / (1 + abs(x)) ** 2, 80, None, 4),
    }


@pytest.mark.parametrize("function", ["gelu", "gelu_tanh", "silu", "mish", "logsigmoid", "softplus", "softsign"])
def test_gradients_keep_their_bounds(function):
    """By the formulas of the reference, whose bits both backends have."""
    with mpmath.workprec(200):
        slope, far, zero, bound = slopes()[function]
        rng = np.random.default_rng(0)
        x = np.concatenate([rng.uniform(-far, far, 150), rng.uniform(-3, 3, 150)]).astype(np.float32)
        limits = {"limit": 1e9} if function == "softplus" else {}
        for v, found in zip(x, derivatives.gradient(function, "float32", np.ones_like(x), x, x, **limits), strict=True):
            exact = slope(mpmath.mpf(float(v)))
            near_zero = zero is not None and abs(float(v) - zero) < 0.7
            error = abs(mpmath.mpf(float(found)) - exact) * 2**24 if near_zero else ulps(found, exact)
            assert error <= (4 if near_zero else bound), v


MODULES = {
    "GELU": {"approximate": "tanh"}, "SiLU": {"inplace": True}, "Sigmoid": {}, "Tanh": {},
    "Softplus": {"beta": 2.0, "threshold": 3.0}, "Mish": {"inplace": True}, "ELU": {"alpha": 0.7}, "SELU": {},
    "CELU": {"alpha": 1.3, "inplace": True}, "Hardswish": {"inplace": True}, "Hardsigmoid": {},
    "Hardtanh": {"min_val": -0.5, "max_val": 0.7}, "ReLU6": {"inplace": True}, "LeakyReLU": {"negative_slope": 0.2},
    "PReLU": {"num_parameters": 6, "init": 0.3}, "Threshold": {"threshold": 0.1, "value": 20}, "Softsign": {},
    "Tanhshrink": {}, "Hardshrink": {"lambd": 0.3}, "Softshrink": {"lambd": 0.3}, "LogSigmoid": {}, "GLU": {"dim": 1},
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("module", MODULES)
def test_modules_are_torchs(device, module):
    """repr, state, results and gradients, those of a second order too, near torch's in binary64."""
    if module == "GELU" and "gelu" not in cpu.FUNCTIONS:
        pytest.skip("gelu")
    ours = getattr(nn, module)(**MODULES[module]).to(device)
    theirs = getattr(torch.nn, module)(
        **{**MODULES[module], **({"inplace": False} if "inplace" in MODULES[module] else {})}
    )
    assert isinstance(ours, getattr(torch.nn, module))
    theirs.load_state_dict(ours.state_dict())
    assert repr(ours).replace(", inplace=True", "").replace("inplace=True", "") == repr(theirs)
    x = 2 * randn(4, 6, 5)
    results = []
    for layer, leaf in ((ours, x.to(device).requires_grad_()), (theirs.double(), x.double().requires_grad_())):
        y = layer(leaf * 1.0)
        (g,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        second = torch.zeros(())
        if module not in ("Hardsigmoid", "Hardswish"):
            (second,) = torch.autograd.grad((g * leaf).sum(), leaf)
        weights = torch.autograd.grad(layer(leaf * 1.0).sum(), list(layer.parameters())) if module == "PReLU" else ()
        results.append([y, g, second, *weights])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a.double().cpu(), b.double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_in_place(device):
    x = randn(4, 6, device=device)
    for f in (functional.silu, functional.hardtanh, functional.leaky_relu):
        y = x.clone()
        assert f(y, inplace=True) is y
        assert_same_bits(y, f(x))
        leaf = x.clone().requires_grad_()
        grads = [torch.autograd.grad(h.sum(), leaf)[0] for h in (f(leaf * 2, inplace=True), f(leaf * 2))]
        assert_same_bits(*grads)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_weight_of_prelu_is_a_sum_in_order(device, dtype):
    from reference.sum import sum_rows

    for shape in ((300, 3, 7), (5, 3), (2500,)):
        x = randn(*shape, dtype=dtype, device=device).requires_grad_()
        channels = shape[1] if len(shape) > 1 else 1
        weight = randn(channels, dtype=dtype, device=device, seed=1).requires_grad_()
        g = randn(*shape, dtype=dtype, device=device, seed=2)
        _, found = torch.autograd.grad(functional.prelu(x, weight), (x, weight), g)
        _, terms = derivatives.prelu(values(g), values(x), np.float32(0))
        rows = np.moveaxis(values(tensor(terms, dtype)).reshape(*shape[:2], -1), 1, -1) if len(shape) > 1 else terms
        rows = values(tensor(rows.reshape(-1, channels), dtype))
        assert_same_bits(found.cpu(), tensor(sum_rows(rows, name(dtype)), dtype))


def test_prelu_under_autocast():
    module, x = nn.PReLU(3), randn(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = [module(x), module(x.bfloat16())]
    for y in found:
        assert_same_bits(y, functional.prelu(x.bfloat16(), module.weight.bfloat16()))
    found[1].sum().backward()
    assert module.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_modules(device):
    torch._dynamo.reset()
    model = nn.Sequential(nn.PReLU(3), nn.SiLU(inplace=True), nn.GLU(dim=-1), nn.Hardtanh(-0.2, 0.9)).to(device)
    x = randn(5, 3, 8, device=device).requires_grad_()
    wanted = [x, *model.parameters()]
    results = [f(x) for f in (torch.compile(model, fullgraph=True, backend="aot_eager"), model)]
    assert_same_bits(*results)
    for a, b in zip(*(torch.autograd.grad(r.sum(), wanted) for r in results), strict=True):
        assert_same_bits(a, b)


def test_bad_input():
    x = randn(3, 5)
    for call, error, match in (
        (lambda: functional.gelu(x, approximate="sigmoid"), RuntimeError, "^approximate: .*'sigmoid'"),
        (lambda: functional.hardtanh(x, 1, 0), ValueError, "^min_val: 1"),
        (lambda: functional.softshrink(x, -1), RuntimeError, "^lambd: .*-1"),
        (lambda: functional.celu(x, 0), RuntimeError, "^alpha"),
        (lambda: functional.elu(x, None), TypeError, "^alpha: expected a real number, got NoneType"),
        (lambda: functional.softshrink(x, "1"), TypeError, "^lambd: expected a real number, got str"),
        (lambda: functional.hardtanh(x, 0, 1j), TypeError, "^max_val: expected a real number, got complex"),
        (lambda: functional.relu([1.0]), TypeError, "^input: expected a Tensor, got list"),
        (lambda: functional.glu(x), RuntimeError, "^dim: size 5"),
        (lambda: functional.glu(x, 2), IndexError, "^dim: expected"),
        (lambda: functional.glu(torch.ones(())), RuntimeError, "0-d"),
        (lambda: functional.prelu(x, torch.ones(3)), RuntimeError, "^weight: expected 1 or 5"),
        (lambda: functional.prelu(x, torch.ones(5).double()), RuntimeError, "^weight: dtype"),
        (lambda: functional.silu(x.double()), NotImplementedError, "^input: dtype torch.float64"),
        (lambda: functional.leaky_relu(torch.arange(3)), NotImplementedError, "^input: dtype torch.int64"),
    ):
        with pytest.raises(error, match=match):
            call()
