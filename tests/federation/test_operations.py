"""Proxy, services and containers: files that parse and say what the guide says."""

import configparser
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from skfedcal import __version__
from skfedcal.cli import main
from skfedcal.cli.flower.project import OPERATIONS
from skfedcal.federation import SiteKey
from skfedcal.privacy import PureEvent
from skfedcal.privacy.site_ledger import SiteLedger

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "operations.rst"
# What a FleetNode asks, and what a stock SuperNode asks besides.
LIVE = {"activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages",
        "push-messages", "pull-object", "push-object",
        "confirm-message-received"}  # fmt: skip
STOCK = {"get-run", "get-fab"}


@pytest.fixture
def folder(tmp_path, capsys):
    assert main(["flower", "init", str(tmp_path / "ops"), "--operations"]) == 0
    assert main(["flower", "init", str(tmp_path / "ops"), "--operations"]) == 4
    assert "exists" in capsys.readouterr().err
    return tmp_path / "ops"


def test_all_files_are_written_and_name_this_version(folder):
    assert {path.name for path in folder.iterdir()} == set(OPERATIONS)
    for path in folder.iterdir():
        assert "{{" not in path.read_text()
    assert f"skfedcal[flower]=={__version__}" in (folder / "Dockerfile").read_text()


def shown(text):
    """Pattern of the one location of nginx.conf that is passed on."""
    (pattern,) = re.findall(r'location ~ "(\S+)" \{', text)
    return re.compile(pattern)


