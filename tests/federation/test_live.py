"""Live sites and the connection to them, over Flower's clients and a fake SuperLink."""

import http.client
import http.server
import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import zlib
from collections import defaultdict
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID
from flwr.app import ConfigRecord, RecordDict
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import RegisterNodeFleetRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.interceptors import (
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supernode.fleet_http_client import FleetHttpClient

import skfedcal
from skfedcal import (
    CalibrationMonitor,
    CentralDP,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    ScoreHistogram,
    federated_roc_auc_score,
    federation,
    make_federation,
)
from skfedcal.cli import main
from skfedcal.cli.flower.project import make_keys, write_app
from skfedcal.exceptions import BudgetExceededError, NotEnoughClientsError
from skfedcal.federation import Site, SiteRows, flower_node, live, status
from skfedcal.federation.flower import pack, unpack
from skfedcal.privacy import PureEvent
from skfedcal.privacy.site_ledger import SiteLedger

NAMES = ("berlin", "lyon", "oslo")
MASKED = FederatedRunner(secure=True)
SECRET = b"s" * 32

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.FaultyClientWarning"),
]


@pytest.fixture(scope="module")
def fake():
    file = Path(__file__).with_name("fake_superlink.py")
    spec = importlib.util.spec_from_file_location("fake_superlink", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeSuperLink


@pytest.fixture(scope="module")
def clients():
    fed = make_federation(3, 300, 2, alpha=None, dtype=np.float64, random_state=0)
    return dict(zip(NAMES, fed.clients, strict=True))


@pytest.fixture
def folder(clients, tmp_path):
    """Files of three sites; the node keys are in `folder / 'public'`, too."""
    make_keys(NAMES, [], str(tmp_path))
    (tmp_path / "secret").write_bytes(SECRET)
    for name, rows in clients.items():
        make_files(tmp_path, name, rows)
    return tmp_path


def make_files(folder, name, rows):
    """Rows, an empty ledger, a node key and the configuration of a site."""
    logits, labels = rows
    np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    (folder / f"{name}.jsonl").touch()
    key = ec.generate_private_key(ec.SECP384R1())
    raw = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (folder / f"{name}.node").write_bytes(raw)
    (folder / f"{name}.public").write_bytes(public_key_to_bytes(key.public_key()))
    write_site(folder, name)


def write_site(folder, name, **changes):
    entries = {
        "client-id": name,
        "data-path": str(folder / f"{name}.npz"),
        "site-key": str(folder / f"{name}.key"),
        "roster": str(folder / "roster.json"),
        "ledger": str(folder / f"{name}.jsonl"),
        "max-eps": 9.0,
        "max-delta": 1e-5,
        "noise": "none",
        "classes": [0, 1],
        "flower": "superlink:8443",
        "insecure": True,
        "node-key": str(folder / f"{name}.node"),
    }
    entries |= {key.replace("_", "-"): value for key, value in changes.items()}
    lines = [f"{key} = {json.dumps(value)}" for key, value in entries.items()]
    (folder / f"{name}.toml").write_text("\n".join(lines))


@pytest.fixture
def link(fake, folder, monkeypatch):
    registered = {(folder / f"{name}.public").read_bytes() for name in NAMES}
    out = fake(SECRET, registered)
    out.install(monkeypatch)
    monkeypatch.setattr(live, "_POLL", 0.01)
    monkeypatch.setattr(live, "_IDLE", 0.01)
    monkeypatch.setattr(live, "_AGAIN", 0.001)
    monkeypatch.setattr(flower_node, "_PAUSE", 0.001)
    return out


class Running:
    """Live sites in threads."""

    def __init__(self, folder):
        self.folder, self.lines = folder, defaultdict(list)
        self.contents = defaultdict(list)
        self.sites, self.stops, self._threads = {}, {}, {}

    def start(self, *names):
        for name in names:
            site = live.LiveSite(
                self.folder / f"{name}.toml",
                write=lambda line, name=name: self.lines[name].append(json.loads(line)),
            )
            self.sites[name], self.stops[name] = site, live.Stop()
            site.reply = self.noting(site.reply, self.contents[name])
            arguments = (
                site,
                lambda site=site: live.fleet_node(site.config),
                self.stops[name],
            )
            self._threads[name] = threading.Thread(target=live.serve, args=arguments)
            self._threads[name].start()

    @staticmethod
    def noting(reply, contents):
        def noted(content):
            contents.append(content)
            return reply(content)

        return noted

    def end(self):
        for name, thread in self._threads.items():
            self.stops[name].end()
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def sites(folder, link):
    running = Running(folder)
    running.start(*NAMES)
    yield running
    running.end()
    assert not link.online  # all left


def connect(folder, **options):
    options = {"secret": folder / "secret", "sites": NAMES, "n_rows": 300} | options
    return federation.connect(
        "flower://superlink:8443", insecure=True, poll=0.01, wait=20, **options
    )


def calibrator(**options):
    runner = FederatedRunner(n_rounds=2, secure=True)
    options = {"privacy": CentralDP(2.0, unit="example"), "runner": runner} | options
    return FedTempCalibrator(classes=[0, 1], random_state=0, **options)


def test_a_fit_over_live_sites_has_the_bits_of_one_process(
    clients, folder, link, sites
):
    with connect(folder) as remote:
        there = calibrator().fit(remote)
        auc = federated_roc_auc_score(remote, classes=[0, 1], runner=MASKED)
    here = calibrator(runner=FederatedRunner(n_rounds=2)).fit(clients)
    assert there.temperature_ == here.temperature_ != 1.0
    assert auc.value == federated_roc_auc_score(clients, classes=[0, 1]).value
    assert link.ended == ["completed"]
    # Nobody asked for a run or its app: the fake has neither.
    assert not {"GetRun", "GetFab"} & set(link.requests)
    for name in NAMES:
        kinds = [line["kind"] for line in sites.lines[name]]
        assert kinds[:2] == ["hello", "check"]
        paid = [line for line in sites.lines[name] if line["eps"]]
        (first,) = paid  # one debit for all rounds
        assert first["method"] == "temperature.posterior/2"
        assert first["spent"] == pytest.approx(2.0, rel=0.1)
        exact = [line for line in sites.lines[name] if line["noise"] == "none"]
        assert exact and all(line["method"].startswith("scores.") for line in exact)
        assert {line["outcome"] for line in sites.lines[name]} == {"answered"}
        assert sites.sites[name].n_zeros == 0


def test_only_who_has_the_secret_is_the_server(folder, link, sites):
    with pytest.raises(ConnectionError, match="--superexec-auth-secret-file"):
        connect(folder, secret=None).__enter__()
    assert not link.inbox
    # The failed try leaves nothing behind, and one connection at a time is allowed.
    with connect(folder), pytest.raises(ConnectionError, match="one run at a time"):
        connect(folder).__enter__()


@pytest.mark.parametrize(
    ("address", "options", "text"),
    [
        ("https://superlink:1", {"insecure": True}, "pass 'flower://host:port'"),
        ("flower://superlink", {"insecure": True}, "pass 'flower://host:port'"),
        ("flower://a:1", {}, "needs root_certificates"),
        ("flower://a:1", {"insecure": True, "root_certificates": "x"}, "needs root_c"),
    ],
)
def test_a_wrong_address_is_an_error_that_says_what_is_right(address, options, text):
    with pytest.raises(ValueError, match=text):
        federation.connect(address, **options).__enter__()


def test_what_a_site_would_refuse_is_known_before_anything_is_paid(
    folder, link, sites, tmp_path
):
    ledger = PrivacyLedger(tmp_path / "server.jsonl", budget=(9.0, 1e-5))
    changes = {
        "lyon": ({"methods": "histogram"}, r"its policy \(methods\) does not allow"),
        "oslo": ({"ready": False}, "its operator declares it not ready"),
        "berlin": ({"max_eps": 1.0}, "its budget does not cover"),
    }
    for name, (change, _) in changes.items():
        write_site(folder, name, **change)
        sites.stops[name].ask_reload()
    with connect(folder) as remote:
        model = FedTempCalibrator(
            privacy=CentralDP(2.0, unit="example"),
            classes=[0, 1],
            runner=MASKED,
            ledger=ledger,
        )
        with pytest.raises(NotEnoughClientsError, match="0 of 3 sites would") as error:
            model.fit(remote)
    for name, (_, text) in changes.items():
        assert error.match(f"'{name}' refused: {text}")
    assert len(ledger) == 0
    for name in NAMES:
        assert (folder / f"{name}.jsonl").read_text() == ""
        assert not {"keys", "masked"} & {line["kind"] for line in sites.lines[name]}


def test_a_killed_site_comes_back_at_once_and_forgets_no_run(folder, link, sites):
    with connect(folder) as remote:
        calibrator().fit(remote)
    # A process that is killed tells the SuperLink nothing.
    sites.end()
    number = int((folder / "lyon.jsonl.node").read_text())
    link.online.add(number)
    again = live.LiveSite(folder / "lyon.toml")
    node = live.fleet_node(again.config)
    assert node.connect() == number
    letters = sites.contents["lyon"]
    (keys,) = [x for x in letters if unpack(x)[0]["kind"] == "keys"]
    assert "already answered round 0" in unpack(again.reply(keys))[0]["refused"]
    (folder / "lyon.jsonl.runs").unlink()  # the ledger knows what was paid
    last = live.LiveSite(folder / "lyon.toml")
    assert "before it was started again" in unpack(last.reply(keys))[0]["refused"]
    content = pack({"kind": "hello", "token": "t"}, {})
    assert unpack(again.reply(content))[0]["name"] == "lyon"
    node.close()


def test_failures_of_the_network_are_survived(folder, link, sites):
    kinds = ("node_PushMessages", "node_PullObject", "node_PushObject")
    link.failing |= dict.fromkeys(kinds, 3)
    with connect(folder) as remote:
        # More failures than a request is tried: the sites connect anew.
        link.failing["node_PullMessages"] = 40
        assert calibrator().fit(remote).n_clients_ == 3
    assert not any(link.failing.values())


def test_a_site_that_dies_while_it_sends_does_not_take_others_with_it(
    clients, folder, link, monkeypatch, request
):
    for name in NAMES:
        write_site(folder, name, min_clients=2)
    request.getfixturevalue("sites")
    real = flower_node.open_grid

    def impatient(*args, **options):
        return real(*args, **{**options, "patience": 2.0})

    monkeypatch.setattr(flower_node, "open_grid", impatient)
    with connect(folder) as remote:
        link.dying = {int((folder / "lyon.jsonl.node").read_text())}
        found = ScoreHistogram.fit(remote, classes=[0, 1], runner=MASKED)
    for record in found.history_:
        assert record.n_clients == 2 and "did not answer" in record.faults["lyon"]
    rest = {name: rows for name, rows in clients.items() if name != "lyon"}
    expected = ScoreHistogram.fit(rest, classes=[0, 1])
    for a, b in zip(found.totals, expected.totals, strict=True):
        np.testing.assert_array_equal(a, b)


def test_only_the_wire_format_is_answered(folder):
    site = live.LiveSite(folder / "lyon.toml")
    for content in (
        None,
        RecordDict({}),
        RecordDict({"message": ConfigRecord({"kind": "hello"})}),
        pack({"kind": "hello"}, {}),
    ):
        assert unpack(site.reply(content))[0]["refused"] == "it cannot read the message"
    reply = unpack(site.reply(pack({"kind": "run", "token": "t"}, {})))[0]
    assert "does not support messages of the kind" in reply["refused"]


def test_a_wrong_file_leaves_the_old_one_in_force(folder, caplog):
    site = live.LiveSite(folder / "lyon.toml")
    hello = pack({"kind": "hello", "token": "t"}, {})
    write_site(folder, "lyon", min_clents=5)
    site.reload()
    assert "'min-clents' is not a condition" in caplog.text
    assert unpack(site.reply(hello))[0]["ready"] == ""
    write_site(folder, "lyon", ready=True)
    site.reload()
    assert unpack(site.reply(hello))[0]["ready"] == "yes"


@pytest.mark.parametrize("kind", ["nan", "columns", "labels", "empty", "damaged"])
def test_rows_that_do_not_fit_are_known_to_the_site_alone(
    kind, clients, folder, link, request
):
    logits, labels = clients["lyon"]
    bad = {
        "nan": (np.full_like(logits, np.nan), labels),
        "columns": (np.hstack([logits, logits]), labels),
        "labels": (logits, labels.astype(str)),
        "empty": (logits[:0], labels[:0]),
    }
    if kind == "damaged":
        (folder / "lyon.npz").write_bytes(b"not an archive")
    else:
        scores, names = bad[kind]
        np.savez(folder / "lyon.npz", logits=scores, labels=names)
    running = request.getfixturevalue("sites")
    with connect(folder) as remote:
        there = calibrator().fit(remote)
    assert there.n_clients_ == 3 and not any(r.faults for r in there.history_)
    assert {line["outcome"] for line in running.lines["lyon"]} == {"answered"}
    zeros = [line["zeros"] for line in running.lines["lyon"] if line["zeros"]]
    assert running.sites["lyon"].n_zeros == len(zeros)
    assert (len(zeros) > 0) == (kind != "empty")  # nothing was to be counted
    assert running.sites["oslo"].n_zeros == 0


def test_an_unknown_key_is_not_let_in(folder, link):
    link.registered = set()
    node = live.fleet_node(live.LiveSite(folder / "lyon.toml").config)
    with pytest.raises(flower_node.NodeError, match="flwr supernode register"):
        node.connect()
    link.registered = None  # as without --enable-supernode-auth
    assert node.connect() == 1000
    node.close()


@pytest.mark.parametrize("version", ["1.39.9", "1.43.0", "2.0"])
def test_other_versions_of_flower_are_refused(version, monkeypatch):
    flower_node.check_version()  # the installed one was read
    monkeypatch.setattr(metadata, "version", lambda name: version)
    with pytest.raises(ImportError, match=f"flwr {version} is installed"):
        flower_node.check_version()


def test_a_ledger_says_in_advance_what_it_would_refuse(tmp_path):
    ledger = SiteLedger(tmp_path / "a.jsonl", budget=(1.0, 1e-5))
    ledger.check_debit(PureEvent(0.3), label="a", times=3)
    with pytest.raises(BudgetExceededError):
        ledger.check_debit(PureEvent(0.3), label="a", times=4)
    assert len(ledger) == 0
    ledger.debit(PureEvent(0.9), label="a", run_id="r")
    ledger.check_debit(PureEvent(0.9), label="a", run_id="r")  # paid already
    with pytest.raises(BudgetExceededError):
        ledger.check_debit(PureEvent(0.9), label="a", run_id="other")
    with pytest.raises(ValueError, match="kept under the budget"):
        SiteLedger(tmp_path / "a.jsonl", budget=(2.0, 1e-5)).check_debit(
            PureEvent(0.0), label="a"
        )


def test_rows_stay_in_memory(folder, monkeypatch):
    calls, load = [], SiteRows.load.__func__

    def counted(cls, path):
        calls.append(path)
        return load(cls, path)

    monkeypatch.setattr(SiteRows, "load", classmethod(counted))
    site = live.LiveSite(folder / "lyon.toml")
    for _ in range(3):
        site.reply(pack({"kind": "hello", "token": "t"}, {}))
    assert len(calls) == 1
    site.reload()
    assert len(calls) == 2


def test_sites_are_asked_in_advance_by_a_command(folder, link, sites, capsys):
    write_site(folder, "lyon", ready=True, methods="histogram")
    sites.stops["lyon"].ask_reload()
    write_app(str(folder / "app"))
    words = ["flower", "check", "flower://superlink:8443"]
    secret = ["--secret", str(folder / "secret"), "--json"]

    def check(*more):
        code = main([*words, *more, *secret])
        out, err = capsys.readouterr()
        assert out, err
        lines = {x["what"]: x for x in json.loads(out)["checks"]}
        return code, {what: x["verdict"] for what, x in lines.items()}, lines, err

    named = "sites='berlin,lyon,oslo'"
    temperature = "method='FedTempCalibrator' classes='[0, 1]'"
    config = [str(folder / "app"), "--run-config", named]
    code, verdicts, lines, _ = check(*config, "--run-config", f"{temperature} n-rows=9")
    assert code == 1
    assert [verdicts[f"site {name}"] for name in NAMES] == ["warn", "ok", "warn"]
    assert "declared ready" in lines["site lyon"]["text"]
    assert [verdicts[f"run at {name}"] for name in NAMES] == ["ok", "fail", "ok"]
    assert "its policy (methods)" in lines["run at lyon"]["text"]
    assert verdicts["run"] == "fail"  # the app needs three
    more = ["--run-config", f"{temperature} n-rows=9 min-nodes=2"]
    assert check(*config, *more)[1]["run"] == "ok"
    # Noise that hides one of three sites: nobody would be asked.
    code, verdicts, lines, _ = check(
        *config, "--run-config", f"{temperature} unit='client'"
    )
    assert verdicts["run"] == "fail" and "would ask no site" in lines["run"]["text"]
    assert check()[0] == 0
    assert not {"keys", "answer"} & {x["kind"] for x in sites.lines["oslo"]}
    assert all((folder / f"{name}.jsonl").read_text() == "" for name in NAMES)


def test_the_command_says_by_its_exit_code_that_rows_did_not_fit(
    folder, link, monkeypatch, capsys
):
    monkeypatch.setattr(live.Stop, "catch_signals", lambda self: None)
    counted = iter((0, 2))

    def serve(site, make_node, stop):
        node = make_node()
        assert node.connect() == 1000
        node.close()
        site.reply(pack({"kind": "hello", "token": "t"}, {}))
        site.n_zeros = next(counted)

    monkeypatch.setattr(live, "serve", serve)
    for code in (0, 3):
        assert main(["site", str(folder / "lyon.toml")]) == code
        out, err = capsys.readouterr()
        assert json.loads(out)["kind"] == "hello"
        assert ("2 answers were given" in err) == (code == 3)
    write_site(folder, "lyon", node_key=str(folder / "none"))
    assert main(["site", str(folder / "lyon.toml")]) == 4
    (folder / "oslo.jsonl").unlink()
    assert main(["site", str(folder / "oslo.toml")]) == 4
    assert "skfedcal ledger --create" in capsys.readouterr().err


def test_a_live_site_imports_nothing_heavy():
    code = "import skfedcal.federation.live, sys; print(*sys.modules)"
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"sklearn", "scipy", "torch", "joblib"} & set(text)


