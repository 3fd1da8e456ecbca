"""Attention put together from products and a softmax (SPEC.md, "Attention from products").

scores = RN(matmul(q, k^T) * RN32(scale)), + mask; weights = softmax(scores), +0 in a row that a mask leaves no key;
dropout; matmul(weights, v). Every result is stored in the operands' type.
"""

import math
from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike
from repkernels.ops import checks
from repkernels.ops.convert import converted
from repkernels.ops.dropout import dropout
from repkernels.ops.matmul import matmul, product
from repkernels.ops.plain import add, multiply
from repkernels.ops.softmax import softmax
from repkernels.ops.sum import broadcast_to, mean
from repkernels.prepare import NOTHING_KEPT

# What torch.nn.modules.transformer takes from there too.
_torchs: Any = torch.nn.functional
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def attended(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout_p: float, scale: float, contract: ContractLike | None
) -> tuple[Tensor, Tensor]:
    """The attention of q (..., L, E) over k (..., S, E), v (..., S, Ev), and its weights (..., L, S).

    mask: what is added to the scores, broadcast; -inf takes a key out.
    """
    scores = multiply(matmul(q, k.mT, contract=contract), scale)
    if mask is None:
        weights = softmax(scores, -1)
    else:
        scores = add(scores, converted(mask, scores.dtype))
        alone = (scores == -math.inf).all(-1, keepdim=True)
        weights = softmax(scores.masked_fill(alone, 0), -1).masked_fill(alone, 0)
    if dropout_p > 0:
        weights = dropout(weights, dropout_p)
    return matmul(weights, v if v.dtype == weights.dtype else converted(v, weights.dtype), contract=contract), weights


