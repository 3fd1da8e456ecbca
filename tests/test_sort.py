"""sort, argsort, topk: order, ties, NaN, zeros, gradients, errors, as torch sees them."""

import numpy as np
import pytest
import torch

import repkernels
from reference import sort as reference
from tests.support import DEVICES, assert_same_bits, randn, tensor, values

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
each_device = pytest.mark.parametrize("device", DEVICES)


def ties(*shape, dtype=torch.float32, seed=0):
    """Few values, each many times: NaN of both signs, infinities, zeros of both signs, subnormals."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype) if dtype != torch.bool else None
        some = [0, 1] if info is None else [info.min, info.max, 0, 1, 2, info.max - 1]
        few = torch.tensor(some, dtype=dtype)
    else:
        tiny = torch.finfo(dtype).smallest_normal / 2
        few = torch.tensor([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, tiny, -tiny, 1.0, -1.0, 2.5], dtype=dtype)
    return few[torch.randint(len(few), shape, generator=torch.Generator().manual_seed(seed))]


def arrays(x):
    return values(x) if x.is_floating_point() else x.numpy()


@each_device
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS))
@pytest.mark.parametrize("dim", [0, -1])
def test_order_and_ties(device, dtype, dim):
    x = ties(40, 3, 50, dtype=dtype)
    for descending in (False, True):
        v, i = reference.sort(arrays(x), dim, descending)
        found = repkernels.sort(x.to(device), dim, descending)
        assert_same_bits(found.values.cpu(), tensor(v, dtype))
        assert_same_bits(found.indices.cpu(), torch.from_numpy(i))
        assert_same_bits(repkernels.argsort(x.to(device), dim, descending).cpu(), torch.from_numpy(i))
        for k in (0, 1, 7, x.shape[dim]):
            if dtype != torch.bool:
                v, i = reference.topk(arrays(x), k, dim, descending)
                found = repkernels.topk(x.to(device), k, dim, descending, sorted=k != 7)
                assert_same_bits(found.values.cpu(), tensor(v, dtype))
                assert_same_bits(found.indices.cpu(), torch.from_numpy(i))


@each_device
@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients(device, dtype):
    x = randn(5, 9, dtype=dtype)
    leaf = x.to(device).requires_grad_()
    for call, k in ((lambda t: repkernels.sort(t, 0, True), 5), (lambda t: repkernels.topk(t, 3, 0), 3)):
        found = call(leaf)
        assert not found[1].requires_grad
        g = randn(k, 9, dtype=dtype, seed=1)
        (grad,) = torch.autograd.grad(found[0], leaf, g.to(device))
        assert_same_bits(grad.cpu(), tensor(reference.gradient(values(g), found[1].cpu().numpy(), 0, 5), dtype))


def test_gradients_of_gradients_and_vmap():
    x, batch = randn(4, 5, dtype=torch.float64).requires_grad_(), ties(3, 4, 5)
    for call in (lambda t: repkernels.sort(t, 0)[0] ** 2, lambda t: repkernels.topk(t, 2)[0] ** 2):
        assert torch.autograd.gradcheck(call, x)
        assert torch.autograd.gradgradcheck(call, x)
        assert_same_bits(torch.func.vmap(call)(batch), torch.stack([call(t) for t in batch]))
        assert_same_bits(torch.func.vmap(call, 1)(batch), torch.stack([call(t) for t in batch.unbind(1)]))
    together = torch.func.vmap(torch.func.grad(lambda t: repkernels.topk(t, 2)[0].sum()))(randn(3, 4, 5))
    assert together.shape == (3, 4, 5)


@each_device
def test_strides_and_the_negative_bit(device):
    x = ties(8, 12).to(device)
    for view in (x.t(), x[::2, ::3], x[:1].expand(4, 12), torch._neg_view(x)):
        for f in (lambda t: repkernels.sort(t, 0), lambda t: repkernels.topk(t, 2, -1, False)):
            for got, want in zip(f(view), f(view.resolve_neg().contiguous()), strict=True):
                assert_same_bits(got, want)


def test_a_row_does_not_depend_on_the_others():
    x = ties(20, 64)
    for f in (lambda t: repkernels.sort(t), lambda t: repkernels.topk(t, 9)):
        for row in (0, 7, 19):
            for got, want in zip(f(x[row]), f(x), strict=True):
                assert_same_bits(got, want[row])


def test_nothing_and_scalars():
    for shape in ((0,), (3, 0), (0, 3)):
        assert repkernels.sort(torch.zeros(shape))[1].shape == shape
        assert repkernels.topk(torch.zeros(shape), 0)[0].shape == (*shape[:-1], 0)
    scalar = torch.tensor(-2.0).requires_grad_()
    for found in (repkernels.sort(scalar), repkernels.topk(scalar, 1)):
        assert_same_bits(found.values, scalar)
        assert found.indices.shape == () and found.indices == 0
        assert torch.autograd.grad(found.values, scalar)[0] == 1
    with pytest.raises(RuntimeError, match="^k: selected index k out of range"):
        repkernels.topk(scalar, 0)


def test_as_torch_sees_them():
    x, index, ops = randn(4, 5).requires_grad_(), torch.tensor([[0, 2], [1, 0]]), torch.ops.repkernels
    torch.library.opcheck(ops.sort.default, (x, 1, True))
    torch.library.opcheck(ops.topk.default, (x, 2, 0, False))
    torch.library.opcheck(ops.place_along.default, (randn(2, 2).requires_grad_(), index, 1, 3))
    for f in (lambda t: repkernels.sort(t, 0).values, lambda t: repkernels.topk(t, 2)[0]):
        out, again = f(x), torch.compile(f, fullgraph=True, backend="aot_eager")(x)
        assert_same_bits(out, again)
        assert_same_bits(*(torch.autograd.grad((y**2).sum(), x)[0] for y in (out, again)))


def test_errors():
    x = randn(3, 4)
    for error, text, call in (
        (IndexError, "Dimension out of range", lambda: repkernels.sort(x, 2)),
        (IndexError, "Dimension out of range", lambda: repkernels.topk(x, 1, -3)),
        (RuntimeError, "^k: selected index k out of range", lambda: repkernels.topk(x, 5)),
        (RuntimeError, "^k: selected index k out of range", lambda: repkernels.topk(x, -1)),
        (NotImplementedError, "^input: dtype", lambda: repkernels.topk(x > 0, 1)),
        (NotImplementedError, "^input: dtype", lambda: repkernels.sort(x.cfloat())),
        (TypeError, "^input: expected a Tensor", lambda: repkernels.argsort([1.0])),
    ):
        with pytest.raises(error, match=text):
            call()
