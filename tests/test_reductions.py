"""Sums, means, variances, norms, logsumexp, cumulative sums over any axes, to the bit; their gradients and errors."""

import math
import warnings

import mpmath
import numpy as np
import pytest
import torch

import repkernels
from reference import reductions as reference
from repkernels.ops import reduce
from repkernels.ops.sum import sum_rows
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INFINITY = math.inf

# Inside, outside and apart; no axis, all, three levels of strides a side; one column, one row; around 1024.
SHAPES = (
    ((3, 5, 7), (1,)), ((3, 5, 7), (0, 2)), ((3, 5, 7), (0, 1, 2)), ((), ()), ((2, 3, 4, 3, 2), (0, 2, 4)),
    ((1, 6), (0,)), ((2, 1025), (1,)), ((1030, 3), (0,)),
)  # fmt: skip


def wide(dtype):
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_sums(backend, x, dims):
    """Every term and finish against the definition."""
    reduced = backend.module("sum").reduce
    terms, n, v, dtype = reduce.columns(x, list(dims)), reduce.count(x.shape, dims), values(x), x.dtype
    shape = reduce.kept_shape(x.shape, dims)

    def same(found, wanted):
        assert_same_bits(found.view(shape).cpu(), tensor(wanted, found.dtype))

    same(reduced(terms, "value", None, "sum", 1, dtype), reference.sum(v, dims, name(dtype)))
    center = reduced(terms, "value", None, "mean", n, wide(dtype))
    same(center.to(dtype), reference.mean(v, dims, name(dtype)))
    same(reduced(terms, "deviation", center, "mean", n - 0.5, dtype), reference.var(v, dims, name(dtype), 0.5))
    found = reduced(terms, "deviation", center, "mean root", n, dtype)
    same(found, reference.var(v, dims, name(dtype), 0, root=True))
    for p, (term, finish) in {0: ("nonzero", "sum"), 1: ("magnitude", "sum"), 2: ("square", "root")}.items():
        same(reduced(terms, term, None, finish, 1, dtype), reference.norm(v, dims, name(dtype), p))
    if dtype != torch.float64:
        largest = backend.module("extrema").extreme(terms, True)
        found = reduced(terms, "exponential", largest, "logarithm", 1, dtype)
        same(found, reference.logsumexp(v, dims, name(dtype)))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_of_terms(backend, dtype):
    for shape, dims in SHAPES if dtype == torch.float32 or backend.package == "cpu" else SHAPES[1:4]:
        check_sums(backend, randn(*shape, dtype=dtype, device=backend.device), dims)


@each_backend
def test_values_that_are_easily_lost(backend):
    """Columns of zeros of both signs, subnormals, infinities and NaN; sums that overflow."""
    special = torch.tensor([0.0, -0.0, 2.0**-127, -(2.0**-149), 3e38, -3e38, INFINITY, -INFINITY, math.nan, 1.0])
    chosen = torch.randint(0, len(special), (5, 24), generator=torch.Generator().manual_seed(0))
    chosen[:, 8:] %= 6
    chosen[:, 12:] %= 4
    chosen[:, 16:] %= 2
    x = special[chosen]
    x[:, 20] = -INFINITY
    check_sums(backend, x.to(backend.device), (0,))
    check_sums(backend, x.t().contiguous().to(backend.device), (1,))


LAYOUTS = {
    "permuted": lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
    "sliced": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "shifted": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "negative bit": lambda x: torch._neg_view(-x),
}


def _norm(x, dims):
    return repkernels.norm(x, 2, dims)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strides_change_no_bit(device, layout):
    x = randn(3, 5, 7, device=device)
    y = LAYOUTS[layout](x)
    for dims in ((0,), (1,), (2,), (0, 2), (2, 0), (-1, 1, 0)):
        for f in (repkernels.sum, repkernels.mean, repkernels.var, _norm, repkernels.logsumexp):
            results = []
            for v in (x, y):
                v = v.detach().requires_grad_()
                out = f(v, dims)
                (grad,) = torch.autograd.grad(out, v, randn(*out.shape, device=device, seed=1))
                results.append((out, grad.resolve_neg()))
            for got, want in zip(*results, strict=True):
                assert_same_bits(got, want)
    for dim in (0, 1, 2):
        assert_same_bits(repkernels.cumsum(y, dim), repkernels.cumsum(x, dim))
        assert repkernels.cumsum(y, dim).is_contiguous()


