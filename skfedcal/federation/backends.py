"""Engines that ask a cohort of clients and sum their integers, and their choice."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import reduce
from numbers import Integral
from operator import add
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation.endpoint import PartialSum, Request, timed_respond

if TYPE_CHECKING:
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.federation.roster import Operator
    from skfedcal.federation.runner import FederatedRunner

Positions = NDArray[np.int64]


class Backend(Protocol):
    """Interface of an engine, which reaches clients and sums their answers.

    An engine that reaches clients by messages sends the request to each of them, lets
    each call `respond` on its own rows, and adds up the replies. Integer sums make all
    engines agree to the last bit. In a simulation where clients draw seeded noise,
    `respond` also needs their positions.

    What `total` returns is an opened sum: an engine refuses one of fewer clients than
    ``request.n_min`` (`Request.check_clients`), and one that masks replies never opens
    it.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import (
    ...     FederatedDataset, FederatedRunner, FedTempCalibrator, make_federation)
    >>> from skfedcal.federation import respond
    >>> class OneByOne:
    ...     def __init__(self, clients):
    ...         self.clients = clients
    ...     def ids(self):
    ...         return self.clients.names
    ...     def total(self, request, cohort):
    ...         parts = [respond(request, self.clients.slice(i, i + 1)) for i in cohort]
    ...         return sum(parts[1:], parts[0])
    >>> fed = make_federation(n_clients=20, n_samples=500, random_state=0)
    >>> offsets = np.searchsorted(fed.client_ids, np.arange(21))
    >>> clients = FederatedDataset(fed.logits, fed.labels, offsets, range(20), 10)
    >>> runner = FederatedRunner(backend=OneByOne(clients))
    >>> own = FedTempCalibrator(runner=runner).fit(fed.clients)
    >>> own.temperature_ == FedTempCalibrator().fit(fed.clients).temperature_
    True
    """

    def ids(self) -> Sequence[Hashable]:
        """Names of the clients that can be asked."""

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        """Sum of the answers of the clients at these positions of `ids`."""


@dataclass(frozen=True, slots=True)
class InProcess:
    """All clients in one array, asked in one vectorised call.

    `first` is the position of the first client, where this engine has a part of them.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FederatedDataset
    >>> from skfedcal.federation import InProcess
    >>> rows, labels = np.zeros((6, 2)), np.zeros(6, dtype=int)
    >>> clients = FederatedDataset(rows, labels, np.arange(7), range(6), n_classes=2)
    >>> len(InProcess(clients).ids())
    6
    """

    clients: FederatedDataset
    first: int = 0

    def ids(self) -> Sequence[Hashable]:
        return self.clients.names

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        part = self.clients.select(cohort)
        request.check_clients(part.n_clients)
        return timed_respond(request, part, cohort + self.first)


@dataclass(frozen=True, slots=True)
class Joblib:
    """Clients shared out over threads (numpy releases the lock) or processes.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FederatedDataset
    >>> from skfedcal.federation import Joblib
    >>> rows, labels = np.zeros((6, 2)), np.zeros(6, dtype=int)
    >>> clients = FederatedDataset(rows, labels, np.arange(7), range(6), n_classes=2)
    >>> len(Joblib(clients, n_jobs=2).ids())
    6
    """

    clients: FederatedDataset
    n_jobs: int = -1
    prefer: Literal["threads", "loky"] = "threads"

    def ids(self) -> Sequence[Hashable]:
        return self.clients.names

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        from joblib import Parallel, delayed, effective_n_jobs

        request.check_clients(len(cohort))
        if not isinstance(self.n_jobs, Integral | None) or self.n_jobs == 0:
            raise ValueError(f"n_jobs={self.n_jobs!r}: pass a non-zero integer.")
        n_parts = max(1, min(len(cohort), effective_n_jobs(self.n_jobs)))
        parts = np.array_split(cohort, n_parts)
        backend = "threading" if self.prefer == "threads" else "loky"
        answers = Parallel(n_jobs=self.n_jobs, backend=backend)(
            delayed(timed_respond)(request, self._part(part), part) for part in parts
        )
        return reduce(add, answers)

    def _part(self, cohort: Positions) -> FederatedDataset:
        part = self.clients.select(cohort)
        return part if self.prefer == "threads" else part.compact()


def check_engine(engine: Any, name: str) -> None:
    """Raise TypeError unless `engine` is a transport or a backend."""
    if isinstance(engine, type) or not hasattr(engine, "ids"):
        raise TypeError(
            f"{name}={engine!r} is of type {type(engine).__name__}; pass a transport "
            "such as InProcessTransport, or a backend."
        )


def engine_of(
    runner: FederatedRunner, clients: FederatedDataset | RemoteDataset | Backend
) -> Backend:
    """Engine for clients in this process, or for those that are elsewhere.

    Raises ValueError: If the engine of the runner has other clients, or does not mask
        as asked.
    """
    if isinstance(clients, FederatedDataset):
        return _local(runner, clients)
    remote = getattr(clients, "engine", None)
    if remote is not None:
        out: Backend = remote(runner)
        return out
    return masking(clients, runner.secure)


def masking(engine: Any, secure: bool, operator: Operator | None = None) -> Backend:
    """Engine from a transport or an engine, which masks if asked to."""
    if hasattr(engine, "call") and not hasattr(engine, "total"):
        from skfedcal.federation.messages import MessageBackend

        return MessageBackend(engine, secure=secure, operator=operator)
    if secure and not getattr(engine, "secure", False):
        raise ValueError(
            f"FederatedRunner(secure=True), but {engine!r} does not mask what clients "
            "send. Pass a Transport, or MessageBackend(transport, secure=True)."
        )
    out: Backend = engine
    return out


def _local(runner: FederatedRunner, clients: FederatedDataset) -> Backend:
    backend, n_jobs = runner.backend, runner.n_jobs
    if backend is None or isinstance(backend, str):
        if runner.secure:
            from skfedcal.federation.messages import InProcessTransport, MessageBackend

            n_threads = n_jobs if backend is None else n_jobs or -1
            transport = InProcessTransport(clients, n_jobs=n_threads)
            return MessageBackend(transport, secure=True, simulate=True)
        if isinstance(backend, str):
            return Joblib(clients, n_jobs or -1, backend)
        return InProcess(clients) if n_jobs in (None, 1) else Joblib(clients, n_jobs)
    engine = masking(backend, runner.secure)
    # Noise is planned for the clients at hand; an engine with others would be under a
    # guarantee that is not true.
    if list(engine.ids()) != list(clients.names):
        raise ValueError(
            f"The engine reaches {len(engine.ids())} clients, which are not the "
            f"{len(clients)} clients that were passed."
        )
    return engine
