"""Training at clients: batches, gradients, corrections, client state.

- State that a client keeps between rounds.
- Gradient steps at clients (SGD, Adam), one by one or a cohort at once.
- One round at the clients: from the server's parameters to the clients' updates.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import FrozenParams
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Arrays
from skfedcal.training._objective import Context, Objective
from skfedcal.training.modules import Network, import_torch

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Steps:
    """Rows of every step of some clients, client after client.

    rows of shape (n_batches, batch_size): Places among the client's own rows; padding
        repeats its first row.
    mask of shape (n_batches, batch_size): 1 for rows that count, 0 for padding.
    first, n_steps of shape (n_clients,): Where the batches of each client begin, and
        how many it has.
    """

    rows: Array
    mask: Array
    first: Array
    n_steps: Array


def make_steps(
    sizes: Array,
    *,
    epochs: int,
    batch_size: int | None,
    seed: tuple[int, ...],
) -> Steps:
    """Draw the order in which clients visit their rows.

    It depends on the seed and the number of rows only, not on the order of clients or
    on which other clients take part.

    sizes of shape (n_clients,): Rows of each client.
    epochs: Passes over the rows.
    batch_size: Rows of one step; None is all rows of a client.
    seed: Seed of the run and number of the round.
    """
    largest = int(sizes.max(initial=1))
    width = largest if batch_size is None else min(batch_size, largest)
    n_steps = epochs * -(-sizes // width)
    first = np.cumsum(n_steps) - n_steps
    rows = np.zeros((int(n_steps.sum()), width), dtype=np.int64)
    mask = np.zeros(rows.shape, dtype=np.float32)
    for size in np.unique(sizes):
        rng = np.random.default_rng([*seed, int(size)])
        visits = np.zeros((epochs, -(-int(size) // width) * width), dtype=np.int64)
        for epoch in range(epochs):
            visits[epoch, :size] = rng.permutation(int(size))
        there = np.tile(np.arange(visits.shape[1]) < size, (epochs, 1))
        visits, there = visits.reshape(-1, width), there.reshape(-1, width)
        own = first[sizes == size, None] + np.arange(len(visits))
        rows[own], mask[own] = visits, there
    return Steps(rows, mask, first, n_steps)


class ClientMemory:
    """Vectors that stay at clients, by the client's name.

    In a deployment each site has one, with its own entries. A simulation keeps those of
    all clients here: it is not part of the server's state, and is neither sent nor
    saved.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Hashable], Tensor] = {}

    def __repr__(self) -> str:
        return "ClientMemory()"

    def __reduce__(self) -> str:
        raise TypeError(
            "The state that clients keep between rounds cannot be sent to another "
            "process, where it would be lost. Use threads: "
            "FederatedRunner(backend='threads')."
        )

    def recall(self, kind: str, names: Sequence[Hashable], new: Tensor) -> Tensor:
        """Vectors of these clients, stacked; `new` for one that has none."""
        import torch

        return torch.stack([self._kept.get((kind, name), new) for name in names])

    def keep(self, kind: str, names: Sequence[Hashable], values: Tensor) -> None:
        """Replace the vectors of these clients."""
        for name, value in zip(names, values, strict=True):
            self._kept[kind, name] = value.clone()


@dataclass(frozen=True)
class Scaffold(FrozenParams):
    """Control variates of clients and server (SCAFFOLD, option II).

    A client adds ``c - c_k`` to each gradient and then sets
    ``c_k <- c_k - c + (w - w_k) / (S_k lr')`` after its S_k steps, where
    ``lr' = lr / (1 - momentum)`` is the effective step length. The server adds the sum
    of the changes of all c_k, divided by the number of all clients, to c. In the first
    round all of them are 0, and it is plain federated averaging.

    A client keeps c_k from round to round. It is a second message of the size of the
    model, so that it is not supported under privacy.

    References
    ----------
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
    Learning", ICML 2020, Algorithm 1.

    Examples
    --------
    >>> from skfedcal.training import FedAvgClassifier, Scaffold
    >>> FedAvgClassifier(correction=Scaffold()).correction
    Scaffold()
    """

    def shift(self, control: Tensor, own: Tensor) -> Tensor:
        """Term of each client's gradients."""
        return control - own

    def renewed(
        self,
        control: Tensor,
        own: Tensor,
        moved: Tensor,
        n_steps: Tensor,
        step_length: float,
    ) -> Tensor:
        """Control variates of clients that moved by ``w_k - w`` in `n_steps`."""
        return own - control - moved / (n_steps[:, None] * step_length)


