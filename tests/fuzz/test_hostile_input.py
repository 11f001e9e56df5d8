"""Hostile input ends in a right answer or a clear error; the judge itself can fail."""

import importlib
import json
import logging
import pkgutil
import re
import warnings
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fuzz_engine import Broken, Case, run_case, run_cases
from fuzz_entries import ENTRIES

import skfedcal
from skfedcal.exceptions import CalibrationWarning

# Those that take long are left to the script.
SLOW = (
    "FedAvgClassifier",
    "FedMLPCalibrator",
    "audit_estimator",
    "checkpoint files",
    "command line",
    "compare",
    "compose",
    "curves",
    "experiments",
    "export",
    "networks",
    "plot_",
    "recipes",
    "TorchLogits",
)
QUICK = [entry for entry in ENTRIES if not entry[0].startswith(SLOW)]


@pytest.fixture(autouse=True)
def quiet():
    # Sites write down what they refuse.
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("part", range(4))
def test_no_unexpected_outcome(part, tmp_path):
    first = 1_000_000 + 600 * part
    report = run_cases(QUICK, range(first, first + 600), str(tmp_path))
    assert not report.findings, str(report)
    # Neither a suite of refusals nor one of answers would show much.
    assert report.outcomes["answer"] > 60
    assert report.outcomes["ValueError"] > 60


@pytest.mark.slow
def test_no_unexpected_outcome_of_any_entry(tmp_path):
    report = run_cases(ENTRIES, range(2_000_000, 2_006_000), str(tmp_path))
    assert not report.findings, str(report)
    assert len(report.entries) == len(ENTRIES)


def test_a_case_is_the_same_each_time(tmp_path):
    notes = []
    for _ in range(2):
        case = Case(0, 7, str(tmp_path))
        run_case(QUICK[0][2], case)
        notes.append(case.notes)
    assert notes[0] == notes[1] != []


def test_every_public_estimator_and_metric_is_an_entry():
    names = [name for name, _, _ in ENTRIES]
    estimators = [n for n in skfedcal.__all__ if n.endswith("Calibrator")]
    functions = [n for n in skfedcal.__all__ if n.startswith("federated_")]
    assert {f"{n}.fit" for n in estimators} <= set(names)
    assert {f"{n}.predict" for n in estimators} <= set(names)
    assert set(functions) <= set(names)


# What no user hands values to: parts of algorithms, results, protocols, constants.
NO_ENTRIES = {
    "__version__", "CORRUPTIONS", "Backend", "CalibrationCurve", "CalibrationFloor",
    "ClassStatistics", "Gain",
    "Collected", "Context", "CrossEntropy", "ExpectedError", "ExpectedGain",
    "FlowerTransport", "Forecast",
    "NoisePlan",
    "PaperItem", "PaperResult", "Preset", "printed",
    "PartialSum", "Plan", "PrivacyReport", "Request", "RoundHistory", "RoundRecord",
    "RoundScores", "Scaffold", "SecureAggregation", "Transport", "make_client_app",
    "connect",  # needs a SuperLink: tests/federation/test_live.py
    "respond",
    "register_method",  # what it is given stays
    "CheckResult", "check_method", "method_checks",
    "calibrate",  # deprecated alias of calibrate_noise,
    "ShardExecutor",
}  # fmt: skip
# Packages that only lead to the names of others.
OLD_PATHS = ("skfedcal.algorithms", "skfedcal.calibrators", "skfedcal.data")
# Rooms whose names take what the library itself has made.
NO_ROOMS = ("skfedcal.contract", "skfedcal.exceptions", *OLD_PATHS)


def test_every_public_name_is_fuzzed():
    here = Path(__file__).parent
    words = set()
    for path in here.glob("entries_*.py"):
        words |= set(re.findall(r"\w+", path.read_text()))
    missing = {}
    for found in pkgutil.iter_modules(skfedcal.__path__, "skfedcal."):
        if found.name in NO_ROOMS or found.name.split(".")[1].startswith("_"):
            continue
        room = importlib.import_module(found.name)
        for name in getattr(room, "__all__", ()):
            covered = name in words or name.endswith(("Calibrator", "_scorer"))
            if not (covered or name.startswith("federated_") or name in NO_ENTRIES):
                missing[name] = found.name
    assert not missing


