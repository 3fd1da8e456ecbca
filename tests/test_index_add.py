"""index_add, scatter_add, index_select, gather, bincount: bits, gradients, shapes, errors, as torch sees them."""

import numpy as np
import pytest
import torch

import repkernels
from reference import formats
from reference import grouped_sum as reference
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
each_device = pytest.mark.parametrize("device", DEVICES)


def indices(*shape, high=3, seed=0):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


@each_device
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_add(device, dtype, dim):
    x, source = randn(4, 5, 6, dtype=dtype), randn(*(9 if d == dim % 3 else s for d, s in enumerate((4, 5, 6))), seed=1)
    source, index, g = source.to(dtype), indices(9, high=4), randn(4, 5, 6, dtype=dtype, seed=2)
    leaves = [t.to(device).requires_grad_() for t in (x, source)]
    out = repkernels.index_add(leaves[0], dim, index.to(device), leaves[1], alpha=0.3)
    wanted = reference.index_add(values(x), dim, index.numpy(), values(source), name(dtype), 0.3)
    assert_same_bits(out.cpu(), tensor(wanted, dtype))
    by_x, by_source = torch.autograd.grad(out, leaves, g.to(device))
    assert_same_bits(by_x.cpu(), g)
    wide = values(g).dtype.type
    expected = formats.rounded(np.take(values(g), index.numpy(), dim) * wide(0.3), name(dtype))
    assert_same_bits(by_source.cpu(), tensor(expected, dtype))


@each_device
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scatter_add_and_gather(device, dtype, dim):
    """The index is smaller than src, and larger than input along dim."""
    x, src, index = randn(3, 4, 3, dtype=dtype), randn(4, 7, 8, dtype=dtype, seed=1), indices(3, 4, 3)
    if dim == -1:
        index = indices(3, 4, 8)
    leaves = [t.to(device).requires_grad_() for t in (x, src)]
    out = repkernels.scatter_add(leaves[0], dim, index.to(device), leaves[1])
    wanted = reference.scatter_add(values(x), dim, index.numpy(), values(src), name(dtype))
    assert_same_bits(out.cpu(), tensor(wanted, dtype))
    g = randn(3, 4, 3, dtype=dtype, seed=2)
    by_x, by_src = torch.autograd.grad(out, leaves, g.to(device))
    assert_same_bits(by_x.cpu(), g)
    expected = torch.zeros_like(src)
    expected[tuple(slice(n) for n in index.shape)] = g.gather(dim, index)
    assert_same_bits(by_src.cpu(), expected)

    taken = repkernels.gather(leaves[0], dim, index.to(device))
    assert_same_bits(taken.cpu(), x.gather(dim, index))
    g = randn(*index.shape, dtype=dtype, seed=3)
    (grad,) = torch.autograd.grad(taken, leaves[:1], g.to(device))
    assert_same_bits(
        grad.cpu(), tensor(reference.scatter_sum(values(g), dim, index.numpy(), (3, 4, 3), name(dtype)), dtype)
    )


@each_device
@pytest.mark.parametrize("dim", [0, 1])
def test_index_select(device, dim):
    x, index = randn(5, 6), indices(11, high=5)
    leaf = x.to(device).requires_grad_()
    out = repkernels.index_select(leaf, dim, index.to(device))
    assert_same_bits(out.cpu(), x.index_select(dim, index))
    g = randn(*out.shape, seed=1)
    (grad,) = torch.autograd.grad(out, leaf, g.to(device))
    rows = np.moveaxis(values(g), dim, 0)
    wanted = np.moveaxis(reference.grouped_sum(rows, index.numpy(), x.shape[dim], "float32"), 0, dim)
    assert_same_bits(grad.cpu(), tensor(wanted, torch.float32))


@each_device
def test_bincount(device):
    index = indices(50, high=7)
    assert_same_bits(repkernels.bincount(index.to(device)).cpu(), torch.bincount(index))
    for dtype in (*DTYPES, torch.int32):
        weights = randn(50, seed=1).mul(9).to(dtype)
        found = repkernels.bincount(index.to(device), weights.to(device), minlength=9)
        result = "float32" if dtype == torch.float32 else "float64"
        wanted = reference.bincount(index.numpy(), weights.double().numpy(), result, 9)
        assert_same_bits(found.cpu(), tensor(wanted, getattr(torch, result)))
    empty = torch.zeros(0, dtype=torch.int64, device=device)
    assert_same_bits(repkernels.bincount(empty, empty.float(), 2).cpu(), torch.zeros(2))
    assert repkernels.bincount(empty).shape == (0,)
    with pytest.raises(RuntimeError, match="non-negative"):
        repkernels.bincount(torch.tensor([1, -1]))
    with pytest.raises(RuntimeError, match="^weights: expected input's shape"):
        repkernels.bincount(index, torch.ones(3))
    with pytest.raises(RuntimeError, match="minlength"):
        repkernels.bincount(index, minlength=-1)
    with pytest.raises(NotImplementedError, match="^input: dtype"):
        repkernels.bincount(torch.ones(3))


