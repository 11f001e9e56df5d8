"""SIGKILL processes that debit a ledger or fit, then compare debits with releases.

Run ``python tests/privacy/kill_ledger.py --kills 1000 --fit-kills 1000`` for the long
form. A campaign is one ledger file and 50 kills; two children debit it at once. A fit
has a ledger and a checkpoint, and is killed and resumed until it ends. In every other
kill the children write slowly, a few bytes at a time, so that torn lines and drafts
occur.
"""

import argparse
import hashlib
import io
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from skfedcal import FederatedRunner, FedTempCalibrator, make_federation
from skfedcal.exceptions import BudgetExceededError
from skfedcal.federation import checkpoint, collecting
from skfedcal.privacy.events import GaussianEvent
from skfedcal.privacy.ledger import PrivacyLedger

DELTA = 1e-5
EVENT = GaussianEvent(0.05)
KILLS_PER_LEDGER = 50
N_CHILDREN = 2
# Seconds that a fit is given at first; adapts to the machine, so that about one process
# in six lives to the end of a fit.
FIT_SECONDS, LONGER, SHORTER = 0.05, 1.02, 0.9


def budget_for(n_debits: int) -> tuple[float, float]:
    """The budget that `n_debits` events use up."""
    ledger = PrivacyLedger()
    for _ in range(n_debits):
        ledger.debit(EVENT, label="planned")
    return ledger.spent(DELTA), DELTA


def write_in_pieces() -> None:
    really_write = os.write

    def write(fd: int, data: bytes) -> int:
        n = really_write(fd, data[:40])
        time.sleep(0.0005)
        return n

    os.write = write


def debit_and_release(
    path: Path, releases: Path, budget: tuple[float, float], ready: int | None = None
) -> None:
    """What a fit does: pay, then publish."""
    ledger = PrivacyLedger(path, budget=budget)
    if ready is not None:
        os.write(ready, b".")
    fd = os.open(releases, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while True:
        record_id = ledger.debit(EVENT, label="round")
        # 33 bytes in one append: whole or absent after a kill.
        os.write(fd, record_id.encode() + b"\n")
        os.fsync(fd)


def start_child(*args, in_pieces: bool) -> int:
    """Return the id of a child that has opened the ledger and begins to debit."""
    opened, ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready)
        os.read(opened, 1)
        os.close(opened)
        return pid
    try:
        if in_pieces:
            write_in_pieces()
        debit_and_release(*args, ready=ready)
    except BudgetExceededError:
        os._exit(3)
    except BaseException as error:
        os.write(2, f"child failed: {error!r}\n".encode())
    os._exit(1)


