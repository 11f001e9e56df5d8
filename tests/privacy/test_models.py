"""Privacy objects: what they accept, what they promise, what they cost."""

import math
import pickle
from dataclasses import FrozenInstanceError

import pytest
from sklearn.base import clone

from skfedcal.exceptions import PrivacyWarning
from skfedcal.privacy import (
    CentralDP,
    PrivacyLedger,
    PrivacyReport,
    SecureAggregation,
    accounting,
    calibrate_noise,
    compose_epsilon,
    gdp_mu,
    zcdp_rho,
)
from skfedcal.privacy.entropy import OSEntropy, SeededEntropy
from skfedcal.privacy.mechanisms import ExactSum
from skfedcal.privacy.models import ReleasePlan


def plan_for(model=None, *, n_units=100, n_releases=1, part=None, rate=1.0, n_values=8):
    release = ReleasePlan(n_units, n_releases, part or n_releases, rate, n_values)
    return (model or CentralDP(1.0)).mechanism(
        release, entropy=OSEntropy(), ledger=None, split="split", label="test"
    )


# ----------------------------------------------------------------- as parameters


def test_privacy_objects_do_not_change():
    model = CentralDP(1.0, accountant="zcdp")
    with pytest.raises(FrozenInstanceError):
        model.eps = 2.0
    changed = model.set_params(eps=2.0)
    assert (model.eps, changed.eps, changed.accountant) == (1.0, 2.0, "zcdp")
    assert model == CentralDP(1.0, accountant="zcdp")
    assert hash(model) == hash(CentralDP(1.0, accountant="zcdp"))
    assert pickle.loads(pickle.dumps(model)) == model
    with pytest.raises(ValueError, match="'epsilon'"):
        model.set_params(epsilon=1.0)


def test_a_clone_is_the_object_itself():
    for model in (CentralDP(1.0), SecureAggregation()):
        assert clone(model) is model
    assert CentralDP(1.0).get_params() == {
        "eps": 1.0,
        "delta": None,
        "accountant": "auto",
        "unit": "client",
    }


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"eps": 0.0}, "eps=0.0 is not a privacy budget"),
        ({"eps": -1}, "eps=-1"),
        ({"eps": math.inf}, "eps=inf"),
        ({"eps": math.nan}, "eps=nan"),
        ({"eps": "1"}, "eps='1'"),
        ({"eps": True}, "eps=True"),
        ({"eps": None}, "eps=None"),
        ({"eps": 1.0, "delta": 0.0}, "delta=0.0"),
        ({"eps": 1.0, "delta": 1.0}, "delta=1.0"),
        ({"eps": 1.0, "delta": math.nan}, "delta=nan"),
        ({"eps": 1.0, "delta": "small"}, "delta='small'"),
        ({"eps": 1.0, "accountant": "rdp"}, "accountant must be one of .* got 'rdp'"),
        ({"eps": 1.0, "unit": "patient"}, "unit must be one of .* got 'patient'"),
    ],
)
def test_values_that_cannot_be_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        CentralDP(**params).validate()


def test_secure_aggregation_adds_no_noise():
    model = SecureAggregation()
    model.validate()
    assert not model.private
    mechanism = plan_for(model)
    assert isinstance(mechanism, ExactSum)
    assert mechanism.report().eps == math.inf


# -------------------------------------------------------------------------- delta


@pytest.mark.parametrize(
    ("n_units", "delta"), [(1, 1e-5), (100, 1e-5), (10_000, 1e-5), (10**6, 1e-7)]
)
def test_delta_follows_the_number_of_clients(n_units, delta):
    assert plan_for(n_units=n_units).plan.delta == pytest.approx(delta, rel=1e-12)


@pytest.mark.parametrize("delta", [0.01, 0.5])
def test_a_delta_that_may_publish_a_client_is_refused(delta):
    with pytest.raises(ValueError, match="publishes one of the 100 clients"):
        plan_for(CentralDP(1.0, delta=delta))


def test_a_large_delta_is_warned_about(recwarn):
    with pytest.warns(PrivacyWarning, match="large for 100 clients"):
        plan_for(CentralDP(1.0, delta=0.002))
    recwarn.clear()
    plan_for(CentralDP(1.0, delta=0.001))
    assert not recwarn


def test_the_rules_for_delta_count_examples_if_they_are_the_unit():
    model = CentralDP(1.0, delta=1e-4, unit="example")
    with pytest.raises(ValueError, match="20000 examples"):
        plan_for(model, n_units=20_000)
    with pytest.warns(PrivacyWarning, match="examples"):
        plan_for(model, n_units=5_000)


# -------------------------------------------------------------------- accountants


@pytest.mark.parametrize(
    ("accountant", "n_rounds", "multiplier"),
    [
        ("auto", 1, 3.7306),
        ("gdp", 12, 12.923),
        ("gdp", 30, 20.434),
        ("zcdp", 1, 4.0451),
        ("zcdp", 12, 14.013),
        ("zcdp", 30, 22.156),
    ],
)
def test_noise_of_the_paper_setting(accountant, n_rounds, multiplier):
    model = CentralDP(1.0, delta=1e-5, accountant=accountant)
    mechanism = plan_for(model, n_releases=n_rounds)
    report = mechanism.report()
    assert report.noise_multiplier == pytest.approx(multiplier, rel=5e-5)
    assert report.n_rounds == n_rounds
    assert report.accountant == ("gdp" if accountant == "auto" else accountant)
    # mu adds up over rounds as squares.
    assert report.mu == pytest.approx(
        math.sqrt(n_rounds) / report.noise_multiplier, rel=1e-12
    )
    exact = gdp_mu(1.0, 1e-5)
    if accountant == "zcdp":
        exact = math.sqrt(2 * zcdp_rho(1.0, 1e-5))
    # A little less, for the slack of discrete noise.
    assert exact * (1 - 1e-5) < report.mu <= exact


