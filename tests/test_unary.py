"""Functions of one tensor: bits against the reference on both backends, and their gradients against mpmath."""

import mpmath
import numpy as np
import pytest
import torch

import repkernels
from reference import activations as reference
from reference import derivatives
from repkernels.cpu import elementwise as cpu
from repkernels.nn import functional
from repkernels.ops.elementwise import elementwise, rounded
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

HALF_AND_SINGLE = (torch.float32, torch.bfloat16, torch.float16)
FUNCTIONS = [
    function
    for function in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "sigmoid", "erf", "rsqrt",
        "reciprocal", "sqrt",
    )
    if function in cpu.FUNCTIONS
]  # fmt: skip
OF_RESULT = tuple(derivatives.OF_RESULT)
SPECIAL = (0.0, -0.0, 1e-45, -1e-45, 1e-38, 1.0, -1.0, 0.5, -87.5, 88.8, 3e38, -3e38, np.inf, -np.inf, np.nan)


def arguments(dtype, count=40, seed=0):
    """Ordinary numbers of several sizes, and special ones."""
    sizes = torch.tensor([0.01, 1.0, 8.0, 60.0]).repeat(count // 4)
    drawn = randn(count, seed=seed) * sizes
    return torch.cat([torch.tensor(SPECIAL), drawn]).to(dtype)


def on(backend, function, *operands, s=0.0, t=0.0):
    """The result of the backend's own loop or kernel."""
    operands = [x.to(backend.device) for x in operands]
    out = torch.empty_like(operands[0])
    backend.module("elementwise").elementwise(function, operands, (s, t), out)
    return out.cpu()


@each_backend
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_and_gradients_are_the_definition(backend, function):
    for dtype in HALF_AND_SINGLE if backend.package == "cpu" else HALF_AND_SINGLE[:2]:
        x = arguments(dtype)
        y = on(backend, function, x)
        assert_same_bits(y, tensor(reference.forward(function, name(dtype), values(x)), dtype))
        g = randn(len(x), dtype=dtype, seed=1)
        found = on(backend, f"{function}_gradient", g, y if function in OF_RESULT else x)
        wanted = derivatives.gradient(function, name(dtype), values(g), values(x), values(y))
        assert_same_bits(found, tensor(wanted, dtype))


def slopes():
    """Derivatives by mpmath."""
    m = mpmath
    return {
        "exp": m.exp, "exp2": lambda x: m.ln(2) * m.mpf(2) ** x, "expm1": m.exp, "log": lambda x: 1 / x,
        "log2": lambda x: 1 / (x * m.ln(2)), "log10": lambda x: 1 / (x * m.ln(10)), "log1p": lambda x: 1 / (1 + x),
        "sin": m.cos, "cos": lambda x: -m.sin(x), "tanh": lambda x: m.sech(x) ** 2,
        "sigmoid": lambda x: 1 / (2 + m.exp(x) + m.exp(-x)), "erf": lambda x: 2 / m.sqrt(m.pi) * m.exp(-x * x),
        "rsqrt": lambda x: -1 / (2 * x * m.sqrt(x)), "reciprocal": lambda x: -1 / (x * x),
        "sqrt": lambda x: 1 / (2 * m.sqrt(x)),
    }  # fmt: skip


def ulps(found, exact):
    """The error of an fp32 number in ulp of the exact one."""
    return abs(mpmath.mpf(float(found)) - exact) / mpmath.ldexp(1, int(mpmath.floor(mpmath.log(abs(exact), 2))) - 23)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_keep_their_bounds(function):
    """|x| up to 9, where no derivative here is subnormal."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(np.concatenate([rng.uniform(-9, 9, 120), rng.uniform(-1, 1, 60)]).astype(np.float32))
    if function in ("log", "log2", "log10", "rsqrt", "sqrt"):
        x = x.abs()
    elif function == "log1p":
        x = x.clamp(min=-0.999)
    x.requires_grad_()
    (g,) = torch.autograd.grad(getattr(repkernels, function)(x).sum(), x)
    with mpmath.workprec(120):
        slope = slopes()[function]
        worst = max(ulps(a, slope(mpmath.mpf(v))) for a, v in zip(g.tolist(), x.tolist(), strict=True))
    assert worst <= {"tanh": 4, "sigmoid": 4}.get(function, 3)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_derivatives(function):
    x = torch.linspace(0.2, 2.5, 12)
    single, double = x.clone().requires_grad_(), x.double().requires_grad_()
    seconds = []
    for f, v in ((getattr(repkernels, function), single), (getattr(torch, function), double)):
        (g,) = torch.autograd.grad(f(v).sum(), v, create_graph=True)
        seconds.append(torch.autograd.grad((g * g).sum(), v)[0])
    torch.testing.assert_close(seconds[0].double(), seconds[1], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALF_AND_SINGLE)
def test_strides_and_memory_formats(device, dtype):
    """Any strides give the bits of the contiguous tensor, in the layout that torch gives."""
    base = randn(2, 6, 4, 8, dtype=dtype, device=device)
    for x in (
        base, base.transpose(1, 3), base[:, ::2, 1:, ::3], base.to(memory_format=torch.channels_last),
        base[:1].expand(3, -1, -1, -1), base[0, 0, 0, 0], base[:, :0], base.flatten()[1:], torch._neg_view(base),
    ):  # fmt: skip
        y, theirs = repkernels.tanh(x), torch.tanh(x.float()).to(dtype)
        assert_same_bits(y.contiguous(), repkernels.tanh(x.contiguous()))
        assert x.numel() == 0 or y.stride() == torch.tanh(x).stride()
        torch.testing.assert_close(y, theirs, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("shape", ["transposed", "strided", "many axes", "expanded"])
def test_strides_in_the_kernel(shape):
    """What lies in memory otherwise than the result goes through places of its own."""
    backend = [b for b in each_backend.args[1] if b.package == "kernels"][0]
    x = {
        "transposed": randn(5, 7).t(),
        "strided": randn(6, 20)[::2, ::3],
        "many axes": randn(2, 3, 2, 3, 2, 3).permute(5, 1, 3, 0, 2, 4)[:, ::2],
        "expanded": randn(5, 1).expand(5, 9),
    }[shape].to(backend.device)
    g = randn(*x.shape, device=backend.device, seed=1)
    out = torch.empty_like(g)
    backend.module("elementwise").elementwise("tanh_gradient", [g, x], (), out)
    expected = torch.empty_like(g)
    backend.module("elementwise").elementwise("tanh_gradient", [g, x.contiguous()], (), expected)
    assert_same_bits(out, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_a_piece_gives_the_bits_of_the_whole(device):
    x = randn(70000, device=device)
    for dtype in HALF_AND_SINGLE:
        whole = repkernels.exp(x.to(dtype))
        for start, stop in ((0, 1), (16383, 16385), (5, 70000)):
            assert_same_bits(repkernels.exp(x[start:stop].to(dtype)), whole[start:stop])


@pytest.mark.parametrize("device", DEVICES)
def test_subnormals_stay_where_the_caller_flushes(device):
    x = torch.tensor([1e-40, -1e-40, -100.0, 1e-30], device=device)
    expected = [repkernels.sigmoid(x), repkernels.exp(x), functional.leaky_relu(-x, 1e-42)]
    torch.set_flush_denormal(True)
    try:
        found = [repkernels.sigmoid(x), repkernels.exp(x), functional.leaky_relu(-x, 1e-42)]
    finally:
        torch.set_flush_denormal(False)
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("device", DEVICES)
def test_integers_and_autocast(device):
    n = torch.arange(1, 6, device=device)
    assert_same_bits(repkernels.log(n), repkernels.log(n.float()))
    assert_same_bits(repkernels.exp(n > 2), repkernels.exp((n > 2).float()))
    half = randn(5, dtype=torch.bfloat16, device=device).abs()
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        assert repkernels.exp(half).dtype == repkernels.rsqrt(half).dtype == torch.float32
        assert repkernels.tanh(half).dtype == torch.bfloat16


@pytest.mark.parametrize("device", DEVICES)
def test_vmap_and_functional_gradients(device):
    x = randn(3, 4, 5, device=device)
    for dim in (0, 1, -1):
        assert_same_bits(torch.vmap(repkernels.tanh, dim, dim)(x).contiguous(), repkernels.tanh(x))
    each = torch.vmap(torch.func.grad(lambda v: repkernels.tanh(v).sum()))(x)
    y = x.clone().requires_grad_()
    assert_same_bits(each, torch.autograd.grad(repkernels.tanh(y).sum(), y)[0])
    rows = torch.vmap(lambda v: repkernels.div(x[0], v))(x)
    assert_same_bits(rows, torch.stack([repkernels.div(x[0], v) for v in x]))
    column = torch.vmap(lambda v: repkernels.div(x, v))(x[0, 0])
    assert_same_bits(column, torch.stack([repkernels.div(x, v) for v in x[0, 0]]))


@pytest.mark.parametrize("device", DEVICES)
def test_compiled_whole(device):
    torch._dynamo.reset()

    def f(x):
        return functional.softplus(repkernels.exp(x) + repkernels.tanh(x), 2.0, 3.0)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    x = randn(6, 5, device=device).t().requires_grad_()
    results = [h(x) for h in (compiled, f)]
    assert_same_bits(*results)
    assert_same_bits(*(torch.autograd.grad(r.sum(), x)[0] for r in results))


@pytest.mark.parametrize("device", DEVICES)
def test_opcheck(device):
    x, y, z = (randn(3, 4, device=device, seed=i).requires_grad_() for i in range(3))
    op = torch.ops.repkernels.elementwise.default
    for *operands, function in (
        (x.t(), None, None, "exp"),
        (x, y, z[:, :1], "lerp"),
    ):
        torch.library.opcheck(op, (*operands, function, 0.0, 0.0))


def test_scalars_are_rounded_to_fp32_once():
    rng = np.random.default_rng(0)
    drawn = np.concatenate([rng.standard_normal(100), rng.standard_normal(50) * 1e-41, [3.5e38, -1e300, 1e-300, 0.0]])
    with np.errstate(all="ignore"):
        assert [rounded(float(v)) for v in drawn] == [float(np.float32(v)) for v in drawn]
    assert rounded(float("nan")) != rounded(float("nan"))


def test_bad_input():
    for dtype in (torch.float64, torch.complex64):
        with pytest.raises(NotImplementedError, match="^input: dtype"):
            repkernels.exp(torch.ones(2, dtype=dtype))
    with pytest.raises(TypeError, match="^input: expected a Tensor, got float"):
        repkernels.exp(1.0)
    with pytest.raises(NotImplementedError, match="dense strided"):
        repkernels.exp(torch.eye(2).to_sparse())
    assert repkernels.exp(torch.ones(2, device="meta")).shape == (2,)


def test_every_function_has_a_gradient_and_both_devices_have_the_same():
    from repkernels.kernels import elementwise as gpu
    from repkernels.ops.elementwise import RULES

    # Gated activations round within, so each type has its own.
    names = {name.removesuffix("_bf16").removesuffix("_fp16") for name in cpu.FUNCTIONS}
    assert names == set(gpu.FUNCTIONS)
    assert names <= {*RULES, "shrink_gradient"}


def test_parameters_and_results_that_are_written_in_place():
    weight = torch.nn.Parameter(randn(3))
    assert type(elementwise("tanh", weight)) is torch.Tensor
