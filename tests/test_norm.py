"""Norms of orders other than 0, 1, 2 and infinity; those are tested with the other reductions."""

import pytest
import torch

import repkernels
from tests.support import assert_same_bits, randn


@pytest.mark.parametrize("p", [0.5, 1.5, 3, -1, -2.5])
def test_norms_of_other_orders(p):
    x = randn(4, 6)
    x[0, 1] = 0
    x[1] = 0
    results = []
    for f in (repkernels.norm, torch.norm):
        v = x.clone().requires_grad_()
        out = f(v, p, 1)
        results.append((out, *torch.autograd.grad(out, v, torch.ones(4))))
    torch.testing.assert_close(results[0][0], results[1][0])
    finite = results[1][1].isfinite()
    torch.testing.assert_close(results[0][1][finite], results[1][1][finite], rtol=1e-5, atol=1e-5)
    powers = repkernels.pow(x[2].abs(), p)
    assert_same_bits(results[0][0][2], repkernels.pow(repkernels.sum(powers), 1 / p))
    assert_same_bits(repkernels.norm(x.bfloat16(), p), repkernels.norm(x.bfloat16().float(), p).bfloat16())
