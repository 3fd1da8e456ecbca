"""Attention as transformers calls it: dense with any cache, packed with gathered pages, and from pages.

A key's position is its index in its own sequence, so that left padding, chunks of a prompt, pages and caches that keep
a window only give the same bits (SPEC.md, "Attention").
"""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function, sdpa_mask, sliding_window_causal_mask_function

from repkernels.nn import functional

# The name of dense attention, and of that in continuous batching. transformers takes a name with "flash" in it for one
# that needs no mask tensors.
DENSE = "repkernels"
PAGED = "repkernels_flash2"
SEGMENT = 128


def register() -> None:
    AttentionInterface.register(DENSE, dense)
    AttentionInterface.register(PAGED, paged)
    AttentionMaskInterface.register(DENSE, positions)


def dense(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query (B, Hq, L, E), key and value (B, Hkv, S, E) -> (B, L, Hq, E).

    attention_mask: what `positions` made, or a 4-D mask of a user's own: then a key's position is its index.
    """
    _refuse(kwargs)
    causal = bool(module.is_causal if is_causal is None else is_causal)
    options: dict[str, Any] = {"window": _window(sliding_window), "softcap": softcap, "sinks": _sinks(s_aux)}
    if attention_mask is None:
        if causal and query.shape[2] != key.shape[2]:
            raise RuntimeError(
                f"attention_mask: {query.shape[2]} queries and {key.shape[2]} keys, and nothing says where they are; "
                "give the model an attention_mask or its cache"
            )
    elif attention_mask.dtype == torch.int32:
        options["first_key"], options["first_query"] = attention_mask.flatten(1).unbind(0)
    else:
        options["attn_mask"], causal = attention_mask, False
        if options["window"] is not None:
            options["window"] = None  # it is in the mask
    out = functional.scaled_dot_product_attention(
        query,
        key,
        value,
        dropout_p=dropout,
        is_causal=causal,
        scale=scaling,
        enable_gqa=True,
        contract=module.contract,
        **options,
    )
    return out.transpose(1, 2), None


def _refuse(kwargs: dict[str, Any]) -> None:
    if kwargs.get("output_attentions"):
        raise NotImplementedError("output_attentions: the weights are never made; use output_attentions=False")


def _window(sliding_window: int | None) -> tuple[int, int] | None:
    """transformers counts the query's own position."""
    return None if sliding_window is None else (sliding_window - 1, 0)


def _sinks(s_aux: Tensor | None) -> Tensor | None:
    return None if s_aux is None else s_aux.float()


_SLIDING = sliding_window_causal_mask_function(1)


def positions(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **_: Any,
) -> Tensor | None:
    """int32 (2, B, 1, 1): the index of the key at position 0 and the position of the first query, of each row.

    None: both are 0, and there are as many queries as keys. Where keys are hidden otherwise than by padding on the
    left, causality and a window, a bool mask (B, 1, L, S). Four axes are what transformers leaves as it is.
    """
    plain = _is_plain(mask_function)
    if plain and attention_mask is None:
        if isinstance(q_offset, int) and q_offset == 0 and kv_offset == 0 and q_length == kv_length:
            return None
        padding: int | Tensor = 0
    elif plain and attention_mask is not None and _padded_left(attention_mask):
        padding = (~attention_mask).sum(-1)
    else:
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=mask_function,
            attention_mask=attention_mask,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=device,
        )
    made = torch.empty((2, batch_size), dtype=torch.int32, device=device)
    made[0] = padding - kv_offset
    made[1] = q_offset - padding
    return made[..., None, None]


def _is_plain(mask_function: Any) -> bool:
    """Whether the mask is causal, with a window or without, and nothing else."""
    if mask_function is causal_mask_function:
        return True
    if getattr(mask_function, "__code__", None) is not _SLIDING.__code__:
        return False
    window, causal = _parts(mask_function)
    return causal is causal_mask_function and window.__code__ is _parts(_SLIDING)[0].__code__


def _parts(mask_function: Any) -> Any:
    return mask_function.__closure__[0].cell_contents


