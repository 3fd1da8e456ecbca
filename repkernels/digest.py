"""SHA-256 of tensors and of what holds them (SPEC.md, "Digest"): equal digests mean equal bits, NaN being one value."""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 24  # elements that are copied to the host and hashed at a time

_QUIET_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0, torch.float16: 0x7E00, torch.float64: 0x7FF8 << 48}
_REAL = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}
_INTEGERS = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64),
)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(x: Any) -> str:
    """The SHA-256 of a value, 64 hexadecimal digits, the same on every device and for every memory layout.

    x: a tensor or parameter (bool, integers, fp16, bf16, fp32, fp64, complex), a module or an optimizer (its
        `state_dict()`), a mapping, list or tuple of such, nested, or None, bool, int, float, str.
    Bytes hashed: SPEC.md, "Digest": for a tensor its dtype, shape and elements, row-major and little-endian, with
    every NaN as one; for a container the keys, in their own order, and the digests of the items.
    Works in pieces of `CHUNK` elements. Synchronises with the device. Raises TypeError for other types, and for sparse,
    quantised, nested and meta tensors.
    """
    if isinstance(x, Tensor):
        return _tensor(x)
    if isinstance(x, (torch.nn.Module, torch.optim.Optimizer)):
        return digest(x.state_dict())
    if isinstance(x, Mapping):
        return _container(b"dict\0", x.items())
    if isinstance(x, (list, tuple)):
        return _container(b"list\0", enumerate(x))
    if x is None or type(x) in (bool, int, float, str):
        return hashlib.sha256(b"scalar\0" + repr((type(x).__name__, x)).encode()).hexdigest()
    raise TypeError(
        f"x: no digest of {type(x).__name__}; give a tensor, module, optimizer, mapping, list, tuple or Python scalar"
    )


def _container(tag: bytes, items: Iterable[tuple[Any, Any]]) -> str:
    hashed = hashlib.sha256(tag)
    for key, item in items:
        hashed.update(repr(key).encode() + b"\0" + digest(item).encode())
    return hashed.hexdigest()


def _tensor(x: Tensor) -> str:
    if x.layout != torch.strided or x.is_nested or x.is_quantized:
        raise TypeError(f"x: no digest of a {x.layout} tensor of {x.dtype}; give a dense one (x.to_dense())")
    if x.is_meta:
        raise TypeError("x: a tensor on the meta device has no values to digest")
    if x.dtype not in _QUIET_NAN and x.dtype not in _REAL and x.dtype not in _INTEGERS:
        raise TypeError(f"x: no digest of dtype {x.dtype}")
    hashed = hashlib.sha256(_header(x))
    with torch.no_grad():
        for piece in _pieces(x.detach().resolve_conj().resolve_neg()):
            hashed.update(_bytes(piece))
    return hashed.hexdigest()


def _header(x: Tensor) -> bytes:
    name = str(x.dtype).removeprefix("torch.")
    return b"tensor\0" + name.encode() + b"\0" + ",".join(map(str, x.shape)).encode() + b"\0"


def _pieces(x: Tensor) -> Iterable[Tensor]:
    """The elements of x in row-major order, in pieces of at most CHUNK, with no copy of the whole."""
    if x.numel() <= CHUNK:
        yield x
    elif x.is_contiguous():
        yield from x.view(-1).split(CHUNK)
    else:
        for part in x.unbind(0) if x[0].numel() > CHUNK else x.split(max(1, CHUNK // max(1, x[0].numel()))):
            yield from _pieces(part)


def _bytes(x: Tensor) -> bytes:
    x = x.cpu().contiguous().reshape(-1)
    if x.dtype in _REAL:
        x = torch.view_as_real(x).reshape(-1)
    words = x.view(_BITS[x.element_size()])
    if x.dtype in _QUIET_NAN:
        words = words.masked_fill(x.isnan(), _QUIET_NAN[x.dtype])
    array: np.ndarray[Any, Any] = words.numpy()
    return (array.byteswap() if sys.byteorder == "big" else array).tobytes()