def raises(error):
    def entry(case):
        raise error

    return entry


def deep_in_numpy(case):
    np.linalg.cholesky(-np.eye(2))


def warns(case):
    np.float64(1) / np.float64(0)


def bare_numpy(case):
    skfedcal.FederatedDataset.sizes.fget(None)


def leaves_a_draft(case):
    Path(case.path(".a.json.tmp")).touch()


def changes_its_argument(case):
    rows = np.ones(3)
    case.watch(rows)
    rows[0] = 2


def breaks_a_promise(case):
    raise Broken("probabilities that are none")


def never_ends(case):
    while True:
        pass


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (raises(KeyError("a")), "KeyError"),
        (raises(ZeroDivisionError("x")), "ZeroDivisionError"),
        (raises(MemoryError("x")), "MemoryError"),
        (raises(RecursionError("x")), "RecursionError"),
        (raises(ValueError("not raised by the library")), "bare ValueError"),
        (deep_in_numpy, "LinAlgError"),
        (bare_numpy, "AttributeError"),
        (warns, "RuntimeWarning"),
        (changes_its_argument, "argument was changed"),
        (leaves_a_draft, "draft of a file"),
        (breaks_a_promise, "broken promise"),
    ],
)
def test_the_judge_finds(entry, text, tmp_path):
    _, wrong = run_case(entry, Case(0, 0, str(tmp_path)))
    assert text in wrong


def test_the_judge_finds_what_does_not_end(tmp_path, monkeypatch):
    monkeypatch.setattr("fuzz_engine.SECONDS", 0.2)
    _, wrong = run_case(never_ends, Case(0, 0, str(tmp_path)))
    assert "no end" in wrong


def test_the_judge_takes_errors_of_the_library(tmp_path):
    def entry(case):
        skfedcal.FedTempCalibrator(eps=-1).fit([[0.0, 1.0]], [1])

    outcome, wrong = run_case(entry, Case(0, 0, str(tmp_path)))
    assert (outcome, wrong) == ("InvalidParameterError", None)


LOGITS = np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.5], [0.2, 1.5]])
LABELS = np.array([0, 1, 1, 0])


@pytest.mark.parametrize(
    ("rows", "error", "text"),
    [
        (np.ma.masked_greater(LOGITS, 1.5), ValueError, "masked entries"),
        (np.full((4, 2), 10**400), ValueError, "too large"),
        (np.full((4, 2), np.timedelta64(1, "s")), TypeError, "dates or durations"),
        ([[1.0, 2.0], [1.0]] * 2, ValueError, "inhomogeneous"),
    ],
)
def test_rows_that_hold_no_scores_are_refused_by_name(rows, error, text):
    with pytest.raises(error, match=text):
        skfedcal.FedTempCalibrator().fit(rows, LABELS)
    with pytest.raises((ValueError, TypeError), match=r"client 'a'|X |masked|Logits"):
        skfedcal.FedTempCalibrator().fit({"a": (rows, LABELS)})


