"""What is said of an operation whose bits may differ: its name, why, and the line of the user's code."""

import os
import sys

import torch

_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))


class NotReproducible(NotImplementedError):
    """An operation inside `reproducible()` whose bits may differ between devices, and which this library hasn't."""


class NotReproducibleWarning(UserWarning):
    """The same under `strict=False`: torch ran the operation."""


def message(operation: str, reason: str) -> str:
    """The text of the error or warning."""
    return (
        f"{operation}: its bits may differ between devices: {reason}; called at {place()}. "
        "reproducible(strict=False) warns and lets torch run it; repkernels.audit lists all such operations of a model"
    )


def place() -> str:
    """FILE:LINE of the innermost frame outside of torch and this library; in backward also the node of autograd."""
    node = torch._C._current_autograd_node()
    gradient = f"in the gradient {node.name()}" if node is not None else ""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((_HERE, _TORCH, "<")):
            at = f"{name}:{frame.f_lineno}"
            return f"{at}, {gradient}" if gradient else at
        frame = frame.f_back  # type: ignore[assignment]
    return gradient or "an unknown line"
