"""Tensors that an elementwise kernel takes in the order of their memory."""

from collections.abc import Sequence

from torch import Tensor


def in_memory_order(groups: Sequence[Sequence[Tensor]]) -> tuple[list[list[Tensor]], list[tuple[Tensor, Tensor]]]:
    """Contiguous tensors in place of those of each group, which belong together, element by element.

    Where a group lies in memory without gaps and in one order it stays there; copies stand for the others, and are
    listed as pairs (copy, original).
    """
    found, copies = [], []
    for group in groups:
        if not all(x.is_contiguous() and not x.is_neg() for x in group):
            strides = group[0].stride()
            if all(x.stride() == strides and not x.is_neg() for x in group) and _dense(group[0]):
                group = [x.as_strided((x.numel(),), (1,)) for x in group]
            else:
                fresh = [x.resolve_neg().contiguous() for x in group]
                copies += [(new, old) for new, old in zip(fresh, group, strict=True) if new is not old]
                group = fresh
        found.append(list(group))
    return found, copies


def _dense(x: Tensor) -> bool:
    """Whether the elements fill a stretch of memory, each at a place of its own."""
    expected = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def write_back(copies: Sequence[tuple[Tensor, Tensor]], changed: Sequence[Tensor]) -> None:
    """Copies results to the originals of those copies that were changed."""
    mine = {id(x) for x in changed}
    for new, old in copies:
        if id(old) in mine:
            old.copy_(new)
