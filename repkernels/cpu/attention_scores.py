"""From the contractions of attention to its weights on a CPU: scores of what a row sees, softmax, merging."""

from typing import NamedTuple

import numpy as np
from numba import njit

from repkernels.cpu.attention_operands import UNIT, Operand, load_row, store_row
from repkernels.cpu.attention_places import SEGMENT
from repkernels.cpu.compile import kernel
from repkernels.cpu.divide import divide
from repkernels.cpu.fpu import keep_subnormals, restore
from repkernels.cpu.functions import F32, exp_f32, fma, larger, ln_f32
from repkernels.cpu.rounded.exponential import tanh
from repkernels.cpu.rows import row_maximum, row_sum, scratch

NO_MASK, BOOL_MASK, ADDED = 0, 1, 2
# What a segment is to a row: nothing, its first, or one to be merged.
SKIPPED, FIRST, LATER = 0, 1, 2
ZERO, ONE, LOWEST = F32(0), F32(1), F32(-np.inf)


class Mask(NamedTuple):
    """kind: none, bool (`truth`) or numbers that are added (`added`); strides of (B, Hq, L, S)."""

    truth: np.ndarray
    added: Operand
    kind: int
    strides: tuple[int, ...]


@njit
def _scores(line, seen, tangents, r, slots, places, keys, mask, options):
    """Turns the contractions of one row into its scores, -inf where it does not see a key, and fills `seen`."""
    first, last = places.first[r], places.last[r]
    batch = places.key_batch[keys : keys + slots]
    for j in range(slots):
        seen[j] = (first <= j) & (j < last) & (batch[j] >= 0)
        line[j] *= options.scale
    if options.softcap > ZERO:
        for j in range(first, last):
            tangents[j] = tanh(divide(line[j], options.softcap))
            line[j] = tangents[j] * options.softcap
    if mask.kind != NO_MASK and first < last:
        s = mask.strides
        at = places.batch[r] * s[0] + places.head[r] * s[1] + places.query[r] * s[2] + places.key_index[keys] * s[3]
        if mask.kind == BOOL_MASK:
            for j in range(first, last):
                seen[j] &= mask.truth[at + j * s[3]]
        else:
            added = np.empty(last - first, np.float32)
            load_row(added, mask.added, at + first * s[3], s[3])
            for j in range(first, last):
                seen[j] &= added[j - first] != LOWEST
                line[j] += added[j - first]
    for j in range(slots):
        line[j] = line[j] if seen[j] else LOWEST


