"""The inner loops of quantisation: the largest magnitude of a stretch of a vector, and its digits."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from repkernels.cpu.vectors import F32, I8, I32, I64, address, moved, registers, splat, widened_vector

# Elements of one step.
WIDTH = 16

_VECTOR, _FLOATS, _BYTES = ir.VectorType(I32, WIDTH), ir.VectorType(F32, WIDTH), ir.VectorType(I8, WIDTH)


@intrinsic
def largest(typingctx: Any, x: Any, at: Any, blocks: Any) -> Any:
    """The largest magnitude among WIDTH * blocks elements of x, as fp32 bits: of the finite ones, and of all."""
    pair = types.UniTuple(types.int32, 2)

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, element = address(context, builder, signature, args, 0), signature.args[0].dtype
        with registers(builder, args[2], [_VECTOR(None), _VECTOR(None)]) as (block, found):
            bits = _magnitudes(builder, _elements(builder, source, element, block))
            for i, candidate in enumerate((_where_finite(builder, bits, bits), bits)):
                found[i] = _larger(builder, found[i], candidate)
        reduced = []
        for vector in found:
            lanes = [builder.extract_element(vector, I32(i)) for i in range(WIDTH)]
            while len(lanes) > 1:
                halves = zip(lanes[::2], lanes[1::2], strict=True)
                lanes = [_larger(builder, x, y) for x, y in halves]
            reduced += lanes
        return cgutils.pack_array(builder, reduced)

    return pair(x, types.intp, types.intp), codegen


@intrinsic
def split(
    typingctx: Any,
    x: Any,
    at: Any,
    blocks: Any,
    one: Any,
    two: Any,
    digits: Any,
    out: Any,
    out_at: Any,
    plane: Any,
) -> Any:
    """Digits of q = rhe((x * one) * two) of WIDTH * blocks elements; of 0 for those that are not finite.

    The digits, most significant first, go to out[out_at ...], out[out_at + plane ...], ... The bytes of
    q + 128 * (256^digits - 1) / 255 are its balanced digits + 128; more leading bytes of 128 do not matter.
    """
    if out.dtype != types.int8:
        return None

    def codegen(context: Any, builder: ir.IRBuilder, signature: Any, args: Any) -> Any:
        source, target = (address(context, builder, signature, args, i) for i in (0, 6))
        blocks, (one, two), digits, plane = args[2], args[3:5], args[5], args[8]
        one, two = splat(builder, one, _FLOATS), splat(builder, two, _FLOATS)
        half, flip = splat(builder, I32(0x80808080), _VECTOR), splat(builder, I8(-128), _BYTES)
        rounded = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_FLOATS, [_FLOATS]), f"llvm.rint.v{WIDTH}f32"
        )
        with cgutils.for_range(builder, blocks) as loop:
            bits = _elements(builder, source, signature.args[0].dtype, loop.index)
            finite = _where_finite(builder, _magnitudes(builder, bits), bits)
            scaled = builder.fmul(builder.fmul(builder.bitcast(finite, _FLOATS), one), two)
            q = builder.add(builder.fptosi(builder.call(rounded, [scaled]), _VECTOR), half)
            first = builder.mul(loop.index, I64(WIDTH))
            with cgutils.for_range(builder, digits) as digit:
                place = builder.sub(builder.sub(digits, I64(1)), digit.index)
                shift = splat(builder, builder.trunc(builder.mul(place, I64(8)), I32), _VECTOR)
                low = builder.trunc(builder.lshr(q, shift), _BYTES)
                offset = builder.add(first, builder.mul(digit.index, plane))
                builder.store(builder.xor(low, flip), moved(builder, target, offset), align=1)
        return context.get_dummy_value()

    intp, f32 = types.intp, types.float32
    return types.void(x, intp, intp, f32, f32, intp, out, intp, intp), codegen


def _elements(builder: ir.IRBuilder, source: Any, element: Any, block: Any) -> Any:
    offset = builder.mul(block, I64(WIDTH * element.bitwidth // 8))
    return widened_vector(builder, moved(builder, source, offset), element, WIDTH)


def _magnitudes(builder: ir.IRBuilder, bits: Any) -> Any:
    return builder.and_(bits, splat(builder, I32(0x7FFFFFFF), _VECTOR))


def _where_finite(builder: ir.IRBuilder, magnitudes: Any, bits: Any) -> Any:
    finite = builder.icmp_signed("<", magnitudes, splat(builder, I32(0x7F800000), _VECTOR))
    return builder.select(finite, bits, _VECTOR(None))


def _larger(builder: ir.IRBuilder, x: Any, y: Any) -> Any:
    return builder.select(builder.icmp_signed(">", x, y), x, y)
