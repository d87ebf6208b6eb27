"""Residual networks for small pictures (He, Zhang, Ren, Sun: Deep Residual Learning, CVPR 2016, section 4.2)."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions and what came in: relu(shortcut(x) + bn(conv(relu(bn(conv(x))))))."""

    def __init__(self, before: int, after: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.stride, self.more = stride, after - before

    def forward(self, x: Tensor) -> Tensor:
        """Return what becomes of activations [number, channels, height, width]."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.shortcut(x) + self.bn2(self.conv2(y)))

    def shortcut(self, x: Tensor) -> Tensor:
        """Return what came in, as large as what goes out."""
        if self.stride > 1:
            x = x[:, :, :: self.stride, :: self.stride]
        # Option A of the paper: the channels that are new begin as zeros, and have no weights.
        return F.pad(x, (0, 0, 0, 0, 0, self.more)) if self.more else x


class ResNet(nn.Module):
    """The network of depth 6n+2: a convolution, three stages of n blocks, the mean over the picture, a linear map.

    The stages have ``width``, 2 ``width`` and 4 ``width`` filters on pictures of full, half and quarter size.
    With 3 channels, 10 classes and 16 filters, depth 20 has 269,722 parameters.

    >>> sum(p.numel() for p in ResNet(20, channels=3, classes=10).parameters())
    269722
    """

    def __init__(self, depth: int, *, channels: int, classes: int, width: int = 16) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"depth must be 6n+2 with n of 1 or more, got {depth}. Take 20, 32, 56 or 110.")
        blocks = (depth - 2) // 6
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.stages = nn.Sequential()
        before = width
        for stage in range(3):
            after = width << stage
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                self.stages.append(Block(before, after, stride=stride))
                before = after
        self.linear = nn.Linear(before, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores [number, classes] of images [number, channels, height, width]."""
        x = self.stages(F.relu(self.bn(self.conv(images))))
        scores: Tensor = self.linear(x.mean(dim=(2, 3)))
        return scores
