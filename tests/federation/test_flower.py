"""The real client app and transport, on a grid in this process."""

import hashlib
import json
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from string import Template
from textwrap import dedent

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from skfedcal import (
    FederatedRunner,
    FedTempCalibrator,
    ScoreHistogram,
    make_federation,
)
from skfedcal.exceptions import (
    FaultyClientWarning,
    NotEnoughClientsError,
    SimulatedPrivacyWarning,
)
from skfedcal.federation import (
    FlowerTransport,
    RemoteClients,
    Roster,
    SiteKey,
    SitePolicy,
    make_client_app,
)
from skfedcal.federation.crypto import new_key
from skfedcal.federation.flower import pack, unpack
from skfedcal.federation.site import site_from_config, site_policy

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE, REFERENCE = (DOCS / f / "deployment.rst" for f in ("guide", "reference"))
NAMES = ("berlin", "lyon", "oslo", "turin")
CLASSES = [0, 1, 2]
PLAIN, MASKED = FederatedRunner(), FederatedRunner(secure=True)


@pytest.fixture(scope="module")
def clients():
    fed = make_federation(4, 400, 3, dtype=np.float64, random_state=0)
    return dict(zip(NAMES, fed.clients, strict=True))


@pytest.fixture
def configs(clients, tmp_path):
    """Configurations by node id, in an order that has nothing to do with names."""
    rng = np.random.default_rng()
    out = {}
    for name in rng.permutation(NAMES):
        path = tmp_path / f"{name}.npz"
        np.savez(path, logits=clients[name][0], labels=clients[name][1])
        out[int(rng.integers(2**63))] = {
            "client-id": str(name),
            "data-path": str(path),
            "allow-plain": True,
        }
    return out


@pytest.fixture
def make_grid(local_grid, configs):
    return partial(local_grid, make_client_app(), configs)


def connect(grid, **options):
    options = {"min_nodes": 4, "timeout": 0.0, "wait": 0.0, "poll": 0.0} | options
    return FlowerTransport(grid, **options)


def node_of(grid, name):
    return next(
        n for n, c in grid.contexts.items() if c.node_config["client-id"] == name
    )


def counts(clients, runner, population="rows", **options):
    """Counts of one round; with clients as the population there are two."""
    return ScoreHistogram.fit(
        clients,
        classes=CLASSES,
        kind="top",
        runner=runner,
        population=population,
        **options,
    )


def digest(fitted):
    """Of everything that was released."""
    totals = [record.total for record in fitted.history_]
    text = b"".join(t[name].tobytes() for t in totals for name in sorted(t))
    return hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masked"])
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_results_are_those_of_one_process_to_the_bit(clients, make_grid, secure):
    remote = RemoteClients(connect(make_grid()))
    runner = FederatedRunner(secure=secure)
    for population in ("rows", "clients"):
        here, there = (
            counts(who, how, population)
            for who, how in ((clients, PLAIN), (remote, runner))
        )
        assert digest(there) == digest(here)
    assert len(here.history_) == 2
    options = {"classes": CLASSES, "random_state": 0, "eps": 20.0}
    with pytest.warns(SimulatedPrivacyWarning):
        here = FedTempCalibrator(**options).fit(clients)
    with pytest.warns(SimulatedPrivacyWarning):
        there = FedTempCalibrator(**options, runner=runner).fit(remote)
    assert len(here.history_) > 0
    assert digest(there) == digest(here)
    assert there.temperature_ == here.temperature_


def test_messages_and_arrays_arrive_unchanged():
    message = {
        "text": "é",
        "number": -(2**62),
        "real": 0.1,
        "yes": True,
        "bytes": b"\0\xff",
        "none": [],
        "keys": [b"", b"\1"],
        "places": [3, 1],
    }
    arrays = {
        "scalar": np.array(7.5),
        "words": np.arange(6, dtype=np.uint64).reshape(2, 3).T,
        "empty": np.zeros((0, 3), np.uint32),
    }
    found, read = unpack(pack(message, arrays))
    assert found == message
    for name, array in arrays.items():
        np.testing.assert_array_equal(read[name], array, strict=True)


def _array(function):
    """The reply with another first array."""

    def change(reply):
        message, arrays = unpack(reply.content)
        name = next(iter(arrays))
        reply.content = pack(message, arrays | {name: function(arrays[name])})
        return reply

    return change


