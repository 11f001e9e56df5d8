"""``skfedcal flower``: app, keys and doctor."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import tomllib
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from skfedcal import CentralDP, SecureAggregation, __version__
from skfedcal.cli.flower import doctor as _doctor
from skfedcal.cli.flower import trial
from skfedcal.cli.flower.project import changed_config, run_config
from skfedcal.federation import Operator, Roster, SiteKey
from skfedcal.privacy import PureEvent
from skfedcal.privacy.site_ledger import SiteLedger

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "flower"
    home.mkdir()
    monkeypatch.setenv("FLWR_HOME", str(home))
    (home / "config.toml").write_text(
        '[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:1"\n'
        "insecure = true\n"
    )
    return home


@pytest.fixture
def app(run, tmp_path):
    folder = tmp_path / "My-app"
    assert run("flower", "init", folder)[0] == 0
    return folder


@pytest.fixture
def doctor(run):
    """Verdicts by what was looked at, and the exit code."""

    def call(*words):
        code, out, _ = run("flower", "doctor", *words, "--json")
        found = {}
        for line in json.loads(out)["checks"]:
            found.setdefault(line["what"], []).append((line["verdict"], line["text"]))
        return code, found

    return call


def verdicts(found, what):
    return [verdict for verdict, _ in found[what]]


def test_init_writes_an_app_that_flower_accepts(app):
    content = tomllib.loads((app / "pyproject.toml").read_text())
    assert content["project"]["name"] == "my-app"
    assert content["project"]["dependencies"] == [f"skfedcal[flower]=={__version__}"]
    assert "{{" not in "".join(path.read_text() for path in app.iterdir())
    flwr = trial.program("flwr")
    subprocess.run([flwr, "build", "--app", app], cwd=app.parent, check=True)
    (bundle,) = app.parent.glob("*.fab")
    assert bundle.stat().st_size > 1000


def test_init_overwrites_nothing(app, fails):
    assert "'my app' is not a valid app name" in fails(
        "flower", "init", app.parent / "my app"
    )
    before = {path: path.read_text() for path in app.iterdir()}
    (app / "pyproject.toml").unlink()
    assert "client.py exists" in fails("flower", "init", app)
    assert not (app / "pyproject.toml").exists()
    assert (app / "client.py").read_text() == before[app / "client.py"]


def test_keys_stay_private_and_the_roster_is_public(run_json, fails, tmp_path):
    folder = tmp_path / "keys"
    made = run_json("flower", "keys", "lyon", "oslo", "--dir", folder)
    roster = Roster.load(folder / "roster.json")
    assert sorted(roster.sites) == made["sites"] == ["lyon", "oslo"]
    for name in ("lyon", "oslo"):
        path = folder / f"{name}.key"
        assert SiteKey.load(path).public == roster.sites[name]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert (
            json.loads(path.read_text())["key"]
            not in (folder / "roster.json").read_text()
        )
    assert "'lyon' has a key already" in fails(
        "flower", "keys", "lyon", "--dir", folder
    )
    assert "not a valid site name" in fails("flower", "keys", "../x", "--dir", folder)
    assert "name a site" in fails("flower", "keys", "--dir", folder)
    assert Roster.load(folder / "roster.json") == roster


def test_rosters_of_sites_join_to_one(run_json, fails, tmp_path):
    for name in ("a", "b", "c"):
        run_json("flower", "keys", name, "--dir", tmp_path / name)
    prints = set()
    for name in ("a", "b", "c"):
        others = [tmp_path / n / "roster.json" for n in ("c", "a", "b") if n != name]
        joined = run_json("flower", "keys", "--join", *others, "--dir", tmp_path / name)
        assert joined["sites"] == ["a", "b", "c"]
        prints.add(joined["fingerprint"])
    assert len(prints) == 1
    Roster({"a": bytes(32)}).save(tmp_path / "false.json")
    assert "another key for site 'a'" in fails(
        "flower", "keys", "--join", tmp_path / "false.json", "--dir", tmp_path / "b"
    )


def test_the_operator_gets_a_key_that_every_roster_then_has(run_json, fails, tmp_path):
    for name in ("a", "b"):
        made = run_json("flower", "keys", name, "--dir", tmp_path / name)
        assert made["operator"] is None
    hub = tmp_path / "hub"
    made = run_json("flower", "keys", "--operator", "--dir", hub)
    assert made["sites"] == [] and made["keys"] == [str(hub / "operator.key")]
    assert stat.S_IMODE((hub / "operator.key").stat().st_mode) == 0o600
    rosters = [tmp_path / name / "roster.json" for name in ("a", "b", "hub")]
    prints = set()
    for path in rosters:
        others = [other for other in rosters if other != path]
        joined = run_json("flower", "keys", "--join", *others, "--dir", path.parent)
        assert joined["operator"] == made["operator"]
        prints.add(joined["fingerprint"])
    assert len(prints) == 1
    operator = Operator.load(hub / "operator.key", hub / "roster.json")
    assert operator.roster == Roster.load(rosters[0])
    assert "has a key already" in fails("flower", "keys", "--operator", "--dir", hub)
    assert "called 'operator'" in fails("flower", "keys", "operator", "--dir", hub)
    run_json("flower", "keys", "--operator", "--dir", tmp_path / "other")
    assert "another operator" in fails(
        "flower", "keys", "--join", tmp_path / "other" / "roster.json", "--dir", hub
    )
    with pytest.raises(ValueError, match="--operator, and send it to every site"):
        Operator.load(tmp_path / "a" / "a.key", rosters[0])


def test_a_roster_without_an_operator_says_what_that_means(
    run_json, run, doctor, tmp_path
):
    _, told, _ = run("flower", "keys", "lyon", "--dir", tmp_path)
    assert "no operator key: whoever reaches the sites" in told
    _, found = doctor("--roster", tmp_path / "roster.json")
    assert found["operator"][0][0] == "warn"
    run_json("flower", "keys", "--operator", "--dir", tmp_path)
    _, found = doctor("--roster", tmp_path / "roster.json")
    assert found["operator"][0][0] == "ok"


def test_a_sound_app_passes(app, doctor):
    code, found = doctor(app, "--port", trial.free_port())
    assert code == 0
    assert "fail" not in {v for lines in found.values() for v, _ in lines}
    for what in ("python", "flwr", "cryptography", "app", "method", "secure", *QUIET):
        assert verdicts(found, what) == ["ok"], what
    assert verdicts(found, "connection here") == ["ok"]


@pytest.mark.parametrize(
    ("old", "new", "what", "verdict"),
    [
        ("FedAutoCalibrator", "FedAuto", "method", "fail"),
        ("[0, 1, 2]", "0, 1", "classes", "fail"),
        ('options = "{}"', 'options = "[]"', "options", "fail"),
        ("secure = true", "secure = false", "secure", "warn"),
        ('privacy = "central"', 'privacy = "none"', "privacy", "warn"),
        ('serverapp = "server:app"', 'serverapp = "sever:app"', "serverapp", "fail"),
        (f"=={__version__}", "==0.0.1", "app", "warn"),
    ],
)
def test_a_fault_of_the_app_is_found(app, doctor, old, new, what, verdict):
    path = app / "pyproject.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    code, found = doctor(app, "--port", trial.free_port())
    assert verdicts(found, what) == [verdict]
    assert code == (1 if verdict == "fail" else 0)


def test_what_flower_would_send_is_named(app, doctor, monkeypatch):
    for name in QUIET:
        monkeypatch.delenv(name)
    _, found = doctor(app, "--port", trial.free_port())
    assert all(verdicts(found, name) == ["warn"] for name in QUIET)


def test_a_port_in_use_is_named(app, doctor):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        _, found = doctor(app, "--port", port)
        assert verdicts(found, f"port {port}") == ["warn"]
    _, found = doctor(app, "--port", port)
    assert verdicts(found, f"port {port}") == ["ok"]


@pytest.mark.parametrize("port", ["99999", "0", "-1", "http"])
def test_what_is_no_port_is_said(fails, port):
    text = fails("flower", "doctor", f"--port={port}")
    assert f"{port} is not a port number: pass 1 to 65535" in text


def test_a_far_connection_without_tls_fails(app, doctor, environment):
    (environment / "config.toml").write_text(
        '[superlink.far]\naddress = "example.org:443"\ninsecure = true\n'
    )
    code, found = doctor(app, "--port", trial.free_port())
    assert (code, verdicts(found, "connection far")) == (1, ["fail"])
    (environment / "config.toml").unlink()
    assert verdicts(doctor(app)[1], "connections") == ["warn"]


def test_a_missing_package_is_named(app, doctor, monkeypatch):
    version = _doctor.metadata.version

    def old(name):
        return "1.39.0" if name == "flwr" else version(name)

    monkeypatch.setattr(_doctor.metadata, "version", old)
    code, found = doctor(app)
    assert code == 1
    assert found["flwr"] == [("fail", "1.39.0; 1.40 or newer is needed")]


class Certificates:
    """An authority and a server, as PEM files."""

    def __init__(self, folder):
        self.folder, self.ca_key = folder, ec.generate_private_key(ec.SECP256R1())
        self.write("ca.crt", self.certificate("ca", self.ca_key, None))

    def certificate(self, name, key, hosts, *, days=90, issuer_key=None):
        now = datetime.now(UTC)
        title = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ca")])
        made = (
            x509.CertificateBuilder()
            .subject_name(title)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=200))
            .not_valid_after(now + timedelta(days=days))
        )
        if hosts:
            names = x509.SubjectAlternativeName([x509.DNSName(h) for h in hosts])
            made = made.add_extension(names, critical=False)
        return made.sign(issuer_key or self.ca_key, hashes.SHA256())

    def write(self, name, thing):
        if hasattr(thing, "public_bytes"):
            data = thing.public_bytes(serialization.Encoding.PEM)
        else:
            data = thing.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        (self.folder / name).write_bytes(data)
        (self.folder / name).chmod(0o600)

    def server(self, hosts=("localhost",), **options):
        key = ec.generate_private_key(ec.SECP256R1())
        self.write("server.key", key)
        self.write("server.crt", self.certificate("server", key, hosts, **options))

    @property
    def words(self):
        return ("--ca", self.folder / "ca.crt", "--cert", self.folder / "server.crt",
                "--key", self.folder / "server.key")  # fmt: skip


def test_certificates_are_checked(doctor, tmp_path):
    made = Certificates(tmp_path)
    made.server()
    code, found = doctor(*made.words)
    assert code == 0
    assert verdicts(found, "certificate") == ["ok", "ok", "ok"]
    assert ("ok", "for localhost") in found["certificate"]
    made.server(days=10)
    assert "warn" in verdicts(doctor(*made.words)[1], "certificate")
    made.server(days=-1)
    assert "expired" in str(doctor(*made.words)[1]["certificate"])
    made.server(hosts=None)
    assert "no subjectAltName" in str(doctor(*made.words)[1]["certificate"])
    made.server(issuer_key=ec.generate_private_key(ec.SECP256R1()))
    assert "was not issued" in str(doctor(*made.words)[1]["certificate"])
    made.server()
    made.write("server.key", ec.generate_private_key(ec.SECP256R1()))
    assert ("fail", "does not belong to the certificate") in doctor(*made.words)[1][
        "key"
    ]
    (tmp_path / "server.key").chmod(0o644)
    assert verdicts(doctor(*made.words)[1], "permissions") == ["fail"]
    (tmp_path / "server.crt").write_text("nonsense")
    code, found = doctor(*made.words)
    assert (code, verdicts(found, "certificate")) == (1, ["fail"])


def test_a_roster_must_have_the_sites_that_are_waited_for(
    app, doctor, run_json, tmp_path
):
    run_json("flower", "keys", "lyon", "--dir", tmp_path)
    words = (app, "--roster", tmp_path / "roster.json", "--port", trial.free_port())
    assert verdicts(doctor(*words)[1], "roster") == ["ok"]
    path = app / "pyproject.toml"
    path.write_text(path.read_text().replace('sites = ""', 'sites = "lyon, oslo"'))
    code, found = doctor(*words)
    assert (code, found["roster"][-1]) == (1, ("fail", "has no oslo"))


def test_the_file_of_a_site_is_checked(doctor, run_json, tmp_path):
    run_json("flower", "keys", "lyon", "--dir", tmp_path)
    np.savez(tmp_path / "rows.npz", logits=np.zeros((4, 2)), labels=np.zeros(4, int))
    entries = {
        "client-id": "lyon",
        "data-path": str(tmp_path / "rows.npz"),
        "site-key": str(tmp_path / "lyon.key"),
        "roster": str(tmp_path / "roster.json"),
        "min-clients": 5,
    }

    def check(**changes):
        whole = entries | {k.replace("_", "-"): v for k, v in changes.items()}
        lines = [f"{k} = {json.dumps(v)}" for k, v in whole.items() if v is not None]
        (tmp_path / "site.toml").write_text("\n".join(lines))
        return doctor("--site", tmp_path / "site.toml", "--port", trial.free_port())

    code, found = check()
    assert (code, verdicts(found, "site")) == (0, ["ok"])
    assert "min_clients=5" in found["site"][0][1]
    assert verdicts(found, "ledger") == ["warn"]
    assert verdicts(check(roster=None)[1], "roster") == ["warn"]
    for wrong in ({"min_client": 5}, {"client_id": "oslo"}, {"data_path": "x.npz"}):
        code, found = check(**wrong)
        assert (code, verdicts(found, "site")) == (1, ["fail"])
    os.chmod(tmp_path / "lyon.key", 0o644)
    assert verdicts(check()[1], "permissions") == ["fail"]


def test_what_a_policy_leaves_open_is_named(doctor, tmp_path):
    np.savez(tmp_path / "rows.npz", logits=np.zeros((4, 2)), labels=np.arange(4) % 2)
    start = f'client-id = "lyon"\ndata-path = "{tmp_path}/rows.npz"\n'

    def check(text):
        (tmp_path / "site.toml").write_text(start + text)
        found = doctor("--site", tmp_path / "site.toml", "--port", trial.free_port())
        names = ("methods", "noise", "classes", "allow_plain")
        open_ends = [[line[0] for line in found[1].get(name, ())] for name in names]
        return found[0], open_ends

    assert check("") == (0, [["warn"], ["warn"], ["warn"], []])
    tight = 'methods = "score-histogram"\nnoise = "own"\nclasses = [0, 1]\n'
    assert check(tight) == (0, [[], [], ["ok"], []])
    assert check("allow-plain = true\n")[1][3] == ["warn"]
    assert check('methods = "histograms"\n') == (1, [[], [], [], []])
    assert check("classes = [0, 2]\n")[1][2] == ["fail"]


LOGITS, LABELS = np.array([[2.0, -1.0], [0.5, 1.0]] * 3), np.array([0, 1] * 3)


@pytest.mark.parametrize(
    ("what", "scores", "labels", "named"),
    [
        ("logits", LOGITS * np.nan, LABELS, True),
        ("columns", np.hstack([LOGITS, LOGITS, LOGITS])[:, :5], LABELS, True),
        ("labels", LOGITS, LABELS.astype(str), True),
        ("classes", LOGITS, LABELS + 0.5, True),
        ("rows", LOGITS[:0], LABELS[:0], True),
        ("logits", np.full((6, 2), 0.5), LABELS, True),
        ("columns", LOGITS, np.arange(6), False),
    ],
)
def test_rows_that_would_count_as_zero_are_found(
    what, scores, labels, named, doctor, tmp_path
):
    def check(scores, labels):
        np.savez(tmp_path / "rows.npz", logits=scores, labels=labels)
        text = f'client-id = "lyon"\ndata-path = "{tmp_path}/rows.npz"\n'
        text += "classes = [0, 1]\n" * named
        (tmp_path / "site.toml").write_text(text)
        return doctor("--site", tmp_path / "site.toml", "--port", trial.free_port())

    code, found = check(scores, labels)
    assert code == 1 and "fail" in verdicts(found, what)
    assert check(LOGITS, LABELS)[0] == 0
    assert check(LOGITS, LABELS.astype(float))[0] == 0


def test_the_ledger_of_a_site_is_checked(doctor, run, fails, tmp_path):
    np.savez(tmp_path / "rows.npz", logits=LOGITS, labels=LABELS)
    path = tmp_path / "ledger.jsonl"

    def check(eps, head=None):
        text = f'client-id = "lyon"\ndata-path = "{tmp_path}/rows.npz"\n'
        text += f'ledger = "{path}"\nmax-eps = {eps}\nmax-delta = 1e-5\n'
        text += 'noise = "central"\n'
        text += "" if head is None else f'ledger-head = "{head}"\n'
        (tmp_path / "site.toml").write_text(text)
        return doctor("--site", tmp_path / "site.toml", "--port", trial.free_port())

    code, found = check(2.0)
    assert code == 1 and "skfedcal ledger --create" in found["site"][0][1]
    assert run("ledger", "--create", path)[0] == 0
    assert "exists" in fails("ledger", "--create", path)
    code, found = check(2.0)
    assert (code, verdicts(found, "ledger")) == (0, ["ok"])
    ledger = SiteLedger(path, budget=(2.0, 1e-5))
    ledger.debit(PureEvent(1.5), label="fit")
    assert "eps 1.5 of 2 spent" in check(2.0, ledger.head)[1]["ledger"][0][1]
    for eps, head, what in ((3.0, None, "ledger"), (1.0, None, "ledger"),
                            (2.0, "f" * 64, "site")):  # fmt: skip
        code, found = check(eps, head)
        assert (code, verdicts(found, what)) == (1, ["fail"]), what


def test_made_up_data_fits_the_run_config(tmp_path):
    paths = trial.toy_data(
        tmp_path, {"classes": '["a", "b", "c"]', "input-type": "logits"}
    )
    assert len(paths) == 3
    for path in paths.values():
        with np.load(path) as file:
            assert file["logits"].shape == (len(file["labels"]), 3)
            assert set(file["labels"]) <= {"a", "b", "c"}
    with pytest.raises(ValueError, match="pass the files of sites"):
        trial.toy_data(tmp_path, {"classes": "[0, 1]", "input-type": "proba"})


def test_a_trial_needs_three_sites(app, fails, tmp_path):
    assert "files of 3 sites" in fails("flower", "try", app, tmp_path / "a.npz")
    assert "writes an app" in fails("flower", "try", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ('method="FedTemp"', "skfedcal has no 'FedTemp'"),
        ("rounds=1 method=FedTempCalibrator", "quotes around text"),
        ("method", "Pass name=value"),
        ('mehtod="FedTempCalibrator"', "the app has no 'mehtod'. It has method, "),
        ("""rounds=1 classes='[0, "a"'""", "is not a JSON list"),
    ],
)
def test_a_wrong_entry_is_said_before_anything_starts(app, fails, entry, text):
    assert text in fails("flower", "try", app, "--run-config", entry)


def test_entries_change_the_run_config(app):
    entries = ["""rounds=1 classes='[0, "a b"]'""", "secure=false"]
    found = changed_config(str(app), entries)
    changes = {"rounds": 1, "classes": '[0, "a b"]', "secure": False}
    assert found == run_config(str(app)) | changes


def test_commands_of_flower_find_each_other(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    environment = trial.flower_environment(tmp_path / "home")
    assert shutil.which("flower-superexec", path=environment["PATH"])


@pytest.fixture
def hears_interrupts():
    """Tests in the background inherit a shell's deaf ear for Ctrl-C."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_trial_that_is_told_to_end_leaves_nothing_behind(
    app, run, tmp_path, monkeypatch, number
):
    started = []

    @contextmanager
    def superlink(folder, environment, options):
        with trial.processes(["/bin/sleep", "60"], folder, environment) as process:
            started.append(process)
            assert callable(signal.getsignal(number))  # else it would end the tests
            os.kill(os.getpid(), number)
            yield "127.0.0.1:1"

    monkeypatch.setattr(trial, "superlink", superlink)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "here"))
    (tmp_path / "here").mkdir()
    before = signal.getsignal(number)
    assert run("flower", "try", app)[0] == 130
    assert started[0].poll() is not None
    assert list((tmp_path / "here").iterdir()) == []
    assert signal.getsignal(number) is before


