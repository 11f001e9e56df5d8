"""Sites behind messages: what they answer, what they refuse, and who is left out."""

import logging
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from skfedcal import (
    FederatedDataset,
    FederatedRunner,
    FedTempCalibrator,
    ScoreHistogram,
)
from skfedcal.exceptions import (
    FaultyClientWarning,
    FaultySumError,
    NotEnoughClientsError,
    SecureAggregationError,
    SiteRefusalError,
)
from skfedcal.federation import (
    InProcess,
    InProcessTransport,
    MessageBackend,
    Reading,
    RemoteClients,
    Request,
    Roster,
    Site,
    SiteKey,
    SitePolicy,
    SiteRows,
    masking_server,
)
from skfedcal.federation import policy as policy_module
from skfedcal.federation.endpoint import UNITS
from skfedcal.federation.mask_plan import MaskPlan, plan_masks
from skfedcal.federation.masking_client import MaskingClient
from skfedcal.federation.policy import AnsweredRuns
from skfedcal.federation.wire import FORMAT, write_request
from skfedcal.methods import registry
from skfedcal.methods.bins.rounds import ClassHistograms
from skfedcal.methods.scaling.families import MatrixMap, VectorMap
from skfedcal.methods.scaling.rounds import LocalAverage
from skfedcal.methods.score_curves.rounds import ClassScoreCounts, ScoreCounts
from skfedcal.methods.temperature.posterior import TemperaturePosterior
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    GaussianEvent,
    LocalDP,
    PrivacyLedger,
    PureEvent,
    SecureAggregation,
    SourceDP,
)
from skfedcal.privacy.accounting import gdp_epsilon
from skfedcal.privacy.codec import Codec
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
from skfedcal.privacy.site_ledger import SiteLedger, gaussian_epsilon

NAMES = list("abcdef")
STAGES = ("keys", "shares", "masked", "unmask")


def make_data(sizes=(5, 1, 9, 4, 7, 3)):
    rng = np.random.default_rng(0)
    n = sum(sizes)
    rows = np.stack([rng.normal(size=n), rng.normal(size=n)], axis=1)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    names = NAMES[: len(sizes)]
    return FederatedDataset(rows, rng.integers(0, 2, n), offsets, names, 2)


DATA = make_data()


def rows_of(name, data=DATA):
    part = data.slice(NAMES.index(name), NAMES.index(name) + 1).compact()
    return SiteRows(part.rows, part.labels)


def make_sites(names=NAMES, **options):
    options = {"policy": SitePolicy(allow_plain=True), **options}
    return {name: Site(name, rows_of(name), **options) for name in names}


READING = Reading((0, 1))


def make_request(model=None, algorithm=None, **changes):
    algorithm = TemperaturePosterior() if algorithm is None else algorithm
    model = CentralDP(1.0) if model is None else model
    plan = FederatedRunner().release_plan(algorithm, DATA, model.unit)
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
        n_clients=6,
        n_units=29 if mechanism.unit == "example" else 0,
        reading=READING,
        claim=mechanism.event,
        run="run",
    )
    return replace(request, **changes)


def ask(site, request, round_index=0, run="r", **message):
    text, arrays = write_request(request, simulate=True)
    letter = {"run": run, "round": round_index, "request": text, **message}
    return site.handle("answer", letter, arrays)


COUNTS = ClassScoreCounts(levels=(2,), clip=1.0, max_examples=1, space="both")
POSITIONS = Reading((0, 1), rows="given")


def counts_request(model, **changes):
    return make_request(model, COUNTS, **{"reading": POSITIONS, **changes})


# ------------------------------------------------------------------ what a site answers


def test_a_site_says_who_it_is():
    from skfedcal import __version__
    from skfedcal._compiled import arithmetic

    reply, arrays = make_sites()["a"].handle("hello", {}, {})
    who = {"name": "a", "format": FORMAT, "version": __version__, "ready": ""}
    who["arithmetic"] = arithmetic()
    assert reply == who
    assert not arrays


@pytest.mark.parametrize("secure", [False, True])
def test_sums_are_those_of_the_clients(secure):
    request = make_request()
    backend = MessageBackend(InProcessTransport(make_sites()), secure=secure)
    expected = InProcess(DATA)
    for cohort in ([0, 1, 2, 3, 4, 5], [1, 3, 5], [0, 2, 3, 4]):
        cohort = np.array(cohort)
        found = backend.total(request, cohort)
        right = expected.total(replace(request, reading=None), cohort)
        assert (found.n_clients, found.n_units) == (right.n_clients, right.n_units)
        for name, value in right.total.items():
            np.testing.assert_array_equal(found.total[name], value)
        assert not backend.faults and not found.faults


def test_what_is_sent_back_are_words():
    reply, words = ask(make_sites()["a"], make_request())
    assert reply == {"run": "r", "round": 0}
    assert all(value.dtype.str in ("<u4", "<u8") for value in words.values())


def test_a_process_per_message_is_enough():
    """Nothing but the plain state is left of a site between two messages."""
    sites = make_sites()

    class Forgetful(InProcessTransport):
        def _one(self, kind, name, letter):
            kept = dict(self.sites[name].state)
            self.sites[name] = Site(name, rows_of(name), state=kept)
            return super()._one(kind, name, letter)

    request = make_request()
    backend = MessageBackend(Forgetful(sites), secure=True)
    for _ in range(2):
        found = backend.total(request, np.arange(6))
    right = InProcess(DATA).total(replace(request, reading=None), np.arange(6))
    for name, value in right.total.items():
        np.testing.assert_array_equal(found.total[name], value)


