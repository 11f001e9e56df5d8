"""``skfedcal fit`` and ``skfedcal predict``: same results as the estimators."""

import json
import os

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skfedcal import (
    FedAccTempCalibrator,
    FedAutoCalibrator,
    FedBinCalibrator,
    FedTempCalibrator,
    FedTopBinCalibrator,
    load,
    load_federation,
)
from skfedcal.cli._options import METHODS


def fit(run_json, path, *words):
    output = path.with_name("cal.json")
    return run_json("fit", path, "-o", output, "--force", "-q", *words), load(output)


def predict(run_json, path, *words):
    output = path.with_name("proba.npz")
    calibrator = path.with_name("cal.json")
    data = run_json("predict", calibrator, path, "-o", output, "--force", *words)
    with np.load(output, allow_pickle=False) as archive:
        return data, dict(archive)


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize(
    ("words", "estimator"),
    [
        ([], FedAutoCalibrator()),
        (
            ["--method", "temp", "--solver", "grid"],
            FedTempCalibrator(solver="grid"),
        ),
        (["--eps", "none"], FedAutoCalibrator()),
        (["--eps", "1", "--seed", "3"], FedAutoCalibrator(eps=1, random_state=3)),
        (["--method", "bin", "--n-bins", "7"], FedBinCalibrator(n_bins=7)),
        (["--method", "acctemp"], FedAccTempCalibrator()),
        (["--method", "topbin", "--n-bins", "7"], FedTopBinCalibrator(n_bins=7)),
        (
            ["--method", "bin", "--eps", "2", "--delta", "1e-6", "--seed", "5"],
            FedBinCalibrator(eps=2, delta=1e-6, random_state=5),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:random_state")
def test_the_file_predicts_what_the_estimator_predicts(
    run_json, federation_file, words, estimator
):
    fit(run_json, federation_file, *words)
    _, arrays = predict(run_json, federation_file)
    fed = load_federation(federation_file)
    estimator.set_params(classes=np.arange(4)).fit(fed.val.clients)
    proba = estimator.predict_proba(fed.logits)
    assert sorted(arrays) == ["classes", "labels", "predicted", "proba"]
    assert_array_equal(arrays["proba"], proba)
    assert_array_equal(arrays["predicted"], estimator.predict(fed.logits))
    assert_array_equal(arrays["labels"], fed.labels)
    assert_array_equal(arrays["classes"], np.arange(4))


def test_the_summary_says_what_was_fitted_and_spent(run_json, federation_file):
    words = ("--method", "temp", "--eps", "1")
    data, calibrator = fit(run_json, federation_file, *words)
    assert data == {
        "method": "temp",
        "temperature": calibrator.temperature_,
        "used": calibrator.improves_,
        "eps": 1.0,
        "delta": calibrator.privacy_.delta,
        "unit": "client",
        "simulated": False,
        "clients": 40,
        "rows": None,  # not public under eps
        "classes": 4,
        "rounds": calibrator.n_rounds_,
        "bytes_up": data["bytes_up"],
        "bytes_down": data["bytes_down"],
        "output": str(federation_file.with_name("cal.json")),
    }
    assert data["bytes_up"] > 0
    assert calibrator.privacy_.secure


def test_a_class_prior_is_handed_on(run_json, federation_file, run):
    words = ("--method", "biastemp", "--eps", "50", "--class-prior")
    _, calibrator = fit(run_json, federation_file, *words, "uniform")
    assert calibrator.class_prior == "uniform"
    _, calibrator = fit(run_json, federation_file, *words, "0.4,0.3,0.2,0.1")
    assert calibrator.class_prior == [0.4, 0.3, 0.2, 0.1]
    code, _, lines = run("fit", str(federation_file), *words, "even", "-o", "x.json")
    assert code == 2
    assert "'even' is not 'uniform', 'private' or numbers" in " ".join(lines)


def test_a_map_that_is_not_used_is_told(run, federation_file, tmp_path):
    path = str(tmp_path / "cal.json")
    words = ("fit", str(federation_file), "--eps", "0.01", "--seed", "0", "-o", path)
    _, out, _ = run(*words)
    assert "no: not distinguishable from noise, input unchanged" in out


def test_the_text_of_a_fit(run, federation_file, tmp_path):
    output = tmp_path / "cal.json"
    words = ["--method", "temp", "--eps", "1", "-o", output]
    code, out, lines = run("fit", federation_file, *words)
    pairs = dict(line.split("  ", 1) for line in out.splitlines())
    pairs = {name: value.strip() for name, value in pairs.items()}
    assert code == 0
    assert pairs["temperature"] == f"{load(output).temperature_:.6g}"
    assert pairs["eps spent"] == "1 (delta 1e-05) per client"
    assert pairs["clients"] == "40"
    assert pairs["written"] == str(output)
    # The noise of the day decides whether there is a warning.
    assert all(line.startswith(("[", "skfedcal: warning: ")) for line in lines)
    assert lines[0].startswith("[")


def test_quiet_leaves_out_progress_only(run, federation_file, tmp_path):
    words = ["fit", federation_file, "--force", "-o", tmp_path / "cal.json"]
    _, loud, _ = run(*words)
    assert run(*words, "-q") == (0, loud, [])


def test_a_seed_is_called_a_simulation(run, federation_file, tmp_path):
    words = ["fit", federation_file, "--eps", "1", "-o", tmp_path / "cal.json"]
    code, out, lines = run(*words, "--seed", "0", "-q")
    assert code == 0
    assert "SIMULATED" in out
    assert len(lines) == 1
    assert lines[0].startswith("skfedcal: warning: --seed makes the noise repeatable")


def test_verbose_shows_the_guarantee(run, federation_file, tmp_path):
    words = ["fit", federation_file, "--eps", "1", "-o", tmp_path / "cal.json"]
    _, out, lines = run(*words, "-v")
    assert any("protects one client of 40" in line for line in lines)
    assert "PrivacyReport" not in out


def test_splits(run_json, federation_file):
    fed = load_federation(federation_file)
    _, auto = fit(run_json, federation_file)
    _, val = fit(run_json, federation_file, "--split", "val")
    assert auto.reason_ == val.reason_
    data, test = fit(run_json, federation_file, "--split", "test")
    assert test.reason_ != val.reason_
    assert (data["rows"], data["clients"]) == (len(fed.labels), 1)
    data, arrays = predict(run_json, federation_file, "--split", "val")
    assert_array_equal(arrays["labels"], fed.val.labels)
    assert_array_equal(arrays["client"], fed.val.client_ids)
    # Accuracy on private labels would be an unpaid release.
    assert "accuracy" not in data


@pytest.mark.parametrize("form", ["log-odds", "one column", "two columns", "proba"])
def test_binary_forms_give_the_same_probabilities(run_json, tmp_path, form):
    rng = np.random.default_rng(0)
    odds = 3 * rng.standard_normal(200)
    positive = 1 / (1 + np.exp(-odds))
    arrays = {
        "log-odds": {"logits": odds},
        "one column": {"logits": odds[:, None]},
        "two columns": {"logits": np.column_stack([-odds / 2, odds / 2])},
        "proba": {"proba": positive},
    }[form]
    labels = (rng.random(200) < 1 / (1 + np.exp(-odds / 2))).astype(int)
    path = write(tmp_path / "model.npz", labels=labels, **arrays)
    _, calibrator = fit(run_json, path, "--method", "temp")
    _, out = predict(run_json, path)
    expected = 1 / (1 + np.exp(-odds / calibrator.temperature_))
    np.testing.assert_allclose(out["proba"][:, 1], expected, rtol=1e-9)
    assert calibrator.temperature_ == pytest.approx(2, rel=0.4)


def test_predict_needs_no_labels(run_json, federation_file):
    fit(run_json, federation_file)
    _, labelled = predict(run_json, federation_file)
    logits = load_federation(federation_file).logits
    proba = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for arrays in ({"logits": logits}, {"proba": proba}):
        write(federation_file, **arrays)
        data, out = predict(run_json, federation_file)
        assert "accuracy" not in data
        assert sorted(out) == ["classes", "predicted", "proba"]
        np.testing.assert_allclose(out["proba"], labelled["proba"], rtol=1e-5)


def test_predict_follows_the_columns_of_named_classes(run_json, tmp_path):
    rng = np.random.default_rng(0)
    logits, columns = rng.standard_normal((300, 3)), rng.integers(3, size=300)
    names = np.array(["c", "a", "b"])
    calibrator = FedBinCalibrator(classes=names).fit(logits, names[columns])
    calibrator.save(tmp_path / "cal.json")
    path = write(tmp_path / "model.npz", logits=logits, labels=columns)
    _, out = predict(run_json, path)
    assert_array_equal(out["classes"], ["a", "b", "c"])
    assert_array_equal(out["classes"][out["labels"]], names[columns])
    assert_array_equal(out["classes"][out["predicted"]], calibrator.predict(logits))


@pytest.mark.parametrize("input_type", ["proba", "log_proba", "logits"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_predict_turns_logits_into_what_was_fitted(
    run_json, tmp_path, input_type, n_classes
):
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(n_classes), size=200)
    labels = np.r_[proba[:150].argmax(axis=1), rng.integers(n_classes, size=50)]
    X = proba if input_type == "proba" else np.log(proba)
    calibrator = FedTempCalibrator(input_type=input_type).fit(X, labels)
    calibrator.save(tmp_path / "cal.json")
    path = write(tmp_path / "model.npz", logits=np.log(proba) + 7, labels=labels)
    _, out = predict(run_json, path)
    np.testing.assert_allclose(out["proba"], calibrator.predict_proba(X), rtol=1e-9)


def test_one_column_of_probabilities(run_json, tmp_path):
    rng = np.random.default_rng(0)
    positive, labels = rng.random((100, 1)), rng.integers(2, size=100)
    calibrator = FedTempCalibrator(input_type="proba").fit(positive, labels)
    calibrator.save(tmp_path / "cal.json")
    path = write(tmp_path / "model.npz", proba=positive[:, 0], labels=labels)
    _, out = predict(run_json, path)
    expected = calibrator.predict_proba(positive)
    np.testing.assert_allclose(out["proba"], expected, rtol=1e-9)


def test_float32_stays_float32(run_json, federation_file):
    fed = load_federation(federation_file)
    logits = fed.logits.astype(np.float32)
    write(federation_file, logits=logits, labels=fed.labels)
    fit(run_json, federation_file)
    assert predict(run_json, federation_file)[1]["proba"].dtype == np.float32


def test_clients_and_names_are_passed_on(run_json, tmp_path):
    rng = np.random.default_rng(0)
    path = write(
        tmp_path / "model.npz",
        logits=rng.standard_normal((6, 3)),
        labels=np.array([0, 1, 0, 1, 0, 1]),
        client=np.array(["b", "a", "b", "a", "b", "b"]),
        # A client without rows is still one of those that hide each other.
        client_names=np.array(["a", "empty", "b"]),
    )
    data, _ = fit(run_json, path, "--method", "bin")
    assert (data["clients"], data["classes"]) == (3, 3)
    _, out = predict(run_json, path)
    assert_array_equal(out["client_names"][out["client"]], list("bababb"))
    assert load_federation(path.with_name("proba.npz")).logits.shape == (6, 3)


def test_the_ledger_adds_up_and_refuses(run_json, fails, federation_file, tmp_path):
    ledger = tmp_path / "spent.jsonl"
    words = ["--eps", "1", "--ledger", ledger, "--budget", "1.2", "1e-5"]
    data, _ = fit(run_json, federation_file, *words)
    assert data["ledger"]["eps_spent"] == pytest.approx(1, rel=1e-3)
    assert data["ledger"]["debits"] == 1
    assert data["ledger"]["eps_budget"] == 1.2
    output = tmp_path / "cal.json"
    before = output.read_bytes()
    error = fails("fit", federation_file, *words, "-o", output, "--force")
    assert "the budget is eps = 1.2" in error
    assert output.read_bytes() == before
    error = fails("fit", federation_file, *words[:4], "-o", tmp_path / "cal2.json")
    assert "kept under the budget (1.2, 1e-05)" in error
    loose = [*words[:-2], "5", "1e-5"]
    assert "kept under" in fails("fit", federation_file, *loose, "-o", tmp_path / "c3")
    ledger.write_text(ledger.read_text().replace("FedAuto", "FedAuta"))
    error = fails("fit", federation_file, *words, "-o", output, "--force")
    assert "does not match its hash" in error


def test_nothing_is_spent_if_the_result_cannot_be_kept(
    fails, federation_file, tmp_path
):
    ledger, output = tmp_path / "spent.jsonl", tmp_path / "cal.json"
    output.write_text("mine")
    words = ["fit", federation_file, "--eps", "1", "--ledger", ledger]
    assert "exists. Pass --force" in fails(*words, "-o", output)
    assert "is a folder" in fails(*words, "-o", tmp_path)
    missing = tmp_path / "no" / "cal.json"
    assert "does not exist" in fails(*words, "-o", missing)
    assert "is an input" in fails(*words, "-o", federation_file, "--force")
    assert "or the ledger" in fails(*words, "-o", ledger)
    assert not ledger.exists()
    assert output.read_text() == "mine"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_an_output_folder_without_room_is_found_before_the_fit(fails, federation_file):
    # Permissions of root say that everything is writable; /proc is not.
    assert "not writable" in fails("fit", federation_file, "-o", "/proc/cal.json")


def test_predict_never_overwrites_by_itself(run, fails, federation_file, tmp_path):
    cal, output = tmp_path / "cal.json", tmp_path / "proba.npz"
    assert run("fit", federation_file, "-o", cal)[0] == 0
    words = ["predict", cal, federation_file, "-o"]
    assert run(*words, output)[0] == 0
    assert "exists. Pass --force" in fails(*words, output)
    assert run(*words, output, "--force")[0] == 0
    assert "'.json' is not known" in fails(*words, cal, "--force")
    assert "is an input" in fails(*words, federation_file, "--force")
    json.loads(cal.read_text())
    # No draft is left behind.
    names = {"model.npz", "cal.json", "proba.npz"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_eps_without_clients_says_so(run, federation_file, tmp_path):
    words = ["--split", "test", "--eps", "1", "-o", tmp_path / "cal.json", "-q"]
    code, _, lines = run("fit", federation_file, *words)
    assert code == 0
    assert "has no clients: all rows are one client" in lines[0]
    assert all(line.startswith("skfedcal: warning: ") for line in lines)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("eps", ["none", "2"])
def test_every_method_can_be_fitted_and_shown(run, run_json, tmp_path, method, eps):
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=600)
    logits = 3 * np.eye(2)[labels] + 2 * rng.normal(size=(600, 2))
    path = tmp_path / "two.npz"
    np.savez(path, logits=logits, labels=labels, client=np.arange(600) % 60)
    words = ["fit", path, "--method", method, "--eps", eps, "-o", "cal.json", "--force"]
    if eps == "2" and not METHODS[method].has_noise:
        code, _, lines = run(*words)
        assert code == 4 and "no version with noise" in lines[-1]
        return
    assert run_json(*words)["method"] == method
    code, out, _ = run(*words)
    assert code == 0 and out.split()[:2] == ["method", METHODS[method].estimator_name]
