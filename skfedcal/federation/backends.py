"""Engines that ask a cohort of clients and sum their integers, and their choice.

- Engines over clients in this process, and which one a runner takes.
- Executors of work on shards: this process, processes, dask, ray or your own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from numbers import Integral
from operator import add
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from skfedcal._params import check_integer
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation.endpoint import PartialSum, Request, timed_respond

if TYPE_CHECKING:
    from skfedcal.federation.remote import RemoteDataset
    from skfedcal.federation.roster import Operator
    from skfedcal.federation.runner import Draw, FederatedRunner

Positions = NDArray[np.int64]
Task = TypeVar("Task")
Result = TypeVar("Result")


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


@runtime_checkable
class DrawingBackend(Protocol):
    """Engine whose workers find the members of a cohort, by the rule of the draw."""

    def digests(self) -> list[str]:
        """Fingerprints of what the workers hold."""

    def total_drawn(self, request: Request, cohort: Draw) -> PartialSum:
        """Sum of the answers of the members."""


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
        positions = cohort + self.first if self.first else cohort
        return timed_respond(request, part, positions)


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


# Executors of work on shards. A task may be run again: its result is the same to the
# last bit, and function, tasks and results are small.


class ShardExecutor(Protocol):
    """Interface of an executor: runs a function on tasks, on any machine.

    An executor may also say how many tasks it runs at once, as ``n_workers``.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with ThreadPoolExecutor(2) as executor:
    ...     sum(executor.map(len, ["ab", "c"]))
    3
    """

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterable[Result]:
        """Call the function with each task; results may come in any order."""


def as_executor(executor: Any) -> ShardExecutor:
    """Executor from what a user passes to `ShardedClients`."""
    if executor is None:
        return _Serial()
    if isinstance(executor, str) and executor == "ray":
        return _Ray()
    if isinstance(executor, int) and not isinstance(executor, bool):
        return _Joblib(executor)
    # A client of dask has a map of its own, which returns futures.
    if hasattr(executor, "nthreads") and hasattr(executor, "submit"):
        return _Dask(executor)
    if isinstance(executor, type) or not callable(getattr(executor, "map", None)):
        raise TypeError(
            f"executor={executor!r} is of type {type(executor).__name__}; pass None, a "
            "number of processes, a dask Client, 'ray', or an object with "
            "map(function, tasks) such as those of concurrent.futures."
        )
    out: ShardExecutor = executor
    return out


@contextmanager
def open_executor(text: str | None) -> Iterator[Any]:
    """Executor of the command line: a number of processes, 'ray' or an address of dask.

    Raises ValueError: For anything else.
    """
    if text is None or text == "ray":
        yield text
    elif text.isdecimal():
        yield check_integer("workers", int(text), 1)
    elif "://" in text:
        with _import_dask().Client(text, set_as_default=False) as client:
            yield client
    else:
        raise ValueError(
            f"workers={text!r}: pass a number of processes, 'ray', or the address of a "
            "dask scheduler such as tcp://host:8786."
        )


def count_workers(executor: ShardExecutor) -> int:
    """Tasks that are run at once, as far as the executor says."""
    found = getattr(executor, "n_workers", getattr(executor, "_max_workers", 1))
    return max(1, int(found))


class _Serial:
    """Work in this process."""

    n_workers = 1

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterable[Result]:
        return map(function, tasks)


class _Joblib:
    """Processes of joblib, or what ``joblib.parallel_config`` names instead."""

    def __init__(self, n_jobs: int) -> None:
        if n_jobs == 0:
            raise ValueError("executor=0: pass a number of processes, or -1.")
        self._n_jobs = n_jobs

    @property
    def n_workers(self) -> int:
        from joblib import effective_n_jobs

        return int(effective_n_jobs(self._n_jobs))

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterable[Result]:
        from joblib import Parallel, delayed

        pool = Parallel(n_jobs=self._n_jobs, batch_size=1)
        found: Iterable[Result] = pool(delayed(function)(task) for task in tasks)
        return found


class _Dask:
    """Workers of a dask cluster; a task goes where that of its number was first run.

    It depends on the result of that one, and dask runs it where that is. Addresses of
    workers would do the same, but a task that waits for an address is not run again if
    all workers are lost and others take their place.
    """

    def __init__(self, client: Any) -> None:
        self._client, self._distributed = client, _import_dask()
        self._homes: list[Any] = []

    @property
    def n_workers(self) -> int:
        return int(sum(self._client.nthreads().values()))

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        homes = self._homes if len(self._homes) == len(tasks) else [None] * len(tasks)
        futures = [
            self._client.submit(_call, function, task, home, pure=False)
            for task, home in zip(tasks, homes, strict=True)
        ]
        try:
            for future in self._distributed.as_completed(futures):
                yield future.result()
            if len(tasks) > len(self._homes):
                self._homes, futures = futures, []
        finally:
            self._client.cancel(futures)


def _call(function: Callable[[Any], Any], task: Any, _home: Any) -> Any:
    """Call the function where `_home` is."""
    return function(task)


class _Ray:
    """Actors of a ray cluster; a task goes to the same actor every time."""

    def __init__(self) -> None:
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                "executor='ray' needs ray. Run pip install \"skfedcal[ray]\"."
            ) from error
        self._ray = ray
        self._actors: list[Any] = []

    @property
    def n_workers(self) -> int:
        if not self._ray.is_initialized():
            self._ray.init(log_to_driver=False)
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task]
    ) -> Iterator[Result]:
        ray = self._ray
        if not self._actors:
            # A lost actor is started again, and what it was asked is asked again.
            settings = {"max_restarts": -1, "max_task_retries": -1}
            actor = ray.remote(**settings, scheduling_strategy="SPREAD")(_Actor)
            self._actors = [actor.remote() for _ in range(self.n_workers)]
        shared = ray.put(function)
        waiting = [
            self._actors[i % len(self._actors)].call.remote(shared, task)
            for i, task in enumerate(tasks)
        ]
        while waiting:
            (done,), waiting = ray.wait(waiting, num_returns=1)
            try:
                yield ray.get(done)
            except ray.exceptions.RayTaskError as error:
                raise getattr(error, "cause", error) from None


class _Actor:
    """Process of ray that keeps what it has read."""

    def call(self, function: Callable[[Any], Any], task: Any) -> Any:
        return function(task)


def _import_dask() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise ImportError(
            'A dask cluster needs distributed. Run pip install "skfedcal[dask]".'
        ) from error
    return distributed
