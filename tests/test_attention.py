"""Attention by segments: bits against the reference in every layout and format, gradients, torch's values, errors."""

import math

import numpy as np
import pytest
import torch

import repkernels
from reference import attention as reference
from repkernels.nn import functional as F
from tests.support import assert_same_bits, name, randn, tensor, values

GRADIENT = {"ordered": "ordered", "fixed8": "fixed16", "fixed16": "fixed24", "fixed24": "fixed32", "fixed32": "fixed32"}
BOTH = [("ordered", torch.float32), ("fixed16", torch.bfloat16)]
nan = math.nan


def integers(x):
    return None if x is None else torch.tensor(x, dtype=torch.int32)


def rule(contract, width, options):
    scale = float(np.float32(options.get("scale", 1 / math.sqrt(width))))
    names = {"is_causal": "causal", "window": "window", "softcap": "softcap"}
    return reference.Rule(contract, scale, **{names[x]: y for x, y in options.items() if x in names})


def assert_is_reference(contract, q, k, v, mask=None, sinks=None, first_key=None, first_query=None, **options):
    """The result and every gradient of the dense form."""
    dtype = q.dtype
    leaves = [x for x in (q, k, v, mask, sinks) if x is not None and x.dtype != torch.bool]
    leaves = [x.detach().requires_grad_() if x.is_leaf else x.requires_grad_() for x in leaves]
    given = iter(leaves)
    q, k, v = (next(given) for _ in range(3))
    mask = mask if mask is None or mask.dtype == torch.bool else next(given)
    sinks = None if sinks is None else next(given)
    out = F.scaled_dot_product_attention(
        q, k, v, mask, enable_gqa=True, sinks=sinks, first_key=integers(first_key), first_query=integers(first_query),
        contract=(contract, GRADIENT[contract]), **options,
    )  # fmt: skip
    arrays = [values(x) for x in (q, k, v)]
    given = (
        None if mask is None else mask.numpy() if mask.dtype == torch.bool else values(mask),
        None if sinks is None else values(sinks), first_key, first_query,
    )  # fmt: skip
    wanted, lse = reference.forward(*arrays, name(dtype), rule(contract, q.shape[-1], options), *given)
    assert_same_bits(out, tensor(wanted, dtype))
    grad = randn(*out.shape, dtype=dtype, seed=9)
    found = torch.autograd.grad(out, leaves, grad)
    follows = rule(GRADIENT[contract], q.shape[-1], options)
    g = reference.backward(values(grad), *arrays, wanted, lse, name(dtype), follows, *given)
    expected = [tensor(x, dtype) for x in (g.q, g.k, g.v)]
    if mask is not None and mask.dtype != torch.bool:
        expected.append(repkernels.sum(torch.from_numpy(g.scores), (0, 1)).to(mask.dtype))
    if sinks is not None:
        expected.append(torch.from_numpy(g.sinks))
    for x, y in zip(found, expected, strict=True):
        assert_same_bits(x, y)


