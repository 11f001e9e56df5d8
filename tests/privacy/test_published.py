"""What is published agrees with what is claimed: neighbours, seeds, every field."""

import json
import math
import re
import warnings
from dataclasses import fields
from itertools import product
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

import skfedcal
from skfedcal import (
    CalibrationMonitor,
    ClasswiseResiduals,
    Estimate,
    FedBinCalibrator,
    FedGaussianHead,
    FedTempCalibrator,
    ScoreHistogram,
    federated_accuracy_score,
    federated_calibration_error,
    federated_roc_auc_score,
    make_federation,
)
from skfedcal.cli._main import main
from skfedcal.federation.history import RoundRecord
from skfedcal.methods.registry import BUILT_IN
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    PrivacyLedger,
    PrivacyReport,
    SecureAggregation,
    SourceDP,
    gdp_epsilon,
    gdp_mu,
)

FED = make_federation(n_clients=40, n_samples=800, n_classes=3, random_state=0)
BINARY = make_federation(n_clients=40, n_samples=800, n_classes=2, random_state=0)
UNITS, MODES = ("client", "example"), ("fast", "faithful")
MODELS = [
    *(CentralDP(2.0, unit=unit) for unit in UNITS),
    *(
        DistributedDP(2.0, unit=unit, adjacency=adjacency, mode=mode, n_min=40)
        for unit, adjacency, mode in product(UNITS, ("zero-out", "replace"), MODES)
    ),
    *(LocalDP(2.0, mode=mode) for mode in MODES),
    *(SourceDP(2.0, mode=mode) for mode in MODES),
]
ids = [str(model) for model in MODELS]


def temperature(model, **options):
    return FedTempCalibrator(privacy=model, **options).fit(FED.clients)


def bins(model, **options):
    return FedBinCalibrator(privacy=model, **options).fit(FED.clients)


def histogram(model, **options):
    return ScoreHistogram.fit(FED.clients, privacy=model, kind="top", **options)


def residuals(model, **options):
    return ClasswiseResiduals.fit(FED.clients, privacy=model, **options)


def head(model, **options):
    return FedGaussianHead(privacy=model, max_norm=3.0, **options).fit(FED.clients)


RELEASES = [temperature, bins, histogram, residuals, head]