def attended_with_dropout(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float,
    enable_gqa: bool,
    contract: ContractLike | None,
) -> Tensor:
    """scaled_dot_product_attention with dropout of the weights; arguments are checked, the mask bool or numbers."""
    queries, keys = query.shape[-2], key.shape[-2]
    minus = torch.full((), -math.inf, dtype=query.dtype, device=query.device)
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.where(mask, 0, minus)
    if causal:
        seen = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril()
        mask = torch.where(seen, 0 if mask is None else mask.to(query.dtype), minus)
    if not enable_gqa:
        return attended(query, key, value, mask, dropout_p, scale, contract)[0]
    of_key = key.shape[-3]
    group = query.shape[-3] // of_key
    if mask is not None and mask.ndim > 2:
        shared = mask.shape[-3] == 1
        mask = mask.unsqueeze(-3) if shared else mask.unflatten(-3, (of_key, group))
    query, key, value = query.unflatten(-3, (of_key, group)), key.unsqueeze(-3), value.unsqueeze(-3)
    return attended(query, key, value, mask, dropout_p, scale, contract)[0].flatten(-4, -3)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    contract: ContractLike | None = None,
    out_contract: ContractLike | None = None,
) -> tuple[Tensor, Tensor | None]:
    """torch.nn.functional.multi_head_attention_forward's signature, shapes, masks and errors.

    query (L, N, E) or (L, E), key and value (S, N, ...) or (S, ...). The projections are one linear where query, key
    and value are one tensor, two where key and value are, otherwise three. need_weights changes no bit of the result;
    is_causal is only a hint beside attn_mask, which is what counts. contract: of all products; out_contract: of the
    last projection, where given. Bits: SPEC.md, "Attention from products".
    """
    checks.operand("query", query, DTYPES)
    for name, x in (("key", key), ("value", value)):
        checks.operand(name, x, DTYPES)
        checks.same(name, x, "query", query)
    batched = _torchs._mha_shape_check(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = _unsqueezed(query, key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    length, batch, width = query.shape
    key_padding_mask = _torchs._canonical_mask(
        mask=key_padding_mask,
        mask_name="key_padding_mask",
        other_type=_torchs._none_or_dtype(attn_mask),
        other_name="attn_mask",
        target_type=query.dtype,
    )
    if is_causal and attn_mask is None:
        raise RuntimeError(
            "attn_mask: needed with is_causal, which is a hint about it; Transformer.generate_square_subsequent_mask "
            "makes one"
        )
    mask = _torchs._canonical_mask(
        mask=attn_mask,
        mask_name="attn_mask",
        other_type=None,
        other_name="",
        target_type=query.dtype,
        check_other=False,
    )
    if width != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got {width}")
    if width % num_heads:
        raise AssertionError(f"embed_dim {width} not divisible by num_heads {num_heads}")
    if use_separate_proj_weight:
        if key.shape[:2] != value.shape[:2]:
            raise AssertionError(
                f"key's sequence and batch dims {key.shape[:2]} do not match value's {value.shape[:2]}"
            )
    elif key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    q, k, v = _projected(query, key, value, in_proj_weight, separate, in_proj_bias, contract)
    if mask is not None:
        mask = _three_axes(mask, (length, len(key)), batch * num_heads)
    if (bias_k is None) != (bias_v is None):
        raise AssertionError("bias_k and bias_v: give both or neither")
    added = 0
    if bias_k is not None and bias_v is not None:
        if static_k is not None or static_v is not None:
            raise AssertionError("bias cannot be added to static key or value.")
        k, v = (torch.cat([x, broadcast_to(b, (1, batch, width))]) for x, b in ((k, bias_k), (v, bias_v)))
        added += 1
    q, k, v = (x.reshape(len(x), batch * num_heads, -1).transpose(0, 1) for x in (q, k, v))
    k, v = _static(static_k, k, "static_k"), _static(static_v, v, "static_v")
    if add_zero_attn:
        k, v = (torch.cat([x, x.new_zeros(len(x), 1, x.shape[2])], 1) for x in (k, v))
        added += 1
    if key_padding_mask is not None:
        spread = key_padding_mask.view(batch, 1, 1, -1).expand(-1, num_heads, -1, -1).reshape(batch * num_heads, 1, -1)
        mask = spread if mask is None else add(mask, spread)
    if mask is not None and added:
        mask = torch.cat([mask, mask.new_zeros(*mask.shape[:2], added)], 2)
    scale = math.sqrt(1.0 / (width // num_heads))
    result, weights = attended(q, k, v, mask, dropout_p if training else 0.0, scale, contract)
    result = result.transpose(0, 1).reshape(length, batch, width)
    out = _linear(
        result, out_proj_weight, out_proj_bias, contract if out_contract is None else out_contract, "out_proj"
    )
    if not batched:
        out = out.squeeze(1)
    if not need_weights:
        return out, None
    weights = weights.view(batch, num_heads, length, weights.shape[2])
    if average_attn_weights:
        weights = mean(weights, 1)
    return out, weights if batched else weights.squeeze(0)


def _unsqueezed(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With a batch of one, one tensor staying one."""
    q = query.unsqueeze(1)
    k = q if key is query else key.unsqueeze(1)
    return q, k, q if value is query else k if value is key else value.unsqueeze(1)


def _three_axes(mask: Tensor, size: tuple[int, int], heads: int) -> Tensor:
    if mask.dim() == 2:
        if mask.shape != size:
            raise RuntimeError(f"The shape of the 2D attn_mask is {mask.shape}, but should be {size}.")
        return mask.unsqueeze(0)
    if mask.dim() != 3:
        raise RuntimeError(f"attn_mask's dimension {mask.dim()} is not supported")
    if mask.shape != (heads, *size):
        raise RuntimeError(f"The shape of the 3D attn_mask is {mask.shape}, but should be {(heads, *size)}.")
    return mask


def _static(given: Tensor | None, x: Tensor, name: str) -> Tensor:
    if given is None:
        return x
    if given.ndim != 3 or given.shape[0] != x.shape[0] or given.shape[2] != x.shape[2]:
        raise AssertionError(f"expecting {name} of shape ({x.shape[0]}, keys, {x.shape[2]}), but got {given.shape}")
    return given


def _projected(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weight: Tensor | None,
    separate: tuple[Tensor | None, ...] | None,
    bias: Tensor | None,
    contract: ContractLike | None,
) -> tuple[Tensor, Tensor, Tensor]:
    width = query.shape[2]
    if separate is not None:
        if any(w is None for w in separate):
            raise AssertionError("use_separate_proj_weight is True but a weight is None")
        biases = [None] * 3 if bias is None else bias.split(width)
        q, k, v = (_linear(x, w, b, contract) for x, w, b in zip((query, key, value), separate, biases, strict=True))
        return q, k, v
    if weight is None:
        raise AssertionError("use_separate_proj_weight is False but in_proj_weight is None")
    if query is key and key is value:
        q, k, v = _linear(query, weight, bias, contract).split(width, -1)
        return q, k, v
    sizes = [width, 2 * width] if key is value else [width] * 3
    biases = [None] * len(sizes) if bias is None else bias.split(sizes)
    parts = [
        _linear(x, w, b, contract) for x, w, b in zip((query, key, value), weight.split(sizes), biases, strict=False)
    ]
    if key is value:
        parts = [parts[0], *parts[1].split(width, -1)]
    q, k, v = parts
    return q, k, v


def _linear(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, contract: ContractLike | None, name: str = "in_proj"
) -> Tensor:
    assert weight is not None
    return product(x, weight.t(), bias, contract, NOTHING_KEPT, "input", f"{name}_weight")
