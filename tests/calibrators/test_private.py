"""Behaviour under eps that no other file owns: units, labels, cohorts, clipping."""

import warnings

import numpy as np
import pytest

from skfedcal import (
    CentralDP,
    FedBinCalibrator,
    FederatedRunner,
    FedTempCalibrator,
    PrivacyLedger,
    make_federation,
)
from skfedcal.algorithms import ClassHistograms
from skfedcal.data._dataset import FederatedDataset
from skfedcal.exceptions import (
    CalibrationWarning,
    CheckpointError,
    PrivacyWarning,
    SimulatedPrivacyWarning,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)


@pytest.fixture(scope="module")
def fed():
    return make_federation(n_clients=60, n_samples=6000, n_test=0, random_state=3)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0, 8.0])
def test_private_temperature_reaches_far_values(temperature):
    fed = make_federation(
        n_clients=500,
        n_samples=20_000,
        temperature=temperature,
        n_test=0,
        random_state=0,
    )
    exact = FedTempCalibrator().fit(fed.clients).temperature_
    private = FedTempCalibrator(3, random_state=0).fit(fed.clients)
    # The prior and the clip leave a bias of a few per cent; noise at K mu = 360 is
    # below one per cent of log T.
    assert abs(np.log(private.temperature_ / exact)) < 0.12
    assert private.converged_


def test_example_level_privacy_is_close_to_the_optimum(fed):
    exact = FedTempCalibrator().fit(fed.clients).temperature_
    model = CentralDP(1.0, unit="example")
    private = FedTempCalibrator(privacy=model, random_state=0).fit(fed.clients)
    # Noise of the mean slope: 8.34 * 10 / 6000 = 0.014, over a curvature above 0.3:
    # 0.046 in log T; five of these and a clip bias stay below 0.25.
    assert abs(np.log(private.temperature_ / exact)) < 0.25
    assert private.privacy_.unit == "example"
    assert private.privacy_.n_clients == 6000


def test_labels_that_y_decides_are_named_as_an_assumption(fed):
    names = np.array(list("abcdefghij"))
    clients = [(z, names[y]) for z, y in fed.clients]
    with pytest.warns(PrivacyWarning, match="class labels were read"):
        cal = FedTempCalibrator(1, random_state=0).fit(clients)
    assert any("class labels" in text for text in cal.privacy_.assumptions)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PrivacyWarning)
        warnings.simplefilter("ignore", SimulatedPrivacyWarning)
        given = FedTempCalibrator(1, classes=names, random_state=0).fit(clients)
        numbered = FedTempCalibrator(1, random_state=0).fit(fed.clients)
    assert not given.privacy_.assumptions and not numbered.privacy_.assumptions
    assert given.temperature_ == numbered.temperature_ == cal.temperature_


@pytest.mark.parametrize(
    "estimator", [FedBinCalibrator(), FedTempCalibrator(solver="grid")]
)
def test_permuted_cohorts_make_one_pass_over_all_clients(fed, estimator):
    whole = estimator.fit(fed.clients).decision_function(fed.logits[:50])
    runner = FederatedRunner(cohort="permuted", cohort_size=7)
    parts = estimator.set_params(runner=runner, random_state=0).fit(fed.clients)
    assert parts.n_rounds_ == 9
    assert sum(record.n_clients for record in parts.history_) == 60
    np.testing.assert_allclose(
        parts.decision_function(fed.logits[:50]), whole, rtol=1e-9, atol=1e-9
    )
    estimator.set_params(runner=None, random_state=None)


def test_newton_with_changing_cohorts_says_why_it_did_not_converge(fed):
    runner = FederatedRunner(cohort="permuted", cohort_size=20, n_rounds=8)
    with pytest.warns(CalibrationWarning, match="cohorts that change"):
        FedTempCalibrator(runner=runner, random_state=0).fit(fed.clients)


def test_one_account_holds_one_unit(fed):
    ledger = PrivacyLedger()
    FedTempCalibrator(1, ledger=ledger, random_state=0).fit(fed.clients)
    by_row = FedTempCalibrator(
        privacy=CentralDP(1.0, unit="example"), ledger=ledger, random_state=0
    )
    with pytest.raises(ValueError, match="account per client"):
        by_row.fit(fed.clients)
    assert len(ledger) == 1


def test_a_checkpoint_serves_one_process_at_a_time(fed, tmp_path):
    path = tmp_path / "run.npz"
    runner = FederatedRunner(checkpoint=path, resume=True)

    class Nested(FedTempCalibrator):
        tried = False

        def _set_state(self, state):
            super()._set_state(state)
            if not self.tried:
                self.tried = True
                with pytest.raises(CheckpointError, match="another process"):
                    FedTempCalibrator(runner=runner, random_state=0).fit(fed.clients)

    assert Nested(runner=runner, random_state=0).fit(fed.clients).tried
    assert [p.name for p in tmp_path.iterdir()] == ["run.npz"]


def test_clipping_a_histogram_keeps_the_frequencies_of_a_client():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(200, 3)) * 3, rng.integers(0, 3, 200)
    one = FederatedDataset(rows, labels, np.array([0, 200]), ["a"], n_classes=3)
    free, bound = ClassHistograms(5), ClassHistograms(5, 4.0, 6.0)
    start = free.broadcast(free.init(3))
    exact, clipped = free.query(start, one), bound.query(start, one)
    factor = clipped["positive"].sum() / exact["positive"].sum()
    assert 0 < factor < 1
    for name, limit in (("positive", 4.0), ("negative", 6.0)):
        np.testing.assert_allclose(clipped[name], factor * exact[name])
        assert np.linalg.norm(clipped[name]) <= limit * (1 + 1e-12)


def test_noisy_bins_warn_when_rows_do_not_stand_out(fed):
    with pytest.warns(CalibrationWarning, match="rows on average"):
        FedBinCalibrator(0.5, random_state=0).fit(fed.clients)
