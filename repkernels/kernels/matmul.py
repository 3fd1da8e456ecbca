"""Matrix products on a GPU: one function for every contract."""

import torch
from torch import Tensor

from repkernels.digits import Digits
from repkernels.kernels import matmul_fixed, matmul_native, matmul_ordered
from repkernels.kernels.configuration import Configuration, use_configuration
from repkernels.kernels.quantize import quantize

__all__ = ["configurations", "matmul", "matmul_into", "quantize", "use_configuration"]


def configurations(contract: str) -> list[Configuration]:
    """Every configuration that a product under `contract` may be launched with."""
    if contract == "ordered":
        return list(matmul_ordered.CONFIGURATIONS)
    if contract == "native":
        return [*matmul_native.CONFIGURATIONS, *matmul_native.NARROW]
    S = int(contract[5:]) // 8
    return [*matmul_fixed.CONFIGURATIONS[S], *matmul_fixed.NARROW[S]]


def matmul(a: Tensor, b: Tensor, bias: Tensor | None, contract: str, b_digits: Digits | None = None) -> Tensor:
    """a (Ba, M, K) @ b (Bb, K, N) + bias (N,), batches equal or 1, any strides -> (B, M, N) in a's dtype.

    contract: a resolved forward contract. b_digits: kept digits, or scales, of b's columns, for `fixed`.
    """
    (Ba, M, K), (Bb, _, N) = a.shape, b.shape
    if Bb == 1 and Ba != 1:
        return matmul(a.reshape(1, Ba * M, K), b, bias, contract, b_digits).view(Ba, M, N)
    bias = None if bias is None else bias.contiguous()
    out = a.new_empty((Bb if Ba == 1 else Ba, M, N))
    if out.numel() == 0:
        return out
    if K == 0:
        return out.copy_(torch.zeros_like(out) if bias is None else torch.where(bias == 0, 0, bias))
    _into(a, b, bias, out, contract, b_digits)
    return out


def matmul_into(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, contract: str) -> None:
    """The same of matrices a (M, K) and b (K, N), into out (M, N); nothing is empty."""
    _into(a[None], b[None], None if bias is None else bias.contiguous(), out[None], contract, None)


def _into(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, contract: str, b_digits: Digits | None) -> None:
    if contract == "ordered":
        matmul_ordered.ordered(a, b, bias, out)
    elif contract == "native":
        matmul_native.native(a, b, bias, out)
    else:
        matmul_fixed.fixed(a, b, bias, out, int(contract[5:]) // 8, b_digits)
