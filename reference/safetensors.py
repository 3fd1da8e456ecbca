"""Files of tensors as transformers saves them: a JSON header, then the elements."""

import json
import struct
from pathlib import Path

import numpy as np

from reference import formats

_NAMES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}


def load(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """The values of all tensors by name, in the order of names, and the name of their one format."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    (dtype,) = {_NAMES[of["dtype"]] for of in header.values()}
    tensors = {}
    for name, of in sorted(header.items()):
        start, stop = of["data_offsets"]
        width = {"float64": "<u8", "float32": "<u4"}.get(dtype, "<u2")
        pattern = np.frombuffer(data[8 + size + start : 8 + size + stop], width).reshape(of["shape"])
        tensors[name] = formats.from_bits(pattern, dtype)
    return tensors, dtype
