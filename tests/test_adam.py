"""Adam and AdamW: the reference's bits on both backends, torch's arguments, state and schedulers."""

import copy
import inspect
import math

import numpy as np
import pytest
import torch

import repkernels
from reference import adam as reference
from repkernels.ops.adam import power
from repkernels.optim import Adam, AdamW
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, name, randn, tensor, values

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
SIZES = (0, 1, 5, 255, 1024, 1300)
SETTINGS = {
    "adam": {},
    "adamw": {"weight_decay": 0.01, "decoupled": True, "lr": 0.1},
    "amsgrad": {"amsgrad": True, "maximize": True, "betas": (0.5, 0.7), "eps": 1e-3},
    "decay": {"weight_decay": 0.1, "lr": 1 / 3, "eps": 0.0},
}
CLASSES = [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)]
OPTIONS = [{}, {"weight_decay": 0.1}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True, "betas": (0.8, 0.9)}]


def arguments(settings, step):
    full = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "decoupled": False} | settings
    (b1, b2), lr, decay = full["betas"], full["lr"], full["weight_decay"]
    shrink, decay = (1 - lr * decay, 0.0) if full["decoupled"] else (1.0, decay)
    root, rate = math.sqrt(1 - power(b2, step)), lr / (1 - power(b1, step))
    return shrink, decay, 1 - b1, b2, 1 - b2, root, full["eps"], rate, full.get("maximize", False)


def check(backend, p, grads, settings):
    """Steps the tensors p in place, comparing them and their state after each."""
    kind, wide = p[0].dtype, torch.float64 if p[0].dtype == torch.float64 else torch.float32
    m, v, largest = ([torch.zeros_like(x, dtype=wide) for x in p] for _ in range(3))
    wanted = [values(x).copy() for x in p]
    states = [reference.start(x, name(kind)) for x in wanted]
    for t, g in enumerate(grads, 1):
        lists = (p, g, m, v, largest if settings.get("amsgrad") else [])
        backend.module("adam").adam_steps(*lists, *arguments(settings, t))
        for i, x in enumerate(p):
            wanted[i], states[i] = reference.step(wanted[i], values(g[i]), states[i], name(kind), **settings)
            assert_same_bits(x.cpu(), tensor(wanted[i], kind))
            assert_same_bits(m[i].cpu(), torch.from_numpy(states[i].m))
            assert_same_bits(v[i].cpu(), torch.from_numpy(states[i].v))
            assert_same_bits(largest[i].cpu(), torch.from_numpy(states[i].largest))


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_lists(backend, dtype, settings):
    """Tensors of all sizes, on and off the borders of 16 bytes."""

    def drawn(seed):
        x = [randn(n + 1, dtype=dtype, device=backend.device, seed=seed + n) for n in SIZES]
        return [v[i % 2 :][:n] for i, (v, n) in enumerate(zip(x, SIZES, strict=True))]

    check(backend, drawn(0), [drawn(seed) for seed in (1, 2, 3)], SETTINGS[settings])


@each_backend
def test_a_tensor_of_several_pieces(backend):
    p, g = ([randn(33000, device=backend.device, seed=seed)] for seed in (0, 1))
    check(backend, p, [g], SETTINGS["adamw"])


@each_backend
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", SETTINGS)
def test_values_that_are_easily_lost(backend, dtype, settings):
    """Zeros of both signs, subnormals, the largest numbers, infinities and NaN, each meeting each."""
    info = torch.finfo(dtype)
    special = [0.0, -0.0, info.smallest_normal, -info.smallest_normal / 4, info.max, -info.max, np.inf, np.nan, -1.0]
    p = torch.tensor(special, dtype=dtype, device=backend.device).repeat_interleave(len(special))
    g = torch.tensor(special, dtype=dtype, device=backend.device).repeat(len(special))
    check(backend, [p], [[g], [g.flip(0)], [g]], SETTINGS[settings])


@pytest.mark.parametrize("numbers", [(1, 2**40, -3), ((5, 2**62), (7, 8), (9, 10))])
def test_tables_that_kernels_write(numbers):
    from repkernels.kernels.flat import numbers_on, written

    device = torch.device(DEVICES[-1])
    assert_same_bits(written(numbers, device), numbers_on(numbers, device))


def test_subnormals_stay_where_the_caller_flushes_them():
    p, q = (torch.nn.Parameter(1e-38 * randn(40000)) for _ in range(2))
    for x, flush in ((p, False), (q, True)):
        optimizer = AdamW([x], lr=1e-40, eps=1e-39)
        torch.set_flush_denormal(flush)
        try:
            for seed in (1, 2):
                x.grad = randn(40000, seed=seed) * 2**-66
                optimizer.step()
        finally:
            torch.set_flush_denormal(False)
    assert_same_bits(q.data, p.data)


