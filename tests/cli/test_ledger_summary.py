"""``skfedcal ledger --summary``: what files say, what they cannot, what they forge."""

import json
import math
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from skfedcal import FedHistogramCalibrator, FedTempCalibrator, make_federation
from skfedcal.cli.commands._summary import above, below, clean, day_of
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    GaussianEvent,
    LocalDP,
    PrivacyLedger,
    PureEvent,
    SourceDP,
)
from skfedcal.privacy.ledger_file import GENESIS, canonical, digest

FROZEN = Path(__file__).parents[1] / "frozen" / "files"
ARTICLES = [f"Art. 35(7)({letter})" for letter in "abcd"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A ledger with a budget, and the calibrator that it paid for."""
    path = tmp_path_factory.mktemp("fitted")
    fed = make_federation(40, 1200, n_classes=3, random_state=0)
    ledger = PrivacyLedger(path / "ledger.jsonl", budget=(3.0, 1e-5))
    FedTempCalibrator(eps=1.0, ledger=ledger).fit(fed.clients).save(path / "cal.json")
    return path


def forge(path, change):
    """Change records and compute all hashes anew, as one can who has the file."""
    out, previous = [], GENESIS
    for line in Path(path).read_text().splitlines():
        record = json.loads(line)
        change(record)
        record["hash"] = previous = digest(record, previous)
        out.append(canonical(record).decode())
    Path(path).write_text("".join(f"{line}\n" for line in out))


def gaussian_eps(mu, delta):
    """Eps of a mu-GDP release by bisection on the formula of Balle and Wang."""
    low, high = 0.0, 50.0
    for _ in range(200):
        eps = (low + high) / 2
        found = norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(
            -mu / 2 - eps / mu
        )
        low, high = (eps, high) if found > delta else (low, eps)
    return high


def test_says_unit_relation_eps_left_and_trust(run_json, fitted):
    found = run_json(
        "ledger", fitted / "ledger.jsonl", "--summary", "--result", fitted / "cal.json"
    )
    (account,) = found["populations"]
    assert account["units"] == ["client"] and account["adjacency"] == ["zero-out"]
    assert account["eps"] + account["eps_left"] == pytest.approx(3.0)
    (release,) = found["releases"]
    assert release["label"] == "FedTempCalibrator" and release["n_units"] == 40
    (record,) = PrivacyLedger(fitted / "ledger.jsonl").records()
    exact = gaussian_eps(record["event"]["mu"], 1e-5)
    # Filters and the slack of discrete noise charge a bit more.
    assert exact <= account["eps"] <= 1.03 * exact
    (result,) = found["results"]
    assert (result["eps"], result["records"]) == (1.0, [1])
    assert found["contradictions"] == []
    assert [row["model"] for row in found["trust"]] == ["central"]
    assert "exact sums" in found["trust"][0]["server"]


def test_each_question_is_answered_or_named(run, run_json, fitted):
    found = run_json("ledger", fitted / "ledger.jsonl", "--summary")
    assert [question["article"] for question in found["dpia"]] == ARTICLES
    for form in ("text", "markdown"):
        code, out, lines = run(
            "ledger", fitted / "ledger.jsonl", "--summary", "--format", form
        )
        assert (code, lines) == (0, [])
        plain = " ".join(out.replace("\\", "").split())
        for question in found["dpia"]:
            assert question["from_the_files"]
            assert question["to_be_answered_by_the_controller"]
            for text in (
                question["article"],
                *question["from_the_files"],
                *question["to_be_answered_by_the_controller"],
            ):
                assert text in plain
        assert plain.count("To be answered by the controller") == 4
        assert "no legal advice" in plain
        assert "No head was given" in plain


def test_head_is_said_to_be_checked(run_json, fitted):
    path = fitted / "ledger.jsonl"
    head = PrivacyLedger(path).head
    found = run_json("ledger", path, "--summary", "--head", head)
    assert found["head_checked"] and found["head"] == head
    assert "written down earlier" in " ".join(found["dpia"][3]["from_the_files"])


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (CentralDP(1.0), "central"),
        (DistributedDP(1.0, mode="faithful"), "distributed"),
        (DistributedDP(1.0), "distributed"),
        (LocalDP(2.0, mode="faithful"), "local"),
        (SourceDP(1.0, mode="faithful"), "source"),
        (CentralDP(1.0, unit="example"), "central"),
    ],
    ids=lambda value: str(value),
)
def test_every_privacy_model_agrees_with_its_ledger(run_json, tmp_path, model, word):
    fed = make_federation(40, 1200, n_classes=2, random_state=0)
    ledger = PrivacyLedger(tmp_path / "l.jsonl")
    calibrator = FedHistogramCalibrator(privacy=model, ledger=ledger)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        calibrator.fit(fed.clients).save(tmp_path / "cal.json")
    words = ["ledger", tmp_path / "l.jsonl", "--summary"]
    found = run_json(*words, "--result", tmp_path / "cal.json")
    assert found["contradictions"] == []
    assert [row["model"] for row in found["trust"]] == [word]
    assert found["populations"][0]["units"] == [model.unit]
    risks = " ".join(found["dpia"][2]["from_the_files"])
    assert ("several rows" in risks) == (model.unit == "example")


def test_simulations_and_exact_answers_stand_apart(run, run_json, tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = PrivacyLedger(path, require_secure=False)
    ledger.debit(PureEvent(0.5), label="real")
    ledger.debit(PureEvent(3.0), label="played", mode="simulation")
    ledger.note_exact(label="plain", run_id="one")
    (account,) = run_json("ledger", path, "--summary")["populations"]
    counts = [account[name] for name in ("debits", "simulated", "exact")]
    assert counts == [2, 1, 1]
    assert account["eps"] == pytest.approx(3.5)
    assert account["eps_of_real_noise"] == pytest.approx(0.5)
    assert account["eps_left"] is None
    out = " ".join(run("ledger", path, "--summary")[1].split())
    assert "Simulations (no protection; kept apart): 1." in out
    assert "eps protects nobody here" in out and "no eps covers" in out
    assert out.index("real") < out.index("played") < out.index("plain")
    # Of the real release only: exp(0.5) = 1.6487...
    assert "factor of at most 1.65 (exp of eps 0.5)" in out


def test_a_seeded_fit_is_a_simulation(run_json, tmp_path):
    fed = make_federation(40, 1200, n_classes=3, random_state=0)
    ledger = PrivacyLedger(tmp_path / "l.jsonl", require_secure=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatedPrivacyWarning)
        cal = FedTempCalibrator(eps=1.0, ledger=ledger, random_state=0)
        cal.fit(fed.clients).save(tmp_path / "cal.json")
    words = ["ledger", tmp_path / "l.jsonl", "--summary"]
    found = run_json(*words, "--result", tmp_path / "cal.json")
    assert found["results"][0]["simulated"] and found["trust"][0]["simulated"]
    assert found["contradictions"] == []


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_an_empty_ledger(run, run_json, tmp_path, form):
    (tmp_path / "empty.jsonl").touch()
    words = ["ledger", tmp_path / "empty.jsonl", "--summary"]
    found = run_json(*words)
    assert found["releases"] == found["populations"] == found["trust"] == []
    assert len(found["dpia"]) == 4
    code, out, _ = run(*words, "--format", form)
    assert code == 0 and "The ledger has no record" in out


@pytest.mark.parametrize("name", ["ledger.jsonl", "ledger-mixed.jsonl"])
def test_ledgers_of_earlier_versions_say_what_is_not_recorded(
    run, run_json, tmp_path, name
):
    shutil.copyfile(FROZEN / name, tmp_path / name)
    found = run_json("ledger", tmp_path / name, "--summary")
    assert all(account["units"] == [] for account in found["populations"])
    assert [row["model"] for row in found["trust"]] == ["not recorded"]
    out = " ".join(run("ledger", tmp_path / name, "--summary")[1].split())
    assert "Neighbouring relation: not recorded." in out
    assert "Trust model not recorded" in out


def test_the_summary_states_the_relations_of_a_site(run, run_json, tmp_path):
    path = tmp_path / "site.jsonl"
    shutil.copyfile(FROZEN / "site-ledger.jsonl", path)
    assert "Neighbouring relation: not recorded." in run("ledger", path, "--summary")[1]
    n_old = len(PrivacyLedger(path))
    ledger = PrivacyLedger(path, budget=PrivacyLedger(path).budgets()[-1])
    for relation in ("zero-out", "any two values"):
        details = {"noise": "own", "unit": "example", "adjacency": relation}
        ledger.debit(PureEvent(1e-6), label="answer", details=details)
    PrivacyLedger(path).verify()
    out = " ".join(run("ledger", path, "--summary")[1].split())
    assert (
        "Neighbouring relation: zero-out (one unit sends zeros instead of its values; "
        "the number of units is public); any two values (one unit has any two values); "
        f"not recorded in {n_old} of {n_old + 2} debits."
    ) in out
    found = run_json("ledger", path, "--summary")
    assert found["populations"][0]["adjacency"] == ["zero-out", "any two values"]


def test_exact_answers_have_no_neighbouring_relation(run, tmp_path):
    ledger = PrivacyLedger(tmp_path / "l.jsonl")
    ledger.note_exact(label="plain", run_id="r")
    out = run("ledger", tmp_path / "l.jsonl", "--summary")[1]
    assert "Neighbouring relation: none, because no release has noise." in out


def test_results_of_every_saved_kind_are_read(run_json, tmp_path):
    (tmp_path / "l.jsonl").touch()
    for name in ("calibrator-Temp.json", "histogram.json", "calibrator-Auto.json"):
        words = ["ledger", tmp_path / "l.jsonl", "--summary"]
        found = run_json(*words, "--result", FROZEN / name)
        assert found["results"][0]["eps"] is None
        assert [row["model"] for row in found["trust"]] == ["exact"]


def edited(path, out, **changes):
    content = json.loads(path.read_text())
    content["privacy"].update(changes)
    out.write_text(json.dumps(content))
    return out


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"eps": 0.1}, "its debits cost eps = "),
        ({"delta": 0.0}, "its debits cost eps = inf"),
        ({"unit": "example"}, "protects one example, record 1 one client"),
        ({"ledger_ids": []}, "names no debit"),
        ({"ledger_ids": ["f" * 32]}, "not in this ledger"),
        ({"eps": {"float": "inf"}}, "states no eps, and names debits"),
    ],
)
def test_a_forged_result_is_a_failed_check(run, fitted, tmp_path, changes, text):
    forged = edited(fitted / "cal.json", tmp_path / "cal.json", **changes)
    words = ["ledger", fitted / "ledger.jsonl", "--summary", "--result", forged]
    code, out, lines = run(*words)
    assert code == 1 and len(lines) == 1
    assert text in lines[0] and text in " ".join(out.split())
    assert "CONTRADICTIONS" in out


def test_a_result_that_hides_a_simulation(run, fitted, tmp_path):
    path = tmp_path / "l.jsonl"
    shutil.copyfile(fitted / "ledger.jsonl", path)
    forge(path, lambda record: record.update(mode="simulation"))
    words = ["ledger", path, "--summary", "--result", fitted / "cal.json"]
    code, _, lines = run(*words)
    assert code == 1 and "record 1 is a simulation" in lines[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": 3},
        {"privacy": {}},
        {"privacy": {"eps": "many"}},
        {"format_version": 99},
        {"format": "skfedcal-roster"},
    ],
)
def test_a_damaged_result_is_one_line(fails, fitted, tmp_path, changes):
    content = json.loads((fitted / "cal.json").read_text()) | changes
    (tmp_path / "cal.json").write_text(json.dumps(content))
    words = ["ledger", fitted / "ledger.jsonl", "--summary", "--result"]
    error = fails(*words, tmp_path / "cal.json")
    assert "cal.json" in error


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"details": "text"}, "is not a ledger record"),
        ({"details": {"budget": "all"}}, "budget must be (eps, delta)"),
        ({"population": ["a"]}, "is not a ledger record"),
        ({"label": None}, "is not a ledger record"),
        ({"t": "yesterday"}, "is not a ledger record"),
        ({"mode": "trusted"}, "has the unknown mode 'trusted'"),
        ({"event": {"kind": "magic"}}, "cannot read"),
    ],
)
def test_forged_records_are_refused_in_one_line(fails, fitted, tmp_path, changes, text):
    path = tmp_path / "l.jsonl"
    shutil.copyfile(fitted / "ledger.jsonl", path)
    forge(path, lambda record: record.update(changes))
    assert text in fails("ledger", path, "--summary")
    assert text in fails("ledger", path)


def test_a_damaged_ledger_has_no_summary(fails, fitted, tmp_path):
    path = tmp_path / "l.jsonl"
    path.write_text((fitted / "ledger.jsonl").read_text().replace("0.2", "0.1", 1))
    assert "does not match its hash" in fails("ledger", path, "--summary")


def test_odd_details_are_not_recorded_and_text_is_cleaned(run, run_json, tmp_path):
    path = tmp_path / "l.jsonl"
    odd = {"unit": ["client"], "n_units": "many", "trust": 7, "adjacency": None}
    label = "a|b\x1b[31m\n# head <script>" + "x" * 500
    PrivacyLedger(path).debit(GaussianEvent(0.2), label=label, details=odd)
    forge(path, lambda record: record.update(t=1e300))
    (release,) = run_json("ledger", path, "--summary")["releases"]
    assert release["unit"] is release["n_units"] is release["trust"] is None
    assert release["date"] == "no valid date"
    for form in ("text", "markdown"):
        out = run("ledger", path, "--summary", "--format", form)[1]
        assert "\x1b" not in out and "\n# head" not in out and "x" * 100 not in out
    assert "\\<script\\>" in out and "a\\|b" in out
    # Every row of a table has the cells of its header.
    rows = [line.replace("\\|", "") for line in out.splitlines() if line[:1] == "|"]
    assert {line.count("|") for line in rows} <= {3, 7, 8}


def test_a_raised_budget(run_json, tmp_path):
    path = tmp_path / "l.jsonl"
    ledger = PrivacyLedger(path, budget=(1.0, 1e-5))
    ledger.debit(PureEvent(0.9), label="first")
    ledger.raise_budget((3.0, 1e-5), reason="board of May")
    found = run_json("ledger", path, "--summary")
    assert found["budget"] == [3.0, 1e-5] and found["holds_at"] == 2e-5
    assert found["raises"][0]["reason"] == "board of May"
    assert not found["raises"][0]["signed"]
    measures = " ".join(found["dpia"][3]["from_the_files"])
    assert "raised 1 time, 1 of them unsigned" in measures


@pytest.mark.parametrize("ending", [".txt", ".md", ".json"])
def test_writes_a_file_by_its_ending(run, fails, fitted, tmp_path, ending):
    output = tmp_path / f"summary{ending}"
    words = ["ledger", fitted / "ledger.jsonl", "--summary", "-o", output]
    assert run(*words)[0] == 0
    text = output.read_text()
    assert (ending == ".json") == text.startswith("{")
    assert (ending == ".md") == text.startswith("# ")
    assert "--force" in fails(*words)
    assert run(*words, "--force")[0] == 0


def test_the_ledger_is_never_written_over(fails, fitted):
    path = fitted / "ledger.jsonl"
    words = ["ledger", path, "--summary", "--force"]
    assert "is not known" in fails(*words, "-o", path)
    cal = fitted / "cal.json"
    assert "is an input" in fails(*words, "--result", cal, "-o", cal)


def test_options_of_the_summary_need_it(fails, fitted):
    for words in (["--result", "cal.json"], ["--format", "markdown"], ["-o", "s.md"]):
        assert "needs --summary" in fails("ledger", fitted / "ledger.jsonl", *words)


def test_digits_round_to_the_safe_side():
    rng = np.random.default_rng(0)
    for value in [*10 ** rng.uniform(-8, 8, 500), 1.0, 0.999, 9.995, 1e-5, 3.0]:
        assert float(below(value)) <= value * (1 + 1e-9)
        assert float(above(value)) >= value * (1 - 1e-9)
        assert float(above(value)) == pytest.approx(value, rel=0.011)
    assert (above(0.0), below(0.0), above(math.inf)) == ("0", "0", "inf")


def test_text_of_files_is_one_line():
    assert clean("a\n\tb\x07\u202ec") == "a b c"
    assert len(clean("x" * 1000)) == 80
    assert day_of(0) == "1970-01-01" and day_of(-1e30) == "no valid date"


RELEASE = FROZEN.parent / "releases" / "0.1.0"


def test_the_ledger_of_a_site_and_a_result_over_sites(run_json, run, tmp_path):
    for name in ("result.json", "result-ledger.jsonl"):
        shutil.copyfile(RELEASE / name, tmp_path / name)
    words = ["ledger", tmp_path / "result-ledger.jsonl", "--summary", "--result"]
    found = run_json(*words, tmp_path / "result.json")
    assert found["contradictions"] == []
    assert found["results"][0]["records"] == [1, 2]
    assert found["populations"][0]["units"] == ["example"]
    # A ledger of another run, and one whose debit is smaller than the result states.
    other = tmp_path / "other.jsonl"
    PrivacyLedger(other).debit(PureEvent(0.5), label="else")
    code, _, lines = run(
        "ledger", other, "--summary", "--result", tmp_path / "result.json"
    )
    assert code == 1 and "has no record of the run" in lines[0]
    smaller = {"kind": "gaussian", "mu": 0.01, "eps_slack": 0.0, "delta_slack": 0.0}
    forge(tmp_path / "result-ledger.jsonl", lambda r: r.update(event=smaller))
    code, _, lines = run(*words, tmp_path / "result.json")
    assert code == 1 and "was debited" in lines[0]


@pytest.mark.parametrize("change", ["runs", "terms", "sites", "calibrator"])
def test_a_damaged_result_of_sites_is_one_line(run, tmp_path, change):
    shutil.copyfile(RELEASE / "result-ledger.jsonl", tmp_path / "l.jsonl")
    content = json.loads((RELEASE / "result.json").read_text())
    if change == "terms":
        content["content"]["runs"][0]["terms"] = 5
    else:
        content["content"][change] = 5
    (tmp_path / "result.json").write_text(json.dumps(content))
    words = ["ledger", tmp_path / "l.jsonl", "--summary", "--result"]
    code, out, lines = run(*words, tmp_path / "result.json")
    assert (code, out) == (4, "") and len(lines) == 1 and "result.json" in lines[0]
