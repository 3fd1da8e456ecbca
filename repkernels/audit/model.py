"""`audit(model, *inputs)`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from repkernels import generator
from repkernels.audit.record import Recorder
from repkernels.audit.report import Report
from repkernels.reproducible.mode import current, reproducible


def audit(
    model: Callable[..., Any],
    *inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    backward: bool = True,
    **keywords: Any,
) -> Report:
    """Runs model(*inputs, **keywords), and its gradients, and reports every operation that really ran.

    model: a module, or any function of tensors. loss: of the model's result, a tensor to differentiate; without one
    the result's `loss`, if it has one, otherwise all of its floating tensors. backward: False leaves the gradients out.

    Every operation of torch is "safe" (it moves elements, or computes integers, or one IEEE operation on each), "ours"
    (this library's), or "not reproducible", with the reason. Inside of `reproducible()`, also a strict one, what it
    runs in torch's place is ours, and what it would refuse is not reproducible; outside, torch is taken as it is.

    The model is as before afterwards: gradients, buffers and both random generators are put back.
    """
    recorder = Recorder()
    lenient = reproducible(strict=False) if current() is not None else contextlib.nullcontext()
    with _unchanged(model), lenient, recorder:
        result = model(*inputs, **keywords)
        roots = _roots(result, loss) if backward else []
        if roots:
            torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    return recorder.report


def _roots(result: Any, loss: Callable[[Any], Tensor] | None) -> list[Tensor]:
    if loss is not None:
        return [loss(result)]
    if isinstance(getattr(result, "loss", None), Tensor):
        return [result.loss]
    leaves = tree_leaves(dict(result) if isinstance(result, dict) else result)
    return [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]


@contextlib.contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Puts back the gradients and buffers of a module, and the state of random numbers."""
    module = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
    grads = [(p, p.grad) for p in module.parameters()]
    buffers = [(b, b.detach().clone()) for b in module.buffers()]
    state = generator.PROCESS.get_state()
    for p, _ in grads:
        p.grad = None
    try:
        with torch.random.fork_rng():
            yield
    finally:
        generator.PROCESS.set_state(state)
        with torch.no_grad():
            for b, value in buffers:
                b.copy_(value)
        for p, grad in grads:
            p.grad = grad
