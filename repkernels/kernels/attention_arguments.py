"""What the launchers of attention kernels have in common: how tensors and options become arguments of a kernel."""

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from repkernels.attention import Attention, Sequences, f32
from repkernels.kernels.attention_segments import BOOL_MASK, DENSE, FLOAT_MASK, NO_MASK, PACKED, PAGED, SEGMENT
from repkernels.kernels.sizes import cdiv, next_power_of_2

LOG2_E_64 = float.fromhex("0x1.71547652b82fep+0")


class Call(NamedTuple):
    """An attention as kernels see it. q, k, v: contiguous along their last axis."""

    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor | None
    mask: Tensor | None
    sinks: Tensor | None
    sequences: Sequences
    attention: Attention

    @property
    def layout(self) -> int:
        if self.sequences.table is not None:
            return PAGED.value
        return DENSE.value if self.sequences.queries is None else PACKED.value

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.q.shape[0] if self.sequences.queries is None else len(self.sequences.queries) - 1

    @property
    def group(self) -> int:
        """Neighbouring query heads that read one KV head; 1 where heads are not shared evenly."""
        Hq, Hkv = self.q.shape[1], self.k.shape[1]
        return Hq // Hkv if Hq % Hkv == 0 else 1

    @property
    def rows(self) -> int:
        """Query rows of a sequence, on average."""
        return self.q.shape[2] if self.sequences.queries is None else cdiv(self.q.shape[2], max(1, self.batch))

    @property
    def longest(self) -> int:
        """A bound of the keys of a sequence."""
        if self.sequences.table is not None:
            return self.sequences.table.shape[1] * self.k.shape[2]
        return self.k.shape[2]

    def tiles(self, size: int) -> int:
        """Tiles of `size` queries, of a dense sequence or of all others."""
        if self.sequences.queries is None:
            return cdiv(self.q.shape[2], size)
        return self.q.shape[2] // size + self.batch + 1

    def key_tiles(self, size: int) -> tuple[int, int]:
        """Tiles of `size` keys, of a dense sequence or of all others, and programs over all KV heads."""
        batch, heads, keys = self.k.shape[:3]
        if self.sequences.queries is None:
            return cdiv(keys, size), cdiv(keys, size) * heads * batch
        return keys // size + self.batch + 1, (keys // size + self.batch + 1) * heads

    def programs(self, size: int, fold: int) -> int:
        """Tiles over all sequences and heads."""
        dense = self.sequences.queries is None
        return self.tiles(size) * (self.q.shape[1] // fold) * (self.batch if dense else 1)

    def window(self) -> tuple[int, int]:
        """(left, right) with a causal border in right; -1: none."""
        left, right = self.attention.window
        return left, 0 if self.attention.causal else right

    def segments(self, size: int) -> int:
        """A bound of the segments that a tile of `size` queries sees."""
        left, right = self.window()
        # A sequence whose start has rolled out of the memory begins within a segment.
        most = self.longest // SEGMENT.value + 2
        return min(most, (left + right + size) // SEGMENT.value + 2) if left >= 0 and right >= 0 else most

    def arguments(self, size: int) -> tuple[Any, ...]:
        """Those of a kernel after the descriptors, up to the window."""
        s, q = self.sequences, self.q
        mask_strides = (0, 0, 0, 0) if self.mask is None else self.mask.stride()
        lse_strides = (0, 0) if self.lse is None else self.lse.stride()[:2]
        mask = self.mask.view(torch.uint8) if self.mask is not None and self.mask.dtype == torch.bool else self.mask
        tensors = (self.lse, mask, self.sinks, s.queries, s.keys, s.table, s.first_key, s.first_query)
        return (
            self.out, *(q if t is None else t for t in tensors), self.batch, q.shape[2], self.k.shape[2], q.shape[1],
            self.k.shape[1], self.tiles(size), *q.stride()[:3], *self.k.stride()[:3], *self.v.stride()[:3],
            *self.out.stride(), *lse_strides, 0 if s.table is None else s.table.stride(0), *mask_strides,
            *self.window(),
        )  # fmt: skip

    def constants(self) -> dict[str, Any]:
        """Those that every kernel has."""
        s, (left, right), (E, Ev) = self.sequences, self.window(), (self.q.shape[3], self.v.shape[3])
        mask = NO_MASK if self.mask is None else BOOL_MASK if self.mask.dtype == torch.bool else FLOAT_MASK
        return {
            "E": E, "EV": Ev, "BE": max(16, next_power_of_2(E)), "BEV": max(16, next_power_of_2(Ev)),
            "LAYOUT": self.layout, "LENGTH": 1 if s.queries is None else next_power_of_2(len(s.queries)),
            "PAGE": 0 if s.table is None else self.k.shape[2], "LEFT": left >= 0, "RIGHT": right >= 0,
            "FIRST_KEY": s.first_key is not None, "FIRST_QUERY": s.first_query is not None, "MASK": mask.value,
            "SOFTCAP": self.attention.softcap > 0, "SINKS": self.sinks is not None, "LSE": self.lse is not None,
        }  # fmt: skip


def call(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, mask: Tensor | None, sinks: Tensor | None,
    sequences: Sequences, attention: Attention,
) -> Call:  # fmt: skip
    """Operands as kernels take them: what is not contiguous along the last axis is copied."""
    return Call(along_last(q), along_last(k), along_last(v), out, lse, mask, sinks, sequences, attention)


def along_last(t: Tensor) -> Tensor:
    """t, or a copy of it, contiguous along its last axis."""
    return t if t.stride(3) == 1 else t.contiguous()


def to_base_2(attention: Attention) -> tuple[float, float, bool]:
    """(factor, inner, whether contractions are negated): what makes them scores to base 2."""
    scale, cap = attention.scale, attention.softcap
    if cap > 0:
        return f32(cap * LOG2_E_64), f32(2 * scale * LOG2_E_64 / cap), False
    return f32(abs(scale) * LOG2_E_64), 0.0, scale < 0


@functools.cache
def in_bulk(device: torch.device) -> bool:
    """Whether tiles are read by the device's engine for bulk copies; the interpreter plays one."""
    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def describable(t: Tensor) -> bool:
    """Whether a (B, H, S, E) tensor, contiguous along E, can be read by bulk copies of rows."""
    steps = (t.stride(i) for i in range(3) if t.shape[i] > 1)
    return t.data_ptr() % 16 == 0 and all(s > 0 and s * t.element_size() % 16 == 0 for s in steps)


def describe(t: Tensor, rows: int, columns: int) -> Any:
    """A descriptor of `describable` t in blocks of rows of one head."""
    strides = [t.stride(i) if t.shape[i] > 1 else 16 for i in range(3)]
    return TensorDescriptor(t, list(t.shape), [*strides, 1], [1, 1, rows, columns])
