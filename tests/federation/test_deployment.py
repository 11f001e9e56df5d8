"""A deployment in real processes, by the commands of the deployment guide."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import skfedcal
from skfedcal import (
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    ScoreHistogram,
    make_federation,
)
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.federation import connect

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS / "guide" / "deployment.rst", DOCS / "reference" / "deployment.rst"]
README = DOCS.parent / "README.md"
SITES = ("berlin", "lyon", "oslo")
CLASSES = [0, 1, 2]
MASKED = FederatedRunner(secure=True, min_clients=2)
# An exchange takes 5 s on an idle machine, and 20 s on a busy one.
PATIENCE = 600.0
TIMEOUT = 45

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("deployment"),
    pytest.mark.skipif(not DOCS.exists(), reason="no docs in this copy"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("bash", "openssl", "ssh-keygen")))
        or not Path("/proc/self/environ").exists(),
        reason="needs Linux with bash, openssl and ssh-keygen",
    ),
]


def block(name):
    """Commands of the guide under this name."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    found = re.search(rf"   :name: deploy-{name}\n\n((?:   .*\n|\n)+)", text)
    return "\n".join(line[3:] for line in found[1].splitlines()).strip()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def until(what, condition, seconds=PATIENCE, pause=0.5):
    """Wait for a condition; nothing may hang for ever."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(pause)
    raise AssertionError(f"{what} took more than {seconds} s")


class Deployment:
    """An operator and sites, each with a folder and a home of Flower of its own."""

    def __init__(self, root, clients):
        self.root, self.clients = root, clients
        self.groups = []
        tools = root / "bin"
        tools.mkdir()
        script = tools / "skfedcal"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m skfedcal "$@"\n')
        script.chmod(0o755)
        python = Path(sys.executable).parent
        self.shared = {
            **os.environ,
            "PATH": f"{tools}:{python}:{os.environ['PATH']}",
            "PYTHONPATH": str(Path(skfedcal.__file__).parent.parent),
            "OMP_NUM_THREADS": "1",
            "HOST": "localhost",
            "BIND": "127.0.0.1",
            "PORT": free_port(),
        }
        self.operator = root / "operator"
        self.operator.mkdir()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.groups:
            self.end(process, signal.SIGTERM)
        end = time.monotonic() + 30
        while self.processes(self.root) and time.monotonic() < end:
            time.sleep(0.5)
        left = self.processes(self.root)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert error[0] is not None or not left

    def environment(self, folder, **more):
        return {**self.shared, "FLWR_HOME": str(folder / "flower"), **more}

    def sh(self, name, folder, extra="", **more):
        """Run commands of the guide to their end; give what they print."""
        done = subprocess.run(
            ["bash", "-euc", f"{block('environment')}\n{block(name)}{extra}"],
            cwd=folder,
            env=self.environment(folder, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=False,
            text=True,
        )
        assert done.returncode == 0, f"{name}: {done.stdout}"
        return done.stdout

    def start(self, name, folder, **more):
        """Start commands of the guide that go on until they are ended."""
        with open(folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(
                ["bash", "-euc", f"{block('environment')}\nexec {block(name)}"],
                cwd=folder,
                env=self.environment(folder, **more),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.groups.append(process)
        return process

    @staticmethod
    def end(process, number):
        if process.poll() is None:
            os.killpg(process.pid, number)
            process.wait(30)

    @staticmethod
    def processes(folder):
        """Living processes whose Flower has its home in a folder."""
        mark = f"FLWR_HOME={folder}/".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (path / "environ").read_bytes():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def start_superlink(self, name="superlink"):
        process = self.start(name, self.operator)
        until("the SuperLink", self._listens, 120)
        return process

    def _listens(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self.shared["PORT"]))) == 0

    def make_site(self, name):
        folder = self.root / name
        (folder / "rosters").mkdir(parents=True)
        logits, labels = self.clients.get(name, next(iter(self.clients.values())))
        np.savez(folder / "rows.npz", logits=logits, labels=labels)
        self.sh("keys", folder, SITE=name)
        shutil.copy(self.operator / "ca.crt", folder)
        return folder

    def set_up(self, min_clients=3, live=False, operator=False, noise="none"):
        """Everything up to the SuperNodes, or to live sites in place of them.

        The guide asks for noise; exact sums can be compared to the last bit.
        """
        self.sh("certificates", self.operator)
        if live:
            self.sh("live-secret", self.operator)
        self.start_superlink("live-superlink" if live else "superlink")
        self.sh("connection", self.operator)
        folders = {name: self.make_site(name) for name in SITES}
        (self.operator / "nodes").mkdir()
        prints = set()
        for name, folder in folders.items():
            shutil.copy(folder / "node.pub", self.operator / "nodes" / f"{name}.pub")
            for other, there in folders.items():
                if other != name:
                    copy = folder / "rosters" / f"{other}.json"
                    shutil.copy(there / "roster.json", copy)
        joining = list(folders.values())
        if operator:
            self.sh("operator-key", self.operator)
            (self.operator / "rosters").mkdir()
            for name, folder in folders.items():
                shutil.copy(self.operator / "roster.json", folder / "rosters/op.json")
                copy = self.operator / "rosters" / f"{name}.json"
                shutil.copy(folder / "roster.json", copy)
            joining.append(self.operator)
        # All have theirs before any is joined with others.
        for folder in joining:
            text = self.sh("roster", folder)
            prints.add(text.splitlines()[-1])
        assert len(prints) == 1
        self.sh("register", self.operator)
        self.nodes = {}
        for name, folder in folders.items():
            data = str(folder / "rows.npz")
            self.sh("site", folder, SITE=name, DATA=data)
            file = folder / "site.toml"
            text = file.read_text()
            for old, new in (
                ("min-clients = 3\n", f"min-clients = {min_clients}\n"),
                ('noise = "central" ', f'noise = "{noise}" '),
            ):
                assert old in text
                text = text.replace(old, new)
            file.write_text(text)
            if live:
                self.sh("live-site", folder)
                self.nodes[name] = self.start("live-start", folder)
                continue
            self.nodes[name] = self.start("supernode", folder, NODE_PORT=free_port())
        self.folders = folders

    def run(self, name, config):
        """Start a run of the guide, with changes; give its number."""
        settings = " ".join(f"{key}={value}" for key, value in config.items())
        text = self.sh(name, self.operator, f" --run-config {json.dumps(settings)}")
        return re.search(r"started run (\d+)", text)[1]

    def finished(self, numbers, *files):
        """Wait for runs, first for the files that they write; give their status."""
        # Every look at the list of runs starts a process: seconds on a busy machine.
        end = time.monotonic() + PATIENCE / 2
        while not all(map(Path.exists, files)) and time.monotonic() < end:
            time.sleep(1)
        return until("the end of runs", lambda: self.status(numbers), pause=5)

    def status(self, numbers):
        """Status of runs once all of them are finished, else nothing."""
        done = subprocess.run(
            ["flwr", "list", "consortium", "--format", "json"],
            env=self.environment(self.operator),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=PATIENCE,
        )
        # A SuperLink that is busy lists nothing; it is asked again.
        runs = json.loads(done.stdout).get("runs")
        if runs is None:
            return None
        found = {run["run-id"]: run["status"] for run in runs}
        states = [found[number] for number in numbers]
        return states if all(s.startswith("finished") for s in states) else None

    def log(self, number):
        return self.sh("watch", self.operator, RUN=number)


@pytest.fixture(scope="module")
def clients():
    fed = make_federation(3, 600, 3, alpha=None, dtype=np.float64, random_state=0)
    return dict(zip(SITES, fed.clients, strict=True))


def histogram(clients):
    return ScoreHistogram.fit(clients, classes=CLASSES, kind="top")


def same_counts(path, expected):
    found = ScoreHistogram.from_json(path.read_text())
    assert found.n_clients_ == 3
    same_counts_of(found, expected)


def digest(path):
    return sha256(path.read_bytes()).hexdigest()


def n_received(folder, number):
    """Messages of a run that a SuperNode has received, without the greeting."""
    text = (folder / "supernode.log").read_text(errors="replace")
    return len(re.findall(rf"\[RUN {number}\]\n.*Receiving: train\.skfedcal", text))


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_three_sites_then_one_is_killed(clients, tmp_path):
    out = tmp_path / "operator"
    with Deployment(tmp_path, clients) as dep:
        dep.set_up(min_clients=2)
        stranger = dep.make_site("rome")
        dep.sh("site", stranger, SITE="rome", DATA=str(stranger / "rows.npz"))
        unknown = dep.start("supernode", stranger, NODE_PORT=free_port())

        temperature = dep.run(
            "run-calibrator",
            {
                "ledger": "''",
                "checkpoint": "''",
                "rounds": 2,
                "options": "'{\"random_state\": 0}'",
            },
        )
        counts = dep.run("run-histogram", {})
        forbidden = dep.run("run-histogram", {"method": "'FedBinCalibrator'",
                                              "options": "'{}'",
                                              "out": f"'{out}/bins.json'"})  # fmt: skip
        texts = out / "temperature.txt", out / "histogram.txt"
        assert dep.finished([temperature, counts, forbidden], *texts) == [
            "finished:completed",
            "finished:completed",
            "finished:failed",
        ], dep.log(temperature) + dep.log(counts)

        # The results are those of one process with the same clients.
        same_counts(out / "histogram.json", histogram(clients))
        with pytest.warns(SimulatedPrivacyWarning):
            here = FedTempCalibrator(
                privacy=skfedcal.CentralDP(1.0, unit="example"),
                classes=CLASSES,
                random_state=0,
                runner=skfedcal.FederatedRunner(n_rounds=2),
            ).fit(clients)
        # The check before a run, keys and shares of both rounds, and two exchanges for
        # each of them.
        assert n_received(dep.folders["oslo"], temperature) == 1 + 2 + 2 * 2
        assert skfedcal.load(out / "temperature.json").temperature_ == here.temperature_
        assert dep.sh("use", out).strip().endswith(str(here.temperature_))
        # What the policies of the sites do not allow is not answered.
        assert not (out / "bins.json").exists()
        assert "'lyon' refused: its policy (methods)" in dep.log(forbidden)
        # A node that nobody registered is not let in.
        assert unknown.wait(120) not in (0, None)

        # One run can do without a site, the other cannot.
        few = {"min-nodes": 2, "sites": "'berlin,lyon,oslo'", "timeout": TIMEOUT}
        counts = dep.run("run-histogram", {**few, "out": f"'{out}/two.json'"})
        needy = dep.run(
            "run-calibrator",
            {
                "checkpoint": "''",
                "timeout": TIMEOUT,
                "wait": 300,
                "out": f"'{out}/none.json'",
            },
        )
        oslo = dep.folders["oslo"]
        until("the masked exchange", lambda: n_received(oslo, counts) >= 4, pause=0.05)
        dep.end(dep.nodes["oslo"], signal.SIGKILL)
        assert dep.finished([counts, needy], out / "two.txt") == [
            "finished:completed",
            "finished:failed",
        ], dep.log(counts) + dep.log(needy)
        rest = {name: rows for name, rows in clients.items() if name != "oslo"}
        same_counts(out / "two.json", histogram(rest))
        assert "'oslo' did not answer" in dep.log(counts)
        assert not (out / "none.json").exists()
        text = dep.log(needy)
        assert "NotEnoughClientsError" in text and "'oslo'" in text
        # What was debited stays debited, once.
        ledger = PrivacyLedger(out / "ledger.jsonl", budget=(3.0, 1e-5))
        assert (len(ledger), round(ledger.spent(), 6)) == (1, 1.0)


def test_the_commands_of_the_readme_work(tmp_path):
    text = README.read_text(encoding="utf-8").partition("## Real sites")[2]
    install, *rest = re.search(r"```bash\n(.*?)```", text, re.DOTALL)[1].splitlines()
    assert install == 'pip install ".[flower]"'
    assert len(rest) == 2
    with Deployment(tmp_path, {}) as dep:
        done = subprocess.run(
            ["bash", "-euc", "\n".join(rest)],
            cwd=tmp_path,
            env=dep.environment(tmp_path),
            stdout=subprocess.PIPE,
            timeout=PATIENCE,
            check=True,
            text=True,
        )
    assert "FedAutoCalibrator" in done.stdout
    assert "one example among 9600 at 3 sites" in done.stdout
    found = re.search(
        r"log loss (\S+) -> (\S+) at the sites, 95 % interval of the difference "
        r"(\S+) to (\S+)$",
        done.stdout.strip(),
    )
    before, after, low, high = map(float, found.groups())
    # Without noise it is 1.05 -> .63; noise has a standard error of .03.
    assert low < after - before < high < 0
    assert 0.7 < before < 1.4 and -0.75 < after - before < -0.1


@pytest.mark.parametrize("secure", [True, False], ids=["masked", "plain"])
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_the_simulation_gives_the_bits_of_one_process(secure, tmp_path):
    script = block("simulation")
    assert "secure=True" in script
    script = script.replace("secure=True", f"secure={secure}")
    (tmp_path / "simulate.py").write_text(script)
    more = {}
    if not secure:
        (tmp_path / "site.toml").write_text("allow-plain = true\n")
        more = {"SKFEDCAL_SITE_CONFIG": str(tmp_path / "site.toml")}
    # Ray has sockets in its folder, whose paths may be 107 bytes long.
    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as ray,
        Deployment(tmp_path, {}) as dep,
    ):
        process = dep.start("simulate", tmp_path, RAY_TMPDIR=ray, **more)
        code = process.wait(PATIENCE / 2)
    assert code == 0, (tmp_path / "simulate.log").read_text()

    clients = make_federation(10, 2000, 3, random_state=0).clients
    expected = ScoreHistogram.fit(clients, classes=CLASSES, kind="top").to_json()
    assert digest(tmp_path / "histogram.json") == sha256(expected.encode()).hexdigest()
    with pytest.warns(SimulatedPrivacyWarning):
        here = FedTempCalibrator(eps=1.0, classes=CLASSES, random_state=0).fit(clients)
    there = skfedcal.load(tmp_path / "temperature.json")
    assert there.temperature_ == here.temperature_
    assert (there.n_clients_, there.n_rounds_) == (here.n_clients_, here.n_rounds_)


def test_a_superlink_is_killed_and_the_run_resumed(clients, tmp_path):
    out = tmp_path / "operator"

    def n_released():
        try:
            with np.load(out / "temperature.npz") as file:
                return len(json.loads(str(file["header"]))["records"])
        except OSError:
            return 0

    with Deployment(tmp_path, clients) as dep:
        dep.set_up()
        superlink = dep.groups[0]
        dep.run("run-calibrator", {"rounds": 2})
        until("the first release", lambda: n_released() >= 1, pause=0.05)
        dep.end(superlink, signal.SIGKILL)
        for pid in dep.processes(out):
            os.kill(pid, signal.SIGKILL)
        assert n_released() == 1
        first = dict(np.load(out / "temperature.npz"))
        accounts = [out, *dep.folders.values()]
        paid = [(folder / "ledger.jsonl").read_text() for folder in accounts]
        assert [text.count("\n") for text in paid] == [1, 1, 1, 1]

        dep.start_superlink()
        again = dep.run("resume", {"rounds": 2, "wait": 300})
        texts = [out / "temperature.txt"]
        assert dep.finished([again], *texts) == ["finished:completed"], dep.log(again)
        last = dict(np.load(out / "temperature.npz"))
        # The first release was kept, and nobody paid again.
        assert n_released() == 2
        for name in first:
            if name.startswith("total.0."):
                np.testing.assert_array_equal(last[name], first[name], strict=True)
        now = [(folder / "ledger.jsonl").read_text() for folder in accounts]
        assert now == paid
        assert skfedcal.load(out / "temperature.json").n_rounds_ == 2


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.FaultyClientWarning")
def test_live_sites_by_the_guide(clients, tmp_path, monkeypatch):
    out = tmp_path / "operator"
    logits, labels = clients["oslo"]
    with Deployment(tmp_path, clients) as dep:
        dep.set_up(min_clients=2, live=True)
        for name, value in dep.environment(out).items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(out)
        files = {"root_certificates": "ca.crt", "secret": "superexec.secret"}
        address = f"flower://localhost:{dep.shared['PORT']}"
        options = {"sites": SITES, "n_rows": 600, "timeout": 12}

        # Who has the public certificate, and not the secret, is not the server.
        Path("guessed").write_text("not the secret")
        for wrong in ({"secret": None}, {"secret": "guessed"}):
            with pytest.raises(ConnectionError, match="refused the run"):
                connect(address, **{**files, **wrong}, **options).__enter__()

        # What the guide says, with a seed so that it can be compared.
        assert "would answer" in dep.sh("live-check", out)
        script = block("live-connect")
        assert "classes=[0, 1, 2],\n" in script
        seeded = script.replace("[0, 1, 2],\n", "[0, 1, 2],\n        random_state=0,\n")
        exec(compile(seeded, "guide", "exec"), {})
        here = FedTempCalibrator(
            privacy=skfedcal.CentralDP(1.0, unit="example"),
            classes=CLASSES,
            random_state=0,
        ).fit(clients)
        assert skfedcal.load("live.json").temperature_ == here.temperature_
        assert len(here.history_) == 5
        lines = (dep.folders["oslo"] / "requests.jsonl").read_text().splitlines()
        paid = [line for line in map(json.loads, lines) if line["eps"]]
        assert len(paid) == 1 and 0.9 < paid[0]["spent"] < 1.1

        # An altered app does nothing at a live site.
        app = out / "calibration"
        trap = tmp_path / "trap"
        code = f"open({str(trap)!r}, 'w')\n{(app / 'client.py').read_text()}"
        (app / "client.py").write_text(code)
        oslo = dep.folders["oslo"]
        log = oslo / "requests.jsonl"
        with connect(address, **files, **options, app=app) as sites:
            fit = {"classes": CLASSES, "kind": "top", "runner": MASKED}
            same = ScoreHistogram.fit(sites, **fit)
            assert not trap.exists() and not list(tmp_path.rglob("fab*"))
            # kill -9 in the middle of a round, which goes on without the site.
            n_lines = len(log.read_text().splitlines())
            killer = Thread(target=kill_after, args=(dep, log, n_lines))
            killer.start()
            two = ScoreHistogram.fit(sites, **fit)
            killer.join()
        same_counts_of(same, histogram(clients))
        assert [f.history_[-1].n_clients for f in (same, two)] == [3, 2]
        rest = {name: rows for name, rows in clients.items() if name != "oslo"}
        same_counts_of(two, histogram(rest))

        # It comes back at once, with rows that do not fit, which only it may learn.
        np.savez(oslo / "rows.npz", logits=logits * np.nan, labels=labels)
        dep.nodes["oslo"] = dep.start("live-start", oslo)
        with connect(address, **files, **options, wait=30) as sites:
            zeros = ScoreHistogram.fit(sites, **fit)
        assert zeros.history_[-1].n_clients == 3
        same_counts_of(zeros, histogram(rest))
        codes = {}
        for name, process in dep.nodes.items():
            os.killpg(process.pid, signal.SIGTERM)
            codes[name] = process.wait(60)
        assert codes == {"berlin": 0, "lyon": 0, "oslo": 3}


def test_a_signed_result_by_the_guide(tmp_path, monkeypatch):
    fed = make_federation(3, 12_000, 3, alpha=None, temperature=3.6, random_state=0)
    clients = dict(zip(SITES, fed.clients, strict=True))
    out = tmp_path / "operator"
    with Deployment(tmp_path, clients) as dep:
        dep.set_up(live=True, operator=True, noise="central")
        for name in ("HOST", "PORT"):
            monkeypatch.setenv(name, dep.shared[name])
        monkeypatch.chdir(out)
        exec(compile(block("live-result"), "guide", "exec"), {})
        text = dep.sh("verify", out)
        assert "one example among 9600 at 3 sites" in text
        assert re.search(r"log loss \S+ -> \S+ at the sites, 95 % interval", text)
        # The operator's key is asked for where the sites' rosters name him.
        checked = dep.sh("check", out)
        assert "would answer" in checked and "expected gain" in checked
        exec(compile(block("use-result"), "guide", "exec"), {})
        assert skfedcal.load("calibrator.json").temperature_ > 2
        for name, folder in dep.folders.items():
            shutil.copy(out / "result.json", folder)
            assert "ledger ledger.jsonl" in dep.sh("verify-site", folder, SITE=name)
        found = json.loads((out / "result.json").read_text())
        found["content"]["gain"]["after"] -= 0.1
        (out / "result.json").write_text(json.dumps(found))
        with pytest.raises(AssertionError, match="was changed after it was signed"):
            dep.sh("verify", out)


def kill_after(dep, log, n_lines):
    """Kill a site between its shares and its answer."""

    def shared():
        lines = map(json.loads, log.read_text().splitlines()[n_lines:])
        return any(line["kind"] == "shares" for line in lines)

    until("the shares", shared, 120, 0.02)
    dep.end(dep.nodes["oslo"], signal.SIGKILL)


def same_counts_of(found, expected):
    for a, b in zip(found.totals, expected.totals, strict=True):
        np.testing.assert_array_equal(a, b, strict=True)
