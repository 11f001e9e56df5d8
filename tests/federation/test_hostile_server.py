"""A server that does not keep to the protocol: what sites refuse to give it."""

from dataclasses import replace

import numpy as np
import pytest

from skfedcal import (
    FederatedDataset,
    FederatedRunner,
    FedTempCalibrator,
    make_federation,
)
from skfedcal.contract import BlockSpec
from skfedcal.exceptions import NotEnoughClientsError, SecureAggregationError
from skfedcal.federation import (
    InProcessTransport,
    MessageBackend,
    Reading,
    Request,
    Roster,
    Site,
    SiteKey,
    SitePolicy,
    SiteRows,
)
from skfedcal.federation.endpoint import request_words
from skfedcal.federation.mask_plan import MaskPlan, plan_masks
from skfedcal.federation.masking_server import masked_sum
from skfedcal.federation.policy import answer_cost
from skfedcal.federation.request_catalogue import Schema, catalogue
from skfedcal.federation.wire import request_hash, terms_hash, write_request
from skfedcal.methods.score_curves.rounds import ClassScoreCounts, ScoreCounts
from skfedcal.privacy import DistributedDP, LocalDP, PrivacyLedger, SourceDP
from skfedcal.privacy.codec import BlockCode, Codec
from skfedcal.privacy.entropy import OSEntropy
from skfedcal.privacy.events import GaussianEvent, PureEvent, SampledGaussianEvent
from skfedcal.privacy.randomizers import (
    GaussianShares,
    LaplaceShares,
    LocalReports,
    PolyaShares,
)
from skfedcal.privacy.site_ledger import SiteLedger, gaussian_epsilon

NAMES = ("a", "b", "c", "d")
LABELS = {"a": [0, 1, 1], "b": [0, 0, 1], "c": [1, 0, 1], "d": [0, 0, 0]}
POSITIONS = Reading((0, 1), rows="given")
COUNTS = ClassScoreCounts(levels=(2,), clip=1.0, max_examples=1, space="both")


def rows_of(name):
    rng = np.random.default_rng(NAMES.index(name))
    return SiteRows(rng.normal(size=(3, 2)), np.array(LABELS[name]))


def make_request(model, algorithm=COUNTS, **changes):
    rows = np.zeros((4, 2))
    data = FederatedDataset(rows, np.zeros(4, dtype=int), np.arange(5), NAMES, 2)
    plan = FederatedRunner().release_plan(algorithm, data, model.unit)
    mechanism = model.mechanism(
        plan, entropy=OSEntropy(), ledger=PrivacyLedger(), split="split", label="x"
    )
    mechanism.open("run")
    broadcast = algorithm.broadcast(algorithm.init(2))
    codec = mechanism.codec(algorithm.spec(broadcast))
    request = Request(
        algorithm,
        broadcast,
        codec,
        mechanism.unit,
        mechanism.randomizer(codec, 0),
        None,
        mechanism.n_min,
        n_clients=4,
        reading=POSITIONS,
        run="run",
    )
    return replace(request, **changes)


def ask(site, request, index=0):
    text, arrays = write_request(request)
    letter = {"run": "r", "round": index, "request": text}
    return site.handle("answer", letter, arrays)[0]


SHARED = make_request(DistributedDP(1.0, n_min=4, mode="faithful"))


def make_sites(signed=True, **options):
    keys = {name: SiteKey.generate(name) for name in NAMES}
    roster = Roster({name: key.public for name, key in keys.items()})
    for name in NAMES:
        own = {"site_key": keys[name], "roster": roster} if signed else {}
        yield Site(name, rows_of(name), **own, **options)


class Server:
    """Asks sites for a masked sum, each for what `requests` has for it."""

    def __init__(self, sites, requests, again=None):
        self.sites, self.again = list(sites), again or {}
        self.letters = [write_request(request) for request in requests]
        self.refused = {}
        self.words = request_words(requests[0], masked=True)
        plan = plan_masks("run", 0, len(self.sites))
        self.plan = replace(plan, about=terms_hash(self.letters[0][0]))

    def exchange(self, stage, messages):
        replies = {}
        for i, message in messages.items():
            text, arrays = self.letters[i]
            letter = dict(message)
            if stage in ("keys", "masked"):
                letter["request"] = text
            reply = self.sites[i].handle(
                stage, letter, arrays if stage == "masked" else {}
            )
            if "refused" in reply[0]:
                self.refused[i] = reply[0]["refused"]
            else:
                replies[i] = reply
            if stage in self.again:
                self.again[stage](self, i)
        return replies

    def total(self):
        about = request_hash(self.letters[0][0])
        found = masked_sum(self.exchange, self.plan, self.words.shapes, about=about)
        return self.words.decode(found.words, len(found.clients)).total


