"""FedTopBinCalibrator: by hand, every privacy model, what is paid and sent."""

import json

import numpy as np
import pytest
from scipy.special import softmax

from skfedcal import FederatedRunner, FedTopBinCalibrator, load
from skfedcal.exceptions import CalibrationWarning
from skfedcal.privacy import (
    CentralDP,
    DistributedDP,
    LocalDP,
    PrivacyLedger,
    SourceDP,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
]

PLAIN = {"shrink": False, "monotone": False}


def overconfident(n=6000, c=4, n_clients=50, factor=3.0, seed=0):
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(n, c)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return factor * true, labels, np.arange(n) % n_clients


def gap(cal, rows, labels):
    """Top-label calibration error in 15 bins."""
    proba = cal.predict_proba(rows)
    top, hit = proba.max(axis=1), proba.argmax(axis=1) == labels
    bins = np.minimum((top * 15).astype(int), 14)
    return np.abs(np.bincount(bins, hit - top, 15)).sum() / len(labels)


def test_values_and_vectors_by_hand():
    proba = np.array([[0.6, 0.3, 0.1]] * 3 + [[0.1, 0.1, 0.8]] * 2)
    labels = [0, 1, 0, 2, 2]
    cal = FedTopBinCalibrator(n_bins=2, keep_order=False, input_type="proba", **PLAIN)
    cal.fit(proba, labels)
    assert cal.bin_edges_.tolist() == [0, 0.5, 1]
    assert cal.counts_.tolist() == [[0, 4], [0, 1]]
    np.testing.assert_allclose(cal.bin_values_, [0.25, 0.8])
    assert cal.bin_trust_.tolist() == [1, 1]
    # The rest, 0.2, is shared 3 to 1 and 1 to 1.
    found = cal.predict_proba(proba[2:4])
    np.testing.assert_allclose(found, [[0.8, 0.15, 0.05], [0.1, 0.1, 0.8]])
    # In order: the square of the odds of the second row makes 8 of 10 out of it.
    cal.set_params(keep_order=True)
    found = cal.predict_proba(np.array([[0.5, 0.25, 0.25]]))
    np.testing.assert_allclose(found, [[0.8, 0.1, 0.1]])