def test_labels_may_be_a_tensor_with_a_gradient():
    torch = pytest.importorskip("torch")
    labels = torch.tensor(LABELS, dtype=torch.float32, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        found = skfedcal.FedTempCalibrator().fit(LOGITS, labels)
        same = skfedcal.FedTempCalibrator().fit(LOGITS, LABELS)
    assert found.temperature_ == same.temperature_


@pytest.mark.parametrize("name", ["FederatedCalibratedClassifier", "LogitTransformer"])
def test_a_refused_fit_leaves_no_attributes(name):
    estimator = getattr(skfedcal, name)(skfedcal.FedTempCalibrator())
    with pytest.raises(ValueError, match="NaN"):
        estimator.fit(np.full((40, 2), np.nan), np.resize(LABELS, 40))
    assert not [key for key in vars(estimator) if key.endswith("_")]


@pytest.mark.parametrize(
    "rows",
    [
        np.ma.masked_array(LOGITS),
        pd.DataFrame(LOGITS).astype("Float64"),
        LOGITS.astype(object),
        LOGITS.astype(str),
        np.vectorize(Decimal, otypes=[object])(LOGITS),
    ],
)
def test_rows_in_other_forms_give_the_same_map(rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CalibrationWarning)
        found = skfedcal.FedTempCalibrator().fit(rows, LABELS)
        same = skfedcal.FedTempCalibrator().fit(LOGITS, LABELS)
    assert found.temperature_ == same.temperature_


def test_features_of_any_size_that_has_a_square():
    rows = np.tile(LOGITS, (3, 1)) + np.arange(12)[:, None] / 50
    labels = np.tile(LABELS, 3)
    small = skfedcal.FedGaussianHead().fit(rows, labels).predict_proba(rows)
    large = skfedcal.FedGaussianHead().fit(rows * 1e120, labels)
    np.testing.assert_allclose(large.predict_proba(rows * 1e120), small, rtol=1e-6)
    with pytest.raises(ValueError, match=r"scale the features"):
        skfedcal.FedGaussianHead().fit(rows * 1e150, labels)


@pytest.mark.parametrize("number", [np.array(0.5), Decimal("0.5"), np.float32(0.5)])
def test_settings_may_be_any_kind_of_number(number):
    from skfedcal.privacy import gdp_delta, gdp_epsilon

    assert gdp_delta(number, 1.0) == gdp_delta(0.5, 1.0)
    assert gdp_epsilon(1.0, number) == gdp_epsilon(1.0, 0.5)


@pytest.mark.parametrize("flag", [np.int64(1), np.bool_(True), np.array(True), 1])
def test_flags_may_be_numbers_of_numpy(flag):
    from skfedcal.metrics import predictive_entropy

    rows = [[0.5, 0.5], [0.9, 0.1]]
    found = predictive_entropy(rows, normalize=flag)
    np.testing.assert_array_equal(found, predictive_entropy(rows, normalize=True))


def test_weights_may_be_text_that_is_numbers():
    proba = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.5, 0.5]])
    brier = skfedcal.metrics.brier_score
    weights = ["1", "2", "0.5", "1"]
    same = brier(LABELS, proba, sample_weight=[1, 2, 0.5, 1])
    assert brier(LABELS, proba, sample_weight=weights) == same


def test_a_damaged_cell_is_run_again(tmp_path):
    given = {"methods": ["temp"], "eps": [None], "seeds": 1, "n_clients": 3}
    given["progress"] = False
    rows = np.tile(LOGITS, (6, 1)), np.tile(LABELS, 6)
    first = skfedcal.compare(rows, store=tmp_path, **given)
    for path in tmp_path.glob("*.json"):
        path.write_text(path.read_text().replace('"floor_sd": ', '"floor_sd": 1e999'))
    again = skfedcal.compare(rows, store=tmp_path, **given)
    assert [row["NLL"] for row in again.rows] == [row["NLL"] for row in first.rows]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"hits": [', '"hits": [1e300, '),
        ('"method": "base"', '"method": null'),
        ('"oracle": "FedBiasTemp"', '"oracle": 1'),
        ('"varied": []', '"varied": [], "varied": []'),
        ('"accuracy": ', '"accuracy": 1e999'),
    ],
)
def test_a_damaged_comparison_is_refused(old, new):
    rows = np.tile(LOGITS, (6, 1)), np.tile(LABELS, 6)
    text = skfedcal.compare(
        rows, methods=["temp"], eps=[None], seeds=1, n_clients=3, progress=False
    ).to_json()
    compact = json.dumps(json.loads(text))
    assert compact.count(old)
    with pytest.raises(ValueError, match=r"damaged|not valid JSON"):
        skfedcal.Comparison.from_json(compact.replace(old, new))


def test_rows_and_labels_of_each_client_go_together():
    pairs = [(LOGITS, LABELS[:3]), (LOGITS[:3], LABELS)]
    with pytest.raises(ValueError, match="Client 0 has 4 rows of logits but 3 labels"):
        skfedcal.compare(pairs, methods=["temp"], progress=False)


def test_a_number_is_no_path():
    for number in (0, 1, True, 2**64):
        with pytest.raises(TypeError, match="path"):
            skfedcal.load(number)
        with pytest.raises(TypeError, match="path"):
            skfedcal.load_federation(number)
