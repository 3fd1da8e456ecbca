"""The gradients' formulas of reductions, to the bit; their public functions are tested in test_reductions.py."""

import math

import pytest
import torch

from reference import reductions as reference
from repkernels.ops import reduce
from tests.backends import each_backend
from tests.support import assert_same_bits, name, randn, tensor, values

INFINITY = math.inf


GRADIENTS = {
    "variance": lambda g, v, dims, t: reference.var_gradient(g, v, dims, t),
    "deviation": lambda g, v, dims, t: reference.var_gradient(g, v, dims, t, root=True),
    "root": lambda g, v, dims, t: reference.norm_gradient(g, v, dims, t, 2),
    "sign": lambda g, v, dims, t: reference.norm_gradient(g, v, dims, t, 1),
    "tie": lambda g, v, dims, t: reference.extreme_gradient(g, v, dims, t),
    "magnitude tie": lambda g, v, dims, t: reference.norm_gradient(g, v, dims, t, INFINITY),
    "exponential": lambda g, v, dims, t: reference.logsumexp_gradient(g, v, dims, t),
}


@each_backend
@pytest.mark.parametrize("formula", GRADIENTS)
def test_gradients(backend, formula):
    """Along memory, across it, with rows in two levels; halves; zeros, ties and NaN."""
    sums, extrema = backend.module("sum").reduce, backend.module("extrema").extreme
    run = backend.module("reduction_gradient").gradient
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        if dtype == torch.float64 and formula == "exponential":
            continue
        for shape, dims in (((3, 5, 7), [0, 2]), ((6, 40), [1]), ((40, 6), [0])):
            x = randn(*shape, dtype=dtype, device=backend.device)
            x[0] = 0.0
            x[1, 1:4] = torch.tensor([math.nan, 2.0, -2.0]).to(x)[(...,) + (None,) * (x.ndim - 2)]
            terms, n, wanted_type = (
                reduce.columns(x, dims),
                reduce.count(shape, dims),
                torch.float64 if dtype == torch.float64 else torch.float32,
            )
            g = randn(terms.shape[2] * terms.shape[3], dtype=dtype, device=backend.device, seed=1)
            center = extrema(terms, True, formula == "magnitude tie").to(wanted_type)
            root = None
            if formula in ("variance", "deviation"):
                center = sums(terms, "value", None, "mean", n, wanted_type)
                root = sums(terms, "deviation", center, "mean root", n - 1, dtype).to(wanted_type)
            elif formula == "root":
                root = sums(terms, "square", None, "root", 1, dtype).to(wanted_type)
            elif formula == "exponential":
                center = sums(terms, "exponential", center, "logarithm", 1, dtype).to(wanted_type)
            elif formula.endswith("tie"):
                root = sums(terms, formula, center, "sum", 1, wanted_type)
            out = torch.empty_like(x)
            run(*reduce.four_axes(dims, x, out), g.to(wanted_type), center, root, formula, n - 1)
            assert_same_bits(out.cpu(), tensor(GRADIENTS[formula](values(g), values(x), dims, name(dtype)), dtype))
