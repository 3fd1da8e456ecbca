"""Root mean square normalisation (SPEC.md, "rms_norm").

r = div_rn(1, sqrt_rn(div_rn(SUM(x * x), n) + eps)); y = (x * r) * w.
Gradients: with xhat = x * r and gw = g * w, dx = r * (gw - xhat * mean of gw * xhat); dw is the SUM over the rows of
g * xhat.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from repkernels.ops import affine
from repkernels.ops.row_norm import check_residual, check_rows, row_norm

_rms_norm, _add_rms_norm = row_norm("rms_norm", centred=False)


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """The last axes of input, of sizes normalized_shape, over their root mean square, times weight.

    input: (*, *normalized_shape), fp32, bf16, fp16 or fp64, any strides. weight: (*normalized_shape) in input's dtype,
    or fp32 with half inputs. eps: torch.finfo of the result's dtype if None. Result: input's shape and dtype,
    contiguous; fp32 of half inputs under autocast.

    Bits: SPEC.md, "rms_norm"; a row's depend on nothing else. Half types are widened and rounded once: the weight is
    multiplied before that rounding. Differentiable any number of times, as `layer_norm`.
    Accuracy in fp32: |y - exact| <= about (0.5 log2(n) + 6) * 2^-24 * |y| for n <= 1024 elements, and half the number
    of 1024s in n more beyond; a few ulp for the usual n, since the errors of a sum of squares mostly cancel.
    Raises RuntimeError for shapes, dtypes or devices that do not fit, ValueError for eps < 0, TypeError for a
    normalized_shape that is not a list of ints.
    """
    rows, columns = check_rows(input, normalized_shape, weight, None)
    dtype = affine.result_dtype(input)
    w = None if weight is None else weight.reshape(columns)
    return _rms_norm(input.reshape(rows, columns), w, None, _eps(eps, dtype), dtype)[0].view(input.shape)


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(rms_norm(input + residual, ...), input + residual), with the bits of the two operations, in one pass.

    residual: of input's shape, dtype and device; the sum is rounded to that dtype. Otherwise as `rms_norm`. Gradients
    have the bits of the two operations too: the norm's is rounded to the dtype before that of the sum is added.
    """
    rows, columns = check_rows(input, normalized_shape, weight, None)
    check_residual(input, residual)
    dtype = affine.result_dtype(input)
    w = None if weight is None else weight.reshape(columns)
    x, z = (v.reshape(rows, columns) for v in (input, residual))
    y, total, *_ = _add_rms_norm(x, z, w, None, _eps(eps, dtype), dtype)
    return y.view(input.shape), total.view(input.shape)


def _eps(eps: float | None, dtype: torch.dtype) -> float:
    if eps is None:
        return torch.finfo(dtype).eps
    affine.check_eps(eps)
    return float(eps)
