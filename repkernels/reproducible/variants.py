"""In-place, out= and list forms of an operation, made of its functional form."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Their scalar is a keyword, and a place in the list forms.
_WITH_VALUE = (torch.ops.aten.addcdiv, torch.ops.aten.addcmul)


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` whose result is written to its first argument, which is returned."""

    def call(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.copy_(function(self, *args, **kwargs))

    return call


def into_out(function: Callable[..., Any], places: list[str]) -> Callable[..., Any]:
    """`function` whose results are written to the tensors passed under the names `places`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        outs = [kwargs.pop(name) for name in places]
        results = function(*args, **kwargs)
        for out, result in zip(outs, results if len(outs) > 1 else (results,), strict=True):
            if out.shape != result.shape:
                out.resize_(result.shape)
            out.copy_(result)
        return outs[0] if len(outs) == 1 else tuple(outs)

    return call


def one_by_one(operation: Any, in_place: bool) -> Callable[..., Any]:
    """The list form of an operation of aten: run again, tensor by tensor, under the same rules."""

    def call(self: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        # Imported here: the mode imports this.
        from repkernels.reproducible.mode import redispatch

        results = []
        for i, x in enumerate(self):
            own = [_share(value, i, len(self)) for value in args]
            named = {key: _share(value, i, len(self)) for key, value in kwargs.items()}
            if operation in _WITH_VALUE and len(own) == 3:
                named["value"] = own.pop()
            results.append(redispatch(operation, (x, *own), named))
        if not in_place:
            return results
        for x, result in zip(self, results, strict=True):
            x.copy_(result)
        return None

    return call


def _share(value: Any, i: int, count: int) -> Any:
    """What the i-th of `count` tensors takes of an argument: its member of a list or of a tensor of scalars."""
    if isinstance(value, Tensor) and value.ndim == 1 and value.numel() == count:
        return value[i].item()
    return value[i] if isinstance(value, (list, tuple)) and len(value) == count else value
