"""The gradients of attention on a CPU: of queries by blocks of their rows, of keys and values by segments."""

import numpy as np
from numba import njit

from repkernels.cpu.attention_operands import SEGMENT, load_row, pack_columns, pack_rows, padded, rows_of, store_row
from repkernels.cpu.attention_products import contract, sums_of, weighted, weights_of
from repkernels.cpu.attention_scores import (
    BATCH,
    COUNT,
    END,
    LOW,
    PLACE,
    ROW,
    START,
    load_keys,
    load_queries,
    reach,
    score,
    see,
)
from repkernels.cpu.compile import kernel
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, exp_f32
from repkernels.cpu.rows import row_sum, scratch

ZERO, ONE = F32(0), F32(1)


@kernel
def row_products(start, stop, grad, out, sizes, d):
    """d[b, h, i] = SUM over Ev of RN(grad * out); units are rows of (B, Hq, L), sizes those and Ev."""
    state = keep_subnormals()
    _, heads, length, width = sizes
    left, lanes, sums = scratch(width)
    right = np.zeros(width, np.float32)
    for unit in range(start, stop):
        b, h, i = unit // (heads * length), unit // length % heads, unit % length
        for x, row in ((grad, left), (out, right)):
            at = b * x.strides[0] + h * x.strides[1] + i * x.strides[2]
            load_row(row, x.fp32, x.half, x.kind, at, x.strides[3])
        for c in range(width):
            left[c] *= right[c]
        d[b, h, i] = row_sum(left, lanes, sums)
    restore(state)


@njit
def _derive(scores, seen, tangents, lse, d, p, products, softcap):
    """Turns scores into P in p, and the products dP into dS of the masked scores; returns dS before the soft cap in
    `scores`.
    """
    for j in range(SEGMENT):
        below = scores[j] - lse
        p[j] = exp_f32(ZERO if below > ZERO else below)
    for j in range(SEGMENT):
        p[j] = p[j] if seen[j] else ZERO
        products[j] = p[j] * (products[j] - d) if seen[j] else ZERO
        scores[j] = products[j]
    if softcap > ZERO:
        for j in range(SEGMENT):
            scores[j] = products[j] * (ONE - tangents[j] * tangents[j]) if seen[j] else ZERO