def _entries(**changes):
    """The reply with other entries of its record."""

    def change(reply):
        record = reply.content.config_records["message"]
        for name, function in changes.items():
            record[f"/{name}"] = function(record[f"/{name}"])
        return reply

    return change


def _no_message(reply):
    reply.content = RecordDict({"arrays": ArrayRecord()})
    return reply


def _named(change):
    """Other names, types and shapes of the arrays."""

    def changed(text):
        (first, *rest) = json.loads(text)
        return json.dumps([change(*first), *rest])

    return _entries(arrays=changed)


def _as_other_node(reply):
    reply.metadata.__dict__["_src_node_id"] = 12345
    return reply


WRONG = {
    "shape": (_array(lambda a: a[:-1]), "shape"),
    "more": (_array(lambda a: np.concatenate([a, a])), "shape"),
    "dtype": (_array(lambda a: a.astype(np.float64)), "float64|type"),
    "cut off": (_entries(words=lambda raw: raw[:-3]), "cannot be read"),
    "too long": (_entries(words=lambda raw: raw + bytes(8)), "cannot be read"),
    "no bytes": (_entries(words=lambda raw: 10**13), "cannot be read"),
    "object": (_named(lambda n, d, s: [n, "|O", s]), "cannot be read"),
    "huge": (_named(lambda n, d, s: [n, d, [2**50]]), "cannot be read"),
    "negative": (_named(lambda n, d, s: [n, d, [-1]]), "cannot be read"),
    "not a list": (_entries(arrays=lambda text: "{"), "cannot be read"),
    "no message": (_no_message, "cannot be read"),
    "another node": (_as_other_node, "another node"),
    "silent": (lambda reply: None, "did not answer"),
}


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "masked"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_reply_is_left_out_and_its_site_named(
    clients, make_grid, secure, wrong
):
    change, text = WRONG[wrong]
    grid = make_grid()
    bad = node_of(grid, "oslo")

    def tamper(message, reply):
        kind = unpack(message.content)[0]["kind"]
        answers = message.metadata.dst_node_id == bad and kind in ("answer", "masked")
        return change(reply) if answers else reply

    remote = RemoteClients(connect(grid))
    grid.tamper = tamper
    with pytest.warns(FaultyClientWarning, match=f"'oslo' .*({text})") as caught:
        found = counts(remote, FederatedRunner(secure=secure))
    assert not any("lyon" in str(w.message) for w in caught)
    rest = {name: rows for name, rows in clients.items() if name != "oslo"}
    assert digest(found) == digest(counts(rest, PLAIN))


@pytest.mark.parametrize("kind", ["answer", "keys", "shares", "masked", "unmask"])
def test_a_reply_that_is_sent_again_is_rejected_and_named(clients, make_grid, kind):
    grid = make_grid()
    bad, first = node_of(grid, "lyon"), []

    def tamper(message, reply):
        sent = unpack(message.content)[0]
        if message.metadata.dst_node_id != bad or sent["kind"] != kind:
            return reply
        first.append(reply.content)
        reply.content = first[0]
        return reply

    grid.tamper = tamper
    remote = RemoteClients(connect(grid))
    runner = PLAIN if kind == "answer" else MASKED
    exact = digest(counts(clients, PLAIN))
    assert digest(counts(remote, runner)) == exact
    with pytest.warns(FaultyClientWarning, match="'lyon' answered another message"):
        found = counts(remote, runner)
    # An answer that was opened counts, whoever holds the shares that opened it.
    left_out = kind != "unmask"
    rest = {n: rows for n, rows in clients.items() if n != "lyon" or not left_out}
    assert digest(found) == digest(counts(rest, PLAIN))


def test_a_site_does_not_answer_a_letter_twice(make_grid):
    grid = make_grid()
    counts(RemoteClients(connect(grid)), MASKED)
    masked = [m for m in grid.sent if unpack(m.content)[0]["kind"] == "masked"]
    (number,) = grid.push_messages([masked[0]])
    reply, arrays = unpack(grid.pull_messages([number])[0].content)
    assert "no round is under way" in reply["refused"]
    assert not arrays


