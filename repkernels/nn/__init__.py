"""torch.nn's names with defined bits; what computes nothing is torch's own."""

from torch.nn import Flatten, Module, Parameter, Sequential

from repkernels.nn import functional, init
from repkernels.nn.modules import CrossEntropyLoss, Linear, ReLU
from repkernels.nn.softmax import LogSoftmax, Softmax, Softmax2d, Softmin

__all__ = [
    "CrossEntropyLoss",
    "Flatten",
    "Linear",
    "LogSoftmax",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "Softmax",
    "Softmax2d",
    "Softmin",
    "functional",
    "init",
]
