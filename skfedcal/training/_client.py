"""One round at the clients: from the server's parameters to what each has learnt."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from skfedcal.algorithms._base import Array, Arrays
from skfedcal.data._dataset import FederatedDataset
from skfedcal.training._context import Context
from skfedcal.training._correction import Scaffold
from skfedcal.training._local import Batches, LocalSGD
from skfedcal.training._memory import ClientMemory
from skfedcal.training._network import Network
from skfedcal.training._objective import Objective
from skfedcal.training._schedule import make_steps
from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import Tensor

Names = Sequence[Hashable]


@dataclass(frozen=True, slots=True)
class Trained:
    """What clients have after a round.

    Attributes
    ----------
    moved : ndarray of shape (n_clients, n_params)
        Change of the parameters, in float64; 0 where it is not finite.
    finite : ndarray of shape (n_clients,)
        Whether training ended in finite numbers.
    steered : ndarray of shape (n_clients, n_params) or None
        Change of the control variate, where there is one.
    """

    moved: Array
    finite: Array
    steered: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClientTraining:
    """What a client does in a round; each client sees its own rows only.

    Parameters
    ----------
    network : Network
        The model.
    objective : Objective
        What is minimised.
    local : LocalSGD
        How.
    epochs : int, default=1
        Passes over the rows.
    batch_size : int, default=32
        Rows of one step; None is all rows of a client.
    correction : Scaffold, default=None
        Correction of the drift between clients.
    cohort_size : int, default=1
        Clients that are trained in one call; the result is the same.
    device : str, default='cpu'
        Where.
    memory : ClientMemory, default=None
        What clients keep from round to round; needed where `remembers`.
    """

    network: Network
    objective: Objective
    local: LocalSGD
    epochs: int = 1
    batch_size: int | None = 32
    correction: Scaffold | None = None
    cohort_size: int = field(default=1, repr=False)
    device: str = "cpu"
    memory: ClientMemory | None = field(default=None, repr=False)

    @property
    def remembers(self) -> bool:
        """Whether clients keep something from round to round."""
        return self.correction is not None or self._needs_previous

    @property
    def _needs_previous(self) -> bool:
        return bool(self.objective.needs & {"previous_params", "previous_features"})

    def run(self, told: Arrays, clients: FederatedDataset, order: Array) -> Trained:
        """Train the clients at the positions `order`, those with most rows first.

        Parameters
        ----------
        told : mapping of str to ndarray
            Broadcast of the server: `params`, `round`; `change`, `control` and
            `counts` where they are needed.
        clients : FederatedDataset
            Rows are float32, or int64 for a network that takes tokens.
        order : ndarray
            Positions of clients that have rows.
        """
        names = [clients.names[i] for i in order]
        local = replace(self.local, seed=(*self.local.seed, int(told["round"])))
        batches = self._batches(clients, order, names, local.seed)
        start = self._tensor(told["params"])
        control = own = shift = None
        if self.correction is not None:
            control = self._tensor(told["control"])
            own = self._memory.recall("control", names, start.new_zeros(start.shape))
            shift = self.correction.shift(control, own)
        with self.network.own() as network:
            ends = local.train(
                self.objective,
                network,
                start,
                batches,
                self._context(network, told, class_counts(clients)[order], names),
                shift=shift,
                cohort_size=self.cohort_size,
            )
        moved, finite = _difference(ends, told["params"])
        if self._needs_previous:
            self._memory.keep("params", _where(names, finite), ends[finite])
        steered = None
        if self.correction is not None and control is not None and own is not None:
            new = self.correction.renewed(
                control,
                own,
                self._tensor(moved.astype(np.float32)),
                batches.n_steps.to(self.device),
                local.step_length,
            )
            new[~finite] = own[~finite]
            self._memory.keep("control", names, new)
            steered = (new.double() - own.double()).cpu().numpy()
        return Trained(moved, finite, steered)

    def _batches(
        self,
        clients: FederatedDataset,
        order: Array,
        names: Names,
        seed: tuple[int, ...],
    ) -> Batches:
        torch = import_torch()
        steps = make_steps(
            clients.sizes[order],
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=seed,
        )
        starts = np.repeat(clients.offsets[order], steps.n_steps)
        packed = steps.rows + starts[:, None]
        rows = packed if clients.order is None else clients.order[packed]
        values = clients.rows
        if not values.flags.writeable:  # torch has no tensors that are read only
            values = values.copy()
        return Batches(
            torch.from_numpy(values),
            torch.from_numpy(rows),
            torch.from_numpy(clients.labels[packed].astype(np.int64)),
            torch.from_numpy(steps.mask),
            torch.from_numpy(steps.first),
            torch.from_numpy(steps.n_steps),
            names,
            self.device,
        )

    def _context(
        self, network: Network, told: Arrays, counts: Array, names: Names
    ) -> Context:
        start = self._tensor(told["params"])
        extra = {"change", "counts"} & told.keys()
        shared = {key: self._tensor(told[key]) for key in extra}
        previous = None
        if self._needs_previous:
            kept = self._memory.recall("params", names, start)
            previous = network.unflatten(kept)
        change = shared.get("change")
        return Context(
            counts=self._tensor(counts.astype(np.float32)),
            global_counts=shared.get("counts"),
            global_params=network.unflatten(start),
            previous_params=previous,
            previous_update=None if change is None else network.unflatten(change),
        )

    @property
    def _memory(self) -> ClientMemory:
        if self.memory is None:
            raise ValueError("Clients keep something from round to round: pass memory.")
        return self.memory

    def _tensor(self, values: Array) -> Tensor:
        return import_torch().as_tensor(values, device=self.device)


def class_counts(clients: FederatedDataset) -> Array:
    """Rows of each class at each client."""
    start, stop = clients.offsets[0], clients.offsets[-1]
    owner = np.repeat(np.arange(len(clients)), clients.sizes)
    cells = owner * clients.n_classes + clients.labels[start:stop]
    counts = np.bincount(cells, minlength=len(clients) * clients.n_classes)
    return counts.reshape(len(clients), clients.n_classes)


def _difference(ends: Tensor, start: Array) -> tuple[Array, Array]:
    """How far each client moved, in float64, and whether that is finite; 0 if not."""
    moved = np.subtract(ends.cpu().numpy(), start, dtype=np.float64)
    # The sum of finite float32 numbers is finite in float64.
    finite = np.isfinite(moved.sum(axis=1))
    if not finite.all():
        moved[~finite] = 0.0
    return moved, finite


def _where(names: Names, keep: Array) -> list[Hashable]:
    return [name for name, kept in zip(names, keep.tolist(), strict=True) if kept]
