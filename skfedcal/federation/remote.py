"""Remote clients: what a fit knows about them, and how it reaches them."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from skfedcal._files import as_path
from skfedcal._params import check_choice
from skfedcal.clients.arrays import INPUT_TYPES, read_array
from skfedcal.clients.forms import ClassMap
from skfedcal.federation.backends import Backend, Positions
from skfedcal.federation.endpoint import PartialSum, Request
from skfedcal.federation.plain import WireError
from skfedcal.federation.reading import SHARES, Part, Reading
from skfedcal.federation.wire import write_request

if TYPE_CHECKING:
    from skfedcal.federation.messages import Transport
    from skfedcal.federation.roster import Operator
    from skfedcal.federation.runner import FederatedRunner


class RemoteClients:
    """Sites whose rows are not in this process; `fit` takes it in place of clients.

    Every site reads its own scores and labels. Which label belongs to which column must
    be agreed beforehand: pass `classes` to the estimator or function.

    Parameters
    ----------
    engine : Transport or Backend
        Reaches the sites.
    n_columns : int, default=None
        Columns of scores at all sites; None is one per class. One less stands for
        log-odds, or probabilities, without the first class. For `FedGaussianHead`, the
        number of features.
    n_rows : int, default=None
        Rows of all sites together, where that is public; needed to protect single
        examples (``unit='example'``).
    operator : Operator, default=None
        Signs what sites are asked, where their roster names an operator.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.federation import (
    ...     InProcessTransport, RemoteClients, Site, SitePolicy, SiteRows)
    >>> fed = make_federation(n_clients=3, n_samples=600, n_classes=4, random_state=0)
    >>> policy = SitePolicy(allow_plain=True)
    >>> sites = {n: Site(n, SiteRows(*rows), policy=policy)
    ...          for n, rows in zip("abc", fed.clients)}
    >>> remote = RemoteClients(InProcessTransport(sites))
    >>> calibrator = FedTempCalibrator(classes=[0, 1, 2, 3]).fit(remote)
    >>> calibrator.n_clients_
    3
    """

    # Whether rows stay with parties that answer only what was agreed.
    keeps_rows = True

    def __init__(
        self,
        engine: Transport | Backend,
        *,
        n_columns: int | None = None,
        n_rows: int | None = None,
        operator: Operator | None = None,
    ) -> None:
        if not hasattr(engine, "ids"):
            raise TypeError(
                f"engine is of type {type(engine).__name__}; pass a transport such as "
                "InProcessTransport, or a backend."
            )
        self._engine, self._n_columns, self._n_rows = engine, n_columns, n_rows
        self._part: Part = "all"
        # Text of each request that sites were asked, without its broadcast.
        self._asked: list[str] = []
        self._operator = operator
        if operator is not None and not hasattr(operator, "sign_request"):
            raise TypeError(
                f"operator is of type {type(operator).__name__}; pass "
                "Operator(key, roster)."
            )
        if operator is not None and hasattr(engine, "total"):
            raise ValueError(
                "operator signs what a transport carries; with a backend pass "
                "MessageBackend(transport, operator=...)."
            )

    def __len__(self) -> int:
        return len(self._engine.ids())

    def __repr__(self) -> str:
        return f"RemoteClients({len(self)} sites)"

    @property
    def transport(self) -> Transport | Backend:
        """Transport or engine that reaches the sites."""
        return self._engine

    def part(self, part: Part) -> RemoteClients:
        """Return the same sites, of whose rows only a part counts.

        Parameters
        ----------
        part : {'all', 'fit', 'held'}
            All rows; those of a fit; or the fifth that a fit leaves out, by a public
            hash, so that its result can be compared with the input. Sites check it.

        Returns
        -------
        RemoteClients
        """
        check_choice("part", part, tuple(SHARES))
        out = copy(self)
        out._part = part
        return out

    @property
    def operator(self) -> Operator | None:
        """Who signs what sites are asked."""
        return self._operator

    @property
    def asked(self) -> Sequence[str]:
        """Texts of the requests so far, as sites got them; broadcasts by their hash."""
        return tuple(self._asked)

    def check_arguments(self, **given: Any) -> None:
        """Raise for arguments that need rows in this process.

        Raises
        ------
        ValueError
            Naming the first argument that is not None.
        """
        for name, value in given.items():
            if value is not None:
                raise ValueError(
                    f"{name} cannot be passed with RemoteClients: labels and rows stay "
                    "at the sites. Leave it out."
                )

    def read(
        self, classes: Any, input_type: str, **reading: Any
    ) -> tuple[RemoteDataset, ClassMap]:
        """Agree on what rows mean.

        Parameters
        ----------
        classes : array-like
            Label of each column.
        input_type : {'logits', 'log_proba', 'proba'}
            What scores are.
        **reading : dict
            Further fields of `Reading`.

        Returns
        -------
        clients : RemoteDataset
            Remote clients with the agreed reading.
        classes : ClassMap
            Sorted labels and their columns.
        """
        if classes is None:
            raise ValueError(
                "Labels of remote clients cannot be inspected: pass `classes` with "
                "one label per column, in column order."
            )
        check_choice("input_type", input_type, INPUT_TYPES)
        if reading.get("rows") == "features" and self._n_columns is None:
            raise ValueError(
                "The number of features of remote clients cannot be inspected: pass "
                "RemoteClients(..., n_columns=...)."
            )
        labels = read_array(classes, "`classes`")
        if labels.ndim != 1:
            raise ValueError(f"`classes` has shape {labels.shape}; pass one row.")
        agreed = Reading(
            tuple(labels.tolist()),
            input_type,  # type: ignore[arg-type]
            n_columns=self._n_columns or len(labels),
            part=self._part,
            **reading,
        )
        order = np.argsort(labels, kind="stable")
        rows = RemoteDataset(
            self._engine, agreed, self._n_rows, self._operator, self._asked
        )
        return rows, ClassMap(labels[order], order)


@dataclass(frozen=True, slots=True)
class RemoteDataset:
    """Remote clients with an agreed reading: what a run needs to know of a data set.

    source: Reaches the sites.
    reading: What their rows mean.
    declared_rows: Public number of rows.
    operator: Signs what sites are asked.
    asked: Gets the text of each request.
    """

    source: Any
    reading: Reading
    declared_rows: int | None = None
    operator: Operator | None = None
    asked: list[str] = field(default_factory=list)

    # Rows of sites count once.
    @property
    def weights(self) -> None:
        """No row has a weight."""

    def __len__(self) -> int:
        return self.n_clients

    @property
    def n_clients(self) -> int:
        """Number of sites."""
        return len(self.names)

    @property
    def names(self) -> Sequence[Hashable]:
        """Names of the sites."""
        out: Sequence[Hashable] = self.source.ids()
        return out

    @property
    def n_classes(self) -> int:
        """Classes that the algorithm sees."""
        return len(self.reading.classes)

    @property
    def n_columns(self) -> int:
        """Columns of scores at the sites."""
        return self.reading.n_columns

    @property
    def n_rows(self) -> int:
        """Public number of rows of all sites that count; of a part, about so many."""
        if self.declared_rows is None:
            raise ValueError(
                "unit='example' needs the number of rows of all sites: pass "
                "RemoteClients(..., n_rows=...) if it is public."
            )
        return round(self.declared_rows * SHARES[self.reading.part])

    def engine(self, runner: FederatedRunner) -> Backend:
        """Engine of a run, which tells sites how to read their rows."""
        from skfedcal.federation.backends import masking

        if runner.backend is not None:
            raise ValueError(
                f"FederatedRunner(backend={runner.backend!r}): remote clients come "
                "with their own engine. Leave backend out."
            )
        engine = masking(self.source, runner.secure, self.operator)
        return _Reader(engine, self.reading, self.asked)

    def check_model(self, model: Any) -> None:
        """Refuse a privacy model that is simulated where real sites are asked.

        Raises ValueError: For ``mode='fast'``.
        """
        if getattr(model, "mode", "faithful") == "fast":
            raise ValueError(
                f"{type(model).__name__}(mode='fast') draws the noise of all clients "
                "here, from their exact sum. Pass mode='faithful': every site draws "
                "its own."
            )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Engine whose requests say what rows mean."""

    inner: Backend
    reading: Reading
    asked: list[str]

    def ids(self) -> Sequence[Hashable]:
        return self.inner.ids()

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        return self.inner.total(self.note(request), cohort)

    def note(self, request: Request) -> Request:
        """Keep what sites are asked, or were asked in a run that is resumed."""
        request = replace(request, reading=self.reading)
        request = replace(request, n_clients=max(request.n_clients, len(self.ids())))
        with suppress(WireError):  # of an algorithm that only an own engine knows
            self.asked.append(write_request(request)[0])
        return request

    def check_sites(self, request: Request, n_rounds: int, min_clients: int) -> None:
        """Refuse a run that too few sites would answer, where the engine can ask."""
        check = getattr(self.inner, "check_sites", None)
        if check is not None:
            check(replace(request, reading=self.reading), n_rounds, min_clients)


