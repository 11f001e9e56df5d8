"""Presets: the paper's settings, and the noise of its lemmas."""

import sys
import warnings

import numpy as np
import pytest
from scipy.optimize import brentq

from skfedcal import (
    FedBinCalibrator,
    FederatedRunner,
    FedOPVectorCalibrator,
    FedTempCalibrator,
    client_temperatures,
    compare,
    make_federation,
)
from skfedcal.exceptions import PrivacyWarning
from skfedcal.experiments import printed
from skfedcal.experiments.comparison import engine
from skfedcal.federation.plain import to_plain
from skfedcal.methods.temperature.rounds import TemperatureAverage
from skfedcal.privacy import CentralDP

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
]


@pytest.fixture(scope="module")
def fed():
    return make_federation(100, 6000, n_test=2000, temperature=2.0, random_state=0)


def test_presets_are_those_of_the_paper():
    found = printed()
    assert list(found) == [
        "FedTemp", "FedOPVector", "FedCal", "FedBBQ", "FedBBQ-all", "FedBBQ-changed",
        "FedBin", "FedVector", "FedMatrix",
    ]  # fmt: skip
    for name, preset in found.items():
        cal = preset.build(1.0)
        assert not cal.if_improves
        assert cal.privacy == CentralDP(1.0, delta=1e-5, accountant="zcdp")
        assert cal.runner == FederatedRunner(12, "independent", 10)
        assert cal.clip == ((10, 50) if "B" in name else 0.5)
        assert preset.build().privacy is None
        other = printed(amplified=True)[name].build(1.0)
        assert other.runner.cohort == "poisson"
        assert other.privacy.accountant == "auto"
    changed = found["FedBBQ"].with_params(clip=(1, 2), n_levels=4).build(1.0)
    assert (changed.clip, changed.n_levels) == ((1, 2), 4)


def test_amplified_presets_need_dp_accounting(monkeypatch):
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    preset = printed(amplified=True)["FedTemp"]
    preset.build()  # without noise there is nothing to amplify
    # The noise of all clients would make rows that only seem to be amplified.
    with pytest.raises(ImportError, match="'FedTemp, amplified' needs dp-accounting"):
        preset.build(1.0)


@pytest.mark.parametrize("name", list(printed()))
def test_a_preset_can_be_fitted_with_and_without_noise(fed, name):
    for eps in (None, 1.0):
        preset = printed(amplified=eps is not None)[name]
        cal = preset.build(eps, classes=range(10), random_state=0)
        cal.set_params(runner=preset.runner(2, 10)).fit(fed.clients)
        proba = cal.predict_proba(fed.test_logits)
        assert np.isfinite(proba).all()
        assert cal.n_rounds_ == 2


def zcdp_rho(eps, delta):
    """Largest rho of Lemma B.3."""
    alpha = 1 + np.exp(np.linspace(-5, 10, 20001))

    def excess(log_rho):
        logs = (alpha - 1) * (alpha * np.exp(log_rho) - eps) - np.log(alpha - 1)
        return (logs + alpha * np.log1p(-1 / alpha)).min() - np.log(delta)

    return np.exp(brentq(excess, -10, 0))


def test_noise_of_each_histogram_is_that_of_lemma_b7(fed, monkeypatch):
    rho, n_classes = zcdp_rho(1.0, 1e-5), 10
    found, states = {}, []
    set_state = FedBinCalibrator._set_state

    def kept(self, state):
        states.append(state)
        set_state(self, state)

    monkeypatch.setattr(FedBinCalibrator, "_set_state", kept)
    for noise in ("each", "joint", "split"):
        FedBinCalibrator(
            privacy=CentralDP(1.0, delta=1e-5, accountant="zcdp"), clip=(10, 50),
            clip_per_class=True, noise=noise, if_improves=False, classes=range(10),
            runner=FederatedRunner(1), random_state=0,
        ).fit(fed.clients)  # fmt: skip
        last = states[-1]
        found[noise] = {
            "positive": last.noise_positive,
            "negative": last.noise_negative,
        }
    for name, clip in (("positive", 10), ("negative", 50)):
        expected = clip * np.sqrt(2 * n_classes / (2 * rho))
        # Noise is rounded up a little, for the lattice.
        assert found["each"][name] == pytest.approx(expected, rel=2e-3)
    assert found["each"]["positive"] == pytest.approx(181, rel=0.01)
    assert found["joint"]["positive"] == found["joint"]["negative"]
    # All divisions protect equally: the squared ratios of bound and noise add up alike.
    spent = [
        n_classes * (10 / n["positive"]) ** 2 + n_classes * (50 / n["negative"]) ** 2
        for n in found.values()
    ]
    assert spent == pytest.approx([spent[0]] * 3, rel=5e-3)


