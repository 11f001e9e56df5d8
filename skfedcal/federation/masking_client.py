"""A client's side of masked sums: five answers, and when it refuses to give them.

Double masking of Bonawitz et al. (2017). What a client sends is its integers plus a
mask of its own plus one mask with each neighbour, signs chosen so that these cancel in
the sum. Shares of its secrets at the neighbours let the server take off the own masks
of clients that answered and the pair masks of clients that did not: never both of one
client.

Keys and shares are made for several rounds at once ('keys', 'shares'): every round has
a masking key and an own mask that are drawn for it alone and erased when it is
answered. A round then takes the stages 'masked' and 'unmask'.

A client with a roster does not trust the server's list of survivors. A list that lacks
a client it believes only if enough other sites signed it (section 6 there), in one more
stage, 'survivors'; it signs one list for each round. Where all are neighbours a list
that lacks nobody needs no signatures: no masking key is opened by it.

Every field of a message is read once, by the functions at the end of this file; what
a refusal says depends on the messages of the server and on public facts only.

Needs numpy and `cryptography`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

from skfedcal.exceptions import SecureAggregationError
from skfedcal.federation import crypto
from skfedcal.federation.crypto import KEY_BYTES, SIGNATURE_BYTES, Words
from skfedcal.federation.mask_plan import (
    HASH_BYTES,
    MAX_RUN,
    SITE_COLLUDERS,
    MaskPlan,
    all_distinct,
    from_bits,
    key_hash,
    public_coin,
    split,
)
from skfedcal.federation.policy import AnsweredRuns
from skfedcal.federation.roster import MAX_NAME, Roster, SiteKey, is_name

Message = dict[str, Any]
Keys = tuple[bytes, bytes]

# The two secrets of a round are shared together; a box adds a tag of 16 bytes.
SHARE_BYTES = 2 * KEY_BYTES
_TAG_BYTES = 16


class MaskingClient:
    """One site in the rounds of a run.

    state: What an earlier message left behind: plain numbers, bytes and lists, secret.
    site_key: Signs this site's keys and the lists of survivors; needed where others
        hold a roster.
    roster: Sites whose keys are accepted, and whose signatures under a list of
        survivors count; None trusts the server to pass on true keys and true lists.
    min_clients: Least number of clients whose sum this site takes part in.
    max_colluders: Clients of a round that may collude with the server. On a graph a
        site with a roster allows for a tenth of the clients at least.
    """

    def __init__(
        self,
        state: Message | None = None,
        *,
        site_key: SiteKey | None = None,
        roster: Roster | None = None,
        min_clients: int = 2,
        max_colluders: int = 0,
    ) -> None:
        self.state: Message = dict(state or {})
        self._site_key = site_key
        self._roster = roster
        self._min_clients = int(min_clients)
        self._max_colluders = int(max_colluders)

    def keys(self, message: Message, about: bytes = b"") -> Message:
        """Make keys for some rounds and give their public halves.

        `about` is a hash of what this client is asked in all of them.
        """
        plan = MaskPlan.from_message(message, about)
        me = read_int(message, "you")
        plan.check_number(me)
        answered = AnsweredRuns(self.state, "seen")
        if why := answered.refusal(plan.run, plan.round_index):
            raise SecureAggregationError(f"This site {why}.")
        if plan.n_clients < self._min_clients:
            raise SecureAggregationError(
                f"The sum would be over {plan.n_clients} clients; this site requires "
                f"at least {self._min_clients}."
            )
        if self._roster is not None:
            self._check_bears(plan)
        sealing = crypto.new_key()
        masking = [crypto.new_key() for _ in plan.rounds]
        public = (
            sealing.public_key().public_bytes_raw(),
            b"".join(key.public_key().public_bytes_raw() for key in masking),
        )
        answered.add(plan.run, plan.rounds[-1])
        self.state = {
            **plan.to_message(),
            "about": about,
            **answered.to_state(),
            "stage": "keys",
            "me": me,
            "sealing": sealing.private_bytes_raw(),
            # Own mask and masking key of each round from `next` on.
            "secrets": b"".join(
                os.urandom(KEY_BYTES) + key.private_bytes_raw() for key in masking
            ),
            "next": plan.round_index,
            "public": list(public),
        }
        reply: Message = {"sealing": public[0], "masking": public[1]}
        if self._site_key is not None:
            reply["site"] = self._site_key.name
            reply["signature"] = self._site_key.sign(
                signed_text(plan, me, self._site_key.name, *public)
            )
        if self._roster is not None:
            # The server then collects signatures under a list that lacks a client.
            reply["roster"] = 1
        return reply

    def shares(self, message: Message) -> Message:
        """Share the secrets of all rounds among the neighbours that sent keys."""
        with self._stage(message, ("keys",), "shares") as (plan, me):
            listed = read_bits(message, "listed", plan)
            plan, sites = self._drawn(plan, me, message, listed)
            peers = self._checked_peers(plan, me, message, listed, sites)
            secrets = self.state["secrets"]
            holders = plan.holders(me)
            parts = dict(
                zip(holders, split(secrets, plan.threshold, len(holders)), strict=True)
            )
            boxes = self._box_keys(plan, me, {i: keys[0] for i, keys in peers.items()})
            sealed = [
                crypto.seal(boxes[peer][0], parts[peer], plan.context) for peer in peers
            ]
            signing = [i for i in plan.committee() if i in sites]
            self.state |= {
                "coin": plan.coin,
                "listed": message["listed"],
                "sealing": b"",
                "peers": list(peers),
                "peer_masking": [keys[1] for keys in peers.values()],
                "peer_boxes": [boxes[peer][1] for peer in peers],
                "signing": signing,
                "signing_sites": [sites[i] for i in signing],
                "own_share": parts[me],
            }
        # A hash tells nothing of 32 random bytes; with it a wrong share is noticed.
        own = (secrets[at : at + KEY_BYTES] for at in _places(plan))
        checks = (sha256(plan.context + mask).digest() for mask in own)
        return {"to": list(peers), "sealed": sealed, "check": b"".join(checks)}

    def masked(
        self,
        message: Message,
        answer: Callable[[], Words],
        n_min: int = 0,
        about: bytes = b"",
    ) -> Words:
        """Masked words of this client in one round; `answer` computes them.

        `n_min` is the least number of clients of a sum in which the answer may be. The
        client enforces it where all are neighbours or where it holds a roster; else, on
        a graph, it relies on the server. `about` is a hash of what is asked in this
        round.

        Secrets of this round and of those before it are erased first. Nothing that
        depends on the message fails after `answer` was called.
        """
        before = ("shares", "open", "masked", "survivors")
        with self._stage(message, before, "masked") as (plan, me):
            if plan.n_clients < n_min:
                raise SecureAggregationError(
                    f"The answer may only be in sums of at least {n_min} clients; "
                    f"this one has {plan.n_clients}."
                )
            self._open_boxes(plan, me, message)
            self._check_sharers(plan, n_min)
            index = message["round"]
            own_mask, masking = self._take_secrets(index)
            # Masks cancel between clients only that were told the same of who shared,
            # and were asked the same.
            plan = plan.of_round(index, self.state["shared"], about)
            seeds = self._pair_seeds(plan, me, masking)
            own = crypto.derive(own_mask, own_text(plan, me))
            self.state |= {"open": index, "asked": about, "n_min": int(n_min)}
            self.state.pop("signed", None)
            words = {name: value.copy() for name, value in answer().items()}
            shapes = {
                name: (value.shape, value.dtype.itemsize)
                for name, value in words.items()
            }
            add(words, crypto.mask(own, shapes))
            for peer, seed in zip(self.state["senders"], seeds, strict=True):
                add(words, crypto.mask(seed, shapes), minus=me > peer)
        return words

    def survivors(self, message: Message) -> Message:
        """Sign the list of clients that answered: one list for each round."""
        with self._stage(message, ("masked",), "survivors") as (plan, me):
            if self._site_key is None or me not in plan.committee():
                raise SecureAggregationError(
                    "This site does not sign lists of survivors in this round."
                )
            self._checked_survivors(plan, me, message)
            listed = message["survivors"]
            self.state["signed"] = listed
            name = self._site_key.name
            text = survivors_text(plan, me, name, listed)
        return {"signature": self._site_key.sign(text)}

    def unmask(self, message: Message) -> Message:
        """Return shares of the masks of survivors and of the keys of the others.

        Of one round, and once: they are erased first.
        """
        with self._stage(message, ("masked", "survivors"), "open") as (plan, me):
            state = dict(self.state)
            held = self._take_shares(message["round"])
            alive = self._checked_survivors(plan, me, message, state)
            if self._roster is not None:
                self._check_quorum(plan, me, message, state)
        near = sorted(held)
        living = [peer for peer in near if peer in alive]
        dead = [peer for peer in near if peer not in alive]
        return {
            "alive": living,
            "own_masks": [held[peer][:KEY_BYTES] for peer in living],
            "dead": dead,
            "masking": [held[peer][KEY_BYTES:] for peer in dead],
        }

    def knows(self, run: str) -> bool:
        """Whether keys were made for a round of this run."""
        return run in self.state.get("seen_runs", ())

    def _check_bears(self, plan: MaskPlan) -> None:
        """Refuse terms under which a dishonest server could open more than one sum."""
        colluders = self._max_colluders
        if not plan.complete:
            colluders = max(colluders, int(SITE_COLLUDERS * plan.n_clients))
        if not plan.bears(colluders):
            raise SecureAggregationError(
                f"This site holds a roster and allows for {colluders} colluders; with "
                f"{plan.n_clients} clients, {plan.degree} neighbours, a threshold of "
                f"{plan.threshold} and {plan.needed_signatures} signatures they could "
                "help a dishonest server to open more than one sum. Plan the round "
                "with active=True."
            )

    @contextmanager
    def _stage(
        self, message: Message, before: Sequence[str], after: str
    ) -> Iterator[tuple[MaskPlan, int]]:
        """Check that a message is the next one of the rounds under way.

        They end, and their secrets are forgotten, if what follows fails. The terms are
        those of the round that is open, in its later stages.
        """
        stage = self.state.get("stage")
        if stage not in before:
            raise SecureAggregationError(
                f"Message out of order: the last stage at this site was {stage!r}, "
                f"not {before[-1]!r}."
            )
        state = self.state
        coin = state.get("coin", b"")
        plan = MaskPlan.from_message(state, state["about"], coin=coin)
        asked = read_text(message, "run"), read_int(message, "round")
        later = after in ("survivors", "open")
        expected = range(state["next"], plan.rounds.stop)
        if later:
            expected = range(state["open"], state["open"] + 1)
        elif after == "shares":
            expected = range(plan.round_index, plan.round_index + 1)
        if asked[0] != plan.run or asked[1] not in expected:
            raise SecureAggregationError(
                f"Round {asked[1]} of run {asked[0]!r} is not under way at this site."
            )
        if later:
            plan = plan.of_round(asked[1], state["shared"], state["asked"])
        # Before anything is computed: a message that fails is not tried again.
        self.state["stage"] = after
        try:
            yield plan, state["me"]
        except BaseException:
            self.forget()
            raise

    def forget(self) -> None:
        """End all rounds: no secret of them is left."""
        self.state = {**AnsweredRuns(self.state, "seen").to_state(), "stage": "done"}

    def _open_boxes(self, plan: MaskPlan, me: int, message: Message) -> None:
        """Unseal the shares of the neighbours; before the first round only."""
        if "held" in self.state:
            if message.get("shared", self.state["shared"]) != self.state["shared"]:
                raise SecureAggregationError(
                    "The list of clients that sent shares is not the one of the "
                    "rounds before."
                )
            return
        senders = self._senders(plan, me, message)
        sealed = read_list(message, "sealed", bytes, len(senders), box_bytes(plan))
        self.state |= {
            "shared": message["shared"],
            "senders": senders,
            # Shares of each round from `held_from` on; the last are its own.
            "held": [*self._unsealed(plan, senders, sealed), self.state["own_share"]],
            "held_from": plan.round_index,
            "own_share": b"",
            "peer_boxes": [],
        }

    def _check_sharers(self, plan: MaskPlan, n_min: int) -> None:
        """Refuse to answer among so few that a sum over all of them is too small.

        Others can open that sum without asking this site again.
        """
        n_shared = len(from_bits(self.state["shared"], plan.n_clients) or ())
        least = max(n_min, self._min_clients)
        # Else the server may have invented clients of the graph.
        if (plan.complete or self._roster is not None) and n_shared < least:
            raise SecureAggregationError(
                f"Only {n_shared} clients shared their secrets; {least} are needed."
            )

    def _take_secrets(self, index: int) -> Keys:
        """Own mask and masking key of a round; they and those before are erased."""
        state = self.state
        at = SHARE_BYTES * (index - state["next"])
        secrets = state["secrets"][at : at + SHARE_BYTES]
        state["secrets"] = state["secrets"][at + SHARE_BYTES :]
        state["next"] = index + 1
        return secrets[:KEY_BYTES], secrets[KEY_BYTES:]

    def _take_shares(self, index: int) -> dict[int, bytes]:
        """Shares of a round by client; they and those before are erased."""
        state = self.state
        at = SHARE_BYTES * (index - state["held_from"])
        holders = [*state["senders"], state["me"]]
        found = {
            holder: raw[at : at + SHARE_BYTES]
            for holder, raw in zip(holders, state["held"], strict=True)
        }
        if state["next"] == state["round"] + state["rounds"]:
            self.forget()
            return found
        state["held"] = [raw[at + SHARE_BYTES :] for raw in state["held"]]
        state["held_from"] = index + 1
        return found

    def _drawn(
        self, plan: MaskPlan, me: int, message: Message, listed: Sequence[int]
    ) -> tuple[MaskPlan, dict[int, str]]:
        """Plan with the coin that all keys decide, and the names of who sent them."""
        if me not in listed:
            raise SecureAggregationError(
                "The list of keys lacks the keys of this site."
            )
        own = key_hash(*self.state["public"])
        sites = read_list(message, "sites", str, (0, len(listed)), MAX_NAME)
        if sites and len(sites) != len(listed):
            raise SecureAggregationError("Not all sites of the round are named.")
        if not all(not site or is_name(site) for site in sites):
            raise SecureAggregationError("The list of keys has an invalid site name.")
        if plan.complete:
            others = [i for i in listed if i != me]
            given = dict(zip(others, self._given(message, len(others)), strict=True))
            hashes = b"".join(own if i == me else key_hash(*given[i]) for i in listed)
        else:
            hashes = read_bytes(message, "hashes", HASH_BYTES * len(listed))
            if not all_distinct(hashes):
                raise SecureAggregationError("Two keys of a round are the same.")
            at = HASH_BYTES * listed.index(me)
            if hashes[at : at + HASH_BYTES] != own:
                raise SecureAggregationError(
                    "The list of keys has different keys for this site."
                )
        names = dict(zip(listed, sites, strict=True)) if sites else {}
        if self._roster is not None:
            self._check_sites(me, names)
        coin = public_coin(plan, message["listed"], hashes, sites)
        return replace(plan, coin=coin), names

    def _check_sites(self, me: int, names: Mapping[int, str]) -> None:
        """Refuse a list that has a site twice, or one that the roster does not have."""
        assert self._roster is not None
        if self._site_key is None or names.get(me) != self._site_key.name:
            raise SecureAggregationError(
                "This site holds a roster, and the list of keys does not name it."
            )
        if len(set(names.values())) != len(names):
            raise SecureAggregationError("A site is listed twice in one round.")
        for name in names.values():
            if name not in self._roster.sites:
                raise SecureAggregationError(f"Site {name!r} is not in the roster.")

    def _given(self, message: Message, n_peers: int) -> list[Keys]:
        """Public keys of neighbours: for shares, and for the masks of all rounds."""
        size = KEY_BYTES * self.state["rounds"]
        sealing = read_list(message, "sealing", bytes, n_peers, KEY_BYTES)
        masking = read_list(message, "masking", bytes, n_peers, size)
        return list(zip(sealing, masking, strict=True))

    def _checked_peers(
        self,
        plan: MaskPlan,
        me: int,
        message: Message,
        listed: Sequence[int],
        sites: Mapping[int, str],
    ) -> dict[int, Keys]:
        """Keys of the neighbours, refused if they are invalid or not signed by them."""
        known = set(listed)
        peers = [i for i in plan.holders(me) if i in known and i != me]
        if len(peers) + 1 < plan.threshold:
            raise SecureAggregationError(
                f"Only {len(peers) + 1} clients sent keys, {plan.threshold} are needed."
            )
        keys = self._given(message, len(peers))
        if not plan.complete:
            self._check_hashes(
                message["hashes"], listed, dict(zip(peers, keys, strict=True))
            )
        pairs = [*keys, tuple(self.state["public"])]
        distinct = {key for pair in pairs for key in cut_keys(b"".join(pair))}
        if len(distinct) != (1 + plan.n_rounds) * len(pairs):
            raise SecureAggregationError("Two keys of a round are the same.")
        if self._roster is not None:
            signatures = read_list(
                message, "signatures", bytes, len(peers), SIGNATURE_BYTES
            )
            # Keys were signed before the coin was known.
            terms = replace(plan, coin=b"")
            for peer, pair, signature in zip(peers, keys, signatures, strict=True):
                text = signed_text(terms, peer, sites[peer], *pair)
                if not self._roster.signed(sites[peer], text, signature):
                    raise SecureAggregationError(
                        f"Site {sites[peer]!r} did not sign its keys for this round "
                        "and request."
                    )
        return dict(zip(peers, keys, strict=True))

    def _check_hashes(
        self, hashes: bytes, listed: Sequence[int], keys: Mapping[int, Keys]
    ) -> None:
        """Refuse keys of neighbours that are not those of the list of all keys."""
        place = {client: HASH_BYTES * at for at, client in enumerate(listed)}
        for peer, pair in keys.items():
            if hashes[place[peer] : place[peer] + HASH_BYTES] != key_hash(*pair):
                raise SecureAggregationError(
                    f"The keys of client {peer} are not those of the list."
                )

    def _senders(self, plan: MaskPlan, me: int, message: Message) -> list[int]:
        """Neighbours that shared their secrets, by the server's list of all who did."""
        shared = frozenset(read_bits(message, "shared", plan))
        known = from_bits(self.state["listed"], plan.n_clients)
        if me not in shared or not shared <= frozenset(known or ()):
            raise SecureAggregationError(
                "The list of clients that sent shares has one that sent no keys, or "
                "lacks this site."
            )
        senders = [peer for peer in self.state["peers"] if peer in shared]
        if len(senders) + 1 < plan.threshold:
            raise SecureAggregationError(
                f"Only {len(senders) + 1} holders of shares are left, "
                f"{plan.threshold} are needed."
            )
        return senders

    def _pair_seeds(self, plan: MaskPlan, me: int, masking: bytes) -> list[bytes]:
        """Keys of the masks with the neighbours in one round."""
        state, key = self.state, crypto.load_key(masking)
        public = dict(zip(state["peers"], state["peer_masking"], strict=True))
        at = KEY_BYTES * (plan.round_index - state["round"])
        return [
            crypto.derive(
                crypto.agree(key, public[peer][at : at + KEY_BYTES]),
                pair_text(plan, b"mask", me, peer),
            )
            for peer in state["senders"]
        ]

    def _checked_survivors(
        self, plan: MaskPlan, me: int, message: Message, state: Message | None = None
    ) -> frozenset[int]:
        """Survivors by the list of the server, refused if the list is invalid."""
        state = self.state if state is None else state
        alive = frozenset(read_bits(message, "survivors", plan))
        if not alive <= frozenset(from_bits(plan.shared, plan.n_clients) or ()):
            raise SecureAggregationError(
                "The list of survivors has clients that shared no secrets."
            )
        near = sum(peer in alive for peer in state["senders"]) + (me in alive)
        if me not in alive or near < plan.threshold:
            raise SecureAggregationError(
                f"The list of survivors has {near} holders of shares; "
                f"{plan.threshold} are needed, this site included."
            )
        least = max(state["n_min"], self._min_clients)
        # Else the server may have invented clients of the graph.
        counts = plan.complete or self._roster is not None
        if counts and len(alive) < least:
            raise SecureAggregationError(
                f"The list of survivors has {len(alive)} clients; {least} are needed."
            )
        return alive

    def _check_quorum(
        self,
        plan: MaskPlan,
        me: int,
        message: Message,
        state: Message,
    ) -> None:
        """Refuse a list of survivors with too few signatures, or a second list.

        One of all who shared needs none, where all are neighbours.
        """
        assert self._roster is not None
        listed = message["survivors"]
        if plan.complete and "signed" not in state and listed == plan.shared:
            return
        if "signed" in state and state["signed"] != listed:
            raise SecureAggregationError(
                "This site signed another list of survivors for this round."
            )
        sites = dict(zip(state["signing"], state["signing_sites"], strict=True))
        signers = read_list(message, "signers", int, (0, len(sites)))
        signatures = read_list(
            message, "signatures", bytes, len(signers), SIGNATURE_BYTES
        )
        if len(set(signers)) != len(signers) or not sites.keys() >= set(signers):
            raise SecureAggregationError(
                "The list of survivors is signed by clients that may not sign it, or "
                "twice by one client."
            )
        # Its own needs no check: the list is the one that it signed.
        valid = int("signed" in state)
        for signer, signature in zip(signers, signatures, strict=True):
            if valid >= plan.needed_signatures:
                break
            text = survivors_text(plan, signer, sites[signer], listed)
            if signer != me and self._roster.signed(sites[signer], text, signature):
                valid += 1
        if valid < plan.needed_signatures:
            raise SecureAggregationError(
                f"{valid} sites signed the list of survivors, "
                f"{plan.needed_signatures} are needed."
            )

    def _box_keys(
        self, plan: MaskPlan, me: int, sealing: Mapping[int, bytes]
    ) -> dict[int, Keys]:
        """Keys of the boxes to and from each peer; one agreement gives both."""
        key = crypto.load_key(self.state["sealing"])
        out = {}
        for peer, public in sealing.items():
            text = pair_text(plan, b"share", me, peer)
            both = crypto.derive(crypto.agree(key, public), text, 2)
            lower, upper = both[:KEY_BYTES], both[KEY_BYTES:]
            out[peer] = (lower, upper) if me < peer else (upper, lower)
        return out

    def _unsealed(
        self, plan: MaskPlan, senders: list[int], sealed: list[bytes]
    ) -> list[bytes]:
        """Shares that the neighbours sealed for this client."""
        keys = dict(zip(self.state["peers"], self.state["peer_boxes"], strict=True))
        return [
            crypto.unseal(keys[peer], box, plan.context, f"client {peer}")
            for peer, box in zip(senders, sealed, strict=True)
        ]


