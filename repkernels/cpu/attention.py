"""Attention and its gradients on the CPU (SPEC.md, "Attention"): all contracts, dense, packed and from pages.

Units are blocks of query rows of the heads that share keys, or, for the gradients of keys, segments of keys. Neighbours
of about one length are computed together, in steps: places, packed operands, products, weights, products, rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from repkernels.attention import Attention, Sequences
from repkernels.contract import digits_of
from repkernels.cpu.attention_operands import (
    BF16,
    COLUMNS,
    FP16,
    FP32,
    LEFT,
    NARROW,
    RIGHT,
    UNIT,
    Operand,
    Packed,
    pack,
    pack_weights,
    padded,
    planes_of,
)
from repkernels.cpu.attention_places import COUNT, END, LOW, SEGMENT, START, Options, Places, find
from repkernels.cpu.attention_products import mend_products, mend_sums, multiply
from repkernels.cpu.attention_scores import (
    ADDED,
    BOOL_MASK,
    LATER,
    NO_MASK,
    Mask,
    derive,
    merge,
    row_products,
    weigh,
)
from repkernels.cpu.spread import spread
from repkernels.cpu.threads import buffer, share

# Query rows of a unit, about: enough for reading keys to cost little beside them.
ROWS = 96
# Scores of a piece of work, at most and at least, about; reading a key costs as much as this many of its scores.
MOST, LEAST = 1 << 18, 1 << 16
READING = 32
_KINDS = {torch.float32: FP32, torch.bfloat16: BF16, torch.float16: FP16}
_FP32, _HALF, _TRUTH = np.empty(0, np.float32), np.empty(0, np.int16), np.empty(0, np.uint8)
_NOTHING = Operand(_FP32, _HALF, FP32, (0, 0, 0, 0))
_NO_SCORES = np.empty((0, 0, 0, 0), np.float32)
_NO_HEADS = np.empty(0, np.int64)


class Inputs(NamedTuple):
    """What all pieces read."""

    q: Operand
    k: Operand
    v: Operand
    widths: tuple[int, int]
    table: np.ndarray
    rows: np.ndarray
    mask: Mask
    options: Options


class Piece(NamedTuple):
    """Units of `find` computed together: query rows and key slots of each, and the first rows that may count."""

    units: np.ndarray
    m: int
    live: int
    slots: int
    by_keys: bool
    places: Places


def attention(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, mask: Tensor | None, sinks: Tensor | None,
    sequences: Sequences, attention: Attention,
) -> None:  # fmt: skip
    """out (B, Hq, L, Ev) and, where wanted, lse (B, Hq, L) of q, k, v as `Sequences` says, any strides."""
    x = _inputs(q, k, v, mask, sequences, attention)
    if sequences.queries is not None:
        out.zero_()
    result, sink = _operand(out), _FP32 if sinks is None else sinks.detach().numpy()

    def compute(piece: Piece) -> None:
        digits, units, segments = x.options.digits, len(piece.units), piece.slots // SEGMENT
        scores = _scores("scores", x.q, x.k, x.widths[0], piece, digits)
        seen = _memory("seen", units * piece.m * piece.slots, np.uint8)
        count = units * piece.m
        kind = np.empty(count * (segments + 1), np.uint8)
        a, b = np.empty(len(kind), np.float32), np.empty(len(kind), np.float32)
        last, of_rows = np.empty(count, np.float32), np.empty(count, np.float32)
        weigh(scores, seen, piece.m, piece.slots, piece.places, x.mask, sink, x.options, kind, a, b, last, of_rows)
        values = _keys(x.v, x.widths[1], piece, digits, COLUMNS)
        sums = _weighted(scores, seen, values, piece, digits)
        merge(sums, piece.m, x.widths[1], segments, kind, a, b, last, piece.places, result, _NO_HEADS)
        if lse is not None:
            there = piece.places.query >= 0
            where = (piece.places.batch[there], piece.places.head[there], piece.places.query[there])
            lse.numpy()[where] = of_rows[there]

    _run(compute, _query_units(x), x, False)


def attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, mask: Tensor | None, sinks: Tensor | None,
    grad_q: Tensor, grad_k: Tensor, grad_v: Tensor, grad_scores: Tensor | None, sequences: Sequences,
    attention: Attention,
) -> None:  # fmt: skip
    """Writes all of grad_q, grad_k, grad_v and, where wanted, grad_scores (B, Hq, L, S), fp32."""
    x = _inputs(q, k, v, mask, sequences, attention)
    for tensor in (grad_q, grad_k, grad_v, grad_scores):
        if tensor is not None:
            tensor.zero_()
    g, of_q, of_k, of_v = (_operand(tensor) for tensor in (grad, grad_q, grad_k, grad_v))
    d, of_rows, (E, Ev) = np.empty(q.shape[:3], np.float32), lse.numpy(), x.widths
    of_scores = _NO_SCORES if grad_scores is None else grad_scores.numpy()
    spread(row_products, d.size, grad.numel(), g, _operand(out), tuple(out.shape), d)
    digits, scale = x.options.digits, x.options.scale

    def gradients(piece: Piece, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """dS before the soft cap, P, and which keys are seen."""
        scores = _scores("scores", x.q, x.k, E, piece, digits)
        products = _scores("products", g, x.v, Ev, piece, digits)
        seen = _memory("seen", len(piece.units) * piece.m * piece.slots, np.uint8)
        derive(scores, products, seen, piece.m, piece.slots, piece.places, x.mask, x.options, of_rows, d, target)
        return scores, products, seen

    def for_queries(piece: Piece) -> None:
        scores, _, seen = gradients(piece, of_scores)
        sums = _weighted(scores, seen, _keys(x.k, E, piece, digits, COLUMNS), piece, digits)
        _add_up(sums, piece.m, E, piece.slots // SEGMENT, len(piece.units), scale, piece.places, of_q, _NO_HEADS)

    def for_keys(piece: Piece) -> None:
        scores, weights, seen = gradients(piece, _NO_SCORES)
        heads = np.ascontiguousarray(piece.units[:, 1])
        for w, rows, width, factor, result in (
            (scores, x.q, E, scale, of_k),
            (weights, g, Ev, np.float32(1), of_v),
        ):
            sums = _weighted(w, seen, _queries(rows, width, piece, digits, COLUMNS), piece, digits)
            count = piece.m // SEGMENT
            _add_up(sums, SEGMENT, width, count, len(piece.units), factor, piece.places, result, heads)

    _run(for_queries, _query_units(x), x, False)
    _run(for_keys, _key_units(x), x, True)


def _scores(name: str, left: Operand, right: Operand, width: int, piece: Piece, digits: int) -> np.ndarray:
    """(units, m, padded slots): the contractions of query rows with keys."""
    a, b = _queries(left, width, piece, digits, LEFT), _keys(right, width, piece, digits, RIGHT)
    units, m, slots = len(piece.units), piece.m, piece.slots
    out = _memory(name, units * m * padded(slots), np.float32)
    multiply(a, b, units, m, piece.live, slots, slots, width, digits, True, out)
    if digits and (a.special.any() or b.special.any()):
        mend_products(a, b, units, m, slots, out)
    return out


def _weighted(w: np.ndarray, seen: np.ndarray, rows: Packed, piece: Piece, digits: int) -> np.ndarray:
    """(units, segments, rows, padded width): the sums of each segment of keys, or of queries where by_keys."""
    units, width, wide = len(piece.units), rows.raw.shape[1], padded(piece.slots)
    first = np.arange(units)[:, None]
    if piece.by_keys:  # weights of a key are a column
        segment, m, live = np.arange(piece.m // SEGMENT)[None, :] * SEGMENT, SEGMENT, SEGMENT
        at, of_seen = ((first * piece.m + segment) * step for step in (wide, piece.slots))
        steps, steps_of_seen = (1, wide), (1, piece.slots)
    else:
        segment, m, live = np.arange(piece.slots // SEGMENT)[None, :] * SEGMENT, piece.m, piece.live
        at, of_seen = (first * piece.m * step + segment for step in (wide, piece.slots))
        steps, steps_of_seen = (wide, 1), (piece.slots, 1)
    at, of_seen = at.reshape(-1), of_seen.reshape(-1)
    count = len(at)
    weights = _packed("weights", count * m, SEGMENT, digits, LEFT)
    pack_weights(w, at, *steps, count, m, rows.power, digits, weights)
    out = _memory("sums", count * m * padded(width), np.float32)
    multiply(weights, rows, count, m, live, width, padded(width), SEGMENT, digits, False, out)
    if rows.special.any() or (digits and weights.special.any()):
        mend_sums(weights, rows, seen, of_seen, *steps_of_seen, count, m, digits, out)
    return out


def _add_up(
    sums: np.ndarray, m: int, width: int, segments: int, units: int, factor: Any, places: Places, result: Operand,
    heads: np.ndarray,
) -> None:  # fmt: skip
    """Adds the sums of the segments, ascending, and stores them times the factor."""
    count = units * m
    kind, one = np.full(count * segments, LATER, np.uint8), np.ones(count * segments, np.float32)
    merge(sums, m, width, segments, kind, one, one, np.full(count, factor, np.float32), places, result, heads)


def _queries(x: Operand, width: int, piece: Piece, digits: int, how: int) -> Packed:
    places = piece.places
    packed = _packed("queries", len(places.query), width, digits, how)
    pack(x, places.batch, places.head, places.query, digits, how, packed)
    return packed


def _keys(x: Operand, width: int, piece: Piece, digits: int, how: int) -> Packed:
    places = piece.places
    packed = _packed("keys", len(places.key_row), width, digits, how)
    pack(x, places.key_batch, np.repeat(piece.units[:, 1], piece.slots), places.key_row, digits, how, packed)
    return packed


def _memory(name: str, size: int, dtype: Any) -> np.ndarray:
    """Memory of the present thread, which is not given back: fresh pages cost more than what is done in them."""
    return buffer(f"attention {name}", size, dtype)[:size]


def _packed(name: str, n: int, width: int, digits: int, how: int) -> Packed:
    size = n * padded(width) if how == COLUMNS else (n + UNIT) * width
    return Packed(
        _memory(f"{name}, rows", n * width, np.float32).reshape(n, width),
        _memory(f"{name}, packed", 0 if digits else size, np.float32),
        _memory(f"{name}, packed", planes_of(digits) * size if digits else 0, np.float64),
        np.empty(n, np.float64),
        np.empty(n, np.uint8),
    )


def _run(compute: Callable[[Piece], None], units: list[tuple[int, ...]], x: Inputs, by_keys: bool) -> None:
    """Computes the units (sequence, KV head, first, count, base, query rows, segments) in pieces."""
    if not units:
        return
    table = np.array(units, np.int64)
    work = (table[:, 5] + READING) * table[:, 6] * SEGMENT
    order = np.argsort(work, kind="stable")[::-1]
    table, work = table[order], work[order]
    limit = min(MOST, max(LEAST, int(work.sum()) // (4 * torch.get_num_threads())))
    pieces, start = [], 0
    while start < len(table):
        end = start + max(1, limit // int(work[start]))
        pieces.append(table[start:end])
        start = end

    def task(index: int) -> None:
        part = pieces[index]
        live, segments = int(part[:, 5].max()), int(part[:, 6].max())
        m, slots = -(-live // NARROW) * NARROW, segments * SEGMENT
        rows, keys = len(part) * m, len(part) * slots
        places = Places(*(np.empty(n, np.int64) for n in (rows,) * 5 + (keys,) * 3))
        chosen = np.ascontiguousarray(part[:, :5])
        find(chosen, x.rows, x.table, m, slots, by_keys, x.options, places)
        compute(Piece(chosen, m, live, slots, by_keys, places))

    share(task, len(pieces))


def _query_units(x: Inputs) -> list[tuple[int, ...]]:
    heads, group = x.options.heads, x.options.group
    step = max(1, ROWS // group)
    units: list[tuple[int, ...]] = []
    for b, s in enumerate(x.rows.tolist()):
        for first in range(0, s[COUNT], step):
            count = min(step, s[COUNT] - first)
            position = s[START] + first
            low, end = s[LOW], s[END]
            if x.options.left >= 0:
                low = max(low, position - x.options.left)
            if x.options.causal:
                end = min(end, position + count)
            if x.options.right >= 0:
                end = min(end, position + count + x.options.right)
            begin = low // SEGMENT
            segments = max(1, -(-end // SEGMENT) - begin)
            units += [(b, head, first, count, begin * SEGMENT, count * group, segments) for head in range(heads)]
    return units


def _key_units(x: Inputs) -> list[tuple[int, ...]]:
    """One for each segment of keys, with the segments of queries that may see it."""
    heads, group = x.options.heads, x.options.group
    units: list[tuple[int, ...]] = []
    for b, s in enumerate(x.rows.tolist()):
        if s[COUNT] == 0 or s[LOW] >= s[END]:
            continue
        for segment in range(s[LOW] // SEGMENT, -(-s[END] // SEGMENT)):
            base = segment * SEGMENT
            first, last = s[START], s[START] + s[COUNT]
            if x.options.causal:
                first = max(first, base)
            if x.options.right >= 0:
                first = max(first, base - x.options.right)
            if x.options.left >= 0:
                last = min(last, base + SEGMENT + x.options.left)
            if first < last:
                begin, count = first // SEGMENT, -(-last // SEGMENT) - first // SEGMENT
                units += [(b, head, begin, count, base, group * count * SEGMENT, 1) for head in range(heads)]
    return units


def _inputs(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sequences: Sequences, attention: Attention) -> Inputs:
    table, page = np.zeros((1, 1), np.int32), 0
    if sequences.table is not None:
        table, page = sequences.table.numpy(), k.shape[2]
    left, right = attention.window
    options = Options(
        attention.causal, left, right, np.float32(attention.scale), np.float32(attention.softcap),
        digits_of(attention.contract), k.shape[1], q.shape[1] // k.shape[1], page,
    )  # fmt: skip
    widths, rows = (q.shape[3], v.shape[3]), _rows(q, k, sequences)
    return Inputs(_operand(q), _operand(k), _operand(v), widths, table, rows, _mask(mask), options)


def _covered(x: Tensor) -> Tensor:
    """The memory from x's first to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.detach().as_strided((last + 1 if x.numel() else 0,), (1,))


