"""Audits of whole fits: every calibrator, unit and trust setting keeps its claim."""

import json
import math
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skfedcal import (
    ClasswiseResiduals,
    FedAccTempCalibrator,
    FedBinCalibrator,
    FederatedRunner,
    FedGaussianHead,
    FedTempCalibrator,
    FedTopBinCalibrator,
    ScoreHistogram,
)
from skfedcal.cli import main
from skfedcal.plotting import AuditDisplay
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    PrivacyLedger,
    SourceDP,
    audit_estimator,
)
from skfedcal.privacy.audits.checks import differences, laplace_scale
from skfedcal.privacy.audits.estimator_audit import (
    altered_rows,
    canaries,
    ordinary_clients,
)
from skfedcal.privacy.mechanisms import laplace_variance

AT_THE_DOOR = {
    "claim",
    "bound of a client",
    "noise for the bound",
    "lattice",
    "secret noise",
    "clients apart",
    "nothing else released",
    "ledger",
}
OVER_RUNS = {"two worlds", "noise scale", "noise shape", "fresh noise"}
OVER_RUNS |= {"ledger and noise"}


def names(result):
    return {check.name for check in result.checks}


def test_every_calibrator_keeps_its_claim_at_the_door(noisy_class):
    result = audit_estimator(noisy_class(eps=1.0), n_runs=0, random_state=0)
    assert result.passed, result
    assert names(result) == AT_THE_DOOR
    assert result.claim.eps == 1.0


OTHERS = {
    "binary histogram": (ScoreHistogram.fit, ordinary_clients(2)),
    "top histogram": (partial(ScoreHistogram.fit, kind="top"), ordinary_clients(4)),
    "residuals": (ClasswiseResiduals.fit, ordinary_clients(4)),
}


@pytest.mark.parametrize("unit", ["client", "example"])
@pytest.mark.parametrize("name", OTHERS)
def test_federated_metrics_keep_their_claim_at_the_door(name, unit):
    collect, clients = OTHERS[name]
    model = CentralDP(1.0, unit=unit)
    result = audit_estimator(collect, clients, privacy=model, n_runs=0, random_state=0)
    assert result.passed, result
    assert names(result) == AT_THE_DOOR


def test_what_metrics_leave_behind_is_compared():
    clients = ordinary_clients(2)
    one, two = ScoreHistogram.fit(clients), ScoreHistogram.fit(clients[1:])
    assert differences(one, ScoreHistogram.fit(clients)) == []
    assert differences(one, two)


def test_a_head_on_features_keeps_its_claim_at_the_door():
    head = FedGaussianHead(eps=1.0, max_norm=2.0)
    result = audit_estimator(head, n_runs=0, random_state=0)
    assert result.passed, result
    assert names(result) == AT_THE_DOOR


@pytest.mark.slow
def test_every_calibrator_keeps_its_claim_over_runs(noisy_class):
    # Twice the eps is caught with chance 0.98 where the canary fills the claim.
    result = audit_estimator(
        noisy_class(eps=8.0), n_runs=200, alpha=1e-6, random_state=0
    )
    assert result.passed, result
    assert names(result) == AT_THE_DOOR | OVER_RUNS


@pytest.mark.slow
def test_long_audit_of_one_calibrator():
    result = audit_estimator(FedBinCalibrator(eps=1.0), random_state=0)
    assert result.passed, result
    assert result.n_runs == 1500
    assert result.power >= 0.95
    assert result.lower <= result.claim.mu


MODELS = [
    (FedBinCalibrator, CentralDP(1.0, unit="example")),
    (FedTempCalibrator, CentralDP(1.0, accountant="zcdp")),
    (FedBinCalibrator, DistributedDP(1.0, n_min=6, mode="faithful")),
    (FedTempCalibrator, DistributedDP(1.0, adjacency="replace")),
    (FedTopBinCalibrator, DistributedDP(1.0, mode="faithful")),
    (FedTopBinCalibrator, DistributedDP(1.0, unit="example", max_colluders=2)),
    (FedTopBinCalibrator, DistributedDP(1.0, adjacency="replace")),
    (FedTopBinCalibrator, LocalDP(1.0, mode="faithful")),
    (FedAccTempCalibrator, SourceDP(1.0, mode="faithful")),
]


@pytest.mark.parametrize(("cls", "model"), MODELS)
def test_every_trust_setting_keeps_its_claim(cls, model):
    result = audit_estimator(cls(privacy=model), n_runs=20, alpha=1e-6, random_state=0)
    assert result.passed, result
    assert "two worlds" in names(result)
    # Reports of clients are no sums with noise on top.
    additive = not isinstance(model, LocalDP)
    assert ("noise scale" in names(result)) is additive
    assert ("lattice" in names(result)) is additive