def test_the_server_receives_no_answer_without_a_mask(clients, make_grid):
    grid = make_grid()
    remote = RemoteClients(connect(grid))
    for _ in range(2):
        counts(remote, MASKED)
    received = {}
    for reply in grid.received:
        arrays = unpack(reply.content)[1]
        if arrays:
            words = np.concatenate([a.ravel() for a in arrays.values()])
            received.setdefault(reply.metadata.src_node_id, []).append(words)
    assert len(received) == 4
    for node, (first, second) in received.items():
        name = grid.contexts[node].node_config["client-id"]
        plain = counts({name: clients[name]}, PLAIN).history_[0].total
        plain = np.concatenate([plain[key].ravel() for key in sorted(plain)])
        n = len(plain)
        assert len(first) == n > 1000
        # Most counts are zero, which no word of a masked answer is by chance: of n
        # words of 32 bits one is zero with chance n / 2**32 < 1e-6.
        assert (plain == 0).mean() > 0.5
        assert (first != 0).all() and (second != 0).all()
        unit = first.astype(float) / np.iinfo(first.dtype).max - 0.5
        other = second.astype(float) / np.iinfo(second.dtype).max - 0.5
        # Independent uniform words: correlations are normal with variance 1 / n, so
        # that 6 deviations are passed with chance 2e-9.
        for against in (other, plain - plain.mean()):
            assert abs(np.corrcoef(unit, against)[0, 1]) < 6 / np.sqrt(n)
        # The difference of two answers to the same question is a mask, too.
        change = (first - second).astype(float) / np.iinfo(first.dtype).max - 0.5
        assert abs(change.mean()) < 6 * np.sqrt(1 / 12 / n)


def test_a_site_needs_nothing_heavy_and_its_noise_no_seed(make_grid):
    grid = make_grid()
    with pytest.warns(SimulatedPrivacyWarning):
        FedTempCalibrator(
            eps=1.0, classes=CLASSES, random_state=0, runner=MASKED, if_improves=False
        ).fit(RemoteClients(connect(grid)))
    letters = [unpack(message.content)[0] for message in grid.sent]
    requests = [letter["request"] for letter in letters if "request" in letter]
    assert requests
    assert not any("entropy" in text for text in requests)
    assert not any("position" in letter for letter in letters)


def test_replies_that_arrive_while_one_is_waited_for_count(clients, make_grid):
    grid = make_grid()
    remote = RemoteClients(connect(grid, timeout=0.05))
    pull, calls = grid.pull_messages, []

    def slow(numbers):
        calls.append(len(numbers))
        if len(calls) % 2:  # beyond the time of the exchange
            time.sleep(0.1)
            return []
        return pull(numbers)

    grid.pull_messages = slow
    assert digest(counts(remote, MASKED)) == digest(counts(clients, PLAIN))
    assert len(calls) > 2 and set(calls) == {4}


def test_who_is_missing_is_said(make_grid, configs):
    configs.popitem()
    there = sorted(config["client-id"] for config in configs.values())
    (missing,) = set(NAMES) - set(there)
    with pytest.raises(NotEnoughClientsError, match=r"3 of at least 4 .* 0 s") as error:
        connect(make_grid(), sites=NAMES)
    assert f"{there}. Missing: ['{missing}']" in str(error.value)
    # Fewer may be enough, and sites that nobody expects do not take part.
    assert connect(make_grid(), min_nodes=3, sites=NAMES).ids() == there
    with pytest.raises(NotEnoughClientsError, match="not among the expected sites"):
        connect(make_grid(), min_nodes=3, sites=[*there[:2], "rome"])
    assert connect(make_grid(), min_nodes=2, sites=there[:2]).ids() == there[:2]


def test_a_node_that_is_not_set_up_says_so_and_tells_nothing(make_grid, configs):
    config = next(iter(configs.values()))
    config["data-path"] = "/nowhere/secret-name.npz"
    with pytest.raises(NotEnoughClientsError, match="FileNotFoundError") as error:
        connect(make_grid())
    assert "secret-name" not in str(error.value)


def test_two_nodes_of_one_name_are_an_error(make_grid, configs):
    first, second = list(configs.values())[:2]
    first["client-id"] = second["client-id"]
    with pytest.raises(ValueError, match="both have the name"):
        connect(make_grid(), min_nodes=3)


