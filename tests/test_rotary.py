"""Rotary position embeddings: tables and rotations on both backends, frequencies, gradients, errors."""

import copy
import types

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from reference import rotary as reference
from repkernels import nn
from repkernels.nn import functional
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
POSITIONS = torch.tensor([[0, 1, 2, 4095, 131071], [-3, 2**20 + 1, 2**24 + 1, 2**30 + 7, 2**62 + 12345]])


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
def test_tables(backend, dtype):
    """Positions beyond 2^24, whose binary64 product is not exact, and negative ones."""
    inv_freq, _ = nn.rope_frequencies(12, {"rope_theta": 10000.0})
    interleaved = dtype == torch.bfloat16
    positions, inv_freq = POSITIONS.to(backend.device), inv_freq.to(backend.device)
    cos, sin = (torch.empty(2, 5, 12, dtype=dtype, device=backend.device) for _ in range(2))
    backend.module("rotary").tables(positions.reshape(-1), inv_freq, 1.25, interleaved, cos, sin)
    wanted = reference.tables(POSITIONS.numpy(), values(inv_freq), 1.25, name(dtype), interleaved)
    for x, y in zip((cos, sin), wanted, strict=True):
        assert_same_bits(x.cpu(), tensor(y, dtype))


@each_backend
@pytest.mark.parametrize(("dtype", "size", "rotated", "interleaved"), [
    (torch.float32, 8, 8, False), (torch.bfloat16, 10, 6, True), (torch.float16, 9, 2, False),
])  # fmt: skip
@pytest.mark.parametrize("inverse", [False, True])
def test_rotations(backend, dtype, size, rotated, interleaved, inverse):
    """q and k with different numbers of heads, transposed as attention has them; special values; both halves apart."""
    q, k = (randn(2, 7, h, size, dtype=dtype, device=backend.device, seed=h).transpose(1, 2) for h in (3, 1))
    q[0, 0, 0, 0], q[0, 1, 0, 1], q[1, 2, 3, 0] = float("nan"), float("inf"), -0.0
    cos, sin = (randn(2, 1, 7, rotated, device=backend.device, seed=s) for s in (5, 6))
    sides = []
    for x in (q, k):
        by = [t.expand(*x.shape[:-1], rotated) for t in (cos, sin)]
        sides.append([x, torch.empty_like(x), *by])
    backend.module("rotary").rotate(*sides, interleaved, inverse)
    for x, out, *_ in sides:
        wanted = reference.rotate(values(x), values(cos), values(sin), name(dtype), interleaved, inverse)
        assert_same_bits(out.cpu(), tensor(wanted, dtype))


@pytest.mark.parametrize("device", DEVICES)
def test_as_transformers_has_it(device):
    """fp32 steps of `q * cos + rotate_half(q) * sin`, both axes orders, gradients of any order; a row alone."""
    inv_freq, scaling = nn.rope_frequencies(8, {"rope_theta": 10000.0, "rope_type": "default"}, device=device)
    positions = torch.arange(3, 10, device=device).expand(2, 7)
    cos, sin = functional.rope_cos_sin(positions, inv_freq, scaling)
    q, k = randn(2, 3, 7, 8, device=device).requires_grad_(), randn(2, 1, 7, 8, device=device, seed=1).requires_grad_()
    found = functional.apply_rotary_pos_emb(q, k, cos, sin)

    def rotated(x, c, s):
        a, b = x.chunk(2, -1)
        return x * c + torch.cat((-b, a), -1) * s

    for x, y in zip((q, k), found, strict=True):
        assert_same_bits(y, rotated(x, cos[:, None], sin[:, None]))
    turned = functional.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin, 2)
    assert_same_bits(turned[0].transpose(1, 2), found[0])
    assert turned[0].transpose(1, 2).is_contiguous()
    one = functional.apply_rotary_pos_emb(q[1:, :, 4:5], k[1:, :, 4:5], cos[1:, 4:5], sin[1:, 4:5])
    assert_same_bits(one[0], found[0][1:, :, 4:5])
    g = randn(2, 3, 7, 8, device=device, seed=2).requires_grad_()
    (grad,) = torch.autograd.grad(found[0], q, g, create_graph=True)
    assert_same_bits(grad, tensor(reference.rotate(values(g), values(cos[:, None]), values(sin[:, None]), "float32",
                                                   inverse=True), torch.float32))  # fmt: skip
    (again,) = torch.autograd.grad(grad, g, q)
    assert_same_bits(again, found[0])
    torch.library.opcheck(torch.ops.repkernels.rotary, (q, k, cos[:, None], sin[:, None], False, False),
                           test_utils="test_faketensor")  # fmt: skip


