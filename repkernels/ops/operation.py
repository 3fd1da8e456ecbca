"""One operation as torch sees it: opaque to compilers, differentiable, batched by vmap, and cheap when nobody looks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _pop_mode_temporarily

_PLAIN = (Tensor, torch.nn.Parameter)


def operation(
    name: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup_context: Callable[..., None],
    backward: Callable[..., Any],
    vmap: Callable[..., Any],
) -> Callable[..., Any]:
    """`run` as the custom op `repkernels::name`, with its shapes, gradient and batching rule.

    run: annotated, positional, returns fresh tensors. fake, setup_context, backward and vmap are as
    torch.library.custom_op takes them; backward may call the returned function, so it is differentiable in turn.

    A call without autograd, transforms, modes or subclasses goes straight to `run`: torch's dispatcher costs Python
    operations more than a small product. Under functorch and in eager autograd the gradient is an autograd.Function,
    because the formula of a custom op knows no transforms; under a compiler it is the custom op's own.
    """
    op = torch.library.custom_op(f"repkernels::{name}", run, mutates_args=())
    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    op.register_vmap(vmap)

    def compute(*args: Any) -> Any:
        if not _plain(args):
            return op(*args)
        listening = torch._C._len_torch_dispatch_stack()
        if not listening:
            return run(*args)
        if listening == 1 and getattr(torch._C._get_dispatch_stack_at(0), "ignores_operations", False):
            with _pop_mode_temporarily(), torch._C.DisableTorchFunction():
                return run(*args)
        return op(*args)

    def forward(ctx: Any, *args: Any) -> Any:
        output = compute(*args)
        output = tuple(_own(x) for x in output) if isinstance(output, tuple) else _own(output)
        setup_context(ctx, args, output)
        return output

    def function(**methods: Callable[..., Any]) -> Any:
        return type(name, (torch.autograd.Function,), {key: staticmethod(value) for key, value in methods.items()})

    # Transforms ask for a separate setup_context, for which torch inspects the signature at every call.
    recorded = function(forward=forward, backward=backward)
    transformed = function(forward=compute, setup_context=setup_context, backward=backward, vmap=vmap)

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*args)
        if torch._C._get_tracing_state() is not None:  # it would keep what a kernel computed as a constant
            raise NotImplementedError(f"{name}: torch.jit.trace is not supported; use torch.compile or torch.export")
        if torch._C._are_functorch_transforms_active():
            return transformed.apply(*args)
        return recorded.apply(*args) if _recorded(args) else compute(*args)

    return call


def _own(x: Any) -> Any:
    """x, if it is a view, as a tensor by itself: torch refuses to change an autograd.Function's view in place."""
    return x.data if isinstance(x, Tensor) and x._is_view() else x


def _recorded(args: tuple[Any, ...]) -> bool:
    """Whether autograd must see the call, or forward-mode AD, which is refused there."""
    if forward_ad._current_level >= 0:
        return True
    if torch.is_grad_enabled():
        for x in args:
            if isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


def alone(x: Tensor) -> bool:
    """Whether x is an ordinary tensor with memory that no compiler, transform, tracer or mode watches."""
    watched = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not watched and not torch._C._len_torch_dispatch_stack() and _plain((x,))


def _plain(args: tuple[Any, ...]) -> bool:
    """Whether all tensors are ordinary ones with memory: nothing but the kernel sees the call, and what mode listens.

    Through torch go also a tensor with the negative bit, which kernels that read its memory would take with the wrong
    sign, and a batch of `torch.autograd.grad(is_grads_batched=True)`.
    """
    if torch._C._are_functorch_transforms_active():
        return False
    for x in args:
        if isinstance(x, Tensor) and (
            type(x) not in _PLAIN or x.is_meta or x.is_neg() or torch._C._functorch.is_legacy_batchedtensor(x)
        ):
            return False
    return True