def test_another_version_of_the_messages_is_named(make_grid, local_grid):
    def tamper(message, reply):
        reply.content.config_records["message"]["format"] = "skfedcal wire 0"
        return reply

    with pytest.raises(
        NotEnoughClientsError, match="uses the format 'skfedcal wire 0'"
    ):
        connect(make_grid(tamper=tamper))


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (ErrorCode.CLIENT_APP_CRASHED, "failed"),
        (ErrorCode.NODE_UNAVAILABLE, "did not answer"),
        (ErrorCode.MESSAGE_UNAVAILABLE, "did not answer"),
        (ErrorCode.REPLY_MESSAGE_UNAVAILABLE, "did not answer"),
    ],
)
def test_a_site_whose_message_fails_is_named_with_the_reason(make_grid, code, what):
    grid = make_grid()
    bad = node_of(grid, "turin")
    remote = RemoteClients(connect(grid))

    def tamper(message, reply):
        if message.metadata.dst_node_id != bad:
            return reply
        return Message(Error(code, "It is\n  - gone"), reply_to=message)

    grid.tamper = tamper
    with pytest.warns(FaultyClientWarning, match=f"'turin' {what}: It is - gone"):
        counts(remote, MASKED)


def test_a_site_that_comes_back_as_another_node_is_found_again(clients, make_grid):
    grid = make_grid()
    remote = RemoteClients(connect(grid))
    old = node_of(grid, "oslo")
    config = grid.contexts.pop(old).node_config
    with pytest.warns(FaultyClientWarning, match="'oslo' did not answer"):
        counts(remote, MASKED)
    grid.contexts[old + 1] = grid.context(old + 1, config)
    assert digest(counts(remote, MASKED)) == digest(counts(clients, PLAIN))


def test_a_site_that_appears_late_is_waited_for(make_grid, configs):
    grid = make_grid()
    late, context = grid.contexts.popitem()
    looks = []

    def nodes():
        looks.append(1)
        if len(looks) == 3:
            grid.contexts[late] = context
        return list(grid.contexts)

    grid.get_node_ids = nodes
    assert list(connect(grid, wait=60.0).ids()) == sorted(NAMES)


def test_the_policy_of_a_site_decides(clients, make_grid, configs):
    for config in configs.values():
        del config["allow-plain"]
    lyon = next(c for c in configs.values() if c["client-id"] == "lyon")
    lyon["methods"] = "temperature"
    remote = RemoteClients(connect(make_grid()))
    with pytest.raises(
        NotEnoughClientsError,
        match=r"0 of 4 sites would .*'oslo' refused: .* \(allow_plain\).* No row was",
    ):
        counts(remote, PLAIN)
    with pytest.warns(FaultyClientWarning, match=r"'lyon' refused: its policy \(meth"):
        found = counts(remote, MASKED)
    rest = {name: rows for name, rows in clients.items() if name != "lyon"}
    assert digest(found) == digest(counts(rest, PLAIN))


def test_keys_that_the_roster_does_not_have_are_refused(
    clients, make_grid, configs, tmp_path
):
    keys = {name: SiteKey.generate(name) for name in NAMES}
    Roster({name: key.public for name, key in keys.items()}).save(tmp_path / "all")
    for config in configs.values():
        name = config["client-id"]
        keys[name].save(tmp_path / f"{name}.key")
        config["site-key"] = str(tmp_path / f"{name}.key")
        config["roster"] = str(tmp_path / "all")
    grid = make_grid()
    remote = RemoteClients(connect(grid))
    assert digest(counts(remote, MASKED)) == digest(counts(clients, PLAIN))

    def swapped(message, reply):
        # What a server would do that wants to read a mask: hand out keys of its own.
        letter = reply.content.config_records["message"]
        bad = message.metadata.dst_node_id == node_of(grid, "berlin")
        if bad and "masking" in letter and "signature" in letter:
            letter["masking"] = new_key().public_key().public_bytes_raw()
        return reply

    grid.tamper = swapped
    with pytest.raises(NotEnoughClientsError, match="did not sign its keys"):
        counts(remote, MASKED)


