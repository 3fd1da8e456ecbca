"""Digits and exponents on the CPU: as the reference, for every exponent, layout and special value."""

import numpy as np
import pytest
import torch

from reference import matmul as reference
from repkernels.cpu.matmul import quantize
from tests.support import randn, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check(v: torch.Tensor, digits: int) -> None:
    """quantize(v) of v (B, R, K) against the reference, padding included."""
    kept = quantize(v, digits)
    batch, rows, k = v.shape
    assert kept.planes.shape == (digits, batch, rows, -(-k // 16) * 16)
    assert kept.planes.is_contiguous()
    assert not kept.planes[..., k:].any()
    for i in range(batch):
        exponent, q = reference.quantize(values(v[i]), digits)
        flag = (~v[i].float().isfinite()).any(1)
        np.testing.assert_array_equal(kept.scale[i].numpy(), 2 * exponent + flag.numpy())
        np.testing.assert_array_equal(kept.planes[:, i, :, :k].numpy(), reference.balanced(q, digits))


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [0, 1, 15, 16, 17, 64, 130, 4096, 4099, 9000])
def test_sizes(dtype, digits, k):
    v = randn(2, 3, k, dtype=dtype)
    check(v, digits)
    check(randn(k, 3, dtype=dtype).T[None], digits)


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(dtype, digits):
    x = randn(2, 70, 150, dtype=dtype)
    for v in (x, x.mT, x.mT[:, 3:140:2], x[:, ::2, 1::3], x[:1].expand(3, 70, 150), x[..., :1].expand(2, 70, 40)):
        check(v, digits)


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
def test_every_exponent_of_fp32(digits):
    """A vector for each power of two, subnormal ones too, and for the numbers beside it and beside the thresholds."""
    heads = [0, 1, 0x7FFFFF, 0x7E0000, 0x7E0001, 0x7EFF00, 0x7EFF01, 0x7EFFFE, 0x7EFFFF]
    patterns = [(exponent << 23) | head for exponent in range(255) for head in heads]
    patterns += [1 << i for i in range(23)]
    largest = torch.tensor(patterns, dtype=torch.int32).view(torch.float32)
    # Beside the largest: all ratios, so that rounding half to even happens in every place.
    ratios = torch.tensor([1, -1, 0.5, 0.75, -(2.0**-7), 3 * 2.0**-9, 2.0**-16, -5 * 2.0**-17, 2.0**-24, 2.0**-33, 0])
    check((largest[:, None] * ratios)[None], digits)


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", DTYPES)
def test_special_vectors(dtype, digits):
    v = randn(1, 9, 40, dtype=dtype)
    v[0, 0] = 0
    v[0, 1] = -0.0
    v[0, 2] = float("nan")
    v[0, 3, 5] = float("-inf")
    v[0, 4] = torch.finfo(dtype).max
    v[0, 5] = torch.finfo(dtype).smallest_normal
    v[0, 6] = torch.tensor(1, dtype=torch.int32 if dtype == torch.float32 else torch.int16).view(dtype)
    v[0, 7, 39] = torch.finfo(dtype).max
    v[0, 8, ::2] = float("inf")
    check(v, digits)


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormals_are_kept_whatever_the_thread_has_set(dtype):
    v = torch.arange(-20, 20, dtype=torch.int16).abs().to(torch.int32 if dtype == torch.float32 else torch.int16)
    v = v.view(dtype).repeat(1, 3, 1)
    plain = quantize(v, 3)
    check(v, 3)
    torch.set_flush_denormal(True)
    try:
        flushing = quantize(v, 3)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(flushing.planes, plain.planes)
    assert torch.equal(flushing.scale, plain.scale)


@pytest.mark.parametrize("layout", [lambda x: x, lambda x: x.mT.contiguous().mT], ids=["rows", "columns"])
def test_threads(layout):
    v = layout(randn(2, 700, 300))
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(quantize(v, 4))
    finally:
        torch.set_num_threads(before)
    for result in results[1:]:
        assert torch.equal(result.planes, results[0].planes)
        assert torch.equal(result.scale, results[0].scale)