def operands(*shapes, dtype=torch.float32):
    return [randn(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize(("contract", "dtype"), [*BOTH, ("fixed24", torch.float32), ("fixed32", torch.float16)])
def test_dense_is_the_reference(contract, dtype):
    """Grouped heads, a chunk of a prompt, sizes that no vector divides."""
    x = operands((2, 4, 21, 20), (2, 2, 150, 20), (2, 2, 150, 11), dtype=dtype)
    assert_is_reference(contract, *x, is_causal=True, first_query=[129, 3])


@pytest.mark.parametrize(("contract", "dtype"), [("ordered", torch.bfloat16), ("fixed8", torch.float32)])
def test_positions_windows_caps_and_sinks_are_the_references(contract, dtype):
    x = operands((2, 2, 9, 16), (2, 1, 300, 16), (2, 1, 300, 24), dtype=dtype)
    options = {"window": (140, 2), "softcap": 2.5, "scale": 0.7}
    assert_is_reference(
        contract, *x, sinks=randn(2), first_key=[7, -20], first_query=[120, -3], **options
    )  # fmt: skip


@pytest.mark.parametrize(("contract", "dtype"), BOTH)
def test_masks_are_the_references(contract, dtype):
    """A row without keys; a numeric mask is broadcast, so that its gradient is a SUM."""
    x = operands((2, 2, 5, 16), (2, 2, 140, 16), (2, 2, 140, 8), dtype=dtype)
    seen = randn(2, 1, 5, 140, seed=3) > 0
    seen[1, 0, 2] = False
    assert_is_reference(contract, *x, mask=seen)
    added = randn(5, 140, dtype=dtype, seed=4).masked_fill(randn(5, 140, seed=5) < -1, -math.inf)
    assert_is_reference(contract, *x, mask=added, sinks=randn(2), is_causal=True)


@pytest.mark.parametrize("contract", ["ordered", "fixed16"])
def test_values_that_are_not_finite_are_the_references(contract):
    q, k, v = operands((1, 2, 6, 16), (1, 1, 9, 16), (1, 1, 9, 5))
    for x, index, value in ((q, (0, 1, 2, 3), nan), (k, (0, 0, 3, 0), math.inf), (v, (0, 0, 5, 1), -math.inf),
                            (v, (0, 0, 7, 2), nan), (k, (0, 0, 8, 4), nan)):  # fmt: skip
        x[index] = value
    assert_is_reference(contract, q, k, v, is_causal=True, first_query=[3])


@pytest.mark.parametrize(("contract", "dtype"), BOTH)
def test_packed_is_the_reference(contract, dtype):
    """Sequences of no queries or no keys, more queries than keys, and rows of none."""
    q, k, v = (x.requires_grad_() for x in operands((40, 4, 16), (170, 2, 16), (170, 2, 8), dtype=dtype))
    queries, keys = [0, 0, 3, 20, 30, 38], [0, 5, 138, 150, 150, 165]
    options = {"is_causal": True, "window": (50, -1)}
    sinks = randn(4).requires_grad_()
    pair = contract, GRADIENT[contract]
    out = F.varlen_attention(q, k, v, integers(queries), integers(keys), sinks=sinks, contract=pair, **options)
    arrays = [values(x) for x in (q, k, v)]
    ends = np.array(queries), np.array(keys)
    s = values(sinks)
    wanted, lse = reference.packed(*arrays, *ends, name(dtype), rule(contract, 16, options), s)
    assert_same_bits(out, tensor(wanted, dtype))
    grad = randn(*out.shape, dtype=dtype, seed=9)
    follows = rule(pair[1], 16, options)
    expected = reference.packed_backward(values(grad), *arrays, wanted, lse, *ends, name(dtype), follows, s)
    for x, y in zip(torch.autograd.grad(out, (q, k, v, sinks), grad), expected, strict=True):
        assert_same_bits(x, tensor(y, x.dtype))


@pytest.mark.parametrize(("contract", "dtype"), BOTH)
def test_paged_is_the_reference(contract, dtype):
    """A missing page, unused ones that hold NaN, no keys, rows of no sequence."""
    q, k, v = operands((9, 4, 16), (12, 16, 2, 16), (12, 16, 2, 8), dtype=dtype)
    k[9], v[9] = nan, nan
    table = [[3, 0, 11, 7, 8, 1, 2, 4, 10], [-1, 5, -1, -1, -1, -1, -1, -1, -1], [9] * 9]
    queries, lengths = [0, 1, 6, 7], [140, 21, 0]
    where = integers(table), integers(queries), integers(lengths)
    out = F.paged_attention(q, k, v, *where, contract=contract, sinks=randn(4))
    arrays = [values(x) for x in (q, k, v)]
    wanted, _ = reference.paged(
        *arrays, *(x.numpy() for x in where), name(dtype), rule(contract, 16, {"is_causal": True}), values(randn(4))
    )
    assert_same_bits(out, tensor(wanted, dtype))
    with pytest.raises(NotImplementedError, match="paged_attention has no gradient"):
        F.paged_attention(q.requires_grad_(), k, v, *where).sum().backward()


@pytest.mark.parametrize("options", [{"is_causal": True}, {"window": (3, 0)}], ids=str)
def test_rows_alone_layouts_and_invisible_keys(options):
    """A row alone behind NaN that it may not see, of strided, broadcast and sliced operands, in one batch or none."""
    q, k, v = operands((2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    whole = F.scaled_dot_product_attention(q, k, v, **options)
    i = 4
    hidden = [x.clone() for x in (k, v)]
    for x in hidden:
        x[:, :, i + 1 :] = nan
    first = torch.tensor([i, i], dtype=torch.int32)
    assert_same_bits(
        F.scaled_dot_product_attention(q[:, :, [i]], *hidden, first_query=first, **options), whole[:, :, [i]]
    )
    odd = [torch.cat([x, x], -1)[..., ::2] for x in (q.repeat_interleave(2, -1)[..., :8].contiguous(), k, v)]
    assert_same_bits(
        F.scaled_dot_product_attention(*odd, **options),
        F.scaled_dot_product_attention(*(x.contiguous() for x in odd), **options),
    )
    assert_same_bits(F.scaled_dot_product_attention(q[0], k[0], v[0], **options), whole[0])
    assert_same_bits(F.scaled_dot_product_attention(q[None], k[None], v[None], **options), whole[None])
    shared = F.scaled_dot_product_attention(q, k[:1], v[:1], **options)
    assert_same_bits(
        shared, F.scaled_dot_product_attention(q, *(x[:1].expand(2, -1, -1, -1) for x in (k, v)), **options)
    )


def test_torchs_values_and_rows_without_keys():
    q, k, v = (x.requires_grad_() for x in operands((2, 4, 5, 8), (2, 2, 6, 8), (2, 2, 6, 3)))
    mask = randn(2, 4, 5, 6, seed=3) > 0
    mask[0, 1, 2] = False
    for options in ({"attn_mask": mask}, {"attn_mask": mask[:, :1]}, {"is_causal": True}):
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
        torch.testing.assert_close(out, theirs)
        for a, b in zip(*(torch.autograd.grad(r.sin().sum(), (q, k, v)) for r in (out, theirs)), strict=True):
            torch.testing.assert_close(a, b)
    out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    assert_same_bits(out[0, 1, 2], torch.zeros(3))
    repeated = F.scaled_dot_product_attention(q, *(x.repeat_interleave(2, 1) for x in (k, v)), mask)
    assert_same_bits(repeated, out)


def test_empty_sizes():
    q, k, v = operands((2, 2, 3, 4), (2, 2, 0, 4), (2, 2, 0, 5))
    out = F.scaled_dot_product_attention(q.requires_grad_(), k, v, sinks=randn(2).requires_grad_())
    assert_same_bits(out, torch.zeros(2, 2, 3, 5))
    (grad,) = torch.autograd.grad(out.sum(), q)
    assert_same_bits(grad, torch.zeros_like(q))
    assert F.scaled_dot_product_attention(q[:, :, :0], q, q).shape == (2, 2, 0, 4)
    assert F.scaled_dot_product_attention(q, q, q[..., :0]).shape == (2, 2, 3, 0)
    k = randn(2, 2, 6, 4)
    without = F.scaled_dot_product_attention(q[..., :0], k[..., :0], k)
    torch.testing.assert_close(without, k.mean(2, keepdim=True).expand(-1, -1, 3, -1))


def test_contracts_are_captured_and_autocast_casts():
    q, k, v = (x.requires_grad_() for x in operands((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8)))
    with repkernels.contract(("ordered", "fixed24")):
        out = F.scaled_dot_product_attention(q, k, v)
    named = F.scaled_dot_product_attention(q, k, v, contract=("ordered", "fixed24"))
    assert_same_bits(out, named)
    for a, b in zip(*(torch.autograd.grad(x.sin().sum(), (q, k, v)) for x in (out, named)), strict=True):
        assert_same_bits(a, b)
    mask = randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        cast = F.scaled_dot_product_attention(q, k, v, mask)
    assert_same_bits(cast, F.scaled_dot_product_attention(*(x.bfloat16() for x in (q, k, v, mask))))


def test_under_transforms_and_compilers():
    q, k, v = operands((3, 2, 5, 8), (3, 2, 5, 8), (3, 2, 5, 8))
    whole = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert_same_bits(torch.vmap(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True))(q, k, v), whole)
    sinks = randn(3, 2)
    each = torch.vmap(lambda q, s: F.scaled_dot_product_attention(q, q, q, sinks=s))(q, sinks)
    alone = [F.scaled_dot_product_attention(x, x, x, sinks=s) for x, s in zip(q, sinks, strict=True)]
    assert_same_bits(each, torch.stack(alone))

    def loss(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).sin().sum()

    wanted = torch.func.grad(loss, (0, 1, 2))(q, k, v)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for contract in ("ordered", None):
        with repkernels.contract(contract):
            found = torch.autograd.grad(compiled(*leaves), leaves)
            plain = torch.autograd.grad(loss(*leaves), leaves)
        for a, b in zip(found, plain, strict=True):
            assert_same_bits(a, b)
    for a, b in zip(plain, wanted, strict=True):
        assert_same_bits(a, b)
    (grad,) = torch.autograd.grad(loss(*leaves), leaves[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of its gradients"):
        grad.sum().backward()


def test_opcheck():
    q, k, v = (x.requires_grad_() for x in operands((1, 2, 3, 8), (1, 2, 4, 8), (1, 2, 4, 8)))
    options = (True, -1, -1, 0.5, 0.0, True, "ordered", "ordered")
    nothing = (None,) * 6
    torch.library.opcheck(
        torch.ops.repkernels.attention.default, (q, k, v, randn(1, 1, 3, 4), randn(2), *nothing, *options)
    )


def test_reproducible_and_convert_agree():
    q, k, v = operands((2, 2, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    aten = torch.ops.aten
    with repkernels.reproducible():
        assert_same_bits(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True), wanted)
        assert_same_bits(aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True)[0], wanted)
        assert_same_bits(aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0], wanted)
        assert_same_bits(aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True)[0], wanted)


def test_dropout_is_composed():
    q, k, v = operands((2, 2, 4, 8), (2, 1, 5, 8), (2, 1, 5, 3))
    found = []
    for seed in (1, 1, 2):
        repkernels.manual_seed(seed)
        found.append(F.scaled_dot_product_attention(q, k, v, None, 0.5, True, enable_gqa=True))
    assert_same_bits(found[0], found[1])
    assert (found[0] != found[2]).any()
    with pytest.raises(NotImplementedError, match="sinks: not supported together with dropout_p"):
        F.scaled_dot_product_attention(q, q, q, None, 0.5, sinks=randn(2))


def test_bad_input():
    q, k = randn(2, 4, 8), randn(2, 5, 8)
    attend = F.scaled_dot_product_attention
    for error, match, call in (
        (RuntimeError, "query, key and value: shapes", lambda: attend(q, k, k[:, :3])),
        (RuntimeError, "value: dtype torch.bfloat16 differs from query's", lambda: attend(q, k, k.bfloat16())),
        (NotImplementedError, "query: dtype torch.float64 is not", lambda: attend(q.double(), k.double(), k.double())),
        (RuntimeError, "attn_mask: expected dtype torch.bool or torch.float32, got torch.int64",
         lambda: attend(q, k, k, torch.zeros(4, 5).long())),
        (RuntimeError, r"attn_mask: shape \(4, 4\) does not broadcast", lambda: attend(q, k, k, torch.zeros(4, 4))),
        (RuntimeError, "enable_gqa: 3 heads of query are no multiple",
         lambda: attend(randn(3, 4, 8), k, k, enable_gqa=True)),
        (ValueError, "window: expected ints from -1", lambda: attend(q, k, k, window=(-2, 0))),
        (TypeError, "window: expected two ints", lambda: attend(q, k, k, window=4)),
        (ValueError, "softcap: expected a positive number", lambda: attend(q, k, k, softcap=-1.0)),
        (RuntimeError, r"sinks: expected shape \(2,\)", lambda: attend(q, k, k, sinks=randn(3))),
        (RuntimeError, r"first_query: expected shape \(1,\)", lambda: attend(q, k, k, first_query=integers([1, 2]))),
        (RuntimeError, "first_key: expected dtype torch.int32", lambda: attend(q, k, k, first_key=randn(1))),
        (TypeError, "first_key: expected a Tensor, got int", lambda: attend(q, k, k, first_key=3)),
        (ValueError, "contract: 'native' means", lambda: F.varlen_attention(
            q, q, q, integers([0, 2]), integers([0, 2]), contract="native")),
        (RuntimeError, r"cu_seqlens_k: expected shape \(2,\)", lambda: F.varlen_attention(
            randn(3, 2, 8), randn(4, 2, 8), randn(4, 2, 8), integers([0, 3]), integers([0, 1, 3]))),
        (RuntimeError, r"block_table: expected 2 dimensions", lambda: F.paged_attention(
            randn(3, 2, 8), randn(4, 16, 2, 8), randn(4, 16, 2, 8), integers([0]), integers([0, 3]), integers([3]))),
    ):  # fmt: skip
        with pytest.raises(error, match=match):
            call()
