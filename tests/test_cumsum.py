"""Cumulative sums, to the bit; their public function is tested with the other reductions."""

import math

import pytest
import torch

from reference import reductions as reference
from repkernels.ops import reduce
from tests.backends import BACKENDS, each_backend
from tests.support import assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INFINITY = math.inf


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_cumsum(backend, dtype):
    for shape, dim in (((3, 5, 7), 1), ((2, 1500), 1), ((2500, 3), 0), ((1, 2049), 1)):
        if backend.package == "kernels" and dtype != torch.float32 and len(shape) == 2:
            continue
        x = randn(*shape, dtype=dtype, device=backend.device)
        x.view(-1)[3] = -0.0
        for reverse in (False, True):
            out = torch.empty_like(x)
            backend.module("cumsum").cumsum(*reduce.four_axes([dim], x, out), reverse)
            assert_same_bits(out.cpu(), tensor(reference.cumsum(values(x), dim, name(dtype), reverse), dtype))


@each_backend
def test_cumsum_of_what_is_not_finite(backend):
    """What comes before an infinity or NaN is untouched, also zeros of either sign."""
    x = torch.zeros(3, 1100, device=backend.device)
    x[0] = -0.0
    x[1, 1050], x[1, 1060] = INFINITY, -INFINITY
    x[2, 5] = math.nan
    out = torch.empty_like(x)
    backend.module("cumsum").cumsum(*reduce.four_axes([1], x, out), False)
    assert_same_bits(out.cpu(), tensor(reference.cumsum(values(x), 1, "float32"), torch.float32))
    assert out[0].signbit().all()
    assert out[1, :1050].isfinite().all() and out[1, 1060:].isnan().all()
    assert out[2, 5:].isnan().all() and out[2, :5].isfinite().all()


@pytest.mark.parametrize("busy", [0, 10**9])
def test_blocks_at_once_or_in_turn(monkeypatch, busy):
    backend = BACKENDS[1]
    monkeypatch.setattr(backend.module("cumsum"), "BUSY", busy)
    for x, dim in ((randn(2, 2100, device=backend.device), 1), (randn(2100, 2, device=backend.device), 0)):
        out = torch.empty_like(x)
        backend.module("cumsum").cumsum(*reduce.four_axes([dim], x, out), False)
        assert_same_bits(out.cpu(), tensor(reference.cumsum(values(x), dim, "float32"), torch.float32))