@pytest.mark.parametrize("device", DEVICES)
def test_expanded(device):
    x = randn(5, 1, 7, device=device).expand(5, 4, 7)
    for dims in ((0,), (1,), (0, 2), (0, 1, 2)):
        assert_same_bits(repkernels.sum(x, dims), repkernels.sum(x.contiguous(), dims))
        assert_same_bits(repkernels.var(x, dims), repkernels.var(x.contiguous(), dims))


def test_a_column_does_not_depend_on_its_neighbours():
    x = randn(70, 1500)
    for f in (repkernels.sum, repkernels.std, repkernels.logsumexp):
        whole = f(x, 1)
        for i in (0, 33, 69):
            assert_same_bits(f(x[i : i + 1], 1), whole[i : i + 1])
            assert_same_bits(f(x[i : i + 1].t().contiguous(), 0), whole[i : i + 1])
            assert_same_bits(f(x[i]), whole[i]) if f is not repkernels.logsumexp else None


@pytest.mark.parametrize("n", [65537, 200003])
def test_long(n):
    """More than one block, row by row and side by side; three axes flattened in their logical order."""
    x = randn(n, 2)
    v = values(x)
    for y, dims in ((x, (0,)), (x.t().contiguous().t(), (0,))):
        assert_same_bits(repkernels.sum(y, dims), tensor(reference.sum(v, dims, "float32"), torch.float32))
        assert_same_bits(repkernels.var(y, dims), tensor(reference.var(v, dims, "float32"), torch.float32))
        assert_same_bits(repkernels.logsumexp(y, 0), tensor(reference.logsumexp(v, (0,), "float32"), torch.float32))
    assert_same_bits(repkernels.cumsum(x, 0), tensor(reference.cumsum(v, 0, "float32"), torch.float32))


def test_sum_of_all_is_sum_rows_of_one_column():
    x = randn(4, 30, 20).transpose(0, 2)
    assert_same_bits(repkernels.sum(x), sum_rows(x.reshape(-1, 1))[0])


CALLS = {
    "sum": (lambda x: repkernels.sum(x, (0, 2)), lambda x: x.sum((0, 2))),
    "mean": (lambda x: repkernels.mean(x, 1, keepdim=True), lambda x: x.mean(1, keepdim=True)),
    "var": (lambda x: repkernels.var(x, -1), lambda x: x.var(-1)),
    "std": (lambda x: repkernels.std(x, (0, 1), correction=0), lambda x: x.std((0, 1), correction=0)),
    "var_mean": (lambda x: sum(repkernels.var_mean(x, 1)), lambda x: sum(torch.var_mean(x, 1))),
    "norm": (lambda x: repkernels.norm(x, dim=1), lambda x: torch.norm(x, dim=1)),
    "norm 1": (lambda x: repkernels.norm(x, 1, 0), lambda x: torch.norm(x, 1, 0)),
    "norm inf": (lambda x: repkernels.norm(x, INFINITY), lambda x: torch.norm(x, INFINITY)),
    "norm -inf": (lambda x: repkernels.norm(x, -INFINITY, 0), lambda x: torch.norm(x, -INFINITY, 0)),
    "cumsum": (lambda x: repkernels.cumsum(x, 1), lambda x: x.cumsum(1)),
    "amax": (lambda x: repkernels.amax(x, (0, 1)), lambda x: x.amax((0, 1))),
    "min": (lambda x: repkernels.min(x, 1)[0], lambda x: x.min(1)[0]),
    "maximum": (lambda x: repkernels.maximum(x, x[:1] * 0.5), lambda x: torch.maximum(x, x[:1] * 0.5)),
    "logsumexp": (lambda x: repkernels.logsumexp(x, (0, 2)), lambda x: x.logsumexp((0, 2))),
}


