"""Pieces of LLVM vector code, which becomes whatever the machine has: for inner loops that must not be left to luck.

Intrinsics take 1-D contiguous arrays, each followed by the place in it of the first element meant.
"""

from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

# Bytes of one vector.
BYTES = 32
AHEAD = 256

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32 = ir.FloatType()


def address(context: Any, builder: ir.IRBuilder, signature: Any, args: Any, index: int) -> Any:
    """The place in array argument `index` that the argument after it (or at `out_at`, `c_at`) counts elements to."""
    kind = signature.args[index]
    data = builder.ptrtoint(context.make_array(kind)(context, builder, args[index]).data, I64)
    place = builder.add(data, builder.mul(args[index + 1], I64(kind.dtype.bitwidth // 8)))
    return builder.inttoptr(place, ir.PointerType())


def moved(builder: ir.IRBuilder, place: Any, offset: Any) -> Any:
    return builder.gep(place, [offset], source_etype=I8)


def splat(builder: ir.IRBuilder, value: Any, vector: ir.VectorType) -> Any:
    first = builder.insert_element(vector(ir.Undefined), value, I32(0))
    return builder.shuffle_vector(first, vector(ir.Undefined), ir.VectorType(I32, vector.count)(None))


@contextmanager
def registers(builder: ir.IRBuilder, count: Any, start: list[Any]) -> Any:
    """A loop over k < count (an i64) whose body replaces the entries of a list of sums, kept in registers."""
    before = builder.block
    head, body, after = (builder.append_basic_block(name) for name in ("head", "body", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    k = builder.phi(I64)
    sums = [builder.phi(value.type) for value in start]
    builder.cbranch(builder.icmp_signed("<", k, count), body, after)
    builder.position_at_end(body)
    kept = list(sums)
    yield k, kept
    k.add_incoming(I64(0), before)
    k.add_incoming(builder.add(k, I64(1)), builder.block)
    for phi, first, value in zip(sums, start, kept, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(value, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    kept[:] = sums


def widened_vector(builder: ir.IRBuilder, place: Any, dtype: Any, count: int) -> Any:
    """`count` adjacent elements as integers that hold the bits of fp32 (fp64): int16 is bf16, uint16 is fp16."""
    bits = ir.IntType(dtype.bitwidth)
    loaded = builder.load(place, typ=ir.VectorType(bits, count), align=dtype.bitwidth // 8)
    if isinstance(dtype, types.Float):
        return loaded
    wide = ir.VectorType(I32, count)
    x = builder.zext(loaded, wide)

    def all_lanes(value: int) -> Any:
        return ir.Constant(wide, [value] * count)

    if dtype == types.int16:
        return builder.shl(x, all_lanes(16))
    # The magnitude's bits moved to fp32's places are the number times 2^-112, subnormals too.
    numbers = ir.VectorType(F32, count)
    moved = builder.shl(builder.and_(x, all_lanes(0x7FFF)), all_lanes(13))
    scaled = builder.bitcast(
        builder.fmul(builder.bitcast(moved, numbers), ir.Constant(numbers, [2.0**112] * count)), wide
    )
    special = builder.icmp_unsigned(">=", moved, all_lanes(0x0F800000))
    magnitude = builder.select(special, builder.or_(moved, all_lanes(0x7F800000)), scaled)
    return builder.or_(magnitude, builder.shl(builder.and_(x, all_lanes(0x8000)), all_lanes(16)))


def transposed(builder: ir.IRBuilder, rows: list[Any]) -> list[Any]:
    """The columns of a square of vectors, by log2(count) rounds of interleaving rows i and i + count / 2."""
    count = len(rows)
    low = ir.Constant(ir.VectorType(I32, count), [i // 2 + count * (i % 2) for i in range(count)])
    high = ir.Constant(ir.VectorType(I32, count), [(i + count) // 2 + count * (i % 2) for i in range(count)])
    for _ in range(count.bit_length() - 1):
        halves = zip(rows[: count // 2], rows[count // 2 :], strict=True)
        rows = [builder.shuffle_vector(x, y, mask) for x, y in halves for mask in (low, high)]
    return rows


def store_columns(builder: ir.IRBuilder, columns: list[Any], target: Any, first: Any, step: Any, dtype: Any) -> None:
    size = dtype.bitwidth // 8
    for i, column in enumerate(columns):
        offset = builder.mul(builder.mul(builder.add(first, I64(i)), step), I64(size))
        builder.store(column, moved(builder, target, offset), align=size)


def fetch_ahead(builder: ir.IRBuilder, place: Any) -> None:
    """Asks for the memory that a loop reaches AHEAD bytes later; of no effect where there is none."""
    kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), I32, I32, I32])
    fetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(fetch, [moved(builder, place, I64(AHEAD)), I32(0), I32(3), I32(1)])
