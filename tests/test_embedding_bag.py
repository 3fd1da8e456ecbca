"""Bags of rows: every mode against the definition, torch's values, forms of bags, the module, what is refused."""

import pytest
import torch

from reference import embedding_bag as reference
from repkernels import nn
from repkernels.nn.functional import embedding_bag
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

OFFSETS = (0, 3, 3, 4, 11)


def indices(count, high=7, seed=0):
    return torch.randint(high, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_against_the_definition(device, mode, padding):
    index, offsets = indices(20), torch.tensor(OFFSETS)
    for dtype in (torch.float32, torch.bfloat16):
        w, g = randn(7, 3, dtype=dtype), randn(5, 3, dtype=dtype, seed=1)
        for weighted in (False, True) if mode == "sum" else (False,):
            factors = randn(20, dtype=dtype, seed=2) if weighted else None
            leaves = [t.to(device).requires_grad_() for t in (w, factors) if t is not None]
            arguments = {"mode": mode, "padding_idx": padding, "per_sample_weights": leaves[1] if weighted else None}
            y = embedding_bag(index.to(device), leaves[0], offsets.to(device), **arguments)
            grads = torch.autograd.grad(y, leaves, g.to(device))
            wanted = reference.embedding_bag(
                index.numpy(), values(w), offsets.numpy(), mode, values(g), name(dtype),
                values(factors) if weighted else None, padding,
            )  # fmt: skip
            for found, expected in zip((y, *grads), wanted, strict=False):
                assert_same_bits(found.detach().cpu(), tensor(expected, dtype))
            if dtype == torch.float32:
                same = torch.nn.functional.embedding_bag(index.to(device), leaves[0], offsets.to(device), **arguments)
                torch.testing.assert_close(y, same)
                pairs = zip(grads, torch.autograd.grad(same, leaves, g.to(device)), strict=True)
                for ours, theirs in pairs:
                    torch.testing.assert_close(ours, theirs)


def test_forms():
    w = randn(7, 3)
    index = indices(12)
    wanted = embedding_bag(index, w, torch.tensor([0, 4, 8]), mode="sum")
    assert_same_bits(embedding_bag(index.view(3, 4).int(), w, mode="sum"), wanted)
    assert_same_bits(embedding_bag(index, w, torch.tensor([0, 4, 8, 12]), mode="sum", include_last_offset=True), wanted)
    short = embedding_bag(index, w, torch.tensor([0, 4]), mode="sum", include_last_offset=True)
    assert_same_bits(short, wanted[:1])
    assert_same_bits(embedding_bag(index[:0], w, torch.tensor([0, 0])), torch.zeros(2, 3))
    assert embedding_bag(index[:0].view(0, 4), w).shape == (0, 3)
    for value in (float("nan"), -0.0):
        x = torch.tensor([[1.0], [value], [0.0], [-1.0]])
        found = embedding_bag(torch.tensor([3, 1, 2, 0 if value else 3]), x, torch.tensor([0]), mode="max")
        assert_same_bits(found, torch.tensor([[value]]))
    leaf = w.clone().requires_grad_()
    (grad,) = torch.autograd.grad(
        embedding_bag(index.view(3, 4), leaf, scale_grad_by_freq=True, mode="sum").sum(), leaf
    )
    assert_same_bits(grad, (index.bincount(minlength=7) > 0).float()[:, None].expand(7, 3))


def test_compiled():
    w, index = randn(7, 3).requires_grad_(), indices(12).view(3, 4)

    def modes(i, v):
        return torch.stack([embedding_bag(i, v, mode=mode) for mode in ("sum", "mean", "max")])

    assert_same_bits(torch.compile(modes, fullgraph=True, backend="eager")(index, w), modes(index, w))


def test_module():
    ours, theirs = nn.EmbeddingBag(7, 4, padding_idx=1), torch.nn.EmbeddingBag(7, 4, padding_idx=1)
    assert repr(ours) == repr(theirs) and isinstance(ours, torch.nn.EmbeddingBag)
    assert (ours.weight[1] == 0).all()
    ours.load_state_dict(theirs.state_dict())
    index = indices(12).view(3, 4)
    torch.testing.assert_close(ours(index), theirs(index))
    with pytest.raises(NotImplementedError, match="max_norm"):
        nn.EmbeddingBag(7, 4, max_norm=1.0)


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"mode": "min"}, ValueError, "mode"),
        ({"offsets": None}, ValueError, "offsets"),
        ({"offsets": torch.tensor([1])}, RuntimeError, "offsets"),
        ({"offsets": torch.tensor([0, 9])}, RuntimeError, "greater"),
        ({"offsets": torch.tensor([[0]])}, ValueError, "offsets"),
        ({"per_sample_weights": torch.zeros(3)}, NotImplementedError, "per_sample_weights"),
        ({"per_sample_weights": torch.zeros(2), "mode": "sum"}, ValueError, "per_sample_weights"),
        ({"padding_idx": 9}, RuntimeError, "padding_idx"),
        ({"sparse": True}, NotImplementedError, "sparse"),
        ({"max_norm": 1.0}, NotImplementedError, "max_norm"),
        ({"scale_grad_by_freq": True, "mode": "max"}, ValueError, "scale_grad_by_freq"),
        ({"input": torch.tensor([7])}, IndexError, "input"),
        ({"weight": torch.zeros(7)}, ValueError, "weight"),
    ],
)
def test_what_is_refused(options, error, what):
    arguments = {"input": torch.tensor([0, 1, 2]), "weight": torch.zeros(7, 2), "offsets": torch.tensor([0])}
    with pytest.raises(error, match=what):
        embedding_bag(**{**arguments, **options})
