"""`compare`: its numbers, its splits, what it keeps, and what it refuses."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from math import inf, isnan, nan

import joblib
import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import norm, t
from sklearn.metrics import accuracy_score, log_loss

from skfedcal import (
    FedBBQCalibrator,
    FedBiasTempCalibrator,
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    client_temperatures,
    compare,
)
from skfedcal.exceptions import CalibrationWarning
from skfedcal.experiments import Comparison, printed
from skfedcal.experiments import store as _store
from skfedcal.experiments.comparison import engine
from skfedcal.experiments.comparison.cells import (
    client_differences,
    measure,
    read_rows,
)
from skfedcal.experiments.comparison.engine import named_methods
from skfedcal.methods.registry import configurations
from skfedcal.privacy import CentralDP, PrivacyLedger

pytestmark = pytest.mark.filterwarnings("ignore:random_state")


def naive_classwise_error(labels, proba, n_bins=15):
    total = 0.0
    for k in range(proba.shape[1]):
        gaps = np.zeros(n_bins)
        for i, p in enumerate(proba[:, k]):
            gaps[min(int(p * n_bins), n_bins - 1)] += p - (labels[i] == k)
        total += np.abs(gaps).sum()
    return total / len(labels) / proba.shape[1]


def run_of(result, method, eps, seed=0):
    (run,) = (
        run
        for run in result.runs
        if (run["method"], run["eps"], run["seed"]) == (method, eps, seed)
    )
    return run


# Numbers


@pytest.mark.parametrize(
    ("method", "eps", "estimator"),
    [
        ("FedTemp", "none", FedTempCalibrator()),
        ("FedTemp", "2", FedTempCalibrator(eps=2.0)),
        ("FedBin", "2", FedBinCalibrator(eps=2.0)),
    ],
)
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_scores_are_those_of_independent_code(found, given, method, eps, estimator):
    clients, (logits, labels) = given
    estimator.set_params(random_state=1, classes=range(4)).fit(clients)
    proba = estimator.predict_proba(logits).astype(float)
    proba /= proba.sum(axis=1, keepdims=True)
    run = run_of(found, method, eps, seed=1)
    base = softmax(logits.astype(float), axis=1)
    expected = naive_classwise_error(labels, proba)
    # Probabilities of float32 do not sum to 1 exactly.
    assert run["cwECE"] == pytest.approx(expected, abs=1e-6)
    expected = log_loss(labels, proba, labels=range(4))
    assert run["NLL"] == pytest.approx(expected, abs=1e-6)
    onehot = np.eye(4)[labels]
    expected = ((proba - onehot) ** 2).sum(axis=1).mean()
    assert run["Brier"] == pytest.approx(expected, abs=1e-6)
    change = accuracy_score(labels, proba.argmax(1)) - accuracy_score(
        labels, base.argmax(1)
    )
    assert run["acc change"] == pytest.approx(change)
    gain = log_loss(labels, base, labels=range(4)) - run["NLL"]
    assert run["NLL gain"] == pytest.approx(gain, abs=1e-6)
    assert run["rounds"] == estimator.n_rounds_
    sizes = [r.bytes_up + r.bytes_down for r in estimator.history_]
    assert run["bytes"] == sum(sizes)
    assert run.get("eps spent") == (None if eps == "none" else 2.0)


@pytest.mark.parametrize("n_clients", [None, 6, 40])
def test_gain_and_its_error_are_those_of_clients(n_clients):
    rng = np.random.default_rng(0)
    each = 30
    n = each * (n_clients or 40)
    owners = None if n_clients is None else rng.permutation(np.arange(n) % n_clients)
    # The gain depends on the client.
    level = np.zeros(n) if owners is None else rng.normal(0, 1, n_clients)[owners]
    logits = rng.normal(0, 2, (n, 3))
    labels = softmax(logits + level[:, None] * [1, 0, 0], axis=1)
    labels = (labels.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1).clip(0, 2)
    base, proba = softmax(3 * logits, axis=1), softmax(logits, axis=1)
    proba[0], labels[0] = [0.0, 1.0, 0.0], 1  # classes without any probability
    found = measure(labels, proba, base, seed=0, n_bins=15, owners=owners)
    rows = np.arange(n)
    gain = np.log(proba[rows, labels]) - np.log(base[rows, labels])
    units, freedom = gain, inf
    if owners is not None:
        units = np.bincount(owners, gain) / each
        freedom = n_clients - 1
    assert found["NLL gain"] == pytest.approx(gain.mean(), abs=1e-4)
    factor = 1.0 if freedom == inf else t.ppf(0.975, freedom) / norm.ppf(0.975)
    error = units.std(ddof=1) / np.sqrt(len(units)) * factor
    assert found["NLL gain error"] == pytest.approx(error, rel=1e-3)


def test_the_oracle_has_all_rows_in_one_place(found, given):
    clients, (logits, labels) = given
    pooled = [np.concatenate(part) for part in zip(*clients, strict=True)]
    oracle = FedBiasTempCalibrator(classes=range(4)).fit(*pooled)
    proba = oracle.predict_proba(logits).astype(float)
    expected = log_loss(labels, proba / proba.sum(axis=1, keepdims=True))
    run = run_of(found, "central", "-")
    assert run["NLL"] == pytest.approx(expected, abs=1e-6)
    assert "bytes" not in run


def test_rows_are_means_over_seeds_and_shares_of_the_gap(found):
    rows = {(row["method"], row["eps"]): row for row in found.rows}
    assert list(rows)[:2] == [("base", "-"), ("central", "-")]
    assert len(rows) == 6
    runs = [run_of(found, "FedTemp", "2", seed) for seed in (0, 1)]
    row = rows["FedTemp", "2"]
    assert row["cwECE"] == pytest.approx(np.mean([r["cwECE"] for r in runs]))
    assert row["sd_cwECE"] == pytest.approx(np.std([r["cwECE"] for r in runs], ddof=1))
    base, central = (run_of(found, name, "-") for name in ("base", "central"))
    shares = [
        (base["cwECE"] - run["cwECE"]) / (base["cwECE"] - central["cwECE"])
        for run in runs
    ]
    assert row["gap closed"] == pytest.approx(np.mean(shares))
    assert rows["base", "-"]["gap closed"] == 0
    assert rows["central", "-"]["gap closed"] == 1
    assert isnan(rows["base", "-"]["rounds"])


def test_reliability_bins_add_up(found):
    run = run_of(found, "FedBin", "none")
    bins = run["reliability"]
    assert sum(bins["n"]) == run["n_test"] == 1500
    assert sum(bins["hits"]) / 1500 == pytest.approx(run["accuracy"])
    assert sum(bins["confidence"]) / 1500 == pytest.approx(run["confidence"])
    gaps = np.abs(np.subtract(bins["confidence"], bins["hits"])).sum() / 1500
    assert gaps == pytest.approx(run["ECE"])


def test_no_gap_where_the_oracle_gains_nothing():
    runs = [
        {
            "method": m,
            "eps": "-",
            "seed": 0,
            "cwECE": c,
            "floor_sd": 0.01,
            "acc change": 0,
        }
        for m, c in (("base", 0.02), ("central", 0.015), ("x", 0.01))
    ]
    table = Comparison(runs, {}).table
    assert all(isnan(row["gap closed"]) for row in table.rows)


# Forms of the result


def starred():
    runs = [
        {
            "method": method,
            "eps": eps,
            "seed": 0,
            "cwECE": 0.01,
            "floor_sd": 0.001,
            "acc change": change,
            "rounds": nan,
        }
        for method, eps, change in (
            ("base", "-", 0.0),
            ("a", "none", -0.0101),
            ("b_c", "1", -0.0099),
        )
    ]
    return Comparison(runs, {})


def test_a_star_marks_a_drop_in_accuracy_of_more_than_one_percent():
    lines = starred().table.to_text().splitlines()[3:]
    assert ["*" in line for line in lines] == [False, True, False]
    assert "1.00*" in starred().to_latex()


def test_many_classes_have_more_digits():
    few = starred()
    many = Comparison(few.runs, {"n_classes": 100})
    assert "1.00*" in few.to_latex() and "1.000*" in many.to_latex()


def test_latex_and_csv_have_the_same_rows(found):
    latex = found.to_latex().splitlines()
    assert latex[0] == r"\begin{tabular}{ll" + "r" * 11 + "}"
    assert r"cwECE \%" in latex[2] and latex[-1] == r"\end{tabular}"
    assert len(latex) == 6 + 6
    assert r"b\_c & 1 &" in starred().to_latex()
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    for text, row in zip(rows, found.rows, strict=True):
        assert text["method"] == row["method"] and text["n_runs"] == "2"
        assert float(text["cwECE"]) == row["cwECE"]
        assert float(text["sd_NLL"]) == row["sd_NLL"]
    assert rows[0]["rounds"] == ""


def test_a_narrow_table_goes_on_below(found):
    whole, narrow = found.to_text(), found.to_text(80)
    assert max(map(len, narrow.splitlines())) <= 80
    *tables, _ = narrow.split("\n\n")
    assert len(tables) > 1
    for name in ("base ", "FedBin   2 "):
        (line,) = (line for line in whole.splitlines() if line.startswith(name))
        parts = [
            line.split()[2:]
            for table in tables
            for line in table.splitlines()
            if line.startswith(name)
        ]
        assert len(parts) == len(tables)
        assert [cell for part in parts for cell in part] == line.split()[2:]


def test_json_comes_back_whole(found):
    again = Comparison.from_json(found.to_json())
    assert again.to_text() == found.to_text()
    assert again.to_json() == found.to_json()
    with pytest.raises(ValueError, match="not valid JSON"):
        Comparison.from_json("{")
    with pytest.raises(ValueError, match="not a comparison"):
        Comparison.from_json("[1]")
    record = json.loads(found.to_json())
    with pytest.raises(ValueError, match="format version 99"):
        Comparison.from_json(json.dumps({**record, "format_version": 99}))
    with pytest.raises(ValueError, match="damaged"):
        Comparison.from_json(json.dumps({**record, "runs": [{}]}))


def test_notes_say_what_was_done(found):
    text = " ".join(found.notes)
    assert "2400 rows of 60 clients, measured on 1500 rows (given); 4 classes" in text
    assert "assigned" not in text
    assert "simulation" in text and "one whole client" in text


# Splits


def test_without_seeds_noise_is_that_of_the_operating_system(federation):
    ledger = PrivacyLedger()
    methods = {"FedTemp": FedTempCalibrator(ledger=ledger)}
    one, two = (
        compare(federation.clients, methods=methods, eps=[None, 1], seeds=None,
                progress=False)
        for _ in range(2)
    )  # fmt: skip
    exact = [run_of(found, "FedTemp", "none")["NLL"] for found in (one, two)]
    private = [run_of(found, "FedTemp", "1") for found in (one, two)]
    assert exact[0] == exact[1]
    assert private[0]["NLL"] != private[1]["NLL"]
    assert not any(run["simulated"] for run in private)
    assert len(ledger) == 2 and "operating system" in one.notes[-1]
    assert Comparison.from_json(one.to_json()).settings["seeds"] == [0]


@pytest.fixture(scope="module")
def pooled(federation):
    return tuple(np.concatenate(part) for part in zip(*federation.clients, strict=True))


def test_rows_without_clients_are_dealt_anew_with_each_seed(pooled):
    rows = read_rows(pooled, None)
    rows_of = [rows.partition(seed, 30, 0.1, 0.25) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(rows_of[0].clients, rows_of[1].clients)
    assert not np.array_equal(rows_of[0].test_labels, rows_of[2].test_labels)
    split = rows_of[0]
    assert len(split.test_labels) == 600 and len(split.labels) == 1800
    assert split.n_clients == 30
    # All rows are there once.
    joined = np.concatenate([split.logits, split.test_logits])
    order = [np.lexsort(part.T) for part in (joined, pooled[0])]
    np.testing.assert_array_equal(joined[order[0]], pooled[0][order[1]])


def test_skew_grows_as_beta_falls(pooled):
    rows = read_rows(pooled, None)

    def classes_per_client(beta):
        split = rows.partition(0, 40, beta, 0.5)
        seen = {(c, y) for c, y in zip(split.clients, split.labels, strict=True)}
        return len(seen) / 40

    assert classes_per_client(0.05) < classes_per_client(1.0) < classes_per_client(100)


def test_clients_keep_their_rows_and_give_some_to_the_test(federation):
    rows = read_rows(federation.clients, None)
    split = rows.partition(3, None, 0.1, 0.25)
    sizes = np.array([len(y) for _, y in federation.clients])
    kept = np.bincount(split.clients, minlength=60)
    assert (np.abs(kept - 0.75 * sizes) <= 1).all()
    few = rows.partition(3, 10, 0.1, 0.25)
    assert few.n_clients == 10
    np.testing.assert_array_equal(few.test_labels, split.test_labels)


def test_call_forms_agree(federation, pooled):
    sizes = [len(y) for _, y in federation.clients]
    ids = np.repeat(np.arange(60), sizes)
    test = (federation.test_logits, federation.test_labels)
    forms = [
        read_rows(federation.clients, test),
        read_rows(dict(enumerate(federation.clients)), test),
        read_rows(pooled, test, client_ids=ids),
    ]
    assert len({rows.digest() for rows in forms}) == 1
    names = np.array(["a", "b", "c", "d"])
    named = read_rows(
        [(z, names[y]) for z, y in federation.clients], (test[0], names[test[1]])
    )
    np.testing.assert_array_equal(named.labels, forms[0].labels)
    assert named.classes.tolist() == list("abcd")


def test_probabilities_give_the_same_as_their_logits(pooled):
    proba = softmax(pooled[0].astype(float), axis=1)
    words = {"methods": ["temp"], "eps": [None], "seeds": 1, "progress": False}
    one = compare(pooled, **words)
    two = compare((proba, pooled[1]), input_type="proba", **words)
    assert two.rows[2]["NLL"] == pytest.approx(one.rows[2]["NLL"], abs=1e-5)


def test_one_column_of_log_odds(federation):
    rng = np.random.default_rng(0)
    odds = rng.normal(size=800)
    labels = (rng.random(800) < 1 / (1 + np.exp(-odds / 2))).astype(int)
    found = compare(
        (odds, labels),
        methods=["temp"],
        eps=[None],
        seeds=1,
        n_clients=20,
        progress=False,
    )
    assert found.settings["n_classes"] == 2
    assert found.rows[2]["NLL"] < found.rows[0]["NLL"]


# Clients


def test_clients_differ_more_with_more_skew(pooled):
    found = compare(
        pooled, methods=["temp"], eps=[None], seeds=1, n_clients=30, progress=False,
        vary={"beta": [0.1, 100.0]},
    )  # fmt: skip
    skewed, even = found.client_table.rows
    assert (skewed["beta"], even["beta"]) == (0.1, 100.0)
    for name in ("var T", "mean |T - T_k|"):
        assert skewed[name] > even[name]
    assert skewed["classes"] < even["classes"] <= 4
    again = Comparison.from_json(found.to_json())
    assert again.client_table.to_text() == found.client_table.to_text()


def test_differences_of_clients_are_those_of_a_loop(federation):
    split = read_rows(federation.clients, None).partition(0, None, 0.1, 0.5)
    found = client_differences(split, 4, 15)
    temperatures, errors = [], []
    for client in np.unique(split.clients):
        rows = split.clients == client
        logits, labels = split.logits[rows].astype(float), split.labels[rows]

        def loss(log_t, logits=logits, labels=labels):
            scores = logits / np.exp(log_t)
            return -log_softmax(scores, axis=1)[np.arange(len(labels)), labels].mean()

        best = minimize_scalar(
            loss, bounds=(np.log(0.05), np.log(20)), method="bounded"
        )
        temperatures.append(np.exp(best.x))
        proba = softmax(logits / temperatures[-1], axis=1)
        errors.append(naive_classwise_error(labels, proba))
    # Clients that are all right end at a bound, or on the way there.
    inside = np.array(temperatures) > 0.5
    assert inside.sum() > 30
    own = client_temperatures(split.logits, split.labels, client_ids=split.clients)
    np.testing.assert_allclose(own[inside], np.array(temperatures)[inside], rtol=0.01)
    assert found["var T"] == pytest.approx(np.var(own), rel=1e-6)
    assert found["var cwECE"] == pytest.approx(np.var(errors), rel=0.05)


# What is varied


def test_every_name_of_vary_changes_what_it_says(pooled):
    words = {"methods": ["bbq", "bin"], "seeds": 1, "n_clients": 30, "progress": False}
    found = compare(pooled, eps=[None], vary={"bins": [4, 16]}, **words)
    assert [(r["method"], r["bins"]) for r in found.rows] == [
        ("base", "-"), ("central", "-"), ("FedBBQ", 4), ("FedBBQ", 16), ("FedBin", 4),
        ("FedBin", 16),
    ]  # fmt: skip
    sizes = {(r["method"], r["bins"]): r["bytes"] for r in found.rows}
    assert sizes["FedBin", 16] > sizes["FedBin", 4]
    assert sizes["FedBBQ", 16] > sizes["FedBBQ", 4]
    runner = FederatedRunner(cohort="independent", cohort_size=10)
    found = compare(pooled, eps=[None], vary={"rounds": [1, 3]}, runner=runner, **words)
    assert [r["rounds"] for r in found.runs if r["method"] == "FedBin"] == [1, 3]
    asked = [(r["method"], r["n_rounds"]) for r in found.rows]
    assert asked[0] == ("base", "-") and asked[2:4] == [("FedBBQ", 1), ("FedBBQ", 3)]
    assert "n_rounds" in found.to_text()
    found = compare(pooled, eps=[None], vary={"clients": [10, 20]}, **words)
    kept = {(r["method"], r["clients"]): r["n_clients"] for r in found.runs}
    assert kept["base", 10] == kept["FedBin", 10] == 10 and kept["FedBBQ", 20] == 20
    assert {row["gap closed"] for row in found.rows if row["method"] == "base"} == {0}
    found = compare(pooled, vary={"eps": [1, 2]}, **words)
    assert [r["eps"] for r in found.rows] == ["-", "-", "1", "1", "2", "2"]


def test_a_value_that_a_method_has_no_use_for_is_run_once(pooled):
    found = compare(
        pooled, methods=["temp"], eps=[None], seeds=1, vary={"bins": [4, 8]},
        n_clients=20, progress=False,
    )  # fmt: skip
    assert [(r["method"], r["bins"]) for r in found.rows[2:]] == [("FedTemp", "-")]


def test_clip_and_beta_are_passed_on(pooled, monkeypatch):
    seen = []
    monkeypatch.setattr(
        engine, "run_cell", lambda cell, *_: seen.append(cell) or {"error": "no"}
    )
    with pytest.raises(ValueError, match=r"could be fitted. FedTemp .eps 2.: no"):
        compare(
            pooled, methods=["temp"], eps=[2.0], seeds=1, delta=1e-6,
            vary={"clip": [0.25], "beta": [0.5, 1.0]}, progress=False,
        )  # fmt: skip
    fits = [cell for cell in seen if cell.method == "FedTemp"]
    assert [cell.split["beta"] for cell in fits] == [0.5, 1.0]
    assert all(cell.estimator.clip == 0.25 for cell in fits)
    assert all(cell.estimator.delta == 1e-6 for cell in fits)
    assert [c.split["beta"] for c in seen if c.method == "base"] == [0.5, 1.0]


# Methods


def test_every_public_calibrator_has_a_name(public_estimators):
    from skfedcal.cli._options import METHODS
    from skfedcal.methods.base import BaseCalibrator

    classes = {
        cls.__name__ for cls in public_estimators if issubclass(cls, BaseCalibrator)
    }
    assert {method.estimator_name for method, _ in configurations().values()} == classes
    # The names of the command line are the same, in small letters.
    for name, method in METHODS.items():
        (estimator,) = named_methods([name]).values()
        assert type(estimator).__name__ == method.estimator_name


def test_methods_can_be_given_as_they_are():
    mine = FedBinCalibrator(n_bins=7)
    found = named_methods({"mine": mine, "other": "temp"})
    assert found["mine"].n_bins == 7 and found["mine"] is not mine
    assert list(named_methods([mine, "FedBBQCalibrator"])) == ["FedBin", "FedBBQ"]
    with pytest.raises(ValueError, match=r"Unknown method 'tmp'; known are \['acctemp"):
        named_methods(["tmp"])
    with pytest.raises(ValueError, match="a name twice"):
        named_methods(["temp", "FedTemp"])
    with pytest.raises(ValueError, match="is a row of every table"):
        named_methods({"base": "temp"})
    with pytest.raises(ValueError, match="is empty"):
        named_methods([])


def test_a_method_that_refuses_is_left_out(given):
    wrong = FedTempCalibrator(solver="nothing")
    methods = {"wrong": wrong, "temp": "temp"}
    with pytest.warns(CalibrationWarning, match="Left out: wrong"):
        found = compare(*given, methods=methods, eps=[None], seeds=1, progress=False)
    assert [row["method"] for row in found.rows] == ["base", "central", "temp"]
    assert "solver" in found.refused[0]
    assert any("Left out: wrong" in note for note in found.notes)


def test_warnings_of_fits_are_notes(given, recwarn, capfd):
    (logits, labels), test = given[0][0], given[1]
    found = compare(
        [(logits, labels)], test, methods=["temp", "bin"], eps=[1.0], seeds=1, n_jobs=2,
        progress=False,
    )  # fmt: skip
    (note,) = (note for note in found.notes if "only one client" in note)
    assert note.startswith("FedTemp, FedBin: eps is set")
    assert capfd.readouterr() == ("", "")
    assert not [w for w in recwarn if "client" in str(w.message)]


# What is kept


def settings_of(given, store):
    return {
        "clients": given[0],
        "test": given[1],
        "methods": ["temp"],
        "eps": [None, 1.0],
        "seeds": 2,
        "store": store,
    }


def test_finished_cells_are_not_run_again(given, tmp_path, monkeypatch):
    calls = []
    real = engine.run_cell

    def counted(cell, *rest):
        calls.append(dict(cell.labels))
        return real(cell, *rest)

    monkeypatch.setattr(engine, "run_cell", counted)
    words = settings_of(given, tmp_path / "cells")
    told = []
    first = compare(**words, progress=lambda done, total: told.append((done, total)))
    assert len(calls) == 8 and told == [(k, 8) for k in range(9)]
    names = sorted(os.listdir(tmp_path / "cells"))
    assert len(names) == 8 and all(name.endswith(".json") for name in names)
    again = compare(**words, progress=False)
    assert len(calls) == 8 and again.to_json() == first.to_json()
    # What is gone or damaged is run again, and only that.
    (tmp_path / "cells" / names[0]).unlink()
    (tmp_path / "cells" / names[1]).write_text("{")
    (tmp_path / "cells" / names[2]).write_text('{"key": "other", "result": {}}')
    told.clear()
    third = compare(**words, progress=lambda done, total: told.append((done, total)))
    assert len(calls) == 11 and told == [(k, 8) for k in range(5, 9)]
    assert [r["NLL"] for r in third.runs] == [r["NLL"] for r in first.runs]
    # Another setting, other data: other cells.
    compare(**{**words, "eps": [2.0]}, progress=False)
    assert len(calls) == 13
    clients = [(2 * logits, labels) for logits, labels in given[0]]
    compare(**{**words, "clients": clients}, progress=False)
    assert len(calls) == 21


def test_a_store_that_is_a_file_is_refused(given, tmp_path):
    path = tmp_path / "cells"
    path.write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; pass a folder"):
        compare(**settings_of(given, path), progress=False)


def test_workers_are_started_for_much_work_only(given, monkeypatch):
    asked = []

    class Pool(joblib.Parallel):
        def __init__(self, n_jobs, **options):
            asked.append(n_jobs)
            super().__init__(n_jobs=1, **options)

    monkeypatch.setattr(joblib, "Parallel", Pool)
    monkeypatch.setattr(joblib, "cpu_count", lambda: 4)
    words = settings_of(given, None)
    one = compare(**words, n_jobs="auto", progress=False)
    monkeypatch.setattr(engine, "_START_ENTRIES", 1)
    assert len(compare(**words, n_jobs="auto", progress=False).runs) == len(one.runs)
    # One core has nothing to share out.
    monkeypatch.setattr(joblib, "cpu_count", lambda: 1)
    compare(**words, n_jobs="auto", progress=False)
    assert asked == [1, 4, 1]
    with pytest.raises(ValueError, match="n_jobs='two': pass a whole number"):
        compare(**words, n_jobs="two", progress=False)


def test_processes_give_the_same(given, tmp_path):
    words = settings_of(given, None)
    one = compare(**words, progress=False)
    two = compare(**words, n_jobs=2, progress=False)
    timed = ("client seconds",)
    for left, right in zip(one.runs, two.runs, strict=True):
        assert {k: v for k, v in left.items() if k not in timed} == {
            k: v for k, v in right.items() if k not in timed
        }


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_killed_run_goes_on(tmp_path):
    store = tmp_path / "cells"
    code = (
        "from skfedcal import compare, make_federation\n"
        "fed = make_federation(40, 2000, 4, n_test=1000, random_state=0)\n"
        "test = fed.test_logits, fed.test_labels\n"
        "found = compare(fed.clients, test, methods=['temp'], eps=[None, 1.0],\n"
        f"                seeds=40, store={str(store)!r})\n"
        "print(len(found.runs))"
    )
    command = [sys.executable, "-c", code]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    started = time.monotonic()
    while len(list(store.glob("*.json"))) < 5 and time.monotonic() - started < 60:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in store.glob("*.json")}
    assert 5 <= len(kept) < 160
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout.strip() == "160", again.stderr
    assert again.stderr.startswith(f"[{len(kept)} of 160 cells were finished before]")
    now = {path.name: path.stat().st_mtime_ns for path in store.glob("*.json")}
    assert len(now) == 160 and kept.items() <= now.items()


def test_a_cell_that_changed_on_disk_is_run_again(given, tmp_path):
    words = {**settings_of(given, tmp_path / "cells"), "progress": False}
    first = compare(**words)
    paths = sorted((tmp_path / "cells").iterdir())
    for path in paths:
        record = json.loads(path.read_text())
        record["result"]["NLL"] += 0.25
        path.write_text(json.dumps(record))
    paths[0].write_text("[" * 100_000)
    again = compare(**words)
    assert [run["NLL"] for run in again.runs] == [run["NLL"] for run in first.runs]


def test_two_classes_of_one_name_are_two_methods(given, tmp_path):
    def named_so(offset):
        class Scaled(FedTempCalibrator):
            def predict_proba(self, X):
                return super().predict_proba(np.asarray(X) * offset)

        # As the same name in two modules of a user.
        Scaled.__module__ = f"study_{offset}"
        return Scaled()

    words = {"eps": [None], "seeds": 1, "store": tmp_path, "progress": False}
    losses = [
        compare(*given, methods={"a": named_so(offset)}, **words).runs[2]["NLL"]
        for offset in (1, 3)
    ]
    assert losses[0] != losses[1]


def test_cells_of_other_code_are_not_taken(given, tmp_path, monkeypatch):
    from skfedcal.experiments.comparison import cells

    words = {**settings_of(given, tmp_path), "progress": False}
    compare(**words)
    assert len(list(tmp_path.iterdir())) == 8
    monkeypatch.setattr(cells, "code_version", lambda: "another one")
    compare(**words)
    assert len(list(tmp_path.iterdir())) == 16


def test_a_version_under_work_is_told_by_its_files(monkeypatch):
    work = _store.code_version.__wrapped__
    monkeypatch.setattr(_store, "__version__", "1.0")
    assert work() == "1.0"
    monkeypatch.setattr(_store, "__version__", "1.0.dev0")
    first = work()
    real = _store.Path.read_bytes
    monkeypatch.setattr(_store.Path, "read_bytes", lambda path: real(path) + b"#")
    assert first.startswith("1.0.dev0 ") and work() not in (first, "1.0.dev0")


def test_budgets_that_are_close_are_two_rows(given):
    eps = [1.0, 1.0000001]
    found = compare(*given, methods=["temp"], eps=eps, seeds=1, progress=False)
    assert [row["eps"] for row in found.rows[2:]] == ["1", "1.0000001"]
    assert [row["eps spent"] for row in found.rows[2:]] == eps


def test_bytes_are_those_of_a_client_that_is_asked_in_every_round(given):
    runner = FederatedRunner(n_rounds=3, cohort="independent", cohort_size=10)
    words = {"methods": ["temp"], "eps": [None], "seeds": 1, "progress": False}
    found = compare(*given, runner=runner, **words)
    calibrator = FedTempCalibrator(runner=runner, random_state=0, classes=range(4))
    with pytest.warns(CalibrationWarning, match="Not converged"):
        history = calibrator.fit(given[0]).history_
    assert found.runs[2]["bytes"] == sum(r.bytes_up + r.bytes_down for r in history)
    assert any("takes part in all rounds" in note for note in found.notes)


# What is refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"eps": [0]}, "eps has 0; pass finite numbers above 0"),
        ({"eps": []}, "must have entries"),
        ({"eps": [1, 1.0]}, "each once"),
        ({"seeds": 0}, "pass a number above 0"),
        ({"seeds": [0, 0]}, "each once"),
        ({"seeds": [-1]}, "whole numbers from"),
        ({"test_size": 1.0}, "is not in"),
        ({"n_bins": 0}, "n_bins=0"),
        ({"vary": {"colour": [1]}}, "vary='colour' is not known"),
        ({"vary": {"rounds": []}}, "must be a list of values"),
        ({"vary": {"bins": [5]}, "methods": ["bbq"]}, "powers of two"),
        ({"vary": {"beta": [1.0]}}, "have clients already"),
        ({"vary": {"rounds": [2, 2]}}, "has a value twice"),
        ({"vary": {"eps": [1, 1.0]}}, "must have entries, each once"),
        ({"vary": {"eps": [inf]}}, "finite numbers above 0"),
        ({"vary": {"rounds": ["a"]}}, "='a' is not a whole number above 0"),
        ({"vary": {"clients": [-1]}}, "=-1 is not a whole number above 0"),
        ({"vary": {"clients": [2.5]}}, "=2.5 is not a whole number above 0"),
        ({"vary": {"privacy": ["x"]}}, r"has 'x'; pass one of \['central'"),
        ({"vary": {"solver": [3]}}, "has 3; pass names"),
        ({"vary": {"clip": [(1, -1)]}}, "has -1; pass numbers above 0"),
        ({"n_clients": 0}, "n_clients=0 is not a whole number"),
        ({"n_clients": 61}, "there are 60 clients"),
        ({"eps": [inf]}, "finite numbers above 0"),
        ({"test_size": 1.5}, "test_size=1.5 is not in"),
        ({"test": ([[1.0, 2.0, 3.0, 4.0]] * 3, [0, 1])}, "3 rows of logits but 2"),
        ({"test": ([[1.0, 2.0]] * 2, [0, 1])}, "test has 2 columns"),
        ({"test": ([[1.0, 2.0, 3.0, 4.0]] * 2, [0, 9])}, "labels"),
        ({"classes": [1, 2]}, "classes has 2 entries"),
        ({"input_type": "odds"}, "input_type must be one of"),
        ({"methods": "nothing"}, "Unknown method"),
    ],
)
def test_wrong_settings(given, words, message):
    settings = {"clients": given[0], "test": given[1], "progress": False}
    with pytest.raises(ValueError, match=message):
        compare(**{**settings, **words})


def test_wrong_types(given):
    with pytest.raises(TypeError, match="vary must be a dict"):
        compare(*given, vary="rounds", progress=False)
    with pytest.raises(TypeError, match="runner must be a FederatedRunner"):
        compare(*given, runner="fast", progress=False)
    with pytest.raises(TypeError, match=r"test_size='half'.*pass one number"):
        compare(*given, test_size="half", progress=False)
    with pytest.raises(TypeError, match="seeds must be a number"):
        compare(*given, seeds=True, progress=False)


def test_too_few_rows(federation):
    logits, labels = federation.test_logits, federation.test_labels
    with pytest.raises(ValueError, match="1 would be left for the fit"):
        compare((logits[:2], labels[:2]), n_clients=1, progress=False)
    with pytest.raises(
        ValueError, match="10 rows to calibrate on cannot be divided among"
    ):
        compare((logits[:20], labels[:20]), n_clients=100, progress=False)


def test_a_file_has_all_that_is_needed(federation, tmp_path):
    path = tmp_path / "model.npz"
    np.savez(path, logits=federation.test_logits, labels=federation.test_labels)

    class Named:
        def __fspath__(self):
            return str(path)

    words = {"methods": ["temp"], "eps": [None], "seeds": 1, "progress": False}
    found = compare(Named(), n_clients=5, **words)
    assert found.runs[0]["n_clients"] == 5
    for name, value in {
        "classes": [0, 1, 2, 3],
        "client_ids": [0],
        "input_type": "proba",
        "test": (federation.test_logits, federation.test_labels),
    }.items():
        with pytest.raises(ValueError, match=name):
            compare(path, **{name: value}, **words)


def test_hostile_names_stay_in_their_cell(given):
    name = "a|b\\c\n<script>*^~%&_#${}[x](y)`"
    words = {"eps": [None], "seeds": 1, "progress": False}
    found = compare(*given, methods={name: "temp"}, **words)
    row = found.to_markdown().splitlines()[4]
    # A reader of Markdown takes a bar without a backslash as the end of a cell.
    assert len(re.findall(r"(?<!\\)\|", row)) == len(found.table._header()) + 1
    assert r"\<script>" in row and re.search(r"(?<!\\)<", row) is None
    line = found.to_latex().splitlines()[6]
    plain = re.sub(r"\\text[a-z]+\{\}|\\[%&_#${}]", "", line.removesuffix(r"\\"))
    assert plain.startswith("abc script*[x](y)` & none & ")
    assert not set(plain) & set("\\^~%_#${}<>|")
    assert list(csv.reader(io.StringIO(found.to_csv())))[3][0] == name
    assert len(found.to_text().splitlines()[5].split()) > 10


WORKERS = """
import sys
from pathlib import Path
from skfedcal import compare, make_federation