def cut_keys(raw: bytes) -> list[bytes]:
    """Keys that are written one after the other."""
    return [raw[at : at + KEY_BYTES] for at in range(0, len(raw), KEY_BYTES)]


def _places(plan: MaskPlan) -> range:
    """Where the two secrets of each round begin."""
    return range(0, SHARE_BYTES * plan.n_rounds, SHARE_BYTES)


def box_bytes(plan: MaskPlan) -> int:
    """Size of a sealed box with shares of all rounds."""
    return SHARE_BYTES * plan.n_rounds + _TAG_BYTES


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


def survivors_text(plan: MaskPlan, client: int, site: str, listed: bytes) -> bytes:
    """What a site signs before a sum is opened: who is in it, for this round only."""
    name = site.encode()
    return b"".join(
        [
            plan.context,
            b"survivors",
            client.to_bytes(8, "big"),
            len(name).to_bytes(8, "big"),
            name,
            sha256(listed).digest(),
        ]
    )


# Fields of messages. Nothing is converted, and sizes are checked first.


def read_int(message: Message, name: str) -> int:
    """Number of a client or round."""
    value = message.get(name)
    if type(value) is not int or not 0 <= value < 2**62:
        raise SecureAggregationError(f"The message has no number {name!r}.")
    return value


def read_text(message: Message, name: str) -> str:
    """Name of a run."""
    value = message.get(name)
    if type(value) is not str or len(value) > MAX_RUN:
        raise SecureAggregationError(f"The message has no text {name!r}.")
    return value


