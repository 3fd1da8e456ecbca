"""torch.nn.functional's names and signatures."""

from torch import Tensor
from torch.nn.functional import channel_shuffle, pixel_shuffle, pixel_unshuffle

from repkernels.contract import ContractLike
from repkernels.ops.activations import (
    celu,
    elu,
    gelu,
    glu,
    hardshrink,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    softplus,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)
from repkernels.ops.attention import paged_attention, scaled_dot_product_attention, varlen_attention
from repkernels.ops.avg_pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
)
from repkernels.ops.batch_norm import batch_norm
from repkernels.ops.bilinear import bilinear
from repkernels.ops.conv import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d
from repkernels.ops.cross_entropy import cross_entropy
from repkernels.ops.ctc_loss import ctc_loss
from repkernels.ops.distances import cosine_similarity, normalize, pairwise_distance
from repkernels.ops.dropout import (
    alpha_dropout,
    dropout,
    dropout1d,
    dropout2d,
    dropout3d,
    feature_alpha_dropout,
)
from repkernels.ops.embedding import embedding
from repkernels.ops.embedding_bag import embedding_bag
from repkernels.ops.fold import fold, unfold
from repkernels.ops.fractional_max_pool import fractional_max_pool2d, fractional_max_pool3d
from repkernels.ops.gated import geglu, softcap, swiglu
from repkernels.ops.grid_sample import affine_grid, grid_sample
from repkernels.ops.group_norm import group_norm
from repkernels.ops.grouped_mm import grouped_mm
from repkernels.ops.instance_norm import instance_norm
from repkernels.ops.int8_linear import int8_linear, quantize_int8
from repkernels.ops.interpolate import interpolate, upsample
from repkernels.ops.layer_norm import add_layer_norm, layer_norm
from repkernels.ops.local_response_norm import local_response_norm
from repkernels.ops.losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    smooth_l1_loss,
)
from repkernels.ops.lp_pool import lp_pool1d, lp_pool2d, lp_pool3d
from repkernels.ops.margin_losses import (
    cosine_embedding_loss,
    gaussian_nll_loss,
    hinge_embedding_loss,
    margin_ranking_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    multilabel_soft_margin_loss,
    poisson_nll_loss,
    soft_margin_loss,
    triplet_margin_loss,
    triplet_margin_with_distance_loss,
)
from repkernels.ops.matmul import product
from repkernels.ops.max_pool import (
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
    max_pool1d,
    max_pool1d_with_indices,
    max_pool2d,
    max_pool2d_with_indices,
    max_pool3d,
    max_pool3d_with_indices,
)
from repkernels.ops.max_unpool import max_unpool1d, max_unpool2d, max_unpool3d
from repkernels.ops.moe import moe, topk_router
from repkernels.ops.multi_head_attention import multi_head_attention_forward
from repkernels.ops.nll_loss import nll_loss
from repkernels.ops.pad import pad
from repkernels.ops.relu import relu
from repkernels.ops.rms_norm import add_rms_norm, rms_norm
from repkernels.ops.rotary import apply_rotary_pos_emb, rope_cos_sin
from repkernels.ops.rrelu import rrelu
from repkernels.ops.softmax import log_softmax, softmax, softmin
from repkernels.ops.unary import sigmoid, tanh
from repkernels.ops.write_pages import write_pages
from repkernels.prepare import NOTHING_KEPT, Prepared

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d",
    "adaptive_max_pool3d_with_indices",
    "add_layer_norm",
    "add_rms_norm",
    "affine_grid",
    "alpha_dropout",
    "apply_rotary_pos_emb",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "bilinear",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "channel_shuffle",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "ctc_loss",
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "elu",
    "embedding",
    "embedding_bag",
    "feature_alpha_dropout",
    "fold",
    "fractional_max_pool2d",
    "fractional_max_pool3d",
    "gaussian_nll_loss",
    "geglu",
    "gelu",
    "glu",
    "grid_sample",
    "group_norm",
    "grouped_mm",
    "hardshrink",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "hinge_embedding_loss",
    "huber_loss",
    "instance_norm",
    "int8_linear",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "local_response_norm",
    "log_softmax",
    "logsigmoid",
    "lp_pool1d",
    "lp_pool2d",
    "lp_pool3d",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool1d_with_indices",
    "max_pool2d",
    "max_pool2d_with_indices",
    "max_pool3d",
    "max_pool3d_with_indices",
    "max_unpool1d",
    "max_unpool2d",
    "max_unpool3d",
    "mish",
    "moe",
    "mse_loss",
    "multi_head_attention_forward",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "nll_loss",
    "normalize",
    "pad",
    "paged_attention",
    "pairwise_distance",
    "pixel_shuffle",
    "pixel_unshuffle",
    "poisson_nll_loss",
    "prelu",
    "quantize_int8",
    "relu",
    "relu6",
    "rms_norm",
    "rope_cos_sin",
    "rrelu",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softcap",
    "softmax",
    "softmin",
    "softplus",
    "softshrink",
    "softsign",
    "swiglu",
    "tanh",
    "tanhshrink",
    "threshold",
    "topk_router",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
    "unfold",
    "upsample",
    "varlen_attention",
    "write_pages",
]


def linear(
    input: Tensor, weight: Tensor | Prepared, bias: Tensor | None = None, *, contract: ContractLike | None = None
) -> Tensor:
    """input @ weight^T + bias.

    input: (..., in_features). weight: (out_features, in_features), or (in_features,), or `repkernels.prepare` of a
    2-D one. bias: (out_features,), or () for a 1-D weight. Result: (..., out_features), or (...).
    Dtypes, bits, gradients, accuracy and errors are those of `repkernels.matmul`.
    """
    if isinstance(weight, Prepared):
        return linear_kept(input, weight.weight, bias, weight.contract if contract is None else contract, weight.number)
    return linear_kept(input, weight, bias, contract, NOTHING_KEPT)


def linear_kept(input: Tensor, weight: Tensor, bias: Tensor | None, contract: ContractLike | None, kept: int) -> Tensor:
    """`linear` with the number of what is kept of the weight."""
    if isinstance(weight, Tensor) and isinstance(input, Tensor):
        if weight.ndim not in (1, 2):
            raise RuntimeError(f"weight: expected 1 or 2 dimensions, got shape {tuple(weight.shape)}")
        if input.ndim == 0 or input.shape[-1] != weight.shape[-1]:
            raise RuntimeError(
                f"input and weight: shapes {tuple(input.shape)} and {tuple(weight.shape)} do not fit: the last size of "
                "input must equal the last size of weight, in_features"
            )
        if weight.ndim == 2:
            weight = weight.t()
    return product(input, weight, bias, contract, kept, "input", "weight")
