import copy
import errno
import hashlib
import importlib.util
import json
import math
import os
import pickle
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.model_selection import GridSearchCV, cross_val_score

from skfedcal.exceptions import BudgetExceededError, LedgerCorruptedError
from skfedcal.privacy.accounting import compose_epsilon, gdp_epsilon
from skfedcal.privacy.events import GaussianEvent, PureEvent
from skfedcal.privacy.ledger import PrivacyLedger
from skfedcal.privacy.ledger_file import canonical, digest

DELTA = 1e-5
EVENT = GaussianEvent(0.1)
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture(params=["memory", "file"])
def where(request, path):
    return None if request.param == "memory" else path


@pytest.fixture
def no_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def budget_for(n_debits, mu=EVENT.mu):
    """Budget that equal Gaussian debits use up, by the filter in closed form.

    Of delta, 0.9 of 0.99 is for Gaussian debits, and 0.005 of eps for slack.
    """
    if n_debits == 1:
        return compose_epsilon([EVENT], DELTA), DELTA
    eps = 1.0
    for _ in range(60):
        left = 0.9 * 0.99 * DELTA * math.exp(-0.005 * eps / 2)
        eps = gdp_epsilon(math.sqrt(n_debits) * mu, left) / (1 - 0.005)
    return eps, DELTA


def fill(path, n, **kwargs):
    ledger = PrivacyLedger(path, **kwargs)
    ids = [ledger.debit(EVENT, label=f"round {i}") for i in range(n)]
    return ledger, ids


