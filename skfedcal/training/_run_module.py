"""Outputs of a trained module for rows of numpy, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.training._network import features_of
from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import Tensor, nn

Array = NDArray[Any]

# Numbers of the rows that go through a module at once: hidden layers of a small
# convolutional net are some fifty times as large.
_PIECE = 1 << 18


def module_logits(module: nn.Module, rows: Array, device: str = "cpu") -> Array:
    """Logits of a module in evaluation mode, one column per class."""
    return _in_pieces(module, rows, device)


def module_features(module: nn.Module, rows: Array, device: str = "cpu") -> Array:
    """What goes into the last layer of a module in evaluation mode."""
    return _in_pieces(lambda part: features_of(module, part), rows, device)


def _in_pieces(call: Callable[[Tensor], Tensor], rows: Array, device: str) -> Array:
    torch = import_torch()
    if not rows.flags.writeable:  # torch has no tensors that are read only
        rows = rows.copy()
    x = torch.from_numpy(rows)
    size = max(1, _PIECE // max(1, rows[:1].size))
    with torch.no_grad():
        parts = [call(part.to(device)).cpu().numpy() for part in x.split(size)]
    return np.concatenate(parts)