ORACLES = ["grr", "subset", "oue", "olh"]


@pytest.mark.slow
@pytest.mark.parametrize("oracle", ORACLES)
def test_reports_of_clients_fill_their_claim(oracle):
    # Reports of eps = 3 are not of eps = 1: the canary's own report is heard.
    model = LocalDP(3.0, oracle, mode="faithful")
    estimator = FedTopBinCalibrator(privacy=model)
    result = audit_estimator(estimator, n_runs=500, alpha=1e-6, random_state=0)
    assert result.passed, result
    assert result.eps_lower > 1
    assert math.isnan(result.power)


def test_sums_of_reports_are_audited_where_no_report_is_drawn():
    estimator = FedTopBinCalibrator(privacy=LocalDP(1.0, mode="fast"))
    result = audit_estimator(estimator, n_runs=20, alpha=1e-6, random_state=0)
    assert result.passed, result
    assert {error.rates[0] for error in result.errors} != {0.0}


def test_a_bound_for_replaced_clients_is_audited_with_replaced_clients():
    model = DistributedDP(1.0, adjacency="replace")
    estimator = FedTempCalibrator(privacy=model)
    result = audit_estimator(estimator, n_runs=0, random_state=0)
    (check,) = (c for c in result.checks if c.name == "noise for the bound")
    # The canary fills the claim: two bounds apart from its opposite.
    assert float(check.found.split()[1]) > 0.95 * result.claim.mu


