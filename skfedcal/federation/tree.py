"""Sums of sums: aggregators between clients and the server.

Words add up in any order, so that an aggregator may sum those of its clients and pass
the sum up: any tree gives the same bits. There are two forms. With `TreeBackend` every
aggregator reads the sum of its own cohort; `Aggregators` pass up sums of masked words,
which only the whole tree can open.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from skfedcal._params import check_integer
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.federation.backends import Backend, InProcess, Positions, check_engine
from skfedcal.federation.endpoint import (
    PartialSum,
    Request,
    add_words,
    request_words,
    wrong_words,
)
from skfedcal.federation.messages import (
    GroupReply,
    Letter,
    Reply,
    Transport,
    sum_words,
    wrong_reply,
)


@dataclass(frozen=True)
class TreeBackend:
    """Sum over aggregators, each with an engine and clients of its own.

    An aggregator reads the sum of its cohort, which must be one that may be opened:
    with shares of noise, of as many clients as they are sized for.

    Parameters
    ----------
    children : sequence of Backend
        Aggregators; they may be trees.

    Examples
    --------
    >>> import numpy as np
    >>> from skfedcal import FederatedDataset
    >>> from skfedcal.federation import TreeBackend
    >>> rows, labels = np.zeros((6, 2)), np.zeros(6, dtype=int)
    >>> clients = FederatedDataset(rows, labels, np.arange(7), range(6), n_classes=2)
    >>> len(TreeBackend.over(clients, size=4).children)
    2
    """

    children: Sequence[Backend]

    def __post_init__(self) -> None:
        if not isinstance(self.children, Sequence):
            raise TypeError(f"children={self.children!r}: pass a list of backends.")
        for child in self.children:
            check_engine(child, "children")

    @classmethod
    def over(cls, clients: FederatedDataset, size: int) -> TreeBackend:
        """Two levels over clients in this process, in cohorts of `size`."""
        check_integer("size", size, 1)
        starts = range(0, len(clients), int(size))
        return cls(
            [
                InProcess(clients.slice(i, min(i + size, len(clients))), first=i)
                for i in starts
            ]
        )

    def ids(self) -> Sequence[Hashable]:
        return self._names

    # A million names are put together once.
    @cached_property
    def _names(self) -> list[Hashable]:
        return [name for child in self.children for name in child.ids()]

    def total(self, request: Request, cohort: Positions) -> PartialSum:
        """Sum of the sums of the aggregators, in words."""
        ends = np.cumsum([0, *(len(child.ids()) for child in self.children)])
        request = replace(request, n_clients=max(request.n_clients, int(ends[-1])))
        words = request_words(request, masked=True)
        total, n_clients, seconds = words.zeros(), 0, 0.0
        faults: dict[str, str] = {}
        owner = np.searchsorted(ends, cohort, side="right") - 1
        for i, child in enumerate(self.children):
            own = cohort[owner == i] - ends[i]
            if not len(own):
                continue
            part = child.total(request, own)
            add_words(total, words.encode(part))
            n_clients += part.n_clients
            seconds += part.seconds
            faults |= part.faults
        answer = words.decode(total, n_clients)
        return replace(answer, seconds=seconds, faults=faults)


class Aggregators:
    """Transport through aggregators that add up the words of their clients.

    All messages but 'answer' and 'masked' pass unchanged. The words of a group arrive
    as one sum, under the name of one of its clients, with the names of all that are in
    it. Sums of masked words reveal nothing to an aggregator.

    Parameters
    ----------
    transport : Transport
        Reaches the clients.
    groups : sequence of sequences
        Names of the clients of each aggregator.

    Examples
    --------
    >>> from skfedcal import FedTempCalibrator, make_federation
    >>> from skfedcal.federation import (
    ...     Aggregators, InProcessTransport, RemoteClients, Site, SitePolicy, SiteRows)
    >>> fed = make_federation(n_clients=4, n_samples=600, n_classes=4, random_state=0)
    >>> policy = SitePolicy(allow_plain=True)
    >>> sites = {name: Site(name, SiteRows(*rows), policy=policy)
    ...          for name, rows in zip("abcd", fed.clients)}
    >>> transport = Aggregators(InProcessTransport(sites), [["a", "b"], ["c", "d"]])
    >>> remote = RemoteClients(transport)
    >>> FedTempCalibrator(classes=[0, 1, 2, 3]).fit(remote).n_clients_
    4
    """

    def __init__(
        self, transport: Transport, groups: Sequence[Sequence[Hashable]]
    ) -> None:
        check_engine(transport, "transport")
        listed = isinstance(groups, Sequence) and not isinstance(groups, str | bytes)
        if not listed or not all(isinstance(group, Sequence) for group in groups):
            raise TypeError(f"groups={groups!r}: pass a list of lists of names.")
        self._transport, self._groups = transport, [list(group) for group in groups]
        named = sorted(repr(name) for group in self._groups for name in group)
        if named != sorted(map(repr, transport.ids())):
            raise ValueError("Every client must be in one group.")

    def ids(self) -> Sequence[Hashable]:
        return self._transport.ids()

    def call(
        self, kind: str, letters: Mapping[Hashable, Letter]
    ) -> dict[Hashable, Reply | GroupReply | str]:
        found = dict(self._transport.call(kind, letters))
        if kind not in ("answer", "masked"):
            return found
        out: dict[Hashable, Reply | GroupReply | str] = {}
        for group in self._groups:
            out |= _summed({name: found[name] for name in group if name in found})
        return out


def _summed(
    replies: Mapping[Hashable, Reply | GroupReply | str],
) -> dict[Hashable, Reply | GroupReply | str]:
    """One reply for those of a group that fit together, and texts for the others."""
    out: dict[Hashable, Reply | GroupReply | str] = {}
    good: dict[Hashable, Reply] = {}
    for name, reply in replies.items():
        fault = wrong_reply(reply)
        if not fault and good:
            message, arrays = next(iter(good.values()))
            shapes = {n: (a.shape, a.dtype.itemsize) for n, a in arrays.items()}
            fault = wrong_words(reply[1], shapes)  # type: ignore[arg-type]
            if reply[0] != message:
                fault = "answered another round"
        if fault:
            out[name] = fault
        else:
            good[name] = reply  # type: ignore[assignment]
    if good:
        first = next(iter(good))
        words = sum_words([arrays for _, arrays in good.values()])
        out[first] = GroupReply(good[first][0], words, list(good))
    return out