def test_the_state_is_plain_at_every_stage():
    kinds = set()

    def look(kind, name, reply):
        for value in transport.sites[name].state.values():
            kinds.add(type(value))
            if isinstance(value, list):
                assert len({type(v) for v in value}) <= 1
                assert all(isinstance(v, (int, str, bytes)) for v in value)
            else:
                assert isinstance(value, (int, str, bytes))
        for value in reply[0].values():
            assert isinstance(value, (int, str, bytes, list))
        return reply

    transport = InProcessTransport(make_sites(), on_reply=look)
    MessageBackend(transport, secure=True).total(make_request(), np.arange(6))
    MessageBackend(transport).total(make_request(), np.arange(6))
    assert kinds == {int, str, bytes, list}


CODE = """
import pickle, sys
from skfedcal.federation import Roster, Site, SiteKey, SitePolicy, SiteRows
from skfedcal.privacy.site_ledger import SiteLedger
rows, letters, budget = pickle.load(sys.stdin.buffer)
ledger = SiteLedger(budget=budget)
site = Site("a", SiteRows(*rows), ledger=ledger)
replies = [site.handle(*letter)[0] for letter in letters]
heavy = "sklearn", "scipy", "joblib", "torch"
print(len(ledger), [sorted(r) for r in replies], [m for m in heavy if m in sys.modules])
"""


def test_a_site_needs_numpy_and_cryptography_only():
    """Masks, noise, policy and account included."""
    request = counts_request(DistributedDP(1.0, n_min=3, mode="faithful"))
    letters = []
    transport = InProcessTransport(make_sites())
    call = transport.call

    def record(kind, found):
        message, arrays = found["a"]
        letters.append((kind, dict(message), dict(arrays)))
        return call(kind, found)

    transport.call = record
    MessageBackend(transport, secure=True).total(request, np.arange(6))
    # Keys of this site differ from those that were recorded, so that it stops there.
    own = rows_of("a")
    plain = counts_request(SourceDP(1.0, mode="faithful"))
    text, arrays = write_request(plain)
    answer = ("answer", {"run": "q", "round": 0, "request": text}, arrays)
    out = subprocess.run(
        [sys.executable, "-c", CODE],
        input=pickle.dumps(
            ((own.scores, own.labels), [*letters[:2], answer], (5.0, 1e-5))
        ),
        capture_output=True,
        check=True,
    )
    expected = (
        "1 [['masking', 'sealing'], ['check', 'sealed', 'to'], ['round', 'run']] []"
    )
    assert out.stdout.decode().strip() == expected


# ------------------------------------------------------------------ what a site refuses


def refusal(site, request, **message):
    reply, arrays = ask(site, request, **message)
    assert set(reply) == {"refused"} and not arrays
    return reply["refused"]


def widened(**changes):
    request = make_request()
    blocks = dict(request.codec.blocks)
    name = next(iter(blocks))
    spec = replace(blocks[name].spec, **changes)
    blocks[name] = replace(blocks[name], spec=spec)
    return replace(request, codec=Codec(blocks))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clip": 100.0}, "is bounded by 100.0, the algorithm by"),
        ({"clip": None}, "is bounded by None"),
        ({"shape": (5,)}, "of shape (5,)"),
        ({"kind": "count"}, "as count"),
        ({"groups": 2}, "of shape"),
        ({"norm": "l1"}, "another norm"),
    ],
)
def test_a_code_that_lets_more_out_is_refused(changes, words):
    assert words in refusal(make_sites()["a"], widened(**changes))


@pytest.mark.parametrize("factor", [1e-3, 1 - 1e-9, 1 + 1e-9, 2.0])
def test_only_the_bound_of_the_algorithm_is_accepted(factor):
    (code,) = make_request().codec.blocks.values()
    request = widened(clip=code.spec.clip * factor)
    assert "is bounded by" in refusal(make_sites()["a"], request)


def test_other_blocks_are_refused():
    request = make_request()
    (code,) = request.codec.blocks.values()
    request = replace(request, codec=Codec({"other": code}))
    assert "the blocks ['other']" in refusal(make_sites()["a"], request)


def test_a_round_is_answered_once():
    site = make_sites()["a"]
    for index in (0, 2):
        assert "refused" not in ask(site, make_request(), index)[0]
    for index in (0, 1, 2):
        assert "already answered round" in refusal(
            site, make_request(), round_index=index
        )
    assert "refused" not in ask(site, make_request(), 0, run="another")[0]


def restarted(site):
    """The site in a new process: its state as bytes, its ledger as a file."""
    state = pickle.loads(pickle.dumps(site.state))
    ledger = SiteLedger(site._ledger.path)
    return Site(site.name, site._rows, policy=site.policy, ledger=ledger, state=state)


def test_a_replay_after_many_runs_is_refused_and_not_paid_by_its_old_claim(tmp_path):
    """A claim pays for a run once: a site that forgot the run would answer for nothing.

    The server has one round answered, asks for as many other runs as the site keeps
    apart and more, and then for the first one again, also at a site that was restarted.
    """
    ledger = SiteLedger(tmp_path / "ledger.jsonl")
    policy = SitePolicy(allow_plain=True)
    site = Site("a", make_sites()["a"]._rows, policy=policy, ledger=ledger)
    claimed = replace(make_request(), run="first")
    exact = make_request(SecureAggregation())
    assert "refused" not in ask(site, claimed, run="first")[0]
    assert len(ledger) == 1
    for i in range(270):
        assert "refused" not in ask(site, exact, run=f"run {i}")[0]
    for again in (site, restarted(site)):
        # Later rounds as well: which ones were answered is no longer known.
        for index in (0, 1, 7):
            reply, words = ask(again, claimed, index, run="first")
            assert "already answered run 'first'" in reply["refused"] and not words
        assert "already answered run" in refusal(
            again, exact, round_index=3, run="run 0"
        )
        assert "already answered round" in refusal(again, exact, run="run 269")
        assert "refused" not in ask(again, exact, 1, run="run 269")[0]
        assert "refused" not in ask(again, exact, run=f"new {again is site}")[0]
    modes = [r["mode"] for r in SiteLedger(tmp_path / "ledger.jsonl").records()]
    # One debit; and each run of exact answers was noted, once.
    assert (modes.count("secure"), modes.count("exact")) == (1, 272)


