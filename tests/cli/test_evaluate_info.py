"""``skfedcal evaluate`` and ``skfedcal info``."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

import skfedcal
from skfedcal.cli._options import METHODS
from skfedcal.clients import load_federation


@pytest.fixture
def calibrator(run, federation_file, tmp_path):
    path = tmp_path / "cal.json"
    assert run("fit", federation_file, "-o", path)[0] == 0
    return path


def test_scores_before_and_after(run_json, federation_file, calibrator):
    words = ["--calibrator", calibrator]
    base, after = run_json("evaluate", federation_file, *words)["scores"]
    fed = load_federation(federation_file)
    proba = skfedcal.load(calibrator).predict_proba(fed.logits).astype(float)
    expected = log_loss(fed.labels, proba / proba.sum(axis=1, keepdims=True))
    assert after["NLL"] == pytest.approx(expected, abs=1e-6)
    assert after["accuracy"] == accuracy_score(fed.labels, proba.argmax(axis=1))
    assert after["NLL"] < base["NLL"] and after["ECE"] < base["ECE"]
    assert (base["name"], after["name"]) == ("base", "FedAuto")


def test_text_of_evaluate(run, federation_file, calibrator):
    words = ["--calibrator", calibrator, "--split", "val"]
    code, out, lines = run("evaluate", federation_file, *words)
    rows = out.splitlines()
    assert code == 0
    assert rows[0].split()[:3] == ["rows", "acc", "%"]
    assert [row.split()[0] for row in rows[2:4]] == ["base", "FedAuto"]
    assert max(map(len, rows)) <= 88
    assert all(line.startswith("[") for line in lines)


def test_classes_of_the_calibrator_may_come_in_another_order(run_json, tmp_path):
    # A calibrator sorts its columns by class; the file has those of the model.
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=300)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(300, 3))
    np.savez(tmp_path / "model.npz", logits=logits, labels=labels)
    names = np.array(["c", "a", "b"])
    cal = skfedcal.FedTempCalibrator(classes=names).fit(logits, names[labels])
    cal.save(tmp_path / "cal.json")
    words = ["--calibrator", tmp_path / "cal.json"]
    base, after = run_json("evaluate", tmp_path / "model.npz", *words)["scores"]
    assert base["accuracy"] == after["accuracy"] > 0.6


def test_private_estimates_hold_the_truth(run_json, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=3000)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(3000, 3))
    np.savez(tmp_path / "m.npz", logits=logits, labels=labels, client=np.arange(3000))
    words = ["evaluate", tmp_path / "m.npz"]
    found = run_json(*words, "--eps", "2", "--seed", "0")
    accuracy = found["scores"][0]["accuracy"]
    truth = run_json(*words)["scores"][0]["accuracy"]
    # Seeded; five standard errors of a share of 3000 rows are .035 at most, and the
    # interval of 95 % is wider than none.
    assert abs(accuracy["value"] - truth) < 0.1
    assert accuracy["low"] < accuracy["value"] < accuracy["high"]
    assert found["private"] and found["simulated"] and found["releases"] == 1
    assert not run_json(*words, "--eps", "2")["simulated"]


def test_a_private_evaluation_is_paid_for(run, run_json, fails, federation_file):
    words = ["evaluate", federation_file, "--split", "val", "--eps", "1"]
    words += ["--ledger", "spent.jsonl", "--budget", "1.5", "1e-3"]
    assert run_json(*words)["releases"] == 1
    assert run_json("ledger", "spent.jsonl")["debits"] == 1
    # A second one would be more than the budget.
    assert "budget" in fails(*words).lower()
    assert run_json("ledger", "spent.jsonl")["debits"] == 1


def test_what_was_paid_for_is_shown_before_the_budget_ends(
    run, run_json, federation_file, calibrator
):
    words = ["evaluate", federation_file, "--split", "val", "--eps", "1"]
    words += ["--ledger", "spent.jsonl", "--budget", "1.2", "1e-3"]
    code, out, lines = run(*words, "--calibrator", calibrator)
    assert code == 5 and sum("error" in line for line in lines) == 1
    assert run_json("ledger", "spent.jsonl")["debits"] == 1
    rows = [line.split()[0] for line in out.splitlines()[2:4]]
    assert rows == ["base", "base"] and "was spent once." in out


@pytest.mark.parametrize("method", ["temp", "bin", "bbq", "acctemp", "topbin"])
def test_a_ledger_without_a_budget_has_a_finite_sum(run_json, federation_file, method):
    # Of some releases delta is what rounding takes, at which two have no eps.
    words = ["--eps", "1", "--ledger", "spent.jsonl", "-o", "cal.json", "--force"]
    for n_debits in (1, 2):
        found = run_json("fit", federation_file, "--method", method, *words)["ledger"]
        assert found["debits"] == n_debits
        assert 0.99 * n_debits**0.5 < found["eps_spent"] < 1.01 * n_debits


def test_the_cost_of_a_private_evaluation_is_said(run, run_json, federation_file):
    words = ["evaluate", federation_file, "--split", "val", "--eps", "1"]
    ledger = ["--ledger", "spent.jsonl"]
    found = run_json(*words, *ledger, "--delta", "1e-6")
    assert 0 < found["delta"] <= 1e-6
    assert (found["ledger"]["debits"], found["ledger"]["delta"]) == (1, 1e-6)
    assert found["ledger"]["eps_spent"] == pytest.approx(1.0, rel=1e-3)
    _, out, lines = run(*words, "--seed", "0")
    assert "SIMULATED from a seed: no guarantee" in out and "eps 1 (delta " in out
    assert sum("guarantees nothing" in line for line in lines) == 1
    code, out, lines = run(*words[:-1], "0.1", "--seed", "0")
    assert (code, out) == (5, "") and "Nothing was spent" in lines[-1]
    _, out, _ = run(*words[:-1], "0.1", "--seed", "0", "--force")
    assert "too few clients for this eps" in out
    outs = [
        run(*words[:-1], "0.001", "--seed", str(seed), "--force")[1]
        for seed in range(6)
    ]
    assert any("nan to nan" in out for out in outs)  # no rows are left to divide by
    assert all("learned about accuracy of base, ECE of base" in out for out in outs)
    _, out, _ = run(*words, *ledger)
    assert "SIMULATED" not in out and "ledger spent.jsonl: eps " in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--delta", "1e-5"], "--delta needs --eps"),
        (["--eps", "0"], "'0' is not a finite number above 0"),
        (["--budget", "1", "1e-5"], "--budget needs --eps"),
        (
            ["--eps", "1", "--ledger", "x", "--seed", "1"],
            "--ledger cannot be combined with --seed",
        ),
        (["--calibrator", "none.json"], "none.json: no such file"),
        (["--split", "train"], "invalid choice"),
        (["--columns", "logits=z"], "has no array 'z'"),
    ],
)
def test_wrong_options_of_evaluate(fails, federation_file, words, message):
    assert message in fails("evaluate", federation_file, *words)


def test_wrong_files_of_evaluate(fails, calibrator, tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, logits=np.ones((3, 4)))
    assert "has no labels" in fails("evaluate", path)
    np.savez(path, logits=np.ones((3, 2)), labels=[0, 1, 1])
    np.savez(tmp_path / "one.npz", logits=np.ones((1, 2)), labels=[0])
    assert "has one row" in fails("evaluate", tmp_path / "one.npz")
    assert "was fitted on 4" in fails("evaluate", path, "--calibrator", calibrator)
    assert "Expected a calibrator" in fails("evaluate", path, "--calibrator", path)
    assert "no such file" in fails("evaluate", tmp_path / "none.npz")
    assert "no such file" in fails("info", tmp_path / "none.npz")
    path.write_bytes(b"")
    assert "not an .npz file" in fails("info", path)
    assert "not an .npz file" in fails("evaluate", path)


def test_info_lists_versions_and_methods(run, run_json):
    data = run_json("info")
    assert data["skfedcal"] == skfedcal.__version__
    assert data["packages"]["numpy"] == np.__version__
    assert set(data["methods"]) == set(METHODS)
    code, out, lines = run("info")
    assert (code, lines) == (0, [])
    assert all(method.estimator_name in out for method in METHODS.values())


def test_info_about_a_file(run, run_json, federation_file):
    data = run_json("info", federation_file)
    fed = load_federation(federation_file)
    assert data["test"]["rows"] == 500 and data["test"]["clients"] is None
    val = data["val"]
    assert (val["rows"], val["classes"], val["clients"]) == (1200, 4, 40)
    sizes = [len(labels) for _, labels in fed.val.clients]
    assert val["rows per client"]["max"] == max(sizes)
    assert sum(val["class counts"]) == 1200
    code, out, _ = run("info", federation_file)
    assert code == 0 and "40" in out and "none in the file" in out


def test_unit_example_counts_all_rows(run, run_json, fails, tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=3000)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(3000, 3))
    path = tmp_path / "m.npz"
    np.savez(path, logits=logits, labels=labels, client=np.arange(3000) % 3)
    assert "so would --unit example" in fails("evaluate", path, "--eps", "1")
    found = run_json("evaluate", path, "--eps", "1", "--unit", "example")
    accuracy = found["scores"][0]["accuracy"]
    # Noise and rounding to buckets are small for 3000 rows; the interval is for others.
    assert accuracy["value"] == pytest.approx(
        accuracy_score(labels, logits.argmax(axis=1)), abs=0.02
    )
    assert found["unit"] == "example" and accuracy["high"] - accuracy["low"] < 0.1
    words = ("--method", "temp", "--eps", "1", "--unit", "example")
    fitted = run_json("fit", path, *words, "-o", tmp_path / "c.json")
    assert (fitted["unit"], fitted["used"]) == ("example", True)
    assert "--unit needs --eps" in fails("evaluate", path, "--unit", "example")
    few = tmp_path / "few.npz"
    np.savez(few, logits=logits[:6], labels=labels[:6], client=np.arange(6))
    assert "With 6 rows" in fails("evaluate", few, "--eps", ".1", "--unit", "example")


def test_info_of_a_saved_calibrator(run, run_json, fails, calibrator, tmp_path):
    found = run_json("info", calibrator)
    saved = skfedcal.load(calibrator)
    assert found["calibrator"] == "FedAutoCalibrator"
    assert found["classes"] == saved.classes_.tolist()
    assert found["clients"] == 40
    assert "no differential privacy" in run("info", calibrator)[1]
    (tmp_path / "other.json").write_text("{}")
    assert "not a saved calibrator" in fails("info", tmp_path / "other.json")
    assert "no such file" in fails("info", tmp_path / "absent.json")
