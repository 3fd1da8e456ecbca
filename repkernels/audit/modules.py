"""Which module an operation belongs to, in forward and in backward."""

import bisect
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Modules:
    """Follows the modules that run, in the body of `with`.

    Nodes of autograd are numbered as they are made, so a node of backward belongs to the module that was running when
    its number was next.
    """

    def __init__(self) -> None:
        self._stack: list[tuple[torch.nn.Module, str]] = []
        self._names: dict[int, dict[int, str]] = {}
        self._starts, self._paths = [0], [""]
        self._hooks: list[Any] = []

    def __enter__(self) -> "Modules":
        self._hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        return self

    def __exit__(self, *exc: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def path(self) -> str:
        """Of what runs now."""
        if torch._C._current_graph_task_id() == -1 or self._stack:
            return self._stack[-1][1] if self._stack else ""
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        if number >= 1 << 63:  # a node that only adds up a leaf's gradient
            return ""
        return self._paths[bisect.bisect_right(self._starts, number) - 1]

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        path = type(module).__name__
        for parent, above in reversed(self._stack):
            name = self._within(parent).get(id(module))
            if name is not None:
                path = f"{above}.{name}"
                break
        else:
            if self._stack:
                path = f"{self._stack[-1][1]}.{path}"
        self._stack.append((module, path))
        self._mark()

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack and self._stack[-1][0] is module:
            self._stack.pop()
            self._mark()

    def _within(self, parent: torch.nn.Module) -> dict[int, str]:
        if id(parent) not in self._names:
            self._names[id(parent)] = {id(m): name for name, m in parent.named_modules() if name}
        return self._names[id(parent)]

    def _mark(self) -> None:
        self._starts.append(torch.autograd._get_sequence_nr())
        self._paths.append(self._stack[-1][1] if self._stack else "")
