"""Steps of recurrent layers."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import recurrent
from tests.instructions.case import Case, everything, tensor

GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}


def _step(mode: str, dtype: torch.dtype, size: int, odd: bool = False) -> None:
    batch = 16
    p, q = (tensor(batch, GATES[mode] * size, dtype=dtype, odd=odd) for _ in range(2))
    state, h, c = (tensor(batch, size, dtype=dtype, odd=odd) for _ in range(3))
    acts, share = tensor(batch, 4 * size), tensor(batch, size)
    recurrent.forward(mode, p, q, state, acts, h, c)
    recurrent.backward(mode, h, c, share, acts, state, p, q)
    recurrent.summed(h, c, state)


def cases(target: str) -> Iterator[Case]:
    """The kinds with gates; odd sizes and plain layers on sm_90."""
    yield Case("lstm", partial(_step, "lstm", torch.float32, 64))
    yield Case("gru, bfloat16, odd", partial(_step, "gru", torch.bfloat16, 33, True))
    yield Case("tanh", partial(_step, "tanh", torch.float32, 64))
    if everything(target):
        yield Case("lstm, float16, odd", partial(_step, "lstm", torch.float16, 33, True))
        yield Case("relu, bfloat16", partial(_step, "relu", torch.bfloat16, 64))
