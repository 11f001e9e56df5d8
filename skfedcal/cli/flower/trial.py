"""Run an app on this machine: a SuperLink, and a process for each site."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from skfedcal.cli.flower.project import OPERATOR, ROSTER, load_server, make_keys
from skfedcal.exceptions import NotEnoughClientsError

_START_SECONDS = 120.0
_END_SECONDS = 15.0
N_SITES = 3
# Rows of a site, and how overconfident and how good the classifier is.
_TOY_ROWS, _TOY_TEMPERATURE, _TOY_SEPARATION = 4000, 3.6, 0.2


class TrialError(OSError):
    """A process of the trial failed; the text has the end of its log."""


def run_trial(
    app: str,
    data: Mapping[str, Path],
    folder: Path,
    out: Path,
    config: Mapping[str, Any],
) -> str:
    """Run an app over live sites with these files, and give what it wrote as text.

    app: Folder of the app.
    data: File of each site.
    folder: Folder for everything: keys, ledgers, logs and the home of Flower.
    out: JSON file for the result.
    config: Run config.
    Raises TrialError: If something fails.
    """
    from skfedcal.federation import connect

    environment = flower_environment(folder / "flower")
    make_keys(list(data), [], str(folder), operator=True)
    secret = folder / "superexec.secret"
    secret.write_bytes(secrets.token_bytes(32))
    config = {**config, **_own_settings(data, folder, out)}
    server = load_server(app)
    isolation = ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    with ExitStack() as nodes:
        nodes.enter_context(_ended_by_signals())
        address = nodes.enter_context(superlink(folder, environment, isolation))
        for name, path in data.items():
            file = write_site(folder, address, name, path, config)
            command = [sys.executable, "-m", "skfedcal", "site", str(file), "--quiet"]
            log = f"{name}.log"
            nodes.enter_context(processes(command, folder, environment, log))
        sites = connect(
            f"flower://{address}",
            insecure=True,
            secret=secret,
            sites=list(data),
            min_sites=len(data),
            n_rows=config["n-rows"] or None,
            operator=server.operator(config),
            wait=_START_SECONDS,
        )
        try:
            with sites as remote:
                server.write(server.ask(remote, config), config)
        except NotEnoughClientsError as error:
            logs = [_end_of(folder / f"{name}.log") for name in data]
            raise TrialError(f"{error} {logs[0]}") from error
    return out.with_suffix(".txt").read_text().rstrip()


def run_stock_trial(
    app: str,
    data: Mapping[str, Path],
    folder: Path,
    out: Path,
    settings: Sequence[str] = (),
) -> str:
    """Do the same by ``flwr run`` and SuperNodes, which run the client app.

    settings: Entries of the run config, as ``key=value``.
    """
    environment = flower_environment(folder / "flower")
    make_keys(list(data), [], str(folder), operator=True)
    with ExitStack() as nodes:
        nodes.enter_context(_ended_by_signals())
        address = nodes.enter_context(superlink(folder, environment))
        for name, path in data.items():
            command = node_command(folder, address, name, path)
            nodes.enter_context(processes(command, folder, environment))
        own = _own_settings(data, folder, out)
        config = [*settings, *(f"{key}={json.dumps(own[key])}" for key in own)]
        command = [program("flwr"), "run", app, "trial", "--stream"]
        for entry in config:
            command += ["--run-config", entry]
        log = folder / "run.log"
        with open(log, "wb") as stream:
            subprocess.run(
                command,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment,
                check=False,
            )
    text = out.with_suffix(".txt")
    if not text.exists():
        raise TrialError(f"The run wrote no result. {_end_of(log)}")
    return text.read_text().rstrip()


def _own_settings(data: Iterable[str], folder: Path, out: Path) -> dict[str, str]:
    """Entries of the run config that a trial sets."""
    return {
        "out": str(out),
        "sites": ",".join(data),
        "operator-key": str(folder / OPERATOR),
        "roster": str(folder / ROSTER),
    }


def write_site(
    folder: Path, address: str, name: str, path: Path, config: Mapping[str, Any]
) -> Path:
    """File of a live site, with a ledger of its own."""
    key, ledger = folder / f"{name}.node", folder / f"{name}.jsonl"
    _make_node_key(key)
    ledger.touch()
    entries = {
        "client-id": name,
        "data-path": str(path.resolve()),
        "site-key": str(folder / f"{name}.key"),
        "roster": str(folder / ROSTER),
        "ledger": str(ledger),
        # Twice what the run may spend: refusals are for real sites.
        "max-eps": 2 * max(float(config["eps"]), 0.1),
        "max-delta": 1e-4,
        "noise": "none",
        "flower": address,
        "insecure": True,
        "node-key": str(key),
        "ready": True,
    }
    file = folder / f"{name}.toml"
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in entries.items()]
    file.write_text("".join(lines))
    return file


def _make_node_key(path: Path) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = ec.generate_private_key(ec.SECP384R1())
    raw = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    path.write_bytes(raw)
    path.chmod(0o600)


def toy_data(folder: Path, config: Mapping[str, Any]) -> dict[str, Path]:
    """Files of three sites that fit a run config: an overconfident classifier."""
    import numpy as np

    from skfedcal.clients import make_federation

    classes = np.asarray(json.loads(config["classes"]))
    if config["input-type"] != "logits":
        raise ValueError(
            f"input-type={config['input-type']!r}: pass the files of sites; without "
            "them logits are made up."
        )
    fed = make_federation(
        N_SITES,
        _TOY_ROWS * N_SITES,
        len(classes),
        temperature=_TOY_TEMPERATURE,
        separation=_TOY_SEPARATION,
        alpha=None,
        random_state=0,
    )
    paths = {}
    for i, (logits, labels) in enumerate(fed.clients):
        name = f"site-{i}"
        paths[name] = folder / f"{name}.npz"
        np.savez(paths[name], logits=logits, labels=classes[labels])
    return paths


def announced_rows(
    config: Mapping[str, Any], data: Mapping[str, Path]
) -> dict[str, int]:
    """Entry of the run config with the number of rows, where it needs one."""
    import numpy as np

    if config["unit"] != "example" or config["n-rows"]:
        return {}
    n_rows = 0
    for path in data.values():
        with np.load(path) as file:
            n_rows += len(file["labels"])
    return {"n-rows": n_rows}


def flower_environment(home: Path) -> dict[str, str]:
    """Environment in which Flower sends no telemetry and looks for no updates."""
    home.mkdir(parents=True, exist_ok=True)
    # Commands of Flower start others by name, also where no environment is active.
    path = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }


@contextmanager
def superlink(
    folder: Path, environment: Mapping[str, str], options: Sequence[str] = ()
) -> Iterator[str]:
    """Address of a SuperLink that listens while the block runs."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    Path(environment["FLWR_HOME"], "config.toml").write_text(
        f'[superlink.trial]\naddress = "{address}"\ninsecure = true\n'
    )
    command = [program("flower-superlink"), "--insecure"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--disable-runtime-dependency-installation", *options]
    with processes(command, folder, environment) as process:
        end = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > end:
                log = folder / "flower-superlink.log"
                raise TrialError(f"The SuperLink did not start. {_end_of(log)}")
            time.sleep(0.2)
        yield address


def node_command(folder: Path, address: str, name: str, path: Path) -> list[str]:
    """Command of the SuperNode of a site."""
    entries = {
        "client-id": name,
        "data-path": str(path.resolve()),
        "site-key": str(folder / f"{name}.key"),
        "roster": str(folder / ROSTER),
    }
    config = " ".join(f"{key}={json.dumps(value)}" for key, value in entries.items())
    command = [program("flower-supernode"), "--insecure", "--superlink", address]
    command += ["--host", "127.0.0.1", "--port", str(free_port())]
    return [*command, "--node-config", config]


@contextmanager
def processes(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    log_name: str = "",
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its children, which end with the block."""
    log = folder / (log_name or f"{Path(command[0]).name}.log")
    with open(log, "ab") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(_END_SECONDS)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End as by Ctrl-C where a terminal closes or the process is to end."""

    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    old = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def program(name: str) -> str:
    """Path of a command of Flower, by preference that of this environment."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ImportError(
            f'The command {name!r} was not found: pip install "skfedcal[flower]".'
        )
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _end_of(log: Path) -> str:
    """Error that a log tells of, or its last lines."""
    text = log.read_text(errors="replace") if log.exists() else ""
    errors = re.findall(r"^[\w.]*(?:Error|Exception): .*", text, re.MULTILINE)
    # The sites that did not answer, with reasons, come before the error.
    faults = re.findall(r"FaultyClientWarning: .*", text)
    lines = [*faults[-1:], *errors[-1:]]
    lines = lines or [line for line in text.splitlines() if line.strip()][-8:]
    return "Its log ends with: " + " | ".join(lines)