def test_the_error_of_a_trial_says_who_did_not_answer(tmp_path):
    log = tmp_path / "run.log"
    log.write_text(
        "Traceback:\nx.py:2: FaultyClientWarning: 'oslo' refused: its policy.\n"
        "  told\nskfedcal.exceptions.NotEnoughClientsError: 2 clients answered.\nend\n"
    )
    assert trial._end_of(log) == (
        "Its log ends with: FaultyClientWarning: 'oslo' refused: its policy. | "
        "skfedcal.exceptions.NotEnoughClientsError: 2 clients answered."
    )


def test_a_process_of_a_trial_ends_with_its_block(tmp_path):
    environment = trial.flower_environment(tmp_path / "home")
    with trial.processes(
        ["/bin/sh", "-c", "sleep 60 & wait"], tmp_path, environment
    ) as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_help_and_a_missing_command(run, fails):
    code, out, _ = run("flower", "doctor", "--help")
    assert code == 0 and "--roster" in out
    assert "name a command" in fails("flower")


@pytest.fixture
def members(run_json, tmp_path):
    """Folders of an operator and three sites that hold the same first roster."""
    folders = {name: tmp_path / name for name in ("lyon", "oslo", "rome", "hub")}
    for name in ("lyon", "oslo", "rome"):
        run_json("flower", "keys", name, "--dir", folders[name])
    run_json("flower", "keys", "--operator", "--dir", folders["hub"])
    parts = []
    for name, folder in folders.items():
        parts.append(tmp_path / f"{name}.json")
        parts[-1].write_bytes((folder / "roster.json").read_bytes())
    for folder in folders.values():
        run_json("flower", "keys", "--join", *parts, "--dir", folder)
    return folders


