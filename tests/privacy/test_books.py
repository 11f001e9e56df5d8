"""The audit of the ledger: debits against reports, and against measured noise."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

from skfedcal import (
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    ScoreHistogram,
    federated_accuracy_score,
    federated_calibration_error,
    federated_roc_auc_score,
    make_federation,
)
from skfedcal.exceptions import BudgetExceededError
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    GaussianEvent,
    LocalDP,
    PrivacyLedger,
    PureEvent,
    SampledGaussianEvent,
    SourceDP,
    audit,
    audit_estimator,
    gdp_epsilon,
    gdp_mu,
)
from skfedcal.privacy import ledger_file as records_module
from skfedcal.privacy.mechanisms import LatticeGaussian, LatticeLaplace, NoisySum
from skfedcal.privacy.site_ledger import SiteLedger

TOP = partial(federated_accuracy_score, kind="top")


def failed(result):
    return {check.name for check in result.failures}


def tenth(event):
    name = "mu" if isinstance(event, GaussianEvent) else "eps"
    return replace(event, **{name: getattr(event, name) / 10})


# ------------------------------------------------------------------------ honest audits


@pytest.mark.parametrize(
    "model",
    [
        CentralDP(1.0),
        CentralDP(1.0, unit="example"),
        DistributedDP(1.0, adjacency="replace"),
        DistributedDP(1.0, mode="faithful"),
        SourceDP(1.0),
    ],
    ids=str,
)
def test_honest_debits_pass(model):
    fit = partial(ScoreHistogram.fit, kind="top", height=2)
    result = audit_estimator(fit, privacy=model, n_runs=60, random_state=0)
    assert {"ledger", "ledger and noise"} <= {c.name for c in result.checks}
    assert result.passed, result


def test_local_reports_are_checked_against_the_report_only():
    fit = partial(ScoreHistogram.fit, kind="top", height=1)
    result = audit_estimator(fit, privacy=LocalDP(1.0), n_runs=0, random_state=0)
    assert result.passed and "ledger" in {c.name for c in result.checks}


def test_measured_cost_is_near_the_debit_and_below_it():
    """With many draws the cost by the measured noise comes up to the debit."""
    result = audit_estimator(FedBinCalibrator(eps=1.0), n_runs=400, random_state=1)
    (check,) = [c for c in result.checks if c.name == "ledger and noise"]
    debited = float(check.found.split()[1])
    needed = float(check.allowed.split()[2])
    assert 0.97 * debited < needed <= debited


def test_noise_for_replaced_clients_is_measured_against_two_bounds():
    """A replaced client moves a sum by two bounds; by one, the cost would be half."""
    model = DistributedDP(1.0, adjacency="replace")
    estimator = FedBinCalibrator(privacy=model)
    result = audit_estimator(estimator, n_runs=40, random_state=1)
    (check,) = [c for c in result.checks if c.name == "ledger and noise"]
    debited = float(check.found.split()[1])
    needed = float(check.allowed.split()[2])
    assert result.passed, result
    assert 0.85 * debited < needed <= debited


# ------------------------------------------------------------------------- false debits


@pytest.mark.parametrize("estimator", [FedTempCalibrator(eps=1.0), TOP])
def test_a_tenth_of_the_debit_is_seen(monkeypatch, estimator):
    pay = NoisySum._pay
    monkeypatch.setattr(
        NoisySum, "_pay", lambda self, event, *rest: pay(self, tenth(event), *rest)
    )
    privacy = CentralDP(1.0) if estimator is TOP else None
    options = {"privacy": privacy, "random_state": 0}
    assert failed(audit_estimator(estimator, n_runs=0, **options)) == {"ledger"}
    found = audit_estimator(estimator, n_runs=60, **options)
    assert failed(found) == {"ledger", "ledger and noise"}


def test_a_ledger_that_writes_a_tenth_is_seen(monkeypatch):
    debit = PrivacyLedger.debit
    monkeypatch.setattr(
        PrivacyLedger,
        "debit",
        lambda self, event, **kw: debit(self, tenth(event), **kw),
    )
    result = audit_estimator(FedTempCalibrator(eps=1.0), n_runs=0, random_state=0)
    assert failed(result) == {"ledger"}


def test_a_ledger_that_forgets_debits_is_seen(monkeypatch):
    monkeypatch.setattr(PrivacyLedger, "debit", lambda self, event, **kw: "paid")
    result = audit_estimator(FedTempCalibrator(eps=1.0), n_runs=0, random_state=0)
    assert failed(result) == {"ledger"}


def test_a_total_that_is_too_small_is_seen(monkeypatch):
    add = records_module.Account.add

    def first_only(self, event):
        if self.n_events == 0:
            add(self, event)

    monkeypatch.setattr(records_module.Account, "add", first_only)
    result = audit_estimator(FedTempCalibrator(eps=1.0), n_runs=0, random_state=0)
    assert failed(result) == {"ledger"}


def test_a_wrong_mode_is_seen(monkeypatch):
    debit = PrivacyLedger.debit

    def secure(self, event, **kw):
        return debit(self, event, **{**kw, "mode": "secure"})

    monkeypatch.setattr(PrivacyLedger, "debit", secure)
    result = audit_estimator(FedTempCalibrator(eps=1.0), n_runs=0, random_state=0)
    assert failed(result) == {"ledger"}


class SaysATenth(LatticeGaussian):
    """Report and debit agree with each other, and not with the noise."""

    def _pay(self, event, *rest):
        super()._pay(tenth(event), *rest)

    def report(self):
        report = super().report()
        mu = report.mu / 10
        return replace(report, mu=mu, eps=gdp_epsilon(mu, report.delta))


@dataclass(frozen=True, repr=False)
class TenthDP(CentralDP):
    def mechanism(self, plan, **options):
        found = super().mechanism(plan, **options)
        found.__class__ = SaysATenth
        return found


def test_a_debit_that_agrees_with_a_false_report_is_seen_in_the_noise():
    estimator = FedTempCalibrator(privacy=TenthDP(1.0))
    result = audit_estimator(estimator, n_runs=60, random_state=0)
    assert "ledger and noise" in failed(result) and "ledger" not in failed(result)


# ------------------------------------------------------------------- metrics (item 8)


class HalfLaplace(LatticeLaplace):
    def _draw(self, size, scale, source, n_clients):
        return super()._draw(size, scale / 2, source, n_clients)


@dataclass(frozen=True, repr=False)
class HalfDP(CentralDP):
    def mechanism(self, plan, **options):
        found = super().mechanism(plan, **options)
        found.__class__ = HalfLaplace
        return found


METRICS = {
    "accuracy": TOP,
    "ece": partial(federated_calibration_error, height=2),
    "auc": partial(federated_roc_auc_score, multi_class="ovr", height=2),
    "auc per class": partial(
        federated_roc_auc_score, multi_class="ovr", average=None, height=2
    ),
    "cwece": partial(federated_calibration_error, kind="classwise", n_bins=2),
}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_metrics_keep_their_claim(metric):
    result = audit_estimator(metric, privacy=CentralDP(1.0), n_runs=60, random_state=0)
    assert result.passed, result


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_half_the_noise_of_a_metric_is_seen(metric):
    result = audit_estimator(metric, privacy=HalfDP(1.0), n_runs=150, random_state=0)
    assert "ledger and noise" in failed(result), result
    assert "noise scale" in failed(result)


def test_an_exact_metric_has_nothing_to_audit():
    with pytest.raises(TypeError, match="no PrivacyReport"):
        audit_estimator(
            lambda clients, *, privacy, random_state: float(
                TOP(clients, privacy=privacy, random_state=random_state)
            ),
            privacy=CentralDP(1.0),
            n_runs=0,
        )


# --------------------------------------------------------------- any function at all


@pytest.mark.parametrize("part", [1.0, 0.1])
def test_an_audit_of_a_function_reads_its_ledger(part):
    rng, ledger, mu = np.random.default_rng(0), PrivacyLedger(), gdp_mu(1.0, 1e-5)

    def release(x):
        ledger.debit(GaussianEvent(part * mu), label="x")
        return x + rng.normal(0, 1 / mu)

    ledger.debit(PureEvent(0.1), label="from before")
    result = audit(release, 0.0, 1.0, mu=mu, delta=1e-5, n_runs=200, ledger=ledger)
    assert failed(result) == (set() if part == 1 else {"ledger"})


def test_a_release_that_is_not_paid_is_seen():
    rng, ledger = np.random.default_rng(0), PrivacyLedger()

    def release(x):
        if len(ledger) < 50:
            ledger.debit(PureEvent(1.0), label="x")
        return x + rng.laplace()

    result = audit(release, 0.0, 1.0, eps=1.0, n_runs=100, ledger=ledger)
    assert failed(result) == {"ledger"}
    with pytest.raises(TypeError, match="must be a PrivacyLedger"):
        audit(release, 0.0, 1.0, eps=1.0, n_runs=100, ledger="file")


# ---------------------------------------------------------- Poisson fits (item 10 b)

POISSON = SampledGaussianEvent(2.0, 0.5, 4)


@pytest.mark.parametrize("kind", [PrivacyLedger, SiteLedger])
def test_a_budget_is_enforced_for_sampled_rounds(kind):
    ledger = kind(budget=(1.0, 1e-5))
    with pytest.raises(BudgetExceededError):
        ledger.debit(POISSON, label="too much")
    assert len(ledger) == 0
    ledger = kind(budget=(30.0, 1e-5))
    before = 0.0
    for _ in range(4):
        ledger.debit(POISSON, label="fit")
        assert ledger.spent() > before
        before = ledger.spent()
    small = kind(budget=(before * 1.01, 1e-5))
    with pytest.raises(BudgetExceededError):
        [small.debit(POISSON, label="fit") for _ in range(50)]
    assert 1 <= len(small) < 50


def test_a_poisson_fit_beyond_the_budget_makes_no_release():
    pytest.importorskip("dp_accounting")
    clients = make_federation(n_clients=60, n_samples=600, random_state=0).clients
    runner = FederatedRunner(cohort="poisson", cohort_size=18)
    ledger = PrivacyLedger(budget=(1.5, 1e-5))
    estimator = FedTempCalibrator(eps=1.0, ledger=ledger, runner=runner)
    estimator.fit(clients)
    (record,) = ledger.records()
    assert record["event"]["kind"] == "sampled_gaussian"
    with pytest.raises(BudgetExceededError):
        [estimator.fit(clients) for _ in range(4)]
    assert len(ledger) < 5 and ledger.spent() <= 1.5


def test_a_site_gives_no_credit_for_sampling():
    site, plain = SiteLedger(budget=(50.0, 1e-5)), SiteLedger(budget=(50.0, 1e-5))
    for _ in range(2):
        site.debit(POISSON, label="x")
        plain.debit(GaussianEvent(1.0), label="x")  # sqrt(4) / 2.0
    assert site.spent() == pytest.approx(plain.spent())
