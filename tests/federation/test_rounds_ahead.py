"""Keys and shares of all rounds at once: what that saves, and what it must not allow.

A dishonest server here is a transport: it sees every message, and may send sites
others. The stages one by one are in `test_masking_attacks.py`.
"""

import pickle

import numpy as np
import pytest

from skfedcal import (
    CentralDP,
    DistributedDP,
    FederatedRunner,
    FedTempCalibrator,
    make_federation,
)
from skfedcal.exceptions import (
    FaultyClientWarning,
    FaultySumError,
    NotEnoughClientsError,
)
from skfedcal.federation import (
    InProcessTransport,
    MessageBackend,
    Operator,
    RemoteClients,
    Roster,
    Site,
    SiteKey,
    SitePolicy,
    SiteRows,
)
from skfedcal.federation import roster as roster_module
from skfedcal.federation.crypto import load_key
from skfedcal.federation.mask_plan import join, plan_masks, to_bits
from skfedcal.federation.masking_client import cut_keys
from skfedcal.privacy.site_ledger import SiteLedger

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
]

N_ROUNDS = 5
FED = make_federation(5, 1000, 2, random_state=0)
NAMES = [f"s{i}" for i in range(5)]
ROWS = dict(zip(NAMES, FED.clients, strict=True))


def make_identities(names, operator=True):
    keys = {name: SiteKey.generate(name) for name in names}
    asks = SiteKey.generate("operator")
    public = {name: key.public for name, key in keys.items()}
    return keys, Roster(public, asks.public if operator else None), asks


def make_sites(names=NAMES, rows=ROWS, roster=None, keys=None, **options):
    own = {} if roster is None else {"roster": roster}
    return {
        name: Site(
            name,
            SiteRows(*rows[name]),
            site_key=None if keys is None else keys[name],
            **own,
            **options,
        )
        for name in names
    }


class Spy(InProcessTransport):
    """Transport that keeps all messages, and may change them."""

    def __init__(self, sites, meddle=None):
        super().__init__(sites)
        self.log = []
        self.meddle = meddle or (lambda kind, name, letter: letter)

    def call(self, kind, letters):
        sent = {}
        for name, letter in letters.items():
            changed = self.meddle(kind, name, letter)
            if changed is not None:
                sent[name] = changed
        replies = super().call(kind, sent)
        self.log.append((kind, sent, replies))
        return replies

    @property
    def kinds(self):
        return [kind for kind, *_ in self.log]

    def sent(self, kind, index=-1):
        """Letters of one exchange of this kind."""
        return [letters for k, letters, _ in self.log if k == kind][index]

    def replies(self, kind, index=-1):
        return [replies for k, _, replies in self.log if k == kind][index]


def fit(clients, secure=True, n_rounds=N_ROUNDS, **options):
    return FedTempCalibrator(
        privacy=options.pop("privacy", CentralDP(1.0, unit="example")),
        classes=[0, 1],
        random_state=options.pop("random_state", 0),
        runner=FederatedRunner(n_rounds=n_rounds, secure=secure),
    ).fit(clients)


def remote(transport, **options):
    return RemoteClients(transport, n_rows=1000, **options)


def totals(fitted):
    return [
        {name: np.asarray(value).tobytes() for name, value in record.total.items()}
        for record in fitted.history_
    ]


# What it saves.


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("n_clients", [3, 5])
def test_a_fit_takes_two_exchanges_and_two_for_each_round(n_clients, signed):
    names = NAMES[:n_clients]
    keys, roster, key = make_identities(names)
    own = {"keys": keys, "roster": roster} if signed else {}
    spy = Spy(make_sites(names, policy=SitePolicy(min_clients=3), **own))
    operator = Operator(key, roster) if signed else None
    found = fit(remote(spy, operator=operator))
    assert spy.kinds == ["keys", "shares", *["masked", "unmask"] * N_ROUNDS]
    rows = {name: ROWS[name] for name in names}
    n_rows = sum(len(labels) for _, labels in rows.values())
    here = fit(rows, secure=False)
    if n_rows == 1000:  # the noise follows from the public number of rows
        assert found.temperature_ == here.temperature_
        assert totals(found) == totals(here)
    assert len(found.history_) == N_ROUNDS


