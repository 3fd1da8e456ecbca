"""Largest and smallest elements on both backends and through the public functions."""

import math

import pytest
import torch

import repkernels
from reference import reductions as reference
from repkernels.ops import reduce
from tests.backends import BACKENDS, each_backend
from tests.support import DEVICES, assert_same_bits, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check(backend, x, dims):
    terms, v, shape = reduce.columns(x, list(dims)), values(x), reduce.kept_shape(x.shape, dims)
    kernels = backend.module("extrema")
    for largest in (True, False):
        found = kernels.extreme(terms, largest).view(shape)
        assert_same_bits(found.cpu(), tensor(reference.extreme(v, dims, largest), x.dtype))
        found = kernels.extreme(terms, largest, True).view(shape)
        assert_same_bits(found.cpu(), tensor(reference.extreme(abs(v), dims, largest), x.dtype))
        found = kernels.position(terms, largest).view(shape)
        assert_same_bits(found.cpu(), torch.from_numpy(reference.position(v, dims, largest)).view(shape))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(backend, dtype):
    for shape, dims in (((3, 5, 7), (1,)), ((3, 5, 7), (0, 2)), ((2, 1500), (1,)), ((1500, 2), (0,)), ((1, 4), (0,))):
        check(backend, randn(*shape, dtype=dtype, device=backend.device), dims)


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_ties_infinities_and_nan(backend, dtype):
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 5e-324, math.inf, -math.inf, math.nan, -math.nan], dtype=dtype)
    chosen = torch.randint(0, len(special), (6, 60), generator=torch.Generator().manual_seed(0))
    chosen[:, 20:] %= 5
    chosen[:, 40:] %= 2
    x = special[chosen].to(backend.device)
    check(backend, x, (0,))
    check(backend, x.t().contiguous(), (1,))
    check(backend, x, (0, 1))


@pytest.mark.parametrize("least", [8, 10**9])
def test_the_number_of_programs_changes_nothing(monkeypatch, least):
    backend = BACKENDS[1]
    monkeypatch.setattr(backend.module("extrema"), "LEAST_ROWS", least)
    x = randn(3000, 2, device=backend.device).round()
    x[2000, 1] = math.nan
    check(backend, x, (0,))
    check(backend, x.t().contiguous(), (1,))
    check(backend, x.double(), (0,))


@pytest.mark.parametrize("device", DEVICES)
def test_forms(device):
    x = randn(3, 4, 5, device=device)
    values_, indices = repkernels.max(x, 1)
    assert isinstance(repkernels.max(x, 1), torch.return_types.max)
    assert_same_bits(indices, repkernels.argmax(x, 1))
    assert_same_bits(values_, x.gather(1, indices[:, None])[:, 0])
    assert repkernels.min(x, -1, True).indices.shape == (3, 4, 1)
    assert_same_bits(repkernels.max(x), repkernels.amax(x))
    assert_same_bits(repkernels.max(x, x * 2), repkernels.maximum(x, x * 2))
    assert_same_bits(repkernels.min(x, other=x * 2), repkernels.minimum(x, x * 2))
    assert repkernels.argmax(x, keepdim=True).shape == (1, 1, 1)
    assert repkernels.argmax(x).item() == x.reshape(-1).argmax().item()
    scalar = torch.tensor(3.0, device=device)
    assert repkernels.max(scalar, 0).indices.item() == 0
    assert repkernels.amin(scalar, 0) == 3
    negative = torch._neg_view(x)
    assert_same_bits(repkernels.argmax(negative, 2), repkernels.argmin(x, 2))


def test_zeros():
    x = torch.tensor([-0.0, 0.0, -0.0])
    assert_same_bits(repkernels.amax(x), torch.tensor(0.0))
    assert_same_bits(repkernels.amin(x), torch.tensor(-0.0))
    assert repkernels.argmax(x) == 0 and repkernels.argmin(x) == 0
    assert_same_bits(repkernels.max(x, 0).values, torch.tensor(-0.0))
    assert_same_bits(repkernels.maximum(x, torch.tensor(0.0)), torch.zeros(3))
    assert_same_bits(repkernels.minimum(x, torch.tensor(0.0)), torch.tensor([-0.0, 0.0, -0.0]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers(dtype):
    x = torch.randint(0, 5, (4, 30), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_same_bits(repkernels.amax(x, 1), x.amax(1))
    assert_same_bits(repkernels.min(x, 1).values, x.min(1).values)
    assert_same_bits(repkernels.maximum(x, x.flip(0)), torch.maximum(x, x.flip(0)))
    if dtype != torch.bool:
        assert_same_bits(repkernels.argmax(x, 1), reference_position(x))


def reference_position(x):
    return torch.from_numpy(reference.position(x.numpy(), (1,)))


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pairs(backend, dtype):
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan], dtype=dtype)
    a, b = (v.reshape(-1).to(backend.device) for v in torch.meshgrid(special, special, indexing="ij"))
    g = randn(len(a), dtype=dtype, device=backend.device)
    kernels = backend.module("extrema")
    for largest in (True, False):
        found = kernels.maximum(a, b, largest).cpu()
        assert_same_bits(found, tensor(reference.extreme(values(torch.stack([a, b])), (0,), largest), dtype))
        first, second = a.clone().requires_grad_(), b.clone().requires_grad_()
        (torch.maximum if largest else torch.minimum)(first, second).backward(g)
        assert_same_bits(kernels.maximum_gradient(g, a, b, largest), first.grad)
        assert_same_bits(kernels.maximum_gradient(g, b, a, largest), second.grad)


def test_pairs_broadcast_and_promote():
    a, b = randn(3, 1, dtype=torch.bfloat16).requires_grad_(), randn(1, 4, seed=1).requires_grad_()
    out = repkernels.maximum(a, b)
    assert out.dtype == torch.float32 and out.shape == (3, 4)
    assert_same_bits(out, torch.maximum(a, b))
    for scalar in (torch.tensor(0.5), torch.tensor(1), torch.tensor(0.5, dtype=torch.float64)):
        assert_same_bits(repkernels.minimum(a, scalar), torch.minimum(a, scalar))
    grads = torch.autograd.grad(out, (a, b), torch.ones(3, 4))
    for got, want in zip(grads, torch.autograd.grad(torch.maximum(a, b), (a, b), torch.ones(3, 4)), strict=True):
        assert_same_bits(got, want)


def test_ties_share_the_gradient():
    x = torch.tensor([[1.0, 3, 3, -0.0], [0.0, -0.0, -1, -2]]).requires_grad_()
    (grad,) = torch.autograd.grad(repkernels.amax(x, 1), x, torch.tensor([1.0, 3.0]))
    assert grad.tolist() == [[0, 0.5, 0.5, 0], [1.5, 1.5, 0, 0]]
    (grad,) = torch.autograd.grad(repkernels.max(x, 1).values, x, torch.tensor([1.0, -0.0]))
    assert_same_bits(grad, torch.tensor([[0, 1.0, 0, 0], [-0.0, 0, 0, 0]]))
    y = torch.tensor([1.0, math.nan, math.nan]).requires_grad_()
    assert torch.autograd.grad(repkernels.max(y), y)[0].tolist() == [0, 0.5, 0.5]
