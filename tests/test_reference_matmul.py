"""reference/matmul.py against mpmath, literal re-statements of its rules, and hand-made cases."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference import formats, inputs
from reference import matmul as mm

FIXED = sorted(mm.DIGITS.values())
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
INTEGERS = st.integers(-(2**62), 2**62)


def drawn(kind, shape, stream, dtype="float32", seed=11):
    return inputs.operand(kind, dtype, shape, seed, stream)


@pytest.mark.parametrize("digits", FIXED)
@given(v=st.lists(FINITE, min_size=1, max_size=6))
def test_scale_is_the_smallest(digits, v):
    exponent, q = mm.quantize(np.array([v], np.float32), digits)
    e, largest = int(exponent[0]), Fraction(max(abs(x) for x in v))
    if largest == 0:
        assert e == 0
        return
    assert largest / Fraction(2) ** e <= mm.limit(digits) < largest / Fraction(2) ** (e - 1)
    # Python rounds a fraction half to even.
    assert q[0].tolist() == [round(Fraction(x) / Fraction(2) ** e) for x in v]


@pytest.mark.parametrize(("digits", "least", "most"), [(1, -155, 122), (2, -163, 114), (3, -171, 106), (4, -179, 98)])
def test_range_of_scales(digits, least, most):
    ends = np.array([[2.0**-149], [np.finfo(np.float32).max]], np.float32)
    assert mm.quantize(ends, digits)[0].tolist() == [least, most]


@pytest.mark.parametrize(("digits", "threshold"), [(1, 16646144), (2, 16711168), (3, 16711422), (4, 16711422)])
def test_threshold_of_the_significand(digits, threshold):
    """With m = F * 2^x, 2^23 <= F < 2^24, the exponent rises exactly where F > threshold."""
    significand = np.array([[2**23], [threshold], [threshold + 1], [2**24 - 1]], np.float32)
    exponent = mm.quantize(significand, digits)[0]
    assert exponent.tolist() == [exponent[0], exponent[0], exponent[0] + 1, exponent[0] + 1]


@pytest.mark.parametrize("digits", FIXED)
def test_digits_of_the_ends(digits):
    largest = mm.limit(digits)
    assert mm.balanced(np.array([largest, -largest, 0]), digits).tolist() == [[127, -127, 0]] * digits


@pytest.mark.parametrize("digits", FIXED)
@given(data=st.data())
def test_digits_give_back_the_integer(digits, data):
    q = data.draw(st.lists(st.integers(-mm.limit(digits), mm.limit(digits)), min_size=1, max_size=9))
    d = mm.balanced(np.array(q), digits)
    assert d.min() >= -128
    assert d.max() <= 127
    assert sum(d[i].astype(object) * 256 ** (digits - 1 - i) for i in range(digits)).tolist() == q


def test_pairs():
    assert [len(mm.pairs(digits)) for digits in FIXED] == [1, 4, 8, 13]


def test_two_digits_give_the_exact_product():
    _, q_a = mm.quantize(drawn("ordinary", (4, 50), 0), 2)
    _, q_b = mm.quantize(drawn("ordinary", (3, 50), 1), 2)
    assert (mm.exact_sum(mm.balanced(q_a, 2), mm.balanced(q_b, 2)) == q_a @ q_b.T).all()


@given(p=st.lists(INTEGERS, min_size=1, max_size=8))
def test_integers_round_to_nearest_even(p):
    found = mm.round32_int64(np.array(p, np.int64))
    for x, y in zip(p, found, strict=True):
        shift = max(0, abs(x).bit_length() - 24)
        assert mm.round32(x) == float(y) == round(Fraction(x, 2**shift)) * 2.0**shift


@pytest.mark.parametrize(
    "p", [2**53 + 1, 2**62 + 2**38, 2**62 + 2**38 + 1, 2**62 + 3 * 2**38 - 1, 2**25 + 1, 2**25 + 3]
)
def test_integers_near_ties(p):
    """Rounding first to binary64 would decide some of these wrongly."""
    assert mm.round32(p) == float(mm.round32_int64(np.array([p]))[0])
    assert mm.round32(-p) == -mm.round32(p)


@pytest.mark.parametrize("digits", FIXED)
@pytest.mark.parametrize("kind", ["ordinary", "spread", "ties", "constant", "zeros"])
def test_fixed_is_its_definition(digits, kind):
    a, b = drawn(kind, (5, 33), 0), drawn(kind, (33, 4), 1)
    found = mm.fixed(a, b, digits)
    (e_a, q_a), (e_b, q_b) = mm.quantize(a, digits), mm.quantize(b.T, digits)
    d_a, d_b = mm.balanced(q_a, digits), mm.balanced(q_b, digits)
    for m, n in np.ndindex(5, 4):
        p = 0
        for k in range(33):
            for i in range(digits):
                for j in range(digits):
                    if i + j <= digits:
                        p += int(d_a[i, m, k]) * int(d_b[j, n, k]) * 256 ** (2 * digits - 2 - i - j)
        assert found[m, n] == math.ldexp(mm.round32(p), int(e_a[m] + e_b[n]))


@pytest.mark.parametrize("k", [131072, 131073])
def test_fixed32_does_not_change_where_words_end(k):
    """Both sides of the limit of int64, with the largest sums: digits 127, 127, 127, 0."""
    a = np.full((1, k), 0xFEFEFE, np.float32)
    found = mm.fixed(a, a.T, 4)
    q = int(mm.quantize(a, 4)[1][0, 0])
    d = mm.balanced(np.array([q]), 4)[:, 0].tolist()
    p = k * sum(d[i] * d[j] * 256 ** (6 - i - j) for i, j in mm.pairs(4))
    e = int(mm.quantize(a, 4)[0][0])
    assert found[0, 0] == math.ldexp(mm.round32(p), 2 * e)


@pytest.mark.parametrize("digits", FIXED)
@pytest.mark.parametrize("kind", ["ordinary", "spread", "ties", "extremes"])
@pytest.mark.parametrize("k", [1, 33, 500])
def test_accuracy_is_within_the_bound(digits, kind, k):
    a, b = drawn(kind, (4, k), 0), drawn(kind, (k, 4), 1)
    result = mm.fixed(a, b, digits)
    assert (mm.error(result, a, b) <= mm.bound(result, a, b, digits)).all()


def test_ordered_of_short_chains_is_near_the_exact_product():
    a, b = drawn("ordinary", (4, 100), 0), drawn("ordinary", (100, 4), 1)
    limit = 100 * 2.0**-24 * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    assert (mm.error(mm.ordered(a, b), a, b) <= limit).all()


def test_ordered_chunks():
    """A chunk starts from +0: what a chain over all of k would lose is kept."""
    a = np.zeros((1, 2 * mm.CHUNK), np.float32)
    a[0, 0], a[0, mm.CHUNK], a[0, mm.CHUNK + 1] = 2**24, 1, 1
    ones = np.ones((2 * mm.CHUNK, 1), np.float32)
    assert mm.ordered(a, ones) == 2**24 + 2
    a[0, 1:3], a[0, mm.CHUNK : mm.CHUNK + 2] = 1, 0
    assert mm.ordered(a, ones) == 2**24


def test_ordered_fuses():
    x = np.float32(1 + 2.0**-12)
    square = np.float32(x * x)
    a, b = np.array([[-square, x]], np.float32), np.array([[1], [x]], np.float32)
    assert mm.ordered(a, b) == float(x) ** 2 - float(square) != 0


def test_ordered64_is_ordered_in_binary64():
    a, b = drawn("ordinary", (2, 5000), 0, "float64"), drawn("ordinary", (5000, 1), 1, "float64")
    found = mm.contraction(a, b, "ordered")
    assert np.abs(found - a @ b).max() < 1e-12
    assert mm.contraction(np.array([[2.0**53, 1, 1]]), np.ones((3, 1)), "ordered") == 2.0**53


@pytest.mark.parametrize("contract", mm.CONTRACTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_no_minus_zero(contract, dtype):
    for kind in ("zeros", "tiny"):
        for k in (1, 9):
            a, b = drawn(kind, (9, k), 0, dtype), drawn(kind, (k, 9), 1, dtype)
            out = mm.matmul(a, b, dtype, contract)
            assert not np.signbit(out[out == 0]).any()


INF, NAN = np.inf, np.nan


@pytest.mark.parametrize("contract", mm.CONTRACTS)
@pytest.mark.parametrize(
    ("row", "column", "wanted"),
    [
        ([INF, 1], [1, 1], INF),
        ([-INF, 1], [1, 1], -INF),
        ([INF, 1], [-2, 3e38], -INF),
        ([INF, 1], [0, 1], NAN),
        ([INF, 1], [-0.0, 1], NAN),
        ([INF, INF], [1, -1], NAN),
        ([INF, -INF], [1, -1], INF),
        ([INF, 0], [INF, 0], INF),
        ([INF, 0], [-INF, 7], -INF),
        ([NAN, 1], [0, 1], NAN),
        ([1, 1], [NAN, 1], NAN),
        ([0, 1], [0, 1], 1),
    ],
)
def test_non_finite_operands(contract, row, column, wanted):
    a, b = np.array([row], np.float32), np.array([column], np.float32).T
    np.testing.assert_array_equal(mm.matmul(a, b, "float32", contract), np.array([[wanted]], np.float32))


@pytest.mark.parametrize("digits", FIXED)
def test_non_finite_class_is_that_of_signs(digits):
    """Equivalently: the IEEE product of the operands with finite elements replaced by their signs, where not finite."""
    a, b = drawn("nonfinite", (40, 60), 0), drawn("nonfinite", (60, 40), 1)
    signs = [np.where(np.isfinite(x), np.sign(x), x) for x in (a, b)]
    with np.errstate(all="ignore"):
        wanted = (signs[0][:, :, None] * signs[1]).sum(axis=1)
    found = mm.fixed(a, b, digits)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(wanted))
    np.testing.assert_array_equal(found[~np.isfinite(wanted)], wanted[~np.isfinite(wanted)])


@pytest.mark.parametrize("digits", FIXED)
def test_finite_products_count_as_finite(digits):
    """Overflowing products that cancel are no infinities of the rule for non-finite elements."""
    a = np.array([[3e38, 3e38]], np.float32)
    assert mm.fixed(a, np.array([[3e38], [-3e38]], np.float32), digits) == 0
    assert mm.fixed(a, a.T, digits) == np.inf


@pytest.mark.parametrize("contract", mm.CONTRACTS)
def test_nothing_to_contract(contract):
    bias = np.array([-0.0, 1, np.nan], np.float32)
    a, b = np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)
    np.testing.assert_array_equal(formats.bits(mm.matmul(a, b, "float32", contract), "float32"), 0)
    found = mm.matmul(a, b, "float32", contract, bias)
    assert not np.signbit(found[0, 0])
    np.testing.assert_array_equal(found, [[0, 1, np.nan]] * 2)


@pytest.mark.parametrize("contract", ["ordered", "fixed16", "fixed24", "fixed32"])
def test_bias_is_added_in_binary32_and_rounded_once(contract):
    """257 is a tie of bfloat16: rounded before the addition, it would lose its 1."""
    a = np.array([[256, 1]], np.float32)
    assert mm.matmul(a, np.ones((2, 1), np.float32), "bfloat16", contract, np.float32([1])) == 258


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((4, 1, 2, 3), (5, 3, 2))],
)
@pytest.mark.parametrize("contract", ["ordered", "fixed32"])
def test_shapes_and_gradients(a_shape, b_shape, contract):
    """Small integers are exact in any order, so NumPy's product and its gradients are the truth."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, shape).astype(np.float32) for shape in (a_shape, b_shape))
    out = mm.matmul(a, b, "float32", contract)
    np.testing.assert_array_equal(out, a @ b)
    grad = rng.integers(-8, 9, out.shape).astype(np.float32)
    grad_a, grad_b = mm.gradients(grad, a, b, "float32", contract)
    left, right = (a[None] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    grads = grad.reshape(*batch, left.shape[-2], right.shape[-1])
    np.testing.assert_array_equal(grad_a, reduced(grads @ np.swapaxes(right, -1, -2), left.shape).reshape(a_shape))
    np.testing.assert_array_equal(grad_b, reduced(np.swapaxes(left, -1, -2) @ grads, right.shape).reshape(b_shape))


def reduced(x, shape):
    """x summed over the axes along which `shape` was broadcast."""
    x = x.sum(axis=tuple(range(x.ndim - len(shape))))
    return x.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1), keepdims=True)


def test_broadcast_gradient_is_one_contraction():
    """Batch outermost, rows innermost: one chain, where a sum of the batches' gradients would differ."""
    a = np.array([[[2.0**24]], [[1]], [[1]]], np.float32)
    b = np.ones((1, 1), np.float32)
    grad = np.ones((3, 1, 1), np.float32)
    assert mm.gradients(grad, a, b, "float32", "ordered")[1] == 2.0**24
    assert mm.gradients(grad, a[[1, 2, 0]], b, "float32", "ordered")[1] == 2.0**24 + 2
    assert mm.gradients(grad, a, b, "float32", "fixed32")[1] == 2.0**24 + 2
