"""A client's side of a masked sum: four answers, and when it refuses to give them.

Double masking of Bonawitz et al. (2017). What a client sends is its integers plus a
mask of its own plus one mask with each neighbour, signs chosen so that these cancel in
the sum. Shares of its secrets at the neighbours let the server take off the own masks
of clients that answered and the pair masks of clients that did not: never both of one
client.

Needs numpy and `cryptography`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from skfedcal.exceptions import SecureAggregationError
from skfedcal.federation import _crypto
from skfedcal.federation._crypto import KEY_BYTES, Words
from skfedcal.federation._mask_plan import MaskPlan
from skfedcal.federation._roster import Roster, SiteKey
from skfedcal.federation._shamir import split

Message = dict[str, Any]


class MaskingClient:
    """One site in the rounds of a run.

    Parameters
    ----------
    state : dict, default=None
        What an earlier message left behind: plain numbers, bytes and lists, secret.
    site_key : SiteKey, default=None
        Signs this site's keys; needed where others hold a roster.
    roster : Roster, default=None
        Sites whose keys are accepted; None trusts the server to pass on true keys.
    min_clients : int, default=2
        Least number of clients whose sum this site takes part in.
    """

    def __init__(
        self,
        state: Message | None = None,
        *,
        site_key: SiteKey | None = None,
        roster: Roster | None = None,
        min_clients: int = 2,
    ) -> None:
        self.state: Message = dict(state or {})
        self._site_key = site_key
        self._roster = roster
        self._min_clients = int(min_clients)

    def keys(self, message: Message, about: bytes = b"") -> Message:
        """Make keys for this round and give their public halves.

        `about` is a hash of what this client is asked.
        """
        plan = MaskPlan.from_message(message, about)
        self._check_new(plan)
        if plan.n_clients < self._min_clients:
            raise SecureAggregationError(
                f"The sum would be over {plan.n_clients} clients; this site takes part "
                f"from {self._min_clients} on."
            )
        me = int(message["you"])
        plan.holders(me)
        sealing, masking = _crypto.new_key(), _crypto.new_key()
        public = (
            sealing.public_key().public_bytes_raw(),
            masking.public_key().public_bytes_raw(),
        )
        seen = dict(self._seen())
        seen[plan.run] = plan.round_index
        self.state = {
            **plan.to_message(),
            "about": about,
            "seen_runs": list(seen),
            "seen_rounds": list(seen.values()),
            "stage": "keys",
            "me": me,
            "sealing": sealing.private_bytes_raw(),
            "masking": masking.private_bytes_raw(),
            "public": list(public),
        }
        reply: Message = {"sealing": public[0], "masking": public[1]}
        if self._site_key is not None:
            reply["site"] = self._site_key.name
            reply["signature"] = self._site_key.sign(
                signed_text(plan, me, self._site_key.name, *public)
            )
        return reply

    def shares(self, message: Message) -> Message:
        """Share this round's secrets among the neighbours that sent keys."""
        plan, me = self._advance(message, "keys", "shares")
        peers = self._checked_peers(plan, me, message)
        own_mask = os.urandom(KEY_BYTES)
        secret = own_mask + self.state["masking"]
        holders = plan.holders(me)
        parts = dict(
            zip(holders, split(secret, plan.threshold, len(holders)), strict=True)
        )
        boxes = self._box_keys(plan, me, {i: keys[0] for i, keys in peers.items()})
        sealed = [
            _crypto.seal(boxes[peer][0], parts[peer], plan.context) for peer in peers
        ]
        self.state |= {
            "peers": list(peers),
            "peer_masking": [keys[1] for keys in peers.values()],
            "peer_boxes": [boxes[peer][1] for peer in peers],
            "own_mask": own_mask,
            "own_share": parts[me],
        }
        # A hash tells nothing of 32 random bytes; with it a wrong share is noticed.
        return {
            "to": list(peers),
            "sealed": sealed,
            "check": sha256(plan.context + own_mask).digest(),
        }

    def masked(
        self, message: Message, answer: Callable[[], Words], n_min: int = 0
    ) -> Words:
        """Masked words of this client; `answer` computes them.

        `n_min` is the least number of clients of a sum in which the answer may be.
        Where all are neighbours the client sees to it; on a graph it sees a part of
        them only, and has the server's word.
        """
        plan, me = self._advance(message, "shares", "masked")
        if plan.n_clients < n_min:
            raise SecureAggregationError(
                f"The answer may be in sums of {n_min} clients or more; this one is of "
                f"{plan.n_clients}."
            )
        senders = [int(peer) for peer in message["from"]]
        known = set(self.state["peers"])
        if len(set(senders)) != len(senders) or not set(senders) <= known:
            raise SecureAggregationError("Shares come from clients that sent no keys.")
        if len(senders) + 1 < plan.threshold:
            raise SecureAggregationError(
                f"Only {len(senders) + 1} holders of shares are left, "
                f"{plan.threshold} are needed."
            )
        self.state["senders"], self.state["n_min"] = senders, int(n_min)
        self.state["held"] = self._unsealed(plan, senders, message["sealed"])
        words = {name: value.copy() for name, value in answer().items()}
        shapes = {
            name: (value.shape, value.dtype.itemsize) for name, value in words.items()
        }
        own = _crypto.derive(self.state["own_mask"], own_text(plan, me))
        add(words, _crypto.mask(own, shapes))
        key = _crypto.load_key(self.state["masking"])
        public = dict(zip(self.state["peers"], self.state["peer_masking"], strict=True))
        for peer in senders:
            seed = _crypto.derive(
                _crypto.agree(key, public[peer]), pair_text(plan, b"mask", me, peer)
            )
            add(words, _crypto.mask(seed, shapes), minus=me > peer)
        return words

    def unmask(self, message: Message) -> Message:
        """Give shares of the own masks of who answered and of the keys of who did not.

        Once for each round; its secrets are forgotten.
        """
        plan, me = self._advance(message, "masked", "done")
        alive = [int(peer) for peer in message["alive"]]
        dead = [int(peer) for peer in message["dead"]]
        held = dict(zip(self.state["senders"], self.state["held"], strict=True))
        held[me] = self.state["own_share"]
        needed = plan.threshold
        if plan.complete:
            needed = max(needed, self.state["n_min"], self._min_clients)
        self.state = {
            "seen_runs": self.state["seen_runs"],
            "seen_rounds": self.state["seen_rounds"],
            "stage": "done",
        }
        listed = alive + dead
        if len(set(listed)) != len(listed) or set(listed) != set(held):
            raise SecureAggregationError(
                "Every holder of shares must be listed once, as alive or as dead."
            )
        if me not in alive or len(alive) < needed:
            raise SecureAggregationError(
                f"{len(alive)} clients are said to have answered, {needed} are needed, "
                "this one among them."
            )
        return {
            "alive": alive,
            "own_masks": [held[peer][:KEY_BYTES] for peer in alive],
            "dead": dead,
            "masking": [held[peer][KEY_BYTES:] for peer in dead],
        }

    def _seen(self) -> Mapping[str, int]:
        names, last = self.state.get("seen_runs", ()), self.state.get("seen_rounds", ())
        return dict(zip(names, last, strict=True))

    def _check_new(self, plan: MaskPlan) -> None:
        last = self._seen().get(plan.run)
        if last is not None and plan.round_index <= last:
            raise SecureAggregationError(
                f"Round {plan.round_index} of run {plan.run!r} was answered before, or "
                f"a later one was ({last})."
            )

    def _advance(
        self, message: Message, before: str, after: str
    ) -> tuple[MaskPlan, int]:
        """Check that a message is the next one of the round under way."""
        stage = self.state.get("stage")
        if stage != before:
            raise SecureAggregationError(
                f"Out of order: this site is after {stage!r}, not {before!r}."
            )
        plan = MaskPlan.from_message(self.state, self.state["about"])
        asked = (str(message["run"]), int(message["round"]))
        if asked != (plan.run, plan.round_index):
            raise SecureAggregationError(
                f"Round {asked[1]} of run {asked[0]!r} is not under way at this site."
            )
        # Before anything is computed: a message that fails is not tried again.
        self.state["stage"] = after
        return plan, int(self.state["me"])

    def _checked_peers(
        self, plan: MaskPlan, me: int, message: Message
    ) -> dict[int, tuple[bytes, bytes]]:
        """Keys of the neighbours, refused if they cannot be theirs."""
        peers = [int(peer) for peer in message["peers"]]
        sealing, masking = list(message["sealing"]), list(message["masking"])
        if not len(peers) == len(sealing) == len(masking):
            raise SecureAggregationError("Each neighbour has two keys.")
        neighbours = set(plan.holders(me)) - {me}
        if len(set(peers)) != len(peers) or not set(peers) <= neighbours:
            raise SecureAggregationError("Keys are listed of who is no neighbour.")
        if len({*sealing, *masking, *self.state["public"]}) != 2 * len(peers) + 2:
            raise SecureAggregationError("Two keys of a round are the same.")
        if len(peers) + 1 < plan.threshold:
            raise SecureAggregationError(
                f"Only {len(peers) + 1} clients sent keys, {plan.threshold} are needed."
            )
        if self._roster is not None:
            self._check_signatures(plan, peers, sealing, masking, message)
        return dict(zip(peers, zip(sealing, masking, strict=True), strict=True))

    def _check_signatures(
        self,
        plan: MaskPlan,
        peers: list[int],
        sealing: list[bytes],
        masking: list[bytes],
        message: Message,
    ) -> None:
        assert self._roster is not None
        sites = list(message.get("sites", ()))
        signatures = list(message.get("signatures", ()))
        if not len(sites) == len(signatures) == len(peers):
            raise SecureAggregationError(
                "This site holds a roster, and not all keys are signed."
            )
        own = None if self._site_key is None else self._site_key.name
        if len({*sites, own}) != len(sites) + 1:
            raise SecureAggregationError("A site is listed twice in one round.")
        for i, site in enumerate(sites):
            text = signed_text(plan, peers[i], site, sealing[i], masking[i])
            if not self._roster.signed(site, text, signatures[i]):
                raise SecureAggregationError(
                    f"Site {site!r} is not in the roster, or did not sign its keys "
                    "for this round and request."
                )

    def _box_keys(
        self, plan: MaskPlan, me: int, sealing: Mapping[int, bytes]
    ) -> dict[int, tuple[bytes, bytes]]:
        """Keys of the boxes to and from each peer; one agreement gives both."""
        key = _crypto.load_key(self.state["sealing"])
        out = {}
        for peer, public in sealing.items():
            text = pair_text(plan, b"share", me, peer)
            both = _crypto.derive(_crypto.agree(key, public), text, 2)
            lower, upper = both[:KEY_BYTES], both[KEY_BYTES:]
            out[peer] = (lower, upper) if me < peer else (upper, lower)
        return out

    def _unsealed(
        self, plan: MaskPlan, senders: list[int], sealed: list[bytes]
    ) -> list[bytes]:
        """Shares that the neighbours sealed for this client."""
        keys = dict(zip(self.state["peers"], self.state["peer_boxes"], strict=True))
        out = []
        for peer, box in zip(senders, sealed, strict=True):
            share = _crypto.unseal(keys[peer], box, plan.context, f"client {peer}")
            if len(share) != 2 * KEY_BYTES:
                raise SecureAggregationError(f"Client {peer} sent no share.")
            out.append(share)
        return out


def add(words: Words, mask: Words, minus: bool = False) -> None:
    """Add or take off a mask, in place; words wrap around."""
    for name, value in words.items():
        if minus:
            value -= mask[name]
        else:
            value += mask[name]


def own_text(plan: MaskPlan, client: int) -> bytes:
    """Purpose of a client's own mask."""
    return plan.context + b"own" + client.to_bytes(8, "big")


def pair_text(plan: MaskPlan, purpose: bytes, first: int, second: int) -> bytes:
    """Purpose of the keys of two clients, the same from both sides."""
    if first > second:
        first, second = second, first
    return plan.context + purpose + first.to_bytes(8, "big") + second.to_bytes(8, "big")


def signed_text(
    plan: MaskPlan, client: int, site: str, sealing: bytes, masking: bytes
) -> bytes:
    """What a site signs: its keys, for this round only."""
    name = site.encode()
    return b"".join(
        [
            plan.context,
            b"keys",
            client.to_bytes(8, "big"),
            len(name).to_bytes(8, "big"),
            name,
            sealing,
            masking,
        ]
    )
