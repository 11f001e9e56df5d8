"""What a client is asked and what it answers: request, integer sum, words.

`respond` is the only code that touches rows and builds an answer. It is called with one
client at a site and with thousands in a simulation.

Answers travel as unsigned words that add up modulo a power of 2. Sums of words are
exact: the number of bits of a word is derived before any client is asked, from the
bounds of what one client can send. A site limits its own answer to them, so that a sum
of honest answers cannot wrap around, and a sum that exceeds its bound shows that a site
was not honest. Needs numpy only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from skfedcal.clients.dataset import FederatedDataset
from skfedcal.contract import Arrays, CellRows, FederatedAlgorithm, Rows
from skfedcal.exceptions import NotEnoughClientsError
from skfedcal.privacy.codec import Codec, Integers
from skfedcal.privacy.entropy import Entropy, OSEntropy

if TYPE_CHECKING:
    from skfedcal.federation.reading import Reading
    from skfedcal.privacy.entropy import ClientStreams, Positions
    from skfedcal.privacy.events import PrivacyEvent
    from skfedcal.privacy.randomizers import Randomizer

# Told of an error and of how many units it concerns.
OnFailure = Callable[[Exception, int], None]

Words = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[tuple[int, ...], int]]

# Name of the word that counts rows in a masked sum. An answer without a mask has none:
# it would show the number of rows of one site.
UNITS = "/units"
# Most rows of a sum. A constant: a site whose answer depended on a number that the
# server names would tell whether it has more rows.
MAX_ROWS = 1 << 30
# A sum that holds random words in place of an answer passes for an honest one with a
# chance below 2**-40 for each block of 4-byte words, and for each block of 8-byte words
# in sums over up to 2,000 clients.
_DETECTION_BITS = 40

# Numbers of one chunk of clients before they are summed (float64: 2 MB): beyond the
# cache, time per client would grow with their number.
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
    n_rounds : int, default=0
        Rounds of the run, at most; 0 where it is not known.

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
    n_rounds: int = 0

    @property
    def n_bytes(self) -> int:
        """Size of what a client receives."""
        return sum([np.asarray(v).nbytes for v in self.broadcast.values()])

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
                f"A sum over {n_clients} clients must stay secret: its noise needs the "
                f"shares of {self.n_min}. Nothing of this round was released. Pass "
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
    size = sum([code.spec.size for code in request.codec.blocks.values()])
    values = getattr(request.algorithm, "values_at_once", _CHUNK_VALUES)
    chunk = max(1, values // max(size, 1))
    plain = request.randomizer is None and on_failure is None
    if plain and 0 < units.n_clients <= chunk:
        sent = request.codec.encode_sum(_answers(request, units))
        return PartialSum(sent, clients.n_clients, units.n_clients)
    total = request.codec.zeros()
    streams = None
    if request.randomizer is not None:
        streams = _streams(request, clients.n_clients, positions)
        _add(total, request.randomizer.shares(request.codec, streams))
    start = 0
    while start < units.n_clients:
        stop = min(start + chunk, units.n_clients)
        part = units if stop - start == units.n_clients else units.slice(start, stop)
        whose = streams
        if streams is not None and request.unit == "client":
            whose = streams.part(start, stop)
        if _add_answers(request, part, whose, total, on_failure):
            chunk = max(chunk, _CHUNK_SPARSE)
        start = stop
    return PartialSum(total, clients.n_clients, units.n_clients)


def timed_respond(
    request: Request, clients: FederatedDataset, positions: Positions
) -> PartialSum:
    """Answer of simulated clients, with the time they took; a site never measures it.

    Time depends on the rows of a client.
    """
    started = time.perf_counter()
    found = respond(request, clients, positions)
    seconds = time.perf_counter() - started
    return PartialSum(found.total, found.n_clients, found.n_units, seconds)


def _add_answers(
    request: Request,
    part: FederatedDataset,
    streams: ClientStreams | None,
    total: dict[str, Integers],
    on_failure: OnFailure | None,
) -> bool:
    """Add what some units send to `total`; return whether all of it is sparse."""
    if on_failure is None:
        sent, sparse = _sum_of_sent(request, part, streams)
        _add(total, sent)
        return sparse
    try:
        sent, sparse = _sum_of_sent(request, part, streams)
    except Exception as error:
        if request.unit == "example" and part.n_clients > 1:
            # Other rows must not be lost with one: each is protected on its own.
            middle = part.n_clients // 2
            for half in (part.slice(0, middle), part.slice(middle, part.n_clients)):
                sparse = _add_answers(request, half, streams, total, on_failure)
            return sparse
        on_failure(error, part.n_clients)
        sent, sparse = _sum_of_zeros(request, part.n_clients, streams), False
    _add(total, sent)
    return sparse


def _sum_of_sent(
    request: Request, part: FederatedDataset, streams: ClientStreams | None
) -> tuple[Mapping[str, Integers], bool]:
    """Sum of what units send: encoded rows, or randomised reports of these."""
    values = _answers(request, part)
    if request.randomizer is None or streams is None:
        total = request.codec.encode_sum(values)
        blocks = request.codec.blocks.items()
        return total, all(code.adds_sparse(values[n]) for n, code in blocks)
    encoded = request.codec.encode(values)
    sparse = (isinstance(rows, CellRows) for rows in encoded.values())
    return request.randomizer.reports(encoded, streams), all(sparse)


def _answers(request: Request, part: FederatedDataset) -> Rows:
    """What units compute, one row for each."""
    values = request.algorithm.query(request.broadcast, part)
    for value in values.values():
        if len(value) != part.n_clients:
            # A second row of a client would not be under its bound.
            raise ValueError("A query must return one row for each client.")
    return values


def _sum_of_zeros(
    request: Request, n_units: int, streams: ClientStreams | None
) -> Mapping[str, Integers]:
    """Sum of what units send that have nothing to send."""
    if request.randomizer is None or streams is None:
        return request.codec.zeros()
    encoded = {
        name: np.zeros((n_units, code.n_limbs, code.spec.size), np.int64)
        for name, code in request.codec.blocks.items()
    }
    return request.randomizer.reports(encoded, streams)


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


@dataclass(frozen=True, slots=True)
class WordPlan:
    """How the answers to one request are written.

    shapes (mapping of str to (shape, n_bytes)): Arrays of words and the width of a
        word.
    bounds (mapping of str to (int, int)): Largest size of an integer: of each unit of a
        client, and of its noise.
    n_units: Units of all clients of a sum, at most.
    by_row: Whether units are rows, and not clients.
    """

    shapes: Shapes
    bounds: Mapping[str, tuple[int, int]]
    n_units: int
    by_row: bool = False

    @property
    def n_bytes(self) -> int:
        """Size of one client's answer."""
        return sum(prod(shape) * width for shape, width in self.shapes.values())

    def encode(self, answer: PartialSum) -> Words:
        """Words of the answer of a client, or of a sum over some.

        Integers beyond their bound are set to it: a refusal would show that the answer
        is a large one. That happens only with more rows than `n_units`, with exact
        counts beyond ``2**32`` and, with a chance below ``2**-80`` in a whole run, with
        shares of noise.
        """
        numbers = dict(answer.total)
        n_units = min(answer.n_units, self.n_units)
        if UNITS in self.shapes:
            numbers[UNITS] = np.array([n_units], dtype=np.int64)
        words = {}
        for name, (shape, width) in self.shapes.items():
            unit, share = self.bounds[name]
            allowed = unit * n_units + share * answer.n_clients
            value = np.clip(numbers[name], -allowed, allowed)
            words[name] = value.reshape(shape).astype(f"<u{width}")
        return words

    def decode(self, words: Mapping[str, Any], n_clients: int) -> PartialSum:
        """Sum of the answers of `n_clients`, from the sum of their words."""
        total = {}
        for name, (_, width) in self.shapes.items():
            value = np.asarray(words[name]).astype(f"<u{width}", copy=False)
            total[name] = value.view(f"<i{width}").astype(np.int64)
        n_units = n_clients
        if UNITS in total:
            n_units = int(total.pop(UNITS)[0])
        return PartialSum(total, n_clients, n_units)

    def fault(self, words: Mapping[str, Any], n_clients: int = 1) -> str:
        """Fault of the words of some clients; empty if they are valid.

        For answers without masks, and for sums whose masks are off.
        """
        fault = wrong_words(words, self.shapes)
        if fault:
            return fault
        answer = self.decode(words, n_clients)
        hidden = self.by_row and UNITS not in self.shapes
        n_units = self.n_units if hidden else answer.n_units
        if not 0 <= n_units <= self.n_units:
            return f"reports {n_units} rows"
        for name, value in answer.total.items():
            unit, share = self.bounds[name]
            largest = unit * n_units + share * n_clients
            if value.size and not -largest <= value.min() <= value.max() <= largest:
                return f"sent numbers in {name!r} that are out of range"
        return ""

    def zeros(self) -> Words:
        """Sum over no clients."""
        return {name: np.zeros(s, f"<u{w}") for name, (s, w) in self.shapes.items()}