def answered_runs(n_runs, index=2):
    memory = AnsweredRuns({}, "seen")
    for i in range(n_runs):
        assert not memory.refusal(f"run {i}", index)
        memory.add(f"run {i}", index)
    return AnsweredRuns(memory.to_state(), "seen")


def test_the_memory_of_answered_runs_is_bounded_and_forgets_none():
    n_runs = 15_000
    memory = answered_runs(n_runs)
    names, rounds, before = memory.to_state().values()
    assert len(names) == len(rounds) == 256 and len(before) == 1 << 16
    assert all(memory.refusal(f"run {i}", 2) for i in range(n_runs))
    old = range(n_runs - 256)
    assert all(memory.refusal(f"run {i}", 3) for i in old)
    # Names are fixed, and so is the outcome: a mistake has a chance of 3e-7 each.
    assert not any(memory.refusal(f"other {i}", 0) for i in range(1000))
    # A run that goes on stays among those that are known.
    memory.add(f"run {n_runs - 256}", 3)
    memory.add("one more", 0)
    assert not memory.refusal(f"run {n_runs - 256}", 4)
    assert memory.refusal(f"run {n_runs - 255}", 4)


def test_a_full_memory_refuses_new_runs_and_never_forgets_old_ones(monkeypatch):
    monkeypatch.setattr(policy_module, "_OLD_RUNS_BYTES", 16)
    memory = AnsweredRuns({}, "plain")
    for i in range(600):
        memory.add(f"run {i}", 0)
    assert all(memory.refusal(f"run {i}", 1) for i in range(344))
    assert "start another run" in memory.refusal("a new one", 0)


def test_a_replay_of_a_masked_run_after_many_others_is_refused():
    client = MaskingClient()

    def keys(run, index=0):
        client.keys(plan_masks(run, index, 4).to_message() | {"you": 0})

    for i in range(260):
        keys(f"run {i}")
    client = MaskingClient(pickle.loads(pickle.dumps(client.state)))
    for index in (0, 5):
        with pytest.raises(SecureAggregationError, match="answered run 'run 0'"):
            keys("run 0", index)
    # The round under way goes on; when it ends, what was answered is still known.
    with pytest.raises(SecureAggregationError):
        client.shares({"run": "run 259", "round": 0})
    assert set(client.state) == {"seen_runs", "seen_rounds", "seen_before", "stage"}
    with pytest.raises(SecureAggregationError, match="answered run 'run 0'"):
        keys("run 0")


@pytest.mark.parametrize("message", [{"run": 3}, {"round": -1}, {"round": "1"}])
def test_messages_without_run_and_round_are_refused(message):
    text, arrays = write_request(make_request())
    letter = {"run": "r", "round": 0, "request": text, **message}
    reply, _ = make_sites()["a"].handle("answer", letter, arrays)
    assert "no run and round" in reply["refused"]


@pytest.mark.parametrize("kind", ["stop", "", "Answer", "__init__"])
def test_unknown_messages_are_refused(kind):
    assert (
        "does not support messages"
        in make_sites()["a"].handle(kind, {}, {})[0]["refused"]
    )


@pytest.mark.parametrize("kind", ["answer", *STAGES])
@pytest.mark.parametrize("message", [{}, {"request": "x"}, {"run": "r", "round": 0}])
def test_incomplete_messages_are_refused_and_never_raised(kind, message):
    reply, words = make_sites()["a"].handle(kind, dict(message), {})
    assert set(reply) == {"refused"} and not words


def test_rows_and_requests_must_fit():
    site = make_sites()["a"]
    assert "what rows and labels mean" in refusal(site, make_request(reading=None))
    ready = Site("a", DATA.slice(0, 1), policy=SitePolicy(allow_plain=True))
    assert "ready" in refusal(ready, make_request())
    with pytest.raises(ValueError, match="one client"):
        Site("a", DATA)


def test_reports_are_of_whole_clients():
    request = counts_request(LocalDP(1.0, mode="faithful"), unit="example", n_units=29)
    assert "unit 'client'" in refusal(make_sites()["a"], request)


class Broken(SiteRows):
    def __getattribute__(self, name):
        if name.startswith("__"):
            return super().__getattribute__(name)
        raise RuntimeError("the value is 42.17")


def failing_load():
    raise OSError("disk of ward 7 is gone")


UNFIT = {
    "label": SiteRows(np.array([[0.25, 0.75], [0.5, 0.5]]), np.array([7, 1])),
    "type of labels": SiteRows(np.array([[0.25, 0.75]]), np.array(["hiv"])),
    "nan": SiteRows(np.array([[0.25, np.nan]]), np.array([1])),
    "columns": SiteRows(np.zeros((3, 3)), np.zeros(3, dtype=int)),
    "kind": SiteRows(np.full((2, 2), 0.5), np.array([0, 1]), "proba"),
    "nothing": SiteRows(np.zeros((0, 2)), np.zeros(0, dtype=int)),
    "broken": object.__new__(Broken),
    "no file": failing_load,
}


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("unit", ["client", "example"])
def test_rows_that_do_not_fit_send_zeros_and_only_the_site_knows(case, unit, caplog):
    site = Site("a", rows_of("a"), policy=SitePolicy(allow_plain=True))
    site._rows = UNFIT[case]
    request = make_request(CentralDP(1.0, unit=unit))
    with caplog.at_level(logging.WARNING, logger="skfedcal.site"):
        reply, words = ask(site, request)
    honest, expected = ask(make_sites()["a"], request)
    assert reply == honest
    assert {n: (w.shape, w.dtype) for n, w in words.items()} == {
        n: (w.shape, w.dtype) for n, w in expected.items()
    }
    if case != "label":
        assert not any(word.any() for word in words.values())
    assert bool(caplog.text) == (case != "nothing")
    if case == "broken":
        assert "42.17" in caplog.text


