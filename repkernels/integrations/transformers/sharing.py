"""Projections of one input as one product, in inference: q, k and v, or gate and up.

Their weights come to lie one after the other in memory, as views that stay the modules' parameters. Whichever is called
first computes all; the others find their part at the input. No bit changes: a column belongs to its own row of weights.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from repkernels.nn import Linear, functional
from repkernels.prepare import NOTHING_KEPT, Keep, Kept, keep_of, make_now

_RESULTS = "_repkernels_shared"


class Group:
    """Linear layers that are given the same input."""

    def __init__(self, layers: Sequence[Linear], keep: Keep | None) -> None:
        self.layers, self.contract, self.keep = list(layers), layers[0].contract, keep
        with torch.inference_mode(False), torch.no_grad():
            self.weight = torch.cat([m.weight for m in layers])
            self.bias = None if layers[0].bias is None else torch.cat([m.bias for m in layers])
            self.sizes = [m.weight.shape[0] for m in layers]
            for whole, name in ((self.weight, "weight"), (self.bias, "bias")):
                if whole is not None:
                    for m, part in zip(layers, whole.split(self.sizes), strict=True):
                        getattr(m, name).data = part
        self.versions = self._versions()
        self.places = self._places()
        self.kept: Kept | None = None if keep is None else keep_of(self.weight, self.contract, keep)
        if self.kept is not None:
            make_now(self.kept, self.weight)

    def _versions(self) -> list[int]:
        return [m.weight._version for m in self.layers]

    def _places(self) -> list[Any]:
        return [(p.data_ptr(), p.dtype, p.device) for m in self.layers for p in (m.weight, m.bias) if p is not None]

    def intact(self) -> bool:
        """Whether the layers' parameters still are parts of the whole, and follow one contract."""
        return self.places == self._places() and all(m.contract == self.contract for m in self.layers)

    def compute(self, input: Tensor) -> dict[int, Tensor]:
        """The result of each layer, by its place in the group."""
        versions = self._versions()
        if versions != self.versions:
            # Views made by `.data` count their own writes.
            torch.autograd.graph.increment_version(self.weight)
            self.versions = versions
        kept = NOTHING_KEPT if self.kept is None else self.kept.number
        whole = functional.linear_kept(input, self.weight, self.bias, self.contract, kept)
        return dict(enumerate(whole.split(self.sizes, -1)))


class SharedLinear(Linear):
    """A layer of a `Group`; alone where gradients are wanted or the group is broken up."""

    _group: Group
    _index: int

    def forward(self, input: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self._group.intact():
            return super().forward(input)
        results = vars(input).setdefault(_RESULTS, {})
        of_group = results.get(id(self._group))
        if of_group is None or self._index not in of_group:
            of_group = results[id(self._group)] = self._group.compute(input)
        found: Tensor = of_group.pop(self._index)
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Linear:
        """On another device or in another type the parameters are apart, and the layer is a `Linear` again."""
        keep = self._group.keep
        separate(self)
        self._apply(fn, recurse)
        if keep is not None and not self.weight.is_meta:
            self._kept = keep_of(self.weight, self.contract, keep)
        return self


def share(layers: Sequence[Any], keep: Keep | None) -> bool:
    """Makes the layers a group if they can be one."""
    first = layers[0]
    if any(type(m) is not Linear or m.contract != first.contract for m in layers):
        return False
    if any(
        m.weight.dtype != first.weight.dtype
        or m.weight.device != first.weight.device
        or (m.bias is None) != (first.bias is None)
        or m.weight.is_inference()
        for m in layers
    ):
        return False
    for m in layers:
        m.prepare(None)
    group = Group(layers, keep)
    for i, m in enumerate(layers):
        m.__class__ = SharedLinear
        m._group, m._index = group, i
    return True


def separate(layer: Any) -> None:
    """Makes a `SharedLinear` a `Linear` again; its parameters stay where they are."""
    layer.__class__ = Linear
    del layer.__dict__["_group"], layer.__dict__["_index"]