def test_a_configuration_is_read_strictly(configs, tmp_path, monkeypatch):
    good = next(iter(configs.values()))
    assert site_from_config(good).name == good["client-id"]
    assert site_policy({**good, "min-clients": 5}).min_clients == 5
    simulated = site_from_config({"partition-id": 7}, load=lambda config: None)
    assert simulated.name == "client-000007"
    key, roster = tmp_path / "key", tmp_path / "roster"
    SiteKey.generate(good["client-id"]).save(key)
    Roster({good["client-id"]: bytes(32)}).save(roster)
    for wrong, text in [
        ({"min-client": 5}, "'min-client' is not a condition"),
        ({"max-eps": 1.0}, "needs ledger"),
        ({"ledger": str(tmp_path / "l"), "max-eps": 1.0}, "needs max-eps and max-del"),
        (
            {"ledger": str(tmp_path / "l"), "max-eps": 1.0, "max-delta": 1e-5},
            "ledger needs noise",
        ),
        ({"methods": 7}, "expected a list"),
        ({"roster": str(roster)}, "roster needs site-key"),
        ({"roster": str(roster), "site-key": str(key)}, "a different key for it"),
        ({"site-key": str(key), "client-id": "rome"}, "is not that of 'rome'"),
    ]:
        with pytest.raises(ValueError, match=text):
            site_from_config({**good, **wrong})
    file = tmp_path / "site.toml"
    file.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in good.items()))
    assert site_from_config({"site-config": str(file)}).name == good["client-id"]
    monkeypatch.setenv("SKFEDCAL_SITE_CONFIG", str(file))
    assert site_from_config({}).name == good["client-id"]
    with pytest.raises(ValueError, match=r"client-id is in .* the node config"):
        site_from_config({"client-id": "rome"})
    monkeypatch.delenv("SKFEDCAL_SITE_CONFIG")
    for name in ("client-id", "data-path"):
        with pytest.raises(ValueError, match=f"no {name}"):
            site_from_config({k: v for k, v in good.items() if k != name})


@pytest.mark.skipif(not DOCS.exists(), reason="no docs in this copy")
def test_the_reference_lists_all_conditions_with_their_defaults():
    text = REFERENCE.read_text(encoding="utf-8")
    for entry in fields(SitePolicy):
        default = "all" if entry.default is None else json.dumps(entry.default)
        shown = f"``{default}``" if isinstance(entry.default, str) else default
        assert f"* - ``{entry.name.replace('_', '-')}``\n     - {shown}\n" in text


@pytest.mark.skipif(not DOCS.exists(), reason="no docs in this copy")
def test_the_site_file_of_the_guide_is_read(configs, tmp_path):
    text = GUIDE.read_text(encoding="utf-8").partition("cat > site.toml <<END\n")[2]
    good = next(iter(configs.values()))
    SiteKey.generate(good["client-id"]).save(tmp_path / f"{good['client-id']}.key")
    key = SiteKey.load(tmp_path / f"{good['client-id']}.key")
    Roster({key.name: key.public}).save(tmp_path / "roster.json")
    names = {"PWD": str(tmp_path), "SITE": key.name, "DATA": good["data-path"]}
    content = Template(dedent(text.partition("   END")[0])).substitute(names)
    (tmp_path / "site.toml").write_text(content)
    with pytest.raises(FileNotFoundError, match="skfedcal ledger --create"):
        site_from_config({"site-config": str(tmp_path / "site.toml")})
    (tmp_path / "ledger.jsonl").touch()
    site = site_from_config({"site-config": str(tmp_path / "site.toml")})
    assert site.policy.classes == ("0", "1", "2") and site.policy.noise == "central"


def test_rows_are_not_loaded_for_messages_that_do_not_need_them(configs):
    def load(config):
        raise AssertionError

    site = site_from_config(next(iter(configs.values())), load=load)
    kinds = ("hello", "answer", "keys", "shares", "masked", "survivors", "unmask")
    for kind in kinds:
        site.handle(kind, {}, {})
    with pytest.raises(AssertionError):
        site._rows()


def test_the_ledger_of_a_site_refuses_what_it_cannot_pay(make_grid, configs, tmp_path):
    for config in configs.values():
        path = tmp_path / f"{config['client-id']}.jsonl"
        path.touch()
        config |= {"ledger": str(path), "max-eps": 1.2, "max-delta": 1e-5}
        config["noise"] = "central"
    remote = RemoteClients(connect(make_grid()))

    def fit():
        return FedTempCalibrator(
            eps=1.0, classes=CLASSES, runner=MASKED, if_improves=False
        ).fit(remote)

    fit()
    with pytest.raises(NotEnoughClientsError, match="its budget does not cover"):
        fit()


def test_without_flower_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    for call in (make_client_app, lambda: FlowerTransport(None, min_nodes=3)):
        with pytest.raises(ImportError, match=r'pip install "skfedcal\[flower\]"'):
            call()
