"""Where the rows of attention's operands lie in memory, and which keys a row may see by their positions."""

from typing import NamedTuple

import numpy as np

from repkernels.cpu.compile import kernel

SEGMENT = 128
# Columns of the table of sequences: its place among batches, the row of its query 0, the place of the key at position
# 0, the least position of a key and the one after the last, the position of query 0, the number of queries.
BATCH, ROW, PLACE, LOW, END, START, COUNT = range(7)


class Options(NamedTuple):
    """window: -1 is no limit; softcap: 0 is none; digits: 0 is `ordered`. heads: KV heads; group: query heads of each.
    page: keys of a page, 0 where there are none.
    """

    causal: bool
    left: int
    right: int
    scale: np.float32
    softcap: np.float32
    digits: int
    heads: int
    group: int
    page: int


class Places(NamedTuple):
    """For each query row of each unit: its sequence, head and row among the queries of the tensor, -1 if there is no
    such row, and the positions first .. last - 1 of the keys that it may see, all from `base` of the unit on. For each
    slot of keys: its page or batch, -1 if there is no such key, and its row there.
    """

    query: np.ndarray
    head: np.ndarray
    batch: np.ndarray
    first: np.ndarray
    last: np.ndarray
    key_batch: np.ndarray
    key_row: np.ndarray
    key_index: np.ndarray


@kernel
def find(units, sequences, table, rows, slots, by_keys, options, places):
    """Fills `places` for units (sequence, KV head, first query or query segment, queries or their segments, base).

    by_keys: query rows are, for each head of the group, whole segments of positions; otherwise the heads of the group
    for each query in turn. The slots of keys are the positions from `base` on.
    """
    group = options.group
    for u in range(len(units)):
        b, heads, begin, count, base = units[u]
        s = sequences[b]
        least, most = base + slots, base
        for r in range(rows):
            at = u * rows + r
            if by_keys:
                h, query = r // (count * SEGMENT), begin * SEGMENT + r % (count * SEGMENT) - s[START]
                there = h < group and 0 <= query < s[COUNT]
            else:
                h, query = r % group, begin + r // group
                there = r < count * group
            places.query[at] = s[ROW] + query if there else -1
            places.head[at], places.batch[at] = heads * group + h, s[BATCH]
            position = s[START] + query
            first, last = s[LOW], s[END]
            if options.causal:
                last = min(last, position + 1)
            if options.left >= 0:
                first = max(first, position - options.left)
            if options.right >= 0:
                last = min(last, position + options.right + 1)
            first, last = max(first, base), min(last, base + slots)
            if not there or first >= last:
                first, last = base, base
            else:
                least, most = min(least, first), max(most, last)
            places.first[at], places.last[at] = first - base, last - base
        for j in range(slots):
            at, position = u * slots + j, base + j
            batch, row = s[BATCH], s[PLACE] + position
            if options.page > 0 and s[LOW] <= position < s[END]:
                batch, row = np.int64(table[b, position // options.page]), position % options.page
            if position < (s[LOW] if by_keys else least) or position >= (s[END] if by_keys else most):
                batch = -1
            places.key_batch[at], places.key_row[at] = batch, row
            places.key_index[at] = s[PLACE] + position