def test_members_change_while_sites_are_live(clients, folder, link, sites, caplog):
    """One leaves, one has another key, one enters: files, and a reload."""
    old = (folder / "roster.json").read_bytes()
    with connect(folder) as remote:
        before = calibrator().fit(remote)
    make_keys(["kiel"], [], str(folder / "kiel"))
    make_files(folder, "kiel", clients["oslo"])
    (folder / "kiel" / "kiel.key").replace(folder / "kiel.key")
    words = ["flower", "keys", "--dir", str(folder)]
    assert main([*words, "--rotate", "lyon"]) == 0
    files = [str(folder / "lyon.rotation.json"), str(folder / "kiel" / "roster.json")]
    assert main([*words, "--add", *files, "--remove", "oslo"]) == 0
    (folder / "lyon.new.key").replace(folder / "lyon.key")
    for name in NAMES:
        sites.sites[name].reload()
    assert "no site 'oslo'" in caplog.text
    # Who left holds the old roster, and is convinced by nobody's signature.
    with connect(folder) as remote, pytest.raises(NotEnoughClientsError):
        calibrator().fit(remote)
    link.registered.add((folder / "kiel.public").read_bytes())
    sites.start("kiel")
    with connect(folder, sites=("berlin", "lyon", "kiel")) as remote:
        after = calibrator().fit(remote)
    assert after.temperature_ == before.temperature_  # the rows are the same
    # An older version does not come back, neither by a reload nor after a restart.
    (folder / "roster.json").write_bytes(old)
    caplog.clear()
    sites.sites["berlin"].reload()
    assert "this site has seen version 1" in caplog.text
    with pytest.raises(ValueError, match="has seen version 1"):
        live.LiveSite(folder / "berlin.toml")