@pytest.mark.parametrize("call", CALLS)
def test_against_torch_with_two_derivatives(call):
    """Values and derivatives near torch's; a gradient that is recorded has the bits of one that is not."""
    ours, theirs = CALLS[call]
    dtype = torch.float32 if call == "logsumexp" else torch.float64
    x, results = randn(3, 4, 5, dtype=dtype).requires_grad_(), []
    for f in (ours, theirs):
        out = f(x)
        g = randn(*out.shape, dtype=dtype, seed=1).requires_grad_()
        (grad,) = torch.autograd.grad(out, x, g, create_graph=True)
        second = torch.autograd.grad(grad, (x, g), randn(3, 4, 5, dtype=dtype, seed=2), allow_unused=True)
        results.append([out, grad, *(torch.zeros(()) if s is None else s for s in second)])
    assert_same_bits(results[0][1], torch.autograd.grad(ours(x), x, randn(*g.shape, dtype=dtype, seed=1))[0])
    for got, want in zip(*results, strict=True):
        # None, where nothing depends on it, stands beside zeros.
        got, want = torch.broadcast_tensors(got.to(dtype), want.to(dtype))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", CALLS)
def test_vmap_and_batched_gradients(call):
    ours, _ = CALLS[call]
    x = randn(2, 3, 4, 5, dtype=torch.float32 if call == "logsumexp" else torch.float64)
    apart = torch.stack([ours(v) for v in x])
    assert_same_bits(torch.vmap(ours)(x), apart)
    assert_same_bits(torch.vmap(ours, in_dims=3)(x.movedim(0, 3)), apart)

    def grad(v):
        return torch.func.grad(lambda v: torch.sin(ours(v)).sum())(v)

    assert_same_bits(torch.vmap(grad)(x), torch.stack([grad(v) for v in x]))


@pytest.mark.parametrize("call", ["mean", "std", "norm inf", "logsumexp", "cumsum", "min", "maximum"])
def test_compiled(call):
    """Whole graphs, the bits of eager mode."""
    ours, _ = CALLS[call]
    torch._dynamo.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x = randn(3, 4, 5).requires_grad_()
    results = []
    for f in (compiled, ours):
        out = f(x)
        results.append([out, *torch.autograd.grad(out, x, randn(*out.shape, seed=1))])
    for got, want in zip(*results, strict=True):
        assert_same_bits(got, want)


def _operations():
    x, g = randn(3, 4, 5).requires_grad_(), randn(4, seed=1).requires_grad_()
    index = torch.tensor([[0, 2, 1, 0], [1, 1, 0, 3], [4, 0, 0, 2]])
    y = randn(3, 4, 5, seed=2).requires_grad_()
    return [
        ("sum", (x, [0, 2], torch.float32)),
        ("mean", (x.bfloat16().detach(), [0, 2], torch.float32)),
        ("mean_gradient", (g, 3, torch.float32)),
        ("broadcast", (g, [3, 4, 5], [0, 2])),
        ("var", (x, [0, 2], 1.0, True)),
        ("reduction_gradient", (x, g, repkernels.mean(x, (0, 2)).detach(), None, [0, 2], "variance", 1.0)),
        ("norm", (x, [1], 2.0)),
        ("logsumexp", (x, [0, 2])),
        ("extreme", (x, [0, 2], True)),
        ("position", (x, [2], False)),
        ("at_position", (x, 2, index)),
        ("placed", (x[:, :, 0], 2, index, 5)),
        ("maximum", (x, y, True)),
        ("maximum_gradient", (x, x.detach(), y.detach(), False)),
        ("cumsum", (x, 1, torch.float32, False)),
    ]


@pytest.mark.parametrize("index", range(len(_operations())), ids=lambda i: _operations()[i][0])
def test_opcheck(index):
    op, args = _operations()[index]
    utilities = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(getattr(torch.ops.repkernels, op).default, args, test_utils=utilities)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_nothing(shape):
    """Empty axes as in torch, and axes that stay empty."""
    x = torch.zeros(shape).requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for dim in (None, 0, -1):
            for f in ("sum", "mean", "var", "std", "norm"):
                ours, theirs = getattr(repkernels, f), getattr(torch, f)
                found, wanted = (h(x, 2, dim) if f == "norm" else h(x, dim) for h in (ours, theirs))
                assert_same_bits(found, wanted)
                assert torch.autograd.grad(found.sum(), x)[0].shape == shape
            if dim is not None:
                assert_same_bits(repkernels.logsumexp(x, dim), torch.logsumexp(x, dim))
                assert_same_bits(repkernels.cumsum(x, dim), x.detach())


