"""Batching rules of vmap for operations that can't take a whole batch at once."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


def first(info: Any, in_dims: Sequence[int | None], *tensors: Any) -> list[Any]:
    """Every tensor with the batch as its first axis, repeated where it has none; for None a list of None."""
    size = info.batch_size
    return [
        [None] * size if t is None else t.movedim(d, 0) if d is not None else t.expand(size, *t.shape)
        for t, d in zip(tensors, in_dims, strict=True)
    ]


def one_by_one(call: Callable[..., Any], info: Any, in_dims: Sequence[int | None], args: Sequence[Any]) -> Any:
    """What vmap returns for an operation of several results that runs once for each sample."""
    tensors = [a for a in args if a is None or isinstance(a, torch.Tensor)]
    rest = args[len(tensors) :]
    results = [call(*sample, *rest) for sample in zip(*first(info, in_dims[: len(tensors)], *tensors), strict=True)]
    stacked = tuple(torch.stack(values) for values in zip(*results, strict=True))
    return stacked, (0,) * len(stacked)


def refuse(name: str, dims: Sequence[int | None]) -> None:
    """Raises NotImplementedError if a weight, bias or the like has a batch axis."""
    if any(dim is not None for dim in dims):
        raise NotImplementedError(f"{name}: vmap over weight or bias is not supported; only over input")
