"""Masked rounds against a server that does not follow the protocol."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from skfedcal.exceptions import NotEnoughClientsError, SecureAggregationError
from skfedcal.federation import mask_plan
from skfedcal.federation.crypto import unseal
from skfedcal.federation.mask_plan import (
    ACTIVE_BITS,
    HASH_BYTES,
    MaskPlan,
    active_graph_size,
    from_bits,
    graph_size,
    plan_masks,
    to_bits,
)
from skfedcal.federation.masking_client import MaskingClient, add, survivors_text
from skfedcal.federation.masking_server import MaskedRounds
from skfedcal.federation.roster import Roster, SiteKey

SHAPES = {"counts": ((3,), 4)}


def make_sites(n_clients, **options):
    keys = [SiteKey.generate(f"site-{i}") for i in range(n_clients)]
    roster = Roster({key.name: key.public for key in keys})
    clients = [MaskingClient(site_key=k, roster=roster, **options) for k in keys]
    return keys, clients


def answers_of(n_clients):
    rng = np.random.default_rng(n_clients)
    return [{"counts": rng.integers(0, 99, 3, np.uint32)} for _ in range(n_clients)]


def plain_sum(answers, clients):
    return np.add.reduce([answers[i]["counts"] for i in clients], dtype=np.uint32)


class Server(MaskedRounds):
    """Server that goes through the stages one by one, and may lie in each of them."""

    def __init__(self, clients, plan, meddle=None):
        self._terms = plan
        # What the base class knows before it has asked for keys.
        self.exchange, self.plan, self.n_min = self.call, plan, 0
        self.base, self.next = {"run": plan.run, "round": plan.round_index}, None
        self.names, self.faults = range(plan.n_clients), {}
        self.clients = clients
        self.answers = answers_of(len(clients))
        self.meddle = meddle or (lambda stage, client, message: message)
        self.words, self.refusals = {}, {}

    def call(self, stage, messages):
        out = {}
        for i, message in messages.items():
            reply = self.tell(stage, i, self.meddle(stage, i, dict(message)))
            if reply is not None:
                out[i] = reply
        return out

    def tell(self, stage, i, message):
        try:
            if stage == "masked":
                words = self.clients[i].masked(message, lambda: self.answers[i])
                self.words[i] = words
                return {}, words
            return getattr(self.clients[i], stage)(message), {}
        except SecureAggregationError as error:
            self.refusals[stage, i] = str(error)
            return None

    def prepare(self):
        super().__init__(self.call, self._terms)
        return self

    def run(self):
        return self.prepare().sum(self.call, SHAPES)

    def until_masked(self, index=None):
        if self.next is None:
            self.prepare()
        self.next = self.next if index is None else index
        self.base["round"], self.next = self.next, self.next + 1
        self._masked(SHAPES, lambda client: [client])
        return self

    @property
    def now(self):
        """Terms of the round that was asked last."""
        return self.plan.of_round(self.base["round"], self.shared, b"")

    def letter(self, alive, signatures=()):
        signatures = dict(signatures)
        return self.base | {
            "survivors": to_bits(alive, self.plan.n_clients),
            "signers": list(signatures),
            "signatures": list(signatures.values()),
        }

    def signed(self, alive, by):
        """Signatures under one list."""
        found = {i: self.tell("survivors", i, self.letter(alive)) for i in by}
        return {i: reply[0]["signature"] for i, reply in found.items() if reply}

    def opened(self, lists, signatures):
        """Shares that sites give for the list that each was told."""
        shares = {"own": {}, "masking": {}}
        for i, alive in lists.items():
            reply = self.tell("unmask", i, self.letter(alive, signatures[i]))
            if reply is None:
                continue
            for kind, of, parts in (
                ("own", "alive", "own_masks"),
                ("masking", "dead", "masking"),
            ):
                for j, part in zip(reply[0][of], reply[0][parts], strict=True):
                    shares[kind].setdefault(j, {})[i] = part
        return shares

    def sum_of(self, clients, shares):
        """Sum of the answers of these clients only."""
        total = {"counts": np.zeros(3, np.uint32)}
        for i in clients:
            add(total, self.words[i])
        self._take_off_own(self.now, total, SHAPES, clients, shares)
        self._take_off_pairs(self.now, total, SHAPES, clients, shares)
        return total["counts"]


def lying_lists(n_clients, threshold, least):
    """Lists of at least `least` survivors for all sites that open a sum of few.

    Every site of the second group is called dead to `threshold` others. As many sites
    as possible are in that group.
    """
    best = None
    for n_dead in range(1, n_clients - 1):
        need = dict.fromkeys(range(n_clients - n_dead, n_clients), threshold)
        lists = {}
        for site in range(n_clients):
            most = sorted((i for i in need if i != site), key=lambda i: -need[i])
            dead = [i for i in most if need[i] > 0][: n_clients - least]
            for i in dead:
                need[i] -= 1
            lists[site] = sorted(set(range(n_clients)) - set(dead))
        if max(need.values()) <= 0:
            best = lists, list(range(n_clients - n_dead))
    return best


def lie_about_survivors(n_clients, min_clients):
    """Tell all sites different lists; returns what was to be opened and the outcome."""
    threshold = n_clients // 2 + 1
    least = max(threshold, min_clients)
    found = lying_lists(n_clients, threshold, least)
    _, clients = make_sites(n_clients, min_clients=min_clients)
    plan = plan_masks("run", 0, n_clients, threshold=threshold)
    server = Server(clients, plan).until_masked()
    lists, few = found or (
        # No sum of few can be opened; two lists that differ.
        {i: list(range(n_clients)) if i else list(range(n_clients))[:least]
         for i in range(n_clients)},
        list(range(least)),
    )  # fmt: skip
    signatures = {}
    for i, alive in lists.items():
        signatures |= server.signed(alive, [i])
    # Each is shown all signatures there are.
    shares = server.opened(lists, dict.fromkeys(lists, signatures))
    return server, few, shares, len(few) < least


CASES = [(n, m) for n in range(4, 10) for m in range(2, n + 1)]


@pytest.mark.parametrize(("n_clients", "min_clients"), CASES)
def test_different_lists_for_different_sites_open_nothing(n_clients, min_clients):
    server, few, shares, gains = lie_about_survivors(n_clients, min_clients)
    if gains:
        assert not shares["own"] and not shares["masking"]
        refused = {text for (stage, _), text in server.refusals.items()}
        assert all("signed the list of survivors" in text for text in refused)
        with pytest.raises(NotEnoughClientsError):
            server.sum_of(few, shares)
    # Whatever was told: no client's two secrets are known.
    both = [
        i for i in range(n_clients)
        if len(shares["own"].get(i, ())) >= server.plan.threshold
        and len(shares["masking"].get(i, ())) >= server.plan.threshold
    ]  # fmt: skip
    assert not both


def test_without_the_check_such_lists_open_sums_of_few(monkeypatch):
    """The attack above is one: it fails for the check, and for nothing else."""
    monkeypatch.setattr(MaskingClient, "_check_quorum", lambda *args: None)
    gained = []
    for n_clients, min_clients in CASES:
        server, few, shares, gains = lie_about_survivors(n_clients, min_clients)
        if gains:
            expected = plain_sum(server.answers, few)
            np.testing.assert_array_equal(server.sum_of(few, shares), expected)
            gained.append((n_clients, min_clients, len(few)))
    # Sites that were told of five survivors are in a sum of four of eight.
    assert (8, 5, 4) in gained and (5, 2, 2) in gained
    assert {n for n, *_ in gained} == {5, 6, 7, 8, 9}


@pytest.mark.parametrize("n_clients", [5, 6, 9])
@pytest.mark.parametrize("spare", [0, 1])
def test_colluders_sign_two_lists_only_beyond_the_bound(n_clients, spare):
    """``2 threshold > n + c`` is what is needed, and no more."""
    threshold = -(-2 * n_clients // 3)
    n_bad = 2 * threshold - n_clients - 1 + spare
    keys, clients = make_sites(n_clients)
    plan = plan_masks("run", 0, n_clients, threshold=threshold)
    server = Server(clients, plan).until_masked()
    bad, good = range(n_bad), list(range(n_bad, n_clients))
    groups = good[::2], good[1::2]
    whole = list(range(n_clients))
    lists = whole, [i for i in whole if i != groups[0][0]]
    given = []
    for group, alive in zip(groups, lists, strict=True):
        signatures = server.signed(alive, group)
        for i in bad:
            listed = to_bits(alive, n_clients)
            text = survivors_text(server.now, i, keys[i].name, listed)
            signatures[i] = keys[i].sign(text)
        shares = server.opened(
            dict.fromkeys(group, alive), dict.fromkeys(group, signatures)
        )
        given.append(bool(shares["own"]))
    # With an odd number of honest sites one group is smaller.
    both = min(map(len, groups)) + n_bad >= threshold
    assert all(given) == both and (spare or not both)


def ready(n_clients=5, **options):
    _, clients = make_sites(n_clients, **options)
    plan = plan_masks("run", 0, n_clients)
    return Server(clients, plan).until_masked()


def is_forgotten(client):
    return set(client.state) == {"seen_runs", "seen_rounds", "stage"}


def unmask_refusal(server, alive, signatures, client=0):
    assert server.tell("unmask", client, server.letter(alive, signatures)) is None
    assert is_forgotten(server.clients[client])
    return server.refusals["unmask", client]


def test_a_round_with_rosters_is_opened():
    _, clients = make_sites(7)
    server = Server(clients, plan_masks("run", 0, 7))
    found = server.run()
    np.testing.assert_array_equal(
        found.words["counts"], plain_sum(server.answers, range(7))
    )
    assert all(map(is_forgotten, clients)) and not server.refusals


def test_signatures_are_not_collected_where_nobody_has_a_roster():
    stages = []

    def meddle(stage, client, message):
        stages.append(stage)
        return message

    Server([MaskingClient() for _ in range(4)], plan_masks("run", 0, 4), meddle).run()
    assert set(stages) == {"keys", "shares", "masked", "unmask"}


@pytest.mark.parametrize("lost", range(3))
def test_sites_may_drop_out_before_they_sign(lost):
    _, clients = make_sites(7)
    server = Server(clients, plan_masks("run", 0, 7))
    tell = server.tell
    gone = {("masked", 6), *(("survivors", i) for i in range(lost))}
    server.tell = lambda stage, i, m: None if (stage, i) in gone else tell(stage, i, m)
    if lost > 1:  # five of seven are needed
        with pytest.raises(NotEnoughClientsError):
            server.run()
        return
    words = server.run().words["counts"]
    np.testing.assert_array_equal(words, plain_sum(server.answers, range(6)))


def test_too_few_signatures_open_nothing():
    _, clients = make_sites(6)
    server = Server(clients, plan_masks("run", 0, 6))
    tell = server.tell
    gone = {("masked", 5), *(("survivors", i) for i in range(2))}
    server.tell = lambda stage, i, m: None if (stage, i) in gone else tell(stage, i, m)
    with pytest.raises(NotEnoughClientsError, match="Nothing of this round"):
        server.run()
    assert (
        "3 sites signed the list of survivors, 4 are needed"
        in set(server.refusals.values()).pop()
    )


def test_a_site_signs_one_list():
    server = ready()
    everyone, fewer = range(5), range(4)
    assert server.signed(everyone, [0])
    for alive in (everyone, fewer):
        assert not server.signed(alive, [0])
        assert "out of order" in server.refusals["survivors", 0]


def test_a_site_opens_the_list_only_that_it_signed():
    server = ready(6)
    server.signed(range(6), [0])
    others = server.signed(range(5), range(1, 5))
    assert len(others) == 4 == server.plan.threshold
    assert "signed another list" in unmask_refusal(server, range(5), others)


def test_a_site_that_was_not_asked_to_sign_believes_enough_others():
    server = ready(6)
    others = server.signed(range(5), range(1, 5))
    assert server.tell("unmask", 0, server.letter(range(5), others))


@pytest.mark.parametrize(
    "alive", [(1, 2, 3, 4), (0, 1), ()], ids=["itself dead", "few", "nobody"]
)
def test_a_list_that_cannot_be_is_not_signed_and_ends_the_round(alive):
    server = ready()
    assert not server.signed(alive, [0])
    assert "are needed" in server.refusals["survivors", 0]
    assert is_forgotten(server.clients[0])
    others = server.signed(range(5), range(1, 5))
    assert "out of order" in (
        server.tell("unmask", 0, server.letter(range(5), others))
        or server.refusals["unmask", 0]
    )


def test_a_list_has_nobody_who_did_not_share():
    _, clients = make_sites(6)
    server = Server(clients, plan_masks("run", 0, 6))
    tell = server.tell
    server.tell = lambda s, i, m: None if (s, i) == ("shares", 5) else tell(s, i, m)
    server.until_masked()
    assert not server.signed(range(6), [0])
    assert "shared no secrets" in server.refusals["survivors", 0]


def test_masks_do_not_cancel_between_sites_that_were_told_of_different_sharers():
    """The server keeps the box of one site from another."""

    def meddle(stage, client, message):
        if stage == "masked" and client == 0:
            message["shared"] = to_bits([0, 1, 2, 3, 4], 6)
            message["sealed"] = message["sealed"][:-1]
        return message

    _, clients = make_sites(6)
    server = Server(clients, plan_masks("run", 0, 6), meddle).until_masked()
    signatures = server.signed(range(6), range(1, 6))
    assert not server.signed(range(6), [0])
    others = dict.fromkeys(range(1, 6), range(6))
    shares = server.opened(others, dict.fromkeys(others, signatures))
    found = server.sum_of(range(6), shares)
    assert not np.array_equal(found, plain_sum(server.answers, range(6)))


def test_masks_are_bound_to_the_list_of_all_who_shared():
    """One site is told that a client far from it did not share."""
    server = Server([MaskingClient() for _ in range(60)], plan_masks("run", 0, 60))

    def meddle(stage, client, message):
        if stage == "masked" and client == 0:
            far = set(range(60)) - set(server.plan.holders(0))
            message["shared"] = to_bits(set(range(60)) - {min(far)}, 60)
        return message

    server.meddle = meddle
    server.until_masked()
    assert not server.refusals
    lists = dict.fromkeys(range(1, 60), range(60))
    shares = server.opened(lists, {key: {} for key in lists})
    found = server.sum_of(range(60), shares)
    assert not np.array_equal(found, plain_sum(server.answers, range(60)))
    server = Server([MaskingClient() for _ in range(60)], plan_masks("run", 0, 60))
    server.until_masked()
    shares = server.opened(lists, {key: {} for key in lists})
    right = plain_sum(server.answers, range(60))
    np.testing.assert_array_equal(server.sum_of(range(60), shares), right)


FORGED = {
    "none": lambda good, server: {},
    "one too few": lambda good, server: dict(list(good.items())[:-1]),
    "zeros": lambda good, server: {i: bytes(64) for i in good},
    "one changed": lambda good, server: (
        good | {1: bytes([good[1][0] ^ 1]) + good[1][1:]}
    ),
    "swapped": lambda good, server: good | {1: good[2], 2: good[1]},
    "one for all": lambda good, server: dict.fromkeys(good, good[1]),
    "of another list": lambda good, server: good | server.signed(range(6), [4]),
    "of keys": lambda good, server: {i: server.public[i]["signature"] for i in good},
}


@pytest.mark.parametrize("case", FORGED)
def test_signatures_that_are_none_do_not_count(case):
    server = ready(6)
    good = server.signed(range(5), [1, 2, 3])
    good |= server.signed(range(5), [4]) if case != "of another list" else {}
    refusal = unmask_refusal(server, range(5), FORGED[case](good, server))
    assert "4 are needed" in refusal


def test_signatures_of_an_earlier_round_do_not_count():
    _, clients = make_sites(6)
    first = Server(clients, plan_masks("run", 0, 6)).until_masked()
    old = first.signed(range(5), range(1, 5))
    assert len(old) == 4 == first.plan.threshold
    second = Server(clients, plan_masks("run", 1, 6)).until_masked()
    assert "0 sites signed" in unmask_refusal(second, range(5), old)


def test_signatures_of_strangers_do_not_count():
    server = ready(6)
    strangers, _ = make_sites(6)
    listed = to_bits(range(5), 6)
    forged = {
        i: key.sign(survivors_text(server.now, i, key.name, listed))
        for i, key in enumerate(strangers)
    }
    assert "0 sites signed" in unmask_refusal(server, range(5), forged)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"signers": [1, 1, 2, 3]}, "twice by one client"),
        ({"signers": [1, 2, 3, 9]}, "may not sign"),
        ({"signers": [1, 2, 3, True]}, "not of type int"),
        ({"signers": [1, 2, 3, 2**80]}, "may not sign"),
        ({"signers": list(range(7))}, "no list 'signers'"),
        ({"signatures": []}, "no list 'signatures'"),
        ({"signatures": [bytes(63)] * 4}, "not of the right size"),
        ({"signatures": ["x" * 64] * 4}, "not of type bytes"),
        ({"signatures": 10**13}, "no list 'signatures'"),
        ({"survivors": bytes(10**6)}, "no 1 bytes"),
        ({"survivors": b"\xff"}, "not in the round"),
    ],
)
def test_fields_of_the_quorum_are_read_strictly(changes, text):
    server = ready(6)
    good = server.signed(range(5), [1, 2, 3, 4])
    message = server.letter(range(5), good) | changes
    assert server.tell("unmask", 0, message) is None
    assert text in server.refusals["unmask", 0]
    assert is_forgotten(server.clients[0])


def test_out_of_order_and_repeated_lists_are_refused():
    _, clients = make_sites(4)
    server = Server(clients, plan_masks("run", 0, 4))
    assert server.tell("survivors", 0, server.letter(range(4))) is None
    server.prepare()
    assert server.tell("survivors", 0, server.letter(range(4))) is None
    server.until_masked()
    good = server.signed(range(4), range(4))
    assert len(good) == 4
    assert server.tell("unmask", 0, server.letter(range(4), good))
    for stage in ("survivors", "unmask"):
        assert server.tell(stage, 0, server.letter(range(4), good)) is None
        assert "out of order" in server.refusals[stage, 0]


def test_a_site_without_a_key_signs_nothing():
    clients = [MaskingClient() for _ in range(4)]
    server = Server(clients, plan_masks("run", 0, 4)).until_masked()
    assert not server.signed(range(4), [0])
    assert "does not sign" in server.refusals["survivors", 0]


# The graph.


def graph(n_clients=60, meddle=None):
    _, clients = make_sites(n_clients)
    return Server(clients, plan_masks("run", 0, n_clients, active=True), meddle)


def test_a_graph_of_sites_with_rosters_is_opened():
    server = graph()
    tell = server.tell
    gone = {("keys", 1), ("shares", 2), ("masked", 3), ("survivors", 4), ("unmask", 5)}
    server.tell = lambda s, i, m: None if (s, i) in gone else tell(s, i, m)
    found = server.run()
    assert not server.refusals and len(found.clients) == 57
    np.testing.assert_array_equal(
        found.words["counts"], plain_sum(server.answers, found.clients)
    )
    signers = server.plan.committee()
    assert len(signers) == server.plan.signers < 60


def test_a_least_cohort_is_kept_on_a_graph():
    """By a site with a roster, which is told of all survivors there."""
    _, clients = make_sites(60, min_clients=59)
    plan = plan_masks("run", 0, 60, active=True)
    server = Server(clients, plan).until_masked()
    by = server.plan.committee()
    assert not server.signed([i for i in range(60) if i not in by[1:3]], by[:1])
    assert "has 58 clients; 59" in server.refusals["survivors", by[0]]


def entry(client):
    return slice(HASH_BYTES * client, HASH_BYTES * (client + 1))


def changed_hash(client, by):
    def change(hashes):
        out = bytearray(hashes)
        out[entry(client)] = by(hashes)
        return bytes(out)

    return change


BAD_LISTS = {
    "own hash missing": ("hashes", changed_hash(0, lambda h: bytes(32)), "different"),
    "a hash twice": ("hashes", changed_hash(9, lambda h: h[entry(8)]), "the same"),
    "another list": ("hashes", changed_hash(9, lambda h: bytes(32)), ""),
    "too short": ("hashes", lambda h: h[:-1], "no 1920 bytes"),
    "too long": ("hashes", lambda h: h + bytes(32), "no 1920 bytes"),
    "empty": ("hashes", lambda h: b"", "no 1920 bytes"),
    "a number": ("hashes", lambda h: 10**13, "no 1920 bytes"),
    "not in it": ("listed", lambda b: bytes([b[0] & 254]) + b[1:], "lacks the keys"),
    "site twice": ("sites", lambda s: [*s[:-1], s[1]], "listed twice"),
    "a stranger": ("sites", lambda s: [*s[:-1], "x"], "not in the roster"),
    "another name": ("sites", lambda s: [s[1], s[0], *s[2:]], "does not name it"),
    "no names": ("sites", lambda s: [], "does not name it"),
    "names swapped": ("sites", lambda s: [s[0], *s[:0:-1]], ""),
    "keys swapped": ("sealing", lambda k: [k[1], k[0], *k[2:]], "not those of the"),
    "no signatures": ("signatures", lambda k: [bytes(64) for _ in k], "did not sign"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_LISTS)
def test_a_site_draws_the_graph_from_the_keys_of_all(case):
    """A changed list gives another ring: other keys would have to be shown."""
    name, change, text = BAD_LISTS[case]

    def meddle(stage, client, message):
        if stage == "shares" and client == 0:
            message[name] = change(message[name])
        return message

    server = graph(meddle=meddle)
    server._shares(server._keys())
    assert list(server.refusals) == [("shares", 0)]
    assert text in server.refusals["shares", 0]
    assert is_forgotten(server.clients[0])


def test_boxes_do_not_open_between_sites_with_different_lists():
    """Client 0 is shown a list in which a client far from it has other keys."""
    clients = [MaskingClient() for _ in range(60)]
    plan = plan_masks("run", 0, 60)
    server = Server(clients, plan)
    public = server._keys()
    true = server._draw(public)
    for far in range(1, 60):
        keys = MaskingClient().keys(plan.to_message() | {"you": far})
        lying = Server(clients, plan)
        other = public | {far: keys}
        listed = lying._draw(other)
        near = set(lying.plan.holders(0)) - {0}
        # The rings are drawn by the lists: they need not have a neighbour in common.
        if far not in near and near.intersection(server.plan.holders(0)):
            break

    def letter(of, client, listed):
        near = [i for i in of.plan.holders(client) if i != client]
        keys = {
            name: [public[i][name] for i in near] for name in ("sealing", "masking")
        }
        return of.base | listed | keys

    assert lying.tell("shares", 0, letter(lying, 0, listed))
    state = clients[0].state
    own = dict(zip(state["peers"], state["peer_boxes"], strict=True))
    both = [i for i in server.plan.holders(0) if i in own]
    assert both
    for i in both:
        reply, _ = server.tell("shares", i, letter(server, i, true))
        box = dict(zip(reply["to"], reply["sealed"], strict=True))[0]
        for context in (server.plan.context, lying.plan.context):
            with pytest.raises(SecureAggregationError, match="modified in transit"):
                unseal(own[i], box, context)


def test_a_site_with_a_roster_refuses_a_graph_that_a_dishonest_server_could_cut():
    _, clients = make_sites(3)
    for plan in (
        plan_masks("run", 0, 60),
        replace(plan_masks("run", 1, 60, active=True), threshold=14),
        # Nobody's two secrets are opened, but the ring can be cut.
        replace(plan_masks("run", 1, 60, active=True), threshold=18),
        replace(plan_masks("run", 2, 60, active=True), signers=5, quorum=3),
        replace(plan_masks("run", 3, 60, active=True), signers=0, quorum=0),
    ):
        with pytest.raises(SecureAggregationError, match="active=True"):
            clients[0].keys(plan.to_message() | {"you": 0})
    plan = plan_masks("run", 4, 60, active=True)
    with pytest.raises(SecureAggregationError, match="allows for 20 colluders"):
        MaskingClient(
            site_key=make_sites(1)[0][0], roster=Roster({}), max_colluders=20
        ).keys(plan.to_message() | {"you": 0})
    clients[0].keys(plan.to_message() | {"you": 0})


def test_the_ring_cannot_be_cut_by_a_list_of_dead_clients():
    """Two stretches of dead clients would leave two sums; the ends have too few."""
    plan = replace(plan_masks("run", 0, 101, active=True), coin=b"coin")
    ring, _ = plan._ring()
    half = plan.degree // 2
    dead = {ring[k] for k in range(half)}
    edge = ring[half]
    near = [i for i in plan.holders(edge) if i not in dead]
    assert len(near) == half + 1 < plan.threshold
    weak = replace(plan_masks("run", 0, 101), coin=b"coin")
    half = weak.degree // 2
    ring, _ = weak._ring()
    near = set(weak.holders(ring[half])) - {ring[k] for k in range(half)}
    assert len(near) >= weak.threshold


@pytest.mark.parametrize("n_clients", [60, 255, 1000, 100_000])
def test_active_graphs_hold_by_tails_of_another_library(n_clients):
    degree, threshold, signers, quorum = active_graph_size(n_clients, 0.1, 0.1)
    bad = gone = -(-n_clients // 10)
    some = hypergeom(n_clients - 1, bad, degree)
    side = hypergeom(n_clients - 1, bad, degree // 2)
    chance = (
        n_clients * some.sf(2 * threshold - degree - 2)
        + 2 * n_clients * side.sf(threshold - degree // 2 - 2)
        + hypergeom(n_clients, bad, signers).sf(2 * quorum - signers - 1)
    )
    assert chance < 2.0**-ACTIVE_BITS
    lost = n_clients * hypergeom(n_clients - 1, gone, degree).sf(degree + 1 - threshold)
    lost += hypergeom(n_clients, gone, signers).sf(signers - quorum)
    assert lost < 2.0**-20
    plan = MaskPlan("run", 0, n_clients, degree, threshold, signers, quorum)
    assert plan.bears(bad) and not plan.bears(2 * bad)
    assert degree > graph_size(n_clients, 0.1, 0.1)[0]


@given(st.integers(5, 60), st.data())
def test_tails_are_those_of_scipy(population, data):
    marked = data.draw(st.integers(0, population))
    size = data.draw(st.integers(0, population))
    most = data.draw(st.integers(-2, population + 1))
    expected = hypergeom(population, marked, size).sf(most)
    found = mask_plan._tail(population, marked, size, most)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_where_no_graph_is_safe_all_are_neighbours():
    plan = plan_masks("run", 0, 60, active=True, max_colluders=25)
    assert plan.complete and plan.bears(25)
    with pytest.raises(ValueError, match="No graph of 1000"):
        plan_masks("run", 0, 1000, active=True, colluders=0.4)


@given(st.integers(1, 40), st.data())
def test_sets_of_clients_have_one_form(n_clients, data):
    clients = data.draw(st.sets(st.integers(0, n_clients - 1)))
    bits = to_bits(clients, n_clients)
    assert from_bits(bits, n_clients) == tuple(sorted(clients))
    assert from_bits(bits + b"\x00", n_clients) is None
    if n_clients % 8:
        assert from_bits(bits[:-1] + b"\x80", n_clients) is None


# Any value in any field.


def recorded(n_clients):
    """State of the first signing site before each stage, and the message it got."""
    keys, clients = make_sites(n_clients)
    plan = plan_masks("run", 0, n_clients, active=True, n_rounds=2)
    server = Server(clients, plan)
    kept, tell, lost = {}, server.tell, n_clients - 1

    def meddle(stage, client, message):
        kept[stage, client] = dict(clients[client].state), message
        return message

    server.meddle = meddle
    server.tell = lambda s, i, m: None if (s, i) == ("masked", lost) else tell(s, i, m)
    server.run()
    at = min(set(server.plan.committee()) - {lost})
    stages = ("keys", "shares", "masked", "survivors", "unmask")
    make = {"site_key": keys[at], "roster": clients[at]._roster}
    return make, {stage: kept[stage, at] for stage in stages}


ROUNDS = {n: recorded(n) for n in (4, 52)}
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70),
    st.sampled_from([2**31, 2**62, 2**63, 10**30, -(2**63)]),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["\ud800", "run", "site-1", "x" * 300]),
    st.binary(max_size=9),
    st.sampled_from([bytes(32), bytes(64), bytes(80), bytes(1), b"\x0f", b"\xff" * 7]),
)
VALUES = st.one_of(
    PLAIN,
    st.lists(PLAIN, max_size=5),
    st.builds(lambda item, n: [item] * n, PLAIN, st.integers(0, 60)),
    st.dictionaries(st.text(max_size=2), PLAIN, max_size=2),
    st.tuples(PLAIN, PLAIN),
)


@pytest.mark.parametrize("n_clients", ROUNDS)
@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "survivors", "unmask"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_value_in_any_field_is_answered_or_refused(n_clients, stage, data):
    make, kept = ROUNDS[n_clients]
    state, message = kept[stage]
    name = data.draw(st.sampled_from(sorted(message)))
    old = message[name]
    message = dict(message)
    how = data.draw(st.sampled_from(["other", "none", "item", "cut"]))
    if how == "none":
        del message[name]
    elif how == "item" and isinstance(old, list) and old:
        message[name] = list(old)
        message[name][data.draw(st.integers(0, len(old) - 1))] = data.draw(PLAIN)
    elif how == "cut" and isinstance(old, (list, bytes, str)):
        message[name] = old[: data.draw(st.integers(0, max(len(old) - 1, 0)))]
    else:
        message[name] = data.draw(VALUES)
    refusals = set()
    for rows in (1, 2):
        client = MaskingClient(dict(state), **make)
        touched = []

        def answer(rows=rows, touched=touched):
            touched.append(rows)
            return {"counts": np.full(3, rows, np.uint32)}

        try:
            if stage == "masked":
                client.masked(message, answer)
            else:
                getattr(client, stage)(message)
            refusals.add(None)
        except SecureAggregationError as error:
            refusals.add(str(error))
            assert not touched
            # A message of another round, or terms of a new one, change nothing.
            assert is_forgotten(client) or client.state == state
    assert len(refusals) == 1


def test_a_fit_through_a_lying_transport_is_not_opened():
    """The same through the server's own code: some sites are told of another list."""

    def meddle(stage, client, message):
        if stage in ("survivors", "unmask") and client < 3:
            message["survivors"] = to_bits(range(5), 7)
        return message

    _, clients = make_sites(7)
    server = Server(clients, plan_masks("run", 0, 7), meddle)
    tell = server.tell
    server.tell = lambda s, i, m: None if (s, i) == ("masked", 6) else tell(s, i, m)
    with pytest.raises(NotEnoughClientsError, match="Nothing of this round"):
        server.run()
    assert set(server.refusals) == {("unmask", i) for i in range(6)}


def test_all_pairs_of_lists_share_an_honest_signer():
    """The counting behind ``2 threshold > n + c``, by going through all cases."""
    for n_clients in range(3, 8):
        for n_bad in range(n_clients):
            honest = set(range(n_bad, n_clients))
            for threshold in range(1, n_clients + 1):
                groups = list(combinations(range(n_clients), threshold))
                shared = all(set(a) & set(b) & honest for a in groups for b in groups)
                assert shared == (2 * threshold > n_clients + n_bad)