def empty_of(request):
    """The same words, but another question."""
    return replace(request, algorithm=replace(request.algorithm, salt=1))


@pytest.mark.parametrize("signed", [True, False])
def test_all_sites_of_a_masked_sum_are_asked_the_same(signed):
    """Or the sum would be the answer of one, with its share of noise alone."""
    policy = SitePolicy(noise="shared", min_noise=0.5)
    other = empty_of(SHARED)
    assert request_words(other, masked=True) == request_words(SHARED, masked=True)
    server = Server(make_sites(signed, policy=policy), [SHARED, other, other, other])
    with pytest.raises(NotEnoughClientsError):
        server.total()
    assert "request" in server.refused[0]


def test_a_request_is_not_exchanged_within_a_round():
    exact = make_request(SourceDP(1.0, mode="faithful"), randomizer=None, n_min=0)
    other = replace(exact, algorithm=replace(COUNTS, positive=0))

    def again(server, i):
        text, _ = write_request(other)
        letter = server.plan.to_message() | {"you": i, "request": text}
        reply, _ = server.sites[i].handle("keys", letter, {})
        assert "already answered" in reply["refused"]

    server = Server(make_sites(), [exact] * 4, {"shares": again})
    expected = [np.zeros((1, 8), dtype=np.int64)]
    for site in make_sites(False, policy=SitePolicy(allow_plain=True)):
        text, arrays = write_request(exact)
        letter = {"run": "r", "round": 0, "request": text}
        _, words = site.handle("answer", letter, arrays)
        expected.append(words["level_2"].view(f"i{words['level_2'].itemsize}"))
    np.testing.assert_array_equal(server.total()["level_2"], sum(expected))


def keys_refusal(site, plan, request):
    text, _ = write_request(replace(request, n_clients=plan.n_clients))
    letter = plan.to_message() | {"you": 0, "request": text}
    return site.handle("keys", letter, {})[0].get("refused", "")


def test_more_clients_than_the_roster_are_not_believed():
    """On a graph a site would count on the noise of sites that are not there."""
    site = next(make_sites())
    plan = plan_masks("run", 0, 1000)
    assert "1000 clients, its roster 4" in keys_refusal(site, plan, SHARED)
    assert keys_refusal(Site("a", rows_of("a")), plan, SHARED) == ""


def test_few_clients_mask_with_all():
    """With a part of them, the site could not count who is in the sum."""
    site = Site("a", rows_of("a"), policy=SitePolicy(min_clients=25))
    plan = MaskPlan("run", 0, 30, 14, 10)
    assert "must mask each with all others" in keys_refusal(site, plan, SHARED)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("signers", 2**62),
        ("quorum", "3"),
        ("run", "x" * 10**6),
        ("run", b"run"),
        ("round", True),
        ("round", 1.0),
        ("round", -1),
        ("n_clients", 2**70),
        ("threshold", None),
    ],
)
def test_terms_of_a_round_are_read_strictly(name, value):
    message = plan_masks("run", 0, 4).to_message() | {name: value}
    with pytest.raises(SecureAggregationError, match=f"lack '{name}'"):
        MaskPlan.from_message(message)


def test_rounds_are_not_larger_than_a_site_can_sort():
    with pytest.raises(SecureAggregationError, match="too large"):
        MaskPlan("run", 0, 10**9, 14, 10)


def test_a_report_does_not_pay_for_another():
    two = ClassScoreCounts(levels=(2, 4), clip=1.0, max_examples=1, space="both")
    request = make_request(LocalDP(1.0, mode="faithful"), two)
    oracles = dict(request.randomizer.oracles)
    oracles["level_4"] = replace(oracles["level_4"], eps=20.0)
    oracles["level_2"] = replace(oracles["level_2"], kind="grr", eps=-19.9)
    ledger = SiteLedger(budget=(1.0, 1e-5))
    site = Site("a", rows_of("a"), policy=SitePolicy(noise="own"), ledger=ledger)
    reply = ask(site, replace(request, randomizer=LocalReports(oracles)))
    assert "not positive" in reply["refused"] and len(ledger) == 0


@pytest.mark.parametrize("n_shares", [0, -1])
def test_noise_of_no_shares_is_refused_before_it_is_paid(n_shares):
    ledger = SiteLedger(budget=(5.0, 1e-5))
    policy = SitePolicy(noise="shared", allow_plain=True, allow_seeded_noise=True)
    site = Site("a", rows_of("a"), policy=policy, ledger=ledger)
    noise = replace(SHARED.randomizer, n_shares=n_shares)
    assert "shares" in ask(site, replace(SHARED, randomizer=noise))["refused"]
    assert len(ledger) == 0