def test_a_raised_budget_is_in_force_after_a_reload(folder, link, sites, caplog):
    def spend():
        with connect(folder) as remote:
            return calibrator(privacy=CentralDP(6.0, unit="example")).fit(remote)

    spend()
    with pytest.raises(NotEnoughClientsError, match="its budget does not cover"):
        spend()
    heads = {}
    for name in NAMES:
        file = folder / f"{name}.jsonl"
        words = ["ledger", str(file), "--raise", "30", "--reason", "protocol 2"]
        write_site(folder, name, max_eps=30.0)
        sites.sites[name].reload()  # the file alone raises nothing
        assert main([*words, "--key", str(folder / f"{name}.key")]) == 0
        heads[name] = PrivacyLedger(file).head
        write_site(folder, name, max_eps=30.0, ledger_head=heads[name])
        sites.sites[name].reload()
    spend()
    for name in NAMES:
        ledger = PrivacyLedger(folder / f"{name}.jsonl", head=heads[name])
        assert [r["mode"] for r in ledger.records()] == [
            "simulation",
            "raise",
            "simulation",
        ]


def period_rows(number, temperature=1.0):
    """Rows of three sites in one period; labels are less sure by a temperature."""
    rng = np.random.default_rng(number)
    out = {}
    for name in NAMES:
        logits = rng.normal(0, 2, (400, 2))
        odds = (logits[:, 1] - logits[:, 0]) / temperature
        labels = (rng.random(400) < 1 / (1 + np.exp(-odds))).astype(np.int64)
        out[name] = logits, labels
    return out


