"""Attention by segments of 128 keys, and its gradients, SPEC.md, "Attention"; one head of one sequence at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reference import formats, matmul
from reference.cross_entropy import maximum
from reference.fma import fma32
from reference.functions import exp_f32, ln_f32, tanh_f32
from reference.sum import tree

SEGMENT = 128
# One for each sequence; 0 for all without them.
Integers = Sequence[int] | np.ndarray | None
ZERO, ONE = np.float32(0), np.float32(1)


@dataclass(frozen=True)
class Rule:
    """What is computed beside the operands: a contract, the scale, which keys a query sees by position, a soft cap."""

    contract: str
    scale: float
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0


class Gradients(NamedTuple):
    """Of q, k, v in their format; of the masked scores (B, Hq, L, S), fp32; of the sinks (Hq,), fp32."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    scores: np.ndarray
    sinks: np.ndarray | None


class Head(NamedTuple):
    """One query head of one sequence: q (L, E), k (S, E), v (S, Ev), positions, visible and mask (L, S)."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    query_positions: np.ndarray
    key_positions: np.ndarray
    visible: np.ndarray
    mask: np.ndarray | None


def forward(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, dtype: str, rule: Rule, mask: np.ndarray | None = None,
    sinks: np.ndarray | None = None, first_key: Integers = None, first_query: Integers = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """The result (B, Hq, L, Ev) in `dtype` and LSE (B, Hq, L), fp32, of q (B, Hq, L, E), k and v (B, Hkv, S, E or Ev).

    mask: bool (True is visible) or numbers (added), broadcast to (B, Hq, L, S). sinks: (Hq,). first_key (B,): the index
    in k of the key at position 0; first_query (B,): the position of q's row 0.
    """
    out = np.zeros((*q.shape[:3], v.shape[-1]), np.float32)
    lse = np.full(q.shape[:3], -np.inf, np.float32)
    for b, h in np.ndindex(*q.shape[:2]):
        head = _head(q, k, v, rule, mask, first_key, first_query, b, h)
        out[b, h], lse[b, h] = _attended(head, rule, None if sinks is None else sinks[h])
    return formats.positive_zeros(formats.rounded(out, dtype)), lse


def backward(
    grad: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, lse: np.ndarray, dtype: str,
    rule: Rule, mask: np.ndarray | None = None, sinks: np.ndarray | None = None,
    first_key: Integers = None, first_query: Integers = None,
) -> Gradients:  # fmt: skip
    """The gradients, from that of the result and forward's results; rule.contract is the gradient's contract."""
    (batch, heads, length), size = q.shape[:3], k.shape[2]
    grad_q, scores = np.zeros(q.shape, np.float32), np.zeros((batch, heads, length, size), np.float32)
    grad_k, grad_v = np.zeros(k.shape, np.float32), np.zeros(v.shape, np.float32)
    d = np.zeros(q.shape[:3], np.float32)
    with np.errstate(all="ignore"):
        for b, h in np.ndindex(batch, heads):
            head, kv = _head(q, k, v, rule, mask, first_key, first_query, b, h), h * k.shape[1] // heads
            d[b, h] = tree((grad[b, h] * out[b, h]).T)
            p, scores[b, h], before = _score_gradients(head, rule, grad[b, h], lse[b, h], d[b, h])
            total = np.zeros(q.shape[2:], np.float32)
            for columns in segments(head.key_positions):
                part = before[:, columns], head.k[columns], head.visible[:, columns]
                total = total + weighted(*part, rule.contract)
            grad_q[b, h] = total * np.float32(rule.scale)
            for rows in segments(head.query_positions):
                seen = head.visible[rows].T
                grad_k[b, kv] = grad_k[b, kv] + weighted(before[rows].T, head.q[rows], seen, rule.contract)
                grad_v[b, kv] = grad_v[b, kv] + weighted(p[rows].T, grad[b, h][rows], seen, rule.contract)
        grad_k = grad_k * np.float32(rule.scale)
        grad_q, grad_k, grad_v = (formats.positive_zeros(formats.rounded(x, dtype)) for x in (grad_q, grad_k, grad_v))
        return Gradients(grad_q, grad_k, grad_v, scores, None if sinks is None else _sink_gradients(sinks, lse, d))


def packed(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, queries: np.ndarray, keys: np.ndarray, dtype: str, rule: Rule,
    sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Sequences one after another: q (T, Hq, E), k (Tk, Hkv, E), v (Tk, Hkv, Ev); the result (T, Hq, Ev), LSE (Hq, T).

    Sequence b has the rows queries[b] .. queries[b + 1] of q and keys[b] .. keys[b + 1] of k and v, its last query at
    the position of its last key.
    """
    out = np.zeros((*q.shape[:2], v.shape[-1]), np.float32)
    lse = np.full((q.shape[1], q.shape[0]), -np.inf, np.float32)
    for rows, columns, first in _sequences(queries, keys):
        dense = _dense(q[rows]), _dense(k[columns]), _dense(v[columns])
        found = forward(*dense, dtype, rule, None, sinks, None, first)
        out[rows], lse[:, rows] = found[0][0].swapaxes(0, 1), found[1][0]
    return out, lse


