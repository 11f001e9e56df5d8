"""Who takes part in which round, and what that means for the accountant."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.privacy._entropy import Entropy, SeededEntropy

Cohort = Literal["full", "permuted", "independent", "poisson"]
Positions = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Schedule:
    """Cohorts of all rounds.

    Parameters
    ----------
    cohort : {'full', 'permuted', 'independent', 'poisson'}
        How clients are chosen.
    n_clients, size, n_rounds : int
        Clients, clients per cohort, rounds.
    """

    cohort: Cohort
    n_clients: int
    size: int
    n_rounds: int

    @property
    def sampling_rate(self) -> float:
        """Chance of a client to be in a round, where the accountant may use it."""
        return self.size / self.n_clients if self.cohort == "poisson" else 1.0

    @property
    def n_participations(self) -> int:
        """Most rounds that one client can be part of."""
        if self.cohort == "permuted":
            return ceil(self.n_rounds / ceil(self.n_clients / self.size))
        return self.n_rounds

    @property
    def divisor(self) -> int | None:
        """Public number of clients per round; None: the size of the cohort."""
        return {"full": self.n_clients, "poisson": self.size}.get(self.cohort)

    def cohorts(self, round_index: int, entropy: Entropy, key: int) -> list[Positions]:
        """Clients of one round; several cohorts are added up before the release.

        `key` fixes the permutations of a run, so that a resumed run goes on with them.
        """
        everyone = np.arange(self.n_clients)
        if self.cohort == "full":
            return [
                everyone[start : start + self.size]
                for start in range(0, self.n_clients, self.size)
            ]
        if self.cohort == "permuted":
            per_pass = ceil(self.n_clients / self.size)
            epoch, place = divmod(round_index, per_pass)
            order = _dealt(key, epoch, self.n_clients)
            return [np.sort(order[place * self.size : (place + 1) * self.size])]
        source = entropy.child(round_index)
        if self.cohort == "independent":
            return [np.sort(source.permutation(self.n_clients)[: self.size])]
        return [everyone[source.bernoulli(self.n_clients, self.sampling_rate)]]


@lru_cache(maxsize=1)
def _dealt(key: int, epoch: int, n_clients: int) -> Positions:
    """Order of the clients in one pass; kept for the other rounds of the pass."""
    order = SeededEntropy(key, epoch).permutation(n_clients)
    order.flags.writeable = False
    return order
