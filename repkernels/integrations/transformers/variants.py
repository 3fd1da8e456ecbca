"""Classes put above transformers' own: an object changes its class and nothing else, and can change it back."""

from functools import cache
from typing import Any

import torch


class Variant:
    """The base of what `variant` puts above a class; it has no __init__ of its own."""

    @classmethod
    def attributes(cls, theirs: type) -> dict[str, Any]:
        """What the class shall have that depends on the class below it."""
        return {}


@cache
def variant(theirs: Any, ours: Any) -> Any:
    """`theirs` with the methods of `ours` first. Its objects can be copied and pickled."""

    def reduce(self: Any, protocol: int) -> Any:
        return _bare, (theirs, ours), self.__getstate__()

    body = {
        "__module__": theirs.__module__,
        "__qualname__": theirs.__qualname__,
        "__doc__": theirs.__doc__,
        "__reduce_ex__": reduce,
        "_repkernels_theirs": theirs,
        **ours.attributes(theirs),
    }
    return type(theirs.__name__, (ours, theirs), body)


def _bare(theirs: type, ours: type) -> Any:
    cls = variant(theirs, ours)
    return cls.__new__(cls)


def original(module: torch.nn.Module) -> type | None:
    """The class that the module had before `variant`, if it has one of these."""
    theirs: type | None = getattr(type(module), "_repkernels_theirs", None)
    return theirs