def packed_backward(
    grad: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, out: np.ndarray, lse: np.ndarray,
    queries: np.ndarray, keys: np.ndarray, dtype: str, rule: Rule, sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:  # fmt: skip
    """The gradients of q, k, v and the sinks."""
    grad_q, grad_k, grad_v = (np.zeros(x.shape, np.float32) for x in (q, k, v))
    for rows, columns, first in _sequences(queries, keys):
        dense = _dense(grad[rows]), _dense(q[rows]), _dense(k[columns]), _dense(v[columns]), _dense(out[rows])
        found = backward(*dense, lse[None, :, rows], dtype, rule, None, sinks, None, first)
        grad_q[rows] = found.q[0].swapaxes(0, 1)
        grad_k[columns], grad_v[columns] = found.k[0].swapaxes(0, 1), found.v[0].swapaxes(0, 1)
    if sinks is None:
        return grad_q, grad_k, grad_v, None
    with np.errstate(all="ignore"):
        d = tree(np.moveaxis(grad * out, -1, 0)).T
    d = np.where(np.arange(len(q)) < queries[-1], d, ZERO)
    return grad_q, grad_k, grad_v, _sink_gradients(sinks, lse[None], d[None])


def paged(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, table: np.ndarray, queries: np.ndarray, lengths: np.ndarray,
    dtype: str, rule: Rule, sinks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """`packed` with keys in pages, k (pages, page_size, Hkv, E), of which `lengths` (B,) are a sequence's own.

    The key at position p of sequence b is in page table[b, p // page_size] at p % page_size, invisible if that is -1.
    """
    size = k.shape[1]
    out = np.zeros((*q.shape[:2], v.shape[-1]), np.float32)
    lse = np.full((q.shape[1], q.shape[0]), -np.inf, np.float32)
    for b, length in enumerate(lengths):
        rows, positions = slice(queries[b], queries[b + 1]), np.arange(max(0, length))
        pages = table[b, positions // size].astype(np.int64)
        dense = _dense(q[rows]), _dense(k[pages, positions % size]), _dense(v[pages, positions % size])
        first = np.array([len(positions) - (queries[b + 1] - queries[b])])
        found = forward(*dense, dtype, rule, pages >= 0, sinks, None, first)
        out[rows], lse[:, rows] = found[0][0].swapaxes(0, 1), found[1][0]
    return out, lse


def visibility(queries: np.ndarray, keys: np.ndarray, rule: Rule) -> np.ndarray:
    """Which keys a query sees by their positions, (L, S)."""
    ahead = keys[None, :] - queries[:, None]
    left, right = rule.window
    seen: np.ndarray = np.broadcast_to(keys >= 0, ahead.shape)
    if rule.causal:
        seen = seen & (ahead <= 0)
    if left >= 0:
        seen = seen & (ahead >= -left)
    return seen & (ahead <= right) if right >= 0 else seen


def segments(positions: np.ndarray) -> Iterator[np.ndarray]:
    """The indices of each segment's positions, ascending."""
    number = positions // SEGMENT
    for g in np.unique(number):
        yield np.flatnonzero(number == g)


def weighted(w: np.ndarray, rows: np.ndarray, present: np.ndarray, contract: str) -> np.ndarray:
    """The contraction (M, N) of weights w (M, K) with rows (K, N), over those K that `present` (M, K) admits.

    fixed: rows are quantised one by one. Weight j counts in units of its row's, w_j * 2^e_j, and these are scaled as
    any vector; a row without a finite element other than 0 takes no part in that.
    """
    w, rows = np.where(present, w, ZERO), np.asarray(rows, np.float32)
    if contract == "ordered":
        return matmul.ordered(w, rows, present)
    digits = matmul.DIGITS[contract]
    exponent, integers = matmul.quantize(rows, digits)
    zero = (integers == 0).all(axis=1)
    # binary64 holds the products: fp32 numbers times powers of two between 2^-179 and 2^122.
    units = np.where(zero | ~np.isfinite(w), 0, np.ldexp(w.astype(np.float64), exponent))
    left, right = matmul.quantize(units, digits), (np.zeros(rows.shape[1], np.int64), integers.T)
    return matmul.fixed_scaled(w, rows, left, right, digits, present)


def _head(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, rule: Rule, mask: np.ndarray | None, first_key: Integers,
    first_query: Integers, b: int, h: int,
) -> Head:  # fmt: skip
    """Head h of sequence b of the dense form."""
    kv = h * k.shape[1] // q.shape[1]
    queries = np.arange(q.shape[2]) + (0 if first_query is None else int(first_query[b]))
    keys = np.arange(k.shape[2]) - (0 if first_key is None else int(first_key[b]))
    visible, added = visibility(queries, keys, rule), None
    if mask is not None:
        of_head = np.broadcast_to(mask, (*q.shape[:3], k.shape[2]))[b, h]
        visible = visible & (of_head if mask.dtype == np.bool_ else of_head != -np.inf)
        added = None if mask.dtype == np.bool_ else of_head
    return Head(q[b, h], k[b, kv], v[b, kv], queries, keys, visible, added)


def _scores(head: Head, rule: Rule) -> tuple[np.ndarray, np.ndarray | None]:
    """The scores (L, S), and the tanh of the soft cap."""
    with np.errstate(all="ignore"):
        s = matmul.contraction(head.q, head.k.T, rule.contract) * np.float32(rule.scale)
        capped = None
        if rule.softcap:
            cap = np.float32(rule.softcap)
            capped = tanh_f32(np.where(head.visible, s / cap, ZERO))
            s = capped * cap
        return s if head.mask is None else s + head.mask, capped


def _attended(head: Head, rule: Rule, sink: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The result, not yet rounded to the format, and LSE (L,)."""
    s, _ = _scores(head, rule)
    length = len(s)
    begun: np.ndarray = np.zeros(length, bool)
    m, l, o = np.zeros(length, np.float32), np.ones(length, np.float32), np.zeros((length, head.v.shape[1]), np.float32)
    with np.errstate(all="ignore"):
        for columns in segments(head.key_positions):
            seen = head.visible[:, columns]
            some = np.logical_or.reduce(seen, axis=1)
            top = maximum(np.where(seen, s[:, columns], -np.inf))
            p = np.where(seen, exp_f32(np.where(seen, s[:, columns] - top, ZERO)), ZERO)
            slots = np.zeros((SEGMENT, length), np.float32)
            slots[head.key_positions[columns] % SEGMENT] = p.T
            segment = top[:, 0], tree(slots), weighted(p, head.v[columns], seen, rule.contract)
            m, l, o = _merged((m, l, o), segment, some, begun)
            begun = begun | some
        if sink is not None:
            alone = np.full(length, sink, np.float32), np.ones(length, np.float32), np.zeros_like(o)
            m, l, o = _merged((m, l, o), alone, np.ones(length, bool), begun)
            begun = np.ones(length, bool)
        out = np.where(begun[:, None], o * (ONE / l)[:, None], ZERO)
        return out, np.where(begun, m + ln_f32(l), np.float32(-np.inf))


def _merged(
    state: tuple[np.ndarray, ...], segment: tuple[np.ndarray, ...], some: np.ndarray, begun: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """State and segment, each (m, l, o); the segment alone where nothing came before, the state where it is empty."""
    (m, l, o), (m_s, l_s, o_s) = state, segment
    top = maximum(np.stack([m, m_s], axis=1))[:, 0]
    a, b = exp_f32(m - top), exp_f32(m_s - top)
    both = top, fma32(l, a, l_s * b), fma32(o, a[:, None], o_s * b[:, None])
    merged = []
    for old, new, joined in zip(state, segment, both, strict=True):
        shape = (-1,) + (1,) * (old.ndim - 1)
        merged.append(np.where(some.reshape(shape), np.where(begun.reshape(shape), joined, new), old))
    return merged[0], merged[1], merged[2]


def _score_gradients(
    head: Head, rule: Rule, grad: np.ndarray, lse: np.ndarray, d: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """P, dS of the masked scores, and dS before the soft cap, each (L, S), +0 where a key is invisible."""
    s, capped = _scores(head, rule)
    below = np.where(head.visible, s - lse[:, None], ZERO)
    p = np.where(head.visible, exp_f32(np.where(below > 0, ZERO, below)), ZERO)
    products = matmul.contraction(grad, head.v.T, rule.contract)
    scores = np.where(head.visible, p * (products - d[:, None]), ZERO)
    if capped is None:
        return p, scores, scores
    return p, scores, np.where(head.visible, scores * (ONE - capped * capped), ZERO)


def _sink_gradients(sinks: np.ndarray, lse: np.ndarray, d: np.ndarray) -> np.ndarray:
    """-SUM over batch and queries of each head, from LSE and D (B, Hq, L)."""
    below = np.asarray(sinks, np.float32)[None, :, None] - lse
    terms = np.where(lse == -np.inf, ZERO, exp_f32(np.where(below > 0, ZERO, below)) * d)
    return formats.positive_zeros(-tree(terms.swapaxes(1, 2).reshape(-1, lse.shape[1])))


def _sequences(queries: np.ndarray, keys: np.ndarray) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Rows, keys, and the position of the first query of each sequence."""
    for b in range(len(queries) - 1):
        rows, columns = slice(queries[b], queries[b + 1]), slice(keys[b], keys[b + 1])
        yield rows, columns, np.array([keys[b + 1] - keys[b] - (queries[b + 1] - queries[b])])


def _dense(x: np.ndarray) -> np.ndarray:
    """(T, H, E) -> (1, H, T, E)."""
    return x.swapaxes(0, 1)[None]