def test_a_share_of_noise_is_not_sent_without_a_mask():
    """It would be debited as if the shares of all others were there."""
    ledger = SiteLedger(budget=(5.0, 1e-5))
    policy = SitePolicy(allow_plain=True)
    site = Site("a", rows_of("a"), policy=policy, ledger=ledger)
    assert "only inside a masked sum" in ask(site, SHARED)["refused"]
    assert len(ledger) == 0


def test_the_labels_of_a_site_are_not_asked_for_one_by_one():
    """Site d has no row of class 1, and b has: refusals must not tell."""
    policy = SitePolicy.from_config({"classes": "0,1", "allow-plain": True})
    exact = make_request(SourceDP(1.0, mode="faithful"))
    probe = replace(exact, reading=replace(POSITIONS, classes=(0, 7)))
    for name in "bd":
        site = Site(name, rows_of(name), policy=policy)
        reply = ask(site, probe)
        assert reply == {
            "refused": "its policy (classes) has 2 labels, the request does not name "
            "the same"
        }
        assert "refused" not in ask(site, exact, 1)


def test_noise_for_one_row_does_not_hide_a_person():
    by_row = make_request(
        DistributedDP(1.0, n_min=3, unit="example", mode="faithful"), n_units=12
    )
    options = {"allow_plain": True, "allow_seeded_noise": True}
    for unit in ("example", "client"):
        site = Site("a", rows_of("a"), policy=SitePolicy(unit=unit, **options))
        assert ("(unit)" in ask(site, by_row).get("refused", "")) is (unit == "client")
        assert "refused" not in ask(site, SHARED, 1)
    with pytest.raises(ValueError, match=r"unit must be one of .*; got 'row'"):
        SitePolicy(unit="row")


def test_rows_whose_place_matters_are_not_protected_one_by_one():
    """Without a row, those after it would be counted for other classes."""
    schema = Schema((0, 1, 2), 3, "logits")
    tables = {"algorithms": ("classes.tables/1",), "units": ("example",)}
    entries = catalogue(schema, n_clients=4, n_rows=40, models=("central",), **tables)
    rows = SiteRows(np.eye(3)[[0, 1, 2, 0]], np.array([0, 1, 2, 1]))
    policy = SitePolicy(allow_plain=True)
    assert entries
    for request in (entry.request for entry in entries):
        assert request.algorithm.by_values
        assert "refused" not in ask(Site("a", rows, policy=policy), request)
        by_number = replace(
            request, algorithm=replace(request.algorithm, by_values=False)
        )
        reply = ask(Site("a", rows, policy=policy), by_number)
        assert "depends on its position" in reply["refused"]


def test_depths_are_bounded():
    """A tiny message must not ask for a number of 10**10 digits."""
    code = BlockCode(COUNTS.spec({"round": np.asarray(0)})["level_2"])
    for levels in ((10**10,), (-1,)):
        request = Request(
            ScoreCounts(levels=levels),
            {"round": np.asarray(0)},
            Codec({"level_2": code}),
            n_clients=4,
            reading=POSITIONS,
        )
        policy = SitePolicy(allow_plain=True)
        reply = ask(Site("a", rows_of("a"), policy=policy), request)
        assert "levels=" in reply["refused"]


# ----------------------------------------------------------- clients that break replies


BROKEN = {
    "signature": ("keys", {"signature": 10**13}),
    "to": ("shares", {"to": 7}),
    "sealed": ("shares", {"sealed": 7}),
    "sealed texts": ("shares", {"sealed": ["x"] * 3}),
    "alive": ("unmask", {"alive": None}),
    "own masks": ("unmask", {"own_masks": 10**13}),
    "own mask": ("unmask", {"own_masks": [10**13] * 4}),
}


@pytest.mark.parametrize("key", [bytes(32), b"short", b"\x01" + bytes(31), None])
def test_keys_that_all_others_would_refuse_are_left_out(key):
    def hook(kind, name, reply):
        if (kind, name) != ("keys", "d"):
            return reply
        return {**reply[0], "masking": key or reply[0]["sealing"]}, reply[1]

    exact = make_request(SourceDP(1.0, mode="faithful"), randomizer=None, n_min=0)
    sites = {site.name: site for site in make_sites(signed=False)}
    backend = MessageBackend(InProcessTransport(sites, on_reply=hook), secure=True)
    with pytest.warns(UserWarning, match="'d' sent no keys"):
        assert backend.total(exact, np.arange(4)).n_clients == 3


