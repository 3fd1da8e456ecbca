"""Makes Triton's interpreter faster, with no change of what it computes: most of its time goes into Triton's types.

`patch()` keeps what does not depend on data: the NumPy dtype of a type, the parts of a type of a block, the shape of a
tensor as a tuple of Triton. Operands of one shape are not broadcast, and sums of integers are not computed again in 64
bits to find overflows, which Triton reports only where its debugging is on.
"""

import math
from typing import Any

import triton.language.core as core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def patch() -> None:
    """Changes the interpreter for the rest of the process; called once."""
    core.dtype.__eq__ = _same_or(core.dtype.__eq__)
    core.block_type.__init__ = _kept_parts(core.block_type.__init__)
    core.tensor.__init__ = _init_tensor
    interpreter._get_np_dtype = _kept_dtype(interpreter._get_np_dtype)
    TritonSemantic.cast = _cast(TritonSemantic.cast)
    TritonSemantic.binary_op_type_checking_impl = _operands(TritonSemantic.binary_op_type_checking_impl)
    TritonSemantic.broadcast_impl_value = _broadcast(TritonSemantic.broadcast_impl_value)
    TritonSemantic.binary_op_sanitize_overflow_impl = _overflow(TritonSemantic.binary_op_sanitize_overflow_impl)


def _same_or(original: Any) -> Any:
    def equal(self: Any, other: Any) -> bool:
        return self is other or original(self, other)

    return equal


def _kept_parts(original: Any) -> Any:
    parts: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        # Types of pointers cannot be hashed; the name holds all that tells two of them apart but the address space.
        key = (element_ty.name, getattr(element_ty, "address_space", None), *map(_number, shape))
        known = parts.get(key)
        if known is None:
            original(self, element_ty, shape)
            parts[key] = dict(self.__dict__)
        else:
            self.__dict__.update(known)

    return init


def _number(length: Any) -> int:
    return length.value if isinstance(length, core.constexpr) else length


_shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}


def _init_tensor(self: Any, handle: Any, type: Any) -> None:
    shape = tuple(type.shape.values) if type.is_block() else ()
    known = _shapes.get(shape)
    if known is None:
        known = _shapes[shape] = (
            core.tuple([core.constexpr(length) for length in shape]),
            core.constexpr(math.prod(shape)),
        )
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = known


def _kept_dtype(original: Any) -> Any:
    known: dict[str, Any] = {}

    def get_np_dtype(tt_dtype: Any) -> Any:
        name = tt_dtype.scalar.name
        found = known.get(name)
        if found is None:
            found = known[name] = original(tt_dtype)
        return found

    return get_np_dtype


def _cast(original: Any) -> Any:
    def cast(self: Any, input: Any, dst_ty: Any, *rounding: Any, **options: Any) -> Any:
        return input if input.dtype is dst_ty.scalar else original(self, input, dst_ty, *rounding, **options)

    return cast


def _operands(original: Any) -> Any:
    def operands(self: Any, lhs: Any, rhs: Any, *allowed: Any, **options: Any) -> Any:
        alike = type(lhs) is type(rhs) is core.tensor and lhs.dtype is rhs.dtype and lhs.shape is rhs.shape
        if alike and not lhs.dtype.is_ptr() and not options.get("div_or_mod"):
            return lhs, rhs
        return original(self, lhs, rhs, *allowed, **options)

    return operands


def _broadcast(original: Any) -> Any:
    def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> Any:
        if lhs.shape is rhs.shape:
            return lhs, rhs
        return original(self, lhs, rhs)

    return broadcast_impl_value


def _overflow(original: Any) -> Any:
    def check(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        if self.builder.options.debug:
            original(self, lhs, rhs, binary_op)

    return check
