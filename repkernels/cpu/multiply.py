"""The inner loops of the products: a small block of the result, kept in registers while k goes by.

A packed operand is a sequence of groups of rows; a group is a sequence over k of BYTES bytes that hold one unit of each
row: one fp32 number (8 rows), one fp64 number (4 rows), or the int16 numbers of k and k + 1 (8 rows). A block of the
result is ROWS rows by some groups of columns: as many as leave 16 registers room for its sums, a column vector each
and a broadcast element of A (integer products need one register more).
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from repkernels.cpu.vectors import BYTES, I8, I16, I32, I64, address, moved, registers, splat

ROWS = 4
GROUPS = 3
INTEGER_GROUPS = 2


@intrinsic
def multiply_chain(
    typingctx: Any, a: Any, a_at: Any, b: Any, b_at: Any, group: Any, k: Any, c: Any, c_at: Any, width: Any
) -> Any:
    """c[i, j] = fma(a[i, k], b[j, k], c[i, j]), k ascending, in the floating-point format of the three arrays.

    a starts at the first of ROWS rows of a group; b at the first of GROUPS groups that are `group` elements apart;
    c is a block of a row-major array of `width` columns.
    """
    if not (isinstance(a.dtype, types.Float) and a == b == c):
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        a, b, c = (address(context, builder, signature, args, i) for i in (0, 2, 6))
        step, length, width = args[4], args[5], args[8]
        element = context.get_value_type(signature.args[0].dtype)
        size = signature.args[0].dtype.bitwidth // 8
        vector = ir.VectorType(element, BYTES // size)
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{BYTES // size}f{8 * size}"
        )
        places = _places(builder, c, GROUPS, builder.mul(width, I64(size)), BYTES)
        start = [builder.load(place, typ=vector, align=size) for place in places]
        with registers(builder, length, start) as (k, sums):
            offset = builder.mul(k, I64(BYTES))
            columns = [
                builder.load(
                    moved(builder, b, builder.add(offset, builder.mul(step, I64(g * size)))), typ=vector, align=size
                )
                for g in range(GROUPS)
            ]
            for row in range(ROWS):
                number = builder.load(moved(builder, a, builder.add(offset, I64(row * size))), typ=element)
                spread = splat(builder, number, vector)
                for g in range(GROUPS):
                    index = row * GROUPS + g
                    sums[index] = builder.call(fma, [spread, columns[g], sums[index]])
        for place, value in zip(places, sums, strict=True):
            builder.store(value, place, align=size)
        return context.get_dummy_value()

    return types.void(a, types.intp, b, types.intp, types.intp, types.intp, c, types.intp, types.intp), codegen


@intrinsic
def multiply_integers(
    typingctx: Any,
    a: Any,
    a_at: Any,
    b: Any,
    b_at: Any,
    group: Any,
    pairs: Any,
    c: Any,
    c_at: Any,
    width: Any,
    shift: Any,
) -> Any:
    """c[i, j] += 2^shift * (sum over k of a[i, k] * b[j, k]), a and b of int16, c of int64; the sum must fit int32.

    As `multiply_chain`, with INTEGER_GROUPS groups of columns and `pairs` steps of two k each.
    """
    if (a.dtype, b.dtype, c.dtype) != (types.int16, types.int16, types.int64):
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        a, b, c = (address(context, builder, signature, args, i) for i in (0, 2, 6))
        step, length, width, shift = args[4], args[5], args[8], args[9]
        narrow, wide = ir.VectorType(I32, 8), ir.VectorType(I64, 8)
        numbers = ir.VectorType(I16, 16)
        with registers(builder, length, [narrow(None)] * (ROWS * INTEGER_GROUPS)) as (k, sums):
            offset = builder.mul(k, I64(BYTES))
            columns = [
                builder.load(
                    moved(builder, b, builder.add(offset, builder.mul(step, I64(g * 2)))), typ=numbers, align=2
                )
                for g in range(INTEGER_GROUPS)
            ]
            for row in range(ROWS):
                pair = builder.load(moved(builder, a, builder.add(offset, I64(row * 4))), typ=I32, align=2)
                spread = builder.bitcast(splat(builder, pair, narrow), numbers)
                for g in range(INTEGER_GROUPS):
                    index = row * INTEGER_GROUPS + g
                    sums[index] = builder.add(sums[index], _dot_pairs(context, builder, spread, columns[g]))
        places = _places(builder, c, INTEGER_GROUPS, builder.mul(width, I64(8)), 64)
        by = splat(builder, shift, wide)
        for place, value in zip(places, sums, strict=True):
            total = builder.add(builder.load(place, typ=wide, align=8), builder.shl(builder.sext(value, wide), by))
            builder.store(total, place, align=8)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(a, intp, b, intp, intp, intp, c, intp, intp, types.int64), codegen


@intrinsic
def dot(typingctx: Any, a: Any, a_at: Any, b: Any, b_at: Any, blocks: Any) -> Any:
    """The sum over k < 16 * blocks of a[k] * b[k], a of int16, b of int8, as int64; it must fit int32."""
    if (a.dtype, b.dtype) != (types.int16, types.int8):
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        a, b = (address(context, builder, signature, args, i) for i in (0, 2))
        numbers, digits, narrow = ir.VectorType(I16, 16), ir.VectorType(I8, 16), ir.VectorType(I32, 8)
        with registers(builder, args[4], [narrow(None)]) as (block, sums):
            offset = builder.mul(block, I64(16))
            x = builder.load(moved(builder, a, builder.mul(offset, I64(2))), typ=numbers, align=2)
            y = builder.sext(builder.load(moved(builder, b, offset), typ=digits, align=1), numbers)
            sums[0] = builder.add(sums[0], _dot_pairs(context, builder, x, y))
        total = ir.FunctionType(I32, [narrow])
        add_up = cgutils.get_or_insert_function(builder.module, total, "llvm.vector.reduce.add.v8i32")
        return builder.sext(builder.call(add_up, sums), I64)

    return types.int64(a, types.intp, b, types.intp, types.intp), codegen


def _places(builder: ir.IRBuilder, c: Any, groups: int, row_bytes: Any, group_bytes: int) -> list[Any]:
    """The addresses of the vectors of a block of the result."""
    return [
        moved(builder, c, builder.add(builder.mul(row_bytes, I64(row)), I64(g * group_bytes)))
        for row in range(ROWS)
        for g in range(groups)
    ]


def _dot_pairs(context: Any, builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    """<8 x i32> of x[2i] * y[2i] + x[2i+1] * y[2i+1], x and y <16 x i16>."""
    vector, wide = ir.VectorType(I32, 8), ir.VectorType(I32, 16)
    if "+avx2" in context.codegen().magic_tuple()[2]:
        signature = ir.FunctionType(vector, [x.type, y.type])
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx2.pmadd.wd"), [x, y])
    products = builder.mul(builder.sext(x, wide), builder.sext(y, wide))
    even, odd = (
        builder.shuffle_vector(products, wide(ir.Undefined), ir.Constant(vector, [first + 2 * i for i in range(8)]))
        for first in (0, 1)
    )
    return builder.add(even, odd)
