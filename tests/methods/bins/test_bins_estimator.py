"""FedBinCalibrator: counts and bin values by hand, against peers, and in the limits."""

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy.special import expit
from sklearn.metrics import log_loss

from skfedcal import FedBinCalibrator
from skfedcal.exceptions import SimulatedPrivacyWarning
from skfedcal.methods import buckets
from skfedcal.methods.bins import estimator
from skfedcal.methods.bins.estimator import look_up
from skfedcal.methods.buckets import ClassBins

odds32 = buckets._odds32


def softmax(rows):
    weights = np.exp(rows - rows.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_counts_and_values_by_hand():
    # Probabilities of class 1: .9, .9, .9, .6, .2; of class 0: one minus these.
    proba = np.array([0.9, 0.9, 0.9, 0.6, 0.2])
    labels = np.array([1, 1, 0, 1, 0])
    cal = FedBinCalibrator(n_bins=2, prior_weight=1.0, space="prob", input_type="proba")
    cal.fit(np.column_stack([1 - proba, proba]), labels)
    # Class 1 below 1/2: the row .2 (negative); above: 3 of 4 are positive.
    assert cal.positive_.tolist() == [[1, 1], [0, 3]]
    assert cal.negative_.tolist() == [[3, 0], [1, 1]]
    # w = 1 / 2 pseudo-row at the midpoints 1/4 and 3/4: (P + w m) / (P + N + w).
    expected = [
        [(1 + 0.5 * 0.25) / 4.5, (1 + 0.5 * 0.75) / 1.5],
        [(0 + 0.5 * 0.25) / 1.5, (3 + 0.5 * 0.75) / 4.5],
    ]
    np.testing.assert_allclose(cal.bin_values_, expected)
    pair = np.array([expected[0][0], expected[1][1]])
    np.testing.assert_allclose(cal.predict_proba([[0.1, 0.9]])[0], pair / pair.sum())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weighting", [None, "all"])
def test_blocks_do_not_change_the_probabilities(draw, monkeypatch, dtype, weighting):
    rows, labels = draw(300, 4, 2.0)
    rows = rows.astype(dtype)
    cal = FedBinCalibrator(weighting=weighting).fit(rows, labels)
    whole, given = cal.predict_proba(rows), rows.copy()
    monkeypatch.setattr(estimator, "_BLOCK_CELLS", 29)
    monkeypatch.setattr(estimator, "_DENSE_CELLS", 29)
    np.testing.assert_array_equal(cal.predict_proba(rows), whole)
    np.testing.assert_array_equal(cal.predict_proba(rows[::-1])[::-1], whole)
    np.testing.assert_array_equal(rows, given)
    assert whole.dtype == dtype


SPACES = ["logit", "prob"]


def level64(rows, n_bins, space):
    """Place of each entry counted in bins, in float64, without the package's steps."""
    if space == "prob":
        return softmax(rows.astype(np.float64)) * n_bins
    weights = np.exp(rows.astype(np.longdouble))
    with np.errstate(divide="ignore"):
        odds = rows - np.log(weights.sum(axis=1, keepdims=True) - weights)
    return (np.clip(odds / 32 + 0.5, 0, 1) * n_bins).astype(np.float64)


def bins64(rows, n_bins, space="prob"):
    """Bins of the softmax in float64, without any of the package's own steps."""
    return np.minimum(level64(rows, n_bins, space).astype(int), n_bins - 1)


def centred_rows(n_classes, n_bins, dtype, space="prob"):
    """Rows of all kinds: flat, confident, and with probabilities next to edges."""
    rng = np.random.default_rng(n_classes)
    rows = rng.normal(size=(300, n_classes))
    share = np.repeat(np.arange(1, n_bins) / n_bins, 9)[:: max(1, n_bins // 22)]
    edge = np.zeros((len(share), n_classes))
    odds = np.log(share / (1 - share)) if space == "prob" else 32 * share - 16
    edge[:, 3] = odds + np.log(n_classes - 1)
    # From far below the slack of float32 to above it.
    edge[:, 3] += rng.normal(size=len(share)) * 10.0 ** -rng.uniform(3, 9, len(share))
    far = np.full((3, n_classes), -np.inf)
    far[:, 5] = 0.0
    rows = np.concatenate([rows, 10 * rows, edge, far, np.zeros((2, n_classes))])
    rows = rows.astype(dtype)
    return rows - rows.max(axis=1, keepdims=True)


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [7, 31, 32, 100, 1000])
@pytest.mark.parametrize("n_bins", [1, 2, 15, 128])
def test_look_up_finds_the_bins_of_the_float64_softmax(n_classes, n_bins, dtype, space):
    rows = centred_rows(n_classes, n_bins, dtype, space)
    table = np.arange(n_classes * n_bins, dtype=dtype).reshape(n_classes, n_bins)
    found = look_up(rows.copy(), table, space) - table[:, 0]
    level = level64(rows, n_bins, space)
    # Sums in another order differ in the last bits, which decide on an edge itself.
    sure = np.abs(level - np.rint(level)) > 1e-12 * n_bins
    sure |= (level < 0.5) | (level > n_bins - 0.5)
    assert sure.mean() > 0.97
    np.testing.assert_array_equal(found[sure], bins64(rows, n_bins, space)[sure])


def test_log_odds_in_single_precision_are_off_by_less_than_their_bound():
    # Random rows and the worst of each kind: ties, one far ahead, many alike.
    rng = np.random.default_rng(0)
    for n_classes in (2, 3, 10, 100, 1000):
        rows = rng.normal(size=(3000, n_classes)) * rng.gamma(1.0, 5.0, (3000, 1))
        rows[::7, 0] = rows[::7].max(axis=1) + rng.uniform(0, 17, len(rows[::7]))
        rows[::5, 1] = rows[::5].max(axis=1)
        rows -= rows.max(axis=1, keepdims=True)
        right = 32 * level64(rows, 1, "logit") - 16
        for given in (rows, rows.astype(np.float32)):
            # A float32 input is another one: its rounding is no error.
            if given.dtype == np.float32:
                right = 32 * level64(given, 1, "logit") - 16
            found = buckets._odds32(given)
            inner = np.abs(right) < 16
            off = np.abs(found - right)[inner].max()
            assert 1e-8 < off < buckets._SLACK / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bins_of_log_odds_do_not_depend_on_the_layout(dtype):
    # Many equal classes behind one on an edge: a running sum of them is off the most.
    share = np.arange(1, 128)[:, None] / 128
    for below in (0.11, 0.7, 3.0):
        rows = np.full((127, 2000), -below, dtype=dtype)
        odds = 32 * share - 16 + np.logspace(-7, -3, 127)[:, None]
        rows[:, :1] = odds + np.log(1999) - below
        bins = ClassBins(128, "logit")
        right = bins._exact(rows)
        for given in (rows, np.asfortranarray(rows), rows.repeat(2, axis=1)[:, ::2]):
            np.testing.assert_array_equal(bins.index(given), right)


def test_bins_of_log_odds_can_be_too_fine_for_single_precision(monkeypatch):
    rows = centred_rows(10, 50, np.float32, "logit")
    for n_bins, is_used in ((50, True), (4096, True), (2**20, False)):
        used = []
        bins = ClassBins(n_bins, "logit")
        monkeypatch.setattr(
            buckets, "_odds32", lambda z, used=used: used.append(1) or odds32(z)
        )
        level = level64(rows, n_bins, "logit")
        sure = np.abs(level - np.rint(level)) > 1e-10 * n_bins
        found, right = bins.index(rows), bins64(rows, n_bins, "logit")
        np.testing.assert_array_equal(found[sure], right[sure])
        assert bool(used) is is_used


@pytest.mark.parametrize("cells", [1, 29, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_and_dense_look_up_are_the_same(monkeypatch, dtype, cells):
    rows = centred_rows(60, 15, dtype)
    table = np.random.default_rng(0).random((60, 15)).astype(dtype)
    sparse = look_up(rows.copy(), table, "prob")
    monkeypatch.setattr(estimator, "_LOOKUP_CELLS", cells)
    np.testing.assert_array_equal(look_up(rows.copy(), table, "prob"), sparse)
    monkeypatch.setattr(estimator, "_MAX_SHARE", 1.0)
    np.testing.assert_array_equal(look_up(rows.copy(), table, "prob"), sparse)
    monkeypatch.setattr(estimator, "_MANY_CLASSES", 61)
    np.testing.assert_array_equal(look_up(rows.copy(), table, "prob"), sparse)


def test_look_up_computes_a_row_in_doubt_once():
    # An eighth of the entries, each on the edge of a bin: a row for each of them
    # would take a thousand times the memory of the rows.
    rows = np.full((16, 8000), -np.inf)
    rows[:, :999] = 0.0
    table = np.arange(8000 * 999, dtype=np.float64).reshape(8000, 999)
    given = rows.copy()
    tracemalloc.start()
    found = look_up(given, table, "prob")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found - table[:, 0], bins64(rows, 999))
    assert peak < 10 * rows.nbytes


def test_entries_beyond_float32_are_looked_up_without_a_warning(draw):
    rows, labels = draw(400, 40, 2.0)
    cal = FedBinCalibrator(classes=range(40)).fit(rows, labels)
    rows[:, 3] = -np.inf
    expected = cal.predict_proba(rows)
    rows[:, 3] = -1e300
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(cal.predict_proba(rows), expected)


@pytest.mark.parametrize("space", SPACES)
def test_many_classes_and_layouts_give_the_same_probabilities(draw, space):
    rows, labels = draw(400, 40, 2.0)
    cal = FedBinCalibrator(classes=range(40), space=space).fit(rows, labels)
    values = cal.bin_values_[np.arange(40), bins64(rows, 15, space)]
    expected = values / values.sum(axis=1, keepdims=True)
    for given in (rows, np.asfortranarray(rows), np.repeat(rows, 2, axis=1)[:, ::2]):
        np.testing.assert_allclose(cal.predict_proba(given), expected, rtol=1e-12)


@pytest.mark.parametrize("space", SPACES)
def test_normalize_modes_by_hand(draw, space):
    rows, labels = draw(500, 4, 2.0)
    fits = {
        mode: FedBinCalibrator(n_bins=6, space=space, normalize=mode).fit(rows, labels)
        for mode in ("l1", "logit", "none")
    }
    bins = bins64(rows, 6, space)
    values = fits["none"].bin_values_[np.arange(4), bins]
    np.testing.assert_allclose(fits["none"].predict_proba(rows), values)
    np.testing.assert_allclose(
        fits["l1"].predict_proba(rows), values / values.sum(axis=1, keepdims=True)
    )
    odds = values / (1 - values)
    np.testing.assert_allclose(
        fits["logit"].predict_proba(rows), odds / odds.sum(axis=1, keepdims=True)
    )
    for cal in fits.values():
        np.testing.assert_allclose(
            np.exp(cal.predict_log_proba(rows)), cal.predict_proba(rows)
        )
        np.testing.assert_array_equal(
            cal.predict(rows), cal.predict_proba(rows).argmax(axis=1)
        )


def test_bin_values_equal_netcal_histogram_binning(draw):
    binning = pytest.importorskip("netcal.binning")
    rows, labels = draw(3000, 2, 2.0)
    score = softmax(rows)[:, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = binning.HistogramBinning(bins=10)
        theirs.fit(score, labels)
        expected = theirs.transform(score)
    cal = FedBinCalibrator(n_bins=10, space="prob", prior_weight=1e-9, normalize="none")
    found = cal.fit(rows, labels, client_ids=np.arange(3000) % 17).predict_proba(rows)
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-6)


def test_bins_of_log_odds_are_those_of_netcal_on_the_same_scale(draw):
    # netcal sorts any numbers in [0, 1] into bins: give it the place on the scale.
    binning = pytest.importorskip("netcal.binning")
    rows, labels = draw(3000, 2, 2.0)
    place = np.clip((rows[:, 1] - rows[:, 0]) / 32 + 0.5, 0, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = binning.HistogramBinning(bins=20)
        theirs.fit(place, labels)
        expected = theirs.transform(place)
    cal = FedBinCalibrator(
        n_bins=20, space="logit", prior_weight=1e-9, normalize="none"
    )
    found = cal.fit(rows, labels, client_ids=np.arange(3000) % 17).predict_proba(rows)
    np.testing.assert_allclose(found[:, 1], expected, atol=1e-6)


def test_one_bin_gives_class_frequencies(draw):
    rows, labels = draw(900, 3, 2.0)
    cal = FedBinCalibrator(n_bins=1, prior_weight=1e-6, normalize="none").fit(
        rows, labels
    )
    frequency = np.bincount(labels) / 900
    np.testing.assert_allclose(
        cal.predict_proba(rows), np.tile(frequency, (900, 1)), 1e-6
    )


@pytest.mark.parametrize("space", SPACES)
def test_empty_bins_keep_their_own_midpoint_and_the_loss_is_finite(space):
    labels = np.array([0, 1, 2] * 20)
    rows = np.eye(3)[labels] * 50
    for mode in ("l1", "logit"):
        cal = FedBinCalibrator(n_bins=10, space=space, normalize=mode)
        cal.fit(rows, labels)
        middle = (np.arange(10) + 0.5) / 10
        if space == "logit":
            middle = expit(32 * middle - 16)
        np.testing.assert_allclose(
            cal.bin_values_[:, 1:9], np.tile(middle[1:9], (3, 1))
        )
        wrong = np.eye(3)[(labels + 1) % 3] * 50
        assert np.isfinite(log_loss(labels, cal.predict_proba(wrong)))


@pytest.mark.parametrize("prior_weight", [1e-300, 1e-12])
@pytest.mark.parametrize("mode", ["l1", "logit", "none"])
def test_values_stay_inside_the_unit_interval_without_a_prior(
    mode, prior_weight, tmp_path
):
    from skfedcal import load

    labels = np.array([0, 1, 2] * 20)
    rows = np.eye(3)[labels] * 50
    cal = FedBinCalibrator(n_bins=3, prior_weight=prior_weight, normalize=mode)
    cal.fit(rows, labels)
    assert (cal.bin_values_ > 0).all() and (cal.bin_values_ < 1).all()
    assert np.isfinite(cal.predict_log_proba(rows)).all()
    cal.save(tmp_path / "bins.json")
    assert (
        load(tmp_path / "bins.json").bin_values_.tobytes() == cal.bin_values_.tobytes()
    )


def test_one_bin_may_be_called_true(draw):
    rows, labels = draw(50, 3, 2.0)
    assert FedBinCalibrator(n_bins=True).fit(rows, labels).bin_values_.shape == (3, 1)


def test_integer_counts_are_exact_in_any_partition(draw):
    rows, labels = draw(5000, 6, 2.0)
    whole = FedBinCalibrator().fit(rows, labels)
    for ids in (np.arange(5000), np.arange(5000) % 13, labels):
        parted = FedBinCalibrator().fit(rows, labels, client_ids=ids)
        np.testing.assert_array_equal(parted.positive_, whole.positive_)
        np.testing.assert_array_equal(parted.negative_, whole.negative_)
    assert (whole.positive_ == np.rint(whole.positive_)).all()
    assert whole.positive_.sum() == 5000 and whole.negative_.sum() == 5 * 5000


def test_clips_without_noise_bound_each_client_by_hand():
    # One client, 30 rows of class 1 in the same bin: counts (30) and (30).
    rows, labels = np.tile([0.0, 5.0], (30, 1)), np.ones(30, dtype=int)
    other = (np.array([[5.0, 0.0]]), np.array([0]))
    clients = [(rows, labels), other]
    free = FedBinCalibrator(n_bins=2).fit(clients)
    assert free.positive_.tolist() == [[0, 1], [0, 30]]
    pair = FedBinCalibrator(n_bins=2, clip=(3.0, 4.0)).fit(clients)
    assert pair.positive_[1, 1] == pytest.approx(3.0) and pair.positive_[0, 1] == 1
    # Both sets shrink by the larger factor, 10: the frequencies stay as they are.
    assert pair.negative_[0, 0] == pytest.approx(3.0) and pair.negative_[1, 0] == 1
    low = FedBinCalibrator(n_bins=2, clip=(10.0, 4.0)).fit(clients)
    assert low.positive_[1, 1] == pytest.approx(4.0)
    assert low.negative_[0, 0] == pytest.approx(4.0)
    one = FedBinCalibrator(n_bins=2, clip=3.0).fit(clients)
    assert one.positive_[1, 1] == pytest.approx(3.0)
    assert one.negative_[0, 0] == pytest.approx(3.0 * np.sqrt(2 - 1))
    listed = FedBinCalibrator(n_bins=2, clip=[3.0, 4.0]).fit(clients)
    np.testing.assert_array_equal(listed.positive_, pair.positive_)


def test_clip_per_class_bounds_classes_one_by_one():
    # 30 rows of class 0 and 40 of class 1, each sure of itself: one bin per class.
    labels = np.repeat([0, 1, 2], [30, 40, 0])
    rows = np.eye(3)[labels] * 9
    joint = FedBinCalibrator(n_bins=2, clip=(5.0, 99.0), classes=[0, 1, 2]).fit(
        [(rows, labels)]
    )
    # The vector (30, 40) has norm 50 and shrinks to norm 5.
    np.testing.assert_allclose(joint.positive_[:, 1], [3.0, 4.0, 0.0])
    split = FedBinCalibrator(
        n_bins=2, clip=(5.0, 99.0), clip_per_class=True, classes=[0, 1, 2]
    ).fit([(rows, labels)])
    np.testing.assert_allclose(split.positive_[:, 1], [5.0, 5.0, 0.0])


@pytest.mark.filterwarnings("ignore:The released values cannot be")
@pytest.mark.parametrize("per_class", [False, True])
def test_reported_sensitivities(draw, per_class):
    clients = [draw(20, 4, seed=i) for i in range(30)]
    with pytest.warns(SimulatedPrivacyWarning):
        cal = FedBinCalibrator(
            eps=5.0, clip=(2.0, 3.0), clip_per_class=per_class, random_state=0
        ).fit(clients)
    factor = 2.0 if per_class else 1.0  # sqrt(4 classes)
    assert cal.privacy_.clip == pytest.approx(
        {"positive": 2 * factor, "negative": 3 * factor}
    )


@pytest.mark.filterwarnings("ignore:The released values cannot be")
@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning")
def test_noise_of_counts_has_the_announced_size(draw):
    clients = [draw(2, 5, seed=i) for i in range(40)]
    for noise in ("split", "joint"):
        exact = FedBinCalibrator(n_bins=50, clip=(8.0, 8.0)).fit(clients)
        cal = FedBinCalibrator(
            2.0, n_bins=50, clip=(8.0, 8.0), noise=noise, random_state=3
        ).fit(clients)
        both = np.concatenate(
            [
                (cal.positive_ - exact.positive_).ravel(),
                (cal.negative_ - exact.negative_).ravel(),
            ]
        )
        # Equal bounds and sizes: both forms give each number 8 sqrt(2) multipliers.
        sd = cal.privacy_.noise_multiplier * 8 * 2**0.5
        # 500 draws: the mean square is within 5.2 of its own sd, sqrt(2 / 500), but for
        # a chance below 1e-6 (two-sided normal tail 2e-7; the seed is fixed).
        assert abs((both**2).mean() / sd**2 - 1) < 5.2 * np.sqrt(2 / 500)
        assert np.isfinite(cal.predict_proba(clients[0][0])).all()


BAD = [
    ({"n_bins": 0}, "'n_bins' parameter .* must be an int in the range"),
    ({"n_bins": 2.5}, "'n_bins' parameter"),
    ({"clip": (1.0, 2.0, 3.0)}, r"clip=\(1.0, 2.0, 3.0\) must be 'auto', a positive"),
    ({"clip": (1.0,)}, "must be 'auto', a positive number, or a pair"),
    ({"clip": [1.0, -2.0]}, r"clip=\[1.0, -2.0\] must be"),
    ({"clip": (1.0, "x")}, "must be 'auto'"),
    ({"clip": (1.0, np.nan)}, "must be 'auto'"),
    ({"clip": 0}, "'clip' parameter"),
    ({"noise": "none"}, "'noise' parameter"),
    ({"normalize": "l2"}, "'normalize' parameter"),
    ({"prior_weight": 0.0}, "'prior_weight' parameter"),
    ({"clip_per_class": 1.5}, "'clip_per_class' parameter"),
    ({"eps": 0.0}, "'eps' parameter"),
    ({"ledger": {}}, "'ledger' parameter"),
]


@pytest.mark.parametrize(("params", "message"), BAD, ids=[str(p) for p, _ in BAD])
def test_bad_parameters_are_named_with_their_value(draw, params, message):
    with pytest.raises(ValueError, match=message):
        FedBinCalibrator(**params).fit([draw(20, 3, seed=i) for i in range(3)])
