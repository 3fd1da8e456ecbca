"""The sampler: orders by seed and epoch, ranks, resuming."""

import pytest
import torch

import repkernels
from reference import philox
from repkernels import random
from repkernels.random import RandomSampler


def test_epochs_are_permutations_of_the_reference():
    sampler = RandomSampler(range(10), seed=2**63 + 3)
    for epoch in range(3):
        assert sampler.epoch == epoch
        assert list(sampler) == philox.permutation(2**63 + 3, epoch, 10).tolist()
    sampler.set_epoch(1)
    assert list(sampler) == philox.permutation(2**63 + 3, 1, 10).tolist()
    assert len(sampler) == 10
    assert list(RandomSampler([], seed=1)) == []
    assert list(RandomSampler(range(4), seed=1, shuffle=False)) == [0, 1, 2, 3]


def test_the_seed_comes_from_a_generator():
    seeds = []
    for _ in range(2):
        repkernels.manual_seed(5)
        seeds.append(RandomSampler(range(3)).seed)
    assert seeds[0] == seeds[1] == RandomSampler(range(3), generator=random.Generator(5)).seed
    high, low = random.words(5, 0, 2).tolist()
    assert seeds[0] == high << 32 | low
    assert random.get_state()["stream"] == 1


@pytest.mark.parametrize("n", [0, 2, 10, 12, 13])
@pytest.mark.parametrize("replicas", [1, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_are_those_of_torch(n, replicas, drop_last):
    """torch's DistributedSampler cuts and fills up in the same way."""
    ranks = []
    for rank in range(replicas):
        options = {"num_replicas": replicas, "rank": rank, "drop_last": drop_last}
        ours = RandomSampler(range(n), seed=4, **options)
        plain = RandomSampler(range(n), seed=4, shuffle=False, **options)
        if n > 2 or not drop_last:
            theirs = torch.utils.data.DistributedSampler(range(n), shuffle=False, **options)
            if n:
                assert list(plain) == list(theirs)
            assert len(ours) == len(theirs)
        ranks.append(list(ours))
        assert len(ranks[-1]) == len(ours)
    whole = philox.permutation(4, 0, n).tolist()
    merged = [ranks[i % replicas][i // replicas] for i in range(replicas * len(ranks[0]))]
    assert merged[: min(n, len(merged))] == whole[: len(merged)]


def test_resuming_in_the_middle():
    sampler = RandomSampler(range(20), seed=9)
    list(sampler)
    taken = iter(sampler)
    first = [next(taken) for _ in range(7)]
    state = sampler.state_dict()
    assert state == {"seed": 9, "epoch": 1, "position": 7}
    rest = list(taken)
    resumed = RandomSampler(range(20), seed=0)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)  # what a training loop does at the top of each epoch
    assert list(resumed) == rest
    assert first + rest == philox.permutation(9, 1, 20).tolist()
    assert list(resumed) == philox.permutation(9, 2, 20).tolist()
    assert sampler.state_dict(used=5)["position"] == 5


def test_a_pass_that_is_left_begins_anew():
    sampler = RandomSampler(range(20), seed=9)
    next(iter(sampler))
    assert list(sampler) == philox.permutation(9, 0, 20).tolist()


def test_passes_at_once_do_not_disturb_each_other():
    sampler = RandomSampler(range(9), seed=9)
    pairs = list(zip(sampler, sampler, strict=True))
    assert pairs == [(i, i) for i in philox.permutation(9, 0, 9).tolist()]
    assert sampler.epoch == 1
    for _ in sampler:
        sampler.set_epoch(5)
    assert sampler.epoch == 5


def test_in_a_data_loader():
    data = torch.utils.data.TensorDataset(torch.arange(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=RandomSampler(data, seed=1))
    for epoch in range(2):
        drawn = torch.cat([batch for (batch,) in loader])
        assert drawn.tolist() == philox.permutation(1, epoch, 10).tolist()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: RandomSampler(range(3), seed=-1), ValueError, "^seed"),
        (lambda: RandomSampler(range(3), seed=1, generator=random.Generator()), TypeError, "^seed and generator"),
        (lambda: RandomSampler(range(3), seed=1, num_replicas=2, rank=2), ValueError, "^rank"),
        (lambda: RandomSampler(range(3), seed=1).set_epoch(-1), ValueError, "^epoch"),
        (lambda: RandomSampler(range(3), seed=1).load_state_dict({"seed": 1}), ValueError, "^state_dict"),
        (
            lambda: RandomSampler(range(3), seed=1).load_state_dict({"seed": 1, "epoch": 0, "position": 4}),
            ValueError,
            "^state_dict",
        ),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call()
