"""The inner loops of the products as LLVM vector code, which becomes whatever the machine has.

A packed operand is a sequence of groups of LANES rows; a group is a sequence over k of 32 bytes that hold one unit of
each row: one fp32 number (8 rows), one fp64 number (4 rows), or int16 numbers of k and k + 1 (8 rows). A block of the
result is ROWS x 3 groups of columns: 12 vectors of sums, 3 of B and one broadcast element of A fit 16 registers.

The arguments are 1-D contiguous arrays and the place in them of the first element.
"""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

ROWS, GROUPS = 4, 3
BYTES = 32

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32 = ir.FloatType()


def lanes(itemsize: int) -> int:
    """Rows of a group of units of `itemsize` bytes."""
    return BYTES // itemsize


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
        a, b, c = (_address(context, builder, signature, args, i) for i in (0, 2, 6))
        step, length, width = args[4], args[5], args[8]
        element = context.get_value_type(signature.args[0].dtype)
        size = signature.args[0].dtype.bitwidth // 8
        vector = ir.VectorType(element, lanes(size))
        fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fma.v{lanes(size)}f{8 * size}"
        )
        places = _places(builder, c, width, size, BYTES)
        start = [builder.load(place, typ=vector, align=size) for place in places]
        with _sums(builder, length, start) as (k, sums):
            offset = builder.mul(k, _I64(BYTES))
            columns = [
                builder.load(
                    _at(builder, b, builder.add(offset, builder.mul(step, _I64(g * size)))), typ=vector, align=size
                )
                for g in range(GROUPS)
            ]
            for row in range(ROWS):
                number = builder.load(_at(builder, a, builder.add(offset, _I64(row * size))), typ=element)
                spread = _splat(builder, number, vector)
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

    As `multiply_chain`, with `pairs` steps of two k each, and `group` in int16 elements.
    """
    if (a.dtype, b.dtype, c.dtype) != (types.int16, types.int16, types.int64):
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        a, b, c = (_address(context, builder, signature, args, i) for i in (0, 2, 6))
        step, length, width, shift = args[4], args[5], args[8], args[9]
        narrow, wide = ir.VectorType(_I32, 8), ir.VectorType(_I64, 8)
        numbers = ir.VectorType(_I16, 16)
        with _sums(builder, length, [narrow(None)] * (ROWS * GROUPS)) as (k, sums):
            offset = builder.mul(k, _I64(BYTES))
            columns = [
                builder.load(_at(builder, b, builder.add(offset, builder.mul(step, _I64(g * 2)))), typ=numbers, align=2)
                for g in range(GROUPS)
            ]
            for row in range(ROWS):
                pair = builder.load(_at(builder, a, builder.add(offset, _I64(row * 4))), typ=_I32, align=2)
                spread = builder.bitcast(_splat(builder, pair, narrow), numbers)
                for g in range(GROUPS):
                    index = row * GROUPS + g
                    sums[index] = builder.add(sums[index], _dot_pairs(builder, spread, columns[g]))
        by = _splat(builder, shift, wide)
        for place, value in zip(_places(builder, c, width, 8, 64), sums, strict=True):
            total = builder.add(builder.load(place, typ=wide, align=8), builder.shl(builder.sext(value, wide), by))
            builder.store(total, place, align=8)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(a, intp, b, intp, intp, intp, c, intp, intp, types.int64), codegen


@intrinsic
def pack_transposed(
    typingctx: Any, x: Any, at: Any, stride: Any, last: Any, blocks: Any, out: Any, out_at: Any, step: Any
) -> Any:
    """Writes the group of rows x[at + min(r, last) * stride + k], r < LANES, k < LANES * blocks, transposed and widened.

    The units of k go to out[out_at + k * step ...].
    """
    width = _unit(x, out)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (_address(context, builder, signature, args, i) for i in (0, 5))
        stride, last, blocks, step = args[2], args[3], args[4], args[7]
        size = signature.args[0].dtype.bitwidth // 8
        rows = []
        for r in range(width):
            clamped = builder.select(builder.icmp_signed("<", last, _I64(r)), last, _I64(r))
            rows.append(_at(builder, source, builder.mul(builder.mul(clamped, stride), _I64(size))))
        with cgutils.for_range(builder, blocks) as loop:
            offset = builder.mul(loop.index, _I64(width * size))
            loaded = [_widened(builder, _at(builder, row, offset), signature.args[0].dtype, width) for row in rows]
            first = builder.mul(loop.index, _I64(width))
            _store_columns(builder, _transposed(builder, loaded), target, first, step, signature.args[5].dtype)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(x, intp, intp, intp, intp, out, intp, intp), codegen


@intrinsic
def pack_straight(typingctx: Any, x: Any, at: Any, stride: Any, k: Any, out: Any, out_at: Any) -> Any:
    """Writes the group of rows x[at + k * stride + r], r < LANES, widened: its units lie side by side already."""
    width = _unit(x, out)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (_address(context, builder, signature, args, i) for i in (0, 4))
        stride, length = args[2], args[3]
        element = signature.args[0].dtype
        with cgutils.for_range(builder, length) as loop:
            offset = builder.mul(builder.mul(loop.index, stride), _I64(element.bitwidth // 8))
            value = _widened(builder, _at(builder, source, offset), element, width)
            place = _at(builder, target, builder.mul(loop.index, _I64(BYTES)))
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
        source, target = (_address(context, builder, signature, args, i) for i in (0, 7))
        plane, both, stride, last, blocks = args[2:7]
        digits, numbers, pairs = ir.VectorType(_I8, 16), ir.VectorType(_I16, 16), ir.VectorType(_I32, 8)
        rows = []
        for r in range(8):
            clamped = builder.select(builder.icmp_signed("<", last, _I64(r)), last, _I64(r))
            rows.append(_at(builder, source, builder.mul(clamped, stride)))

        def fill(load: Callable[[Any], Any]) -> None:
            with cgutils.for_range(builder, blocks) as loop:
                offset = builder.mul(loop.index, _I64(16))
                loaded = [builder.bitcast(load(_at(builder, row, offset)), pairs) for row in rows]
                first = builder.mul(loop.index, _I64(8))
                _store_columns(builder, _transposed(builder, loaded), target, first, _I64(16), types.int16)

        def one(place: Any) -> Any:
            return builder.sext(builder.load(place, typ=digits, align=1), numbers)

        def two(place: Any) -> Any:
            eight = _splat(builder, _I16(8), numbers)
            return builder.add(builder.shl(one(place), eight), one(_at(builder, place, plane)))

        with builder.if_else(builder.icmp_signed("!=", both, _I64(0))) as (then, otherwise):
            with then:
                fill(two)
            with otherwise:
                fill(one)
        return context.get_dummy_value()

    intp = types.intp
    return types.void(x, intp, intp, intp, intp, intp, intp, out, intp), codegen


@intrinsic
def round_even(typingctx: Any, x: Any) -> Any:
    """The nearest integer to fp32 x, half to even, as fp32."""
    if x != types.float32:
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.roundeven", (_F32,)), args)

    return types.float32(types.float32), codegen


def _address(context: Any, builder: ir.IRBuilder, signature: Any, args: Any, index: int) -> Any:
    """The place in array argument `index` that the argument after it (or at `out_at`, `c_at`) counts elements to."""
    kind = signature.args[index]
    data = builder.ptrtoint(context.make_array(kind)(context, builder, args[index]).data, _I64)
    place = builder.add(data, builder.mul(args[index + 1], _I64(kind.dtype.bitwidth // 8)))
    return builder.inttoptr(place, ir.PointerType())


def _at(builder: ir.IRBuilder, place: Any, offset: Any) -> Any:
    return builder.gep(place, [offset], source_etype=_I8)


def _splat(builder: ir.IRBuilder, value: Any, vector: ir.VectorType) -> Any:
    first = builder.insert_element(vector(ir.Undefined), value, _I32(0))
    return builder.shuffle_vector(first, vector(ir.Undefined), ir.VectorType(_I32, vector.count)(None))


def _places(builder: ir.IRBuilder, c: Any, width: Any, size: int, stride: int) -> list[Any]:
    """The addresses of the vectors of a block of the result."""
    return [
        _at(builder, c, builder.add(builder.mul(width, _I64(row * size)), _I64(g * stride)))
        for row in range(ROWS)
        for g in range(GROUPS)
    ]


@contextmanager
def _sums(builder: ir.IRBuilder, count: Any, start: list[Any]) -> Any:
    """A loop over k < count (an i64) whose body replaces the entries of a list of sums, kept in registers."""
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(_I64)
    sums = [builder.phi(value.type) for value in start]
    builder.cbranch(builder.icmp_signed("<", k, count), body, after)
    builder.position_at_end(body)
    kept = list(sums)
    yield k, kept
    k.add_incoming(_I64(0), before)
    k.add_incoming(builder.add(k, _I64(1)), builder.block)
    for phi, first, value in zip(sums, start, kept, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    kept[:] = sums


def _dot_pairs(builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    """<8 x i32> of x[2i] * y[2i] + x[2i+1] * y[2i+1], x and y <16 x i16>."""
    vector, wide = ir.VectorType(_I32, 8), ir.VectorType(_I32, 16)
    if binding.get_host_cpu_features().get("avx2"):
        signature = ir.FunctionType(vector, [x.type, y.type])
        return builder.call(cgutils.get_or_insert_function(builder.module, signature, "llvm.x86.avx2.pmadd.wd"), [x, y])
    products = builder.mul(builder.sext(x, wide), builder.sext(y, wide))
    even, odd = (
        builder.shuffle_vector(products, wide(ir.Undefined), ir.Constant(vector, [first + 2 * i for i in range(8)]))
        for first in (0, 1)
    )
    return builder.add(even, odd)


def _unit(x: Any, out: Any) -> int:
    """Rows of a group when x is packed into `out`; widening gives fp64 from fp64 only."""
    return lanes(out.dtype.bitwidth // 8)


def _widened(builder: ir.IRBuilder, place: Any, dtype: Any, count: int) -> Any:
    """`count` adjacent elements as integers that hold the bits of fp32 (fp64): int16 is bf16, uint16 is fp16."""
    bits = ir.IntType(dtype.bitwidth)
    loaded = builder.load(place, typ=ir.VectorType(bits, count), align=dtype.bitwidth // 8)
    if isinstance(dtype, types.Float):
        return loaded
    wide = ir.VectorType(_I32, count)
    x = builder.zext(loaded, wide)

    def all_lanes(value: int) -> Any:
        return ir.Constant(wide, [value] * count)

    if dtype == types.int16:
        return builder.shl(x, all_lanes(16))
    # The magnitude's bits moved to fp32's places are the number times 2^-112, subnormals too.
    numbers = ir.VectorType(_F32, count)
    moved = builder.shl(builder.and_(x, all_lanes(0x7FFF)), all_lanes(13))
    scaled = builder.bitcast(
        builder.fmul(builder.bitcast(moved, numbers), ir.Constant(numbers, [2.0**112] * count)), wide
    )
    special = builder.icmp_unsigned(">=", moved, all_lanes(0x0F800000))
    magnitude = builder.select(special, builder.or_(moved, all_lanes(0x7F800000)), scaled)
    return builder.or_(magnitude, builder.shl(builder.and_(x, all_lanes(0x8000)), all_lanes(16)))


def _transposed(builder: ir.IRBuilder, rows: list[Any]) -> list[Any]:
    """The columns of a square of vectors, by log2(count) rounds of interleaving rows i and i + count / 2."""
    count = len(rows)
    low = ir.Constant(ir.VectorType(_I32, count), [i // 2 + count * (i % 2) for i in range(count)])
    high = ir.Constant(ir.VectorType(_I32, count), [(i + count) // 2 + count * (i % 2) for i in range(count)])
    for _ in range(count.bit_length() - 1):
        halves = zip(rows[: count // 2], rows[count // 2 :], strict=True)
        rows = [builder.shuffle_vector(x, y, mask) for x, y in halves for mask in (low, high)]
    return rows


def _store_columns(builder: ir.IRBuilder, columns: list[Any], target: Any, first: Any, step: Any, dtype: Any) -> None:
    size = dtype.bitwidth // 8
    for i, column in enumerate(columns):
        offset = builder.mul(builder.mul(builder.add(first, _I64(i)), step), _I64(size))
        builder.store(column, _at(builder, target, offset), align=size)