def test_sites_enter_and_leave_by_versions_of_the_roster(
    run_json, run, fails, members, tmp_path
):
    hub, lyon = members["hub"], members["lyon"]
    run_json("flower", "keys", "kiel", "--dir", tmp_path / "kiel")
    new = tmp_path / "kiel" / "roster.json"
    words = ("--add", new, "--remove", "rome", "--dir", hub)
    made = run_json("flower", "keys", *words)
    assert made["sites"] == ["kiel", "lyon", "oslo"] and made["version"] == 1
    assert made["changes"] == ["kiel enters: compare the fingerprint", "rome leaves"]
    first = (lyon / "roster.json").read_bytes()
    got = run_json("flower", "keys", "--install", hub / "roster.json", "--dir", lyon)
    assert got["fingerprint"] == made["fingerprint"] and got["version"] == 1
    assert got["changes"] == made["changes"]
    (tmp_path / "old.json").write_bytes(first)
    assert "this site has seen version 1" in fails(
        "flower", "keys", "--install", tmp_path / "old.json", "--dir", lyon
    )
    assert "no site 'rome'" in fails("flower", "keys", "--remove", "rome", "--dir", hub)
    assert "nothing to change" in fails("flower", "keys", "--add", new, "--dir", hub)
    # A roster in use is changed by versions only.
    assert "has a version" in fails("flower", "keys", "--join", new, "--dir", hub)
    # Another one of the same version: somebody else made it.
    run_json("flower", "keys", "--remove", "oslo", "--dir", members["oslo"])
    other = members["oslo"] / "roster.json"
    assert "two rosters of version 1" in fails(
        "flower", "keys", "--install", other, "--dir", lyon
    )
    _, told, _ = run("flower", "keys", "--remove", "kiel", "--dir", hub)
    assert "2 sites, version 2; send it to every site" in told


