"""erf, gelu, gelu_tanh where they are hardest to round, and where gelu halves subnormals. More: test_rounded.py."""

import numpy as np
import pytest
import torch

from reference import unary
from repkernels.coefficients.error import ERF_LAST
from repkernels.cpu.rounded import error
from tests.support import assert_same_bits
from tests.test_rounded import fp32, function, on_cpu, on_triton

# Of all fp32 numbers those whose results are nearest to the middle of two fp32 numbers, 2^-33 to 2^-24 ulp.
NEAREST = {
    "erf": [0x3940EAD6, 0x39C0057D, 0x3B25A39D, 0x3F043A75, 0x37EE85C4, 0x3AA60E18, 0x3C7C9E9F, 0x3F44DDFD],
    "gelu": [0xB7B0A46F, 0x38CA1BE2, 0xC0925885, 0x3EADA244, 0x38028E89, 0x3E493CC6, 0xB34AA765, 0x3E60B687],
    "gelu_tanh": [0x37B0A46F, 0xB7B0A46F, 0x38028E89, 0xB34AA765, 0x3F414D8F, 0x3EAB6834, 0x3B9377A9, 0x37F5C377],
}


@pytest.mark.parametrize("name", NEAREST)
def test_nearest_to_a_middle(name):
    x = fp32([bits ^ sign for bits in NEAREST[name] for sign in (0, 1 << 31)])
    wanted = torch.from_numpy(unary.forward(name, x))
    assert_same_bits(on_cpu(getattr(error, name), x), wanted)
    assert_same_bits(on_triton(function("kernels", "error", name), x), wanted)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_halves_of_subnormals(name):
    """x / 2 + c x^2 with a last term far out of sight: halves of odd subnormals round toward +infinity."""
    rng = np.random.default_rng(0)
    units = np.concatenate([np.arange(1, 4096), rng.integers(1, 1 << 24, 60000)])
    for sign in (1, -1):
        x = (sign * units * 2.0**-149).astype(np.float32)
        wanted = sign * ((units + (sign == 1)) // 2).astype(np.float64) * 2.0**-149
        assert_same_bits(on_cpu(getattr(error, name), x), torch.from_numpy(wanted.astype(np.float32)))


def test_tails_vanish_with_their_sign():
    x = np.array([-14.5, -20, -1e30, -np.inf], np.float32)
    for name in ("gelu", "gelu_tanh"):
        assert_same_bits(on_cpu(getattr(error, name), x), torch.full((4,), -0.0))
    ends = fp32([0x407AD444, 0x407AD445])
    assert_same_bits(on_cpu(error.erf, ends), torch.from_numpy(unary.forward("erf", ends)))
    assert unary.forward("erf", np.float32([ERF_LAST])) == 1
