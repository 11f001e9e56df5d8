"""Pairs of clients that mask in some rounds, and the secret sharing that opens sums.

Secret sharing: any `threshold` shares give the secret, fewer give nothing. Every byte
of the secret is shared by itself over the field of 256 elements in which AES works, so
that numpy computes all bytes of all shares at once. A secret has at most 255
shareholders.

Every client adds a mask with each of its neighbours, which cancels in the sum. With few
clients all are neighbours; with many each has `degree` of them on a ring (Bell et al.,
2020), so that its work does not grow with the number of clients. The order of the ring
is a hash of the keys of all clients of the round, so that no single party chooses it.

What is proved of a round is in the deployment guide; the conditions on the numbers are
those of `bears`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import sha256
from math import ceil, exp, lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skfedcal.exceptions import SecureAggregationError

Bytes = NDArray[np.uint8]

MAX_SHARES = 255
_POLYNOMIAL = 0x11B
_GENERATOR = 3


def split(secret: bytes, threshold: int, n_shares: int) -> list[bytes]:
    """Shares of a secret, for the shareholders 1 to `n_shares`.

    secret: What is shared.
    threshold: Shares that give it back.
    n_shares: Shareholders, at most 255.
    Raises ValueError: If no such shares exist.
    """
    if not 1 <= threshold <= n_shares <= MAX_SHARES:
        raise ValueError(
            f"A secret cannot have {n_shares} shares of which {threshold} are enough: "
            f"pass 1 <= threshold <= n_shares <= {MAX_SHARES}."
        )
    size = len(secret)
    random = os.urandom((threshold - 1) * size)
    parts = np.frombuffer(secret + random, dtype=np.uint8).reshape(threshold, size)
    terms = multiply(_powers(threshold, n_shares), parts)
    return [share.tobytes() for share in np.bitwise_xor.reduce(terms, axis=1)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Secret from as many shares as its threshold, by shareholder.

    Too few shares, or shares of different secrets, give other bytes and no error.
    """
    if not shares or not all(1 <= holder <= MAX_SHARES for holder in shares):
        raise ValueError("Shares belong to the shareholders 1 to 255.")
    rows = np.frombuffer(b"".join(shares.values()), dtype=np.uint8)
    weights = _weights_at_zero(bytes(shares))
    parts = multiply(weights[:, None], rows.reshape(len(shares), -1))
    return bytes(np.bitwise_xor.reduce(parts, axis=0).tobytes())


def multiply(left: Bytes, right: Bytes) -> Bytes:
    """Product in the field, element by element."""
    out: Bytes = _PRODUCTS.take((left.astype(np.intp) << 8) | right)
    return out


@lru_cache(maxsize=32)
def _powers(threshold: int, n_shares: int) -> Bytes:
    """Powers 0 to ``threshold - 1`` of the shareholders, a column for each of them."""
    logs = _LOG[1 : n_shares + 1].astype(np.int64)
    exponents = logs[:, None] * np.arange(threshold) % MAX_SHARES
    out: Bytes = _EXP[exponents][:, :, None]
    return out


# Where all clients are neighbours, the same shareholders open all secrets.
@lru_cache(maxsize=32)
def _weights_at_zero(holders: bytes) -> Bytes:
    """Lagrange's weights of the values at these points for the value at zero."""
    at = np.frombuffer(holders, dtype=np.uint8)
    gaps = at[:, None] ^ at[None, :]
    np.fill_diagonal(gaps, 1)
    logs = _LOG[at].astype(np.int64)
    over = logs.sum() - logs
    under = _LOG[gaps].astype(np.int64).sum(axis=1)
    out: Bytes = _EXP[(over - under) % MAX_SHARES]
    return out


def _tables() -> tuple[Bytes, NDArray[np.uint16]]:
    exp = np.zeros(2 * MAX_SHARES, dtype=np.uint8)
    log = np.zeros(256, dtype=np.uint16)
    value = 1
    for power in range(MAX_SHARES):
        exp[power] = exp[power + MAX_SHARES] = value
        log[value] = power
        doubled = value << 1
        value ^= doubled ^ (_POLYNOMIAL if doubled & 0x100 else 0)
    assert value == 1 and exp[1] == _GENERATOR
    return exp, log


_EXP, _LOG = _tables()


