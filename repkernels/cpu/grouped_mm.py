"""Products of groups of rows with a matrix each, on the CPU (SPEC.md, "Grouped products"): group by group."""

from collections.abc import Iterator

from torch import Tensor

from repkernels.cpu.matmul import matmul, quantize
from repkernels.digits import Digits

__all__ = ["grouped_mm", "grouped_mm_weight", "quantize"]


def grouped_mm(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, contract: str, b_digits: Digits | None) -> None:
    """out (T, N): row i is a[i] (K) @ b[g] (K, N) for its group g, offs[g - 1] <= i < offs[g]; +0 behind the last.

    a (T, K), b (G, K, N): any strides. offs (G,): int32, ascending. b_digits: kept digits of b's columns.
    """
    end = 0
    for g, rows in _groups(offs, len(a)):
        digits = None
        if b_digits is not None:
            planes = b_digits.planes[:, g : g + 1] if b_digits.planes.numel() else b_digits.planes
            digits = Digits(planes, b_digits.scale[g : g + 1])
        out[rows] = matmul(a[rows][None], b[g][None], None, contract, digits)[0]
        end = rows.stop
    out[end:] = 0


def grouped_mm_weight(a: Tensor, b: Tensor, offs: Tensor, out: Tensor, contract: str) -> None:
    """out (G, K, N): a's rows (T, K) of group g, transposed, @ b's (T, N); +0 of an empty group."""
    out.zero_()
    for g, rows in _groups(offs, len(a)):
        out[g] = matmul(a[rows].T[None], b[rows][None], None, contract)[0]


def _groups(offs: Tensor, rows: int) -> Iterator[tuple[int, slice]]:
    """The groups that have rows, and these."""
    start = 0
    for g, end in enumerate(offs.tolist()):
        end = min(end, rows)
        if end > start:
            yield g, slice(start, end)
            start = end
