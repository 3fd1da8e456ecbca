"""Keys and values into pages: every backend as plain indexing, what must stay as it is, and errors."""

import pytest
import torch

from repkernels.nn import functional
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, randn


@each_backend
@pytest.mark.parametrize("sizes", [(3, 5, 2, 16, 16), (2, 4, 3, 5, 40)])
def test_kernels(backend, sizes):
    """Strided operands, a token that is dropped, heads that no power of two holds."""
    pages, page_size, heads, size, value_size = sizes
    slots = torch.tensor([7, -1, 0, page_size * pages - 1])
    caches, news = [], []
    for n, seed in ((size, 0), (value_size, 1)):
        caches.append(randn(pages, heads, page_size, n, dtype=torch.bfloat16, seed=seed).transpose(1, 2))
        news.append(randn(heads, len(slots), n, dtype=torch.bfloat16, seed=seed + 2).transpose(0, 1))
    wanted = [c.clone() for c in caches]
    for cache, new in zip(wanted, news, strict=True):
        for t, slot in enumerate(slots.tolist()):
            if slot >= 0:
                cache[slot // page_size, slot % page_size] = new[t]
    moved = [c.to(backend.device) for c in caches]
    backend.module("write_pages").write_pages(*moved, slots.to(backend.device), *(n.to(backend.device) for n in news))
    for found, expected in zip(moved, wanted, strict=True):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("device", DEVICES)
def test_versions_are_counted(device):
    caches = [torch.zeros(2, 4, 1, 8, device=device) for _ in range(2)]
    versions = [c._version for c in caches]
    functional.write_pages(*caches, torch.tensor([5], device=device), *(randn(1, 1, 8, device=device),) * 2)
    assert all(c._version > v for c, v in zip(caches, versions, strict=True))
    assert all(c[1, 1].count_nonzero() for c in caches)


def test_opcheck():
    cache, new = torch.zeros(2, 4, 1, 8), randn(1, 1, 8)
    args = (cache, cache.clone(), torch.tensor([5]), new, new)
    torch.library.opcheck(torch.ops.repkernels.write_pages, args, test_utils=("test_schema", "test_faketensor"))


def test_errors():
    cache, slots, new = torch.zeros(2, 4, 1, 8), torch.tensor([1]), torch.zeros(1, 1, 8)
    write = functional.write_pages
    for args, reason in (
        ((cache[0], cache, slots, new, new), "key_cache: expected 4"),
        ((cache, cache, slots, new[..., :4], new), "key: expected shape"),
        ((cache, cache, slots, new, new.half()), "value: dtype"),
        ((cache, cache[:1], slots, new, new), "value_cache: shape"),
        ((cache, cache, slots.int(), new, new), "slots: dtype"),
        ((cache, cache, slots[:0], new, new), "slots: expected one"),
        ((cache, cache, slots, new.clone().requires_grad_(), new), "no gradient"),
    ):
        with pytest.raises(RuntimeError, match=reason):
            write(*args)
    with pytest.raises(IndexError):
        write(cache, cache, torch.tensor([8]), new, new)
