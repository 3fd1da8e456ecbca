"""Embedding: rows, the gradient's order, padding, frequencies, the module, errors."""

import pytest
import torch

import repkernels
from reference import grouped_sum as reference
from repkernels import nn
from repkernels.nn.functional import embedding
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
each_device = pytest.mark.parametrize("device", DEVICES)


def indices(*shape, high, seed=0):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


@each_device
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", [{}, {"padding_idx": 2}, {"padding_idx": -1, "scale_grad_by_freq": True}], ids=str)
def test_rows_and_gradient(device, dtype, options):
    w, index = randn(7, 5, dtype=dtype), indices(6, 8, high=7)
    leaf = w.to(device).requires_grad_()
    out = embedding(index.to(device), leaf, **options)
    assert_same_bits(out.cpu(), w[index])
    g = randn(6, 8, 5, dtype=dtype, seed=1)
    (grad,) = torch.autograd.grad(out, leaf, g.to(device))
    padding = options["padding_idx"] % 7 if options else None
    arguments = values(g), index.numpy(), 7, name(dtype), padding, "scale_grad_by_freq" in options
    assert_same_bits(grad.cpu(), tensor(reference.embedding_gradient(*arguments), dtype))


@each_device
def test_one_token_many_times(device):
    index = torch.ones(2500, dtype=torch.int32, device=device)
    leaf = randn(3, 4, device=device).requires_grad_()
    g = randn(2500, 4, seed=1)
    (grad,) = torch.autograd.grad(embedding(index, leaf), leaf, g.to(device))
    assert_same_bits(
        grad.cpu(), tensor(reference.embedding_gradient(values(g), index.cpu().numpy(), 3, "float32"), torch.float32)
    )


def test_shapes_and_strides():
    w = randn(5, 9).t()[:, ::2].requires_grad_()
    for index in (torch.tensor(3), torch.zeros(0, 4, dtype=torch.int64), indices(2, 3, 4, high=9).transpose(0, 2)):
        assert_same_bits(embedding(index, w), w.detach()[index])
        assert torch.autograd.grad(embedding(index, w).sum(), w)[0].shape == w.shape


def test_module():
    repkernels.manual_seed(3)
    ours, theirs = nn.Embedding(7, 4, padding_idx=1), torch.nn.Embedding(7, 4, padding_idx=1)
    assert repr(ours) == repr(theirs)
    assert (ours.weight[1] == 0).all() and (ours.weight[[0, 2, 3]] != 0).all()
    repkernels.manual_seed(3)
    assert_same_bits(nn.Embedding(7, 4, padding_idx=1).weight, ours.weight)
    ours.load_state_dict(theirs.state_dict())
    index = indices(5, high=7)
    assert_same_bits(ours(index), theirs(index))
    ours(index).sum().backward()
    assert (ours.weight.grad[1] == 0).all()
    frozen = nn.Embedding.from_pretrained(randn(3, 2))
    assert isinstance(frozen, nn.Embedding) and not frozen.weight.requires_grad
    assert nn.Embedding(3, 2, dtype=torch.bfloat16, device="meta").weight.is_meta
    with pytest.raises(NotImplementedError, match="^max_norm"):
        nn.Embedding(3, 2, max_norm=1.0)


def test_gradients_of_gradients_and_vmap():
    w, index = randn(3, 2, dtype=torch.float64).requires_grad_(), torch.tensor([0, 2, 2, 1])
    assert torch.autograd.gradcheck(lambda w: embedding(index, w), w)
    assert torch.autograd.gradgradcheck(lambda w: embedding(index, w, padding_idx=2) ** 2, w)
    tables, batch = randn(4, 3, 2), indices(4, 5, high=3)
    for f, args in (
        (lambda w: embedding(index, w), (tables,)), (lambda i: embedding(i, tables[0]), (batch,)),
        (lambda i, w: embedding(i, w), (batch, tables)),
    ):  # fmt: skip
        expected = torch.stack([f(*sample) for sample in zip(*args, strict=True)])
        assert_same_bits(torch.func.vmap(f)(*args), expected)
    with pytest.raises(NotImplementedError, match="^scale_grad_by_freq"):
        torch.autograd.gradgradcheck(lambda w: embedding(index, w, scale_grad_by_freq=True), w)


def test_compiled():
    module, index = nn.Embedding(7, 4, padding_idx=1), indices(3, 5, high=7)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    grads = [torch.autograd.grad((f(index) ** 2).sum(), module.weight)[0] for f in (module, compiled)]
    assert_same_bits(*grads)


def test_errors():
    w, index = randn(3, 2), torch.tensor([0, 1])
    for wrong in (3, -1):
        with pytest.raises(IndexError, match=f"^input: index {wrong} is out of range; expected 0 <= index < 3"):
            embedding(torch.tensor([[0, wrong]]), w)
    for error, text, call in (
        (AssertionError, "Padding_idx must be within", lambda: embedding(index, w, padding_idx=3)),
        (NotImplementedError, "^max_norm", lambda: embedding(index, w, max_norm=1.0)),
        (NotImplementedError, "^sparse", lambda: embedding(index, w, sparse=True)),
        (RuntimeError, "^weight: must be 2-D", lambda: embedding(index, w[0])),
        (NotImplementedError, "^input: dtype", lambda: embedding(index.float(), w)),
        (TypeError, "^input: expected a Tensor", lambda: embedding([0], w)),
    ):
        with pytest.raises(error, match=text):
            call()
