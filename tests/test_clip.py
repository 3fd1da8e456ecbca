"""Clipping of gradients: the reference's bits on both backends, torch's arguments."""

import inspect
import math

import numpy as np
import pytest
import torch

from reference import clip as reference
from repkernels import nn
from repkernels.nn import utils
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

SIZES = (0, 1, 7, 1024, 1500, 66000)
TYPES = {"1": 1.0, "2": 2.0, "inf": math.inf}


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("kind", TYPES)
def test_norms(backend, dtype, kind):
    """Sizes around lanes and blocks, on and off the borders of 16 bytes."""
    x = [randn(n + 1, dtype=dtype, device=backend.device, seed=n) for n in SIZES]
    x = [v[i % 2 :][:n] for i, (v, n) in enumerate(zip(x, SIZES, strict=True))]
    found = backend.module("clip").norms(x, kind)
    wanted = [reference.norm(values(v), name(dtype), TYPES[kind]) for v in x]
    assert_same_bits(found.cpu(), torch.from_numpy(np.array(wanted)))


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_scaling(backend, dtype):
    x = [randn(n + 1, dtype=dtype, device=backend.device, seed=n)[n % 2 :][:n] for n in SIZES]
    wanted = [values(v) * np.float32(0.3) if dtype != torch.float64 else values(v) * 0.3 for v in x]
    factor = torch.tensor(0.3, dtype=torch.float64 if dtype == torch.float64 else torch.float32, device=backend.device)
    backend.module("clip").scale(x, factor)
    for found, want in zip(x, wanted, strict=True):
        assert_same_bits(found.cpu(), torch.from_numpy(want).to(dtype))


@each_backend
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, -0.0, 1e-45, 3e38])
def test_special_values(backend, kind, special):
    x = torch.zeros(2000, device=backend.device)
    x[1700] = special
    found = backend.module("clip").norms([x], kind)
    assert_same_bits(found.cpu(), torch.tensor([reference.norm(values(x), "float32", TYPES[kind])]))


def parameters(device, dtype=torch.float32):
    p = [torch.nn.Parameter(torch.zeros(n, dtype=dtype, device=device)) for n in (40, 3, 1100, 5)]
    for i, each in enumerate(p[:3]):
        each.grad = randn(*each.shape, dtype=dtype, device=device, seed=i)
    return p


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("norm_type", TYPES.values())
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clip_grad_norm(device, dtype, norm_type, max_norm):
    p = parameters(device, dtype)
    before = [values(each.grad).copy() for each in p[:3]]
    total = utils.clip_grad_norm_(p, max_norm, norm_type)
    wanted, clipped = reference.clipped(before, name(dtype), max_norm, norm_type)
    assert_same_bits(total.cpu(), torch.tensor(wanted))
    for each, want in zip(p, clipped, strict=False):
        assert_same_bits(each.grad.cpu(), tensor(want, dtype))
    assert p[3].grad is None
    if dtype == torch.float32:
        q = parameters(device)
        torch.testing.assert_close(torch.nn.utils.clip_grad_norm_(q, max_norm, norm_type), total)
        for ours, theirs in zip(p[:3], q, strict=False):
            torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("device", DEVICES)
def test_strides_and_mixed_dtypes(device):
    grads = [randn(6, 8, device=device).t(), randn(4, 9, device=device, seed=1)[:, ::2], randn(3, device=device).half()]
    plain = [g.clone(memory_format=torch.contiguous_format) for g in grads]
    totals = []
    for each in (grads, plain):
        p = [torch.nn.Parameter(torch.zeros_like(g)) for g in each]
        for q, g in zip(p, each, strict=True):
            q.grad = g
        totals.append(utils.clip_grad_norm_((q for q in p), 0.5))
    assert_same_bits(*totals)
    for a, b in zip(grads, plain, strict=True):
        assert_same_bits(a, b)


def test_clip_grad_value():
    p = torch.nn.Parameter(torch.zeros(6, dtype=torch.bfloat16))
    p.grad = torch.tensor([1.0, -1.0, 0.25, -0.0, math.nan, math.inf], dtype=torch.bfloat16)
    utils.clip_grad_value_([p], 0.3)
    limit = torch.tensor(0.3).bfloat16().item()
    wanted = torch.tensor([limit, -limit, 0.25, -0.0, math.nan, limit], dtype=torch.bfloat16)
    assert_same_bits(p.grad, wanted)


@pytest.mark.parametrize("limit", [1.0, 1e-40])
def test_clip_grad_value_keeps_subnormals_where_the_caller_flushes_them(limit):
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.tensor([1e-41, -1e-39, 1e-42])
    wanted = p.grad.clamp(-limit, limit)
    torch.set_flush_denormal(True)
    try:
        utils.clip_grad_value_(p, limit)
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(p.grad, wanted)


def test_meta_gradients():
    p = torch.nn.Parameter(torch.zeros(3, device="meta"))
    p.grad = torch.zeros(3, device="meta")
    assert utils.clip_grad_norm_(p, 1.0).is_meta
    utils.clip_grad_value_(p, 1.0)


def test_torchs_arguments():
    assert "utils" in nn.__all__
    for ours, theirs in ((getattr(utils, n), getattr(torch.nn.utils, n)) for n in utils.__all__):
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_versions_rise_and_nothing_changes_before_an_error():
    p = torch.nn.Parameter(torch.zeros(3))
    p.grad = torch.tensor([1.0, math.inf, 2.0])
    with pytest.raises(RuntimeError, match="^parameters"):
        utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert p.grad[0] == 1
    p.grad = torch.ones(3)
    before = p.grad._version
    utils.clip_grad_norm_(p, 1.0)
    assert p.grad._version > before


def test_no_gradients_and_bad_arguments():
    p = torch.nn.Parameter(torch.zeros(3))
    assert utils.clip_grad_norm_([p], 1.0) == 0
    with pytest.warns(UserWarning, match="empty generator"):
        utils.clip_grad_norm_((q for q in ()), 1.0)
    with pytest.raises(NotImplementedError, match="^norm_type"):
        utils.clip_grad_norm_([p], 1.0, norm_type=3)
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(NotImplementedError, match="^parameters: a gradient"):
        utils.clip_grad_norm_(table.parameters(), 1.0)
