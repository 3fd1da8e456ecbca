"""torch.nn's losses over this library's operations: the same arguments, attributes and state_dict keys.

The deprecated size_average and reduce choose the reduction, as torch's constructors do.
"""

import torch
from torch import Tensor

from repkernels.ops import losses
from repkernels.ops.cross_entropy import cross_entropy
from repkernels.ops.ctc_loss import ctc_loss
from repkernels.ops.nll_loss import nll_loss


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """torch.nn.CrossEntropyLoss, as `nn.functional.cross_entropy`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )


class NLLLoss(torch.nn.NLLLoss):
    """torch.nn.NLLLoss, as `nn.functional.nll_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return nll_loss(input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction)


class MSELoss(torch.nn.MSELoss):
    """torch.nn.MSELoss, as `nn.functional.mse_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.mse_loss(input, target, reduction=self.reduction)


class L1Loss(torch.nn.L1Loss):
    """torch.nn.L1Loss, as `nn.functional.l1_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.l1_loss(input, target, reduction=self.reduction)


class SmoothL1Loss(torch.nn.SmoothL1Loss):
    """torch.nn.SmoothL1Loss, as `nn.functional.smooth_l1_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.smooth_l1_loss(input, target, reduction=self.reduction, beta=self.beta)


class HuberLoss(torch.nn.HuberLoss):
    """torch.nn.HuberLoss, as `nn.functional.huber_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.huber_loss(input, target, reduction=self.reduction, delta=self.delta)


class BCEWithLogitsLoss(torch.nn.BCEWithLogitsLoss):
    """torch.nn.BCEWithLogitsLoss, as `nn.functional.binary_cross_entropy_with_logits`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )


class BCELoss(torch.nn.BCELoss):
    """torch.nn.BCELoss, as `nn.functional.binary_cross_entropy`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.binary_cross_entropy(input, target, self.weight, reduction=self.reduction)


class KLDivLoss(torch.nn.KLDivLoss):
    """torch.nn.KLDivLoss, as `nn.functional.kl_div`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return losses.kl_div(input, target, reduction=self.reduction, log_target=self.log_target)


class CTCLoss(torch.nn.CTCLoss):
    """torch.nn.CTCLoss, as `nn.functional.ctc_loss`."""

    def forward(self, log_probs: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor) -> Tensor:
        return ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
