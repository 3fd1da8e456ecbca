"""reference/functions.py, cross_entropy.py, relu.py and sgd.py against mpmath and hand-made cases."""

import mpmath
import numpy as np
import pytest

from reference import cross_entropy, relu, sgd
from reference.functions import exp_f32, ln_f32


def ulps(found, exact):
    """The error of fp32 `found` in units of the last place of the exact value."""
    exponent = int(mpmath.floor(mpmath.log(abs(exact), 2)))
    return abs(mpmath.mpf(float(found)) - exact) / mpmath.mpf(2) ** (exponent - 23)


def test_exp_is_within_one_ulp():
    x = -np.concatenate([np.geomspace(1e-9, 87.3, 4000), np.arange(88), np.arange(1, 126) * np.log(2)]).astype(
        np.float32
    )
    with mpmath.workprec(100):
        worst = max(ulps(y, mpmath.exp(mpmath.mpf(float(v)))) for v, y in zip(x, exp_f32(x), strict=True))
    assert worst <= 1


def test_exp_at_its_borders():
    x = np.array([0.0, -0.0, -87.33, -87.34, -88, -88.1, -1e30, -np.inf], np.float32)
    y = exp_f32(x)
    np.testing.assert_array_equal(y[:2], 1)
    assert y[2] >= 2.0**-126
    np.testing.assert_array_equal(y[3:].view(np.uint32), 0)
    assert np.isnan(exp_f32(np.float32(np.nan)))


def test_ln_hard_cases():
    """Inputs at which rounding binary64's log is wrong, and the ends."""
    pattern = np.array([0x3C413D3A, 0x41178FEB, 0x4C5D65A5, 0x65D890D3, 0x6F31A8EC], np.uint32)
    x = np.concatenate([pattern.view(np.float32), np.array([2.0**-149, 1, 3.4e38, 0.99999994, 1.0000001], np.float32)])
    with mpmath.workprec(200):
        for value, y in zip(x, ln_f32(x), strict=True):
            exact = mpmath.log(mpmath.mpf(float(value)))
            assert exact == 0 or ulps(y, exact) <= 0.5
    assert ln_f32(pattern[1:2].view(np.float32)).view(np.uint32)[0] == 0x400FE5E7


def test_ln_of_special_values():
    found = ln_f32(np.array([0.0, -0.0, -1, np.nan, np.inf, -np.inf, 1], np.float32))
    np.testing.assert_array_equal(found, np.array([-np.inf, -np.inf, np.nan, np.nan, np.inf, np.nan, 0], np.float32))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_is_near_the_exact_one(reduction):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((17, 33)) * 4).astype(np.float32)
    target = rng.integers(0, 33, 17)
    wide = x.astype(np.float64)
    log_sum = np.log(np.exp(wide - wide.max(1, keepdims=True)).sum(1)) + wide.max(1)
    exact = log_sum - wide[np.arange(17), target]
    probability = np.exp(wide - log_sum[:, None])
    probability[np.arange(17), target] -= 1
    if reduction == "mean":
        exact, probability = exact.mean(), probability / 17
    elif reduction == "sum":
        exact = exact.sum()
    np.testing.assert_allclose(cross_entropy.forward(x, target, "float32", reduction), exact, rtol=1e-5, atol=1e-6)
    grad = np.ones(17) if reduction == "none" else 1.0
    found = cross_entropy.backward(grad, x, target, "float32", reduction)
    np.testing.assert_allclose(found, probability, rtol=1e-5, atol=1e-7)


def test_cross_entropy_by_hand():
    x = np.array([[0.0, 0.0]], np.float32)
    loss = cross_entropy.forward(x, np.array([1]), "float32")
    assert loss == np.float32(0.69314718)
    np.testing.assert_array_equal(cross_entropy.backward(1, x, np.array([1]), "float32"), [[0.5, -0.5]])


def test_maximum_orders_zeros_and_keeps_nan():
    x = np.array([[-0.0, 0.0, -1], [-0.0, -0.0, -1], [1, np.nan, 2]], np.float32)
    found = cross_entropy.maximum(x)[:, 0]
    assert not np.signbit(found[0])
    assert np.signbit(found[1])
    assert np.isnan(found[2])


def test_relu_selects():
    x = np.array([-1, -0.0, 0.0, 1, np.nan, -np.inf, np.inf], np.float32)
    out = relu.forward(x)
    np.testing.assert_array_equal(out, np.array([0, 0, 0, 1, np.nan, 0, np.inf], np.float32))
    assert not np.signbit(out[:3]).any()
    np.testing.assert_array_equal(relu.backward(np.full(7, -2, np.float32), x), [0, 0, 0, -2, -2, 0, -2])


def test_sgd_by_hand():
    p, g = np.float32([1, 2]), np.float32([0.5, -0.25])
    new, v = sgd.step(p, g, None, "float32", lr=0.5)
    assert v is None
    np.testing.assert_array_equal(new, [0.75, 2.125])
    first, v = sgd.step(p, g, None, "float32", lr=0.5, momentum=0.5, dampening=0.5)
    np.testing.assert_array_equal(first, [0.75, 2.125])  # the first momentum is the gradient, not dampened
    second, v = sgd.step(first, g, v, "float32", lr=0.5, momentum=0.5, dampening=0.5)
    np.testing.assert_array_equal(v, g)
    np.testing.assert_array_equal(second, [0.5, 2.25])
    nesterov, _ = sgd.step(p, g, None, "float32", lr=0.5, momentum=0.5, nesterov=True)
    np.testing.assert_array_equal(nesterov, [0.625, 2.1875])
    ascent, _ = sgd.step(p, g, None, "float32", lr=0.5, weight_decay=0.25, maximize=True)
    np.testing.assert_array_equal(ascent, [1.125, 1.625])
