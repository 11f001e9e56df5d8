"""FedBBQCalibrator: values and weights by hand, against peers, and with few clients."""

import json
import warnings

import numpy as np
import pytest
from sklearn.base import clone

from skfedcal import (
    CentralDP,
    FedBBQCalibrator,
    FedBinCalibrator,
    FederatedRunner,
    load,
    make_federation,
)
from skfedcal.exceptions import CalibrationWarning, SimulatedPrivacyWarning
from skfedcal.methods.bins.bbq_table import bbq_table
from skfedcal.methods.bins.estimator import class_weights
from skfedcal.methods.bins.rounds import HistogramState, bin_table, noticeable_gain
from skfedcal.methods.buckets import ClassBins

pytestmark = pytest.mark.filterwarnings(
    "ignore::skfedcal.exceptions.SimulatedPrivacyWarning"
)
no_gain = pytest.mark.filterwarnings("ignore:The released values cannot be")
BOTH = [FedBBQCalibrator(n_levels=4), FedBinCalibrator(n_bins=16)]


def softmax(rows):
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def counted(positive, negative=None, noise=0.0, **rest):
    """State of a server with these counts."""
    positive = np.asarray(positive, dtype=float)
    negative = np.zeros_like(positive) if negative is None else negative
    return HistogramState(positive, negative, noise, noise, **rest)


@pytest.fixture(scope="module")
def skewed():
    """Ten classes at 40 clients that hold one or two of them each."""
    return make_federation(40, 4000, 10, alpha=0.05, n_test=4000, random_state=3)


def partial(n_rounds=1, size=4, **params):
    runner = FederatedRunner(n_rounds, cohort="independent", cohort_size=size)
    return FedBBQCalibrator(runner=runner, random_state=0, **params)


def test_counts_and_values_by_hand():
    # Probabilities of class 1: .9, .9, .6, .2; of class 0: one minus these.
    proba = np.array([0.9, 0.9, 0.6, 0.2])
    labels = np.array([1, 0, 1, 0])
    cal = FedBBQCalibrator(n_levels=2, space="prob", input_type="proba")
    cal.fit(np.column_stack([1 - proba, proba]), labels)
    assert cal.positive_[1].tolist() == [0, 0, 1, 1]
    assert cal.negative_[1].tolist() == [1, 0, 0, 1]
    # Class 1. Two bins, weight 1: (0 + 1/4) / 2 and (2 + 3/4) / 4. Four bins, weight
    # 1/2: (1/2 * 1/8) / 1.5, 3/8, (1 + 1/2 * 5/8) / 1.5 and (1 + 1/2 * 7/8) / 2.5.
    coarse = np.array([1 / 8, 1 / 8, 11 / 16, 11 / 16])
    fine = np.array([1 / 24, 3 / 8, 7 / 8, 23 / 40])
    # Rising factorials of the priors over those of their sums, bin by bin:
    # two bins: 3/4 and (3/4 * 7/4 * 1/4) / (1 * 2 * 3);
    # four: (7/16) / (1/2), (5/16) / (1/2) and (7/16 * 1/16) / (1/2 * 3/2).
    scores = np.array([3 / 4 * 21 / 64 / 6, 7 / 8 * 5 / 8 * 7 / 256 / (3 / 4)])
    shares = scores / scores.sum()
    np.testing.assert_allclose(cal.level_weights_[1], shares)
    np.testing.assert_allclose(cal.bin_values_[1], shares @ [coarse, fine])
    pair = np.array([cal.bin_values_[0, 0], cal.bin_values_[1, 3]])
    np.testing.assert_allclose(cal.predict_proba([[0.1, 0.9]])[0], pair / pair.sum())


