"""Calls of Python code as the function mode sees them, above autograd."""

import functools
import threading
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from repkernels.contract import DEFAULTS, Contract, contract, get_contract
from repkernels.reproducible.functions import CONTRACTIONS, QUIET, table

_here = threading.local()
_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


def forward() -> bool:
    """Whether what runs now was called by Python code with gradients on: a forward pass, though in backward."""
    return getattr(_here, "forward", False)


def ours() -> bool:
    """Whether one of this library's functions runs in the place of torch's."""
    return getattr(_here, "ours", False)


def run(mode: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`func(*args, **kwargs)`: this library's function of its name, or torch's under the dispatch mode."""
    try:
        function = table().get(func)
    except TypeError:  # no hash
        function = None
    if function is not None and "out" not in kwargs:
        try:
            return _ours(mode, function, args, kwargs)
        except (NotImplementedError, TypeError):
            pass  # other arguments than this library's: torch's function, and what becomes of its operations
    if isinstance(func, types.FunctionType):
        if func in QUIET:
            with _Without(mode.dispatch):
                return func(*args, **kwargs)
        return _python(mode, func, args, kwargs)
    if torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled():
        _here.forward = True
        try:
            return func(*args, **kwargs)
        finally:
            _here.forward = False
    return func(*args, **kwargs)


def _ours(mode: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs = {_NUMPY.get(key, key): value for key, value in kwargs.items()} if kwargs else kwargs
    _here.ours = True
    try:
        with _Without(mode.dispatch):
            if function in CONTRACTIONS:
                with _pair(mode, args, kwargs):
                    return function(*args, **kwargs)
            return function(*args, **kwargs)
    finally:
        _here.ours = False


# torch takes NumPy's names for these.
_NUMPY = {"axis": "dim", "keepdims": "keepdim"}


def _pair(mode: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> contract:
    """The contract in force; its gradient's name where a user's own autograd.Function runs in backward."""
    pair = get_contract() or mode.dispatch.blocks[-1].pair
    if torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled():
        dtype = next(x.dtype for x in (*args, *kwargs.values()) if isinstance(x, Tensor))
        name = (pair or DEFAULTS.get(dtype, Contract("ordered", "ordered"))).gradient
        pair = Contract(name, name)
    return contract(pair)


class _Without:
    """The dispatch mode put aside in the body, if it is the innermost: our operations then run at their full speed."""

    def __init__(self, dispatch: Any) -> None:
        self._inner = _pop_mode_temporarily() if _get_current_dispatch_mode() is dispatch else None

    def __enter__(self) -> None:
        if self._inner is not None:
            self._inner.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if self._inner is not None:
            self._inner.__exit__(*exc)


def _python(mode: Any, func: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that torch has in Python: its body under the mode, so that what it calls is seen."""
    if getattr(_here, "inside", None) is func:  # its body asked for itself: a check the copy could not leave out
        return func(*args, **kwargs)
    before, _here.inside = getattr(_here, "inside", None), func
    try:
        with mode:
            return _unchecked(func)(*args, **kwargs)
    finally:
        _here.inside = before


@functools.lru_cache(maxsize=4096)
def _unchecked(func: types.FunctionType) -> types.FunctionType:
    """A copy of `func` that doesn't ask whether a mode wants to see its call."""
    names = dict(func.__globals__)
    names.update({name: _no for name in _CHECKS if name in names})
    copy = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _no(*args: Any) -> bool:
    return False
