"""``skfedcal demo``: the table is right, and the sentences follow from it."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import accuracy_score, log_loss

import skfedcal
from skfedcal.cli import _demo_experiment
from skfedcal.cli._demo_experiment import (
    FITS,
    DemoResult,
    DemoSize,
    digit_views,
    make_digits_federation,
    run_experiment,
    score,
    sign_of_mean,
    verdict,
)
from skfedcal.cli.commands._demo import HEADER, table_row
from skfedcal.exceptions import SimulatedPrivacyWarning

SMALL = DemoSize(
    n_train=100,
    n_calibration=200,
    n_clients=60,
    n_trainers=20,
    n_hidden=16,
    n_rounds=20,
)


def naive_classwise_error(labels, proba, n_bins=15):
    total = 0.0
    for k in range(proba.shape[1]):
        for b in range(n_bins):
            last = b == n_bins - 1
            rows = [
                i
                for i, p in enumerate(proba[:, k])
                if min(int(p * n_bins), n_bins - 1) == b or (last and p == 1)
            ]
            gap = sum(proba[i, k] - (labels[i] == k) for i in rows)
            total += abs(gap) / len(labels)
    return total / proba.shape[1]


def naive_top_error(labels, proba, n_bins=15):
    top, hit = proba.max(axis=1), proba.argmax(axis=1) == labels
    bins = np.minimum((top * n_bins).astype(int), n_bins - 1)
    gaps = [(top - hit)[bins == b].sum() for b in range(n_bins)]
    return np.abs(gaps).sum() / len(labels)


def silent(text):
    pass


@pytest.fixture(scope="module")
def small():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulatedPrivacyWarning)
        return run_experiment(silent, silent, seed=4, size=SMALL)


@pytest.fixture
def small_demo(monkeypatch):
    monkeypatch.setattr(_demo_experiment, "DemoSize", lambda: SMALL)


@pytest.mark.filterwarnings("ignore:random_state")
def test_the_numbers_are_those_of_independent_code(small):
    data = make_digits_federation(SMALL, seed=4)
    tables = [softmax(data.test_logits, axis=1)]
    for _, estimator, eps in FITS:
        make = getattr(skfedcal, estimator)
        options = _demo_experiment.OPTIONS.get(estimator, {})
        calibrator = make(eps=eps, classes=np.arange(10), random_state=4, **options)
        calibrator.fit(data.logits, data.labels, client_ids=data.client_ids)
        tables.append(calibrator.predict_proba(data.test_logits))
    labels = data.test_labels
    assert len(tables) == len(small.outcomes)
    for proba, outcome in zip(tables, small.outcomes, strict=True):
        expected = naive_classwise_error(labels, proba)
        assert outcome.classwise_ece == pytest.approx(expected, abs=1e-12)
        expected = naive_top_error(labels, proba)
        assert outcome.ece == pytest.approx(expected, abs=1e-12)
        expected = log_loss(labels, proba, labels=np.arange(10))
        assert outcome.nll == pytest.approx(expected, rel=1e-12)
        assert outcome.losses.mean() == pytest.approx(expected, rel=1e-12)
        expected = accuracy_score(labels, proba.argmax(axis=1))
        assert outcome.accuracy == pytest.approx(expected, rel=1e-12)
        assert outcome.gaps.mean() == pytest.approx(
            outcome.confidence - outcome.accuracy, abs=1e-12
        )


def test_the_floor_is_the_error_of_labels_drawn_from_the_predictions():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(4), size=300)
    outcome = score("x", proba, rng.integers(4, size=300), seed=0)
    errors = []
    for _ in range(60):
        drawn = (proba.cumsum(axis=1) < rng.random((300, 1))).sum(axis=1)
        errors.append(naive_classwise_error(np.minimum(drawn, 3), proba))
    # Means of 60 and of 100 draws: five standard errors of their difference.
    bound = 5 * np.std(errors) * np.sqrt(1 / 60 + 1 / 100)
    assert abs(outcome.floor - np.mean(errors)) < bound


def test_table_and_json_show_the_outcomes(small_demo, run, small):
    code, out, lines = run("demo", "--seed", "4")
    rows = out.splitlines()
    assert code == 0
    assert rows[0].split("  ")[0].strip() == HEADER[0]
    for row, outcome in zip(rows[2:8], small.outcomes, strict=True):
        assert row.split() == " ".join(table_row(outcome)).split()
    assert max(map(len, rows)) <= 80
    assert lines[0].startswith("skfedcal: warning: --seed")
    assert all(line.startswith(("[", "skfedcal: warning: ")) for line in lines)
    code, out, _ = run("demo", "--seed", "4", "--json")
    data = json.loads(out)
    assert [row["nll"] for row in data["methods"]] == [o.nll for o in small.outcomes]
    assert data["meaning"] == verdict(small)
    assert data["simulated"]


def test_the_demo_writes_its_report(small_demo, run, run_json, tmp_path):
    code, out, _ = run("demo", "--seed", "4")
    assert code == 0
    assert out.splitlines()[-1] == "Report, to open in a browser: skfedcal_demo.html"
    page = Path("skfedcal_demo.html").read_text(encoding="utf-8")
    assert "skfedcal demo --seed 4" in page
    # A report of an earlier demo is replaced, another file is not.
    assert run_json("demo", "--seed", "5")["report"] == "skfedcal_demo.html"
    assert "--seed 5" in Path("skfedcal_demo.html").read_text(encoding="utf-8")
    Path("skfedcal_demo.html").write_text("mine")
    code, out, lines = run("demo", "--seed", "4")
    assert code == 0 and "Report" not in out
    assert any("No report is written: skfedcal_demo.html exists" in x for x in lines)
    assert Path("skfedcal_demo.html").read_text() == "mine"
    path = tmp_path / "own.html"
    assert run_json("demo", "--seed", "4", "-o", path)["report"] == str(path)


def test_the_report_has_the_numbers_of_the_table(small):
    found = {(r["method"], r["eps"]): r for r in small.comparison.runs}
    for outcome in small.outcomes:
        eps = "-" if outcome.method == "base" else "none"
        eps = eps if outcome.eps is None else f"{outcome.eps:g}"
        run = found[outcome.method, eps]
        assert run["cwECE"] == pytest.approx(outcome.classwise_ece, abs=1e-9)
        assert run["NLL"] == pytest.approx(outcome.nll, abs=1e-9)
        assert run["accuracy"] == outcome.accuracy
        assert run.get("bytes", 0) == outcome.bytes_up + outcome.bytes_down
    assert ("central", "-") in found and len(found) == len(small.outcomes) + 1


def test_wrong_outputs_of_the_demo(fails, tmp_path):
    assert "is a folder" in fails("demo", "-o", tmp_path)
    assert "does not exist" in fails("demo", "-o", tmp_path / "no" / "a.html")
    (tmp_path / "a.html").write_text("mine")
    assert "Pass --force" in fails("demo", "-o", tmp_path / "a.html")


def test_a_row_of_the_table(small):
    outcome = replace(
        small.outcomes[3],
        method="FedTemp",
        eps=1.0,
        classwise_ece=0.01234,
        floor=0.01,
        floor_sd=0.001,
        ece=0.1,
        nll=0.5,
        accuracy=0.9,
        n_rounds=3,
        bytes_up=24,
        bytes_down=48,
    )
    expected = "FedTemp|1|1.23|1.00 +- 0.10|10.00|0.5000|90.00|3|72"
    assert table_row(outcome) == expected.split("|")
    exact = replace(outcome, eps=None)
    assert table_row(exact)[1] == "no DP"
    assert table_row(small.outcomes[0])[1::6] == ["-", "-"]


def test_a_seed_repeats_and_none_does_not(small_demo, run):
    first, again = (run("demo", "--seed", "7", "--json", "-q")[1] for _ in range(2))
    assert first == again
    one, two = (json.loads(run("demo", "--json", "-q")[1]) for _ in range(2))
    assert not one["simulated"]
    # Exact fits are the same in both; private ones have noise of their own.
    assert one["methods"][:4] == two["methods"][:4]
    assert one["methods"][5]["nll"] != two["methods"][5]["nll"]
    assert "simulation" not in " ".join(one["meaning"])


def test_unseeded_private_fits_are_secure(small_demo, run):
    code, _, lines = run("demo", "-v")
    reports = [line for line in lines if line.startswith("PrivacyReport")]
    assert code == 0
    assert reports == ["PrivacyReport(eps=1, delta=1e-05"] * 2


def test_views_are_shifts_with_noise_of_the_stated_size():
    rng = np.random.default_rng(0)
    image = np.zeros((1, 8, 8))
    image[0, 3, 4] = 1000.0
    views = digit_views(image, rng)
    places = [divmod(int(view.argmax()), 8) for view in views[0]]
    assert sorted(places) == [(i, j) for i in (2, 3, 4) for j in (3, 4, 5)]
    noise = digit_views(np.zeros((500, 8, 8)), rng)
    # 288,000 draws: the relative error of their deviation is 0.0013.
    assert noise.std() == pytest.approx(0.2, rel=0.01)


def test_all_views_of_a_digit_stay_with_one_client():
    data = make_digits_federation(SMALL, seed=0)
    assert data.client_ids.shape == (9 * 200,)
    by_digit = data.client_ids.reshape(-1, 9)
    assert (by_digit == by_digit[:, :1]).all()
    assert len(np.unique(data.client_ids)) == 60
    assert len(data.test_labels) == 1797 - 100 - 200


def outcome_of(small, name, losses, **changes):
    base = small.outcomes[0]
    losses = np.asarray(losses, dtype=float)
    return replace(base, method=name, losses=losses, nll=losses.mean(), **changes)


def make_result(outcomes, **changes):
    result = DemoResult(outcomes, 100, 20, False, 1.5, 1e-5)
    return replace(result, **changes)


def sentences(small, exact, private, **changes):
    """Verdict for base losses of about 1 and shifted ones."""
    noise = np.random.default_rng(0).normal(0, 0.1, size=(3, 100))
    noise -= noise.mean(axis=1, keepdims=True)
    base = outcome_of(small, "base", 1 + noise[0], **changes)
    fits = [
        outcome_of(small, "FedTemp", exact + noise[1]),
        outcome_of(small, "FedTemp", private + noise[2], eps=1.0),
    ]
    return " ".join(verdict(make_result([base, *fits])))


def test_the_verdict_follows_the_log_loss(small):
    text = sentences(small, 0.5, 0.6)
    assert "lower for FedTemp 0.500, FedTemp (eps=1) 0.600." in text
    assert "FedTemp (eps=1) keeps 80 % of the gain of FedTemp." in text
    assert "keeps all of the gain" in sentences(small, 0.5, 0.45)
    text = sentences(small, 0.5, 1.3)
    assert "clearly higher for FedTemp (eps=1) 1.300" in text
    assert "keeps no clear part of the gain" in text
    text = sentences(small, 1.0, 1.0)
    assert "is not clearly different for FedTemp 1.000" in text
    assert "gain" not in text
    text = sentences(small, 1.4, 0.6)
    assert "clearly higher for FedTemp 1.400" in text
    assert "clearly lower for FedTemp (eps=1) 0.600" in text
    assert "gain" not in text


@pytest.mark.parametrize(
    ("shift", "meaning"),
    [(0.2, "over-confident"), (-0.2, "under-confident"), (0.0, "could be noise")],
)
def test_the_verdict_follows_the_confidence(small, shift, meaning):
    gaps = np.tile([-0.5, 0.5], 50) + shift
    text = sentences(small, 1.0, 1.0, gaps=gaps)
    found = [w for w in ("over-conf", "under-conf", "could be") if w in text]
    assert found == [meaning[: len(found[0])]]


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ((0.03, 0.011), "for FedTemp; it is more than two deviations above its floor"),
        ((0.01, 0.011), "cwECE is at its floor, within two deviations, for base, Fed"),
        ((0.03, 0.031), "cwECE is more than two deviations above its floor for base, "),
    ],
)
def test_the_verdict_follows_the_floor(small, errors, expected):
    outcomes = [
        replace(small.outcomes[i], classwise_ece=e, floor=0.01, floor_sd=0.001)
        for i, e in enumerate(errors)
    ]
    assert any(expected in text for text in verdict(make_result(outcomes)))


def test_the_verdict_follows_the_accuracy(small):
    base, better, worse, same = (
        replace(o, accuracy=a, hits=np.arange(1000) < 1000 * a)
        for o, a in zip(small.outcomes, (0.5, 0.6, 0.4, 0.5), strict=False)
    )
    text = " ".join(verdict(make_result([base, better, worse, same])))
    assert "Accuracy, 50.0 % for base, is clearly higher for FedTemp (60.0 %)" in text
    assert "; clearly lower for FedBBQ (40.0 %)." in text
    text = " ".join(verdict(make_result([base, same])))
    assert "is clearly changed by none." in text


def test_the_verdict_adds_up_privacy(small):
    assert 1.0 < small.total_eps < 2.0
    text = verdict(replace(small, simulated=False))[-1]
    assert f"eps = {small.total_eps:.3g} at delta = 1e-05" in text
    assert "The 2 private fits" in text
    assert "simulation" in verdict(small)[-1]


def test_sign_of_mean():
    assert sign_of_mean(np.array([1.0, 1.1, 0.9])) == 1
    assert sign_of_mean(np.array([-1.0, -1.1, -0.9])) == -1
    assert sign_of_mean(np.array([-1.0, 1.1, 0.1])) == 0
    assert sign_of_mean(np.zeros(3)) == 0
