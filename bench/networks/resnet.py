"""ResNet (He et al., 2015), with a bottleneck's stride in its 3x3 convolution, as torchvision has it."""

from torch import Tensor, nn

# Blocks of the four stages.
DEPTHS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 152: (3, 8, 36, 3)}


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, relu: bool = True) -> nn.Sequential:
    """Convolution without bias, batch_norm, relu."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), *([nn.ReLU(inplace=True)] if relu else []))


class Block(nn.Module):
    """Two 3x3 convolutions, or with `bottleneck` 1x1, 3x3 and 1x1 to four times the width, around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            self.body = nn.Sequential(
                convolution(inputs, width, 1),
                convolution(width, width, 3, stride),
                convolution(width, outputs, 1, relu=False),
            )
        else:
            self.body = nn.Sequential(convolution(inputs, width, 3, stride), convolution(width, outputs, 3, relu=False))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride, relu=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """depth: a key of DEPTHS. width: channels of the first stage. small: for images of 32 pixels, a 3x3 convolution in
    the place of the 7x7 one and the pooling. x (N, channels, H, W) -> (N, classes)."""

    def __init__(
        self, depth: int, classes: int = 1000, *, width: int = 64, channels: int = 3, small: bool = False
    ) -> None:
        super().__init__()
        self.stem = convolution(channels, width, 3) if small else convolution(channels, width, 7, 2)
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        blocks, inputs = [], width
        for stage, count in enumerate(DEPTHS[depth]):
            for i in range(count):
                stride = 2 if stage and not i else 1
                blocks.append(Block(inputs, width << stage, stride, depth >= 50))
                inputs = (width << stage) * (4 if depth >= 50 else 1)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.pool(self.stem(x))))
