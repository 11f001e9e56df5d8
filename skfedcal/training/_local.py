"""Stochastic gradient descent at clients, one by one or a cohort at once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal.training._torch import import_torch

if TYPE_CHECKING:
    from torch import Tensor

    from skfedcal.training._context import Context
    from skfedcal.training._network import Network
    from skfedcal.training._objective import Objective

# torch has one generator for all threads.
_GENERATOR = Lock()


@dataclass(frozen=True, slots=True)
class Batches:
    """Rows of every step of a cohort, clients with the most steps first.

    Parameters
    ----------
    x : Tensor of shape (n_rows, ...)
        Inputs of all clients.
    rows, y, mask : Tensor of shape (n_batches, batch_size)
        Places in `x`, labels, and 1 for rows that count, 0 for padding.
    first, n_steps : Tensor of shape (n_clients,)
        Where the batches of each client begin, and how many it has.
    names : sequence
        Names of the clients.
    device : str, default='cpu'
        Where batches go.
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


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """Steps of a client from the parameters of the server.

    Parameters
    ----------
    lr : float
        Step length.
    momentum, weight_decay : float, default=0.0
        As in ``torch.optim.SGD``; momentum starts anew in each round.
    seed : tuple of int, default=()
        Seed of dropout and the like.
    """

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    # Not shown: a run without a seed is the same run when it is taken up again.
    seed: tuple[int, ...] = field(default=(), repr=False)

    @property
    def step_length(self) -> float:
        """How far a unit gradient moves the parameters in the end."""
        return self.lr / (1 - self.momentum)

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

        Parameters
        ----------
        objective : Objective
            What is minimised.
        network : Network
            Owned by the caller.
        start : Tensor of shape (n_params,)
            Where every client begins.
        batches : Batches
            What each client sees.
        ctx : Context
            Entries of single clients are stacked.
        shift : Tensor of shape (n_clients, n_params), default=None
            Added to each gradient.
        cohort_size : int
            Clients that are trained in one call.
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
                    ends.append(self._one(value, start, part, own.part(0), added)[None])
                else:
                    ends.append(self._many(value, start, part, own, added))
        return torch.cat(ends) if ends else start.new_zeros((0, len(start)))

    def _many(
        self, value: Any, start: Tensor, data: Batches, ctx: Context, shift: Any
    ) -> Tensor:
        """Train a cohort in lockstep; clients that are done drop out at the end."""
        from torch.func import grad, vmap

        flat = start.repeat(len(data), 1)
        velocity = flat.new_zeros(flat.shape) if self.momentum else None
        dims = (0, 0, 0, 0, ctx.batch_dims())
        slope = vmap(grad(value), in_dims=dims, randomness="different")
        steps = np.sort(data.n_steps.numpy())
        for step in range(int(steps[-1])):
            live = len(steps) - int(np.searchsorted(steps, step, side="right"))
            on = slice(live)
            batch = data.take(data.first[on] + step)
            gradient = slope(flat[on], *batch, ctx.part(on))
            self._step(flat[on], gradient, _at(velocity, on), _at(shift, on))
        return flat

    def _one(
        self, value: Any, start: Tensor, data: Batches, ctx: Context, shift: Any
    ) -> Tensor:
        """Train a single client, without padding."""
        torch = import_torch()
        flat = start.clone().requires_grad_()
        velocity = torch.zeros_like(start) if self.momentum else None
        first, last = int(data.first[0]), int(data.first[0] + data.n_steps[0])
        sizes = data.mask[first:last].sum(dim=1).long().tolist()
        for place, size in enumerate(sizes, first):
            batch = data.take((place, slice(size)))
            (gradient,) = torch.autograd.grad(value(flat, *batch, ctx), flat)
            with torch.no_grad():
                self._step(flat, gradient, velocity, shift)
        return flat.detach()

    def _step(self, flat: Tensor, gradient: Tensor, velocity: Any, shift: Any) -> None:
        """Change `flat` and `velocity` in place."""
        if self.weight_decay:
            gradient = gradient.add(flat, alpha=self.weight_decay)
        if shift is not None:
            gradient = gradient + shift
        if velocity is not None:
            gradient = velocity.mul_(self.momentum).add_(gradient)
        flat.sub_(gradient, alpha=self.lr)

    @contextmanager
    def _seeded(self, network: Network, names: Sequence[Hashable]) -> Iterator[None]:
        """Let torch draw from a stream of these clients, and nobody else's."""
        if not network.random:
            yield
            return
        torch = import_torch()
        key = blake2b(repr(list(names)).encode(), digest_size=8).digest()
        stream = np.random.SeedSequence([*self.seed, int.from_bytes(key)])
        with _GENERATOR, torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream.generate_state(1, np.uint64)[0] >> 1))
            yield


def _at(value: Tensor | None, where: slice) -> Tensor | None:
    return None if value is None else value[where]