def test_dtypes():
    half, x = randn(4, 300, dtype=torch.bfloat16), randn(4, 300)
    assert_same_bits(repkernels.sum(half, 1, dtype=torch.float32), repkernels.sum(half.float(), 1))
    assert_same_bits(repkernels.sum(half, 1), repkernels.sum(half.float(), 1).bfloat16())
    assert_same_bits(repkernels.sum(x, 1, dtype=torch.float64), repkernels.sum(x.double(), 1))
    assert_same_bits(repkernels.mean(x, 0, dtype=torch.float16), repkernels.mean(x.half(), 0))
    assert_same_bits(repkernels.cumsum(half, 1, dtype=torch.float32), repkernels.cumsum(half.float(), 1))
    assert_same_bits(repkernels.norm(half, dtype=torch.float64), repkernels.norm(half.double()))
    integers = torch.tensor([[2**62, 2**62, 5], [-1, 0, 7]])
    assert_same_bits(repkernels.sum(integers, 1), integers.sum(1))
    assert repkernels.sum(integers > 0).item() == 4
    assert_same_bits(repkernels.sum(integers, 1, dtype=torch.float32), repkernels.sum(integers.float(), 1))
    assert_same_bits(repkernels.cumsum(integers > 0, 0), (integers > 0).cumsum(0))
    assert_same_bits(repkernels.logsumexp(integers[1:], 1), repkernels.logsumexp(integers[1:].float(), 1))
    with torch.autocast("cpu", torch.bfloat16):
        for f in (repkernels.sum, lambda v: repkernels.cumsum(v, 1), repkernels.norm):
            assert_same_bits(f(half), f(half.float()))


BAD = {
    "axis": lambda m: m.sum(torch.ones(2, 3), 2),
    "axis of cumsum": lambda m: m.cumsum(torch.ones(2, 3), -3),
    "axis of a scalar": lambda m: m.mean(torch.ones(()), 1),
    "axis of argmax": lambda m: m.argmax(torch.ones(2, 3), 5),
    "axis of max": lambda m: m.max(torch.ones(2, 3), -4),
    "twice": lambda m: m.var(torch.ones(2, 3), (0, -2)),
    "mean of integers": lambda m: m.mean(torch.ones(2, dtype=torch.int64)),
    "var of integers": lambda m: m.var(torch.ones(2, dtype=torch.int64)),
    "norm of integers": lambda m: m.norm(torch.ones(2, dtype=torch.int64)),
    "narrowing norm": lambda m: m.norm(torch.ones(2).double(), dtype=torch.float32),
    "infinite norm of nothing": lambda m: m.norm(torch.ones(0), INFINITY),
    "max of nothing": lambda m: m.max(torch.ones(0)),
    "max along nothing": lambda m: m.max(torch.ones(2, 0), 1),
    "amax of nothing": lambda m: m.amax(torch.ones(0)),
    "amax along nothing": lambda m: m.amax(torch.ones(2, 0), 1),
    "argmin of nothing": lambda m: m.argmin(torch.ones(0)),
    "argmin along nothing": lambda m: m.argmin(torch.ones(2, 0), 1),
    "argmax of bool": lambda m: m.argmax(torch.ones(2) > 0),
    "shapes of maximum": lambda m: m.maximum(torch.ones(2), torch.ones(3)),
}


@pytest.mark.parametrize("what", BAD)
def test_errors_are_those_of_torch(what):
    with pytest.raises(Exception) as theirs:
        BAD[what](torch)
    with pytest.raises(type(theirs.value)) as ours:
        BAD[what](repkernels)
    if "integers" not in what and "norm" not in what and "shapes" not in what:
        assert str(ours.value) == str(theirs.value)


