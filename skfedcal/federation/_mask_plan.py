"""Who masks with whom in a round, and how many of them open the sum.

Every client adds a mask with each of its neighbours, which cancels in the sum. With few
clients all are neighbours; with many each has `degree` of them, on a ring in an order
drawn for the round (Bell et al., 2020), so that its work does not grow with the number
of clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from math import ceil
from typing import Any

from skfedcal.exceptions import SecureAggregationError
from skfedcal.federation._shamir import MAX_SHARES

# All are neighbours of all up to here; beyond, that costs more than the graph.
COMPLETE = 50
# Chance that a graph fails its clients, in bits.
_SAFETY_BITS = 40
SMALLEST_COHORT = 3
# Every client of a graph sorts all of them: 0.2 s and 30 MB for so many.
LARGEST_COHORT = 100_000
# Terms that travel, in the order of the fields.
_TERMS: dict[str, type] = {
    "run": str,
    "round": int,
    "n_clients": int,
    "degree": int,
    "threshold": int,
    "order": bytes,
}


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """Public terms of one masked round.

    Parameters
    ----------
    run : str
        Run that the round belongs to.
    round_index : int
        Number of the round, and of the sum in it.
    n_clients : int
        Clients that are asked.
    degree : int
        Neighbours of each client.
    threshold : int
        Shares, of a client and its neighbours, that open what it shared.
    order : bytes
        Draws the ring of a graph in which not all are neighbours.
    about : bytes, default=b''
        Hash of the request. All keys of the round depend on it: clients that were asked
        different things cannot open each other's shares.
    """

    run: str
    round_index: int
    n_clients: int
    degree: int
    threshold: int
    order: bytes = b""
    about: bytes = b""
    # What every key of the round is bound to.
    context: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        holders = self.degree + 1
        if self.n_clients > LARGEST_COHORT:
            raise SecureAggregationError(
                f"A masked sum of {self.n_clients} clients is too large; at most "
                f"{LARGEST_COHORT} take part in one. Add up sums of smaller cohorts."
            )
        if self.n_clients < SMALLEST_COHORT:
            raise SecureAggregationError(
                f"A masked sum of {self.n_clients} clients hides nobody; at least "
                f"{SMALLEST_COHORT} are needed."
            )
        if not self.complete and (
            self.degree % 2 or not 2 <= self.degree < self.n_clients
        ):
            raise SecureAggregationError(
                f"{self.n_clients} clients cannot have {self.degree} neighbours each."
            )
        # Otherwise one half of the holders could open a client's mask with its
        # neighbours and the other half its own mask, which together are its answer.
        if not holders < 2 * self.threshold <= 2 * holders or holders > MAX_SHARES:
            raise SecureAggregationError(
                f"A threshold of {self.threshold} among {holders} holders of shares is "
                "not safe: more than half of them must be needed, and 255 are the most."
            )
        object.__setattr__(self, "context", _context(self))

    @property
    def complete(self) -> bool:
        """Whether all clients are neighbours."""
        return self.degree == self.n_clients - 1

    def holders(self, client: int) -> tuple[int, ...]:
        """A client and its neighbours, in order: who gets shares of its secrets."""
        if not 0 <= client < self.n_clients:
            raise SecureAggregationError(f"There is no client number {client}.")
        if self.complete:
            return tuple(range(self.n_clients))
        ring, place = _ring(self.order, self.n_clients)
        half, at = self.degree // 2, place[client]
        steps = range(at - half, at + half + 1)
        return tuple(sorted(ring[step % self.n_clients] for step in steps))

    def to_message(self) -> dict[str, Any]:
        """Numbers and bytes that travel; a client hashes the request by itself."""
        return {
            "run": self.run,
            "round": self.round_index,
            "n_clients": self.n_clients,
            "degree": self.degree,
            "threshold": self.threshold,
            "order": self.order,
        }

    @classmethod
    def from_message(cls, message: dict[str, Any], about: bytes = b"") -> MaskPlan:
        """Terms that a server announced, of a request with the hash `about`.

        Raises
        ------
        SecureAggregationError
            If they are none.
        """
        for name, kind in _TERMS.items():
            value: Any = message.get(name)
            # Not converted: bytes(10**12) would be a terabyte.
            fits = type(value) is kind
            if not fits or (isinstance(value, int) and not 0 <= value < 2**62):
                raise SecureAggregationError(f"The terms of the round lack {name!r}.")
        run, *numbers, order = (message[name] for name in _TERMS)
        index, n_clients, degree, threshold = numbers
        return cls(run, index, n_clients, degree, threshold, order, about)


def plan_masks(
    run: str,
    round_index: int,
    n_clients: int,
    order: bytes,
    *,
    threshold: int | None = None,
    dropout: float = 0.1,
    colluders: float = 0.1,
    max_colluders: int = 0,
) -> MaskPlan:
    """Choose neighbours and threshold of a round.

    Parameters
    ----------
    run, round_index, n_clients, order
        See `MaskPlan`.
    threshold : int, default=None
        For rounds in which all are neighbours; None is two thirds of the clients, or
        what `max_colluders` need.
    dropout, colluders : float, default=0.1
        Shares of the clients that may drop out, and that may tell the server what they
        know; they decide the degree of a graph.
    max_colluders : int, default=0
        The latter as a number: who gives shares to both sides does not help to open a
        client's two masks.
    """
    if n_clients <= COMPLETE or (threshold is not None and n_clients <= MAX_SHARES):
        apart = (n_clients + max_colluders) // 2 + 1
        chosen = max(ceil(2 * n_clients / 3), apart) if threshold is None else threshold
        if not apart <= chosen <= n_clients:
            raise SecureAggregationError(
                f"A threshold of {chosen} of {n_clients} clients is not safe with "
                f"{max_colluders} colluders: {apart} are needed at least."
            )
        return MaskPlan(run, round_index, n_clients, n_clients - 1, chosen)
    if threshold is not None:
        raise ValueError(
            f"threshold={threshold} counts all clients; with {n_clients} of them, each "
            "masks with a part of the others. Leave it out."
        )
    share = max(colluders, max_colluders / n_clients)
    degree, chosen = graph_size(n_clients, dropout, share)
    return MaskPlan(run, round_index, n_clients, degree, chosen, order)


@lru_cache(maxsize=64)
def graph_size(n_clients: int, dropout: float, colluders: float) -> tuple[int, int]:
    """Least degree, and its threshold, that fails with a chance below ``2**-40``.

    A client's secrets must not be opened by colluding holders; holders that remain must
    be enough; and the honest must stay one piece, or the sum over each piece would be
    known: the ring falls apart only where two stretches of ``degree / 2`` clients are
    bad or gone. These are tails of hypergeometric laws, added up over where it happens.
    """
    from scipy.stats import hypergeom

    bad, gone = ceil(colluders * n_clients), ceil(dropout * n_clients)
    most = min(MAX_SHARES - 1, n_clients - 1)
    for degree in range(4, most + 1, 2):
        holders = degree + 1
        for threshold in range(holders // 2 + 1, holders + 1):
            known = hypergeom.sf(threshold - 1, n_clients, bad, degree)
            too_few = hypergeom.sf(holders - threshold, n_clients, gone, degree)
            apart = hypergeom.sf(degree - 1, n_clients, bad + gone, degree)
            chance = n_clients * (known + too_few) + n_clients**2 * apart
            if chance < 2.0**-_SAFETY_BITS:
                return degree, threshold
    raise ValueError(
        f"No graph of {n_clients} clients bears that {gone} drop out and {bad} "
        "collude: pass smaller shares."
    )


def _context(plan: MaskPlan) -> bytes:
    run = plan.run.encode()
    numbers = (
        plan.round_index, plan.n_clients, plan.degree, plan.threshold, len(run)
    )  # fmt: skip
    packed = b"".join(int(number).to_bytes(8, "big") for number in numbers)
    order, about = sha256(plan.order).digest(), sha256(plan.about).digest()
    return sha256(b"skfedcal secure sum 2" + packed + run + order + about).digest()


@lru_cache(maxsize=8)
def _ring(order: bytes, n_clients: int) -> tuple[list[int], dict[int, int]]:
    """Clients in the order of their hashes, and the place of each."""
    keys = [sha256(order + i.to_bytes(8, "big")).digest() for i in range(n_clients)]
    ring = sorted(range(n_clients), key=keys.__getitem__)
    return ring, {client: place for place, client in enumerate(ring)}
