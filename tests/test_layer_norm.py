"""layer_norm and rms_norm on both backends against their definition, to the bit."""

import pytest
import torch

from reference import layer_norm as layer_reference
from reference import rms_norm as rms_reference
from repkernels.nn.functional import add_layer_norm, add_rms_norm, layer_norm, rms_norm
from tests.backends import BACKENDS, each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
NORMS = ("layer_norm", "rms_norm")
EPS = 1e-5
INFINITY = float("inf")
each_norm = pytest.mark.parametrize("norm", NORMS)


def _values(v):
    return None if v is None else values(v)


def check(backend, norm, x, g, weight=None, bias=None, residual=None, extra=None, dtype=None):
    """Results and gradients of one backend; returns the normalised rows and the gradient of x."""
    kernels = backend.module(norm)
    dtype = x.dtype if dtype is None else dtype
    y, total, mean, inverse = kernels.forward(x, residual, weight, bias, EPS, dtype)
    wide = values(x)
    if residual is not None:
        wide = layer_reference.residual_sum(wide, values(residual), name(x.dtype))
        assert_same_bits(total.cpu(), tensor(wide, x.dtype))
        x = total
    dx, *parameters = kernels.backward(g, x, mean, inverse, weight, extra, True)
    w, b, u = _values(weight), _values(bias), values(g)
    if norm == "layer_norm":
        wanted = layer_reference.forward(wide, w, b, EPS, name(dtype))
        wanted_dx, *wanted_parameters = layer_reference.backward(u, wide, w, EPS, name(x.dtype))
    else:
        wanted = rms_reference.forward(wide, w, EPS, name(dtype))
        wanted_dx, *wanted_parameters = rms_reference.backward(u, wide, w, EPS, name(x.dtype))
    if extra is not None:
        wanted_dx = layer_reference.residual_sum(wanted_dx, values(extra), name(x.dtype))
    assert y.is_contiguous() and dx.is_contiguous()
    assert_same_bits(y.cpu(), tensor(wanted, dtype))
    assert_same_bits(dx.cpu(), tensor(wanted_dx, x.dtype))
    for found, w in zip(parameters, wanted_parameters, strict=norm == "layer_norm"):
        assert_same_bits(found.cpu(), torch.from_numpy(w))
    alone, *nothing = kernels.backward(g, x, mean, inverse, weight, extra, False)
    assert_same_bits(alone, dx)
    assert [v.numel() for v in nothing] == [0, 0]
    return y, dx


def operands(rows, columns, dtype, device, norm, scale=1.0):
    x = (scale * randn(rows, columns, dtype=torch.float64, seed=rows + columns) + 0.3).to(device=device, dtype=dtype)
    g, residual, extra = (randn(rows, columns, dtype=dtype, device=device, seed=i) for i in (1, 2, 3))
    weight, bias = (randn(columns, dtype=dtype, device=device, seed=i) for i in (4, 5))
    return {
        "x": x, "g": g, "weight": weight, "bias": bias if norm == "layer_norm" else None, "residual": residual,
        "extra": extra,
    }  # fmt: skip


@each_backend
@each_norm
@pytest.mark.parametrize("dtype", DTYPES)
def test_lengths(backend, norm, dtype):
    """Borders of halving and of the lanes; rows that are added in chunks."""
    every = backend.package == "cpu" or (dtype == torch.float32 and norm == "layer_norm")
    for columns in (1, 3, 31, 1023, 1024, 1025, 3000) if every else (5, 1030):
        check(backend, norm, **operands(3, columns, dtype, backend.device, norm))


@each_norm
@pytest.mark.parametrize("columns", [16384, 65536, 65537, 2**20 + 3])
def test_long_rows_on_the_cpu(norm, columns):
    check(BACKENDS[0], norm, **operands(2, columns, torch.float32, "cpu", norm))


def test_rows_that_leave_registers():
    backend = BACKENDS[1]
    check(backend, "layer_norm", **operands(1, 17000, torch.float32, backend.device, "layer_norm"))


@each_norm
def test_short_rows_the_way_of_long_ones(norm, monkeypatch):
    """The same bits from registers and from memory."""
    backend = BACKENDS[1]
    monkeypatch.setattr(backend.module("row_norm"), "MOST_CHUNKS", 0)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        check(backend, norm, **operands(3, 40, dtype, backend.device, norm))