def _padded_left(attention_mask: Tensor) -> bool:
    """Whether every row's hidden keys come before all others. Unknown where the host may not look: then False."""
    if torch.compiler.is_compiling() or (attention_mask.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    return not bool((attention_mask[:, :-1] & ~attention_mask[:, 1:]).any())


def paged(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    cache: Any = None,
    block_table: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query (1, Hq, T, E) of all sequences, key and value (1, Hkv, ., E) -> (1, T, Hq, E).

    Up to transformers 5.20 key and value are the new ones and `cache` holds the others; later the attention layer has
    updated the cache before, and they are all, except with a block table.
    """
    _refuse(kwargs)
    options: dict[str, Any] = {
        "is_causal": True,
        "scale": scaling,
        "window": _window(sliding_window),
        "softcap": softcap,
        "sinks": _sinks(s_aux),
        "contract": module.contract,
    }
    layer = module.layer_idx
    queries, keys = kwargs["cu_seq_lens_q"], kwargs["cu_seq_lens_k"]
    if isinstance(keys, dict):
        keys = keys["full_attention" if _keeps_all(cache, layer) else "sliding_attention"]
    q = query.squeeze(0).transpose(0, 1)
    if block_table is not None:
        if cache is not None:
            group, index = cache.layer_index_to_group_indices[layer]
            of_keys, of_values = (
                c[index].unflatten(0, (-1, cache.block_size)) for c in (cache.key_cache, cache.value_cache)
            )
            block_table = block_table[group]
        else:
            of_keys, of_values = kwargs["k_cache"], kwargs["v_cache"]
        table = block_table
        lengths, slots = _once(layer, queries, table, lambda: _slots(keys, table, of_keys.shape[1]))
        k, v = (new.squeeze(0).transpose(0, 1) for new in (key, value))
        functional.write_pages(of_keys, of_values, slots, k, v)
        out = functional.paged_attention(q, of_keys, of_values, table, queries, lengths, **options)
        return out.unsqueeze(0), None
    if cache is not None:
        k, v = cache.update(key, value, layer, kwargs["read_index"], kwargs["write_index"])
    else:
        k, v = (x.squeeze(0).transpose(0, 1) for x in (key, value))
    if sliding_window is not None:
        count = k.shape[0]
        rows, keys = _once(layer, queries, keys, lambda: _aligned(count, queries, keys, kwargs["position_ids"]))
        k, v = k[rows], v[rows]
    out = functional.varlen_attention(q, k, v, queries, keys, **options)
    return out.unsqueeze(0), None


def _keeps_all(cache: Any, layer: int) -> bool:
    return bool(cache.sliding_windows[layer] == 1)


def _once(layer: int, queries: Tensor, key: Tensor, make: Any) -> Any:
    """What is the same for all layers of a forward pass, kept at a tensor of it, per group of layers.

    The first layer always makes it: during the capture of a CUDA graph the tensors are those of the pass before.
    """
    kept = vars(queries).setdefault("_repkernels_once", {})
    if layer == 0:
        kept.clear()
    place = key.data_ptr()
    if place not in kept:
        kept[place] = make()
    return kept[place]


def _slots(keys: Tensor, table: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The length of each sequence, and where its new key is written; nowhere, -1, in padding rows."""
    lengths = keys.diff()
    last = (lengths - 1).clamp(min=0).long()
    page = table.gather(1, (last // size)[:, None]).squeeze(1).long()
    return lengths, torch.where((lengths > 0) & (page >= 0), page * size + last % size, -1)


def _aligned(count: int, queries: Tensor, keys: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows to take of `count` packed keys, and where each sequence's are then: segments begin as they should.

    A cache that keeps a window gives the keys from some position on, amid a segment. Rows are put before them that no
    query sees, being outside of all windows.
    """
    sequences = len(queries) - 1
    new = queries.diff()
    past = position_ids.flatten()[queries[:-1].clamp(max=position_ids.numel() - 1)]
    first = torch.where(new > 0, past + new - keys.diff(), 0)
    shift = torch.zeros_like(keys)
    shift[1:] = (first % SEGMENT).cumsum(0)
    moved = (keys + shift).to(torch.int32)
    rows = torch.arange(count + SEGMENT * sequences, device=keys.device)
    sequence = torch.searchsorted(moved, rows, right=True).sub_(1).clamp_(max=sequences - 1)
    return (rows - shift[sequence + 1]).clamp(min=0, max=count - 1), moved
