"""Grouped sums on both backends against their definition, to the bit."""

import numpy as np
import pytest
import torch

from reference import formats
from reference import grouped_sum as reference
from repkernels.ops.grouped_sum import groups
from tests.backends import BACKENDS, each_backend
from tests.support import assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def indices(count, targets, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(targets, (count,), generator=generator)


def check(backend, x, index, targets, mean=False, base=None, alpha=1.0):
    order, starts = groups(index, targets)
    run = backend.module("grouped_sum").grouped_sum
    device = [None if t is None else t.to(backend.device) for t in (base, x, order, starts)]
    found = run(*device[1:], device[0], alpha, mean, x.dtype)
    x, index, dtype = values(x), index.numpy(), name(x.dtype)
    if base is None:
        wanted = formats.rounded(reference.grouped_sum(x, index, targets, dtype, mean), dtype)
    else:
        wanted = reference.index_add(values(base), 0, index, x, dtype, alpha)
    assert_same_bits(found.cpu(), tensor(wanted, found.dtype))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_short_groups(backend, dtype):
    x, index = randn(60, 5, dtype=dtype), indices(60, 37)
    check(backend, x, index, 37)
    check(backend, x, index, 37, mean=True)
    check(backend, x, index, 37, base=randn(37, 5, dtype=dtype, seed=1), alpha=0.3)


# The borders of what one tile holds, of the lanes, of a block, and two blocks.
@each_backend
@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 128, 129, 1024, 1025, 3000, 65536, 65537, 140000])
def test_long_groups(backend, count):
    """One group of `count` among short ones."""
    for columns in (1, 3) if count < 65536 else (1,):
        index = torch.cat([torch.full((count,), 2), torch.tensor([0, 4, 0])])
        index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(count))]
        x = randn(len(index), columns, seed=count)
        check(backend, x, index, 5, base=randn(5, columns, seed=1), alpha=-1.7)
        if count < 65536:
            check(backend, x, index, 5)
            check(backend, x, index, 5, mean=True)


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_groups_of_each_dtype(backend, dtype):
    x, index = randn(2600, 3, dtype=dtype), indices(2600, 2)
    check(backend, x, index, 3)
    check(backend, x, index, 3, mean=True)
    check(backend, x, index, 3, base=randn(3, 3, dtype=dtype, seed=1), alpha=0.7)


@each_backend
@pytest.mark.parametrize("columns", [1, 2, 15, 17, 300])
def test_columns(backend, columns):
    check(backend, randn(70, columns), indices(70, 3) * 2, 7)


@each_backend
def test_strides(backend):
    index = indices(40, 3)
    for x in (randn(6, 40).t(), randn(80, 12)[::2, ::2], randn(1, 6).expand(40, 6), randn(40, 1).expand(40, 6)):
        check(backend, x, index, 3)


@each_backend
def test_nothing(backend):
    check(backend, randn(0, 3), indices(0, 4), 4)
    check(backend, randn(0, 3), indices(0, 4), 4, base=-torch.zeros(4, 3))
    check(backend, randn(5, 0), indices(5, 4), 4)
    check(backend, randn(0, 3), torch.zeros(0, dtype=torch.int64), 0)


@each_backend
def test_zeros_and_nonfinite(backend):
    """-0 alone stays -0, no term gives +0 or leaves the base's -0, and NaN and infinities meet as in IEEE-754."""
    x = torch.tensor([-0.0, -0.0, -0.0, 0.0, np.inf, 1.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 3e38])[:, None]
    index = torch.tensor([0, 1, 1, 2, 4, 4, 5, 5, 6, 7, 8, 8])
    check(backend, x, index, 10)
    check(backend, x, index, 10, base=torch.full((10, 1), -0.0))


@each_backend
def test_what_is_skipped_or_out_of_range_is_in_no_group(backend):
    index = torch.tensor([3, -1, 0, 3, 9, 1, -7])
    order, starts = groups(index, 4, skip=0)
    assert order[starts[0] : starts[4]].tolist() == [5, 0, 3]
    x = randn(7, 2)
    found = backend.module("grouped_sum").grouped_sum(
        *(t.to(backend.device) for t in (x, order, starts)), None, 1.0, False, x.dtype
    )
    assert_same_bits(found.cpu(), torch.stack([torch.zeros(2), x[5], torch.zeros(2), x[0] + x[3]]))


@each_backend
def test_a_group_does_not_depend_on_the_others(backend):
    index, x = indices(300, 6), randn(300, 9)
    run = backend.module("grouped_sum").grouped_sum

    def sums(x, index, targets):
        tensors = (t.to(backend.device) for t in (x, *groups(index, targets)))
        return run(*tensors, None, 1.0, False, x.dtype).cpu()

    whole = sums(x, index, 6)
    for t in range(6):
        assert_same_bits(sums(x[index == t], index[index == t], 50)[t], whole[t])


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        check(BACKENDS[0], randn(3000, 40), indices(3000, 20), 20)
    finally:
        torch.set_num_threads(before)
