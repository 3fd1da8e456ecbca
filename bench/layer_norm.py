"""layer_norm and rms_norm of rows, forward and backward, beside a copy of as many bytes and torch's own."""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from repkernels.ops.backend import backend

from .registry import Run, Variant, Work, benchmark
from .tensors import COPY, copy_of, normal

ROWS_OF = (1024, 4096, 16384)
EPS = 1e-5


class Operands(NamedTuple):
    """x and the result's gradient (R, C), weight and bias (C,), and what torch and this library keep of a forward."""

    x: Tensor
    g: Tensor
    weight: Tensor
    bias: Tensor
    theirs: tuple[Tensor, ...]
    ours: tuple[Tensor, Tensor]


@benchmark("layer_norm")
def layer_norm(device: torch.device, quick: bool) -> Iterator[Work]:
    """2^28 bf16 elements on a GPU, 2^22 fp32 ones on a CPU; backward with the gradients of weight and bias."""
    gpu = device.type == "cuda"
    count, dtype = (2**24 if quick else 2**28, torch.bfloat16) if gpu else (2**20 if quick else 2**22, torch.float32)
    for columns in (1024,) if quick else ROWS_OF:
        for name in ("layer_norm", "rms_norm"):
            shape, kind = (count // columns, columns), str(dtype).removeprefix("torch.")
            for backward in (False, True):
                traffic = (3 if backward else 2) * count * dtype.itemsize
                yield Work(
                    name=f"{name}{' backward' if backward else ''} {columns} {kind}",
                    group=name,
                    operands=partial(_operands, name, device, dtype, shape),
                    variants=[
                        copy_of(traffic, device),
                        Variant("torch", partial(_torch_backward if backward else _torch, name)),
                        Variant("repkernels", partial(_ours_backward if backward else _ours, name)),
                    ],
                    baseline=COPY,
                    operations=count,
                    traffic=traffic,
                    sizes={"rows": shape[0], "columns": columns},
                )


def _operands(name: str, device: torch.device, dtype: torch.dtype, shape: tuple[int, int]) -> Operands:
    x, g = (normal(device, dtype, *shape, seed=seed) for seed in (0, 1))
    weight, bias = (normal(device, dtype, shape[1], seed=seed) for seed in (2, 3))
    _, _, mean, inverse = backend(name, device.type).forward(x, None, weight, _bias(name, bias), EPS, dtype)
    if name == "layer_norm":
        theirs = torch.ops.aten.native_layer_norm(x, [shape[1]], weight, bias, EPS)[1:]
    else:
        theirs = torch.ops.aten._fused_rms_norm(x, [shape[1]], weight, EPS)[1:]
    return Operands(x, g, weight, bias, tuple(theirs), (mean, inverse))


def _bias(name: str, bias: Tensor) -> Tensor | None:
    return bias if name == "layer_norm" else None


def _torch(name: str, o: Operands) -> Run:
    shape = [o.x.shape[1]]
    if name == "layer_norm":
        return lambda i: torch.nn.functional.layer_norm(o.x, shape, o.weight, o.bias, EPS)
    return lambda i: torch.nn.functional.rms_norm(o.x, shape, o.weight, EPS)


def _torch_backward(name: str, o: Operands) -> Run:
    shape, aten = [o.x.shape[1]], torch.ops.aten
    if name == "layer_norm":
        needed = [True, True, True]
        return lambda i: aten.native_layer_norm_backward(o.g, o.x, shape, *o.theirs, o.weight, o.bias, needed)
    return lambda i: aten._fused_rms_norm_backward(o.g, o.x, shape, *o.theirs, o.weight, [True, True])


def _ours(name: str, o: Operands) -> Run:
    kernels, bias = backend(name, o.x.device.type), _bias(name, o.bias)
    return lambda i: kernels.forward(o.x, None, o.weight, bias, EPS, o.x.dtype)


def _ours_backward(name: str, o: Operands) -> Run:
    kernels = backend(name, o.x.device.type)
    return lambda i: kernels.backward(o.g, o.x, *o.ours, o.weight, None, True)
