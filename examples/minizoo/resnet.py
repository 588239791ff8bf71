"""Residual networks of basic blocks, ResNet-18 by default, with an adjustable width."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input is added, projected if its shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


class ResNet(nn.Module):
    """Maps images of shape (batch, 3, height, width) to class logits.

    Its weights are in `channels_last` order, and its images should be.
    """

    def __init__(
        self, num_classes: int, width: int = 64, blocks: Sequence[int] = (2, 2, 2, 2)
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        layers: list[nn.Module] = []
        channels_in = width
        for stage, count in enumerate(blocks):
            channels = width << stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(BasicBlock(channels_in, channels, stride))
                channels_in = channels
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(channels_in, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, x: Tensor) -> Tensor:
        """Feature maps before global pooling."""
        x = self.pool(F.relu(self.bn1(self.conv1(x)), inplace=True))
        maps: Tensor = self.layers(x)
        return maps

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x).mean(dim=(2, 3)))
        return logits


def fold_batch_norms(model: ResNet) -> None:
    """Merge each batch norm of a model in eval mode into the convolution before it, in place."""
    _fold(model, "conv1", "bn1")
    for block in model.layers:
        _fold(block, "conv1", "bn1")
        _fold(block, "conv2", "bn2")
        if isinstance(block.shortcut, nn.Sequential):
            _fold(block.shortcut, "0", "1")


def _fold(parent: nn.Module, conv_name: str, norm_name: str) -> None:
    conv, norm = parent.get_submodule(conv_name), parent.get_submodule(norm_name)
    if not isinstance(conv, nn.Conv2d) or not isinstance(norm, nn.BatchNorm2d):
        raise TypeError(f"expected Conv2d and BatchNorm2d, found {conv} and {norm}")
    setattr(parent, conv_name, fuse_conv_bn_eval(conv, norm))
    setattr(parent, norm_name, nn.Identity())
