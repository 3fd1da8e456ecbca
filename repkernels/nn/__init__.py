"""torch.nn's names with defined bits; what computes nothing is torch's own."""

from torch.nn import Flatten, Module, Parameter, Sequential

from repkernels.nn import functional, init
from repkernels.nn.dropout import AlphaDropout, Dropout, Dropout1d, Dropout2d, Dropout3d, FeatureAlphaDropout
from repkernels.nn.modules import CrossEntropyLoss, Linear, ReLU
from repkernels.nn.norms import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    LayerNorm,
    RMSNorm,
)
from repkernels.nn.softmax import LogSoftmax, Softmax, Softmax2d, Softmin

__all__ = [
    "AlphaDropout",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CrossEntropyLoss",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "FeatureAlphaDropout",
    "Flatten",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "Linear",
    "LogSoftmax",
    "Module",
    "Parameter",
    "RMSNorm",
    "ReLU",
    "Sequential",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "functional",
    "init",
]