def in_fork(function):
    """Run `function` in a forked child and return its exit code, 0 if it returned."""
    pid = os.fork()
    if not pid:
        try:
            function()
        except BaseException as error:
            os.write(2, f"child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# Records


def test_record_holds_what_was_debited(where):
    ledger = PrivacyLedger(where)
    details = {"n_clients": 7, "clip": (1.0, 2.0)}
    record_id = ledger.debit(
        EVENT, label="fit", population="north", run_id="a", details=details
    )
    (record,) = ledger.records()
    keys = "v id n t event label population mode run_id details hash"
    assert set(record) == set(keys.split())
    assert record["id"] == record_id
    assert record["n"] == 0 and record["v"] == 1
    assert record["event"] == EVENT.to_dict()
    assert (record["label"], record["population"]) == ("fit", "north")
    assert (record["mode"], record["run_id"]) == ("secure", "a")
    assert record["details"] == {"n_clients": 7, "clip": [1.0, 2.0]}
    assert ledger.head == record["hash"]


def test_hash_is_sha256_of_previous_hash_and_sorted_json(path):
    fill(path, 3)
    previous = "0" * 64
    for line in path.read_text().splitlines():
        record = json.loads(line)
        claimed = record.pop("hash")
        text = json.dumps(record, sort_keys=True, separators=(",", ":"))
        assert claimed == hashlib.sha256((previous + text).encode()).hexdigest()
        previous = claimed


def test_reopened_file_is_the_same_account(path):
    ledger, ids = fill(path, 3, budget=(1.0, DELTA))
    again = PrivacyLedger(str(path), budget=(1.0, DELTA))
    assert [record["id"] for record in again.records()] == ids
    assert again.head == ledger.head and again.spent() == ledger.spent()
    again.debit(EVENT, label="more")
    assert len(ledger) == len(again) == ledger.verify() == 4


def test_records_are_copies(where):
    ledger, _ = fill(where, 1)
    ledger.records()[0]["event"]["mu"] = 0.0
    assert ledger.records()[0]["event"] == EVENT.to_dict()


def test_path_does_not_follow_the_working_directory(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    ledger = PrivacyLedger(path.name)
    monkeypatch.chdir("/")
    ledger.debit(EVENT, label="fit")
    assert len(PrivacyLedger(path)) == 1


def test_no_file_is_made_before_the_first_debit(path):
    ledger = PrivacyLedger(path, budget=(1, DELTA))
    assert len(ledger) == 0 and ledger.spent() == 0.0 and ledger.head == "0" * 64
    assert not path.exists()


# Budget


@pytest.mark.parametrize("n", [1, 3, 40])
def test_exactly_the_debits_that_fit_are_accepted(where, n):
    ledger, _ = fill(where, n, budget=budget_for(n))
    with pytest.raises(BudgetExceededError, match="Nothing was debited"):
        ledger.debit(EVENT, label="one too many")
    assert len(ledger) == n
    assert ledger.spent() == pytest.approx(ledger.budget[0])
    assert ledger.remaining() == pytest.approx(0, abs=1e-9)


def test_refused_debit_leaves_the_file_alone(path):
    ledger, _ = fill(path, 2, budget=budget_for(3))
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError):
        ledger.debit(GaussianEvent(1.0), label="too large")
    assert path.read_bytes() == before
    ledger.debit(EVENT, label="fits")


def test_populations_are_separate_accounts(where):
    ledger = PrivacyLedger(where, budget=budget_for(2))
    ledger.debit(EVENT, label="a", population="north")
    for _ in range(2):
        ledger.debit(EVENT, label="b", population="south")
    with pytest.raises(BudgetExceededError, match="'south'"):
        ledger.debit(EVENT, label="c", population="south")
    ledger.debit(EVENT, label="d", population="north")
    assert ledger.spent(population="nobody") == 0.0
    assert ledger.remaining("nobody") == ledger.budget[0]
    assert ledger.spent() == ledger.spent(population="south")
    assert [r["label"] for r in ledger.records("north")] == ["a", "d"]


def test_one_release_is_charged_its_own_curve(where):
    event = GaussianEvent(0.4, eps_slack=0.01, delta_slack=2e-7)
    ledger = PrivacyLedger(where)
    ledger.debit(GaussianEvent(0.0), label="nothing")
    ledger.debit(event, label="x")
    assert ledger.spent(DELTA) == pytest.approx(compose_epsilon([event], DELTA))


def test_spent_covers_the_composition_of_all_events(where):
    ledger = PrivacyLedger(where)
    events = [
        GaussianEvent(0.3, delta_slack=1e-8),
        GaussianEvent(0.4, eps_slack=0.001, delta_slack=2e-8),
        GaussianEvent(0.0, eps_slack=0.002),
        PureEvent(0.1),
    ]
    for i, event in enumerate(events):
        ledger.debit(event, label="x")
        exact = compose_epsilon(events[: i + 1], DELTA)
        assert exact * (1 - 1e-4) <= ledger.spent(DELTA) <= 1.2 * exact
    assert ledger.spent(1e-6) > compose_epsilon(events[:3], 1e-6)


def test_pure_events_use_up_a_budget(where):
    ledger = PrivacyLedger(where, budget=(1.0, DELTA))
    for _ in range(2):
        ledger.debit(PureEvent(0.5), label="x")
    spent = ledger.spent()
    with pytest.raises(BudgetExceededError):
        ledger.debit(PureEvent(0.5), label="x")
    assert ledger.spent() == spent


def test_without_budget_all_is_recorded(where):
    ledger = PrivacyLedger(where)
    ledger.debit(GaussianEvent(100.0), label="huge")
    assert ledger.remaining() == math.inf
    with pytest.raises(ValueError, match="needs delta"):
        ledger.spent()


def test_boundless_cost_is_recorded_or_refused(where):
    ledger = PrivacyLedger(where)
    ledger.debit(GaussianEvent(1e200), label="no noise at all")
    assert ledger.spent(DELTA) == math.inf
    with pytest.raises(BudgetExceededError, match="inf"):
        PrivacyLedger(budget=(1, DELTA)).debit(GaussianEvent(1e200), label="x")


# Input


@pytest.mark.parametrize("budget", [1.0, (1.0,), (1, 1e-5, 2), "ab", (None, 1e-5)])
def test_budget_of_wrong_shape_is_refused(budget):
    with pytest.raises(ValueError, match=r"budget must be \(eps, delta\)"):
        PrivacyLedger(budget=budget)


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ((0, 1e-5), "eps"),
        ((-1, 1e-5), "eps"),
        ((math.nan, 1e-5), "eps"),
        ((math.inf, 1e-5), "eps"),
        ((1, 0), "delta"),
        ((1, 1), "delta"),
        ((1, math.nan), "delta"),
    ],
)
def test_budget_out_of_range_is_refused(budget, message):
    with pytest.raises(ValueError, match=message):
        PrivacyLedger(budget=budget)


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"label": 3}, TypeError, "label"),
        ({"population": None}, TypeError, "population"),
        ({"run_id": 3}, TypeError, "run_id"),
        ({"mode": "fast"}, ValueError, "mode"),
        ({"event": 0.1}, TypeError, "event"),
        ({"details": {"a": np.arange(2)}}, TypeError, "JSON"),
        ({"details": {"a": math.nan}}, ValueError, "JSON"),
    ],
)
def test_bad_debit_is_refused_and_not_written(where, kwargs, error, message):
    ledger, _ = fill(where, 1)
    with pytest.raises(error, match=message):
        ledger.debit(**{"event": EVENT, "label": "x", **kwargs})
    assert len(ledger) == 1


