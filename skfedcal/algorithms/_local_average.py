"""Scaling maps by averaging local fits: Algorithm 2 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from skfedcal.algorithms._base import (
    Array,
    Arrays,
    BlockSpec,
    Field,
    Form,
    Sums,
    check_range,
)
from skfedcal.algorithms._canonical import LabelledRows, labelled
from skfedcal.algorithms._families import Family, loss_and_slopes
from skfedcal.algorithms._local_lbfgs import minimise_each
from skfedcal.data._dataset import FederatedDataset

# Rows that are all right or all wrong have their optimum at infinity.
_BOUND = 50.0

# Entries per block; each is gone through `local_iter` times.
_CELLS = 1 << 15


# Most local steps that a site makes for one answer.
MAX_LOCAL_STEPS = 10_000
# Most products of steps and parameters; half a minute for a thousand rows.
MAX_WORK = 1e8


@dataclass(frozen=True, slots=True)
class LocalState:
    """The server's parameters, and how far noise alone would have moved each."""

    n_classes: int
    params: Array
    noise: float = 0.0
    rounds: int = 0

    @property
    def temperature(self) -> float:
        return 1.0

    @property
    def converged(self) -> bool:
        inside = bool((np.abs(self.params) < _BOUND).all())
        return self.rounds > 0 and inside


@dataclass(frozen=True, slots=True)
class LocalAverage:
    """Average of what clients learn from their own rows, starting at the server's map.

    A client sends the difference between its parameters and the server's; the server
    adds the mean of the differences.

    Parameters
    ----------
    family : VectorMap, MatrixMap or OrderPreservingMap
        The map.
    local_solver : {'lbfgs', 'gd'}, default='lbfgs'
        Quasi-Newton steps, or gradient steps of fixed rate on the mean loss.
    local_iter : int, default=50
        Steps of each client and round.
    learning_rate : float, default=0.01
        Rate of gradient steps.
    clip : float, default=None
        Bound on the L2 norm of the difference that a client sends.
    n_rounds : int, default=5
        Rounds.
    """

    family: Family
    local_solver: Literal["lbfgs", "gd"] = "lbfgs"
    local_iter: int = 50
    learning_rate: float = 0.01
    clip: float | None = None
    n_rounds: int = 5

    def init(self, n_classes: int) -> LocalState:
        return LocalState(n_classes, self.family.start(n_classes))

    def broadcast(self, state: LocalState) -> Arrays:
        return {"params": state.params}

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        blocks = {"update": BlockSpec(broadcast["params"].shape, clip=self.clip)}
        if self.clip is None:
            blocks["filled"] = BlockSpec((1,), kind="count")
        return blocks

    def forms(self, n_classes: int) -> tuple[Form, ...]:
        """List the broadcasts that a site accepts."""
        check_range("local_iter", self.local_iter, 0, MAX_LOCAL_STEPS)
        size = self.family.size(n_classes)
        check_range("local_iter * parameters", self.local_iter * size, 0, MAX_WORK)
        return ({"params": Field((size,))},)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        start, filled = broadcast["params"], clients.filled
        update = np.zeros((len(clients), len(start)))
        own = np.flatnonzero(filled)
        part = clients.select(own)
        # Local steps need all rows of a client at once: no client may be cut.
        largest = int(part.sizes.max(initial=0)) * clients.n_classes
        for block in part.blocks(max(_CELLS, largest)):
            data = labelled(block, 1.0, self.family.ranked)
            update[own[block.clients]] = self._train(start, data) - start
        answer: dict[str, Array] = {"update": update}
        if self.clip is None:
            answer["filled"] = filled.astype(np.int64)[:, None]
        return answer

    def update(self, state: LocalState, total: Sums, n_clients: int) -> LocalState:
        # Under a bound the number of empty clients stays hidden.
        n_filled = (
            max(float(total["filled"][0]), 1.0) if "filled" in total else n_clients
        )
        moved = state.params + total["update"] / n_filled
        noise = total.noise.get("update", 0.0) / n_filled
        return LocalState(
            state.n_classes,
            np.clip(moved, -_BOUND, _BOUND),
            float(np.hypot(state.noise, noise)),
            state.rounds + 1,
        )

    def done(self, state: LocalState) -> bool:
        return False

    def _train(self, start: Array, data: LabelledRows) -> Array:
        """Parameters of each client after its own steps."""
        n_rows = np.maximum(np.add.reduceat(data.weights, data.offsets[:-1]), 1e-12)[
            :, None
        ]

        def mean_loss(params: Array) -> tuple[Array, Array]:
            sums, _ = loss_and_slopes(self.family, params, data)
            sums /= n_rows
            return sums[:, 0], sums[:, 1:]

        params = np.tile(start, (len(n_rows), 1))
        if self.local_solver == "lbfgs":
            return minimise_each(mean_loss, params, self.local_iter)
        for _ in range(self.local_iter):
            params -= self.learning_rate * mean_loss(params)[1]
        return params
