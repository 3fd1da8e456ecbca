"""Cross-entropy with its options, and losses of elements."""

from collections.abc import Iterator
from functools import partial

import torch

from repkernels.kernels import cross_entropy, losses
from tests.instructions.case import Case, everything, tensor


def _cross_entropy(
    dtype: torch.dtype, classes: int, weighted: bool, share: float, probabilities: bool, odd: bool = False
) -> None:
    x, each = tensor(64, classes, dtype=dtype, odd=odd), tensor(64)
    target = tensor(64, classes, dtype=dtype, odd=odd) if probabilities else tensor(64, dtype=torch.int64)
    weight, whole = (tensor(classes, dtype=dtype), tensor(1)) if weighted else (None, None)
    cross_entropy.forward(x, target, weight, whole, 0.9, share)
    cross_entropy.backward(x, target, each, each, each, each, weight, 0.9, share)
    if probabilities:
        cross_entropy.target_gradient(x, target, each, each, each, weight, 0.9)


def _losses(name: str, dtype: torch.dtype, size: int, weighted: bool = False, odd: bool = False) -> None:
    x, y = tensor(size, dtype=dtype, odd=odd), tensor(size, dtype=dtype, odd=odd)
    w = tensor(size, dtype=dtype) if weighted else None
    losses.elementwise(name, x, y, w, w, y, 0.5)
    if not name.endswith("gradient"):
        losses.total(name, x, y, w, w, 0.5)


def cases(target: str) -> Iterator[Case]:
    """Short rows and long ones, each kind of target; formulas with the most functions, more of them on sm_90."""

    def rows(what: str, *args: object) -> Case:
        # A NaN that the maximum loses makes the SUM NaN; which zero it takes does not show.
        return Case(f"cross_entropy {what}", partial(_cross_entropy, *args), maximum=True)

    yield rows("bfloat16, long", torch.bfloat16, 131072, False, 0.0, False)
    yield rows("smoothed, weighted, odd", torch.float16, 1001, True, 0.01, False, True)
    yield rows("probabilities, odd", torch.float32, 77, True, 0.01, True, True)
    yield Case("bce_with_logits", partial(_losses, "bce_with_logits", torch.float32, 4096, True))
    yield Case("smooth_l1 gradient, odd", partial(_losses, "smooth_l1_gradient", torch.bfloat16, 70001, False, True))
    if everything(target):
        yield rows("several chunks", torch.float32, 4096, False, 0.0, False)
        yield rows("long, probabilities, odd", torch.bfloat16, 32769, True, 0.01, True, True)
        for name in ("bce", "bce_with_logits_gradient", "kl_div_log", "huber"):
            yield Case(name, partial(_losses, name, torch.float32, 4096))
        yield Case("smooth_l1 float64", partial(_losses, "smooth_l1", torch.float64, 4096))