def test_event_that_cannot_be_read_back_is_not_written(where):
    class Alien:
        def to_dict(self):
            return {"kind": "alien"}

    ledger = PrivacyLedger(where)
    with pytest.raises(ValueError, match="alien"):
        ledger.debit(Alien(), label="x")
    assert len(ledger) == 0


def test_require_secure_must_be_a_bool_or_auto():
    with pytest.raises(ValueError, match="require_secure"):
        PrivacyLedger(require_secure="yes")


@pytest.mark.parametrize(
    ("in_file", "require_secure", "refused"),
    [
        (True, "auto", True),
        (True, True, True),
        (True, False, False),
        (False, "auto", False),
        (False, True, True),
    ],
)
def test_simulated_noise_is_refused_where_it_matters(
    path, in_file, require_secure, refused
):
    where = path if in_file else None
    ledger = PrivacyLedger(where, require_secure=require_secure)
    if refused:
        with pytest.raises(
            ValueError, match=r"random_state=None.*require_secure=False"
        ):
            ledger.debit(EVENT, label="x", mode="simulation")
    else:
        ledger.debit(EVENT, label="x", mode="simulation")
    assert len(ledger) == (not refused)


def test_directory_is_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="needs a file"):
        PrivacyLedger(tmp_path)


def test_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such directory.*nowhere"):
        PrivacyLedger(tmp_path / "nowhere" / "ledger.jsonl")


@pytest.mark.parametrize("write", [False, True])
def test_unwritable_or_unreadable_path_says_what_was_tried(path, monkeypatch, write):
    ledger, _ = fill(path, 1)
    really_open = os.open

    def refuse(name, flags, *args):
        if bool(flags & os.O_RDWR) == write:
            raise PermissionError(errno.EACCES, "Permission denied", name)
        return really_open(name, flags, *args)

    monkeypatch.setattr(os, "open", refuse)
    purpose = "for a debit" if write else "to read it"
    with pytest.raises(PermissionError, match=f"open the privacy ledger {purpose}"):
        ledger.debit(EVENT, label="x") if write else ledger.spent(DELTA)


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b"hello\n",
        b"a,b\n1,2\n",
        b'{"a": 1}\n',
        b'{"a": 1}',
        b"[1, 2]\n",
        b"3\n",
        b'{"v": 1, "hash": ""}\n',
        bytes(range(256)),
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
def test_file_that_is_not_a_ledger_is_refused_and_kept(path, content):
    path.write_bytes(content)
    with pytest.raises(LedgerCorruptedError, match=r"line 1 .*not a privacy ledger"):
        PrivacyLedger(path)
    assert path.read_bytes() == content


def test_empty_file_is_an_empty_ledger(path):
    path.touch()
    ledger, _ = fill(path, 1)
    assert ledger.verify() == 1


# Resume