# torch has one generator for all threads.
_GENERATOR = Lock()


@dataclass(frozen=True, slots=True)
class Batches:
    """Rows of every step of a cohort, clients with the most steps first.

    x of shape (n_rows, ...): Inputs of all clients.
    rows, y, mask of shape (n_batches, batch_size): Places in `x`, labels, and 1 for
        rows that count, 0 for padding.
    first, n_steps of shape (n_clients,): Where the batches of each client begin, and
        how many it has.
    names: Names of the clients.
    device: Where batches go.
    """

    x: Tensor
    rows: Tensor
    y: Tensor
    mask: Tensor
    first: Tensor
    n_steps: Tensor
    names: Sequence[Hashable]
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.first)

    def part(self, start: int, stop: int) -> Batches:
        """Clients `start` to `stop`."""
        where = slice(start, stop)
        return replace(
            self,
            first=self.first[where],
            n_steps=self.n_steps[where],
            names=[self.names[i] for i in range(start, min(stop, len(self)))],
        )

    def take(self, where: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, labels and mask of the batches, or parts of them, at `where`."""
        parts = (self.x[self.rows[where]], self.y[where], self.mask[where])
        return tuple(part.to(self.device) for part in parts)  # type: ignore[return-value]


class _Slopes:
    """Gradients of clients that are stacked, each at its own parameters.

    value: Objective of one client.
    dims: Axis of the clients in each argument.
    """

    def __init__(self, value: Callable[..., Tensor], dims: tuple[Any, ...]) -> None:
        from torch.func import grad, vmap

        self._values = vmap(value, in_dims=dims, randomness="different")
        self._slopes = vmap(grad(value), in_dims=dims, randomness="different")
        self._plain = True

    def __call__(self, flat: Tensor, *given: Any) -> Tensor:
        if self._plain:
            try:
                # Of the sum, to which each client adds a term of its own parameters:
                # half the time of a gradient inside of vmap at small modules.
                at = flat.detach().requires_grad_()
                values = self._values(at, *given)
                return import_torch().autograd.grad(values.sum(), at)[0]
            except RuntimeError:
                # Some operations, such as an LSTM, are split into ones that vmap knows
                # inside of a gradient only; another error is raised there again.
                self._plain = False
        out: Tensor = self._slopes(flat, *given)
        return out


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """Steps of a client from the parameters of the server.

    lr: Step length.
    momentum, weight_decay: As in ``torch.optim.SGD``; momentum starts anew in each
        round.
    seed: Seed of dropout and the like.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    # Not shown: a run without a seed is the same run when it is taken up again.
    seed: tuple[int, ...] = field(default=(), repr=False)

    @property
    def step_length(self) -> float:
        """Effective step length: total movement by a unit gradient."""
        return self.lr / (1 - self.momentum)

    def layer_steps(self, layer: Array) -> Callable[[Array], None]:
        """Return the steps of a layer by its gradients, in numpy and in place."""
        velocity = np.zeros_like(layer)

        def step(gradient: Array) -> None:
            nonlocal layer, velocity
            velocity *= self.momentum
            velocity += gradient
            layer -= self.lr * velocity

        return step

    def train(
        self,
        objective: Objective,
        network: Network,
        start: Tensor,
        batches: Batches,
        ctx: Context,
        *,
        shift: Tensor | None = None,
        cohort_size: int,
    ) -> Tensor:
        """Return the parameters of each client after its steps.

        objective: Objective that is minimised.
        network: Owned by the caller.
        start of shape (n_params,): Where every client begins.
        batches: Batches of each client.
        ctx: Entries of single clients are stacked.
        shift of shape (n_clients, n_params): Added to each gradient.
        cohort_size: Clients that are trained in one call.
        """
        torch = import_torch()
        value = partial(objective.value, network)
        ends = []
        for first in range(0, len(batches), cohort_size):
            stop = min(first + cohort_size, len(batches))
            part, own = batches.part(first, stop), ctx.part(slice(first, stop))
            added = None if shift is None else shift[first:stop]
            with self._seeded(network, part.names):
                if stop - first == 1:
                    added = None if added is None else added[0]
                    given = part, own.part(0), added
                    ends.append(self._one(objective, network, start, *given)[None])
                else:
                    ends.append(self._many(value, start, part, own, added))
        return torch.cat(ends) if ends else start.new_zeros((0, len(start)))

    def _many(
        self, value: Any, start: Tensor, data: Batches, ctx: Context, shift: Any
    ) -> Tensor:
        """Train a cohort in lockstep; clients that are done drop out at the end."""
        flat = start.repeat(len(data), 1)
        state = self._new_state(flat)
        slopes = _Slopes(value, (0, 0, 0, 0, ctx.batch_dims()))
        steps = np.sort(data.n_steps.numpy())
        for step in range(int(steps[-1])):
            live = len(steps) - int(np.searchsorted(steps, step, side="right"))
            on = slice(live)
            batch = data.take(data.first[on] + step)
            gradient = slopes(flat[on], *batch, ctx.part(on))
            if shift is not None:
                gradient = gradient + shift[on]
            self._step(flat[on], gradient, [part[on] for part in state], step + 1)
        return flat

    def _one(
        self,
        objective: Objective,
        network: Network,
        start: Tensor,
        data: Batches,
        ctx: Context,
        shift: Any,
    ) -> Tensor:
        """Train a single client, without padding."""
        torch = import_torch()
        flat = start.clone()
        state = self._new_state(start)
        first, last = int(data.first[0]), int(data.first[0] + data.n_steps[0])
        sizes = data.mask[first:last].sum(dim=1).long().tolist()
        with network.bound(flat) as params:
            leaves = list(params.values())
            for step, size in enumerate(sizes):
                batch = data.take((first + step, slice(size)))
                value = objective.value_at(network, params, *batch, ctx)
                # Zeros for what the batch did not use.
                parts = torch.autograd.grad(value, leaves, materialize_grads=True)
                gradient = torch.cat([part.reshape(-1) for part in parts])
                if shift is not None:
                    gradient = gradient + shift
                self._step(flat, gradient, state, step + 1)
        return flat

    def _new_state(self, flat: Tensor) -> list[Tensor]:
        """State of the optimiser at the start of a round."""
        return [flat.new_zeros(flat.shape)] if self.momentum else []

    def _step(
        self, flat: Tensor, gradient: Tensor, state: list[Tensor], number: int
    ) -> None:
        """Change `flat` and `state` in place; `number` counts steps from 1."""
        if self.weight_decay:
            gradient = gradient.add(flat, alpha=self.weight_decay)
        if state:
            gradient = state[0].mul_(self.momentum).add_(gradient)
        flat.sub_(gradient, alpha=self.lr)

    @contextmanager
    def _seeded(self, network: Network, names: Sequence[Hashable]) -> Iterator[None]:
        """Seed torch for these clients only, and restore its state afterwards."""
        if not network.random:
            yield
            return
        torch = import_torch()
        key = blake2b(repr(list(names)).encode(), digest_size=8).digest()
        stream = np.random.SeedSequence([*self.seed, int.from_bytes(key)])
        with _GENERATOR, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream.generate_state(1, np.uint64)[0] >> 1))
            yield


