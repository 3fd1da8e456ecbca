"""Attention: forward of many rows and of few, and its gradients."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from repkernels.attention import Attention, Sequences
from repkernels.kernels import attention
from tests.instructions.case import Case, everything, few, tensor


def integers(*shape: int) -> torch.Tensor:
    """int32 memory that is never touched."""
    return tensor(*shape, dtype=torch.int32)


def dense(
    dtype: torch.dtype, E: int, odd: bool = False, mask: torch.dtype | None = None, rows: int = 1024,
    sinks: bool = False, first_key: bool = False, backward: bool = False, contract: str = "native", **options: Any,
) -> None:  # fmt: skip
    q = tensor(2, 4, rows, E, dtype=dtype, odd=odd)
    k = tensor(2, 2, 1024 + odd, E, dtype=dtype, odd=odd)
    out, lse = torch.empty_like(q), tensor(2, 4, rows)
    seen = None if mask is None else tensor(2, 4, rows, 1024 + odd, dtype=mask)
    sequences = Sequences(first_key=integers(2) if first_key else None)
    options = {"causal": True, "scale": 0.125, **options}
    rule = Attention(contract=contract, **options)
    bias = tensor(4) if sinks else None
    attention.attention(q, k, k, out, lse, seen, bias, sequences, rule)
    if backward:
        scores = None if mask is None else torch.empty(2, 4, rows, 1024 + odd)
        grads = (torch.empty_like(x) for x in (q, k, k))
        attention.attention_backward(out, q, k, k, out, lse, seen, bias, *grads, scores, sequences, rule)


def packed(dtype: torch.dtype, E: int, contract: str = "native") -> None:
    q, k = tensor(1, 4, 2048, E, dtype=dtype), tensor(1, 2, 2048, E, dtype=dtype)
    out, lse = torch.empty_like(q), tensor(1, 4, 2048)
    sequences, rule = Sequences(integers(9), integers(9)), Attention(causal=True, scale=0.125, contract=contract)
    attention.attention(q, k, k, out, lse, None, None, sequences, rule)
    grads = (torch.empty_like(x) for x in (q, k, k))
    attention.attention_backward(out, q, k, k, out, lse, None, None, *grads, None, sequences, rule)


def paged(dtype: torch.dtype, E: int, rows: int, page: int, contract: str = "native") -> None:
    q = tensor(4 * rows, 4, E, dtype=dtype).transpose(0, 1)[None]
    cache = tensor(256, page, 2, E, dtype=dtype).transpose(1, 2)
    sequences = Sequences(integers(5), integers(4), integers(4, 4096 // page))
    rule = Attention(causal=True, scale=0.125, contract=contract)
    attention.attention(q, cache, cache, torch.empty_like(q), None, None, None, sequences, rule)


def cases(target: str) -> Iterator[Case]:
    """`native`: tensor cores and the hardware's exp2, in no other contract."""

    def native(what: str, start: Any, dtype: torch.dtype, *args: Any, **options: Any) -> Case:
        need = frozenset({{torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]})
        # What a maximum does to NaN and zeros does not show (kernels/attention_segments.py).
        run = partial(start, dtype, *args, **options)
        return Case(f"attention native {what}", run, need, need, maximum=True, exp2=True)

    bf16, fp16 = torch.bfloat16, torch.float16
    yield native("one row from pages", paged, bf16, 128, 1, 16)
    if few():
        yield native("many rows", dense, bf16, 64)
        return
    yield native("gradients", dense, bf16, 128 if everything(target) else 64, backward=True)
    if everything(target):
        yield native("odd, float mask, gradients", dense, fp16, 40, odd=True, mask=torch.float32, backward=True)
        yield native("window, sinks, padding", dense, bf16, 64, window=(255, -1), sinks=True, first_key=True)
        yield native("packed", packed, bf16, 64)
        yield native("many rows from pages", paged, bf16, 64, 200, 64)

    # The most of fp32 magnitudes keeps NaN, and is taken of their bits where it crosses threads.
    f16 = frozenset({"f16"})
    run = partial(paged, bf16, 64, 1, 16, contract="fixed16")
    yield Case("attention fixed16 one row from pages", run, f16, f16, maximum=True)
    if everything(target):
        run = partial(dense, torch.float32, 40, odd=True, mask=torch.float32, rows=3, contract="fixed16", softcap=2.0)
        yield Case("attention fixed16 few rows, odd, float mask, soft cap", run, f16, f16, maximum=True)
        f32, several = frozenset({"f32"}), frozenset({"i8", "f16"})
        run = partial(dense, torch.float32, 32, rows=64, contract="ordered", backward=True)
        yield Case("attention ordered, gradients", run, f32, f32, maximum=True)
        run = partial(dense, bf16, 64, contract="fixed16")
        yield Case("attention fixed16", run, several, f16, maximum=True)