def test_one_row_that_does_not_fit_leaves_the_others():
    """Each row is protected by itself: the others must not be lost with it."""
    scores = np.random.default_rng(3).normal(size=(6, 2))
    labels = np.array([0, 1, 1, 0, 1, 0])
    request = make_request(CentralDP(1.0, unit="example"))
    policy = SitePolicy(allow_plain=True)

    def answer(scores, labels):
        return ask(Site("a", SiteRows(scores, labels), policy=policy), request)[1]

    right = answer(scores[:5], labels[:5])
    for value, label in ((0.5, 9), (np.nan, 0), (np.inf, 1), (-np.inf, 0)):
        odd = scores.copy()
        odd[5] = value
        found = answer(odd, np.append(labels[:5], label))
        for name, words in right.items():
            np.testing.assert_array_equal(found[name], words)


def test_rows_that_cannot_be_computed_with_are_left_out_one_by_one(monkeypatch):
    query = TemperaturePosterior.query

    def fragile(self, broadcast, clients):
        if (clients.labels[clients.offsets[0] : clients.offsets[-1]] == 1).any():
            raise FloatingPointError("label 1")
        return query(self, broadcast, clients)

    request = make_request(CentralDP(1.0, unit="example"))
    rows = rows_of("c")
    keep = rows.labels == 0
    policy = SitePolicy(allow_plain=True)
    assert 0 < keep.sum() < len(keep)
    few = Site("c", SiteRows(rows.scores[keep], rows.labels[keep]), policy=policy)
    right = ask(few, request)[1]
    monkeypatch.setattr(TemperaturePosterior, "query", fragile)
    found = ask(Site("c", rows, policy=policy), request)[1]
    for name, words in right.items():
        np.testing.assert_array_equal(found[name], words)


def test_the_words_must_be_wide_enough_for_the_round():
    text, _ = write_request(replace(make_request(), n_clients=2))
    letter = plan_masks("r", 0, 5).to_message() | {"you": 0, "request": text}
    reply, _ = make_sites()["a"].handle("keys", letter, {})
    assert "wide enough for 2 clients, the round has 5" in reply["refused"]


def test_another_broadcast_than_the_one_announced_is_refused():
    class Meddling(InProcessTransport):
        def call(self, kind, letters):
            if kind == "masked":
                letters = {
                    n: (m, {k: np.asarray(v + 1) for k, v in a.items()})
                    for n, (m, a) in letters.items()
                }
            return super().call(kind, letters)

    backend = MessageBackend(Meddling(make_sites()), secure=True)
    with pytest.raises(NotEnoughClientsError, match="not the one that was announced"):
        backend.total(make_request(), np.arange(6))


# ------------------------------------------------------------------------------- policy


def policy_refusal(policy, request, **message):
    return refusal(Site("a", rows_of("a"), policy=policy), request, **message)


def test_plain_answers_must_be_allowed():
    assert "(allow_plain)" in policy_refusal(SitePolicy(), make_request())
    # What protects by itself may leave.
    own = counts_request(SourceDP(1.0, mode="faithful"))
    assert "refused" not in ask(Site("a", rows_of("a")), own)[0]
    shared = counts_request(DistributedDP(1.0, n_min=3, mode="faithful"))
    assert "(allow_plain)" in policy_refusal(SitePolicy(), shared)


def test_methods_must_be_allowed():
    policy = SitePolicy(allow_plain=True, methods=("score_histogram", "vector"))
    text = policy_refusal(policy, make_request())
    assert "(methods)" in text
    assert "auto or temperature (temperature.posterior/2); allowed are score_" in text
    own = counts_request(SourceDP(1.0, mode="faithful"))
    assert "refused" not in ask(Site("a", rows_of("a"), policy=policy), own)[0]


@pytest.mark.parametrize(
    "word",
    ["temperature", "FedTempCalibrator", "temp", "auto", "temperature.posterior/2"],
)
def test_methods_are_named_as_users_know_them(word):
    policy = SitePolicy(allow_plain=True, methods=(word,))
    assert (
        "refused" not in ask(Site("a", rows_of("a"), policy=policy), make_request())[0]
    )


def test_the_family_of_maps_counts():
    request = make_request()
    vector, matrix = (
        replace(request, algorithm=LocalAverage(family(), clip=1.0))
        for family in (VectorMap, MatrixMap)
    )
    for words in (("vector",), ("FedVectorCalibrator", "bins")):
        policy = SitePolicy(allow_plain=True, methods=words)
        policy.check(vector, masked=False)
        with pytest.raises(SiteRefusalError, match=r"not allow matrix \(scaling.aver"):
            policy.check(matrix, masked=False)
    SitePolicy(allow_plain=True, methods=("scaling.average/1",)).check(
        matrix, masked=False
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TemperaturePosterior", "temperature.posterior/2"),
        ("ClassScoreCounts", "scores.class_counts/1"),
        ("PooledFit:VectorMap", "vector"),
    ],
)
def test_names_of_classes_are_read_with_a_warning(old, new):
    with pytest.warns(FutureWarning, match=f"{old!r}.*write {new!r} instead"):
        policy = SitePolicy(methods=(old,))
    assert policy.methods == (old,)
    assert registry.allowed_by(old) <= registry.allowed_by(new)


@pytest.mark.parametrize("word", ["tmp", "Temperature", "os.system", "", "vector:x"])
def test_an_unknown_method_is_refused_with_the_list(word):
    with pytest.raises(ValueError, match=r"no method .*; known are auto, temperature,"):
        SitePolicy(methods=("bins", word))
    with pytest.raises(ValueError, match="pass a tuple of words"):
        SitePolicy(methods=word)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (None, "central"),
        (CentralDP(1.0), "central"),
        (DistributedDP(1.0, n_min=3, mode="faithful"), "shared"),
        (SourceDP(1.0, mode="faithful"), "own"),
        (LocalDP(1.0, mode="faithful"), "own"),
        (LocalDP(1.0), "central"),
    ],
)
def test_noise_must_be_drawn_by_whom_the_site_trusts(model, kind):
    order = ["none", "central", "shared", "own"]
    for demanded in order:
        policy = SitePolicy(noise=demanded, allow_plain=True, allow_seeded_noise=True)
        site = Site("a", rows_of("a"), policy=policy)
        reply, _ = ask(site, counts_request(model))
        refused = order.index(demanded) > order.index(kind)
        assert ("refused" in reply) is refused
        if refused:
            text = f"requires {demanded!r}, the request has {kind!r}"
            assert text in reply["refused"]


