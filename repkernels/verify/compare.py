"""Bits side by side: the first element that differs, with both patterns."""

import base64
from typing import Any

import numpy as np
import torch
from torch import Tensor

from repkernels.digest import digest

_INTEGER = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
_QUIET_NAN = {torch.float32: 0x7FC00000, torch.float64: 0x7FF8 << 48, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00}


def patterns(x: Tensor) -> np.ndarray:
    """The elements as unsigned integers, every NaN as one pattern."""
    x = x.detach()
    if x.dtype not in _INTEGER:
        return x.cpu().contiguous().numpy()
    integer = _INTEGER[x.dtype]
    canonical = torch.where(
        x.isnan(), torch.tensor(_QUIET_NAN[x.dtype], dtype=integer, device=x.device), x.contiguous().view(integer)
    )
    signed = canonical.cpu().numpy()
    return signed.view(f"u{signed.dtype.itemsize}")


def difference(actual: Tensor, expected: Tensor) -> str | None:
    """None if dtype, shape and bits agree; otherwise what differs first."""
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{actual.dtype} {tuple(actual.shape)} instead of {expected.dtype} {tuple(expected.shape)}"
    if actual.device == expected.device and actual.dtype in _INTEGER:
        # Settled on the device where nothing differs; by integers, since comparing may flush subnormals.
        integer = _INTEGER[actual.dtype]
        same = actual.contiguous().view(integer) == expected.contiguous().view(integer)
        if bool((same | actual.isnan() & expected.isnan()).all()):
            return None
    return _first(patterns(actual), patterns(expected))


def difference_from_golden(actual: Tensor, result: dict[str, Any]) -> str | None:
    """None if `actual` has the digest of a golden result; otherwise what differs first."""
    found = digest(actual)
    if found == result["digest"]:
        return None
    dtype, shape = str(actual.dtype).removeprefix("torch."), list(actual.shape)
    if dtype != result["dtype"] or shape != result["shape"]:
        return f"{dtype} {tuple(shape)} instead of {result['dtype']} {tuple(result['shape'])}"
    if "bits" not in result:
        return f"digest {found[:16]} instead of {result['digest'][:16]} (the case keeps no bits)"
    mine = patterns(actual)
    little = mine.dtype.newbyteorder("<")
    expected = np.frombuffer(base64.b64decode(result["bits"]), little).astype(mine.dtype).reshape(mine.shape)
    return (
        _first(mine, expected) or f"digest {found[:16]} instead of {result['digest'][:16]}, though no element differs"
    )


def _first(actual: np.ndarray, expected: np.ndarray) -> str | None:
    different = actual != expected
    if not different.any():
        return None
    index = tuple(int(i) for i in np.unravel_index(int(different.argmax()), actual.shape))
    digits = 2 * actual.dtype.itemsize
    got, wanted = (format(int(x[index]) & (1 << 4 * digits) - 1, f"0{digits}x") for x in (actual, expected))
    return f"element {list(index)} is {got} instead of {wanted}; {int(different.sum())} of {actual.size} differ"
