"""softmax and log_softmax of rows, forward and backward, beside a copy of as many bytes and torch's own."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from repkernels.ops.backend import backend

from .registry import Run, Variant, Work, benchmark
from .tensors import COPY, copy_of, normal

ROWS_OF = (1024, 4096, 16384)


@benchmark("softmax")
def softmax(device: torch.device, quick: bool) -> Iterator[Work]:
    """2^28 bf16 elements on a GPU, 2^22 fp32 ones on a CPU."""
    gpu = device.type == "cuda"
    count, dtype = (2**24 if quick else 2**28, torch.bfloat16) if gpu else (2**20 if quick else 2**22, torch.float32)
    for columns in (1024,) if quick else ROWS_OF:
        for log in (False, True):
            name = "log_softmax" if log else "softmax"
            shape, kind = (count // columns, columns), str(dtype).removeprefix("torch.")
            for backward in (False, True):
                traffic = (3 if backward else 2) * count * dtype.itemsize
                yield Work(
                    name=f"{name}{' backward' if backward else ''} {columns} {kind}",
                    group=name,
                    operands=partial(_operands, device, dtype, shape, log),
                    variants=[
                        copy_of(traffic, device),
                        Variant("torch", partial(_torch_backward if backward else _torch, log)),
                        Variant("repkernels", partial(_ours_backward if backward else _ours, log)),
                    ],
                    baseline=COPY,
                    operations=count,
                    traffic=traffic,
                    sizes={"rows": shape[0], "columns": columns},
                )


def _operands(device: torch.device, dtype: torch.dtype, shape: tuple[int, int], log: bool) -> tuple[Tensor, ...]:
    x, g = (normal(device, dtype, *shape, seed=seed) for seed in (0, 1))
    return x, g, (torch.log_softmax if log else torch.softmax)(x, 1)


def _torch(log: bool, operands: tuple[Tensor, ...]) -> Run:
    function = torch.log_softmax if log else torch.softmax
    return lambda i: function(operands[0], 1)


def _torch_backward(log: bool, operands: tuple[Tensor, ...]) -> Run:
    _, g, y = operands
    aten = torch.ops.aten
    gradient = aten._log_softmax_backward_data if log else aten._softmax_backward_data
    return lambda i: gradient(g, y, 1, y.dtype)


def _ours(log: bool, operands: tuple[Tensor, ...]) -> Run:
    kernels = backend("softmax", operands[0].device.type)
    return lambda i: kernels.softmax(operands[0], log)


def _ours_backward(log: bool, operands: tuple[Tensor, ...]) -> Run:
    _, g, y = operands
    kernels = backend("softmax", g.device.type)
    return lambda i: kernels.softmax_backward(g, y, log)