def test_clients_that_take_part_less_often_need_less_noise():
    once = plan_for(n_releases=10, part=1).plan
    always = plan_for(n_releases=10).plan
    assert always.noise_multiplier == pytest.approx(
        math.sqrt(10) * once.noise_multiplier, rel=1e-6
    )


def test_poisson_noise_agrees_with_dp_accounting():
    dp_accounting = pytest.importorskip("dp_accounting")
    from dp_accounting import pld

    mechanism = plan_for(CentralDP(1.0, delta=1e-5), n_releases=12, rate=0.1)
    report = mechanism.report()
    assert report.accountant == "pld"
    assert report.mu is None
    assert report.noise_multiplier == pytest.approx(1.8191, rel=1e-3)
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.GaussianDpEvent(report.noise_multiplier)
        ),
        12,
    )
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    eps = accountant.compose(event).get_epsilon(1e-5)
    assert eps == pytest.approx(1.0, rel=1e-3)
    assert eps <= 1.0 + 1e-6
    assert any("nobody who sees the result" in text for text in report.assumptions)
    # The ledger is told the same.
    event = mechanism.plan.to_event()
    assert compose_epsilon([event], 1e-5) == pytest.approx(1.0, rel=1e-3)


def test_without_dp_accounting_sampling_is_not_credited(monkeypatch):

    monkeypatch.setattr(accounting, "load_pld", lambda: None)
    monkeypatch.setattr(accounting, "load_pld", lambda: None)
    with pytest.warns(PrivacyWarning, match="full participation"):
        report = plan_for(CentralDP(1.0), n_releases=3, rate=0.1).report()
    full = plan_for(CentralDP(1.0), n_releases=3).report()
    assert report.noise_multiplier == full.noise_multiplier
    assert report.mu == full.mu
    assert any("charged as 1" in text for text in report.assumptions)
    with pytest.raises(ImportError, match="accounting"):
        plan_for(CentralDP(1.0, accountant="pld"), rate=0.1)


def test_accountants_that_know_no_sampling():
    with pytest.raises(ValueError, match="sampling_rate=1"):
        plan_for(CentralDP(1.0, accountant="gdp"), rate=0.1)
    plain = plan_for(CentralDP(1.0, accountant="zcdp")).plan
    sampled = plan_for(CentralDP(1.0, accountant="zcdp"), rate=0.1).plan
    assert sampled.noise_multiplier == plain.noise_multiplier


def test_sampling_clients_hides_no_single_row():
    # Rows come by clients. Let client c have a row r and others whose sum s is large:
    # with chance p the output is near s, and then r is as visible as without
    # sampling. Credit for p would be false by the factor that it saves.
    model = CentralDP(1.0, delta=1e-6, unit="example")
    sampled = plan_for(model, n_units=1000, n_releases=3, rate=0.1).plan
    full = plan_for(model, n_units=1000, n_releases=3).plan
    assert sampled.noise_multiplier == full.noise_multiplier
    assert sampled.sampling_rate == 1.0


def test_more_released_numbers_cost_a_little_more():
    few, many = (calibrate_noise(1.0, 1e-5, n_values=n) for n in (1, 256_000))
    assert 0 < many.noise_multiplier / few.noise_multiplier - 1 < 1e-3


# ------------------------------------------------------------------------- report


def test_report_of_exact_sums():
    text = repr(PrivacyReport())
    assert text.startswith("PrivacyReport(no differential privacy;")
    assert "exact: the server sees the sum over clients without noise" in text


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("unit", ["client", "example"])
def test_report_says_what_is_guaranteed(secure, unit):
    model = CentralDP(2.0, delta=1e-6, unit=unit)
    mechanism = model.mechanism(
        ReleasePlan(50, 3, 3, 1.0, 2),
        entropy=OSEntropy() if secure else SeededEntropy(0),
        ledger=PrivacyLedger(),
        split="split",
        label="test",
    )
    mechanism.open("run")
    report = mechanism.report()
    text = repr(report)
    for phrase in (
        "eps=2, delta=1e-06",
        f"protects one {unit} of 50 (adjacency: zero-out)",
        f"noise {report.noise_multiplier:.4f} x the bound, 3 round(s)",
        "accountant gdp",
        f"mu={report.mu:.4f}",
        "trust: central: the server sees exact sums and adds the noise",
        f"ledger: {report.ledger_ids[0][:12]}",
    ):
        assert phrase in text
    assert ("SIMULATED, seeded noise: no guarantee" in text) is not secure
    assert report.secure is secure
    assert report.private


def test_report_of_sampling_names_its_assumption():
    pytest.importorskip("dp_accounting")
    text = repr(plan_for(CentralDP(1.0, delta=1e-5), rate=0.1).report())
    assert "accountant pld" in text
    assert "assumes: every client is in a round with chance 0.1" in text
    assert "mu=" not in text
    assert "ledger: none" in text


def test_report_does_not_change():
    with pytest.raises(FrozenInstanceError):
        PrivacyReport().eps = 1.0