def _products() -> Bytes:
    """Table of all products."""
    logs = _LOG.astype(np.int64)
    out = _EXP[logs[:, None] + logs[None, :]]
    out[0, :] = out[:, 0] = 0
    return out.ravel()


_PRODUCTS = _products()

# All are neighbours of all up to here; beyond, that costs more than the graph.
COMPLETE = 50
# Chance that a graph fails its clients, in bits, where the server follows the protocol.
_SAFETY_BITS = 40
# The same for a server that does not: it may try many sets of keys for one that draws
# a ring in its favour. After 2**36 tries its chance is still below 2**-40.
ACTIVE_BITS = 76
# Chance that a round fails for the drop-outs that it should bear: nothing is revealed.
_AVAILABILITY_BITS = 20
# Part of the clients of a graph that a site with a roster allows to collude, at least.
SITE_COLLUDERS = 0.1
SMALLEST_COHORT = 3
# Every client of a graph sorts all of them: 0.2 s and 30 MB for so many.
LARGEST_COHORT = 100_000
# Longest name of a run, in ASCII characters.
MAX_RUN = 200
# Most rounds whose keys are made together.
MAX_ROUNDS = 64
# Most pairs of secrets, one for each round and holder, that a server keeps: 64 MB.
_MAX_HELD = 1 << 20
HASH_BYTES = 32
# Terms that travel, in the order of the fields.
_TERMS: dict[str, type] = {
    "run": str,
    "round": int,
    "n_clients": int,
    "degree": int,
    "threshold": int,
    "signers": int,
    "quorum": int,
    "rounds": int,
}


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """Public terms of some masked rounds whose keys are made together, or of one.

    run: Run that the rounds belong to.
    round_index: Number of the first round, and of the sum in it.
    n_clients: Clients that are asked.
    degree: Neighbours of each client.
    threshold: Shares, of a client and its neighbours, that open what it shared.
    signers, quorum: On a graph, how many clients are drawn to sign the list of
        survivors, and how many of them must have; 0 where they are not asked to. Where
        all are neighbours all may sign, and `threshold` of them must have.
    n_rounds: Rounds that have keys.
    coin: Hash of the keys of all clients of the rounds, once they are known; see
        `public_coin`. It orders the ring of a graph.
    shared: Clients that shared their secrets, as bits, once they are known.
    about: Hash of what is asked, in all rounds or in one. Keys depend on it: clients
        that were asked different things cannot open each other's shares, and their
        masks do not cancel.
    """

    run: str
    round_index: int
    n_clients: int
    degree: int
    threshold: int
    signers: int = 0
    quorum: int = 0
    n_rounds: int = 1
    coin: bytes = b""
    shared: bytes = b""
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
                f"A masked sum of {self.n_clients} clients hides no client; at least "
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
                f"A threshold of {self.threshold} among {holders} holders of shares "
                "is not safe: it must be more than half of them, and at most 255."
            )
        if not 1 <= self.n_rounds <= MAX_ROUNDS:
            raise SecureAggregationError(
                f"Keys of {self.n_rounds} rounds cannot be made together; at least 1 "
                f"and at most {MAX_ROUNDS} can."
            )
        self._check_quorum()
        object.__setattr__(self, "context", _context(self))

    def _check_quorum(self) -> None:
        if self.complete:
            safe = self.signers == self.quorum == 0
        elif self.signers:
            most = min(self.n_clients, MAX_SHARES)
            safe = self.signers <= most and (
                self.signers < 2 * self.quorum <= 2 * self.signers
            )
        else:
            safe = self.quorum == 0
        if not safe:
            raise SecureAggregationError(
                f"{self.quorum} signatures of {self.signers} signers are not safe for "
                f"a round of {self.n_clients} clients with {self.degree} neighbours "
                "each: the quorum must be more than half of the signers, there may "
                "be at most 255 signers, and both numbers must be 0 where all "
                "clients are neighbours."
            )

    @property
    def complete(self) -> bool:
        """Whether all clients are neighbours."""
        return self.degree == self.n_clients - 1

    @property
    def needed_signatures(self) -> int:
        """Signatures under the list of survivors that open the sum; 0 if none can."""
        return self.threshold if self.complete else self.quorum

    @property
    def rounds(self) -> range:
        """Numbers of the rounds that have keys."""
        return range(self.round_index, self.round_index + self.n_rounds)

    def of_round(self, index: int, shared: bytes, about: bytes) -> MaskPlan:
        """Terms of one round: its masks depend on its number and on what is asked.

        index: Number of the round.
        shared: Clients that shared their secrets, as bits.
        about: Hash of the request of this round.
        """
        about = self.context + about
        return replace(self, round_index=index, shared=shared, about=about)

    def check_number(self, client: int) -> None:
        """Raise for a number that is not a client of the round."""
        if not 0 <= client < self.n_clients:
            raise SecureAggregationError(f"There is no client number {client}.")

    def holders(self, client: int) -> tuple[int, ...]:
        """A client and its neighbours, in order: who gets shares of its secrets."""
        self.check_number(client)
        if self.complete:
            return tuple(range(self.n_clients))
        ring, place = self._ring()
        half, at = self.degree // 2, place[client]
        steps = range(at - half, at + half + 1)
        return tuple(sorted(ring[step % self.n_clients] for step in steps))

    def committee(self) -> tuple[int, ...]:
        """Clients whose signatures under the list of survivors count, in order."""
        if self.complete:
            return tuple(range(self.n_clients))
        return tuple(sorted(self._ring()[0][: self.signers])) if self.signers else ()

    def _ring(self) -> tuple[list[int], dict[int, int]]:
        if not self.coin:
            raise SecureAggregationError(
                "The neighbours of a client are drawn when all keys are known."
            )
        return _ring(self.coin, self.n_clients)

    def bears(self, colluders: int) -> bool:
        """Whether a dishonest server with this many colluders learns only one sum.

        Up to a chance of ``2**-76`` over the coin. With ``c(S)`` colluders in a set
        `S`: ``2 threshold > |S| + c(S)`` for the holders `S` of every honest client (no
        client's two secrets are both opened); ``threshold > degree / 2 + 1 + c(S)`` for
        the ``degree / 2`` clients `S` on either side of one (the ring is not cut by
        clients that the server calls dead); and ``2 quorum > |S| + c(S)`` for the
        signers `S` (no two lists are signed).
        """
        if self.complete:
            return 2 * self.threshold > self.n_clients + colluders
        terms = self.degree, self.threshold, self.signers, self.quorum
        chance = _cut_chance(self.n_clients, colluders, *terms)
        return self.signers > 0 and chance < 2.0**-ACTIVE_BITS

    def to_message(self) -> dict[str, Any]:
        """Numbers and text that travel; a client hashes the request by itself."""
        return {
            "run": self.run,
            "round": self.round_index,
            "n_clients": self.n_clients,
            "degree": self.degree,
            "threshold": self.threshold,
            "signers": self.signers,
            "quorum": self.quorum,
            "rounds": self.n_rounds,
        }

    @classmethod
    def from_message(
        cls,
        message: dict[str, Any],
        about: bytes = b"",
        *,
        coin: bytes = b"",
    ) -> MaskPlan:
        """Read the terms that a server announced, of a request with the hash `about`.

        `coin` is not taken from the message: a client computes it.

        Raises SecureAggregationError: If they are not valid terms.
        """
        for name, kind in _TERMS.items():
            value: Any = message.get(name)
            # Not converted: bytes(10**12) would be a terabyte.
            fits = type(value) is kind
            if fits and kind is str:
                fits = len(value) <= MAX_RUN and value.isascii()
            if not fits or (kind is int and not 0 <= value < 2**62):
                raise SecureAggregationError(f"The terms of the round lack {name!r}.")
        return cls(
            message["run"],
            message["round"],
            message["n_clients"],
            message["degree"],
            message["threshold"],
            message["signers"],
            message["quorum"],
            message["rounds"],
            coin=coin,
            about=about,
        )


