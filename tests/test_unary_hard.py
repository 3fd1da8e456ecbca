"""The public functions on the inputs hardest to round and on samples, against the proofs' double-double arithmetic.

The proof over all 2^32 inputs takes a GPU (bench/prove_functions.py); this is what every machine repeats of it.
"""

import functools

import numpy as np
import pytest
import torch

import repkernels
from bench.proofs import hard_cases
from bench.proofs.compare import sample
from bench.proofs.functions import TRUTHS
from bench.proofs.measure import measure
from reference import unary
from repkernels.nn import functional
from tests.support import DEVICES, assert_same_bits

MEASURED_ON = torch.device(DEVICES[-1])
HARD = hard_cases.known()


def public(name):
    """The public function; None for one that the library does not have."""
    if name == "gelu_tanh":
        return functools.partial(functional.gelu, approximate="tanh")
    return getattr(functional, name, getattr(repkernels, name, None))


PUBLIC = {name: public(name) for name in TRUTHS if public(name)}


def singles(patterns):
    return torch.from_numpy(np.asarray(patterns, np.int64).astype(np.uint32).view(np.float32))


def test_the_recorded_results_are_right():
    assert set(HARD) == set(TRUTHS)
    for name, cases in HARD.items():
        for x, y in cases.items():
            assert unary.value(name, int(x, 16)) == int(y, 16), (name, x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PUBLIC)
def test_hard_cases(name, device):
    x, y = (singles([int(v, 16) for v in column]) for column in (HARD[name], HARD[name].values()))
    assert_same_bits(PUBLIC[name](x.to(device)).cpu(), y)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", PUBLIC)
def test_a_sample(name, device):
    patterns = sample(1 << 14, seed=11)
    right, distance = (v.cpu() for v in measure(name, torch.from_numpy(patterns), MEASURED_ON))
    for i in (distance == 0).nonzero()[:, 0].tolist():
        right[i] = torch.tensor(unary.value(name, int(patterns[i]))).to(torch.int32)
    assert_same_bits(PUBLIC[name](singles(patterns).to(device)).cpu(), right.view(torch.float32))
