"""Gradients of this library's functions below autograd, where aten asks for them by their operands."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_KEYS = (
    torch._C.DispatchKey.AutogradFunctionality,
    torch._C.DispatchKey.AutogradOther,
    torch._C.DispatchKey.ADInplaceOrView,
)


def gradients(
    function: Callable[..., Tensor],
    operands: Sequence[Tensor | None],
    grad: Tensor,
    wanted: Sequence[bool] | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients of `function(*operands)` by those operands that are tensors and wanted, None for the others.

    The function runs again, with autograd, which is off where aten's operations are intercepted.
    """
    wanted = [True] * len(operands) if wanted is None else wanted
    leaves: list[Any] = [
        x.detach().requires_grad_() if x is not None and use else x for x, use in zip(operands, wanted, strict=True)
    ]
    sought = [x for x, use in zip(leaves, wanted, strict=True) if x is not None and use]
    with contextlib.ExitStack() as stack:
        for key in _KEYS:
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        stack.enter_context(torch.enable_grad())
        result = function(*leaves)
        found = iter(torch.autograd.grad(result, sought, grad.to(result.dtype), allow_unused=True))
    return tuple(next(found) if x is not None and use else None for x, use in zip(leaves, wanted, strict=True))
