"""How often each token has come in each running request, on the logits' device, for penalties."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.integrations.transformers.requests import Row, prompt_length
from repkernels.ops.sample import PROMPT


class History:
    """int32 (slots + 1, V): the counts of `repkernels.sampling`; the last slot belongs to nobody.

    A request keeps its slot from its first new token on. Steps add what they sampled: the host need not know it.
    """

    def __init__(self, slots: int, vocabulary: int, device: torch.device, stream: Any) -> None:
        self.counts = torch.zeros((slots + 1, vocabulary), dtype=torch.int32, device=device)
        self.stream = stream
        self._owners: list[Any] = [None] * slots
        self._slots: dict[int, int] = {}

    def slots_of(self, rows: Sequence[Row]) -> list[int]:
        """The slot of each row, made anew for a request that has none."""
        here = {id(row.state) for row in rows}
        return [self._slots.get(id(row.state), -1) if self._has(row) else self._take(row, here) for row in rows]

    def _has(self, row: Row) -> bool:
        slot = self._slots.get(id(row.state))
        return slot is not None and self._owners[slot] is row.state

    def _take(self, row: Row, here: set[int]) -> int:
        slot = next(i for i, owner in enumerate(self._owners) if owner is None or id(owner) not in here)
        owner = self._owners[slot]
        if owner is not None:
            self._slots.pop(id(owner), None)
        self._owners[slot], self._slots[id(row.state)] = row.state, slot
        state, n = row.state, prompt_length(row.state)
        tokens = torch.tensor([*state.initial_tokens, *state.generated_tokens], dtype=torch.int64)
        # In the order of steps: one that is running may still write the slot of a request that has gone.
        with torch.cuda.stream(self.stream):
            counts, tokens = self.counts[slot], tokens.to(self.counts.device)
            counts.zero_()
            counts[tokens[:n]] = PROMPT
            counts.scatter_add_(0, tokens[n:], torch.ones_like(tokens[n:], dtype=torch.int32))
        return slot

    def of(self, slots: Tensor) -> Tensor:
        """(B, V), slot -1 being the last."""
        return self.counts[slots]

    def add(self, slots: Tensor, tokens: Tensor) -> None:
        slots = torch.where(slots < 0, len(self._owners), slots)
        places = slots * self.counts.shape[1] + tokens
        self.counts.view(-1).scatter_add_(0, places, torch.ones_like(places, dtype=torch.int32))
