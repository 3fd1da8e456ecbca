"""Attention: causal forward and backward of long sequences beside torch's, decoding from pages beside a copy."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from repkernels.attention import Attention, Sequences, f32
from repkernels.nn import functional
from repkernels.ops.backend import backend

from .registry import Run, Variant, Work, benchmark
from .tensors import COPY, copy_of, normal

TORCH = "torch"
CONTRACTS = ("native", "fixed16", "fixed24", "ordered")
# Batch, query heads, KV heads, queries and keys, head size.
SHAPES = ((4, 32, 32, 4096, 128), (2, 32, 8, 8192, 128))
# Sequences, keys of each, query heads, KV heads, head size, keys of a page.
DECODE = ((64, 8192, 32, 8, 128, 16), (64, 8192, 32, 8, 128, 128), (1, 8192, 32, 8, 128, 16))


@benchmark("attention")
def attention(device: torch.device, quick: bool) -> Iterator[Work]:
    """bf16 on a GPU; small and fp32 on a CPU, without `native`. Operations are those of the visible half."""
    gpu = device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    contracts = CONTRACTS if gpu else ("fixed24", "ordered")
    shapes = SHAPES[:1] if quick else SHAPES
    for shape in shapes if gpu else ((1, 4, 2, 128 if quick else 512, 64),):
        yield from _prefill(device, dtype, shape, contracts[:2] if quick else contracts)
    for pages in (DECODE[1:2] if quick else DECODE) if gpu else ((4, 64 if quick else 512, 4, 2, 64, 16),):
        yield _decode(device, dtype, pages, contracts[:2])


def _prefill(
    device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], contracts: tuple[str, ...]
) -> Iterator[Work]:
    batch, heads, groups, length, width = shape
    count = 2 * batch * heads * length * length * width  # of both products, of the half that is seen
    kept = 2 * batch * (heads + groups) * length * width * dtype.itemsize
    kind = f"{batch}x{heads}/{groups}x{length}x{width} {str(dtype).removeprefix('torch.')}"
    sizes = {"batch": batch, "heads": heads, "kv_heads": groups, "length": length, "width": width}
    yield Work(
        name=f"causal {kind}", group="attention", operands=partial(_operands, device, dtype, shape),
        variants=[Variant(TORCH, _torch), *(Variant(c, partial(_ours, c)) for c in contracts)],
        baseline=TORCH, operations=count, traffic=kept, sizes=sizes,
    )  # fmt: skip
    backward = [c for c in contracts if c not in ("fixed24", "ordered")] if device.type == "cuda" else contracts
    yield Work(
        name=f"causal backward {kind}", group="attention backward", operands=partial(_operands, device, dtype, shape),
        variants=[Variant(TORCH, _torch_backward), *(Variant(c, partial(_ours_backward, c)) for c in backward)],
        baseline=TORCH, operations=count * 5 // 2, traffic=2 * kept, sizes=sizes,
    )  # fmt: skip


def _decode(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...], contracts: tuple[str, ...]) -> Work:
    sequences, keys, heads, groups, width, page = shape
    traffic = 2 * sequences * keys * groups * width * dtype.itemsize
    return Work(
        name=f"decode {sequences}x{keys} {heads}/{groups}x{width}, pages of {page}", group="attention decode",
        operands=partial(_pages, device, dtype, shape),
        variants=[copy_of(traffic, device), *(Variant(c, partial(_paged, c)) for c in contracts)],
        baseline=COPY, operations=4 * sequences * keys * heads * width, traffic=traffic,
        sizes={"sequences": sequences, "keys": keys, "heads": heads, "kv_heads": groups, "width": width, "page": page},
    )  # fmt: skip


def _operands(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    batch, heads, groups, length, width = shape
    counts = (heads, groups, groups, heads)
    q, k, v, g = (normal(device, dtype, batch, n, length, width, seed=seed) for seed, n in enumerate(counts))
    return q, k, v, g


def _torch(operands: tuple[Tensor, ...]) -> Run:
    q, k, v, _ = operands
    return lambda i: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def _torch_backward(operands: tuple[Tensor, ...]) -> Run:
    *leaves, g = (x.detach() for x in operands)
    for x in leaves:
        x.requires_grad_()
    q, k, v = leaves
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return lambda i: torch.autograd.grad(out, leaves, g, retain_graph=True)


def _ours(contract: str, operands: tuple[Tensor, ...]) -> Run:
    q, k, v, _ = operands
    call: Callable[..., Any] = functional.scaled_dot_product_attention

    def run(i: int) -> Tensor:
        with torch.no_grad():
            out: Tensor = call(q, k, v, is_causal=True, enable_gqa=True, contract=contract)
        return out

    return run


def _ours_backward(contract: str, operands: tuple[Tensor, ...]) -> Run:
    """The kernels by themselves: a graph that autograd captures holds no more."""
    q, k, v, g = operands
    kernels, rule = backend("attention", q.device.type), _rule(contract, q.shape[3])
    out, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
    kernels.attention(q, k, v, out, lse, None, None, Sequences(), rule)

    def run(i: int) -> tuple[Tensor, ...]:
        grads = [torch.empty_like(x) for x in (q, k, v)]
        kernels.attention_backward(g, q, k, v, out, lse, None, None, *grads, None, Sequences(), rule)
        return tuple(grads)

    return run


def _rule(contract: str, width: int) -> Attention:
    return Attention(causal=True, scale=f32(1 / math.sqrt(width)), contract=contract)


def _pages(device: torch.device, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    sequences, keys, heads, groups, width, page = shape
    count = sequences * keys // page
    k, v = (normal(device, dtype, count, page, groups, width, seed=seed) for seed in (0, 1))
    q = normal(device, dtype, sequences, heads, width, seed=2)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    table = order.to(device, torch.int32).view(sequences, -1)
    starts = torch.arange(sequences + 1, device=device, dtype=torch.int32)
    return q, k, v, table, starts, torch.full((sequences,), keys, device=device, dtype=torch.int32)


def _paged(contract: str, operands: tuple[Tensor, ...]) -> Run:
    return lambda i: functional.paged_attention(*operands, contract=contract)
