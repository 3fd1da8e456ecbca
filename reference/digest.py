"""SHA-256 of values, SPEC.md, "Digest"."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reference import formats


def tensor(values: np.ndarray, dtype: str) -> str:
    """The digest of a tensor of `dtype` (a format of formats.py, or a NumPy integer type's name)."""
    if dtype in ("float32", "bfloat16", "float16", "float64"):
        pattern = formats.bits(values, dtype)
    else:
        pattern = np.asarray(values, dtype=dtype)
    shape = ",".join(str(n) for n in pattern.shape)
    little = pattern.astype(pattern.dtype.newbyteorder("<"))
    return _sha256(b"tensor\0" + dtype.encode() + b"\0" + shape.encode() + b"\0" + little.tobytes(order="C"))


def scalar(value: bool | int | float | str | None) -> str:
    """The digest of a Python scalar: its type's name and its repr."""
    return _sha256(b"scalar\0" + repr((type(value).__name__, value)).encode())


def mapping(items: Mapping[Any, str]) -> str:
    """The digest of a dict from its items' digests, in insertion order."""
    return _container(b"dict\0", list(items.items()))


def sequence(items: Sequence[str]) -> str:
    """The digest of a list or tuple from its items' digests; the keys are the indices."""
    return _container(b"list\0", list(enumerate(items)))


def _container(tag: bytes, items: list[tuple[object, str]]) -> str:
    return _sha256(tag + b"".join(repr(key).encode() + b"\0" + digest.encode() for key, digest in items))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
