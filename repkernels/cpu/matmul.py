"""Matrix products on the CPU under each contract, and the digits of `fixed` operands (SPEC.md, "Contractions").

Numba and the kernels are loaded at the first call.
"""

import torch
from torch import Tensor

from repkernels.digits import Digits

_DIGITS = {"fixed8": 1, "fixed16": 2, "fixed24": 3, "fixed32": 4}


def quantize(v: Tensor, digits: int) -> Digits:
    """Digits and scales of the vectors v (B, R, K) along K, any strides; fp32, bf16 or fp16."""
    from repkernels.cpu import quantize as implementation

    return implementation.quantize(v, digits)


def matmul(a: Tensor, b: Tensor, bias: Tensor | None, contract: str, b_digits: Digits | None = None) -> Tensor:
    """a (B or 1, M, K) @ b (B or 1, K, N) + bias (N,), any strides: (B, M, N), contiguous, of a's dtype.

    `contract` is "ordered" or "fixedNN". b_digits: kept digits of b's columns, or their scales alone.
    """
    out = torch.empty(max(len(a), len(b)), a.shape[1], b.shape[2], dtype=a.dtype, device=a.device)
    if len(a) == 0 or len(b) == 0:
        return out[:0]
    if out.numel() == 0:
        return out
    folded, product = _folded(a, b, out)
    if contract == "ordered":
        from repkernels.cpu.matmul_ordered import ordered

        ordered(folded, b, bias, product)
    else:
        from repkernels.cpu.matmul_fixed import fixed

        fixed(folded, b, bias, product, _DIGITS[contract], b_digits)
    return out


def _folded(a: Tensor, b: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """One product of many rows instead of a batch that shares b, where a's layout allows it without a copy."""
    if len(a) > 1 and len(b) == 1:
        try:
            return a.view(1, -1, a.shape[2]), out.view(1, -1, out.shape[2])
        except RuntimeError:
            pass
    return a, out
