"""Masked sums: exact for the survivors, or refused; and what a client will not do."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skfedcal.exceptions import NotEnoughClientsError, SecureAggregationError
from skfedcal.federation.mask_plan import MaskPlan, graph_size, plan_masks, to_bits
from skfedcal.federation.masking_client import (
    MaskingClient,
    own_text,
    pair_text,
    signed_text,
    survivors_text,
)
from skfedcal.federation.masking_server import masked_sum
from skfedcal.federation.roster import Roster, SiteKey

STAGES = ("keys", "shares", "masked", "unmask")
SHAPES = {"counts": ((7,), 4), "sums": ((2, 3), 8)}


def answers_of(n_clients, seed=0):
    rng = np.random.default_rng(seed)
    return [
        {
            "counts": rng.integers(0, 2**32, 7, dtype=np.uint32),
            "sums": rng.integers(0, 2**64, (2, 3), dtype=np.uint64),
        }
        for _ in range(n_clients)
    ]


class Wire:
    """Exchanges in this process; clients drop out where asked to, all is overheard."""

    def __init__(self, answers, drops=(), clients=None, meddle=None):
        self.answers = answers
        self.clients = clients or [MaskingClient() for _ in answers]
        self.drops = set(drops)
        self.meddle = meddle or (lambda stage, client, message: message)
        self.sent = []

    def __call__(self, stage, messages):
        replies = {}
        for i, message in messages.items():
            if (stage, i) in self.drops:
                continue
            message = self.meddle(stage, i, dict(message))
            # As between processes: nothing but the state is left of the last stage.
            client = self.clients[i]
            if stage == "masked":
                reply = ({}, client.masked(message, lambda i=i: self.answers[i]))
            else:
                reply = (getattr(client, stage)(message), {})
            self.sent.append((stage, i, reply))
            replies[i] = reply
        return replies


def plain_sum(answers, clients):
    return {
        name: np.add.reduce([answers[i][name] for i in clients], dtype=f"<u{width}")
        for name, (_, width) in SHAPES.items()
    }


def assert_sum(found, answers):
    expected = plain_sum(answers, found.clients)
    for name in SHAPES:
        np.testing.assert_array_equal(found.words[name], expected[name])


def run(n_clients, drops=(), round_index=0, plan=None, **wire):
    answers = answers_of(n_clients)
    plan = plan or plan_masks("run", round_index, n_clients)
    exchange = Wire(answers, drops, **wire)
    return masked_sum(exchange, plan, SHAPES), answers, exchange


@given(n_clients=st.integers(3, 8), data=st.data())
def test_the_sum_of_the_survivors_or_a_refusal(n_clients, data):
    stage_of = data.draw(
        st.lists(
            st.sampled_from([*STAGES, None, None, None]),
            min_size=n_clients,
            max_size=n_clients,
        )
    )
    drops = {(stage, i) for i, stage in enumerate(stage_of) if stage}
    plan = plan_masks("run", 0, n_clients)
    gone = {i for stage, i in drops if stage != "unmask"}
    left = set(range(n_clients)) - gone
    answering = left - {i for _, i in drops}
    if len(answering) >= plan.threshold:
        found, answers, _ = run(n_clients, drops)
        assert set(found.clients) == left
        assert_sum(found, answers)
    else:
        with pytest.raises(NotEnoughClientsError, match="Nothing of this round"):
            run(n_clients, drops)


@pytest.mark.parametrize("stage", STAGES)
def test_every_pair_may_drop_out_of_seven(stage):
    for pair in itertools.combinations(range(7), 2):
        found, answers, _ = run(7, {(stage, i) for i in pair})
        assert_sum(found, answers)


def test_a_graph_of_many_clients():
    plan = plan_masks("run", 0, 60)
    assert not plan.complete
    drops = {("keys", 1), ("shares", 2), ("masked", 3), ("masked", 40), ("unmask", 5)}
    found, answers, _ = run(60, drops, plan=plan)
    assert len(found.clients) == 56
    assert_sum(found, answers)


def test_a_quarter_of_a_million_counts():
    rng = np.random.default_rng(0)
    counts = [rng.integers(0, 9000, 256_000, dtype=np.uint32) for _ in range(4)]
    plan = plan_masks("run", 0, 4)
    found = masked_sum(Wire([{"c": c} for c in counts]), plan, {"c": ((256_000,), 4)})
    np.testing.assert_array_equal(found.words["c"], sum(counts))


def test_the_graph_is_symmetric_and_regular():
    plan = replace(plan_masks("run", 0, 101), coin=b"any")
    holders = [set(plan.holders(i)) for i in range(101)]
    assert all(
        len(own) == plan.degree + 1 and i in own for i, own in enumerate(holders)
    )
    assert all(i in holders[j] for i, own in enumerate(holders) for j in own)


def test_the_ring_is_drawn_anew():
    plan = plan_masks("run", 0, 101)
    first, second = (replace(plan, coin=coin) for coin in (b"a", b"b"))
    assert any(first.holders(i) != second.holders(i) for i in range(101))


def test_graphs_grow_with_what_they_bear():
    sizes = [graph_size(1000, share, share)[0] for share in (0.02, 0.05, 0.1)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1] < 100
    with pytest.raises(ValueError, match="No graph"):
        graph_size(1000, 0.5, 0.4)


@pytest.mark.parametrize(
    ("n_clients", "degree", "threshold"),
    [(2, 1, 2), (5, 4, 2), (6, 5, 3), (9, 3, 3), (9, 4, 2), (400, 399, 300)],
)
def test_unsafe_terms_are_refused(n_clients, degree, threshold):
    with pytest.raises(SecureAggregationError):
        MaskPlan("run", 0, n_clients, degree, threshold)


# What the server sees.


def test_nobody_sends_what_can_be_read():
    _, answers, wire = run(5)
    for stage, i, (_, words) in wire.sent:
        if stage != "masked":
            assert not words
            continue
        for name, value in words.items():
            assert not (value == answers[i][name]).any()
    texts = [json.dumps(reply, default=bytes.hex) for _, _, (reply, _) in wire.sent]
    secrets = [c.state for c in wire.clients]
    assert all(set(s) == {"seen_runs", "seen_rounds", "stage"} for s in secrets)
    assert len(texts) == 20


def test_replies_of_two_rounds_are_unrelated():
    # The same answers; equal bits of 64 * 500 * 32 are half within 6 deviations.
    answers = [{"c": np.full(16_000, 7, dtype=np.uint32)} for _ in range(3)]
    sent = []
    for index in range(2):
        wire = Wire(answers)
        masked_sum(wire, plan_masks("run", index, 3), {"c": ((16_000,), 4)})
        sent.append([words["c"] for stage, _, (_, words) in wire.sent if words])
    for first, second in zip(*sent, strict=True):
        bits = np.unpackbits((first ^ second).view(np.uint8))
        assert abs(bits.mean() - 0.5) < 6 * 0.5 / np.sqrt(bits.size)


# What a client refuses.


def replay(stage):
    """Send a stage's message again at the end of a round."""
    kept = {}

    def meddle(at, client, message):
        if at == stage and client == 0:
            kept["message"] = message
        return message

    _, answers, wire = run(4, meddle=meddle)
    return wire.clients[0], kept["message"], answers[0]


