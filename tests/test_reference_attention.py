"""reference/attention.py against attention in binary64 and against literal re-statements of its rules.

Error of a result, for finite operands where nothing overflows and no result is subnormal, with u = 2^-24, s the scores,
w the weights of softmax, A = sum w_j |v_j|, G the number of segments, u' = u, 2^-8, 2^-11 for fp32, bf16, fp16, and
d = |scale| max(error of q.k) + 5 u max|s|, that error as in SPEC.md, "Contractions":
|out - exact| <= A (e^(2 d) - 1 + u (8 max|s| + 8 G + 13 + C)) + W + u' |out|.
`ordered`: C = 128, W = 0. `fixed`: C = 0, W = the sum over the segments of (sum R_j + 2 K R) / L + K R D / L^2,
R_j = w_j max|v_j|, R the largest of a segment's K, D = 0, 0, 2^16, 2^25 + 2^16.
|LSE - exact| <= d + u (5 max|s| + 4 G + 9 + 2 |LSE|).
"""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from reference import attention, formats, inputs, matmul
from reference.attention import Rule
from reference.fma import fma32
from reference.functions import exp_f32, ln_f32
from reference.sum import tree

U = 2.0**-24
UNIT = {"float32": U, "bfloat16": 2.0**-8, "float16": 2.0**-11}
DROPPED = {1: 0, 2: 0, 3: 2**16, 4: 2**25 + 2**16}
SCALE = 1 / math.sqrt(32)
EVERY = pytest.mark.parametrize("contract", matmul.CONTRACTS)


def drawn(*shape, stream, dtype="float32", kind="ordinary", seed=3):
    return inputs.operand(kind, dtype, shape, seed, stream)


def operands(queries=12, keys=280, dtype="float32", kind="ordinary", heads=(2, 1)):
    """q, k, v of one sequence, heads of 16 and 12 elements."""
    return (
        drawn(1, heads[0], queries, 16, stream=0, dtype=dtype, kind=kind),
        drawn(1, heads[1], keys, 16, stream=1, dtype=dtype, kind=kind),
        drawn(1, heads[1], keys, 12, stream=2, dtype=dtype, kind=kind),
    )


def same(x, y):
    np.testing.assert_array_equal(formats.bits(x, "float32"), formats.bits(y, "float32"))