@each_backend
@each_norm
@pytest.mark.parametrize("rows", [0, 1, 2, 7])
def test_numbers_of_rows(backend, norm, rows):
    check(backend, norm, **operands(rows, 10, torch.float32, backend.device, norm))


@each_norm
@pytest.mark.parametrize("rows", [1023, 1024, 1025, 5000, 65536, 65537, 140000])
def test_weight_gradients_of_many_rows_on_the_cpu(norm, rows):
    check(BACKENDS[0], norm, **operands(rows, 3, torch.float32, "cpu", norm))


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_weight_gradients_of_many_rows_in_kernels(parts, monkeypatch):
    """Rows on all lanes twice, on some thrice, however many lanes a program halves itself."""
    backend = BACKENDS[1]
    module = backend.module("row_norm")
    monkeypatch.setattr(module, "backward_configuration", lambda *_: (64, 4, parts, False, None))
    check(backend, "layer_norm", **operands(2100, 5, torch.float32, backend.device, "layer_norm"))


@each_backend
@each_norm
def test_without_parameters(backend, norm):
    given = operands(3, 33, torch.bfloat16, backend.device, norm)
    for absent in (("weight", "bias", "residual", "extra"), ("weight",), ("bias", "residual"), ("extra",)):
        check(backend, norm, **{k: None if k in absent else v for k, v in given.items()})


@each_backend
@each_norm
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fp32_parameters_and_results(backend, norm, dtype):
    given = operands(3, 33, dtype, backend.device, norm)
    given |= {k: None if v is None else v.float() for k, v in given.items() if k in ("weight", "bias", "g")}
    check(backend, norm, **given, dtype=torch.float32)


LAYOUTS = {
    "columns": lambda v: v.t().contiguous().t(),
    "every other": lambda v: v.repeat_interleave(2, 0).repeat_interleave(2, 1)[::2, ::2],
    "shifted": lambda v: torch.cat([v.new_zeros(1), v.reshape(-1)])[1:].view(v.shape),
    "expanded": lambda v: v[:1].expand(v.shape),
}


@each_backend
@each_norm
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backend, norm, layout):
    given = operands(3, 24, torch.bfloat16, backend.device, norm)
    check(backend, norm, **{k: LAYOUTS[layout](v) if v is not None and v.ndim == 2 else v for k, v in given.items()})


@each_backend
@each_norm
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_that_are_easily_lost(backend, norm, dtype):
    """Zeros of both signs, subnormals, overflow, NaN and infinities: each stays in its own row."""
    info = torch.finfo(dtype)
    special = torch.tensor(
        [0.0, -0.0, info.smallest_normal, -info.smallest_normal / 4, info.max, -1.0, INFINITY, float("nan")],
        dtype=dtype,
    )
    choice = torch.randint(0, len(special), (10, 20), generator=torch.Generator().manual_seed(0))
    for row, most in enumerate((8, 7, 6, 5, 4, 4, 2, 2)):
        choice[row] %= most
    choice[8], choice[9] = 0, 1
    given = operands(10, 20, dtype, backend.device, norm)
    given["residual"] = None
    x = special[choice].to(backend.device)
    y, dx = check(backend, norm, **given | {"x": x})
    for row in (2, 6, 9):
        only = slice(row, row + 1)
        alone = {k: v[only] if v is not None and v.ndim == 2 else v for k, v in given.items()}
        found = check(backend, norm, **alone | {"x": x[only]})
        assert_same_bits(found[0], y[only])
        assert_same_bits(found[1], dx[only])