@kernel
def weigh(scores, seen, rows, slots, places, mask, sinks, options, kind, a, b, last, lse):
    """Turns contractions (rows of all units, padded slots) into weights p.

    kind, a, b (rows, segments + 1): what each segment, and the sink, is to the row, and the factors of state and
    segment when they are merged; last: 1 / l; lse. A row that sees nothing has last = 0.
    """
    state = keep_subnormals()
    total, width, segments = places.query.size, (slots + UNIT - 1) // UNIT * UNIT, slots // SEGMENT
    tangents, halves = np.empty(slots, np.float32), np.empty(SEGMENT, np.float32)
    for r in range(total):
        line, own = scores[r * width : r * width + slots], seen[r * slots : (r + 1) * slots]
        _scores(line, own, tangents, r, slots, places, r // rows * slots, mask, options)
        m, l, begun = ZERO, ONE, False
        for g in range(segments + 1):
            at = r * (segments + 1) + g
            kind[at] = SKIPPED
            top, weight = ZERO, ONE
            if g < segments:
                p, visible = line[g * SEGMENT : (g + 1) * SEGMENT], own[g * SEGMENT : (g + 1) * SEGMENT]
                some = np.uint8(0)
                for j in range(SEGMENT):
                    some |= visible[j]
                if some == 0:
                    for j in range(SEGMENT):
                        p[j] = ZERO
                    continue
                top = row_maximum(p)
                for j in range(SEGMENT):
                    e = exp_f32(p[j] - top)
                    p[j] = e if visible[j] else ZERO
                    halves[j] = p[j]
                half = SEGMENT // 2
                while half:
                    for j in range(half):
                        halves[j] += halves[j + half]
                    half //= 2
                weight = halves[0]
            elif sinks.size > 0 and places.query[r] >= 0:
                top = sinks[places.head[r]]
            else:
                continue
            if not begun:
                kind[at], begun, m, l = FIRST, True, top, weight
                continue
            both = larger(m, top)
            kind[at], a[at], b[at] = LATER, exp_f32(m - both), exp_f32(top - both)
            l = fma(l, a[at], weight * b[at])
            m = both
        last[r] = divide(ONE, l) if begun else ZERO
        lse[r] = m + ln_f32(l) if begun else LOWEST
    restore(state)


@kernel
def merge(sums, rows, n, segments, kind, a, b, last, places, out, heads_of_keys):
    """Merges the sums (units, segments, rows, padded n) of each row, multiplies by `last`, and stores the row.

    Rows of `places` lie in `out`; with heads_of_keys > 0 its slots do, and that is the KV head of each unit's keys.
    """
    state = keep_subnormals()
    width, strides = (n + UNIT - 1) // UNIT * UNIT, out.strides
    o = np.empty(n, np.float32)
    for r in range(len(last)):
        for c in range(n):
            o[c] = ZERO
        for g in range(len(kind) // len(last)):
            at = r * (len(kind) // len(last)) + g
            if kind[at] == SKIPPED:
                continue
            start = ((r // rows * segments + g) * rows + r % rows) * width
            if g == segments:
                for c in range(n):
                    o[c] = fma(o[c], a[at], ZERO * b[at]) if kind[at] == LATER else ZERO
                continue
            segment = sums[start : start + n]
            if kind[at] == FIRST:
                for c in range(n):
                    o[c] = segment[c]
            else:
                for c in range(n):
                    o[c] = fma(o[c], a[at], segment[c] * b[at])
        for c in range(n):
            o[c] *= last[r]
        if heads_of_keys.size > 0:
            batch, head, row = places.key_batch[r], heads_of_keys[r // rows], places.key_row[r]
        else:
            batch, head, row = places.batch[r], places.head[r], places.query[r]
        if batch >= 0 and row >= 0:
            store_row(o, out, batch * strides[0] + head * strides[1] + row * strides[2], strides[3])
    restore(state)


@kernel
def derive(scores, products, seen, rows, slots, places, mask, options, lse, d, grad_scores):
    """Turns contractions into the gradients of the scores before the soft cap, and the products dP into P.

    lse, d (B, Hq, L). grad_scores: (B, Hq, L, S), where those of the masked scores go, or empty.
    """
    state = keep_subnormals()
    total, width = places.query.size, (slots + UNIT - 1) // UNIT * UNIT
    tangents = np.empty(slots, np.float32)
    for r in range(total):
        line, of_p = scores[r * width : r * width + slots], products[r * width : r * width + slots]
        own = seen[r * slots : (r + 1) * slots]
        _scores(line, own, tangents, r, slots, places, r // rows * slots, mask, options)
        b, h, i = places.batch[r], places.head[r], places.query[r]
        own_lse, own_d = (lse[b, h, i], d[b, h, i]) if i >= 0 else (ZERO, ZERO)
        for j in range(slots):
            below = line[j] - own_lse
            p = exp_f32(ZERO if below > ZERO else below)
            line[j] = p * (of_p[j] - own_d) if own[j] else ZERO
            of_p[j] = p if own[j] else ZERO
        if grad_scores.size > 0 and i >= 0:
            first = places.key_index[r // rows * slots]
            for j in range(places.first[r], places.last[r]):
                if own[j]:
                    grad_scores[b, h, i, first + j] = line[j]
        if options.softcap > ZERO:
            for j in range(places.first[r], places.last[r]):
                line[j] = line[j] * (ONE - tangents[j] * tangents[j]) if own[j] else ZERO
    restore(state)


@kernel
def row_products(start, stop, grad, out, sizes, d):
    """d[b, h, i] = SUM over Ev of RN(grad * out); units are rows of (B, Hq, L), sizes those and Ev."""
    state = keep_subnormals()
    left, lanes, sums = scratch(sizes[3])
    right = np.zeros(sizes[3], np.float32)
    for unit in range(start, stop):
        b, h, i = unit // (sizes[1] * sizes[2]), unit // sizes[2] % sizes[1], unit % sizes[2]
        x, y = grad.strides, out.strides
        load_row(left, grad, b * x[0] + h * x[1] + i * x[2], x[3])
        load_row(right, out, b * y[0] + h * y[1] + i * y[2], y[3])
        for c in range(left.size):
            left[c] *= right[c]
        d[b, h, i] = row_sum(left, lanes, sums)
    restore(state)
