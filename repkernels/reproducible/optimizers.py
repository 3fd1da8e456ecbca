"""Optimizers of torch.optim: the fused forms, which take this library's steps, and a hook that chooses them.

Adam, AdamW and SGD run fused inside of `reproducible()`, whatever foreach and fused say, and so take the steps of
`repkernels.optim`; the state stays torch's, its averages rounded to a half parameter's type. Other optimizers run their
single-tensor form, whose operations are intercepted one by one.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from repkernels.ops.adam import adam_steps
from repkernels.ops.sgd import sgd_steps
from repkernels.reproducible import library

WHY = "torch contracts its multiplications and additions differently on each device"
Tensors = Sequence[Tensor]

_entered = 0
_hooks: list[Any] = []
_before: dict[int, list[tuple[Any, Any]]] = {}


def watch() -> None:
    """Chooses the form of every optimizer's step, of threads inside of a block, until `unwatch`."""
    global _entered
    _entered += 1
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_choose))
        _hooks.append(register_optimizer_step_post_hook(_restore))


def unwatch() -> None:
    """Ends the `watch` of one block."""
    global _entered
    _entered -= 1
    if not _entered:
        while _hooks:
            _hooks.pop().remove()


def _choose(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    from repkernels.reproducible.mode import current

    if current() is None:
        return
    groups = [group for group in optimizer.param_groups if "foreach" in group]
    _before[id(optimizer)] = [(group.get("foreach"), group.get("fused")) for group in groups]
    for group in groups:
        fused = type(optimizer) in (Adam, AdamW, SGD) and not group.get("differentiable")
        if type(optimizer) is SGD:
            fused = fused and _alike(optimizer, group)
        group["foreach"] = False
        if "fused" in group:
            group["fused"] = fused


def _alike(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> bool:
    """Whether all parameters or none have made a step, as the fused form asks, and none is sparse or complex."""
    ready = [p for p in group["params"] if p.grad is not None]
    made = [optimizer.state[p].get("momentum_buffer") is not None for p in ready] if group["momentum"] else []
    return len(set(made)) < 2 and all(p.is_floating_point() and not p.grad.is_sparse for p in ready)


def _restore(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    groups = [group for group in optimizer.param_groups if "foreach" in group]
    for group, (foreach, fused) in zip(groups, _before.pop(id(optimizer), []), strict=False):
        group["foreach"] = foreach
        if "fused" in group:
            group["fused"] = fused


def _unscaled(grads: Tensors, grad_scale: Tensor | None, found_inf: Tensor | None) -> bool:
    """Divides the gradients by the scale; False if the step is to be left out."""
    if found_inf is not None and found_inf.item():
        return False
    if grad_scale is not None:
        for g in grads:
            g.copy_(library.div(g, grad_scale.to(g.device, g.dtype)))
    return True


class _Wide:
    """Lists of state in the format in which a step computes, written back after it."""

    def __init__(self, *lists: Tensors) -> None:
        self.given = [x for tensors in lists for x in tensors]
        self.lists = [[x if x.dtype == torch.float64 else x.float() for x in tensors] for tensors in lists]

    def write_back(self) -> None:
        for x, wide in zip(self.given, (w for tensors in self.lists for w in tensors), strict=True):
            if wide is not x:
                x.copy_(wide)


def _adam(decoupled: bool) -> Callable[..., None]:
    def call(
        self: Tensors,
        grads: Tensors,
        exp_avgs: Tensors,
        exp_avg_sqs: Tensors,
        max_exp_avg_sqs: Tensors,
        state_steps: Tensors,
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        if not _unscaled(grads, grad_scale, found_inf):
            return
        steps = torch.stack([s.reshape(()) for s in state_steps]).tolist()
        members = defaultdict(list)
        for i, (each, number) in enumerate(zip(self, steps, strict=True)):
            members[each.dtype, each.device, int(number)].append(i)
        for (_, _, step), places in members.items():
            p = [self[i] for i in places]
            g = [grads[i].to(self[i].dtype) for i in places]
            states = [exp_avgs, exp_avg_sqs, max_exp_avg_sqs if amsgrad else []]
            wide = _Wide(*([column[i] for i in places] if column else [] for column in states))
            m, v, largest = wide.lists
            betas = float(beta1), float(beta2)
            options = (float(lr), betas, float(eps), float(weight_decay), maximize, decoupled)
            adam_steps(p, g, m, v, largest, step, *options)
            wide.write_back()

    return call


def _sgd(
    self: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: float,
    lr: Any,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
) -> None:
    if not _unscaled(grads, grad_scale, found_inf):
        return
    members = defaultdict(list)
    for i, each in enumerate(self):
        members[each.dtype, each.device].append(i)
    for places in members.values():
        p, g = [self[i] for i in places], [grads[i] for i in places]
        wide = _Wide([momentum_buffer_list[i] for i in places] if momentum else [])
        rates = (float(lr), float(momentum), float(dampening), float(weight_decay))
        sgd_steps(p, g, wide.lists[0], *rates, nesterov, is_first_step, maximize)
        wide.write_back()


ATEN: dict[str, Callable[..., Any]] = {
    "_fused_adam_": _adam(False),
    "_fused_adamw_": _adam(True),
    "_fused_sgd_": _sgd,
}