PARAMETERS = {
    "default": {},
    "linear": {"factor": 4.0},
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.25},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4096},
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_frequencies(kind):
    """The reference's bits, and transformers' numbers within the errors of its fp32 steps."""
    given = {"rope_type": kind, "rope_theta": 500000.0, **PARAMETERS[kind]}
    found, scaling = nn.rope_frequencies(64, given)
    wanted, wanted_scaling = reference.frequencies(64, kind, 500000.0, **PARAMETERS[kind])
    assert_same_bits(found, torch.from_numpy(wanted))
    assert scaling == wanted_scaling
    if kind != "default":
        config = types.SimpleNamespace(
            head_dim=64, hidden_size=64, num_attention_heads=1, rope_parameters=given, max_position_embeddings=8192,
            standardize_rope_params=lambda: None,
        )  # fmt: skip
        theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
        np.testing.assert_allclose(found, theirs, rtol=2e-6)
        assert scaling == pytest.approx(factor)


def test_frequencies_by_hand():
    long = {"rope_type": "longrope", "rope_theta": 100.0, "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0],
            "original_max_position_embeddings": 16}  # fmt: skip
    found, scaling = nn.rope_frequencies(4, long, max_position_embeddings=32, longrope="long")
    np.testing.assert_array_equal(found, np.float32([0.25, 1 / 80]))
    assert scaling == pytest.approx((1 + 0.25) ** 0.5)
    for parameters, error, message in (
        (long, NotImplementedError, "longest sequence of the batch"),
        ({"rope_type": "dynamic", "rope_theta": 1e4}, NotImplementedError, "longest sequence"),
        ({"rope_type": "other", "rope_theta": 1e4}, ValueError, "unknown type 'other'"),
        ({"rope_type": "linear", "rope_theta": 1e4}, ValueError, "needs 'factor'"),
        ({"rope_theta": -1.0}, ValueError, "rope_theta: expected a positive number"),
        ({}, ValueError, "needs 'rope_theta'"),
    ):
        with pytest.raises(error, match=message):
            nn.rope_frequencies(4, copy.deepcopy(parameters))


def test_errors():
    q, k, cos = torch.ones(2, 3, 7, 8), torch.ones(2, 1, 7, 8), torch.ones(2, 7, 8)
    rotate = functional.apply_rotary_pos_emb
    for arguments, error, message in (
        ((q, k.double(), cos, cos), NotImplementedError, "k: dtype torch.float64"),
        ((q, k.half(), cos, cos), RuntimeError, "k: dtype torch.float16 differs"),
        ((q, k, cos, cos[..., :4]), RuntimeError, "sin: shape"),
        ((q, k, cos[..., :3], cos[..., :3]), RuntimeError, "even last size"),
        ((q, k, cos[:, :5], cos[:, :5]), RuntimeError, "q: shape .* does not fit cos"),
        ((q[..., :6], k, cos, cos), RuntimeError, "q: shape .* does not fit cos"),
        ((q, k, cos.clone().requires_grad_(), cos), RuntimeError, "cos: has no gradient"),
    ):
        with pytest.raises(error, match=message):
            rotate(*arguments)
    with pytest.raises(NotImplementedError, match="positions: dtype"):
        functional.rope_cos_sin(torch.ones(3), torch.ones(4))
    with pytest.raises(RuntimeError, match="inv_freq: expected one dimension"):
        functional.rope_cos_sin(torch.arange(3), torch.ones(4, 1))
    assert functional.rope_cos_sin(torch.arange(0), torch.ones(4))[0].shape == (0, 8)