def test_the_proxy_shows_paths_of_nodes_only(folder):
    pytest.importorskip("flwr")
    text = (folder / "nginx.conf").read_text()
    pattern = shown(text)
    paths = set()
    for kind in ("control", "fleet", "runtime"):
        package = importlib.import_module(f"flwr.superlink.routers.{kind}")
        for module in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{package.__name__}.{module.name}")
            for name in ("router", "control_router", "runtime_router"):
                routes = getattr(getattr(module, name, None), "routes", ())
                paths |= {route.path for route in routes if hasattr(route, "path")}
    clients = {
        "control": "flwr.supercore.control.control_http_client",
        "fleet": "flwr.supernode.fleet_http_client",
        "runtime": "flwr.supercore.runtime.runtime_http_client",
    }
    for kind, name in clients.items():
        source = Path(importlib.import_module(name).__file__).read_text()
        found = set(re.findall(rf'"(/v1/{kind}/[a-z-]+)"', source))
        assert found
        paths |= found
    passed = {path for path in paths if pattern.fullmatch(path)}
    assert passed == {f"/v1/fleet/{name}" for name in LIVE | STOCK}
    assert "/v1/control/start-run" in paths and "/v1/runtime/acquire-task" in paths
    for path in ("/v1/fleet/pull-messages/../../control/start-run",
                 "/v1/fleet/register-node", "/", "/v1/fleet/",
                 "/v1/fleet/pull-messages?x"):  # fmt: skip
        assert not pattern.fullmatch(path)
    # What is passed on is the name in the list, and nothing else of the request.
    assert re.findall(r"proxy_pass (\S+);", text) == ["https://superlink/v1/fleet/$1"]
    assert re.findall(r"\n\s+server (\S+);", text) == ["127.0.0.1:8000"]
    rest = text[text.index("location / {") :]
    assert "return 404;" in rest and "proxy_pass" not in rest
    depth = 0
    for char in re.sub(r'"[^"]*"|#.*', "", text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        assert depth >= 0
    assert depth == 0


def unit(path):
    # LoadCredential stands twice.
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str
    parser.read_string(path.read_text())
    return parser


LOOPBACK = ("--host 127.0.0.1", "--port 8000", "--enable-supernode-auth",
            "--isolation process", "--superexec-auth-secret-file")  # fmt: skip


def test_services_bind_the_superlink_to_loopback(folder):
    service = unit(folder / "flower-superlink.service")["Service"]
    assert all(option in service["ExecStart"] for option in LOOPBACK)
    assert service["IPAddressDeny"] == "any"
    site = unit(folder / "skfedcal-site.service")["Service"]
    assert site["ExecStart"].endswith("skfedcal site /etc/skfedcal/site.toml")
    assert site["RestartPreventExitStatus"] == "2 3 4" and "HUP" in site["ExecReload"]
    for name in ("flower-superlink", "skfedcal-site"):
        one = unit(folder / f"{name}.service")["Service"]
        assert one["ProtectSystem"] == "strict" and one["NoNewPrivileges"] == "yes"
    if shutil.which("systemd-analyze"):
        done = subprocess.run(
            ["systemd-analyze", "verify", *map(str, folder.glob("*.service"))],
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [x for x in done.stderr.splitlines() if ".service" in x]
        # The programs are not installed there; anything else would be a wrong line.
        assert all("is not executable" in line for line in lines), done.stderr


def test_containers_publish_the_proxy_only(folder):
    yaml = pytest.importorskip("yaml")
    operator = yaml.safe_load((folder / "operator.compose.yaml").read_text())
    services = operator["services"]
    assert set(services) == {"superlink", "proxy", "driver"}
    command = " ".join(services["superlink"]["command"])
    assert all(option.replace(" ", "=") in command for option in LOOPBACK)
    # 8000 stays inside; driver and proxy share the network of the SuperLink.
    assert services["superlink"]["ports"] == ["8443:8443"]
    for name in ("proxy", "driver"):
        assert services[name]["network_mode"] == "service:superlink"
        assert "ports" not in services[name]
    assert "superexec" not in str(services["proxy"])
    site = yaml.safe_load((folder / "site.compose.yaml").read_text())["services"]
    assert set(site) == {"site"} and "ports" not in site["site"]
    writable = [v for v in site["site"]["volumes"] if not v.endswith(":ro")]
    assert writable == ["./state:/var/lib/skfedcal"]
    for service in (services["superlink"], services["driver"], site["site"]):
        assert service["cap_drop"] == ["ALL"]


def test_the_guide_has_the_unit_of_a_site(folder):
    if not GUIDE.exists():
        pytest.skip("no docs in this copy")
    text = GUIDE.read_text(encoding="utf-8")
    found = re.search(r"\.\. literalinclude:: (\S+skfedcal-site\.service)", text)
    there = (GUIDE.parent / found[1]).resolve()
    assert there.read_text() == (folder / "skfedcal-site.service").read_text()


def test_the_version_of_flower_in_the_image_is_one_of_live_sites():
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("no project file in this copy")
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert any(entry.startswith("flwr>=1.40") for entry in extras["flower"])


def guide_block(name):
    text = GUIDE.read_text(encoding="utf-8")
    found = re.search(rf"   :name: deploy-{name}\n\n((?:   .*\n|\n)+)", text)
    return "\n".join(line[3:] for line in found[1].splitlines()).strip()


def test_the_procedures_of_the_guide(tmp_path, monkeypatch, capsys):
    if not GUIDE.exists():
        pytest.skip("no docs in this copy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SITE", "hospital-a")

    def run(name):
        words = shlex.split(os.path.expandvars(guide_block(name)))
        assert words.pop(0) == "skfedcal"
        assert main(words) == 0
        return capsys.readouterr().out

    run("operations")
    assert (tmp_path / "operations" / "nginx.conf").exists()
    names = ["hospital-a", "hospital-b", "hospital-c"]
    assert main(["flower", "keys", *names]) == 0
    assert main(["flower", "keys", "hospital-d", "--dir", "new"]) == 0
    Path("received").mkdir()
    first = Path("roster.json").read_bytes()
    assert "hospital-c leaves" in run("members")
    Path("roster.json").replace("received/roster.json")
    Path("roster.json").write_bytes(first)
    assert "hospital-d enters" in run("install")
    key = SiteKey.load("hospital-a.key")
    ledger = SiteLedger("ledger.jsonl", budget=(3.0, 1e-5), signed=key.signed)
    ledger.debit(PureEvent(2.0), label="first study")
    assert "raised" in run("raise")
    assert SiteLedger("ledger.jsonl", signed=key.signed).budgets()[-1] == (5.0, 1e-5)
