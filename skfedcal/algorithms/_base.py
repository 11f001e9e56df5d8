"""The contract between an algorithm and the runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from skfedcal.data._dataset import FederatedDataset

Array = NDArray[Any]
Arrays = Mapping[str, Array]
State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """Shape and bound of one array that a client sends.

    Parameters
    ----------
    shape : tuple of int
        Shape of one client's array.
    kind : {'count', 'real'}
        Whole numbers are summed as they are, reals in fixed point.
    clip : float, default=None
        Bound on the norm of what one client sends; None sends it unclipped, which is
        refused when noise is to hide it.
    norm : {'l2', 'l1'}, default='l2'
        Which norm is bounded.
    groups : int, default=1
        The array is cut along its first axis into this many parts, each clipped by
        itself; the bound on the whole is then ``clip * sqrt(groups)`` in L2.
    weight : float, default=1.0
        Cost of the noise variance of each number, when noise is divided over blocks.
    """

    shape: tuple[int, ...]
    kind: Literal["count", "real"] = "real"
    clip: float | None = None
    norm: Literal["l2", "l1"] = "l2"
    groups: int = 1
    weight: float = 1.0

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def sensitivity(self) -> float:
        """Largest norm of one client's array."""
        if self.clip is None:
            return np.inf
        parts = self.groups if self.norm == "l1" else np.sqrt(self.groups)
        return float(self.clip * parts)


class Sums(dict[str, Array]):
    """Sums over clients as the server may see them.

    Attributes
    ----------
    noise : dict of str to float
        Standard deviation of the noise in each block; empty when there is none.
    """

    def __init__(self, values: Arrays, noise: Mapping[str, float] | None = None):
        super().__init__(values)
        self.noise = dict(noise or {})


class FederatedAlgorithm(Protocol[State]):
    """What a client computes and what the server does with the sum.

    The runner repeats ``broadcast -> query -> clip, encode, sum, noise -> update`` for
    `n_rounds` or until `done`. An algorithm is a frozen dataclass of plain numbers and
    strings: it holds no data, draws no noise and knows no budget. Its state is a frozen
    dataclass of arrays and numbers.

    Two further members are optional: ``shares``, one positive number per round, adding
    up to 1, divides the budget over rounds where all clients take part in all of them;
    ``n_values(n_classes)`` gives the most numbers of a round where that is not the
    first. See `round_shares` and `values_per_round`.
    """

    @property
    def n_rounds(self) -> int:
        """Rounds to run, and to pay for."""

    def init(self, n_classes: int) -> State:
        """State before the first round."""

    def broadcast(self, state: State) -> Arrays:
        """Give the part of the state that every client receives."""

    def spec(self, broadcast: Arrays) -> Mapping[str, BlockSpec]:
        """Give shapes and public bounds; the only source of sensitivity."""

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        """Compute what each client sends, one leading row per client, not yet clipped.

        Called with one client at a site and with thousands in a simulation.
        """

    def update(self, state: State, total: Sums, n_clients: int) -> State:
        """Make the next state from nothing but the (noisy) sums."""

    def done(self, state: State) -> bool:
        """Whether further rounds are useless."""


def round_shares(algorithm: FederatedAlgorithm[Any]) -> tuple[float, ...]:
    """Share of the budget of each round; empty when all rounds are alike."""
    return tuple(getattr(algorithm, "shares", None) or ())


def values_per_round(algorithm: FederatedAlgorithm[Any], n_classes: int) -> int:
    """Give the most numbers that a round releases."""
    n_values = getattr(algorithm, "n_values", None)
    if n_values is not None:
        return int(n_values(n_classes))
    start = algorithm.broadcast(algorithm.init(n_classes))
    return sum(block.size for block in algorithm.spec(start).values())