def test_frequencies_are_an_average_of_netcal_histograms(draw):
    # netcal's own BBQ scores by AIC or BIC, not by the gamma functions of the paper,
    # and drops histograms by an elbow rule: only its histograms can be compared.
    binning = pytest.importorskip("netcal.binning")
    rows, labels = draw(3000, 2, 2.0)
    score = softmax(rows)[:, 1]
    cal = FedBBQCalibrator(n_levels=4, space="prob", bins="frequency", normalize="none")
    cal.fit(rows, labels, client_ids=np.arange(3000) % 17)
    expected = np.zeros(3000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for i, share in enumerate(cal.level_weights_[1]):
            theirs = binning.HistogramBinning(bins=2 ** (i + 1))
            theirs.fit(score, labels)
            expected += share * theirs.transform(score)
    np.testing.assert_allclose(cal.predict_proba(rows)[:, 1], expected, atol=1e-6)


def bins_of(proba, n_bins, space):
    """Bins of equal width on a scale."""
    place = proba if space == "prob" else np.log(proba / (1 - proba)) / 32 + 0.5
    return np.clip(place * n_bins, 0, n_bins - 1).astype(int)


@pytest.mark.parametrize("space", ["logit", "prob"])
def test_prediction_is_a_look_up_and_normalisation_is_that_of_binning(draw, space):
    rows, labels = draw(800, 4, 2.0)
    fits = {
        mode: FedBBQCalibrator(n_levels=3, space=space, normalize=mode).fit(
            rows, labels
        )
        for mode in ("l1", "logit", "none")
    }
    cells = bins_of(softmax(rows), 8, space)
    values = fits["none"].bin_values_[np.arange(4), cells]
    odds = values / (1 - values)
    expected = {"none": values, "l1": values, "logit": odds}
    for mode, cal in fits.items():
        right = expected[mode]
        if mode != "none":
            right = right / right.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(cal.predict_proba(rows), right)


def test_permuted_cohorts_that_reach_everybody_are_full_participation(skewed):
    whole = FedBBQCalibrator(weighting="all").fit(skewed.clients)
    runner = FederatedRunner(n_rounds=10, cohort="permuted", cohort_size=4)
    parts = FedBBQCalibrator(weighting="all", runner=runner, random_state=1)
    parts.fit(skewed.clients)
    assert parts.n_rounds_ == 10
    np.testing.assert_array_equal(whole.class_weights_, np.ones(10))
    one, other = (c.predict_proba(skewed.test_logits) for c in (whole, parts))
    assert one.tobytes() == other.tobytes()
    plain = FedBBQCalibrator().fit(skewed.clients).predict_proba(skewed.test_logits)
    np.testing.assert_allclose(one, plain, rtol=1e-6)


def test_weights_from_totals_by_hand():
    state = counted([[30.0, 10.0], [0.0, 5.0], [9.0, 0.0]])
    found = class_weights(state, [80, 5, 6])
    np.testing.assert_allclose(found, [0.5, 1.0, 1.0])
    # A class without rows anywhere has been seen as a whole.
    np.testing.assert_allclose(
        class_weights(counted([[0.0], [3.0]]), [0, 4]), [1, 0.75]
    )


def test_weights_from_the_share_of_clients_by_hand():
    state = counted([[30.0], [20.0], [10.0]], clients=2, population=8)
    # A quarter was asked; a class with 1.5 times the mean weighs 1.5 times as much.
    np.testing.assert_allclose(class_weights(state), [0.375, 0.25, 0.25])
    all_in = counted([[30.0], [0.0]], clients=8, population=8)
    assert class_weights(all_in).tolist() == [1.0, 1.0]
    twice = counted([[30.0], [1.0]], clients=16, population=8)
    assert class_weights(twice).tolist() == [1.0, 1.0]
    assert class_weights(counted([[0.0], [0.0]], clients=1, population=2)).tolist() == [
        0.5,
        0.5,
    ]


def test_weights_under_noise_by_hand():
    # Two rounds of deviation 3 make sqrt(18); four bins; E|noise| = sqrt(2 / pi) sd.
    error = np.sqrt(2 / np.pi) * np.sqrt(18) * 4
    state = counted([[1, 2, 3, 1], [-9, 1, 1, 1], [90, 0, 0, 0]], noise=18**0.5)
    np.testing.assert_allclose(class_weights(state), [7 / error, 0, 1])


@no_gain
def test_noise_of_all_rounds_is_in_the_weights(skewed):
    runner = FederatedRunner(n_rounds=3)
    cal = FedBBQCalibrator(
        5.0, n_levels=2, weighting="all", if_improves=False, runner=runner,
        random_state=0,
    ).fit(skewed.clients)  # fmt: skip
    sd = cal.privacy_.noise_multiplier * np.sqrt(10.0 * (10.0 + 30.0))
    error = np.sqrt(2 / np.pi) * sd * np.sqrt(3) * 4
    expected = np.clip(cal.positive_.sum(axis=1) / error, 0, 1)
    np.testing.assert_allclose(cal.class_weights_, expected, rtol=1e-6)
    assert ((expected > 0) & (expected < 1)).any()


@pytest.mark.parametrize("cal", BOTH, ids=["bbq", "bin"])
@pytest.mark.parametrize("mode", ["l1", "logit", "none"])
@pytest.mark.parametrize("space", ["logit", "prob"])
def test_weighted_rows_by_hand(skewed, cal, mode, space):
    runner = FederatedRunner(n_rounds=1, cohort="independent", cohort_size=6)
    cal = clone(cal).set_params(runner=runner, random_state=0)
    cal.set_params(normalize=mode, space=space)
    totals = np.bincount(np.concatenate([y for _, y in skewed.clients]), minlength=10)
    fits = {
        weighting: clone(cal)
        .set_params(weighting=weighting, class_totals=totals)
        .fit(skewed.clients)
        for weighting in (None, "all", "changed")
    }
    rows = skewed.test_logits.astype(np.float64)
    proba = softmax(rows)
    weights = fits["all"].class_weights_
    np.testing.assert_allclose(weights, fits[None].positive_.sum(1) / totals)
    assert (weights < 1).any() and fits[None].class_weights_.tolist() == [1.0] * 10
    values = fits[None].bin_values_[np.arange(10), bins_of(proba, 16, space)]
    mixed = weights * values + (1 - weights) * proba
    changed = values.argmax(axis=1) != proba.argmax(axis=1)
    assert 0 < changed.sum() < len(rows)
    mixtures = {
        None: values,
        "all": mixed,
        "changed": np.where(changed[:, None], mixed, values),
    }
    for weighting, right in mixtures.items():
        if mode == "logit":
            right = right / (1 - right)
        if mode != "none":
            right = right / right.sum(axis=1, keepdims=True)
        found = fits[weighting].predict_proba(rows)
        np.testing.assert_allclose(found, right, rtol=1e-7)
    same = fits["changed"].predict_proba(rows)[~changed]
    assert same.tobytes() == fits[None].predict_proba(rows)[~changed].tobytes()


def test_weights_prevent_the_loss_of_accuracy_of_one_small_cohort(skewed):
    # Section 4.1 of the paper: few clients with few classes each, one round.
    truth, rows = skewed.test_labels, skewed.test_logits
    base, printed = (rows.argmax(axis=1) == truth).mean(), {"space": "prob"}
    totals = np.bincount(np.concatenate([y for _, y in skewed.clients]), minlength=10)
    plain, weighted, estimated, changed = (
        np.mean(partial(**params, **printed).fit(skewed.clients).predict(rows) == truth)
        for params in (
            {},
            {"weighting": "all", "class_totals": totals},
            {"weighting": "all"},
            {"weighting": "changed", "class_totals": totals},
        )
    )
    assert plain < base - 0.2
    for better in (weighted, estimated, changed):
        assert better > (plain + base) / 2


def test_more_rounds_need_weights_less(skewed):
    found = [
        partial(n, 4, weighting="all").fit(skewed.clients).class_weights_.mean()
        for n in (1, 4, 9)
    ]
    assert found == sorted(found) and found[0] < 0.5 < found[2]


@no_gain
def test_the_papers_literal_form_is_expressible(skewed):
    runner = FederatedRunner(n_rounds=3, cohort="independent", cohort_size=10)
    privacy = CentralDP(eps=3.0, delta=1e-5, accountant="zcdp")
    for n_levels in (4, 7):  # A.3.3
        for clip in ((2.0, 10.0), (10.0, 50.0)):  # A.3.4
            cal = FedBBQCalibrator(
                n_levels=n_levels, bins="frequency", weighting="all", clip=clip,
                clip_per_class=True, noise="joint", if_improves=False,
                privacy=privacy, runner=runner, random_state=0,
            ).fit(skewed.clients)  # fmt: skip
            expected = {"positive": clip[0] * 10**0.5, "negative": clip[1] * 10**0.5}
            assert cal.privacy_.clip == pytest.approx(expected)
            assert cal.privacy_.accountant == "zcdp"
            assert cal.bin_values_.shape == (10, 2**n_levels)
            assert np.isfinite(cal.predict_log_proba(skewed.test_logits)).all()


def test_a_saved_calibrator_predicts_the_same_bits(skewed, tmp_path):
    cal = partial(weighting="changed", class_totals=np.full(10, 400), n_levels=5)
    cal.fit(skewed.clients).save(tmp_path / "bbq.json")
    other = load(tmp_path / "bbq.json")
    for name in ("level_weights_", "class_weights_", "bin_values_"):
        assert getattr(other, name).tobytes() == getattr(cal, name).tobytes()
    one, two = (c.predict_proba(skewed.test_logits) for c in (cal, other))
    assert one.tobytes() == two.tobytes()


def shorten(content):
    content["params"]["n_levels"] = 4


def enlarge(content):
    content["fitted"]["class_weights_"]["array"][0] = 7.0


def misplace(content):
    content["fitted"]["space_"] = "both"


def flatten(content):
    content["fitted"]["level_weights_"]["shape"] = [50]


DAMAGE = [
    (shorten, "wrong shape"),
    (enlarge, "outside"),
    (flatten, "level_weights_"),
    (misplace, "space_"),
]


@pytest.mark.parametrize(("spoil", "message"), DAMAGE)
def test_a_damaged_file_is_refused(skewed, tmp_path, spoil, message):
    path = tmp_path / "bbq.json"
    partial(weighting="all", n_levels=5).fit(skewed.clients).save(path)
    content = json.loads(path.read_text())
    spoil(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load(path)


BAD = [
    ({"n_levels": 0}, r"'n_levels' parameter .* in the range \[1, 12\]"),
    ({"n_levels": 13}, "'n_levels' parameter"),
    ({"n_levels": 2.5}, "'n_levels' parameter"),
    ({"bins": "mean"}, "'bins' parameter"),
    ({"space": "both"}, "'space' parameter"),
    ({"weighting": "some"}, "'weighting' parameter"),
    ({"class_totals": 5}, "'class_totals' parameter"),
    ({"class_totals": [5, 5]}, r"class_totals=\[5, 5\] must hold 3 row counts"),
    ({"class_totals": [5, -5, 1]}, "must hold 3 row counts"),
    ({"class_totals": [5, np.nan, 1]}, "must hold 3 row counts"),
    ({"class_totals": [5, 5, 5], "eps": 1.0}, "class_totals is not used under privacy"),
]


@pytest.mark.parametrize(("params", "message"), BAD, ids=[str(p) for p, _ in BAD])
def test_bad_parameters_are_named_with_their_value(draw, params, message):
    with pytest.raises(ValueError, match=message):
        FedBBQCalibrator(**params).fit([draw(20, 3, seed=i) for i in range(3)])


@no_gain
def test_the_scale_of_bins_is_public_and_by_noise(draw):
    clients = [draw(30, 4, seed=i) for i in range(30)]
    bbq, bins = FedBBQCalibrator, FedBinCalibrator
    for method, params, expected in (
        (bbq, {}, "logit"),
        (bbq, {"eps": 1.0}, "prob"),
        (bbq, {"space": "prob"}, "prob"),
        (bbq, {"space": "logit", "eps": 1.0}, "logit"),
        (bins, {}, "prob"),
        (bins, {"space": "logit", "eps": 1.0}, "logit"),
    ):
        assert method(**params, random_state=0).fit(clients).space_ == expected


@pytest.mark.parametrize("cal", [FedBBQCalibrator(), FedBinCalibrator()])
@pytest.mark.parametrize("seed", range(4))
def test_bins_of_log_odds_keep_what_is_near_zero_and_one(cal, seed):
    # One bin of probability holds all that a network takes for unlikely.
    fed = make_federation(50, 5000, 10, temperature=2.0, n_test=5000, random_state=seed)
    loss = {
        space: -clone(cal)
        .set_params(space=space)
        .fit(fed.clients)
        .predict_log_proba(fed.test_logits)[np.arange(5000), fed.test_labels]
        .mean()
        for space in ("logit", "prob")
    }
    assert loss["logit"] < loss["prob"] - 0.04


@pytest.mark.parametrize("n_rows", [1, 2, 5])
def test_few_rows_do_not_wreck_the_input(n_rows):
    found = []
    for seed in range(5):
        fed = make_federation(5, 500, 5, n_test=2000, random_state=seed)
        rows, labels = (np.concatenate(part) for part in zip(*fed.clients, strict=True))
        cal = FedBBQCalibrator(classes=range(5)).fit(rows[:n_rows], labels[:n_rows])
        truth = fed.test_labels
        before, after = softmax(fed.test_logits), cal.predict_proba(fed.test_logits)
        loss = [-np.log(p[np.arange(2000), truth]).mean() for p in (before, after)]
        right = [(p.argmax(axis=1) == truth).mean() for p in (before, after)]
        found.append([loss[1] - loss[0], right[1] - right[0]])
    worse, better = np.mean(found, axis=0)
    assert worse < 0.2 and better > -0.05


@pytest.mark.parametrize("n_levels", [1, 12])
def test_fewest_and_most_levels(draw, n_levels):
    rows, labels = draw(300, 3, 2.0)
    cal = FedBBQCalibrator(n_levels=n_levels).fit(rows, labels)
    assert cal.bin_values_.shape == (3, 2**n_levels)
    np.testing.assert_allclose(cal.predict_proba(rows).sum(axis=1), 1)


def noisy_state(positive, negative, sd, seed):
    rng = np.random.default_rng(seed)
    return HistogramState(
        positive + sd * rng.normal(size=positive.shape),
        negative + sd * rng.normal(size=negative.shape),
        sd,
        sd,
    )


def both_tables(state):
    noise = state.noise_positive, state.noise_negative
    yield bin_table(state.positive, state.negative, np.hypot(*noise))
    yield bbq_table(state.positive, state.negative, noise)[0]


def gains(states):
    bins = ClassBins(16)
    return [noticeable_gain(s, t, bins) for s in states for t in both_tables(s)]


def counts_of(frequency, n_bins=16, rows=40.0, n_classes=5):
    """Counts with these frequencies, `rows` in every bin."""
    positive = np.tile(rows * frequency, (n_classes, 1))
    return positive, rows - positive


def test_calibrated_counts_are_no_gain_at_any_noise():
    positive, negative = counts_of((np.arange(16) + 0.5) / 16)
    for sd in (1.0, 5.0, 50.0):
        states = [noisy_state(positive, negative, sd, seed) for seed in range(10)]
        found = gains(states)
        assert not any(found)


def test_a_wrong_input_is_a_gain_once_noise_is_small():
    middle = (np.arange(16) + 0.5) / 16
    positive, negative = counts_of(0.5 + 0.3 * (middle - 0.5))
    for sd, expected in ((0.5, True), (200.0, False)):
        states = [noisy_state(positive, negative, sd, seed) for seed in range(10)]
        found = gains(states)
        assert set(found) == {expected}


LITERAL = FedBBQCalibrator(bins="frequency", weighting="all", noise="joint")


@pytest.mark.parametrize("cal", [*BOTH, LITERAL], ids=["bbq", "bin", "literal"])
def test_a_map_that_is_noise_is_not_used(draw, cal, tmp_path):
    clients = [draw(30, 4, seed=i) for i in range(30)]
    cal = clone(cal).set_params(eps=0.5, random_state=0)
    fits = {}
    for used in (True, False):
        with pytest.warns(
            CalibrationWarning, match="cannot be distinguished from noise"
        ):
            fits[used] = clone(cal).set_params(if_improves=used).fit(clients)
        assert not fits[used].improves_
    rows = clients[0][0]
    np.testing.assert_allclose(fits[True].predict_proba(rows), softmax(rows))
    assert np.abs(fits[False].predict_proba(rows) - softmax(rows)).max() > 0.01
    # Without normalisation what is handed on are still probabilities.
    with pytest.warns(CalibrationWarning):
        raw = clone(cal).set_params(normalize="none").fit(clients)
    np.testing.assert_allclose(raw.predict_proba(rows), softmax(rows))
    raw.save(tmp_path / "raw.json")
    other = load(tmp_path / "raw.json")
    assert other.predict_proba(rows).tobytes() == raw.predict_proba(rows).tobytes()


@pytest.mark.parametrize("cal", BOTH, ids=["bbq", "bin"])
def test_a_map_that_stands_out_is_used(draw, cal):
    # Logits four times too large, 3000 clients.
    rows, labels = draw(30_000, 3, 4.0)
    fitted = clone(cal).set_params(eps=8.0, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        warnings.simplefilter("ignore", SimulatedPrivacyWarning)
        fitted.fit(rows, labels, client_ids=np.arange(30_000) // 10)
    assert fitted.improves_
    test, truth = draw(5000, 3, 4.0, seed=1)
    before = -np.log(softmax(test)[np.arange(5000), truth]).mean()
    after = -fitted.predict_log_proba(test)[np.arange(5000), truth].mean()
    assert after < before - 0.1
