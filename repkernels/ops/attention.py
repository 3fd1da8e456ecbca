"""Attention by segments of 128 keys (SPEC.md, "Attention"): dense, packed, and from pages.

A row of the result depends on its query and the keys it sees, by their positions, and on nothing else. The gradient of
the scores is that of an additive mask; sinks have theirs from forward's LSE. Gradients have no gradients.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.attention import Attention, Sequences, f32
from repkernels.contract import ContractLike, resolve
from repkernels.ops import batches, checks, reduce
from repkernels.ops.backend import backend
from repkernels.ops.in_force import PAIRS, contract_in_force, mark
from repkernels.ops.multi_head_attention import DTYPES, attended_with_dropout
from repkernels.ops.operation import operation
from repkernels.ops.plain import multiply, subtract
from repkernels.ops.sum import broadcast_to

Window = tuple[int, int]
_INTEGERS = (torch.int32, torch.int64)

# All operands below have four axes, packed ones (1, H, T, E), pages (pages, H, page_size, E). `rule` and `gradient` are
# the contracts of forward and of the gradients; with a token the pair is read from it, and they say which is meant.


def _name(token: Tensor | None, rule: str) -> str:
    return rule if token is None else getattr(PAIRS[int(token)], rule)


def _attention(
    causal: bool, left: int, right: int, scale: float, softcap: float, token: Tensor | None, rule: str
) -> Attention:
    return Attention(causal, f32(scale), _name(token, rule), (left, right), f32(softcap))


def _empty(q: Tensor, v: Tensor) -> Tensor:
    """The result (B, Hq, L, Ev): heads lie side by side, as the linear that follows wants them."""
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3])).transpose(1, 2)


def _run(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, queries: Tensor | None,
    keys: Tensor | None, table: Tensor | None, first_key: Tensor | None, first_query: Tensor | None,
    token: Tensor | None, causal: bool, left: int, right: int, scale: float, softcap: float, with_lse: bool,
    rule: str, gradient: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    out = _empty(q, v)
    # Rows of no sequence keep -inf.
    lse = q.new_full(q.shape[:3] if with_lse else (0,), -math.inf, dtype=torch.float32)
    if out.numel() == 0:
        return out, lse
    if k.numel() == 0:
        if sinks is not None and with_lse:
            lse.copy_(sinks[None, :, None])
        return out.zero_(), lse
    if mask is not None:
        mask = mask.expand(*q.shape[:3], k.shape[2])
    sequences = Sequences(queries, keys, table, first_key, first_query)
    options = _attention(causal, left, right, scale, softcap, token, rule)
    kernels = backend("attention", checks.device_type(q))
    kernels.attention(q, k, v, out, lse if with_lse else None, mask, sinks, sequences, options)
    return out, lse


def _fake(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, queries: Tensor | None,
    keys: Tensor | None, table: Tensor | None, first_key: Tensor | None, first_query: Tensor | None,
    token: Tensor | None, causal: bool, left: int, right: int, scale: float, softcap: float, with_lse: bool,
    rule: str, gradient: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return _empty(q, v), q.new_empty(q.shape[:3] if with_lse else (0,), dtype=torch.float32)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, sinks, queries, keys, table, first_key, first_query, token, *options, with_lse, rule, gradient = (
        inputs
    )
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.options, ctx.paged, ctx.by_token = options, table is not None, token is not None
    ctx.rule = "gradient" if ctx.by_token else gradient
    if not ctx.paged and with_lse:
        kept = token if ctx.by_token else mark(rule, gradient)
        ctx.save_for_backward(q, k, v, out, lse, mask, sinks, queries, keys, first_key, first_query, kept)


def _backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, ...]:
    if ctx.paged:
        raise NotImplementedError("paged_attention has no gradient; use varlen_attention, or call it under no_grad")
    *tensors, token = ctx.saved_tensors
    token = token if ctx.by_token else None
    for_mask, for_sinks = ctx.needs_input_grad[3:5]
    found = _gradient(grad, *tensors, token, *ctx.options, for_mask, for_sinks, ctx.rule)
    grad_q, grad_k, grad_v, grad_mask, grad_sinks = found
    return grad_q, grad_k, grad_v, grad_mask if for_mask else None, grad_sinks if for_sinks else None, *(None,) * 14


def _vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    """Dense sequences do not know of each other, so a batch of them is more of them; anything else one by one."""
    packed = args[5] is not None
    if packed or any(dim is not None for dim in in_dims[4:11]) or any(x is not None for x in args[8:10]):
        return batches.one_by_one(_attend, info, in_dims, args)
    q, k, v, mask = batches.first(info, in_dims[:4], *args[:4])
    size = q.shape[:2]
    if args[3] is not None:
        mask = mask.expand(*size, *mask.shape[2:]).flatten(0, 1)
    else:
        mask = None
    out, lse = _attend(*(x.flatten(0, 1) for x in (q, k, v)), mask, *args[4:])
    return (out.unflatten(0, size), lse.unflatten(0, size) if lse.ndim > 1 else lse), (0, 0 if lse.ndim > 1 else None)


# The gradients of q, k, v, of the mask and of the sinks; where one of the last two is not asked for, nothing.


def _run_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None,
    sinks: Tensor | None, queries: Tensor | None, keys: Tensor | None, first_key: Tensor | None,
    first_query: Tensor | None, token: Tensor | None, causal: bool, left: int, right: int, scale: float,
    softcap: float, for_mask: bool, for_sinks: bool, rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    grad_q, grad_k, grad_v = (_dense_like(x) for x in (q, k, v))
    scores = q.new_empty((*q.shape[:3], k.shape[2]), dtype=torch.float32) if for_mask else None
    if grad.numel() == 0 or k.numel() == 0:
        for x in (grad_q, grad_k, grad_v, scores):
            if x is not None:
                x.zero_()
    else:
        wide = None if mask is None else mask.expand(*q.shape[:3], k.shape[2])
        sequences = Sequences(queries, keys, None, first_key, first_query)
        options = _attention(causal, left, right, scale, softcap, token, rule)
        kernels = backend("attention", checks.device_type(q))
        kernels.attention_backward(
            grad, q, k, v, out, lse, wide, sinks, grad_q, grad_k, grad_v, scores, sequences, options
        )
    nothing = q.new_empty((0,))
    grad_mask = nothing if scores is None or mask is None else _mask_gradient(scores, mask)
    grad_sinks = _sink_gradient(sinks, grad, out, lse) if for_sinks and sinks is not None else q.new_empty((0,))
    return grad_q, grad_k, grad_v, grad_mask, grad_sinks


def _dense_like(x: Tensor) -> Tensor:
    """Memory for x's gradient, laid out as x where its last axis is contiguous."""
    return torch.empty_like(x) if x.stride(3) == 1 else x.new_empty(x.shape)


