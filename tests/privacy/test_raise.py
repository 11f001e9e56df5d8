"""A budget grows by a record of its own: history, filters, signatures."""

import json
import pickle

import pytest

from skfedcal.cli import main
from skfedcal.exceptions import BudgetExceededError, LedgerCorruptedError
from skfedcal.federation import SiteKey
from skfedcal.privacy import GaussianEvent, PrivacyLedger, PureEvent
from skfedcal.privacy.ledger_file import canonical, digest
from skfedcal.privacy.site_ledger import SiteLedger

DELTA = 1e-5
OLD, NEW = (1.0, DELTA), (3.0, DELTA)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "ledger.jsonl"
    PrivacyLedger(path, budget=OLD).debit(PureEvent(0.9), label="first")
    return path


def debits_until_refused(ledger, event):
    for n in range(1000):
        try:
            ledger.debit(event, label="more")
        except BudgetExceededError:
            return n
    raise AssertionError


def test_history_stays_and_the_head_changes(path):
    before, old_head = path.read_bytes(), PrivacyLedger(path).head
    ledger = PrivacyLedger(path, budget=OLD)
    head = ledger.raise_budget(NEW, reason="board of May")
    assert path.read_bytes().startswith(before)
    assert head == PrivacyLedger(path, head=head).head != old_head
    assert ledger.budget == NEW and ledger.budgets() == [OLD, NEW]
    assert ledger.spent() == pytest.approx(0.9)
    assert "1 debit" in repr(ledger) and "of 3 spent" in repr(ledger)
    record = ledger.records()[-1]
    assert record["details"]["reason"] == "board of May"
    assert record["event"]["eps"] == 0.0


@pytest.mark.parametrize("event", [PureEvent(0.05), GaussianEvent(0.1)])
def test_what_is_admitted_after_a_raise_is_what_the_new_filters_admit(path, event):
    ledger = PrivacyLedger(path, budget=OLD)
    debits_until_refused(ledger, PureEvent(0.05))
    ledger.raise_budget(NEW, reason="x")
    n = debits_until_refused(ledger, event)
    # A ledger that had the new budget from the first debit on.
    fresh = PrivacyLedger(budget=NEW)
    for record in ledger.records():
        if record["mode"] == "secure" and record["label"] != "more":
            fresh.debit(PureEvent(record["event"]["eps"]), label="x")
    n_old = sum(r["event"] == PureEvent(0.05).to_dict() for r in ledger.records())
    n_old -= n if event == PureEvent(0.05) else 0
    for _ in range(n_old):
        fresh.debit(PureEvent(0.05), label="x")
    assert debits_until_refused(fresh, event) == n > 5
    assert ledger.spent() == pytest.approx(fresh.spent())


def test_a_larger_budget_without_a_raise_is_refused_and_a_smaller_one_is_not(path):
    with pytest.raises(ValueError, match="--raise"):
        PrivacyLedger(path, budget=NEW).debit(PureEvent(0.1), label="x")
    PrivacyLedger(path, budget=OLD).raise_budget(NEW, reason="x")
    with pytest.raises(ValueError, match="--raise"):
        PrivacyLedger(path, budget=(4.0, DELTA)).debit(PureEvent(0.1), label="x")
    PrivacyLedger(path, budget=(2.0, DELTA)).debit(PureEvent(0.1), label="x")
    with pytest.raises(ValueError, match=r"kept under the budget \(2, 1e-05\)"):
        PrivacyLedger(path, budget=NEW).debit(PureEvent(0.1), label="x")


def test_a_process_that_was_not_told_does_not_take_the_raise_back(path):
    running = PrivacyLedger(path, budget=OLD)
    PrivacyLedger(path, budget=OLD).raise_budget(NEW, reason="x")
    running.debit(PureEvent(0.05), label="x")
    with pytest.raises(BudgetExceededError):
        running.debit(PureEvent(0.5), label="x")
    PrivacyLedger(path, budget=NEW).debit(PureEvent(0.5), label="x")


@pytest.mark.parametrize(
    ("budget", "reason", "text"),
    [
        (OLD, "x", "does not raise it"),
        ((0.95, DELTA), "x", "does not raise it"),
        ((5.0, DELTA / 2), "x", "does not raise it"),
        (NEW, " ", "reason must say"),
        ((float("inf"), DELTA), "x", "must be positive"),
    ],
)
def test_what_is_no_raise_is_an_error(path, budget, reason, text):
    before = path.read_bytes()
    with pytest.raises(ValueError, match=text):
        PrivacyLedger(path, budget=OLD).raise_budget(budget, reason=reason)
    assert path.read_bytes() == before


