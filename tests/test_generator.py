"""Generators: seeds, streams and their state."""

import copy
import pickle
import threading

import numpy as np
import torch

import repkernels
from reference import philox as reference_philox
from repkernels import random
from tests.support import assert_same_bits, tensor


def test_state_resumes():
    repkernels.manual_seed(4)
    random.uniform(3)
    state = random.get_state()
    expected = random.uniform(5), random.permutation(5)
    random.set_state(state)
    assert torch.equal(random.uniform(5), expected[0])
    assert torch.equal(random.permutation(5), expected[1])
    assert state == {"seed": 4, "stream": 1}


def test_generators_keep_streams_of_their_own():
    repkernels.manual_seed(4)
    ours = random.Generator(4)
    first = random.uniform(5, generator=ours)
    assert random.get_state() == {"seed": 4, "stream": 0}
    assert torch.equal(random.uniform(5), first)
    assert ours.get_state() == {"seed": 4, "stream": 1}
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert twin.get_state() == ours.get_state()
        assert_same_bits(
            random.uniform(3, generator=twin), tensor(reference_philox.uniform(4, 1, 3, 0, 1), torch.float32)
        )
    assert repr(ours) == "Generator(seed=4, stream=1)"
    assert ours.initial_seed() == 4
    assert repkernels.manual_seed(0) is not ours


def test_a_fork_leaves_the_generator():
    repkernels.manual_seed(4)
    with random.fork_rng():
        repkernels.manual_seed(9)
        random.uniform(3)
    assert random.get_state() == {"seed": 4, "stream": 0}
    with random.fork_rng(enabled=False):
        random.uniform(3)
    assert random.get_state() == {"seed": 4, "stream": 1}


def test_streams_wrap_around():
    g = random.Generator(1)
    g.set_state({"seed": 1, "stream": 2**64 - 1})
    last = random.uniform(3, generator=g)
    assert g.get_state()["stream"] == 0
    assert_same_bits(last, tensor(reference_philox.uniform(1, 2**64 - 1, 3, 0.0, 1.0), torch.float32))


def test_torchs_generator_is_not_touched():
    before = torch.get_rng_state()
    repkernels.manual_seed(1)
    random.uniform(10)
    random.multinomial(torch.ones(3), 2)
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


def test_a_state_is_kept_as_plain_integers():
    before = random.get_state()
    random.set_state({"seed": np.int64(7), "stream": torch.tensor(2)})
    assert [type(v) for v in random.get_state().values()] == [int, int]
    random.set_state(before)
