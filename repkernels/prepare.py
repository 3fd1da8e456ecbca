"""Weights whose digits are made once and kept (SPEC.md, "Fixed-point digits"). Keeping changes speed, never a bit."""

import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from repkernels.contract import Contract, ContractLike, as_pair, digits_of, resolve
from repkernels.digits import Digits
from repkernels.ops import checks
from repkernels.ops.backend import backend

Keep = Literal["digits", "scales"]
NOTHING_KEPT = 0


def _count_fused_steps(optimizer: Any, *_: Any) -> None:
    """torch's fused optimizers write parameters without raising their `_version`."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            torch.autograd.graph.increment_version([p for p in group["params"] if p.grad is not None])


@functools.cache
def _watch_fused_steps() -> None:
    """From the first weight on that something is kept of, so that other programs' steps pay nothing."""
    register_optimizer_step_post_hook(_count_fused_steps)


_numbers = itertools.count(1)
_all_kept: "weakref.WeakValueDictionary[int, Kept]" = weakref.WeakValueDictionary()


class _Entry(NamedTuple):
    source: Tensor  # holds the memory, so that no other weight can come to lie at this address
    owner: Tensor  # whose writes `version` counts
    version: int
    digits: Digits

    def is_of(self, b: Tensor, owner: Tensor) -> bool:
        a = self.source
        return (
            owner is self.owner
            and owner._version == self.version
            and b.data_ptr() == a.data_ptr()
            and b.shape == a.shape
            and b.stride() == a.stride()
            and b.dtype == a.dtype
            and b.device == a.device
        )


class Kept:
    """The digits of one weight under one contract, made when first needed and again whenever the weight has changed.

    An operation carries only `number`, an integer that a compiled graph can hold, and finds the digits when it runs.
    Copies and pickles of it carry nothing.
    """

    def __init__(self, keep: Keep, digits: int) -> None:
        _watch_fused_steps()
        self.keep: Keep = keep
        self.digits = digits
        self.number = next(_numbers)
        self._entry: _Entry | None = None
        self._weight: Tensor | None = None
        _all_kept[self.number] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return Kept, (self.keep, self.digits)

    def of(self, b: Tensor, quantize: Callable[[Tensor, int], Digits]) -> Digits | None:
        """The digits of the columns of b (K, N) or (G, K, N) as it is now; None where the call should make its own.

        A tensor made under inference_mode counts no versions, so nothing is kept of it, nor of one with the negative
        bit, whose memory has the other sign. During the capture of a CUDA graph nothing new is kept: its memory would
        belong to the graph, and hold the digits only after a replay.
        """
        if b.ndim not in (2, 3) or b.is_inference() or b.is_neg():
            return None
        owner = self._owner_of(b)
        if owner is None:
            return None
        version = owner._version
        entry = self._entry
        if entry is not None and entry.is_of(b, owner):
            return entry.digits
        if b.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        with torch.inference_mode(False), torch.no_grad():
            source = b.detach()
            made = quantize(source.mT if b.ndim == 3 else source.t()[None], self.digits)
            if self.keep == "scales":
                made = Digits(made.planes.new_empty(0), made.scale)
            if entry is not None and entry.source.data_ptr() == b.data_ptr() and _alike(entry.digits, made):
                # The old memory, since captured graphs read the digits where they lie.
                for old, new in zip(entry.digits, made, strict=True):
                    old.copy_(new)
                made = entry.digits
        self._entry = _Entry(source, owner, version, made)
        return made

    def _owner_of(self, b: Tensor) -> Tensor | None:
        """The tensor whose version counts the writes to b's memory: compiled code makes views that share no counter."""
        if b._base is not None:
            self._weight = b._base
            return b._base
        weight = self._weight
        if weight is None or weight.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
            return None
        return weight


def _alike(x: Digits, y: Digits) -> bool:
    return all(a.shape == b.shape and a.device == b.device for a, b in zip(x, y, strict=True))


