"""What forward and gradients of attention share on a CPU: where operands lie, which keys a row sees, its scores."""

from typing import NamedTuple

import numpy as np
from numba import njit

from repkernels.cpu.attention_operands import SEGMENT, load_row
from repkernels.cpu.divide import divide
from repkernels.cpu.functions import F32
from repkernels.cpu.rounded.exponential import tanh

NO_MASK, BOOL_MASK = -2, -1


class Operand(NamedTuple):
    """A tensor of four axes as memory: fp32, or half types as int16. kind: of attention_operands; strides of axes."""

    fp32: np.ndarray
    half: np.ndarray
    kind: int
    strides: tuple[int, int, int, int]


class Mask(NamedTuple):
    """kind: NO_MASK, BOOL_MASK, or the format of what is added. strides: of (B, Hq, L, S)."""

    truth: np.ndarray
    fp32: np.ndarray
    half: np.ndarray
    kind: int
    strides: tuple[int, int, int, int]


class Options(NamedTuple):
    """window: -1 is no limit; softcap: 0 is none; digits: 0 is `ordered`. group: query heads of a KV head."""

    causal: bool
    left: int
    right: int
    scale: np.float32
    softcap: np.float32
    digits: int
    group: int
    page: int


# Columns of the table of sequences: its place among batches, the row of its query 0, the place of the key at position
# 0, the least position of a key and the one after the last, the position of query 0, the number of queries.
BATCH, ROW, PLACE, LOW, END, START, COUNT = range(7)


@njit
def load_queries(x, out, s, heads, first, count, group):
    """out[i * group + h] = query `first + i` of head heads * group + h, h < group, of sequence s."""
    strides = x.strides
    for i in range(count):
        at = s[BATCH] * strides[0] + (s[ROW] + first + i) * strides[2]
        for h in range(group):
            place = at + (heads * group + h) * strides[1]
            load_row(out[i * group + h], x.fp32, x.half, x.kind, place, strides[3])


@njit
def key_place(x, s, table, page, head, position):
    """Where the key at that position begins; -1 if it is in no page."""
    strides = x.strides
    if page == 0:
        return s[BATCH] * strides[0] + head * strides[1] + (s[PLACE] + position) * strides[2]
    number = table[position // page]
    return -1 if number < 0 else number * strides[0] + head * strides[1] + position % page * strides[2]


@njit
def load_keys(x, out, present, s, table, page, head, base, first, last):
    """out[j] = the key at position base + j, +0 where it is absent or not in first .. last - 1."""
    for j in range(SEGMENT):
        place = -1
        if first <= base + j < last:
            place = key_place(x, s, table, page, head, base + j)
        present[j] = place >= 0
        row = out[j]
        if place >= 0:
            load_row(row, x.fp32, x.half, x.kind, place, x.strides[3])
        else:
            for k in range(row.size):
                row[k] = 0


@njit
def reach(s, position, options):
    """The positions first .. last - 1 of keys that a query at `position` may see."""
    first, last = s[LOW], s[END]
    if options.causal:
        last = min(last, position + 1)
    if options.left >= 0:
        first = max(first, position - options.left)
    if options.right >= 0:
        last = min(last, position + options.right + 1)
    return first, last


@njit
def see(seen, added, mask, present, s, head, query, base, options):
    """seen[j]: whether that query sees the key at base + j; added[j]: the mask's number. Returns whether any."""
    first, last = reach(s, s[START] + query, options)
    first, last = max(first - base, 0), min(last - base, SEGMENT)
    for j in range(SEGMENT):
        seen[j] = present[j] & (first <= j) & (j < last)
    if mask.kind != NO_MASK and first < last:
        strides = mask.strides
        at = s[BATCH] * strides[0] + head * strides[1] + query * strides[2] + (s[PLACE] + base + first) * strides[3]
        if mask.kind == BOOL_MASK:
            for j in range(first, last):
                seen[j] &= mask.truth[at + (j - first) * strides[3]]
        else:
            load_row(added[first:last], mask.fp32, mask.half, mask.kind, at, strides[3])
            for j in range(first, last):
                seen[j] &= added[j] != -np.inf
    some = np.uint8(0)
    for j in range(SEGMENT):
        some |= seen[j]
    return some != 0


@njit
def score(scores, seen, added, mask, tangents, options):
    """Turns the contractions of one row into its scores, -inf where not seen; tangents: the tanh of a soft cap."""
    scale, cap = options.scale, options.softcap
    for j in range(SEGMENT):
        scores[j] *= scale
    if cap > F32(0):
        for j in range(SEGMENT):
            tangents[j] = tanh(divide(scores[j], cap))
            scores[j] = tangents[j] * cap
    if mask.kind >= 0:
        for j in range(SEGMENT):
            scores[j] += added[j]
    for j in range(SEGMENT):
        scores[j] = scores[j] if seen[j] else F32(-np.inf)