def _mask_gradient(scores: Tensor, mask: Tensor) -> Tensor:
    """The SUM of the gradients of the scores (B, Hq, L, S) over the axes along which the mask was broadcast."""
    dims = [d for d in range(4) if mask.shape[d] != scores.shape[d]]
    if not dims:
        return scores.to(mask.dtype) if mask.dtype != torch.float32 else scores
    if scores.numel() == 0:
        return mask.new_zeros(mask.shape)
    kernels = backend("sum", checks.device_type(scores))
    return kernels.reduce(reduce.columns(scores, dims), "value", None, "sum", 1, mask.dtype).view(mask.shape)


def _sink_gradient(sinks: Tensor, grad: Tensor, out: Tensor, lse: Tensor) -> Tensor:
    """-SUM over batch and queries of RN(expf32(min(sink - LSE, +0)) * D), D = SUM over Ev of RN(grad * out)."""
    heads = sinks.shape[0]
    if lse.numel() == 0:
        return torch.zeros_like(sinks)
    device = checks.device_type(sinks)
    kernels = backend("sum", device)
    products = multiply(grad.float(), out.float())
    d = kernels.reduce(reduce.columns(products, [3]), "value", None, "sum", 1, torch.float32).view(lse.shape)
    below = subtract(broadcast_to(sinks[None, :, None], lse.shape), lse)
    alone = lse == -math.inf
    d, below = d.masked_fill(alone, 0), below.masked_fill(alone, 0)
    # Of the row (below, .) with the gradient (0, D), log_softmax's gradient is RN(0 - RN(expf32(min(below, +0)) * D)).
    zero = torch.zeros_like(d)
    rows, of_rows = (torch.stack(pair, -1).view(-1, 2) for pair in ((below, zero), (zero, d)))
    terms = backend("softmax", device).softmax_backward(of_rows, rows, True)[:, 0].view(lse.shape)
    return kernels.reduce(reduce.columns(terms, [0, 2]), "value", None, "sum", 1, torch.float32).view(heads)


