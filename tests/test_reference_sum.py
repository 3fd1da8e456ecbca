"""reference/sum.py: one order, exact where every order is, and near the exact sum elsewhere."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.sum import BLOCK, LANES, sum_rows, tree

# Around each change of rule, and sizes that are no power of two.
SIZES = [0, 1, 2, 3, 5, 1000, LANES, LANES + 1, 3 * LANES + 7, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 1000]


@pytest.mark.parametrize("n", SIZES)
def test_integers_are_exact(n):
    x = (np.arange(n) % 7 - 3).astype(np.float32)
    assert tree(x) == x.sum(dtype=np.float64)


@pytest.mark.parametrize("n", SIZES)
def test_error_is_small(n):
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    depth = 75 + 10  # at most 64 additions in a lane, 10 halvings, and a few blocks
    assert abs(float(tree(x)) - math.fsum(x.tolist())) <= depth * 2.0**-24 * np.abs(x).sum(dtype=np.float64)


def test_by_hand():
    big, one = np.float32(2**24), np.float32(1)
    # Halves meet first: (big + -big) + (1 + 1), not a running sum.
    assert tree(np.array([big, one, -big, one])) == 2
    # The 1 that meets big is lost; the other is not.
    assert tree(np.array([big, -big, one, one])) == 1
    # Three terms: x0 + x2, and x1 alone.
    assert tree(np.array([big, one, -big])) == 1


def test_lanes_by_hand():
    x = np.zeros(2 * LANES + 1, np.float32)
    x[0], x[LANES], x[2 * LANES] = 2**24, 1, 1  # one lane, in order: both are lost
    assert tree(x) == 2**24
    x[LANES + 1] = 2  # another lane
    assert tree(x) == 2**24 + 2


def test_blocks_by_hand():
    x = np.zeros(BLOCK + 2, np.float32)
    x[0], x[1], x[BLOCK], x[BLOCK + 1] = 2**24, 1, 1, 1
    # The first block loses its 1; the second block's two are summed before they meet it.
    assert tree(x) == 2**24 + 2


def test_nothing_is_plus_zero_and_zeros_keep_their_sign():
    assert not np.signbit(tree(np.zeros(0, np.float32)))
    assert np.signbit(tree(np.full(3, -0.0, np.float32)))
    assert not np.signbit(tree(np.array([-0.0, 0.0, -0.0], np.float32)))


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=40), st.integers(0, 5))
def test_padding_with_minus_zero_changes_nothing(x, extra):
    x = np.array(x, np.float32)
    if len(x) == 0:
        return
    size = 1 << (len(x) - 1).bit_length() + extra
    padded = np.concatenate([x, np.full(size - len(x), -0.0, np.float32)])
    assert tree(padded).view(np.uint32) == tree(x).view(np.uint32)


def test_halves_are_summed_in_binary32_and_rounded_once():
    x = np.full((4096, 1), 1.0, np.float32)
    assert sum_rows(x, "bfloat16") == 4096
    x = np.array([[256], [0.5], [0.5]], np.float32)
    assert sum_rows(x, "bfloat16") == 256
    assert sum_rows(np.array([[65504], [16]], np.float32), "float16") == np.inf