def run(release, model, **options):
    """Fit; None where a method says that it has no release under this model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return release(model, **options)
        except (ValueError, TypeError) as error:
            text = str(error)
            assert re.search(r"LocalDP|SourceDP|example|L1 bound|L2 bound", text), text
            return None


# ------------------------------------------------------------------ neighbours (item 6)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", MODELS, ids=ids)
def test_no_claim_hides_a_number_that_is_published(model, release):
    fitted = run(release, model, random_state=0)
    if fitted is None:
        return
    report = fitted.privacy_
    n_units = len(FED.clients)
    if report.unit == "example":
        n_units = sum(len(labels) for _, labels in FED.clients)
        assert "the number of rows is public" in report.assumptions
    assert report.unit == model.unit
    assert report.n_clients == n_units  # published, so no claim may hide it
    assert report.adjacency in ("zero-out", "replace", "any two values")
    if report.unit == "client" and hasattr(fitted, "history_"):
        # Numbers of rows are not public then.
        n_rows = sum(len(labels) for _, labels in FED.clients)
        plain = json.dumps(fitted.history_.to_dict())
        assert not re.search(rf"\b{n_rows}\b", plain)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("mode", MODES)
def test_absence_is_never_claimed(unit, mode):
    model = DistributedDP(1.0, adjacency="add-remove", unit=unit, mode=mode, n_min=40)
    with pytest.raises(ValueError, match=f"cannot hide whether one {unit} exists"):
        model.validate()
    for release in RELEASES:
        with pytest.raises(ValueError, match="add-remove"):
            release(model, random_state=0)


# ----------------------------------------------------------------------- seeds (item 9)


@pytest.mark.parametrize("seed", [None, 0, "RandomState"])
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("model", MODELS, ids=ids)
def test_seeded_noise_is_booked_as_a_simulation(model, release, seed):
    ledger = PrivacyLedger()
    state = np.random.RandomState(0) if seed == "RandomState" else seed
    fitted = run(release, model, random_state=state, ledger=ledger)
    if fitted is None:
        assert len(ledger) == 0
        return
    report = fitted.privacy_
    (record,) = ledger.records()
    assert report.seeded == (seed is not None)
    assert (record["mode"] == "secure") == report.secure
    if seed is not None:
        assert record["mode"] == "simulation" and not report.secure
    elif not (isinstance(model, LocalDP | SourceDP) and model.mode == "fast"):
        assert record["mode"] == "secure"


@pytest.mark.parametrize("model", MODELS, ids=ids)
@pytest.mark.parametrize("seeded", [False, True])
def test_a_mechanism_says_whether_it_is_seeded(model, seeded):
    from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
    from skfedcal.privacy.models import ReleasePlan

    plan = ReleasePlan(40, 1, 1, 1.0, 4, norm="l1", n_clients=40)
    entropy = SeededEntropy(0) if seeded else OSEntropy()
    mechanism = model.mechanism(plan, entropy=entropy, ledger=None)
    assert mechanism.seeded is seeded
    assert not (mechanism.seeded and mechanism.secure)
    assert SecureAggregation().mechanism(plan).seeded is False


# ------------------------------------------------------------------- estimates (item 8)

METRICS = [
    lambda **kw: federated_roc_auc_score(BINARY.clients, **kw),
    lambda **kw: federated_roc_auc_score(FED.clients, multi_class="ovr", **kw),
    lambda **kw: federated_accuracy_score(FED.clients, kind="top", **kw),
    lambda **kw: federated_calibration_error(FED.clients, **kw),
    lambda **kw: federated_calibration_error(FED.clients, kind="classwise", **kw),
]


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("seed", [None, 0])
@pytest.mark.filterwarnings("ignore")
def test_a_private_metric_says_what_it_guarantees(metric, seed):
    ledger = PrivacyLedger()
    found = metric(privacy=CentralDP(1.0), random_state=seed, ledger=ledger)
    (record,) = ledger.records()
    assert (found.eps, found.unit, found.adjacency) == (1.0, "client", "zero-out")
    assert found.simulated == (seed is not None)
    assert found.privacy.ledger_ids == (record["id"],)
    assert 0 <= found.delta < 1e-4
    assert "eps=1" in repr(found) and ("simulated=True" in repr(found)) == (seed == 0)
    assert "eps=1" in found._repr_html_()
    plain = json.loads(json.dumps(found.to_dict()))
    value = None if np.isnan(found) else float(found)  # noise may leave no rows
    assert plain["eps"] == 1.0 and plain["value"] == value
    exact = metric()
    assert exact.privacy is exact.eps is exact.unit is exact.simulated is None
    assert "eps" not in repr(exact) and "eps" not in exact._repr_html_()
    assert exact.to_dict()["eps"] is None


@pytest.mark.filterwarnings("ignore")
def test_every_answer_of_a_histogram_carries_its_guarantee():
    hist = ScoreHistogram.fit(BINARY.clients, privacy=CentralDP(1.0), random_state=0)
    single = [
        hist.roc_auc(), hist.average_precision(), hist.accuracy(), hist.precision(),
        hist.recall(), hist.f1(), hist.brier(), hist.log_loss(), hist.ece(),
        hist.l2_ece(), *hist.confusion(),
    ]  # fmt: skip
    assert all(one.privacy is hist.privacy_ for one in single)
    classes = residuals(CentralDP(1.0), random_state=0)
    assert all(one.eps == 1.0 for one in (classes.cwece(), *classes.per_class()))
    again = ScoreHistogram.from_json(hist.to_json()).roc_auc()
    assert (again.eps, again.simulated) == (1.0, True)


def test_an_estimate_stays_a_float_with_the_same_call_forms():
    import pickle

    plain = Estimate(0.81, 0.79, 0.83, se_sampling=0.01)
    assert plain == 0.81 and plain.low == 0.79 and plain.privacy is None
    one = Estimate(0.5, 0.4, 0.6, privacy=PrivacyReport(eps=1.0))
    again = pickle.loads(pickle.dumps(one))
    assert again == one and again.privacy == one.privacy and again.low == 0.4
    # A pickle of an older version has no report.
    function, args = one.__reduce__()
    assert function(*args[:6]).privacy is None
    assert Estimate(np.nan).to_dict()["value"] is None


# ---------------------------------------------------------------------- fields (item 6)

DOCS = Path(__file__).parents[2] / "docs"
TABLE = DOCS / "reference" / "published.rst"


def listed(section):
    """Names in the first column of one table of the reference."""
    part = TABLE.read_text(encoding="utf-8")
    assert f"**{section}**" in part, section
    part = part.split(f"**{section}**", 1)[1].split("\n**", 1)[0]
    cells = re.findall(r"^   \* - (.+)$", part, flags=re.M)
    return {name for cell in cells for name in re.findall(r"``([^`]+)``", cell)}


def test_the_guesses_on_the_page_for_officers():
    """Right guesses of the best attacker: pure eps, and Gaussian noise at 1e-5."""
    text = (DOCS / "guide" / "privacy_officers.rst").read_text(encoding="utf-8")
    cells = r"^([\d.]+) +(\d+ of 100|nearly always) +(\d+) of 100$"
    rows = re.findall(cells, text, re.M)
    assert [row[0] for row in rows] == ["0.5", "1", "3", "8"]
    for eps, pure, gaussian in rows:
        odds = math.exp(float(eps))
        share = round(100 * odds / (1 + odds))
        assert pure == ("nearly always" if share == 100 else f"{share} of 100")
        mu = gdp_mu(float(eps), 1e-5)
        assert round(100 * NormalDist().cdf(mu / 2)) == int(gaussian)
    assert f"{gdp_epsilon(2 * gdp_mu(1.0, 1e-5), 1e-5):.2f}" == "2.15"
    assert "eps = 1 becomes 2.15" in text


def test_the_summary_on_the_page_for_officers(tmp_path, capsys):
    ledger = PrivacyLedger(tmp_path / "ledger.jsonl", budget=(3.0, 1e-5))
    rows = make_federation(3, 12_000, 3, random_state=0).clients
    by_row = CentralDP(1.0, unit="example")
    FedTempCalibrator(privacy=by_row, classes=range(3), ledger=ledger).fit(rows)
    assert main(["ledger", str(tmp_path / "ledger.jsonl"), "--summary"]) == 0
    printed = capsys.readouterr().out.splitlines()
    text = (DOCS / "guide" / "privacy_officers.rst").read_text(encoding="utf-8")
    found = re.search(r"   :name: officers-summary\n\n((?:   .*\n)+)", text)
    shown = [line[3:] for line in found[1].splitlines()]
    assert len(shown) > 10
    assert [line for line in shown if line != "..." and line not in printed] == []


@pytest.mark.filterwarnings("ignore")
def test_the_guide_names_the_calibrators_of_each_privacy_model():
    text = (DOCS / "guide" / "privacy.rst").read_text(encoding="utf-8")
    row = re.search(r"   \* - Calibrators\n((?:     - .+\n){5})", text)[1]
    cells = re.findall(r"- (.+)", row)
    names = {m.estimator_name for m in BUILT_IN if m.kind == "calibrator"}
    shown = [{f"{n}Calibrator" for n in re.findall(r"Fed\w+", c)} for c in cells]
    assert cells[0] == "all"
    assert cells[1].startswith('all but FedOneVsRest; ``unit="example"``: nor ')
    expected = {
        CentralDP(5.0): names - {"FedOneVsRestCalibrator"},
        CentralDP(5.0, unit="example"): names - shown[1],
        LocalDP(5.0): shown[3],
        SourceDP(5.0): shown[4],
    }
    for model, accepted in expected.items():
        assert {n for n in names if _is_fitted(n, model)} == accepted, model


def _is_fitted(name, model):
    estimator = getattr(skfedcal, name)(privacy=model, classes=[0, 1])
    try:
        estimator.fit(BINARY.clients)
    except ValueError:
        return False
    return True


@pytest.mark.filterwarnings("ignore")
def test_every_published_field_is_in_the_table(tmp_path):
    assert listed("history_") == {f.name for f in fields(RoundRecord)} | {"n_faults"}
    assert listed("privacy_") == {f.name for f in fields(PrivacyReport)}
    found = Estimate(0.5, privacy=PrivacyReport(eps=1.0))
    assert listed("Estimate") == {*found.to_dict(), "privacy"}
    hist = histogram(CentralDP(1.0), random_state=0)
    assert listed("histogram file") == set(json.loads(hist.to_json()))
    booked = set()
    for release, model in product((histogram, temperature), MODELS):
        booked |= set(_record(release, model))
    assert listed("ledger record") == booked
    names = set()
    for model in (None, CentralDP(1.0)):
        fitted = temperature(model, random_state=0)
        fitted.save(tmp_path / "cal.json")
        names |= set(json.loads((tmp_path / "cal.json").read_text()))
    assert listed("calibrator file") == names
    monitor = CalibrationMonitor(1.0, random_state=0, path=tmp_path / "monitor.json")
    monitor.update(FED.clients)
    written = json.loads((tmp_path / "monitor.json").read_text())
    assert listed("monitor file") == set(written)


def _record(release, model):
    ledger = PrivacyLedger(budget=(5.0, 1e-5))
    if run(release, model, random_state=0, ledger=ledger) is None:
        return ()
    (record,) = ledger.records()
    return *record, *(f"details.{name}" for name in record["details"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [None, 0])
def test_times_of_a_private_fit_are_not_published(seed):
    fitted = temperature(CentralDP(1.0), random_state=seed)
    hidden = [
        np.isnan(r.seconds) and np.isnan(r.client_seconds) for r in fitted.history_
    ]
    assert all(hidden) == (seed is None)
