"""The order in which a DataLoader visits a data set: by seed and epoch alone, and resumable."""

import operator
from collections.abc import Iterator, Sized
from typing import Any

import torch

from repkernels import generator as streams
from repkernels.generator import Generator
from repkernels.ops import random as draws


class RandomSampler(torch.utils.data.Sampler[int]):
    """Indices of `data_source` in random order, for torch.utils.data.DataLoader(sampler=...).

    data_source: anything with a length n. seed: 0 <= seed < 2^64; without one it is drawn from `generator`, or the
    process's generator, as one 64-bit word. Epoch e is `random.permutation(n)` of this seed and stream e (its identity
    with shuffle=False), and nothing else decides it: not the workers, nor the draws of other code.

    rank, num_replicas: this process takes every num_replicas-th index, starting with its rank, as
    torch.utils.data.DistributedSampler does; the end is filled up with the first indices, or cut with drop_last=True,
    so that all take equally many. With another number of processes the epoch's order stays, cut otherwise.

    A pass to the end begins the next epoch; `set_epoch` sets it. `state_dict` holds the seed, epoch and position, and
    the first pass after `load_state_dict` goes on at that position. A DataLoader with workers asks for indices ahead of
    time: give `state_dict` the number of samples that were really used.

    Raises ValueError for a seed, rank or number of replicas out of range, TypeError for seed and generator at once.
    """

    def __init__(
        self,
        data_source: Sized,
        *,
        seed: int | None = None,
        generator: Generator | None = None,
        shuffle: bool = True,
        num_replicas: int = 1,
        rank: int = 0,
        drop_last: bool = False,
    ) -> None:
        if seed is not None and generator is not None:
            raise TypeError("seed and generator: only one of them may be given")
        if seed is None:
            number = draws.keys(streams.chosen(generator).next_stream(), (1,), torch.device("cpu"))
            seed = int(number.item()) + (1 << 63)
        if not 0 <= rank < num_replicas:
            raise ValueError(f"rank and num_replicas: expected 0 <= rank < num_replicas, got {rank} and {num_replicas}")
        self.data_source = data_source
        self.seed = Generator(seed).initial_seed()
        self.shuffle, self.num_replicas, self.rank, self.drop_last = shuffle, num_replicas, rank, drop_last
        self.epoch = 0
        self._position = self._start = 0

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of `epoch` >= 0, from its beginning."""
        epoch = operator.index(epoch)
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch: expected 0 <= epoch < 2**64, got {epoch}")
        if epoch != self.epoch:
            self.epoch, self._position, self._start = epoch, 0, 0

    def __len__(self) -> int:
        n = len(self.data_source)
        return n // self.num_replicas if self.drop_last else -(-n // self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        epoch, indices = self.epoch, self._indices()
        self._position = position = self._start
        self._start = 0
        while position < len(indices):
            self._position = position = position + 1
            yield indices[position - 1]
        if self.epoch == epoch:
            self.epoch, self._position = epoch + 1, 0

    def _indices(self) -> list[int]:
        n = len(self.data_source)
        if self.shuffle:
            order = draws.keys((self.seed, self.epoch), (n,), torch.device("cpu")).sort(stable=True).indices.tolist()
        else:
            order = list(range(n))
        total = len(self) * self.num_replicas
        if 0 < len(order) < total:
            order = (order * -(-total // len(order)))[:total]
        return order[:total][self.rank :: self.num_replicas]

    def state_dict(self, used: int | None = None) -> dict[str, int]:
        """{"seed", "epoch", "position"}; position is `used`, or how many indices this pass has given."""
        position = self._position if used is None else operator.index(used)
        return {"seed": self.seed, "epoch": self.epoch, "position": position}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues where `state_dict` was taken. Raises ValueError for anything else."""
        try:
            seed, epoch, position = (operator.index(state_dict[name]) for name in ("seed", "epoch", "position"))
        except (KeyError, TypeError):
            raise ValueError(f"state_dict: expected integers seed, epoch and position, got {state_dict!r}") from None
        if not 0 <= position <= len(self):
            raise ValueError(f"state_dict: position {position} is outside of an epoch of {len(self)}")
        self.seed = Generator(seed).initial_seed()
        self.set_epoch(epoch)
        self._position = self._start = position