def blocked(pid):
    status = Path("/proc", pid, "status").read_text()
    return int(status.split("SigBlk:")[1].split()[0], 16)

if __name__ == "__main__":
    fed = make_federation(5, 200, 3, n_test=50, random_state=0)
    compare(fed.clients, (fed.test_logits, fed.test_labels), methods=["temp"],
            eps=[None], seeds=2, n_jobs=2, progress=False)
    own = Path("/proc/self/task").glob("*/children")
    children = [pid for path in own for pid in path.read_text().split()]
    named = {pid: Path("/proc", pid, "cmdline").read_bytes() for pid in children}
    workers = [pid for pid, words in named.items() if b"popen_loky" in words]
    print([blocked(pid) >> 1 & 1 for pid in workers], blocked("self") >> 1 & 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_do_not_hear_ctrl_c_and_the_process_does(tmp_path):
    # In a fresh process, where joblib has started nothing yet.
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[1, 1] 0\n", "")


# Presets, and what `vary` changes in methods


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_presets_are_run_as_the_paper_prints_them(given):
    plain, amplified = printed(), printed(amplified=True)
    methods = [plain["FedTemp"], amplified["FedTemp"], plain["FedBBQ-changed"]]
    found = compare(*given, methods=methods, eps=[None, 1.0], seeds=1, progress=False)
    runs = {(run["method"], run["eps"]): run for run in found.runs}
    names = "FedTemp, as printed", "FedTemp, amplified", "FedBBQ-changed, as printed"
    # All are used: no rule of acceptance.
    assert all(runs[name, eps]["used"] for name in names for eps in ("none", "1"))
    first, second, third = (runs[name, "1"] for name in names)
    assert (first["accountant"], third["accountant"]) == ("zcdp", "zcdp")
    assert (first["rounds"], first["delta"]) == (12, 1e-5)
    # One of 12 rounds in zCDP, by Lemma B.3 and B.7.
    rho = minimize_scalar(
        lambda log_rho: abs(zcdp_delta(np.exp(log_rho)) - 1e-5), bounds=(-6, 0)
    ).x
    assert first["noise"] == pytest.approx(np.sqrt(12 / (2 * np.exp(rho))), rel=1e-3)
    assert second["noise"] < first["noise"] / 3


def zcdp_delta(rho, eps=1.0):
    """Lemma B.3 of the paper, on a grid of alpha."""
    alpha = 1 + np.exp(np.linspace(-5, 10, 20001))
    logs = (alpha - 1) * (alpha * rho - eps) - np.log(alpha - 1)
    return np.exp(logs + alpha * np.log1p(-1 / alpha)).min()


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_the_weight_of_bins_is_the_share_of_rows_that_were_seen(given):
    runner = FederatedRunner(2, "independent", 5)
    found = compare(
        *given, methods=["bbq", "bbq-all"], eps=[None], seeds=1, runner=runner,
        progress=False,
    )  # fmt: skip
    plain, weighted = (run_of(found, n, "none") for n in ("FedBBQ", "FedBBQ-all"))
    assert plain["NLL"] != weighted["NLL"]
    clients, (logits, labels) = given
    totals = np.bincount(np.concatenate([y for _, y in clients]), minlength=4)
    cal = FedBBQCalibrator(
        weighting="all", class_totals=totals, classes=range(4), runner=runner,
        random_state=0,
    ).fit(clients)  # fmt: skip
    proba = cal.predict_proba(logits).astype(float)
    expected = log_loss(labels, proba / proba.sum(axis=1, keepdims=True))
    assert weighted["NLL"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_vary_changes_solver_weighting_privacy_and_pairs_of_clips(given):
    words = {"eps": [1.0], "seeds": 1, "progress": False}
    found = compare(*given, methods=["temp", "bin"], **words,
                    vary={"solver": ["newton", "grid"]})  # fmt: skip
    assert [(r["method"], r["solver"]) for r in found.rows[2:]] == [
        ("FedTemp", "newton"), ("FedTemp", "grid"), ("FedBin", "-"),
    ]  # fmt: skip
    found = compare(*given, methods=["bbq"], **words,
                    vary={"weighting": [None, "all", "changed"]})  # fmt: skip
    assert [r["weighting"] for r in found.rows[2:]] == ["none", "all", "changed"]
    found = compare(*given, methods=["temp"], **words,
                    vary={"privacy": ["central", "zcdp"]})  # fmt: skip
    tight, loose = found.rows[2:]
    assert [r["accountant"] for r in found.runs[2:]] == ["gdp", "zcdp"]
    assert tight["eps spent"] == loose["eps spent"] == 1.0
    bins = FedBinCalibrator(if_improves=False)
    found = compare(*given, methods={"bin": bins, "temp": "temp"}, **words,
                    vary={"clip": [(10, 50), (1, 200)]})  # fmt: skip
    assert [r["clip"] for r in found.rows[2:]] == ["10/50", "1/200", "-"]
    assert Comparison.from_json(found.to_json()).to_text() == found.to_text()


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_eps_goes_into_the_privacy_model_of_a_method(given):
    method = FedTempCalibrator(privacy=CentralDP(7.0, accountant="zcdp"))
    found = compare(*given, methods={"zcdp": method, "gdp": "temp"}, eps=[None, 1.0],
                    delta=1e-4, seeds=1, progress=False)  # fmt: skip
    assert "eps spent" not in run_of(found, "zcdp", "none")
    loose, tight = (run_of(found, name, "1") for name in ("zcdp", "gdp"))
    assert (loose["eps spent"], loose["delta"]) == (1.0, 1e-4)
    assert (loose["accountant"], tight["accountant"]) == ("zcdp", "gdp")
    assert loose["noise"] > tight["noise"]
