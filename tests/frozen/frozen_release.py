"""Files as a release wrote them; they are written once and never again.

``python tests/frozen/record.py release`` writes ``releases/<version>``, before the
release, and refuses a folder that exists.
"""

import json
import shutil
import warnings
from hashlib import sha256
from pathlib import Path

import frozen_cases as cases
import frozen_files
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import skfedcal as sf
from skfedcal.federation import (
    InProcessTransport,
    Operator,
    RemoteClients,
    Roster,
    Site,
    SiteKey,
    SitePolicy,
    SiteRows,
)
from skfedcal.privacy import GaussianEvent, PureEvent
from skfedcal.privacy.site_ledger import SiteLedger

RELEASES = Path(__file__).parent / "releases"
# Of `files`, in formats that this release still writes.
COPIED = (
    "calibrator-Auto.json",
    "calibrator-Histogram.json",
    "calibrator-Temp-eps.json",
    "checkpoint-finished.npz",
    "comparison.json",
    "federation.npz",
    "histogram-eps.json",
    "roster.json",
    "site.key",
)


def clients():
    fed = sf.make_federation(
        4, 2000, 3, alpha=None, temperature=3.0, dtype=np.float64, random_state=0
    )
    return dict(zip(("berlin", "lyon", "oslo", "turin"), fed.clients, strict=True))


def write_ledger(path):
    """Every kind of record: debits, a simulation, an exact answer, a raise."""
    ledger = sf.PrivacyLedger(path, budget=(2.0, 1e-5), require_secure=False)
    fed = sf.make_federation(40, 1200, n_classes=3, random_state=0)
    sf.FedTempCalibrator(eps=1.0, ledger=ledger).fit(fed.clients)
    ledger.debit(PureEvent(0.25), label="counts", population="other")
    ledger.debit(GaussianEvent(0.1), label="tried", mode="simulation")
    ledger.note_exact(label="plain", run_id="one")
    ledger.raise_budget((4.0, 1e-5), reason="second study")
    return {"head": ledger.head, "spent": ledger.spent(), "records": len(ledger)}


def write_monitor(path):
    monitor = sf.CalibrationMonitor(periods=4, classes=range(3), random_state=7)
    for _ in range(2):
        for rows, labels in clients().values():
            monitor.update(rows[:50], labels[:50])
            break
    monitor.save(path)
    return {"accuracy": float(monitor.estimate("accuracy"))}


def write_result(folder):
    """A signed result, the roster by which it is checked, and the ledger of a site."""
    # Keys that everybody knows, for tests only.
    names = ("operator", *clients())
    keys = {
        name: SiteKey(name, Ed25519PrivateKey.from_private_bytes(bytes([i + 9] * 32)))
        for i, name in enumerate(names)
    }
    key = keys.pop("operator")
    roster = Roster({n: k.public for n, k in keys.items()}, key.public)
    roster.save(folder / "result-roster.json")
    sites = {}
    for name, rows in clients().items():
        path = folder / "result-ledger.jsonl" if name == "berlin" else None
        if path is not None:
            path.touch()
        sites[name] = Site(
            name,
            SiteRows(*rows),
            policy=SitePolicy(classes=("0", "1", "2")),
            site_key=keys[name],
            roster=roster,
            ledger=SiteLedger(path, budget=(9.0, 1e-4), require_secure=False),
        )
    remote = RemoteClients(
        InProcessTransport(sites), n_rows=2000, operator=Operator(key, roster)
    )
    calibrator = sf.FedTempCalibrator(
        privacy=sf.CentralDP(1.0, unit="example"),
        classes=[0, 1, 2],
        runner=sf.FederatedRunner(secure=True),
        random_state=0,
    )
    result = sf.fit_sites(calibrator, remote)
    result.save(folder / "result.json")
    return {"temperature": result.calibrator.temperature_, "text": str(result)}


def write_release():
    """Write the folder of this version."""
    folder = RELEASES / sf.__version__
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = {
            "ledger-all.jsonl": write_ledger(folder / "ledger-all.jsonl"),
            "monitor.json": write_monitor(folder / "monitor.json"),
            "result.json": write_result(folder),
        }
    for name in COPIED:
        shutil.copyfile(frozen_files.FILES / name, folder / name)
    known = json.loads((frozen_files.FILES / "expected.json").read_text())
    read |= {name: known[name] for name in COPIED if name in known}
    read["checkpoint-finished.npz"] = known["checkpoint"]
    for path in folder.glob("*.lock"):
        path.unlink()
    hashes = {p.name: digest(p) for p in sorted(folder.iterdir())}
    text = json.dumps({"sha256": hashes, "read": read}, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


def digest(path):
    return sha256(path.read_bytes()).hexdigest()


def rows(n_classes):
    return cases.make_rows(5, n_classes, 999)[0]
