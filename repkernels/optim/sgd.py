"""torch.optim.SGD with defined bits (SPEC.md, "SGD")."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops.sgd import sgd_steps
from repkernels.optim.state import check_dtypes, check_gradient, restore_wide, wide


class SGD(torch.optim.Optimizer):
    """Stochastic gradient descent, torch.optim.SGD's arguments and `state_dict`; either continues the other's state.

    params: fp32, bf16, fp16 or fp64 tensors on the CPU or a GPU. lr: a float, or a tensor of one element (read on the
    host). The momentum buffer is fp32, also of half parameters, which are rounded once per step; fp64 of fp64.
    foreach, fused: accepted, since there is one result whatever the loop. The rule: `repkernels.ops.sgd.sgd_steps`.

    Raises ValueError for negative lr, momentum or weight_decay and for nesterov without momentum or with dampening;
    NotImplementedError for differentiable=True and other dtypes; RuntimeError in `step` for sparse gradients.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float | Tensor = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("lr: a tensor must have one element")
        for name, value in (("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)):
            if value < 0:
                raise ValueError(f"{name}: expected a value >= 0, got {value}")
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("nesterov: needs momentum > 0 and dampening = 0")
        if differentiable:
            raise NotImplementedError("differentiable: not supported; the step is made in place")
        if foreach and fused:
            raise RuntimeError("foreach and fused: only one of them may be True")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
            "foreach": foreach,
            "differentiable": differentiable,
            "fused": fused,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch.optim.Optimizer does; NotImplementedError for parameters of another dtype."""
        super().add_param_group(param_group)
        check_dtypes(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name in ("nesterov", "maximize", "differentiable"):
                group.setdefault(name, False)
            group.setdefault("foreach", None)
            group.setdefault("fused", None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a state of this class or of torch.optim.SGD."""
        super().load_state_dict(state_dict)
        restore_wide(self, state_dict, ("momentum_buffer",))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; `closure` recomputes the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    check_gradient(p.grad, "SGD")
                    first = self.state[p].get("momentum_buffer") is None if group["momentum"] != 0 else False
                    alike.setdefault((p.dtype, p.device, first), []).append((p, p.grad))
            for (_, _, first), members in alike.items():
                self._update(members, first, group)
        return loss

    def _update(self, members: list[tuple[Tensor, Tensor]], first: bool, group: dict[str, Any]) -> None:
        p, g = (list(column) for column in zip(*members, strict=True))
        v = []
        if group["momentum"] != 0:
            for each in p:
                if first:
                    self.state[each]["momentum_buffer"] = torch.empty_like(each, dtype=wide(each))
                v.append(self.state[each]["momentum_buffer"])
        sgd_steps(
            p,
            g,
            v,
            float(group["lr"]),
            float(group["momentum"]),
            float(group["dampening"]),
            float(group["weight_decay"]),
            group["nesterov"],
            first,
            group["maximize"],
        )
