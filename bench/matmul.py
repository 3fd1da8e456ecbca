"""Matrix products under each contract beside torch's own: squares, and the shapes of an 8B-parameter language model."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

import repkernels
from repkernels.ops.backend import backend
from repkernels.prepare import Keep, prepare

from .registry import Run, Variant, Work, benchmark

SQUARES = (512, 1024, 2048, 4096, 8192)
CPU_SQUARES = (256, 512, 1024)
ROWS = (1, 16, 64, 256, 2048)
# (out_features, in_features)
LAYERS = {
    "qkv": (6144, 4096),
    "o": (4096, 4096),
    "gate_up": (28672, 4096),
    "up": (14336, 4096),
    "down": (4096, 14336),
    "lm_head": (128256, 4096),
}
CACHE = 256 << 20  # bytes of weights to go round, several times any GPU's L2


class Operands(NamedTuple):
    """a (M, K) and copies of b, each (K, N): row-major for squares, a transposed (N, K) weight for layers."""

    a: Tensor
    bs: list[Tensor]


def drawn(device: torch.device, dtype: torch.dtype, M: int, N: int, K: int, copies: int, weights: bool) -> Operands:
    """Normal deviates: zeros or constants would let a GPU clock higher than real data does."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    return Operands(normal(M, K), [normal(N, K).t() if weights else normal(K, N) for _ in range(copies)])


def ours(contract: str, operands: Operands) -> Run:
    """The public function, everything included."""
    a, bs = operands
    return lambda i: repkernels.matmul(a, bs[i], contract=contract)


def kept(contract: str, keep: Keep, operands: Operands) -> Run:
    """The public function on prepared weights."""
    a, bs = operands
    prepared = [prepare(b.t(), contract, keep) for b in bs]
    return lambda i: repkernels.matmul(a, prepared[i])


def both_kept(contract: str, operands: Operands) -> Run:
    """The product alone, both operands in digits: the pass that makes a's digits is left out."""
    from repkernels.kernels import matmul_fixed

    a, bs = operands
    kernels, digits = backend("matmul", a.device.type), int(contract[5:]) // 8
    of_a, of_b = kernels.quantize(a[None], digits), [kernels.quantize(b.t()[None], digits) for b in bs]

    def run(i: int) -> Tensor:
        with mock.patch.object(matmul_fixed, "quantize", lambda *_, **__: of_a):
            return kernels.matmul(a[None], bs[i][None], None, contract, of_b[i])

    return run


def torchs(operands: Operands, precision: str = "highest") -> Run:
    """torch.matmul; precision "high" lets fp32 products use TF32."""
    a, bs = operands

    def run(i: int) -> Tensor:
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision(precision)
        try:
            return a @ bs[i]
        finally:
            torch.set_float32_matmul_precision(before)

    return run


def torchs_int8(operands: Operands) -> Run:
    """torch._int_mm on random bytes of the same shape."""
    a = _bytes(operands.a.shape, operands.a.device)
    bs = [_bytes(b.t().shape, b.device).t() for b in operands.bs]
    return lambda i: torch._int_mm(a, bs[i])


def laid_out(a_across: bool, b_across: bool, prepare: Callable[[Operands], Run], operands: Operands) -> Run:
    """The same product with an operand stored transposed."""
    a, bs = operands
    return prepare(Operands(_across(a) if a_across else a, [_across(b) if b_across else b for b in bs]))


def _across(t: Tensor) -> Tensor:
    return t.t().contiguous().t()


def _bytes(shape: torch.Size, device: torch.device) -> Tensor:
    return torch.randint(-128, 128, shape, device=device, dtype=torch.int8)


def _whole(*contracts: str) -> list[Variant]:
    return [Variant(contract, partial(ours, contract)) for contract in contracts]


def _kept(*contracts: str) -> list[Variant]:
    return [Variant(f"{contract}, weight's digits kept", partial(kept, contract, "digits")) for contract in contracts]


