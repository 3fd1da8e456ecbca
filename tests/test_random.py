"""Philox: draws by seed, stream and index alone, the same on every device."""

import math

import mpmath
import numpy as np
import pytest
import torch

import repkernels
from reference import philox as reference_philox
from reference import random as reference
from repkernels import philox, random
from tests.backends import each_backend
from tests.support import DEVICES, assert_same_bits, tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SEEDS = ((0, 0), (2**63 + 5, 2**40 + 1), (2**64 - 1, 2**64 - 1))


def test_known_answers():
    """The vectors that the authors of Philox publish for philox4x32-10 (Random123, kat_vectors)."""
    assert random.words(0, 0, 4).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = (1 << 64) - 1
    block = philox.philox(np.array([ones], np.uint64), ones, ones)
    assert [int(word[0]) for word in block] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter, stream, seed = 0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822
    block = philox.philox(np.array([counter], np.uint64), seed, stream)
    assert [int(word[0]) for word in block] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 7, 2**64 - 1])
@pytest.mark.parametrize("stream", [0, 3, 2**33])
def test_words_equal_the_reference(seed, stream):
    for count in (0, 1, 3, 4, 5, 1000):
        assert np.array_equal(random.words(seed, stream, count), reference_philox.words(seed, stream, count))


def test_blocks_change_nothing(monkeypatch):
    whole = random.words(5, 6, 1000)
    monkeypatch.setattr(philox, "_BLOCKS", 7)
    assert np.array_equal(random.words(5, 6, 1000), whole)


@each_backend
@pytest.mark.parametrize("seed", SEEDS)
def test_uniform_kernels(backend, seed):
    for count, dtype in ((0, torch.float32), (1, torch.float32), (1025, torch.float32), (777, torch.bfloat16)):
        out = torch.empty(count, dtype=dtype, device=backend.device)
        backend.module("random").uniform(out, *seed, -0.25, 0.7)
        assert_same_bits(out, tensor(reference_philox.uniform(*seed, count, -0.25, 0.7), dtype).to(out.device))
    assert out.min() >= -0.25
    if backend.package == "cpu":
        out = torch.empty(70001)
        backend.module("random").uniform(out, *seed, 0.0, 1.0)
        assert_same_bits(out, tensor(reference_philox.uniform(*seed, 70001, 0.0, 1.0), torch.float32))
        assert out.max() < 1


@each_backend
@pytest.mark.parametrize("seed", SEEDS)
def test_normal_kernels(backend, seed):
    for count, dtype in ((0, torch.float32), (1025, torch.float32), (301, torch.bfloat16)):
        out = torch.empty(count, dtype=dtype, device=backend.device)
        backend.module("normal").normal(out, *seed, 0.5, 2.0, 0)
        assert_same_bits(out, tensor(reference.normal(*seed, count, 0.5, 2.0), dtype).to(out.device))
    out = torch.empty(101, device=backend.device)
    backend.module("normal").normal(out, *seed, 0.0, 1.0, 3)
    assert_same_bits(out.cpu(), tensor(reference.normal(*seed, 101, turn=3), torch.float32))


def test_accuracy_of_normal_numbers():
    """Within 3.5 * 2^-24, relatively, of Box and Muller's formula: at the ends of both words, and in between."""
    from repkernels.cpu.normal import normal_pair

    ends = [0, 0xFF, 0x100, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    turns = [k << 21 | low for k in range(0, 2048, 256) for low in (0, 0x100)]
    pairs = [(w, v) for w in ends for v in turns] + random.words(1, 2, 600).reshape(-1, 2).tolist()
    for w, v in pairs:
        with mpmath.workprec(120):
            r = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf((w >> 8) + 1) / 2**24))
            t = mpmath.mpf(v >> 8) / 2**23
            exact = r * mpmath.cospi(t), r * mpmath.sinpi(t)
            found = normal_pair(np.uint32(w), np.uint32(v))
            for got, want in zip(found, exact, strict=True):
                assert abs(mpmath.mpf(float(got)) - want) <= abs(want) * 3.5 / 2**24
                assert abs(got) < 5.7682