def _operand(x: Tensor) -> Operand:
    covered = _covered(x)
    if x.dtype == torch.float32:
        return Operand(covered.numpy(), _HALF, FP32, x.stride())
    return Operand(_FP32, covered.view(torch.int16).numpy(), _KINDS[x.dtype], x.stride())


def _mask(mask: Tensor | None) -> Mask:
    if mask is None:
        return Mask(_TRUTH, _NOTHING, NO_MASK, (0, 0, 0, 0))
    if mask.dtype == torch.bool:
        return Mask(_covered(mask).view(torch.uint8).numpy(), _NOTHING, BOOL_MASK, mask.stride())
    return Mask(_TRUTH, _operand(mask), ADDED, mask.stride())


def _rows(q: Tensor, k: Tensor, sequences: Sequences) -> np.ndarray:
    """The table of sequences that attention_places describes."""
    if sequences.queries is None:
        batch = np.arange(q.shape[0])
        place = 0 * batch if sequences.first_key is None else sequences.first_key.numpy().astype(np.int64)
        start = 0 * batch if sequences.first_query is None else sequences.first_query.numpy().astype(np.int64)
        columns = (batch, 0 * batch, place, np.maximum(0, -place), k.shape[2] - place, start, 0 * batch + q.shape[2])
        return np.stack(columns, 1)
    queries = sequences.queries.numpy().astype(np.int64)
    assert sequences.keys is not None
    keys, count = sequences.keys.numpy().astype(np.int64), np.diff(queries)
    none = np.zeros_like(count)
    lengths, place = (np.diff(keys), keys[:-1]) if sequences.table is None else (keys, none)
    return np.stack((none, queries[:-1], place, none, np.maximum(lengths, 0), lengths - count, count), 1)
