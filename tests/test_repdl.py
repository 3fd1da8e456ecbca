"""Results of RepDL, an independent C++ implementation of the ordered rule: its exact bits, up to the sign of zero."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import repkernels
from reference import conv
from reference import matmul as reference
from repkernels.nn import functional
from tests.support import DEVICES

DATA = Path(__file__).parent / "data" / "repdl"
CASES = json.loads((DATA / "index.json").read_text())["cases"]
PRODUCTS = [case for case in CASES if case["op"] == "mm"]
CONVOLUTIONS = [case for case in CASES if case["op"] != "mm"]

each_product = pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case["name"])
each_convolution = pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case["name"])


def load(case):
    with np.load(DATA / f"{case['name']}.npz") as arrays:
        return arrays["in0"], arrays["in1"], arrays["out"]


def assert_same_but_for_zeros(actual, expected):
    assert actual.shape == expected.shape
    # A sum with +0 turns -0 into +0 and changes nothing else.
    zero = np.float32(0)
    np.testing.assert_array_equal((actual + zero).view(np.uint32), (expected + zero).view(np.uint32))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_data_are_the_recorded_ones(case):
    assert hashlib.sha256(load(case)[2].tobytes()).hexdigest() == case["sha256"]


@each_product
def test_reference(case):
    a, b, out = load(case)
    assert_same_but_for_zeros(reference.ordered(a, b), out)


@pytest.mark.parametrize("device", DEVICES)
@each_product
def test_matmul(case, device):
    a, b, out = load(case)
    result = repkernels.matmul(torch.from_numpy(a).to(device), torch.from_numpy(b).to(device), contract="ordered")
    assert_same_but_for_zeros(result.cpu().numpy(), out)


def options(case):
    return {name: case["params"][name] for name in ("stride", "padding", "groups") if name in case["params"]}


@each_convolution
def test_reference_of_convolutions(case):
    a, b, out = load(case)
    rule = "float32", "ordered"
    if case["op"] == "conv2d":
        found = conv.forward(a, b, None, conv.geometry(a.shape[2:], b.shape[2:], **options(case)), *rule)
    elif case["op"] == "conv2d_grad_input":
        g = conv.geometry(case["params"]["input_hw"], b.shape[2:], **options(case))
        found = conv.input_gradient(a, b, None, g, *rule)
    else:
        g = conv.geometry(b.shape[2:], case["params"]["kernel_hw"], **options(case))
        found = conv.weight_gradient(a, b, g, *rule)
    assert_same_but_for_zeros(found, out)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels_last"])
@each_convolution
def test_convolutions(case, form, device):
    """Gradients of a convolution whose other operand, of which they do not depend, is zero."""
    a, b, out = load(case)
    a, b = (torch.from_numpy(v).to(device, memory_format=form) for v in (a, b))
    if case["op"] == "conv2d":
        found = functional.conv2d(a, b, **options(case), contract="ordered")
    else:
        zero = torch.zeros(out.shape, device=device, requires_grad=True)
        operands = (zero, b) if case["op"] == "conv2d_grad_input" else (b, zero)
        y = functional.conv2d(*operands, **options(case), contract="ordered")
        (found,) = torch.autograd.grad(y, zero, a)
    assert_same_but_for_zeros(found.detach().cpu().numpy(), out)
