"""Live sites and the connection to them, over Flower's clients and a fake SuperLink."""

import importlib.util
import json
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from flwr.app import ConfigRecord, RecordDict
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from skfedcal import (
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
from skfedcal.federation import SiteRows, flower_node, live
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
    for name, (logits, labels) in clients.items():
        np.savez(tmp_path / f"{name}.npz", logits=logits, labels=labels)
        (tmp_path / f"{name}.jsonl").touch()
        key = ec.generate_private_key(ec.SECP384R1())
        raw = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        (tmp_path / f"{name}.node").write_bytes(raw)
        (tmp_path / f"{name}.public").write_bytes(public_key_to_bytes(key.public_key()))
        write_site(tmp_path, name)
    return tmp_path


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
        self.folder, self.lines = folder, {name: [] for name in NAMES}
        self.contents = {name: [] for name in NAMES}
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
    assert "before it was started again" in unpack(again.reply(keys))[0]["refused"]
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
    temperature = "method='FedTempCalibrator'"
    config = [str(folder / "app"), "--run-config", named]
    code, verdicts, lines, _ = check(*config, "--run-config", f"{temperature} n-rows=9")
    assert code == 2
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
    assert main(["site", str(folder / "lyon.toml")]) == 2
    (folder / "oslo.jsonl").unlink()
    assert main(["site", str(folder / "oslo.toml")]) == 2
    assert "skfedcal ledger --create" in capsys.readouterr().err


def test_a_live_site_imports_nothing_heavy():
    code = "import skfedcal.federation.live, sys; print(*sys.modules)"
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"sklearn", "scipy", "torch", "joblib"} & set(text)
