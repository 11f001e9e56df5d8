"""Federated averaging as plain data: what a site that agrees to train is asked.

The request names a module that the site has itself, and numbers; no code travels. The
site trains with torch, where its policy allows it (``allow-training = true``), and
derives sizes and bounds of what it sends from the same numbers. This file needs numpy;
torch is imported when rows are trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Arrays, BlockSpec, Field, Form, Sums

if TYPE_CHECKING:
    from skfedcal.training._fedavg import FedAvg, FedAvgState

# Largest parameter; training that gets there has diverged, and float32 still holds it.
BOUND = 1e30
# Most that a site computes in a round.
_MAX_PARAMS, _MAX_LAYERS, _MAX_EPOCHS, _MAX_ROUNDS = 10_000_000, 16, 1000, 1_000_000


@dataclass(frozen=True, slots=True)
class SiteTraining:
    """Rounds of `FedAvgClassifier` over sites.

    n_features, n_classes: Size of a row, and of the output.
    hidden: Widths of hidden layers of the module 'mlp'; none for 'linear'.
    loss, proximal: Loss of a client, and strength of FedProx.
    optimizer, lr, momentum, weight_decay, epochs, batch_size: Steps of a client; a
        batch of 0 is all rows.
    seed, start_seed: Of the order in which clients visit rows, and of the first
        parameters; public.
    weighting, clip, server_lr, server_momentum, n_rounds: As in `FedAvg`.
    """

    n_features: int
    n_classes: int = 2
    hidden: tuple[int, ...] = ()
    loss: Literal["cross_entropy", "focal", "fedlc", "margin"] = "cross_entropy"
    proximal: float = 0.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int = 1
    batch_size: int = 32
    seed: int = 0
    start_seed: int = 0
    weighting: Literal["examples", "uniform"] = "examples"
    clip: float | None = None
    server_lr: float = 1.0
    server_momentum: float = 0.0
    n_rounds: int = 50

    # A policy must allow it.
    trains: ClassVar[bool] = True

    @property
    def n_params(self) -> int:
        """Numbers of the module: weights and biases of its layers."""
        widths = (self.n_features, *self.hidden, self.n_classes)
        return sum((a + 1) * b for a, b in pairwise(widths))

    def forms(self, n_classes: int) -> Iterator[Form]:
        """Broadcasts that a site accepts; ValueError for what it would not compute."""
        widths = (self.n_features, *self.hidden)
        if (
            n_classes != self.n_classes
            or not all(1 <= width <= _MAX_PARAMS for width in widths)
            or len(self.hidden) > _MAX_LAYERS
            or self.n_params > _MAX_PARAMS
        ):
            raise ValueError(
                f"a module of widths {(*widths, self.n_classes)} is not trained for "
                f"{n_classes} classes"
            )
        if not (1 <= self.epochs <= _MAX_EPOCHS and 0 <= self.batch_size <= 2**31):
            raise ValueError(
                f"{self.epochs} epochs of batches of {self.batch_size} rows are out of "
                "range"
            )
        if not (self.lr > 0 and self.proximal >= 0 and 0 <= self.momentum < 1):
            raise ValueError(
                f"lr={self.lr}, proximal={self.proximal} or momentum={self.momentum} "
                "is out of range"
            )
        yield {
            "params": Field((self.n_params,), "real", -BOUND, BOUND),
            "round": Field((), "whole", 0, _MAX_ROUNDS),
        }

    def spec(self, broadcast: Arrays) -> dict[str, BlockSpec]:
        blocks = {"update": BlockSpec((self.n_params,), clip=self.clip)}
        if self.clip is None:
            # Weight of the client, and whether it was left out.
            blocks["weight"] = BlockSpec((2,), kind="count")
        return blocks

    def init(self, n_classes: int) -> FedAvgState:
        return _fedavg(self).init(n_classes)

    def broadcast(self, state: FedAvgState) -> Arrays:
        return _fedavg(self).broadcast(state)

    def query(self, broadcast: Arrays, clients: FederatedDataset) -> Arrays:
        rows = np.ascontiguousarray(clients.rows, dtype=np.float32)
        return _fedavg(self).query(broadcast, replace(clients, rows=rows))

    def update(self, state: FedAvgState, total: Sums, n_clients: int) -> FedAvgState:
        return _fedavg(self).update(state, total, n_clients)

    def done(self, state: FedAvgState) -> bool:
        return False


@lru_cache(maxsize=4)
def _fedavg(plain: SiteTraining) -> FedAvg:
    """The algorithm of a simulation with the same numbers; imports torch."""
    from skfedcal.training import _settings
    from skfedcal.training._fedavg import FedAvg
    from skfedcal.training._local_training import ClientTraining
    from skfedcal.training._losses import Proximal
    from skfedcal.training.modules import build_network

    network = build_network(
        "mlp",
        {"hidden": plain.hidden},
        (plain.n_features,),
        plain.n_classes,
        seed=plain.start_seed,
        device="cpu",
    )
    penalty = Proximal(plain.proximal) if plain.proximal else None
    steps: Any = SimpleNamespace(
        lr=plain.lr,
        weight_decay=plain.weight_decay,
        optimizer=plain.optimizer,
        momentum=plain.momentum,
        correction=None,
    )
    training = ClientTraining(
        network,
        _settings.make_objective(plain.loss, penalty),
        _settings.make_local(steps, plain.seed),
        epochs=plain.epochs,
        batch_size=plain.batch_size or None,
        # A client must not depend on others, not even by rounding.
        cohort_size=1,
    )
    return FedAvg(
        training,
        network.flat(),
        weighting=plain.weighting,
        clip=plain.clip,
        server_lr=plain.server_lr,
        server_momentum=plain.server_momentum,
        n_rounds=plain.n_rounds,
    )


# Parameters of an estimator that sites do not have, and the value that they must have.
_FIXED = {"correction": None, "head": None, "eval_set": None, "input_shape": None}


def for_sites(
    estimator: Any,
    n_features: int,
    n_classes: int,
    *,
    n_rounds: int,
    seeds: tuple[int, int],
    weighting: Any,
    clip: float | None,
) -> SiteTraining:
    """Rounds of an estimator over sites.

    seeds: Of the order of rows, and of the first parameters.
    Raises ValueError: Naming the parameter that cannot be sent to sites.
    """
    from skfedcal.training._losses import Proximal

    def refuse(name: str, way_out: str) -> None:
        value = getattr(estimator, name)
        raise ValueError(f"{name}={value!r} cannot be used over sites: {way_out}.")

    for name, value in _FIXED.items():
        if getattr(estimator, name) is not value:
            refuse(name, "leave it out, or fit in one process")
    if estimator.module not in ("linear", "mlp"):
        refuse("module", "sites build 'linear' and 'mlp' themselves, and run no code")
    params = dict(estimator.module_params or {})
    hidden = tuple(params.pop("hidden", (512, 256, 128, 64)))
    if params or (estimator.module == "linear" and estimator.module_params):
        refuse("module_params", "only `hidden` of 'mlp' is")
    if estimator.loss not in ("cross_entropy", "focal", "fedlc", "margin"):
        refuse("loss", "pass 'cross_entropy', 'focal', 'fedlc' or 'margin'")
    penalties = estimator.penalties
    if penalties is None:
        penalties = ()
    elif not isinstance(penalties, list | tuple):
        penalties = (penalties,)
    if len(penalties) > 1 or not all(type(p) is Proximal for p in penalties):
        refuse("penalties", "pass one Proximal (FedProx), or none")
    return SiteTraining(
        n_features,
        n_classes,
        hidden=() if estimator.module == "linear" else hidden,
        loss=estimator.loss,
        proximal=float(penalties[0].mu) if penalties else 0.0,
        optimizer=estimator.optimizer,
        lr=float(estimator.lr),
        momentum=float(estimator.momentum),
        weight_decay=float(estimator.weight_decay),
        epochs=int(estimator.local_epochs),
        batch_size=int(estimator.batch_size or 0),
        seed=seeds[0],
        start_seed=seeds[1],
        weighting=weighting,
        clip=clip,
        server_lr=float(estimator.server_lr),
        server_momentum=float(estimator.server_momentum),
        n_rounds=n_rounds,
    )