def test_exact_sums_have_no_noise():
    policy = SitePolicy(noise="central", allow_plain=True)
    request = replace(make_request(), claim=None)
    assert "has 'none'" in policy_refusal(policy, request)


def test_there_must_be_enough_noise():
    own = counts_request(SourceDP(0.5, mode="faithful"))
    for least, refused in ((1.9, False), (2.1, True)):
        policy = SitePolicy(min_noise=least)
        reply, _ = ask(Site("a", rows_of("a"), policy=policy), own)
        assert ("refused" in reply) is refused
    assert "(min_noise)" in reply["refused"]
    assert "(min_noise)" in policy_refusal(
        SitePolicy(min_noise=0.1, allow_plain=True), make_request()
    )


def test_colluders_of_the_site_count():
    # The noise is made of 3 shares; one who does not trust one of the others has 2.
    shared = counts_request(DistributedDP(1.0, n_min=3, mode="faithful"))
    policy = SitePolicy(max_colluders=1, allow_plain=True, allow_seeded_noise=True)
    assert "needs 3 shares, but it counts only those of 2" in policy_refusal(
        policy, shared
    )
    sized = counts_request(
        DistributedDP(1.0, n_min=4, max_colluders=1, mode="faithful")
    )
    assert "refused" not in ask(Site("a", rows_of("a"), policy=policy), sized)[0]


def test_seeds_must_be_allowed():
    request = counts_request(SourceDP(1.0, mode="faithful"))
    seeded = replace(request, entropy=SeededEntropy(1))
    text = policy_refusal(SitePolicy(), seeded, position=0)
    assert "(allow_seeded_noise)" in text
    site = Site("a", rows_of("a"), policy=SitePolicy(allow_seeded_noise=True))
    assert "refused" not in ask(site, seeded, position=0)[0]


def test_answers_are_not_larger_than_allowed():
    policy = SitePolicy(max_values=7, allow_plain=True)
    assert "(max_values)" in policy_refusal(policy, counts_request(CentralDP(1.0)))
    huge = ScoreCounts(levels=(60,), clip=1.0)
    request = make_request(CentralDP(1.0), COUNTS)
    spec = huge.spec(request.broadcast)
    code = request.codec.blocks["level_2"]
    blocks = {name: replace(code, spec=block) for name, block in spec.items()}
    request = replace(request, algorithm=huge, codec=Codec(blocks))
    text = policy_refusal(SitePolicy(allow_plain=True), request)
    assert "(max_values)" in text


def test_cohorts_must_be_large_enough():
    sites = make_sites(policy=SitePolicy(min_clients=5))
    backend = MessageBackend(InProcessTransport(sites), secure=True)
    backend.total(make_request(), np.arange(6))
    with pytest.raises(NotEnoughClientsError, match="requires at least 5"):
        backend.total(make_request(), np.arange(4))


def test_masks_must_hide_enough():
    text, _ = write_request(replace(make_request(), n_clients=100))

    def asked(policy, *terms):
        letter = MaskPlan("r", 0, *terms).to_message()
        site = Site("a", rows_of("a"), policy=policy)
        return site.handle("keys", letter | {"you": 0, "request": text}, {})[0]

    assert "sealing" in asked(SitePolicy(), 100, 14, 8)
    assert "(min_neighbours)" in asked(SitePolicy(), 100, 12, 8)["refused"]
    assert "sealing" in asked(SitePolicy(min_neighbours=12), 100, 12, 8)
    assert "sealing" in asked(SitePolicy(), 9, 8, 6)
    two = SitePolicy(max_colluders=2)
    assert "sealing" in asked(two, 9, 8, 6)
    three = SitePolicy(max_colluders=3)
    assert "(max_colluders)" in asked(three, 9, 8, 6)["refused"]


def test_the_server_plans_for_colluders():
    """Three of six may collude: all must agree to open a sum."""
    model = DistributedDP(1.0, n_min=6, max_colluders=3, mode="faithful")
    request = replace(counts_request(model), max_colluders=3)
    plans = []

    def look(kind, name, reply):
        plans.append(transport.sites[name].state.get("threshold"))
        return reply

    sites = make_sites(policy=SitePolicy(max_colluders=3))
    transport = InProcessTransport(sites, on_reply=look)
    found = MessageBackend(transport, secure=True).total(request, np.arange(6))
    assert found.n_clients == 6 and plans[0] == 5
    with pytest.raises(SecureAggregationError, match="5 colluders"):
        MessageBackend(transport, secure=True, threshold=5).total(
            replace(request, max_colluders=5), np.arange(6)
        )


def test_policies_are_read_from_configurations():
    config = {
        "min-clients": 5,
        "methods": "score_histogram, temperature.posterior/2",
        "noise": "shared",
        "min-noise": 2,
        "allow-plain": True,
        "max_colluders": 1,
    }
    assert SitePolicy.from_config(config) == SitePolicy(
        min_clients=5,
        methods=("score_histogram", "temperature.posterior/2"),
        noise="shared",
        min_noise=2.0,
        allow_plain=True,
        max_colluders=1,
    )
    assert SitePolicy.from_config({}) == SitePolicy()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"min-client": 5}, "'min-client' is not a condition"),
        ({"min-clients": "5"}, "min-clients='5'"),
        ({"min-clients": 0}, "min_clients=0"),
        ({"min-clients": True}, "min-clients=True"),
        ({"noise": "much"}, "noise must be one of"),
        ({"min-noise": -1.0}, "min_noise=-1.0"),
        ({"min-noise": float("nan")}, "min_noise=nan"),
        ({"max-values": 0}, "max_values=0"),
        ({"allow-plain": "no"}, "allow-plain='no'"),
    ],
)
def test_a_policy_with_a_mistake_is_none(config, words):
    with pytest.raises(ValueError, match=words):
        SitePolicy.from_config(config)


