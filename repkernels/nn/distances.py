"""torch.nn's distances and normalisation by neighbours, over `nn.functional`."""

import torch
from torch import Tensor

from repkernels.nn import functional


class PairwiseDistance(torch.nn.PairwiseDistance):
    """torch.nn.PairwiseDistance, as `nn.functional.pairwise_distance`."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return functional.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class CosineSimilarity(torch.nn.CosineSimilarity):
    """torch.nn.CosineSimilarity, as `nn.functional.cosine_similarity`."""

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return functional.cosine_similarity(x1, x2, self.dim, self.eps)


class LocalResponseNorm(torch.nn.LocalResponseNorm):
    """torch.nn.LocalResponseNorm, as `nn.functional.local_response_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return functional.local_response_norm(input, self.size, self.alpha, self.beta, self.k)