def test_errors_of_our_own():
    x = torch.ones(2, 3)
    for call, error, text in (
        (lambda: repkernels.sum([1.0]), TypeError, "^input: expected a Tensor"),
        (lambda: repkernels.sum(x, "a"), TypeError, "^dim"),
        (lambda: repkernels.sum(x, True), TypeError, "^dim: .*got bool"),
        (lambda: repkernels.amax(x, torch.tensor(0)), TypeError, "^dim: .*got Tensor"),
        (lambda: repkernels.max(x, True), TypeError, "^dim: .*got bool"),
        (lambda: repkernels.max(x, (0, 1)), TypeError, "^dim.*amax"),
        (lambda: repkernels.sum(x.to(torch.complex64)), NotImplementedError, "^input: dtype"),
        (lambda: repkernels.sum(x, dtype=torch.complex64), NotImplementedError, "^dtype: dtype"),
        (lambda: repkernels.logsumexp(x.double(), 0), NotImplementedError, "^input: dtype"),
        (lambda: repkernels.norm(x, "nuc"), NotImplementedError, "^p: 'nuc'"),
        (lambda: repkernels.norm(x, out=x), NotImplementedError, "^out"),
        (lambda: repkernels.norm(x.double(), 3), NotImplementedError, "^p: order 3"),
        (lambda: repkernels.var(x, 0, True, correction=1), TypeError, "correction"),
        (lambda: repkernels.sum(x.to_sparse()), NotImplementedError, "^input: only dense"),
    ):
        with pytest.raises(error, match=text):
            call()


def test_no_degree_of_freedom():
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert repkernels.var(torch.ones(1)).isnan()
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert repkernels.std(torch.tensor([1.0, 2.0]), correction=2) == INFINITY


def depth(n):
    return 10 if n <= 1024 else 73 if n <= 65536 else 83 + depth(-(-n // 65536))


@pytest.mark.parametrize("n", [3, 1000, 5000, 70000])
def test_accuracy(n):
    """The bounds of the docstrings, on terms that hardly cancel and on terms that do."""
    u = 2.0**-24
    for x in (randn(n), randn(n, seed=1) + 3, 2.0 ** (8 * randn(n, seed=2))):
        x = x.float()
        exact = x.double().tolist()
        S, mean = math.fsum(map(abs, exact)), math.fsum(exact) / n
        bound = 1.01 * (depth(n) + 1) * u * S
        assert abs(repkernels.sum(x).item() - math.fsum(exact)) <= bound
        assert abs(repkernels.mean(x).item() - mean) <= bound / n + u * abs(mean)
        variance = math.fsum((v - mean) ** 2 for v in exact) / (n - 1)
        e = bound / n + u * abs(mean)
        relative = 1.01 * ((depth(n) + 5) * u + e * e / variance)
        # n - 1 terms were divided by; the mean's error counts n times.
        assert abs(repkernels.var(x).item() - variance) <= relative * variance * n / (n - 1)
        norm = math.sqrt(math.fsum(v * v for v in exact))
        assert abs(repkernels.norm(x).item() - norm) <= 1.01 * ((depth(n) + 2) / 2 + 1) * u * norm
        prefix = repkernels.cumsum(x, 0).double().numpy()
        wanted, total = np.cumsum(np.array(exact, np.longdouble)), np.cumsum(np.abs(exact))
        assert (np.abs(prefix - wanted) <= 1.01 * (10 + np.arange(n) / 1024) * u * total + 1e-45).all()
        y = x.clamp(-60, 60)
        with mpmath.workprec(80):
            lse = float(mpmath.log(mpmath.fsum(mpmath.exp(v) for v in y.double().tolist()[:5000])))
        found = repkernels.logsumexp(y[:5000], 0).item()
        assert abs(found - lse) <= 1.01 * (depth(min(n, 5000)) + 4) * u + u * abs(lse)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_flushed_subnormals(threads):
    x = randn(64, 3000) * 2.0**-130
    functions = (
        repkernels.sum, repkernels.amax, lambda v, d: repkernels.cumsum(v, d), repkernels.argmin,
        lambda v, d: repkernels.norm(v, 0.5, d),
        lambda v, d: repkernels.sum(v, d, dtype=torch.float64),
    )  # fmt: skip
    expected = [f(x, d) for f in functions for d in (0, 1)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        found = [f(x, d) for f in functions for d in (0, 1)]
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(before)
    for got, want in zip(found, expected, strict=True):
        assert_same_bits(got, want)
    assert expected[0].any()
