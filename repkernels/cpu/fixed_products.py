"""How an exact sum of digit products becomes products of small integers that a CPU multiplies fast.

P / 256^max(0, S - 2) is the sum over digit pairs i + j <= S of d_i(a) d_j(b) 256^(min(S, 2) + S - 2 - i - j). With
h = 256 d_0 + d_1, an int16, one product with h stands for two pairs.
"""

from typing import NamedTuple

import numpy as np

# A number of an element: one of its digits 0..3, or h.
H = 4


class Plan(NamedTuple):
    """The distinct numbers of A and of B, and the products as (place in `left`, place in `right`, power of two)."""

    left: np.ndarray
    right: np.ndarray
    products: np.ndarray


def _plan(*products: tuple[int, int, int]) -> Plan:
    left, right = (sorted({product[side] for product in products}) for side in (0, 1))
    steps = [(left.index(x), right.index(y), power) for x, y, power in products]
    return Plan(*(np.array(part, np.int64) for part in (left, right, steps)))


# For S = 1..4, with h on either side: the fewest products.
FEWEST = (
    _plan((0, 0, 0)),
    _plan((0, H, 8), (1, H, 0)),
    _plan((0, H, 16), (1, H, 8), (H, 2, 0), (2, H, 0)),
    _plan((0, H, 24), (1, H, 16), (H, 2, 8), (2, H, 8), (H, 3, 0), (3, H, 0), (2, 2, 0)),
)
# For S = 1..4, with digits alone on B's side.
DIGITS_OF_B = (
    _plan((0, 0, 0)),
    _plan((H, 0, 8), (H, 1, 0)),
    _plan((H, 0, 16), (H, 1, 8), (H, 2, 0), (2, 0, 8), (2, 1, 0)),
    _plan((H, 0, 24), (H, 1, 16), (H, 2, 8), (H, 3, 0), (2, 0, 16), (2, 1, 8), (2, 2, 0), (3, 0, 8), (3, 1, 0)),
)
# For S = 1..4 of A, with a single digit on B's side: the exact products of the whole numbers.
ONE_DIGIT_OF_B = (
    _plan((0, 0, 0)),
    _plan((H, 0, 0)),
    _plan((H, 0, 8), (2, 0, 0)),
    _plan((H, 0, 16), (2, 0, 8), (3, 0, 0)),
)
