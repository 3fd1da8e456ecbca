"""Results of RepDL, an independent C++ implementation of the ordered rule: its exact bits, up to the sign of zero."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import repkernels
from reference import matmul as reference
from tests.support import DEVICES

DATA = Path(__file__).parent / "data" / "repdl"
CASES = [case for case in json.loads((DATA / "index.json").read_text())["cases"] if case["op"] == "mm"]


def load(case):
    with np.load(DATA / f"{case['name']}.npz") as arrays:
        return arrays["in0"], arrays["in1"], arrays["out"]


@pytest.fixture(params=CASES, ids=lambda case: case["name"])
def arrays(request):
    return load(request.param)


def assert_same_but_for_zeros(actual, expected):
    assert actual.shape == expected.shape
    # A sum with +0 turns -0 into +0 and changes nothing else.
    zero = np.float32(0)
    np.testing.assert_array_equal((actual + zero).view(np.uint32), (expected + zero).view(np.uint32))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_data_are_the_recorded_ones(case):
    assert hashlib.sha256(load(case)[2].tobytes()).hexdigest() == case["sha256"]


def test_reference(arrays):
    a, b, out = arrays
    assert_same_but_for_zeros(reference.ordered(a, b), out)


@pytest.mark.parametrize("device", DEVICES)
def test_matmul(arrays, device):
    a, b, out = arrays
    result = repkernels.matmul(torch.from_numpy(a).to(device), torch.from_numpy(b).to(device), contract="ordered")
    assert_same_but_for_zeros(result.cpu().numpy(), out)