def plan_masks(
    run: str,
    round_index: int,
    n_clients: int,
    *,
    threshold: int | None = None,
    dropout: float = 0.1,
    colluders: float = 0.1,
    max_colluders: int = 0,
    active: bool = False,
    n_rounds: int = 1,
) -> MaskPlan:
    """Choose neighbours and threshold of rounds whose keys are made together.

    run, round_index, n_clients: See `MaskPlan`.
    threshold: For rounds in which all are neighbours; None is two thirds of the
        clients, or what `max_colluders` need.
    dropout, colluders: Shares of the clients that may drop out, and that may collude
        with the server; they determine the degree of a graph.
    max_colluders: Number of colluders that must not help to open both masks of a
        client.
    active: Whether a graph must tolerate a server that does not follow the protocol, as
        sites with a roster demand: it has about three times as many neighbours. Rounds
        in which all are neighbours always tolerate one.
    n_rounds: Rounds that are left; the plan has fewer where their keys take much
        memory.
    """
    plan = _plan_graph(
        run, round_index, n_clients, threshold, dropout, colluders, max_colluders,
        active,
    )  # fmt: skip
    most = min(MAX_ROUNDS, _MAX_HELD // (n_clients * (plan.degree + 1)))
    return replace(plan, n_rounds=max(1, min(n_rounds, most)))


def _plan_graph(
    run: str,
    round_index: int,
    n_clients: int,
    threshold: int | None,
    dropout: float,
    colluders: float,
    max_colluders: int,
    active: bool,
) -> MaskPlan:
    complete = n_clients <= COMPLETE or (
        threshold is not None and n_clients <= MAX_SHARES
    )
    share = max(colluders, max_colluders / max(n_clients, 1))
    sizes = None
    if active and not complete and threshold is None:
        sizes = active_graph_size(n_clients, dropout, share)
        complete = sizes is None and n_clients <= MAX_SHARES
    if complete:
        apart = (n_clients + max_colluders) // 2 + 1
        chosen = max(ceil(2 * n_clients / 3), apart) if threshold is None else threshold
        if not apart <= chosen <= n_clients:
            raise SecureAggregationError(
                f"A threshold of {chosen} of {n_clients} clients is not safe with "
                f"{max_colluders} colluders: at least {apart} are needed."
            )
        return MaskPlan(run, round_index, n_clients, n_clients - 1, chosen)
    if threshold is not None:
        raise ValueError(
            f"threshold={threshold} applies where all clients mask with each other; "
            f"of {n_clients} clients each masks with some of the others. Leave "
            "threshold out."
        )
    if sizes is not None:
        return MaskPlan(run, round_index, n_clients, *sizes)
    if active:
        raise ValueError(_no_graph(n_clients, dropout, share))
    degree, chosen = graph_size(n_clients, dropout, share)
    return MaskPlan(run, round_index, n_clients, degree, chosen)


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
    raise ValueError(_no_graph(n_clients, dropout, colluders))


def _no_graph(n_clients: int, dropout: float, colluders: float) -> str:
    bad, gone = ceil(colluders * n_clients), ceil(dropout * n_clients)
    return (
        f"No graph of {n_clients} clients tolerates {gone} dropouts and {bad} "
        "colluders: pass a smaller dropout or colluders."
    )


@lru_cache(maxsize=64)
def active_graph_size(
    n_clients: int, dropout: float, colluders: float
) -> tuple[int, int, int, int] | None:
    """Least degree, its threshold, signers and quorum that `MaskPlan.bears` accepts.

    The round fails for want of shares or signatures with a chance below ``2**-20`` if a
    part `dropout` of the clients is lost. None if there is no such graph.
    """
    bad, gone = ceil(colluders * n_clients), ceil(dropout * n_clients)
    rare = 2.0**-_AVAILABILITY_BITS / 2
    # Each of the three kinds of failure gets a third of the chance.
    chance = 2.0**-ACTIVE_BITS / 3
    graph = committee = None
    for degree in range(4, min(MAX_SHARES, n_clients), 2):
        near = _quantile(n_clients - 1, bad, degree, chance / n_clients)
        side = _quantile(n_clients - 1, bad, degree // 2, chance / (2 * n_clients))
        threshold = max((degree + 1 + near) // 2 + 1, degree // 2 + 2 + side)
        spare = degree + 1 - threshold
        if spare >= 0 and (
            n_clients * _tail(n_clients - 1, gone, degree, spare) < rare
        ):
            graph = degree, threshold
            break
    for signers in range(3, min(MAX_SHARES, n_clients) + 1):
        quorum = (signers + _quantile(n_clients, bad, signers, chance)) // 2 + 1
        spare = signers - quorum
        if spare >= 0 and _tail(n_clients, gone, signers, spare) < rare:
            committee = signers, quorum
            break
    if graph is None or committee is None:
        return None
    return *graph, *committee


@lru_cache(maxsize=64)
def _cut_chance(
    n_clients: int, bad: int, degree: int, threshold: int, signers: int, quorum: int
) -> float:
    """Bound on the chance that one of the conditions of `MaskPlan.bears` fails."""
    # The most colluders with which each condition holds.
    near = 2 * threshold - (degree + 1) - 1
    side = threshold - (degree // 2 + 1) - 1
    signing = 2 * quorum - signers - 1
    return (
        n_clients * _tail(n_clients - 1, bad, degree, near)
        + 2 * n_clients * _tail(n_clients - 1, bad, degree // 2, side)
        + _tail(n_clients, bad, signers, signing)
    )


def _tail(population: int, marked: int, size: int, most: int) -> float:
    """Chance of more than `most` marked ones among `size` that are drawn."""
    marked = min(marked, population)
    low, high = max(most + 1, 0, size + marked - population), min(marked, size)
    if most < max(0, size + marked - population):
        return 1.0
    whole = _log_choose(population, size)
    return sum(
        exp(_log_choose(marked, k) + _log_choose(population - marked, size - k) - whole)
        for k in range(high, low - 1, -1)
    )


def _quantile(population: int, marked: int, size: int, chance: float) -> int:
    """Least number that is exceeded with less than this chance."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        if _tail(population, marked, size, middle) < chance:
            high = middle
        else:
            low = middle + 1
    return low


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def to_bits(clients: Iterable[int], n_clients: int) -> bytes:
    """Set of clients as one bit for each client of the round."""
    flags = np.zeros(n_clients, dtype=np.uint8)
    flags[list(clients)] = 1
    return np.packbits(flags, bitorder="little").tobytes()


# In one process all clients read the same sets.
@lru_cache(maxsize=16)
def from_bits(bits: bytes, n_clients: int) -> tuple[int, ...] | None:
    """Clients of a set, in order; None if it is not one that `to_bits` writes."""
    if len(bits) != (n_clients + 7) // 8:
        return None
    flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), bitorder="little")
    if flags[n_clients:].any():
        return None
    return tuple(np.flatnonzero(flags).tolist())


def key_hash(sealing: bytes, masking: bytes) -> bytes:
    """A client's entry in the list of all keys of a round."""
    return sha256(sealing + masking).digest()


# In one process all clients read the same list.
@lru_cache(maxsize=4)
def all_distinct(hashes: bytes) -> bool:
    """Whether no two entries of a list of hashes are the same."""
    entries = (hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES))
    return len(set(entries)) * HASH_BYTES == len(hashes)


def public_coin(
    plan: MaskPlan, listed: bytes, hashes: bytes, sites: Sequence[str]
) -> bytes:
    """Number that the keys of all clients of a round decide.

    plan: Terms of the round, without a coin.
    listed: Clients that sent keys, as bits.
    hashes: `key_hash` of each of them, in order.
    sites: Their names; empty if no client signs.
    """
    # Names have no line breaks.
    names = "\n".join(sites).encode()
    parts = (sha256(part).digest() for part in (listed, hashes, names))
    return sha256(b"skfedcal coin" + plan.context + b"".join(parts)).digest()


def _context(plan: MaskPlan) -> bytes:
    run = plan.run.encode()
    numbers = (
        plan.round_index, plan.n_clients, plan.degree, plan.threshold, plan.signers,
        plan.quorum, plan.n_rounds, len(run),
    )  # fmt: skip
    packed = b"".join(int(number).to_bytes(8, "big") for number in numbers)
    bound = (plan.coin, plan.shared, plan.about)
    hashes = b"".join(sha256(part).digest() for part in bound)
    return sha256(b"skfedcal secure sum 4" + packed + run + hashes).digest()


@lru_cache(maxsize=8)
def _ring(coin: bytes, n_clients: int) -> tuple[list[int], dict[int, int]]:
    """Clients in the order of their hashes, and the place of each."""
    keys = [sha256(coin + i.to_bytes(8, "big")).digest() for i in range(n_clients)]
    ring = sorted(range(n_clients), key=keys.__getitem__)
    return ring, {client: place for place, client in enumerate(ring)}