def test_one_run_id_pays_once(where):
    ledger = PrivacyLedger(where, budget=budget_for(1))
    first = ledger.debit(EVENT, label="fit", run_id="a")
    assert ledger.debit(EVENT, label="fit again", run_id="a") == first
    if where:
        again = PrivacyLedger(where, budget=budget_for(1))
        assert again.debit(EVENT, label="fit", run_id="a") == first
    assert len(ledger) == 1


@pytest.mark.parametrize(
    "other",
    [{"event": GaussianEvent(0.2)}, {"population": "south"}, {"mode": "simulation"}],
)
def test_run_id_cannot_pay_for_something_else(path, other):
    ledger = PrivacyLedger(path, require_secure=False)
    ledger.debit(EVENT, label="fit", run_id="a")
    with pytest.raises(ValueError, match="run_id 'a' has already paid"):
        ledger.debit(**{"event": EVENT, "label": "fit", "run_id": "a", **other})
    assert len(ledger) == 1


def test_debits_without_run_id_are_all_paid(where):
    ledger, ids = fill(where, 3)
    assert len(set(ids)) == len(ledger) == 3


# Damage


@pytest.mark.parametrize("n", [1, 3])
def test_line_torn_at_any_byte_is_repaired_by_the_next_debit(path, n, no_fsync):
    fill(path, n)
    raw = path.read_bytes()
    start = raw.rindex(b"\n", 0, -1) + 1 if n > 1 else 0
    for cut in range(start, len(raw)):
        path.write_bytes(raw[:cut])
        # A record that lacks its newline only is whole: it stays paid.
        whole = n if cut == len(raw) - 1 else n - 1
        torn = PrivacyLedger(path)
        assert len(torn) == whole
        assert path.read_bytes() == raw[:cut]
        torn.debit(EVENT, label="next")
        kept = raw if whole == n else raw[:start]
        assert path.read_bytes().startswith(kept)
        assert path.read_bytes().count(b"\n") == whole + 1
        assert PrivacyLedger(path).verify() == whole + 1


@pytest.mark.parametrize(
    "garbage",
    [b"\n", b"\0" * 50, b'{"details":', b"\xff", bytes(300) + b'"t":1.5,"v":1}\n'],
)
def test_unreadable_last_line_is_removed_by_the_next_debit(path, garbage):
    _, ids = fill(path, 2)
    with path.open("ab") as file:
        file.write(garbage)
    ledger = PrivacyLedger(path)
    assert len(ledger) == 2
    ids.append(ledger.debit(EVENT, label="next"))
    assert [record["id"] for record in PrivacyLedger(path).records()] == ids


def test_torn_line_appears_while_the_ledger_is_open(path):
    ledger, _ = fill(path, 2)
    with path.open("ab") as file:
        file.write(b'{"details":nul')
    ledger.debit(EVENT, label="next")
    assert ledger.verify() == 3


def test_missing_newline_is_mended_by_either_of_two_ledgers(path):
    one, _ = fill(path, 2)
    path.write_bytes(path.read_bytes()[:-1])
    assert len(one) == 2
    PrivacyLedger(path).debit(EVENT, label="other")
    one.debit(EVENT, label="one")
    assert one.verify() == 4


@pytest.fixture(scope="module")
def three_lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    ledger = PrivacyLedger(path)
    for i in range(3):
        ledger.debit(EVENT, label=f"round {i}", details={"i": i, "name": "é \n"})
    return path


def change_byte(path, position, value):
    raw = bytearray(path.read_bytes())
    raw[position] = raw[position] ^ value
    changed = path.with_name("changed.jsonl")
    changed.write_bytes(raw)
    return changed


@settings(deadline=None)
@given(st.data(), st.integers(1, 255))
def test_any_change_before_the_last_line_is_detected(three_lines, data, value):
    raw = three_lines.read_bytes()
    last = raw.rindex(b"\n", 0, -1) + 1
    changed = change_byte(three_lines, data.draw(st.integers(0, last - 1)), value)
    with pytest.raises(LedgerCorruptedError, match=r"changed\.jsonl, line [12] "):
        PrivacyLedger(changed)


