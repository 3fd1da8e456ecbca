"""The four floating-point formats. A tensor of a half type is held as the fp32 array of its values, which is exact.

Every function takes and returns float32 arrays (float64 for "float64"); `dtype` is torch's name of the format.
"""

from typing import Any

import numpy as np

HALF = ("bfloat16", "float16")
_SHAPE = {"bfloat16": (8, -126, float.fromhex("0x1.fep127")), "float16": (11, -14, 65504.0)}
_UNSIGNED: dict[str, Any] = {"bfloat16": np.uint16, "float16": np.uint16, "float32": np.uint32, "float64": np.uint64}
_QUIET_NAN = {"bfloat16": 0x7FC0, "float16": 0x7E00, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}


def compute_type(dtype: str) -> type:
    """The format that operations on `dtype` compute in: binary64 for float64, binary32 for everything else."""
    return np.float64 if dtype == "float64" else np.float32


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """fp32 values rounded to `dtype`, nearest even: to a multiple of the ulp, to infinity beyond the largest value."""
    if dtype not in HALF:
        return np.asarray(values, dtype=compute_type(dtype))
    precision, least_exponent, largest = _SHAPE[dtype]
    with np.errstate(invalid="ignore"):
        wide = np.asarray(values, dtype=np.float32).astype(np.float64)
    finite = np.where(np.isfinite(wide), wide, 0.0)
    exponent = np.maximum(np.frexp(finite)[1] - 1, least_exponent) - (precision - 1)
    near = np.ldexp(np.rint(np.ldexp(finite, -exponent)), exponent)
    near = np.where(np.abs(near) > largest, np.copysign(np.inf, near), near)
    return np.where(np.isfinite(wide), near, wide).astype(np.float32)


def bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """The bit patterns of values that `dtype` can represent, as unsigned integers, every NaN as one quiet NaN."""
    values = np.ascontiguousarray(values, dtype=compute_type(dtype)).reshape(np.shape(values))
    pattern: np.ndarray
    if dtype == "bfloat16":
        pattern = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    elif dtype == "float16":
        pattern = values.astype(np.float16).view(np.uint16)
    else:
        pattern = values.view(_UNSIGNED[dtype])
    return np.where(np.isnan(values), pattern.dtype.type(_QUIET_NAN[dtype]), pattern)


def from_bits(pattern: np.ndarray, dtype: str) -> np.ndarray:
    """The values of bit patterns: the inverse of `bits`."""
    pattern = np.ascontiguousarray(pattern, dtype=_UNSIGNED[dtype]).reshape(np.shape(pattern))
    if dtype == "bfloat16":
        return (pattern.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype == "float16":
        return pattern.view(np.float16).astype(np.float32)
    return pattern.view(compute_type(dtype))


def positive_zeros(values: np.ndarray) -> np.ndarray:
    """The values with every -0 replaced by +0."""
    return np.where(values == 0, values.dtype.type(0), values)
