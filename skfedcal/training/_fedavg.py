"""Federated averaging as an algorithm: rows in, sums out, scores round by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from skfedcal import _numerics
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Array, Arrays, BlockSpec, Rows, Sums
from skfedcal.federation.collecting import collect
from skfedcal.federation.runner import FederatedRunner
from skfedcal.privacy.entropy import Entropy
from skfedcal.training._gaussian import retrained, statistics_of, virtual_features
from skfedcal.training._local_training import ClientTraining, class_counts
from skfedcal.training.class_statistics import ClassMoments, ClassStatistics
from skfedcal.training.modules import Network, module_features, module_logits
from skfedcal.training.site_training import BOUND


@dataclass(frozen=True, slots=True)
class FedAvgState:
    """Parameters of the server and the state of its optimiser.

    params of shape (n_params,): Parameters, in float64.
    change of shape (n_params,): Change of the parameters in the last round.
    velocity of shape (n_params,) or (0,): Momentum of the server, if it has one.
    control of shape (n_params,) or (0,): Control variate of the server, if there is
        one.
    rounds: Rounds run.
    n_diverged: Number of client updates that were left out because they were not
        finite.
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

    Unlike other algorithms it holds a torch module, and the state that clients keep
    between rounds, if any; that state is not part of the server.

    training: Local training of a client.
    start of shape (n_params,): Parameters before the first round; public.
    weighting: Weight clients by their number of rows, or equally.
    clip: L2 bound on the change that a client sends; with 'uniform' weighting only. The
        sum is then divided by the number of clients that were asked.
    server_lr, server_momentum: Step length and momentum of the server.
    n_clients: Number of all clients.
    global_counts: Rows of each class over all clients, where the objective needs it.
    start_name: Identifier of the initial parameters, for checkpoints.
    monitor: Called with the state after each round; the run stops if it returns True.
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
    # 8 MB: a step of all clients takes little longer than that of half of them, and
    # clients of unequal size wait less for each other.
    values_at_once: ClassVar[int] = 1 << 20

    def init(self, n_classes: int) -> FedAvgState:
        zeros, none = np.zeros(len(self.start)), np.zeros(0)
        return FedAvgState(
            self.start.astype(np.float64),
            zeros,
            zeros if self.server_momentum else none,
            zeros if self._corrected else none,
        )

    def broadcast(self, state: FedAvgState) -> Arrays:
        broadcast = {
            "params": state.params.astype(np.float32),
            "round": np.array(state.rounds),
        }
        if "previous_update" in self.training.objective.needs:
            broadcast["change"] = state.change.astype(np.float32)
        if self._corrected:
            broadcast["control"] = state.control.astype(np.float32)
        if self.global_counts is not None:
            broadcast["counts"] = np.array(self.global_counts, dtype=np.float32)
        return broadcast

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
        if np.array_equal(order, np.arange(len(clients))):
            answer["update"] = moved  # a copy takes as long as adding it up
        else:
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
        params = np.clip(moved, -BOUND, BOUND)
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
            steps=client.local.layer_steps,
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
    """Collect the counts of all clients in a separate round, without noise."""
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


_N_BINS = 15


@dataclass(frozen=True, slots=True)
class RoundScores:
    """Scores after one round.

    Attributes
    ----------
    round : int
        Number of the round, from 0.
    accuracy : float
        Fraction of rows whose most probable class is correct.
    log_loss : float
        Mean negative log-likelihood.
    calibration_error : float
        Expected calibration error of the most probable class in 15 bins.
    entropy : float
        Mean predictive entropy, in nats.
    variation_ratio : float
        Mean of one minus the largest probability.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.training import RoundScores
    >>> RoundScores.of(0, np.array([[2.0, 0.0], [0.0, 1.0]]), np.array([0, 0])).accuracy
    0.5
    """

    round: int
    accuracy: float
    log_loss: float
    calibration_error: float
    entropy: float
    variation_ratio: float

    @classmethod
    def of(cls, index: int, logits: Array, labels: Array) -> RoundScores:
        """Scores of logits with one column per class."""
        log_proba = _numerics.log_softmax(logits.astype(np.float64))
        proba = np.exp(log_proba)
        top = proba.max(axis=1)
        hit = proba.argmax(axis=1) == labels
        # The bins of `skfedcal.metrics`, which is in a higher layer.
        bins = np.minimum((top * _N_BINS).astype(np.intp), _N_BINS - 1)
        gaps = np.bincount(bins, weights=top - hit, minlength=_N_BINS)
        return cls(
            index,
            float(hit.mean()),
            float(-log_proba[np.arange(len(labels)), labels].mean()),
            float(np.abs(gaps).sum() / len(labels)),
            float(-(proba * log_proba).sum(axis=1).mean()),
            float(1 - top.mean()),
        )


@dataclass(slots=True)
class Monitor:
    """Score the model after each round; stop at a target accuracy.

    rows, labels: The evaluation set, which is public.
    target_accuracy: Accuracy at which the run stops.
    scores: Filled during the run.
    """

    network: Network
    rows: Array
    labels: Array
    target_accuracy: float | None = None
    device: str = "cpu"
    scores: list[RoundScores] = field(default_factory=list)

    def __call__(self, state: FedAvgState) -> bool:
        """Whether the target is reached."""
        module = self.network.load(state.params.astype(np.float32))
        logits = module_logits(module, self.rows, self.device)
        found = RoundScores.of(state.rounds - 1, logits, self.labels)
        self.scores.append(found)
        target = self.target_accuracy
        return target is not None and found.accuracy >= target
