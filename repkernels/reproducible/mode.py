"""`reproducible()`: this library's operations in the place of torch's, for a block of plain torch code.

Two modes of torch together. A TorchFunctionMode sees the calls of Python code, above autograd: a function or method
that this library has under the same name runs in torch's place, with its own gradient, as in a converted model. A
TorchDispatchMode sees everything that reaches a kernel, below autograd, in forward and backward: what is safe runs as
it is, what this library can compute it computes, and all else is refused.
"""

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from repkernels.contract import DEFAULTS, Contract, ContractLike, as_pair, contract, get_contract
from repkernels.reproducible import calls, optimizers
from repkernels.reproducible.contractions import CONTRACTIONS
from repkernels.reproducible.refusal import NotReproducible, NotReproducibleWarning, message
from repkernels.reproducible.tables import COMPOSITE, OURS, PASS, UNKNOWN, Entry, verdict

_running = threading.local()


class _Settings:
    """Of one entered block."""

    def __init__(self, pair: Contract | None, strict: bool) -> None:
        self.pair, self.strict = pair, strict
        self.warned: set[str] = set()


class Dispatch(TorchDispatchMode):
    """Below autograd. One for a thread, however many blocks are nested; the innermost block's settings hold."""

    ignores_operations = True  # of this library: they need not ask it

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[_Settings] = []
        self.functions = _Functions(self)
        self.stance: Any = None
        self.refusal: str | None = None  # why the last refused operation was

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        entry = verdict(func, args, kwargs)
        if entry.verdict == PASS:
            return func(*args, **kwargs)
        before, _running.mode = getattr(_running, "mode", None), self
        try:
            if entry.verdict == COMPOSITE:
                with self:
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
                entry = entry._replace(verdict=UNKNOWN, reason="this library has no such operation")
            if entry.verdict == OURS:
                assert entry.call is not None
                try:
                    with torch.no_grad(), self._contract(entry, args, kwargs):
                        return entry.call(*args, **kwargs)
                except NotReproducible:
                    raise
                except NotImplementedError as error:
                    entry = entry._replace(reason=str(error))
        finally:
            _running.mode = before
        self._refuse(str(func), entry)
        return func(*args, **kwargs)

    def _contract(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The contract that a product follows: the gradient's where autograd's own formulas make it in backward."""
        if entry.name.split(".")[0] not in CONTRACTIONS:
            return contextlib.nullcontext()
        pair = get_contract() or self.blocks[-1].pair
        if torch._C._current_graph_task_id() != -1 and not calls.forward():
            dtype = next(x.dtype for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor))
            name = (pair or DEFAULTS.get(dtype, Contract("ordered", "ordered"))).gradient
            pair = Contract(name, name)
        return contract(pair)

    def _refuse(self, operation: str, entry: Entry) -> None:
        block, self.refusal = self.blocks[-1], entry.reason
        if block.strict:
            raise NotReproducible(message(operation, entry.reason))
        if operation not in block.warned:
            block.warned.add(operation)
            warnings.warn(message(operation, entry.reason), NotReproducibleWarning, stacklevel=3)


class _Functions(TorchFunctionMode):
    """Above autograd: what Python code calls."""

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__()
        self.dispatch = dispatch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return calls.run(self, func, args, kwargs or {})


def redispatch(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`operation` under the mode whose operation runs now."""
    with _running.mode:
        return operation(*args, **kwargs)


def running() -> bool:
    """Whether one of this library's operations runs in the place of torch's."""
    return getattr(_running, "mode", None) is not None


def current() -> Dispatch | None:
    """The mode that this thread is in, if any."""
    return next((m for m in reversed(_get_current_dispatch_mode_stack()) if isinstance(m, Dispatch)), None)


class reproducible:
    """Inside of it every operation of torch has this library's bits, or is refused: `with reproducible(): ...`.

    contract: of all contractions inside, as for `repkernels.contract`; None leaves the one in force, or the defaults.
    strict: an operation whose bits may differ between devices, and that this library hasn't, raises NotReproducible (a
        NotImplementedError), which names it and the line of the caller's code. False: torch runs it, with a
        NotReproducibleWarning, once for each operation and block.

    It needs no conversion: functions, tensor methods and operators, in-place, out= and list forms, fused optimizers,
    and what autograd runs in backward. A function that this library has under torch's name gets its gradient too, so
    the bits are those of a converted model. Random numbers come from this library's generator
    (`repkernels.manual_seed`), but draws from a torch.Generator that is named are refused. Optimizers of torch.optim
    take the steps of `repkernels.optim` (SGD, Adam, AdamW) or of their single-tensor form. Enter it around forward,
    backward and step; a graph that was recorded outside has torch's gradient formulas, made of this library's
    operations. Blocks nest, and a block is of its thread. It decorates functions as well. What torch.compile made runs
    uncompiled inside; functions of torch.jit.script may be fused behind its back, and have no place there. A checkpoint
    that draws random numbers needs `checkpoint_contexts`, as it does outside.

    Raises RuntimeError where torch.compile traces it, and where subnormals are flushed (torch.set_flush_denormal).
    """

    def __init__(self, contract: ContractLike | None = None, strict: bool = True) -> None:
        self._contract = None if contract is None else as_pair(contract)
        self._strict = strict

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "reproducible: not inside of what torch.compile traces; enter it outside, without compile"
            )
        if float(torch.tensor(1e-40) * 1.0) == 0.0:
            raise RuntimeError("reproducible: subnormals are flushed; call torch.set_flush_denormal(False) first")
        mode = current()
        if mode is None:
            mode = Dispatch()
            mode.__enter__()
            mode.functions.__enter__()
            mode.stance = torch.compiler.set_stance("force_eager")
            mode.stance.__enter__()
            optimizers.watch()
        pair = self._contract or get_contract() or (mode.blocks[-1].pair if mode.blocks else None)
        mode.blocks.append(_Settings(pair, self._strict))
        contract(pair).__enter__()

    def __exit__(self, *exc: object) -> None:
        mode = current()
        if mode is None:
            raise RuntimeError("reproducible: left in a thread that never entered it")
        contract(None).__exit__()
        mode.blocks.pop()
        if not mode.blocks:
            optimizers.unwatch()
            mode.stance.__exit__(*exc)
            mode.functions.__exit__(None, None, None)
            mode.__exit__(None, None, None)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return run