@each_device
def test_integers_are_torchs(device):
    x, index, source = indices(4, 3, high=99), indices(6, high=4), indices(6, 3, high=99)
    arguments = [t.to(device) for t in (x, index, source)]
    assert_same_bits(repkernels.index_add(arguments[0], 0, *arguments[1:]).cpu(), x.index_add(0, index, source))
    index = index[:, None].expand(6, 3)
    found = repkernels.scatter_add(arguments[0], 0, index.to(device), arguments[2])
    assert_same_bits(found.cpu(), x.scatter_add(0, index, source))


@each_device
def test_strides_and_the_negative_bit(device):
    index = indices(8, high=5).to(device)
    x, source = randn(6, 5, device=device).t(), torch._neg_view(randn(16, 6, device=device, seed=1)[::2])
    expected = repkernels.index_add(x.contiguous(), 0, index, source.resolve_neg().contiguous())
    assert_same_bits(repkernels.index_add(x, 0, index, source), expected)
    assert_same_bits(repkernels.index_add(x, 0, index.int(), source), expected)
    spread = index[:, None].expand(8, 6)
    assert_same_bits(repkernels.scatter_add(x, 0, spread, source), expected)
    assert_same_bits(repkernels.scatter_add(x.t(), 1, spread.t(), source.t()), expected.t())


def test_nothing_and_scalars():
    none, x = torch.zeros(0, dtype=torch.int64), -torch.zeros(3, 2)
    assert_same_bits(repkernels.index_add(x, 0, none, torch.ones(0, 2)), x)
    assert_same_bits(repkernels.scatter_add(x, 0, none.view(0, 2), torch.ones(0, 2)), x)
    assert repkernels.index_add(torch.ones(3, 0), 0, torch.tensor([1]), torch.ones(1, 0)).shape == (3, 0)
    assert repkernels.index_select(x, 0, none).shape == (0, 2)
    assert repkernels.gather(x, 0, none.view(0, 2)).shape == (0, 2)
    scalar, zero = torch.tensor(1.0), torch.tensor(0)
    assert_same_bits(repkernels.index_add(scalar, 0, zero, torch.tensor(2.0)), torch.tensor(3.0))
    assert_same_bits(repkernels.scatter_add(scalar, 0, zero, torch.tensor(2.0)), torch.tensor(3.0))
    assert_same_bits(repkernels.gather(scalar, 0, zero), scalar)
    assert_same_bits(repkernels.index_select(scalar, 0, zero), scalar)


def test_gradients_of_gradients_and_vmap():
    index, spread = indices(5, high=3), indices(5, 2, high=3, seed=1)
    x, y = (randn(*s, dtype=torch.float64, seed=i).requires_grad_() for i, s in enumerate([(3, 2), (5, 2)]))
    functions = (
        lambda x, y: repkernels.index_add(x, 0, index, y, alpha=0.7),
        lambda x, y: repkernels.scatter_add(x, 0, spread, y),
        lambda x, y: repkernels.gather(x, 0, spread) * y,
        lambda x, y: repkernels.index_select(x, 0, index) * y,
    )
    for f in functions:
        assert torch.autograd.gradcheck(f, (x, y))
        assert torch.autograd.gradgradcheck(f, (x, y))
        a, b = randn(4, 3, 2, seed=3), randn(4, 5, 2, seed=4)
        together = torch.func.vmap(f)(a, b)
        assert_same_bits(together, torch.stack([f(*pair) for pair in zip(a, b, strict=True)]))
    indexes, base = indices(4, 5, high=3), randn(3, 2)
    batch = torch.func.vmap(lambda i, y: repkernels.index_add(base, 0, i, y))(indexes, b)
    wanted = torch.stack([repkernels.index_add(base, 0, i, y) for i, y in zip(indexes, b, strict=True)])
    assert_same_bits(batch, wanted)
    weights = randn(5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: repkernels.bincount(index, w), weights)