def test_predict_is_the_most_probable_class():
    proba = np.array([[0.5, 0.45, 0.05]] * 10)
    labels = [0] + [1] * 7 + [2] * 2
    common = {"n_bins": 2, "input_type": "proba", **PLAIN}
    cal = FedTopBinCalibrator(**common).fit(proba, labels)
    assert (cal.predict(proba) == 0).all()
    # One of ten was right, an equal share is three of ten.
    np.testing.assert_allclose(cal.predict_proba(proba), 1 / 3, atol=1e-3)
    cal = FedTopBinCalibrator(**common, keep_order=False).fit(proba, labels)
    np.testing.assert_allclose(cal.predict_proba(proba)[0], [0.1, 0.81, 0.09])
    assert (cal.predict(proba) == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shrink", [False, True])
def test_the_predicted_class_gets_what_its_bin_says(dtype, shrink):
    rows, labels, ids = overconfident()
    rows = rows.astype(dtype)
    cal = FedTopBinCalibrator(shrink=shrink).fit(rows, labels, client_ids=ids)
    found = cal.predict_proba(rows)
    np.testing.assert_array_equal(found.argmax(axis=1), rows.argmax(axis=1))
    top = softmax(rows.astype(float), axis=1).max(axis=1)
    bins = np.minimum((top * 15).astype(int), 14)
    inside = top - (bins + 0.5) / 15
    expected = cal.bin_values_[bins] + (1 - cal.bin_trust_[bins]) * inside
    edge = np.abs(top * 15 - np.rint(top * 15)) < 1e-4  # float32 may fall either way
    np.testing.assert_allclose(
        found.max(axis=1)[~edge], np.maximum(expected, 0.25)[~edge], atol=1e-3
    )


@pytest.mark.parametrize("shrink", [False, True])
def test_an_overconfident_model_is_mended(shrink):
    rows, labels, ids = overconfident()
    cal = FedTopBinCalibrator(shrink=shrink).fit(rows, labels, client_ids=ids)
    fresh, truth, _ = overconfident(seed=1)
    before = softmax(fresh, axis=1)
    hit = before.argmax(axis=1) == truth
    assert before.max(axis=1).mean() - hit.mean() > 0.2
    # About sqrt(2 bins / (pi rows)) of chance, twice.
    assert gap(cal, fresh, truth) < 0.04
    assert cal.improves_ and cal.n_clients_ == 50 and cal.n_rounds_ == 1


MODELS = {
    "source": SourceDP(1.0),
    "source, each": SourceDP(1.0, mode="faithful"),
    "central, rows": CentralDP(1.0, unit="example"),
    "distributed, rows": DistributedDP(1.0, unit="example"),
    "distributed, each": DistributedDP(1.0, unit="example", mode="faithful"),
    "dropout": DistributedDP(1.0, unit="example", n_min=40),
    "clients": CentralDP(1.0),
    "local": LocalDP(4.0),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_privacy_model_mends_and_pays(name):
    rows, labels, ids = overconfident(n_clients=2000 if name == "local" else 50)
    ledger = PrivacyLedger()
    cal = FedTopBinCalibrator(privacy=MODELS[name], ledger=ledger, random_state=0)
    cal.fit(rows, labels, client_ids=ids)
    model = MODELS[name]
    assert cal.privacy_.eps == model.eps and cal.privacy_.unit == model.unit
    assert len(ledger) == 1
    bound = 10.0 if name == "clients" else 1.0
    assert cal.privacy_.clip == {"cells": bound}
    assert cal.improves_
    fresh, truth, _ = overconfident(seed=1)
    plain = softmax(fresh, axis=1).max(axis=1).mean()
    before = abs(plain - (fresh.argmax(axis=1) == truth).mean())
    assert gap(cal, fresh, truth) < 0.6 * before


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_noise_is_that_of_every_source_or_of_one():
    """Variance of the counts over many fits against the discrete Laplace law."""
    rows, labels, ids = overconfident(200, n_clients=10)
    exact = FedTopBinCalibrator().fit(rows, labels, client_ids=ids).counts_
    each = 0.5 / np.sinh(0.25) ** 2  # of scale 1 / eps = 2
    for model, n_laws in (
        (SourceDP(0.5), 10),
        (SourceDP(0.5, mode="faithful"), 10),
        (CentralDP(0.5, unit="example"), 1),
        (DistributedDP(0.5, unit="example"), 1),
    ):
        noise = np.concatenate(
            [
                FedTopBinCalibrator(privacy=model, random_state=seed, if_improves=False)
                .fit(rows, labels, client_ids=ids)
                .counts_
                - exact
                for seed in range(40)
            ]
        )
        assert (noise == np.rint(noise)).all()
        # 1200 draws with a kurtosis of at most 6: 5.5 deviations of the mean square.
        ratio = (noise**2).mean() / (n_laws * each)
        assert abs(ratio - 1) < 5.5 * np.sqrt(5 / noise.size), model


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
def test_shrinking_knows_the_noise():
    rows, labels, ids = overconfident(1000)
    loud, quiet = (
        FedTopBinCalibrator(privacy=model, random_state=0).fit(
            rows, labels, client_ids=ids
        )
        for model in (SourceDP(0.05), CentralDP(0.05, unit="example"))
    )
    assert loud.bin_trust_.max() < quiet.bin_trust_.max()
    sure = FedTopBinCalibrator().fit(rows, labels, client_ids=ids)
    assert quiet.bin_trust_.max() < sure.bin_trust_.max() <= 1


def test_a_client_counts_with_a_few_rows_only():
    rows, labels, ids = overconfident(6000, n_clients=60)
    # Noise of scale 0.05 is 0 but for a chance of 30 * 2 exp(-20).
    cal = FedTopBinCalibrator(eps=200.0, clip=10, random_state=0)
    assert cal.fit(rows, labels, client_ids=ids).counts_.sum() == 600
    assert cal.privacy_.unit == "client"
    chosen = FedTopBinCalibrator(clip=3).fit(rows, labels, client_ids=ids)
    assert chosen.counts_.sum() == 180


def test_nothing_but_noise_leaves_the_input():
    rows, labels, ids = overconfident(200, factor=1.0, n_clients=20)
    cal = FedTopBinCalibrator(privacy=SourceDP(0.1), random_state=0)
    with pytest.warns(CalibrationWarning, match="cannot be distinguished from noise"):
        cal.fit(rows, labels, client_ids=ids)
    assert not cal.improves_
    np.testing.assert_allclose(cal.predict_proba(rows), softmax(rows, axis=1))
    plain = FedTopBinCalibrator(privacy=SourceDP(0.1), random_state=0, shrink=False)
    with pytest.warns(CalibrationWarning):
        plain.fit(rows, labels, client_ids=ids)
    assert not plain.improves_


def test_a_higher_bin_has_no_lower_value_unless_it_is_allowed_to():
    # Of rows with a confidence of .6 all are right, of those with .9 one in five.
    proba = np.repeat([[0.6, 0.4], [0.9, 0.1]], 20, axis=0)
    labels = np.repeat([0, 0, 1], [20, 4, 16])
    common = {"n_bins": 4, "input_type": "proba", "shrink": False}
    free = FedTopBinCalibrator(monotone=False, **common).fit(proba, labels)
    np.testing.assert_allclose(free.bin_values_[2:], [1.0, 0.2])
    cal = FedTopBinCalibrator(**common).fit(proba, labels)
    # The nearest by rows, 21 of each with the one that every bin gets.
    np.testing.assert_allclose(cal.bin_values_[2:], 0.6)


def test_cohorts_add_up_to_one_round():
    rows, labels, ids = overconfident(1000)
    whole = FedTopBinCalibrator().fit(rows, labels, client_ids=ids)
    runner = FederatedRunner(cohort="permuted", cohort_size=7)
    parts = FedTopBinCalibrator(runner=runner, random_state=0)
    parts.fit(rows, labels, client_ids=ids)
    np.testing.assert_array_equal(parts.counts_, whole.counts_)
    assert parts.n_rounds_ == 8
    np.testing.assert_array_equal(parts.bin_values_, whole.bin_values_)


def test_wrong_parameters_are_named():
    rows, labels, ids = overconfident(100)
    with pytest.raises(ValueError, match="'clip' parameter"):
        FedTopBinCalibrator(clip=0.5).fit(rows, labels)
    with pytest.raises(ValueError, match="'n_bins' parameter"):
        FedTopBinCalibrator(n_bins=0).fit(rows, labels)
    with pytest.raises(ValueError, match=r"clip=3 .* leave it out"):
        FedTopBinCalibrator(privacy=SourceDP(1.0), clip=3).fit(rows, labels)
    with pytest.raises(ValueError, match="LocalDP allows one per client"):
        FedTopBinCalibrator(privacy=LocalDP(1.0), clip=3).fit(
            rows, labels, client_ids=ids
        )


def test_a_damaged_file_is_refused(tmp_path):
    rows, labels, ids = overconfident(200)
    path = tmp_path / "cal.json"
    FedTopBinCalibrator(n_bins=3).fit(rows, labels, client_ids=ids).save(path)
    content = json.loads(path.read_text())
    assert load(path).counts_.sum() == 200
    for name, value in (
        ("bin_values_", [0.1, 0.2, 1.5]),
        ("bin_trust_", [0.1, 0.2, -1.0]),
        ("counts_", [1.0, 2.0, 3.0]),
    ):
        broken = json.loads(json.dumps(content))
        broken["fitted"][name] |= {"array": value, "shape": [3]}
        path.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=f"damaged.*{name}"):
            load(path)