# Decay of the mean square of gradients, and what is added to its root.
_SQUARE_DECAY, _ROOT_FLOOR = 0.999, 1e-8


@dataclass(frozen=True, slots=True)
class LocalAdam(LocalSGD):
    """Adam at a client, with the defaults of ``torch.optim.Adam``.

    Both averages start at zero in each round: a client keeps nothing between rounds,
    and nothing but its parameters is averaged.

    momentum: Decay of the mean gradient (the first beta).
    """

    momentum: float = 0.9

    def layer_steps(self, layer: Array) -> Callable[[Array], None]:
        """Return the steps of a layer by its gradients, in numpy and in place."""
        state = [np.zeros_like(layer), np.zeros_like(layer)]
        numbers = count(1)
        return lambda gradient: self._move(layer, gradient, state, next(numbers))

    def _new_state(self, flat: Tensor) -> list[Tensor]:
        return [flat.new_zeros(flat.shape), flat.new_zeros(flat.shape)]

    def _step(
        self, flat: Tensor, gradient: Tensor, state: list[Tensor], number: int
    ) -> None:
        if self.weight_decay:
            gradient = gradient.add(flat, alpha=self.weight_decay)
        self._move(flat, gradient, state, number)

    def _move(self, flat: Any, gradient: Any, state: list[Any], number: int) -> None:
        """One step, of arrays or tensors (Kingma and Ba, Algorithm 1)."""
        mean, square = state
        mean *= self.momentum
        mean += (1 - self.momentum) * gradient
        square *= _SQUARE_DECAY
        square += (1 - _SQUARE_DECAY) * gradient**2
        root = (square / (1 - _SQUARE_DECAY**number)) ** 0.5 + _ROOT_FLOOR
        flat -= self.lr / (1 - self.momentum**number) * mean / root


