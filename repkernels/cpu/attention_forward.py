"""Attention on a CPU: blocks of query rows of the heads that share keys, segment after segment."""

import numpy as np
from numba import njit

from repkernels.cpu.attention_operands import SEGMENT, pack_columns, pack_rows, padded, rows_of, store_row
from repkernels.cpu.attention_products import contract, sums_of, weighted, weights_of
from repkernels.cpu.attention_scores import BATCH, ROW, START, load_keys, load_queries, reach, score, see
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, exp_f32, fma, larger, ln_f32
from repkernels.cpu.rows import row_maximum

MINUS_INFINITY, ZERO, ONE = F32(-np.inf), F32(0), F32(1)


@njit
def _weigh(scores, seen, p, halves):
    """(m', l') of one row of a segment, and its weights p."""
    m = row_maximum(scores)
    for j in range(SEGMENT):
        p[j] = exp_f32(scores[j] - m)
    for j in range(SEGMENT):
        p[j] = p[j] if seen[j] else ZERO
    for j in range(64):
        halves[j] = p[j] + p[j + 64]
    half = 32
    while half:
        for j in range(half):
            halves[j] += halves[j + half]
        half //= 2
    return m, halves[0]


@njit
def _merge(m, l, o, m_segment, l_segment, o_segment):
    """The state (m, l, o) with a segment's; o in place."""
    top = larger(m, m_segment)
    a, b = exp_f32(m - top), exp_f32(m_segment - top)
    for c in range(o.size):
        o[c] = fma(o[c], a, o_segment[c] * b)
    return top, fma(l, a, l_segment * b)


@kernel
def attend(start, stop, tasks, sequences, q, k, v, out, table, mask, sinks, lse, lse_strides, sizes, options):
    """Tasks (sequence, KV head, first query, queries). sizes: most rows of a task, E, Ev. lse: empty if not wanted."""
    state = keep_subnormals()
    most, E, Ev = sizes
    digits, group = options.digits, options.group
    queries, keys, values = rows_of(most, E, digits), rows_of(SEGMENT, E, digits), rows_of(SEGMENT, Ev, digits)
    sums, weights = sums_of(most, max(SEGMENT, Ev), digits), weights_of(most, digits)
    scores, p = np.zeros((most, SEGMENT), np.float32), np.zeros((most, SEGMENT), np.float32)
    seen, some = np.zeros((most, SEGMENT), np.uint8), np.zeros(most, np.uint8)
    present = np.zeros(SEGMENT, np.uint8)
    added, tangents = np.zeros(SEGMENT, np.float32), np.zeros(SEGMENT, np.float32)
    line, halves = np.zeros(max(E, Ev), np.float64), np.zeros(SEGMENT, np.float32)
    o, m, l = np.zeros((most, Ev), np.float32), np.zeros(most, np.float32), np.zeros(most, np.float32)
    begun = np.zeros(most, np.uint8)
    width = padded(Ev)
    for number in range(start, stop):
        b, heads, first, count = tasks[number]
        s, pages = sequences[b], table[min(b, table.shape[0] - 1)]
        rows = count * group
        load_queries(q, queries.raw, s, heads, first, count, group)
        pack_rows(queries, rows, digits, True, line[:E])
        for r in range(rows):
            begun[r] = 0
        low = reach(s, s[START] + first, options)[0]
        end = reach(s, s[START] + first + count - 1, options)[1]
        for segment in range(low // SEGMENT, (end + SEGMENT - 1) // SEGMENT if low < end else low // SEGMENT):
            base = segment * SEGMENT
            load_keys(k, keys.raw, present, s, pages, options.page, heads, base, low, end)
            any_row = False
            for r in range(rows):
                head, query = heads * group + r % group, first + r // group
                some[r] = see(seen[r], added, mask, present, s, head, query, base, options)
                any_row |= some[r] != 0
            if not any_row:
                continue
            pack_rows(keys, SEGMENT, digits, False, line[:E])
            contract(queries, keys, sums, rows, digits, scores)
            for r in range(rows):
                if mask.kind >= 0:
                    see(seen[r], added, mask, present, s, heads * group + r % group, first + r // group, base, options)
                score(scores[r], seen[r], added, mask, tangents, options)
            load_keys(v, values.raw, present, s, pages, options.page, heads, base, low, end)
            pack_columns(values, digits, line[:Ev])
            for r in range(rows):
                # The sums of rows that see no key are not looked at.
                maximum, total = _weigh(scores[r], seen[r], p[r], halves)
                scores[r, 0], scores[r, 1] = maximum, total
            weighted(p, seen, values, weights, sums, rows, digits)
            for r in range(rows):
                if not some[r]:
                    continue
                o_segment = sums.totals[r * width : r * width + Ev]
                if begun[r]:
                    m[r], l[r] = _merge(m[r], l[r], o[r], scores[r, 0], scores[r, 1], o_segment)
                    continue
                begun[r], m[r], l[r] = 1, scores[r, 0], scores[r, 1]
                mine = o[r]
                for c in range(Ev):
                    mine[c] = o_segment[c]
        for r in range(rows):
            head, query, mine = heads * group + r % group, s[ROW] + first + r // group, o[r]
            if not begun[r]:
                for c in range(Ev):
                    mine[c] = 0
                m[r], l[r] = MINUS_INFINITY, ONE
            if sinks.size > 0:
                if begun[r]:
                    top = larger(m[r], sinks[head])
                    a, share = exp_f32(m[r] - top), exp_f32(sinks[head] - top)
                    for c in range(Ev):
                        mine[c] = fma(mine[c], a, ZERO * share)
                    m[r], l[r] = top, fma(l[r], a, share)
                else:
                    m[r], l[r] = sinks[head], ONE
                begun[r] = 1
            inverse = ONE / l[r]
            for c in range(Ev):
                mine[c] = mine[c] * inverse if begun[r] else ZERO
            at = s[BATCH] * out.strides[0] + head * out.strides[1] + query * out.strides[2]
            store_row(mine, out.fp32, out.half, out.kind, at, out.strides[3])
            if lse.size > 0:
                value = m[r] + ln_f32(l[r]) if begun[r] else MINUS_INFINITY
                lse[s[BATCH] * lse_strides[0] + head * lse_strides[1] + query * lse_strides[2]] = value
    restore(state)