def kill_children(rng, *args, in_pieces: bool) -> Counter:
    """Start children, kill each at its own random time, count how they ended."""
    pids = [start_child(*args, in_pieces=in_pieces) for _ in range(N_CHILDREN)]
    start = time.perf_counter()
    for delay, pid in zip(
        sorted(rng.uniform(0, 0.02) for _ in pids), pids, strict=True
    ):
        time.sleep(max(0.0, start + delay - time.perf_counter()))
        os.kill(pid, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    names = {-signal.SIGKILL: "killed", 3: "refused"}
    return Counter(names.get(code, "failed") for code in codes)


def check(path: Path, releases: Path, budget: tuple[float, float]) -> Counter:
    """Compare debits with releases after a kill."""
    raw = path.read_bytes() if path.exists() else b""
    ledger = PrivacyLedger(path, budget=budget)
    debits = [record["id"] for record in ledger.records()]
    released = releases.read_text().split() if releases.exists() else []
    assert len(set(released)) == len(released)
    assert set(released) <= set(debits), "a release was not paid"
    assert ledger.spent() <= budget[0] * (1 + 1e-9), "the budget was exceeded"
    return Counter(torn=not raw.endswith(b"\n") and bool(raw))


def campaign(folder: Path, rng: random.Random, kills: int, n_debits: int) -> Counter:
    """Kill `kills` times on one ledger, then use it up."""
    path, releases = folder / "ledger.jsonl", folder / "releases.txt"
    budget = budget_for(n_debits)
    count: Counter = Counter()
    heads = []
    while count["killed"] < kills and not count["refused"]:
        in_pieces = count["rounds"] % 2 == 1
        ended = kill_children(rng, path, releases, budget, in_pieces=in_pieces)
        assert not ended["failed"]
        count += ended + Counter(rounds=1) + check(path, releases, budget)
        heads.append(PrivacyLedger(path).head)
    ledger = PrivacyLedger(path, budget=budget)
    count["debits under fire"] = len(ledger)
    try:
        debit_and_release(path, releases, budget)
    except BudgetExceededError:
        count["refusals"] += 1
    check(path, releases, budget)
    assert all(ledger.verify(head=head) for head in heads if int(head, 16))
    assert len(ledger) == n_debits
    released = releases.read_text().split()
    count["debits"] = len(ledger)
    count["releases"] = len(released)
    count["lost"] = len(set(released) - {record["id"] for record in ledger.records()})
    count["double"] = len(released) - len(set(released))
    return count


def run(folder: Path, kills: int, seed: int = 0, n_debits: int = 400) -> Counter:
    """Run campaigns until `kills` processes were killed."""
    rng = random.Random(seed)
    total: Counter = Counter()
    while total["killed"] < kills:
        todo = min(KILLS_PER_LEDGER, kills - total["killed"])
        home = folder / str(total["ledgers"])
        home.mkdir()
        total.update(campaign(home, rng, todo, n_debits))
        total["ledgers"] += 1
    return total


def slow_drafts() -> None:
    really_write_whole = checkpoint.write_whole

    def write_whole(path, write):
        def in_pieces(stream):
            buffer = io.BytesIO()
            write(buffer)
            data = buffer.getvalue()
            for start in range(0, len(data), 1024):
                stream.write(data[start : start + 1024])
                stream.flush()
                time.sleep(0.0005)

        really_write_whole(path, in_pieces)

    checkpoint.write_whole = write_whole


def show_kept_rounds(path: Path) -> None:
    """Publish each round once it is kept: its run, number and noisy sums."""
    really_keep, write = collecting.Run.keep, os.write
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def keep(self, state, record, finished):
        really_keep(self, state, record, finished)
        sums = b"".join(np.asarray(v).tobytes() for v in record.total.values())
        line = f"{self.run_id} {record.round} {hashlib.sha256(sums).hexdigest()}\n"
        write(fd, line.encode())

    collecting.Run.keep = keep


def start_fit(folder: Path, clients, in_pieces: bool) -> int:
    """Return the id of a child that begins, or goes on with, one private run."""
    started, ready = os.pipe()
    pid = os.fork()
    if pid:
        os.close(ready)
        os.read(started, 1)
        os.close(started)
        return pid
    try:
        warnings.simplefilter("ignore")
        show_kept_rounds(folder / "shown.txt")
        if in_pieces:
            slow_drafts()
            write_in_pieces()
        runner = FederatedRunner(n_rounds=6, checkpoint=folder / "run.npz", resume=True)
        ledger = PrivacyLedger(folder / "ledger.jsonl")
        os.write(ready, b".")
        FedTempCalibrator(1.0, ledger=ledger, runner=runner).fit(clients)
        os._exit(0)
    except BaseException as error:
        os.write(2, f"child failed: {error!r}\n".encode())
    os._exit(1)


def check_fits(folder: Path, n_finished: int) -> Counter:
    """Compare payments with what is kept and with what was shown."""
    path = folder / "ledger.jsonl"
    raw = path.read_bytes() if path.exists() else b""
    records = PrivacyLedger(path).records()
    paid = [record["run_id"] for record in records]
    assert len(set(paid)) == len(paid), "a run has paid twice"
    assert n_finished <= len(paid) <= n_finished + 1, "a run has paid twice, or never"
    if (folder / "run.npz").exists():
        with np.load(folder / "run.npz") as file:
            header = json.loads(str(file["header"]))
        assert not header["records"] or header["run_id"] in paid, "kept, not paid"
    shown: dict[tuple[str, str], set[str]] = {}
    if (folder / "shown.txt").exists():
        for line in (folder / "shown.txt").read_text().splitlines():
            run, number, sums = line.split()
            shown.setdefault((run, number), set()).add(sums)
    assert {run for run, _ in shown} <= set(paid), "a release was not paid"
    assert all(len(sums) == 1 for sums in shown.values()), "one round, two releases"
    drafts = len(list(folder.glob(".run.npz.*.tmp")))
    return Counter(torn=bool(raw) and not raw.endswith(b"\n"), drafts=drafts)


def run_fits(folder: Path, kills: int, seed: int = 0) -> Counter:
    """Kill and resume fits until `kills` processes were killed."""
    rng = random.Random(seed)
    clients = make_federation(20, 400, n_classes=3, random_state=0).clients
    count: Counter = Counter()
    seconds = FIT_SECONDS
    while count["killed"] < kills or (folder / "run.npz").exists():
        under_fire = count["killed"] < kills
        pid = start_fit(folder, clients, under_fire and count["killed"] % 2 == 1)
        if under_fire:
            time.sleep(rng.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL)
        count["killed" if code else "finished"] += 1
        seconds *= LONGER if code else SHORTER
        if not code:
            (folder / "run.npz").unlink()
        count.update(check_fits(folder, count["finished"]))
    shown = (folder / "shown.txt").read_text().splitlines()
    records = PrivacyLedger(folder / "ledger.jsonl").records()
    count["debits"] = len(records)
    count["rounds shown"] = len(shown)
    paid = {record["run_id"] for record in records}
    count["lost"] = len({line.split()[0] for line in shown} - paid)
    count["double"] = count["debits"] - count["finished"]
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--fit-kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = time.perf_counter()
        if args.kills:
            report("Debits", run(folder, args.kills, args.seed), start)
        start = time.perf_counter()
        if args.fit_kills:
            (folder / "fits").mkdir()
            count = run_fits(folder / "fits", args.fit_kills, args.seed)
            report("Fits with a checkpoint", count, start)


def report(title: str, count: Counter, start: float) -> None:
    """Print what happened, and end the script if a payment was lost or doubled."""
    lines = {
        "processes killed": "killed",
        "fits that ended": "finished",
        "debits found in the ledger": "debits",
        "debits acknowledged": "releases",
        "rounds shown": "rounds shown",
        "torn lines": "torn",
        "torn drafts": "drafts",
        "acknowledged and not found": "lost",
        "double spends": "double",
    }
    sys.stdout.write(f"{title}\n")
    for text, key in lines.items():
        if key in count:
            sys.stdout.write(f"{text:>28}: {count[key]}\n")
    sys.stdout.write(f"{'seconds':>28}: {time.perf_counter() - start:.0f}\n")
    if count["lost"] or count["double"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