def kept_digits(number: int, b: Tensor, contract: str, quantize: Callable[[Tensor, int], Digits]) -> Digits | None:
    """What `Kept` number `number` holds of b (K, N), if it is of this contract's digits; None otherwise."""
    kept = _all_kept.get(number)
    if kept is None or kept.digits != digits_of(contract):
        return None
    return kept.of(b, quantize)


class Prepared:
    """A linear weight (out_features, in_features) with kept digits; see `prepare`.

    weight: the tensor itself, not a copy. contract: what `prepare` was given. keep: "digits" or "scales".
    """

    def __init__(self, weight: Tensor, contract: Contract | None, keep: Keep, kept: Kept | None) -> None:
        self.weight = weight
        self.contract = contract
        self.keep = keep
        self._kept = kept

    @property
    def number(self) -> int:
        """The number of what is kept; 0 where the contract has no digits."""
        return NOTHING_KEPT if self._kept is None else self._kept.number

    def __repr__(self) -> str:
        return f"Prepared(shape={tuple(self.weight.shape)}, contract={self.contract}, keep={self.keep!r})"


def prepare(weight: Tensor, contract: ContractLike | None = None, keep: Keep = "digits") -> Prepared:
    """Makes the digits of a linear weight once: `linear(x, prepare(weight), bias)`, `matmul(x, prepare(weight))`.

    weight: (out_features, in_features), fp32, bf16, fp16 or fp64, on the CPU or a GPU. In `matmul` the result stands
        for `weight.T`. Those of experts, (experts, out_features, in_features), are for `grouped_mm` and `moe`.
    contract: calls that name none follow it. If None they follow the contract in force when they run, and the digits
        are those of the contract in force now. A call whose contract has another number of digits makes its own.
        `ordered` and `native` have no digits: nothing is kept.
    keep: "digits" for speed (S bytes per element), "scales" for memory (4 bytes per output feature): then the digits
        are made per call, without the pass that finds the scales.

    Bits are those of the weight itself. When the weight has changed (its `_version`, as optimizers, `copy_` and
    `load_state_dict` raise it, or its memory), the next call makes the digits anew. Writes that hide from `_version`
    (`weight.data.mul_()`, other processes) are not seen: prepare again after them. A captured CUDA graph reads the kept
    digits where they lie: after the weight has changed, make one call outside of the graph before the next replay.
    Gradients of x and of the weight flow as ever.

    Raises ValueError for a weight that is neither 2-D nor 3-D, was made under inference_mode (it counts no versions) or
    is on "meta", and as `resolve` for the contract.
    """
    pair, kept = None if contract is None else as_pair(contract), keep_of(weight, contract, keep)
    prepared = Prepared(weight, pair, keep, kept)
    if kept is not None:
        make_now(kept, weight)
    return prepared


def make_now(kept: Kept, weight: Tensor) -> None:
    """Makes the digits of `weight` before the first call that needs them, which may be the capture of a graph."""
    kept.of(weight.mT, backend("matmul", weight.device.type).quantize)


def keep_of(weight: Tensor, contract: ContractLike | None, keep: Keep) -> Kept | None:
    """A place for the digits of `weight` under `contract`, nothing made yet; None if that contract has none."""
    checks.operand("weight", weight)
    if weight.ndim not in (2, 3):
        raise ValueError(f"weight: expected (out_features, in_features), got shape {tuple(weight.shape)}")
    if weight.is_inference():
        raise ValueError("weight: made under inference_mode, it counts no versions; clone it outside of inference_mode")
    if weight.device.type == "meta":
        raise ValueError("weight: on the meta device it has no values; prepare it once it is materialised")
    if keep not in ("digits", "scales"):
        raise ValueError(f"keep: expected 'digits' (speed) or 'scales' (memory), got {keep!r}")
    digits = digits_of(resolve(contract, weight.dtype, weight.device.type).forward)
    return Kept(keep, digits) if digits else None
