"""torch.nn's adaptive softmax over this library's operations."""

from typing import Any

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.nn.modules import Linear
from repkernels.ops.index_add import gather
from repkernels.ops.plain import add
from repkernels.ops.sum import mean

_Output: Any = torch.nn.modules.adaptive._ASMoutput


class AdaptiveLogSoftmaxWithLoss(torch.nn.AdaptiveLogSoftmaxWithLoss):
    """torch.nn.AdaptiveLogSoftmaxWithLoss: log_softmax of the head, and of a tail beyond the shortlist.

    The logarithm of a tail's class is that within its cluster + that of the cluster in the head, one addition.
    Unlike torch's, every row goes through every tail, so that shapes do not follow the targets; rows of other clusters
    contribute products with +0 to a tail's gradients.
    """

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        for module in self.modules():
            if type(module) is torch.nn.Linear:
                module.__class__ = Linear
        self.reset_parameters()

    def forward(self, input_: Tensor, target_: Tensor) -> Any:
        if target_.dim() > 1:
            raise RuntimeError("0D or 1D target tensor expected, multi-target not supported")
        if input_.dim() != target_.dim() + 1:
            raise RuntimeError(
                f"{target_.dim()}D target tensor expects {target_.dim() + 1}D input tensors, "
                f"but found inputs with size {input_.size()}"
            )
        if target_.dim() and input_.size(0) != target_.size(0):
            raise RuntimeError("Input and target should have the same size in the batch dimension.")
        batched = target_.dim() > 0
        input, target = (input_, target_) if batched else (input_.unsqueeze(0), target_.unsqueeze(0))
        if target.numel() and not 0 <= target.min() <= target.max() < self.n_classes:
            raise RuntimeError(
                f"Target values should be in [0, {self.n_classes - 1}], but values in range "
                f"[{target.min().item()}, {target.max().item()}] were found. "
            )
        output = gather(self.log_prob(input), 1, target.unsqueeze(1)).squeeze(1)
        loss = mean(-output)
        return _Output(output if batched else output.squeeze(0), loss)

    def _get_full_log_prob(self, input: Tensor, head_output: Tensor) -> Tensor:
        head = functional.log_softmax(head_output, 1)
        parts = list(head.split([self.shortlist_size, *[1] * self.n_clusters], 1))
        for k, tail in enumerate(self.tail):
            parts[k + 1] = add(functional.log_softmax(tail(input), 1), parts[k + 1])
        return torch.cat(parts, 1)

    def predict(self, input: Tensor) -> Tensor:
        """The most likely class of each row: the first one where several are."""
        head = self.head(input)
        best = torch.argmax(head, 1)
        if not (best >= self.shortlist_size).any():
            return best
        return torch.where(best < self.shortlist_size, best, torch.argmax(self._get_full_log_prob(input, head), 1))