def start_period(folder, sites, rows):
    """Put the rows of a period into the files of the sites, which read them."""
    for name, (logits, labels) in rows.items():
        np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
        sites.sites[name].reload()


def check_monitor(folder, sites, monitor, periods):
    """One debit at each site, and counts of the rows of each period."""
    for name in NAMES:
        ledger = PrivacyLedger(folder / f"{name}.jsonl", head=None)
        assert len(ledger.records()) == 1
        lines = [line for line in sites.lines[name] if line["kind"] == "masked"]
        assert len(lines) == len(periods)
    here = CalibrationMonitor(periods=len(periods), classes=[0, 1])
    for rows in periods:
        here.update(rows)
    for number in range(len(periods)):
        there, exact = (m.histogram(number) for m in (monitor, here))
        # Six standard deviations of the noise of all rows together.
        noise = np.sqrt(there.noise_.variances(there.counts_, np.ones((1, 2, 64)))[1])
        assert abs(there.n_examples_ - exact.n_examples_) < 6 * noise[0]
        error = there.accuracy().se_privacy
        assert abs(there.accuracy() - exact.accuracy()) < 6 * error < 0.3
    assert monitor.n_periods_ == len(periods)


def test_a_monitor_over_live_sites_by_command_and_by_hand(
    folder, link, sites, tmp_path, capsys, monkeypatch
):
    # The command has no options for tests: it polls as often as the others here.
    real = federation.connect
    monkeypatch.setattr(
        federation,
        "connect",
        lambda *args, **options: real(*args, **({"poll": 0.01} | options)),
    )
    state = str(tmp_path / "state.json")
    words = ["--eps", "6", "--unit", "example", "--classes", "2", "--periods", "3"]
    assert main(["monitor", "init", state, *words]) == 0
    periods = [period_rows(0), period_rows(1), period_rows(2, temperature=4.0)]
    address = ["flower://superlink:8443", "--secret", str(folder / "secret")]
    where = [*address, "--sites", ",".join(NAMES), "--n-rows", "1200"]
    capsys.readouterr()
    assert main(["monitor", "update", state, *address]) == 2
    assert "--n-rows N is missing" in capsys.readouterr().err
    for rows in periods[:2]:
        start_period(folder, sites, rows)
        assert main(["monitor", "update", state, *where]) == 0
    assert "2 of 3 periods" in capsys.readouterr().out
    start_period(folder, sites, periods[2])
    monitor = CalibrationMonitor.load(state, runner=MASKED)
    with connect(folder, n_rows=1200) as remote:
        monitor.update(remote, name="third")
    check_monitor(folder, sites, monitor, periods)
    assert monitor.names_ == ["period 1", "period 2", "third"]
    assert {alarm.period for alarm in monitor.alarms_} == {2}