def test_as_torch_sees_them():
    index, spread, ops = indices(5, high=3), indices(5, 2, high=3), torch.ops.repkernels
    x, y = randn(3, 2).requires_grad_(), randn(5, 2, seed=1).requires_grad_()
    for op, args in (
        (ops.index_add, (x, y, index, 0.5)), (ops.scatter_add, (x, y, spread, 0)),
        (ops.take_rows, (x, index, 1, True, False, "index")),
    ):  # fmt: skip
        torch.library.opcheck(op.default, args)
    for op, args in (
        (ops.gather, (x, spread, 0)), (ops.scatter_sum, (y, spread, 0, [3, 2])),
        (ops.grouped_sum, (y, index, 3, -1, False)),
    ):  # fmt: skip
        # The others' backward passes run these under a compiler.
        utilities = "test_schema", "test_autograd_registration", "test_faketensor"
        torch.library.opcheck(op.default, args, test_utils=utilities)


def test_compiled():
    index, spread = indices(5, high=3), indices(3, 2, high=2)
    x, y = randn(3, 2).requires_grad_(), randn(5, 2, seed=1).requires_grad_()

    def added(x, y):
        more = repkernels.scatter_add(repkernels.index_add(x, 0, index, y), 1, spread, y)
        return more * repkernels.gather(x, 0, spread)

    compiled = torch.compile(added, fullgraph=True, backend="aot_eager")
    outs = [f(x, y) for f in (added, compiled)]
    assert_same_bits(*outs)
    for grads in zip(*(torch.autograd.grad((out * out).sum(), (x, y)) for out in outs), strict=True):
        assert_same_bits(*grads)


def test_autocast_promotes_scatter_add():
    x, src, index = randn(3, 2), randn(3, 2, dtype=torch.bfloat16), indices(3, 2)
    with torch.autocast("cpu", torch.bfloat16):
        found = repkernels.scatter_add(x, 0, index, src)
    assert_same_bits(found, repkernels.scatter_add(x, 0, index, src.float()))


@pytest.mark.parametrize("wrong", [3, -1, -4, 2**40])
def test_out_of_range(wrong):
    x, index = randn(3, 2), torch.tensor([0, wrong])
    with pytest.raises(IndexError, match=f"^index: index {wrong} is out of range; expected 0 <= index < 3"):
        repkernels.index_add(x, 0, index, randn(2, 2))
    with pytest.raises(IndexError, match=f"^index: index {wrong} is out of range"):
        repkernels.index_select(x, 0, index)
    for call in (lambda i: repkernels.scatter_add(x, 0, i, randn(2, 1)), lambda i: repkernels.gather(x, 0, i)):
        with pytest.raises(RuntimeError, match=f"^index: index {wrong} is out of range"):
            call(index[:, None])


def test_bad_arguments():
    x, index = randn(3, 2), torch.tensor([0, 1])
    for error, text, call in (
        (IndexError, "Dimension out of range", lambda: repkernels.index_add(x, 2, index, x)),
        (IndexError, "^index: expected one dim", lambda: repkernels.index_add(x, 0, index[None], x)),
        (RuntimeError, "^index: 2 indices for source", lambda: repkernels.index_add(x, 0, index, x)),
        (RuntimeError, "^source: shape", lambda: repkernels.index_add(x, 0, index, randn(2, 3))),
        (RuntimeError, "^source: dtype", lambda: repkernels.index_add(x, 0, index, x.double())),
        (RuntimeError, "^index: expected int64", lambda: repkernels.index_add(x, 0, index.float(), x)),
        (TypeError, "^index: expected a Tensor", lambda: repkernels.index_add(x, 0, [0], x)),
        (TypeError, "^source: expected a Tensor", lambda: repkernels.index_add(x, 0, index, 2.0)),
        (TypeError, "^alpha: expected a real", lambda: repkernels.index_add(x, 0, index, x[:2], alpha="2")),
        (RuntimeError, "^index: shape", lambda: repkernels.scatter_add(x, 0, index, x)),
        (RuntimeError, "^index: shape", lambda: repkernels.scatter_add(x, 0, indices(4, 2), x)),
        (RuntimeError, "^index: shape", lambda: repkernels.scatter_add(x, 0, index[0], x[0, 0])),
        (RuntimeError, "^index: shape", lambda: repkernels.scatter_add(x[0], 0, index[0], x)),
        (RuntimeError, "^src: dtype", lambda: repkernels.scatter_add(x, 0, indices(3, 2), x.half())),
        (TypeError, "^input: expected a Tensor", lambda: repkernels.scatter_add([1.0], 0, index, x)),
        (TypeError, "^src: expected a Tensor", lambda: repkernels.scatter_add(x, 0, index, 2.0)),
        (RuntimeError, "^index: shape", lambda: repkernels.gather(x, 0, index[0])),
        (RuntimeError, "^index: shape", lambda: repkernels.gather(x[0, 0], 0, index[None])),
        (RuntimeError, "^index: shape", lambda: repkernels.gather(x, 0, indices(3, 4))),
        (NotImplementedError, "^input: dtype", lambda: repkernels.index_add(x.cfloat(), 0, index, x.cfloat())),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()