def test_the_old_key_of_a_site_signs_the_new_one(run_json, fails, members, tmp_path):
    hub, lyon, oslo = members["hub"], members["lyon"], members["oslo"]
    old = SiteKey.load(lyon / "lyon.key")
    run_json("flower", "keys", "--rotate", "lyon", "--dir", lyon)
    statement = lyon / "lyon.rotation.json"
    new = SiteKey.load(lyon / "lyon.new.key")
    assert new.former == (old.public,) and new.public != old.public
    assert new.key.private_bytes_raw().hex() not in statement.read_text()
    made = run_json("flower", "keys", "--add", statement, "--dir", hub)
    assert Roster.load(hub / "roster.json").sites["lyon"] == new.public
    roster = hub / "roster.json"
    got = run_json("flower", "keys", "--install", roster, statement, "--dir", oslo)
    assert got["changes"] == ["lyon has another key, which its old key signed"]
    rome = members["rome"]
    got = run_json("flower", "keys", "--install", roster, "--dir", rome)
    assert got["changes"] == ["lyon has another key: compare the fingerprint"]
    assert got["fingerprint"] == made["fingerprint"]
    # A second time, by another key, for another site: nobody signed that.
    assert "did not sign this" in fails(
        "flower", "keys", "--add", statement, "--dir", hub
    )
    thief = SiteKey.generate("oslo")
    content = json.loads(statement.read_text())
    for change in (
        {"site": "oslo"},
        {"new": thief.public.hex()},
        {"site": "oslo", "old": SiteKey.load(oslo / "oslo.key").public.hex()},
        {"signature": "00" * 64},
    ):
        forged = tmp_path / "forged.json"
        forged.write_text(json.dumps(content | change))
        assert "did not sign this" in fails(
            "flower", "keys", "--add", forged, "--dir", members["rome"]
        )
    # The operator's own key.
    made = run_json("flower", "keys", "--rotate", "operator", "--dir", hub)
    key = SiteKey.load(hub / "operator.new.key")
    assert made["version"] == 2 and made["operator"] == key.public.hex()
    assert "or --rotate NAME" in fails(
        "flower", "keys", "--rotate", "lyon", "--remove", "oslo", "--dir", hub
    )


def test_a_check_says_what_sites_rows_and_eps_will_give():
    config = {"method": "FedTempCalibrator", "classes": "[0, 1, 2]", "n-rows": 9000}

    def plan(model, **changes):
        whole = {**config, "gain-share": 0.2, **changes}
        return {line.what: line for line in _doctor.check_plan(3, model, whole)}

    found = plan(CentralDP(1.0, unit="example"))
    assert [found[name].verdict for name in ("expected gain", "comparison")] == [
        "ok",
        "ok",
    ]
    assert "100% of simulated fits" in found["expected gain"].text
    assert "standard error of about" in found["comparison"].text
    # Three hospitals cannot hide one of them.
    found = plan(CentralDP(1.0))
    assert found["advice"].verdict == "warn"
    assert "unit='example'" in found["advice"].text
    assert "on 3 sites would give the difference" in found["comparison"].text
    found = plan(SecureAggregation())
    assert found["comparison"].text == "exact, on a fifth of the rows"
    assert (
        "not known"
        in plan(SecureAggregation(), method="ScoreHistogram")["expected gain"].text
    )