# ---------------------------------------------------------------- what a site has spent


def spent_by(request, **options):
    ledger = SiteLedger(require_secure=False)
    policy = SitePolicy(allow_plain=True, allow_seeded_noise=True, **options)
    site = Site("a", rows_of("a"), policy=policy, ledger=ledger)
    for index in range(2):
        assert "refused" not in ask(site, request, index, position=0)[0]
    debits = [record for record in ledger.records() if record["mode"] != "exact"]
    return [record["event"] for record in debits]


def test_a_site_counts_what_its_own_noise_costs():
    """From scales and bounds alone: the same as the server has planned."""
    for model in (
        SourceDP(0.5, mode="faithful"),
        LocalDP(0.5, mode="faithful"),
        DistributedDP(0.5, n_min=3, mode="faithful"),
        DistributedDP(0.5, n_min=4, max_colluders=1, mode="faithful"),
    ):
        events = spent_by(counts_request(model))
        assert len(events) == 2  # each answer pays
        for event in events:
            assert event["kind"] == "pure"
            assert event["eps"] == pytest.approx(0.5, rel=1e-9)
            assert event["eps"] <= 0.5


def test_a_site_counts_gaussian_shares():
    model = DistributedDP(1.0, delta=1e-5, n_min=4, mode="faithful")
    events = spent_by(make_request(model))
    # Five rounds of the method are paid together: one costs a root of five less.
    mu = [event["mu"] for event in events]
    whole = gdp_epsilon(mu[0] * np.sqrt(5), 1e-5)
    assert mu[0] == mu[1] and whole == pytest.approx(1.0, rel=1e-3) and whole <= 1.0
    # Two clients fewer to count on: more is seen of this one.
    fewer = spent_by(make_request(model), max_colluders=2)
    assert fewer[0]["mu"] == pytest.approx(mu[0] * np.sqrt(2), rel=1e-12)


def test_the_word_of_the_server_is_noted_once_for_a_run():
    request = make_request(CentralDP(1.0, delta=1e-5))
    assert isinstance(request.claim, GaussianEvent)
    assert spent_by(request) == [request.claim.to_dict()]
    exact = replace(request, claim=None)
    assert spent_by(exact) == []


@pytest.mark.parametrize("secure", [False, True])
def test_a_spent_budget_ends_it(secure):
    ledger = SiteLedger(budget=(1.2, 1e-5))
    sites = make_sites()
    sites["b"] = Site("b", rows_of("b"), ledger=ledger)
    backend = MessageBackend(InProcessTransport(sites), secure=secure)
    request = counts_request(SourceDP(0.5, mode="faithful"))
    for _ in range(2):
        backend.total(request, np.arange(6))
    assert ledger.spent() == pytest.approx(1.0)
    with pytest.warns(FaultyClientWarning, match="'b' refused: its budget does not"):
        found = backend.total(request, np.arange(6))
    assert found.n_clients == 5 and len(ledger) == 2


def test_the_ledger_is_debited_before_the_answer_is_computed():
    ledger = SiteLedger()
    site = Site("a", rows_of("a"), ledger=ledger)
    seen = []

    def watch(*args, **options):
        seen.append(len(ledger))
        raise OSError("power cut")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skfedcal.federation.site.respond", watch)
        refusal(site, counts_request(SourceDP(1.0, mode="faithful")))
    assert seen == [1, 1] and len(ledger) == 1


def test_seeded_noise_is_noted_as_a_simulation():
    ledger = SiteLedger()
    policy = SitePolicy(allow_seeded_noise=True)
    site = Site("a", rows_of("a"), policy=policy, ledger=ledger)
    request = counts_request(SourceDP(1.0, mode="faithful"))
    ask(site, replace(request, entropy=SeededEntropy(1)), position=0)
    assert [record["mode"] for record in ledger.records()] == ["simulation"]