def get(port, path="/metrics", method="GET"):
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    link.request(method, path)
    reply = link.getresponse()
    try:
        return reply.status, reply.read().decode()
    finally:
        link.close()


def test_figures_of_server_and_sites(folder, link, sites, monkeypatch):
    shown = []
    real = status.Figures.shown

    @contextmanager
    def noting(self, address):
        with real(self, address) as port:
            shown.extend([port] if port else [])  # sites show none
            yield port

    monkeypatch.setattr(status.Figures, "shown", noting)
    with connect(folder, metrics="127.0.0.1:0") as remote:
        calibrator().fit(remote)
        code, text = get(shown[0])
        page = get(shown[0], "/")
        assert [get(shown[0], "/x")[0], get(shown[0], "/", "POST")[0]] == [404, 501]
    assert code == page[0] == 200 and "<td>lyon answered</td>" in page[1]
    for line in text.splitlines():
        pattern = r'# (HELP|TYPE) \w+ .+|\w+(\{(\w+="[^"]*",?)+\})? -?[\d.e+-]+'
        assert re.fullmatch(pattern, line)
    assert 'skfedcal_replies_total{site="lyon",outcome="answered"} 7.0' in text
    assert "skfedcal_sites 3.0" in text
    with pytest.raises(OSError, match="refused"):
        get(shown[0])
    lyon = sites.sites["lyon"].figures.text()
    assert "skfedcal_site_connected 1.0" in lyon
    kinds = 'skfedcal_site_requests_total{kind="masked",outcome="answered"} 2.0'
    assert kinds in lyon and "skfedcal_site_eps_budget 9.0" in lyon
    spent = float(re.search(r"\nskfedcal_site_eps_spent (\S+)", lyon)[1])
    assert spent == pytest.approx(2.0, rel=0.1)
    sites.sites["lyon"].reply(pack({"kind": 'x"\n', "token": "t"}, {}))
    lyon = sites.sites["lyon"].figures.text()
    assert '{kind="other",outcome="refused"} 1.0' in lyon


def test_labels_are_quoted_and_other_figures_refused():
    figures = status.Figures(status.SERVER)
    figures.add("skfedcal_replies_total", 'a"b\\c\n<', "answered")
    # https://prometheus.io/docs/instrumenting/exposition_formats/
    assert r'{site="a\"b\\c\n<",outcome="answered"} 1.0' in figures.text()
    assert "a&quot;b\\c\n&lt; answered" in figures.page()
    with pytest.raises(KeyError, match="not to be shown"):
        figures.set("skfedcal_rows", 3)


def test_no_figure_depends_on_rows(clients, folder, link):
    logits, labels = clients["lyon"]
    found = set()
    for rows in ((logits, labels), (logits * np.nan, labels), (logits[:3], labels[:3])):
        np.savez(folder / "lyon.npz", logits=rows[0], labels=rows[1])
        for name in NAMES:
            (folder / f"{name}.jsonl").write_text("")
        running = Running(folder)
        running.start(*NAMES)
        with connect(folder) as remote:
            calibrator().fit(remote)
            texts = [remote.transport.figures.text()]
        running.end()
        texts += [running.sites[name].figures.text() for name in NAMES]
        lines = "".join(texts).splitlines()
        found.add("\n".join(line for line in lines if "start_time" not in line))
    (figures,) = found
    assert 'requests_total{kind="unmask",outcome="answered"} 2.0' in figures