def test_every_bit_flip_before_the_last_line_is_detected(three_lines):
    raw = three_lines.read_bytes()
    for position in range(raw.rindex(b"\n", 0, -1) + 1):
        changed = change_byte(three_lines, position, 1 << position % 8)
        with pytest.raises(LedgerCorruptedError):
            PrivacyLedger(changed)


def test_every_change_of_a_newline_before_the_last_line_is_detected(three_lines):
    first = three_lines.read_bytes().index(b"\n")
    second = three_lines.read_bytes().index(b"\n", first + 1)
    for position in (first, second):
        for value in range(1, 256):
            changed = change_byte(three_lines, position, value)
            with pytest.raises(LedgerCorruptedError):
                PrivacyLedger(changed)


def test_every_change_of_the_last_line_is_detected(three_lines):
    # It was acknowledged: left out as torn, a payment would be lost.
    raw = three_lines.read_bytes()
    for position in range(raw.rindex(b"\n", 0, -1) + 1, len(raw)):
        for value in (1 << position % 8, raw[position], raw[position] ^ 0x7D):
            if not value:
                continue
            changed = change_byte(three_lines, position, value)
            with pytest.raises(LedgerCorruptedError, match=r"changed\.jsonl, line 3 "):
                PrivacyLedger(changed)


@pytest.mark.parametrize(
    "order", [[1, 0, 2], [0, 2], [1, 2], [0, 0, 1, 2], [0, 1, 2, 2], [0, 1, 1]]
)
def test_missing_moved_and_doubled_lines_are_detected(path, order):
    fill(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[i] for i in order))
    with pytest.raises(LedgerCorruptedError):
        PrivacyLedger(path)


def test_line_with_the_same_content_in_another_layout_is_refused(path):
    fill(path, 2)
    first, second = path.read_text().splitlines()
    path.write_text(json.dumps(json.loads(first)) + "\n" + second + "\n")
    with pytest.raises(LedgerCorruptedError, match="line 1 "):
        PrivacyLedger(path)


def test_edited_values_are_detected_and_name_the_line(path):
    ledger, _ = fill(path, 3)
    path.write_text(path.read_text().replace("round 1", "round 9"))
    with pytest.raises(LedgerCorruptedError, match=r"ledger\.jsonl, line 2 "):
        ledger.verify()
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(LedgerCorruptedError):
            ledger.debit(EVENT, label="x")
    assert path.read_bytes() == before
    assert "unusable: LedgerCorruptedError" in repr(ledger)


def test_restored_file_is_accepted_again(path):
    ledger, _ = fill(path, 3)
    honest = path.read_bytes()
    path.write_bytes(honest.replace(b"round 1", b"round 9"))
    with pytest.raises(LedgerCorruptedError):
        ledger.verify()
    path.write_bytes(honest)
    ledger.debit(EVENT, label="x")
    assert ledger.verify() == 4


def test_rolled_back_file_is_detected_by_head_and_by_open_ledgers(path):
    ledger, _ = fill(path, 2)
    old_head, old = ledger.head, path.read_bytes()
    ledger.debit(EVENT, label="x")
    head = ledger.head
    assert ledger.verify(head=head) == ledger.verify(head=old_head) == 3
    path.write_bytes(old)
    fresh = PrivacyLedger(path)
    assert fresh.verify(head=old_head) == 2
    with pytest.raises(LedgerCorruptedError, match="older or another copy"):
        fresh.verify(head=head)
    fresh.debit(EVENT, label="another third record")
    for use in (lambda: ledger.debit(EVENT, label="y"), lambda: ledger.spent(DELTA)):
        with pytest.raises(LedgerCorruptedError, match=r"line 3.*is gone"):
            use()