def test_powers():
    for base in (0.9, 0.999, 0.0, 0.5):
        for exponent in (1, 2, 3, 10, 1000, 123457):
            assert power(base, exponent) == reference.power(base, exponent)
            assert math.isclose(power(base, exponent), base**exponent, rel_tol=1e-10, abs_tol=1e-300)
    assert power(0.3, 0) == 1


def _run(cls, options, steps=3, dtype=torch.float32, device="cpu", **more):
    p = torch.nn.Parameter(randn(7, 5, dtype=dtype, device=device))
    optimizer = cls([p], lr=0.1, **options, **more)
    for i in range(steps):
        p.grad = randn(7, 5, dtype=dtype, device=device, seed=i + 1)
        optimizer.step()
    return p, optimizer


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cls", [Adam, AdamW])
@pytest.mark.parametrize("options", OPTIONS)
def test_bits(device, dtype, cls, options):
    p, optimizer = _run(cls, options, steps=4, dtype=dtype, device=device)
    expected = values(randn(7, 5, dtype=dtype))
    state = reference.start(expected, name(dtype))
    settings = {"weight_decay": 0.01 if cls is AdamW else 0.0} | options
    for i in range(4):
        g = values(randn(7, 5, dtype=dtype, seed=i + 1))
        expected, state = reference.step(expected, g, state, name(dtype), 0.1, decoupled=cls is AdamW, **settings)
    assert_same_bits(p.data.cpu(), tensor(expected, dtype))
    ours = optimizer.state[p]
    assert ours["step"].item() == 4
    assert_same_bits(ours["exp_avg"].cpu(), torch.from_numpy(state.m))
    assert_same_bits(ours["exp_avg_sq"].cpu(), torch.from_numpy(state.v))
    assert ("max_exp_avg_sq" in ours) == options.get("amsgrad", False)


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("options", OPTIONS)
def test_near_torch(classes, options):
    ours, theirs = (_run(cls, options)[0] for cls in classes)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("classes", CLASSES)
def test_torchs_arguments(classes):
    ours, theirs = (inspect.signature(cls).parameters for cls in classes)
    assert ours.keys() == theirs.keys()
    assert [p.default for p in ours.values()] == [p.default for p in theirs.values()]


@pytest.mark.parametrize("classes", CLASSES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("fused", [None, True])
def test_torchs_state_continues_and_goes_back(classes, options, fused):
    cls, torchs = classes
    q, theirs = _run(torchs, options, fused=fused)
    p, ours = _run(cls, options, steps=0)
    p.data.copy_(q.data)
    ours.load_state_dict(theirs.state_dict())
    for key, value in theirs.state[q].items():
        assert_same_bits(ours.state[p][key], value)
    assert ours.state_dict()["param_groups"] == theirs.state_dict()["param_groups"]
    _, back = _run(torchs, options, steps=0)
    back.load_state_dict(ours.state_dict())
    for x, optimizer in ((p, ours), (q, theirs)):
        x.grad = torch.ones_like(x)
        optimizer.step()
    torch.testing.assert_close(p, q)
    assert ours.state_dict()["state"][0].keys() == theirs.state_dict()["state"][0].keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_resuming_is_the_straight_run(dtype, tmp_path):
    straight, _ = _run(AdamW, {"amsgrad": True}, steps=5, dtype=dtype)
    p, optimizer = _run(AdamW, {"amsgrad": True}, steps=2, dtype=dtype)
    torch.save({"p": p.data, "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    saved = torch.load(tmp_path / "state.pt")
    q = torch.nn.Parameter(saved["p"])
    resumed = AdamW([q], lr=7.0)
    resumed.load_state_dict(saved["optimizer"])
    assert repkernels.digest(resumed) == repkernels.digest(optimizer)
    assert repkernels.digest(copy.deepcopy(optimizer)) == repkernels.digest(optimizer)
    for i in range(2, 5):
        q.grad = randn(7, 5, dtype=dtype, seed=i + 1)
        resumed.step()
    assert_same_bits(q.data, straight.data)


def test_lists_are_their_tensors():
    """Parameters of several dtypes, layouts and step counts, together and alone."""

    def parameters():
        memory = randn(6, 8, seed=3)
        return [
            torch.nn.Parameter(x)
            for x in (
                randn(4, 3), randn(5, dtype=torch.bfloat16), memory.clone().t(), memory.clone()[:, ::2],
                randn(2, 3, 4, 5).to(memory_format=torch.channels_last), randn(3, dtype=torch.float64), torch.empty(0),
            )
        ]  # fmt: skip

    def grads(p, seed):
        g = randn(*p.shape, seed=seed).to(p.dtype)
        return g.to(memory_format=torch.channels_last) if p.ndim == 4 and seed == 1 else g

    together, alone = parameters(), parameters()
    optimizer, optimizers = AdamW(together), [AdamW([p]) for p in alone]
    for seed in (1, 2, 3):
        for i, (p, q) in enumerate(zip(together, alone, strict=True)):
            # One of them has no gradient at first, so that the numbers of steps differ.
            p.grad = None if (i, seed) == (0, 1) else grads(p, seed)
            q.grad = p.grad
        optimizer.step()
        for each in optimizers:
            each.step()
        for p, q in zip(together, alone, strict=True):
            assert_same_bits(p.data, q.data)
    plain = torch.nn.Parameter(randn(6, 8, seed=3)[:, ::2].contiguous())
    single = AdamW([plain])
    for seed in (1, 2, 3):
        plain.grad = grads(together[3], seed)
        single.step()
    assert_same_bits(plain.data, together[3].data)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=4),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=8),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 0.5**t),
    ],
)
def test_schedulers(make):
    p = torch.nn.Parameter(randn(7, 5))
    optimizer = AdamW([p], lr=0.1)
    scheduler = make(optimizer)
    expected, state = values(p), reference.start(values(p), "float32")
    for i in range(4):
        p.grad = randn(7, 5, seed=i + 1)
        group = optimizer.param_groups[0]
        settings = {"lr": group["lr"], "betas": group["betas"], "weight_decay": 0.01}
        expected, state = reference.step(expected, values(p.grad), state, "float32", decoupled=True, **settings)
        optimizer.step()
        scheduler.step()
        assert_same_bits(p.data, tensor(expected, torch.float32))


