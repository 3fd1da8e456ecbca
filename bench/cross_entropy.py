"""Mean cross-entropy of a language model's logits, forward and backward, beside torch's own."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from repkernels.nn import functional

from .registry import Run, Variant, Work, benchmark
from .tensors import copy_of, normal


@benchmark("cross_entropy")
def cross_entropy(device: torch.device, quick: bool) -> Iterator[Work]:
    """8192 rows of 128256 bf16 logits on a GPU; fewer on a CPU. Bytes: logits read twice, their gradient written."""
    gpu = device.type == "cuda"
    shapes = [(1024, 32000)] if quick else [(8192, 128256), (65536, 1024)] if gpu else [(256, 32000)]
    dtype = torch.bfloat16 if gpu else torch.float32
    for rows, classes in shapes:
        traffic = 3 * rows * classes * dtype.itemsize
        yield Work(
            name=f"cross_entropy forward and backward {rows}x{classes} {str(dtype).removeprefix('torch.')}",
            group="cross_entropy",
            operands=partial(_operands, device, dtype, rows, classes),
            variants=[
                copy_of(traffic, device),
                Variant("torch", partial(_both, torch.nn.functional.cross_entropy)),
                Variant("repkernels", partial(_both, functional.cross_entropy)),
            ],
            baseline="torch",
            operations=rows * classes,
            traffic=traffic,
            sizes={"rows": rows, "columns": classes},
        )


def _operands(device: torch.device, dtype: torch.dtype, rows: int, classes: int) -> tuple[Tensor, Tensor]:
    x = normal(device, dtype, rows, classes).requires_grad_()
    return x, torch.randint(classes, (rows,), generator=torch.Generator(device).manual_seed(1), device=device)


def _both(function: Callable[[Tensor, Tensor], Tensor], operands: tuple[Tensor, Tensor]) -> Run:
    x, target = operands
    return lambda i: torch.autograd.grad(function(x, target), x)
