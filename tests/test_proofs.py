"""The proofs' own arithmetic against mpmath, and that they find what is wrong."""

import numpy as np
import pytest
import torch

from bench.proofs import compare, library, power, turns
from bench.proofs.compare import measuring_error, prove, sample
from bench.proofs.functions import TRUTHS
from bench.proofs.measure import measure
from reference import unary

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SPECIAL = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0xFFFFFFFF, 0x3F800000, 0xBF800000, 1]
# Inputs at which rounding a correctly rounded binary64 logarithm is wrong.
TWICE_ROUNDED = [0x3C413D3A, 0x41178FEB, 0x4C5D65A5, 0x65D890D3, 0x6F31A8EC]


@pytest.mark.parametrize("name", TRUTHS)
def test_measured_values_are_the_references(name):
    patterns = np.concatenate([SPECIAL, np.random.default_rng(3).permutation(sample(8192, 3))[:500]])
    right, distance = (v.cpu().numpy() for v in measure(name, torch.from_numpy(patterns), DEVICE))
    wanted = np.array([unary.value(name, int(x)) for x in patterns], np.uint32)
    decided = distance != 0
    assert decided.mean() > 0.99
    np.testing.assert_array_equal(right.view(np.uint32)[decided], wanted[decided])


@pytest.mark.parametrize("name", TRUTHS)
def test_error_bounds_hold(name):
    found = measuring_error(name, DEVICE, count=120, seed=5)
    assert found["part_of_its_bound"] < 0.05
    assert found["relative_error_of_the_measure"] < 2.0**-95


def test_consecutive_inputs_are_the_listed_ones():
    bits = range(0xBF7FFFF0, 0xBF800011)
    for one, other in zip(measure("tanh", bits, DEVICE), measure("tanh", torch.tensor(bits), DEVICE), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "name, x, expected",
    [
        # 1 + 2^-24 + 2^-49: 2^-26 of an ulp, 2^-23, from the middle of 1 and the next number.
        ("exp", 0x33800000, 2.0**-26),
        # 1/2 + x/4 - x^3/48 with x = 2^-23.
        ("sigmoid", 0x34000000, 2.0**-69 / 48 * 2**24),
        # -x/2 + x^2/4 of the least subnormal number.
        ("silu", 0x80000001, 2.0**-151),
        # The largest number rounds below 2^128 - 2^103.
        ("sqrt", 0x40000000, 0.5),
    ],
)
def test_distances_from_midpoints(name, x, expected):
    _, distance = measure(name, torch.tensor([x]), DEVICE)
    if name == "sqrt":
        root = np.float64(2) ** 0.5 * 2**23
        expected = abs(root - np.floor(root) - 0.5)
    assert distance.item() == pytest.approx(expected, rel=1e-5)


def test_half_of_the_least_number_is_left_to_mpmath():
    found = compare.Findings("exp2")
    bits = range(0xC315FFFE, 0xC3160002)
    right, distance = measure("exp2", bits, DEVICE)
    assert (distance == 0).tolist() == [False, False, True, False]
    found.add(bits, right, distance, right)
    assert (found.settled, found.wrong_count) == (1, 0)
    # And it is compared with the library's: 2^-149 would be wrong.
    found.add(bits, right, distance, torch.where(distance == 0, 1, right))
    assert found.record()["wrong_at"] == ["c3160000"]


def test_a_function_rounded_twice_is_found_out(monkeypatch):
    def twice(name, bits, device):
        x = bits.cpu().numpy().astype(np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            y = np.log(x.astype(np.float64)).astype(np.float32)
        return library.one_nan(torch.from_numpy(y.view(np.int32)).to(device))

    monkeypatch.setattr(compare, "results", twice)
    monkeypatch.setattr(compare, "sample", lambda count, seed: np.array([*TWICE_ROUNDED, 0x40000000, 0x3F800000]))
    found = prove("log", DEVICE, 64)
    assert set(found["wrong_at"]) == {f"{x:08x}" for x in TWICE_ROUNDED}
    assert not found["holds"]


@pytest.mark.parametrize("name", ["exp", "log2", "sqrt"])
@pytest.mark.parametrize("flaw", ["ulp", "zero", "nan"])
def test_flaws_are_found(monkeypatch, name, flaw):
    """One ulp at one input, the wrong sign of a zero, NaN for an infinity."""
    at = {"ulp": 0x3FC00000, "zero": {"exp": 0xFF800000, "log2": 0x3F800000, "sqrt": 0}[name], "nan": 0x7F800000}[flaw]

    def flawed(name, bits, device):
        right = measure(name, bits, device)[0]
        change = {"ulp": right + 1, "zero": right ^ -(2**31), "nan": torch.full_like(right, 0x7FC00000)}[flaw]
        return torch.where(bits.to(device) == at, change, right)

    monkeypatch.setattr(compare, "results", flawed)
    monkeypatch.setattr(compare, "sample", lambda count, seed: np.array([*SPECIAL, 0x3FC00000]))
    assert f"{at:08x}" in prove(name, DEVICE, 64)["wrong_at"]


def test_more_undecided_inputs_than_mpmath_can_settle():
    found, count = compare.Findings("exp"), compare.MOST_UNDECIDED + 1
    with pytest.raises(RuntimeError, match="too near a midpoint"):
        found.add(range(count), torch.zeros(count, dtype=torch.int32), torch.zeros(count), torch.zeros(count))


def test_turns():
    assert turns.prove(DEVICE, 1 << 12)["holds"]


def test_turns_that_are_off_by_a_quarter_are_found(monkeypatch):
    monkeypatch.setattr(turns, "results", lambda name, bits, device: measure("cospi", bits, device)[0])
    found = turns.prove(DEVICE, 64)
    assert found["sinpi"]["wrong"] > 50
    assert found["cospi"]["wrong"] == 0


def test_powers(monkeypatch):
    monkeypatch.setattr(power, "KEPT", 12)
    monkeypatch.setattr(power, "DRAWN", 1 << 12)
    found = power.prove(DEVICE)
    assert found["holds"]
    assert found["inputs"] > 1000
    monkeypatch.setattr(power, "pairs", lambda name, x, y, device: np.nextafter(library.pairs(name, x, y, device), 0))
    assert power.prove(DEVICE)["wrong"] > 500