@benchmark("matmul")
def matmul(device: torch.device, quick: bool) -> Iterator[Work]:
    """On a GPU: squares in bf16 and fp32, layers in bf16. On a CPU: smaller squares, one layer."""
    if device.type == "cpu":
        yield from _on_cpu(device, quick)
        return
    for n in (1024, 4096) if quick else SQUARES:
        for weights in (False, True) if n >= 4096 else (False,):
            yield _square(device, torch.bfloat16, n, "cuBLAS bf16", [
                Variant("cuBLAS bf16", torchs),
                Variant("cuBLAS int8", torchs_int8),
                *_whole("native", "fixed8", "fixed16"),
                Variant("fixed16, both in digits", partial(both_kept, "fixed16")),
                *_kept("fixed16"),
            ], weights)  # fmt: skip
        yield _square(device, torch.float32, n, "cuBLAS fp32", [
            Variant("cuBLAS fp32", torchs),
            Variant("cuBLAS TF32", partial(torchs, precision="high")),
            *_whole("ordered", "fixed16", "fixed24", "fixed32"),
            *([] if n < 8192 else _ordered_layouts()),
        ])  # fmt: skip
    for layer in ("qkv", "down") if quick else LAYERS:
        for M in (1, 64) if quick else ROWS:
            yield _layer(device, torch.bfloat16, layer, M, "cuBLAS bf16", [
                Variant("cuBLAS bf16", torchs),
                *_whole("native"),
                *_kept("fixed8", "fixed16"),
                Variant("fixed16, weight's scales kept", partial(kept, "fixed16", "scales")),
                *_whole("fixed16"),
            ])  # fmt: skip


def _ordered_layouts() -> list[Variant]:
    run = partial(ours, "ordered")
    return [
        Variant("ordered, b K-contiguous", partial(laid_out, False, True, run)),
        Variant("ordered, a M-contiguous", partial(laid_out, True, False, run)),
        Variant("ordered, both transposed", partial(laid_out, True, True, run)),
    ]


def _on_cpu(device: torch.device, quick: bool) -> Iterator[Work]:
    for n in (256,) if quick else CPU_SQUARES:
        yield _square(device, torch.float32, n, "torch fp32", [
            Variant("torch fp32", torchs), *_whole("ordered", "fixed16", "fixed24", "fixed32"),
        ])  # fmt: skip
        yield _square(device, torch.bfloat16, n, "torch bf16", [
            Variant("torch bf16", torchs), *_whole("ordered", "fixed16"),
        ])  # fmt: skip
    for M in (1,) if quick else (1, 16):
        yield _layer(device, torch.float32, "o", M, "torch fp32", [
            Variant("torch fp32", torchs), *_whole("ordered"), *_kept("fixed16", "fixed24"),
        ])  # fmt: skip


def _square(
    device: torch.device, dtype: torch.dtype, n: int, baseline: str, variants: list[Variant], weights: bool = False
) -> Work:
    """weights: b is a transposed row-major weight, as in linear."""
    name = "linear square" if weights else "square"
    return _work(f"{name} {n}", name, device, dtype, n, n, n, 1, weights, baseline, variants)


def _layer(
    device: torch.device, dtype: torch.dtype, layer: str, M: int, baseline: str, variants: list[Variant]
) -> Work:
    N, K = LAYERS[layer]
    copies = -(-CACHE // (N * K * dtype.itemsize)) if M <= 256 and device.type == "cuda" else 1
    return _work(f"{layer} M={M}", layer, device, dtype, M, N, K, copies, True, baseline, variants)


def _work(
    name: str, group: str, device: torch.device, dtype: torch.dtype, M: int, N: int, K: int, copies: int,
    weights: bool, baseline: str, variants: list[Variant],
) -> Work:  # fmt: skip
    kind = str(dtype).removeprefix("torch.")
    return Work(
        name=f"{name} {kind}",
        group=f"{group} {kind}",
        operands=partial(drawn, device, dtype, M, N, K, copies, weights),
        variants=variants,
        baseline=baseline,
        operations=2 * M * N * K,
        traffic=(M * K + K * N + M * N) * dtype.itemsize,
        copies=copies,
        sizes={"M": M, "N": N, "K": K},
    )
