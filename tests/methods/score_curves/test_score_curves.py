"""FedHistogramCalibrator: formulas by hand, oracles, privacy models."""

import json
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.special import expit, log_softmax, logit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator

from skfedcal import FederatedRunner, FedHistogramCalibrator, load
from skfedcal.clients.dataset import FederatedDataset
from skfedcal.evaluation import grid as _grid
from skfedcal.exceptions import CalibrationWarning
from skfedcal.methods.base import FitSetting
from skfedcal.methods.buckets import log_odds, place_of_odds
from skfedcal.methods.graph import map_rows
from skfedcal.methods.score_curves.curves import Curve
from skfedcal.methods.score_curves.estimator import contribution
from skfedcal.methods.score_curves.rounds import ClassScoreCounts, score_curves
from skfedcal.privacy import CentralDP, DistributedDP, LocalDP, SourceDP

pytestmark = [
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.SimulatedPrivacyWarning"),
    pytest.mark.filterwarnings("ignore::skfedcal.exceptions.PrivacyWarning"),
]

METHODS = ["bins", "bbq", "bbq_quantile", "isotonic", "platt", "beta"]
MONOTONE = ["isotonic", "platt", "beta"]


def binary(n=4000, n_clients=400, scale=2.0, seed=0):
    """Log-odds of an overconfident model, labels, and clients."""
    rng = np.random.default_rng(seed)
    true = rng.normal(-0.3, 1.5, n)
    labels = (rng.random(n) < expit(true)).astype(int)
    return scale * true, labels, np.arange(n) % n_clients


class Scores(ClassifierMixin, BaseEstimator):
    """A model whose only feature is its score."""

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, X):
        return X[:, 0]

    def predict(self, X):
        return self.classes_[(X[:, 0] > 0).astype(int)]


@pytest.fixture(scope="module")
def three(request):
    rng = np.random.default_rng(1)
    true = rng.normal(size=(6000, 3)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    return 2 * true, labels, np.arange(6000) % 600


def test_log_odds_are_those_of_the_softmax():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 4)) * rng.choice([1, 5, 30], (50, 1))
    found, logs = log_odds(rows), log_softmax(rows, axis=1)
    for k in range(4):
        rest = np.logaddexp.reduce(np.delete(logs, k, axis=1), axis=1)
        np.testing.assert_allclose(found[:, k], logs[:, k] - rest, rtol=1e-9, atol=1e-9)
    masked = np.array([[0.0, -np.inf, -np.inf], [0.0, 0.0, -np.inf]])
    assert np.isfinite(log_odds(masked)).all()
    assert log_odds(np.zeros((2, 1))).shape == (2, 1)


@pytest.mark.parametrize("space", ["both", "prob", "logit"])
def test_the_grid_is_that_of_the_evaluation_room(space):
    grid = _grid.ScoreGrid(6, space)
    odds = np.linspace(-20, 20, 101)
    found = place_of_odds(odds, space)
    np.testing.assert_allclose(found, grid.position(expit(odds)), atol=1e-8)


def test_counts_by_hand():
    odds = logit(np.array([0.1, 0.3, 0.3, 0.9, 0.6]))
    cal = FedHistogramCalibrator(method="bins", height=2, space="prob")
    cal.fit(odds, [0, 1, 0, 1, 1], client_ids=[0, 0, 1, 1, 1])
    assert cal.counts_.tolist() == [[[1, 1, 0, 0], [0, 1, 1, 1]]]
    assert cal.scores_ == "binary" and cal.method_ == "bins"


def test_one_against_the_rest_and_top_label_counts_by_hand():
    rows = np.log([[0.6, 0.3, 0.1], [0.2, 0.7, 0.1]])
    common = {"height": 1, "space": "prob", "method": "platt", "classes": [0, 1, 2]}
    cal = FedHistogramCalibrator(multiclass="ovr", **common).fit(rows, [0, 2])
    assert cal.counts_.tolist() == [
        [[1, 0], [0, 1]],
        [[1, 1], [0, 0]],
        [[1, 0], [1, 0]],
    ]
    cal = FedHistogramCalibrator(multiclass="top", **common).fit(rows, [0, 2])
    assert cal.counts_.tolist() == [[[0, 1], [0, 1]]]


