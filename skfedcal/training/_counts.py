"""How many rows of each class all clients hold."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from skfedcal.algorithms._base import Array, Arrays, BlockSpec, Sums
from skfedcal.data._dataset import FederatedDataset
from skfedcal.federation._collect import collect
from skfedcal.federation._runner import FederatedRunner
from skfedcal.privacy._entropy import Entropy
from skfedcal.training._client import class_counts


@dataclass(frozen=True, slots=True)
class CountState:
    """Rows of each class."""

    counts: Array


@dataclass(frozen=True, slots=True)
class ClassCounts:
    """Add up the rows of each class."""

    n_rounds: int = 1

    def init(self, n_classes: int) -> CountState:
        return CountState(np.zeros(n_classes))

    def broadcast(self, state: CountState) -> Arrays:
        return {"n_classes": np.array(len(state.counts))}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        return {"counts": BlockSpec((int(broadcast["n_classes"]),), kind="count")}

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        return {"counts": class_counts(clients)}

    def update(self, state: CountState, total: Sums, n_clients: int) -> CountState:
        return CountState(state.counts + total["counts"])

    def done(self, state: CountState) -> bool:
        return False


def ask_counts(
    runner: FederatedRunner, clients: FederatedDataset, entropy: Entropy
) -> tuple[float, ...]:
    """Ask all clients, in a round of its own and without noise."""
    once = replace(
        runner,
        n_rounds=1,
        cohort="full",
        cohort_size=None,
        min_clients=1,
        checkpoint=None,
        resume=False,
    )
    found = collect(ClassCounts(), clients, runner=once, entropy=entropy)
    return tuple(found.state.counts.tolist())