@pytest.mark.parametrize("stage", STAGES)
def test_no_message_is_answered_twice(stage):
    client, message, answer = replay(stage)
    ask = getattr(client, stage)
    with pytest.raises(SecureAggregationError):
        ask(message, lambda: answer) if stage == "masked" else ask(message)


def test_an_earlier_round_is_refused_and_a_later_one_is_not():
    client = MaskingClient()
    plan = plan_masks("run", 3, 4)
    client.keys(plan.to_message() | {"you": 0})
    for index in (2, 3):
        again = plan_masks("run", index, 4)
        with pytest.raises(SecureAggregationError, match="already answered"):
            client.keys(again.to_message() | {"you": 0})
    client.keys(plan_masks("run", 4, 4).to_message() | {"you": 0})


@pytest.mark.parametrize("stage", ["shares", "masked", "unmask"])
def test_stages_come_in_order(stage):
    client = MaskingClient()
    if stage != "shares":
        client.keys(plan_masks("run", 0, 4).to_message() | {"you": 0})
    message = {"run": "run", "round": 0}
    with pytest.raises(SecureAggregationError, match="out of order"):
        getattr(client, stage)(message, *([dict] if stage == "masked" else []))


def changed(stage, **changes):
    """Give client 0 another message than the right one."""

    def meddle(at, client, message):
        if at == stage and client == 0:
            message |= {
                name: change(list(message[name]) if isinstance(message[name], list)
                             else message[name])
                for name, change in changes.items()
            }  # fmt: skip
        return message

    return meddle