def test_numbers_as_tensors():
    first, _ = _run(AdamW, {"betas": (0.8, 0.9)})
    p = torch.nn.Parameter(randn(7, 5))
    betas = torch.tensor(0.8, dtype=torch.float64), torch.tensor(0.9, dtype=torch.float64)
    optimizer = AdamW([p], lr=torch.tensor(0.1, dtype=torch.float64), betas=betas)
    for i in range(3):
        p.grad = randn(7, 5, seed=i + 1)
        optimizer.step()
    assert_same_bits(p.data, first.data)


@pytest.mark.parametrize("device", DEVICES)
def test_gradient_scaler(device):
    """torch's own scaler: a step whose gradients overflow is left out."""
    p, q = (torch.nn.Parameter(torch.ones(3, device=device)) for _ in range(2))
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10)
    ours, plain = AdamW([p], lr=0.1), AdamW([q], lr=0.1)
    for factor in (1.0, float("inf"), 0.5):
        ours.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(ours)
        scaler.update()
        if math.isfinite(factor):
            q.grad = torch.full_like(q, factor)
            plain.step()
    assert_same_bits(p.data, q.data)


def test_versions_rise_and_the_closure_is_called():
    p = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = Adam([p], lr=0.25)

    def closure():
        optimizer.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    before = p._version
    assert optimizer.step(closure).item() == 4.0
    assert p._version > before
    assert p.item() == 1.75


def test_a_compiled_training_step():
    torch._dynamo.reset()
    results = []
    for wrap in (lambda f: f, lambda f: torch.compile(f, backend="aot_eager")):
        p = torch.nn.Parameter(randn(3, 2))
        optimizer = AdamW([p], lr=0.1)

        def train(x, p=p, optimizer=optimizer):
            optimizer.zero_grad()
            (p * x).sum().backward()
            optimizer.step()

        step = wrap(train)
        for i in range(3):
            step(randn(3, 2, seed=i + 1))
        results.append(p.data)
    assert_same_bits(*results)


@pytest.mark.parametrize("cls", [Adam, AdamW])
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, "^lr"),
        ({"lr": float("nan")}, ValueError, "^lr"),
        ({"lr": torch.ones(2)}, ValueError, "^lr"),
        ({"betas": (1.0, 0.9)}, ValueError, r"^betas\[0\]"),
        ({"betas": (0.9, -0.1)}, ValueError, r"^betas\[1\]"),
        ({"betas": (0.9, torch.ones(2))}, ValueError, r"^betas\[1\]"),
        ({"eps": -1e-8}, ValueError, "^eps"),
        ({"weight_decay": -0.1}, ValueError, "^weight_decay"),
        ({"differentiable": True}, NotImplementedError, "^differentiable"),
        ({"capturable": True}, NotImplementedError, "^capturable"),
        ({"foreach": True, "fused": True}, RuntimeError, "^foreach and fused"),
    ],
)
def test_bad_arguments(cls, options, error, message):
    with pytest.raises(error, match=message):
        cls([torch.nn.Parameter(torch.ones(2))], **options)


def test_bad_parameters_and_gradients():
    with pytest.raises(NotImplementedError, match="^params: dtype torch.complex64"):
        AdamW([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    table = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = Adam(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
