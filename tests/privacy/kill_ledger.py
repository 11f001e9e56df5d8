"""SIGKILL processes that debit a ledger, then compare debits with releases.

Run ``python tests/privacy/kill_ledger.py --kills 1000`` for the long form. A campaign
is one ledger file and 50 kills; two children debit it at once. In every other kill
the children write slowly, a few bytes at a time, so that torn lines occur.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from skfedcal.exceptions import BudgetExceededError
from skfedcal.privacy._accounting import compose_epsilon
from skfedcal.privacy._events import GaussianEvent
from skfedcal.privacy._ledger import PrivacyLedger

DELTA = 1e-5
EVENT = GaussianEvent(0.05)
KILLS_PER_LEDGER = 50
N_CHILDREN = 2


def budget_for(n_debits: int) -> tuple[float, float]:
    """The budget that `n_debits` events use up."""
    return compose_epsilon([EVENT] * n_debits, DELTA), DELTA


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
    count["debits"] = len(ledger)
    count["releases"] = len(releases.read_text().split())
    return count


def run(folder: Path, kills: int, seed: int = 0, n_debits: int = 400) -> Counter:
    """Run campaigns until `kills` processes were killed."""
    rng = random.Random(seed)
    total: Counter = Counter()
    while total["killed"] < kills:
        todo = min(KILLS_PER_LEDGER, kills - total["killed"])
        home = folder / str(total["ledgers"])
        home.mkdir()
        total += campaign(home, rng, todo, n_debits) + Counter(ledgers=1)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        total = run(Path(folder), args.kills, args.seed)
    total["seconds"] = round(time.perf_counter() - start)
    sys.stdout.writelines(f"{name:>18}: {n}\n" for name, n in sorted(total.items()))


if __name__ == "__main__":
    main()