def test_rounds_of_other_cohorts_are_prepared_for_themselves():
    """Cohorts that are the same in all rounds are prepared once they come again."""
    names = [f"s{i}" for i in range(6)]
    fed = make_federation(6, 600, 2, random_state=0)
    # Far from the start, so that a fit takes more than two rounds.
    rows = {n: (20 * Z, y) for n, (Z, y) in zip(names, fed.clients, strict=True)}
    spy = Spy(make_sites(names, rows))
    runner = FederatedRunner(n_rounds=4, secure=True, cohort_size=3)
    found = FedTempCalibrator(classes=[0, 1], runner=runner).fit(RemoteClients(spy))
    assert spy.kinds.count("masked") == 2 * len(found.history_) >= 6
    assert spy.kinds.count("keys") == 4
    spy = Spy(make_sites(names, rows))
    runner = FederatedRunner(
        n_rounds=4, secure=True, cohort="independent", cohort_size=4
    )
    FedTempCalibrator(classes=[0, 1], runner=runner).fit(RemoteClients(spy))
    first = next(iter(spy.sent("keys", 0).values()))
    assert first[0]["rounds"] == 1


def test_more_rounds_than_fit_are_prepared_in_parts(monkeypatch):
    monkeypatch.setattr("skfedcal.federation.mask_plan.MAX_ROUNDS", 2)
    spy = Spy(make_sites())
    found = fit(remote(spy))
    assert spy.kinds.count("keys") == 3
    assert totals(found) == totals(fit(ROWS, secure=False))


def test_a_site_that_misses_a_round_takes_part_in_the_next():
    lost = []

    def meddle(kind, name, letter):
        if (kind, name, letter[0]["round"]) == ("masked", "s1", 1) and not lost:
            lost.append(name)
            return None
        return letter

    keys, roster, _ = make_identities(NAMES, operator=False)
    spy = Spy(make_sites(keys=keys, roster=roster), meddle)
    with pytest.warns(FaultyClientWarning, match="'s1' did not answer"):
        found = fit(remote(spy))
    assert [record.n_clients for record in found.history_] == [5, 4, 5, 5, 5]
    assert "s1" in found.history_[1].faults and not found.history_[2].faults
    # One more setup, and the list that lacks a site is signed.
    assert spy.kinds.count("keys") == 2 and spy.kinds.count("survivors") == 1


def test_a_site_that_was_started_again_returns_with_the_next_round():
    ledgers = {name: SiteLedger(budget=(5.0, 1e-5), require_secure=False)
               for name in NAMES}  # fmt: skip
    sites = make_sites(policy=SitePolicy(noise="central"))
    for name, site in sites.items():
        site._ledger = ledgers[name]

    def meddle(kind, name, letter):
        if (kind, name, letter[0]["round"]) == ("masked", "s1", 2):
            sites["s1"].state = {}  # memory is lost, the ledger is not
        return letter

    spy = Spy(sites, meddle)
    spy.sites = sites
    with pytest.warns(FaultyClientWarning, match="'s1' refused: no round is under way"):
        found = fit(remote(spy))
    assert [record.n_clients for record in found.history_] == [5, 5, 4, 5, 5]
    assert [len(ledger) for ledger in ledgers.values()] == [1] * 5
    # Who repeats the messages of the first run to it is refused by the ledger.
    old, arrays = spy.sent("keys", 0)["s1"]
    sites["s1"].state = {}
    reply, _ = sites["s1"].handle("keys", dict(old), arrays)
    assert "before it was started again" in reply["refused"]


def test_a_site_that_is_away_is_prepared_for_twice_only():
    spy = Spy(make_sites(), lambda kind, name, letter: None if name == "s4" else letter)
    with pytest.warns(FaultyClientWarning, match="'s4' did not answer"):
        found = fit(remote(spy))
    assert [record.n_clients for record in found.history_] == [4] * N_ROUNDS
    assert all("s4" in record.faults for record in found.history_)
    assert spy.kinds.count("keys") == 2


# What a server must not get.


@pytest.fixture(scope="module")
def finished():
    """Sites after a fit, and all messages of it."""
    keys, roster, key = make_identities(NAMES)
    sites = make_sites(keys=keys, roster=roster)
    spy = Spy(sites)
    fit(remote(spy, operator=Operator(key, roster)))
    return sites, spy


