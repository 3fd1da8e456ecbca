"""Networks in plain torch.nn, as their papers give them, so that `repkernels.convert` makes them reproducible.

Weights start as torch starts them. What a forward computes outside of modules has the same bits everywhere: sums of two
tensors of one shape, and moves.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from . import resnet


def _resnet(depth: int, classes: int, side: int) -> nn.Module:
    return resnet.ResNet(depth, classes)


# Each is called with the number of classes and the images' side, and takes images (N, 3, side, side).
NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    **{f"resnet{depth}": partial(_resnet, depth) for depth in resnet.DEPTHS},
}