@pytest.mark.parametrize("address", ["9464", "host:", ":1", "a:b", "a:99999"])
def test_a_wrong_address_of_figures_is_an_error(address):
    with pytest.raises(ValueError, match="pass 'host:port'"):
        status.Figures(status.SITE).shown(address).__enter__()


@pytest.mark.slow
def test_live_sites_train_where_their_files_allow_it(folder, link, sites):
    pytest.importorskip("torch")
    from skfedcal.training import FedAvgClassifier, Proximal

    rng = np.random.default_rng(0)
    rows = {}
    for name in NAMES:
        labels = rng.integers(0, 2, 60)
        rows[name] = rng.normal(size=(60, 4)) + 2 * np.eye(2, 4)[labels], labels
        np.savez(folder / f"{name}.npz", features=rows[name][0], labels=labels)
        write_site(folder, name, allow_training=name != "lyon")
        sites.sites[name].reload()

    def classifier(**options):
        return FedAvgClassifier(
            module_params={"hidden": (5,)},
            penalties=Proximal(0.1),
            eps=8.0,
            n_rounds=2,
            classes=[0, 1],
            random_state=0,
            **options,
        )

    with (
        connect(folder, n_columns=4) as remote,
        pytest.raises(NotEnoughClientsError, match=r"policy \(allow_training\)"),
    ):
        classifier(runner=MASKED).fit(remote)
    write_site(folder, "lyon", allow_training=True)
    sites.sites["lyon"].reload()
    with connect(folder, n_columns=4) as remote:
        there = classifier(runner=MASKED).fit(remote)
    here = classifier().fit(rows)
    points = rows["oslo"][0]
    np.testing.assert_allclose(
        there.predict_proba(points), here.predict_proba(points), atol=1e-5
    )
    paid = [line for line in sites.lines["oslo"] if line["eps"]]
    assert [line["method"] for line in paid] == ["training.fedavg/1"]


# What a SuperLink that is in the hands of an attacker could do to a live site.


def test_a_run_that_cost_nothing_is_not_answered_again_after_a_restart(
    folder, link, sites
):
    """Exact sums cost nothing; two of them, over other sites, tell one site."""
    with connect(folder) as remote:
        ScoreHistogram.fit(remote, classes=[0, 1], runner=MASKED)
    sites.end()
    for name in NAMES:
        assert PrivacyLedger(folder / f"{name}.jsonl").spent(1e-5) == 0
        again = live.LiveSite(folder / f"{name}.toml")
        asked = [unpack(x)[0]["kind"] for x in sites.contents[name]]
        assert {"keys", "masked"} <= set(asked)
        for kind, content in zip(asked, sites.contents[name], strict=True):
            refused = unpack(again.reply(content))[0].get("refused")
            assert (refused is None) == (kind in ("hello", "check"))
            if kind == "keys":
                assert "already answered" in refused
    (folder / "lyon.jsonl.runs").write_text('{"seen_runs": 3}')
    with pytest.raises(ValueError, match=r"runs is damaged"):
        live.LiveSite(folder / "lyon.toml")


def test_what_cannot_be_remembered_is_not_answered(folder, link, sites, monkeypatch):
    def full(path, *_, **__):
        raise OSError(28, "No space left on device", str(path))

    with connect(folder) as remote:
        monkeypatch.setattr(live, "write_file", full)
        with pytest.raises(
            NotEnoughClientsError, match=r"could not answer 'keys' \(OS"
        ):
            ScoreHistogram.fit(remote, classes=[0, 1], runner=MASKED)


