"""A masked private fit over live sites, a real SuperLink, TLS and node authentication.

python -m benchmarks.bench_live_sites --sites 3 30

All processes run on this machine: the SuperLink as the deployment guide starts it (but
in memory without --database), sites as threads of a few processes (ten in each), and
the driver here. Beside the time on the clock stands the CPU time of each part, which
depends less on what else runs. The temperature must be that of the same fit in one
process, to the last bit.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks._harness import (  # isort: skip  (sets the number of threads)
    arguments,
    optional,
    print_table,
    write_json,
)

import numpy as np

from skfedcal import CentralDP, FederatedRunner, FedTempCalibrator, make_federation

Rows = list[dict[str, Any]]
PER_PROCESS, N_ROWS, N_ROUNDS = 10, 200, 5
NEEDED = ("cryptography", "flwr.supernode.fleet_http_client")


def main() -> None:
    """Run fits of some sizes, or be a process of sites."""
    parser = arguments("live_sites", __doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 30], metavar="N")
    parser.add_argument("--quick", action="store_true", help="three sites only")
    parser.add_argument("--database", action="store_true", help="of the SuperLink")
    parser.add_argument("--serve", nargs="+", metavar="FILE", help="be these sites")
    args = parser.parse_args()
    if args.serve:
        serve_all(args.serve)
        return
    rows = questions(0.0, quick=args.quick, sizes=args.sites, database=args.database)
    print_table(rows)
    write_json(args.out, rows)


def questions(
    seconds: float,  # noqa: ARG001
    *,
    quick: bool = False,
    sizes: list[int] | None = None,
    database: bool = False,
) -> Rows:
    """One row for each number of sites."""
    if any(optional(name) is None for name in NEEDED):
        return []
    return [measure(n, database) for n in ([3] if quick else sizes or [3, 30])]


def serve_all(files: list[str]) -> None:
    """Be some sites until a signal comes."""
    from skfedcal.federation import live

    stops = [live.Stop() for _ in files]

    def end(*_: object) -> None:
        for stop in stops:
            stop.end()

    signal.signal(signal.SIGTERM, end)
    threads = []
    for file, stop in zip(files, stops, strict=True):
        site = live.LiveSite(file)

        def node(site: Any = site) -> Any:
            return live.fleet_node(site.config)

        threads.append(threading.Thread(target=live.serve, args=(site, node, stop)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def measure(n_sites: int, database: bool) -> dict[str, Any]:
    """Figures of one fit."""
    made = make_federation(
        n_sites, N_ROWS * n_sites, 2, alpha=None, dtype=np.float64, random_state=0
    )
    names = [f"site-{i:02d}" for i in range(n_sites)]
    clients = dict(zip(names, made.clients, strict=True))
    with (
        tempfile.TemporaryDirectory(prefix="skfedcal-") as folder,
        Deployment(Path(folder), clients, database) as deployment,
    ):
        row, found = deployment.fit()
    expected = calibrator(secure=False).fit(clients).temperature_
    if found != expected:
        raise AssertionError(f"{found} over sites, {expected} in one process")
    return row


def calibrator(secure: bool) -> FedTempCalibrator:
    """The fit that is timed; a seed makes it comparable."""
    warnings.simplefilter("ignore")
    return FedTempCalibrator(
        privacy=CentralDP(1.0, unit="example"),
        classes=[0, 1],
        random_state=0,
        runner=FederatedRunner(n_rounds=N_ROUNDS, secure=secure),
    )


class Deployment:
    """A SuperLink and processes of sites, each with keys, roster and ledger."""

    def __init__(self, root: Path, clients: dict[str, Any], database: bool) -> None:
        self.root, self.clients = root, clients
        self.processes: dict[str, list[subprocess.Popen[bytes]]] = {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"localhost:{probe.getsockname()[1]}"
        make_certificate(root)
        (root / "secret").write_bytes(os.urandom(32))
        self._start_superlink(database)
        self._make_sites()

    def __enter__(self) -> "Deployment":
        return self

    def __exit__(self, *_: object) -> None:
        for process in (p for group in self.processes.values() for p in group):
            process.terminate()
        for process in (p for group in self.processes.values() for p in group):
            process.wait(60)

    def _start(self, part: str, command: list[str]) -> None:
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
        process = subprocess.Popen(
            command,
            env={**os.environ, **quiet, "FLWR_HOME": str(self.root / "flower")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.processes.setdefault(part, []).append(process)

    def _start_superlink(self, database: bool) -> None:
        command = [
            str(Path(sys.executable).with_name("flower-superlink")),
            *("--host", "127.0.0.1", "--port", self.address.partition(":")[2]),
            *("--ssl-ca-certfile", str(self.root / "ca.crt")),
            *("--ssl-certfile", str(self.root / "ca.crt")),
            *("--ssl-keyfile", str(self.root / "server.key")),
            "--enable-supernode-auth",
            "--disable-runtime-dependency-installation",
            *("--isolation", "process"),
            *("--superexec-auth-secret-file", str(self.root / "secret")),
        ]
        if database:
            command += ["--database", str(self.root / "superlink.db")]
        self._start("SuperLink", command)
        port = int(self.address.partition(":")[2])
        for _ in range(1200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError("the SuperLink does not listen")

    def _make_sites(self) -> None:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.control.control_http_client import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

        from skfedcal.cli.flower.project import make_keys

        make_keys(list(self.clients), [], str(self.root), operator=True)
        ca = (self.root / "ca.crt").read_bytes()
        chain = [RuntimeVersionHttpInterceptor("flwr CLI")]
        link = ControlHttpClient.from_server_address(self.address, False, ca, chain)
        with link:
            for name, rows in self.clients.items():
                key = ec.generate_private_key(ec.SECP384R1())
                (self.root / f"{name}.node").write_bytes(
                    key.private_bytes(
                        serialization.Encoding.PEM,
                        serialization.PrivateFormat.OpenSSH,
                        serialization.NoEncryption(),
                    )
                )
                public = public_key_to_bytes(key.public_key())
                link.RegisterNode(RegisterNodeRequest(public_key=public))
                self._write_site(name, rows)
        files = [str(self.root / f"{name}.toml") for name in self.clients]
        script = [sys.executable, "-m", "benchmarks.bench_live_sites", "--serve"]
        for i in range(0, len(files), PER_PROCESS):
            self._start("sites", [*script, *files[i : i + PER_PROCESS]])

    def _write_site(self, name: str, rows: Any) -> None:
        np.savez(self.root / f"{name}.npz", logits=rows[0], labels=rows[1])
        (self.root / f"{name}.jsonl").touch()
        entries = {
            "client-id": name,
            "data-path": str(self.root / f"{name}.npz"),
            "site-key": str(self.root / f"{name}.key"),
            "roster": str(self.root / "roster.json"),
            "ledger": str(self.root / f"{name}.jsonl"),
            "max-eps": 9.0,
            "max-delta": 1e-5,
            "noise": "central",
            "classes": [0, 1],
            "flower": self.address,
            "root-certificates": str(self.root / "ca.crt"),
            "node-key": str(self.root / f"{name}.node"),
        }
        lines = [f"{key} = {json.dumps(value)}" for key, value in entries.items()]
        (self.root / f"{name}.toml").write_text("\n".join(lines))

    def fit(self) -> tuple[dict[str, Any], float]:
        """Figures and temperature of a masked fit."""
        from skfedcal.federation import Operator, connect

        operator = Operator.load(self.root / "operator.key", self.root / "roster.json")
        names, started = list(self.clients), time.perf_counter()
        with connect(
            f"flower://{self.address}",
            root_certificates=self.root / "ca.crt",
            secret=self.root / "secret",
            sites=names,
            min_sites=len(names),
            n_rows=N_ROWS * len(names),
            wait=300,
            timeout=300,
            operator=operator,
        ) as sites:
            connected = time.perf_counter()
            before, own = self._cpu(), time.process_time()
            model = calibrator(secure=True).fit(sites)
            wall, own = time.perf_counter() - connected, time.process_time() - own
            spent = {part: self._cpu()[part] - before[part] for part in before}
        debits = {
            len((self.root / f"{name}.jsonl").read_text().splitlines())
            for name in names
        }
        if debits != {1} or model.n_clients_ != len(names):
            raise AssertionError(f"{debits} debits, {model.n_clients_} sites")
        row = {
            "question": f"masked FedTemp(eps=1), {N_ROUNDS} rounds, {len(names)} sites",
            "seconds": wall,
            "connect": connected - started,
            "SuperLink cpu": spent["SuperLink"],
            "sites cpu": spent["sites"],
            "driver cpu": own,
            "load": os.getloadavg()[0],
        }
        return row, float(model.temperature_)

    def _cpu(self) -> dict[str, float]:
        """CPU seconds of all processes of each part, with their children."""
        tick = os.sysconf("SC_CLK_TCK")
        out = {}
        for part, group in self.processes.items():
            fields = [
                Path(f"/proc/{p.pid}/stat").read_text().rpartition(")")[2].split()
                for p in group
            ]
            out[part] = sum(int(n) for entry in fields for n in entry[11:15]) / tick
        return out


def make_certificate(folder: Path) -> None:
    """Write a certificate of localhost that is its own authority, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(now - timedelta(days=1))
    builder = builder.not_valid_after(now + timedelta(days=1))
    made = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


if __name__ == "__main__":
    main()