ONCE = [(kind, i) for kind in ("masked", "unmask") for i in range(N_ROUNDS)]


@pytest.mark.parametrize(("kind", "index"), [("keys", 0), ("shares", 0), *ONCE])
def test_no_message_of_a_run_is_answered_twice(finished, kind, index):
    sites, spy = finished
    for name, (message, arrays) in spy.sent(kind, index).items():
        before = dict(sites[name].state)
        reply, words = sites[name].handle(kind, dict(message), arrays)
        assert set(reply) == {"refused"} and not words
        assert sites[name].state == before


def halfway(n_done=2, **options):
    """Sites whose rounds before `n_done` are summed, one that is masked, and a spy."""

    class Stop(Exception):
        pass

    def meddle(kind, name, letter):
        if kind == "unmask" and letter[0]["round"] == n_done:
            raise Stop
        return letter

    keys, roster, _ = make_identities(NAMES, operator=False)
    sites = make_sites(keys=keys, roster=roster, **options)
    spy = Spy(sites, meddle)
    with pytest.raises(Stop):
        fit(remote(spy))
    run = spy.sent("keys")["s0"][0]["run"]
    whole = to_bits(range(5), 5)
    letter = {"run": run, "survivors": whole, "signers": [], "signatures": []}
    return sites, spy, letter


def unmask(site, letter, index, alive=None):
    message = letter | {"round": index}
    if alive is not None:
        message["survivors"] = to_bits(alive, 5)
    return site.handle("unmask", message, {})[0]


def test_shares_are_of_the_round_that_is_open_and_given_once():
    sites, _, letter = halfway()
    for index in (0, 1, 3, 4, 2**40):
        assert "not under way" in unmask(sites["s0"], letter, index)["refused"]
    assert "own_masks" in unmask(sites["s0"], letter, 2)
    for index in range(5):
        reply = unmask(sites["s0"], letter, index)
        assert "out of order" in reply["refused"]


def signatures(sites, letter, index, alive):
    """Letter with the signatures of these sites under a list of them."""
    message = letter | {"round": index, "survivors": to_bits(alive, 5)}
    found = {i: sites[NAMES[i]].handle("survivors", message, {})[0] for i in alive}
    return {"signers": list(found),
            "signatures": [reply["signature"] for reply in found.values()]}  # fmt: skip


@pytest.mark.parametrize("first", [(0, 1, 2, 3, 4), (0, 1, 2, 3)])
def test_shares_of_both_kinds_are_not_given_for_one_site(first):
    sites, _, letter = halfway()
    other = (0, 1, 2, 3) if len(first) == 5 else (0, 1, 2, 3, 4)
    letter = letter | signatures(sites, letter, 2, (0, 1, 2, 3))
    if len(first) == 5:  # it signed another list
        assert "signed another list" in unmask(sites["s0"], letter, 2)["refused"]
    else:
        assert unmask(sites["s0"], letter, 2, first)["dead"] == [4]
    assert "out of order" in unmask(sites["s0"], letter, 2, other)["refused"]
    # Nor by the shares of another round.
    for index in (1, 3):
        assert "refused" in unmask(sites["s0"], letter, index, other)


def test_rounds_are_not_reordered_and_skipped_ones_are_gone():
    sites, spy, letter = halfway()
    message, arrays = spy.sent("masked")["s0"]
    later = dict(message) | {"round": 4}
    # Round 2 was not opened: it stays closed.
    reply, words = sites["s0"].handle("masked", later, arrays)
    assert "refused" not in reply and words
    for index in (0, 1, 2, 3, 4, 5):
        again = dict(message) | {"round": index}
        reply, words = sites["s0"].handle("masked", again, arrays)
        assert "not under way" in reply["refused"] and not words
    for index in (2, 3):
        assert "not under way" in unmask(sites["s0"], letter, index)["refused"]
    assert "own_masks" in unmask(sites["s0"], letter, 4)
    assert "secrets" not in sites["s0"].state  # the last round


def test_another_setup_ends_the_rounds_of_the_first():
    sites, spy, letter = halfway()
    message, arrays = spy.sent("keys")["s0"]
    again = dict(message) | {"round": 5}
    assert "sealing" in sites["s0"].handle("keys", again, arrays)[0]
    assert "refused" in unmask(sites["s0"], letter, 2)
    masked, arrays = spy.sent("masked")["s0"]
    assert "refused" in sites["s0"].handle("masked", dict(masked), arrays)[0]
    # And one of rounds that were prepared before is refused.
    for index in range(5):
        old = dict(message) | {"round": index}
        assert "already answered" in sites["s0"].handle("keys", old, {})[0]["refused"]