def test_the_server_learning_rate_scales_the_mean_change(fed):
    own = np.nanmean(client_temperatures(fed.clients))
    one = FederatedRunner(1)
    for rate in (1.0, 0.5, 2.0):
        cal = FedTempCalibrator(
            solver="average", server_learning_rate=rate, runner=one
        ).fit(fed.clients)
        assert cal.temperature_ == pytest.approx(1 + rate * (own - 1), rel=1e-9)
    slow, fast = (
        FedOPVectorCalibrator(
            solver="average", local_solver="gd", server_learning_rate=rate, runner=one
        ).fit(fed.clients)
        for rate in (0.5, 1.0)
    )
    start = FedOPVectorCalibrator(
        solver="average", local_solver="gd", server_learning_rate=1e-12, runner=one
    ).fit(fed.clients)
    half = (fast.offset_ + start.offset_) / 2
    np.testing.assert_allclose(slow.offset_, half, rtol=1e-7)


def test_the_server_learning_rate_is_not_sent():
    sent = to_plain(TemperatureAverage(clip=0.5, server_rate=0.3))
    assert sent == {"clip": 0.5, "n_rounds": 1}


def test_one_round_of_ten_clients_finds_the_temperature():
    # Few rows: the sample of a Newton start would have less than it needs.
    fed = make_federation(
        100, 3000, n_test=1000, temperature=2.0, noise=0.0, random_state=0
    )
    runner = FederatedRunner(1, "independent", 10)
    cal = FedTempCalibrator(runner=runner, random_state=0).fit(fed.clients)
    assert cal.n_rounds_ == 1
    # About 300 rows: one standard deviation of log T is below 0.08.
    assert abs(np.log(cal.temperature_ / 2)) < 0.45


def test_poisson_cohorts_without_dp_accounting_warn_and_are_stored_apart(
    fed, monkeypatch, tmp_path
):
    def run(**given):
        settings = {
            "eps": [1.0],
            "runner": FederatedRunner(3, "poisson", 10),
            "methods": ["temp"],
            **given,
        }
        return compare(
            fed.clients, (fed.test_logits, fed.test_labels), seeds=1, oracle="temp",
            store=tmp_path, progress=False, **settings,
        )  # fmt: skip

    pytest.importorskip("dp_accounting")
    tight = run().runs[-1]
    n_cells = len(list(tmp_path.iterdir()))
    for name in ("dp_accounting", "dp_accounting.pld"):
        monkeypatch.setitem(sys.modules, name, None)
    # The cell that was stored before has another noise; those without sampling do not.
    message = "dp-accounting is not installed: the noise of FedTemp is that of full"
    with pytest.warns(PrivacyWarning, match=message):
        wide = run().runs[-1]
    assert len(list(tmp_path.iterdir())) == n_cells + 1
    assert wide["noise"] > 2 * tight["noise"]
    assert (tight["accountant"], wide["accountant"]) == ("pld", "gdp")
    # From the store the warning is the same.
    with pytest.warns(PrivacyWarning, match=message):
        assert run().runs[-1] == wide
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        run(eps=[None])
        run(runner=FederatedRunner(3, "independent", 10))
        # Its import takes a quarter of a second: only where noise depends on it.
        with monkeypatch.context() as patch:
            patch.setattr(engine, "load_pld", lambda: pytest.fail("not needed"))
            run(eps=[None], runner=None)
        zcdp = FedTempCalibrator(privacy=CentralDP(1.0, accountant="zcdp"))
        run(methods={"zcdp": zcdp})
