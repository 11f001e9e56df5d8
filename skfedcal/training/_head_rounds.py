"""Federated averaging whose last layer is retrained on virtual features."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Array, Arrays, BlockSpec, Rows, Sums
from skfedcal.training._fedavg import FedAvg, FedAvgState
from skfedcal.training._gaussian import retrained, statistics_of, virtual_features
from skfedcal.training.class_statistics import ClassMoments, ClassStatistics
from skfedcal.training.modules import module_features

if TYPE_CHECKING:
    from skfedcal.training.modules import Network

# Bound on the length of features, and their unit: with 51 bits, those of size 1 are
# exact to 5e-10. What is longer has diverged.
_FEATURE_BOUND = 2.0**20


@dataclass(frozen=True, slots=True)
class HeadState(FedAvgState):
    """State of the server, and whether the next round collects class statistics."""

    due: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class HeadRounds:
    """Rounds of training, and after some of them one for class statistics.

    Clients compute features with the parameters that the server has just averaged, so
    that all of them use one feature map, and send the sums of `ClassMoments`. The
    server draws virtual features from the class Gaussians and trains the last layer on
    them from where it is, with the steps of a client. A better solution, such as the
    closed form, does harm: with its large weights, the local training of clients with
    one class destroys the features.

    training: The rounds of training.
    head: Parameters of the virtual features: `prior`, `shrinkage`, `n_virtual`.
    every: Rounds of training before each round for statistics.
    seed: Seed of virtual features.
    """

    training: FedAvg
    head: Any
    every: int = 1
    seed: int = field(default=0, repr=False)

    @property
    def n_rounds(self) -> int:
        return self.training.n_rounds + self.training.n_rounds // self.every

    def init(self, n_classes: int) -> HeadState:
        return _with_due(self.training.init(n_classes), False)

    def broadcast(self, state: HeadState) -> Arrays:
        if not state.due:
            return self.training.broadcast(state)
        return {
            "params": state.params.astype(np.float32),
            **self._moments.broadcast(self._moments.init(self._shape[0])),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        if "scale" in broadcast:
            return self._moments.spec(broadcast)
        return self.training.spec(broadcast)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Rows:
        if "scale" not in broadcast:
            return self.training.query(broadcast, clients)
        own = clients.compact()
        features = np.zeros((0, self._shape[1]))
        if own.n_rows:
            module = self._network.load(broadcast["params"])
            device = self.training.training.device
            features = module_features(module, own.rows, device)
        return self._moments.query(broadcast, replace(own, rows=features))

    def update(self, state: HeadState, total: Sums, n_clients: int) -> HeadState:
        if not state.due:
            new = self.training.update(state, total, n_clients)
            return _with_due(new, new.rounds % self.every == 0)
        empty = self._moments.init(self._shape[0])
        stats = statistics_of(self._moments.update(empty, total, n_clients))
        if not stats.n.any():  # no client was drawn
            return replace(state, due=False)
        return replace(state, params=self._retrain(state, stats), due=False)

    def done(self, state: HeadState) -> bool:
        return not state.due and self.training.done(state)

    def _retrain(self, state: HeadState, stats: ClassStatistics) -> Array:
        """Parameters with a last layer that was trained on virtual features."""
        rng = np.random.default_rng([self.seed, state.rounds])
        rows, labels = virtual_features(
            stats,
            self.head._prior(stats),
            float(self.head.shrinkage),
            int(self.head.n_virtual) * stats.n_classes,
            rng,
        )
        client = self.training.training
        shape, where = head_layout(self._network)
        weight = slice(where["weight"], where["weight"] + shape[0] * shape[1])
        bias = slice(where["bias"], where["bias"] + shape[0])
        coef, intercept = retrained(
            state.params[weight].reshape(shape),
            state.params[bias],
            rows,
            labels,
            epochs=client.epochs,
            batch_size=client.batch_size,
            lr=client.local.lr,
            momentum=client.local.momentum,
            rng=rng,
        )
        params = state.params.copy()
        params[weight], params[bias] = coef.ravel(), intercept
        return params

    @property
    def _network(self) -> Network:
        return self.training.training.network

    @property
    def _shape(self) -> tuple[int, int]:
        """Classes and features of the last layer."""
        return head_layout(self._network)[0]

    @property
    def _moments(self) -> ClassMoments:
        return ClassMoments(self._shape[1], False, _FEATURE_BOUND, n_rounds=1)


def head_layout(network: Network) -> tuple[tuple[int, int], dict[str, int]]:
    """Shape of the last layer, and where its weight and bias begin in the parameters.

    Raises ValueError: If the last layer is not linear, has no bias, or is not trained.
    """
    from torch import nn

    head = network.head
    name = {part: name for name, part in network.module.named_modules()}.get(head)
    starts, first = {}, 0
    for own, shape in network.shapes.items():
        starts[own] = first
        first += int(np.prod(shape))
    places = [f"{name}.weight".lstrip("."), f"{name}.bias".lstrip(".")]
    if not isinstance(head, nn.Linear) or any(p not in starts for p in places):
        raise ValueError(
            f"The last layer of the module, {head!r}, cannot be replaced by a linear "
            "classifier; it must be an nn.Linear with a bias that is trained. Use "
            "head_every='end'."
        )
    where = dict(zip(("weight", "bias"), (starts[p] for p in places), strict=True))
    return (head.out_features, head.in_features), where


def _with_due(state: FedAvgState, due: bool) -> HeadState:
    values = {f.name: getattr(state, f.name) for f in fields(FedAvgState)}
    return HeadState(**values, due=due)