def test_secrets_are_erased_as_they_are_used():
    keys, roster, _ = make_identities(NAMES, operator=False)
    sites = make_sites(keys=keys, roster=roster)
    secrets, held = {}, {}

    def meddle(kind, name, letter):
        if name != "s0":
            return letter
        state = sites["s0"].state
        if kind == "shares":
            secrets[-1] = state["sealing"]
            secrets.update(enumerate(_pairs(state["secrets"])))
        elif kind == "unmask":
            held[letter[0]["round"]] = [raw[:64] for raw in state["held"]]
        if kind in ("masked", "unmask"):
            index = letter[0]["round"]
            stored = pickle.dumps(state)
            # Own secrets before the answer leaves, shares before they are given.
            used = index if kind == "masked" else index + 1
            for i in range(-1, 5):
                for half in (secrets[i][:32], secrets[i][32:]):
                    assert (half in stored and half != b"") == (i >= used)
            gone = [part for i in held for part in held[i] if i < index]
            assert not any(part in stored for part in gone)
        return letter

    fit(remote(Spy(sites, meddle)))
    assert len(held) == 5 and "held" not in sites["s0"].state
    stored = pickle.dumps(sites["s0"].state)
    assert not any(pair[:32] in stored for pair in secrets.values())


def _pairs(raw):
    return [raw[i : i + 64] for i in range(0, len(raw), 64)]


def test_a_site_can_forget_what_is_prepared():
    sites, _, letter = halfway()
    sites["s0"].forget_masks()
    assert set(sites["s0"].state) == {"seen_runs", "seen_rounds", "stage"}
    assert "refused" in unmask(sites["s0"], letter, 2)
    sites["s1"].state["plain_runs"], sites["s1"].state["plain_rounds"] = ["x"], [3]
    sites["s1"].forget_masks()
    assert sites["s1"].state["plain_runs"] == ["x"]


def test_the_key_of_one_round_says_nothing_of_another():
    """Alive in one round and dead in the next: with one key for all rounds, the answer.

    `s4` answers round 2, in which its own mask is opened. In round 3 it is lost, and
    its masking key is opened.
    """
    _, spy, _ = halfway(2)
    sites = spy.sites
    letter = {"run": spy.sent("keys")["s0"][0]["run"], "signers": [], "signatures": []}
    for name in NAMES:
        assert "own_masks" in unmask(sites[name], letter, 2, range(5))
    message, arrays = spy.sent("masked")["s0"]
    for name in NAMES[:4]:
        sites[name].handle("masked", dict(message) | {"round": 3}, arrays)
    letter = letter | signatures(sites, letter, 3, range(4))
    found = {}
    for place, name in enumerate(NAMES[:4]):
        reply = unmask(sites[name], letter, 3, range(4))
        assert reply["dead"] == [4]
        found[place + 1] = reply["masking"][0]
    opened = load_key(join(found)).public_key().public_bytes_raw()
    public = cut_keys(spy.replies("keys")["s4"][0]["masking"])
    assert public.index(opened) == 3 and public.count(opened) == 1
    assert len(set(public)) == N_ROUNDS
    every = [k for r in spy.replies("keys").values() for k in cut_keys(r[0]["masking"])]
    assert len(set(every)) == 5 * N_ROUNDS