def bits(*clients):
    """Change a set of clients to another one."""
    return lambda _: to_bits(clients, 8)[:1]


BAD_MESSAGES = {
    "another round": ("shares", {"round": lambda r: r + 1}, "not under way"),
    "another run": ("shares", {"run": lambda r: r + "x"}, "not under way"),
    "a key twice": ("shares", {"sealing": lambda k: [k[0]] * len(k)}, "the same"),
    "one key for two uses": ("shares", {"masking": lambda k: [k[1], *k[1:]]}, "same"),
    "no such client": (
        "shares",
        {"listed": bits(0, 1, 2, 3, 4, 7)},
        "not in the round",
    ),
    "without itself": (
        "shares",
        {"listed": bits(1, 2, 3, 4)},
        "lacks the keys of this",
    ),
    "a long list": ("shares", {"listed": lambda b: b + bytes(1)}, "no 1 bytes"),
    "no list": ("shares", {"listed": lambda b: b""}, "no 1 bytes"),
    "fewer keys than clients": ("shares", {"sealing": lambda k: k[1:]}, "no list"),
    "more keys than clients": ("shares", {"masking": lambda k: [*k, k[0]]}, "no list"),
    "some names": ("shares", {"sites": lambda _: ["a", "b"]}, "are named"),
    "odd names": ("shares", {"sites": lambda _: ["a\nb"] * 5}, "an invalid site name"),
    "few keys": (
        "shares",
        {
            "listed": bits(0, 1),
            "sealing": lambda k: k[:1],
            "masking": lambda k: k[:1],
        },
        "sent keys",
    ),
    "a broken key": ("shares", {"sealing": lambda k: [bytes(32), *k[1:]]}, "not valid"),
    "few shares": (
        "masked",
        {"shared": bits(0, 1), "sealed": lambda s: s[:1]},
        "holders",
    ),
    "itself did not share": ("masked", {"shared": bits(1, 2, 3, 4)}, "lacks this site"),
    "a changed share": (
        "masked",
        {"sealed": lambda s: [bytes(len(s[0])), *s[1:]]},
        "modified in transit",
    ),
    "a cut share": ("masked", {"sealed": lambda s: [s[0][:-1], *s[1:]]}, "right size"),
    "shares swapped": (
        "masked",
        {"sealed": lambda s: [s[1], s[0], *s[2:]]},
        "modified in transit",
    ),
    "one share twice": ("masked", {"sealed": lambda s: [s[0], *s[:-1]]}, "modified"),
    "itself dead": ("unmask", {"survivors": bits(1, 2, 3, 4)}, "this site included"),
    "few alive": ("unmask", {"survivors": bits(0)}, "needed"),
    "nobody alive": ("unmask", {"survivors": lambda b: b""}, "no 1 bytes"),
}


@pytest.mark.parametrize("case", BAD_MESSAGES)
def test_a_lying_server_is_refused(case):
    stage, changes, words = BAD_MESSAGES[case]
    with pytest.raises(SecureAggregationError, match=words):
        run(5, meddle=changed(stage, **changes))


def test_a_refused_unmask_cannot_be_asked_again():
    kept = {}

    def meddle(stage, client, message):
        if stage == "unmask" and client == 0:
            kept["right"] = dict(message)
            return message | {"survivors": to_bits([0], 5)}
        return message

    wire = Wire(answers_of(5), meddle=meddle)
    with pytest.raises(SecureAggregationError):
        masked_sum(wire, plan_masks("run", 0, 5), SHAPES)
    with pytest.raises(SecureAggregationError, match="out of order"):
        wire.clients[0].unmask(kept["right"])


def test_a_site_sets_the_least_cohort():
    clients = [MaskingClient(min_clients=6) for _ in range(5)]
    with pytest.raises(SecureAggregationError, match="at least 6"):
        run(5, clients=clients)


def test_a_site_keeps_to_the_least_cohort_when_others_drop_out():
    clients = [MaskingClient(min_clients=5) for _ in range(5)]
    with pytest.raises(SecureAggregationError, match="5 are needed"):
        run(5, {("masked", 4)}, clients=clients)


