"""What a client keeps from one round to the next."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class ClientMemory:
    """Vectors that stay at clients, by the client's name.

    In a deployment each site has one, with its own entries. A simulation keeps those
    of all clients here: nothing of it is part of the server's state, sent or saved.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Hashable], Tensor] = {}

    def __repr__(self) -> str:
        return "ClientMemory()"

    def __reduce__(self) -> str:
        raise TypeError(
            "What clients remember cannot be handed to another process, where it would "
            "be lost. Use threads: FederatedRunner(backend='threads')."
        )

    def recall(self, kind: str, names: Sequence[Hashable], new: Tensor) -> Tensor:
        """Vectors of these clients, stacked; `new` for one that has none."""
        import torch

        return torch.stack([self._kept.get((kind, name), new) for name in names])

    def keep(self, kind: str, names: Sequence[Hashable], values: Tensor) -> None:
        """Replace the vectors of these clients."""
        for name, value in zip(names, values, strict=True):
            self._kept[kind, name] = value.clone()
