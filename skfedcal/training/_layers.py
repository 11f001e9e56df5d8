"""Parts that all networks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skfedcal.training._torch import import_torch

import_torch()  # says how to install it
from torch import nn  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor


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
