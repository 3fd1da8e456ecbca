"""group_norm on a GPU (SPEC.md, "group_norm"): sums over each group's memory, then an elementwise pass."""

import torch
from torch import Tensor

from repkernels.kernels.norm_apply import Axes, apply, gradient
from repkernels.kernels.norm_sums import column_statistics, pair_sums
from repkernels.kernels.sum import sum_rows


def forward(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, out_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """x (N, C, S), contiguous, not empty -> y (N, C, S) in `out_dtype`, mean (N * groups,) and r, computing format."""
    samples, channels, size = x.shape
    rows = x.view(samples * groups, -1)
    mean, _, inverse = column_statistics(rows.t()[None, :, None], eps)
    y = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    w, b = (None if v is None else v.contiguous() for v in (weight, bias))
    apply(x.view(-1, size), mean, inverse, w, b, y, _axes(channels, groups))
    return y, mean, inverse


def backward(
    grad: Tensor, x: Tensor, mean: Tensor, inverse: Tensor, groups: int, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients: of x (N, C, S), contiguous, in its dtype, of weight and bias (C,) in the computing format."""
    samples, channels, size = x.shape
    per_group = channels // groups
    g, rows = grad.view(-1, size), x.view(-1, size)
    products, plain = pair_sums(g.t()[None, :, None], rows.t()[None, :, None], mean, inverse, None, per_group)
    w = None if weight is None else weight.contiguous()
    count = torch.full_like(inverse, per_group * size)

    def of_groups(sums: Tensor) -> Tensor:
        terms = sums.view(samples, channels)
        if w is not None:
            terms = terms * w.to(inverse.dtype)
        return sum_rows(terms.view(samples * groups, per_group).t()) / count

    dx = torch.empty_like(x)
    gradient(g, rows, mean, inverse, w, of_groups(products), of_groups(plain), inverse, dx, _axes(channels, groups))
    return dx, sum_rows(products.view(samples, channels)), sum_rows(plain.view(samples, channels))


def _axes(channels: int, groups: int) -> Axes:
    """Of (N * C, S): a statistic for each (sample, group), a weight for each channel."""
    return Axes(True, True, div=channels // groups, weights=channels)
