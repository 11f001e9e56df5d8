"""Networks of the papers, sized from the shape of the data.

Every one ends in a layer named `head`, whose input are the features. None has batch
statistics: these leak between rows and do not average over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd
from operator import index
from typing import TYPE_CHECKING, Any

from skfedcal.training.modules import image_shape, import_torch, n_inputs

if TYPE_CHECKING:
    from torch import Tensor

import_torch()  # says how to install it
from torch import nn  # noqa: E402


class Net(nn.Module):
    """A body that makes features, and a linear head."""

    def __init__(self, body: nn.Module, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(n_features, n_classes)

    def features(self, x: Tensor) -> Tensor:
        """Input of the head, one row per row of `x`."""
        return self.body(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class ToImage(nn.Module):
    """Rows of any accepted shape to (n_rows, channels, height, width)."""

    def __init__(self, shape: tuple[int, int, int], channels_last: bool) -> None:
        super().__init__()
        self.shape, self.channels_last = shape, channels_last

    def forward(self, x: Tensor) -> Tensor:
        if self.channels_last:
            x = x.movedim(-1, -3)
        return x.reshape(-1, *self.shape)

    def extra_repr(self) -> str:
        return f"{self.shape}, channels_last={self.channels_last}"


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


class MLP(Net):
    """Fully connected layers with ReLU; without hidden layers, a logistic regression.

    Parameters
    ----------
    shape : tuple of int
        Shape of one row.
    n_classes : int
        Number of classes.
    hidden : sequence of int, default=(512, 256, 128, 64)
        Widths, by default those of FL-FCR's Table I.

    Examples
    --------
    >>> from skfedcal.training import MLP
    >>> sum(p.numel() for p in MLP((64,), 10).parameters())
    206410
    """

    def __init__(
        self,
        shape: Sequence[int],
        n_classes: int,
        hidden: Sequence[int] = (512, 256, 128, 64),
    ) -> None:
        size = n_inputs(shape)
        layers: list[nn.Module] = [nn.Flatten()]
        for width in hidden:
            layers += [nn.Linear(size, width), nn.ReLU()]
            size = width
        super().__init__(nn.Sequential(*layers), size, n_classes)


class SmallCNN(Net):
    """Two 5x5 convolutions with pooling, and one hidden layer (McMahan et al., LEAF).

    1,663,370 parameters for 28 x 28 pixels and 10 classes.

    Parameters
    ----------
    shape : tuple of int
        Shape of one row: (height, width), (channels, height, width), (height, width,
        channels), or a number of pixels that make a square.
    n_classes : int
        Number of classes.
    hidden : int, default=512
        Width of the hidden layer; 2048 in LEAF.
    channels : tuple of int, default=(32, 64)
        Channels of the convolutions.

    Examples
    --------
    >>> from skfedcal.training import SmallCNN
    >>> sum(p.numel() for p in SmallCNN((28, 28), 10).parameters())
    1663370
    """

    def __init__(
        self,
        shape: Sequence[int],
        n_classes: int,
        hidden: int = 512,
        channels: tuple[int, int] = (32, 64),
    ) -> None:
        image = image_shape(shape, smallest=4)
        depth, height, width = image.shape
        first, second = channels
        body = nn.Sequential(
            ToImage(*image),
            nn.Conv2d(depth, first, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * (height // 4) * (width // 4), hidden),
            nn.ReLU(),
        )
        super().__init__(body, hidden, n_classes)


class FCRCNN(Net):
    """Five 3x3 convolutions and three hidden layers: the CNN of FL-FCR's Table I.

    The table prints a ReLU on the output, which would leave no negative logit; there is
    none here. 7,281,802 parameters for 32 x 32 pixels in colour and 10 classes.

    Parameters
    ----------
    shape : tuple of int
        Shape of one row, as in `SmallCNN`.
    n_classes : int
        Number of classes.

    Examples
    --------
    >>> from skfedcal.training import FCRCNN
    >>> sum(p.numel() for p in FCRCNN((3, 32, 32), 10).parameters())
    7281802
    """

    def __init__(self, shape: Sequence[int], n_classes: int) -> None:
        image = image_shape(shape, smallest=8)
        depth, height, width = image.shape
        layers: list[nn.Module] = [ToImage(*image)]
        for channels, pooled in (
            (128, True),
            (256, True),
            (512, False),
            (512, False),
            (256, True),
        ):
            layers += [nn.Conv2d(depth, channels, 3, padding=1), nn.ReLU()]
            layers += [nn.MaxPool2d(2)] if pooled else []
            depth = channels
        layers.append(nn.Flatten())
        size = depth * (height // 8) * (width // 8)
        for hidden in (512, 256, 128):
            layers += [nn.Linear(size, hidden), nn.ReLU()]
            size = hidden
        super().__init__(nn.Sequential(*layers), size, n_classes)


class CharLSTM(Net):
    """Next character from the characters before: embedding and two LSTM layers (LEAF).

    Parameters
    ----------
    shape : tuple of int
        Shape of one row: the length of a sequence of whole numbers below `n_tokens`.
    n_classes : int
        Number of classes.
    n_tokens : int, default=80
        Characters; LEAF's Shakespeare has 80.
    embedding : int, default=8
        Numbers per character.
    hidden : int, default=256
        Width of the layers.
    layers : int, default=2
        Layers.

    Examples
    --------
    >>> from skfedcal.training import CharLSTM
    >>> sum(p.numel() for p in CharLSTM((80,), 80).parameters())
    819920
    """

    def __init__(
        self,
        shape: Sequence[int],
        n_classes: int,
        n_tokens: int = 80,
        embedding: int = 8,
        hidden: int = 256,
        layers: int = 2,
    ) -> None:
        if len(shape) != 1:
            raise ValueError(
                f"CharLSTM needs rows of tokens, one axis; got shape {tuple(shape)}."
            )
        super().__init__(
            _LastState(n_tokens, embedding, hidden, layers), hidden, n_classes
        )


class _LastState(nn.Module):
    """Embedding, LSTM layers, and the last output of each sequence."""

    def __init__(self, n_tokens: int, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_tokens, embedding)
        n_layers = int(index(layers))  # torch takes no bool for a number
        self.lstm = nn.LSTM(embedding, hidden, n_layers, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.embedding(x.long()))[0][:, -1]


def _linear(shape: Sequence[int], n_classes: int) -> MLP:
    return MLP(shape, n_classes, hidden=())


MODELS: dict[str, Callable[..., Net]] = {
    "char_lstm": CharLSTM,
    "cnn": SmallCNN,
    "fcr_cnn": FCRCNN,
    "linear": _linear,
    "mlp": MLP,
    "resnet18": ResNet18,
}


def build(name: str, shape: Sequence[int], n_classes: int, **params: Any) -> Net:
    """Network of this name for rows of this shape.

    name ('char_lstm', 'cnn', 'fcr_cnn', 'linear', 'mlp', 'resnet18'): Which.
    shape: Shape of one row.
    **params: Further arguments of the class.
    """
    if name not in MODELS:
        raise ValueError(
            f"module={name!r} is unknown; pass one of {sorted(MODELS)}, or a "
            "torch.nn.Module."
        )
    try:
        return MODELS[name](tuple(shape), n_classes, **params)
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"module={name!r} does not take these arguments: {error}") from error
