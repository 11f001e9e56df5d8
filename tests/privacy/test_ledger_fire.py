"""A ledger on a full or read-only disk, in several processes, put back, out of time."""

import errno
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from skfedcal import FedTempCalibrator, make_federation
from skfedcal.exceptions import BudgetExceededError, LedgerCorruptedError
from skfedcal.federation import InProcess
from skfedcal.privacy import GaussianEvent, PrivacyLedger
from skfedcal.privacy.site_ledger import SiteLedger

DELTA = 1e-5
EVENT = GaussianEvent(0.1)
ROOT = Path(__file__).parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def open_folder():
    """Return a folder that every user can reach, unlike that of pytest."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def budget_for(n_debits):
    """Budget that so many debits use up."""
    ledger = PrivacyLedger()
    for _ in range(n_debits):
        ledger.debit(EVENT, label="planned")
    return ledger.spent(DELTA), DELTA


def fill(path, n, **kwargs):
    ledger = PrivacyLedger(path, **kwargs)
    for i in range(n):
        ledger.debit(EVENT, label=f"round {i}")
    return ledger


def as_nobody(function):
    """Run `function` in a child without the rights of root; 0 if it returned."""
    pid = os.fork()
    if not pid:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            function()
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# ------------------------------------------------------------------------ a full disk


def test_a_disk_that_is_full_at_any_byte_loses_and_invents_nothing(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(time, "time", lambda: 1e9)  # so that all lines are of one size
    ledger = fill(path, 2, budget=budget_for(3))
    before = path.read_bytes()
    line = len(before.splitlines(keepends=True)[-1])
    really_write, room = os.write, [0]

    def write(fd, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = really_write(fd, data[: room[0]])
        room[0] -= n
        return n

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        for room[0] in range(line):
            with pytest.raises(OSError, match="write to the privacy ledger") as caught:
                ledger.debit(EVENT, label="round 2")
            assert caught.value.errno == errno.ENOSPC
            assert path.read_bytes() == before
    ledger.debit(EVENT, label="round 2")
    assert PrivacyLedger(path).verify() == 3
    with pytest.raises(BudgetExceededError):
        ledger.debit(EVENT, label="round 3")


ON_A_SMALL_DISK = """
import os, sys
from skfedcal.privacy import GaussianEvent, PrivacyLedger
path, budget = os.path.join(sys.argv[1], "ledger.jsonl"), (100.0, 1e-5)
ledger, ids = PrivacyLedger(path, budget=budget), []
try:
    while True:
        ids.append(ledger.debit(GaussianEvent(0.1), label="x"))
except OSError as error:
    assert error.errno == 28 and "write to the privacy ledger" in str(error), error
again = PrivacyLedger(path, budget=budget)
assert [r["id"] for r in again.records()] == ids and again.spent() == ledger.spent()
print(len(ids))
"""


def test_a_real_disk_that_is_full_keeps_what_was_acknowledged(tmp_path):
    unshare = shutil.which("unshare")
    mount = f"mount -t tmpfs -o size=64k none {tmp_path}"
    if (
        unshare is None
        or subprocess.run(
            [unshare, "-rm", "sh", "-c", mount], capture_output=True
        ).returncode
    ):
        pytest.skip("no tmpfs may be mounted here")
    script = f'{mount} && exec "$@"'
    code = [sys.executable, "-c", ON_A_SMALL_DISK, str(tmp_path)]
    ended = subprocess.run(
        [unshare, "-rm", "sh", "-c", script, "sh", *code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    # 16 pages of 4096 bytes, in lines of less than 500.
    assert int(ended.stdout) > 100


def test_a_fit_that_cannot_pay_asks_nobody(path, monkeypatch):
    ledger = fill(path, 1)
    before = path.read_bytes()

    def full(fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    def nobody(*args):
        raise AssertionError("a client was asked")

    monkeypatch.setattr(os, "write", full)
    monkeypatch.setattr(InProcess, "total", nobody)
    clients = make_federation(10, 100, n_classes=3, random_state=0).clients
    with pytest.raises(OSError, match="write to the privacy ledger"):
        FedTempCalibrator(1.0, ledger=ledger).fit(clients)
    assert path.read_bytes() == before


# ------------------------------------------------------------------- a read-only disk


@needs_fork
def test_a_file_that_may_only_be_read_can_be_read_and_not_debited(open_folder):
    path = open_folder / "ledger.jsonl"
    spent = fill(path, 2, budget=budget_for(3)).spent()
    path.chmod(0o444)
    before = path.read_bytes()

    def work():
        ledger = PrivacyLedger(path, budget=budget_for(3))
        assert ledger.spent() == spent and ledger.verify() == 2
        with pytest.raises(PermissionError, match=r"for a debit.*ledger\.jsonl"):
            ledger.debit(EVENT, label="x")
        assert len(ledger) == 2 and ledger.spent() == spent

    assert as_nobody(work) == 0
    assert path.read_bytes() == before


@needs_fork
def test_a_folder_that_may_only_be_read_takes_no_new_ledger(open_folder):
    path = open_folder / "ledger.jsonl"

    def work():
        ledger = PrivacyLedger(path, budget=budget_for(3))
        assert len(ledger) == 0
        with pytest.raises(PermissionError, match="for a debit"):
            ledger.debit(EVENT, label="x")
        assert ledger.spent() == 0.0

    open_folder.chmod(0o555)
    assert as_nobody(work) == 0
    assert not any(open_folder.iterdir())


@needs_fork
def test_a_file_that_may_not_be_read_is_no_empty_ledger(open_folder):
    path = open_folder / "ledger.jsonl"
    fill(path, 2)
    path.chmod(0o000)

    def work():
        with pytest.raises(PermissionError, match="to read it"):
            PrivacyLedger(path)

    assert as_nobody(work) == 0


# ----------------------------------------------------------------- several processes


CHILD = """
import sys
from skfedcal.exceptions import BudgetExceededError
from skfedcal.privacy import GaussianEvent, PrivacyLedger
path, eps, delta, n_runs = sys.argv[1], *map(float, sys.argv[2:])
ledger = PrivacyLedger(path, budget=(eps, delta))
print("ready", flush=True)
sys.stdin.readline()
for i in range(int(n_runs)):
    try:
        print(i, ledger.debit(GaussianEvent(0.1), label="x", run_id=f"run {i}"))
    except BudgetExceededError:
        print(i, "refused")