# Sites that know each other.


def sites(n_clients):
    keys = [SiteKey.generate(f"site-{i}") for i in range(n_clients)]
    return keys, Roster({key.name: key.public for key in keys})


def test_signed_keys_are_accepted():
    keys, roster = sites(4)
    clients = [MaskingClient(site_key=key, roster=roster) for key in keys]
    found, answers, _ = run(4, {("masked", 2)}, clients=clients)
    assert_sum(found, answers)


def test_keys_of_the_server_are_not():
    keys, roster = sites(4)
    strangers, _ = sites(4)
    clients = [MaskingClient(site_key=key, roster=roster) for key in keys]
    # The server's own key under the valid site name.
    clients[3] = MaskingClient(site_key=strangers[3], roster=roster)
    with pytest.raises(SecureAggregationError, match="site-3"):
        run(4, clients=clients)


def test_keys_without_signature_are_not():
    keys, roster = sites(4)
    clients = [MaskingClient(site_key=key, roster=roster) for key in keys]
    clients[3] = MaskingClient()
    with pytest.raises(SecureAggregationError, match="roster"):
        run(4, clients=clients)


def test_a_signature_is_for_one_round_and_one_place():
    keys, roster = sites(4)
    clients = [MaskingClient(site_key=key, roster=roster) for key in keys]
    with pytest.raises(SecureAggregationError, match="did not sign"):
        run(
            4,
            clients=clients,
            meddle=changed(
                "shares",
                sealing=lambda k: [k[1], k[0], *k[2:]],
                masking=lambda k: [k[1], k[0], *k[2:]],
            ),
        )


def test_a_site_does_not_mask_with_itself():
    """One that was started again in the middle of a round signs keys for two places."""
    keys, roster = sites(3)
    plan = plan_masks("run", 0, 3)
    me, again, other = (
        MaskingClient(site_key=keys[i], roster=roster) for i in (0, 0, 1)
    )
    sent = [
        client.keys(plan.to_message() | {"you": i})
        for i, client in enumerate((me, again, other))
    ]
    message = {"run": "run", "round": 0, "listed": to_bits(range(3), 3)}
    for name in ("sealing", "masking"):
        message[name] = [reply[name] for reply in sent[1:]]
    message["sites"] = [reply["site"] for reply in sent]
    message["signatures"] = [reply["signature"] for reply in sent[1:]]
    with pytest.raises(SecureAggregationError, match="twice"):
        me.shares(message)


@pytest.mark.parametrize("n_clients", [5, 60])
def test_a_sum_of_too_few_is_not_asked_to_be_opened(n_clients):
    plan = plan_masks("run", 0, n_clients)
    wire = Wire(answers_of(n_clients), {("masked", 0)})
    with pytest.raises(NotEnoughClientsError, match=f"{n_clients} are needed"):
        masked_sum(wire, plan, SHAPES, n_min=n_clients)
    assert not any(stage == "unmask" for stage, *_ in wire.sent)


def test_one_site_cannot_be_two_clients():
    keys, roster = sites(4)
    clients = [MaskingClient(site_key=key, roster=roster) for key in keys]
    clients[3] = MaskingClient(site_key=keys[2], roster=roster)
    with pytest.raises(SecureAggregationError, match="twice"):
        run(4, clients=clients)


def test_keys_and_rosters_are_kept_in_files(tmp_path):
    keys, roster = sites(3)
    keys[0].save(tmp_path / "site.key")
    assert (tmp_path / "site.key").stat().st_mode & 0o077 == 0
    again = SiteKey.load(tmp_path / "site.key")
    assert (again.name, again.public) == (keys[0].name, keys[0].public)
    with pytest.raises(FileExistsError):
        keys[0].save(tmp_path / "site.key")
    roster.save(tmp_path / "roster.json")
    assert Roster.load(tmp_path / "roster.json") == roster


@pytest.mark.parametrize("text", ["", "[]", '{"format": "x", "sites": {}}', "{}"])
def test_other_files_are_no_rosters_and_no_keys(text, tmp_path):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError, match="not a roster"):
        Roster.load(tmp_path / "file")
    with pytest.raises(ValueError, match="not a site key"):
        SiteKey.load(tmp_path / "file")


