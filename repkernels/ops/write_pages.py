"""Keys and values of new tokens, copied into their places among the pages that `paged_attention` reads."""

import torch
from torch import Tensor

from repkernels.ops import checks
from repkernels.ops.backend import backend
from repkernels.ops.unary import DTYPES


def _run(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    backend("write_pages", checks.device_type(key)).write_pages(key_cache, value_cache, slots, key, value)


_op = torch.library.custom_op("repkernels::write_pages", _run, mutates_args=("key_cache", "value_cache"))


@_op.register_fake
def _(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    return None


def write_pages(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Writes the rows of key and value into the caches, in place, in one launch.

    key_cache, value_cache: (pages, page_size, H, E or Ev), fp32, bf16 or fp16, any strides without overlap.
    slots: (T,), int64: token t goes to page slots[t] // page_size, at slots[t] % page_size; nothing is written of a
        token whose slot is negative. Of tokens with one slot any one is kept, of each element by itself.
    key, value: (T, H, E or Ev), of the caches' dtype and device, any strides.
    There is no gradient. The host reads no tensor, so that a CUDA graph may hold the call.
    Raises RuntimeError for shapes, dtypes and devices that do not fit and where a gradient is wanted; on a CPU
    IndexError for a slot past the last page, which a GPU passes over.
    """
    sides = (("key", key_cache, key), ("value", value_cache, value))
    for name, cache, new in sides:
        checks.operand(f"{name}_cache", cache, DTYPES)
        checks.operand(name, new, DTYPES)
        checks.same(name, new, f"{name}_cache", cache)
        if cache.ndim != 4:
            raise RuntimeError(
                f"{name}_cache: expected 4 dimensions (pages, page_size, heads, size), got shape {tuple(cache.shape)}"
            )
        if new.ndim != 3 or new.shape[1:] != cache.shape[2:]:
            raise RuntimeError(
                f"{name}: expected shape (tokens, {cache.shape[2]}, {cache.shape[3]}) as {name}_cache has heads, "
                f"got {tuple(new.shape)}"
            )
    checks.same("value_cache", value_cache, "key_cache", key_cache)
    if value_cache.shape[:3] != key_cache.shape[:3]:
        raise RuntimeError(
            f"value_cache: shape {tuple(value_cache.shape)} does not fit key_cache's {tuple(key_cache.shape)}"
        )
    checks.operand("slots", slots, (torch.int64,))
    if slots.device != key.device:
        raise RuntimeError(f"slots: on {slots.device} but key is on {key.device}; move one of them")
    if slots.shape != key.shape[:1] or value.shape[0] != key.shape[0]:
        raise RuntimeError(
            f"slots: expected one for each token of key and of value, got shapes {tuple(slots.shape)}, "
            f"{tuple(key.shape)} and {tuple(value.shape)}"
        )
    if torch.is_grad_enabled() and any(x.requires_grad for side in sides for x in side[1:]):
        raise RuntimeError("key: write_pages has no gradient; call it under torch.no_grad()")
    if torch.compiler.is_compiling():
        _op(key_cache, value_cache, slots, key, value)
    elif not key.is_meta:
        _run(key_cache, value_cache, slots, key, value)
        for cache in (key_cache, value_cache):
            if not cache.is_inference():  # a kernel writes behind torch's back
                torch.autograd.graph.increment_version(cache)
