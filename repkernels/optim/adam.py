"""torch.optim.Adam and AdamW with defined bits (SPEC.md, "Adam")."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.ops.adam import adam_steps
from repkernels.optim.state import check_dtypes, check_gradient, restore_wide, wide

_AVERAGES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")


class Adam(torch.optim.Optimizer):
    """Adam (Kingma and Ba, 2015), torch.optim.Adam's arguments and `state_dict`; either continues the other's state.

    params: fp32, bf16, fp16 or fp64 tensors on the CPU or a GPU. lr, betas: numbers, or tensors of one element (read on
    the host). The averages are fp32, also of half parameters, which are rounded once per step; fp64 of fp64. All
    parameters of one dtype and device that have made equally many steps are updated by one kernel.
    foreach, fused: accepted, since there is one result whatever the loop. The rule: `repkernels.ops.adam.adam_steps`.

    Raises ValueError for arguments out of range; NotImplementedError for differentiable=True, capturable=True (scalars
    of a step are computed on the host) and other dtypes; RuntimeError in `step` for sparse gradients and while a CUDA
    graph is captured.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError("lr: a tensor must have one element")
        for i, beta in enumerate(betas):
            if isinstance(beta, Tensor) and beta.numel() != 1:
                raise ValueError(f"betas[{i}]: a tensor must have one element")
            if not 0 <= beta < 1:
                raise ValueError(f"betas[{i}]: expected 0 <= beta < 1, got {beta}")
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"{name}: expected a value >= 0, got {value}")
        if differentiable:
            raise NotImplementedError("differentiable: not supported; the step is made in place")
        if capturable:
            raise NotImplementedError("capturable: not supported; the scalars of a step are computed on the host")
        if foreach and fused:
            raise RuntimeError("foreach and fused: only one of them may be True")
        defaults = {
            "lr": lr,
            "betas": tuple(float(beta) for beta in betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "foreach": foreach,
            "capturable": capturable,
            "differentiable": differentiable,
            "fused": fused,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group as torch.optim.Optimizer does; NotImplementedError for parameters of another dtype."""
        super().add_param_group(param_group)
        check_dtypes(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name in ("amsgrad", "maximize", "capturable", "differentiable", "decoupled_weight_decay"):
                group.setdefault(name, False)
            group.setdefault("foreach", None)
            group.setdefault("fused", None)
            for p in group["params"]:
                if "step" in self.state.get(p, {}):
                    self.state[p]["step"] = _on_host(self.state[p]["step"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a state of this class or of torch's."""
        super().load_state_dict(state_dict)
        restore_wide(self, state_dict, _AVERAGES)

    # The number of the step is read on the host, which compiled code would ask for at every parameter.
    @torch._disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of every parameter that has a gradient; `closure` recomputes the loss, which is returned."""
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("step: a captured CUDA graph would repeat the scalars of one step; step outside of it")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    check_gradient(p.grad, type(self).__name__)
                    state = self._state(p, group["amsgrad"])
                    alike[p.dtype, p.device, float(state["step"])].append((p, p.grad, state))
            for (_, _, before), members in alike.items():
                self._update(members, int(before) + 1, group)
        return loss

    def _state(self, p: Tensor, amsgrad: bool) -> dict[str, Any]:
        state = self.state[p]
        if not state:
            state["step"] = _on_host(0)
        for name in _AVERAGES if amsgrad else _AVERAGES[:2]:
            if name not in state:
                state[name] = torch.zeros_like(p, dtype=wide(p), requires_grad=False)
        return state

    def _update(self, members: list[tuple[Tensor, Tensor, dict[str, Any]]], step: int, group: dict[str, Any]) -> None:
        p, g, states = (list(column) for column in zip(*members, strict=True))
        adam_steps(
            p,
            g,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
            step,
            float(group["lr"]),
            (float(group["betas"][0]), float(group["betas"][1])),
            float(group["eps"]),
            float(group["weight_decay"]),
            group["maximize"],
            group["decoupled_weight_decay"],
        )
        torch._foreach_add_([state["step"] for state in states], 1)


class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, 2019), torch.optim.AdamW's arguments and `state_dict`: as `Adam`, with a weight
    decay of the parameters themselves."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group["decoupled_weight_decay"] = True


def _on_host(step: Any) -> Tensor:
    """The number of steps as torch keeps it."""
    return torch.tensor(float(step), dtype=torch.float32, device="cpu")