@contextmanager
def connect(
    address: str,
    *,
    root_certificates: str | os.PathLike[str] | None = None,
    secret: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    sites: Sequence[str] | None = None,
    min_sites: int = 3,
    n_columns: int | None = None,
    n_rows: int | None = None,
    operator: Operator | None = None,
    timeout: float = 60.0,
    wait: float = 60.0,
    poll: float = 0.1,
    app: str | os.PathLike[str] | None = None,
    metrics: str | None = None,
) -> Iterator[RemoteClients]:
    """Connect to live sites; they can be asked as long as the block lasts.

    Parameters
    ----------
    address : str
        ``flower://host:port`` of a SuperLink that was started with ``--isolation
        process``.
    root_certificates : path, default=None
        Certificate file of the authority of the SuperLink.
    secret : path, default=None
        File that the SuperLink was given as ``--superexec-auth-secret-file``. Who has
        it is the server.
    insecure : bool, default=False
        Whether to do without TLS, on one machine.
    sites : sequence of str, default=None
        Names of the sites that are expected; None takes all that are connected once
        there are `min_sites`.
    min_sites : int, default=3
        Least number of sites to start with.
    n_columns, n_rows : int, default=None
        As in `RemoteClients`.
    operator : Operator, default=None
        As in `RemoteClients`.
    timeout, wait, poll : float
        As in `FlowerTransport`.
    app : path, default=None
        Folder of an app of ``skfedcal flower init``, where some sites have stock
        SuperNodes, which must fetch one.
    metrics : str, default=None
        ``host:port`` where figures are shown as long as the block lasts, at
        ``/metrics`` for Prometheus and at ``/`` for people; None shows none.

    Yields
    ------
    RemoteClients
        For `fit` of calibrators and for functions of evaluation.

    Raises
    ------
    ConnectionError
        If the SuperLink cannot be reached or does not accept the secret.
    NotEnoughClientsError
        If sites are missing.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator
    >>> from skfedcal.federation import connect
    >>> def calibrate(address):
    ...     files = {"root_certificates": "ca.crt", "secret": "superexec.secret"}
    ...     with connect(address, n_rows=12_000, **files) as sites:
    ...         return FedTempCalibrator(eps=1, classes=[0, 1]).fit(sites)
    >>> calibrate("https://superlink.example.org")
    Traceback (most recent call last):
        ...
    ValueError: address='https://superlink.example.org': pass 'flower://host:port'.
    """
    from skfedcal.federation.flower import FlowerTransport
    from skfedcal.federation.flower_node import open_grid, read_certificates

    scheme, mark, place = str(address).partition("://")
    host, colon, port = place.rpartition(":")
    if (scheme, mark, colon) != ("flower", "://", ":") or not (
        host and port.isdecimal()
    ):
        raise ValueError(f"address={address!r}: pass 'flower://host:port'.")
    ca = read_certificates(root_certificates, insecure, "connect()")
    word = None if secret is None else as_path(secret).read_bytes()
    folder = None if app is None else str(as_path(app))
    with open_grid(place, ca, word, app=folder, patience=timeout) as grid:
        transport = FlowerTransport(
            grid,
            min_nodes=min_sites,
            sites=sites,
            timeout=timeout,
            wait=wait,
            poll=poll,
        )
        with transport.figures.shown(metrics):
            yield RemoteClients(
                transport, n_columns=n_columns, n_rows=n_rows, operator=operator
            )
