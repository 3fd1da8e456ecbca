"""What an attention is beside its operands: options and the layout of sequences, shared by ops and backends."""

import ctypes
from dataclasses import dataclass

from torch import Tensor


def f32(x: float) -> float:
    """RN32(x)."""
    return ctypes.c_float(x).value


@dataclass(frozen=True)
class Attention:
    """The rule of one attention (SPEC.md, "Attention").

    scale and softcap are fp32 numbers; softcap 0 is none. window: (left, right), -1 is no limit.
    """

    causal: bool
    scale: float
    contract: str
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0


@dataclass(frozen=True)
class Sequences:
    """Where queries and keys of each sequence lie, all int32.

    Dense: q (B, Hq, L, E), k (B, Hkv, S, E), v (B, Hkv, S, Ev), any strides. first_key (B,): the index of the key at
        position 0; first_query (B,): the position of query 0; 0 where there is none.
    Packed: q (1, Hq, T, E), k (1, Hkv, Tk, E). queries, keys (B + 1,): sequence b has rows queries[b] ..
        queries[b + 1] - 1 and likewise keys; its last query has the position of its last key.
    Paged: k (pages, Hkv, page_size, E), queries as packed, keys (B,): the number of keys, table (B, P): the key at
        position p is in page table[b, p // page_size] at p % page_size.
    """

    queries: Tensor | None = None
    keys: Tensor | None = None
    table: Tensor | None = None
    first_key: Tensor | None = None
    first_query: Tensor | None = None
