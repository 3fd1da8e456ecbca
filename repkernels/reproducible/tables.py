"""Which verdict an operation of torch gets, and what runs in its place."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from repkernels.reproducible import (
    contractions,
    creation,
    elementwise,
    losses,
    norms,
    optimizers,
    pooling,
    random,
    reductions,
)
from repkernels.reproducible.safe import IEEE, ON_INTEGERS, SAFE
from repkernels.reproducible.variants import in_place, into_out, one_by_one

PASS, OURS, COMPOSITE, UNKNOWN = "safe", "ours", "composite", "not reproducible"
SILENT = ("prim", "profiler", "debugprims")
_NAMED = "it is no operation of aten, and what it computes is not known here"
_MISSING = "this library has no such operation"
_FAMILIES = (contractions, creation, elementwise, losses, norms, optimizers, pooling, random, reductions)
_OURS: dict[str, Callable[..., Any]] = {name: f for family in _FAMILIES for name, f in family.ATEN.items()}
_WHY: dict[str, str] = {name: family.WHY for family in _FAMILIES for name in family.ATEN}


class Entry(NamedTuple):
    """verdict: PASS, OURS, COMPOSITE or UNKNOWN. reason: of SAFE, or why torch's own bits may differ."""

    verdict: str
    reason: str
    call: Callable[..., Any] | None = None
    name: str = ""  # the functional form's


@functools.cache
def look_up(op: Any) -> Entry:
    """The entry of an OpOverload, whatever its operands are."""
    if op.namespace == "repkernels":
        return Entry(PASS, "this library's")
    if op.namespace in SILENT:
        return Entry(PASS, "computes nothing")
    if op.namespace != "aten":
        return Entry(UNKNOWN, _NAMED)
    name, overload = op._schema.name.removeprefix("aten::"), op._overloadname
    base = _without_underscore(name)
    if any(a.is_out for a in op._schema.arguments):
        return _of_out(op, name) or Entry(UNKNOWN, _MISSING, None, name)
    found = _functional(name, overload)
    if found is not None:
        return found
    if name.startswith("_foreach_"):
        inner = _foreach(name)
        if inner is not None:
            return inner
    if base is not None and (found := _functional(base, overload)) is not None:
        return found if found.call is None else found._replace(call=in_place(found.call))
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), torch._C.DispatchKey.CompositeImplicitAutograd):
        return Entry(COMPOSITE, "made of other operations", None, name)
    return Entry(UNKNOWN, _MISSING, None, name)


def _functional(name: str, overload: str) -> Entry | None:
    for key in (f"{name}.{overload}", name):
        if key in SAFE:
            return Entry(PASS, SAFE[key], None, key)
        if key in _OURS:
            return Entry(OURS, _WHY[key], _OURS[key], key)
    return None


def _without_underscore(name: str) -> str | None:
    if name.endswith("__") and name.startswith("__i"):
        return None
    return name[:-1] if name.endswith("_") else None


def _of_out(op: Any, name: str) -> Entry | None:
    """The entry of an out= form: that of the overload with the same arguments otherwise."""
    wanted = [a.name for a in op._schema.arguments if not a.is_out]
    packet = getattr(torch.ops.aten, name)
    for overload in packet.overloads():
        schema = getattr(packet, overload)._schema
        if [a.name for a in schema.arguments] == wanted:
            found = _functional(name, "" if overload == "default" else overload)
            if found is None or found.call is None:
                return found
            places = [a.name for a in op._schema.arguments if a.is_out]
            return found._replace(call=into_out(found.call, places))
    return None


def _foreach(name: str) -> Entry | None:
    """A list operation: the operation of one tensor, tensor by tensor."""
    plain = name.removeprefix("_foreach_")
    base = plain.removesuffix("_")
    alias = {"norm": "linalg_vector_norm"}.get(base, base)
    operation = getattr(torch.ops.aten, alias, None)
    if operation is None:
        return None
    return Entry(OURS, "a list of operations, made one by one", one_by_one(operation, in_place=plain != base), name)


def verdict(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
    """The entry of a call: that of the operation, or PASS where all it touches are integers."""
    entry = look_up(op)
    if entry.verdict == PASS and entry.reason != IEEE:
        return entry
    tensors = _tensors(args, kwargs)
    if any(x.dtype.is_complex for x in tensors):
        if entry.verdict != COMPOSITE and not entry.name.startswith("_foreach_"):
            return Entry(UNKNOWN, "complex numbers are not supported", None, entry.name)
        return entry
    plain = entry.name.split(".")[0].removesuffix("_")
    if entry.verdict == OURS and elementwise.is_one_operation(plain, args, kwargs):
        return Entry(PASS, IEEE, None, entry.name)
    if entry.verdict in (OURS, UNKNOWN) and (entry.name in ON_INTEGERS or plain in ON_INTEGERS):
        if tensors and not any(x.dtype.is_floating_point for x in tensors) and not _floats(args, kwargs):
            return Entry(PASS, "integers, exact or wrapping", None, entry.name)
    return entry


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    found = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def _floats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a number or a dtype among the arguments makes the result floating."""
    dtype = kwargs.get("dtype")
    return any(isinstance(v, float) for v in (*args, *kwargs.values())) or (
        dtype is not None and dtype.is_floating_point
    )