@kernel
def query_gradients(
    start, stop, tasks, sequences, grad, q, k, v, table, mask, lse, d, grad_q, grad_scores, sizes, options
):  # fmt: skip
    """Tasks as those of `attend`. lse, d: (B, Hq, L). grad_scores: (B, Hq, L, S), zeros, or (0, 0, 0, 0)."""
    state = keep_subnormals()
    most, E, Ev = sizes
    digits, group = options.digits, options.group
    queries, grads = rows_of(most, E, digits), rows_of(most, Ev, digits)
    keys, values = rows_of(SEGMENT, E, digits), rows_of(SEGMENT, Ev, digits)
    sums, weights = sums_of(most, max(SEGMENT, E), digits), weights_of(most, digits)
    scores, products = np.zeros((most, SEGMENT), np.float32), np.zeros((most, SEGMENT), np.float32)
    seen, present = np.zeros((most, SEGMENT), np.uint8), np.zeros(SEGMENT, np.uint8)
    added, tangents, p = np.zeros(SEGMENT, np.float32), np.zeros(SEGMENT, np.float32), np.zeros(SEGMENT, np.float32)
    line, totals = np.zeros(max(E, Ev), np.float64), np.zeros((most, E), np.float32)
    width = padded(E)
    for number in range(start, stop):
        b, heads, first, count = tasks[number]
        s, pages = sequences[b], table[min(b, table.shape[0] - 1)]
        rows = count * group
        load_queries(q, queries.raw, s, heads, first, count, group)
        load_queries(grad, grads.raw, s, heads, first, count, group)
        pack_rows(queries, rows, digits, True, line[:E])
        pack_rows(grads, rows, digits, True, line[:Ev])
        for r in range(rows):
            total = totals[r]
            for c in range(E):
                total[c] = 0
        low = reach(s, s[START] + first, options)[0]
        end = reach(s, s[START] + first + count - 1, options)[1]
        for segment in range(low // SEGMENT, (end + SEGMENT - 1) // SEGMENT if low < end else low // SEGMENT):
            base = segment * SEGMENT
            load_keys(k, keys.raw, present, s, pages, 0, heads, base, low, end)
            load_keys(v, values.raw, present, s, pages, 0, heads, base, low, end)
            pack_rows(keys, SEGMENT, digits, False, line[:E])
            pack_rows(values, SEGMENT, digits, False, line[:Ev])
            contract(queries, keys, sums, rows, digits, scores)
            contract(grads, values, sums, rows, digits, products)
            for r in range(rows):
                head, query = heads * group + r % group, first + r // group
                see(seen[r], added, mask, present, s, head, query, base, options)
                score(scores[r], seen[r], added, mask, tangents, options)
                row = s[ROW] + query
                own_lse, own_d = lse[s[BATCH], head, row], d[s[BATCH], head, row]
                _derive(scores[r], seen[r], tangents, own_lse, own_d, p, products[r], options.softcap)
                if grad_scores.size > 0:
                    for j in range(SEGMENT):
                        if seen[r, j]:
                            grad_scores[s[BATCH], head, row, s[PLACE] + base + j] = products[r, j]
            pack_columns(keys, digits, line[:E])
            weighted(scores, seen, keys, weights, sums, rows, digits)
            for r in range(rows):
                total = totals[r]
                for c in range(E):
                    total[c] += sums.totals[r * width + c]
        for r in range(rows):
            head, row, total = heads * group + r % group, s[ROW] + first + r // group, totals[r]
            for c in range(E):
                total[c] *= options.scale
            at = s[BATCH] * grad_q.strides[0] + head * grad_q.strides[1] + row * grad_q.strides[2]
            store_row(total, grad_q.fp32, grad_q.half, grad_q.kind, at, grad_q.strides[3])
    restore(state)


@kernel
def key_gradients(
    start, stop, tasks, sequences, grad, q, k, v, table, mask, lse, d, grad_k, grad_v, sizes, options
):  # fmt: skip
    """Tasks (sequence, KV head, segment)."""
    state = keep_subnormals()
    _, E, Ev = sizes
    digits, group = options.digits, options.group
    queries, grads = rows_of(SEGMENT, E, digits), rows_of(SEGMENT, Ev, digits)
    keys, values = rows_of(SEGMENT, E, digits), rows_of(SEGMENT, Ev, digits)
    sums, weights = sums_of(SEGMENT, max(SEGMENT, E, Ev), digits), weights_of(SEGMENT, digits)
    square = (SEGMENT, SEGMENT)
    scores, products, p = np.zeros(square, np.float32), np.zeros(square, np.float32), np.zeros(square, np.float32)
    turned, seen, of_keys = np.zeros(square, np.float32), np.zeros(square, np.uint8), np.zeros(square, np.uint8)
    present, added, tangents = np.zeros(SEGMENT, np.uint8), np.zeros(SEGMENT, np.float32), np.zeros(SEGMENT, np.float32)
    line = np.zeros(max(E, Ev), np.float64)
    total_k, total_v = np.zeros((SEGMENT, E), np.float32), np.zeros((SEGMENT, Ev), np.float32)
    for number in range(start, stop):
        b, heads, segment = tasks[number]
        s, pages, base = sequences[b], table[min(b, table.shape[0] - 1)], segment * SEGMENT
        load_keys(k, keys.raw, present, s, pages, 0, heads, base, s[LOW], s[END])
        load_keys(v, values.raw, present, s, pages, 0, heads, base, s[LOW], s[END])
        pack_rows(keys, SEGMENT, digits, False, line[:E])
        pack_rows(values, SEGMENT, digits, False, line[:Ev])
        for j in range(SEGMENT):
            for c in range(E):
                total_k[j, c] = 0
            for c in range(Ev):
                total_v[j, c] = 0
        for h in range(group):
            head = heads * group + h
            for part in range(s[START] // SEGMENT, (s[START] + s[COUNT] + SEGMENT - 1) // SEGMENT):
                origin = part * SEGMENT - s[START]
                first, last = max(origin, 0), min(origin + SEGMENT, s[COUNT])
                any_row = False
                for i in range(SEGMENT):
                    query = origin + i
                    some = False
                    if first <= query < last:
                        some = see(seen[i], added, mask, present, s, head, query, base, options)
                        any_row |= some
                    if not some:
                        for j in range(SEGMENT):
                            seen[i, j] = 0
                if not any_row:
                    continue
                for x, tile in ((q, queries.raw), (grad, grads.raw)):
                    for i in range(SEGMENT):
                        row = tile[i]
                        if first <= origin + i < last:
                            at = s[BATCH] * x.strides[0] + head * x.strides[1] + (s[ROW] + origin + i) * x.strides[2]
                            load_row(row, x.fp32, x.half, x.kind, at, x.strides[3])
                        else:
                            for c in range(row.size):
                                row[c] = 0
                pack_rows(queries, SEGMENT, digits, True, line[:E])
                pack_rows(grads, SEGMENT, digits, True, line[:Ev])
                contract(queries, keys, sums, SEGMENT, digits, scores)
                contract(grads, values, sums, SEGMENT, digits, products)
                for i in range(SEGMENT):
                    own_lse, own_d = ZERO, ZERO
                    if first <= origin + i < last:
                        row_number = s[ROW] + origin + i
                        own_lse, own_d = lse[s[BATCH], head, row_number], d[s[BATCH], head, row_number]
                        if mask.kind >= 0:
                            see(seen[i], added, mask, present, s, head, origin + i, base, options)
                    score(scores[i], seen[i], added, mask, tangents, options)
                    _derive(scores[i], seen[i], tangents, own_lse, own_d, p[i], products[i], options.softcap)
                for i in range(SEGMENT):
                    for j in range(SEGMENT):
                        of_keys[j, i] = seen[i, j]
                for w, rows, total in ((p, grads, total_v), (scores, queries, total_k)):
                    for i in range(SEGMENT):
                        for j in range(SEGMENT):
                            turned[j, i] = w[i, j]
                    n = total.shape[1]
                    pack_columns(rows, digits, line[:n])
                    weighted(turned, of_keys, rows, weights, sums, SEGMENT, digits)
                    width = padded(n)
                    for j in range(SEGMENT):
                        for c in range(n):
                            total[j, c] += sums.totals[j * width + c]
        for j in range(SEGMENT):
            if present[j]:
                for c in range(E):
                    total_k[j, c] *= options.scale
                for x, total in ((grad_k, total_k), (grad_v, total_v)):
                    place = s[BATCH] * x.strides[0] + heads * x.strides[1] + (s[PLACE] + base + j) * x.strides[2]
                    store_row(total[j], x.fp32, x.half, x.kind, place, x.strides[3])
    restore(state)
