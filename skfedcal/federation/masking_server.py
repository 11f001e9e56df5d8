"""The server's side of masked sums: it sees masked words and, at the end, the sum.

Two exchanges prepare the keys and shares of several rounds; each round takes two more,
and a third one where a client is lost and sites hold rosters, or on a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from itertools import combinations
from typing import Any

from skfedcal.exceptions import NotEnoughClientsError, SecureAggregationError
from skfedcal.federation import crypto
from skfedcal.federation.crypto import KEY_BYTES, SIGNATURE_BYTES, Shapes, Words
from skfedcal.federation.endpoint import wrong_words
from skfedcal.federation.mask_plan import MaskPlan, join, key_hash, public_coin, to_bits
from skfedcal.federation.masking_client import (
    Message,
    add,
    box_bytes,
    cut_keys,
    own_text,
    pair_text,
)
from skfedcal.federation.roster import is_name

# One exchange: a message to each client of a stage, and the replies that came back.
Reply = tuple[Message, Words]
Exchange = Callable[[str, Mapping[int, Message]], Mapping[int, Reply]]

# Sets of shares that are tried when some are wrong.
_MAX_TRIES = 200


@dataclass(slots=True)
class MaskedSum:
    """Sum over the clients that answered, and the faults of the others.

    `clients` are their numbers in the plan; `faults` says what a reply that was left
    out had wrong.
    """

    words: Words
    clients: Sequence[int]
    faults: dict[int, str] = field(default_factory=dict)


def masked_sum(
    exchange: Exchange,
    plan: MaskPlan,
    shapes: Shapes,
    *,
    n_min: int = 0,
    names: Sequence[Any] | None = None,
    inside: Callable[[int], Sequence[int]] | None = None,
    about: bytes = b"",
) -> MaskedSum:
    """Prepare the rounds of a plan and open the sum of the first one.

    See `MaskedRounds` and its method `sum` for the parameters.

    Raises NotEnoughClientsError: If too few clients remain; nothing was opened.
    """
    rounds = MaskedRounds(exchange, plan, n_min=n_min, names=names)
    return rounds.sum(exchange, shapes, n_min=n_min, inside=inside, about=about)


class MaskedRounds:
    """Masked sums whose keys and shares are made together, in two exchanges.

    exchange: ``exchange(stage, messages) -> replies``, both by number of the client;
        clients that do not reply have dropped out. Stages are 'keys' and 'shares';
        later 'masked', 'survivors' and 'unmask'.
    plan: Terms of the rounds.
    n_min: Least number of clients of a sum.
    names: Names of clients in messages; None uses their numbers.

    `next` is the number of the round that is summed next.
    """

    def __init__(
        self,
        exchange: Exchange,
        plan: MaskPlan,
        *,
        n_min: int = 0,
        names: Sequence[Any] | None = None,
    ) -> None:
        self.exchange, self.plan, self.n_min = exchange, plan, n_min
        self.names = range(plan.n_clients) if names is None else names
        self.faults: dict[int, str] = {}
        self.base: Message = {"run": plan.run, "round": plan.round_index}
        self.next = plan.round_index
        self.public = self._keys()
        self.checks, self.boxes = self._shares(self.public)
        self.shared = to_bits(self.boxes, plan.n_clients)
        # Boxes travel until their receiver has answered.
        self._unopened = set(self.boxes)
        self._unprepared = self.faults

    def sum(
        self,
        exchange: Exchange,
        shapes: Shapes,
        *,
        n_min: int = 0,
        inside: Callable[[int], Sequence[int]] | None = None,
        about: bytes = b"",
    ) -> MaskedSum:
        """Ask all clients in the next round and open the sum of the survivors.

        exchange: Carries the messages of this round.
        shapes (mapping of str to (shape, n_bytes)): Arrays of a client's words.
        n_min: Least number of clients of the sum.
        inside: Clients whose masked words are in a reply, by its number, where
            aggregators add them up; None: each reply is of one client.
        about: Hash of the request of this round.
        Raises NotEnoughClientsError: If too few clients remain; nothing was opened.
        """
        self.exchange, self.n_min = exchange, n_min
        self.faults = dict(self._unprepared)
        index, self.next = self.next, self.next + 1
        self.base = {"run": self.plan.run, "round": index}
        plan = self.plan.of_round(index, self.shared, about)
        words, alive = self._masked(shapes, inside or (lambda client: [client]))
        signatures = self._survivors(alive)
        shares = self._unmask(alive, signatures)
        self._take_off_own(plan, words, shapes, alive, shares)
        self._take_off_pairs(plan, words, shapes, alive, shares)
        return MaskedSum(words, alive, self.faults)

    def _keys(self) -> dict[int, Message]:
        plan = self.plan
        asked = {i: plan.to_message() | {"you": i} for i in range(plan.n_clients)}
        out: dict[int, Message] = {}
        seen: set[bytes] = set()
        for client, reply in self._ask("keys", asked).items():
            size = plan.n_rounds * KEY_BYTES
            masking = _raw(reply.get("masking"))
            keys = {_raw(reply.get("sealing")), *cut_keys(masking)}
            whole = len(masking) == size and len(keys) == plan.n_rounds + 1
            # All others would refuse the rounds because of it.
            if not whole or keys & seen or not all(map(crypto.is_public, keys)):
                self.faults[client] = "sent no keys"
                continue
            if _name(reply) is None:
                self.faults[client] = "sent no site name"
                continue
            seen |= keys
            out[client] = reply
        self._check_left(len(out), "sent keys")
        return out

    def _shares(
        self, public: Mapping[int, Message]
    ) -> tuple[dict[int, list[bytes]], dict[int, dict[int, bytes]]]:
        """Checks by client and round; sealed shares by receiver and sender."""
        listed = self._draw(public)
        signatures = {
            i: _sized(reply.get("signature"), SIGNATURE_BYTES)
            for i, reply in public.items()
            if listed["sites"]
        }
        peers = {
            client: [
                i for i in self.plan.holders(client) if i in public and i != client
            ]
            for client in public
        }
        asked = {
            client: self.base
            | listed
            | {
                "sealing": [public[i]["sealing"] for i in of],
                "masking": [public[i]["masking"] for i in of],
                "signatures": [signatures[i] for i in of] if signatures else [],
            }
            for client, of in peers.items()
        }
        size, n_bytes = box_bytes(self.plan), KEY_BYTES * self.plan.n_rounds
        checks: dict[int, list[bytes]] = {}
        sent: dict[int, dict[int, bytes]] = {}
        for client, reply in self._ask("shares", asked).items():
            to, sealed = _items(reply.get("to")), _items(reply.get("sealed"))
            whole = to == peers[client] and len(sealed) == len(to)
            if not whole or not all(len(_raw(box)) == size for box in sealed):
                self.faults[client] = "did not share its secrets with all neighbours"
                continue
            checks[client] = cut_keys(_sized(reply.get("check"), n_bytes))
            sent[client] = dict(zip(to, sealed, strict=True))
        self._check_left(len(sent), "shared their secrets")
        boxes = {
            client: {i: sent[i][client] for i in peers[client] if i in sent}
            for client in sent
        }
        return checks, boxes

    def _draw(self, public: Mapping[int, Message]) -> Message:
        """List of all keys, by which every client draws the coin of the round."""
        clients = sorted(public)
        listed = to_bits(clients, self.plan.n_clients)
        keys = (public[i] for i in clients)
        hashes = b"".join(key_hash(k["sealing"], k["masking"]) for k in keys)
        sites = [_name(public[i]) or "" for i in clients]
        sites = sites if any(sites) else []
        coin = public_coin(self.plan, listed, hashes, sites)
        # Where all are neighbours, all keys are shown to all.
        shown = b"" if self.plan.complete else hashes
        self.plan = replace(self.plan, coin=coin)
        return {"listed": listed, "hashes": shown, "sites": sites}

    def _masked(
        self, shapes: Shapes, members: Callable[[int], Sequence[int]]
    ) -> tuple[Words, list[int]]:
        asked: dict[int, Message] = {}
        for client, own in self.boxes.items():
            asked[client] = dict(self.base)
            if client in self._unopened:
                asked[client] |= {"shared": self.shared, "sealed": list(own.values())}
        total: Words = {}
        alive: list[int] = []
        for client, (_, words) in sorted(self.exchange("masked", asked).items()):
            if client not in asked:
                continue
            inside = members(client)
            fault = wrong_words(words, shapes)
            if not fault and (
                not asked.keys() >= set(inside) or set(alive) & set(inside)
            ):
                fault = "sent a sum of other clients"
            if fault:
                self.faults[client] = fault
                continue
            alive = sorted([*alive, *inside])
            if total:
                add(total, words)
            else:
                total = {name: value.copy() for name, value in words.items()}
        self._unopened -= set(alive)
        self._check_left(len(alive), "sent masked answers")
        return total, alive

    def _survivors(self, alive: Sequence[int]) -> dict[int, bytes]:
        """Signatures under the list of who answered, if a client asks for them."""
        everyone = self.plan.complete and len(alive) == len(self.boxes)
        if everyone or not any(r.get("roster") == 1 for r in self.public.values()):
            return {}
        living = set(alive)
        listed = to_bits(alive, self.plan.n_clients)
        asked = {
            client: self.base | {"survivors": listed}
            for client in self.plan.committee()
            if client in living
        }
        out: dict[int, bytes] = {}
        for client, reply in self._ask("survivors", asked).items():
            signature = _raw(reply.get("signature"))
            if len(signature) != SIGNATURE_BYTES:
                self.faults[client] = "did not sign the list of survivors"
                continue
            out[client] = signature
        return out

    def _unmask(
        self, alive: Sequence[int], signatures: Mapping[int, bytes]
    ) -> dict[str, dict[int, dict[int, bytes]]]:
        """Shares by kind, by client that they are of, and by holder."""
        living = set(alive)
        letter = self.base | {
            "survivors": to_bits(alive, self.plan.n_clients),
            "signers": list(signatures),
            "signatures": list(signatures.values()),
        }
        whose = {}
        for client in alive:
            near = sorted([*self.boxes[client], client])
            whose[client] = {
                "alive": [i for i in near if i in living],
                "dead": [i for i in near if i not in living],
            }
        shares: dict[str, dict[int, dict[int, bytes]]] = {"own": {}, "masking": {}}
        asked = dict.fromkeys(alive, letter)
        for holder, reply in self._ask("unmask", asked).items():
            for kind, of, parts in (
                ("own", "alive", "own_masks"),
                ("masking", "dead", "masking"),
            ):
                found, near = _items(reply.get(parts)), whose[holder][of]
                if _items(reply.get(of)) != near or len(found) != len(near):
                    self.faults[holder] = "sent no shares"
                    break
                for client, share in zip(near, found, strict=True):
                    shares[kind].setdefault(client, {})[holder] = _raw(share)
        return shares

    def _take_off_own(
        self,
        plan: MaskPlan,
        words: Words,
        shapes: Shapes,
        alive: Sequence[int],
        shares: Mapping[str, Mapping[int, Mapping[int, bytes]]],
    ) -> None:
        at = plan.round_index - self.plan.round_index
        for client in alive:
            own = self._opened(
                client,
                shares["own"].get(client, {}),
                partial(_is_own_mask, self.plan, self.checks[client][at]),
            )
            key = crypto.derive(own, own_text(plan, client))
            add(words, crypto.mask(key, shapes), minus=True)

    def _take_off_pairs(
        self,
        plan: MaskPlan,
        words: Words,
        shapes: Shapes,
        alive: Sequence[int],
        shares: Mapping[str, Mapping[int, Mapping[int, bytes]]],
    ) -> None:
        living = set(alive)
        at = KEY_BYTES * (plan.round_index - self.plan.round_index)
        public = {
            client: reply["masking"][at : at + KEY_BYTES]
            for client, reply in self.public.items()
        }
        for client in sorted(set(self.boxes) - living):
            near = [i for i in self.boxes[client] if i in living]
            if not near:
                continue
            raw = self._opened(
                client,
                shares["masking"].get(client, {}),
                partial(_is_key_of, public[client]),
            )
            key = crypto.load_key(raw)
            for peer in near:
                text = pair_text(plan, b"mask", client, peer)
                seed = crypto.derive(crypto.agree(key, public[peer]), text)
                # What the peer added for this pair.
                add(words, crypto.mask(seed, shapes), minus=peer < client)

    def _opened(
        self,
        client: int,
        shares: Mapping[int, bytes],
        is_right: Callable[[bytes], bool],
    ) -> bytes:
        """Secret of a client from shares of which some may be wrong."""
        plan = self.plan
        place = {holder: x + 1 for x, holder in enumerate(plan.holders(client))}
        good = {h: share for h, share in shares.items() if len(share) == KEY_BYTES}
        if len(good) < plan.threshold:
            raise NotEnoughClientsError(
                f"{len(good)} shares of client {self.names[client]!r} were returned, "
                f"{plan.threshold} are needed to open the sum. Nothing of this round "
                "was released."
            )
        for tried, chosen in enumerate(combinations(sorted(good), plan.threshold)):
            if tried == _MAX_TRIES:
                break
            secret = join({place[holder]: good[holder] for holder in chosen})
            if is_right(secret):
                return secret
        raise SecureAggregationError(
            f"The shares of client {self.names[client]!r} are inconsistent; one of "
            f"the clients {[self.names[i] for i in sorted(good)]} sent a wrong share. "
            "Nothing of this round was released."
        )

    def _ask(self, stage: str, asked: Mapping[int, Message]) -> dict[int, Message]:
        replies = self.exchange(stage, asked)
        return {i: reply for i, (reply, _) in sorted(replies.items()) if i in asked}

    def _check_left(self, n_left: int, what: str) -> None:
        # On a graph the threshold counts neighbours; the shares decide later.
        needed = self.plan.threshold if self.plan.complete else 1
        if n_left < max(needed, self.n_min):
            raise NotEnoughClientsError(
                f"Only {n_left} of {self.plan.n_clients} clients {what}; "
                f"{max(needed, self.n_min)} are needed. Nothing of this round was "
                f"released.{self._left_out()}"
            )

    def _left_out(self) -> str:
        faults = "; ".join(
            f"client {self.names[i]!r} {why}" for i, why in sorted(self.faults.items())
        )
        return f" Left out: {faults}." if faults else ""


def _items(value: Any) -> list[Any]:
    """Value of a reply that should be a list."""
    return list(value) if isinstance(value, (list, tuple)) else []


def _raw(value: Any) -> bytes:
    """Value of a reply that should be bytes; bytes(n) of an integer is n zeros."""
    return value if isinstance(value, bytes) else b""


def _sized(value: Any, size: int) -> bytes:
    """Bytes of a size that others read; zeros for what they would refuse."""
    raw = _raw(value)
    return raw if len(raw) == size else bytes(size)


def _name(reply: Message) -> str | None:
    """Name of the site that signed keys, empty if none did; None if it is invalid."""
    name = reply.get("site", "")
    return name if isinstance(name, str) and (not name or is_name(name)) else None


def _is_own_mask(plan: MaskPlan, check: bytes, secret: bytes) -> bool:
    return sha256(plan.context + secret).digest() == check


def _is_key_of(public: bytes, secret: bytes) -> bool:
    return crypto.load_key(secret).public_key().public_bytes_raw() == public
