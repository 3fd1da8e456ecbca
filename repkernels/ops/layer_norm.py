"""Layer normalisation (SPEC.md, "layer_norm").

mean = div_rn(SUM x, n); d = x - mean; r = div_rn(1, sqrt_rn(div_rn(SUM(d * d), n) + eps)); y = ((d * r) * w) + b.
Gradients: with xhat = d * r and gw = g * w, dx = r * ((gw - mean of gw) - xhat * mean of gw * xhat); dw and db are
SUMs over the rows of g * xhat and of g.
"""

from collections.abc import Sequence

from torch import Tensor

from repkernels.ops import affine
from repkernels.ops.row_norm import check_residual, check_rows, row_norm

_layer_norm, _add_layer_norm = row_norm("layer_norm", centred=True)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """The last axes of input, of sizes normalized_shape, less their mean and over their deviation, times w, plus b.

    input: (*, *normalized_shape), fp32, bf16, fp16 or fp64, any strides. weight, bias: (*normalized_shape), of one
    dtype: input's, or fp32 with half inputs. Result: input's shape and dtype, contiguous; fp32 of half inputs under
    autocast.

    Bits: SPEC.md, "layer_norm"; a row's depend on nothing else. Half types are widened and rounded once. Differentiable
    any number of times; second derivatives are composed of this library's sums and torch's elementwise operations.
    Accuracy in fp32, n elements, deviation s, largest |d| D: |y - exact| <= about (7 D / s + 3) * 2^-24 * |w| + 2^-24
    |b|, where the mean lies within a few s of 0; each factor of |mean| / s adds that many ulp.
    Raises RuntimeError for shapes, dtypes or devices that do not fit, ValueError for eps < 0, TypeError for a
    normalized_shape that is not a list of ints.
    """
    affine.check_eps(eps)
    rows, columns = check_rows(input, normalized_shape, weight, bias)
    w, b = (None if v is None else v.reshape(columns) for v in (weight, bias))
    y = _layer_norm(input.reshape(rows, columns), w, b, float(eps), affine.result_dtype(input))[0]
    return y.view(input.shape)


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """(layer_norm(input + residual, ...), input + residual), with the bits of the two operations, in one pass.

    residual: of input's shape, dtype and device; the sum is rounded to that dtype. Otherwise as `layer_norm`. Gradients
    have the bits of the two operations too: the norm's is rounded to the dtype before that of the sum is added.
    """
    affine.check_eps(eps)
    rows, columns = check_rows(input, normalized_shape, weight, bias)
    check_residual(input, residual)
    w, b = (None if v is None else v.reshape(columns) for v in (weight, bias))
    x, z = (v.reshape(rows, columns) for v in (input, residual))
    y, total, *_ = _add_layer_norm(x, z, w, b, float(eps), affine.result_dtype(input))
    return y.view(input.shape), total.view(input.shape)