def plan_words(
    codec: Codec,
    randomizer: Randomizer | None,
    *,
    n_clients: int,
    n_units: int,
    by_row: bool = False,
    count_units: bool = False,
) -> WordPlan:
    """Choose the width of words such that no sum can wrap around.

    A sum over `n_clients` with `n_units` in all is at most ``n_units * unit +
    n_clients * share`` in size; that must be below ``2**(bits - 1)``, and so far below
    it that random words in the sum are noticed. Shares of Gaussian and Laplace noise
    come from tables and have a largest value. A Polya share has none; it is beyond its
    bound with a chance below ``2**-80`` in a whole run, and is then set to it.

    codec: How answers are clipped and written.
    randomizer: What clients do to their answers.
    n_clients: Most clients of a sum.
    n_units: Most clients, or rows, of a sum.
    by_row: Whether units are rows, and not clients.
    count_units: Whether the number of rows is summed too.
    Raises ValueError: If no word is wide enough.
    """
    found = {} if randomizer is None else randomizer.bounds(codec, n_clients)
    bounds: dict[str, tuple[int, int]] = {}
    shapes: Shapes = {}
    for name, code in codec.blocks.items():
        if randomizer is None:
            unit, share = code.largest, 0
        else:
            unit, share = found[name].unit, found[name].share
        bounds[name] = unit, share
        largest = n_units * unit + n_clients * share
        size = (code.n_limbs, code.spec.size)
        shapes[name] = size, _width(name, largest, n_clients, size)
    if count_units:
        bounds[UNITS] = (1, 0)
        shapes[UNITS] = ((1,), _width(UNITS, n_units, n_clients, (1,)))
    return WordPlan(shapes, bounds, n_units, by_row)


