"""Makes Triton's interpreter compute what a GPU computes, so that kernels are tested bit for bit without one.

`patch()` changes the interpreter of the installed Triton (3.6 and 3.9 were tried):
- `tl.fma` rounds once; casts to bf16 round to nearest even; bf16 subnormals, NaN and fp64 are cast properly;
- `tl.dot` has a stated order: fp32 and fp64 one FMA chain, k ascending from the accumulator; integers exact; half
  types in binary64, rounded to fp32 after every 16 products, whatever the tile;
- `tl.sum` of floats over an axis of length 2 keeps -0, and raises over a longer one, whose order a GPU leaves open;
- arithmetic that has no one meaning on a GPU raises: on bf16 without widening, fp32 dots that may use TF32;
- NumPy's warnings of overflow and NaN, which a GPU does not give, are silent.
"""

from typing import Any

import numpy as np
import triton.language as tl
import triton.language.core as core
from numba import njit, vectorize
from triton.runtime import interpreter

from repkernels.cpu import functions
from tests import quick

TensorHandle, Builder = interpreter.TensorHandle, interpreter.InterpreterBuilder
fused = vectorize(["float32(float32, float32, float32)", "float64(float64, float64, float64)"])(
    lambda a, b, c: functions.fma(a, b, c)
)


def patch() -> None:
    """Changes the interpreter for the rest of the process; a second call changes nothing more."""
    if getattr(Builder, "rounds_like_a_gpu", False):
        return
    Builder.rounds_like_a_gpu = True
    # As compiled code has it: constant tuples have a length.
    core.constexpr.__len__ = lambda self: len(self.value)
    Builder.create_fma = _fma
    Builder.cast_impl = _cast(Builder.cast_impl)
    Builder.create_fp_to_fp = _fp_to_fp(Builder.create_fp_to_fp)
    Builder.binary_op = _binary(Builder.binary_op)
    Builder.create_dot = _dot
    interpreter.ReduceOps.sum = _sum(interpreter.ReduceOps.sum)
    interpreter.GridExecutor.__call__ = _launch(interpreter.GridExecutor.__call__)
    interpreter.InterpretedFunction.__call__ = _call
    interpreter._patch_lang_tensor = _with_index(interpreter._patch_lang_tensor)
    quick.patch()


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """uint16 bits of fp32 x rounded to nearest even."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def _fma(self: Any, x: Any, y: Any, z: Any) -> Any:
    if z.data.dtype not in (np.float32, np.float64):
        raise TypeError(f"tl.fma of {z.dtype}: widen to fp32 first")
    return TensorHandle(fused(x.data, y.data, z.data), z.dtype.scalar)


def _cast(original: Any) -> Any:
    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return original(self, src, dst_type)
        data = from_bf16(src.data) if source == tl.bfloat16 else src.data
        if target == tl.bfloat16:
            return TensorHandle(to_bf16(data.astype(np.float32)), target)
        return TensorHandle(data.astype(interpreter._get_np_dtype(target)), target)

    return cast_impl


def _fp_to_fp(original: Any) -> Any:
    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        wide = (tl.float16, tl.bfloat16, tl.float32, tl.float64)
        toward_zero = rounding_mode is not None and rounding_mode != interpreter._ir.ROUNDING_MODE.RTNE
        if toward_zero or src.dtype.scalar not in wide or dst_type.scalar not in wide:
            return original(self, src, dst_type, rounding_mode)
        return self.cast_impl(src, dst_type)

    return create_fp_to_fp


def _binary(original: Any) -> Any:
    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if lhs.dtype.scalar == tl.bfloat16:
            raise TypeError("arithmetic on bf16: widen to fp32 first")
        return original(self, lhs, rhs, op)

    return binary_op


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    x, y = (from_bf16(v.data) if v.dtype.scalar == tl.bfloat16 else v.data for v in (a, b))
    total = np.array(d.data, order="C")
    rank3 = [np.ascontiguousarray(v.reshape(-1, *v.shape[-2:])) for v in (x, y)]
    out = total.reshape(-1, *total.shape[-2:])
    if total.dtype.kind == "i":
        out += np.matmul(*(v.astype(np.float64) for v in rank3)).astype(np.int64).astype(total.dtype)
    elif a.dtype.scalar in (tl.float16, tl.bfloat16):
        if total.dtype != np.float32:
            raise TypeError(f"tl.dot of {a.dtype} accumulating in {d.dtype}: only fp32 is modelled")
        _dot_half(*(v.astype(np.float64) for v in rank3), out)
    elif a.dtype.scalar == tl.float32 and input_precision != interpreter._ir.INPUT_PRECISION.IEEE:
        raise ValueError('tl.dot of fp32 without input_precision="ieee" may use TF32')
    else:
        _dot_chain(*rank3, out)
    return TensorHandle(total, d.dtype.scalar)


@njit
def _dot_chain(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    for i in range(out.shape[0]):
        for m in range(out.shape[1]):
            for k in range(a.shape[2]):
                for n in range(out.shape[2]):
                    out[i, m, n] = functions.fma(a[i, m, k], b[i, k, n], out[i, m, n])


@njit
def _dot_half(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    row = np.empty(out.shape[2], np.float64)
    for i in range(out.shape[0]):
        for m in range(out.shape[1]):
            for start in range(0, a.shape[2], 16):
                for n in range(out.shape[2]):
                    row[n] = out[i, m, n]
                for k in range(start, min(start + 16, a.shape[2])):
                    for n in range(out.shape[2]):
                        row[n] += a[i, m, k] * b[i, k, n]
                for n in range(out.shape[2]):
                    out[i, m, n] = row[n]


def _sum(original: Any) -> Any:
    def sum_(self: Any, input: Any) -> Any:
        data = input.handle.data
        if input.dtype.is_int():
            return original(self, input)
        axis = 0 if self.axis is None and data.ndim == 1 else self.axis
        if axis is None or data.shape[axis] > 2:
            raise ValueError(f"tl.sum of floats of shape {data.shape} over axis {self.axis}: the order is undefined")
        halves = [np.take(data, i, axis) for i in range(data.shape[axis])]
        total = halves[0] + halves[1] if len(halves) == 2 else halves[0]
        return self.to_tensor(np.expand_dims(total, axis) if self.keep_dims else total, input.dtype)

    return sum_


def _launch(original: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        scope = interpreter._patch_lang(_call)
        try:
            with np.errstate(all="ignore"):
                return original(self, *args, **kwargs)
        finally:
            scope.restore()

    return call


def _call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """A device function called by a kernel. `triton.language` and its core, which are globals of this one too, are
    replaced once per launch: doing so at every call takes half of the time."""
    return self.rewrite()(*args, **kwargs)


def _with_index(original: Any) -> Any:
    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    return patch_lang_tensor
