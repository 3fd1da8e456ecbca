"""Optimizers and the clipping of gradients."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import adam, clip, flat, sgd
from tests.instructions.case import Case, tensor


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _sgd(dtype: torch.dtype, first: bool, nesterov: bool, odd: bool = False) -> None:
    p, g, v = (tensor(4096, dtype=kind, odd=odd) for kind in (dtype, dtype, _wide(dtype)))
    sgd.sgd_steps([p], [g], [v], 0.1, 0.9, 0.1, 0.01, nesterov, first, not first)


def _adam(dtype: torch.dtype, decoupled: bool, amsgrad: bool, odd: bool = False) -> None:
    p, g, m, v, largest = (tensor(4096, dtype=kind, odd=odd) for kind in (dtype, dtype, *3 * [_wide(dtype)]))
    shrink, decay = (0.99, 0.0) if decoupled else (1.0, 0.01)
    lists = ([p], [g], [m], [v], [largest] if amsgrad else [])
    adam.adam_steps(*lists, shrink, decay, 0.1, 0.9, 0.1, 0.5, 1e-8, 1e-3, amsgrad)


def _clip(dtype: torch.dtype, kind: str, odd: bool = False) -> None:
    x = tensor(100000, dtype=dtype, odd=odd)
    clip.norms([x], kind)
    clip.scale([x], tensor(1, dtype=_wide(dtype)))


def cases(target: str) -> Iterator[Case]:
    """All that is checked on `target`."""
    yield Case("sgd float32", partial(_sgd, torch.float32, False, True))
    yield Case("sgd first step, odd", partial(_sgd, torch.float16, True, False, odd=True))
    yield Case("adamw float32", partial(_adam, torch.float32, True, False))
    yield Case("adam bfloat16, amsgrad, odd", partial(_adam, torch.bfloat16, False, True, odd=True))
    yield Case("adamw float64", partial(_adam, torch.float64, True, True))
    yield Case("norms of type 2 and scaling, float32", partial(_clip, torch.float32, "2"))
    yield Case("norms of type inf and scaling, bfloat16, odd", partial(_clip, torch.bfloat16, "inf", odd=True))
    yield Case("a table in a captured graph", lambda: flat.written((1, 2**40, 3), torch.device("cpu")))
