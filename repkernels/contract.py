"""Contracts: which rule defines the bits of a contraction (SPEC.md, "Contracts").

A contract is a pair of names, (forward, gradient). Which one a call follows, first found wins:

1. the `contract=` of the call itself;
2. the innermost `with contract(...)` of the current context (thread or asyncio task);
3. `set_contract(...)`, for the whole process;
4. the default of the operands' dtype.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import torch

from repkernels import generator

NAMES = ("ordered", "fixed8", "fixed16", "fixed24", "fixed32", "native")


class Contract(NamedTuple):
    """The rule of the forward contractions and the rule of their gradients."""

    forward: str
    gradient: str


ContractLike: TypeAlias = str | tuple[str, str] | Contract

_HALF = Contract("fixed16", "fixed24")
DEFAULTS = {
    torch.float16: _HALF,
    torch.bfloat16: _HALF,
    torch.float32: Contract("fixed24", "fixed32"),
    torch.float64: Contract("ordered", "ordered"),
}

# A stack as nested pairs, so that one `contract` object may be entered twice and by several threads: it keeps nothing.
_Stack: TypeAlias = "tuple[Contract | None, _Stack] | None"
_entered: ContextVar[_Stack] = ContextVar("repkernels_contract", default=None)
_process: Contract | None = None
_scopes_used = False  # whether this process ever entered a contract


class contract:
    """Sets the contract of every contraction in its body: `with contract("ordered"): ...`, or as a decorator.

    contract: one name of `NAMES` for both directions, a pair (forward, gradient), or None for the defaults per dtype
        (whatever surrounds it).

    It nests, belongs to the current thread or asyncio task, and is captured at forward time: gradients follow the
    pair that was in force in the forward pass, wherever `backward` runs. A decorated coroutine function holds the
    contract while it runs; a generator would leak it to its caller, so decorating one raises TypeError.
    Inside a function that torch.compile traces, pass `contract=` to the call instead, or enter outside of it: the
    compiled code reads the contract in force each time it runs. For activation checkpoints see `checkpoint_contexts`.

    Raises ValueError for an unknown name, TypeError for what is neither a name nor a pair.
    """

    def __init__(self, contract: ContractLike | None) -> None:
        self._pair = None if contract is None else as_pair(contract)

    def __enter__(self) -> Contract | None:
        global _scopes_used
        _scopes_used = True
        _entered.set((self._pair, _entered.get()))
        return self._pair

    def __exit__(self, *exc: object) -> None:
        stack = _entered.get()
        if stack is None:
            raise RuntimeError("contract: left in a context that never entered it")
        _entered.set(stack[1])

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"contract: cannot decorate the generator {function.__qualname__}; use `with contract(...)` "
                "around the calls inside it"
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await function(*args, **kwargs)

            return run_async

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run


def set_contract(contract: ContractLike | None) -> None:
    """Sets the contract of the process: of every thread, wherever no `with contract(...)` is entered.

    contract: as for `contract`; None restores the defaults per dtype. It changes nothing inside a `with contract(...)`
    that is already entered, which stays the nearer rule. Raises as `contract`.
    """
    global _process
    _process = None if contract is None else as_pair(contract)


def get_contract() -> Contract | None:
    """The contract in force for calls that name none; None means the defaults per dtype."""
    stack = _entered.get()
    return _process if stack is None else stack[0]


def checkpoint_contexts() -> tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]:
    """Keeps the contract and the random numbers for the second run of an activation checkpoint.

    `torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False, context_fn=repkernels.checkpoint_contexts)` runs `f`
    again during `backward`, perhaps on another thread and outside of the `with contract(...)` of the first run; with
    this context_fn both runs follow the contract of the first, and draw the same streams (from the process's generator,
    which the second run leaves as it is; a generator named in a call goes on). Without it torch's check of the
    saved tensors refuses a second run under another contract, but only where a product saves something: one of tensors
    that need no gradient is silently computed under the other contract, and what is saved of its result has other bits.
    Dropout raises.
    `use_reentrant=True` takes no context_fn and checks nothing: its second run, and so its gradients, silently follow
    the contract in force where `backward` runs. torch.compile takes no such context_fn for a checkpoint inside of what
    it compiles. In both cases name `contract=` in the calls, or enter `with contract(...)` inside of the function.
    """
    return contextlib.nullcontext(), _second_run(get_contract(), generator.default().get_state())


@contextlib.contextmanager
def _second_run(pair: ContractLike | None, state: dict[str, int]) -> Iterator[None]:
    with contract(pair), generator.replay(state):
        yield


def resolve(
    contract: ContractLike | None, dtype: torch.dtype, device_type: str, argument: str = "contract"
) -> Contract:
    """The pair that a call with this `contract=` follows on this dtype and device type.

    Raises ValueError, naming `argument`, for an unknown name, `native` on fp32 or fp64, and `fixedNN` on fp64.
    `native` on the CPU is `ordered`.
    """
    if contract is None:
        contract = get_contract()
        if contract is None:
            return DEFAULTS[dtype]
        argument = f"{argument} (set by repkernels.contract or set_contract)"
    elif not isinstance(contract, str):
        contract = as_pair(contract, argument)  # before the cache, which takes what has a hash only
    if torch.compiler.is_compiling():
        return _resolve(contract, dtype, device_type, argument)
    return _resolve_once(contract, dtype, device_type, argument)


def resolve_at_run_time(dtype: torch.dtype, device_type: str) -> Contract:
    """`resolve(None, ...)` for compiled code, which asks each time it runs.

    Raises RuntimeError where a checkpoint's second run, in `backward`, may not see the contract of its first: no
    contract is entered here, but this process does enter some.
    """
    if _scopes_used and _entered.get() is None and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "contract: a compiled checkpoint runs again in backward, where no `with contract(...)` is entered; name "
            "contract= in the calls inside of it, or give a checkpoint around compiled code "
            "context_fn=repkernels.checkpoint_contexts"
        )
    return resolve(None, dtype, device_type)


def _resolve(contract: ContractLike, dtype: torch.dtype, device_type: str, argument: str) -> Contract:
    pair = as_pair(contract, argument)
    for name in pair:
        if name == "native" and dtype in (torch.float32, torch.float64):
            others = "'ordered' or a fixedNN contract" if dtype == torch.float32 else "'ordered'"
            raise ValueError(
                f"{argument}: 'native' means floating-point tensor cores, which {dtype} does not have here; "
                f"use {others}, or bfloat16 or float16 operands"
            )
        if name.startswith("fixed") and dtype == torch.float64:
            raise ValueError(f"{argument}: {name!r} is not defined for torch.float64; use 'ordered'")
    if device_type == "cpu":
        return Contract(*("ordered" if name == "native" else name for name in pair))
    return pair


_resolve_once = functools.lru_cache(maxsize=1024)(_resolve)


def as_pair(contract: ContractLike, argument: str = "contract") -> Contract:
    """One name as a pair of it, a pair as itself; ValueError for an unknown name."""
    if isinstance(contract, str):
        pair = Contract(contract, contract)
    elif isinstance(contract, (tuple, list)) and len(contract) == 2:
        pair = Contract(*contract)
    else:
        raise TypeError(f"{argument}: expected a name or a pair (forward, gradient), got {contract!r}")
    for name in pair:
        if name not in NAMES:
            raise ValueError(f"{argument}: unknown contract {name!r}; choose one of {', '.join(NAMES)}")
    return pair


def digits_of(name: str) -> int:
    """S, the number of digits of a `fixedNN` contract; 0 for `ordered` and `native`."""
    return int(name[5:]) // 8 if name.startswith("fixed") else 0