@pytest.mark.parametrize("threads", [1, 3])
@each_norm
def test_subnormals_stay_where_the_caller_flushes_them(norm, threads):
    given = operands(40, 3000, torch.float32, "cpu", norm)
    given["g"] *= 2.0**-126
    given["x"][3] *= 2.0**-130
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    kernels = BACKENDS[0].module(norm)
    results = []
    try:
        for flush in (False, True):
            torch.set_flush_denormal(flush)
            x, residual = given["x"], given["residual"]
            y, total, mean, r = kernels.forward(x, residual, given["weight"], given["bias"], 1e-40, x.dtype)
            results.append([y, total, *kernels.backward(given["g"], total, mean, r, given["weight"], None, True)])
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    for found, wanted in zip(*results, strict=True):
        assert_same_bits(found, wanted)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_public_functions(device, dtype):
    """Leading shapes, several normalised axes, gradients in each argument's dtype, residuals as two operations."""
    x, z, g, h = (randn(2, 3, 4, 5, dtype=dtype, device=device, seed=i).requires_grad_() for i in range(4))
    w, b = (randn(4, 5, dtype=dtype, device=device, seed=i).requires_grad_() for i in (5, 6))
    flat = values(x).reshape(6, 20)
    wanted = layer_reference.forward(flat, values(w).reshape(20), values(b).reshape(20), EPS, name(dtype))
    y = layer_norm(x, (4, 5), w, b)
    assert_same_bits(y.cpu(), tensor(wanted.reshape(x.shape), dtype))
    grads = torch.autograd.grad(y, (x, w, b), g)
    expected = layer_reference.backward(values(g).reshape(6, 20), flat, values(w).reshape(20), EPS, name(dtype))
    for found, want, of in zip(grads, expected, (x, w, b), strict=True):
        assert_same_bits(found.cpu(), tensor(want.reshape(of.shape), dtype))
    fused = (
        (lambda: add_layer_norm(x, z, (4, 5), w, b), lambda s: layer_norm(s, (4, 5), w, b), (x, z, w, b)),
        (lambda: add_rms_norm(x, z, (5,), w[0]), lambda s: rms_norm(s, (5,), w[0]), (x, z, w)),
    )
    for both, after, inputs in fused:
        total = x + z
        wanted = (after(total), total)
        found = both()
        for got, want in zip(found, wanted, strict=True):
            assert_same_bits(got, want)
        for pick in (slice(0, 2), slice(0, 1), slice(1, 2)):
            pairs = [
                torch.autograd.grad(v[pick], inputs, (g, h)[pick], retain_graph=True, allow_unused=True)
                for v in (found, wanted)
            ]
            for got, want in zip(*pairs, strict=True):
                assert (got is None) == (want is None)
                if got is not None:
                    assert_same_bits(got, want)


def test_eps_of_rms_norm():
    x = randn(3, 8, dtype=torch.bfloat16)
    assert_same_bits(rms_norm(x, (8,)), rms_norm(x, (8,), eps=torch.finfo(torch.bfloat16).eps))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast_computes_in_fp32(dtype):
    x, z = randn(3, 8, dtype=dtype), randn(3, 8, dtype=dtype, seed=1)
    w, b = randn(8, seed=2), randn(8, seed=3)
    with torch.autocast("cpu", torch.bfloat16):
        y, (fused, total) = layer_norm(x, (8,), w, b), add_layer_norm(x, z, (8,), w, b)
        mean_square = rms_norm(x, (8,), w.bfloat16())
    assert_same_bits(y, layer_norm(x.float(), (8,), w, b))
    assert_same_bits(total, x + z)
    assert_same_bits(fused, layer_norm((x + z).float(), (8,), w, b))
    assert_same_bits(mean_square, rms_norm(x.float(), (8,), w.bfloat16().float()))


def test_derivatives():
    x, z, w, b = (
        randn(*s, dtype=torch.float64, seed=i).requires_grad_() for i, s in enumerate([(2, 4)] * 2 + [(4,)] * 2)
    )
    for f, inputs in (
        (lambda x, w, b: layer_norm(x, (4,), w, b), (x, w, b)),
        (lambda x: layer_norm(x, (4,)), (x,)),
        (lambda x, w: rms_norm(x, (4,), w), (x, w)),
        (lambda x, z, w, b: add_layer_norm(x, z, (4,), w, b), (x, z, w, b)),
        (lambda x, z, w: add_rms_norm(x, z, (4,), w), (x, z, w)),
    ):
        assert torch.autograd.gradcheck(f, inputs)
        assert torch.autograd.gradgradcheck(f, inputs)


