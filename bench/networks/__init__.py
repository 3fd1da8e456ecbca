"""Networks in plain torch.nn, as their papers give them, so that `repkernels.convert` makes them reproducible.

Weights start as torch starts them. What a forward computes outside of modules has the same bits everywhere, but for the
networks of IN_MODE.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from . import cnn, densenet, mobilenet, resnet, vgg, vit


def _resnet(depth: int, classes: int, side: int) -> nn.Module:
    return resnet.ResNet(depth, classes)


# Each is called with the number of classes and the images' side, and takes images (N, 3, side, side).
NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    **{f"cnn{kernel}": partial(cnn.six_layers, kernel) for kernel in (1, 3, 5, 7)},
    "vgg19": vgg.vgg19,
    **{f"resnet{depth}": partial(_resnet, depth) for depth in (18, 50, 152)},
    "densenet121": lambda classes, side: densenet.densenet121(classes),
    "mobilenet_v2": lambda classes, side: mobilenet.mobilenet_v2(classes),
    "efficientnet_b0": lambda classes, side: mobilenet.efficientnet_b0(classes),
    "vit_b_16": vit.ViT,
}

# A product in them broadcasts, so that its gradient is a sum that no module makes: they take `reproducible()` too.
IN_MODE = ("efficientnet_b0",)
