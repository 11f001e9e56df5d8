"""Networks of the papers, sized from the shape of the data.

Every one ends in a layer named `head`, whose input are the features. None has batch
statistics: these leak between rows and do not average over clients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from skfedcal.training._layers import Net, ToImage, nn
from skfedcal.training._resnet import ResNet18
from skfedcal.training._shapes import image_shape, n_inputs

if TYPE_CHECKING:
    from torch import Tensor


class MLP(Net):
    """Layers with ReLU; none is a logistic regression.

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

    Parameters
    ----------
    name : {'char_lstm', 'cnn', 'fcr_cnn', 'linear', 'mlp', 'resnet18'}
        Which.
    shape : sequence of int
        Shape of one row.
    n_classes : int
        Number of classes.
    **params : dict
        Further arguments of the class.
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
