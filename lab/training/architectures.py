"""The CIFAR-size networks that `ensemble train` trains.

All start with a whitening convolution on 2x2 patches and halve the resolution at once, because on a CPU the
accuracy per second of training is decided at the early, large feature maps. Every later convolution has a batch norm of
its own behind it, so that both fold into one operation at inference and quantize well.

Sources: residual blocks, He et al. 2015 (arXiv:1512.03385); dense blocks, Huang et al. 2016 (arXiv:1608.06993), here
with the activation after the convolution; whitening stem, Jordan 2024 (arXiv:2404.00498).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

STEM_CHANNELS = 24


class ConvBlock(nn.Sequential):
    """Convolution, optional 2x2 max pooling, batch norm without a learnt scale, and SiLU.

    A 3x3 convolution with enough output channels begins by handing its input on.
    """

    def __init__(self, channels_in: int, channels_out: int, kernel: int = 3, *, pool: bool = False) -> None:
        convolution = nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, bias=False)
        if kernel == 3 and channels_out >= channels_in:
            nn.init.dirac_(convolution.weight[:channels_in])
        norm = nn.BatchNorm2d(channels_out, momentum=0.12)
        norm.weight.requires_grad_(False)
        super().__init__(convolution, *([nn.MaxPool2d(2)] if pool else []), norm, nn.SiLU())


class ResidualBlock(nn.Module):
    """Two convolution blocks and an identity shortcut; channels and resolution stay as they are."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(ConvBlock(channels, channels), ConvBlock(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N,C,H,W] to [N,C,H,W]."""
        return x + self.body(x)


class DenseBlock(nn.Module):
    """`depth` convolution blocks, each fed with everything before it; adds `depth * growth` channels."""

    def __init__(self, channels: int, depth: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(ConvBlock(channels + i * growth, growth) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """Map [N,C,H,W] to [N,C+depth*growth,H,W]."""
        for layer in self.layers:
            x = torch.cat([x, layer(x)], dim=1)
        return x


class Head(nn.Module):
    """Global max pooling and a linear layer, without bias, to the classes' logits."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.linear = nn.Linear(channels, classes, bias=False)
        self.scale = 1 / channels
        nn.init.normal_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N,C,H,W] to [N,classes]."""
        return self.linear(self.pool(x).flatten(1)) * self.scale


class Mirrored(nn.Module):
    """A trained classifier that looks at each image and at its mirror image, and averages the logits.

    Twice the arithmetic, for half a point to one of top-1 on CIFAR-10. Both views go through in one batch, so that the
    weights are stored once.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Map [N,C,H,W] to [N,classes]."""
        logits = self.model(torch.cat([x, x.flip(3)]))
        return logits.view(2, -1, logits.shape[1]).mean(0)


def stem() -> list[nn.Module]:
    """Make the whitening convolution, which `whiten` sets for good, and its activation: [N,3,H,W] to [N,24,H-1,W-1]."""
    whitening = nn.Conv2d(3, STEM_CHANNELS, 2)
    whitening.weight.requires_grad_(False)
    return [whitening, nn.SiLU()]


def residual(classes: int, stages: Sequence[tuple[int, int]]) -> nn.Sequential:
    """Build stages of these channels and residual blocks, each at half of the resolution of the stage before."""
    layers, channels = stem(), STEM_CHANNELS
    for width, depth in stages:
        layers += [ConvBlock(channels, width, pool=True), *(ResidualBlock(width) for _ in range(depth))]
        channels = width
    return nn.Sequential(*layers, Head(channels, classes))


def resnet(classes: int) -> nn.Sequential:
    """Build three stages of one residual block each: 120 MMAC at 32x32, 2.5 million parameters."""
    return residual(classes, ((64, 1), (192, 1), (256, 1)))


def resnet13(classes: int) -> nn.Sequential:
    """Build three stages of one, two and one residual blocks: 125 MMAC at 32x32, 2.7 million parameters."""
    return residual(classes, ((64, 1), (160, 2), (256, 1)))


def densenet(classes: int) -> nn.Sequential:
    """Build three dense blocks of three layers, 1x1 transitions between: 94 MMAC at 32x32, 2 million parameters."""
    layers = [*stem(), ConvBlock(STEM_CHANNELS, 64, pool=True)]
    channels = 64
    for growth, transition in ((48, 128), (96, 192), (128, None)):
        layers.append(DenseBlock(channels, 3, growth))
        channels += 3 * growth
        if transition is not None:
            layers.append(ConvBlock(channels, transition, kernel=1, pool=True))
            channels = transition
    return nn.Sequential(*layers, Head(channels, classes))


def student(classes: int, width: float = 1.0) -> nn.Sequential:
    """Build four convolutions in a row, mostly at 7x7 pixels: 15 MMAC at 32x32, 0.5 million parameters.

    `width` multiplies the channels of the convolutions.
    """
    layers: list[nn.Module] = [*stem(), nn.MaxPool2d(2)]
    channels = STEM_CHANNELS
    for full, pool in ((48, True), (128, False), (128, True), (224, False)):
        wide = max(1, round(full * width))
        layers.append(ConvBlock(channels, wide, pool=pool))
        channels = wide
    return nn.Sequential(*layers, Head(channels, classes))


ARCHITECTURES: dict[str, Callable[[int], nn.Sequential]] = {
    "resnet": resnet,
    "resnet13": resnet13,
    "densenet": densenet,
    "student": student,
}


def network(recipe: Mapping[str, Any], classes: int) -> nn.Sequential:
    """Build an untrained network by a checkpoint's recipe; older checkpoints have no width."""
    if (width := recipe.get("width", 1.0)) != 1.0:
        return student(classes, width)
    return ARCHITECTURES[recipe["architecture"]](classes)


def multiplications(model: nn.Module, size: int) -> float:
    """Count the millions of multiplications of convolutions and linear layers for an image of size x size pixels."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(1, 3, size, size))
    # It counts an addition for each of them.
    return counter.get_total_flops() / 2 / 1e6


@torch.no_grad()
def whiten(model: nn.Sequential, images: Tensor) -> None:
    """Set the first convolution so that its outputs are uncorrelated on `images` (float [N,3,H,W])."""
    conv = model[0]
    assert isinstance(conv, nn.Conv2d)
    patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12).double()
    eigenvalues, eigenvectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    filters = (eigenvectors / (eigenvalues + 5e-4).sqrt()).T.reshape(12, 3, 2, 2).float()
    conv.weight.copy_(torch.cat([filters, -filters]))