def test_audit_leaves_estimator_and_ledger_alone():
    ledger = PrivacyLedger(budget=(1.0, 1e-5))
    estimator = FedTempCalibrator(eps=1.0, ledger=ledger)
    before = estimator.get_params(deep=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        audit_estimator(estimator, n_runs=0)
    after = estimator.get_params(deep=False)
    assert all(after[name] is before[name] for name in before)
    assert len(ledger) == 0
    assert not hasattr(estimator, "temperature_")


def test_a_seed_repeats_an_audit():
    def rates(seed):
        result = audit_estimator(
            FedBinCalibrator(eps=8.0), n_runs=20, random_state=seed
        )
        return [error.rates for error in result.errors]

    first = rates(3)
    assert first == rates(3)
    assert first != rates(4)


def test_clients_of_ones_own_and_rounds_of_a_runner():
    clients = ordinary_clients(n_classes=3, n_clients=5)
    runner = FederatedRunner(n_rounds=2, n_jobs=2, cohort_size=2)
    result = audit_estimator(
        FedBinCalibrator(eps=1.0, runner=runner), clients, n_runs=0, random_state=0
    )
    assert result.passed
    assert "over 2 round(s)" in " ".join(result.tried)


@pytest.mark.parametrize(
    ("estimator", "options", "message"),
    [
        (FedTempCalibrator(), {}, "no claim to audit"),
        (ScoreHistogram.fit, {}, "no claim to audit"),
        (FedTempCalibrator(eps=1.0), {"privacy": CentralDP(1.0)}, "of its own"),
        (lambda *_, **__: None, {"privacy": CentralDP(1.0)}, "made no release"),
        (FedTempCalibrator(eps=1.0), {"n_runs": 3}, "n_runs=3"),
        (FedTempCalibrator(eps=1.0), {"n_runs": 0, "alpha": 7.0}, "alpha=7.0"),
        (
            FedTempCalibrator(eps=1.0),
            {"clients": ordinary_clients()[:1]},
            "two clients",
        ),
        (FedTempCalibrator(eps=1.0), {"clients": {"a": ()}}, "list of"),
        (
            FedTempCalibrator(
                eps=1.0, runner=FederatedRunner(cohort="poisson", cohort_size=3)
            ),
            {},
            "all clients take part",
        ),
    ],
)
def test_what_cannot_be_audited_is_named(estimator, options, message):
    with pytest.raises(ValueError, match=message):
        audit_estimator(estimator, **options)


@pytest.mark.parametrize(
    ("subject", "options", "message"),
    [
        (LogisticRegression(), {}, "LogisticRegression has no privacy"),
        (5, {"privacy": CentralDP(1.0)}, "5 is neither"),
        (FedTempCalibrator(eps=1.0), {"n_runs": 30.5}, "n_runs=30.5"),
    ],
)
def test_what_is_no_subject_is_named(subject, options, message):
    with pytest.raises(TypeError, match=message):
        audit_estimator(subject, **options)


def test_a_trained_network_keeps_its_claim_at_the_door():
    pytest.importorskip("torch")
    from skfedcal.training import FedAvgClassifier

    classifier = FedAvgClassifier("linear", eps=1.0, n_rounds=2)
    # Without a seed weights start elsewhere in every fit, which is no leak.
    result = audit_estimator(classifier, n_runs=0)
    assert result.passed, result
    assert names(result) == AT_THE_DOOR


# ------------------------------------------------------------------------- parts


def test_canaries_are_the_worst_clients():
    found = {canary.name: canary for canary in canaries(4)}
    assert len(found["empty client"].labels) == 0
    assert np.ptp(found["all in one bin"].logits) == 0
    assert np.bincount(found["every class full"].labels).tolist() == [60] * 4
    wrong = found["certain and wrong"]
    assert np.abs(wrong.logits).min() == 1e6
    assert (wrong.logits.argmax(axis=1) != wrong.labels).all()
    assert all(len(canary.labels) == 1 for canary in canaries(4, "example"))


@pytest.mark.parametrize("unit", ["client", "example"])
def test_nothing_of_a_disguise_is_as_before(unit):
    clients = ordinary_clients()
    for (logits, labels), (other, others) in zip(
        clients, altered_rows(clients, 4, unit), strict=True
    ):
        assert (len(labels) == len(others)) is (unit == "example")
        n = len(others)
        assert (np.abs(other) != np.abs(logits[:n])).all()
        assert (others != labels[:n]).all()


@pytest.mark.parametrize("scale", [0.5, 3.0, 1e6])
def test_scale_of_laplace_noise_is_found_from_its_deviation(scale):
    assert laplace_scale(laplace_variance(scale) ** 0.5) == pytest.approx(scale)


def test_differences_are_found_at_any_depth():
    first = {"a_": np.array([1.0, np.nan]), "b_": [{"c": 1, "seconds": 2.0}], "d_": "x"}
    same = {"a_": np.array([1.0, np.nan]), "b_": [{"c": 1, "seconds": 3.0}], "d_": "x"}
    assert differences(first, same) == []
    assert differences(first, {**same, "b_": [{"c": 2, "seconds": 2.0}]}) == ["b_.0.c"]
    assert differences(first, {**same, "a_": np.array([1.0, 2.0])}) == ["a_"]
    assert differences(first, {**same, "d_": "y"}) == ["d_"]
    assert differences([1], [1, 2], "list") == ["list"]
    assert differences({"a": [1]}, {"a": None}) == ["a"]


# ------------------------------------------------------------ command and picture


@pytest.mark.parametrize("unit", ["client", "example"])
def test_command_prints_a_certificate(unit, capsys):
    line = ["audit", "--method", "bin", "--runs", "20", "--seed", "0", "--unit", unit]
    assert main(line) == 0
    out = capsys.readouterr().out
    assert "verdict      PASSED" in out
    assert all(name in out for name in AT_THE_DOOR | OVER_RUNS)
    assert main([*line, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is True
    assert data["method"] == "bin"
    assert len(data["checks"]) == len(AT_THE_DOOR | OVER_RUNS)


def test_command_names_too_few_runs(capsys):
    assert main(["audit", "--runs", "5"]) == 2
    assert "--runs 5 is too few" in capsys.readouterr().err


def test_command_fails_if_the_audit_does(monkeypatch, capsys):
    from skfedcal.privacy import mechanisms

    def little(self, size, source, n_clients):
        return np.zeros(size, dtype=np.int64)

    monkeypatch.setattr(mechanisms.LatticeGaussian, "_draw", little)
    assert main(["audit", "--method", "bin", "--runs", "20", "--seed", "0"]) == 1
    captured = capsys.readouterr()
    assert "verdict      FAILED" in captured.out
    assert "FedBinCalibrator violates its claim of eps = 1" in captured.err


def test_picture_shows_the_claim_and_the_errors():
    result = audit_estimator(FedBinCalibrator(eps=1.0), n_runs=20, random_state=0)
    display = AuditDisplay.from_result(result)
    curve = display.ax_.lines[0]
    assert curve.get_ydata() == pytest.approx(result.claim.curve(curve.get_xdata()))
    # The curve, no information, and a region and a cross for each of two thresholds.
    assert len(display.ax_.lines) == 2 + 2 * len(result.errors) == 6
    region, cross = display.ax_.lines[2:4]
    x, y = cross.get_xdata()[0], cross.get_ydata()[0]
    assert (x, y) == result.errors[0].rates
    assert np.interp(x, region.get_xdata(), region.get_ydata()) > y
    assert display.ax_.get_title() == "audit passed"
    with pytest.raises(ValueError, match="no runs to draw"):
        AuditDisplay.from_result(audit_estimator(FedBinCalibrator(eps=1.0), n_runs=0))