def test_platt_is_that_of_scikit_learn_on_a_fine_grid():
    odds, labels, clients = binary()
    cal = FedHistogramCalibrator(method="platt", height=14, if_improves=False)
    cal.fit(odds, labels, client_ids=clients)
    oracle = CalibratedClassifierCV(
        FrozenEstimator(Scores().fit(odds[:, None], labels)), method="sigmoid"
    ).fit(odds[:, None], labels)
    # Half a bucket is 1e-3 of log-odds; folds of a frozen model are averaged.
    np.testing.assert_allclose(
        cal.predict_proba(odds), oracle.predict_proba(odds[:, None]), atol=2e-3
    )


def test_isotonic_is_that_of_scikit_learn_on_a_fine_grid():
    odds, labels, clients = binary()
    cal = FedHistogramCalibrator(method="isotonic", height=14, if_improves=False)
    cal.fit(odds, labels, client_ids=clients)
    from sklearn.isotonic import IsotonicRegression

    oracle = IsotonicRegression(out_of_bounds="clip").fit(odds, labels).predict(odds)
    error = np.abs(cal.predict_proba(odds)[:, 1] - oracle)
    # Straight between points in probabilities here, in log-odds there; few buckets
    # hold rows of two steps.
    assert np.median(error) < 1e-3 and np.quantile(error, 0.95) < 0.01


@pytest.mark.parametrize("method", METHODS)
def test_how_rows_are_dealt_to_clients_changes_nothing(method):
    odds, labels, clients = binary(1000)
    one = FedHistogramCalibrator(method=method).fit(odds, labels)
    other = FedHistogramCalibrator(method=method).fit(odds, labels, client_ids=clients)
    assert one.predict_proba(odds).tobytes() == other.predict_proba(odds).tobytes()


@pytest.mark.parametrize("method", METHODS)
def test_a_weight_of_two_is_a_row_twice(method):
    odds, labels, _ = binary(500)
    weights = np.arange(500) % 3
    one = FedHistogramCalibrator(method=method).fit(odds, labels, sample_weight=weights)
    rows = np.repeat(np.arange(500), weights)
    other = FedHistogramCalibrator(method=method).fit(odds[rows], labels[rows])
    np.testing.assert_allclose(one.counts_, other.counts_)
    np.testing.assert_allclose(one.predict_proba(odds), other.predict_proba(odds))