@each_backend
@pytest.mark.parametrize("seed", SEEDS)
def test_integer_kernels(backend, seed):
    kernels = backend.module("random")
    drawn = reference.words64(*seed, 515)
    out = torch.empty(515, dtype=torch.int64, device=backend.device)
    kernels.keys(out, *seed)
    assert out.tolist() == [w - (1 << 63) for w in drawn]
    for span, low in ((1, 5), (7, -3), (2**32 + 5, 0), (2**63, -(2**63)), (2**64 - 1, -(2**63))):
        spans = torch.from_numpy(np.array([span], np.uint64).view(np.int64)).to(backend.device)
        kernels.integers(out, *seed, spans, low)
        assert out.tolist() == [low + (w * span >> 64) for w in drawn]
    spans = torch.tensor([3, 1, 2**40, 10, 7], device=backend.device)
    kernels.integers(out, *seed, spans, 0)
    assert out.tolist() == [w * int(spans[i // 103]) >> 64 for i, w in enumerate(drawn)]


def test_quotients_by_products():
    from repkernels.kernels.random import reciprocal_of

    for divisor in (1, 2, 3, 205, 2**31 - 1, 2**32 + 15, 2**62):
        for i in (0, 1, divisor - 1, divisor, 7 * divisor - 1, 2**40, 2**63 - 1):
            estimate = i * (reciprocal_of(divisor) % 2**64) >> 64
            assert estimate + (i - estimate * divisor >= divisor) == i // divisor


@each_backend
def test_below_kernels(backend):
    out = torch.empty(1025, dtype=torch.bool, device=backend.device)
    each = torch.arange(1025) << 22
    for thresholds in (torch.tensor(1 << 31), torch.tensor(0), torch.tensor(1 << 32), each):
        backend.module("random").below(out, 3, 4, thresholds.to(backend.device))
        wanted = random.words(3, 4, 1025).astype(np.int64) < thresholds.numpy()
        assert np.array_equal(out.cpu().numpy(), wanted)


@each_backend
def test_race_kernels(backend):
    """Weights over many binades, with zeros: the order of the times is the reference's."""
    weights = torch.logspace(-44, 38, 997, dtype=torch.float64).float()
    weights[::7] = 0
    out = torch.empty(997, dtype=torch.int32, device=backend.device)
    backend.module("multinomial").race(out, 5, 6, weights.to(backend.device))
    order = out.cpu().sort(stable=True).indices
    assert order.tolist() == reference.multinomial(5, 6, weights.numpy()[None], 997, False)[0].tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_draws_take_one_stream_each(device):
    repkernels.manual_seed(11)
    found = [
        random.uniform((3, 5), -0.25, 0.7, device=device),
        random.uniform(9, device=device),
        random.normal(7, 1.0, 0.5, device=device),
        random.randint(-3, 40, (2, 3), device=device),
        random.bernoulli(0.3, 50, device=device),
        random.permutation(40, device=device),
    ]
    assert random.get_state() == {"seed": 11, "stream": 6}
    wanted = [
        reference_philox.uniform(11, 0, 15, -0.25, 0.7).reshape(3, 5),
        reference_philox.uniform(11, 1, 9, 0.0, 1.0),
        reference.normal(11, 2, 7, 1.0, 0.5),
        reference.randint(11, 3, 6, -3, 40).reshape(2, 3),
        reference.bernoulli(11, 4, 50, 0.3).astype(np.float32),
        reference_philox.permutation(11, 5, 40),
    ]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.device.type == device
        assert_same_bits(ours.cpu(), torch.from_numpy(theirs))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("draw", [random.uniform, random.normal])
def test_a_prefix_of_a_longer_draw_on_every_device(device, draw):
    for dtype in (torch.float32, torch.bfloat16):
        repkernels.manual_seed(2)
        short = draw(15, dtype=dtype, device=device)
        repkernels.manual_seed(2)
        assert_same_bits(short.cpu(), draw((4, 4)).to(dtype).reshape(-1)[:15])


@pytest.mark.parametrize("n", [0, 1, 2, 97, 5000])
def test_permutation(n):
    repkernels.manual_seed(3)
    random.uniform(1)
    order = random.permutation(n)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(n))
    assert order.tolist() == reference_philox.permutation(3, 1, n).tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_bernoulli_of_a_tensor(device):
    p = torch.tensor([[0.0, 1.0, 0.5, 1e-9], [0.25, 1.0, 0.0, 0.75]])
    for dtype in FLOATS:
        repkernels.manual_seed(1)
        found = random.bernoulli(p.to(device=device, dtype=dtype).t())
        assert found.dtype == dtype
        wanted = reference.bernoulli(1, 0, 8, p.to(dtype).double().t().reshape(-1).numpy())
        assert np.array_equal(found.cpu().float().numpy().astype(bool), wanted.reshape(4, 2))
    assert random.bernoulli(torch.ones(3), dtype=torch.bool).all()
    assert not random.bernoulli(torch.zeros(3), dtype=torch.int64).any()


@pytest.mark.parametrize("device", DEVICES)
def test_randint(device):
    repkernels.manual_seed(1)
    assert_same_bits(
        random.randint(-100, 100, 30, dtype=torch.int8, device=device).cpu(),
        torch.from_numpy(reference.randint(1, 0, 30, -100, 100).astype(np.int8)),
    )
    assert_same_bits(random.randint(6, (5,), device=device).cpu(), torch.from_numpy(reference.randint(1, 1, 5, 0, 6)))
    everything = random.randint(-(2**63), 2**63, 9, device=device)
    assert everything.tolist() == [w - 2**63 for w in reference.words64(1, 2, 9)]
    assert random.randint(0, 256, (0, 3), dtype=torch.uint8).shape == (0, 3)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial(device, replacement):
    weights = torch.logspace(-8, 3, 60, dtype=torch.float64).reshape(3, 20)
    weights[1, ::2] = 0
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        repkernels.manual_seed(8)
        found = random.multinomial(weights.to(device=device, dtype=dtype), 10, replacement)
        wanted = reference.multinomial(8, 0, weights.to(dtype).float().numpy(), 10, replacement)
        assert_same_bits(found.cpu(), torch.from_numpy(wanted))
    assert (found[1] % 2 == 1).all()
    repkernels.manual_seed(8)
    one = random.multinomial(weights[0].to(device), 10, replacement)
    assert one.tolist() == reference.multinomial(8, 0, weights[:1].float().numpy(), 10, replacement)[0].tolist()


def test_multinomial_draws_in_proportion():
    weights = torch.tensor([1.0, 2.0, 0.0, 4.0, 1e-6])
    share = weights / weights.sum()
    drawn = random.multinomial(weights, 200_000, True, generator=random.Generator(1)).bincount(minlength=5) / 200_000
    assert (drawn - share).abs().max() < 0.005
    firsts = random.multinomial(weights.expand(50_000, 5), 1, generator=random.Generator(2)).reshape(-1)
    assert (firsts.bincount(minlength=5) / 50_000 - share).abs().max() < 0.01


def test_moments():
    """Within 5 standard errors, of a million numbers."""
    n, g = 1_000_000, random.Generator(12)
    u = random.uniform(n, generator=g).double()
    assert abs(u.mean() - 1 / 2) < 5 / math.sqrt(12 * n)
    assert abs(u.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / n)
    z = random.normal(n, generator=g).double()
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((z**power).mean() - expected) < 5 * math.sqrt(variance / n)
    assert abs((z[0::2] * z[1::2]).mean()) < 5 / math.sqrt(n)
    assert abs(random.bernoulli(0.3, n, generator=g).double().mean() - 0.3) < 5 * math.sqrt(0.21 / n)
    dice = random.randint(6, (n,), generator=g).bincount() / n
    assert (dice - 1 / 6).abs().max() < 5 * math.sqrt(5 / 36 / n)
    # Bins of equal probability by the error function.
    edges = [0.5 * (1 + math.erf(x / math.sqrt(2))) for x in np.arange(-3, 3.01, 0.5)]
    counts = torch.histogram(z, torch.arange(-3, 3.01, 0.5, dtype=torch.float64)).hist
    for count, low, high in zip(counts.tolist(), edges, edges[1:], strict=False):
        assert abs(count / n - (high - low)) < 5 * math.sqrt((high - low) / n)


@pytest.mark.parametrize("draw", [random.uniform, random.normal])
def test_compiled_draws_take_streams_when_they_run(draw):
    torch._dynamo.reset()
    compiled = torch.compile(lambda: draw((2, 3)) + draw(3), fullgraph=True, backend="aot_eager")
    repkernels.manual_seed(5)
    expected = [draw((2, 3)) + draw(3) for _ in range(2)]
    repkernels.manual_seed(5)
    for want in expected:
        assert_same_bits(compiled(), want)
    assert random.get_state() == {"seed": 5, "stream": 4}


def test_default_and_meta_devices():
    repkernels.manual_seed(5)
    with torch.device("meta"):
        assert random.uniform(np.int64(3)).is_meta
    assert random.randint(5, (2,), device="meta").is_meta
    assert random.get_state()["stream"] == 2


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_raise(seed):
    for start in (repkernels.manual_seed, random.Generator):
        with pytest.raises(ValueError, match="^seed"):
            start(seed)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: repkernels.manual_seed(1.5), TypeError, "seed: expected an int"),
        (lambda: random.uniform(3, dtype=torch.int64), NotImplementedError, "^dtype"),
        (lambda: random.uniform(-1), RuntimeError, "^shape"),
        (lambda: random.uniform((2, -1)), RuntimeError, "^shape"),
        (lambda: random.normal(3, 0.0, -1.0), RuntimeError, "^std"),
        (lambda: random.normal(3, dtype=torch.complex64), NotImplementedError, "^dtype"),
        (lambda: random.normal(3, device="mps"), NotImplementedError, "^device"),
        (lambda: random.permutation(-1), ValueError, "^n:"),
        (lambda: random.permutation(1.5), TypeError, "integer"),
        (lambda: random.randint(3, 3, (2,)), RuntimeError, "^low and high"),
        (lambda: random.randint(0, 300, (2,), dtype=torch.uint8), RuntimeError, "^low and high"),
        (lambda: random.randint(3), TypeError, "^shape"),
        (lambda: random.randint(0, 3, (2,), dtype=torch.float32), NotImplementedError, "^dtype"),
        (lambda: random.bernoulli(1.5, 3), RuntimeError, "^p"),
        (lambda: random.bernoulli(0.5), TypeError, "^shape"),
        (lambda: random.bernoulli(torch.tensor([0.5, -0.1])), RuntimeError, "^p"),
        (lambda: random.bernoulli(torch.tensor([float("nan")])), RuntimeError, "^p"),
        (lambda: random.bernoulli(torch.tensor([1])), NotImplementedError, "^p"),
        (lambda: random.bernoulli(torch.ones(2), 2), TypeError, "^shape"),
        (lambda: random.multinomial(torch.ones(2), 0), RuntimeError, "^num_samples"),
        (lambda: random.multinomial(torch.ones(2), 3), RuntimeError, "^num_samples"),
        (lambda: random.multinomial(torch.ones(2, 2, 2), 1), RuntimeError, "^input"),
        (lambda: random.multinomial(torch.ones(2, 0), 1, True), RuntimeError, "^input"),
        (lambda: random.multinomial(torch.zeros(2), 1, True), RuntimeError, "^input"),
        (lambda: random.multinomial(torch.tensor([1.0, -1.0]), 1, True), RuntimeError, "^input"),
        (lambda: random.multinomial(torch.tensor([1.0, math.inf]), 1, True), RuntimeError, "^input"),
        (lambda: random.multinomial(torch.tensor([1.0, math.nan]), 1), RuntimeError, "^input"),
        (lambda: random.multinomial(torch.tensor([1.0, 0.0]), 2), RuntimeError, "^input"),
        (lambda: random.uniform(3, generator=torch.Generator()), TypeError, "^generator"),
        (lambda: random.uniform(3, 2.0, 1.0), RuntimeError, "^low and high"),
        (lambda: random.uniform(3, -3e38, 3e38), RuntimeError, "^low and high"),
        (lambda: random.uniform(3, 0.0, float("nan")), RuntimeError, "^low and high"),
        (lambda: random.set_state({"seed": 1}), ValueError, "^state"),
        (lambda: random.set_state({"seed": 1, "stream": 0.5}), ValueError, "^state"),
        (lambda: random.set_state({"seed": -1, "stream": 0}), ValueError, "^state"),
        (lambda: random.set_state(None), ValueError, "^state"),
    ],
)
def test_bad_arguments_raise(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(0.0, 1e-38), (-1e-39, 1e-39)])
def test_subnormals_stay_where_the_caller_flushes_them(bounds, dtype):
    drawn = []
    for flush in (False, True):
        repkernels.manual_seed(0)
        torch.set_flush_denormal(flush)
        try:
            drawn.append((random.uniform(20, *bounds, dtype=dtype), random.normal(20, *map(abs, bounds), dtype=dtype)))
            flushing = float(torch.tensor(1e-38) * 0.1) == 0
        finally:
            torch.set_flush_denormal(False)
        assert flushing == flush
    for kept, same in zip(*drawn, strict=True):
        assert kept.any()
        assert_same_bits(kept, same)