def read_bytes(message: Message, name: str, size: int) -> bytes:
    """Bytes of a known size."""
    value = message.get(name)
    if type(value) is not bytes or len(value) != size:
        raise SecureAggregationError(f"The message has no {size} bytes {name!r}.")
    return value


def read_bits(message: Message, name: str, plan: MaskPlan) -> tuple[int, ...]:
    """Set of clients of the round, in order."""
    bits = read_bytes(message, name, (plan.n_clients + 7) // 8)
    found = from_bits(bits, plan.n_clients)
    if found is None:
        raise SecureAggregationError(f"{name!r} has clients that are not in the round.")
    return found


def read_list(
    message: Message,
    name: str,
    kind: type,
    length: int | tuple[int, int],
    size: int | None = None,
) -> list[Any]:
    """List of values of one type.

    message, name: Where it is.
    kind (int, str, bytes): Type of every item.
    length (int or (int, int)): Number of items, or the least and the most of them.
    size: Bytes of each item; of texts the most characters.
    """
    value = message.get(name)
    least, most = (length, length) if isinstance(length, int) else length
    if type(value) is not list or not least <= len(value) <= most:
        raise SecureAggregationError(
            f"The message has no list {name!r} of {most} items."
        )
    for item in value:
        fits = type(item) is kind
        if fits and kind is bytes:
            fits = len(item) == size
        elif fits and kind is str:
            fits = len(item) <= (size or 0)
        if not fits:
            raise SecureAggregationError(
                f"The list {name!r} of the message has an item that is not of type "
                f"{kind.__name__} or not of the right size."
            )
    return value
