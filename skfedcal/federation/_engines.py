"""Which engine a runner uses for the clients at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skfedcal.data._dataset import FederatedDataset
from skfedcal.federation._backends import Backend, InProcess, Joblib

if TYPE_CHECKING:
    from skfedcal.federation._remote import RemoteDataset
    from skfedcal.federation._runner import FederatedRunner


def engine_of(
    runner: FederatedRunner, clients: FederatedDataset | RemoteDataset | Backend
) -> Backend:
    """Engine for clients in this process, or for those that are elsewhere.

    Raises
    ------
    ValueError
        If the engine of the runner has other clients, or does not mask as asked.
    """
    if isinstance(clients, FederatedDataset):
        return _local(runner, clients)
    remote = getattr(clients, "engine", None)
    if remote is not None:
        out: Backend = remote(runner)
        return out
    return masking(clients, runner.secure)


def masking(engine: Any, secure: bool) -> Backend:
    """Engine from a transport or an engine, which masks if asked to."""
    if hasattr(engine, "call") and not hasattr(engine, "total"):
        from skfedcal.federation._messages import MessageBackend

        return MessageBackend(engine, secure=secure)
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
            from skfedcal.federation._in_process import InProcessTransport
            from skfedcal.federation._messages import MessageBackend

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