def test_the_text_of_an_error_does_not_show_a_key(tmp_path):
    (tmp_path / "file").write_text('{"site": "a", "key": "5ec2e7"}')
    with pytest.raises(ValueError, match="not a site key") as caught:
        SiteKey.load(tmp_path / "file")
    assert "5ec2e7" not in str(caught.value) and caught.value.__cause__ is None
    assert "5ec2e7" not in repr(SiteKey.generate("a"))


@pytest.mark.parametrize("name", ["", "a b", "../x", 3, "x" * 101])
def test_names_of_sites(name):
    with pytest.raises(ValueError, match="valid site name"):
        SiteKey.generate(name)


# Replies that are wrong.


class Liar(MaskingClient):
    """Client that answers with something else."""

    def __init__(self, **replies):
        super().__init__()
        self.replies = replies

    def __getattribute__(self, name):
        replies = object.__getattribute__(self, "__dict__").get("replies", {})
        if name in replies:
            method = object.__getattribute__(self, name)
            return lambda *args: replies[name](method(*args))
        return object.__getattribute__(self, name)


def lie(client, **replies):
    clients = [MaskingClient() for _ in range(5)]
    clients[client] = Liar(**replies)
    return run(5, clients=clients)


@pytest.mark.parametrize(
    ("replies", "words"),
    [
        ({"keys": lambda reply: {}}, "no keys"),
        ({"keys": lambda reply: reply | {"masking": b"short"}}, "no keys"),
        ({"shares": lambda reply: reply | {"to": [1]}}, "did not share"),
        ({"masked": lambda words: {}}, "sent the arrays"),
        ({"masked": lambda w: w | {"counts": w["counts"][:-1]}}, "of shape"),
        ({"masked": lambda w: w | {"counts": w["counts"].astype(float)}}, "float64"),
        ({"masked": lambda w: w | {"counts": w["counts"].astype(np.int32)}}, "int32"),
    ],
)
def test_a_wrong_reply_is_left_out_and_named(replies, words):
    found, answers, _ = lie(2, **replies)
    assert list(found.clients) == [0, 1, 3, 4]
    assert words in found.faults[2]
    assert_sum(found, answers)


def test_a_wrong_share_is_noticed_and_done_without():
    def garble(reply):
        return reply | {"own_masks": [bytes(32) for _ in reply["own_masks"]]}

    found, answers, _ = lie(0, unmask=garble)
    assert_sum(found, answers)


def test_too_many_wrong_shares_open_nothing():
    def garble(reply):
        return reply | {"own_masks": [bytes(32) for _ in reply["own_masks"]]}

    clients = [
        Liar(unmask=garble),
        Liar(unmask=garble),
        *map(MaskingClient, [None] * 3),
    ]
    with pytest.raises(SecureAggregationError, match="are inconsistent"):
        run(5, clients=clients)


def test_the_state_is_plain():
    """What is kept between messages can be written by any engine."""
    client = MaskingClient()
    client.keys(plan_masks("run", 0, 4).to_message() | {"you": 0})

    def plain(value):
        if isinstance(value, list):
            return len({type(v) for v in value}) <= 1 and all(map(plain, value))
        return isinstance(value, (int, str, bytes))

    assert all(map(plain, client.state.values()))
    again = MaskingClient(dict(client.state))
    with pytest.raises(SecureAggregationError, match="already answered"):
        again.keys(plan_masks("run", 0, 4).to_message() | {"you": 0})


@pytest.mark.parametrize(
    "changes",
    [
        {"run": "other"},
        {"round_index": 1},
        {"threshold": 5},
        {"coin": b"o"},
        {"shared": b"s"},
        {"about": b"a"},
        {"n_clients": 7, "degree": 6},
    ],
)
def test_every_key_is_for_one_round_and_one_request(changes):
    first = plan_masks("run", 0, 6)
    second = replace(first, **changes)
    for text in (
        lambda plan: own_text(plan, 1),
        lambda plan: pair_text(plan, b"mask", 1, 2),
        lambda plan: pair_text(plan, b"share", 1, 2),
        lambda plan: signed_text(plan, 1, "a", bytes(32), bytes(32)),
        lambda plan: survivors_text(plan, 1, "a", b"\x07"),
    ):
        assert text(first) == text(replace(first))
        assert text(first) != text(second)