Names = Sequence[Hashable]


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of the local training of clients.

    moved of shape (n_clients, n_params): Change of the parameters, in float64; 0 where
        it is not finite.
    finite of shape (n_clients,): Whether training ended in finite numbers.
    steered of shape (n_clients, n_params) or None: Change of the control variate, where
        there is one.
    """

    moved: Array
    finite: Array
    steered: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ClientTraining:
    """Local training of a client in a round, on its own rows only.

    objective: Objective that is minimised.
    epochs: Passes over the rows.
    batch_size: Rows of one step; None is all rows of a client.
    correction: Correction of client drift.
    cohort_size: Clients that are trained in one call; the result is the same.
    memory: State that clients keep between rounds; needed if `remembers`.
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
        """Whether clients keep state between rounds."""
        return self.correction is not None or self._needs_previous

    @property
    def _needs_previous(self) -> bool:
        return bool(self.objective.needs & {"previous_params", "previous_features"})

    def run(
        self, broadcast: Arrays, clients: FederatedDataset, order: Array
    ) -> Trained:
        """Train the clients at the positions `order`, those with most rows first.

        broadcast: Broadcast of the server: `params`, `round`; `change`, `control` and
            `counts` where they are needed.
        clients: Rows are float32, or int64 for a network that takes tokens.
        order: Positions of clients that have rows.
        """
        names = [clients.names[i] for i in order]
        local = replace(self.local, seed=(*self.local.seed, int(broadcast["round"])))
        batches = self._batches(clients, order, names, local.seed)
        start = self._tensor(broadcast["params"])
        control = own = shift = None
        if self.correction is not None:
            control = self._tensor(broadcast["control"])
            own = self._memory.recall("control", names, start.new_zeros(start.shape))
            shift = self.correction.shift(control, own)
        with self.network.own() as network:
            ends = local.train(
                self.objective,
                network,
                start,
                batches,
                self._context(network, broadcast, class_counts(clients)[order], names),
                shift=shift,
                cohort_size=self.cohort_size,
            )
        moved, finite = _difference(ends, broadcast["params"])
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
        self, network: Network, broadcast: Arrays, counts: Array, names: Names
    ) -> Context:
        start = self._tensor(broadcast["params"])
        extra = {"change", "counts"} & broadcast.keys()
        shared = {key: self._tensor(broadcast[key]) for key in extra}
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
            raise ValueError("Clients keep state between rounds: pass memory.")
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
    """Update of each client, in float64, and whether it is finite; 0 if not."""
    moved = np.subtract(ends.cpu().numpy(), start, dtype=np.float64)
    # The sum of finite float32 numbers is finite in float64.
    finite = np.isfinite(moved.sum(axis=1))
    if not finite.all():
        moved[~finite] = 0.0
    return moved, finite


def _where(names: Names, keep: Array) -> list[Hashable]:
    return [name for name, kept in zip(names, keep.tolist(), strict=True) if kept]