def exact(q, k, v, rule, first_query=0, mask=None, sinks=None):
    """(result, LSE, weights, scores, visible) in binary64, as torch tensors that need no gradient."""
    s = q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT * float(np.float32(rule.scale))
    if rule.softcap:
        s = torch.tanh(s / rule.softcap) * rule.softcap
    if mask is not None:
        s = s + mask
    seen = attention.visibility(np.arange(q.shape[2]) + first_query, np.arange(k.shape[2]), rule)
    s = s.masked_fill(~torch.tensor(np.array(seen)), -math.inf)
    whole = s
    if sinks is not None:
        whole = torch.cat([s, sinks.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    w = torch.softmax(whole, -1)[..., : s.shape[-1]]
    return w @ v.double().repeat_interleave(q.shape[1] // k.shape[1], 1), torch.logsumexp(whole, -1), w, s


def bounds(q, k, v, out, lse, w, s, rule, dtype):
    """The bounds above, of one head: of the result (L, Ev) and of LSE (L,)."""
    x, y = np.abs(q).astype(np.float64), np.abs(k).astype(np.float64)
    finite = np.where(np.isfinite(s), s, 0)
    raw = np.abs(q.astype(np.float64) @ k.astype(np.float64).T * rule.scale)
    largest = np.maximum(np.abs(finite), raw).max(axis=1)
    groups = list(attention.segments(np.arange(len(k))))
    digits = matmul.DIGITS.get(rule.contract)
    if digits is None:
        errors = q.shape[1] * U * (x @ y.T)
        chain, weighing = 128, 0
    else:
        errors = matmul.bound(raw / rule.scale, q, k.T, digits)
        limit, chain, weighing = matmul.limit(digits), 0, 0
        for columns in groups:
            r = w[:, columns] * np.abs(v[columns]).max(axis=1)
            most, count = r.max(axis=1), len(columns)
            weighing = weighing + (r.sum(axis=1) + 2 * count * most) / limit
            weighing = weighing + count * most * DROPPED[digits] / limit**2
    d = rule.scale * np.where(np.isfinite(s), errors, 0).max(axis=1) + 5 * U * largest
    spread = np.expm1(2 * d) + U * (8 * largest + 8 * len(groups) + 13 + chain)
    of_weights = np.asarray(weighing) + np.zeros(len(q))
    result = (w @ np.abs(v)) * spread[:, None] + of_weights[:, None] + UNIT[dtype] * np.abs(out)
    return result, d + U * (5 * largest + 4 * len(groups) + 9 + 2 * np.abs(lse))


@EVERY
@pytest.mark.parametrize(
    ("dtype", "kind", "options"),
    [
        ("float32", "ordinary", {"causal": True}),
        ("float32", "logits", {"window": (150, 7), "softcap": 3.0}),
        ("bfloat16", "logits", {"window": (200, -1)}),
        ("float16", "zeros", {}),
    ],
)
def test_error_is_within_the_bound(contract, dtype, kind, options):
    rule = Rule(contract, SCALE, **options)
    q, k, v = operands(dtype=dtype, kind=kind)
    out, lse = attention.forward(q, k, v, dtype, rule, first_query=[260])
    wanted, wanted_lse, w, s = (t.numpy() for t in exact(*map(torch.tensor, (q, k, v)), rule, 260))
    for h in range(2):
        bound, of_lse = bounds(q[0, h], k[0, 0], v[0, 0], out[0, h], lse[0, h], w[0, h], s[0, h], rule, dtype)
        normal = np.abs(out[0, h]) >= 2.0**-14
        assert (np.abs(out[0, h] - wanted[0, h]) <= bound)[normal].all()
        assert (np.abs(lse[0, h] - wanted_lse[0, h]) <= of_lse).all()


@pytest.mark.parametrize(
    ("contract", "limit"),
    [("ordered", 1e-6), ("fixed8", 0.2), ("fixed16", 1e-3), ("fixed24", 2e-6), ("fixed32", 1e-6)],
)
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_gradients_are_those_of_binary64(contract, limit, softcap):
    """Normwise, and of the mask and the sinks too."""
    rule = Rule(contract, 0.3, causal=True, window=(180, -1), softcap=softcap)
    q, k, v = operands(12, 270)
    mask, sinks, grad = drawn(12, 270, stream=4), drawn(2, stream=5), drawn(1, 2, 12, 12, stream=3)
    where = [250]
    out, lse = attention.forward(q, k, v, "float32", rule, mask, sinks, None, where)
    found = attention.backward(grad, q, k, v, out, lse, "float32", rule, mask, sinks, None, where)
    leaves = [torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v, mask, sinks)]
    result = exact(*leaves[:3], rule, 250, leaves[3], leaves[4])[0]
    wanted = torch.autograd.grad(result, leaves, torch.tensor(grad, dtype=torch.float64))
    for x, y in zip((*found[:3], found.scores.sum((0, 1)), found.sinks), wanted, strict=True):
        assert np.linalg.norm(x - y.numpy()) <= limit * np.linalg.norm(y)


@EVERY
def test_one_segment_is_its_formula(contract):
    """Within a segment there is no merging: out = (p @ v) * (1 / l), p = exp(s - max), straight from the pieces."""
    rule = Rule(contract, SCALE)
    q, k, v = operands(keys=100)
    out, lse = attention.forward(q, k, v, "float32", rule)
    s = matmul.matmul(q[0, 1], k[0, 0].T, "float32", contract) * np.float32(SCALE)
    p = exp_f32(s - s.max(axis=1, keepdims=True))
    total = tree(np.pad(p, ((0, 0), (0, 28))).T)
    same(lse[0, 1], s.max(axis=1) + ln_f32(total))
    weighed = np.zeros((12, 12), np.float32)
    if contract == "ordered":
        for j in range(100):
            weighed = fma32(p[:, j, None], v[0, 0, j], weighed)
    else:
        weighed = literal_weighted(p, v[0, 0], matmul.DIGITS[contract])
    same(out[0, 1], weighed * (np.float32(1) / total)[:, None])


def literal_weighted(w, rows, digits):
    """The fixed rule for weighted sums, one fraction at a time."""
    limit, (e, q) = matmul.limit(digits), matmul.quantize(rows, digits)
    out = np.zeros((len(w), rows.shape[1]), np.float32)
    for i, weights in enumerate(w):
        units = [Fraction(float(x)) * Fraction(2) ** int(f) if q[j].any() else 0 for j, (x, f) in
                 enumerate(zip(weights, e, strict=True))]  # fmt: skip
        largest, f = max(abs(x) for x in units), -400
        while largest > limit * Fraction(2) ** f:
            f += 1
        integers = np.array([[round(x / Fraction(2) ** f) for x in units]])
        p = matmul.exact_sum(matmul.balanced(integers, digits), matmul.balanced(q.T, digits))[0]
        out[i] = [math.ldexp(matmul.round32(x), f) for x in p] if largest else 0
    return out


@pytest.mark.parametrize("contract", ["ordered", "fixed16"])
def test_segments_merge_in_order(contract):
    """Three segments from their own results: exponentials of maxima, one fma for each."""
    rule, (q, k, v) = Rule(contract, SCALE), operands(queries=4, keys=300)
    state = None
    for start in (0, 128, 256):
        keys = slice(start, start + 128)
        s = matmul.matmul(q[0, 0], k[0, 0, keys].T, "float32", contract) * np.float32(SCALE)
        m = s.max(axis=1)
        p = exp_f32(s - m[:, None])
        l = tree(np.pad(p, ((0, 0), (0, 128 - p.shape[1]))).T)
        o = attention.weighted(p, v[0, 0, keys], np.ones(p.shape, bool), contract)
        if state is not None:
            top = np.maximum(state[0], m)
            a, b = exp_f32(state[0] - top), exp_f32(m - top)
            m, l, o = top, fma32(state[1], a, l * b), fma32(state[2], a[:, None], o * b[:, None])
        state = m, l, o
    m, l, o = state
    out, lse = attention.forward(q, k, v, "float32", rule)
    same(out[0, 0], o * (np.float32(1) / l)[:, None])
    same(lse[0, 0], m + ln_f32(l))


@pytest.mark.parametrize("digits", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["ordinary", "spread", "zeros", "extremes"])
def test_weighted_sums_are_their_definition(digits, kind):
    w, rows = np.abs(drawn(3, 11, stream=0, kind=kind)), drawn(11, 5, stream=1, kind=kind)
    contract = f"fixed{8 * digits}"
    same(attention.weighted(w, rows, np.ones(w.shape, bool), contract), literal_weighted(w, rows, digits))


@EVERY
def test_a_row_of_zeros_costs_no_digits(contract):
    """Its exponent is 0 by rule, far above those of other rows, and must not decide the scale of the weights."""
    q, k, v = operands(keys=60)
    v = v * np.float32(2.0**-40)
    v[0, 0, 7] = 0
    out, _ = attention.forward(q, k, v, "float32", Rule(contract, SCALE))
    wanted = exact(*map(torch.tensor, (q, k, v)), Rule(contract, SCALE))[0].numpy()
    assert np.linalg.norm(out - wanted) <= 5e-2 * np.linalg.norm(wanted)


@pytest.mark.parametrize("contract", ["ordered", "fixed16"])
def test_a_row_follows_from_its_keys_alone(contract):
    """Chunks of a prefill, decode steps, padding, neighbours, a sequence packed, pages: the same bits."""
    rule = Rule(contract, SCALE, causal=True, window=(170, -1))
    q, k, v = operands(queries=140, keys=140)
    out, lse = attention.forward(q, k, v, "float32", rule)
    for start, end in ((0, 1), (0, 60), (127, 129), (139, 140)):
        part = q[:, :, start:end], k[:, :, :end], v[:, :, :end]
        found, of_chunk = attention.forward(*part, "float32", rule, first_query=[start])
        same(found, out[:, :, start:end])
        same(of_chunk, lse[:, :, start:end])
    junk = np.full((1, 1, 9, 32), np.nan, np.float32)
    padded = [
        np.concatenate([np.broadcast_to(junk, (1, x.shape[1], 9, 32))[..., : x.shape[-1]], x], 2) for x in (q, k, v)
    ]
    both = [np.concatenate([x, np.roll(x, 1, 2)]) for x in padded]
    same(attention.forward(*both, "float32", rule, first_key=[9, 3], first_query=[-9, 0])[0][0, :, 9:], out[0])
    rows = [x[0].swapaxes(0, 1) for x in (q, k, v)]
    packed = [np.concatenate([x[5:8], x, x[:2]]) for x in rows]
    found, of_rows = attention.packed(*packed, [0, 3, 143], [0, 3, 143], "float32", rule)
    same(found[3:143].swapaxes(0, 1), out[0])
    same(of_rows[:, 3:143], lse[0])
    assert not formats.bits(found[143:], "float32").any()
    for size in (16, 64):
        pages = -(-140 // size)
        order = np.arange(pages)[::-1] * 2 + 1
        cache = [np.full((2 * pages, size, 1, x.shape[-1]), np.nan, np.float32) for x in rows[1:]]
        for p in range(140):
            for x, y in zip(cache, rows[1:], strict=True):
                x[order[p // size], p % size] = y[p]
        found, _ = attention.paged(rows[0][130:], *cache, order[None], [0, 10], [140], "float32", rule)
        same(found.swapaxes(0, 1), out[0, :, 130:])


@EVERY
def test_invisible_keys_contribute_nothing(contract):
    """NaN in them, in a mask behind the causal border, in queries that see nothing: no bit changes, no gradient."""
    rule, (q, k, v) = Rule(contract, SCALE, causal=True), operands(queries=30, keys=150)
    mask = drawn(30, 150, stream=4)
    mask[:, 3::7] = -np.inf
    mask[5] = -np.inf
    grad, where = drawn(1, 2, 30, 12, stream=3), [100]

    def results(k, v, mask):
        out, lse = attention.forward(q, k, v, "float32", rule, mask, None, None, where)
        return out, lse, attention.backward(grad, q, k, v, out, lse, "float32", rule, mask, None, None, where)

    out, lse, grads = results(k, v, mask)
    k, v, mask = k.copy(), v.copy(), mask.copy()
    k[:, :, 3::7], v[:, :, 3::7], k[:, :, 130:], v[:, :, 130:], mask[:, 130:] = (np.nan,) * 5
    again = results(k, v, mask)
    same(again[0], out)
    same(again[1], lse)
    for x, y in zip(again[2][:4], grads[:4], strict=True):
        same(x, y)
    assert not formats.bits(out[:, :, 5], "float32").any()
    assert (lse[:, :, 5] == -np.inf).all()
    assert not formats.bits(np.concatenate([grads.k[0, 0, 3::7], grads.k[0, 0, 130:]]), "float32").any()
    assert not formats.bits(grads.q[:, :, 5], "float32").any()


def test_a_bool_mask_is_one_of_zeros_and_infinities():
    q, k, v = operands()
    seen = drawn(12, 280, stream=4) > 0
    rule = Rule("fixed16", SCALE)
    added = np.where(seen, np.float32(0), np.float32(-np.inf))
    same(attention.forward(q, k, v, "float32", rule, seen)[0], attention.forward(q, k, v, "float32", rule, added)[0])


def test_a_sink_takes_weight_alone():
    """A sink far above all scores takes all, one far below nothing; a row that sees no key has it as its LSE."""
    q, k, v = operands(keys=130)
    rule = Rule("fixed24", SCALE, causal=True)
    plain, _ = attention.forward(q, k, v, "float32", rule, first_query=[-2])
    out, lse = attention.forward(q, k, v, "float32", rule, None, np.float32([-200, 200]), None, [-2])
    same(out[:, 0], plain[:, 0])
    assert not formats.bits(out[:, 1], "float32").any()
    assert (lse[:, 1] == 200).all()
    assert lse[0, 0, 0] == -200
    assert not formats.bits(out[0, :, :2], "float32").any()


def test_visibility():
    def seen(queries, keys, **options):
        return (
            attention.visibility(np.array(queries), np.array(keys), Rule("ordered", 1.0, **options))
            .astype(int)
            .tolist()
        )

    keys = [-1, 0, 1, 2, 3]
    assert seen([1, -1], keys) == [[0, 1, 1, 1, 1]] * 2
    assert seen([1, -1], keys, causal=True) == [[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]
    assert seen([2], keys, window=(1, 0)) == [[0, 0, 1, 1, 0]]
    assert seen([1], keys, window=(-1, 1)) == seen([1], keys, window=(9, 1)) == [[0, 1, 1, 1, 0]]
    assert seen([2], keys, window=(0, 5), causal=True) == [[0, 0, 0, 1, 0]]


@EVERY
def test_heads_share_keys(contract):
    q, k, v = operands(queries=6, keys=140, heads=(4, 2))
    rule, grad = Rule(contract, SCALE), drawn(1, 4, 6, 12, stream=3)
    out, lse = attention.forward(q, k, v, "float32", rule)
    for h in range(4):
        part = q[:, h : h + 1], k[:, h // 2 : h // 2 + 1], v[:, h // 2 : h // 2 + 1]
        same(attention.forward(*part, "float32", rule)[0], out[:, h : h + 1])
    found = attention.backward(grad, q, k, v, out, lse, "float32", replace(rule, scale=1.0))
    alone = [
        attention.backward(
            grad[:, h : h + 1], q[:, h : h + 1], k[:, :1], v[:, :1], out[:, h : h + 1], lse[:, h : h + 1], "float32",
            replace(rule, scale=1.0),
        )
        for h in (0, 1)
    ]  # fmt: skip
    same(found.v[:, :1], alone[0].v + alone[1].v)
    same(found.k[:, :1], alone[0].k + alone[1].k)


@EVERY
def test_infinities(contract):
    """A visible infinity in v reaches its column alone; in q.k it makes NaN of the row, as in softmax."""
    q, k, v = operands(queries=3, keys=8)
    clean, _ = attention.forward(q, k, v, "float32", Rule(contract, SCALE))
    v[0, 0, 2, 5] = np.inf
    out, _ = attention.forward(q, k, v, "float32", Rule(contract, SCALE))
    assert (out[..., 5] == np.inf).all()
    same(np.delete(out, 5, -1), np.delete(clean, 5, -1))
    k[0, 0, 1] = np.inf
    assert np.isnan(attention.forward(np.abs(q), k, v, "float32", Rule(contract, SCALE))[0]).all()
