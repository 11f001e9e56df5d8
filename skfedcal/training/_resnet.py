"""ResNet-18 without batch statistics."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING

from skfedcal.training._layers import Net, ToImage, nn
from skfedcal.training._shapes import image_shape

if TYPE_CHECKING:
    from torch import Tensor


class _ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = _group_norm(outside, groups)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = _group_norm(outside, groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False),
                _group_norm(outside, groups),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(out)) + self.shortcut(x)).relu()


class ResNet18(Net):
    """ResNet-18 with group normalisation.

    torchvision's has 11,181,642 parameters at 10 classes; group normalisation has as
    many as batch normalisation, and a 3x3 stem 7,680 fewer than a 7x7 one.

    Parameters
    ----------
    shape : tuple of int
        Shape of one row, as in `SmallCNN`.
    n_classes : int
        Number of classes.
    stem : {'auto', 'small', 'large'}, default='auto'
        'small': a 3x3 convolution; 'large': 7x7 with stride 2, and pooling. 'auto' is
        'small' for up to 64 pixels.
    groups : int, default=32
        Groups of channels that are normalised together.
    width : int, default=64
        Channels of the first stage; 128, 256 and 512 follow from 64.

    Examples
    --------
    >>> from skfedcal.training import ResNet18
    >>> sum(p.numel() for p in ResNet18((3, 32, 32), 10).parameters())
    11173962
    """

    def __init__(
        self,
        shape: Sequence[int],
        n_classes: int,
        stem: str = "auto",
        groups: int = 32,
        width: int = 64,
    ) -> None:
        image = image_shape(shape, smallest=1)
        depth, *sides = image.shape
        if stem == "auto":
            stem = "small" if max(sides) <= 64 else "large"
        if stem not in ("small", "large"):
            raise ValueError(f"stem={stem!r}; pass 'auto', 'small' or 'large'.")
        kernel, stride = (3, 1) if stem == "small" else (7, 2)
        layers: list[nn.Module] = [
            ToImage(*image),
            nn.Conv2d(depth, width, kernel, stride, kernel // 2, bias=False),
            _group_norm(width, groups),
            nn.ReLU(),
        ]
        if stem == "large":
            layers.append(nn.MaxPool2d(3, 2, 1))
        inside = width
        for stage in range(4):
            outside = width * 2**stage
            for step in (1 if stage == 0 else 2, 1):
                layers.append(_ResidualBlock(inside, outside, step, groups))
                inside = outside
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(nn.Sequential(*layers), inside, n_classes)


def _group_norm(channels: int, groups: int) -> nn.Module:
    # At least two channels each: a single pixel of one channel is always normalised
    # to zero.
    return nn.GroupNorm(gcd(channels, min(groups, max(channels // 2, 1))), channels)