def test_near_the_exact_result():
    """Within the bounds of the docstrings, against the same formula in exact arithmetic to 40 digits."""
    import mpmath

    x, w, b = randn(4, 700), randn(700, seed=1), randn(700, seed=2)
    layer, mean_square = layer_norm(x, (700,), w, b), rms_norm(x, (700,), w, EPS)
    with mpmath.workdps(40):
        for i in range(4):
            row = [mpmath.mpf(float(v)) for v in x[i]]
            mean = mpmath.fsum(row) / 700
            s = mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in row) / 700 + mpmath.mpf(EPS))
            q = mpmath.sqrt(mpmath.fsum(v * v for v in row) / 700 + mpmath.mpf(EPS))
            largest = max(abs(v - mean) for v in row)
            for j in range(700):
                weight, bias = float(w[j]), float(b[j])
                error = abs(float(layer[i, j]) - ((row[j] - mean) / s * weight + bias))
                assert error <= (7 * largest / s + 3) * 2.0**-24 * abs(weight) + 2.0**-24 * abs(bias)
                exact = row[j] / q * weight
                assert abs(float(mean_square[i, j]) - exact) <= 11 * 2.0**-24 * abs(exact)


def test_bad_arguments():
    x, w = randn(2, 8), randn(8)
    for error, match, call in (
        (RuntimeError, "^normalized_shape", lambda: layer_norm(x, (7,))),
        (RuntimeError, "^normalized_shape", lambda: layer_norm(x, (3, 2, 8))),
        (RuntimeError, "^normalized_shape", lambda: layer_norm(x, ())),
        (TypeError, "^normalized_shape", lambda: layer_norm(x, 8)),
        (RuntimeError, "^weight: expected shape", lambda: layer_norm(x, (8,), w[:7])),
        (RuntimeError, "^bias: expected shape", lambda: layer_norm(x, (8,), w, w[:7])),
        (RuntimeError, "^weight: dtype", lambda: layer_norm(x, (8,), w.double(), w.double())),
        (RuntimeError, "^weight: dtype", lambda: rms_norm(x, (8,), w.half())),
        (RuntimeError, "^bias: dtype", lambda: layer_norm(x.half(), (8,), w, w.half())),
        (RuntimeError, "^weight: on meta", lambda: layer_norm(x, (8,), w.to("meta"))),
        (ValueError, "^eps", lambda: layer_norm(x, (8,), eps=-1e-5)),
        (ValueError, "^eps", lambda: rms_norm(x, (8,), eps=float("nan"))),
        (TypeError, "^eps", lambda: layer_norm(x, (8,), eps="1")),
        (NotImplementedError, "^input: dtype", lambda: layer_norm(x.long(), (8,))),
        (TypeError, "^input", lambda: layer_norm([1.0], (1,))),
        (RuntimeError, "^residual: expected input's shape", lambda: add_layer_norm(x, x[:1], (8,))),
        (RuntimeError, "^residual: dtype", lambda: add_rms_norm(x, x.half(), (8,))),
    ):
        with pytest.raises(error, match=match):
            call()


def test_empty():
    for shape in ((0, 8), (3, 0), (0, 0)):
        x = torch.empty(shape, requires_grad=True)
        w, b = (torch.ones(shape[1:], requires_grad=True) for _ in range(2))
        y = layer_norm(x, shape[1:], w, b)
        grads = torch.autograd.grad(y, (x, w, b), torch.ones_like(y))
        for v, like in zip((y, *grads), (x, x, w, b), strict=True):
            assert_same_bits(v, torch.zeros_like(like))
        assert rms_norm(x, shape[1:], w).shape == shape


def test_vmap_and_batched_gradients():
    x, w = randn(3, 4, 8).requires_grad_(), randn(8, seed=1).requires_grad_()
    y = layer_norm(x, (8,), w)
    assert_same_bits(torch.func.vmap(lambda x: layer_norm(x, (8,), w))(x), y)
    assert_same_bits(torch.func.vmap(lambda x: add_rms_norm(x, x[0:1].expand(4, 8), (8,), w)[0])(x).shape and y, y)
    rows = randn(2, 3, 4, 8, seed=2)
    together = torch.autograd.grad(y, (x, w), rows, is_grads_batched=True, retain_graph=True)
    apart = [torch.autograd.grad(y, (x, w), row, retain_graph=True) for row in rows]
    for batch, each in zip(together, zip(*apart, strict=True), strict=True):
        assert_same_bits(batch, torch.stack(each))
    with pytest.raises(NotImplementedError, match="vmap over weight"):
        torch.func.vmap(lambda w: layer_norm(x[0], (8,), w))(w.expand(2, 8))


def test_the_negative_bit():
    x = randn(3, 8)
    for f in (lambda x: layer_norm(x, (8,)), lambda x: rms_norm(x, (8,))):
        assert_same_bits(f(torch._neg_view(x)), f(-x))