def test_removed_file_is_detected_by_open_ledgers(path):
    ledger, _ = fill(path, 2)
    path.unlink()
    with pytest.raises(LedgerCorruptedError, match="is gone"):
        ledger.spent(DELTA)
    with pytest.raises(LedgerCorruptedError, match="is gone"):
        ledger.debit(EVENT, label="x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": 2}, "version 2"),
        ({"event": {"kind": "unheard of"}}, "cannot read"),
        ({"n": 5}, "number 5"),
        ({"extra": 1}, "not a ledger record"),
    ],
)
def test_sealed_record_of_another_kind_is_refused(path, change, message):
    fill(path, 1)
    record = json.loads(path.read_bytes()) | change
    record["hash"] = digest(record, "0" * 64)
    path.write_bytes(canonical(record) + b"\n")
    with pytest.raises(LedgerCorruptedError, match=f"line 1 .*{message}"):
        PrivacyLedger(path)


# Disk


def test_record_is_synced_before_debit_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, read(path)))
    )
    read = Path.read_bytes
    ledger = PrivacyLedger(path)
    ledger.debit(EVENT, label="x")
    ledger.debit(EVENT, label="y")
    folder, file = path.parent.stat().st_ino, path.stat().st_ino
    first = path.read_bytes().splitlines(keepends=True)[0]
    assert synced == [(folder, b""), (file, first), (file, path.read_bytes())]


def test_record_of_a_dead_process_is_synced_before_it_is_used(path, monkeypatch):
    first = PrivacyLedger(path).debit(EVENT, label="x", run_id="a")
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    assert PrivacyLedger(path).debit(EVENT, label="x", run_id="a") == first
    assert synced == [path.stat().st_ino]


@pytest.mark.parametrize("room", [0, 1, 100])
def test_disk_full_leaves_no_trace_and_later_debits_work(path, monkeypatch, room):
    ledger, ids = fill(path, 2, budget=budget_for(3))
    before = path.read_bytes()
    really_write = os.write
    left = [room]

    def write(fd, data):
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        n = really_write(fd, data[: left[0]])
        left[0] -= n
        return n

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(OSError, match="write to the privacy ledger") as caught:
            ledger.debit(EVENT, label="x")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_bytes() == before and len(ledger) == 2
    ids.append(ledger.debit(EVENT, label="x"))
    assert [record["id"] for record in ledger.records()] == ids
    assert ledger.verify() == 3


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O"), KeyboardInterrupt()])
def test_failed_sync_takes_the_record_back(path, monkeypatch, error):
    ledger, _ = fill(path, 2)
    before = path.read_bytes()

    def fsync(fd):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(type(error)):
            ledger.debit(EVENT, label="x")
    assert path.read_bytes() == before
    ledger.debit(EVENT, label="x")
    assert ledger.verify() == 3


def test_partial_line_that_cannot_be_taken_back_is_repaired_later(path, monkeypatch):
    ledger, _ = fill(path, 2)
    really_write, really_truncate, calls = os.write, os.ftruncate, []

    def write(fd, data):
        if len(calls) > 1:
            raise OSError(errno.EIO, "I/O")
        calls.append("write")
        return really_write(fd, data[:30])

    def truncate(fd, size):
        if calls.count("write"):
            raise OSError(errno.EIO, "I/O")
        really_truncate(fd, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        patch.setattr(os, "ftruncate", truncate)
        with pytest.raises(OSError, match="write to the privacy ledger"):
            ledger.debit(EVENT, label="x")
    assert not path.read_bytes().endswith(b"\n")
    assert len(ledger) == 2
    ledger.debit(EVENT, label="x")
    assert ledger.verify() == 3


@needs_fork
def test_real_limit_on_file_size_is_survived(path):
    resource = pytest.importorskip("resource")
    ledger, _ = fill(path, 2)
    before = path.read_bytes()

    def debit():
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 50, hard))
        with pytest.raises(OSError, match="write to the privacy ledger"):
            ledger.debit(EVENT, label="x")
        assert path.read_bytes() == before
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        ledger.debit(EVENT, label="x")

    assert in_fork(debit) == 0
    assert ledger.verify() == 3