def request_words(request: Request, *, masked: bool) -> WordPlan:
    """Words of the answers to a request.

    masked: Whether answers are masked; only then rows are counted, in a word of their
        own.
    """
    return answer_words(
        request.codec,
        request.randomizer,
        request.unit,
        n_clients=request.n_clients,
        masked=masked,
    )


def answer_words(
    codec: Codec,
    randomizer: Randomizer | None,
    unit: Literal["client", "example"],
    *,
    n_clients: int,
    masked: bool,
) -> WordPlan:
    """Words of answers in this code; arguments are the fields of a `Request`."""
    n_clients = max(n_clients, 1)
    by_row = unit == "example"
    return plan_words(
        codec,
        randomizer,
        n_clients=n_clients,
        n_units=MAX_ROWS if by_row else n_clients,
        by_row=by_row,
        count_units=by_row and masked,
    )


def wrong_words(words: Mapping[str, Any], shapes: Mapping[str, Any]) -> str:
    """Fault of the arrays of a client; empty if they are valid."""
    if set(words) != set(shapes):
        return f"sent the arrays {sorted(words)} instead of {sorted(shapes)}"
    for name, (shape, width) in shapes.items():
        value = words[name]
        if value.shape != tuple(shape) or value.dtype.str.lstrip("<|") != f"u{width}":
            return (
                f"sent {name!r} as {value.dtype} of shape {value.shape} instead of "
                f"uint{8 * width} of shape {tuple(shape)}"
            )
    return ""


def add_words(total: Words, part: Mapping[str, Any]) -> None:
    """Add a sum of words to another, in place; words wrap around."""
    for name, value in total.items():
        value += part[name]


def _width(name: str, largest: int, n_clients: int, shape: tuple[int, ...]) -> int:
    """Bytes of a word; random words in all places are within bounds once in 2**40."""
    room = -(-_DETECTION_BITS // prod(shape))
    if largest << room < 2**31:
        return 4
    if largest < 2**63:
        return 8
    raise ValueError(
        f"Sums of block {name!r} over {n_clients} clients can be as large as "
        f"{float(largest):.2g}, which overflows 64-bit words. Pass a smaller bound "
        "per client (clip) or a larger eps, or sum fewer clients at once."
    )
