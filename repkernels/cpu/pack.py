"""Copying operands into groups of rows (multiply.py), from any layout and format."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from repkernels.cpu.functions import widened
from repkernels.cpu.vectors import (
    BYTES,
    I8,
    I16,
    I32,
    I64,
    address,
    fetch_ahead,
    moved,
    splat,
    store_columns,
    transposed,
    widened_vector,
)


@intrinsic
def pack_transposed(
    typingctx: Any, x: Any, at: Any, stride: Any, last: Any, blocks: Any, out: Any, out_at: Any, step: Any
) -> Any:
    """Transposes and widens the group of rows x[at + min(r, last) * stride + k], r < its rows, k < that * blocks.

    The units of k go to out[out_at + k * step ...].
    """
    width = BYTES // (out.dtype.bitwidth // 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (address(context, builder, signature, args, i) for i in (0, 5))
        stride, last, blocks, step = args[2], args[3], args[4], args[7]
        size = signature.args[0].dtype.bitwidth // 8
        rows = []
        for r in range(width):
            clamped = builder.select(builder.icmp_signed("<", last, I64(r)), last, I64(r))
            rows.append(moved(builder, source, builder.mul(builder.mul(clamped, stride), I64(size))))
        with cgutils.for_range(builder, blocks) as loop:
            offset = builder.mul(loop.index, I64(width * size))
            loaded = [
                widened_vector(builder, moved(builder, row, offset), signature.args[0].dtype, width) for row in rows
            ]
            for row in rows:
                fetch_ahead(builder, moved(builder, row, offset))
            first = builder.mul(loop.index, I64(width))
            store_columns(builder, transposed(builder, loaded), target, first, step, signature.args[5].dtype)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(x, intp, intp, intp, intp, out, intp, intp), codegen


@intrinsic
def pack_straight(typingctx: Any, x: Any, at: Any, stride: Any, k: Any, out: Any, out_at: Any) -> Any:
    """Writes the group of rows x[at + k * stride + r], r < LANES, widened: its units lie side by side already."""
    width = BYTES // (out.dtype.bitwidth // 8)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (address(context, builder, signature, args, i) for i in (0, 4))
        stride, length = args[2], args[3]
        element = signature.args[0].dtype
        with cgutils.for_range(builder, length) as loop:
            offset = builder.mul(builder.mul(loop.index, stride), I64(element.bitwidth // 8))
            value = widened_vector(builder, moved(builder, source, offset), element, width)
            place = moved(builder, target, builder.mul(loop.index, I64(BYTES)))
            builder.store(value, place, align=signature.args[4].dtype.bitwidth // 8)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(x, intp, intp, intp, out, intp), codegen


@intrinsic
def pack_digits(
    typingctx: Any, x: Any, at: Any, plane: Any, both: Any, stride: Any, last: Any, blocks: Any, out: Any, out_at: Any
) -> Any:
    """Packs a group of rows of int8 digits x[at + min(r, last) * stride + k], k < 16 * blocks, into int16 pairs.

    If `both`, the digit at `at + plane` follows it: the number is 256 * the first + the second.
    """
    if (x.dtype, out.dtype) != (types.int8, types.int16):
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (address(context, builder, signature, args, i) for i in (0, 7))
        plane, both, stride, last, blocks = args[2:7]
        digits, numbers, pairs = ir.VectorType(I8, 16), ir.VectorType(I16, 16), ir.VectorType(I32, 8)
        rows = []
        for r in range(8):
            clamped = builder.select(builder.icmp_signed("<", last, I64(r)), last, I64(r))
            rows.append(moved(builder, source, builder.mul(clamped, stride)))

        def fill(load: Callable[[Any], Any]) -> None:
            with cgutils.for_range(builder, blocks) as loop:
                offset = builder.mul(loop.index, I64(16))
                loaded = [builder.bitcast(load(moved(builder, row, offset)), pairs) for row in rows]
                first = builder.mul(loop.index, I64(8))
                store_columns(builder, transposed(builder, loaded), target, first, I64(16), types.int16)

        def one(place: Any) -> Any:
            return builder.sext(builder.load(place, typ=digits, align=1), numbers)

        def two(place: Any) -> Any:
            eight = splat(builder, I16(8), numbers)
            return builder.add(builder.shl(one(place), eight), one(moved(builder, place, plane)))

        with builder.if_else(builder.icmp_signed("!=", both, I64(0))) as (then, otherwise):
            with then:
                fill(two)
            with otherwise:
                fill(one)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(x, intp, intp, intp, intp, intp, intp, out, intp), codegen


@njit
def pack(x, at, row, step, rows, depth, out, group):
    """Packs elements (r, k) = x[at + r * row + k * step], r < rows, k < depth; groups lie `group` apart in `out`.

    Rows that complete the last group repeat the last row: what they lead to is not stored.
    """
    lanes = BYTES // out.itemsize
    done = 0
    if row == 1 and step != 1:
        done = rows // lanes * lanes
        # A few k of all groups at a time: whole cache lines are read and written.
        for k in range(0, depth, lanes):
            for r in range(0, done, lanes):
                place = r // lanes * group + k * lanes
                pack_straight(x, at + r + k * step, step, min(lanes, depth - k), out, place)
    for r in range(done, rows, lanes):
        place, start, last = r // lanes * group, at + r * row, min(lanes, rows - r) - 1
        whole = depth // lanes * lanes if step == 1 else 0
        pack_transposed(x, start, row, last, whole // lanes, out, place, lanes)
        for k in range(whole, depth):
            for i in range(lanes):
                out[place + k * lanes + i] = widened(x[start + min(i, last) * row + k * step])


@njit
def to_signs(x):
    """Replaces every finite element by -1, 0 or 1."""
    for i in range(len(x)):
        if np.isfinite(x[i]):
            x[i] = (x[i] > 0) - (x[i] < 0)
