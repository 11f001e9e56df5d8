"""``skfedcal ledger`` verifies a file and tells what was spent."""

import pytest

from skfedcal.privacy import GaussianEvent, PrivacyLedger, compose_epsilon

EVENT = GaussianEvent(0.2)


@pytest.fixture
def ledger(tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl", budget=(2.0, 1e-6))
    for population in ("north", "north", "south"):
        ledger.debit(EVENT, label="fit", population=population)
    return ledger


def test_accounts_budget_and_head(run_json, ledger):
    found = run_json("ledger", ledger.path)
    assert found["debits"] == 3 and found["simulated"] == 0
    assert found["budget"] == [2.0, 1e-6] and found["delta"] == 1e-6
    assert found["head"] == ledger.head
    assert {k: v["debits"] for k, v in found["populations"].items()} == {
        "north": 2,
        "south": 1,
    }
    for name in ("north", "south"):
        assert found["populations"][name]["eps"] == ledger.spent(population=name)
    exact = compose_epsilon([EVENT] * 2, 1e-6)
    assert exact < found["populations"]["north"]["eps"] < 1.02 * exact
    at = run_json("ledger", ledger.path, "--delta", "1e-3")["populations"]["south"]
    assert at["eps"] == pytest.approx(compose_epsilon([EVENT], 1e-3))


def test_text_ends_with_the_head(run, ledger):
    code, out, lines = run("ledger", ledger.path)
    assert (code, lines) == (0, [])
    assert out.splitlines()[-1].split() == ["head", ledger.head]
    assert "eps at delta=1e-06" in out and "eps 2, delta 1e-06" in out


def test_a_ledger_without_a_budget_is_stated_at_a_usual_delta(run_json, tmp_path):
    path = tmp_path / "plain.jsonl"
    PrivacyLedger(path, require_secure=False).debit(EVENT, label="x", mode="simulation")
    found = run_json("ledger", path)
    assert (found["budget"], found["delta"], found["simulated"]) == (None, 1e-5, 1)


def test_a_file_that_was_put_back_is_refused_by_its_head(run_json, fails, ledger):
    path, head = ledger.path, ledger.head
    with open(path) as file:
        lines = file.readlines()
    assert run_json("ledger", path, "--head", head)["debits"] == 3
    with open(path, "w") as file:
        file.writelines(lines[:2])
    assert run_json("ledger", path)["debits"] == 2
    assert "older or another copy" in fails("ledger", path, "--head", head)


def test_edited_and_missing_files_are_errors(fails, ledger, tmp_path):
    with open(ledger.path) as file:
        text = file.read()
    with open(ledger.path, "w") as file:
        file.write(text.replace('"south"', '"north"').replace("0.2", "0.1", 1))
    assert "line 1 does not match its hash" in fails("ledger", ledger.path)
    assert "no such file" in fails("ledger", tmp_path / "nothing.jsonl")
    (tmp_path / "empty").mkdir()
    assert "is a folder" in fails("ledger", tmp_path / "empty")
    (tmp_path / "text").write_text("hello\n")
    assert "not a ledger record" in fails("ledger", tmp_path / "text")


def test_an_empty_file_is_an_empty_ledger(run_json, tmp_path):
    (tmp_path / "empty.jsonl").touch()
    found = run_json("ledger", tmp_path / "empty.jsonl")
    assert found["debits"] == 0 and found["populations"] == {}


def test_verify_says_which_file_is_missing(fails):
    assert "nowhere.json: no such file" in fails("verify", "nowhere.json")
