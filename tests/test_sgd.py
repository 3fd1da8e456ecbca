"""A step of SGD on both backends against its definition, to the bit."""

import numpy as np
import pytest
import torch

from reference import sgd as reference
from repkernels.ops import sgd as ops
from tests.backends import Backend, each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

SETTINGS = {
    "plain": {"lr": 0.05},
    "weight decay": {"lr": 0.05, "weight_decay": 0.01},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "dampening": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 1e-3},
    "nesterov": {"lr": 1 / 3, "momentum": 0.9, "nesterov": True},
    "maximize": {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.1, "maximize": True},
    "nothing": {"lr": 0.0},
    "tiny weight decay": {"lr": 1e-3, "weight_decay": 1e-60},
}


def step(backend, p, g, v, first, settings):
    """By the kernels of a package, or, where there is none, by the operation."""
    full = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False, **settings}
    run = backend.module("sgd").sgd_steps if backend.package else ops.sgd_steps
    v = [] if v is None else [v]
    run([p], [g], v, first=first, **full)


def check(backend, p, grads, settings):
    """Steps p in place, comparing parameter and velocity after each."""
    wide = torch.float64 if p.dtype == torch.float64 else torch.float32
    v = torch.full_like(p, np.nan, dtype=wide) if settings.get("momentum") else None
    wanted_p, wanted_v = values(p).copy(), None
    for i, g in enumerate(grads):
        step(backend, p, g, v, i == 0, settings)
        wanted_p, wanted_v = reference.step(wanted_p, values(g), wanted_v, name(p.dtype), **settings)
        assert_same_bits(p.cpu(), tensor(wanted_p, p.dtype))
        if v is not None:
            assert_same_bits(v.cpu(), torch.from_numpy(wanted_v))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps(backend, dtype, settings):
    p = randn(37, 29, dtype=dtype, device=backend.device)
    grads = [randn(37, 29, dtype=dtype, device=backend.device, seed=s) for s in (1, 2, 3)]
    check(backend, p, grads, SETTINGS[settings])


@each_backend
@pytest.mark.parametrize("size", [0, 1, 1023, 1024, 1025, 70001])
def test_sizes(backend, size):
    p = randn(size, device=backend.device)
    check(backend, p, [randn(size, device=backend.device, seed=s) for s in (1, 2)], SETTINGS["dampening"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides(device, dtype):
    """Parameter, gradient and velocity may each lie in memory as they like; the parameter's neighbours stay."""
    on_device = Backend("", device)
    base = randn(20, 30, dtype=dtype, device=device)
    before = base.clone()
    grads = [
        randn(15, 10, dtype=dtype, device=device, seed=1).t(),
        randn(1, 15, dtype=dtype, device=device, seed=2).expand(10, 15),
    ]
    check(on_device, base[::2, :15], grads, SETTINGS["dampening"])
    assert_same_bits(base[1::2], before[1::2])
    assert_same_bits(base[:, 15:], before[:, 15:])
    across = randn(15, 10, dtype=dtype, device=device).t()
    check(on_device, across, [grads[0], grads[0]], SETTINGS["nesterov"])


@each_backend
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lists(backend, dtype):
    """Tensors of all sizes and alignments in one call are what they are alone."""
    sizes = (0, 1, 5, 255, 256, 1024, 1300, 20000)
    base = randn(sum(sizes) + 8, dtype=dtype, device=backend.device)
    grads = randn(sum(sizes) + 8, dtype=dtype, device=backend.device, seed=1)
    offsets = np.cumsum((0, *sizes))
    full = {"lr": 0.1, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.1, "nesterov": True, "maximize": False}
    results = []
    for shift in (0, 8):
        p = [base.clone()[o : o + n] for o, n in zip(offsets, sizes, strict=False)]
        p = [torch.cat([x.new_zeros(shift // 8), x])[shift // 8 :] for x in p]
        g = [grads[o : o + n] for o, n in zip(offsets, sizes, strict=False)]
        v = [torch.ones_like(x, dtype=torch.float32) for x in p]
        backend.module("sgd").sgd_steps(p, g, v, first=False, **full)
        results.append((torch.cat(p), torch.cat(v)))
    expected, velocity = reference.step(
        values(base[: sum(sizes)]), values(grads[: sum(sizes)]), np.ones(sum(sizes), np.float32), name(dtype), 0.1,
        0.9, weight_decay=0.1, nesterov=True,
    )  # fmt: skip
    for found_p, found_v in results:
        assert_same_bits(found_p.cpu(), tensor(expected, dtype))
        assert_same_bits(found_v.cpu(), torch.from_numpy(velocity))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", ["plain", "dampening", "nesterov", "maximize", "tiny weight decay"])
def test_values_that_are_easily_lost(backend, dtype, settings):
    """Zeros of both signs, subnormals, the largest numbers, infinities and NaN, each meeting each."""
    info = torch.finfo(dtype)
    special = [0.0, -0.0, info.smallest_normal, -info.smallest_normal / 4, info.max, -info.max, np.inf, np.nan, -1.0]
    p = torch.tensor(special, dtype=dtype, device=backend.device).repeat_interleave(len(special))
    g = torch.tensor(special, dtype=dtype, device=backend.device).repeat(len(special))
    check(backend, p, [g, g.flip(0), g], SETTINGS[settings])


@pytest.mark.parametrize("dtype", DTYPES)
def test_subnormals_stay_where_the_caller_flushes_them(dtype):
    from repkernels.cpu.sgd import sgd_steps

    tiny = torch.finfo(dtype).smallest_normal
    p, g = tiny * randn(70001, dtype=torch.float64), tiny * randn(70001, dtype=torch.float64, seed=1)
    p, g = p.to(dtype), g.to(dtype)
    wanted, _ = reference.step(values(p), values(g), None, name(dtype), 0.5)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    try:
        sgd_steps([p], [g], [], 0.5, 0.0, 0.0, 0.0, False, False, False)
        flushing = float(torch.tensor(1e-38) * 0.1) == 0
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)
    assert flushing
    assert_same_bits(p, tensor(wanted, dtype))


def test_a_subnormal_learning_rate_stays_where_the_caller_flushes_it():
    from repkernels.cpu.sgd import sgd_steps

    p, g = torch.zeros(3), torch.full((3,), 1e38)
    torch.set_flush_denormal(True)
    try:
        sgd_steps([p], [g], [], 1e-39, 0.0, 0.0, 0.0, False, False, False)
    finally:
        torch.set_flush_denormal(False)
    assert_same_bits(p, tensor(-np.float32(1e-39) * values(g), torch.float32))