CHANGES = {
    "method": {"algorithm": {"n_rounds": 6}},
    "unit": {"unit": "client"},
    "n_min": {"n_min": 1},
    "run": {"run": "another"},
    "rounds": {"n_rounds": 6},
    "claim": {"claim": {"mu": 0.5}},
    "clients": {"n_clients": 6},
    "seeded": {"simulated": False},
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_round_asks_for_what_its_keys_were_made_for(case):
    import json

    def changed(text):
        content = json.loads(text)
        for name, value in CHANGES[case].items():
            old = content[name]
            content[name] = old | value if isinstance(value, dict) else value
        assert content != json.loads(text)
        return json.dumps(content)

    def meddle(kind, name, letter):
        message, arrays = letter
        if kind == "masked" and name == "s2" and message["round"] == 1:
            message = dict(message) | {"request": changed(message["request"])}
        return message, arrays

    loads = []

    def load():
        loads.append(1)
        return SiteRows(*ROWS["s2"])

    sites = make_sites()
    sites["s2"] = Site("s2", load)
    with pytest.warns(FaultyClientWarning, match="'s2' refused"):
        found = fit(remote(Spy(sites, meddle)), n_rounds=2)
    assert [record.n_clients for record in found.history_] == [5, 4]
    assert len(loads) == 1


def test_sites_that_are_asked_different_things_add_up_to_noise():
    """One is asked the first question again, as the second: its masks do not cancel."""
    first = {}

    def meddle(kind, name, letter):
        if kind == "masked" and name == "s0":
            message, arrays = letter
            if message["round"] == 0:
                first["s0"] = letter
            elif message["round"] == 1:
                old, arrays = first["s0"]
                return dict(message) | {"request": old["request"]}, arrays
        return letter

    with pytest.raises(FaultySumError, match="at least one site is faulty"):
        fit(remote(Spy(make_sites(), meddle)))


@pytest.mark.parametrize(
    ("term", "value"),
    [("threshold", 5), ("round", 1), ("run", "x"), ("rounds", 4)],
)
def test_a_term_that_one_site_is_told_differently_is_not_masked_for(term, value):
    def meddle(kind, name, letter):
        message, arrays = letter
        if name == "s3" and kind == "keys":
            message = dict(message) | {term: value}
        return message, arrays

    keys, roster, _ = make_identities(NAMES, operator=False)
    spy = Spy(make_sites(keys=keys, roster=roster), meddle)
    if term == "rounds":  # the number of its keys shows it
        with pytest.warns(FaultyClientWarning, match="'s3' sent no keys"):
            found = fit(remote(spy))
        assert [record.n_clients for record in found.history_] == [4, 5, 5, 5, 5]
        return
    with pytest.raises(NotEnoughClientsError):
        fit(remote(spy))
    assert "unmask" not in spy.kinds
    assert not any(words for *_, replies in spy.log for _, words in replies.values())


def test_too_few_sites_after_the_setup_open_nothing():
    def meddle(kind, name, letter):
        return None if kind == "masked" and name > "s2" else letter

    keys, roster, _ = make_identities(NAMES, operator=False)
    sites = make_sites(keys=keys, roster=roster)
    spy = Spy(sites, meddle)
    with pytest.raises(NotEnoughClientsError, match="3 of 5 clients sent masked"):
        fit(remote(spy))
    assert "unmask" not in spy.kinds
    # A server that asks all the same: four are needed.
    run = spy.sent("keys")["s0"][0]["run"]
    letter = {"run": run, "signers": [], "signatures": []}
    assert "4 are needed" in unmask(sites["s0"], letter, 0, range(3))["refused"]
    assert "secrets" not in sites["s0"].state


@pytest.mark.parametrize("min_clients", [4, 5])
def test_a_site_does_not_answer_among_fewer_than_its_policy_demands(min_clients):
    """The others could open the sum of those who shared, without asking it again."""

    def meddle(kind, name, letter):
        return None if (kind, name) == ("shares", "s4") else letter

    keys, roster, _ = make_identities(NAMES, operator=False)
    sites = make_sites(keys=keys, roster=roster, policy=SitePolicy(min_clients=3))
    loads = []

    def load():
        loads.append(1)
        return SiteRows(*ROWS["s0"])

    strict = SitePolicy(min_clients=min_clients)
    sites["s0"] = Site("s0", load, policy=strict, site_key=keys["s0"], roster=roster)
    if min_clients == 4:
        with pytest.warns(FaultyClientWarning, match="'s4'"):
            fit(remote(Spy(sites, meddle)), n_rounds=1)
        return
    with pytest.raises(
        NotEnoughClientsError, match=r"4 clients shared .* 5 are needed"
    ):
        fit(remote(Spy(sites, meddle)), n_rounds=1)
    assert not loads


def test_a_list_that_lacks_nobody_opens_no_masking_key():
    """And one that lacks somebody opens nothing without signatures."""
    for alive in (range(5), range(4)):
        sites, _, letter = halfway()
        replies = [unmask(sites[name], letter, 2, alive) for name in NAMES[:4]]
        if len(alive) == 5:
            assert all(not reply["masking"] for reply in replies)
        else:
            texts = [reply["refused"] for reply in replies]
            assert all("0 sites signed" in text for text in texts)


def test_limits_of_the_number_of_rounds():
    assert plan_masks("run", 0, 5, n_rounds=1000).n_rounds == 64
    assert plan_masks("run", 0, 10_000, n_rounds=5).n_rounds < 5
    site = make_sites()["s0"]
    spy = Spy(make_sites())
    fit(remote(spy), n_rounds=2)
    message, _ = spy.sent("keys")["s0"]
    for rounds, text in ((3, "of a run of 2"), (65, "at most 64"), (0, "at least 1")):
        asked = dict(message) | {"rounds": rounds}
        assert text in site.handle("keys", asked, {})[0]["refused"]


# The operator.


def operated(n_rounds=2, secure=True, meddle=None, sign=True, roster=None, **policy):
    """A fit over sites whose roster names an operator; loads of their rows."""
    keys, own, key = make_identities(NAMES)
    loads = []

    def load(name):
        loads.append(name)
        return SiteRows(*ROWS[name])

    policy = SitePolicy(allow_plain=not secure, **policy)
    sites = {
        name: Site(
            name,
            lambda name=name: load(name),
            policy=policy,
            site_key=keys[name],
            roster=own,
            ledger=SiteLedger(budget=(5.0, 1e-5), require_secure=False),
        )
        for name in NAMES
    }
    spy = Spy(sites, meddle)
    operator = Operator(key, roster or own) if sign else None
    run = lambda: fit(remote(spy, operator=operator), secure, n_rounds)  # noqa: E731
    return run, spy, loads, key


@pytest.mark.parametrize("secure", [True, False])
def test_what_the_operator_signed_is_answered(secure):
    run, _, loads, _ = operated(secure=secure)
    assert totals(run()) == totals(fit(ROWS, secure=False, n_rounds=2))
    assert sorted(loads) == NAMES


@pytest.mark.parametrize("secure", [True, False])
def test_what_the_operator_did_not_sign_is_refused_before_rows_are_touched(secure):
    run, spy, loads, _ = operated(secure=secure, sign=False)
    with pytest.raises(NotEnoughClientsError):
        run()
    kind = "keys" if secure else "answer"
    refused = [reply["refused"] for reply, _ in spy.replies(kind).values()]
    assert all("no signature of the operator" in text for text in refused)
    assert not loads and not any(len(site._ledger) for site in spy.sites.values())
    assert all(site.state == {} for site in spy.sites.values())


def forged(change, kinds):
    def meddle(kind, name, letter):
        message, arrays = letter
        return (change(dict(message)) if kind in kinds else message), arrays

    return meddle


FORGERIES = {
    "another key": lambda m: m | {"operator": SiteKey.generate("operator").sign(b"x")},
    "zeros": lambda m: m | {"operator": bytes(64)},
    "short": lambda m: m | {"operator": m["operator"][:-1]},
    "text": lambda m: m | {"operator": "x" * 64},
    "number": lambda m: m | {"operator": 10**13},
    "later": lambda m: m | {"expires": m["expires"] + 1},
    "no time": lambda m: m | {"expires": None},
    "roster": lambda m: m | {"roster": bytes(32)},
    "run": lambda m: m | {"run": "another"},
    "round": lambda m: m | {"round": m["round"] + 7},
    "request": lambda m: m | {"request": m["request"].replace(":0,", ": 0,")},
}
TERMS = {
    "threshold": lambda m: m | {"threshold": 5},
    "fewer rounds": lambda m: m | {"rounds": 1},
    "more clients": lambda m: m | {"n_clients": 4, "degree": 3, "threshold": 3},
}


FORGED = [(case, kind) for case in FORGERIES for kind in ("keys", "masked", "answer")]


@pytest.mark.parametrize(("case", "kind"), [*FORGED, *((c, "keys") for c in TERMS)])
def test_a_forged_signature_is_refused_before_rows_are_touched(case, kind):
    change = {**FORGERIES, **TERMS}[case]
    meddle = forged(change, (kind,))
    run, spy, loads, _ = operated(secure=kind != "answer", meddle=meddle)
    with pytest.raises(NotEnoughClientsError):
        run()
    assert not loads and not any(len(site._ledger) for site in spy.sites.values())
    refused = [r[0]["refused"] for r in spy.replies(kind).values()]
    assert len(refused) == 5 and all("operator" in text for text in refused)


def test_a_signature_is_for_one_kind_of_message():
    run, spy, *_ = operated()
    run()
    message, arrays = spy.sent("masked", 0)["s0"]
    policy = SitePolicy(allow_plain=True)
    roster = spy.sites["s0"]._roster
    site = Site("s0", SiteRows(*ROWS["s0"]), policy=policy, roster=roster)
    reply, _ = site.handle("answer", dict(message), arrays)
    assert "did not sign this" in reply["refused"]


@pytest.mark.parametrize("shift", [-(25 * 3600), 25 * 3600])
def test_a_signature_expires_and_is_not_valid_for_ever(monkeypatch, shift):
    run, _, loads, _ = operated()
    clock = roster_module.time.time
    sign = Operator.sign_request

    def early(self, *args):
        with monkeypatch.context() as patch:
            patch.setattr(roster_module.time, "time", lambda: clock() + shift)
            return sign(self, *args)

    monkeypatch.setattr(Operator, "sign_request", early)
    with pytest.raises(
        NotEnoughClientsError, match="expired, or is valid for too long"
    ):
        run()
    assert not loads


def test_a_site_with_an_older_roster_names_both():
    keys, old, key = make_identities(NAMES)
    new = Roster({**old.sites, "new": SiteKey.generate("new").public}, key.public)
    spy = Spy(make_sites(keys=keys, roster=old))
    with pytest.raises(NotEnoughClientsError) as caught:
        fit(remote(spy, operator=Operator(key, new)))
    assert new.digest.hex()[:16] in str(caught.value)
    assert old.digest.hex()[:16] in str(caught.value)


def test_rosters_without_an_operator_answer_anyone(tmp_path):
    keys, roster, _ = make_identities(NAMES, operator=False)
    roster.save(tmp_path / "roster.json")
    assert "skfedcal roster 1" in (tmp_path / "roster.json").read_text()
    read = Roster.load(tmp_path / "roster.json")
    assert read == roster and read.operator is None
    fit(remote(Spy(make_sites(keys=keys, roster=read))), n_rounds=1)
    _, named, _ = make_identities(NAMES)
    named.save(tmp_path / "named.json")
    assert "skfedcal roster 2" in (tmp_path / "named.json").read_text()
    assert Roster.load(tmp_path / "named.json") == named
    assert len({roster.digest, named.digest, read.digest}) == 2
    text = (tmp_path / "named.json").read_text()
    # As it would be read by who does not know of operators.
    (tmp_path / "cut.json").write_text(text.replace("roster 2", "roster 1"))
    with pytest.raises(ValueError, match="has no operator"):
        Roster.load(tmp_path / "cut.json")


def test_an_operator_is_not_made_of_other_things():
    keys, roster, key = make_identities(NAMES)
    with pytest.raises(ValueError, match="another one than 's0'"):
        Operator(keys["s0"], roster)
    with pytest.raises(TypeError, match="roster is of type dict"):
        Operator(key, {})
    with pytest.raises(ValueError, match="has the key of a site"):
        Roster(dict(roster.sites), keys["s0"].public)
    with pytest.raises(ValueError, match="does not have 32 bytes"):
        Roster(dict(roster.sites), b"short")
    with pytest.raises(TypeError, match="operator is of type SiteKey"):
        RemoteClients(Spy(make_sites()), operator=key)
    engine = MessageBackend(Spy(make_sites()), secure=True)
    with pytest.raises(ValueError, match="with a backend pass"):
        RemoteClients(engine, operator=Operator(key, roster))


def test_shares_of_noise_are_prepared_too():
    privacy = DistributedDP(4.0, n_min=5, mode="faithful", unit="example")
    keys, roster, key = make_identities(NAMES)
    spy = Spy(make_sites(keys=keys, roster=roster))
    fit(
        remote(spy, operator=Operator(key, roster)),
        privacy=privacy,
        random_state=None,
    )
    assert spy.kinds == ["keys", "shares", *["masked", "unmask"] * N_ROUNDS]