def test_an_empty_ledger_has_nothing_to_raise():
    with pytest.raises(ValueError, match="no debit under a budget yet"):
        PrivacyLedger(budget=OLD).raise_budget(NEW, reason="x")
    with pytest.raises(ValueError, match="mode must be one of"):
        PrivacyLedger().debit(PureEvent(0.0), label="x", mode="raise")


def forge(path, change):
    """Rewrite the file with all hashes computed anew."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    previous = "0" * 64
    lines = []
    for n, record in enumerate(change(records)):
        record = {**record, "n": n}
        record["hash"] = previous = digest(record, previous)
        lines.append(canonical(record))
    path.write_bytes(b"\n".join(lines) + b"\n")


def test_a_site_accepts_raises_of_its_own_key_only(path):
    own, other = SiteKey.generate("lyon"), SiteKey.generate("lyon")

    def opened(budget=OLD):
        return SiteLedger(path, budget=budget, signed=own.signed)

    before = path.read_bytes()
    for sign in (None, other.sign, lambda text: own.sign(text + b" ")):
        with pytest.raises(ValueError, match="signature of its site only"):
            opened().raise_budget(NEW, reason="x", sign=sign)
    assert path.read_bytes() == before
    # Somebody who can write the file, and has no key or another one.
    for sign in (None, other.sign):
        PrivacyLedger(path, budget=OLD).raise_budget(NEW, reason="x", sign=sign)
        with pytest.raises(LedgerCorruptedError, match="not signed by the key of this"):
            opened()
        path.write_bytes(before)
    opened().raise_budget(NEW, reason="x", sign=own.sign)
    opened(NEW).debit(PureEvent(0.5), label="x")
    # The file of the new key has the old public key, which signed the raise.
    renewed = own.renew()
    SiteLedger(path, budget=NEW, signed=renewed.signed).debit(PureEvent(0.1), label="x")
    with pytest.raises(LedgerCorruptedError):
        SiteLedger(path, budget=NEW, signed=SiteKey.generate("lyon").signed)


@pytest.mark.parametrize(
    "change",
    [
        lambda r: [r[0], r[2], r[1]],  # elsewhere in the same ledger
        lambda r: [r[0], r[1], r[2], r[1]],  # a second time
        lambda r: [
            r[0],
            {**r[1], "details": {**r[1]["details"], "budget": [9.0, DELTA]}},
        ],
        lambda r: [r[0], {**r[1], "details": {**r[1]["details"], "reason": "y"}}],
        lambda r: [{**r[0], "label": "another"}, r[1]],  # another history
        lambda r: [r[0], {**r[1], "details": None}],
    ],
)
def test_a_signed_raise_is_valid_in_one_place_of_one_ledger(path, change):
    own = SiteKey.generate("lyon")
    ledger = SiteLedger(path, budget=OLD, signed=own.signed)
    ledger.raise_budget(NEW, reason="x", sign=own.sign)
    ledger.debit(PureEvent(0.5), label="x")
    assert pickle.loads(pickle.dumps(ledger)).spent() == ledger.spent()
    forge(path, lambda records: records)
    SiteLedger(path, budget=NEW, signed=own.signed)  # the forger's tool works
    forge(path, change)
    with pytest.raises(LedgerCorruptedError, match="raises the budget, which is ref"):
        SiteLedger(path, budget=NEW, signed=own.signed)


def test_the_command(path, tmp_path, capsys):
    key = SiteKey.generate("lyon")
    key.save(tmp_path / "lyon.key")
    words = ["ledger", str(path), "--raise", "3", "--reason", "board of May"]
    assert main([*words, "--key", str(tmp_path / "lyon.key"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["budget"] == [3.0, DELTA] and found["debits"] == 1
    assert found["holds_at"] == pytest.approx(2 * DELTA)
    assert [x["reason"] for x in found["raises"]] == ["board of May"]
    assert SiteLedger(path, budget=NEW, signed=key.signed).head == found["head"]
    assert main(["ledger", str(path)]) == 0
    assert "eps 3 at delta 2e-05, the sum of all deltas" in capsys.readouterr().out
    assert main(["ledger", str(path), "--raise", "4"]) == 2
    assert main(words) == 4
    assert "does not raise it" in capsys.readouterr().err
    SiteKey.generate("oslo").save(tmp_path / "oslo.key")
    assert main(["ledger", str(path), "--key", str(tmp_path / "oslo.key")]) == 4
    assert "not signed by the key of this site" in capsys.readouterr().err
