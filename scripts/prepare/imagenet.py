"""ResNet-50 v1.5 and DenseNet-169, the 2019 pipeline's pair, in plain PyTorch with random weights.

They have the cost and the shape of the real thing, so they serve to measure speed where no weights can be had.
Modules are named as in torchvision, whose state dictionaries therefore load.

Sources: He et al. 2015 (arXiv:1512.03385), with the stride in the 3x3 convolution as in NVIDIA's v1.5; Huang et al.
2016 (arXiv:1608.06993); initialization, He et al. 2015 (arXiv:1502.01852).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch
from torch import Tensor, nn

CLASSES = 1000


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut: [N,C,H,W] to [N,4*width,H/stride,W/stride]."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != 4 * width:
            shortcut = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """[N,C,H,W] to [N,4*width,H/stride,W/stride]."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        result: Tensor = self.relu(self.bn3(self.conv3(x)) + shortcut)
        return result


class ResNet50(nn.Module):
    """25,557,032 parameters at 1000 classes; [N,3,H,W] to logits [N,classes]."""

    def __init__(self, classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = 64
        for stage, (depth, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), start=1):
            blocks = []
            for block in range(depth):
                blocks.append(Bottleneck(channels, width, 2 if block == 0 and stage > 1 else 1))
                channels = 4 * width
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N,3,H,W] to logits [N,classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: Tensor = self.fc(torch.flatten(self.avgpool(x), 1))
        return logits


class DenseLayer(nn.Sequential):
    """Norm, ReLU, 1x1 to `bottleneck`, norm, ReLU, 3x3 to `growth`; the input stays in front of the result."""

    def __init__(self, channels: int, bottleneck: int, growth: int) -> None:
        layers: list[tuple[str, nn.Module]] = [
            ("norm1", nn.BatchNorm2d(channels)),
            ("relu1", nn.ReLU(inplace=False)),
            ("conv1", nn.Conv2d(channels, bottleneck, 1, bias=False)),
            ("norm2", nn.BatchNorm2d(bottleneck)),
            ("relu2", nn.ReLU(inplace=True)),
            ("conv2", nn.Conv2d(bottleneck, growth, 3, padding=1, bias=False)),
        ]
        super().__init__(OrderedDict(layers))

    def forward(self, input: Tensor) -> Tensor:
        """[N,C,H,W] to [N,C+growth,H,W]."""
        added = input
        for layer in self:
            added = layer(added)
        return torch.cat([input, added], dim=1)


class DenseNet169(nn.Module):
    """14,149,480 parameters at 1000 classes; [N,3,H,W] to logits [N,classes]."""

    def __init__(self, classes: int = CLASSES, *, growth: int = 32, bottleneck: int = 4) -> None:
        super().__init__()
        channels = 2 * growth
        self.features = nn.Sequential(
            OrderedDict[str, nn.Module](
                conv0=nn.Conv2d(3, channels, 7, 2, 3, bias=False),
                norm0=nn.BatchNorm2d(channels),
                relu0=nn.ReLU(inplace=True),
                pool0=nn.MaxPool2d(3, 2, 1),
            )
        )
        depths = (6, 12, 32, 32)
        for block, depth in enumerate(depths, start=1):
            layers: list[tuple[str, nn.Module]] = []
            for layer in range(1, depth + 1):
                layers.append((f"denselayer{layer}", DenseLayer(channels, bottleneck * growth, growth)))
                channels += growth
            self.features.add_module(f"denseblock{block}", nn.Sequential(OrderedDict(layers)))
            if block < len(depths):
                transition: OrderedDict[str, nn.Module] = OrderedDict(
                    norm=nn.BatchNorm2d(channels),
                    relu=nn.ReLU(inplace=True),
                    conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
                    pool=nn.AvgPool2d(2, 2),
                )
                self.features.add_module(f"transition{block}", nn.Sequential(transition))
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N,3,H,W] to logits [N,classes]."""
        x = torch.relu(self.features(x)).mean((2, 3))
        logits: Tensor = self.classifier(x)
        return logits


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {"resnet50": ResNet50, "densenet169": DenseNet169}


@torch.no_grad()
def random_model(name: str, seed: int = 0) -> nn.Module:
    """An architecture of `ARCHITECTURES` with random weights, in evaluation mode, the same for the same seed.

    The last layer is scaled so that the logits of drawn images have mean 0 and variance 1: without trained batch norms
    the residual sums grow from block to block, and the softmax would answer one class whatever it sees.

    Raises:
        KeyError: no such architecture.
    """
    torch.manual_seed(seed)
    model = ARCHITECTURES[name]().eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    head = list(model.children())[-1]
    assert isinstance(head, nn.Linear)
    # Coarse blotches of colour: fine noise has the same features everywhere, photographs have not.
    blotches = torch.randn(16, 3, 8, 8) + torch.randn(16, 3, 1, 1)
    logits = model(nn.functional.interpolate(blotches, size=(224, 224), mode="bilinear"))
    centre = logits.mean(0)
    spread = (logits - centre).std()
    head.weight /= spread
    head.bias.copy_((head.bias - centre) / spread)
    return model
