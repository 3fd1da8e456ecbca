"""GGUF files: metadata and tensors, as the types F32, F16, BF16, Q4_0, Q4_1 and Q8_0 hold them.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Each weight is one number in fp32 by the format's own
formula, such as d * q + m, every operation rounded once, so that it has the same bits wherever it is read.
"""

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
_SCALARS = "BbHhIif?sAQqd"  # by the number of the type; s is a string, A an array
_STRING, _ARRAY = 8, 9


class File(NamedTuple):
    """metadata: by key. tensors: fp32 by ggml's name, in the shape that torch gives them."""

    metadata: dict[str, Any]
    tensors: dict[str, Array]


def read(path: Path) -> File:
    """All of a file. Raises ValueError for what is no GGUF file of version 2 or 3, or has a tensor of another type."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _parsed(data, path)


def _parsed(data: Any, path: Path) -> File:
    at = 0

    def take(form: str) -> tuple[Any, ...]:
        nonlocal at
        form = f"<{form}"
        found = struct.unpack_from(form, data, at)
        at += struct.calcsize(form)
        return found

    def text() -> str:
        nonlocal at
        (size,) = take("Q")
        at += size
        return bytes(data[at - size : at]).decode()

    def value(kind: int) -> Any:
        if kind == _STRING:
            return text()
        if kind == _ARRAY:
            of, count = take("IQ")
            if of == _STRING:
                return [text() for _ in range(count)]
            return list(take(f"{count}{_SCALARS[of]}"))
        return take(_SCALARS[kind])[0]

    if data[:4] != b"GGUF":
        raise ValueError(f"{path}: no GGUF file")
    magic, version, tensors, keys = take("IIQQ")
    if version not in (2, 3):
        raise ValueError(f"{path}: GGUF version {version}; 2 and 3 can be read")
    metadata = {}
    for _ in range(keys):
        key = text()
        metadata[key] = value(*take("I"))
    infos = []
    for _ in range(tensors):
        name, (axes,) = text(), take("I")
        infos.append((name, take(f"{axes}Q")[::-1], *take("IQ")))
    alignment = metadata.get("general.alignment", 32)
    start = -(-at // alignment) * alignment
    found = {}
    for name, shape, kind, offset in infos:
        if kind not in _TYPES:
            raise ValueError(f"{path}: tensor {name} has ggml's type {kind}; supported are {sorted(_TYPES)}")
        elements, size, values = _TYPES[kind]
        count = int(np.prod(shape)) // elements
        raw = np.frombuffer(data, np.uint8, count * size, start + offset).reshape(count, size)
        found[name] = values(raw).reshape(shape)
    return File(metadata, found)


def _view(raw: Array, start: int, stop: int, dtype: str) -> Array:
    """Bytes start .. stop - 1 of each block as little-endian numbers, fp32."""
    return np.ascontiguousarray(raw[:, start:stop]).view(f"<{dtype}").astype(np.float32)


def _nibbles(raw: Array) -> Array:
    """32 numbers 0 .. 15 of the last 16 bytes: the low halves, then the high ones."""
    packed = raw[:, -16:]
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q4_0(raw: Array) -> Array:
    return _view(raw, 0, 2, "f2") * (_nibbles(raw) - np.float32(8))


def _q4_1(raw: Array) -> Array:
    return _view(raw, 0, 2, "f2") * _nibbles(raw) + _view(raw, 2, 4, "f2")


def _q8_0(raw: Array) -> Array:
    return _view(raw, 0, 2, "f2") * _view(raw, 2, 34, "i1")


def _bf16(raw: Array) -> Array:
    return (np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << 16).view(np.float32)


# ggml's number of the type: elements and bytes of a block, and what makes numbers of blocks.
_TYPES: dict[int, tuple[int, int, Callable[[Array], Array]]] = {
    0: (1, 4, lambda raw: _view(raw, 0, 4, "f4")),
    1: (1, 2, lambda raw: _view(raw, 0, 2, "f2")),
    2: (32, 18, _q4_0),
    3: (32, 20, _q4_1),
    8: (32, 34, _q8_0),
    30: (1, 2, _bf16),
}
