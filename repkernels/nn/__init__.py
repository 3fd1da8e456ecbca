"""torch.nn's names with defined bits; what computes nothing is torch's own."""

from torch.nn import Flatten, Module, Parameter, Sequential

from repkernels.nn import functional, init
from repkernels.nn.modules import CrossEntropyLoss, Linear, ReLU

__all__ = [
    "CrossEntropyLoss",
    "Flatten",
    "Linear",
    "Module",
    "Parameter",
    "ReLU",
    "Sequential",
    "functional",
    "init",
]