def test_debit_reads_one_line_of_a_long_ledger(path, monkeypatch, no_fsync):
    ledger, _ = fill(path, 5_000, budget=budget_for(6_000))
    n_bytes = []
    really_read = os.read

    def read(fd, size):
        data = really_read(fd, size)
        n_bytes.append(len(data))
        return data

    monkeypatch.setattr(os, "read", read)
    ledger.debit(EVENT, label="x")
    ledger.spent()
    line = 1 + max(map(len, path.read_bytes().splitlines()))
    assert sum(n_bytes) <= 2 * line < path.stat().st_size / 1_000
    n_bytes.clear()
    PrivacyLedger(path, budget=ledger.budget).debit(EVENT, label="other")
    assert sum(n_bytes) > path.stat().st_size / 2
    n_bytes.clear()
    ledger.debit(EVENT, label="catches up")
    assert sum(n_bytes) <= 3 * line


# Life in scikit-learn


class Payer(ClassifierMixin, BaseEstimator):
    def __init__(self, ledger=None, c=1):
        self.ledger = ledger
        self.c = c

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        self.ledger.debit(EVENT, label="fit")
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


X, Y = np.zeros((20, 1)), np.arange(20) % 2


def test_copies_are_the_ledger_itself(where):
    ledger = PrivacyLedger(where)
    assert clone(Payer(ledger)).ledger is ledger
    assert clone(ledger) is copy.copy(ledger) is copy.deepcopy(ledger) is ledger
    assert copy.deepcopy(Payer(ledger)).ledger is ledger


def test_five_fold_cross_validation_debits_five_times(where):
    ledger = PrivacyLedger(where, budget=budget_for(5))
    cross_val_score(Payer(ledger), X, Y, cv=5, error_score="raise")
    assert len(ledger) == 5
    with pytest.raises(BudgetExceededError):
        cross_val_score(Payer(ledger), X, Y, cv=5, error_score="raise")


def test_grid_search_pays_for_each_candidate_and_the_refit(where):
    ledger = PrivacyLedger(where)
    GridSearchCV(Payer(ledger), {"c": [1, 2]}, cv=3).fit(X, Y)
    assert len(ledger) == 7


def test_path_ledger_is_pickled_as_its_path(path):
    ledger, _ = fill(path, 2, budget=(1.0, DELTA), require_secure=False)
    again = pickle.loads(pickle.dumps(ledger))
    assert again is not ledger
    assert (again.path, again.budget) == (ledger.path, ledger.budget)
    assert again.require_secure is False
    again.debit(EVENT, label="x")
    assert len(ledger) == 3


def test_memory_ledger_refuses_to_be_pickled():
    with pytest.raises(pickle.PicklingError, match=r"PrivacyLedger\(path\)"):
        pickle.dumps(PrivacyLedger())


def test_empty_ledger_is_true():
    assert PrivacyLedger()


def test_repr_tells_spent_budget_and_place(path):
    assert repr(PrivacyLedger()) == "<PrivacyLedger in memory: 0 debits, no budget>"
    ledger, _ = fill(path, 1, budget=(1.0, DELTA))
    spent = f"{ledger.spent():.4g}"
    assert repr(ledger) == (
        f"<PrivacyLedger {path}: eps {spent} of 1 spent at delta=1e-05, 1 debit>"
    )


def test_import_of_the_ledger_is_light():
    code = (
        "import sys, skfedcal.privacy.ledger as m; m.PrivacyLedger();"
        "sys.exit(any(n in sys.modules for n in ('numpy', 'scipy', 'sklearn')))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


# Threads and processes


def test_threads_lose_no_record_and_never_overspend(where, no_fsync):
    ledger = PrivacyLedger(where, budget=budget_for(50))

    def debit(i):
        try:
            return ledger.debit(EVENT, label=str(i))
        except BudgetExceededError:
            return None

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(debit, range(80)))
    paid = {record["id"] for record in ledger.records()}
    assert paid == {i for i in ids if i} and len(paid) == 50
    assert ledger.verify() == 50


def test_two_ledgers_on_one_file_share_the_budget(path):
    one, two = (PrivacyLedger(path, budget=budget_for(4)) for _ in range(2))
    for ledger in (one, two, one, two):
        ledger.debit(EVENT, label="x")
    for ledger in (one, two):
        with pytest.raises(BudgetExceededError):
            ledger.debit(EVENT, label="x")
    assert one.spent() == two.spent()


