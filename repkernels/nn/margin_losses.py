"""torch.nn's losses of margins and likelihoods, over `nn.functional`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from repkernels.nn import functional
from repkernels.nn.distances import PairwiseDistance


class HingeEmbeddingLoss(torch.nn.HingeEmbeddingLoss):
    """torch.nn.HingeEmbeddingLoss, as `nn.functional.hinge_embedding_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.hinge_embedding_loss(input, target, self.margin, reduction=self.reduction)


class MarginRankingLoss(torch.nn.MarginRankingLoss):
    """torch.nn.MarginRankingLoss, as `nn.functional.margin_ranking_loss`."""

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return functional.margin_ranking_loss(input1, input2, target, self.margin, reduction=self.reduction)


class SoftMarginLoss(torch.nn.SoftMarginLoss):
    """torch.nn.SoftMarginLoss, as `nn.functional.soft_margin_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.soft_margin_loss(input, target, reduction=self.reduction)


class MultiLabelSoftMarginLoss(torch.nn.MultiLabelSoftMarginLoss):
    """torch.nn.MultiLabelSoftMarginLoss, as `nn.functional.multilabel_soft_margin_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)


class MultiLabelMarginLoss(torch.nn.MultiLabelMarginLoss):
    """torch.nn.MultiLabelMarginLoss, as `nn.functional.multilabel_margin_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.multilabel_margin_loss(input, target, reduction=self.reduction)


class MultiMarginLoss(torch.nn.MultiMarginLoss):
    """torch.nn.MultiMarginLoss, as `nn.functional.multi_margin_loss`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.multi_margin_loss(input, target, self.p, self.margin, self.weight, reduction=self.reduction)


class CosineEmbeddingLoss(torch.nn.CosineEmbeddingLoss):
    """torch.nn.CosineEmbeddingLoss, as `nn.functional.cosine_embedding_loss`."""

    def forward(self, input1: Tensor, input2: Tensor, target: Tensor) -> Tensor:
        return functional.cosine_embedding_loss(input1, input2, target, self.margin, reduction=self.reduction)


class TripletMarginLoss(torch.nn.TripletMarginLoss):
    """torch.nn.TripletMarginLoss, as `nn.functional.triplet_margin_loss`."""

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        options = self.margin, self.p, self.eps, self.swap
        return functional.triplet_margin_loss(anchor, positive, negative, *options, reduction=self.reduction)


class TripletMarginWithDistanceLoss(torch.nn.TripletMarginWithDistanceLoss):
    """torch.nn.TripletMarginWithDistanceLoss; without a distance_function of the user's, `PairwiseDistance`."""

    def __init__(
        self,
        *,
        distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
        margin: float = 1.0,
        swap: bool = False,
        reduction: str = "mean",
    ) -> None:
        distance = PairwiseDistance() if distance_function is None else distance_function
        super().__init__(distance_function=distance, margin=margin, swap=swap, reduction=reduction)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return functional.triplet_margin_with_distance_loss(
            anchor,
            positive,
            negative,
            distance_function=self.distance_function,
            margin=self.margin,
            swap=self.swap,
            reduction=self.reduction,
        )

    @staticmethod
    def _refusal(module: Any) -> str | None:
        given = module.distance_function
        if isinstance(given, torch.nn.Module) or not (getattr(given, "__module__", None) or "torch").startswith(
            "torch"
        ):
            return None
        return f"its distance_function {given!r} is torch's; give a module, or a function of repkernels.nn.functional"


class PoissonNLLLoss(torch.nn.PoissonNLLLoss):
    """torch.nn.PoissonNLLLoss, as `nn.functional.poisson_nll_loss`."""

    def forward(self, log_input: Tensor, target: Tensor) -> Tensor:
        return functional.poisson_nll_loss(
            log_input, target, self.log_input, self.full, eps=self.eps, reduction=self.reduction
        )


class GaussianNLLLoss(torch.nn.GaussianNLLLoss):
    """torch.nn.GaussianNLLLoss, as `nn.functional.gaussian_nll_loss`."""

    def forward(self, input: Tensor, target: Tensor, var: Tensor | float) -> Tensor:
        return functional.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)