def test_one_process_serves_a_site(folder, link, sites, capsys, monkeypatch):
    monkeypatch.setattr(live.Stop, "catch_signals", lambda self: None)
    assert main(["site", str(folder / "lyon.toml")]) == 4
    assert "Another process serves this site" in capsys.readouterr().err
    code = (
        "from skfedcal.federation import live\n"
        f"site = live.LiveSite({str(folder / 'lyon.toml')!r})\n"
        "with live.alone(site.config): pass"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "Another process serves this site" in done.stderr
    sites.end()
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_reload_in_the_middle_of_an_answer_waits_for_its_end(
    folder, link, sites, monkeypatch
):
    real = Site.handle

    def handle(self, kind, message, arrays):
        if kind == "masked" and str(self.name) == "lyon" and self.ready is None:
            write_site(folder, "lyon", ready=False)
            sites.stops["lyon"].ask_reload()
        return real(self, kind, message, arrays)

    monkeypatch.setattr(Site, "handle", handle)
    with connect(folder) as remote, pytest.raises(NotEnoughClientsError):
        calibrator(runner=FederatedRunner(secure=True, min_clients=3)).fit(remote)
    outcomes = [(x["kind"], x["outcome"]) for x in sites.lines["lyon"]]
    first = next(i for i, (kind, _) in enumerate(outcomes) if kind == "masked")
    assert outcomes[first][1] == "answered"
    assert all("not ready" in text for _, text in outcomes[first + 1 :])
    # The round was paid once, whatever the file said in between.
    assert len((folder / "lyon.jsonl").read_text().splitlines()) == 1


def test_answers_of_a_superlink_are_bounded(monkeypatch):
    monkeypatch.setattr(flower_node, "_MAX_BYTES", 10_000)
    asked = []

    def endless():
        while True:
            yield bytes(1000)

    def answer(request):
        asked.append(str(request.url))
        assert request.headers["accept-encoding"] == "identity"
        if request.url.path == "/redirect":
            return httpx.Response(307, headers={"location": "http://inside.example/x"})
        if request.url.path == "/bomb":
            content = zlib.compress(bytes(10**6))
            return httpx.Response(
                200, headers={"content-encoding": "deflate"}, content=content
            )
        if request.url.path == "/endless":
            return httpx.Response(200, content=endless())
        return httpx.Response(200, content=iter([b"x" * 9000]))

    client = httpx.Client(
        transport=httpx.MockTransport(answer),
        follow_redirects=True,
        base_url="https://superlink",
    )
    flower_node._guard(client)
    assert len(client.post("/small").content) == 9000
    with pytest.raises(httpx.HTTPStatusError):
        client.post("/redirect").raise_for_status()
    assert asked == ["https://superlink/small", "https://superlink/redirect"]
    with pytest.raises(ValueError, match="compressed"):
        client.post("/bomb")
    with pytest.raises(ValueError, match="more than"):
        client.post("/endless")
    monkeypatch.setattr(flower_node, "_MAX_SECONDS", -1.0)
    with pytest.raises(ValueError, match="slow"):
        client.post("/small")


def test_the_clients_of_flower_are_guarded(folder):
    node = live.fleet_node(live.LiveSite(folder / "lyon.toml").config)
    assert isinstance(node._client._client, httpx.Client)
    assert node._client._client.follow_redirects is False
    assert node._client._client.event_hooks["response"]
    node.close()


def test_a_site_survives_messages_that_are_none(folder, link, sites, monkeypatch):
    real = link.node_PullMessages
    wrong = iter(
        [
            lambda found: found.messages_list.add(),  # without a tree
            lambda found: found.message_object_trees.add(),
            lambda found: (
                found.messages_list.add(),
                found.message_object_trees.add(object_id="none"),
            ),
        ]
        * 3
    )

    def pull(request, headers):
        found = real(request, headers)
        if not found.messages_list and (spoil := next(wrong, None)):
            spoil(found)
        return found

    # Enough for parts of true messages, on a machine with other work.
    monkeypatch.setattr(flower_node, "_PATIENCE", 1.0)
    monkeypatch.setattr(link, "node_PullMessages", pull)
    with connect(folder) as remote:
        assert calibrator().fit(remote).n_clients_ == 3


def test_a_message_that_is_too_large_is_not_read(folder, link, sites, monkeypatch):
    with connect(folder) as remote:
        monkeypatch.setattr(flower_node, "_MAX_BYTES", 300)
        with pytest.raises(NotEnoughClientsError):
            calibrator().fit(remote)
    assert sites.lines["lyon"][-1]["outcome"] == "refused: it cannot read the message"


def unit_command(folder, port, secret):
    """Command of the unit flower-superlink.service, with places of this machine."""
    write_app(str(folder), operations=True)
    text = (folder / "flower-superlink.service").read_text()
    command = re.search(r"ExecStart=(.*)", text)[1]
    for old, new in (
        ("/opt/skfedcal/bin/", f"{Path(sys.executable).parent}/"),
        ("8000", str(port)),
        ("/var/lib/skfedcal/superlink.db", str(folder / "superlink.db")),
        ("%d/superexec.secret", str(secret)),
        ("%d/", f"{secret.parent}/"),
        ("/etc/skfedcal/ca.crt", str(secret.parent / "ca.crt")),
        ("/etc/skfedcal/server.crt", str(secret.parent / "ca.crt")),
    ):
        assert old in command
        command = command.replace(old, new)
    return shlex.split(command)


class Proxy(http.server.BaseHTTPRequestHandler):
    """What nginx.conf says, for one machine: the listed paths, written anew."""

    protocol_version = "HTTP/1.1"
    pattern, port, context, seen = None, 0, None, []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        found = self.pattern.fullmatch(self.path)
        type(self).seen.append((self.path, found is not None))
        status, headers, content = 404, {}, b""
        if found:
            link = http.client.HTTPSConnection(
                "localhost", self.port, context=self.context
            )
            kept = {k: v for k, v in self.headers.items() if k != "Connection"}
            link.request("POST", f"/v1/fleet/{found[1]}", body, kept)
            reply = link.getresponse()
            status, content = reply.status, reply.read()
            headers = {"Content-Type": reply.headers.get("Content-Type", "")}
            link.close()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def certificate(folder):
    """Certificate of localhost that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    day = timedelta(days=1)
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(Encoding.PEM))
    raw = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(raw)


class RealLink:
    """A SuperLink in a process of its own, as its unit starts it."""

    def __init__(self, folder):
        self.folder = folder
        certificate(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.command = unit_command(folder / "ops", self.port, folder / "secret")
        self.start()

    def start(self):
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        self.process = subprocess.Popen(
            self.command,
            env={**os.environ, **quiet, "FLWR_HOME": str(self.folder / "flower")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None
            time.sleep(0.1)

    def end(self, number=signal.SIGTERM):
        os.killpg(self.process.pid, number)
        self.process.wait(60)

    def ask(self, kind, name, request, *, port=None, more=()):
        """Request of somebody who has the certificate, and what `more` adds."""
        ca = (self.folder / "ca.crt").read_bytes()
        chain = [RuntimeVersionHttpInterceptor("flwr CLI"), *more]
        address = f"localhost:{port or self.port}"
        with kind.from_server_address(address, False, ca, chain) as client:
            return getattr(client, name)(request)

    def register(self, *names):
        for name in names:
            public = (self.folder / f"{name}.public").read_bytes()
            request = RegisterNodeRequest(public_key=public)
            self.ask(ControlHttpClient, "RegisterNode", request)

    def write_sites(self, port):
        for name in NAMES:
            write_site(
                self.folder,
                name,
                flower=f"localhost:{port}",
                root_certificates=str(self.folder / "ca.crt"),
                insecure=False,
            )


@pytest.fixture
def real(folder):
    link = RealLink(folder)
    yield link
    link.end()


@pytest.fixture
def proxy(folder, real):
    """What nginx.conf makes of the SuperLink: its port, and the requests."""
    text = (folder / "ops" / "nginx.conf").read_text()
    pattern = re.compile(re.search(r'location ~ "(\S+)"', text)[1])
    inner = ssl.create_default_context(cafile=folder / "ca.crt")
    entries = {"pattern": pattern, "port": real.port, "context": inner, "seen": []}
    handler = type("Here", (Proxy,), entries)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], handler.seen
    server.shutdown()
    server.server_close()


DRIVER = """
import sys, warnings
from skfedcal import CentralDP, FederatedRunner, FedTempCalibrator
from skfedcal.federation import connect

warnings.simplefilter("ignore")
port, folder, resume = sys.argv[1:]
with connect(f"flower://localhost:{port}", root_certificates=f"{folder}/ca.crt",
             secret=f"{folder}/secret", sites=["berlin", "lyon", "oslo"], n_rows=300,
             wait=120) as sites:
    runner = FederatedRunner(n_rounds=4, secure=True, resume=resume == "True",
                             checkpoint=f"{folder}/fit.npz")
    found = FedTempCalibrator(privacy=CentralDP(2.0, unit="example"), classes=[0, 1],
                              random_state=0, runner=runner).fit(sites)
found.save(f"{folder}/fit.json")
"""


@pytest.mark.slow
def test_driver_and_superlink_are_killed_and_the_run_resumed(clients, folder, real):
    def n_released():
        try:
            with np.load(folder / "fit.npz") as file:
                return len(json.loads(str(file["header"]))["records"])
        except OSError:
            return 0

    def drive(resume, least):
        words = [sys.executable, "-c", DRIVER, str(real.port), str(folder), str(resume)]
        process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while n_released() < least and process.poll() is None:
            time.sleep(0.02)
        assert least == 4 or n_released() < 4
        return process

    real.write_sites(real.port)
    real.register(*NAMES)
    running = Running(folder)
    running.start(*NAMES)
    try:
        driver = drive(False, 1)
        driver.kill()
        driver.wait(60)
        driver = drive(True, n_released() + 1)
        real.end(signal.SIGKILL)
        driver.kill()
        driver.wait(60)
        real.start()
        assert drive(True, 4).wait(300) == 0
    finally:
        running.end()
    for name in NAMES:
        assert len((folder / f"{name}.jsonl").read_text().splitlines()) == 1
    here = calibrator(runner=FederatedRunner(n_rounds=4)).fit(clients)
    assert skfedcal.load(folder / "fit.json").temperature_ == here.temperature_


@pytest.mark.slow
def test_who_has_only_the_certificate_is_neither_server_nor_site(
    clients, folder, real, proxy
):
    port, seen = proxy
    # Through the proxy there is no run, no task and no registration.
    start = StartRunRequest(fab=Fab(hash_str="x", content=b"x"))
    acquire = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
    for kind, name, request in (
        (ControlHttpClient, "StartRun", start),
        (RuntimeHttpClient, "AcquireTask", acquire),
        (FleetHttpClient, "RegisterNode", RegisterNodeFleetRequest(public_key=b"x")),
    ):
        with pytest.raises(httpx.HTTPStatusError, match="404"):
            real.ask(kind, name, request, port=port)
    assert not any(passed for _, passed in seen)
    # On the machine of the operator a run can be started, but not taken.
    wrong = SuperExecAuthHttpInterceptor(
        master_secret=b"g" * 32, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
    )
    for more in ((), (wrong,)):
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            real.ask(RuntimeHttpClient, "AcquireTask", acquire, more=more)

    # Sites come through the proxy, once the operator has registered them.
    running = Running(folder)
    real.write_sites(port)
    stranger = live.fleet_node(live.LiveSite(folder / "lyon.toml").config)
    with pytest.raises(flower_node.NodeError, match="HTTP 404"):
        stranger.connect()
    real.register(*NAMES)
    running.start(*NAMES)
    try:
        with federation.connect(
            f"flower://localhost:{real.port}",
            root_certificates=folder / "ca.crt",
            secret=folder / "secret",
            sites=NAMES,
            n_rows=300,
            wait=60,
        ) as remote:
            there = calibrator().fit(remote)
    finally:
        running.end()
    here = calibrator(runner=FederatedRunner(n_rounds=2)).fit(clients)
    assert there.temperature_ == here.temperature_
    assert {path for path, passed in seen if passed} <= {
        f"/v1/fleet/{name}"
        for name in (
            "activate-node",
            "deactivate-node",
            "send-node-heartbeat",
            "pull-messages",
            "push-messages",
            "pull-object",
            "push-object",
            "confirm-message-received",
        )
    }


@pytest.mark.slow
def test_three_periods_of_a_monitor_over_a_superlink(folder, real, proxy):
    outside, _ = proxy
    running = Running(folder)
    real.write_sites(outside)
    real.register(*NAMES)
    running.start(*NAMES)
    state = folder / "state.json"
    CalibrationMonitor(
        privacy=CentralDP(6.0, unit="example"), periods=3, classes=[0, 1], path=state
    )
    periods = [period_rows(n) for n in range(3)]
    try:
        for rows in periods:
            start_period(folder, running, rows)
            monitor = CalibrationMonitor.load(state, runner=MASKED)
            with federation.connect(
                f"flower://localhost:{real.port}",
                root_certificates=folder / "ca.crt",
                secret=folder / "secret",
                sites=NAMES,
                n_rows=1200,
                wait=60,
            ) as remote:
                monitor.update(remote)
    finally:
        running.end()
    check_monitor(folder, running, monitor, periods)