@pytest.mark.parametrize("case", BROKEN)
def test_replies_of_odd_types_are_faults_of_one_client(case):
    """They neither end the run nor fill the memory of the server."""
    stage, changes = BROKEN[case]

    def hook(kind, name, reply):
        if (kind, name) == (stage, "d"):
            return {**reply[0], **changes}, reply[1]
        return reply

    exact = make_request(SourceDP(1.0, mode="faithful"), randomizer=None, n_min=0)
    sites = {site.name: site for site in make_sites(signed=False)}
    backend = MessageBackend(InProcessTransport(sites, on_reply=hook), secure=True)
    if stage == "shares":
        with pytest.warns(UserWarning, match="'d' did not share its secrets"):
            found = backend.total(exact, np.arange(4))
        assert found.n_clients == 3
    elif stage == "unmask" and case != "own mask":
        with pytest.warns(UserWarning, match="'d' sent no shares"):
            found = backend.total(exact, np.arange(4))
        assert found.n_clients == 4
    else:
        found = backend.total(exact, np.arange(4))
        assert found.n_clients == 4


# ---------------------------------------------------- the price is that of the largest


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_site_pays_for_the_largest_answer_that_can_be(norm, groups):
    """From what the codec lets out, not from what was announced."""
    codes = {
        "x": BlockCode(BlockSpec((4, 3), clip=2.0, norm=norm, groups=groups), 0.125),
        "y": BlockCode(BlockSpec((5,), clip=0.7, norm=norm), 0.01),
    }
    codec = Codec(codes)
    rng = np.random.default_rng(0)
    rows = {"x": 9 * rng.normal(size=(50, 4, 3)), "y": 9 * rng.normal(size=(50, 5))}
    sent = {name: code.encode(rows[name]).astype(float) for name, code in codes.items()}
    request = Request(COUNTS, {}, codec, n_clients=6)
    if norm == "l2":
        squares = [(value**2).sum(axis=(1, 2)) for value in sent.values()]
        true = np.sqrt(sum(squares).max() / 3) / 512
        shared = replace(request, randomizer=GaussianShares())
        cost = answer_cost(shared, 3)
        assert true <= cost.event.mu <= 1.1 * true and cost.event.delta_slack > 0
        assert cost.noise == 1 / cost.event.mu
        return
    scales = {"x": 30.0, "y": 80.0}
    sizes = [np.abs(value).sum(axis=(1, 2)) / scales[n] for n, value in sent.items()]
    true = sum(sizes).max()
    for noise in (LaplaceShares(scales), PolyaShares(scales, 3)):
        cost = answer_cost(replace(request, randomizer=noise), 3)
        assert true <= cost.event.eps <= 1.1 * true and cost.event.delta_slack > 0
        assert cost.noise == 1 / cost.event.eps


@pytest.mark.parametrize("n_rounds", [1, 5])
def test_rounds_with_a_secret_sample_are_paid_in_full(n_rounds):
    ledger = SiteLedger(budget=(50.0, 1e-5))
    ledger.debit(SampledGaussianEvent(2.0, 0.01, n_rounds), label="x")
    whole = gaussian_epsilon(np.sqrt(n_rounds) / 2.0, 1e-5)
    assert ledger.spent() == pytest.approx(whole, rel=1e-9)


@pytest.mark.parametrize("eps_slack", [0.0, 0.1])
@pytest.mark.parametrize("delta_slack", [0.0, 4e-6])
@pytest.mark.parametrize("kind", ["gaussian", "pure", "both"])
def test_the_distance_of_noise_from_its_law_is_paid(kind, eps_slack, delta_slack):
    slack = {"eps_slack": eps_slack, "delta_slack": delta_slack}
    events = [GaussianEvent(0.5, **slack), PureEvent(0.3, **slack)]
    chosen = {"gaussian": events[:1], "pure": events[1:], "both": events}[kind]
    site, full = SiteLedger(), PrivacyLedger()
    for event in chosen:
        site.debit(event, label="x")
        full.debit(event, label="x")
    assert full.spent(1e-5) <= site.spent(1e-5) * (1 + 1e-12)
    if kind != "both":
        assert site.spent(1e-5) <= full.spent(1e-5) * (1 + 1e-6)
    if delta_slack:
        assert site.spent(4e-6) == np.inf


# ------------------------------------------------------ what cannot be is not paid for


@pytest.mark.parametrize(("n_clients", "size"), [(2, None), (6, 4), (6, 2)])
def test_masked_sums_that_cannot_be_are_not_paid(n_clients, size):
    fed = make_federation(n_clients=n_clients, n_samples=120, random_state=0)
    ledger = PrivacyLedger()
    runner = FederatedRunner(secure=True, cohort_size=size)
    with pytest.raises(SecureAggregationError, match="masked sum needs 3 to"):
        # An eps at which so few clients are asked at all.
        FedTempCalibrator(eps=20.0, runner=runner, ledger=ledger).fit(fed.clients)
    assert len(ledger) == 0