"""


def test_processes_that_resume_the_same_runs_pay_each_of_them_once(path):
    n_paid, n_runs, n_processes = 60, 80, 3
    eps, delta = budget_for(n_paid)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    words = [sys.executable, "-c", CHILD, *map(str, (path, eps, delta, n_runs))]
    children = [
        subprocess.Popen(
            words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes
        )
        for _ in range(n_processes)
    ]
    for child in children:
        assert child.stdout.readline() == "ready\n"
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    answers = [child.communicate(timeout=60)[0].splitlines() for child in children]
    assert [child.returncode for child in children] == [0] * n_processes
    # Whoever came first, all of them hold the same receipts, and the same refusals.
    assert len({tuple(lines) for lines in answers}) == 1
    paid = [line.split()[1] for line in answers[0] if "refused" not in line]
    ledger = PrivacyLedger(path, budget=(eps, delta))
    assert [record["id"] for record in ledger.records()] == paid
    assert len(paid) == n_paid and len(set(paid)) == n_paid
    assert ledger.spent() <= eps * (1 + 1e-9)


# --------------------------------------------------------- cut, edited, rolled back


def test_a_ledger_that_lost_the_head_is_refused_at_every_length(path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    head = fill(path, 3).head
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length == len(whole) - 1:  # only the last newline is missing
            assert PrivacyLedger(path, head=head).verify() == 3
            continue
        with pytest.raises(LedgerCorruptedError, match="older or another copy"):
            PrivacyLedger(path, head=head)
        if length > len(lines[0]):
            # Without the head a cut cannot be told from a crash.
            assert len(PrivacyLedger(path)) == whole[: length + 1].count(b"\n")
    path.unlink()
    with pytest.raises(LedgerCorruptedError, match="older or another copy"):
        PrivacyLedger(path, head=head)


def test_a_ledger_whose_hashes_were_computed_anew_is_refused_by_the_head(path):
    head = fill(path, 3).head
    path.unlink()
    fill(path, 3)  # the same debits, made again
    assert PrivacyLedger(path).verify() == 3
    with pytest.raises(LedgerCorruptedError, match="older or another copy"):
        PrivacyLedger(path, head=head)


@pytest.mark.parametrize("cls", [PrivacyLedger, SiteLedger])
def test_a_head_that_was_passed_goes_with_the_pickle(path, cls):
    old = fill(path, 1)
    copy = path.read_bytes()
    old.debit(EVENT, label="later")
    ledger = cls(path, head=old.head)
    text = pickle.dumps(ledger)
    assert type(pickle.loads(text)) is cls
    path.write_bytes(copy)
    with pytest.raises(LedgerCorruptedError, match="older or another copy"):
        pickle.loads(text)


def test_the_head_of_an_empty_ledger_is_in_every_ledger(path):
    nothing = PrivacyLedger(path).head
    fill(path, 2)
    assert PrivacyLedger(path, head=nothing).verify(nothing) == 2
    with pytest.raises(LedgerCorruptedError):
        PrivacyLedger(path, head="")
    with pytest.raises(TypeError, match="head must be the text"):
        PrivacyLedger(path, head=2)


# -------------------------------------------------------------------------- the clock


def test_a_clock_that_goes_back_changes_neither_order_nor_sums(path, monkeypatch):
    budget = budget_for(6)
    times = iter([1e9, 5e8, -3.0, 0.0, 2.5e9, 1e-300])
    monkeypatch.setattr(time, "time", lambda: next(times))
    ledger = fill(path, 6, budget=budget)
    monkeypatch.undo()
    again = PrivacyLedger(path, budget=budget)
    records = again.records()
    assert [r["t"] for r in records] == [1e9, 5e8, -3.0, 0.0, 2.5e9, 1e-300]
    assert [r["label"] for r in records] == [f"round {i}" for i in range(6)]
    assert again.verify(ledger.head) == 6 and again.spent() == ledger.spent()
    with pytest.raises(BudgetExceededError):
        again.debit(EVENT, label="one too many")


# ------------------------------------------------------------------------------ kills


def kill_script():
    file = Path(__file__).with_name("kill_ledger.py")
    spec = importlib.util.spec_from_file_location("kill_ledger", file)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@needs_fork
def test_fits_that_are_killed_and_resumed_pay_once_and_show_each_round_once(tmp_path):
    count = kill_script().run_fits(tmp_path, kills=40, seed=2)
    assert count["killed"] >= 40
    assert count["debits"] == count["finished"] > 0
    assert count["lost"] == count["double"] == 0
    assert count["rounds shown"] > 0