@pytest.mark.parametrize("method", MONOTONE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_order_of_binary_scores_is_kept(method, dtype):
    odds, labels, _ = binary(800)
    cal = FedHistogramCalibrator(method=method).fit(odds, labels)
    sorted_odds = np.sort(np.append(odds, [-1e3, -50, 50, 1e3])).astype(dtype)
    proba = cal.predict_proba(sorted_odds)
    assert proba.dtype == dtype
    assert (np.diff(proba[:, 1]) >= 0).all()
    if method == "platt":
        assert (np.diff(cal.decision_function(sorted_odds)) > 0).all()


@pytest.mark.parametrize("method", METHODS)
def test_one_against_the_rest_is_normalised(method, three):
    rows, labels, _ = three
    cal = FedHistogramCalibrator(method=method).fit(rows, labels)
    w = cal.curve_weight_
    assert 0.5 < w < 1
    pairs = zip(cal._curves(), log_odds(rows).T, strict=True)
    values = np.stack([expit(w * c(o) + (1 - w) * o) for c, o in pairs], axis=1)
    expected = values / values.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(cal.predict_proba(rows), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_top_label_gives_the_top_what_its_curve_says(method, three):
    rows, labels, _ = three
    cal = FedHistogramCalibrator(method=method, multiclass="top").fit(rows, labels)
    after = cal.predict_proba(rows)
    np.testing.assert_allclose(after.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(after.argmax(axis=1), rows.argmax(axis=1))
    own, w = log_odds(rows).max(axis=1), cal.curve_weight_
    assert w > 0.5
    value = expit(w * cal._curves()[0](own) + (1 - w) * own)
    held = value > 1 / 3 + 1e-3  # less cannot be the most probable of three
    assert held.mean() > 0.9
    np.testing.assert_allclose(after.max(axis=1)[held], value[held], rtol=1e-9)


def apply_top(rows, curve):
    cal = SimpleNamespace(
        curve_weight_=1.0,
        if_improves=True,
        classes_=range(rows.shape[1]),
        scores_="top",
        _kind=curve.kind,
        curve_points_=[curve.points],
        curve_values_=[curve.values],
    )
    return map_rows(lambda x: score_curves(cal, x), rows, lambda out, _: out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_classes", [3, 10])
def test_no_curve_takes_the_top_from_its_class(n_classes, dtype):
    rng = np.random.default_rng(3)
    rows = 4 * rng.normal(size=(500, n_classes))
    rows -= rows.max(axis=1, keepdims=True)
    rows = rows.astype(dtype)
    rank = np.argsort(rows, axis=1)
    for shift in (-30.0, -5.0, 0.0, 5.0):
        curve = Curve("platt", np.empty(0), np.array([0.5, shift]))
        out = apply_top(rows, curve)
        assert out.dtype == dtype
        np.testing.assert_array_equal(np.argsort(out, axis=1), rank)
        assert (softmax(out, axis=1).max(axis=1) >= 1 / n_classes).all()


def test_a_top_close_to_certain_keeps_its_digits():
    rows = np.array([[0.0, -60.0, -61.0], [0.0, -300.0, -300.0]])
    half = Curve("platt", np.empty(0), np.array([0.5, 0.0]))
    out = apply_top(rows, half)
    np.testing.assert_allclose(
        log_odds(out).max(axis=1), log_odds(rows).max(axis=1) / 2
    )


@pytest.mark.parametrize("multiclass", ["ovr", "top"])
def test_calibration_lowers_the_log_loss(multiclass, three):
    rows, labels, _ = three
    cal = FedHistogramCalibrator(multiclass=multiclass).fit(rows[:3000], labels[:3000])
    which = np.arange(3000), labels[3000:]
    before = -log_softmax(rows[3000:], axis=1)[which].mean()
    after = -cal.predict_log_proba(rows[3000:])[which].mean()
    assert after < before - 0.03


@pytest.mark.parametrize(
    "privacy",
    [
        CentralDP(3.0),
        CentralDP(3.0, unit="example"),
        DistributedDP(3.0),
        DistributedDP(3.0, mode="faithful"),
        SourceDP(3.0),
    ],
    ids=lambda p: repr(p)[:40],
)
def test_private_curves_help_with_many_rows(privacy):
    odds, labels, clients = binary(20_000, 2000)
    cal = FedHistogramCalibrator(privacy=privacy, method="platt", random_state=0)
    cal.fit(odds, labels, client_ids=clients if privacy.unit == "client" else None)
    exact = FedHistogramCalibrator(method="platt").fit(odds, labels)
    assert cal.improves_ and cal.privacy_.eps == 3.0
    np.testing.assert_allclose(
        cal.predict_proba(odds), exact.predict_proba(odds), atol=0.06
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("privacy", [DistributedDP(1.0), LocalDP(5.0)], ids=type)
def test_scores_that_are_almost_certain_do_not_hide_what_a_curve_saves(method, privacy):
    # Bins at either end have fewer examples of the other label than the noise is wide.
    rng = np.random.default_rng(4)
    true = rng.choice([-1, 1], 20_000) * rng.gamma(3, 1.3, 20_000)
    labels = (rng.random(20_000) < expit(true)).astype(int)
    cal = FedHistogramCalibrator(privacy=privacy, method=method, random_state=0)
    cal.fit(2 * true, labels, client_ids=np.arange(20_000))
    # A saving of some 1300, with an optimism of 200 at most; less by BBQ.
    assert cal.curve_weight_ > (0.5 if "bbq" in method else 0.95)

    def loss(odds):
        return np.mean(np.logaddexp(0, np.where(labels == 1, -odds, odds)))

    assert loss(cal.decision_function(2 * true)) < loss(2 * true) - 0.02


@pytest.mark.filterwarnings("ignore::skfedcal.exceptions.CalibrationWarning")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_clients", [1, 5, 60])
def test_counts_that_are_all_noise_do_no_harm(method, n_clients):
    odds, labels, _ = binary(n_clients, n_clients)
    for seed in range(20):
        cal = FedHistogramCalibrator(
            privacy=LocalDP(2.0), method=method, classes=[0, 1], random_state=seed
        )
        cal.fit(odds, labels, client_ids=np.arange(n_clients))
        assert np.isfinite(cal.gain_) and cal.curve_weight_ == 0
        raw = cal.set_params(if_improves=False).predict_proba(odds)
        assert np.isfinite(raw).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_local_reports_help_with_many_clients(n_classes):
    rng = np.random.default_rng(0)
    true = rng.normal(size=(40_000, n_classes)) * 1.5
    labels = (true + rng.gumbel(size=true.shape)).argmax(axis=1)
    cal = FedHistogramCalibrator(privacy=LocalDP(5.0), random_state=0)
    cal.fit(3 * true, labels, client_ids=np.arange(40_000))
    assert cal.improves_ and cal.counts_.shape == (1, 2, 32)
    which = np.arange(1000), labels[:1000]
    before = -log_softmax(3 * true[:1000], axis=1)[which].mean()
    assert -cal.predict_log_proba(3 * true[:1000])[which].mean() < before - 0.05


def test_noise_alone_leaves_the_input():
    odds, labels, clients = binary(400, 40)
    cal = FedHistogramCalibrator(0.05, random_state=0)
    with pytest.warns(CalibrationWarning, match="unit='example'"):
        cal.fit(odds, labels, client_ids=clients)
    assert not cal.improves_ and cal.curve_weight_ == 0
    assert "the input is returned unchanged" in cal.reason_
    np.testing.assert_allclose(cal.predict_proba(odds)[:, 1], expit(odds))
    cal.set_params(if_improves=False)
    assert np.abs(cal.predict_proba(odds)[:, 1] - expit(odds)).max() > 0.01
    assert "used without shrinkage" in cal.reason_


@pytest.mark.parametrize("eps", [None, 1.0])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_calibrated_scores_are_left_alone(method, eps):
    odds, labels, clients = binary(20_000, 2000, scale=1.0, seed=2)
    cal = FedHistogramCalibrator(eps, method=method, random_state=0)
    with pytest.warns(CalibrationWarning, match="may already be calibrated"):
        cal.fit(odds, labels, client_ids=clients)
    assert not cal.improves_
    np.testing.assert_allclose(cal.predict_proba(odds)[:, 1], expit(odds))


@pytest.mark.parametrize("method", METHODS)
def test_the_curve_is_blended_with_the_input_in_log_odds(method):
    odds, labels, _ = binary(400, seed=1)
    cal = FedHistogramCalibrator(method=method).fit(odds, labels)
    w = cal.curve_weight_
    assert 0 < w < 1 and cal.improves_
    expected = w * cal._curves()[0](odds) + (1 - w) * odds
    np.testing.assert_allclose(cal.decision_function(odds), expected, atol=1e-9)
    assert f"the curve has a weight of {100 * w:.0f} %" in cal.reason_
    raw = cal.set_params(if_improves=False).decision_function(odds)
    np.testing.assert_allclose(raw, cal._curves()[0](odds), atol=1e-9)


def test_what_was_chosen_is_said_in_words():
    odds, labels, clients = binary(20_000, 2000)
    cal = FedHistogramCalibrator(1.0, random_state=0)
    cal.fit(odds, labels, client_ids=clients)
    assert cal.improves_ and cal.evidence_ > 3.5 and cal.gain_ > 0
    for words in (
        f"{cal.evidence_:.1f}",
        "3.5 needed",
        cal.method_,
        f"{cal.gain_:.4f}",
    ):
        assert words in cal.reason_
    exact = FedHistogramCalibrator().fit(odds, labels)
    assert "(1 needed)" in exact.reason_


@pytest.mark.parametrize(
    ("privacy", "n_clients", "expected"),
    [
        (None, 5000, (None, False)),
        (CentralDP(1.0), 50, (None, True)),
        (DistributedDP(0.1), 20_000, (None, True)),
        (CentralDP(0.1), 100_000, (1, False)),
        (CentralDP(1.0), 100_000, (10, False)),
        (DistributedDP(1.0, adjacency="replace"), 40_000, (5, False)),
        (CentralDP(1.0, unit="example"), 5000, (1, False)),
        (SourceDP(1.0), 5000, (1, False)),
        (LocalDP(1.0), 5000, (1, False)),
    ],
)
def test_what_a_client_sends_is_decided_by_public_numbers(privacy, n_clients, expected):
    model = FedHistogramCalibrator(privacy=privacy)._privacy_model()
    setting = FitSetting(2, model.private, model.unit, False, n_clients)
    assert contribution("auto", setting, model, 272) == expected
    assert contribution(1, setting, model, 272) == (1, False)


def test_under_privacy_every_client_counts_as_one():
    odds, labels, _ = binary(300)
    clients = np.minimum(np.arange(300), 99)  # the last one has 201 rows
    cal = FedHistogramCalibrator(1e6, height=3, levels=[3], random_state=0)
    cal.fit(odds, labels, client_ids=clients)
    exact = FedHistogramCalibrator(height=3, space="both")
    weights = np.where(clients == 99, 1 / 201, 1.0)
    exact.fit(odds, labels, sample_weight=weights)
    # Shares of a row are multiples of 2**-16.
    np.testing.assert_allclose(cal.counts_, exact.counts_, atol=0.01)
    assert cal.counts_.sum() == pytest.approx(100, abs=0.01)


@pytest.mark.parametrize("privacy", [None, CentralDP(1.0), LocalDP(5.0)])
@pytest.mark.parametrize("multiclass", ["auto", "top"])
def test_rows_of_probabilities_sum_to_one(multiclass, privacy, three):
    rows, labels, clients = three
    cal = FedHistogramCalibrator(
        privacy=privacy, multiclass=multiclass, if_improves=False, random_state=0
    )
    proba = cal.fit(rows, labels, client_ids=clients).predict_proba(rows)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, atol=1e-12)
    assert (proba >= 0).all()


def test_only_so_many_rows_of_a_client_count_under_privacy():
    odds, labels, _ = binary(300)
    clients = np.minimum(np.arange(300), 99)  # the last one has 201 rows
    cal = FedHistogramCalibrator(1e4, clip=4, if_improves=False, random_state=0)
    cal.fit(odds, labels, client_ids=clients)
    assert cal.counts_.sum() == pytest.approx(103, abs=1)
    exact = FedHistogramCalibrator(clip=4).fit(odds, labels, client_ids=clients)
    assert exact.counts_.sum() == 103


@pytest.mark.parametrize(
    ("scores", "privacy", "norm"),
    [
        ("binary", CentralDP(1.0), "l1"),
        ("top", DistributedDP(1.0), "l1"),
        ("ovr", CentralDP(1.0), "l2"),
        ("ovr", SourceDP(1.0), "l1"),
    ],
)
@pytest.mark.parametrize("clip", [7, "auto"])
def test_a_client_sends_no_more_than_its_bound(scores, privacy, norm, clip):
    # All rows alike: the largest norm that there is.
    n_classes = 2 if scores == "binary" else 3
    rows = np.tile(np.arange(n_classes, dtype=float), (30, 1))
    data = FederatedDataset(
        rows, np.zeros(30, int), np.array([0, 30]), ["a"], n_classes
    )
    cal = FedHistogramCalibrator(privacy=privacy, multiclass="ovr", clip=clip)
    if scores == "top":
        cal.set_params(multiclass="top")
    algorithm = cal._make_algorithm(FitSetting(n_classes, True, "client", False))
    assert algorithm.norm == norm and algorithm.scores == scores
    start = algorithm.broadcast(algorithm.init(n_classes))
    spec = algorithm.spec(start)
    for name, sent in algorithm.query(start, data).items():
        value = np.asarray(sent.dense() if hasattr(sent, "dense") else sent).ravel()
        size = np.abs(value).sum() if norm == "l1" else np.linalg.norm(value)
        assert size == pytest.approx(spec[name].clip)


def test_cohorts_of_several_rounds_add_up():
    odds, labels, clients = binary(1000, 50)
    runner = FederatedRunner(n_rounds=5, cohort="permuted", cohort_size=10)
    cal = FedHistogramCalibrator(runner=runner, random_state=0)
    cal.fit(odds, labels, client_ids=clients)
    whole = FedHistogramCalibrator().fit(odds, labels)
    np.testing.assert_array_equal(cal.counts_, whole.counts_)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("multiclass", ["ovr", "top"])
def test_a_saved_calibrator_predicts_the_same_bits(method, multiclass, three, tmp_path):
    rows, labels, _ = three
    cal = FedHistogramCalibrator(method=method, multiclass=multiclass)
    cal.fit(rows, labels)
    cal.save(tmp_path / "cal.json")
    for again in (load(tmp_path / "cal.json"), pickle.loads(pickle.dumps(cal))):
        assert again.predict_proba(rows).tobytes() == cal.predict_proba(rows).tobytes()
        assert again.method_ == method and len(again.curve_values_) == len(cal.counts_)
        assert again.reason_ == cal.reason_


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("method_", lambda v: "spline"),
        ("scores_", lambda v: "top"),
        ("curve_weight_", lambda v: 1.5),
        ("gain_", lambda v: "much"),
        ("curve_values_", lambda v: v[:1]),
        ("curve_values_", lambda v: [{**x, "array": [None, 1.0]} for x in v]),
        ("curve_points_", lambda v: [{**x, "array": [1.0], "shape": [1]} for x in v]),
    ],
)
def test_a_broken_file_is_refused(key, change, three, tmp_path):
    rows, labels, _ = three
    cal = FedHistogramCalibrator(method="platt", multiclass="ovr").fit(rows, labels)
    path = tmp_path / "cal.json"
    cal.save(path)
    content = json.loads(path.read_text())
    content["fitted"][key] = change(content["fitted"][key])
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"cal\.json"):
        load(path)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"levels": (4, 2)}, "levels="),
        ({"levels": (0, 4)}, "levels="),
        ({"levels": (2, 4), "height": 6}, "height=6"),
        ({"privacy": LocalDP(1.0), "multiclass": "ovr"}, "multiclass='ovr'"),
        ({"privacy": LocalDP(1.0), "clip": 5}, "clip=5"),
        ({"privacy": SourceDP(1.0), "clip": 5}, "clip=5"),
        ({"privacy": CentralDP(1.0, unit="example"), "clip": 5}, "clip=5"),
        ({"privacy": LocalDP(1.0), "levels": (2, 4)}, "levels="),
    ],
)
def test_what_cannot_be_is_named(params, message, three):
    rows, labels, clients = three
    cal = FedHistogramCalibrator(**params)
    with pytest.raises(ValueError, match=message):
        cal.fit(rows, labels, client_ids=clients)


def test_levels_are_public_numbers():
    cal = FedHistogramCalibrator(1.0, levels=[2, 5])

    def levels(private, **params):
        setting = FitSetting(2, private, "client", False)
        return FedHistogramCalibrator(**params)._make_algorithm(setting).levels

    assert levels(False) == (10,)
    assert levels(True, eps=1.0) == (3, 7)
    assert levels(True, eps=1.0, height=10) == (2, 6, 10)
    assert levels(True, privacy=LocalDP(1.0)) == (4,)
    assert cal._make_algorithm(FitSetting(2, True, "client", False)).levels == (2, 5)


def test_an_algorithm_is_hashable_plain_data():
    assert hash(ClassScoreCounts((3, 7))) == hash(ClassScoreCounts((3, 7)))
