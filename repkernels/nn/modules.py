"""torch.nn's modules over this library's operations: the same names, signatures and state_dict keys."""

from typing import Any

import torch
from torch import Tensor

from repkernels.contract import ContractLike
from repkernels.nn import functional, init
from repkernels.prepare import NOTHING_KEPT, Keep, Kept, keep_of, make_now


class Linear(torch.nn.Linear):
    """torch.nn.Linear: y = x @ weight^T + bias, as `nn.functional.linear`, initialised by Philox.

    in_features, out_features, bias, device, dtype: torch's. Weight and bias are drawn from U(-bound, bound), bound =
    1 / sqrt(in_features), the weight's stream first, then the bias's; on the CPU, so they are the same everywhere.
    contract: an attribute, None at first: what this layer follows instead of the contract in force.
    """

    contract: ContractLike | None = None
    _kept: Kept | None = None

    def reset_parameters(self) -> None:
        """Draws weight and bias anew, from the next two streams of `repkernels.random`."""
        bound = init.linear_bound(self.in_features)
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        kept = NOTHING_KEPT if self._kept is None else self._kept.number
        return functional.linear_kept(input, self.weight, self.bias, self.contract, kept)

    def prepare(self, keep: Keep | None = "digits") -> "Linear":
        """Keeps the weight's digits from now on, as `repkernels.prepare` does, and returns the layer.

        keep: "digits" for speed, "scales" for memory, None to keep nothing any more. The digits are those of the
        contract that this layer follows now. They are made anew after the weight has changed (an optimizer step,
        load_state_dict, .to()), and copies and pickles of the layer make their own. Under autocast to another dtype
        nothing is kept. Raises ValueError as `repkernels.prepare`.
        """
        self._kept = None if keep is None else keep_of(self.weight, self.contract, keep)
        if self._kept is not None:
            make_now(self._kept, self.weight)
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> "Linear":
        super()._apply(fn, recurse)
        if self._kept is not None:  # another device or dtype: the old digits go, and the default contract may differ
            keep, self._kept = self._kept.keep, None
            if not self.weight.is_meta:
                self._kept = keep_of(self.weight, self.contract, keep)
        return self


class NonDynamicallyQuantizableLinear(Linear, torch.nn.modules.linear.NonDynamicallyQuantizableLinear):
    """`Linear` as the class that torch.nn.MultiheadAttention has for its last projection."""


class ReLU(torch.nn.ReLU):
    """torch.nn.ReLU: x where x > 0 or x is NaN, else +0."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.relu(input, self.inplace)
