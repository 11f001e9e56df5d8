"""Federated averaging as an algorithm of the house: rows in, sums out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from skfedcal.algorithms._base import Array, Arrays, BlockSpec, Sums
from skfedcal.data._dataset import FederatedDataset
from skfedcal.training._client import ClientTraining

# Largest parameter; training that gets there has diverged, and float32 still holds it.
_BOUND = 1e30


@dataclass(frozen=True, slots=True)
class FedAvgState:
    """Parameters of the server and what its optimiser keeps.

    Attributes
    ----------
    params : ndarray of shape (n_params,)
        Parameters, in float64.
    change : ndarray of shape (n_params,)
        What the last round added to them.
    velocity : ndarray of shape (n_params,) or (0,)
        Momentum of the server, if it has one.
    control : ndarray of shape (n_params,) or (0,)
        Control variate of the server, if there is one.
    rounds : int
        Rounds run.
    n_diverged : int
        Trainings of clients that were left out, as they did not end in finite numbers.
    """

    params: Array
    change: Array
    velocity: Array
    control: Array
    rounds: int = 0
    n_diverged: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class FedAvg:
    """Clients train from the server's parameters; the server adds the mean change.

    Unlike other algorithms it holds a torch module, and the memory of the clients
    where they need one; that memory is no part of the server.

    Parameters
    ----------
    training : ClientTraining
        What a client does.
    start : ndarray of shape (n_params,)
        Parameters before the first round; public.
    weighting : {'examples', 'uniform'}, default='examples'
        Whether a client counts as often as it has rows.
    clip : float, default=None
        L2 bound on the change that a client sends; with 'uniform' weighting only. The
        sum is then divided by the number of clients that were asked.
    server_lr, server_momentum : float, default=1.0 and 0.0
        Step length and momentum of the server.
    n_clients : int, default=1
        Number of all clients.
    global_counts : tuple of float, default=None
        Rows of each class over all clients, where the objective needs it.
    n_rounds : int, default=50
        Rounds.
    start_name : str, default=''
        Tells one start from another where that matters for a checkpoint.
    monitor : callable, default=None
        Called with the state after each round; true ends the run.
    """

    training: ClientTraining
    start: Array = field(repr=False)
    weighting: Literal["examples", "uniform"] = "examples"
    clip: float | None = None
    server_lr: float = 1.0
    server_momentum: float = 0.0
    n_clients: int = 1
    global_counts: tuple[float, ...] | None = None
    n_rounds: int = 50
    start_name: str = ""
    monitor: Callable[[FedAvgState], bool] | None = field(default=None, repr=False)

    def init(self, n_classes: int) -> FedAvgState:
        zeros, none = np.zeros(len(self.start)), np.zeros(0)
        return FedAvgState(
            self.start.astype(np.float64),
            zeros,
            zeros if self.server_momentum else none,
            zeros if self._corrected else none,
        )

    def broadcast(self, state: FedAvgState) -> Arrays:
        told = {
            "params": state.params.astype(np.float32),
            "round": np.array(state.rounds),
        }
        if "previous_update" in self.training.objective.needs:
            told["change"] = state.change.astype(np.float32)
        if self._corrected:
            told["control"] = state.control.astype(np.float32)
        if self.global_counts is not None:
            told["counts"] = np.array(self.global_counts, dtype=np.float32)
        return told

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        shape = broadcast["params"].shape
        blocks = {"update": BlockSpec(shape, clip=self.clip)}
        if self._corrected:
            blocks["control"] = BlockSpec(shape)
        if self.clip is None:
            # Weight of the client, and whether it was left out.
            blocks["weight"] = BlockSpec((2,), kind="count")
        return blocks

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        answer: dict[str, Array] = {
            name: np.zeros((len(clients), *block.shape))
            for name, block in self.spec(broadcast).items()
        }
        # Clients of like size side by side, so that few wait for the largest.
        order = np.argsort(-clients.sizes, kind="stable")
        order = order[: np.count_nonzero(clients.sizes)]
        if not len(order):
            return answer
        trained = self.training.run(broadcast, clients, order)
        counted = clients.sizes[order] if self.weighting == "examples" else 1
        weight = counted * trained.finite
        moved = trained.moved
        if self.weighting == "examples":
            moved *= weight[:, None]
        answer["update"][order] = moved
        if trained.steered is not None:
            answer["control"][order] = trained.steered
        if "weight" in answer:
            answer["weight"][order] = np.stack([weight, ~trained.finite], axis=1)
        return answer

    def update(self, state: FedAvgState, total: Sums, n_clients: int) -> FedAvgState:
        divisor, diverged = float(n_clients), 0
        if "weight" in total:
            # Clients without rows have no weight; under a bound they stay hidden.
            divisor, diverged = max(total["weight"][0], 1.0), int(total["weight"][1])
        velocity = total["update"] / divisor
        if self.server_momentum:
            velocity = velocity + self.server_momentum * state.velocity
        moved = state.params + self.server_lr * velocity
        params = np.clip(moved, -_BOUND, _BOUND)
        control = state.control
        if self._corrected:
            control = control + total["control"] / self.n_clients
        return FedAvgState(
            params,
            params - state.params,
            velocity if self.server_momentum else state.velocity,
            control,
            state.rounds + 1,
            state.n_diverged + diverged,
        )

    def done(self, state: FedAvgState) -> bool:
        return self.monitor is not None and bool(self.monitor(state))

    @property
    def _corrected(self) -> bool:
        return self.training.correction is not None
