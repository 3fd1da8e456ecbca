"""torch.nn's embeddings with defined bits (SPEC.md, "Grouped sums", "embedding_bag")."""

from typing import Any

from torch import Tensor
from torch import nn as torch_nn

from repkernels.nn import functional, init
from repkernels.ops.embedding import check_options


def _refused(module: Any) -> str | None:
    """Why `convert` can't take an embedding, if it can't."""
    try:
        check_options(module.max_norm, module.sparse)
    except NotImplementedError as error:
        return str(error)
    return None


class Embedding(torch_nn.Embedding):
    """torch.nn.Embedding, as `nn.functional.embedding`, initialised from N(0, 1) by Philox.

    Arguments and attributes are torch's. Raises NotImplementedError for max_norm and sparse.
    """

    _refusal = staticmethod(_refused)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        _weight: Tensor | None = None,
        **keywords: Any,
    ) -> None:
        check_options(max_norm, sparse)
        options = padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
        super().__init__(num_embeddings, embedding_dim, *options, _weight, **keywords)

    def reset_parameters(self) -> None:
        """Draws the weight anew, from the next stream of `repkernels.random`; the row of padding_idx is 0."""
        init.normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def forward(self, input: Tensor) -> Tensor:
        return functional.embedding(
            input, self.weight, self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq, self.sparse
        )


class EmbeddingBag(torch_nn.EmbeddingBag):
    """torch.nn.EmbeddingBag, as `nn.functional.embedding_bag`, initialised as `Embedding`.

    Arguments and attributes are torch's. Raises NotImplementedError for max_norm and sparse.
    """

    _refusal = staticmethod(_refused)

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        _weight: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        **keywords: Any,
    ) -> None:
        check_options(max_norm, sparse)
        options = max_norm, norm_type, scale_grad_by_freq, mode, sparse
        super().__init__(num_embeddings, embedding_dim, *options, _weight, include_last_offset, padding_idx, **keywords)

    def reset_parameters(self) -> None:
        """As `Embedding.reset_parameters`."""
        init.normal_(self.weight)
        self._fill_padding_idx_with_zero()

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return functional.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            self.sparse,
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )
