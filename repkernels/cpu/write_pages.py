"""Keys and values of new tokens into pages, on the CPU."""

from torch import Tensor


def write_pages(key_cache: Tensor, value_cache: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """As ops.write_pages, of checked arguments."""
    kept = (slots >= 0).nonzero()[:, 0]
    slots, size = slots[kept], key_cache.shape[1]
    if len(slots):
        places = slots // size, slots % size
        key_cache.index_put_(places, key[kept])
        value_cache.index_put_(places, value[kept])
