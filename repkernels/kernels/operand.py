"""Operands of a contraction as kernels read them: vectors along K, described for bulk copies."""

from typing import Any

from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from repkernels.digits import Digits, padded


def batch_stride(t: Tensor) -> int:
    """The step from one batch to the next, 0 where there is one batch for all."""
    return 0 if t.shape[0] == 1 else t.stride(0)


def strides(vectors: Tensor) -> tuple[int, int, int]:
    """(batch, row, k) strides of vectors (batch, R, K)."""
    return batch_stride(vectors), vectors.stride(1), vectors.stride(2)


def readable(t: Tensor) -> bool:
    """Whether a 2-D tensor can be read by descriptor: rows contiguous, apart, and on 16-byte borders."""
    apart = t.stride(0) >= t.shape[1] and t.stride(0) * t.element_size() % 16 == 0
    return t.stride(1) == 1 and apart and t.data_ptr() % 16 == 0


def describe(t: Tensor, block: list[int]) -> Any:
    """A descriptor of the 2-D tensor t in blocks of the given shape."""
    return TensorDescriptor(t, list(t.shape), list(t.stride()), block)


def describe_digits(digits: Digits, rows: int, BK: int) -> Any:
    """All planes as one (S * batch * R, Kpad) descriptor. Rows past a plane's end are the next one's, and not used."""
    planes = digits.planes
    return describe(planes.view(-1, planes.shape[-1]), [rows, BK])


def describe_vectors(vectors: Tensor, rows: int, BK: int) -> tuple[Any, bool]:
    """(batch, R, K) as a descriptor over (batch * R, K), or over (K, R), and whether it is the latter.

    What can't be read as it lies is copied into padded rows.
    """
    batch, R, K = vectors.shape
    if batch == 1 and readable(vectors[0].T):
        return describe(vectors[0].T, [BK, rows]), True
    if batch == 1 or vectors.stride(0) == R * vectors.stride(1):
        flat = vectors.as_strided((batch * R, K), vectors.stride()[1:])
        if readable(flat):
            return describe(flat, [rows, BK]), False
    flat = vectors.new_empty((batch * R, padded(K)))[:, :K]
    flat.view(batch, R, K).copy_(vectors)
    return describe(flat, [rows, BK]), False