def _fake_gradient(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None,
    sinks: Tensor | None, queries: Tensor | None, keys: Tensor | None, first_key: Tensor | None,
    first_query: Tensor | None, token: Tensor | None, causal: bool, left: int, right: int, scale: float,
    softcap: float, for_mask: bool, for_sinks: bool, rule: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    of_mask = q.new_empty((0,)) if mask is None or not for_mask else mask.new_empty(mask.shape)
    of_sinks = q.new_empty((0,)) if sinks is None or not for_sinks else sinks.new_empty(sinks.shape)
    return _dense_like(q), _dense_like(k), _dense_like(v), of_mask, of_sinks


def _setup_gradient(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pass


def _backward_gradient(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    raise NotImplementedError(
        "attention: gradients of its gradients are not supported; compose it of matmul and softmax"
    )


def _vmap_gradient(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    # The gradients of mask and sinks are a sample's own.
    return batches.one_by_one(_gradient, info, in_dims, args)


_attend = operation("attention", _run, _fake, _setup_context, _backward, _vmap)
_gradient = operation(
    "attention_gradient", _run_gradient, _fake_gradient, _setup_gradient, _backward_gradient, _vmap_gradient
)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: Window | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    first_key: Tensor | None = None,
    first_query: Tensor | None = None,
    contract: ContractLike | None = None,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention: softmax(query @ key^T * scale + attn_mask) @ value.

    query: (..., H, L, E). key, value: (..., H, S, E) and (..., H, S, Ev); all fp32, bf16 or fp16, any strides; leading
        axes broadcast. Result: (..., H, L, Ev), in their type, heads side by side in memory.
    attn_mask: broadcast to (..., H, L, S), bool (True takes part) or query's dtype or fp32 (added). is_causal: no key
        at a position beyond the query's; both may be given. A row that sees no key is +0.
    scale: 1 / sqrt(E) in binary64 where None. enable_gqa: key and value have fewer heads, H / Hkv queries to each.
    window: (left, right), the keys at positions from the query's - left to + right, -1 for no limit. softcap: C tanh(s
        / C) of the scores. sinks: (H,), a score of each head that takes weight and has no value.
    first_key, first_query: (B,), int32, B the product of the axes before H: the index of the key at position 0 (the
        length of the padding; negative if the oldest keys are gone) and the position of query 0; 0 where None. So a
        chunk of a prompt, or one new token, behind S - L keys has first_query = S - L.
    contract: of all contractions, as for `repkernels.matmul`. Differentiable once, in attn_mask and sinks too.

    Bits: SPEC.md, "Attention": a row depends on its query and on the keys it sees, whatever invisible ones hold. With
    dropout_p > 0, always applied as in torch, "Attention from products": there a masked key still multiplies value by
    +0, and window, softcap, sinks, first_key and first_query are not there.
    Raises RuntimeError for shapes, dtypes or devices that do not fit, ValueError for a window, scale or softcap that
    is none, NotImplementedError for other dtypes and options together with dropout.
    """
    query, key, value, attn_mask = _operands((query, key, value), ("query", "key", "value"), attn_mask)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim < 2:
            raise RuntimeError(f"{name}: expected 2 dimensions or more, got shape {tuple(x.shape)}")
    q_batch, k_batch, v_batch = (x.shape[:-3] if enable_gqa else x.shape[:-2] for x in (query, key, value))
    batch = _broadcast(q_batch, k_batch, v_batch)
    if query.shape[-1] != key.shape[-1] or key.shape[-2] != value.shape[-2] or batch is None:
        raise RuntimeError(
            f"query, key and value: shapes {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)} do not fit"
        )
    if enable_gqa:
        _check_heads(query, key, value, -3, "enable_gqa")
    size = (*batch, *query.shape[len(q_batch) : -1], key.shape[-2])
    if attn_mask is not None:
        _check_mask(attn_mask, size)
    scale = _scale(scale, query.shape[-1])
    left, right = _window(window)
    softcap = _softcap(softcap)
    if dropout_p:
        refused = {
            "window": (left, right) != (-1, -1),
            "softcap": softcap > 0,
            "sinks": sinks is not None,
            "first_key": first_key is not None,
            "first_query": first_query is not None,
        }
        for name, given in refused.items():
            if given:
                raise NotImplementedError(f"{name}: not supported together with dropout_p; use dropout_p=0.0")
        return attended_with_dropout(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, contract)
    q, k, v = (_four_axes(broadcast_to(x, (*batch, *x.shape[len(own) :])))
               for x, own in ((query, q_batch), (key, k_batch), (value, v_batch)))  # fmt: skip
    mask = None if attn_mask is None else _mask_of_four(attn_mask, size)
    sinks = _sinks(sinks, q)
    first_key, first_query = (
        None if x is None else _integers(name, x, q, (q.shape[0],))
        for name, x in (("first_key", first_key), ("first_query", first_query))
    )
    tensors = (q, k, v, mask, sinks, None, None, None, first_key, first_query)
    out = _call(tensors, is_causal, left, right, scale, softcap, contract)
    return out if query.ndim == 4 and len(size) == 4 else out.reshape(*size[:-1], value.shape[-1])


def varlen_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    contract: ContractLike | None = None,
) -> Tensor:
    """Attention of sequences that lie one after another.

    query: (T, Hq, E). key, value: (Tk, Hkv, E) and (Tk, Hkv, Ev), Hkv dividing Hq. Result: (T, Hq, Ev).
    cu_seqlens_q, cu_seqlens_k: (B + 1,), int32: sequence b has the rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1, its
        last query at the position of its last key. Rows of no sequence are +0.
    Everything else, the bits of each sequence too, as `scaled_dot_product_attention`. The host reads no tensor.
    """
    query, key, value, _ = _operands((query, key, value), ("query", "key", "value"), None)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != 3:
            raise RuntimeError(f"{name}: expected 3 dimensions (tokens, heads, size), got shape {tuple(x.shape)}")
    if query.shape[2] != key.shape[2] or key.shape[0] != value.shape[0]:
        raise RuntimeError(
            f"query, key and value: shapes {tuple(query.shape)}, {tuple(key.shape)}, {tuple(value.shape)} do not fit"
        )
    _check_heads(query, key, value, 1, "key")
    queries = _integers("cu_seqlens_q", cu_seqlens_q, query, None)
    keys = _integers("cu_seqlens_k", cu_seqlens_k, query, tuple(queries.shape))
    left, right = _window(window)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
    tensors = (q, k, v, None, _sinks(sinks, q), queries, keys, None, None, None)
    out = _call(tensors, is_causal, left, right, _scale(scale, query.shape[2]), _softcap(softcap), contract)
    return out.squeeze(0).transpose(0, 1)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    seqlens_k: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    window: Window | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    contract: ContractLike | None = None,
) -> Tensor:
    """Attention of sequences whose keys lie in pages.

    query: (T, Hq, E), packed as for `varlen_attention`. key_cache, value_cache: (pages, page_size, Hkv, E or Ev).
    block_table: (B, P), int32: the key at position p of sequence b is in page block_table[b, p // page_size] at p %
        page_size; nothing is read of a page -1. seqlens_k: (B,), int32, the number of keys, the new ones included,
        which the cache holds already; none where it is not positive. Result: (T, Hq, Ev).
    Everything else, the bits too, as `varlen_attention`; it has no gradient. The host reads no tensor, so that a CUDA
    graph may hold the call.
    """
    names = ("query", "key_cache", "value_cache")
    query, key_cache, value_cache, _ = _operands((query, key_cache, value_cache), names, None)
    if query.ndim != 3:
        raise RuntimeError(f"query: expected 3 dimensions (tokens, heads, size), got shape {tuple(query.shape)}")
    for name, x in (("key_cache", key_cache), ("value_cache", value_cache)):
        if x.ndim != 4:
            raise RuntimeError(
                f"{name}: expected 4 dimensions (pages, page_size, heads, size), got shape {tuple(x.shape)}"
            )
    if query.shape[2] != key_cache.shape[3] or key_cache.shape[:2] != value_cache.shape[:2]:
        shapes = tuple(query.shape), tuple(key_cache.shape), tuple(value_cache.shape)
        raise RuntimeError(f"query, key_cache and value_cache: shapes {shapes} do not fit")
    if key_cache.shape[1] == 0:
        raise RuntimeError(f"key_cache: a page of no keys, shape {tuple(key_cache.shape)}")
    if not isinstance(block_table, Tensor):
        raise TypeError(f"block_table: expected a Tensor, got {type(block_table).__name__}")
    if block_table.ndim != 2:
        raise RuntimeError(f"block_table: expected 2 dimensions (sequences, pages), got {tuple(block_table.shape)}")
    heads = query, key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    _check_heads(*heads, 1, "key_cache")
    batch = block_table.shape[0]
    table = _integers("block_table", block_table, query, tuple(block_table.shape))
    queries = _integers("cu_seqlens_q", cu_seqlens_q, query, (batch + 1,))
    lengths = _integers("seqlens_k", seqlens_k, query, (batch,))
    left, right = _window(window)
    q = query.transpose(0, 1).unsqueeze(0)
    tensors = (q, *heads[1:], None, _sinks(sinks, q), queries, lengths, table, None, None)
    out = _call(tensors, is_causal, left, right, _scale(scale, query.shape[2]), _softcap(softcap), contract)
    return out.squeeze(0).transpose(0, 1)


def _call(
    tensors: tuple[Tensor | None, ...], causal: bool, left: int, right: int, scale: float, softcap: float,
    contract: ContractLike | None,
) -> Tensor:  # fmt: skip
    """The operation under the contract in force; LSE is kept where a gradient may be asked for."""
    q, k, *rest = tensors
    assert q is not None and k is not None
    if q.shape[3] == 0:  # a score of nothing is that of a zero
        q, k = (torch.nn.functional.pad(x, (0, 1)) for x in (q, k))
    with_lse = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    options = (bool(causal), left, right, scale, softcap, with_lse)
    if contract is None and torch.compiler.is_compiling():
        out, _ = _attend(q, k, *rest, contract_in_force(q), *options, "forward", "gradient")
    else:
        out, _ = _attend(q, k, *rest, None, *options, *resolve(contract, q.dtype, checks.device_type(q)))
    return out


def _operands(
    operands: tuple[Tensor, Tensor, Tensor], names: Sequence[str], mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, v and the mask, checked and as autocast passes them on."""
    for name, x in zip(names, operands, strict=True):
        checks.operand(name, x, DTYPES)
    if mask is not None and not isinstance(mask, Tensor):
        raise TypeError(f"attn_mask: expected a Tensor, got {type(mask).__name__}")
    dtype = checks.autocast(checks.device_type(operands[0]))
    q, k, v = operands if dtype is None else (checks.cast(x, dtype) for x in operands)
    if mask is not None:
        mask = mask if dtype is None else checks.cast(mask, dtype)
        if mask.dtype not in (torch.bool, torch.float32, q.dtype):
            raise RuntimeError(f"attn_mask: expected dtype torch.bool or {q.dtype}, got {mask.dtype}")
        if mask.device != q.device:
            raise RuntimeError(f"attn_mask: on {mask.device} but {names[0]} is on {q.device}; move one of them")
    checks.same(names[1], k, names[0], q)
    checks.same(names[2], v, names[0], q)
    return q, k, v, mask


def _broadcast(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        return None


def _check_heads(query: Tensor, key: Tensor, value: Tensor, axis: int, name: str) -> None:
    if min(query.ndim, key.ndim, value.ndim) >= 3:
        heads, of_key, of_value = (x.shape[axis] for x in (query, key, value))
        if of_key == of_value and (heads == of_key or (of_key and heads % of_key == 0)):
            return
    else:
        heads = query.shape[axis] if query.ndim >= 3 else 1
    raise RuntimeError(f"{name}: {heads} heads of query are no multiple of those of key and value")


def _check_mask(mask: Tensor, size: tuple[int, ...]) -> None:
    fits = mask.ndim <= len(size) and all(
        m in (1, s) for m, s in zip(reversed(mask.shape), reversed(size), strict=False)
    )
    if not fits:
        raise RuntimeError(f"attn_mask: shape {tuple(mask.shape)} does not broadcast to {size}")


def _four_axes(x: Tensor) -> Tensor:
    """(..., H, L, E) with one axis before H."""
    return x if x.ndim == 4 else x[(None,) * (4 - x.ndim)] if x.ndim < 4 else x.flatten(0, -4)


def _mask_of_four(mask: Tensor, size: tuple[int, ...]) -> Tensor:
    if mask.ndim > 4:
        mask = broadcast_to(mask, (*size[:-3], *mask.shape[-3:]))
    elif len(size) > 4 and mask.ndim == 4:
        mask = broadcast_to(mask, (*size[:-3], *mask.shape[-3:]))
    return _four_axes(mask)


def _sinks(sinks: Tensor | None, q: Tensor) -> Tensor | None:
    if sinks is None:
        return None
    checks.operand("sinks", sinks, DTYPES)
    if sinks.shape != (q.shape[1],):
        raise RuntimeError(f"sinks: expected shape ({q.shape[1]},), one per head of query, got {tuple(sinks.shape)}")
    if sinks.device != q.device:
        raise RuntimeError(f"sinks: on {sinks.device} but query is on {q.device}; move one of them")
    return sinks.float().contiguous()


def _integers(name: str, x: object, q: Tensor, shape: tuple[int, ...] | None) -> Tensor:
    """x as int32 of that shape, of one axis and one element or more where `shape` is None."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected a Tensor, got {type(x).__name__}")
    if x.dtype not in _INTEGERS:
        raise RuntimeError(f"{name}: expected dtype torch.int32, got {x.dtype}")
    if x.device != q.device:
        raise RuntimeError(f"{name}: on {x.device} but query is on {q.device}; move one of them")
    if shape is None and (x.ndim != 1 or x.shape[0] == 0):
        raise RuntimeError(f"{name}: expected shape (sequences + 1,), got {tuple(x.shape)}")
    if shape is not None and x.shape != shape:
        raise RuntimeError(f"{name}: expected shape {shape}, got {tuple(x.shape)}")
    return x.to(torch.int32).contiguous()


def _window(window: object) -> Window:
    if window is None:
        return -1, -1
    if not isinstance(window, Sequence) or len(window) != 2 or not all(isinstance(x, int) for x in window):
        raise TypeError(f"window: expected two ints (left, right), -1 for no limit, got {window!r}")
    if min(window) < -1 or max(window) >= 2**31:
        raise ValueError(f"window: expected ints from -1 (no limit) to 2**31 - 1, got {window!r}")
    return window[0], window[1]


def _scale(scale: float | None, width: int) -> float:
    if scale is not None:
        return checks.number("scale", scale)
    return 1 / math.sqrt(width) if width else 1.0


def _softcap(softcap: float | None) -> float:
    cap = 0.0 if softcap is None else checks.number("softcap", softcap)
    if not 0 <= cap < math.inf:
        raise ValueError(f"softcap: expected a positive number, or None or 0 for none, got {softcap!r}")
    return cap