@pytest.mark.parametrize("mu", [1e-6, 0.01, 0.3, 2.0, 9.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_the_account_of_a_site_is_an_upper_bound(mu, delta):
    exact, found = gdp_epsilon(mu, delta), gaussian_epsilon(mu, delta)
    assert exact <= found * (1 + 1e-12)
    assert found <= exact + 1e-6 * (1 + exact)


def test_the_account_of_a_site_adds_up(tmp_path):
    events = [PureEvent(0.1), GaussianEvent(0.2), PureEvent(0.05, delta_slack=1e-9)]
    site, full = SiteLedger(tmp_path / "a.jsonl"), PrivacyLedger()
    for event in events:
        site.debit(event, label="x")
        full.debit(event, label="x")
    # One rule for both; the curve of the site is bounded from above.
    assert full.spent(1e-5) <= site.spent(1e-5) <= full.spent(1e-5) * (1 + 1e-9)
    again = pickle.loads(pickle.dumps(site))
    assert type(again) is SiteLedger and again.spent(1e-5) == site.spent(1e-5)
    many = SiteLedger()
    for _ in range(200):
        many.debit(PureEvent(0.01), label="x")
    assert many.spent(1e-5) < 2.0  # better than the sum of all eps


# -------------------------------------------------------------------------- who is left


def drop(*drops):
    def hook(kind, name, reply):
        return None if (kind, name) in drops else reply

    return hook


@pytest.mark.parametrize("secure", [False, True])
def test_clients_that_do_not_answer_are_left_out_and_named(secure):
    kind = "masked" if secure else "answer"
    transport = InProcessTransport(make_sites(), on_reply=drop((kind, "c")))
    backend = MessageBackend(transport, secure=secure)
    with pytest.warns(FaultyClientWarning, match=rf"'c' did not answer \({kind}\)"):
        found = backend.total(make_request(), np.arange(6))
    others = np.array([0, 1, 3, 4, 5])
    right = InProcess(DATA).total(replace(make_request(), reading=None), others)
    assert found.n_clients == 5
    assert backend.faults == found.faults == {"c": f"did not answer ({kind})"}
    for name, value in right.total.items():
        np.testing.assert_array_equal(found.total[name], value)


def test_who_is_lost_at_the_end_is_in_the_sum_all_the_same():
    transport = InProcessTransport(make_sites(), on_reply=drop(("unmask", "c")))
    backend = MessageBackend(transport, secure=True)
    with pytest.warns(FaultyClientWarning, match="unmask"):
        found = backend.total(make_request(), np.arange(6))
    assert found.n_clients == 6


@pytest.mark.parametrize("stage", STAGES)
def test_too_few_clients_open_nothing_and_are_named(stage):
    lost = [(stage, name) for name in "bcd"]
    transport = InProcessTransport(make_sites(), on_reply=drop(*lost))
    backend = MessageBackend(transport, secure=True)
    with pytest.raises(NotEnoughClientsError) as caught:
        backend.total(make_request(), np.arange(6))
    for name in "bcd":
        assert f"{name!r} did not answer ({stage})" in str(caught.value)
    assert "'a'" not in str(caught.value).replace("client 'a' were returned", "")


def test_sums_of_too_few_shares_are_not_opened():
    request = counts_request(DistributedDP(1.0, n_min=5, mode="faithful"))
    transport = InProcessTransport(
        make_sites(), on_reply=drop(*[("masked", n) for n in "bc"])
    )
    backend = MessageBackend(transport, secure=True)
    with pytest.raises(NotEnoughClientsError, match="5 are needed"):
        backend.total(request, np.arange(6))
    with pytest.raises(NotEnoughClientsError, match="4 clients must stay secret"):
        backend.total(request, np.arange(4))


def test_clients_themselves_see_to_the_smallest_sum():
    """A server that forgets n_min gets no shares of the masks."""
    request = counts_request(DistributedDP(1.0, n_min=6, mode="faithful"))
    transport = InProcessTransport(make_sites(), on_reply=drop(("masked", "b")))
    backend = MessageBackend(transport, secure=True)
    plain = masking_server.masked_sum

    def careless(*args, n_min=0, **options):
        return plain(*args, n_min=0, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(masking_server, "masked_sum", careless)
        with pytest.raises(NotEnoughClientsError, match="6 are needed"):
            backend.total(request, np.arange(6))


def test_shares_of_noise_are_not_asked_for_without_masks():
    request = counts_request(DistributedDP(1.0, n_min=3, mode="faithful"))
    backend = MessageBackend(InProcessTransport(make_sites()))
    with pytest.raises(ValueError, match="secure=True"):
        backend.total(request, np.arange(6))


def lie(kind, change):
    def hook(at, name, reply):
        if (at, name) != (kind, "c"):
            return reply
        return change(reply)

    return hook


def with_words(change):
    return lambda reply: (reply[0], {k: change(v) for k, v in reply[1].items()})


LIES = {
    "shape": (with_words(lambda v: v[..., :-1]), "of shape"),
    "type": (with_words(lambda v: v.astype(np.float32)), "float32"),
    "signed": (with_words(lambda v: v.astype(np.int32)), "int32"),
    "lists": (with_words(lambda v: v.tolist()), "sent no arrays"),
    "none": (lambda reply: (reply[0], {}), "sent the arrays []"),
    "more": (
        lambda reply: (reply[0], {**reply[1], "x": np.zeros(1)}),
        "sent the arrays",
    ),
    "text": (lambda reply: "crashed", "crashed"),
    "nothing": (lambda reply: None, "did not answer"),
    "no pair": (lambda reply: reply[1], "sent no message"),
    "number": (lambda reply: 7, "sent no message"),
    "refusal": (lambda reply: ({"refused": "not today"}, {}), "refused: not today"),
    # Only an aggregator speaks for several clients.
    "others": (lambda reply: (*reply, ["c", "d"]), "sent no message"),
}


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("name", LIES)
def test_wrong_replies_are_left_out_and_named(name, secure):
    change, words = LIES[name]
    kind = "masked" if secure else "answer"
    request = make_request()
    transport = InProcessTransport(make_sites(), on_reply=lie(kind, change))
    backend = MessageBackend(transport, secure=secure)
    with pytest.warns(FaultyClientWarning, match="'c' ") as caught:
        found = backend.total(request, np.arange(6))
    assert words in str(caught[0].message)
    others = np.array([0, 1, 3, 4, 5])
    right = InProcess(DATA).total(replace(request, reading=None), others)
    assert found.n_clients == 5
    for block, value in right.total.items():
        np.testing.assert_array_equal(found.total[block], value)


def test_plain_answers_out_of_range_are_left_out():
    request = counts_request(CentralDP(1.0))
    transport = InProcessTransport(
        make_sites(), on_reply=lie("answer", with_words(lambda v: v + v.dtype.type(2)))
    )
    with pytest.warns(FaultyClientWarning, match="out of range"):
        found = MessageBackend(transport).total(request, np.arange(6))
    assert found.n_clients == 5


def test_plain_answers_of_another_round_are_left_out():
    kept = {}

    def replay(kind, name, reply):
        if name == "c":
            return kept.setdefault("first", reply)
        return reply

    backend = MessageBackend(InProcessTransport(make_sites(), on_reply=replay))
    backend.total(make_request(), np.arange(6))
    with pytest.warns(FaultyClientWarning, match="'c' answered another round"):
        found = backend.total(make_request(), np.arange(6))
    assert found.n_clients == 5


def test_masked_answers_of_another_round_do_not_open():
    kept = {}

    def replay(kind, name, reply):
        if (kind, name) == ("masked", "c"):
            return kept.setdefault("first", reply)
        return reply

    backend = MessageBackend(
        InProcessTransport(make_sites(), on_reply=replay), secure=True
    )
    backend.total(make_request(), np.arange(6))
    # Masks of one round do not fit another: what comes out is noise, not the sum.
    with pytest.raises(FaultySumError, match="at least one site is faulty"):
        backend.total(make_request(), np.arange(6))


@pytest.mark.parametrize("rows", [-(10**6), 2**31])
def test_a_false_number_of_rows_is_found(rows):
    request = make_request(CentralDP(1.0, unit="example"))

    def more(reply):
        words = {k: v.copy() for k, v in reply[1].items()}
        words[UNITS] += np.array([rows]).astype(words[UNITS].dtype)
        return reply[0], words

    transport = InProcessTransport(make_sites(), on_reply=lie("masked", more))
    with pytest.raises(FaultySumError, match=r"reports -?\d+ rows"):
        MessageBackend(transport, secure=True).total(request, np.arange(6))


def test_plain_answers_do_not_show_the_number_of_rows():
    request = make_request(CentralDP(1.0, unit="example"))
    seen = []
    transport = InProcessTransport(
        make_sites(), on_reply=lambda kind, name, reply: seen.append(reply) or reply
    )
    found = MessageBackend(transport).total(request, np.arange(6))
    assert found.n_units == 29  # what is public
    assert all(set(words) == set(request.codec.blocks) for _, words in seen)
    lost = InProcessTransport(make_sites(), on_reply=lie("answer", lambda _: None))
    with pytest.warns(FaultyClientWarning):
        found = MessageBackend(lost).total(request, np.arange(6))
    assert found.n_units == round(29 * 5 / 6)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_faults_are_kept_in_the_history():
    sites = make_sites(policy=SitePolicy(methods=("score_histogram",)))
    sites |= {n: Site(n, rows_of(n)) for n in "abcde"}
    runner = FederatedRunner(secure=True, n_rounds=2)
    with pytest.warns(
        FaultyClientWarning, match=r"'f' refused: its policy \(methods\)"
    ):
        fitted = FedTempCalibrator(classes=[0, 1], runner=runner).fit(
            RemoteClients(InProcessTransport(sites))
        )
    assert [list(record.faults) for record in fitted.history_] == [["f"], ["f"]]
    assert [record.n_clients for record in fitted.history_] == [5, 5]


def test_signed_rounds_through_messages():
    keys = {name: SiteKey.generate(name) for name in NAMES}
    roster = Roster({name: key.public for name, key in keys.items()})
    sites = {
        name: Site(name, rows_of(name), site_key=keys[name], roster=roster)
        for name in NAMES
    }
    backend = MessageBackend(InProcessTransport(sites), secure=True)
    assert backend.total(make_request(), np.arange(6)).n_clients == 6
    # A site of the server's own making under the name of another: nobody goes on.
    forged = SiteKey.generate("f")
    sites["f"] = Site("f", rows_of("f"), site_key=forged, roster=roster)
    backend = MessageBackend(InProcessTransport(sites), secure=True)
    with pytest.raises(NotEnoughClientsError, match="did not sign"):
        backend.total(make_request(), np.arange(6))
    with pytest.raises(ValueError, match="is not that of"):
        Site("a", rows_of("a"), site_key=keys["b"])


# -------------------------------------------------------------------- what is overheard


def overheard(secure, request=None):
    seen = []

    def listen(kind, name, reply):
        seen.append((kind, name, reply))
        return reply

    transport = InProcessTransport(make_sites(), on_reply=listen)
    backend = MessageBackend(transport, secure=secure)
    for _ in range(2):
        backend.total(request or counts_request(CentralDP(1.0)), np.arange(6))
    return seen


def test_the_server_never_receives_an_unmasked_vector():
    plain = {n: words for _, n, (_, words) in overheard(False)}
    masked = [(n, words) for _, n, (_, words) in overheard(True) if words]
    assert len(masked) == 12
    for name, words in masked:
        for block, value in words.items():
            # 8 counts of 0 or 1: each equal to its mask with a chance of 2^-32.
            assert not (value == plain[name][block]).any()


def test_the_number_of_rows_is_masked_too():
    request = make_request(CentralDP(1.0, unit="example"))
    masked = [words[UNITS] for _, _, (_, words) in overheard(True, request) if words]
    assert all(value[0] > 1000 for value in masked)  # 29 rows; chance of less 2^-22


def test_errors_of_masks_reach_the_caller():
    def garble(kind, name, reply):
        if kind == "unmask":
            return {**reply[0], "own_masks": [bytes(32)] * len(reply[0]["alive"])}, {}
        return reply

    backend = MessageBackend(
        InProcessTransport(make_sites(), on_reply=garble), secure=True
    )
    with pytest.raises(SecureAggregationError, match="are inconsistent"):
        backend.total(make_request(), np.arange(6))


def test_histograms_of_classes_go_through_too():
    request = make_request(CentralDP(1.0), ClassHistograms(4, 2.0, 2.0))
    found = MessageBackend(InProcessTransport(make_sites()), secure=True).total(
        request, np.arange(6)
    )
    assert found.n_clients == 6


def test_a_server_ledger_and_the_sites_agree():
    """Own noise at six sites: each pays what the server has planned for one."""
    ledgers = {name: SiteLedger(budget=(2.0, 1e-5)) for name in NAMES}
    sites = {n: Site(n, rows_of(n), ledger=ledgers[n]) for n in NAMES}
    server = PrivacyLedger(budget=(2.0, 1e-5))
    remote = RemoteClients(InProcessTransport(sites), n_rows=29)
    ScoreHistogram.fit(
        remote,
        classes=[0, 1],
        privacy=SourceDP(0.7, mode="faithful"),
        ledger=server,
        runner=FederatedRunner(secure=True),
    )
    for ledger in ledgers.values():
        assert ledger.spent() == pytest.approx(server.spent(), rel=1e-6)