CHILD = """
import sys
from skfedcal.exceptions import BudgetExceededError
from skfedcal.privacy.events import GaussianEvent
from skfedcal.privacy.ledger import PrivacyLedger
ledger = PrivacyLedger(sys.argv[1], budget=(float(sys.argv[2]), float(sys.argv[3])))
sys.stdin.readline()
try:
    while True:
        print(ledger.debit(GaussianEvent(0.1), label=sys.argv[4]))
except BudgetExceededError:
    pass
"""


def test_two_processes_lose_no_record_and_never_overspend(path):
    eps, delta = budget_for(150)
    root = Path(__file__).parents[2]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path), str(eps), str(delta), name],
            cwd=root,
            **pipes,
        )
        for name in "ab"
    ]
    for child in children:
        child.stdin.write("go\n")
        child.stdin.flush()
    ids = [child.communicate(timeout=60)[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0]
    ledger = PrivacyLedger(path)
    assert sorted(ids[0] + ids[1]) == sorted(r["id"] for r in ledger.records())
    assert ledger.verify() == 150


@contextmanager
def held_by_a_thread(ledger):
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with ledger._session(write=True):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(10)
    try:
        yield
    finally:
        leave.set()
        thread.join()


def test_debit_goes_to_the_file_that_bears_the_name_after_the_wait(path):
    holder, _ = fill(path, 2)
    waiting = PrivacyLedger(path)
    replacement = path.with_name("longer.jsonl")
    replacement.write_bytes(path.read_bytes())
    PrivacyLedger(replacement).debit(EVENT, label="third")
    with ThreadPoolExecutor(1) as pool:
        with held_by_a_thread(holder):
            future = pool.submit(waiting.debit, EVENT, label="fourth")
            time.sleep(0.1)
            assert not future.done()
            os.replace(replacement, path)
        future.result(10)
    assert PrivacyLedger(path).verify() == 4


@needs_fork
def test_forked_child_shares_the_account_even_if_a_thread_held_the_lock(path):
    ledger, _ = fill(path, 2, budget=budget_for(4))
    with held_by_a_thread(ledger):
        fd = ledger._store._fd
        pid = os.fork()
        if not pid:
            try:
                # A copy of the descriptor would keep the lock if the parent died.
                with pytest.raises(OSError, match="Bad file descriptor"):
                    os.fstat(fd)
                ledger.debit(EVENT, label="child")
            except BaseException:
                os._exit(1)
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    ledger.debit(EVENT, label="parent")
    assert [r["label"] for r in ledger.records()[2:]] == ["child", "parent"]
    with pytest.raises(BudgetExceededError):
        ledger.debit(EVENT, label="x")


@needs_fork
def test_memory_ledger_refuses_debits_in_a_forked_child():
    ledger, _ = fill(None, 1)

    def debit():
        assert len(ledger) == 1
        with pytest.raises(RuntimeError, match=r"PrivacyLedger\(path\)"):
            ledger.debit(EVENT, label="child")

    assert in_fork(debit) == 0
    ledger.debit(EVENT, label="parent")


@needs_fork
def test_sigkill_at_random_moments_never_loses_a_payment(tmp_path):
    file = Path(__file__).with_name("kill_ledger.py")
    spec = importlib.util.spec_from_file_location("kill_ledger", file)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    count = script.run(tmp_path, kills=60, seed=1)
    assert count["killed"] >= 60
    assert count["refusals"] == count["ledgers"]
    assert count["debits"] >= count["releases"] > 0
    assert count["debits under fire"] > 0


def test_damage_of_a_whole_last_line_is_refused(path):
    fill(path, 3)
    raw = path.read_bytes()
    start = raw[:-1].rindex(b"\n") + 1
    for place in range(start, len(raw) - 2, 7):
        damaged = bytearray(raw)
        damaged[place] ^= 0x80
        path.write_bytes(damaged)
        with pytest.raises(LedgerCorruptedError):
            PrivacyLedger(path)
        assert path.read_bytes() == damaged
