"""Philox: draws by seed, stream and index alone."""

import threading

import numpy as np
import pytest
import torch

import repkernels
from reference import philox
from repkernels import random
from tests.support import DEVICES, assert_same_bits, tensor


def test_known_answers():
    """The vectors that the authors of Philox publish for philox4x32-10 (Random123, kat_vectors)."""
    assert random.words(0, 0, 4).tolist() == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = (1 << 64) - 1
    block = random._philox(np.array([ones], np.uint64), ones, ones)
    assert [int(word[0]) for word in block] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter, stream, seed = 0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822
    block = random._philox(np.array([counter], np.uint64), seed, stream)
    assert [int(word[0]) for word in block] == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 7, 2**64 - 1])
@pytest.mark.parametrize("stream", [0, 3, 2**33])
def test_words_equal_the_reference(seed, stream):
    for count in (0, 1, 3, 4, 5, 1000):
        assert np.array_equal(random.words(seed, stream, count), philox.words(seed, stream, count))


def test_blocks_change_nothing(monkeypatch):
    whole = random.words(5, 6, 1000)
    monkeypatch.setattr(random, "_BLOCKS", 7)
    assert np.array_equal(random.words(5, 6, 1000), whole)


def test_uniform_equals_the_reference():
    repkernels.manual_seed(11)
    first, second = random.uniform((3, 5), -0.25, 0.7), random.uniform(9)
    assert_same_bits(first, tensor(philox.uniform(11, 0, 15, -0.25, 0.7).reshape(3, 5), torch.float32))
    assert_same_bits(second, tensor(philox.uniform(11, 1, 9, 0.0, 1.0), torch.float32))
    assert second.min() >= 0
    assert second.max() < 1


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_a_prefix_of_a_longer_draw_on_every_device(device, dtype):
    repkernels.manual_seed(2)
    short = random.uniform(15, dtype=dtype, device=device)
    repkernels.manual_seed(2)
    assert_same_bits(short.cpu(), random.uniform((4, 4), dtype=dtype).reshape(-1)[:15])


@pytest.mark.parametrize("n", [0, 1, 2, 97, 5000])
def test_permutation(n):
    repkernels.manual_seed(3)
    random.uniform(1)
    order = random.permutation(n)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(n))
    assert order.tolist() == philox.permutation(3, 1, n).tolist()


def test_state_resumes():
    repkernels.manual_seed(4)
    random.uniform(3)
    state = random.get_state()
    expected = random.uniform(5), random.permutation(5)
    random.set_state(state)
    assert torch.equal(random.uniform(5), expected[0])
    assert torch.equal(random.permutation(5), expected[1])
    assert state == {"seed": 4, "stream": 1}


def test_torchs_generator_is_not_touched():
    before = torch.get_rng_state()
    repkernels.manual_seed(1)
    random.uniform(10)
    assert torch.equal(torch.get_rng_state(), before)


def test_threads_never_share_a_stream():
    repkernels.manual_seed(0)
    streams = []

    def draw():
        for _ in range(200):
            streams.append(random.next_stream()[1])

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(streams) == list(range(800))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_out_of_range_raise(seed):
    with pytest.raises(ValueError, match="^seed"):
        repkernels.manual_seed(seed)


def test_bad_arguments_raise():
    with pytest.raises(TypeError):
        repkernels.manual_seed(1.5)
    with pytest.raises(NotImplementedError, match="^dtype"):
        random.uniform(3, dtype=torch.int64)
    for shape in (-1, (2, -1)):
        with pytest.raises(RuntimeError, match="^shape"):
            random.uniform(shape)
    with pytest.raises(ValueError, match="^n:"):
        random.permutation(-1)
    for state in ({"seed": 1}, {"seed": 1, "stream": 0.5}, {"seed": -1, "stream": 0}):
        with pytest.raises(ValueError, match="^state"):
            random.set_state(state)


def test_a_state_is_kept_as_plain_integers():
    before = random.get_state()
    random.set_state({"seed": np.int64(7), "stream": torch.tensor(2)})
    assert [type(v) for v in random.get_state().values()] == [int, int]
    random.set_state(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("bounds", [(0.0, 1e-38), (-1e-39, 1e-39)])
def test_subnormals_stay_where_the_caller_flushes_them(bounds, dtype):
    drawn = []
    for flush in (False, True):
        repkernels.manual_seed(0)
        torch.set_flush_denormal(flush)
        try:
            drawn.append(random.uniform(20, *bounds, dtype=dtype))
            flushing = float(torch.tensor(1e-38) * 0.1) == 0
        finally:
            torch.set_flush_denormal(False)
        assert flushing == flush
    assert drawn[0].any()
    assert_same_bits(*drawn)
