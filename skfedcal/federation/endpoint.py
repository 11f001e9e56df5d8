"""What a client answers: the only code that touches rows and builds a message.

`respond` is called with one client at a site and with thousands in a simulation. Needs
numpy only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Arrays, CellRows, FederatedAlgorithm
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.privacy.codec import Codec, Encoded, Integers, add_up
from skfedcal.privacy.entropy import Entropy, OSEntropy

if TYPE_CHECKING:
    from skfedcal.federation.reading import Reading
    from skfedcal.privacy.entropy import ClientStreams, Positions
    from skfedcal.privacy.events import PrivacyEvent
    from skfedcal.privacy.randomizers import Randomizer

# Told of an error and of how many units it concerns.
OnFailure = Callable[[Exception, int], None]

# Numbers of one chunk of clients before they are summed (float64: 2 MB, and 6 MB as
# limbs): beyond the cache, time per client would grow with their number.
_CHUNK_VALUES = 1 << 18
# Clients of one chunk whose rows are sparse.
_CHUNK_SPARSE = 1 << 18


@dataclass(frozen=True, slots=True)
class Request:
    """Request that is sent to every client of a cohort.

    Parameters
    ----------
    algorithm : FederatedAlgorithm
        Algorithm whose `query` the clients compute.
    broadcast : mapping of str to ndarray
        Arrays that the server sends to all clients.
    codec : Codec
        How answers are clipped and encoded.
    unit : {'client', 'example'}
        Whether a client's rows are bounded together or one by one.
    randomizer : Randomizer, default=None
        Randomisation of the encoded answers; None sends them unchanged.
    entropy : Entropy, default=None
        Seeded words of simulated clients; None: a site uses its operating system's.
    n_min : int, default=0
        Least number of clients in a sum that may be opened. Noise shares are calibrated
        to it: a smaller sum would have less noise than was accounted for.
    round_index : int, default=0
        Number of the round.
    n_clients : int, default=0
        Largest number of clients of a sum; 0 if only the engine knows it.
    n_units : int, default=0
        Clients, or rows, of all clients together as far as the server knows; 0: it
        does not. It stays with the server.
    reading : Reading, default=None
        What the rows of sites mean; None where they are ready for the algorithm.
    claim : PrivacyEvent, default=None
        Privacy event of the whole run, as the server claims it.
    run : str, default=''
        Name of the run, the same when it is resumed.
    max_colluders : int, default=0
        Clients of a sum that may collude with the server.
    simulated : bool, default=False
        Whether the server draws its noise from a seed, so that no client is protected.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import (
    ...     FederatedDataset, FederatedRunner, FedTempCalibrator, make_federation)
    >>> from skfedcal.federation import InProcess
    >>> class Watched(InProcess):
    ...     def total(self, request, cohort):
    ...         print(request.round_index, sorted(request.codec.blocks), len(cohort))
    ...         return super().total(request, cohort)
    >>> fed = make_federation(n_clients=20, n_samples=500, random_state=0)
    >>> offsets = np.searchsorted(fed.client_ids, np.arange(21))
    >>> clients = FederatedDataset(fed.logits, fed.labels, offsets, range(20), 10)
    >>> runner = FederatedRunner(backend=Watched(clients), n_rounds=1)
    >>> calibrator = FedTempCalibrator(solver="grid", runner=runner).fit(fed.clients)
    0 ['slopes'] 20
    """

    algorithm: FederatedAlgorithm[Any]
    broadcast: Arrays
    codec: Codec
    unit: Literal["client", "example"] = "client"
    randomizer: Randomizer | None = None
    entropy: Entropy | None = None
    n_min: int = 0
    round_index: int = 0
    n_clients: int = 0
    n_units: int = 0
    reading: Reading | None = None
    claim: PrivacyEvent | None = None
    run: str = ""
    max_colluders: int = 0
    simulated: bool = False

    @property
    def n_bytes(self) -> int:
        """Size of what a client receives."""
        return sum(np.asarray(v).nbytes for v in self.broadcast.values())

    def check_clients(self, n_clients: int) -> None:
        """Refuse a sum over so few clients.

        For an engine, before it asks a cohort and before it opens a sum; and for a site
        that is told who else is asked.

        Parameters
        ----------
        n_clients : int
            Clients in the sum.

        Raises
        ------
        NotEnoughClientsError
            If there are fewer than `n_min`.
        """
        if n_clients < self.n_min:
            raise NotEnoughClientsError(
                f"A sum over {n_clients} clients may not be opened: its noise needs "
                f"{self.n_min} shares. Nothing of this round was released. Pass "
                "DistributedDP(n_min=...) with the size of the smallest sum, to "
                "allow for dropout."
            )


@dataclass(frozen=True, slots=True)
class PartialSum:
    """Integer sum of the encoded answers of some clients; sums of sums are sums.

    `n_units` counts what was bounded one by one: clients, or their rows. `seconds` is
    the time that clients computed; only a simulation measures it, as it depends on a
    client's rows. `faults` says, by name, why clients were left out.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal.federation import PartialSum
    >>> parts = [PartialSum({"counts": np.array([[1, n]])}, 1, 1) for n in (2, 5)]
    >>> both = parts[0] + parts[1]
    >>> both.total["counts"].tolist(), both.n_clients
    ([[2, 7]], 2)
    """

    total: Mapping[str, Integers]
    n_clients: int
    n_units: int
    seconds: float = 0.0
    faults: Mapping[str, str] = field(default_factory=dict)

    @property
    def client_seconds(self) -> float:
        """Mean time that a client computed; NaN where it was not measured."""
        return self.seconds / self.n_clients if self.seconds else np.nan

    def __add__(self, other: PartialSum) -> PartialSum:
        total = {name: value + other.total[name] for name, value in self.total.items()}
        return PartialSum(
            total,
            self.n_clients + other.n_clients,
            self.n_units + other.n_units,
            self.seconds + other.seconds,
            {**self.faults, **other.faults},
        )


def respond(
    request: Request,
    clients: FederatedDataset,
    positions: Positions | None = None,
    *,
    on_failure: OnFailure | None = None,
) -> PartialSum:
    """Encode, and randomise if asked to, what each client sends and add it up.

    Parameters
    ----------
    request : Request
        The request.
    clients : FederatedDataset
        One client at a site, or many in a simulation.
    positions : ndarray of int, default=None
        Positions of the clients among all clients; needed where clients draw seeded
        words.
    on_failure : callable, default=None
        ``on_failure(error, n_units)`` is called for units whose answer cannot be
        computed, and these send zeros; None raises the error. For sites: what others
        see must not depend on whether the computation fails.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import (
    ...     FederatedDataset, FederatedRunner, FedTempCalibrator, make_federation)
    >>> from skfedcal.federation import InProcess, respond
    >>> class Watched(InProcess):
    ...     def total(self, request, cohort):
    ...         answer = respond(request, self.clients, cohort)
    ...         print(answer.n_clients, answer.n_units)
    ...         return answer
    >>> fed = make_federation(n_clients=20, n_samples=500, random_state=0)
    >>> offsets = np.searchsorted(fed.client_ids, np.arange(21))
    >>> clients = FederatedDataset(fed.logits, fed.labels, offsets, range(20), 10)
    >>> runner = FederatedRunner(backend=Watched(clients), n_rounds=1)
    >>> calibrator = FedTempCalibrator(solver="grid", runner=runner).fit(fed.clients)
    20 20
    """
    units = clients.by_row() if request.unit == "example" else clients
    total = request.codec.zeros()
    streams = None
    if request.randomizer is not None:
        streams = _streams(request, len(clients), positions)
        _add(total, request.randomizer.shares(request.codec, streams))
    size = sum(code.spec.size for code in request.codec.blocks.values())
    chunk = max(1, _CHUNK_VALUES // max(size, 1))
    start = 0
    while start < len(units):
        stop = min(start + chunk, len(units))
        part = units if stop - start == len(units) else units.slice(start, stop)
        whose = streams
        if streams is not None and request.unit == "client":
            whose = streams.part(start, stop)
        encoded = _answered(request, part, whose, total, on_failure)
        if all(isinstance(rows, CellRows) for rows in encoded.values()):
            chunk = max(chunk, _CHUNK_SPARSE)
        start = stop
    return PartialSum(total, len(clients), len(units))


def _answered(
    request: Request,
    part: FederatedDataset,
    streams: ClientStreams | None,
    total: dict[str, Integers],
    on_failure: OnFailure | None,
) -> dict[str, Encoded]:
    """Add what some units send to `total`; return their encoded rows."""
    if on_failure is None:
        encoded = _encoded(request, part)
        _add(total, _reported(request, encoded, streams))
        return encoded
    try:
        encoded = _encoded(request, part)
        sent = _reported(request, encoded, streams)
    except Exception as error:
        if request.unit == "example" and len(part) > 1:
            # Other rows must not be lost with one: each is protected on its own.
            middle = len(part) // 2
            for half in (part.slice(0, middle), part.slice(middle, len(part))):
                encoded = _answered(request, half, streams, total, on_failure)
            return encoded
        on_failure(error, len(part))
        encoded = {
            name: np.zeros((len(part), code.n_limbs, code.spec.size), dtype=np.int64)
            for name, code in request.codec.blocks.items()
        }
        sent = _reported(request, encoded, streams)
    _add(total, sent)
    return encoded


def _reported(
    request: Request, encoded: Mapping[str, Encoded], streams: ClientStreams | None
) -> Mapping[str, Integers]:
    """Sum of what units send in place of their encoded rows."""
    if request.randomizer is None or streams is None:
        return {name: add_up(rows) for name, rows in encoded.items()}
    return request.randomizer.reports(encoded, streams)


def _encoded(request: Request, part: FederatedDataset) -> dict[str, Encoded]:
    values = request.algorithm.query(request.broadcast, part)
    if any(len(value) != len(part) for value in values.values()):
        # A second row of a client would not be under its bound.
        raise ValueError("A query must return one row for each client.")
    return request.codec.encode(values)


def _streams(
    request: Request, n_clients: int, positions: Positions | None
) -> ClientStreams:
    from skfedcal.privacy.entropy import ClientStreams

    if request.entropy is None:
        return ClientStreams(OSEntropy(), np.arange(n_clients))
    if positions is None or len(positions) != n_clients:
        # Clients that share a position would add the same noise.
        raise ValueError(
            "Seeded noise of clients needs the position of each among all clients: "
            "call respond(request, clients, positions)."
        )
    return ClientStreams(request.entropy, positions)


def _add(total: dict[str, Integers], part: Mapping[str, Integers]) -> None:
    for name, value in part.items():
        total[name] += value
